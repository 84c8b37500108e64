"""Answers operations on tasks whose first message waits for approval, which only the sidecar has."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from aiohttp import web

from sidecar.errors import Reason, Refusal
from sidecar.gateway.frontends.a2a.approval_wait import WaitingMessages, hold, refusal_event, updates_in, waits
from sidecar.gateway.frontends.a2a.exchange import AgentExchange, respond
from sidecar.gateway.frontends.a2a.task_ownership import TaskOwnership
from sidecar.gateway.request import RequestContext
from sidecar.http.server.stream_limits import StreamLimits
from sidecar.protocols.a2a.errors import BY_REASON, AgentError
from sidecar.protocols.a2a.operations import CANCEL, GET, RESUBSCRIBE
from sidecar.protocols.sse import KEEP_ALIVE

LOOK_EVERY_S: Final = 0.25
KEEP_ALIVE_EVERY: Final = 20  # looks


@dataclass(frozen=True, slots=True)
class UnsentTasks:
    messages: WaitingMessages
    places: StreamLimits

    async def standing(self, owning: TaskOwnership, *, goes_on: bool = True) -> dict[str, Any] | None:
        """Returns a task whose message waits; None for a task that the agent has, which `owning` then knows. An
        approved task `goes_on` if its agent needs the caller. Raises Refusal."""
        if owning.unsent is None:
            return None
        if goes_on:
            await self.messages.go_on(owning.task, owning.caller)
        if (found := await self.messages.find(owning.task)) is None:
            await owning.check()
            if owning.unsent is not None:
                raise Refusal(Reason.TASK_UNKNOWN)
        return found

    async def carry_out(self, exchange: AgentExchange) -> web.StreamResponse | None:
        """Answers an operation on a task whose message waits for approval. Returns None once the agent has the task and
        can answer itself. Raises Refusal."""
        request, owning, dialect = exchange.request, exchange.owning, exchange.dialect
        operation, told = owning.intent.operation, None
        exchange.lease.forwarded = True
        if operation is RESUBSCRIBE:
            with self.places.place(exchange.caller, request.now.settings.streams):
                return await self._until_sent(exchange)
        if operation not in (GET, CANCEL):
            return await exchange.failed(
                AgentError(BY_REASON["UNSUPPORTED_OPERATION"].code, "the task waits for approval")
            )
        with exchange:
            while owning.unsent is not None and told is None:
                told = await self.standing(owning, goes_on=operation is GET)
                if told is not None and operation is CANCEL:
                    told = await self.messages.cancel(owning.task, exchange.caller)
                    if told is None:
                        await self._rest(exchange)
        if told is None:
            return None
        if operation is CANCEL and told["status"]["state"] != "TASK_STATE_CANCELED":
            kind = BY_REASON["TASK_NOT_CANCELABLE"]
            return await exchange.failed(AgentError(kind.code, kind.message))
        return await respond(request, dialect.result(operation, told))

    async def _rest(self, exchange: AgentExchange) -> None:
        """Waits before the next look at a message that is being sent. Raises Refusal at the exchange's deadline."""
        if not (left_s := exchange.left_s(LOOK_EVERY_S)):
            raise Refusal(Reason.UPSTREAM_TIMEOUT, "the message of its task is still being sent")
        await asyncio.sleep(min(left_s, LOOK_EVERY_S))

    async def _until_sent(self, exchange: AgentExchange) -> web.StreamResponse | None:
        """Holds a stream on a task whose message waits, at most `approvals.hold` seconds. Returns None once the agent
        has the task."""
        request, owning, loop = exchange.request, exchange.owning, exchange.request.loop
        if (told := await self.standing(owning)) is None:
            return None
        held, exchange.endless = HeldStream(), True
        outlet = await hold(request, partial(_last_event, request))
        until_s, looks = loop.time() + request.now.settings.approvals.hold, 0
        with exchange.streaming(held, outlet):
            await outlet.write(exchange.dialect.event(RESUBSCRIBE, {"task": told}))
            while waits(told) and loop.time() < until_s:
                await held.rest()
                if exchange.cut is not None:
                    raise Refusal(exchange.cut)
                looks += 1
                if looks % KEEP_ALIVE_EVERY == 0:
                    await outlet.write(KEEP_ALIVE)
                if (found := await self.messages.find(owning.task)) is None:
                    await owning.check()
                    exchange.told = told["id"], told["contextId"]
                    return None
                if found["status"] != told["status"]:
                    for event in updates_in({"task": found}, found["id"], found["contextId"]):
                        await outlet.write(exchange.dialect.event(RESUBSCRIBE, event))
                told = found
        request.held = None
        await request.ended(200, outlet.bytes_out)
        await outlet.end()
        return outlet.response


class HeldStream:
    """A stream that is held for a waiting task. Closing it from outside ends it."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    def close(self) -> None:
        self.closed.set()

    async def rest(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_EVERY_S):
                await self.closed.wait()


async def _last_event(request: RequestContext, refusal: Refusal) -> bytes:
    return refusal_event(request, refusal)
