"""`sidecar audit`: does the evidence hold, and what does it say?"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, get_args

import click
import orjson

from sidecar.audit.chain import MAX_LINE_BYTES, ascii_json
from sidecar.audit.digest import AuditKey, load_key
from sidecar.audit.evidence import named_in, read_evidence
from sidecar.audit.record import EVENTS
from sidecar.audit.render import render_kept, render_record, wants_colour
from sidecar.audit.report import Report
from sidecar.audit.verify import lies_beside, verify
from sidecar.cli.gathering import gather
from sidecar.cli.moments import Moment
from sidecar.errors import AuditStatus, ConfigError, Reason

EVIDENCE_BROKEN, CONFIG_INVALID = 5, 3  # CONTRACT 3
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group("audit")
def audit() -> None:
    """Check and read the evidence."""


audit.add_command(gather)


@audit.command("verify")
@click.argument("paths", nargs=-1, required=True, type=_FILE)
@click.option("--key", "key_path", type=_FILE, help="The audit key; without it nobody knows who made the anchor.")
@click.option("--part", is_flag=True, help="Earlier lines and the anchor may be elsewhere.")
@click.option(
    "--evidence", multiple=True, type=_FILE, help="A file of results that were kept; more than once for more."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def verify_command(
    paths: tuple[Path, ...], key_path: Path | None, part: bool, evidence: tuple[Path, ...], as_json: bool
) -> None:
    """Find changed, removed, moved, inserted and cut lines in the files of one log, given oldest first; with
    --evidence also results that are not those that the log names.

    Exits 5 when the evidence does not hold, and says what was proved and what was not.
    """
    key = _key(key_path)
    started = time.monotonic()
    report = verify(paths, key=key, part=part, evidence=evidence)
    took_s = time.monotonic() - started
    if key_path is not None and any(lies_beside(key_path, path) for path in paths):
        report.unproved.append("anything against whoever can write both log and key: the key lies in the log's folder")
    if as_json:
        click.echo(orjson.dumps(_as_data(report)))
    else:
        _print(report, took_s)
    if not report.ok:
        sys.exit(EVIDENCE_BROKEN)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which records are wanted; None and "" mean all. Principals and objects take `*`."""

    principal: str = ""
    object: str = ""
    event: str | None = None
    status: str | None = None
    reason: str | None = None
    decision_id: str = ""
    since: str = ""  # an RFC 3339 time as the records have it, so that text order is time order

    def wants(self, record: dict[str, Any]) -> bool:
        """Whether everything asked for is so."""
        exact = ("event", "status", "reason", "decision_id")
        return (
            all(getattr(self, name) in (None, "", record.get(name)) for name in exact)
            and self.since <= str(record.get("timestamp"))
            and _matches(self.object, [record.get("object")])
            and _matches(self.principal, record.get("chain"))
        )


@audit.command("show")
@click.argument("paths", nargs=-1, required=True, type=_FILE)
@click.option("--principal", default="", help="Anywhere in the chain; `*` matches any run of characters.")
@click.option("--object", "object_", default="", help="`*` matches any run of characters.")
@click.option("--event", type=click.Choice(EVENTS), help="Only this kind of record.")
@click.option("--status", type=click.Choice(get_args(AuditStatus)), help="How it ended.")
@click.option("--reason", type=click.Choice([*map(str, Reason)]), show_choices=False, help="Why it was refused.")
@click.option("--decision-id", default="", help="All records of one request.")
@click.option("--since", type=Moment(), help="A time (2026-11-27T12:00:00Z) or a span back from now (15m, 2h, 7d).")
@click.option("--evidence", "kept", is_flag=True, help="The results that were kept, in place of the records.")
@click.option("--evidence-file", type=_FILE, help="Where they are; by default evidence/evidence.jsonl beside audit/.")
@click.option("--json", "as_json", is_flag=True, help="The lines themselves, as JSON Lines.")
def show_command(
    paths: tuple[Path, ...],
    principal: str,
    object_: str,
    event: str | None,
    status: str | None,
    reason: str | None,
    decision_id: str,
    since: str | None,
    kept: bool,
    evidence_file: Path | None,
    as_json: bool,
) -> None:
    """Print records, oldest first. This does not check them: `audit verify` does.

    With --evidence: the results that were kept of the requests that are wanted, each with whether it is the one that
    the log names (`as_recorded`).
    """
    wanted = Filter(principal, object_, event, status, reason, decision_id, since or "")
    colour = wants_colour(sys.stdout, os.environ)
    if kept:
        _show_kept(
            paths, wanted, evidence_file or paths[0].parent.parent / "evidence" / "evidence.jsonl", as_json, colour
        )
        return
    for path in paths:
        for record in _records(path):
            if wanted.wants(record):
                click.echo(ascii_json(record) if as_json else render_record(record, colour=colour), color=colour)


def _show_kept(paths: tuple[Path, ...], wanted: Filter, file: Path, as_json: bool, colour: bool) -> None:
    outcomes = [record for path in paths for record in _records(path) if wanted.wants(record)]
    named = {each.id: each for record in outcomes for each in named_in(record)}
    try:
        for kept in read_evidence(file):
            if kept.id not in named:
                continue
            as_recorded = named.pop(kept.id).sha256 == kept.sha256
            shown = {**kept.record, "as_recorded": as_recorded}
            click.echo(
                ascii_json(shown) if as_json else render_kept(kept.record, as_recorded, colour=colour), color=colour
            )
    except OSError as error:
        if named:
            raise click.ClickException(f"{file}: {error.strerror}; name it with --evidence-file") from None
    for lost in named:
        click.echo(f"{file}: the result {lost} is nowhere; run `sidecar audit verify --evidence`", err=True)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    unreadable = 0
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES):
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError:
                record = None
            if isinstance(record, dict):
                yield record
            else:
                unreadable += 1
    if unreadable:
        click.echo(f"{path}: {unreadable} lines are no records; run `sidecar audit verify`", err=True)


def _print(report: Report, took_s: float) -> None:
    for problem in report.problems:
        click.echo(str(problem))
    if report.problem_count > len(report.problems):
        click.echo(f"and {report.problem_count - len(report.problems)} more")
    events = ", ".join(f"{count} {event}" for event, count in sorted(report.events.items()))
    click.echo(f"{report.records} records in {took_s:.1f} s" + (f" ({events})" if events else ""))
    for what in report.proved:
        click.echo(f"proved      {what}")
    for what in report.unproved:
        click.echo(f"not proved  {what}")
    for what in report.notes:
        click.echo(f"note        {what}")
    if report.unfinished:
        click.echo(f"note        {len(report.unfinished)} decisions have no outcome: cut off by a crash, or under way")
    click.echo("the evidence holds" if report.ok else f"the evidence does NOT hold: {report.problem_count} problems")


def _as_data(report: Report) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "records": report.records,
        "first_seq": report.first_seq,
        "last_seq": report.last_seq,
        "events": dict(report.events),
        "problem_count": report.problem_count,
        "problems": [asdict(problem) for problem in report.problems],
        "proved": report.proved,
        "not_proved": report.unproved,
        "notes": report.notes,
        "unfinished": len(report.unfinished),
    }


def _key(path: Path | None) -> AuditKey | None:
    if path is None:
        return None
    try:
        return load_key(path)
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(CONFIG_INVALID)


def _matches(pattern: str, names: object) -> bool:
    """Whether one of a record's names does. `*` is the only wildcard (CONTRACT 2.1)."""
    literal = pattern.replace("[", "[[]").replace("?", "[?]")
    return not pattern or (isinstance(names, list) and any(fnmatchcase(str(name), literal) for name in names))
