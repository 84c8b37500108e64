"""Searches the logs for the rows of pages. Its functions run in the page process, or in a thread of the sidecar's
own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from sidecar.audit.log_blocks import LogFiles
from sidecar.audit.record import CHECKPOINT
from sidecar.audit.record_filter import RecordFilter, earlier
from sidecar.audit.search import FoundRecord, LogPlaces, Logs, SearchPage, following, is_terminal, search
from sidecar.audit.segments import last_seq_of, parts_of

SEARCH_S: Final = 0.15
AROUND: Final = 5  # records of the same run, before and after
PARTS: Final = 50
STATUSES: Final[Mapping[str, tuple[str, str]]] = {
    "success": ("allowed", "good"),
    "permission_denied": ("denied", "bad"),
    "rate_limited": ("limited", "warn"),
    "error": ("failed", "warn"),
}
UNDER_WAY: Final = ("under way", "plain")
STATUS_TONES: Final = {"success": "good", "permission_denied": "bad", "rate_limited": "warn", "error": "warn"}


class FoundRows(NamedTuple):
    """The rows that a search found, and where the next page begins, as in `SearchPage`."""

    rows: Sequence[Mapping[str, Any]]
    next: LogPlaces | None
    back_to: str

    @classmethod
    def of(cls, found: SearchPage, row: Callable[[FoundRecord], Mapping[str, Any]]) -> FoundRows:
        return cls([row(one) for one in found.found], found.next, found.back_to)


# --- calls ------------------------------------------------------------------------------------------------------------


def calls_found(logs: Logs, wanted: RecordFilter, before: LogPlaces | None, limit: int, within_s: float) -> FoundRows:
    """A page of calls, newest first. Calls without an end are only on the first page, because on later pages the end of
    a call may be on the page before."""
    ended = set[str]()

    def is_call(record: Mapping[str, Any]) -> bool:
        if record.get("event") == "control":
            return False
        if is_terminal(record):
            ended.add(str(record.get("decision_id")))
            return True
        return _is_inner(record) or (before is None and record.get("decision_id") not in ended)

    return FoundRows.of(search(logs, wanted, limit=limit, within_s=within_s, before=before, takes=is_call), row_of_call)


def rows_of_calls(found: Sequence[FoundRecord]) -> list[Mapping[str, Any]]:
    """The rows of the calls among these records. A call that has ended has the row of its end."""
    calls = [one for one in found if one.record.get("event") != "control"]
    ended = {one.record.get("decision_id") for one in calls if is_terminal(one.record)}
    return [row_of_call(one) for one in calls if is_terminal(one.record) or one.record.get("decision_id") not in ended]


def _is_inner(record: Mapping[str, Any]) -> bool:
    """Whether it is a decision within another call, such as on a request of a server to its client. It has no end."""
    return record.get("event") == "decision" and record.get("args_hash") is None


def row_of_call(found: FoundRecord) -> Mapping[str, Any]:
    """The row of a call."""
    record = found.record
    if is_terminal(record):
        word, tone = STATUSES.get(str(record.get("status")), ("recorded", "plain"))
    elif _is_inner(record):
        word, tone = STATUSES["permission_denied" if record.get("reason") else "success"]
    else:
        word, tone = UNDER_WAY
    links = [link for link in _list(record.get("links")) if isinstance(link, Mapping)]
    return {
        "id": record.get("decision_id"),
        "worker": found.worker,
        "seq": record.get("seq"),
        "at": str(record.get("timestamp")),
        "chain": _list(record.get("chain")),
        "object": record.get("object") or record.get("upstream"),
        "action": record.get("action") or record.get("method"),
        "outcome": word,
        "tone": tone,
        "reason": record.get("reason"),
        "would_deny": _list(record.get("would_deny")),
        "enforcement": record.get("enforcement"),
        "protocol": record.get("protocol"),
        "upstream": record.get("upstream"),
        "http_status": record.get("http_status"),
        "duration_ms": record.get("duration_ms"),
        "rules": list(dict.fromkeys(str(rule) for link in links for rule in _list(link.get("rules")))),
    }


def _list(value: object) -> list[Any]:
    """A value of a record as a list; empty for any other type, because lines of a log may have been changed."""
    return value if isinstance(value, list) else []


# --- records ----------------------------------------------------------------------------------------------------------


def records_found(logs: Logs, **options: Any) -> FoundRows:
    return FoundRows.of(search(logs, **options), row_of_record)


def is_record(record: Mapping[str, Any]) -> bool:
    return True


def is_no_checkpoint(record: Mapping[str, Any]) -> bool:
    """Whether a record is no checkpoint. Checkpoints are written by the clock, and have a list of their own."""
    control = record.get("control")
    return not isinstance(control, Mapping) or control.get("what") != CHECKPOINT


def row_of_record(found: FoundRecord) -> Mapping[str, Any]:
    """The row of a record. For a control record, it has what was done and by whom."""
    record = found.record
    control = record.get("control")
    done: Mapping[str, Any] = control if isinstance(control, Mapping) else {}
    particulars = {name: value for name, value in done.items() if name not in ("what", "by")}
    return {
        "worker": found.worker,
        "seq": record.get("seq"),
        "at": str(record.get("timestamp")),
        "event": str(record.get("event")),
        "status": record.get("status"),
        "tone": STATUS_TONES.get(str(record.get("status")), "plain"),
        "reason": record.get("reason"),
        "chain": list(record.get("chain") or ()),
        "object": record.get("object") or record.get("upstream"),
        "action": record.get("action") or record.get("method"),
        "decision_id": record.get("decision_id"),
        "what": done.get("what"),
        "by": done.get("by"),
        "particulars": {name: value for name, value in islice(particulars.items(), 16) if value is not None},
    }


def records_around(
    logs: Logs, found: FoundRecord, same: RecordFilter
) -> tuple[Sequence[FoundRecord], Sequence[FoundRecord]]:
    """The records that match `same` before and after one record, up to AROUND each, in the order of their time."""
    place, at = (found.worker, found.record["seq"]), str(found.record.get("timestamp"))

    def is_other(one: FoundRecord) -> bool:
        return (one.worker, one.record["seq"]) != place

    until = replace(same, until=earlier(at, -1e-6))
    before = search(logs, until, limit=AROUND + 1, within_s=SEARCH_S).found
    after = following(logs, same, at, limit=2 * AROUND + 1, within_s=SEARCH_S)
    earlier_ones = [one for one in reversed(before) if is_other(one)]
    known_places = {(one.worker, one.record["seq"]) for one in earlier_ones} | {place}
    later = [one for one in after if (one.worker, one.record["seq"]) not in known_places]
    return earlier_ones[-AROUND:], later[:AROUND]


def files_of(logs: Logs) -> list[Mapping[str, Any]]:
    """The files of each log, newest first, up to PARTS rotated ones."""
    return [{"worker": worker, **_log_files(one.path)} for worker, one in logs.items() if isinstance(one, LogFiles)]


def _log_files(path: Path) -> Mapping[str, Any]:
    parts = parts_of(path)
    newest = [path, *reversed(parts[-PARTS:])]
    files = [{"name": one.name, "last_seq": last_seq_of(one), **_size_and_time(one)} for one in newest if one.exists()]
    return {"folder": str(path.parent), "files": files, "parts": len(parts)}


def _size_and_time(path: Path) -> Mapping[str, Any]:
    status = path.stat()
    return {"bytes": status.st_size, "changed_at": status.st_mtime}
