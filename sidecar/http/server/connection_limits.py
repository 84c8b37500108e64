"""Limits connections, and chooses which ones give way.

A place is taken when a connection is accepted, before a word is spoken on it, so that a handshake that never ends
counts too. At a bound the newcomer gets the place of a connection of the peer that has most places, in this order:

    lingers      it was answered, and the rest of its request is read only to be thrown away
    silent       it has asked nothing yet
    idle         nothing is under way on it
    gives way    its request has been waiting for its body for a while

Of several the one that came first. Nobody loses a place to a peer that has more of them already, and nobody who is
being answered loses one at all. Those that linger have a bound of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from typing import Final, Protocol

LOCAL: Final = ""
"""The peer of a Unix socket: whoever may open it, and they are bounded together only."""

MAX_LINGERING: Final = 64
_SUBNET_BITS = 64  # who has an IPv6 address has 2^64 of them


class SeatedConnection(Protocol):
    """Whoever has a place."""

    @property
    def is_busy(self) -> bool:
        """Whether something is being received from it, or answered to it."""
        ...

    @property
    def is_silent(self) -> bool:
        """Whether it never asked anything."""
        ...

    @property
    def gives_way(self) -> bool:
        """Whether its request has waited for its body so long that the place may be needed more elsewhere."""
        ...

    def dismiss(self) -> None:
        """Close, now; who waits for a body is told first."""
        ...


@dataclass(slots=True)
class ConnectionLimits:
    """The places of one listener. `max_per_peer` 0 is as many as there are."""

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
        """Whether all are."""
        return self._taken >= self.max_seats

    def take(self, peer: str, guest: SeatedConnection) -> bool:
        """A place for the newcomer, or False. Who must leave for it is dismissed."""
        if not self._has_room(peer):
            self.turned_away += 1
            return False
        self._peers.setdefault(peer, {})[guest] = None
        self._taken += 1
        return True

    def leave(self, peer: str, guest: SeatedConnection) -> None:
        """Its place is free, if it had one still."""
        seats = self._peers.get(peer, {})
        self._lingering.pop(guest, None)
        if guest in seats:
            del seats[guest]
            self._taken -= 1
            if not seats:
                del self._peers[peer]

    @property
    def max_lingering(self) -> int:
        """How many may linger at once."""
        return max(1, min(MAX_LINGERING, self.max_seats // 8))

    def linger(self, peer: str, guest: SeatedConnection) -> None:
        """The guest was answered, and the rest of its request is to be thrown away. One too many costs the first."""
        if guest not in self._peers.get(peer, {}):
            return
        self._lingering[guest] = peer
        if len(self._lingering) > self.max_lingering:
            first, its_peer = next(iter(self._lingering.items()))
            self._dismiss(its_peer, first)

    def stay(self, guest: SeatedConnection) -> None:
        """The rest came as a whole: the guest may ask again."""
        self._lingering.pop(guest, None)

    def make_room(self, most: int) -> int:
        """Dismiss up to so many who do nothing; how many they were."""
        return sum(self._dismiss_one(self._largest(0)) for _ in range(most))

    def _has_room(self, peer: str) -> bool:
        own = len(self._peers.get(peer, ()))
        if self.max_per_peer and own >= self.max_per_peer:
            return self._dismiss_one(iter((peer,)))
        return self._taken < self.max_seats or self._dismiss_one(self._largest(own))

    def _largest(self, least: int) -> Iterator[str]:
        """The peers that have most places, and at least so many, one after the other."""
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
        """The one that can best be spared, if any can."""
        for guest, its_peer in self._lingering.items():
            if its_peer == peer:
                return guest
        idle = waiting = None
        for guest in self._peers[peer]:  # in the order in which they came
            if guest.is_silent:
                return guest
            if idle is None and not guest.is_busy:
                idle = guest
            if waiting is None and guest.gives_way:
                waiting = guest
        return idle or waiting


def peer_of(host: str) -> str:
    """Who is behind an address: with IPv6, everybody in its subnet is one."""
    if ":" not in host:
        return host
    address = IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return f"{IPv6Address(int(address) >> _SUBNET_BITS << _SUBNET_BITS)}/{_SUBNET_BITS}"
