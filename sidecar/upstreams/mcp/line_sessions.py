"""Holds connections to servers that use a stream: programs on pipes, HTTP+SSE servers.

Unless the operator configures a shared program, each session has its own program, and so has each stateless caller
while it is active: state at such a server is then the caller's own. The sidecar is a caller like any other.

    exchange ──▶ known session        its line
                 unknown session      404, so that the client begins again
                 initialize           a new line, or the caller's own if that has no state yet
                 stateless            the caller's line, opened when first needed

A server that does not know `server/discover` may not answer it: then it supports no stateless revision (MCP 2026-07-28,
stdio).
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from sidecar.errors import Reason, Refusal
from sidecar.protocols.jsonrpc import Request
from sidecar.protocols.mcp.eras import STATELESS_SET
from sidecar.upstreams.mcp.background import landed
from sidecar.upstreams.mcp.duplex_transport import DuplexTransport, DuplexWire
from sidecar.upstreams.mcp.transport import SESSION_ID, BuiltUpstream, McpTransport, Outbound, unknown_method
from sidecar.vocabulary import Caller

DISCOVER_S: Final = 10.0
SWEEP_EVERY_S: Final = 5.0
# The owner of a session ends it. This is for an end that was lost before it arrived here.
FORGOTTEN_S: Final = 7200.0
REMOVED: Final = "it is being removed from the configuration"


@dataclass(frozen=True, slots=True)
class LineBounds:
    """The maximum number of lines, and how long an idle line of a stateless caller is held, in seconds."""

    max_per_caller: int = 8
    max_lines: int = 64
    idle_s: float = 300.0


class LineTransport(McpTransport):
    """One MCP server that is reached over lines."""

    def __init__(
        self,
        name: str,
        timeout_s: float,
        max_response_bytes: int,
        secrets: object = None,
        *,
        shared: bool = False,
        stateless: bool = True,
        apart: bool = False,
        bounds: LineBounds | None = None,
        clock_mono: Callable[[], float] = time.monotonic,
    ) -> None:
        """`shared`: one line for all callers. `stateless`: stateless revisions may be tried. `apart`: a server for each
        line."""
        super().__init__(name, timeout_s, max_response_bytes, secrets)
        self._shared, self._stateless, self._apart = shared, stateless, apart
        self._bounds, self._clock = bounds or LineBounds(), clock_mono
        self._lines: dict[DuplexTransport, None] = {}
        self._kept: dict[str, DuplexTransport] = {}
        self._by_session: dict[str, DuplexTransport] = {}
        self._opening: dict[str, asyncio.Task[DuplexTransport]] = {}
        self._begun: list[str] = []  # the owners of lines that are being opened
        self._closing: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def lines(self) -> int:
        return len(self._lines)

    @abstractmethod
    async def open_wire(self, owner: str, caller: Caller | None) -> DuplexWire:
        """Opens a line for an owner ("" is the sidecar). Raises Refusal; leaves nothing behind if it is cancelled."""

    async def exchange(self, outbound: Outbound) -> BuiltUpstream:
        message = outbound.message
        if outbound.session_id is not None:
            return await self._in_session(outbound, outbound.session_id)
        if isinstance(message, Request) and message.method == "initialize":
            return await self._begin(outbound)
        if outbound.version not in STATELESS_SET or not isinstance(message, Request):
            return BuiltUpstream(405 if message is None else 400)
        if not self._stateless:
            return BuiltUpstream.of_response(unknown_method(message.id), 404)
        try:
            line = await self._kept_line(outbound, "stateless" if self._shared else outbound.owner)
            if message.method == "server/discover" and not line.proven:
                outbound = outbound._replace(deadline_s=min(outbound.deadline_s, DISCOVER_S))
            return await line.exchange(outbound)
        except Refusal as refusal:
            if message.method == "server/discover" and refusal.reason is Reason.UPSTREAM_TIMEOUT:
                return BuiltUpstream.of_response(unknown_method(message.id), 404)
            raise

    async def end_session(self, session_id: str, version: str, deadline_s: float) -> None:
        line = self._by_session.pop(session_id, None)
        if line is not None:
            line.end_session(session_id)
            if line.key is None:
                self._drop(line)

    async def close(self) -> None:
        self._closed = True
        tasks = [task for task in (self._sweeping, *self._opening.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for line in list(self._lines):
            self._drop(line)
        if self._closing:
            await asyncio.wait(self._closing)  # cancelling this wait does not cancel them

    async def _in_session(self, outbound: Outbound, session_id: str) -> BuiltUpstream:
        line = self._by_session.get(session_id)
        session = line.sessions.get(session_id) if line is not None else None
        if line is None or session is None or session.owner != outbound.owner:
            return BuiltUpstream(404)
        if outbound.verb == "DELETE":
            await self.end_session(session_id, outbound.version, outbound.deadline_s)
            return BuiltUpstream(200)
        line.used_mono_s = self._clock()
        return await line.exchange(outbound)

    async def _begin(self, outbound: Outbound) -> BuiltUpstream:
        if self._shared:
            line = await self._kept_line(outbound, "session")
        else:
            line = await self._own_line(outbound)
        session_id = None
        try:
            answer = await line.exchange(outbound)
            session_id = answer.headers.get(SESSION_ID)
        finally:
            if session_id is not None and line in self._lines:  # otherwise it broke, and the session with it
                self._by_session[session_id] = line
            elif not self._shared:
                self._drop(line)
        return answer

    async def _own_line(self, outbound: Outbound) -> DuplexTransport:
        unused = self._kept.get(outbound.owner)
        if unused is not None and unused.takes_over:
            del self._kept[outbound.owner]
            unused.key = None
            return unused
        return await self._within(outbound.deadline_s, self._open(outbound, outbound.owner, None))

    async def _kept_line(self, outbound: Outbound, key: str) -> DuplexTransport:
        """Returns the line that is stored under `key`, opened when first needed. Concurrent callers wait for the same
        opening. Raises Refusal."""
        line = self._kept.get(key)
        if line is None:
            task = self._opening.get(key)
            if task is None:
                owner = "" if self._shared else outbound.owner
                task = asyncio.create_task(self._open(outbound, owner, key), name=f"opens a line to {self.name}")
                self._opening[key] = task
                task.add_done_callback(partial(landed, self._opening, key))
            line = await self._within(outbound.deadline_s, asyncio.shield(task))
        line.used_mono_s = self._clock()
        return line

    async def _within(self, deadline_s: float, opening: Awaitable[DuplexTransport]) -> DuplexTransport:
        try:
            async with asyncio.timeout(deadline_s):
                return await opening
        except TimeoutError:
            raise Refusal(Reason.UPSTREAM_TIMEOUT, "it was not started or connected in time") from None

    async def _open(self, outbound: Outbound, owner: str, key: str | None) -> DuplexTransport:
        self._make_room(owner)
        self._begun.append(owner)
        try:
            wire = await self.open_wire(owner, outbound.caller)
        finally:
            self._begun.remove(owner)
        if self._closed:
            await wire.close()
            raise Refusal(Reason.UPSTREAM_FAILED, REMOVED)
        own = self._apart and owner != ""  # the program of the sidecar's conversation represents all of them
        now = self._clock()
        line = DuplexTransport(wire, self._drop, owner, shared=self._shared, own=own, key=key, used_mono_s=now)
        self._lines[line] = None
        if key is not None:
            self._kept[key] = line
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.create_task(self._sweep(), name=f"ends unused lines to {self.name}")
        return line

    def _make_room(self, owner: str) -> None:
        """Closes an unused line at a bound. Raises Refusal: TOO_MANY_CONCURRENT if there is none, UPSTREAM_FAILED after
        `close`."""
        if self._closed:
            raise Refusal(Reason.UPSTREAM_FAILED, REMOVED)
        if owner == "":
            return  # the sidecar's few lines: without them no call is possible
        idle = [line for line in self._lines if not line.busy]
        mine = sum(line.owner == owner for line in self._lines) + self._begun.count(owner)
        if mine >= self._bounds.max_per_caller:
            self._drop_oldest([line for line in idle if line.owner == owner], "too many sessions of one caller")
        elif len(self._lines) + len(self._begun) >= self._bounds.max_lines:
            free = [line for line in idle if line.owner == owner or (line.owner and not line.sessions)]
            self._drop_oldest(free, "too many sessions of one server")
        if len(self._closing) >= self._bounds.max_lines:
            raise Refusal(Reason.TOO_MANY_CONCURRENT, "too many sessions of one server are ending")

    def _drop_oldest(self, lines: list[DuplexTransport], complaint: str) -> None:
        if not lines:
            raise Refusal(Reason.TOO_MANY_CONCURRENT, complaint)
        self._drop(min(lines, key=lambda line: line.used_mono_s))

    def _drop(self, line: DuplexTransport) -> None:
        if line not in self._lines:
            return
        del self._lines[line]
        if line.key is not None and self._kept.get(line.key) is line:
            del self._kept[line.key]
        for session_id in line.sessions:
            self._by_session.pop(session_id, None)
        task = asyncio.create_task(line.close(), name=f"ends a line to {self.name}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _sweep(self) -> None:
        while self._lines:
            await asyncio.sleep(SWEEP_EVERY_S)
            now = self._clock()
            for line in list(self._lines):
                allowed_s = FORGOTTEN_S if line.sessions else self._bounds.idle_s
                if not line.busy and now - line.used_mono_s > allowed_s:
                    self._drop(line)
