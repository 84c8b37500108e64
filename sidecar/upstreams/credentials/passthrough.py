"""Passes a caller's token through to an upstream.

Where the operator wrote `passthrough`, and nowhere else: what one server is told it could tell to another (MCP's
specification forbids it of a proxy that does not say so). It is the token that was verified on this very request.
"""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.upstreams.credentials.source import CredentialSource, Header, UpstreamCredentialValue, bearer
from sidecar.upstreams.credentials.token_exchange import token_of
from sidecar.vocabulary import Caller


@dataclass(frozen=True, slots=True)
class PassedToken:
    """A `CredentialSource`. `own` is shown for what the sidecar asks by itself, None is nothing."""

    own: UpstreamCredentialValue | None = None

    @property
    def fixed(self) -> Header | None:
        return None

    async def header(self, caller: Caller | None, deadline_s: float) -> Header | None:
        """As `CredentialSource.header`. Raises Unsent(UNAUTHENTICATED) for a caller who showed no token."""
        if caller is None:
            return None if self.own is None else self.own.fixed
        return bearer(token_of(caller))

    def refused(self, caller: Caller | None, header: Header) -> None:
        """As `CredentialSource.refused`: the caller has to bring another."""

    def shows_the_same_as(self, other: CredentialSource) -> bool:
        return self == other

    async def close(self) -> None:
        pass
