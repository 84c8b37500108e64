"""`sidecar policy test`: runs the policy's own tests."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import click

from sidecar.cli.command import EXISTING_FOLDER, FILE, INVALID, TESTS_FAILED, config_option, json_option, print_json
from sidecar.cli.terminal import progress
from sidecar.errors import ConfigError, visible_lines
from sidecar.policy import Engine
from sidecar.policy.patterns import glob
from sidecar.policy_tools.policy_location import PolicyLocation, configured, in_folder
from sidecar.policy_tools.suites.loading import PolicyTest, read_suites
from sidecar.policy_tools.suites.report import data, junit, text
from sidecar.policy_tools.suites.suite import FOLDER, run_suites

_MATTERS = (".csv", ".conf", ".yaml", ".yml")  # but not the report that a run may write next to them


@click.command("test")
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
@config_option
@click.option(
    "--policy",
    "folder",
    type=EXISTING_FOLDER,
    help="Another policy: a folder with policies/ (and models/), or of rows.",
)
@click.option("--coverage", "covers", is_flag=True, help="Name the rules that no test exercises.")
@click.option("--fail-under", type=click.FloatRange(0, 100), help="Exit with 4 below this coverage, in percent.")
@click.option("--junit", "junit_path", type=FILE, help="Also write JUnit XML.")
@click.option(
    "--filter", "pattern", help='Only tests whose "suite: name" contains this text, or matches it with * or as /regex/.'
)
@click.option("--watch", is_flag=True, help="Run again whenever models, policies or tests change.")
@json_option
@click.option("-v", "--verbose", is_flag=True, help="Print every test, not only those that fail.")
def test(
    paths: tuple[Path, ...],
    config: Path,
    folder: Path | None,
    covers: bool,
    fail_under: float | None,
    junit_path: Path | None,
    pattern: str | None,
    watch: bool,
    as_json: bool,
    verbose: bool,
) -> None:
    """Run the policy's tests with the engine and the limiter that the sidecar serves with.

    PATHS are test files or folders of them; by default `tests` in the policy folder. A test exercises a rule if its
    result depends on that rule: the rule allowed, denied, or had the condition or expiry that was the reason. Exits
    with 4 if a test fails. With --json, each run prints one line."""
    wanted = wanted_by(pattern)

    def place() -> PolicyLocation:
        return in_folder(folder) if folder is not None else configured(config, os.environ)

    def once() -> int:
        try:
            here = place()
            source, budgets, own = here.load(), here.budgets(), here.policies / FOLDER
            suites = read_suites(paths or ([own] if own.exists() else []), inside=None if paths else here.policies)
        except ConfigError as error:
            click.echo(str(error), err=True)
            return INVALID
        engine, started = Engine(source), time.monotonic()
        coverage = covers or fail_under is not None
        with progress("tests") as tell:
            report = run_suites(
                engine, source, suites, budgets, now_s=time.time(), wanted=wanted, coverage=coverage, on_each=tell
            )
        took_s = time.monotonic() - started
        if junit_path is not None:
            junit_path.write_bytes(junit(report, took_s))
        if as_json:
            print_json(data(report, engine.revision, took_s), as_line=True)
        else:
            click.echo(visible_lines("\n".join(text(report, took_s, verbose=verbose))))
        if not report.results:
            excluded = pattern is not None and any(suite.tests for suite in report.suites)
            where = ", ".join(map(str, paths)) or own
            click.echo("no test fits the filter" if excluded else f"no tests in {where}", err=True)
            # a folder without tests is not a failure, but missing requested tests are
            return TESTS_FAILED if paths or pattern is not None or fail_under else 0
        found = report.coverage
        if fail_under is not None and found is not None and found.percent < fail_under:
            click.echo(f"coverage is {found.percent:.1f} %, below {fail_under:g} %", err=True)
            return TESTS_FAILED
        return TESTS_FAILED if report.failures else 0

    def watched() -> Sequence[Path]:
        try:
            here = place()
            ours = (here.own_models, here.policies, config, *paths)
        except ConfigError:
            ours = (config.parent, *paths)
        return [path for path in ours if path.exists()]

    code = once()
    sys.exit(run_again(once, changes_in(watched()), code) if watch else code)


def wanted_by(pattern: str | None) -> Callable[[PolicyTest], bool]:
    """Returns a predicate for `--filter`: a /regular expression/, a pattern with `*`, or a part of `suite: name`.
    Raises UsageError."""
    if pattern is None:
        return lambda test: True
    if len(pattern) > 1 and pattern.startswith("/") and pattern.endswith("/"):
        try:
            expression = re.compile(pattern[1:-1])
        except re.error as error:
            raise click.UsageError(f"--filter {pattern} is not a regular expression: {error}") from None
        return lambda test: expression.search(_full_name(test)) is not None
    written = pattern.casefold()
    fitting = written if "*" in written else f"*{written}*"
    return lambda test: glob(_full_name(test).casefold(), fitting)


def _full_name(test: PolicyTest) -> str:
    return f"{test.suite}: {test.name}"


def run_again(once: Callable[[], int], changes: Iterable[object], code: int) -> int:
    """Runs again for each change, until the changes end or Ctrl-C. Returns the last exit code, initially `code`."""
    try:
        for _ in changes:
            click.echo(f"--- {time.strftime('%H:%M:%S')}", err=True)
            code = once()
    except KeyboardInterrupt:
        pass
    return code


def changes_in(paths: Sequence[Path]) -> Iterator[object]:
    """Yields one item for each change of policy files; several within a moment are one change."""
    from watchfiles import watch  # native code that only --watch needs

    return iter(watch(*paths, watch_filter=lambda _, path: path.endswith(_MATTERS), raise_interrupt=True))
