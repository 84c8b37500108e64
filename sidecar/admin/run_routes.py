"""Admin routes of CLI-program agents, their runs and schedules.

Viewers read, operators act; each action is recorded with the operator.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Final

import orjson
from aiohttp import web

from sidecar.admin.operator_api import OperatorApi
from sidecar.admin.operator_api.models import RunOrdered
from sidecar.admin.operator_api.requests import (
    answered_in,
    check_no_query,
    follows_in,
    nothing_in,
    ordered_in,
    reason_in,
    schedule_in,
    wanted_in,
)
from sidecar.admin.operator_api.run_stream import RunNews
from sidecar.admin.requests import HEADERS, AdminRequest, answered, body_of, problem
from sidecar.errors import Refusal
from sidecar.http.server.event_stream import open_stream
from sidecar.protocols.sse import KEEP_ALIVE
from sidecar.tasks.schedules.scheduler import Conflict

TEXT: Final = "text/plain; charset=utf-8"
OnDesk = Callable[[OperatorApi, AdminRequest], Awaitable[web.StreamResponse]]


async def agents(desk: OperatorApi, asked: AdminRequest) -> web.StreamResponse:
    check_no_query(asked.query)
    return answered(await desk.agents())


async def agent(desk: OperatorApi, asked: AdminRequest) -> web.StreamResponse:
    check_no_query(asked.query)
    return answered(await desk.agent(asked.name))


async def runs_of_agent(desk: OperatorApi, asked: AdminRequest) -> web.StreamResponse:
    return answered(await desk.runs(wanted_in(asked.query, asked.name)))


async def runs(desk: OperatorApi, asked: AdminRequest) -> web.StreamResponse:
    return answered(await desk.runs(wanted_in(asked.query)))


async def run(desk: OperatorApi, asked: AdminRequest) -> web.StreamResponse:
    check_no_query(asked.query)
    return answered(await desk.run(asked.name))


async def output(desk: OperatorApi, asked: AdminRequest) -> web.StreamResponse:
    """The output so far as text, or as an event stream."""
    if follows_in(asked.query):
        return await _followed(desk, asked)
    text = await desk.output(asked.name)
    return web.Response(body=text.encode("utf-8", "replace"), headers={**HEADERS, "Content-Type": TEXT})


async def order(desk: OperatorApi, asked: AdminRequest) -> web.StreamResponse:
    check_no_query(asked.query)
    ordered = ordered_in(await body_of(asked.request, desk.max_order_bytes))
    taken = await desk.order(asked.name, ordered, asked.by, here=asked.here)
    return answered(taken, 201, _place(taken))


async def answer(desk: OperatorApi, asked: AdminRequest) -> web.StreamResponse:
    check_no_query(asked.query)
    said = answered_in(await body_of(asked.request, desk.max_order_bytes))
    taken = await desk.answer(asked.name, said, asked.by, here=asked.here)
    return answered(taken, 201, _place(taken))


async def cancel(desk: OperatorApi, asked: AdminRequest) -> web.StreamResponse:
    check_no_query(asked.query)
    return answered(await desk.cancel(asked.name, reason_in(await body_of(asked.request)), asked.by))


async def schedules(desk: OperatorApi, asked: AdminRequest) -> web.StreamResponse:
    check_no_query(asked.query)
    return answered(await desk.schedules())


async def add_schedule(desk: OperatorApi, asked: AdminRequest) -> web.StreamResponse:
    check_no_query(asked.query)
    wanted = schedule_in(await body_of(asked.request))
    try:
        return answered(await desk.add_schedule(wanted, asked.by, here=asked.here), 201)
    except Conflict as conflict:
        return problem(str(conflict), 409)


async def remove_schedule(desk: OperatorApi, asked: AdminRequest) -> web.StreamResponse:
    await _check_bare(asked)
    try:
        return answered(await desk.remove_schedule(asked.name, asked.by))
    except Conflict as conflict:
        return problem(str(conflict), 409)


async def run_schedule(desk: OperatorApi, asked: AdminRequest) -> web.StreamResponse:
    await _check_bare(asked)
    return answered(await desk.run_schedule(asked.name, asked.by), 201)


async def pause(desk: OperatorApi, asked: AdminRequest) -> web.StreamResponse:
    await _check_bare(asked)
    return answered(await desk.pause(asked.name, asked.by))


async def resume(desk: OperatorApi, asked: AdminRequest) -> web.StreamResponse:
    await _check_bare(asked)
    return answered(await desk.resume(asked.name, asked.by))


def _place(taken: RunOrdered) -> Mapping[str, str]:
    return {"Location": f"/api/runs/{taken['run_id']}"} if taken["run_id"] else {}


async def _check_bare(asked: AdminRequest) -> None:
    check_no_query(asked.query)
    nothing_in(await body_of(asked.request))


async def _followed(desk: OperatorApi, asked: AdminRequest) -> web.StreamResponse:
    async with aclosing(desk.follow(asked.name)) as news:
        first = await anext(news)  # before the response begins, so that a refusal has a status
        stream = await open_stream(asked.request)
        try:
            await stream.write(_event(first))
            async for heard in news:
                if heard is None:
                    await stream.keep_alive()
                else:
                    await stream.write(_event(heard))
            await stream.end()
        except Refusal:  # the listener is gone or the store is out: the listener reconnects
            pass
        return stream.response


def _event(heard: RunNews | None) -> bytes:
    if heard is None:
        return KEEP_ALIVE
    return b"event: %b\ndata: %b\n\n" % (heard.event.encode(), orjson.dumps(heard.data))
