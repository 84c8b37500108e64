"""What is done to a sidecar all at once, and what stands behind it?

    python -m bench.mixed PORT      the server: tools, sessions with their streams, tasks

Calls, sessions (begun, called in, listened to, ended) and tasks (created, asked for by their owner and by somebody
else). Each request bears an id of its own, which the audit records, and a trace id, which reaches the server: so what
was answered, what was decided and what was executed can be laid side by side.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import shutil
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from sidecar.settings.shipped_files import shipped

SERVER, OWNER, OTHER = "mixed", "nhi:owner", "nhi:other"
SESSION, STATELESS = "2025-11-25", "2026-07-28"
MAX_TASKS = 2_000
WITHIN_S = 30.0
RULES = f"""\
p, nhi:*, tool:{SERVER}/*, use, -, -, -, allow
"""
BUDGETS = f"""\
version: 1
tools:
  "tool:{SERVER}/slow": {{concurrency: 32}}
  "tool:{SERVER}/*": {{requests_per_second: 10000, burst: 100000}}
"""
SETTINGS = """\
version: 1
server: {{listen: "127.0.0.1:0", shutdown_grace_s: 5s}}
admin: {{listen: "127.0.0.1:{admin}"}}
local:
  - {{listen: "127.0.0.1:{port}", principal: "nhi:owner"}}
  - {{listen: "127.0.0.1:{other}", principal: "nhi:other"}}
store: {{url: "{store}"}}
sessions: {{session_calls_per_minute: 1000000, max_per_principal: 10000, idle_s: 60}}
upstreams:
  mixed: {{mcp: {{url: "http://127.0.0.1:{upstream}/mcp", transport: http}}, probe: {{enabled: false}}}}
"""
Answer = tuple[int, Any, Mapping[str, str]]
"""Status, body, headers."""
Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]
_EXTENDED: Mapping[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}


# --- the server -------------------------------------------------------------------------------------------------------


class Behind:
    """An MCP server. `traces` are the trace ids of the calls that reached it."""

    def __init__(self) -> None:
        self.traces: list[str] = []
        self.sessions, self.numbers = 0, itertools.count(1)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/seen":
            return web.json_response(self.traces)
        if request.method == "GET":
            return await self._listen(request)
        if request.method == "DELETE":
            return web.Response(status=204)
        message = json.loads(await request.read())
        if "id" not in message or "method" not in message:
            return web.Response(status=202)
        params, headers = message.get("params", {}), {}
        if message["method"] == "initialize":
            self.sessions += 1
            headers["Mcp-Session-Id"] = f"s-{self.sessions}"
        result = await self._result(message["method"], params, request)
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result}, headers=headers)

    async def _result(self, method: str, params: dict[str, Any], request: web.Request) -> dict[str, Any]:
        if method == "initialize":
            told = {"capabilities": {"tools": {}}, "serverInfo": {"name": SERVER, "version": "1"}}
            return {"protocolVersion": params["protocolVersion"], **told}
        done: dict[str, Any] = {"resultType": "complete"} if "_meta" in params else {}
        if method == "server/discover":
            known = {"supportedVersions": [STATELESS, SESSION], "capabilities": {"tools": {}}, "ttlMs": 3_600_000}
            return {**done, **known, "serverInfo": {"name": SERVER, "version": "1"}, "cacheScope": "public"}
        if method == "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("quick", "slow", "task")]
            return {**done, "tools": tools, "ttlMs": 3_600_000, "cacheScope": "public"}
        if method == "tasks/get":
            return {**done, **_task(params["taskId"])}
        self.traces.append(request.headers.get("traceparent", "-" * 9)[3:35])
        if params["name"] == "task":
            return {"resultType": "task", **_task(f"t-{next(self.numbers)}-{secrets.token_hex(8)}")}
        if params["name"] == "slow":
            await asyncio.sleep(0.05)
        return {**done, "content": [{"type": "text", "text": "done " * 40}], "isError": False}

    async def _listen(self, request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        note = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}})
        while True:
            await stream.write(f"data: {note}\n\n".encode())
            await asyncio.sleep(0.2)


def _task(task_id: str) -> dict[str, Any]:
    return {
        "taskId": task_id,
        "status": "working",
        "createdAt": "2026-11-28T00:00:00Z",
        "ttl": 600_000,
        "ttlMs": 600_000,
    }


# --- the callers ------------------------------------------------------------------------------------------------------


@dataclass
class Journal:
    """What callers were told: run id → status of each whole answer, the ids of tasks, and what they did not expect."""

    answered: dict[str, int] = field(default_factory=dict)
    attempts: int = 0
    lost: int = 0
    tasks: list[str] = field(default_factory=list)
    wrong: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)

    @property
    def statuses(self) -> dict[str, int]:
        return {str(status): count for status, count in sorted(Counter(self.answered.values()).items())}


@dataclass
class Callers:
    """Everybody who calls. `port` is that of the owner of tasks, `other` that of somebody else."""

    port: int
    other: int
    http: aiohttp.ClientSession
    journal: Journal = field(default_factory=Journal)
    keep_answers: bool = True
    pause_s: float = 0.0
    last_session: str = ""
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def work(self, calls: int, slow: int, sessions: int, tasks: int, more: Sequence[Any] = ()) -> None:
        """So many callers of each kind, one of each of `more`, without a pause, until `stop` or until nobody is
        there."""
        kinds = [(self._quick, calls), (self._slow, slow), (self._session, sessions), (self._of_tasks, tasks)]
        kinds += [(kind, 1) for kind in more]
        async with asyncio.TaskGroup() as group:
            for kind, count in kinds:
                for _ in range(count):
                    group.create_task(self._again(kind))

    async def _again(self, kind: Any) -> None:
        while not self.stop.is_set():
            try:
                await kind()
            except (aiohttp.ClientError, ConnectionError, TimeoutError):
                self.journal.lost += 1
                if self.keep_answers:
                    return
            self.journal.kinds[kind.__name__] += 1
            await asyncio.sleep(self.pause_s)

    async def _quick(self) -> None:
        await self._expect(200, "quick", await self.stateless("tools/call", {"name": "quick", "arguments": {"a": 1}}))

    async def _slow(self) -> None:
        await self._expect(200, "slow", await self.stateless("tools/call", {"name": "slow", "arguments": {}}))

    async def _session(self) -> None:
        hello = {"protocolVersion": SESSION, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        status, _, headers = await self.post({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}, {})
        await self._expect(200, "initialize", (status, None, headers))
        self.last_session = headers.get("Mcp-Session-Id", "")
        inside = {"Mcp-Session-Id": self.last_session, "MCP-Protocol-Version": SESSION}
        listening = asyncio.create_task(self._listen(inside))
        try:
            for number in range(3):
                call = {"name": "quick", "arguments": {"b": number}}
                answer = await self.post({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}, inside)
                await self._expect(200, "call in a session", answer)
            async with self.http.delete(self._url(self.port), headers=inside) as ended:
                await self._expect(204, "end of a session", (ended.status, None, {}))
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, inside: Mapping[str, str]) -> None:
        sent = {**inside, "Accept": "text/event-stream"}
        async with self.http.get(self._url(self.port), headers=sent) as stream:
            async for _ in stream.content:
                pass

    async def _of_tasks(self) -> None:
        status, body, _ = await self.stateless("tools/call", {"name": "task", "arguments": {}}, _EXTENDED)
        await self._expect(200, "task", (status, body, {}))
        if status == 200:
            self.journal.tasks.append(body["result"]["taskId"])
            del self.journal.tasks[:-MAX_TASKS]
            await self.check_task(body["result"]["taskId"])

    async def check_task(self, task_id: str) -> None:
        """It is its owner's, and nobody else's."""
        named = {"taskId": task_id}
        await self._expect(200, "owner's task", await self.stateless("tasks/get", named, _EXTENDED))
        await self._expect(404, "other's task", await self.stateless("tasks/get", named, _EXTENDED, port=self.other))

    async def stateless(
        self, method: str, params: Mapping[str, Any], extended: Mapping[str, Any] | None = None, port: int = 0
    ) -> Answer:
        """One request of the stateless era."""
        meta = {
            "io.modelcontextprotocol/protocolVersion": STATELESS,
            "io.modelcontextprotocol/clientCapabilities": extended or {},
        }
        name = params.get("name") or params.get("taskId", "")
        routing = {"Mcp-Method": method, "Mcp-Name": name, "MCP-Protocol-Version": STATELESS}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        return await self.post(message, routing, port)

    async def post(self, message: Mapping[str, Any], headers: Mapping[str, str], port: int = 0) -> Answer:
        """Any request, in the journal if its answer came whole."""
        async with self.sent("POST", self._url(port or self.port), message, headers) as response:
            return response.status, json.loads(await response.read() or b"null"), dict(response.headers)

    @asynccontextmanager
    async def sent(
        self, verb: str, url: str, message: Mapping[str, Any] | None, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Its answer, which is in the journal if the block came to its end: then it was whole."""
        self.journal.attempts += 1
        run_id, trace_id = f"r-{self.journal.attempts}-{secrets.token_hex(4)}", secrets.token_hex(16)
        all_headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "X-Run-Id": run_id,
            "traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-01",
            **headers,
        }
        data = None if message is None else json.dumps(message)
        async with self.http.request(verb, url, data=data, headers=all_headers) as response:
            yield response
            await response.read()
            self.journal.answered[run_id if self.keep_answers else str(response.status)] = response.status

    async def _expect(self, status: int, what: str, answer: tuple[int, Any, Any]) -> None:
        if answer[0] != status:
            error = answer[1].get("error", {}) if isinstance(answer[1], dict) else {}
            self.journal.wrong[f"{what}: {answer[0]} {error.get('data', {}).get('reason', '')}".strip()] += 1
            await asyncio.sleep(0.05)

    def _url(self, port: int) -> str:
        return f"http://127.0.0.1:{port}/mcp/{SERVER}"


def write_folder(folder: Path, **ports: Any) -> None:
    """Write what `sidecar serve` needs; ports by name, and the store's URL."""
    (folder / "policies").mkdir(parents=True)
    shutil.copytree(shipped("models"), folder / "models")
    (folder / "policies" / "agent_to_tool.csv").write_text(RULES)
    (folder / "policies" / "budgets.yaml").write_text(BUDGETS)
    (folder / "sidecar.yaml").write_text(SETTINGS.format(**ports))


async def serve(port: int, handle: Handle, begun: Callable[[], object] = lambda: None) -> None:
    """Answer whatever comes, for as long as the process lives; `begun` hears that connections are taken."""
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handle)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    begun()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), Behind().handle))
