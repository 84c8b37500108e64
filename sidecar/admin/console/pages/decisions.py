"""Shows calls and their results, live, and explains one of them link by link."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from sidecar.admin.console.audit_feed import AuditFeed
from sidecar.admin.console.audit_view import AuditView, filter_of, moment_in, places_in, search_s, shown_record, text_of
from sidecar.admin.console.log_rows import SEARCH_S, STATUSES, calls_found, row_of_call, rows_of_calls
from sidecar.admin.console.page_process import PageProcess
from sidecar.admin.console.registry import StreamEvent, page, stream
from sidecar.admin.console.request import ConsoleFault, ConsoleRequest
from sidecar.admin.routes import OperatorAction
from sidecar.audit.digest import AuditKey, load_key
from sidecar.audit.record_ids import timestamp
from sidecar.audit.search import FoundRecord, records_of
from sidecar.errors import ANSWERS, Reason, SettingsError
from sidecar.gateway.snapshot import Snapshot
from sidecar.observability.metrics import PROTOCOLS
from sidecar.policy_tools.audit_records import RecordedQuestion, UnreadableAuditLine, asked_in
from sidecar.policy_tools.explain import explain_record
from sidecar.policy_tools.explanation import as_data
from sidecar.policy_tools.replay import Candidate

CALLS: Final = 60  # on a page
MAX_SEEN: Final = 4096
OTHERS_EVERY_S: Final = 0.8
FIND_S, EXPLAIN_S = 2.0, 5.0
FILTERS: Final = ("principal", "object", "upstream", "protocol", "status", "reason", "since", "until")


@page("decisions", title="Decisions", template="decisions.html")
async def decisions(asked: ConsoleRequest) -> Mapping[str, Any]:
    """The newest calls that the query selects, or with `before` those before these places in the logs."""
    query, view = asked.query, asked.part(AuditView)
    wanted, before, began = filter_of(query, FILTERS), places_in(query, "before"), timestamp(time.time())
    looking = partial(calls_found, wanted=wanted, before=before, limit=CALLS, within_s=search_s(query))
    found = await view.read(looking)
    rows = found.rows
    if not view.is_in_files:
        rows = _united(rows, await asked.of_others())
    now = asked.app.desk.live.current
    return {
        "rows": rows,
        "next": text_of(found.next) or None,
        "back_to": found.back_to,
        "is_first": before is None,
        "is_live": before is None and not wanted.until and query.choice("live", ("on", "off"), "on") == "on",
        "now": began,
        "filter": {name: query.text(name, most=2400) for name in FILTERS},
        "choices": {
            "status": {status: word for status, (word, _) in STATUSES.items()},
            "reason": sorted(map(str, Reason)),
            "protocol": sorted(PROTOCOLS),
            "upstream": sorted((*now.services, *now.agents)),
        },
        "source": view.source(),
    }


@stream("decisions/live")
async def live(asked: ConsoleRequest) -> AsyncGenerator[StreamEvent | None]:
    """The calls that the query selects: first those since the page was made (`now`), then new ones."""
    query, view = asked.query, asked.part(AuditView)
    wanted, since, was_full = filter_of(query, FILTERS), moment_in(query, "now"), False
    elsewhere = _Elsewhere(since or timestamp(time.time()))
    async with aclosing(asked.part(_feed).watch(wanted)) as feed:
        async for news in feed:
            rows, key = news.rows, ("decisions", news.number) if news.number else None
            if since:  # the logs are now followed: this search finds what was recorded since the page was made
                caught_up = replace(wanted, since=max(since, wanted.since))
                looking = partial(calls_found, wanted=caught_up, before=None, limit=CALLS, within_s=SEARCH_S)
                rows, since, key = (await view.read(looking)).rows, "", None
            if not view.is_in_files and (more := await elsewhere.new(asked)):
                rows, key = _united(rows, [{"rows": more}]), None
            if rows:
                yield StreamEvent("calls", {"rows": rows}, "decisions_rows.html", key)
            if was_full or news.left_out:
                told = {"left_out": news.left_out, "shown": len(rows)}
                yield StreamEvent("full", told, "decisions_full.html")
            was_full = news.left_out > 0
            yield None


def _feed(app: OperatorAction, process: PageProcess) -> AuditFeed:
    return AuditFeed(AuditView(app, process).read, rows_of_calls)


@page("decisions/{id}", title="Decision", template="decision.html")
async def decision(asked: ConsoleRequest) -> Mapping[str, Any]:
    """One call: its records, and its explanation by the policy in force. Raises ConsoleFault."""
    decision_id, view = asked.parts["id"], asked.part(AuditView)
    found = await view.read(partial(records_of, decision_id=decision_id, within_s=FIND_S))
    if not found and not view.is_in_files:
        found = [FoundRecord(**one) for other in await asked.of_others() for one in other.get("records", ())]
    if not found:
        where = "" if view.is_in_files else ": this log is not in files, and only what is new can be looked at here"
        raise ConsoleFault(404, f"no record of this decision is found in the log{where}")
    whole = found[-1].record
    now = asked.app.desk.live.current
    return {
        "id": decision_id,
        "call": row_of_call(found[-1]),
        "record": shown_record(whole),
        "records": [{"worker": one.worker, "record": shown_record(one.record)} for one in found],
        "stages": _stages(whole),
        **await asked.shared((decision_id, now.engine.revision), 10.0, partial(_explained, now, found)),
    }


class _Elsewhere:
    """The new calls of the other workers, for logs that are not in files. The workers are asked every
    OTHERS_EVERY_S."""

    def __init__(self, since: str) -> None:
        self._since, self._next_s = since, 0.0
        self._seen: deque[tuple[int, int]] = deque(maxlen=MAX_SEEN)

    async def new(self, asked: ConsoleRequest) -> Sequence[Mapping[str, Any]]:
        if time.monotonic() < self._next_s:
            return []
        self._next_s = time.monotonic() + OTHERS_EVERY_S
        rows = [row for other in await asked.of_others() for row in other.get("rows", ()) if row["at"] >= self._since]
        found = [row for row in rows if (row["worker"], row["seq"]) not in self._seen]
        self._seen.extend((row["worker"], row["seq"]) for row in found)
        return found


def _united(own: Sequence[Mapping[str, Any]], others: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The newest calls of all workers."""
    rows = [*own, *(row for other in others for row in other.get("rows", ()))]
    return sorted(rows, key=lambda row: str(row["at"]), reverse=True)[:CALLS]


