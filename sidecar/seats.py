"""More want to be connected than there is room for. Who gets a place, and who gives one up?

A place is taken when a connection is accepted, before a word is spoken on it, so that a handshake that never ends
counts too. At a bound the newcomer gets the place of somebody who does nothing: of the peer that has most places, and
of its connections one that has asked nothing yet, or else the one that came first. Nobody loses a place to a peer that
has more of them already, and nobody who is being answered loses one at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from typing import Final, Protocol

LOCAL: Final = ""
"""The peer of a Unix socket: whoever may open it, and they are bounded together only."""

_SUBNET_BITS = 64  # who has an IPv6 address has 2^64 of them


class Guest(Protocol):
    """Whoever has a place."""

    @property
    def is_busy(self) -> bool:
        """Whether something is being received from it, or answered to it."""
        ...

    @property
    def is_silent(self) -> bool:
        """Whether it never asked anything."""
        ...

    def dismiss(self) -> None:
        """Close, now."""
        ...


@dataclass(slots=True)
class Seats:
    """The places of one listener. `max_per_peer` 0 is as many as there are."""

    max_seats: int
    max_per_peer: int = 0
    turned_away: int = 0
    given_up: int = 0
    _taken: int = 0
    _peers: dict[str, dict[Guest, None]] = field(default_factory=dict)

    def __len__(self) -> int:
        return self._taken

    @property
    def are_taken(self) -> bool:
        """Whether all are."""
        return self._taken >= self.max_seats

    def take(self, peer: str, guest: Guest) -> bool:
        """A place for the newcomer, or False. Who must leave for it is dismissed."""
        if not self._has_room(peer):
            self.turned_away += 1
            return False
        self._peers.setdefault(peer, {})[guest] = None
        self._taken += 1
        return True

    def leave(self, peer: str, guest: Guest) -> None:
        """Its place is free, if it had one still."""
        seats = self._peers.get(peer, {})
        if guest in seats:
            del seats[guest]
            self._taken -= 1
            if not seats:
                del self._peers[peer]

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
            if guest := _spare(self._peers[peer]):
                self.given_up += 1
                self.leave(peer, guest)
                guest.dismiss()
                return True
        return False


def _spare(seats: dict[Guest, None]) -> Guest | None:
    """The one that can best be spared, if any can."""
    first = None
    for guest in seats:  # in the order in which they came
        if guest.is_silent:
            return guest
        if first is None and not guest.is_busy:
            first = guest
    return first


def peer_of(host: str) -> str:
    """Who is behind an address: with IPv6, everybody in its subnet is one."""
    if ":" not in host:
        return host
    address = IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return f"{IPv6Address(int(address) >> _SUBNET_BITS << _SUBNET_BITS)}/{_SUBNET_BITS}"
