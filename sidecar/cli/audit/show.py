"""`sidecar audit show`: filters and prints audit records."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from heapq import merge
from pathlib import Path
from queue import Queue
from threading import Event, Thread
from typing import Any, Final, get_args

import click
import orjson

from sidecar.audit.chain import ascii_json
from sidecar.audit.record import EVENTS, as_seed
from sidecar.audit.record_filter import RecordFilter
from sidecar.audit.rendering import plain, render_kept, render_record, wants_colour
from sidecar.audit.result_store import named_in, read_evidence
from sidecar.audit.tail import follow, lines
from sidecar.cli.audit.log_files import CONFIG, LOG, logs, logs_named, unreadable
from sidecar.cli.command import EXISTING_FILE
from sidecar.cli.timestamps import Moment
from sidecar.errors import AuditStatus, Reason

_TIMESTAMP: Final = re.compile(rb'"timestamp":"([^"]{0,40})"')

MAX_WAITING: Final = 100  # lines that were read and are not printed yet


@click.command("show")
@click.argument("paths", nargs=-1, type=LOG)
@CONFIG
@click.option("--principal", default="", help="A principal anywhere in the chain; `*` matches any run of characters.")
@click.option("--object", "object_", default="", help="Object of the call; `*` matches any run of characters.")
@click.option("--upstream", default="", help="Upstream of the call; `*` matches any run of characters.")
@click.option("--event", type=click.Choice(EVENTS), help="Only records of this kind.")
@click.option("--status", type=click.Choice(get_args(AuditStatus)), help="Only records with this status.")
@click.option(
    "--reason", type=click.Choice([*map(str, Reason)]), show_choices=False, help="Only records with this reason."
)
@click.option("--decision-id", default="", help="Only records of this request.")
@click.option("--run-id", default="", help="Only records of this run, by the id that the caller set.")
@click.option("--since", type=Moment(), help="A time (2026-11-27T12:00:00Z) or a span back from now (15m, 2h, 7d).")
@click.option("--until", type=Moment(), help="End of the time span, exclusive; same formats as --since.")
@click.option("--follow", "follows", is_flag=True, help="Follow the log and print new records.")
@click.option("--evidence", "kept", is_flag=True, help="Print the stored results instead of the records.")
@click.option(
    "--evidence-file",
    type=EXISTING_FILE,
    help="File of the stored results; by default all files of evidence/ next to audit/.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the records as JSON Lines.")
@click.option("--seed", is_flag=True, help="Print JSON Lines with the field names of the original data models.")
def show(
    paths: tuple[Path, ...],
    config: Path,
    object_: str,
    since: str | None,
    until: str | None,
    follows: bool,
    kept: bool,
    evidence_file: Path | None,
    as_json: bool,
    seed: bool,
    **exact: Any,
) -> None:
    """Print the records of a log folder or log files, oldest first; by default those of all configured logs. To verify
    them, use `audit verify`.

    With --evidence, print the stored results of these requests, and in `as_recorded` whether each matches its record.
    """
    if kept and (follows or seed):
        raise click.UsageError("--evidence prints results instead of records: remove --follow and --seed")
    wanted = RecordFilter(object=object_, since=since or "", until=until or "", **exact)
    named = [logs(one) for one in logs_named(paths, config)]
    colour = wants_colour(sys.stdout, os.environ)
    if kept:
        results = [evidence_file] if evidence_file else [path for files in named for path in _results_beside(files)]
        _show_kept(tuple(path for files in named for path in files), wanted, results, as_json, colour)
        return
    records = _records(_followed(named) if follows else _in_order(named), wanted)
    for record in records:
        shown = as_seed(record) if seed else record
        told = ascii_json(shown) if as_json or seed else render_record(record, colour=colour)
        click.echo(told, color=colour)


def _results_beside(files: Sequence[Path]) -> list[Path]:
    """The files of results that belong to a log."""
    beside = files[0].parent.parent / "evidence"
    return sorted(beside.glob("evidence*.jsonl")) or [beside / "evidence.jsonl"]


def _in_order(named: Sequence[Sequence[Path]]) -> Iterator[bytes]:
    """The lines of all logs, by their time."""
    return merge(*map(lines, named), key=_timestamp_in) if len(named) > 1 else lines(named[0])


def _timestamp_in(line: bytes) -> bytes:
    found = _TIMESTAMP.search(line)
    return found[1] if found else b""


def _followed(named: Sequence[Sequence[Path]]) -> Iterator[bytes]:
    """The lines of all logs, followed by the lines appended to any of them."""
    wait = partial(Event().wait, 0.2)
    if len(named) == 1:
        yield from follow(named[0], wait)
    found = Queue[bytes | OSError](MAX_WAITING)

    def read(files: Sequence[Path]) -> None:
        try:
            for line in follow(files, wait):
                found.put(line)
        except OSError as error:
            found.put(error)

    for files in named:
        Thread(target=read, args=(files,), daemon=True).start()
    while True:
        if isinstance(line := found.get(), OSError):
            raise line
        yield line


def _records(found: Iterable[bytes], wanted: RecordFilter) -> Iterator[dict[str, Any]]:
    unreadable = 0
    for line in found:
        if not wanted.may_want(line):
            continue
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            record = None
        if not isinstance(record, dict):
            unreadable += 1
        elif wanted.wants(record):
            yield record
    if unreadable:
        click.echo(f"{unreadable} lines are not records; run `sidecar audit verify`", err=True)


def _show_kept(paths: tuple[Path, ...], wanted: RecordFilter, files: list[Path], as_json: bool, colour: bool) -> None:
    named = {each.id: each for record in _records(lines(paths), wanted) for each in named_in(record)}
    try:
        for kept in (kept for file in files for kept in read_evidence(file)):
            if kept.id not in named:
                continue
            as_recorded = named.pop(kept.id).sha256 == kept.sha256
            shown = {**kept.record, "as_recorded": as_recorded}
            click.echo(
                ascii_json(shown) if as_json else render_kept(kept.record, as_recorded, colour=colour), color=colour
            )
    except OSError as error:
        if named:
            raise click.ClickException(f"{unreadable(error)}; name it with --evidence-file") from None
    for lost in named:
        click.echo(plain(f"{files[-1]}: the result {lost} is nowhere; run `sidecar audit verify --evidence`"), err=True)
