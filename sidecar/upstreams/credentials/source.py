"""The interface of an upstream credential."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final, Protocol

from sidecar.vocabulary import Caller

Header = tuple[str, str]
AUTHORIZATION: Final = "Authorization"


class CredentialSource(Protocol):
    """Gives the header that one exchange shows."""

    @property
    def fixed(self) -> Header | None:
        """The header, where it is the same for everybody and for ever: then nobody need ask for it."""

    async def header(self, caller: Caller | None, deadline_s: float) -> Header | None:
        """What to show on a caller's behalf; None as caller is the sidecar itself, and None as answer is nothing at
        all. Raises Unsent where there is none to be had; never retried."""

    def refused(self, caller: Caller | None, header: Header) -> None:
        """The upstream did not take it (HTTP 401): the next exchange had better show another."""

    def shows_the_same_as(self, other: CredentialSource) -> bool:
        """Whether both are configured alike, the content of their files included."""

    async def close(self) -> None:
        """Let go of connections. Twice is no fault."""


@dataclass(frozen=True, slots=True)
class UpstreamCredentialValue:
    """One header that is always the same. Never printed."""

    name: str
    value: str = field(repr=False)

    @property
    def fixed(self) -> Header | None:
        return self.name, self.value

    async def header(self, caller: Caller | None, deadline_s: float) -> Header | None:
        return self.fixed

    def refused(self, caller: Caller | None, header: Header) -> None:
        """As `CredentialSource.refused`: there is no other."""

    def shows_the_same_as(self, other: CredentialSource) -> bool:
        return self == other

    async def close(self) -> None:
        pass


def bearer(token: str) -> Header:
    """RFC 6750."""
    return AUTHORIZATION, f"Bearer {token}"


def same(one: CredentialSource | None, other: CredentialSource | None) -> bool:
    """Whether both show the same, nothing included."""
    if one is None or other is None:
        return one is other
    return one.shows_the_same_as(other)


async def shown_within(
    source: CredentialSource, caller: Caller | None, deadline_s: float
) -> tuple[Header | None, float]:
    """What to show, and what is left of the time. Raises Unsent."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    header = await source.header(caller, deadline_s)
    return header, deadline_s - (loop.time() - began)
