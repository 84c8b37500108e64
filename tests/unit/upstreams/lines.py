"""A line whose far end is the test: what came over it, and what is said on it."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sidecar.errors import Reason, Refusal
from sidecar.protocols.jsonrpc import Message, Notification, Request
from sidecar.protocols.sse import SseParser
from sidecar.upstreams.mcp.transport import BuiltUpstream, Outbound
from sidecar.vocabulary import Caller, Principal

SESSION, STATELESS = "2025-11-25", "2026-07-28"
META = {"io.modelcontextprotocol/protocolVersion": STATELESS}
INITIALIZED = {"protocolVersion": SESSION, "capabilities": {"logging": {}}, "serverInfo": {"name": "x", "version": "1"}}


def caller(name: str) -> Caller:
    return Caller((Principal(name, "test"),), ())


class Line:
    """A `Wire`. `heard` is what was sent over it and not yet taken."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.closed = False
        self._said: asyncio.Queue[bytes | Refusal | None] = asyncio.Queue()

    async def send(self, message: bytes, caller: Caller | None = None) -> None:
        self.heard.put_nowait(json.loads(message))

    async def messages(self) -> AsyncGenerator[bytes, None]:
        while (said := await self._said.get()) is not None:
            if isinstance(said, Refusal):
                raise said
            yield said

    async def close(self) -> None:
        self.closed = True

    # the far end

    async def hears(self, method: str = "") -> dict[str, Any]:
        """The next message that came, which must be of this method."""
        async with asyncio.timeout(2):
            message = await self.heard.get()
        assert message.get("method", "") == method, message
        return message

    def says(self, message: dict[str, Any] | bytes) -> None:
        raw = message if isinstance(message, bytes) else json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._said.put_nowait(raw)

    def breaks(self, refusal: Refusal | None = None) -> None:
        self._said.put_nowait(refusal)


def post(
    message: Message, session: str | None = None, *, who: str = "", version: str = SESSION, deadline_s: float = 5.0
) -> Outbound:
    return Outbound("POST", message, version, deadline_s, session, caller(who) if who else None)


def get(session: str | None, who: str = "") -> Outbound:
    return Outbound("GET", None, SESSION, 5.0, session, caller(who) if who else None)


def call(tool: str = "t", id: int | str = 1, **meta: Any) -> Request:
    return Request(id, "tools/call", {"name": tool, "arguments": {}, **({"_meta": meta} if meta else {})})


def initialize(id: int | str = 0) -> Request:
    return Request(id, "initialize", {"protocolVersion": SESSION, "capabilities": {}, "clientInfo": {}})


def notification(method: str, **params: Any) -> Notification:
    return Notification(method, params)


@contextmanager
def refuses(reason: Reason) -> Iterator[None]:
    with pytest.raises(Refusal) as caught:
        yield
    assert caught.value.reason is reason


async def body(answer: BuiltUpstream) -> dict[str, Any]:
    """The one JSON object that an answer is."""
    assert answer.media_type == "application/json"
    parsed: dict[str, Any] = json.loads(await answer.read(2**20))
    return parsed


async def events(answer: BuiltUpstream, count: int) -> list[dict[str, Any]]:
    """The next events of a stream, and no more of it."""
    assert answer.media_type == "text/event-stream"
    parser, found = SseParser(), []
    async with asyncio.timeout(2):
        async for chunk in answer.chunks():
            found += [json.loads(event.data) for event in parser.feed(chunk) if event.data]
            if len(found) >= count:
                break
    return found
