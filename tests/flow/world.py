"""A whole sidecar on loopback, the world around it made of real sockets.

World       a folder, an `Application` started on it, and what a test asks of them
Upstream    a scripted MCP server of both eras that remembers what reached it
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
from aiohttp import web

from sidecar.app.application import Application
from sidecar.settings.shipped_files import shipped
from tests.tables import tables

STATELESS = "2026-07-28"
SESSION = "2025-11-25"
ACCEPT = "application/json, text/event-stream"
PATIENCE_S = 30.0  # for what takes a moment: the machine may be slow, and busy with other things
PATIENT = {"SIDECAR_SERVER__MAX_LAG_S": f"{PATIENCE_S}", "SIDECAR_STORE__TIMEOUT": "500ms"}
META = {"io.modelcontextprotocol/protocolVersion": STATELESS, "io.modelcontextprotocol/clientCapabilities": {}}
TOOLS: list[dict[str, Any]] = tables("flow/world")["tools"]
RULES = """\
#: id=planner-searches
p, nhi:planner, tool:github/search_code, use, -, -, args.repo.startsWith('acme/'), allow
#: id=planner-reads
p, nhi:planner, tool:github/get_file, use, -, 3, -, allow
"""
Respond = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


@dataclass
class Upstream:
    """Answers as an MCP server would; `script` overrides by method. `seen` are (headers, message) in order."""

    script: dict[str, Respond] = field(default_factory=dict)
    seen: list[tuple[Mapping[str, str], dict[str, Any]]] = field(default_factory=list)
    verbs: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=lambda: [dict(tool) for tool in TOOLS])
    url: str = ""
    sessions: int = 0

    def methods(self) -> list[str]:
        """The methods that reached it, without what the sidecar asks for itself."""
        return [message.get("method", "response") for _, message in self.seen]

    def calls(self, method: str = "tools/call") -> list[dict[str, Any]]:
        return [message for _, message in self.seen if message.get("method") == method]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.verbs.append((request.method, dict(request.headers)))
        if request.method != "POST":
            responder = self.script.get(request.method)
            return await responder(request, {}) if responder else web.Response(status=405)
        message = json.loads(await request.read())
        self.seen.append((dict(request.headers), message))
        responder = self.script.get(message.get("method", "response"))
        if responder:
            return await responder(request, message)
        return self.answer(message)

    def answer(self, message: dict[str, Any]) -> web.Response:
        method = message.get("method")
        if "id" not in message or method is None:
            return web.Response(status=202)
        stateless = "io.modelcontextprotocol/protocolVersion" in message.get("params", {}).get("_meta", {})
        result: dict[str, Any] = {"resultType": "complete"} if stateless else {}
        headers = {}
        if method == "initialize":
            self.sessions += 1
            headers["Mcp-Session-Id"] = f"upstream-{self.sessions}"
            result |= {
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": {"tools": {"listChanged": True}, "tasks": {}},
                "serverInfo": {"name": "stub", "version": "1"},
            }
        elif method == "server/discover":
            result |= {"supportedVersions": [STATELESS], "capabilities": {"tools": {}}, "ttlMs": 1000}
            result["cacheScope"] = "public"
        elif method == "tools/list":
            result |= {"tools": self.tools, "ttlMs": 60000, "cacheScope": "public"}
        elif method == "tools/call":
            result |= {"content": [{"type": "text", "text": "done"}], "isError": False}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result}, headers=headers)


@dataclass
class World:
    """A running sidecar and its folder."""

    folder: Path
    upstream: Upstream
    app: Application
    http: aiohttp.ClientSession
    url: str
    admin_url: str

    async def post(
        self, message: Any, *, headers: Mapping[str, str] | None = None, server: str = "github", url: str = ""
    ) -> tuple[int, Any, Mapping[str, str]]:
        """POST one message; the status, the parsed body (bytes where it is no JSON) and the headers."""
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        sent = {"Content-Type": "application/json", "Accept": ACCEPT, **(headers or {})}
        async with self.http.post(url or f"{self.url}/mcp/{server}", data=body, headers=sent) as response:
            raw = await response.read()
            try:
                parsed = json.loads(raw) if raw else None
            except ValueError:
                parsed = raw
            return response.status, parsed, dict(response.headers)

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        server: str = "github",
        id: int | str = 1,
    ) -> tuple[int, Any, Mapping[str, str]]:
        """One stateless `tools/call`."""
        message = stateless("tools/call", {"name": tool, "arguments": arguments or {}}, id=id)
        routing = {"Mcp-Method": "tools/call", "Mcp-Name": tool, "MCP-Protocol-Version": STATELESS}
        return await self.post(message, headers={**routing, **(headers or {})}, server=server)

    async def ask(self, method: str, params: dict[str, Any] | None = None, **kw: Any) -> tuple[int, Any, Any]:
        """One stateless request of any other method."""
        routing = {"Mcp-Method": method, "MCP-Protocol-Version": STATELESS, **kw.pop("headers", {})}
        return await self.post(stateless(method, params or {}), headers=routing, **kw)

    @property
    def upstream_connections(self) -> int:
        """How many connections to the upstream are open, whatever stands around the one who opens them."""
        upstream: Any = self.app.live.current.services["github"].upstream
        while not hasattr(upstream, "open_connections"):
            upstream = upstream.inner
        count: int = upstream.open_connections
        return count

    def records(self) -> list[dict[str, Any]]:
        """The audit so far, without a line that is just being written."""
        whole, _, _ = self.app.settings.audit_path.read_bytes().rpartition(b"\n")
        return [json.loads(line) for line in whole.splitlines()]

    def ends(self) -> list[dict[str, Any]]:
        """The terminal records."""
        return [record for record in self.records() if record["event"] in ("outcome", "refusal")]

    async def metrics(self) -> str:
        async with self.http.get(f"{self.admin_url}/metrics") as response:
            return await response.text()


def stateless(method: str, params: dict[str, Any], *, id: int | str = 1) -> dict[str, Any]:
    """A request of the stateless era."""
    return {
        "jsonrpc": "2.0",
        "id": id,
        "method": method,
        "params": {**params, "_meta": {**META, **params.get("_meta", {})}},
    }


def request(method: str, params: dict[str, Any] | None = None, *, id: int | str = 1) -> dict[str, Any]:
    """A request of the session era."""
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}


@asynccontextmanager
async def listening(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """An HTTP server on a free port of loopback; its base URL."""
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.2)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)  # who is slow to accept turns nobody away
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def world(
    folder: Path,
    *,
    upstream: Upstream | None = None,
    upstream_url: str = "",
    principal: str = "nhi:planner",
    **written: Any,
) -> AsyncIterator[World]:
    """A sidecar before one upstream called `github`. Its callers are `principal` through a local listener (`World.url`)
    unless that is empty; then `World.url` is the data listener. `written` is what `write_folder` takes."""
    stub = upstream or Upstream()
    async with listening(stub.handle) as base:
        stub.url = f"{base}/mcp"
        write_folder(folder, upstream_url or stub.url, principal=principal, **written)
        app = await started(folder)
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as http:
                ports = [listener.port for listener in app.listeners]
                entrance = ports[1] if principal else ports[0]
                admin = ports[2] if principal else ports[1]
                yield World(folder, stub, app, http, f"http://127.0.0.1:{entrance}", f"http://127.0.0.1:{admin}")
        finally:
            await app.stop()


def write_folder(
    folder: Path,
    upstream_url: str,
    rules: str = RULES,
    files: Mapping[str, str] | None = None,
    settings: str = "",
    upstream_settings: str = "",
    principal: str = "nhi:planner",
    mcp_settings: str = "",
    program: str = "",
) -> None:
    """sidecar.yaml, models and policies; `files` are further ones, by path. `program` is a `command` and what belongs
    to it, for an upstream that is one."""
    local = f'local: [{{listen: "127.0.0.1:0", principal: "{principal}"}}]\n' if principal else ""
    more = f", {upstream_settings}" if upstream_settings else ""
    if "probe:" not in more:
        more += ", probe: {enabled: false}"  # what reaches the upstream is what the test sends
    mcp = (program or f'url: "{upstream_url}"') + (f", {mcp_settings}" if mcp_settings else "")
    (folder / "policies").mkdir(parents=True, exist_ok=True)
    (folder / "sidecar.yaml").write_text(
        "version: 1\n"
        + ("" if "server:" in settings else 'server: {listen: "127.0.0.1:0"}\n')
        + ("" if "admin:" in settings else 'admin: {listen: "127.0.0.1:0"}\n')
        + local
        + f"upstreams:\n  github: {{mcp: {{{mcp}}}{more}}}\n"
        + settings
    )
    (folder / "models").mkdir(exist_ok=True)
    for model in shipped("models").glob("*.conf"):
        (folder / "models" / model.name).write_text(model.read_text())
    (folder / "policies" / "agent_to_tool.csv").write_text(rules)
    for name, content in (files or {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o640)  # some are secrets


async def started(folder: Path, environ: Mapping[str, str] = MappingProxyType({})) -> Application:
    """The sidecar of a folder. It sheds no call, however busy the machine is: what does has tests of its own."""
    return await Application.start(folder / "sidecar.yaml", {**environ, **PATIENT})


async def until(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    """Wait for something that happens on its own; TimeoutError if it does not."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)
