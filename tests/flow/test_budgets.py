"""What does a call cost, whoever answers it and however that ends?"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sidecar.limits import Limiter
from sidecar.limits.amounts import in_units
from sidecar.limits.plan import Budgets, charge_of
from sidecar.protocols.a2a.operations import Version
from tests.a2a.world import HELLO, No, ScriptedAgent, agent_world, ask, task
from tests.flow.causes import budgets
from tests.flow.streams import event, streamed
from tests.flow.world import Upstream, World, listening, until, world
from tests.tables import tables

COSTS = """
costs: [{object: "%s", unit: usd, per_call: 0.01, from_result: %s, max_per_call: 0.50}]
budgets: [{principal: "%s", unit: usd, per_day: 5.00}]
"""
FILES = budgets(COSTS % ("tool:github/*", "_meta.usage.cost", "nhi:*"))
DAY = "budgets:nhi:*:usd:day"
GOOD = {"repo": "acme/x"}
SAID = tables("flow/budgets")["said"]


def complete(message: Mapping[str, Any], said: object = None) -> dict[str, Any]:
    result = {"resultType": "complete", "content": [], "_meta": {"usage": {"cost": said}}}
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


async def left(limiter: Limiter, now: Budgets, principal: str = "nhi:planner") -> float:
    """What is left of the first budget."""
    entry = now.spending[0]
    (standing,) = await limiter.store.look((charge_of(entry, entry.caps[0], principal),))
    return in_units(standing.remaining)


async def remaining(running: World) -> float:
    return await left(running.app.limiter, running.app.live.current.budgets)


def told(records: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [record["limits"] for record in records[-2:]]


async def test_a_call_costs_what_its_result_says_within_what_was_declared(tmp_path: Path) -> None:
    upstream, saying = Upstream(), iter(said for said, _ in SAID)

    async def respond(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(complete(message, next(saying)))

    upstream.script["tools/call"] = respond
    async with world(tmp_path, files=FILES, upstream=upstream) as running:
        before = 5.0
        for said, cost in SAID:
            assert (await running.call("search_code", GOOD))[0] == 200
            after = round(before - cost, 6)
            about = {"name": DAY, "limit": 5, "unit": "usd"}
            assert told(running.records()) == [
                [{**about, "charged": 0.5, "remaining": round(before - 0.5, 6)}],
                [{**about, "charged": cost, "remaining": after}],
            ], said
            assert await remaining(running) == after
            before = after
        metrics = await running.metrics()
        assert f'sidecar_budget_used_ratio{{budget="{DAY}"}} {1 - before / 5}' in metrics


Said = dict[str, Any] | None
NO = {"code": -32000, "message": "no"}
A_TASK = {"task": {"taskId": "t", "status": "working", "_meta": {"usage": {"cost": 0}}}}
ENDS: list[tuple[int, Said, float]] = [
    (200, {"error": NO}, 0.01),
    (400, {"error": NO | {"code": -32602}}, 0.01),
    (200, {"result": 7}, 0.01),
    (500, None, 0.5),
    (200, {"result": A_TASK}, 0.5),
]


async def test_an_answer_without_a_cost_keeps_the_declared_one_and_no_answer_the_most(tmp_path: Path) -> None:
    upstream, answers = Upstream(), iter(ENDS)

    async def respond(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        status, said, _ = next(answers)
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], **said} if said else None, status=status)

    upstream.script["tools/call"] = respond
    async with world(tmp_path, files=FILES, upstream=upstream) as running:
        before = 5.0
        for status, said, cost in ENDS:
            await running.call("search_code", GOOD)
            before = round(before - cost, 6)
            assert await remaining(running) == before, (status, said)
            assert running.ends()[-1]["limits"][0]["charged"] == cost


async def test_a_stream_costs_what_its_end_says_and_who_leaves_before_pays_the_most(tmp_path: Path) -> None:
    upstream, go = Upstream(), asyncio.Event()

    async def respond(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        progress = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
        if message["id"] == 2:
            await go.wait()
        return await streamed(request, event(progress), event(complete(message, 0.25)))

    upstream.script["tools/call"] = respond
    async with world(tmp_path, files=FILES, upstream=upstream) as running:
        await running.call("search_code", GOOD)
        assert await remaining(running) == 4.75
        leaving = asyncio.create_task(running.call("search_code", GOOD, id=2))
        await until(lambda: len(upstream.calls()) == 2)
        leaving.cancel()
        await until(lambda: len(running.ends()) >= 2)
        await until(lambda: not running.app.limiter.held)
        assert await remaining(running) == 4.25


async def test_what_never_reached_the_server_costs_nothing(tmp_path: Path) -> None:
    """Neither a call that another limit refuses, nor one to a server that is gone."""
    files = budgets((COSTS % ("tool:github/*", "_meta.usage.cost", "nhi:*")) + 'tools: {"*": {concurrency: 1}}')
    async with AsyncExitStack() as stack:
        base = await stack.enter_async_context(listening(Upstream().handle))
        async with world(tmp_path, files=files, upstream_url=f"{base}/mcp") as running:
            assert (await running.call("search_code", GOOD))[0] == 200
            (entry,), store = running.app.live.current.budgets.tools, running.app.limiter.store
            slot = tuple(charge_of(entry, cap, "") for cap in entry.caps)
            await store.reserve(slot, "somebody else's")
            assert (await running.call("search_code", GOOD))[0] == 429
            assert running.ends()[-1]["reason"] == "too-many-concurrent"
            store.release(slot, "somebody else's")
            await stack.aclose()
            assert (await running.call("search_code", GOOD))[0] == 502
            limits = [limit for record in running.records()[-2:] for limit in record["limits"]]
            assert [limit["charged"] for limit in limits if limit["name"] == DAY] == [0.5, 0]
            assert running.ends()[-1]["reason"] == "upstream-failed"
            assert await remaining(running) == 4.99


async def test_a_call_whose_time_is_over_before_a_connection_is_free_costs_nothing(tmp_path: Path) -> None:
    upstream, go = Upstream(), asyncio.Event()

    async def respond(_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        await go.wait()
        return web.json_response(complete(message, 0.25))

    upstream.script["tools/call"] = respond
    shorter = 'tools: {"tool:github/get_file": {timeout: 0.3}}'
    files = budgets(f"{COSTS % ('tool:github/*', '_meta.usage.cost', 'nhi:*')}{shorter}")
    one = "max_connections: 1, max_calls_per_caller: 2"
    async with world(tmp_path, files=files, upstream=upstream, mcp_settings=one) as running:
        await running.ask("tools/list")
        first = asyncio.create_task(running.call("search_code", GOOD))
        await until(lambda: len(upstream.calls()) == 1)
        assert (await running.call("get_file", {"path": "a"}, id=2))[0] == 504
        limits = {limit["name"]: limit["charged"] for limit in running.ends()[-1]["limits"]}
        assert (len(upstream.calls()), limits[DAY], await remaining(running)) == (1, 0, 4.5)
        go.set()
        await first
        assert await remaining(running) == 4.75


async def test_who_has_spent_a_budget_hears_how_much_and_until_when(tmp_path: Path) -> None:
    costs = 'costs: [{object: "*", unit: usd, per_call: 0.002}]'
    files = budgets(costs + '\nbudgets: [{object: "tool:*", unit: usd, per_month: 0.005}]')
    async with world(tmp_path, files=files) as running:
        for _ in range(2):
            assert (await running.call("search_code", GOOD))[0] == 200
        status, body, headers = await running.call("search_code", GOOD)
        data = body["error"]["data"]
        assert (status, data["reason"]) == (429, "budget-spent")
        assert (data["most"], data["remaining"], data["unit"]) == (0.005, 0.001, "usd")
        assert data["reset_at"].endswith("-01T00:00:00+00:00")
        assert headers["Retry-After"] == str(data["retry_after_s"])
        assert headers["RateLimit-Policy"].startswith('"limit";q=5000;qu="micro-usd";w=2')
        assert headers["RateLimit"].startswith('"limit";r=1000;t=')
        assert len(running.upstream.calls()) == 2


ANSWERS: dict[str, tuple[Any, float]] = {
    "a task that ended": ({"task": {**task(), "metadata": {"usage": {"cost": 0.03}}}}, 0.03),
    "one that ended and says nothing": ({"task": task()}, 0.01),
    "one that goes on": ({"task": {**task(state="TASK_STATE_WORKING"), "metadata": {"usage": {"cost": 0.03}}}}, 0.5),
    "one that asks": ({"task": task(state="TASK_STATE_INPUT_REQUIRED")}, 0.01),
    "a message": ({"message": {**HELLO, "role": "ROLE_AGENT", "metadata": {"usage": {"cost": "0.2"}}}}, 0.2),
    "an error": (No({"code": -32004, "message": "not this one"}), 0.01),
}


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_an_agents_answer_tells_what_it_cost_once_it_is_whole(tmp_path: Path, version: Version) -> None:
    agent, files = ScriptedAgent(), budgets(COSTS % ("nhi:researcher", "metadata.usage.cost", "user:*"))
    async with agent_world(tmp_path, agent, files=files) as running:
        before = 5.0
        for number, (answer, cost) in enumerate(ANSWERS.values()):
            renamed = isinstance(answer, dict)
            said = json.loads(json.dumps(answer).replace('"t1"', f'"t{number}"')) if renamed else answer
            agent.script["SendMessage"] = lambda method, params, said=said: said
            await ask(running, version, "jsonrpc", "message/send", {"message": HELLO})
            after = await left(running.app.limiter, running.app.live.current.budgets, "user:alice")
            assert (number, round(before - after, 6)) == (number, cost)
            assert running.ends()[-1]["limits"][0]["charged"] == cost
            before = after
        await ask(running, version, "jsonrpc", "tasks/get", {"id": "t0"})
        assert await left(running.app.limiter, running.app.live.current.budgets, "user:alice") == before


async def test_a_stream_of_an_agent_costs_what_its_last_word_on_it_says(tmp_path: Path) -> None:
    agent, files = ScriptedAgent(), budgets(COSTS % ("nhi:researcher", "metadata.usage.cost", "user:*"))
    done = {"taskId": "t1", "contextId": "c1", "status": task()["status"], "metadata": {"usage": {"cost": 0.07}}}
    begun = {"task": {**task(state="TASK_STATE_WORKING"), "metadata": {"usage": {"cost": 0.02}}}}
    agent.script["SendStreamingMessage"] = lambda method, params: [begun, {"statusUpdate": done}]
    async with agent_world(tmp_path, agent, files=files) as running:
        await ask(running, "1.0", "jsonrpc", "message/stream", {"message": HELLO})
        assert await left(running.app.limiter, running.app.live.current.budgets, "user:alice") == 4.93
        agent.script["SendStreamingMessage"] = lambda method, params: [json.loads(json.dumps(begun).replace("1", "2"))]
        await ask(running, "1.0", "jsonrpc", "message/stream", {"message": HELLO})
        assert await left(running.app.limiter, running.app.live.current.budgets, "user:alice") == 4.43
