"""Does a session go on at another replica, and end at all of them?

Two sidecars before one server, on one Valkey, which has no idea whose sessions it keeps.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sidecar.gateway import forwarder
from sidecar.storage.sealing import AesSeal
from sidecar.upstreams.mcp import session_store
from sidecar.upstreams.mcp.session_store import SessionRecord, key_of, opened
from tests.flow.process import served
from tests.flow.streams import Emitter
from tests.flow.world import PATIENCE_S, SESSION, Upstream, World, listening, until, world
from tests.valkey import Valkey

PROGRAM = Path(__file__).with_name("program.py")
HELLO = {"protocolVersion": SESSION, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
GOOD = {"repo": "acme/site"}


@dataclass
class Client:
    """One client of the session era; `at` is the replica that it reaches."""

    at: World
    id: str = ""
    path: str = "/mcp/github"
    url: str = ""

    async def say(self, message: dict[str, Any], **headers: str) -> tuple[int, Any, Any]:
        own = {"Mcp-Session-Id": self.id, "MCP-Protocol-Version": SESSION} if self.id else {}
        url = (self.url or self.at.url) + self.path
        return await self.at.post({"jsonrpc": "2.0", **message}, headers=own | headers, url=url)

    async def begin(self) -> int:
        status, body, headers = await self.say({"id": 1, "method": "initialize", "params": HELLO})
        self.id = headers.get("Mcp-Session-Id", "")
        if self.id:
            await self.say({"method": "notifications/initialized"})
        return int(body["error"]["code"]) if "error" in body else status

    async def call(self, tool: str = "search_code") -> int:
        params = {"name": tool, "arguments": GOOD}
        status, body, _ = await self.say({"id": 2, "method": "tools/call", "params": params})
        return int(body["error"]["code"]) if status == 200 and "error" in body else status

    async def ping(self) -> int:
        return (await self.say({"id": 3, "method": "ping"}))[0]

    async def leave(self) -> int:
        headers = {"Mcp-Session-Id": self.id, "MCP-Protocol-Version": SESSION}
        async with self.at.http.delete(self.at.url + self.path, headers=headers) as response:
            return response.status


def shared_by(server: Valkey, sessions: str = "") -> str:
    return f'store: {{url: "{server.url}"}}\nsessions: {{store: redis, {sessions}}}\n'


@asynccontextmanager
async def begun(
    folder: Path, server: Valkey | None, *, path: str = "/mcp/github", sessions: str = "", **more: Any
) -> AsyncIterator[tuple[Client, World, World]]:
    """Two sidecars before the same server, and a session at the first; each has its own Valkey where none is given."""
    settings, upstream = "", Upstream(script={"GET": Emitter().listen})
    if server is not None:
        with server.client() as client:
            client.flushall()
        settings = shared_by(server, sessions)
    async with AsyncExitStack() as both:
        one = await both.enter_async_context(world(folder / "a", settings=settings, upstream=upstream, **more))
        url = one.upstream.url
        two = await both.enter_async_context(world(folder / "b", settings=settings, upstream_url=url, **more))
        client = Client(one, path=path)
        assert await client.begin() == 200
        yield client, one, two


async def test_a_session_goes_on_at_another_replica_and_ends_at_both(valkey: Valkey, tmp_path: Path) -> None:
    async with begun(tmp_path, valkey) as (client, a, b):
        client.at = b
        assert [await client.call(), await client.call()] == [200, 200]
        theirs = {headers.get("Mcp-Session-Id") for headers, message in a.upstream.seen if "tools/call" in str(message)}
        assert theirs == {"upstream-1"}  # one session there, whoever of us speaks for it
        client.at = a
        assert await client.call() == 200
        client.at = b
        assert await client.leave() == 204
        for client.at in (a, b):
            assert await client.call() == 404
        await until(lambda: [verb for verb, _ in a.upstream.verbs].count("DELETE") == 1)


async def test_without_a_shared_store_it_is_one_replicas(tmp_path: Path) -> None:
    async with begun(tmp_path, None) as (client, _, b):
        assert await client.call() == 200
        client.at = b
        assert await client.call() == 404


async def test_a_program_behind_us_has_its_sessions_at_one_replica(valkey: Valkey, tmp_path: Path) -> None:
    program = f"command: {sys.executable}, args: [{PROGRAM}]"
    async with begun(tmp_path, valkey, program=program) as (client, a, b):
        assert await client.ping() == 200
        client.at = b
        assert await client.ping() == 404
        with valkey.client() as store:
            assert not store.keys("*session:*")
        client.at = a
        assert await client.ping() == 200


async def test_a_session_at_all_servers_goes_on_too(valkey: Valkey, tmp_path: Path) -> None:
    async with begun(tmp_path, valkey, path="/mcp") as (client, a, b):
        client.at = b
        assert await client.call("github__search_code") == 200
        assert await client.leave() == 204
        client.at = a
        assert await client.call("github__search_code") == 404


async def test_another_chain_and_another_server_find_nothing(valkey: Valkey, tmp_path: Path) -> None:
    async with begun(tmp_path, valkey) as (client, a, _):
        settings = shared_by(valkey)
        rules = "p, *, tool:github/*, use, -, -, -, allow\n"
        there = {"settings": settings, "rules": rules, "principal": "nhi:mallory", "upstream_url": a.upstream.url}
        async with world(tmp_path / "c", **there) as c:
            client.at = c
            assert await client.call() == 404 and await client.leave() == 404
        client.at = a
        assert await client.call() == 200
        client.path = "/mcp"
        assert await client.call("github__search_code") == 404


async def test_who_was_disabled_at_one_is_refused_at_the_other(valkey: Valkey, tmp_path: Path) -> None:
    async with begun(tmp_path, valkey) as (client, a, b):
        client.at = b
        assert await client.call() == 200
        await a.app.disable("nhi:planner", reason="test", until=None, by="test")
        await b.app.switch.sync()
        assert await client.call() == 403


async def test_a_store_that_is_out_answers_for_no_session(valkey: Valkey, tmp_path: Path) -> None:
    async with begun(tmp_path, valkey) as (client, a, b):
        with valkey.frozen():
            assert await client.call() == 503 and await client.leave() == 503
            assert await Client(b).begin() == 503
            assert a.app.readiness()[1]["reasons"] == {"store-out": 1, "session-store-out": 1}
            assert not len(b.app.sessions)
        async with asyncio.timeout(PATIENCE_S):
            while await client.call() != 200:
                await asyncio.sleep(0.05)
        await until(lambda: [verb for verb, _ in a.upstream.verbs].count("DELETE") == 1)  # what nobody was told of


async def test_only_what_is_there_is_told_to_be_out(valkey: Valkey, tmp_path: Path) -> None:
    """Where no program, agent or schedule is configured, none of their stores was worth a word."""
    with valkey.client() as client:
        client.flushall()
    settings = f'store: {{url: "{valkey.url}"}}\ntasks: {{store: redis}}\n'
    async with world(tmp_path, settings=settings) as running:
        with valkey.frozen():
            await until(lambda: not (running.app.limiter.store.up or running.app.executions.store.up))
            assert running.app.readiness()[1]["reasons"] == {"store-out": 1}
            assert "program" not in str(running.app.status()["reasons"])


async def test_a_stream_ends_soon_after_its_session_was_ended_elsewhere(
    valkey: Valkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_store, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(forwarder, "LOOK_EVERY_S", 0.05)
    async with begun(tmp_path, valkey, sessions="idle_s: 0.3") as (client, a, b):
        headers = {"Mcp-Session-Id": client.id, "MCP-Protocol-Version": SESSION, "Accept": "text/event-stream"}
        async with a.http.get(f"{a.url}/mcp/github", headers=headers) as stream:
            assert stream.status == 200
            await asyncio.sleep(0.5)  # longer than it may be idle: but it is not
            client.at = b
            assert await client.call() == 200
            assert await client.leave() == 204
            async with asyncio.timeout(PATIENCE_S):
                await stream.content.read()


async def test_what_is_idle_here_and_used_there_is_not_ended_at_its_server(
    valkey: Valkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarder, "LOOK_EVERY_S", 0.05)
    async with begun(tmp_path, valkey, sessions="idle_s: 0.3") as (client, a, b):
        client.at = b
        for _ in range(6):
            assert await client.call() == 200
            await asyncio.sleep(0.1)
        assert len(a.app.sessions) == 0 and len(b.app.sessions) == 1
        assert "DELETE" not in [verb for verb, _ in a.upstream.verbs]
        await until(lambda: "DELETE" in [verb for verb, _ in a.upstream.verbs])
        assert await client.call() == 404


async def test_the_store_tells_nothing_and_what_was_put_there_opens_nothing(valkey: Valkey, tmp_path: Path) -> None:
    async with begun(tmp_path, valkey) as (client, a, b):
        with valkey.client() as store:
            (key,) = store.keys("*session:*")
            raw = str(store.get(key))
            assert not any(told in key + raw for told in (client.id, "upstream-1", "planner", "github"))
            mine = Client(a)
            await mine.begin()
            other = next(one for one in store.keys("*session:*") if one != key)
            for forged in (raw[:-2] + "00", raw[: len(raw) // 2], "", "zz", str(store.get(other))):
                store.set(key, forged)
                client.at = b
                assert await client.call() == 404
            client.at = a
            store.delete(key)
            store.hset(key, "another", "kind")
            assert await client.call() == 503


async def test_a_session_outlives_the_process_that_began_it(valkey: Valkey, tmp_path: Path) -> None:
    upstream = Upstream()
    rules = "p, anonymous, tool:github/*, use, -, -, -, allow\n"
    how = {"rules": rules, "settings": shared_by(valkey), "upstream_settings": "anonymous: true"}
    async with listening(upstream.handle) as base, AsyncExitStack() as both:
        alive = await both.enter_async_context(world(tmp_path, principal="", upstream_url=f"{base}/mcp", **how))
        dies = await both.enter_async_context(served(f"{base}/mcp", **how))
        client = Client(alive, url=dies.url)
        assert await client.begin() == 200
        await dies.kill()
        client.url = ""
        assert [await client.call(), await client.leave(), await client.call()] == [200, 204, 404]


RECORD = SessionRecord("owner", "github", SESSION, "upstream-1", 5.0, {}, "")


def test_a_record_opens_for_its_own_session_alone() -> None:
    sealed = RECORD.sealed("a" * 43).encode()
    assert opened("a" * 43, sealed) == RECORD
    assert opened("b" * 43, sealed) is None
    assert [opened("a" * 43, foreign) for foreign in (7, True, [sealed], b"\xff", b"")] == [None] * 5
    assert key_of("a" * 43) != key_of("b" * 43)


@pytest.mark.parametrize(
    ("changed", "understood"), [({"roots": ["a"], "v": 1}, True), ({"v": 2}, False), ({"version": None, "v": 1}, True)]
)
def test_a_neighbouring_versions_record_is_understood_or_none(changed: dict[str, Any], understood: bool) -> None:
    plain = json.dumps({"v": 1, **RECORD._asdict()} | changed).encode()
    seal = AesSeal(b"a" * 43, session_store._SEALED)
    sealed = seal.sealed_text(plain, session_store._ABOUT)
    assert (opened("a" * 43, sealed) is not None) is understood
