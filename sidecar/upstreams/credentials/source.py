"""The interface of an upstream credential, and the credentials that need no request to another party.

The caller's token is on `Caller.token` for the duration of its request; only `PassedToken` and `token_exchange` read
it. It is passed through only if the operator configured that: the server could use it elsewhere, so MCP forbids this.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import ClassVar, Final

from sidecar.errors import Reason, Unsent
from sidecar.vocabulary import Caller

Header = tuple[str, str]


class CredentialSource:
    """Gives the credential header of an exchange; this base class gives none. Equal sources have read equal secrets."""

    __slots__ = ()
    varies: ClassVar[bool] = False
    """Whether the header depends on the caller or the time. Otherwise it is `fixed`; `header` need not be called."""

    @property
    def fixed(self) -> Header | None:
        return None

    async def header(self, caller: Caller | None, deadline_s: float) -> Header | None:
        """Returns the header for a caller's exchange; `caller` None is the sidecar. None if no header is sent. Raises
        Unsent."""
        return self.fixed

    def at_hand(self, caller: Caller | None) -> Header | None:
        """Returns the header if it is available without a request to another party; None if only `header` may find one.
        There is no other header, so `refused` is not called for it."""
        return None

    async def header_within(self, caller: Caller | None, deadline_s: float) -> tuple[Header | None, float]:
        """Returns the header to send, and the remaining seconds. Raises Unsent."""
        if not self.varies:
            return self.fixed, deadline_s
        loop = asyncio.get_running_loop()
        began = loop.time()
        header = await self.header(caller, deadline_s)
        return header, deadline_s - (loop.time() - began)

    def refused(self, caller: Caller | None, header: Header) -> None:
        """The upstream rejected the header (HTTP 401): the next exchange should use another, if there is one."""

    async def close(self) -> None:
        """Closes connections. Calling it twice is allowed."""


NO_CREDENTIAL: Final = CredentialSource()


@dataclass(frozen=True, slots=True)
class UpstreamCredentialValue(CredentialSource):
    """One header that never changes. Its value is never printed."""

    name: str
    value: str = field(repr=False)

    @property
    def fixed(self) -> Header:
        return self.name, self.value


@dataclass(frozen=True, slots=True)
class PassedToken(CredentialSource):
    """The token that was verified on this request. `own` is sent with the sidecar's own requests."""

    own: CredentialSource = NO_CREDENTIAL
    varies: ClassVar[bool] = True

    async def header(self, caller: Caller | None, deadline_s: float) -> Header | None:
        """See `CredentialSource.header`. Raises Unsent(UNAUTHENTICATED) for a caller without a token."""
        return self.own.fixed if caller is None else bearer(token_of(caller))


def bearer(token: str) -> Header:
    return "Authorization", f"Bearer {token}"


def token_of(caller: Caller) -> str:
    """Returns the caller's own token. Raises Unsent(UNAUTHENTICATED)."""
    if not caller.token:
        raise Unsent(Reason.UNAUTHENTICATED, "this server accepts only an access token of the caller's own")
    return caller.token
