"""Limits connections, and chooses which ones give way.

A place is taken when a connection is accepted, before any byte is read, so that unfinished handshakes count too. At a
bound, a new connection takes the place of a connection of the peer with most places, in this order:

    lingers      it was answered, and the rest of its request is being discarded
    silent       it has sent no request yet
    idle         no request is in progress
    gives way    its request has been waiting for its body for a while

Among several, the oldest is chosen. A peer never loses a place to a peer that has more places, and a connection that is
being answered never loses its place. Lingering connections have a bound of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from typing import Final, Protocol

LOCAL: Final = ""
"""The peer of a Unix socket: all of its callers are bounded together."""

MAX_LINGERING: Final = 64
_SUBNET_BITS = 64  # an IPv6 customer has 2^64 addresses


class SeatedConnection(Protocol):
    """A connection that holds a place."""

    @property
    def is_busy(self) -> bool:
        """Whether it is receiving a request or sending an answer."""
        ...

    @property
    def is_silent(self) -> bool:
        """Whether it has sent no request yet."""
        ...

    @property
    def gives_way(self) -> bool:
        """Whether its request has waited for its body so long that it may lose its place."""
        ...

    def dismiss(self) -> None:
        """Closes the connection now; a pending read of a body fails first."""
        ...


@dataclass(slots=True)
class ConnectionLimits:
    """The places of one listener. `max_per_peer` 0 means no bound for a peer."""

    max_seats: int
    max_per_peer: int = 0
    turned_away: int = 0
    given_up: int = 0
    _taken: int = 0
    _peers: dict[str, dict[SeatedConnection, None]] = field(default_factory=dict)
    _lingering: dict[SeatedConnection, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return self._taken

    @property
    def are_taken(self) -> bool:
        """Whether all places are taken."""
        return self._taken >= self.max_seats

    def take(self, peer: str, guest: SeatedConnection) -> bool:
        """Takes a place for a new connection; returns False if there is none. The connection that gives way is
        dismissed."""
        if not self._has_room(peer):
            self.turned_away += 1
            return False
        self._peers.setdefault(peer, {})[guest] = None
        self._taken += 1
        return True

    def leave(self, peer: str, guest: SeatedConnection) -> None:
        """Frees the connection's place, if it still has one."""
        seats = self._peers.get(peer, {})
        self._lingering.pop(guest, None)
        if guest in seats:
            del seats[guest]
            self._taken -= 1
            if not seats:
                del self._peers[peer]

    @property
    def max_lingering(self) -> int:
        """The bound on lingering connections."""
        return max(1, min(MAX_LINGERING, self.max_seats // 8))

    def linger(self, peer: str, guest: SeatedConnection) -> None:
        """Marks a connection as lingering. Beyond the bound, the oldest lingering one is dismissed."""
        if guest not in self._peers.get(peer, {}):
            return
        self._lingering[guest] = peer
        if len(self._lingering) > self.max_lingering:
            first, its_peer = next(iter(self._lingering.items()))
            self._dismiss(its_peer, first)

    def stay(self, guest: SeatedConnection) -> None:
        """Marks a connection as ready for its next request, after the rest of the last one has arrived."""
        self._lingering.pop(guest, None)

    def make_room(self, most: int) -> int:
        """Dismisses up to `most` inactive connections; returns how many."""
        return sum(self._dismiss_one(self._largest(0)) for _ in range(most))

    def _has_room(self, peer: str) -> bool:
        own = len(self._peers.get(peer, ()))
        if self.max_per_peer and own >= self.max_per_peer:
            return self._dismiss_one(iter((peer,)))
        return self._taken < self.max_seats or self._dismiss_one(self._largest(own))

    def _largest(self, least: int) -> Iterator[str]:
        """Yields the peers with most places, and at least `least`, in descending order."""
        peers = [peer for peer, seats in self._peers.items() if len(seats) >= least]
        return iter(sorted(peers, key=lambda peer: -len(self._peers[peer])))

    def _dismiss_one(self, peers: Iterator[str]) -> bool:
        for peer in peers:
            if guest := self._spare(peer):
                self._dismiss(peer, guest)
                return True
        return False

    def _dismiss(self, peer: str, guest: SeatedConnection) -> None:
        self.given_up += 1
        self.leave(peer, guest)
        guest.dismiss()

    def _spare(self, peer: str) -> SeatedConnection | None:
        """Returns the connection that gives way first, if any can."""
        for guest, its_peer in self._lingering.items():
            if its_peer == peer:
                return guest
        idle = waiting = None
        for guest in self._peers[peer]:  # in order of arrival
            if guest.is_silent:
                return guest
            if idle is None and not guest.is_busy:
                idle = guest
            if waiting is None and guest.gives_way:
                waiting = guest
        return idle or waiting


def peer_of(host: str) -> str:
    """Returns the peer of an address; an IPv6 subnet counts as one peer."""
    if ":" not in host:
        return host
    address = IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return f"{IPv6Address(int(address) >> _SUBNET_BITS << _SUBNET_BITS)}/{_SUBNET_BITS}"
