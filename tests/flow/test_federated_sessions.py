"""Does one session at many servers keep them apart, and end with all of them?"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sidecar.upstreams.mcp.session_store import SessionStore
from tests.flow.federated import At, everywhere, federation, names_in
from tests.flow.guests import deletes, gone, result_of
from tests.flow.scripts import after, stream
from tests.flow.streams import EVENT_STREAM, Ear, Emitter, event
from tests.flow.talk import reason_of
from tests.flow.world import Upstream, World, request, until
from tests.tables import tables

MISSING = {"dead": "upstream-failed", "quiet": "upstream-timeout"}
LOOK = [{"name": "look", "inputSchema": {"type": "object"}}]


def look_at(server: str) -> dict[str, Any]:
    return {"name": f"{server}__look", "arguments": {}}


class Asking:
    """A server that asks its client for a sample, always by the same id, before a call has its answer."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.upstream = Upstream(tools=LOOK)
        self.upstream.script = {"tools/call": self.call, "response": self.reply, "DELETE": gone}
        self.answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def call(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        stream = web.StreamResponse(headers=EVENT_STREAM)
        await stream.prepare(request)
        params = {"messages": [], "maxTokens": 1, "systemPrompt": self.word, "_meta": {"progressToken": 7}}
        await stream.write(event({"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": params}))
        reply = await self.answers.get()
        await stream.write(event(result_of(message, {"content": [{"type": "text", "text": reply["result"]["model"]}]})))
        return stream

    async def reply(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        assert message["id"] == 1
        self.answers.put_nowait(message)
        return web.Response(status=202)


async def test_two_servers_that_ask_by_the_same_id_each_get_their_own_answer(tmp_path: Path) -> None:
    one, other = Asking("one"), Asking("other")
    async with everywhere(federation(tmp_path, {"github": one.upstream, "wiki": other.upstream}), "session") as at:
        await at.open()
        async with (
            at.hearing("tools/call", look_at("github"), id=5) as first,
            at.hearing("tools/call", look_at("wiki"), id=6) as second,
        ):
            asked = [await first.message(), await second.message()]
            assert [question["params"]["systemPrompt"] for question in asked] == ["one", "other"]
            assert [question["id"] for question in asked] == ["github__1", "wiki__1"]
            assert [question["params"]["_meta"]["progressToken"] for question in asked] == ["github__7", "wiki__7"]
            progress = {"progressToken": "wiki__7", "progress": 1}
            assert (await at.say({"method": "notifications/progress", "params": progress}))[0] == 202
            for question in reversed(asked):
                sample = {"role": "assistant", "content": {}, "model": question["params"]["systemPrompt"]}
                assert (await at.say({"id": question["id"], "result": sample}))[0] == 202
            for ear, word in ((first, "one"), (second, "other")):
                assert (await ear.message())["result"]["content"][0]["text"] == word
        for stray in ("github__1", "wiki__2", "nowhere__1", "1", 1, 'github__"1"', "github__ 1"):
            assert reason_of(await at.say({"id": stray, "result": {}})) == "malformed-call", stray
        progressed = other.upstream.calls("notifications/progress")
        assert [message["params"]["progressToken"] for message in progressed] == [7]
        assert one.upstream.calls("notifications/progress") == []


async def test_sessions_begin_when_they_are_needed_as_the_client_declared_and_end_together(tmp_path: Path) -> None:
    servers = {name: Upstream(tools=LOOK, script={"DELETE": gone}) for name in ("github", "wiki", "idle")}
    async with everywhere(federation(tmp_path, servers), "session") as at:
        hello = {"protocolVersion": "2025-06-18", "capabilities": {"sampling": {}}, "clientInfo": {"name": "c"}}
        status, body, headers = await at.ask("initialize", hello)
        at.session = headers["Mcp-Session-Id"]
        assert status == 200 and body["result"]["protocolVersion"] == "2025-06-18"
        assert body["result"]["serverInfo"]["name"] == "sidecar"
        assert at.world.app.sessions and len(at.world.app.sessions) == 1
        assert sum(ours(server) for server in servers.values()) == 0, "no session is opened before it is needed"
        assert (await at.ask("logging/setLevel", {"level": "warning"}))[1]["result"] == {}
        await asyncio.gather(*(at.call("github__look", id=number) for number in range(2, 6)))
        await at.call("wiki__look", id=7)
        assert [ours(servers[name]) for name in ("github", "wiki", "idle")] == [1, 1, 0]
        begun = [message["params"] for message in servers["wiki"].calls("initialize")]
        assert [one["capabilities"] for one in begun if one["clientInfo"] == {"name": "c"}] == [{"sampling": {}}]
        assert servers["wiki"].calls("logging/setLevel")[0]["params"] == {"level": "warning"}
        assert (await at.verb("DELETE"))[0] == 204
        await until(lambda: all(len(deletes(servers[name])) == 1 for name in ("github", "wiki")))
        assert deletes(servers["idle"]) == []
        assert (await at.call("github__look"))[0] == 404


def ours(upstream: Upstream) -> int:
    """How many sessions were opened for a caller, beside the sidecar's own."""
    return sum(message["params"]["clientInfo"]["name"] != "sidecar" for message in upstream.calls("initialize"))


@pytest.mark.parametrize("status", [404, 400])
async def test_a_server_that_lost_its_session_costs_no_call(tmp_path: Path, status: int) -> None:
    """The session at the server is ours, so the call is sent once more in a new one."""
    lost: set[str] = set()

    async def known(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if request.headers["Mcp-Session-Id"] in lost:
            return web.Response(status=status)
        return Upstream().answer(message)

    wiki = Upstream(tools=LOOK, script={"tools/call": known, "ping": known})
    servers = {"github": Upstream(tools=LOOK), "wiki": wiki}
    async with everywhere(federation(tmp_path, servers), "session") as at:
        assert "result" in (await at.call("wiki__look"))[1]
        lost.add(next(h for h, m in servers["wiki"].seen if m["method"] == "tools/call")["Mcp-Session-Id"])
        assert "result" in (await at.call("wiki__look", id=2))[1]
        assert "result" in (await at.call("github__look", id=3))[1]
        lost.update(f"upstream-{number}" for number in range(100))
        assert reason_of(await at.call("wiki__look", id=4)) == "upstream-failed", "it is sent once more, and no oftener"
        lost.clear()
        assert "result" in (await at.call("wiki__look", id=5))[1]


async def test_a_list_goes_on_in_a_new_session_where_a_server_forgot_the_old_one(tmp_path: Path) -> None:
    forgotten: list[str] = []

    async def listed(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if request.headers.get("Mcp-Session-Id") in forgotten:
            return web.Response(status=404)
        return Upstream(tools=LOOK).answer(message)

    async with everywhere(federation(tmp_path, {"github": Upstream(script={"tools/list": listed})}), "session") as at:
        assert names_in((await at.ask("tools/list"))[1]) == ["github__look"]
        seen = [sent for sent, message in at.world.upstream.seen if message["method"] == "tools/list"]
        forgotten.append(seen[-1]["Mcp-Session-Id"])
        assert names_in((await at.ask("tools/list", id=2))[1]) == ["github__look"]
        assert at.world.upstream.seen[-1][0]["Mcp-Session-Id"] not in forgotten


async def test_the_sessions_stream_is_those_of_its_servers_and_can_be_resumed(tmp_path: Path) -> None:
    emitters = {name: Emitter() for name in ("github", "wiki")}
    servers = {name: Upstream(tools=LOOK, script={"GET": each.listen}) for name, each in emitters.items()}
    async with everywhere(federation(tmp_path, servers), "session") as at:
        await at.call("github__look")
        async with at.hearing() as ear:
            await until(lambda: emitters["github"].count == 1)
            assert emitters["wiki"].count == 0
            await at.call("wiki__look", id=2)  # from now on it is heard, too
            await until(lambda: emitters["wiki"].count == 1)
            for name, number in (("github", 1), ("wiki", 2)):
                session = next(iter(emitters[name].open))
                note = {"level": "info", "data": number}
                message = {"jsonrpc": "2.0", "method": "notifications/message", "params": note}
                await emitters[name].emit(session, event(message, id=f"{name}/{number}"))
            blocks = [await ear.block(), await ear.block()]
        assert sum(b'"sidecar/server":"github"' in block for block in blocks) == 1
        github = next(block for block in blocks if b'"github"' in block)
        last = github.split(b"id: ")[1].split(b"\n")[0].decode()
        await until(lambda: not emitters["github"].count and not emitters["wiki"].count)
        async with at.hearing(last=last):
            await until(lambda: emitters["github"].count == 1 and emitters["wiki"].count == 1)
            assert emitters["github"].asked[-1]["Last-Event-ID"] == "github/1"
            assert "Last-Event-ID" not in emitters["wiki"].asked[-1]
        stranger = At(at.world, "session")
        await stranger.call("github__look")
        async with stranger.hearing(last=last):  # nothing that it was given: a fresh stream
            await until(lambda: emitters["github"].count == 1)
            assert "Last-Event-ID" not in emitters["github"].asked[-1]


async def test_the_stream_of_a_call_is_resumed_at_its_server(tmp_path: Path) -> None:
    rest = stream(event({"jsonrpc": "2.0", "id": 9, "result": {"content": []}}, id="there"))
    server = Upstream(tools=LOOK, script={"tools/call": stream(b"id: here\ndata: \n\n"), "GET": rest})
    async with everywhere(federation(tmp_path, {"github": Upstream(), "wiki": server}), "session") as at:
        await at.open()
        async with at.hearing("tools/call", look_at("wiki"), id=9) as ear:
            last = (await ear.block()).split(b"id: ")[1].split(b"\n")[0].decode()
        async with at.hearing(last=last) as ear:
            [answer] = await ear.rest()
        assert answer["result"] == {"content": []}
        assert [sent["Last-Event-ID"] for verb, sent in server.verbs if verb == "GET"] == ["here"]
        assert at.world.ends()[-1]["upstream"] == "wiki"


async def test_a_cancellation_goes_where_the_call_went(tmp_path: Path) -> None:
    begun = asyncio.Event()

    hangs = Upstream(tools=LOOK, script={"tools/call": after(30, begun=begun)})
    servers = {"github": Upstream(tools=LOOK), "wiki": hangs}
    async with everywhere(federation(tmp_path, servers), "session") as at:
        await at.call("github__look", id=1)
        task = asyncio.create_task(at.call("wiki__look", id=44))
        await begun.wait()
        assert (await at.say({"method": "notifications/cancelled", "params": {"requestId": 44}}))[0] == 202
        assert (await at.say({"method": "notifications/roots/list_changed"}))[0] == 202
        task.cancel()
        assert len(servers["wiki"].calls("notifications/cancelled")) == 1
        assert servers["github"].calls("notifications/cancelled") == []
        assert all(len(server.calls("notifications/roots/list_changed")) == 1 for server in servers.values())


# --- subscriptions of the stateless era -------------------------------------------------------------------------------


class Subscribed:
    """A server with subscriptions: it keeps them open and tells what a test says."""

    def __init__(self, *, silent: bool = False) -> None:
        self.silent = silent
        self.streams: list[tuple[web.StreamResponse, dict[str, Any]]] = []
        self.upstream = Upstream(tools=LOOK, script={"subscriptions/listen": self.listen})

    async def listen(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        stream = web.StreamResponse(headers=EVENT_STREAM)
        await stream.prepare(request)
        if not self.silent:
            accepted = message["params"]["notifications"]
            await self.say(stream, message, "subscriptions/acknowledged", {"notifications": accepted})
        self.streams.append((stream, message))
        await asyncio.Event().wait()
        return stream

    async def say(self, stream: web.StreamResponse, message: dict[str, Any], what: str, params: dict[str, Any]) -> None:
        meta = {"io.modelcontextprotocol/subscriptionId": message["id"]}
        told = {"jsonrpc": "2.0", "method": f"notifications/{what}", "params": {**params, "_meta": meta}}
        await stream.write(event(told))

    async def tell(self, what: str, **params: Any) -> None:
        for opened, message in self.streams:
            await self.say(opened, message, what, params)


@asynccontextmanager
async def subscribed(running: World, uris: list[str], **flags: bool) -> AsyncIterator[Ear]:
    wanted = {"notifications": {**flags, **({"resourceSubscriptions": uris} if uris else {})}}
    async with At(running, "stateless").hearing("subscriptions/listen", wanted, id="sub-1") as ear:
        yield ear


async def test_one_subscription_is_one_at_each_server_with_one_acknowledgement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.gateway.frontends.aggregate.fan_out.PATIENCE_S", 0.3)
    one, other, silent = Subscribed(), Subscribed(), Subscribed(silent=True)
    servers: dict[str, Upstream | str] = {"github": one.upstream, "wiki": other.upstream, "quiet": silent.upstream}
    servers["dead"] = "http://127.0.0.1:9/mcp"
    note = "sidecar://wiki/note%3A%2F%2Fa"
    async with federation(tmp_path, servers) as running, subscribed(running, [note], toolsListChanged=True) as ear:
        acknowledged = await ear.message()
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        assert acknowledged["params"]["notifications"] == {"toolsListChanged": True, "resourceSubscriptions": [note]}
        meta = acknowledged["params"]["_meta"]
        assert meta["io.modelcontextprotocol/subscriptionId"] == "sub-1"
        assert {one["server"]: one["reason"] for one in meta["sidecar/unavailable"]} == MISSING
        assert one.streams[0][1]["params"]["notifications"] == {"toolsListChanged": True}
        assert other.streams[0][1]["params"]["notifications"]["resourceSubscriptions"] == ["note://a"]
        await other.tell("resources/updated", uri="note://a")
        about = {"io.modelcontextprotocol/subscriptionId": "sub-1"}
        assert (await ear.message())["params"] == {"uri": note, "_meta": about}
        await one.tell("tools/list_changed")
        assert (await ear.message())["method"] == "notifications/tools/list_changed"
        await running.app.disable("nhi:planner", reason="", until=None, by="test")
        assert (await ear.message())["error"]["data"]["reason"] == "principal-disabled"
        await until(lambda: running.ends()[-1]["reason"] == "principal-disabled")


async def test_a_server_that_begins_without_an_acknowledgement_leaves_no_open_reader(tmp_path: Path) -> None:
    amiss = Subscribed(silent=True)
    hooks, left = sys.get_asyncgen_hooks(), list[str]()

    def finalizer(generator: AsyncGenerator[Any]) -> None:
        left.append(generator.__qualname__)
        assert hooks.finalizer is not None
        hooks.finalizer(generator)

    sys.set_asyncgen_hooks(hooks.firstiter, finalizer)  # of the loop, which ends with this test
    async with federation(tmp_path, {"github": amiss.upstream}) as running, subscribed(running, []) as ear:
        await until(lambda: bool(amiss.streams))
        await amiss.tell("tools/list_changed")
        meta = (await ear.message())["params"]["_meta"]
        assert [one["reason"] for one in meta["sidecar/unavailable"]] == ["response-refused"] and left == []


async def test_a_subscription_names_only_what_may_be_read(tmp_path: Path) -> None:
    rules = "p, nhi:planner, tool:*, use, -, -, -, allow\np, nhi:planner, resource:wiki/note://a, use, -, -, -, allow\n"
    one, other = Subscribed(), Subscribed()
    async with federation(tmp_path, {"github": one.upstream, "wiki": other.upstream}, rules=rules) as running:
        for uri in ("wiki/note%3A%2F%2Fb", "github/note%3A%2F%2Fa", "nowhere/note%3A%2F%2Fa"):
            async with subscribed(running, [f"sidecar://{uri}"]) as ear:
                assert ear.status == 403
        async with subscribed(running, ["sidecar://wiki/note%3A%2F%2Fa"]) as ear:
            assert ear.status == 200 and (await ear.message())["params"]["notifications"]["resourceSubscriptions"]
        assert len(one.streams) == len(other.streams) == 1


async def test_a_server_added_under_an_open_subscription_is_heard_and_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.gateway.frontends.aggregate.stream_merge.LOOK_EVERY_S", 0.05)
    one, added = Subscribed(), Subscribed()
    async with federation(tmp_path, {"github": one.upstream, "wiki": added.upstream}) as running:
        config = tmp_path / "sidecar.yaml"
        both = config.read_text()
        config.write_text("\n".join(line for line in both.splitlines() if "wiki" not in line))
        await running.app.reload("test")
        async with subscribed(running, [], toolsListChanged=True) as ear:
            await ear.message()
            config.write_text(both)
            await running.app.reload("test")
            assert (await ear.message())["method"] == "notifications/tools/list_changed"
            await until(lambda: len(added.streams) == 1)
            await added.tell("tools/list_changed")
            assert (await ear.message())["method"] == "notifications/tools/list_changed"


async def test_a_server_that_is_disabled_leaves_the_stream_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.gateway.frontends.aggregate.stream_merge.LOOK_EVERY_S", 0.05)
    one, other = Subscribed(), Subscribed()
    async with federation(tmp_path, {"github": one.upstream, "wiki": other.upstream}) as running:
        async with subscribed(running, [], toolsListChanged=True) as ear:
            await ear.message()
            await running.app.disable("nhi:wiki", reason="", until=None, by="test")
            assert (await ear.message())["method"] == "notifications/tools/list_changed"
            await one.tell("resources/list_changed")
            assert (await ear.message())["method"] == "notifications/resources/list_changed"
            await running.app.enable("nhi:wiki", by="test")
            assert (await ear.message())["method"] == "notifications/tools/list_changed"
            await until(lambda: len(other.streams) == 2)
        await until(lambda: not running.app.pipeline.forwarder.streams)
        assert not [task for task in asyncio.all_tasks() if "Merging" in repr(task.get_coro())]


async def test_a_session_may_not_declare_more_than_we_keep(tmp_path: Path) -> None:
    async with federation(tmp_path, {"github": Upstream()}) as running:
        hello = {"protocolVersion": "2025-11-25", "capabilities": {"x": "y" * 20_000}, "clientInfo": {"name": "c"}}
        assert reason_of(await At(running, "session").ask("initialize", hello)) == "too-large"
        assert len(running.app.sessions) == 0


async def test_a_caller_who_leaves_while_its_session_begins_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with federation(tmp_path, {"github": Upstream()}) as running:
        begun = asyncio.Event()

        async def slow(*_: object) -> None:
            begun.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(SessionStore, "keep", slow)
        leaving = asyncio.create_task(At(running, "session").open())
        await begun.wait()
        assert len(running.app.sessions) == 1
        leaving.cancel()
        await until(lambda: running.app.pipeline.stages.inside == 0)
        assert len(running.app.sessions) == 0


ODD_PARAMS: list[tuple[str, Any]] = tables("flow/federated_sessions")["odd_params"]
ODD = [
    *(b"", b"[]", b"\xff", b'{"jsonrpc":"2.0","id":{},"result":{}}'),
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":{}}}',
    b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}',
    *(json.dumps(request(method, params)).encode() for method, params in ODD_PARAMS),
]


async def test_what_is_out_of_shape_is_malformed_and_reaches_nobody(tmp_path: Path) -> None:
    async with everywhere(federation(tmp_path, {"github": Upstream(tools=LOOK)}), "session") as at:
        await at.call("github__look")
        before = len(at.world.upstream.seen)
        for body in ODD:
            answer = await at.world.post(body, headers=at.in_session, url=f"{at.world.url}/mcp")
            assert reason_of(answer) == "malformed-call", body
        for odd in ({"requestId": [1]}, {}, {"requestId": 77}):
            assert (await at.say({"method": "notifications/cancelled", "params": odd}))[0] == 202
        assert len(at.world.upstream.seen) == before


class Lying(Subscribed):
    """Acknowledges what nobody could."""

    async def say(self, stream: web.StreamResponse, message: dict[str, Any], what: str, params: dict[str, Any]) -> None:
        odd = {"notifications": {"resourceSubscriptions": 5, "toolsListChanged": []}}
        await super().say(stream, message, what, odd if "notifications" in params else params)


async def test_streams_end_with_the_sidecar_whatever_their_servers_said(tmp_path: Path) -> None:
    emitter, lying = Emitter(), Lying()
    lying.upstream.script["GET"] = emitter.listen
    async with federation(tmp_path, {"github": lying.upstream, "wiki": Upstream(tools=LOOK)}) as running:
        at = At(running, "session")
        await at.call("github__look")
        async with at.hearing() as own, subscribed(running, ["sidecar://github/note%3A%2F%2Fa"]) as ear:
            assert (await ear.message())["params"]["notifications"] == {"resourceSubscriptions": []}
            await until(lambda: emitter.count == 1)
            await running.app.pipeline.drain(3)
            assert await own.block() == b": closed, draining\n\n"
            assert (await ear.message())["error"]["data"]["reason"] == "draining"
