"""Detects whether a server uses Streamable HTTP or HTTP+SSE, by the procedure for clients in MCP 2025-11-25.

    first refused POST ──▶ GET ──▶ endpoint      HTTP+SSE, until a stream cannot be opened any more
                                ──▶ nothing      the POST's own answer; tried again after a while

A POST is refused with 400, 404 or 405; an answer in JSON-RPC shows Streamable HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import orjson

from sidecar.errors import Refusal
from sidecar.protocols.jsonrpc import Request
from sidecar.upstreams.http_address import HttpAddress
from sidecar.upstreams.mcp.legacy_sse import SseUpstream
from sidecar.upstreams.mcp.streamable_http import HttpUpstream
from sidecar.upstreams.mcp.transport import JSON, MAX_ERROR_BYTES, Outbound, UpstreamAnswer
from sidecar.vocabulary import Caller

PROBE_S: Final = 5.0  # a server sends its endpoint at once
# How often to retry the GET at a server without such a stream: the server may be replaced, and a route may appear late.
PROBE_EVERY_S: Final = 30.0
_OPENERS: Final = frozenset({"initialize", "server/discover"})


class DetectingUpstream(HttpUpstream):
    """One MCP server whose transport is not configured: Streamable HTTP, until it refuses an opening message and has a
    stream of HTTP+SSE (`legacy`). `clock_mono` gives monotonic seconds."""

    def __init__(
        self,
        name: str,
        address: HttpAddress,
        legacy: SseUpstream,
        *,
        clock_mono: Callable[[], float] = time.monotonic,
        **bounds: Any,
    ) -> None:
        super().__init__(name, address, **bounds)
        self._legacy = legacy
        self._clock = clock_mono
        self._next_probe_s = 0.0
        self._probing = asyncio.Lock()

    def roams(self, session_id: str | None) -> bool:
        return not self.is_legacy

    async def end_session(self, session_id: str, version: str, deadline_s: float) -> None:
        if self.is_legacy:
            await self._legacy.end_session(session_id, version, deadline_s)
        else:
            await super().end_session(session_id, version, deadline_s)

    async def close(self) -> None:
        await super().close()
        await self._legacy.close()

    async def over_sse(self, outbound: Outbound) -> UpstreamAnswer:
        try:
            return await self._legacy.exchange(outbound)
        except Refusal:
            if not self._legacy.offered:  # it was replaced by another version: detect again
                self.is_legacy, self._next_probe_s = False, 0.0
            raise

    async def refused(self, outbound: Outbound, answer: UpstreamAnswer, until_s: float) -> UpstreamAnswer:
        opens = isinstance(outbound.message, Request) and outbound.message.method in _OPENERS
        if not opens:  # later a 404 concerns the request
            return answer
        with answer:
            refusal = await answer.read(MAX_ERROR_BYTES) if answer.media_type == JSON else b""
        if not _says_json_rpc(refusal) and await self._finds_a_stream(outbound.caller, until_s):
            left_s = until_s - asyncio.get_running_loop().time()
            return await self.over_sse(outbound._replace(deadline_s=left_s))
        return answer.with_body(refusal)

    async def _finds_a_stream(self, caller: Caller | None, until_s: float) -> bool:
        """Whether the GET finds an endpoint; concurrent callers wait for the same detection."""
        latest_s = asyncio.get_running_loop().time() + PROBE_S
        try:
            async with asyncio.timeout_at(min(until_s, latest_s)), self._probing:
                if not self.is_legacy and self._clock() >= self._next_probe_s:
                    self._next_probe_s = self._clock() + PROBE_EVERY_S
                    self.is_legacy = await self._legacy.is_there(caller, PROBE_S)
        except TimeoutError:
            return False
        return self.is_legacy


def _says_json_rpc(body: bytes) -> bool:
    try:
        message = orjson.loads(body) if body else None
    except orjson.JSONDecodeError:
        return False
    return isinstance(message, dict) and "jsonrpc" in message and "error" in message
