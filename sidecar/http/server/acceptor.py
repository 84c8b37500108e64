"""Accepts connections within the bounds of descriptors, places and handshakes.

Replaces the loop's own acceptor, which counts a connection only after its handshake and, when descriptors run out,
closes every new connection (uvloop) or stops accepting for a second (asyncio). Here idle connections are closed to make
room, and waiting ones are accepted a moment later.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from sidecar.http.server.connection_limits import LOCAL, ConnectionLimits, Seat, peer_of

log = logging.getLogger("sidecar.http.server.acceptor")

BACKLOG = 512
# Accepted in one iteration of the loop: other work must run in between, and at each system call, a running thread can
# hold the lock for up to a millisecond.
AT_ONCE = 4
FULL_PAUSE_S = 0.001  # when each new connection replaces another: a flood of them must not use the whole loop
PAUSE_S = 0.1  # without descriptors the socket stays ready, and the loop would do nothing else
ROOM_FOR = 8
TELL_EVERY_S = 10.0


@dataclass(slots=True)
class Acceptor:
    """Accepts the connections of one socket. A `speaker` sets itself as the seat's guest on connection, and leaves when
    the connection is lost. `handshake_s` is the deadline of TLS, if any. `probe_seats` are the places for connections
    that find no other, if this socket serves probes."""

    sock: socket.socket
    seats: ConnectionLimits
    speaker: Callable[[Seat], asyncio.BaseProtocol]
    tls: ssl.SSLContext | None = None
    handshake_s: float = 10.0
    probe_seats: ConnectionLimits | None = None
    at_once: int = AT_ONCE
    _opening: set[asyncio.Task[None]] = field(default_factory=set)
    _pause: asyncio.TimerHandle | None = None
    _told: dict[str, float] = field(default_factory=dict)

    def open(self) -> None:
        self.sock.listen(BACKLOG)
        self.sock.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Stops accepting, and abandons connections that are being opened. Closing again has no effect."""
        if self._pause is not None:
            self._pause.cancel()
        if self.sock.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self.sock)
            self.sock.close()
        for task in tuple(self._opening):
            task.cancel()

    def _resume(self) -> None:
        self._pause = None
        asyncio.get_running_loop().add_reader(self.sock, self._accept)

    def _accept(self) -> None:
        for _ in range(self.at_once):
            try:
                sock, address = self.sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:  # the client left while it waited
                continue
            except OSError as error:  # no descriptor or memory: the connection stays in the backlog until there is one
                self._tell("connections have to wait: the system accepts none", level=logging.ERROR, error=str(error))
                self.seats.make_room(ROOM_FOR)
                self._rest(PAUSE_S)
                return
            self._let_in(sock, peer_of(address[0]) if self.sock.family != socket.AF_UNIX else LOCAL)
        if self.seats.are_taken:
            self._rest(FULL_PAUSE_S)

    def _let_in(self, sock: socket.socket, peer: str) -> None:
        seat = Seat(self.seats, peer)
        if not self.seats.take(seat):
            seat = Seat(self.probe_seats or self.seats, peer, for_probes=True)
            if self.probe_seats is None or not self.probe_seats.take(seat):
                sock.close()
                self._tell("connections are turned away: all places are in use", turned_away=self.seats.turned_away)
                return
        task = seat.handshake = asyncio.get_running_loop().create_task(self._connect(sock, seat))
        self._opening.add(task)
        task.add_done_callback(partial(self._opened, sock, seat))

    async def _connect(self, sock: socket.socket, seat: Seat) -> None:
        sock.setblocking(False)
        with suppress(OSError, TimeoutError):  # ssl.SSLError is an OSError: no TLS with this client
            await asyncio.get_running_loop().connect_accepted_socket(
                partial(self.speaker, seat),
                sock,
                ssl=self.tls,
                ssl_handshake_timeout=self.handshake_s if self.tls is not None else None,
            )

    def _opened(self, sock: socket.socket, seat: Seat, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        seat.handshake = None
        if seat.guest is None:  # a task that is cancelled before its first step closes nothing
            sock.close()
            seat.limits.leave(seat)

    def _rest(self, for_s: float) -> None:
        """Pauses accepting; new connections stay in the backlog."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.sock)
        self._pause = loop.call_later(for_s, self._resume)

    def _tell(self, event: str, *, level: int = logging.WARNING, **facts: object) -> None:
        """Logs an event that may occur a thousand times a second, at a limited rate."""
        now_s = time.monotonic()
        if now_s >= self._told.get(event, 0.0):
            self._told[event] = now_s + TELL_EVERY_S
            log.log(level, event, extra=facts)
