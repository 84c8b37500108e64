"""The interface of an upstream credential."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final, Protocol

from sidecar.vocabulary import Caller

Header = tuple[str, str]
AUTHORIZATION: Final = "Authorization"


class CredentialSource(Protocol):
    """Gives the credential header of an exchange."""

    @property
    def fixed(self) -> Header | None:
        """The header, if it is the same for all callers and never changes; then `header` need not be called."""

    async def header(self, caller: Caller | None, deadline_s: float) -> Header | None:
        """The header for a caller's exchange. `caller` is None for the sidecar itself; returns None if no header is
        sent. Raises Unsent if no credential can be obtained; never retried.
        """

    def refused(self, caller: Caller | None, header: Header) -> None:
        """The upstream rejected the header (HTTP 401): the next exchange should use another."""

    def shows_the_same_as(self, other: CredentialSource) -> bool:
        """Whether both are configured alike, the content of their files included."""

    async def close(self) -> None:
        """Close connections. Calling it twice is allowed."""


@dataclass(frozen=True, slots=True)
class UpstreamCredentialValue:
    """One header that never changes. Its value is never printed."""

    name: str
    value: str = field(repr=False)

    @property
    def fixed(self) -> Header | None:
        return self.name, self.value

    async def header(self, caller: Caller | None, deadline_s: float) -> Header | None:
        return self.fixed

    def refused(self, caller: Caller | None, header: Header) -> None:
        """Does nothing: there is no other header."""

    def shows_the_same_as(self, other: CredentialSource) -> bool:
        return self == other

    async def close(self) -> None:
        pass


def bearer(token: str) -> Header:
    """The Authorization header of a token (RFC 6750)."""
    return AUTHORIZATION, f"Bearer {token}"


def same(one: CredentialSource | None, other: CredentialSource | None) -> bool:
    """Whether both send the same; two Nones do."""
    if one is None or other is None:
        return one is other
    return one.shows_the_same_as(other)


async def shown_within(
    source: CredentialSource, caller: Caller | None, deadline_s: float
) -> tuple[Header | None, float]:
    """The header to send, and the time that is left. Raises Unsent."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    header = await source.header(caller, deadline_s)
    return header, deadline_s - (loop.time() - began)
