"""`sidecar policy test`: runs the policy's own tests."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import orjson

from sidecar.errors import ConfigError, visible_lines
from sidecar.policy import Engine
from sidecar.policy.patterns import glob
from sidecar.policy_tools.policy_location import PolicyLocation, configured, in_folder
from sidecar.policy_tools.suites import FOLDER, PolicySuite, PolicyTest, read_suites, run_suites
from sidecar.policy_tools.suites.report import Telling, junit

GOOD, INVALID, FAILED = 0, 3, 4  # CONTRACT 3
PROGRESS_EVERY_S = 0.25
_MATTERS = (".csv", ".conf", ".yaml", ".yml")  # not the report that a run may write beside them
_PATH = click.Path(exists=True, path_type=Path)


@click.command("test")
@click.argument("paths", nargs=-1, type=_PATH)
@click.option("-c", "--config", type=click.Path(path_type=Path), default="sidecar.yaml", show_default=True)
@click.option(
    "--policy",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Another policy: a folder with policies/ (and models/), or of rows.",
)
@click.option("--coverage", is_flag=True, help="Name the rules that no test exercises.")
@click.option("--fail-under", type=click.FloatRange(0, 100), help="Exit 4 below this coverage, in percent.")
@click.option("--junit", "junit_path", type=click.Path(dir_okay=False, path_type=Path), help="Write JUnit XML, too.")
@click.option("--filter", "pattern", help='Only tests whose "suite: name" has this text, fits this *, or this /regex/.')
@click.option("--watch", is_flag=True, help="Run again whenever models, policies or tests change.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a run.")
@click.option("-v", "--verbose", is_flag=True, help="Tell every test, not only those that fail.")
def test(
    paths: tuple[Path, ...],
    config: Path,
    folder: Path | None,
    coverage: bool,
    fail_under: float | None,
    junit_path: Path | None,
    pattern: str | None,
    watch: bool,
    as_json: bool,
    verbose: bool,
) -> None:
    """Run the policy's own tests, on the engine and the limiter that serve.

    PATHS are files of tests, or folders of them; without any, those in `tests` of the policy folder (with --policy, of
    that one). A rule is
    exercised by a test if an answer of it rests on that rule: it allowed, it denied, or its condition or expiry was
    the reason. Exits 4 when a test fails.
    """
    wanted = wanted_by(pattern)
    run = TestRun(
        paths, config, folder, coverage or fail_under is not None, fail_under, junit_path, wanted, as_json, verbose
    )
    code = run.once()
    sys.exit(run_again(run.once, changes_in(run.watched()), code) if watch else code)


@dataclass(frozen=True, slots=True)
class TestRun:
    """The options of the command line. `wanted` is None without a filter."""

    paths: tuple[Path, ...]
    config: Path
    folder: Path | None
    coverage: bool
    fail_under: float | None
    junit_path: Path | None
    wanted: Callable[[PolicyTest], bool] | None
    as_json: bool
    verbose: bool

    def once(self) -> int:
        """Read everything, run the tests and print the result; return the exit code."""
        try:
            return self._told(self._place())
        except ConfigError as error:
            click.echo(str(error), err=True)
            return INVALID

    def _place(self) -> PolicyLocation:
        return in_folder(self.folder) if self.folder is not None else configured(self.config, os.environ)

    def watched(self) -> Sequence[Path]:
        """The files and folders whose changes matter."""
        try:
            place = self._place()
        except ConfigError:
            return [path for path in (self.config.parent, *self.paths) if path.exists()]
        ours = (place.models, place.policies, self.config, *self.paths)
        return [path for path in ours if path.exists()]

    def _told(self, place: PolicyLocation) -> int:
        source = place.load()
        budgets = place.budgets()
        suites = read_suites(self._places_of_tests(place), inside=None if self.paths else place.policies)
        engine = Engine(source)
        started = time.monotonic()
        with TestProgress(sys.stderr.isatty()) as progress:
            report = run_suites(
                engine,
                source,
                suites,
                budgets,
                now_s=time.time(),
                wanted=self.wanted or (lambda test: True),
                coverage=self.coverage,
                on_each=progress.tell,
            )
        telling = Telling(engine, source, report, time.monotonic() - started)
        self._write(telling)
        if not report.results:
            return self._none_found(place, suites)
        return FAILED if report.failures or self._falls_short(telling) else GOOD

    def _places_of_tests(self, place: PolicyLocation) -> Sequence[Path]:
        folder = place.policies / FOLDER
        return self.paths or ([folder] if folder.exists() else [])

    def _write(self, telling: Telling) -> None:
        if self.junit_path is not None:
            _write_file(self.junit_path, junit(telling.report, telling.took_s))
        if self.as_json:
            click.echo(orjson.dumps(telling.data()))
        else:
            click.echo(visible_lines("\n".join(telling.text(verbose=self.verbose))))

    def _none_found(self, place: PolicyLocation, suites: Sequence[PolicySuite]) -> int:
        """Report that there are no tests. A folder without tests is not a failure; missing tests that were named
        are.
        """
        if self.wanted is not None and any(suite.tests for suite in suites):
            click.echo("no test fits the filter", err=True)
        else:
            click.echo(f"no tests in {', '.join(map(str, self.paths)) or place.policies / FOLDER}", err=True)
        asked_for = bool(self.paths) or self.wanted is not None or bool(self.fail_under)
        return FAILED if asked_for else GOOD

    def _falls_short(self, telling: Telling) -> bool:
        found = telling.report.coverage
        if self.fail_under is None or found is None or found.percent >= self.fail_under:
            return False
        click.echo(f"coverage is {found.percent:.1f} %, below {self.fail_under:g} %", err=True)
        return True


def _write_file(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise click.UsageError(f"{path} cannot be written: {error.strerror}") from None


def wanted_by(pattern: str | None) -> Callable[[PolicyTest], bool] | None:
    """Return a predicate for a `--filter`: a regular expression between slashes, a pattern with `*`, or a part of the
    text `suite: name`; case-insensitive except for the expression.
    """
    if pattern is None:
        return None
    if len(pattern) > 1 and pattern.startswith("/") and pattern.endswith("/"):
        try:
            expression = re.compile(pattern[1:-1])
        except re.error as error:
            raise click.UsageError(f"--filter {pattern} is no regular expression: {error}") from None
        return lambda test: expression.search(_full_name(test)) is not None
    written = pattern.casefold()
    fitting = written if "*" in written else f"*{written}*"
    return lambda test: glob(_full_name(test).casefold(), fitting)


def _full_name(test: PolicyTest) -> str:
    return f"{test.suite}: {test.name}"


# --- watching ---------------------------------------------------------------------------------------------------------


def run_again(once: Callable[[], int], changes: Iterable[object], code: int) -> int:
    """Run once more for each change, until the changes end or Ctrl-C. Return the last exit code; `code` is that of the
    first run.
    """
    try:
        for _ in changes:
            click.echo(f"--- {time.strftime('%H:%M:%S')}", err=True)
            code = once()
    except KeyboardInterrupt:
        pass
    return code


def changes_in(paths: Sequence[Path]) -> Iterator[object]:
    """Yield one item for each change of policy files; several within a moment count as one."""
    from watchfiles import watch  # native code that only --watch needs

    return iter(watch(*paths, watch_filter=lambda _, path: path.endswith(_MATTERS), raise_interrupt=True))


class TestProgress:
    """A counter on a terminal for longer runs; no output elsewhere."""

    def __init__(self, on_terminal: bool) -> None:
        self._on_terminal = on_terminal
        self._next_s = time.monotonic() + 1.0
        self._shown = False

    def __enter__(self) -> TestProgress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._shown:
            click.echo("\r\x1b[K", err=True, nl=False)

    def tell(self, done: int, total: int) -> None:
        """Show that `done` of `total` tests are done."""
        if self._on_terminal and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + PROGRESS_EVERY_S
            self._shown = True
            click.echo(f"\r{done} of {total} tests", err=True, nl=False)
