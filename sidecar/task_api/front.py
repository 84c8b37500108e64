"""What happens to a request of the task API, beside what happens to every request?

It is read (`reading.py`), the task that it names is looked up, and once policy, limits and evidence have had their say,
it is carried out: a new task is put on disk before its caller hears of it, and one that runs is cancelled at its agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import orjson
from aiohttp import web

from sidecar import arrival
from sidecar.a2a.owning import Owning
from sidecar.a2a.reading import Operate
from sidecar.arrival import Route
from sidecar.errors import Reason, Refusal
from sidecar.exchanges import Exchanges
from sidecar.identity import check_caller
from sidecar.intents import JSON
from sidecar.limits import Lease
from sidecar.oversight import end_of
from sidecar.protocols.a2a.errors import AgentError
from sidecar.protocols.a2a.operations import GET, LIST
from sidecar.records import Page, StoreOut
from sidecar.task_api.calling_back import without_result
from sidecar.task_api.models import A2aTask
from sidecar.task_api.orders import Orders
from sidecar.task_api.reading import Order, Wanted, cancels, gets, order_in, sends, unknown, wanted_in
from sidecar.task_api.records import SEEN, Record, State, Step
from sidecar.task_api.running import Runner, unavailable
from sidecar.task_api.shapes import cancelled, created, shown
from sidecar.turn import Overseen, Turn
from sidecar.upstreams.agents import Outgoing
from sidecar.vocabulary import Call, Caller, Decision, Question
from sidecar.whole import Whole

LOOK_AGAIN_S: Final = 0.02
SLOWEST_LOOK_S: Final = 0.5
_PRIVATE: Final[Mapping[str, str]] = {"Cache-Control": "no-store"}  # it is one caller's


class Create(NamedTuple):
    """A new task."""

    intent: Operate
    order: Order
    task_id: str

    @property
    def call(self) -> Call:
        return self.intent.call


class Show(NamedTuple):
    """One task."""

    intent: Operate
    record: Record

    @property
    def call(self) -> Call:
        return self.intent.call


class Cancel(NamedTuple):
    """A task that is not wanted any more."""

    intent: Operate
    record: Record

    @property
    def call(self) -> Call:
        return self.intent.call


Asked = Create | Show | Cancel | Wanted
CheckUrl = Callable[[str, str], Awaitable[None]]
"""Whether something could be sent there, for this chain. Raises Refusal."""


@dataclass(slots=True)
class TaskFront:
    """Serves the addresses of the task API."""

    exchanges: Exchanges
    orders: Orders
    check_url: CheckUrl
    new_id: Callable[[], str]

    @property
    def runner(self) -> Runner:
        """Who sees to tasks."""
        return self.orders.runner

    async def understand(self, turn: Turn, caller: Caller, route: Route) -> Asked:
        """What is wanted. Raises Refusal; another's task and none are the same."""
        if route.kind == arrival.TASKS:
            return self._understood(turn, caller, await self._at_all(turn, caller))
        verb = GET if route.kind == arrival.TASK else None
        turn.asks("tasks/get" if verb is GET else "tasks/cancel")
        arrival.check_no_query(turn.raw_path)
        if verb is None and turn.request.body_exists:
            await turn.body()  # nothing in it says anything
        record = await self._own(caller, route.rest)
        asked: Asked = Show(gets(record), record) if verb is GET else Cancel(cancels(record), record)
        return self._understood(turn, caller, asked)

    async def _at_all(self, turn: Turn, caller: Caller) -> Asked:
        if turn.verb == "GET":
            turn.asks(LIST.action)
            return wanted_in(turn.now, turn.raw_path.partition("?")[2])
        turn.asks("message/send")
        arrival.check_no_query(turn.raw_path)
        order, task_id = order_in(turn.now, caller, await turn.body()), self.new_id()
        turn.record.request_id = turn.record.task_id = task_id
        return Create(sends(task_id, order.target, order.task_type, order.input), order, task_id)

    def _understood(self, turn: Turn, caller: Caller, asked: Asked) -> Asked:
        if isinstance(asked, Show | Cancel):
            turn.record.request_id = turn.record.task_id = asked.record.id
        turn.goes_to(asked.call.upstream)
        turn.record.call = asked.call
        turn.record.mark("parse")
        if asked.call.upstream:  # what would have been asked at the agent's own address
            check_caller(caller, turn.now.audience(asked.call.upstream, arrival.AGENTS))
        return asked

    async def _own(self, caller: Caller, task_id: str) -> Record:
        try:
            record = await self.runner.means.store.get(task_id)
        except StoreOut as out:
            raise unavailable(out) from None
        if record is None or record.owner != caller.binding:
            raise unknown()
        return record

    async def check(self, turn: Turn, caller: Caller, asked: Asked) -> None:
        """Before anything is charged: whether it could be carried out. Raises Refusal."""
        if not isinstance(asked, Create):
            return
        await self.orders.check(turn.now, caller, asked.intent)
        if asked.order.callback_url:
            await self.check_url(asked.order.callback_url, caller.binding)

    async def carry_out(
        self, turn: Turn, caller: Caller, decision: Decision, asked: Asked, lease: Lease, timeout_s: float | None
    ) -> web.StreamResponse:
        """The answer to the caller, on record. Raises Refusal."""
        if isinstance(asked, Create):
            return await self._create(turn, caller, asked, lease)
        if isinstance(asked, Cancel):
            return await self._cancel(turn, caller, decision, asked, lease, timeout_s)
        lease.forwarded = True
        if isinstance(asked, Show):
            return await _respond(turn, 200, shown(asked.record, turn.now))
        return await self._list(turn, caller, asked)

    # --- one by one ---------------------------------------------------------------------------------------------------

    async def _create(self, turn: Turn, caller: Caller, asked: Create, lease: Lease) -> web.StreamResponse:
        record = self.orders.new(caller, asked.order, asked.task_id)
        body = orjson.dumps(created(record))
        if not await self.orders.keep(record, lease, partial(turn.ended, 201, len(body))):
            raise ValueError("an id came twice")  # nobody may have another's task
        return Whole(201, body, JSON, {**_PRIVATE, "Location": f"{turn.prefix}/a2a/tasks/{record.id}"})

    async def _list(self, turn: Turn, caller: Caller, wanted: Wanted) -> web.StreamResponse:
        now_s = self.runner.means.live.clock()
        names = [wanted.target] if wanted.target else sorted(turn.now.agents)
        may = turn.now.engine.may_list
        shows = [
            name
            for name in names
            if turn.shadow
            or all(may(caller.chain, Question(f"nhi:{name}", one.action, ""), now_s) for one in (LIST, GET))
        ]
        page = Page(shows, wanted.state, wanted.limit, wanted.offset)
        try:
            records, total = await self.runner.means.store.page(caller.binding, page)
        except StoreOut as out:
            raise unavailable(out) from None
        entries = _within([shown(one, turn.now) for one in records], turn.now.bounds.max_response_bytes)
        return await _respond(
            turn, 200, {"tasks": entries, "total": total, "limit": wanted.limit, "offset": wanted.offset}
        )

    async def _cancel(
        self, turn: Turn, caller: Caller, decision: Decision, asked: Cancel, lease: Lease, timeout_s: float | None
    ) -> web.StreamResponse:
        """What nobody has sent yet is over at once; what is being sent is waited for, because only then it has a name
        at the agent."""
        limit_s = min(turn.now.agent(asked.record.target).timeout_s, timeout_s or float("inf"))
        record, pause_s = asked.record, LOOK_AGAIN_S
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    if record.is_over:
                        raise Refusal(Reason.NOT_CANCELABLE, f"it is {record.state}")
                    if record.step is Step.SENT:
                        said = await self._cancel_there(turn, caller, decision, record, lease, limit_s)
                        return await _respond(turn, 200, cancelled(await self._cancelled(caller, record, said)))
                    ended = await self.runner.end(record, State.CANCELLED) if record.step is Step.UNSENT else None
                    if ended is not None:
                        return await _respond(turn, 200, cancelled(ended))
                    await asyncio.sleep(pause_s)
                    pause_s = min(SLOWEST_LOOK_S, pause_s * 2)
                    record = await self._own(caller, record.id)
        except TimeoutError:
            raise Refusal(Reason.UPSTREAM_TIMEOUT, "the agent has not answered yet") from None

    async def _cancel_there(
        self, turn: Turn, caller: Caller, decision: Decision, record: Record, lease: Lease, limit_s: float
    ) -> str:
        """At the agent; the state that it is in there now. Raises Refusal."""
        agent, intent = turn.now.agent(record.target), cancels(record)
        agent.account.breaker.check()
        until = end_of(caller, decision, turn.now)
        overseen = Overseen(turn, caller, intent.call, limit_s, self.exchanges.streams, turn.now, until)
        lease.forwarded = True
        async with overseen.under_way(self.exchanges.oversight.calls):
            extra = arrival.trace_headers(turn.headers)
            outgoing = Outgoing(intent.operation, intent.params, caller, overseen.left_s or limit_s, (), extra)
            answer = await agent.wire.ask(outgoing)
            if isinstance(answer, AgentError):
                if answer.kind.reason in ("TASK_NOT_CANCELABLE", "UNSUPPORTED_OPERATION", "TASK_NOT_FOUND"):
                    raise Refusal(Reason.NOT_CANCELABLE, f"the agent says: {answer.kind.message}")
                raise Refusal(Reason.UPSTREAM_FAILED, "the agent answered with an error")
            await Owning(self.exchanges.tasks, caller, intent).admit(answer)
        said = str(answer.get("status", {}).get("state", ""))
        if SEEN.get(said) in (State.COMPLETED, State.FAILED):  # it was faster: whoever follows it hears the same
            self.runner.wake(record)
            raise Refusal(Reason.NOT_CANCELABLE, f"it is {SEEN[said]}")
        return said

    async def _cancelled(self, caller: Caller, record: Record, said: str) -> Record:
        """A task that its agent cancelled; whoever follows it may have heard it first."""
        while not record.is_over:
            ended = await self.runner.end(record._replace(a2a_state=said), State.CANCELLED)
            record = ended or await self._own(caller, record.id)
        if record.state is not State.CANCELLED:
            raise Refusal(Reason.NOT_CANCELABLE, f"it is {record.state}")
        return record


def _within(entries: list[A2aTask], most: int) -> list[A2aTask]:
    """Entries whose results fit into an answer; others say that theirs is left out: each task has its own address."""
    room = most
    for entry in entries:
        if entry["result"] is None:
            continue
        room -= len(orjson.dumps(entry["result"]))
        if room < 0:
            entry |= without_result(entry)
    return entries


async def _respond(turn: Turn, status: int, said: Mapping[str, Any]) -> Whole:
    body = orjson.dumps(said)
    await turn.ended(status, len(body))
    return Whole(status, body, JSON, _PRIVATE)
