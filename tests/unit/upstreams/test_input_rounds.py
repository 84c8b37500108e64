"""A call that waits for input from its caller, while the caller leaves."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.protocols.jsonrpc import Request
from sidecar.upstreams.mcp.bridge.input_rounds import InputRounds
from sidecar.upstreams.mcp.transport import EVENT_STREAM, AnswerPipe, BuiltUpstream, McpTransport, Outbound


class Leaving(McpTransport):
    """A server whose answer comes in the moment in which `caller` leaves."""

    def __init__(self) -> None:
        super().__init__("tools", 5.0, 1_000)
        self.caller: asyncio.Task[Any] | None = None
        self.given_up = 0

    async def exchange(self, outbound: Outbound) -> BuiltUpstream:
        assert self.caller is not None
        asyncio.get_running_loop().call_soon(self.caller.cancel)  # before the caller's task hears of the answer
        return BuiltUpstream(200, media_type=EVENT_STREAM, pipe=AnswerPipe(), given_up=self._gone)

    def _gone(self) -> None:
        self.given_up += 1

    async def end_session(self, session_id: str, version: str, deadline_s: float) -> None:
        raise AssertionError("there is no session")

    async def close(self) -> None:
        """It has nothing open."""


async def test_an_answer_that_comes_as_its_caller_leaves_is_closed() -> None:
    server, request = Leaving(), Request(1, "tools/call", {"name": "ask"})
    played: Any = SimpleNamespace(questions={}, calls={})
    rounds = InputRounds(server, played, Outbound("POST", request, "2026-07-28", 5.0), request)
    server.caller = asyncio.create_task(rounds.begin())
    with pytest.raises(asyncio.CancelledError):
        await server.caller
    assert server.given_up == 1
