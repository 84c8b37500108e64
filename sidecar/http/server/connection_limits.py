"""Limits connections, and chooses those to close at a bound.

A seat is taken when a connection is accepted, so that unfinished handshakes count too. At a bound, a new connection
takes a seat of the peer with most seats, and at its peer's own bound one of this peer: of a connection that lingers
(answered, while the rest of its request is discarded), otherwise in the order of `Activity`, the oldest first. A peer
never loses a seat to a peer that has more, and a connection that is being answered never loses its own. Lingering
connections have a bound of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from ipaddress import IPv6Address
from typing import Final, Protocol

LOCAL: Final = ""
"""The peer of a Unix socket: all of its callers are bounded together."""

MAX_LINGERING: Final = 64
_SUBNET_BITS = 64  # an IPv6 customer has 2^64 addresses


class Activity(IntEnum):
    """The state of a connection, in the order in which connections are closed."""

    SILENT = 1
    """It has sent no request yet."""
    IDLE = 2
    """No request is in progress."""
    WAITS = 3
    """Its request has been waiting for its body for a while."""
    BUSY = 4
    """It is receiving a request or sending an answer, and is not closed."""


class SeatedConnection(Protocol):
    @property
    def activity(self) -> Activity: ...

    def dismiss(self) -> None:
        """Closes the connection now; a pending read of a body fails first."""


@dataclass(slots=True, eq=False)
class Seat:
    """The place of one connection. `guest` is its protocol, once it has one; `for_probes`: for health probes."""

    limits: ConnectionLimits
    peer: str
    for_probes: bool = False
    guest: SeatedConnection | None = None
    handshake: asyncio.Task[None] | None = None

    @property
    def activity(self) -> Activity:
        return Activity.SILENT if self.guest is None else self.guest.activity

    def dismiss(self) -> None:
        """Closes the connection, and frees its place."""
        self.limits.leave(self)
        if self.handshake is not None:
            self.handshake.cancel()
        if self.guest is not None:
            self.guest.dismiss()


@dataclass(slots=True)
class ConnectionLimits:
    """The seats of one listener. `max_per_peer` 0 means no bound for a peer. `turned_away` counts connections without a
    seat, `given_up` those that lost theirs. `lingering` are the connections that were answered before their request had
    arrived completely, the oldest first."""

    max_seats: int
    max_per_peer: int = 0
    turned_away: int = 0
    given_up: int = 0
    lingering: dict[Seat, None] = field(default_factory=dict)
    _taken: int = 0
    _peers: dict[str, dict[Seat, None]] = field(default_factory=dict)

    def __len__(self) -> int:
        return self._taken

    @property
    def are_taken(self) -> bool:
        return self._taken >= self.max_seats

    def take(self, seat: Seat) -> bool:
        """Takes a place for a new connection, for which another connection may be dismissed. Returns False if there is
        none."""
        own = len(self._peers.get(seat.peer, ()))
        if self.max_per_peer and own >= self.max_per_peer:
            has_room = self._dismiss_one((seat.peer,))
        else:
            has_room = not self.are_taken or self._dismiss_one(self._largest(own))
        if not has_room:
            self.turned_away += 1
            return False
        self._peers.setdefault(seat.peer, {})[seat] = None
        self._taken += 1
        return True

    def leave(self, seat: Seat) -> None:
        """Frees the connection's place, if it still has one."""
        seats = self._peers.get(seat.peer, {})
        self.lingering.pop(seat, None)
        if seat in seats:
            del seats[seat]
            self._taken -= 1
            if not seats:
                del self._peers[seat.peer]

    @property
    def max_lingering(self) -> int:
        return max(1, min(MAX_LINGERING, self.max_seats // 8))

    def linger(self, seat: Seat) -> None:
        """Marks a connection as lingering. Beyond the bound, the oldest lingering one is dismissed."""
        if seat in self._peers.get(seat.peer, {}):
            self.lingering[seat] = None
            if len(self.lingering) > self.max_lingering:
                self._dismiss(next(iter(self.lingering)))

    def stay(self, seat: Seat) -> None:
        """Marks a connection as ready for its next request, after the rest of the last one has arrived."""
        self.lingering.pop(seat, None)

    def make_room(self, most: int) -> int:
        """Dismisses up to `most` inactive connections; returns how many."""
        return sum(self._dismiss_one(self._largest(0)) for _ in range(most))

    def _largest(self, least: int) -> Iterable[str]:
        peers = [peer for peer, seats in self._peers.items() if len(seats) >= least]
        return sorted(peers, key=lambda peer: -len(self._peers[peer]))

    def _dismiss_one(self, peers: Iterable[str]) -> bool:
        for peer in peers:
            if seat := self._spare(peer):
                self._dismiss(seat)
                return True
        return False

    def _spare(self, peer: str) -> Seat | None:
        found, least = next((seat for seat in self.lingering if seat.peer == peer), None), Activity.BUSY
        if found is None:
            for seat in self._peers[peer]:  # in order of arrival
                if (activity := seat.activity) < least:
                    found, least = seat, activity
                if least is Activity.SILENT:
                    break
        return found

    def _dismiss(self, seat: Seat) -> None:
        self.given_up += 1
        seat.dismiss()


def peer_of(host: str) -> str:
    """Returns the peer of an address; an IPv6 subnet counts as one peer. Raises ValueError for an invalid IPv6
    address."""
    if ":" not in host:
        return host
    address = IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return f"{IPv6Address(int(address) >> _SUBNET_BITS << _SUBNET_BITS)}/{_SUBNET_BITS}"
