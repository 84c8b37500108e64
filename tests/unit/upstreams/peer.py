"""A small MCP server whose tools, era and moods a test can change while it runs."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sidecar.upstreams.credentials.source import UpstreamCredentialValue
from sidecar.upstreams.http_address import HttpAddress
from sidecar.upstreams.mcp.catalogue import ToolCatalogue
from sidecar.upstreams.mcp.streamable_http import HttpUpstream
from tests.unit.http.client.hostile import Conversation, Hostile, response, serving

ANY: dict[str, Any] = {"type": "object"}
STATELESS, SESSION = "2026-07-28", "2025-11-25"


def tool(name: str, schema: object = None) -> dict[str, Any]:
    return {"name": name, "inputSchema": ANY if schema is None else schema}


@dataclass
class Clock:
    """Monotonic seconds that pass when a test says so."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Peer:
    """`pages` are the pages of tools/list. `heard` counts requests by method; `headers` are those of the newest one."""

    pages: list[list[Any]] = field(default_factory=lambda: [[tool("search")]])
    era: str = STATELESS
    sse: bool = False
    ttl_ms: object = None
    status: str = ""
    raw: bytes | None = None
    pause_s: float = 0.0
    announces: bool = False
    listeners: list[Conversation] = field(default_factory=list)
    sessions: set[str] = field(default_factory=set)
    heard: dict[str, int] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    server: Hostile | None = None
    clock: Clock = field(default_factory=Clock)

    @property
    def lists(self) -> int:
        return self.heard.get("tools/list", 0)

    def hang_up(self) -> None:
        self.server.writers[-1].close()

    async def converse(self, conversation: Conversation) -> None:
        while True:
            head, _, body = (await conversation.request()).partition(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            self.headers = {line.partition(": ")[0].lower(): line.partition(": ")[2] for line in lines}
            message = json.loads(body) if body else {"method": first.partition(" ")[0]}
            self.heard[message["method"]] = self.heard.get(message["method"], 0) + 1
            if message["method"] == "tools/list":
                await asyncio.sleep(self.pause_s)
            if message["method"] in {"GET", "subscriptions/listen"} and self.announces:
                await conversation.send(response(b": listening\n\n", "Content-Type: text/event-stream", framing=""))
                self.listeners.append(conversation)
                await conversation.hung_up()
                return
            await conversation.send(self.answer(message))

    async def tell(self, data: str) -> None:
        """Say something on every stream that listens."""
        for listener in self.listeners:
            await listener.send(f"data: {data}\n\n".encode())

    @property
    def capabilities(self) -> dict[str, Any]:
        return {"tools": {"listChanged": True}} if self.announces else {}

    def answer(self, message: dict[str, Any]) -> bytes:
        method = message["method"]
        if self.raw is not None and method == "tools/list":
            return self.raw
        if self.status and method == "tools/list":
            return response(b"", status=self.status)
        if method == "DELETE":
            self.sessions.discard(self.headers.get("mcp-session-id", ""))
            return response(b"")
        if self.era == SESSION:
            return self.session_answer(message)
        return self.stateless_answer(message)

    def stateless_answer(self, message: dict[str, Any]) -> bytes:
        if self.headers.get("mcp-protocol-version") != STATELESS:
            return response(b"", status="400 Bad Request")
        assert self.headers["mcp-method"] == message["method"]
        assert message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == STATELESS
        if message["method"] == "server/discover":
            return self.result(message, {"supportedVersions": [STATELESS], "capabilities": self.capabilities})
        return self.page(message)

    def session_answer(self, message: dict[str, Any]) -> bytes:
        method, session_id = message["method"], self.headers.get("mcp-session-id")
        if method == "initialize":
            session_id = f"s{len(self.heard)}-{self.heard['initialize']}"
            self.sessions.add(session_id)
            agreed = {"protocolVersion": SESSION, "capabilities": self.capabilities}
            return self.result(message, agreed, f"Mcp-Session-Id: {session_id}")
        if session_id not in self.sessions:
            return response(b"", status="404 Not Found" if session_id else "400 Bad Request")
        if method == "notifications/initialized":
            return response(b"", status="202 Accepted")
        return self.page(message)

    def page(self, message: dict[str, Any]) -> bytes:
        number = int(message["params"].get("cursor", "0"))
        result: dict[str, Any] = {"tools": self.pages[number]}
        if number + 1 < len(self.pages):
            result["nextCursor"] = str(number + 1)
        if self.ttl_ms is not None:
            result["ttlMs"] = self.ttl_ms
        return self.result(message, result)

    def result(self, message: dict[str, Any], result: object, *headers: str) -> bytes:
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
        if not self.sse:
            return response(body, "Content-Type: application/json", *headers)
        note = b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{}}\n\n'
        stream = b": hello\n\nid: 1\ndata:\n\n" + note + b"event: message\ndata: " + body + b"\n\n"
        return response(stream, "Content-Type: text/event-stream", *headers)


@asynccontextmanager
async def learning(peer: Peer, *, timeout_s: float = 5.0) -> AsyncIterator[ToolCatalogue]:
    """A catalogue of ours in front of the peer."""
    async with serving(peer.converse) as server:
        peer.server = server
        secret = UpstreamCredentialValue("Authorization", "Bearer upstream-secret")
        upstream = HttpUpstream("notes", HttpAddress(server.url, credential=secret), timeout_s=timeout_s)
        catalogue = ToolCatalogue(upstream, clock_mono=peer.clock)
        try:
            yield catalogue
        finally:
            await catalogue.close()
            await upstream.close()
