"""Do callers of the HTTP+SSE transport of MCP 2024-11-05 get the same answers, and nobody another's?"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sidecar.gateway import sse_session
from tests.flow.guests import ALICE, BOB, GOOD, IDP, RULES, deletes, gateway, gone, opened, result_of
from tests.flow.idp import bearer
from tests.flow.pairs import INITIALIZED, Pair, all_quiet, pair, together
from tests.flow.scripts import after, answer, status, stream
from tests.flow.streams import Emitter, event, hearing, streamed
from tests.flow.world import Respond, Upstream, World, request, stateless, until

TELL = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "hear"}}


def searching(id: int | str = 1) -> dict[str, Any]:
    return request("tools/call", {"name": "search_code", "arguments": GOOD}, id=id)


@asynccontextmanager
async def behind(
    folder: Path, script: dict[str, Respond] | None = None, *, opened: bool = True, **more: Any
) -> AsyncIterator[Pair]:
    """A session of Alice's at a sidecar before an upstream with this script."""
    async with (
        gateway(folder, upstream=Upstream(script=script or {}), **more) as running,
        pair(running, ALICE, opened=opened) as mine,
    ):
        yield mine


def ends_of(running: World, what: str) -> list[dict[str, Any]]:
    """The terminal records of one method, or action."""
    return [record for record in running.ends() if what in (record["method"], record["action"])]


async def test_a_session_is_begun_by_its_stream_used_and_ended_with_it(tmp_path: Path) -> None:
    upstream = Upstream(script={"DELETE": gone})
    async with gateway(tmp_path, upstream=upstream) as running:
        async with pair(running, ALICE) as mine:
            assert mine.ear.response.headers["X-Accel-Buffering"] == "no"
            answer = await mine.call("search_code", GOOD, id="a")
            assert answer["result"]["content"][0]["text"] == "done"
            assert (await mine.ask("ping", id=2)) == {"jsonrpc": "2.0", "id": 2, "result": {}}
            assert len(running.app.sessions) == 1
        await until(lambda: len(running.app.sessions) == 0)
        await until(lambda: len(deletes(upstream)) == 1)
        assert running.app.pipeline.forwarder.pairs == {}
        sent = [message for headers, message in upstream.seen if headers.get("Mcp-Session-Id") == "upstream-1"]
        assert [message["method"] for message in sent] == ["notifications/initialized", "tools/call", "ping"]
        (call,), (one,) = ends_of(running, "tools/call"), ends_of(running, "session/stream")
        assert (call["status"], call["http_status"], call["object"]) == ("success", 202, "tool:github/search_code")
        assert (one["status"], one["http_status"]) == ("success", 200)
        assert len(running.ends()) == 5


async def test_every_kind_of_no_is_told_on_the_stream_and_recorded_once(tmp_path: Path) -> None:
    rules = RULES + "p, user:alice, tool:github/delete_repo, *, -, -, -, deny\n"
    rules += "p, user:alice, tool:github/get_file, use, -, 1, -, allow\n"
    async with gateway(tmp_path, rules=rules) as running, pair(running, ALICE) as mine:
        told = [
            await mine.call("delete_repo", id=1),
            await mine.call("search_code", {"repo": 7}, id=2),
            await mine.call("get_file", id=3),
            await mine.call("get_file", id=4),
            await mine.call("nope", id=5),
            await mine.ask("no/such", id=6),
            await mine.ask("initialize", id=7),
            await mine.ask("resources/read", {"uri": "no uri"}, id=8),
        ]
        assert [answer["id"] for answer in told] == list(range(1, 9))
        reasons = [one.get("error", {}).get("data", {}).get("reason") for one in told]
        first = ["denied-by-rule", None, None, "rate-limited", "tool-unknown", "method-unknown"]
        assert reasons == first + ["malformed-call"] * 2
        assert told[1]["result"]["isError"] and told[0]["error"]["code"] == 403 and told[3]["error"]["code"] == 429
        assert len(running.upstream.calls()) == 1
        assert len(running.ends()) == 2 + len(told)
        assert {record["http_status"] for record in running.ends()} == {202}


