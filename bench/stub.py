"""What stands behind everything that is measured?

An MCP server that answers from constants, quickly enough not to be what is measured: `python -m bench.stub PORT`.
Where nginx is installed it answers the calls, and this server only what the sidecar asks once (`subjects.py`).
It trusts its only client: HTTP/1.1 with Content-Length and keep-alive. Below `/v1/` it takes what OTLP brings.
"""

from __future__ import annotations

import asyncio
import json
import sys

from bench.call import ID, answer_to

_END_OF_HEAD = b"\r\n\r\n"


def response(body: str) -> bytes:
    """A whole HTTP answer."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


CALLED = response(answer_to("tools/call", ID))


class Stub(asyncio.Protocol):
    """One connection. Requests are cut at their lengths; those of the measured call are never parsed, but counted: `GET
    /called` says how often it was called."""

    called = 0

    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(_END_OF_HEAD)) >= 0:
            head = self._buffer[:end].lower()
            size = end + len(_END_OF_HEAD) + _content_length(head)
            if len(self._buffer) < size:
                return
            body, self._buffer = self._buffer[end + len(_END_OF_HEAD) : size], self._buffer[size:]
            if head.startswith(b"post /v1/"):
                self._transport.write(response(""))
            elif b"\r\nmcp-method: tools/call" in head:
                Stub.called += 1
                self._transport.write(CALLED)
            else:
                self._transport.write(response(str(Stub.called)) if head.startswith(b"get /called") else _answer(body))


def _content_length(head: bytes) -> int:
    _, found, rest = head.partition(b"\r\ncontent-length:")
    return int(rest.partition(b"\r\n")[0]) if found else 0


def _answer(body: bytes) -> bytes:
    message = json.loads(body)
    return response(answer_to(message["method"], message.get("id")))


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
