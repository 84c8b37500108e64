"""`sidecar audit verify`: verifies the audit log."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from sidecar.audit.chain import ascii_json
from sidecar.audit.checkpoints import Keys, read_public_keys
from sidecar.audit.digest import load_key
from sidecar.audit.gather import gather, lines_in
from sidecar.audit.rendering import plain, plain_data
from sidecar.audit.segments import files_of
from sidecar.audit.verification_report import Ending, VerificationReport
from sidecar.audit.verify import lies_beside, verify as verified, verify_current
from sidecar.cli.audit.log_files import CONFIG, LOG, configured, logs, logs_named
from sidecar.cli.command import EXISTING_FILE, INVALID, UNVERIFIED, CommandFailed, json_option
from sidecar.cli.terminal import progress

LOG_OR_INPUT = click.Path(exists=True, allow_dash=True, path_type=Path)
STANDARD_INPUT = (Path("-"),)
MAX_NAMED = 3  # writers named in text output
_ENDS: Mapping[Ending, str] = {
    "sealed": "sealed: a stop, and a checkpoint of it",
    "attested": "attested: the last record is a checkpoint",
    "open": "open: the last record is not a checkpoint",
}


@click.command("verify")
@click.argument("paths", nargs=-1, type=LOG_OR_INPUT)
@CONFIG
@click.option(
    "--key",
    "key_paths",
    multiple=True,
    type=EXISTING_FILE,
    help="The audit key and earlier ones. Without a key, the anchor proves nothing.",
)
@click.option("--part", is_flag=True, help="Accept a part of a log, without earlier lines and the anchor.")
@click.option("--evidence", multiple=True, type=LOG, help="Stored results: a file or a folder.")
@click.option(
    "--checkpoints",
    multiple=True,
    type=EXISTING_FILE,
    help="Published checkpoints: a file with the saved standard output.",
)
@click.option(
    "--public-key",
    "--jwks",
    "public_key_paths",
    multiple=True,
    type=EXISTING_FILE,
    help="The keys that sign checkpoints: PEM, or the content of /.well-known/jwks.json.",
)
@json_option
def verify(
    paths: tuple[Path, ...],
    config: Path,
    key_paths: tuple[Path, ...],
    part: bool,
    evidence: tuple[Path, ...],
    checkpoints: tuple[Path, ...],
    public_key_paths: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Find changed, removed, moved, inserted and truncated lines in one log: its folder, or its files, oldest first.
    For a folder that contains folders of logs, such as those of workers, each log is verified separately. --evidence
    also verifies stored results, and --checkpoints compares the log with published checkpoints. With -, standard
    input is read, and each chain in it is verified as a part. Without PATHS, all configured logs are verified, with
    the configured keys unless --key names others.

    Prints what was proved and what was not, and exits with 5 if the log does not verify."""
    if not paths:
        settings = configured(config)
        known = (settings.audit_key_path, *settings.previous_audit_key_paths)
        key_paths = key_paths or tuple(path for path in known if path.exists())
    named = logs_named(paths, config)
    if len(named) > 1 and (checkpoints or evidence):
        option = "--checkpoints" if checkpoints else "--evidence"
        raise click.UsageError(f"{option} needs one log, and there are {len(named)}: name one of {named[0][0]} …")
    ring, public_keys = [load_key(path) for path in key_paths], _public_keys(public_key_paths)

    def check(files: Sequence[Path]) -> VerificationReport:
        size = sum(path.stat().st_size for path in files)
        if any(each.samefile(path) for each in checkpoints for path in files):
            raise click.UsageError(
                "a log cannot be its own checkpoint: use --public-key without --checkpoints to check those in the log"
            )
        with progress("bytes read", size) as tell:
            return verified(
                files,
                key=ring[0] if ring else None,
                older=ring[1:],
                part=part or paths == STANDARD_INPUT,
                evidence=logs(evidence),
                checkpoints=checkpoints,
                public_keys=public_keys,
                progress=tell,
            )

    holds = True
    with TemporaryDirectory(prefix="sidecar-audit") as aside:
        for chain in (chain for one in named for chain in _chains(one, part, Path(aside))):
            started = time.monotonic()
            files, report = verify_current(chain, check)
            took_s = time.monotonic() - started
            if any(lies_beside(key_path, path) for key_path in key_paths for path in files):
                report.unproved.append(
                    "anything against an attacker who can write both log and key: the key is in the log's folder"
                )
            if as_json:
                click.echo(ascii_json(plain_data(report.as_data())))
            else:
                if len(named) > 1:
                    click.echo(plain(f"{'log':<10}  {files[-1]}"))
                for line in _lines(report, took_s):
                    click.echo(plain(line))  # names and texts in it may come from a forger
            holds = holds and report.ok
    if not holds:
        sys.exit(UNVERIFIED)


Chain = Callable[[], tuple[Path, ...]]
"""The files of one chain, in their current state."""


def _chains(paths: tuple[Path, ...], part: bool, aside: Path) -> Iterator[Chain]:
    if paths == STANDARD_INPUT:
        found = gather(lines_in(sys.stdin.buffer), aside / "standard-input")
        if not found:
            raise click.UsageError("there is no audit record in standard input")
        for path in found:
            yield partial(logs, (path,))
    elif Path("-") in paths:
        raise click.UsageError("standard input is verified alone, without files")
    elif len(paths) == 1 and paths[0].is_file() and not part:
        yield partial(files_of, paths[0])
    else:
        yield partial(logs, paths)


def _public_keys(paths: tuple[Path, ...]) -> Keys | None:
    found: dict[str, Ed25519PublicKey] = {}
    for path in paths:
        try:
            found |= read_public_keys(path)
        except (OSError, ValueError) as error:
            raise CommandFailed(f"{path}: {error}", INVALID)
    return found if paths else None


def _lines(report: VerificationReport, took_s: float) -> Iterator[str]:
    yield from map(str, report.problems)
    if report.problem_count > len(report.problems):
        yield f"and {report.problem_count - len(report.problems)} more"
    events = ", ".join(f"{count} {event}" for event, count in sorted(report.events.items()))
    yield f"{report.records} records in {took_s:.1f} s" + (f" ({events})" if events else "")
    for word, told in (("proved", report.proved), ("not proved", report.unproved), ("note", report.notes)):
        for what in told:
            yield f"{word:<10}  {what}"
    yield f"{'end':<10}  {_ENDS[report.end]}"
    if report.instances:
        more = len(report.instances) - MAX_NAMED
        named = ", ".join(report.instances[:MAX_NAMED]) + (f" and {more} more (--json has them)" if more > 0 else "")
        yield f"{'note':<10}  written by {named}"
    if report.unfinished:
        yield f"{'note':<10}  decisions without an outcome, cut off by a crash or under way: {len(report.unfinished)}"
    problems = f"{report.problem_count} problem{'s' * (report.problem_count != 1)}"
    yield "the evidence holds" if report.ok else f"the evidence does NOT hold: {problems}"
