"""Follows the logs for streams. Its functions run in the page process, or in a thread of the sidecar's own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sidecar.audit.chain import json_object
from sidecar.audit.log_blocks import Log, LogTail
from sidecar.audit.record_filter import RecordFilter
from sidecar.audit.search import FoundRecord, Logs

MAX_BYTES: Final = 2 * 2**20  # of one log at a time, about 1,000 records
MAX_RECORDS: Final = 60  # of one log at a time
MAX_ROWS: Final = 20  # at a time: more than a person can read

Rows = Sequence[Mapping[str, Any]]
Shape = Callable[[Sequence[FoundRecord]], Rows]
"""Makes the rows of a page from records, newest first. A function of a module that imports few others."""
_TAILS: Final[dict[Log, LogTail]] = {}


class FeedNews(NamedTuple):
    """The rows of new records, newest first. `left_out` is the approximate number of further records. `number` is the
    same for all viewers of these rows, and 0 without rows."""

    rows: Rows = ()
    left_out: int = 0
    number: int = 0


@dataclass(slots=True)
class _Wanted:
    """The new records of one filter."""

    found: list[FoundRecord] = field(default_factory=list)
    left_out: int = 0


def open_tails(logs: Logs) -> None:
    """Follows these logs, from their ends on."""
    close_tails(logs)
    for one in logs.values():
        _tail_of(one)


def close_tails(logs: Logs) -> None:
    for one in logs.values():
        if (tail := _TAILS.pop(one, None)) is not None:
            tail.close()


def news_of(logs: Logs, filters: Collection[RecordFilter], shape: Shape) -> Mapping[RecordFilter, FeedNews]:
    """The news since the last call, by filter; only for filters that have news. A log that cannot be read has none."""
    different = {wanted: _Wanted() for wanted in filters}
    for worker, one in logs.items():
        try:
            raw, passed_bytes = _tail_of(one).read(MAX_BYTES)
        except OSError:  # the pages about the log report it
            continue
        lines = raw.splitlines()
        passed = passed_bytes * len(lines) // max(1, len(raw))
        for found in different.values():
            found.left_out += passed
        _sort_out(worker, lines, different)
    return {wanted: _news(one, shape) for wanted, one in different.items() if one.found or one.left_out}


def _news(one: _Wanted, shape: Shape) -> FeedNews:
    newest = sorted(one.found, key=lambda found: str(found.record.get("timestamp")), reverse=True)
    rows = shape(newest)
    return FeedNews(rows[:MAX_ROWS], one.left_out + max(0, len(rows) - MAX_ROWS))


def _tail_of(one: Log) -> LogTail:
    tail = _TAILS.get(one)
    if tail is None:
        tail = _TAILS[one] = one.tail()
    return tail


def _sort_out(worker: int, lines: Sequence[bytes], different: Mapping[RecordFilter, _Wanted]) -> None:
    """Gives each filter the newest of the lines that match it, up to MAX_RECORDS, and counts the others."""
    room = dict.fromkeys(different, MAX_RECORDS)
    for line in reversed(lines):
        candidates = [wanted for wanted in different if wanted.may_want(line)]
        full = [wanted for wanted in candidates if not room[wanted]]
        for wanted in full:
            different[wanted].left_out += 1
        if len(full) == len(candidates):
            continue
        found = FoundRecord(worker, json_object(line))
        for wanted in candidates:
            if room[wanted] and wanted.wants(found.record):
                different[wanted].found.append(found)
                room[wanted] -= 1
