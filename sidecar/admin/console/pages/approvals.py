"""Shows the calls that wait for a person, and accepts people's answers.

Only the page of one request shows arguments, and only to a person who may answer it. This is recorded.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from sidecar.admin.console.live import LOOK_S, watched
from sidecar.admin.console.registry import StreamEvent, action, page, stream
from sidecar.admin.console.request import ConsoleFault, ConsoleRequest, Fragment, fetched
from sidecar.admin.views import approval_of
from sidecar.errors import Reason, Refusal
from sidecar.gateway.approvals import ApprovalError, ApprovalRecord, ApprovalState

Read = Callable[[Hashable, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Returns the result of the function, which may be shared by the key."""
STATES: Final = tuple(state.value for state in ApprovalState)
ALL: Final = "all"
MAX_OBJECTION_CHARS: Final = 4_096
NO_PERSON: Final = "your login names no person"


@page("approvals", title="Approvals", template="approvals.html")
async def approvals(asked: ConsoleRequest) -> Mapping[str, Any]:
    """The requests in one state, newest first, and whether the user may answer them."""
    return await _listed(asked, lambda _, make: make())


@stream("approvals/live")
async def approvals_live(asked: ConsoleRequest) -> AsyncGenerator[StreamEvent | None]:
    """The list each time it changes. People share only the reads of the store."""

    def shared(asked: ConsoleRequest) -> Awaitable[Mapping[str, Any]]:
        return _listed(asked, lambda key, make: asked.shared(("approvals", key), LOOK_S / 2, make))

    async for event in watched(asked, shared, "rows", "approvals_rows.html", is_personal=True):
        yield event


@page("approvals/{id}", title="Approval", template="approval.html")
async def approval(asked: ConsoleRequest) -> Mapping[str, Any]:
    """One request, with the arguments of the call for a person who may answer it."""
    found = await asked.operate("GET", _address_of(asked))
    waiting = (await asked.app.approvals.store.counts()).get(ApprovalState.WAITING, 0)
    questions = found.pop("questions")
    return {
        "one": {**found, "state": ApprovalState(found["state"]).value},
        "questions": questions,
        "person": asked.person and asked.person.name,
        "others": waiting - (found["state"] == ApprovalState.WAITING),
    }


@stream("approvals/{id}/live")
async def approval_live(asked: ConsoleRequest) -> AsyncGenerator[StreamEvent | None]:
    """The state each time it changes, without arguments; `end` once it can no longer change. `actions` in the query
    identifies those on the page. They are sent only if they differ, because a person may be typing there."""
    before, name = dict[str, Any](), asked.parts["id"]
    shown = asked.query.text("actions", most=MAX_OBJECTION_CHARS)
    while True:
        try:
            record = await asked.shared(("approval", name), LOOK_S / 2, lambda: asked.app.approvals.get(name))
        except ApprovalError:  # it has been deleted
            break
        except Refusal as refusal:
            if refusal.reason is not Reason.STORE_UNAVAILABLE:
                raise
            await asyncio.sleep(LOOK_S)
            continue
        found = _row(asked, record)
        data = {"one": found, "person": asked.person and asked.person.name}
        if found != before:
            yield StreamEvent("state", data, "approval_state.html")
            yield StreamEvent("evidence", data, "approval_evidence.html")
        if shown != (actions := f"{record.state} {found['objection']}"):
            yield StreamEvent("actions", data, "approval_actions.html")
        before, shown = found, actions
        if record.is_done:
            break
        yield None
        await asyncio.sleep(LOOK_S)
    yield StreamEvent("end", {})


@action("approvals/{id}/approve", role="viewer")
async def approve(asked: ConsoleRequest) -> str | Fragment:
    return await _answered(asked, "approve")


@action("approvals/{id}/refuse", role="viewer")
async def refuse(asked: ConsoleRequest) -> str | Fragment:
    return await _answered(asked, "refuse")


async def _listed(asked: ConsoleRequest, read: Read) -> dict[str, Any]:
    state, requests = asked.query.choice("state", (*STATES, ALL), ApprovalState.WAITING.value), asked.app.approvals

    async def fetch(limit: int, offset: int) -> tuple[Sequence[ApprovalRecord], int]:
        wanted = None if state == ALL else ApprovalState(state)
        page: tuple[Sequence[ApprovalRecord], int]
        page = await read((state, limit, offset), lambda: requests.page(wanted, limit, offset))
        return page

    found, paging = await fetched(asked.query, fetch)
    counts = await read("counts", requests.store.counts)
    return {
        "state": state,
        "states": {one: counts.get(one, 0) for one in STATES},
        "person": asked.person and asked.person.name,
        "rows": [_row(asked, record) for record in found],
        "paging": paging.plain(),
    }


async def _answered(asked: ConsoleRequest, outcome: str) -> str | Fragment:
    """Answers as the person who is logged in. The roles of the person in policy decide, not the role of the login."""
    try:
        await asked.operate("POST", f"{_address_of(asked)}/{outcome}", {"reason": asked.form.text("reason", most=500)})
    except ConsoleFault as fault:
        if fault.status not in (400, 403, 409):
            raise
        return Fragment("approval.html", {**await approval(asked), "told": fault.told}, fault.status)
    return f"approvals/{quote(asked.parts['id'])}"


def _row(asked: ConsoleRequest, record: ApprovalRecord) -> dict[str, Any]:
    """A request for approval as a row. Its state is a plain string: for the enumeration, the page process would have to
    import the gateway."""
    return {**approval_of(record), "state": record.state.value, "objection": _objection(asked, record)}


def _objection(asked: ConsoleRequest, record: ApprovalRecord) -> str | None:
    return NO_PERSON if asked.person is None else asked.app.approvals.objection(record, asked.person)


def _address_of(asked: ConsoleRequest) -> str:
    return f"/api/approvals/{quote(asked.parts['id'], safe='')}"
