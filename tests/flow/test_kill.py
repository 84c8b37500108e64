"""What is left when the process is killed, and what do callers hear when it is asked to go?

A real process under load: killed without a word, asked to stop, asked to read its files again.
"""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from tests.flow.idp import SETTINGS, Idp, bearer
from tests.flow.process import Served, recompute, served
from tests.flow.talk import reason_of
from tests.flow.world import ACCEPT, PATIENCE_S, SESSION, STATELESS, Upstream, listening, request, stateless, until

KILLS, CLIENTS = 2, 24  # `python -m bench.kills` kills two hundred times
RULES = """\
p, nhi:planner, tool:github/get_file, use, -, -, -, allow
p, nhi:planner, tool:github/search_code, use, -, 1000000, -, allow
"""
IDP = Idp()
KEY = IDP.api_key("nhi:planner")


@dataclass
class Client:
    """One client of a process: a connection pool, and what was answered to whom."""

    running: Served
    http: aiohttp.ClientSession
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    asked: int = 0

    async def call(self, tool: str = "get_file", arguments: dict[str, Any] | None = None) -> tuple[int, Any]:
        """One stateless call under a run id of its own; raises ClientError when the process is not there."""
        self.asked += 1
        run_id = f"run-{self.asked}"
        body = stateless("tools/call", {"name": tool, "arguments": arguments or {"path": "a"}})
        headers = {"Mcp-Method": "tools/call", "Mcp-Name": tool, "MCP-Protocol-Version": STATELESS, "X-Run-Id": run_id}
        headers["traceparent"] = f"00-{self.asked:032x}-{1:016x}-01"
        status, answer, _ = await self.post(body, headers)
        self.answers[run_id] = status, answer
        return status, answer

    async def post(self, message: Any, headers: dict[str, str]) -> tuple[int, Any, Any]:
        sent = {"Content-Type": "application/json", "Accept": ACCEPT, **bearer(KEY), **headers}
        url = f"{self.running.url}/mcp/github"
        async with self.http.post(url, data=json.dumps(message), headers=sent) as response:
            return response.status, json.loads(await response.read()), dict(response.headers)

    async def answered(self, count: int) -> None:
        await until(lambda: len(self.answers) >= count)

    async def load(self, done: asyncio.Event) -> None:
        """Calls without a pause, until told or until nobody is there."""

        async def caller() -> None:
            while not done.is_set():
                try:
                    await self.call()
                except aiohttp.ClientError:
                    return

        await asyncio.gather(*(caller() for _ in range(CLIENTS)))


@asynccontextmanager
async def process(
    upstream: Upstream, *, rules: str = RULES, settings: str = "", files: dict[str, str] | None = None, **more: Any
) -> AsyncIterator[Client]:
    """A running process, before `upstream`, and a client of it."""
    async with (
        listening(upstream.handle) as base,
        served(
            f"{base}/mcp", rules=rules, settings=SETTINGS + settings, files={**IDP.files(), **(files or {})}, **more
        ) as running,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as http,
    ):
        yield Client(running, http)


