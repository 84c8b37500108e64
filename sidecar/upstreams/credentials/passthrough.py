"""Passes a caller's token through to an upstream.

Only if the operator configured `passthrough`: a server that receives a token can use it at another server (MCP's
specification forbids passthrough to a proxy that does not declare it). The token is the one that was verified on this
very request.
"""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.upstreams.credentials.source import CredentialSource, Header, UpstreamCredentialValue, bearer
from sidecar.upstreams.credentials.token_exchange import token_of
from sidecar.vocabulary import Caller


@dataclass(frozen=True, slots=True)
class PassedToken:
    """A `CredentialSource`. `own` is sent with the sidecar's own requests; None sends nothing."""

    own: UpstreamCredentialValue | None = None

    @property
    def fixed(self) -> Header | None:
        return None

    async def header(self, caller: Caller | None, deadline_s: float) -> Header | None:
        """See `CredentialSource.header`. Raises Unsent(UNAUTHENTICATED) for a caller without a token."""
        if caller is None:
            return None if self.own is None else self.own.fixed
        return bearer(token_of(caller))

    def refused(self, caller: Caller | None, header: Header) -> None:
        """Does nothing: only the caller can send another token."""

    def shows_the_same_as(self, other: CredentialSource) -> bool:
        return self == other

    async def close(self) -> None:
        pass
