"""How long may a stream last, and how many of them?"""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from tests.flow.guests import ALICE, BOB, GOOD, IDP, RULES, emitter, gateway, get, opened, stream
from tests.flow.idp import bearer
from tests.flow.raw import wire
from tests.flow.scripts import after
from tests.flow.streams import Ear, Emitter, event, streamed
from tests.flow.talk import Era, Talk, reason_of
from tests.flow.world import Upstream, World, until


async def time_goes_by(running: World) -> None:
    running.app.live.clock = lambda: time.time() + 601


async def the_grant_is_revoked(running: World) -> None:
    (running.folder / "policies/agent_to_tool.csv").write_text(RULES.replace("user:alice", "user:carol"))
    await running.app.reload("test")


async def a_deny_is_added(running: World) -> None:
    rules = RULES + "p, user:alice, nhi:github, *, -, -, -, deny\n"
    (running.folder / "policies/agent_to_tool.csv").write_text(rules)
    await running.app.reload("test")


ENDS = {
    "expired token": (time_goes_by, "expired"),
    "expired grant": (time_goes_by, "expired"),
    "revoked grant": (the_grant_is_revoked, "no-matching-rule"),
    "new deny": (a_deny_is_added, "denied-by-rule"),
}


@pytest.mark.parametrize("era", ["session", "stateless"])
@pytest.mark.parametrize("case", ENDS)
async def test_a_stream_ends_with_its_permission_and_others_go_on(tmp_path: Path, case: str, era: Era) -> None:
    """BL-091."""
    end, reason = ENDS[case]
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 600))
    rules = re.sub(r"(user:alice.*?), -", rf"\1, {soon}", RULES) if case == "expired grant" else RULES
    feed = Emitter()
    upstream = Upstream(script={"GET": feed.listen, "subscriptions/listen": feed.listen})
    async with gateway(tmp_path, upstream=upstream, rules=rules) as running, AsyncExitStack() as ears:
        audience = f"{running.url}/mcp/github"
        alices = bearer(IDP.token("user:alice", audience, ttl_s=600)) if case == "expired token" else ALICE
        mine = await ears.enter_async_context(an_endless_stream(running, alices, era))
        bobs = await ears.enter_async_context(an_endless_stream(running, BOB, era))
        await until(lambda: feed.count == 2)
        await end(running)
        if case != "expired token":  # once the sidecar shall come to it by itself
            await running.app.pipeline.forwarder.oversight.look()
        last = await mine.rest()
        told = [] if era == "session" else [reason]
        assert [message["error"]["data"]["reason"] for message in last] == told
        await until(lambda: feed.count == 1)
        for name in list(feed.open):
            await feed.emit(name, event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}))
        assert (await bobs.message())["method"] == "notifications/tools/list_changed"
        assert running.ends()[-1]["reason"] == reason and running.ends()[-1]["status"] == "permission_denied"


@asynccontextmanager
async def an_endless_stream(running: World, who: dict[str, str], era: Era) -> AsyncIterator[Ear]:
    talk, wanted = Talk(running, era, dict(who)), {"notifications": {"toolsListChanged": True}}
    if era == "session":
        await talk.open()
    async with talk.hearing("" if era == "session" else "subscriptions/listen", wanted) as ear:
        yield ear


async def test_new_rules_filter_a_stream_that_is_already_open(house: World) -> None:
    alice = await opened(house)
    changed = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "file:///a"}}
    other = {"jsonrpc": "2.0", "method": "notifications/prompts/list_changed"}
    async with stream(alice) as ear:
        await until(lambda: emitter(house).count == 1)
        await emitter(house).emit("upstream-1", event(changed) + event(other))
        assert (await ear.message())["method"] == other["method"]
        rules = RULES + "p, user:alice, resource:github/file:*, use, -, -, -, allow\n"
        (house.folder / "policies/agent_to_tool.csv").write_text(rules)
        await house.app.reload("test")
        await house.app.pipeline.forwarder.oversight.look()
        await emitter(house).emit("upstream-1", event(changed))
        assert (await ear.message())["method"] == changed["method"]


async def test_a_stream_ends_with_its_session_also_while_it_is_only_being_opened(house: World) -> None:
    alice, waiting = await opened(house), asyncio.Event()

    feed = emitter(house)
    house.upstream.script["GET"] = after(waiting, feed.listen)

    async def hear() -> tuple[int, list[Any]]:
        async with stream(alice) as ear:
            return ear.status, await ear.rest()

    hearing_ = asyncio.create_task(hear())
    await until(lambda: house.upstream.verbs[-1][0] == "GET")
    assert (await alice.verb("DELETE"))[0] == 204
    waiting.set()
    assert await hearing_ == (200, [])
    assert house.app.pipeline.forwarder.streams == set()