class Held:
    """An upstream whose calls wait until they are let go."""

    def __init__(self) -> None:
        self.go, self.arrived = asyncio.Event(), 0
        self.upstream = Upstream(script={"tools/call": self._call, "GET": self._stream})

    async def _call(self, request_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        self.arrived += 1
        await self.go.wait()
        return self.upstream.answer(message)

    async def _stream(self, request_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request_)
        await stream.write(b": here\n\n")
        await asyncio.sleep(60)
        return stream

    async def until(self, arrived: int) -> None:
        await until(lambda: self.arrived >= arrived)


@asynccontextmanager
async def in_flight(**options: Any) -> AsyncIterator[tuple[Held, Client, asyncio.Task[tuple[int, Any]]]]:
    """A process with a call under way."""
    held = Held()
    async with process(held.upstream, **options) as client:
        call = asyncio.create_task(client.call())
        await held.until(1)
        yield held, client, call


# --- killed ---------------------------------------------------------------------------------------------------------


async def test_whatever_was_answered_is_on_record_after_a_kill() -> None:
    """BL-028, kill -9 under load."""
    upstream = Upstream()
    async with process(upstream) as client:
        running = client.running
        for round_ in range(KILLS):
            enough, loaded = len(client.answers) + 100, asyncio.create_task(client.load(asyncio.Event()))
            await client.answered(enough)
            await running.kill()
            await loaded
            check_evidence(client, upstream)
            await running.start()
            code, said = running.verify()
            assert code == 0, (round_, said)
            assert (await client.call())[0] == 200
        assert {status for status, _ in client.answers.values()} == {200}
        running.signal(signal.SIGTERM)
        assert await running.ended() == 0
        last = running.records()[-1]
        assert recompute("chain", str(running.audit_path)) == [str(last["seq"]), last["hash"]]
        assert [record["control"]["what"] for record in running.records()[-2:]] == ["stop", "checkpoint"]


def check_evidence(client: Client, upstream: Upstream) -> None:
    """Every answer is on record (a torn last line is no answer), and whatever reached the server was decided before."""
    whole = client.running.audit_path.read_bytes().rpartition(b"\n")[0].splitlines()
    events: dict[str, list[str]] = {}
    for record in map(json.loads, whole):
        events.setdefault(record["run_id"], []).append(record["event"])
    assert [run_id for run_id in client.answers if events.get(run_id) != ["decision", "outcome"]] == []
    decided = {record["trace_id"] for record in map(json.loads, whole) if record["event"] == "decision"}
    executed = {
        headers["traceparent"].split("-")[1] for headers, message in upstream.seen if message["method"] == "tools/call"
    }
    assert executed and not executed - decided


# --- asked to stop --------------------------------------------------------------------------------------------------


async def test_asked_to_stop_it_finishes_what_it_began_and_begins_nothing() -> None:
    async with in_flight() as (held, client, call):
        running = client.running
        stream = asyncio.create_task(own_stream(client))
        await until(lambda: '"action":"ping"' in running.audit_path.read_text())  # the stream is open
        running.signal(signal.SIGTERM)
        await until_draining(running)
        assert (await asyncio.wait_for(stream, PATIENCE_S)).startswith(b":")  # it had begun, and its end came whole
        status, answer = await client.call()
        assert (status, reason_of((status, answer, {}))) == (503, "draining")
        assert not call.done()
        held.go.set()
        assert (await call)[0] == 200
        assert await running.ended() == 0
        assert running.controls() == ["start", "stop", "checkpoint"]
        assert running.verify()[0] == 0


async def own_stream(client: Client) -> bytes:
    """A session's own stream, to its end."""
    hello = {"protocolVersion": SESSION, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    _, _, headers = await client.post(request("initialize", hello), {})
    sent = {**bearer(KEY), "Accept": "text/event-stream", "Mcp-Session-Id": headers["Mcp-Session-Id"]}
    async with client.http.get(f"{client.running.url}/mcp/github", headers=sent) as response:
        assert response.status == 200
        return await response.read()


async def until_draining(running: Served) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (answer := await running.ask("/readyz"))[0] != 503:
            await asyncio.sleep(0.01)
    assert json.loads(answer[1])["status"] == "draining"


async def test_who_insists_is_obeyed_at_once() -> None:
    async with in_flight() as (_, client, call):
        client.running.signal(signal.SIGTERM)
        await until_draining(client.running)
        client.running.signal(signal.SIGTERM)
        assert await client.running.ended() == 1
        assert isinstance((await asyncio.gather(call, return_exceptions=True))[0], aiohttp.ClientError)
        assert client.running.verify()[0] == 0


async def test_a_call_that_outlasts_the_grace_is_cut_and_recorded() -> None:
    settings = 'server: {listen: "127.0.0.1:0", shutdown_grace_s: 0.3}\n'
    async with in_flight(settings=settings) as (_, client, call):
        client.running.signal(signal.SIGTERM)
        assert await client.running.ended() == 0
        assert reason_of((*await call, {})) == "draining"
        ends = [record for record in client.running.records() if record["event"] == "outcome"]
        assert [(record["reason"], record["http_status"]) for record in ends] == [("draining", 503)]


# --- asked to read its files again ----------------------------------------------------------------------------------


async def until_control(running: Served, reloads: int) -> None:
    await until(lambda: len(running.controls()) > reloads)  # the first is the start


async def test_a_call_in_flight_outlives_the_definition_of_its_upstream() -> None:
    credential = {"files": {"old.token": "the-first"}, "upstream_settings": "credential: {bearer_path: old.token}"}
    async with in_flight(**credential) as (held, client, call):
        (client.running.folder / "old.token").write_text("the-second")
        client.running.signal(signal.SIGHUP)
        await until_control(client.running, 1)
        second = asyncio.create_task(client.call())
        await held.until(2)
        held.go.set()
        assert [(await each)[0] for each in (call, second)] == [200, 200]
        calls = [headers for headers, message in held.upstream.seen if message["method"] == "tools/call"]
        assert [headers["Authorization"] for headers in calls] == ["Bearer the-first", "Bearer the-second"]


# --- the store is away ----------------------------------------------------------------------------------------------