async def test_a_message_names_one_session_of_a_stream(tmp_path: Path) -> None:
    """BL-070: and one of another transport, or beside other words, is none."""
    async with behind(tmp_path) as mine:
        base = mine.messages.partition("?")[0]
        http_session = (await opened(mine.world)).session
        odd = {base: 400, f"{base}?session_id={http_session}": 404}
        odd |= {f"{mine.messages}&session_id=x": 400, f"{mine.messages}&x=1": 400}
        for url, code in odd.items():
            assert (await mine.post(request("ping"), url=mine.world.url + url))[0] == code, url
        assert await all_quiet(mine)
        in_header = {**ALICE, "Mcp-Session-Id": mine.messages.partition("=")[2]}
        assert (await mine.world.post(request("ping"), headers=in_header))[0] == 404


async def test_another_caller_with_the_id_gets_nothing_and_does_nothing(tmp_path: Path) -> None:
    """BL-070."""
    async with gateway(tmp_path) as running, pair(running, ALICE) as mine, pair(running, BOB) as bobs:
        assert (await mine.ask("ping"))["result"] == (await bobs.ask("ping"))["result"] == {}
        before = len(running.upstream.seen)
        for headers, code in ((BOB, 404), ({}, 401), (bearer("x"), 401)):
            for message in (searching(99), INITIALIZED, {"jsonrpc": "2.0", "id": 1, "result": {}}):
                got, body, _ = await mine.post(message, headers=headers)
                assert got == code and body["error"]["data"]["reason"] != ""
        assert await all_quiet(mine) and await all_quiet(bobs)
        assert len(running.upstream.seen) == before
        assert (await mine.call("search_code", GOOD))["result"]["content"]