async def test_draining_ends_streams_and_lets_calls_finish(tmp_path: Path) -> None:
    released = asyncio.Event()

    upstream = Upstream(script={"GET": Emitter().listen, "tools/call": after(released)})
    async with gateway(tmp_path, upstream=upstream) as running:
        alice = await opened(running)
        async with stream(alice) as ear:
            call = asyncio.create_task(alice.call("search_code", GOOD))
            await until(lambda: upstream.methods().count("tools/call") == 1)
            draining = asyncio.create_task(running.app.pipeline.drain(5.0))
            assert await ear.block() == b": closed, draining\n\n"  # streams get a closing event
            assert await ear.rest() == []
            released.set()
            assert (await call)[0] == 200
            await draining
        statuses = [record["status"] for record in running.ends()]
        assert statuses == ["success"] * 3


async def test_who_is_there_when_the_grace_time_is_over_hears_so_and_the_record_says_so(tmp_path: Path) -> None:
    """Nothing was sent yet: 503 (in a session 200 and the same error). A stream had begun: it ends with the error."""
    arrived: list[str] = []

    async def hangs(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        tool = message["params"]["name"]
        arrived.append(tool)
        if tool == "get_file":
            note = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}}
            return await streamed(request, event(note), pause_s=60)
        await asyncio.sleep(60)
        return web.Response()

    async with gateway(tmp_path, upstream=Upstream(script={"tools/call": hangs})) as running:
        alice, token = await opened(running), {"_meta": {"progressToken": 1}}
        once = Talk(running, "stateless", headers=alice.headers)
        plain = Talk(running, "plain", headers=alice.headers)
        about = {"Host": urlsplit(running.url).netloc, **alice.headers, "Content-Type": "application/json"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in about.items())
        slow_body = f"POST /mcp/github HTTP/1.1\r\n{lines}Content-Length: 100\r\n\r\n{{".encode()
        async with wire(running) as waiting:
            await waiting.send(slow_body)
            calls = [talk.call("search_code", GOOD) for talk in (once, plain, alice)]
            calls.append(alice.ask("tools/call", {"name": "get_file", "arguments": {"path": "a"}, **token}))
            asked = [asyncio.create_task(call) for call in calls]
            await until(lambda: len(arrived) == 4)
            before = len(running.ends())
            await running.app.pipeline.drain(0.1)
            answers = [await one for one in asked]
            assert (await waiting.response())[0] == 503
        assert [answer[0] for answer in answers] == [503, 503, 200, 200]
        assert [reason_of(answer) for answer in answers[:3]] == ["draining"] * 3
        *_, last = answers[3][1].strip().split(b"\n")
        assert json.loads(last.removeprefix(b"data: "))["error"]["data"]["reason"] == "draining"
        assert [record["reason"] for record in running.ends()[before:]] == ["draining"] * 5


async def test_a_session_holds_four_streams_and_the_oldest_gives_way(house: World) -> None:
    alice = await opened(house)
    async with AsyncExitStack() as ears:
        heard = [await ears.enter_async_context(stream(alice)) for _ in range(6)]
        assert [await ear.message() for ear in heard[:2]] == [None, None]
        await until(lambda: emitter(house).count == 4)
        note = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        await emitter(house).emit("upstream-1", event(note))
        assert [(await ear.message())["method"] for ear in heard[2:]] == [note["method"]] * 4
    await until(lambda: not house.app.pipeline.forwarder.streams)


async def test_a_storm_of_reconnects_costs_no_list_no_call_and_no_other_client(tmp_path: Path) -> None:
    """BL-037."""
    upstream = Upstream(script={"GET": Emitter().listen})
    async with gateway(tmp_path, upstream=upstream, sessions="session_calls_per_minute: 40") as running:
        alice, bob = await opened(running), await opened(running, BOB)
        statuses = Counter([(await get(alice))[0] for _ in range(60)])
        assert statuses == {200: 40, 429: 20}
        for talk in (alice, bob):
            assert (await talk.ask("tools/list"))[1]["result"]["tools"]
            assert (await talk.call("search_code", GOOD))[1]["result"]["content"]
        await until(lambda: emitter(running).count == 0)


async def test_listeners_at_the_upstream_keep_no_call_waiting(tmp_path: Path) -> None:
    """More streams than the upstream has connections for calls."""
    upstream = Upstream(script={"GET": Emitter().listen})
    three = "max_connections: 3"
    async with gateway(tmp_path, upstream=upstream, mcp_settings=three) as running, AsyncExitStack() as ears:
        for who in (ALICE, BOB):
            talk = await opened(running, who)
            for _ in range(4):
                await ears.enter_async_context(stream(talk))
        await until(lambda: emitter(running).count == 8)
        answers = await asyncio.gather(*(talk.call("search_code", GOOD) for _ in range(3)))
        assert [body["result"]["isError"] for _, body, _ in answers] == [False] * 3
