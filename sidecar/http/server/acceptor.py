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

from sidecar.http.server.connection_limits import LOCAL, ConnectionLimits, SeatedConnection, peer_of

log = logging.getLogger("sidecar.http.server.acceptor")

BACKLOG = 512
# Accepted in one iteration of the loop: other work must run in between, and each system call lets a running thread keep
# the lock for up to a millisecond.
AT_ONCE = 4
FULL_PAUSE_S = 0.001  # when each new connection replaces another: a flood of them must not use the whole loop
PAUSE_S = 0.1  # without descriptors the socket stays ready, and polling it would block the loop
ROOM_FOR = 8
TELL_EVERY_S = 10.0


class AcceptState:
    """One accepted connection and its place. `guest` is the protocol that serves it, from the first byte to the last. A
    place with `is_for_probes` is reserved for health probes."""

    __slots__ = ("_seats", "guest", "handshake", "is_for_probes", "peer")

    def __init__(self, seats: ConnectionLimits, peer: str, *, is_for_probes: bool = False) -> None:
        self._seats, self.peer, self.is_for_probes = seats, peer, is_for_probes
        self.guest: SeatedConnection | None = None
        self.handshake: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        return self.guest is not None and self.guest.is_busy

    @property
    def is_silent(self) -> bool:
        return self.guest is None or self.guest.is_silent

    @property
    def gives_way(self) -> bool:
        return self.guest is not None and self.guest.gives_way

    def linger(self) -> None:
        """Marks the connection as answered, with the rest of its request being discarded."""
        self._seats.linger(self.peer, self)

    def stay(self) -> None:
        """Marks the connection as ready for its next request."""
        self._seats.stay(self)

    def dismiss(self) -> None:
        """Closes the connection now; a pending read of a body fails first."""
        if self.handshake is not None:
            self.handshake.cancel()
        if self.guest is not None:
            self.guest.dismiss()

    def leave(self) -> None:
        """Frees the place of a closed connection, without leaving reference cycles."""
        self.guest = None
        self._seats.leave(self.peer, self)


@dataclass(slots=True)
class Acceptor:
    """Accepts the connections of one socket. A `speaker` sets itself as the state's guest when it is connected, and
    reports when the connection is lost. `handshake_s` is the deadline of TLS, if any. `probe_seats` are the places for
    connections that find no other, if this socket serves probes."""

    sock: socket.socket
    seats: ConnectionLimits
    speaker: Callable[[AcceptState], asyncio.BaseProtocol]
    tls: ssl.SSLContext | None = None
    handshake_s: float = 10.0
    probe_seats: ConnectionLimits | None = None
    _opening: set[asyncio.Task[None]] = field(default_factory=set)
    _pause: asyncio.TimerHandle | None = None
    _told: dict[str, float] = field(default_factory=dict)

    def open(self) -> None:
        self.sock.listen(BACKLOG)
        self.sock.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Stops accepting, and abandons connections that are being opened."""
        if self._pause is not None:
            self._pause.cancel()
        asyncio.get_running_loop().remove_reader(self.sock)
        self.sock.close()
        for task in tuple(self._opening):
            task.cancel()

    def _resume(self) -> None:
        self._pause = None
        asyncio.get_running_loop().add_reader(self.sock, self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                sock, address = self.sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:  # the client left while it waited
                continue
            except OSError as error:  # no descriptor or memory: the connection stays in the backlog until there is one
                self._tell("connections have to wait: the system gives us none", level=logging.ERROR, error=str(error))
                self.seats.make_room(ROOM_FOR)
                self._rest(PAUSE_S)
                return
            self._let_in(sock, peer_of(address[0]) if self.sock.family != socket.AF_UNIX else LOCAL)
        if self.seats.are_taken:
            self._rest(FULL_PAUSE_S)

    def _let_in(self, sock: socket.socket, peer: str) -> None:
        opening = self._seated(peer)
        if opening is None:
            sock.close()
            self._tell("connections are turned away: all places are in use", turned_away=self.seats.turned_away)
            return
        task = asyncio.get_running_loop().create_task(self._connect(sock, opening))
        opening.handshake = task
        self._opening.add(task)
        task.add_done_callback(partial(self._opened, sock, opening))

    def _seated(self, peer: str) -> AcceptState | None:
        opening = AcceptState(self.seats, peer)
        if self.seats.take(peer, opening):
            return opening
        if self.probe_seats is None:
            return None
        opening = AcceptState(self.probe_seats, peer, is_for_probes=True)
        return opening if self.probe_seats.take(peer, opening) else None

    async def _connect(self, sock: socket.socket, opening: AcceptState) -> None:
        sock.setblocking(False)
        with suppress(OSError, TimeoutError):  # ssl.SSLError is an OSError: no TLS with this client
            await asyncio.get_running_loop().connect_accepted_socket(
                partial(self.speaker, opening),
                sock,
                ssl=self.tls,
                ssl_handshake_timeout=self.handshake_s if self.tls is not None else None,
            )

    def _opened(self, sock: socket.socket, opening: AcceptState, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        opening.handshake = None
        if opening.guest is None:  # a task that is cancelled before its first step closes nothing by itself
            sock.close()
            opening.leave()

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
