"""Limits the connections of the gRPC server, which accepts without a bound of its own.

grpc's listener has no hook before a connection is accepted or after it is closed. The kernel lists the descriptors and
peers of this process's connections, which are inspected twice a second while there may be too many or descriptors are
short. Surplus connections without a running call are closed, those of the peer with most connections first.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sidecar.http.server.connection_limits import peer_of
from sidecar.http.server.fd_limits import MOST

log = logging.getLogger("sidecar.guests")

LOOK_EVERY_S: Final = 0.5
TELL_EVERY_S: Final = 10.0
KEPT_FREE: Final = 32  # descriptors for files, reloads and health checks
_DESCRIPTORS: Final = Path("/dev/fd")

Peer = tuple[str, int]


@dataclass(slots=True)
class GrpcConnections:
    """The connections of one port, which is known once it is open. `max_per_peer` 0 means no bound; `calls` counts the
    running calls."""

    max_connections: int
    max_per_peer: int = 0
    port: int = 0
    _busy: Counter[Peer] = field(default_factory=Counter)
    calls: int = 0

    @contextmanager
    def answering(self, peer: Peer) -> Iterator[None]:
        self._busy[peer] += 1
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1
            self._busy[peer] -= 1
            if not self._busy[peer]:
                del self._busy[peer]

    async def run(self) -> None:
        loop, gone, told_s = asyncio.get_running_loop(), 0, float("-inf")
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            in_use = len(_descriptors())
            short = KEPT_FREE - (_limit() - in_use)
            if short > 0 or in_use > min(self.max_connections, self.max_per_peer or self.max_connections):
                gone += await asyncio.to_thread(self.look, short)
            if gone and loop.time() >= told_s + TELL_EVERY_S:
                log.warning("idle connections of gRPC were hung up on: too many", extra={"count": gone})
                gone, told_s = 0, loop.time()

    def look(self, short: int = 0) -> int:
        """Closes surplus connections without a running call, `short` ones if that many descriptors are missing. Returns
        how many it closed."""
        found = ((descriptor, _peer_at(descriptor, self.port)) for descriptor in _descriptors())
        there = {descriptor: peer for descriptor, peer in found if peer is not None}
        leaves = self.too_many(list(there.values()), short)
        return sum(_hang_up(descriptor, self.port, peer) for descriptor, peer in there.items() if peer in leaves)

    def too_many(self, there: list[Peer], short: int = 0) -> set[Peer]:
        """Returns the peers of the connections to close, of those that are `there`."""
        of: dict[str, list[Peer]] = {}
        for peer in there:
            of.setdefault(peer_of(peer[0]), []).append(peer)
        excess, leaves = max(len(there) - self.max_connections, short), set[Peer]()
        for own in sorted(of.values(), key=len, reverse=True):
            idle = [peer for peer in own if peer not in self._busy]
            most = max(excess, len(own) - self.max_per_peer if self.max_per_peer else 0)
            leaves.update(idle[: max(0, most)])
            excess -= min(len(idle), max(0, most))
        return leaves


def _limit() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST if soft == resource.RLIM_INFINITY else soft


def _descriptors() -> Sequence[int]:
    try:
        return [int(each.name) for each in _DESCRIPTORS.iterdir()]
    except OSError:  # no descriptor is left for the inspection
        return range(_limit())


def _peer_at(descriptor: int, port: int) -> Peer | None:
    with suppress(OSError):
        sock = socket.socket(fileno=descriptor)
        try:
            if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.getsockname()[1] == port:
                host, peer_port = sock.getpeername()[:2]
                return host.removeprefix("::ffff:"), peer_port  # the form in which grpc writes it
        finally:
            sock.detach()  # grpc owns the descriptor
    return None


def _hang_up(descriptor: int, port: int, peer: Peer) -> bool:
    """Shuts the connection down, unless the descriptor belongs to another one by now. grpc then closes the
    descriptor."""
    if _peer_at(descriptor, port) != peer:
        return False
    with suppress(OSError):
        sock = socket.socket(fileno=descriptor)
        try:
            sock.shutdown(socket.SHUT_RDWR)
        finally:
            sock.detach()
        return True
    return False
