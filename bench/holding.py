"""Which server keeps every stream open and costs nothing? `python -m bench.holding PORT`, on loopback.

`GET /ended` says how many of its sessions somebody ended, of how many.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import uvloop

_TOOLS = [{"name": "search", "inputSchema": {"type": "object"}}]
_GREETING = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "holding", "version": "1"},
}
_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Holding(asyncio.Protocol):
    """One connection."""

    sessions = ended = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.got = b""

    def data_received(self, data: bytes) -> None:
        self.got += data
        while b"\r\n\r\n" in self.got:
            head, _, rest = self.got.partition(b"\r\n\r\n")
            if head.startswith(b"GET /ended"):
                self.got = rest
                self.transport.write(_json({"ended": Holding.ended, "of": Holding.sessions}))
                continue
            if head.startswith(b"DELETE"):
                self.got = rest
                Holding.ended += 1
                self.transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")
                continue
            if head.startswith(b"GET"):
                self.got = rest
                self.transport.write(_STREAM)
                continue
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
            if len(rest) < length:
                return
            self.got = rest[length:]
            self.transport.write(self._answer(json.loads(rest[:length] or b"{}")))

    def _answer(self, message: dict[str, Any]) -> bytes:
        results: dict[str, Any] = {
            "initialize": _GREETING,
            "tools/list": {"tools": _TOOLS},
            "tools/call": {"content": [{"type": "text", "text": "found"}]},
        }
        method = message.get("method", "")
        if "id" not in message:
            return b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        known = method in results
        answer |= {"result": results[method]} if known else {"error": {"code": -32601, "message": "Method not found"}}
        session = b""
        if method == "initialize":
            Holding.sessions += 1
            session = b"Mcp-Session-Id: held-%d\r\n" % Holding.sessions
        return _json(answer, session)


def _json(answer: dict[str, Any], header: bytes = b"") -> bytes:
    body = json.dumps(answer).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + header
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Holding, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
