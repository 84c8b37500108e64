"""Decides which addresses may be reached on behalf of callers.

`ipaddress` parses addresses. The table below is a copy of IANA's registries of special-purpose addresses, because the
classification in Python changed between its releases. An address that embeds others (NAT64, 6to4, Teredo, ISATAP) is
allowed only if they all are; a mapped address is treated as its IPv4 address.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# https://www.iana.org/assignments/iana-ipv4-special-registry, IPv4 multicast, and the part of
# .../iana-ipv6-special-registry that is inside _UNICAST
_SPECIAL: Final[tuple[Network, ...]] = tuple(
    ip_network(network)
    for network in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24",
        "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
        "2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20",
    )
)  # fmt: skip
_UNICAST: Final = ip_network("2000::/3")  # the rest of IPv6 is reserved, local or multicast
_NAT64: Final = ip_network("64:ff9b::/96")  # RFC 6052: how a network without IPv4 reaches IPv4
_ISATAP: Final = (0x0000_5EFE, 0x0200_5EFE)  # RFC 5214


@dataclass(frozen=True, slots=True)
class AddressRules:
    """`own` are networks that are not public but may be reached, `blocked` those that may never be reached."""

    own: Sequence[Network] = ()
    blocked: Sequence[Network] = ()

    def objection(self, text: str) -> str:
        """Returns why this address, or one that it embeds, may not be connected to, for the operator; "" if all may."""
        try:
            address = ip_address(text)
        except ValueError:
            return f"{text!r} is not an address"
        if isinstance(address, IPv6Address) and address.scope_id is not None:
            return f"{text} is an address of one wire of this machine"
        return next(filter(None, map(self._objection, _meant_by(address))), "")

    def _objection(self, address: Address) -> str:
        if _is_in(address, self.blocked):
            return f"callbacks.blocked holds {address}"
        if _is_in(address, self.own) or _is_public(address):
            return ""
        return f"{address} is not public, and callbacks.networks does not hold it"


def _meant_by(address: Address) -> Iterator[Address]:
    """Yields the address and those that it embeds. A mapped address yields only the IPv4 address."""
    if isinstance(address, IPv4Address):
        yield address
        return
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
        return
    yield address
    number = int(address)
    last = IPv4Address(number & 0xFFFF_FFFF)
    if address in _NAT64 or (number >> 32) & 0xFFFF_FFFF in _ISATAP:
        yield last
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo


def _is_public(address: Address) -> bool:
    if _is_in(address, _SPECIAL):
        return False
    if isinstance(address, IPv6Address):
        return address in _UNICAST or address in _NAT64
    return address.is_global and not address.is_multicast


def _is_in(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)  # False if the versions differ