def _stages(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The duration of each stage in milliseconds, and its ratio to the longest."""
    latency = {name: took for name, took in (record.get("latency") or {}).items() if isinstance(took, int | float)}
    longest = max(latency.values(), default=0) or 1
    return [{"name": name, "ms": took, "share": took / longest} for name, took in latency.items()]


async def _explained(now: Snapshot, found: Sequence[FoundRecord]) -> Mapping[str, Any]:
    """The explanation of a call; if it is None, `unexplained` says why."""
    record = next((one.record for one in found if one.record.get("event") != "outcome"), found[-1].record)
    try:
        question = asked_in(record)
        if question is None:
            return {"explanation": None, "unexplained": _unasked(record)}
        async with asyncio.timeout(EXPLAIN_S):
            explained = await asyncio.to_thread(_explanation, now, question)
    except UnreadableAuditLine as error:
        return {"explanation": None, "unexplained": str(error)}
    except TimeoutError:
        told = f"the explanation takes more than {EXPLAIN_S:g} s: sidecar policy explain --decision gives it"
        return {"explanation": None, "unexplained": told}
    return {"explanation": explained, "unexplained": None}


def _explanation(now: Snapshot, question: RecordedQuestion) -> Mapping[str, Any]:
    candidate = Candidate(now.engine.source, _key(now.settings.audit_key_path))
    data = as_data(explain_record(candidate, now.budgets, question), question)
    for link in data["links"]:
        for ran in link["conditions"]:
            read = ran["read"].items()
            if ran["source"] == "the record":
                ran["read"] = {path: f"digest {value}" for path, value in read}
            else:
                ran["read"] = {path: value for path, value in read if not _is_written(path)}
    return data


def _is_written(path: str) -> bool:
    """Whether the value at a path that a condition reads comes from the caller. No page shows such values."""
    return path.startswith(("args", "call.meta"))


def _key(path: Path) -> AuditKey | None:
    with suppress(OSError, SettingsError):  # without the key, hashed arguments are not compared
        return load_key(path)
    return None


def _unasked(record: Mapping[str, Any]) -> str:
    reason = str(record.get("reason"))
    if reason not in set(Reason):
        return "Policy was not asked."
    return f"Policy was not asked: the call ended before. {ANSWERS[Reason(reason)].message}"
