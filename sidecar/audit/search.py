"""Searches the logs of one sidecar, newest records first, page by page, within a time limit.

A page ends at a number of records or at the time limit, and gives the position in each log at which the next page
continues: no page reads the records of another. The search checks nothing, unlike `verify`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import merge
from operator import attrgetter
from typing import Any, Final, NamedTuple

from sidecar.audit.chain import json_object
from sidecar.audit.log_blocks import LineHead, Log, LogBlock, head_of
from sidecar.audit.record_filter import RecordFilter
from sidecar.audit.record_ids import timestamp

PARSED_AT_ONCE: Final = 32  # lines; then other threads run
AROUND_S: Final = 120.0  # a decision's record is written within this time of its id

Logs = Mapping[int, Log]
"""Each log, by worker."""
LogPlaces = Mapping[int, int]
"""A sequence in each log."""
Takes = Callable[[Mapping[str, Any]], bool]
"""Whether a record that matches the filter is taken. Called newest first for each log."""


class FoundRecord(NamedTuple):
    """A record, and the worker whose log has it."""

    worker: int
    record: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SearchPage:
    """The result of one search. `next` are the positions where the search continues, None if it has ended; `back_to` is
    the time that it has reached, "" if it read nothing."""

    found: Sequence[FoundRecord]
    next: LogPlaces | None
    back_to: str


class _Look(NamedTuple):
    """A matching record, or None to mark that everything from this head on has been examined."""

    timestamp: str
    worker: int
    seq: int
    record: Mapping[str, Any] | None


_time = attrgetter("timestamp")


def search(
    logs: Logs,
    wanted: RecordFilter,
    *,
    limit: int,
    within_s: float,
    before: LogPlaces | None = None,
    after: LogPlaces | None = None,
    takes: Takes = lambda record: True,
    clock_mono: Callable[[], float] = time.monotonic,
) -> SearchPage:
    """Returns the newest matching records, up to `limit`: those before some positions and after others. Blocks. Raises
    OSError."""
    ends_s = clock_mono() + within_s
    places = dict(before or {})
    found: list[FoundRecord] = []
    back_to = ""
    searched = [
        _looks_back(worker, log, wanted, (before or {}).get(worker), (after or {}).get(worker, 0), takes)
        for worker, log in logs.items()
        if before is None or worker in before
    ]
    for look in merge(*searched, key=_time, reverse=True):
        places[look.worker], back_to = look.seq, look.timestamp
        if look.record is not None:
            found.append(FoundRecord(look.worker, look.record))
        if len(found) >= limit or clock_mono() >= ends_s:
            return SearchPage(found, _next(logs, places, before), back_to)
    return SearchPage(found, None, back_to)


def _next(logs: Logs, places: LogPlaces, before: LogPlaces | None) -> LogPlaces:
    """Returns the positions in all logs. For a log that was not examined, it is the log's end, a sequence that does not
    exist yet."""
    return {worker: places.get(worker, 2**63) for worker in logs if before is None or worker in before}


def following(logs: Logs, wanted: RecordFilter, since: str, *, limit: int, within_s: float) -> Sequence[FoundRecord]:
    """Returns the oldest matching records from a time on, up to `limit`. Blocks. Raises OSError."""
    ends_s = time.monotonic() + within_s
    found: list[FoundRecord] = []
    for worker, block in _blocks_by_time(logs, since):
        found += [FoundRecord(worker, record) for record in _wanted_in(block.lines, wanted)]
        if len(found) >= limit or time.monotonic() >= ends_s or (wanted.until and block.first.timestamp > wanted.until):
            break
    return sorted(found, key=lambda one: str(one.record.get("timestamp")))[:limit]


def records_of(logs: Logs, decision_id: str, *, within_s: float) -> Sequence[FoundRecord]:
    """Returns the records of one decision that are found within the time limit, oldest first, beginning at the time in
    its id. Blocks. Raises OSError."""
    wanted, began_s = RecordFilter(decision_id=decision_id), time_of_id(decision_id)
    if began_s is None:  # an id of another origin
        return search(logs, wanted, limit=2, within_s=within_s).found[::-1]
    ends_s, found = time.monotonic() + within_s, list[FoundRecord]()
    last = timestamp(began_s + AROUND_S)
    for worker, block in _blocks_by_time(logs, timestamp(max(0.0, began_s - 1))):
        if not found and block.first.timestamp > last:
            break
        found += [FoundRecord(worker, record) for record in _wanted_in(block.lines, wanted)]
        if any(is_terminal(one.record) for one in found) or time.monotonic() >= ends_s:
            break
    return found


def record_at(logs: Logs, worker: int, seq: int) -> FoundRecord | None:
    """Returns one record by its position; None if the log does not have it. Blocks. Raises OSError."""
    log = logs.get(worker)
    for block in () if log is None else log.since(lambda head: head.seq >= seq):
        for line in block.lines.split(b"\n"):
            head = head_of(line)
            if head is not None and head.seq >= seq:
                return FoundRecord(worker, json_object(line)) if head.seq == seq else None
    return None


def is_terminal(record: Mapping[str, Any]) -> bool:
    """Whether this is the last record of its request: how a call ended, or the answer to an enforcement point."""
    return record.get("event") in ("outcome", "refusal") or record.get("http_status") is not None


def time_of_id(text: str) -> float | None:
    """The time that a UUID of version 7 names, in seconds since the epoch; None for any other text."""
    digits = text.replace("-", "")
    if len(text) != 36 or len(digits) != 32 or digits[12] != "7":
        return None
    with suppress(ValueError):
        return int(digits[:12], 16) / 1000
    return None


def _looks_back(
    worker: int, log: Log, wanted: RecordFilter, before: int | None, after: int, takes: Takes
) -> Iterator[_Look]:
    def reached(head: LineHead) -> bool:
        return (before is not None and head.seq >= before) or (wanted.until != "" and head.timestamp >= wanted.until)

    for block in log.before(reached if before is not None or wanted.until else None):
        lines = block.lines.split(b"\n") if wanted.may_want(block.lines) else []
        for record in _records(reversed(lines), wanted):
            seq = record["seq"]
            if seq <= after:
                return
            if takes(record):
                yield _Look(str(record.get("timestamp")), worker, seq, record)
        if block.first.seq <= after or block.first.timestamp < wanted.since:
            return
        yield _Look(block.first.timestamp, worker, block.first.seq, None)
        os.sched_yield()


def _wanted_in(lines: bytes, wanted: RecordFilter) -> Sequence[Mapping[str, Any]]:
    return list(_records(iter(lines.split(b"\n")), wanted)) if wanted.may_want(lines) else []


def _records(lines: Iterator[bytes], wanted: RecordFilter) -> Iterator[Mapping[str, Any]]:
    parsed = 0
    for line in lines:
        if not line or not wanted.may_want(line):
            continue
        record = json_object(line)
        if isinstance(record.get("seq"), int) and wanted.wants(record):
            yield record
        parsed += 1
        if not parsed % PARSED_AT_ONCE:
            os.sched_yield()


def _blocks_by_time(logs: Logs, since: str) -> Iterator[tuple[int, LogBlock]]:
    def each(worker: int, log: Log) -> Iterator[tuple[int, LogBlock]]:
        return ((worker, block) for block in log.since(lambda head: head.timestamp >= since))

    return merge(*(each(*log) for log in logs.items()), key=lambda pair: pair[1].first.timestamp)
