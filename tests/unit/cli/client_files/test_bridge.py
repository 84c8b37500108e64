"""What does the bridge of `sidecar connect` do where a server forgets, breaks off, refuses or is oddly spelt?"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from aiohttp import web

from sidecar.cli.client_files.bridge import Headers, StdioBridge
from sidecar.http.client import HttpClient, parse_origin
from sidecar.settings.secrets import read_secret
from tests.flow.world import listening

Answered = Callable[[web.Request, Any], Awaitable[web.StreamResponse]]
HELLO = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}
READY = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def call(number: Any = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": "a", **params}}


class Server:
    """Opens sessions s1, s2 …; `answer` answers all that is no `initialize` and no notification."""

    def __init__(self, answer: Answered) -> None:
        self.answer, self.opened, self.seen = answer, 0, list[tuple[str, Any, dict[str, str]]]()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.seen.append((request.method, body, dict(request.headers)))
        if request.method == "DELETE":
            return web.Response()
        if body is not None and body["method"] == "initialize":
            self.opened += 1
            result = {"jsonrpc": "2.0", "id": body["id"], "result": {"protocolVersion": "2025-06-18"}}
            return web.json_response(result, headers={"Mcp-Session-Id": f"s{self.opened}"})
        if body is not None and "id" not in body:
            return web.Response(status=202)
        return await self.answer(request, body)

    def of(self, verb: str) -> list[dict[str, str]]:
        return [headers for method, _, headers in self.seen if method == verb]


def with_key() -> Sequence[tuple[str, str]]:
    return [("X-API-Key", "k")]


async def bridged(server: Server, *messages: Any, headers: Headers = with_key) -> list[Any]:
    """What the client hears after these lines, one at a time."""
    heard: list[bytes] = []

    async def lines() -> AsyncIterator[bytes]:
        for message in messages:
            before = len(heard)
            yield message if isinstance(message, bytes) else json.dumps(message).encode()
            while not isinstance(message, bytes) and "id" in message and len(heard) == before:
                await asyncio.sleep(0.005)

    async with listening(server.handle) as base:
        origin = parse_origin(f"{base}/mcp")
        await StdioBridge(HttpClient(origin), origin, heard.append, headers, 5.0).run(lines())
    assert all(line.count(b"\n") == 1 and line.endswith(b"\n") for line in heard)
    return [json.loads(line) for line in heard]


async def result(request: web.Request, body: Any) -> web.StreamResponse:
    if request.method == "GET":
        return web.Response(status=405)
    text = json.dumps({"jsonrpc": "2.0", "id": body["id"], "result": {"ok": True}}, indent=1)
    return web.Response(text=text, content_type="application/json")


async def test_a_session_says_which_it_is_and_is_ended() -> None:
    server = Server(result)
    heard = await bridged(server, HELLO, READY, call(2**63 + 1), call("x"))
    assert [one["id"] for one in heard] == [0, 2**63 + 1, "x"]
    (_, _, hello), *rest = server.seen
    assert "Mcp-Session-Id" not in hello and all(headers["X-API-Key"] == "k" for headers in server.of("POST"))
    assert {(one["Mcp-Session-Id"], one["MCP-Protocol-Version"]) for *_, one in rest} == {("s1", "2025-06-18")}
    assert [method for method, _, _ in server.seen][-1] == "DELETE" and len(server.of("GET")) == 1


async def test_a_forgotten_session_is_opened_anew_and_the_call_repeated_once() -> None:
    async def forgetful(request: web.Request, body: Any) -> web.StreamResponse:
        if request.headers["Mcp-Session-Id"] == "s1" or request.method == "GET":
            return web.Response(status=404)
        return await result(request, body)

    server = Server(forgetful)
    heard = await bridged(server, HELLO, READY, call(1), call(2))
    assert [one.get("result") for one in heard[1:]] == [{"ok": True}] * 2
    assert server.opened == 2 and sum(body == call(1) for _, body, _ in server.seen) == 2


async def test_a_request_is_answered_though_the_file_of_its_credential_is_missing_for_a_moment(tmp_path: Path) -> None:
    file, asked = tmp_path / "key", count()

    def rotated() -> Sequence[tuple[str, str]]:
        if next(asked) == 2:
            file.write_text("k")
            file.chmod(0o600)
        return [("X-API-Key", read_secret(file, "theirs"))]

    refused, answered = await bridged(Server(result), READY, call(1), call(2), headers=rotated)
    assert refused["id"] == 1 and "cannot be read" in refused["error"]["message"]
    assert answered == {"jsonrpc": "2.0", "id": 2, "result": {"ok": True}}


async def test_a_stream_that_breaks_off_is_taken_up_where_it_ended() -> None:
    async def broken(request: web.Request, body: Any) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        last = request.headers.get("Last-Event-ID")
        if body is not None:
            await stream.write(b": hello\n\nevent: ping\ndata: {}\n\nid: 7\ndata: \n\n")
        elif last == "7":
            await stream.write(b'id: 8\ndata: {"jsonrpc":"2.0","id":1,"result":{}}\n\n')
        return stream

    assert await bridged(Server(broken), HELLO, call(1)) == [
        {"jsonrpc": "2.0", "id": 0, "result": {"protocolVersion": "2025-06-18"}},
        {"jsonrpc": "2.0", "id": 1, "result": {}},
    ]


async def test_what_is_no_answer_is_put_into_words() -> None:
    async def odd(request: web.Request, body: Any) -> web.StreamResponse:
        if body["id"] == 1:
            return web.json_response({"title": "A credential is needed", "status": 401}, status=401)
        if body["id"] == 2:
            return web.Response(status=502, text="<html>")
        error = {"code": 429, "message": "m"}
        return web.json_response({"jsonrpc": "2.0", "id": body["id"], "error": error}, status=429)

    heard = await bridged(Server(odd), call(1), call(2), call(3), b"{nonsense", b'[{"id": 1}]')
    said = [(one["id"], one["error"]["code"], one["error"]["message"]) for one in heard]
    assert said[:3] == [(1, 401, "HTTP 401: A credential is needed"), (2, 502, "HTTP 502"), (3, 429, "m")]
    assert [code for _, code, _ in said[3:]] == [-32700, -32600]


async def test_a_request_without_a_session_says_what_it_is() -> None:
    schema = {"type": "object", "properties": {"repo": {"type": "string", "x-mcp-header": "Repo"}}}
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}

    async def tools(request: web.Request, body: Any) -> web.StreamResponse:
        found = {"tools": [{"name": "a", "inputSchema": schema}]} if body["method"] == "tools/list" else {}
        return web.json_response({"jsonrpc": "2.0", "id": body["id"], "result": found})

    server = Server(tools)
    listed = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    await bridged(server, listed, call(2, arguments={"repo": "acme"}, _meta=meta))
    sent = server.of("POST")[-1]
    routing = {"Mcp-Method": "tools/call", "Mcp-Name": "a", "Mcp-Param-Repo": "acme"}
    assert sent.items() >= (routing | {"MCP-Protocol-Version": "2026-07-28"}).items()
    assert "Mcp-Session-Id" not in sent and not server.of("DELETE")