async def test_a_refreshed_token_goes_on_and_another_servers_address_does_not(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running:
        audience = f"{running.url}/mcp/github"
        first, second = (bearer(IDP.token("user:alice", audience, ttl_s=ttl)) for ttl in (60, 600))
        async with pair(running, first) as mine:
            status, _, _ = await mine.post(request("ping"), headers=second)
            assert status == 202 and (await mine.answer(1))["result"] == {}
            elsewhere = running.url + mine.messages.replace("github", "gitlab")
            assert (await mine.post(request("ping"), headers=ALICE, url=elsewhere))[0] == 404


async def test_a_caller_without_a_grant_or_a_credential_gets_no_stream(tmp_path: Path) -> None:
    rules = RULES.replace("user:bob", "user:carol")
    async with gateway(tmp_path, rules=rules) as running:
        for who, server, status in ((BOB, "github", 403), ({}, "github", 401), (BOB, "nowhere", 403)):
            async with hearing(running.http, f"{running.url}/mcp/{server}/sse", who) as ear:
                assert ear.status == status
        async with running.http.get(f"{running.url}/mcp/github/sse", headers={**ALICE, "Accept": "text/html"}) as got:
            assert got.status == 406
        async with running.http.post(f"{running.url}/mcp/github/sse", headers=ALICE) as got:
            assert (got.status, got.headers["Allow"]) == (405, "GET")  # by which clients of both transports find out
        assert len(running.app.sessions) == 0 and running.upstream.seen == []


async def test_lists_are_those_of_streamable_http(tmp_path: Path) -> None:
    """BL-090."""
    rules = "p, user:alice, tool:github/*, use, -, -, -, allow\n"
    rules += "p, user:bob, tool:github/get_file, use, -, -, -, allow\n"
    async with gateway(tmp_path, rules=rules) as running:
        for who, count in ((ALICE, 3), (BOB, 1)):
            async with pair(running, who) as mine:
                listed = (await mine.ask("tools/list"))["result"]
            assert listed == (await (await opened(running, who)).ask("tools/list"))[1]["result"]
            assert len(listed["tools"]) == count


async def test_a_list_in_a_stream_or_on_another_stream_is_filtered_too(tmp_path: Path) -> None:
    """BL-090: wherever the upstream sends it."""
    feed = Emitter()

    async def listed(request_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if request_.headers.get("Mcp-Session-Id") is None:
            return Upstream().answer(message)
        return await streamed(request_, event(result_of(message, {"tools": Upstream().tools})))

    upstream = Upstream(script={"GET": feed.listen, "tools/list": listed})
    rules = "p, user:bob, tool:github/get_file, use, -, -, -, allow\n"
    async with gateway(tmp_path, upstream=upstream, rules=rules) as running, pair(running, BOB) as mine:
        await until(lambda: feed.count == 1)
        answer = await mine.ask("tools/list", id=5)
        assert [tool["name"] for tool in answer["result"]["tools"]] == ["get_file"]
        again = {"jsonrpc": "2.0", "id": 5, "result": {"tools": Upstream().tools}}
        await feed.emit("upstream-1", event(again))
        heard = await mine.ear.message()
        assert [tool["name"] for tool in heard["result"]["tools"]] == ["get_file"]


async def test_progress_questions_and_their_answers_share_the_stream(tmp_path: Path) -> None:
    answers, answered = list[Any](), asyncio.Event()
    progress = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": "p", "progress": 1}}
    question = request("sampling/createMessage", {"messages": [], "maxTokens": 1}, id="q")
    asks = stream(
        *(event(progress, id="e1"), event(question, id="e2"), answered), lambda m: result_of(m, answers[0]["result"])
    )

    async def taken(_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        answers.append(message)
        answered.set()
        return web.Response(status=202)

    async with behind(tmp_path, {"tools/call": asks, "response": taken}) as mine:
        params = {"name": "search_code", "arguments": GOOD, "_meta": {"progressToken": "p"}}
        await mine.say(request("tools/call", params, id=3))
        blocks = [await mine.ear.block() for _ in range(2)]
        assert all(block.startswith(b"event: message\ndata: ") for block in blocks)  # no ids: nobody can come back
        progress, question = (json.loads(block.split(b"data: ")[1]) for block in blocks)
        assert progress["params"]["progressToken"] == "p" and question["method"] == "sampling/createMessage"
        await mine.say({"jsonrpc": "2.0", "id": "q", "result": {"text": "well"}})
        assert (await mine.answer(3))["result"] == {"text": "well"}
        await mine.say({"jsonrpc": "2.0", "id": "q", "result": {"text": "again"}})  # answered before: not passed on
        await until(lambda: len(mine.world.ends()) == 5)
        assert len(answers) == 1 and mine.world.ends()[-1]["reason"] == "malformed-call"


async def test_what_the_server_says_unasked_comes_on_the_stream_also_after_it_broke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.gateway.forwarder.MIN_PAUSE_S", 0.01)
    feed = Emitter()
    async with behind(tmp_path, {"GET": feed.listen}) as mine:
        await until(lambda: feed.count == 1)
        await feed.emit("upstream-1", event(TELL, id="e7"))
        assert (await mine.ear.message())["params"]["data"] == "hear"
        for stream in list(feed.open["upstream-1"]):
            stream._req.transport.abort()
        await until(lambda: len(feed.asked) == 2 and feed.count == 1)
        assert feed.asked[1]["Last-Event-ID"] == "e7"
        await feed.emit("upstream-1", event(TELL))
        assert (await mine.ear.message())["params"]["data"] == "hear"


async def test_the_rest_of_a_stream_that_the_server_left_is_fetched(tmp_path: Path) -> None:
    leaves = stream(b"id: e1\nretry: 10\ndata: \n\n")

    async def rest(request_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if request_.headers.get("Last-Event-ID") != "e1":
            return web.Response(status=405)
        return await streamed(request_, event({"jsonrpc": "2.0", "id": 3, "result": {"content": []}}, id="e2"))

    async with behind(tmp_path, {"tools/call": leaves, "GET": rest}) as mine:
        assert (await mine.call("search_code", GOOD, id=3))["result"] == {"content": []}


async def test_a_cancelled_call_and_an_initialized_server(tmp_path: Path) -> None:
    """What a caller says after a notification reaches the server after it, though each POST was taken at once."""
    slow = after(0.1, status(202))
    async with behind(tmp_path, {"notifications/initialized": slow, "notifications/cancelled": slow}) as mine:
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        await mine.say(request("ping", id=1))
        await mine.say(cancel)
        await mine.ask("ping", id=2)
        seen = mine.world.upstream.seen
        methods = [message.get("method") for headers, message in seen if headers.get("Mcp-Session-Id")]
        assert methods == ["notifications/initialized", "ping", "notifications/cancelled", "ping"]


async def test_two_calls_at_once_are_answered_as_they_come(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def waits(_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if message["id"] == "first":
            await go.wait()
        return Upstream().answer(message)

    async with behind(tmp_path, {"tools/call": waits}) as mine:
        call = {"name": "search_code", "arguments": GOOD}
        await together(*(mine.say(request("tools/call", call, id=each)) for each in ("first", "second")))
        assert (await mine.ear.message())["id"] == "second"
        go.set()
        assert (await mine.ear.message())["id"] == "first"


@pytest.mark.parametrize("how", ["the caller leaves", "the caller is disabled", "the session is too many"])
async def test_the_end_of_the_stream_ends_what_is_under_way(tmp_path: Path, how: str) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def waits(_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        begun.set()
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()
        return web.Response(status=500)

    upstream = Upstream(script={"tools/call": waits, "DELETE": gone})
    async with gateway(tmp_path, upstream=upstream, sessions="max_per_principal: 1") as running:
        async with pair(running, ALICE) as mine:
            await mine.say(searching())
            await begun.wait()
            if how == "the caller is disabled":
                await running.app.disable("user:alice", reason="", until=None, by="test")
                await running.app.pipeline.forwarder.oversight.look()
            if how == "the session is too many":
                await opened(running)
            if how != "the caller leaves":
                assert await mine.ear.rest() == []
                assert (await mine.post(request("ping")))[0] in (403, 404)
        await asyncio.wait_for(ended.wait(), 5)
        await until(lambda: len(ends_of(running, "session/stream")) == len(ends_of(running, "tools/call")) == 1)
        (call,) = ends_of(running, "tools/call")
        assert (call["reason"], call["status"]) == ("caller-gone", "error")
        await until(lambda: ("DELETE", "upstream-1") in deletes(upstream))
        assert running.app.pipeline.stages.inside == 0 and not running.app.live.requests


async def test_a_call_that_was_cancelled_before_its_first_step_is_on_record_too(tmp_path: Path) -> None:
    dropped = ["SseSession._in_order"]

    def begun(loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **more)
        if coroutine.__qualname__ in dropped:
            task.cancel()
        return task

    async with behind(tmp_path) as mine:
        asyncio.get_running_loop().set_task_factory(begun)
        await mine.say(searching())
        dropped.clear()
        await mine.ask("ping", id=2)
        assert [record["reason"] for record in mine.world.ends() if record["reason"]] == ["caller-gone"]
        app = mine.world.app
        assert len(app.live.requests) == app.pipeline.stages.inside == 1, "the stream itself"


async def test_a_stream_that_nobody_reads_is_ended_by_a_revocation_all_the_same(tmp_path: Path) -> None:
    large = answer(result={"content": [{"type": "text", "text": "x" * 4_000_000}]})
    often = "streams: {keep_alive_s: 0.02}\n"
    async with behind(tmp_path, {"tools/call": large}, settings=often) as mine:
        for each in range(8):
            await mine.say(searching(each))
        await asyncio.sleep(0.3)  # the first answer fills what lies between us, and the rest waits
        await mine.world.app.pipeline.forwarder.oversight.look()  # no comment waits behind what nobody reads
        await mine.world.app.disable("user:alice", reason="", until=None, by="test")
        await mine.world.app.pipeline.forwarder.oversight.look()
        await until(lambda: not any(each.busy for each in mine.world.app.pipeline.forwarder.pairs.values()))


async def test_a_stream_ends_with_its_permission(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running:
        token = bearer(IDP.token("user:alice", f"{running.url}/mcp/github", ttl_s=600))
        async with pair(running, token) as mine, pair(running, BOB) as bobs:
            running.app.live.clock = lambda: time.time() + 601
            await running.app.pipeline.forwarder.oversight.look()
            assert await mine.ear.rest() == []
            assert (await bobs.call("search_code", GOOD))["result"]
        (one,) = [record for record in ends_of(running, "session/stream") if record["agent_id"] == "user:alice"]
        assert one["reason"] == "expired"


async def test_draining_lets_calls_finish_and_then_ends_the_stream(tmp_path: Path) -> None:
    go, begun = asyncio.Event(), asyncio.Event()
    async with behind(tmp_path, {"tools/call": after(go, begun=begun)}) as mine:
        await mine.say(searching(4))
        await begun.wait()
        draining = asyncio.create_task(mine.world.app.pipeline.drain(5))
        await until(lambda: mine.world.app.pipeline.stages.draining)
        assert (await mine.post(request("ping")))[0] == 503
        go.set()
        assert (await mine.answer(4))["result"]
        assert await mine.ear.block() == b": closed, draining\n\n"
        await draining


async def test_what_is_under_way_on_one_stream_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse_session, "MAX_CALLS", 2)
    go = asyncio.Event()
    async with behind(tmp_path, {"tools/call": after(go)}) as mine:
        calls = [searching(each) for each in range(3)]
        got = [(await mine.post(call))[0] for call in calls]
        assert got == [202, 202, 429]
        await mine.say({"jsonrpc": "2.0", "id": 7, "result": {}})  # answers are counted apart
        go.set()
        assert {(await mine.ear.message())["id"] for _ in range(2)} == {0, 1}


async def test_an_upstream_that_is_out_is_told_and_the_stream_goes_on(tmp_path: Path) -> None:
    async with behind(tmp_path, {"initialize": status(500)}, opened=False) as mine:
        early = await mine.ask("tools/list")
        assert early["error"]["data"]["reason"] == "malformed-call"
        assert (await mine.open())["error"]["data"]["reason"] == "upstream-failed"
        modern = await mine.ask("server/discover", stateless("server/discover", {})["params"])
        assert modern["error"]["code"] == -32600  # by which a client that looks for the era finds it
        mine.world.upstream.script.clear()
        assert (await mine.open("2024-11-05"))["result"]["protocolVersion"] == "2024-11-05"


async def test_an_upstream_that_forgot_the_session_ends_it(tmp_path: Path) -> None:
    async with behind(tmp_path, {"tools/call": status(404)}) as mine:
        await mine.say(searching())
        while (block := await mine.ear.block()) != b": closed, session-unknown\n\n":
            assert block
        await until(lambda: len(mine.world.app.sessions) == 0)


async def test_a_quiet_stream_is_kept_alive(tmp_path: Path) -> None:
    async with gateway(tmp_path, settings="streams: {keep_alive_s: 0.02}\n") as running, pair(running, ALICE) as mine:
        for _ in range(4):
            await running.app.pipeline.forwarder.oversight.look()
            await asyncio.sleep(0.03)
        assert [await mine.ear.block() for _ in range(2)] == [b": keep-alive\n\n"] * 2


async def test_what_is_no_message_is_400_and_never_on_the_stream(tmp_path: Path) -> None:
    settings = 'server: {listen: "127.0.0.1:0", max_body_bytes: 1024}\n'
    async with gateway(tmp_path, settings=settings) as running, pair(running, ALICE) as mine:
        for body in (b"", b"[]", b"{", b'{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call"}'):
            assert (await mine.post(body))[0] == 400
        assert (await mine.post(b"x" * 2000))[0] == 413
        assert await all_quiet(mine)
        (told,) = {record["http_status"] for record in running.ends() if record["reason"] == "malformed-call"}
        assert told == 400


async def test_behind_a_path_the_address_is_told_as_callers_see_it(tmp_path: Path) -> None:
    settings = 'server: {listen: "127.0.0.1:0", public_url: "http://localhost:8080/gw/"}\n'
    async with gateway(tmp_path, settings=settings) as running, pair(running, ALICE, opened=False) as mine:
        assert mine.messages.startswith("/gw/mcp/github/messages?session_id=")
