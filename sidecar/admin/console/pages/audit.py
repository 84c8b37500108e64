"""Shows the audit log: its records, what operators did to the sidecar, and the verification of the log."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Any, Final

from sidecar.admin.console.audit_view import AuditView, filter_of, places_in, search_s, shown_record, text_of
from sidecar.admin.console.live import watched
from sidecar.admin.console.log_rows import (
    SEARCH_S,
    STATUS_TONES,
    files_of,
    is_no_checkpoint,
    is_record,
    records_around,
    records_found,
    row_of_record,
)
from sidecar.admin.console.page_process import PageProcess
from sidecar.admin.console.registry import StreamEvent, action, page, stream
from sidecar.admin.console.request import ConsoleFault, ConsoleRequest, digest_of_view
from sidecar.admin.console.verification import LogVerifier
from sidecar.admin.routes import OperatorAction
from sidecar.audit.checkpoints import load_attesting_key
from sidecar.audit.digest import load_key
from sidecar.audit.record import CHECKPOINT, EVENTS
from sidecar.audit.record_filter import RecordFilter
from sidecar.audit.search import record_at
from sidecar.errors import Reason, SettingsError
from sidecar.settings.sidecar_file import Settings

RECORDS: Final = 60  # on a page
CHECKPOINTS: Final = 10
FILTERS: Final = (
    *("event", "principal", "object", "upstream", "status", "reason"),
    *("decision_id", "run_id", "trace_id", "what", "by", "since", "until"),
)
_RELATIONS: Final = ("run_id", "trace_id", "principal", "event", "reason")


@page("audit", title="Audit", template="audit.html")
async def records(asked: ConsoleRequest) -> Mapping[str, Any]:
    """The newest records that the query selects, or with `before` those before these places in the logs."""
    query, view = asked.query, asked.part(AuditView)
    wanted, before = filter_of(query, FILTERS), places_in(query, "before")
    takes = is_no_checkpoint if wanted.event == "control" and not wanted.what else is_record
    looking = partial(records_found, wanted=wanted, limit=RECORDS, within_s=search_s(query), before=before, takes=takes)
    found = await view.read(looking)
    rows = found.rows
    if not view.is_in_files:
        others = [row for one in await asked.of_others() for row in one.get("rows", ())]
        rows = sorted([*rows, *others], key=lambda row: str(row["at"]), reverse=True)[:RECORDS]
    return {
        "rows": rows,
        "next": text_of(found.next) or None,
        "back_to": found.back_to,
        "is_first": before is None,
        "filter": {name: query.text(name, most=2400) for name in FILTERS},
        "choices": {"event": list(EVENTS), "reason": sorted(map(str, Reason)), "status": list(STATUS_TONES)},
        "source": view.source(),
    }


@page("audit/{worker}/{seq}", title="Record", template="audit_record.html")
async def record(asked: ConsoleRequest) -> Mapping[str, Any]:
    """One record in full, and the related records before and after it, such as those of the same run."""
    view, parts = asked.part(AuditView), asked.parts
    if not (parts["worker"].isdecimal() and parts["seq"].isdecimal() and len(parts["seq"]) < 20):
        raise ConsoleFault(404, "a record has the address audit/<worker>/<sequence>")
    worker, seq = int(parts["worker"]), int(parts["seq"])
    found = await view.read(partial(record_at, worker=worker, seq=seq))
    if found is None and not view.is_in_files and (elsewhere := await asked.of_others()):
        return elsewhere[0]
    if found is None:
        raise ConsoleFault(404, "the log has no record with this sequence, or no longer")
    about, same = _relation(found.record)
    before, after = await view.read(partial(records_around, found=found, same=same))
    return {
        "row": row_of_record(found),
        "record": shown_record(found.record),
        "related_by": about,
        "before": [row_of_record(one) for one in before],
        "after": [row_of_record(one) for one in after],
        "related": {name: value for name in _RELATIONS if (value := getattr(same, name))},
    }


@page("audit/log", title="The log", template="audit_log.html")
async def the_log(asked: ConsoleRequest) -> Mapping[str, Any]:
    """The files, keys and checkpoints of the log, and its last verification."""
    view = asked.part(AuditView)
    settings = view.settings
    status = await asked.operate("GET", "/status")
    wanted = RecordFilter(event="control", what=CHECKPOINT)
    checkpoints = await view.read(partial(records_found, wanted=wanted, limit=CHECKPOINTS, within_s=SEARCH_S))
    state = await verification(asked)
    return {
        **state,
        "seen": digest_of_view(state),
        "source": view.source(),
        "sink": settings.audit.sink,
        "durability": settings.audit.durability,
        "evidence": status["evidence"],
        "logs": await view.read(files_of) if view.is_in_files else [],
        "keys": await asyncio.to_thread(_keys_of, settings),
        "checkpoints": checkpoints.rows,
        "checkpoints_complete": checkpoints.next is None,
        "published_to": list(settings.audit.checkpoints.to),
    }


@page("audit/log/verification", title="Verification", template="audit_verification.html")
async def verification(asked: ConsoleRequest) -> Mapping[str, Any]:
    """The verification that is running at some worker, and the last one that ended."""
    view = asked.part(AuditView)
    verifier = asked.part(_verifier)
    running = verifier.running
    if running is None and not asked.is_of_worker:
        others = await asked.of_others("audit/log/verification")
        running = next((one["running"] for one in others if one.get("running")), None)
    return {"running": running, "last": await verifier.last(), "in_files": view.is_in_files}


@stream("audit/log/verification/live")
async def live(asked: ConsoleRequest) -> AsyncGenerator[StreamEvent | None]:
    async for event in watched(asked, verification, "verification", "audit_verification_state.html"):
        yield event


@action("audit/verify")
async def verify(asked: ConsoleRequest) -> str:
    """Begins to verify all logs in the background, unless a verification is running. Raises ConsoleFault."""
    view = asked.part(AuditView)
    if not view.is_in_files:
        raise ConsoleFault(409, "this log is not in files: sidecar audit gather collects it, audit verify checks it")
    if (await verification(asked))["running"] is None:
        try:
            await asked.part(_verifier).begin(asked.by)
        except OSError as error:
            raise ConsoleFault(503, f"the log cannot be read: {error.strerror or error}") from None
    return "audit/log"


def _verifier(app: OperatorAction, process: PageProcess) -> LogVerifier:
    return LogVerifier(lambda: app.desk.live.current.settings, app.desk.witness)


def _relation(record: Mapping[str, Any]) -> tuple[str, RecordFilter]:
    """The relation of a record to others, as text, and the filter that selects them."""
    if record.get("event") == "control":
        return "control events", RecordFilter(event="control")
    if run_id := record.get("run_id"):
        return "records of the same run", RecordFilter(run_id=str(run_id))
    if trace_id := record.get("trace_id"):
        return "records of the same trace", RecordFilter(trace_id=str(trace_id))
    if caller := record.get("agent_id"):
        return "records of the same caller", RecordFilter(principal=str(caller))
    return "refusals for the same reason", RecordFilter(event="refusal", reason=str(record.get("reason") or ""))


def _keys_of(settings: Settings) -> list[Mapping[str, Any]]:
    """The uses, ids and paths of the keys that can be read; never a key."""
    found: list[Mapping[str, Any]] = []
    for use, path in (
        ("hashes and anchors", settings.audit_key_path),
        *(("hashes and anchors, earlier", path) for path in settings.previous_audit_key_paths),
    ):
        try:
            found.append({"use": use, "id": load_key(path).id, "path": str(path)})
        except (OSError, SettingsError):  # usually, there is no earlier key
            continue
    for path in settings.checkpoint_key_paths:
        try:
            found.append({"use": "checkpoints", "id": load_attesting_key(path).kid, "path": str(path)})
        except (OSError, SettingsError):
            continue
    return found
