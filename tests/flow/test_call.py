"""However a call ends, what it waits for, and who may make it."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.flow.guests import result_of
from tests.flow.scripts import answer, hang, hang_up, stream
from tests.flow.streams import event
from tests.flow.talk import ERAS, Era, Talk, reason_of
from tests.flow.world import RULES, SESSION, Upstream, World, until, world
from tests.valkey import running_valkey

ANYBODY = "p, anonymous, tool:github/*, use, -, -, -, allow\n"


async def test_of_fifty_calls_at_once_through_four_sidecars_five_pass_a_limit_of_five(tmp_path: Path) -> None:
    """BL-063: asked and charged in one step, and counted for all together."""
    rules = "p, nhi:planner, tool:github/get_file, use, -, 5, -, allow\n"
    with running_valkey() as valkey:
        async with AsyncExitStack() as stack:
            settings = f'store: {{url: "{valkey.url}"}}\n'
            sidecars = [
                await stack.enter_async_context(world(tmp_path / str(number), rules=rules, settings=settings))
                for number in range(4)
            ]
            for sidecar in sidecars:
                store: Any = sidecar.app.pipeline.stages.limiter.store
                store._deadline_s = 2.0  # a test machine has other things to do; no outage is asked for here
            calls = [sidecars[number % 4].call("get_file", {"path": "a"}, id=number) for number in range(50)]
            answers = await asyncio.gather(*calls)
    assert Counter(status for status, _, _ in answers) == {200: 5, 429: 45}
    assert sum(len(sidecar.upstream.calls()) for sidecar in sidecars) == 5


# --- however a call ends ----------------------------------------------------------------------------------------------

ONE_AT_A_TIME = {"policies/budgets.yaml": 'version: 1\nprincipals: {"nhi:planner": {concurrency: 1}}\n'}
EVERYTHING = "p, nhi:planner, *, use, -, -, -, allow\n"
ROUTES: dict[str, dict[str, Any]] = {
    "tools/call": {"name": "get_file", "arguments": {"path": "a"}},
    "prompts/get": {"name": "greeting"},
    "resources/read": {"uri": "file:///a"},
}


NOTE = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": 1}}
ENDS: dict[str, Any] = {
    "an error": answer(error={"code": -1, "message": "no"}),
    "a failure": answer(500, result={}),
    "a broken connection": hang_up,
    "a broken stream": stream(event(NOTE)),
    "no answer in time": hang,
}


@pytest.mark.parametrize("era", ERAS)
async def test_however_a_call_ends_on_whatever_route_its_slot_is_free_at_once(tmp_path: Path, era: Era) -> None:
    """BL-059: one slot, and every call needs it."""
    upstream = Upstream()
    options: dict[str, Any] = {"rules": EVERYTHING, "files": ONE_AT_A_TIME, "mcp_settings": "timeout_s: 1.0"}
    async with world(tmp_path, upstream=upstream, **options) as running:
        talk = Talk(running, era)
        await talk.ask("tools/list")
        for method, params in ROUTES.items():
            for case, respond in ENDS.items():
                upstream.script[method] = respond
                answer = await talk.ask(method, params)
                assert answer[0] != 429 and reason_of(answer) != "too-many-concurrent", (method, case)
            del upstream.script[method]
            ill = await talk.ask(method, {**params, "name": "a b", "uri": "a b"})
            assert reason_of(ill), method
            assert (await talk.ask(method, params))[0] == 200, method
            assert len(upstream.calls(method)) == len(ENDS) + 1


async def test_a_caller_who_leaves_any_route_leaves_its_slot(tmp_path: Path) -> None:
    """BL-059, cancelled: the next call finds the slot free."""
    upstream = Upstream()
    async with world(tmp_path, upstream=upstream, rules=EVERYTHING, files=ONE_AT_A_TIME) as running:
        talk = Talk(running, "stateless")
        await talk.ask("tools/list")
        for method, params in ROUTES.items():
            upstream.script[method] = hang
            call = asyncio.create_task(talk.ask(method, params))
            await until(lambda method=method: upstream.calls(method))
            assert reason_of(await talk.ask(method, params)) == "too-many-concurrent"
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            del upstream.script[method]
            await until(lambda: not running.app.pipeline.stages.limiter.held)
            assert (await talk.ask(method, params))[0] == 200, method


async def test_a_page_of_our_own_name_may_call_and_no_other(tmp_path: Path) -> None:
    async with world(tmp_path, principal="", upstream_settings="anonymous: true", rules=ANYBODY) as running:
        port = running.url.rpartition(":")[2]
        ours = (f"http://localhost:{port}", f"http://127.0.0.1:{port}")
        others = ("http://localhost", "http://localhost:1", f"http://evil.example:{port}", "null")
        for origin, expected in dict.fromkeys(ours, 200).items() | dict.fromkeys(others, 403).items():
            assert (await running.call("get_file", {}, headers={"Origin": origin}))[0] == expected, origin


async def test_a_session_takes_any_revision_of_its_era_in_the_header(planner: World) -> None:
    talk = Talk(planner, "session")
    for version, expected in {"2025-03-26": 200, SESSION: 200, "2099-01-01": 400}.items():
        assert (await talk.ask("tools/list", headers={"MCP-Protocol-Version": version}))[0] == expected, version


async def test_calls_beyond_an_upstreams_connections_wait_for_them_and_it_counts_as_up(tmp_path: Path) -> None:
    inside = most = 0

    async def slow(asked: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        nonlocal inside, most
        inside, most = inside + 1, max(most, inside + 1)
        await asyncio.sleep(0.02)
        inside -= 1
        return upstream.answer(message)

    upstream = Upstream(script={"tools/call": slow})
    mcp = "max_connections: 4, max_calls_per_caller: 8"
    async with world(tmp_path, upstream=upstream, mcp_settings=mcp) as running:
        answers = await asyncio.gather(*(running.call("search_code", {"repo": "acme/a"}, id=n) for n in range(12)))
        assert [(status, body["id"]) for status, body, _ in answers] == [(200, n) for n in range(12)]
        assert most == 4
        async with running.http.get(f"{running.admin_url}/metrics") as metrics:
            assert 'sidecar_upstream_up{upstream="github"} 1.0' in await metrics.text()


async def test_a_call_waits_for_its_caller_longer_than_for_its_server(tmp_path: Path) -> None:
    """A person who is asked may think; a server that asks nothing has the upstream's time-out."""
    rules = RULES + "p, nhi:planner, nhi:github, elicitation/create, -, -, -, allow\n"
    answered = asyncio.Event()

    async def tool(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        if message["params"]["name"] == "search_code":
            asks = {"jsonrpc": "2.0", "id": 7, "method": "elicitation/create", "params": {"message": "sure?"}}
            await stream.write(event(asks))
        await answered.wait()
        await stream.write(event(result_of(message, {"content": []})))
        return stream

    async def reply(_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        answered.set()
        return web.Response(status=202)

    upstream = Upstream(script={"tools/call": tool, "response": reply})
    async with world(tmp_path, rules=rules, upstream=upstream, mcp_settings="timeout_s: 0.4") as running:
        talk = Talk(running, "session")
        _, silent, _ = await talk.call("get_file", {"path": "a"})
        assert b"upstream-timeout" in silent
        asked = asyncio.create_task(talk.call("search_code", {"repo": "acme/a"}))
        await asyncio.sleep(0.8)
        answer = {"jsonrpc": "2.0", "id": 7, "result": {"action": "accept"}}
        assert (await running.post(answer, headers=talk.in_session))[0] == 202
        assert b'"result":{"content":[]}' in (await asked)[1]
