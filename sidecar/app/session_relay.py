"""Relays the requests of an MCP session to the worker that began it.

Open streams, programs and HTTP+SSE live in one process, and a client's connections may reach any worker. The first
character of a session's id is the worker's number, so that every worker finds the one that has the session. It forwards
the request over a socket in that worker's part of the data folder, and streams the answer back. The connection ends
with the answer. A worker that has ended receives no more requests; sessions in the store continue at any other.

Client certificates cannot be forwarded, so a connection with one is served by the worker that it reached.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import HttpVersion11, web

from sidecar.gateway.pipeline import Pipeline
from sidecar.gateway.routing import Entrance
from sidecar.http.server.listeners import GaveWay
from sidecar.http.server.repeated_head import ArrivedBody
from sidecar.http.server.request import HttpRequest
from sidecar.http.server.response import SilentResponse
from sidecar.http.tls import NOTHING
from sidecar.settings.sidecar_file import Settings
from sidecar.upstreams.mcp.sessions import worker_of

SOCKET: Final = "sessions.sock"
CONNECT_S: Final = 1.0
PIECE_BYTES: Final = 64 * 1024
_PEER, _ENTRANCE = b"sidecar-peer", b"sidecar-entrance"
_HOP: Final = frozenset({b"connection", b"keep-alive", b"content-length", b"transfer-encoding", b"expect"})
_OWN: Final = _HOP | {_PEER, _ENTRANCE}
_IN_QUERY: Final = re.compile(r"[?&]session_id=([A-Za-z0-9_\-]{43})\Z")


@dataclass(frozen=True, slots=True)
class SessionRelay:
    """The handler of this worker's listeners. `entrances` are the same in all workers, in the same order."""

    pipeline: Pipeline
    me: int
    sockets: Mapping[int, Path]
    entrances: Sequence[Entrance]

    @classmethod
    def of(cls, settings: Settings, pipeline: Pipeline, entrances: Sequence[Entrance]) -> SessionRelay | None:
        """Returns the relay of a worker; None for a process that serves alone."""
        sockets = {number: settings.own_of(number) / SOCKET for number in settings.worker_numbers}
        return cls(pipeline, settings.server.worker, sockets, entrances) if sockets else None

    async def handle(self, request: HttpRequest, number: int) -> web.StreamResponse:
        """Handles a request that came through entrance `number`, here or at the worker of its session."""
        worker = worker_of(_session_id_in(request))
        if worker == self.me or worker not in self.sockets or not _can_be_relayed(request):
            return await self.pipeline.handle(request, self.entrances[number])
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_unix_connection(str(self.sockets[worker]))
        except (OSError, TimeoutError):  # it has ended, or is being replaced
            return await self.pipeline.handle(request, self.entrances[number])
        return _RelayedResponse(request, number, reader, writer)

    async def handle_relayed(self, request: HttpRequest) -> web.StreamResponse:
        """Handles a request that another worker forwarded."""
        told = {name.lower(): value for name, value in request.raw_headers if name.lower() in (_PEER, _ENTRANCE)}
        number = told.get(_ENTRANCE, b"")
        if not number.isdigit() or int(number) >= len(self.entrances):
            return SilentResponse()
        request.remote = told.get(_PEER, b"").decode("ascii", "replace") or None
        return await self.pipeline.handle(request, self.entrances[int(number)])


class _RelayedResponse(web.StreamResponse):
    """The answer of another worker, passed on byte by byte."""

    def __init__(
        self, request: HttpRequest, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        super().__init__()
        self.force_close()
        self._asked, self._number, self._reader, self._writer = request, number, reader, writer

    async def prepare(self, request: web.BaseRequest) -> None:
        """Forwards the request, and sends its answer back. Raises ConnectionError if the caller has disconnected."""
        sending = asyncio.create_task(self._send_or_give_up())
        try:
            while piece := await self._reader.read(PIECE_BYTES):
                if request.transport is None or request.transport.is_closing():
                    raise ConnectionResetError("the caller is gone")
                request.transport.write(piece)
                await request.protocol._drain_helper()
        finally:
            sending.cancel()
            self._writer.close()
            with suppress(asyncio.CancelledError):
                await sending

    async def write_eof(self, data: bytes = b"") -> None:
        """Does nothing: the other worker has ended its answer."""

    async def _send_or_give_up(self) -> None:
        """Forwards the request. If its body breaks off, the other worker detects that the caller disconnected."""
        try:
            await self._send()
        except (OSError, TimeoutError, GaveWay, web.RequestPayloadError):
            self._writer.close()

    async def _send(self) -> None:
        request, writer = self._asked, self._writer
        lines = [b"%b %b HTTP/1.1" % (request.method.encode(), request.raw_path.encode("utf-8", "surrogateescape"))]
        lines += [b"%b: %b" % line for line in request.raw_headers if line[0].lower() not in _OWN]
        lines += [b"%b: %b" % (_PEER, (request.remote or "").encode()), b"%b: %d" % (_ENTRANCE, self._number)]
        lines += [b"Connection: close"]
        given = {name.lower(): value for name, value in request.raw_headers}
        is_chunked = b"transfer-encoding" in given
        if is_chunked:
            lines.append(b"Transfer-Encoding: chunked")
        elif isinstance(request.content, ArrivedBody):  # a repeated head has the length of its first request
            lines.append(b"Content-Length: %d" % len(request.content.data))
        elif b"content-length" in given:
            lines.append(b"Content-Length: " + given[b"content-length"])
        writer.write(b"\r\n".join(lines) + b"\r\n\r\n")
        while piece := await request.content.readany():
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
            await writer.drain()
        if is_chunked:
            writer.write(b"0\r\n\r\n")


def _session_id_in(request: HttpRequest) -> str:
    """The session's id, in its header or in the query of HTTP+SSE; "" for none."""
    for name, value in request.raw_headers:
        if name.lower() == b"mcp-session-id":
            return value.decode("ascii", "replace")
    found = _IN_QUERY.search(request.raw_path) if "session_id=" in request.raw_path else None
    return found[1] if found is not None else ""


def _can_be_relayed(request: HttpRequest) -> bool:
    return request.version >= HttpVersion11 and request.shown == NOTHING
