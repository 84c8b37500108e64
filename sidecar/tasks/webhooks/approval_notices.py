"""Notifies the receivers of `approvals.notify` that an approval is requested, given, refused, withdrawn, or expired.

A delivery never contains the arguments of the call. Its id is the same wherever and however often the notification is
queued, so that a receiver recognizes duplicates.
"""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from sidecar.errors import Fault, Refusal, SettingsError
from sidecar.gateway.approvals import ApprovalRecord, ApprovalState
from sidecar.gateway.approvals.approval_record import ASKED, EXPIRED, WITHDRAWN
from sidecar.http.client import NotAllowed
from sidecar.http.client.address_rules import AddressRules
from sidecar.http.client.guarded_client import allowed_origin, is_address
from sidecar.settings.sidecar_file import Settings
from sidecar.settings.timestamps import rfc3339
from sidecar.settings.yaml_document import Document
from sidecar.storage.deliveries import Headers, OnBehalfOf
from sidecar.tasks.api.task_record import moment
from sidecar.tasks.webhooks.outbox import Outbox

HEADERS: Final[Headers] = (("Content-Type", "application/json"),)
ID_CHARS: Final = 32
_UNANSWERED: Final = {EXPIRED: "The time for an approval is over.", WITHDRAWN: "No approval is needed any more."}
COMMAND_CHARS: Final = 12  # of an id in a command that a message names
_SLACK: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "`": "'"})

log = logging.getLogger("sidecar.tasks.webhooks")


@dataclass(frozen=True, slots=True)
class ApprovalNotices:
    """Queues deliveries. `now` returns the settings in force, `clock` seconds since the epoch."""

    now: Callable[[], Settings]
    outbox: Outbox
    clock: Callable[[], float]

    async def queue(self, record: ApprovalRecord) -> None:
        """Queues the notification of a record's unrecorded event for each receiver. If this fails, it is logged: the
        call still waits, and approvers see it in lists."""
        settings = self.now()
        page = None if settings.approval_page is None else f"{settings.approval_page}{record.name}"
        for receiver in settings.approvals.notify:
            told = document_of(record, page, self.clock())
            body = orjson.dumps({"text": message_of(record, page)} if receiver.format == "slack" else told)
            try:
                url = receiver.address()
                behalf = OnBehalfOf(record.caller, record.upstream)
                await self.outbox.put("approval", record.name, behalf, url, HEADERS, body, _id_of(record, url))
            except Refusal as refusal:
                about = {"approval": record.name, "event": record.unrecorded, "reason": refusal.reason.value}
                log.warning("a receiver of approvals is not notified", extra=about)
            except SettingsError as error:
                about = {"approval": record.name, "event": record.unrecorded, "reason": str(error)}
                log.warning("a receiver of approvals is not notified", extra=about)


def check_receivers(settings: Settings, document: Document) -> None:
    """Checks that the address of each receiver may be called back. Raises SettingsError."""
    faults: list[Fault] = []
    rules = settings.callbacks
    reach = AddressRules(rules.networks, rules.blocked)
    for index, receiver in enumerate(settings.approvals.notify):
        why, hint = "", "the settings `callbacks` say what may be called back: allow, schemes, networks"
        try:
            origin = allowed_origin(receiver.address(), rules)
            if is_address(origin.host):
                why = reach.objection(origin.host)
        except NotAllowed as refused:
            why = refused.why
        except SettingsError as error:
            faults += error.faults
        if why:
            loc = ("approvals", "notify", index, "url" if receiver.url else "url_path")
            faults.append(document.fault(loc, f"nothing can be sent there: {why}", "S197", hint))
    if faults:
        raise SettingsError(faults)


def document_of(record: ApprovalRecord, page: str | None, now_s: float) -> dict[str, Any]:
    """The notification in the sidecar's own form: `type`, `timestamp` and `data`, as Standard Webhooks recommends."""
    event = record.unrecorded
    at_s = record.created_at if event == ASKED else now_s if event in _UNANSWERED else record.given[-1].at_s
    return {
        "type": event,
        "timestamp": moment(at_s),
        "data": {
            "id": record.name,
            "state": record.state.value,
            "caller": [principal.name for principal in record.caller.chain],
            "upstream": record.upstream,
            "object": record.object_name,
            "action": record.questions[0].action,
            "args_hash": record.args_hash,
            "rules": [demand.rule for demand in record.demands],
            "open_roles": list(record.open_roles),
            "needs_reason": record.needs_reason,
            "answer_before": moment(record.deadline_s),
            "usable_until": moment(record.usable_until_s) if record.usable_until_s else None,
            "answers": [
                {"principal": one.name, "roles": list(one.roles), "at": moment(one.at_s), "reason": one.reason or None}
                for one in record.given
            ],
            "page": page,
        },
    }


def message_of(record: ApprovalRecord, page: str | None) -> str:
    """The notification as a message in Slack's mark-up. All text from others is escaped."""
    chain = " → ".join(principal.name for principal in record.caller.chain)
    action = record.questions[0].action
    call = f"{_code(chain)} calls {_code(record.object_name)} ({_code(action)})"
    roles = " and ".join(map(_code, record.open_roles))
    if record.unrecorded == ASKED:
        reason = ", with a reason" if record.needs_reason else ""
        command = _code(f"sidecar approval show {record.name[:COMMAND_CHARS]}")
        answer = f"<{_plain(page)}|Answer it>, or run {command}" if page else f"See it with {command}"
        until = f"{roles} must answer before {rfc3339(record.deadline_s)}{reason}."
        return f"*A call waits for approval.* {call}.\n{until} {answer}."
    if record.unrecorded in _UNANSWERED:
        return f"*{_UNANSWERED[record.unrecorded]}* {call}."
    last = record.given[-1]
    said = f": {_plain(last.reason)}" if last.reason else "."
    if record.state is ApprovalState.REFUSED:
        return f"*Refused* by {_code(last.name)}{said}\n{call}."
    rest = f"\n{roles} must answer too." if record.state is ApprovalState.WAITING else ""
    return f"*Approved* by {_code(last.name)}{said}\n{call}.{rest}"


def _id_of(record: ApprovalRecord, url: str) -> str:
    event = f"{record.name} {record.unrecorded} {len(record.given)} {url}"
    return f"msg_{hashlib.sha256(event.encode()).hexdigest()[:ID_CHARS]}"


def _plain(text: str) -> str:
    return text.translate(_SLACK)


def _code(text: str) -> str:
    return f"`{_plain(text)}`"
