"""When does a caller's own token go on to an upstream?

Where the operator wrote `passthrough`, and nowhere else: what one server is told it could tell to another (MCP's
specification forbids it of a proxy that does not say so). It is the token that was verified on this very request.
"""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.upstreams.credentials.granted import token_of
from sidecar.upstreams.credentials.source import Credential, CredentialSource, Header, bearer
from sidecar.vocabulary import Caller


@dataclass(frozen=True, slots=True)
class Passed:
    """A `CredentialSource`. `own` is shown for what the sidecar asks by itself, None is nothing."""

    own: Credential | None = None

    @property
    def fixed(self) -> Header | None:
        """As `CredentialSource.fixed`."""
        return None

    async def header(self, caller: Caller | None, deadline_s: float) -> Header | None:
        """As `CredentialSource.header`. Raises Unsent(UNAUTHENTICATED) for a caller who showed no token."""
        if caller is None:
            return None if self.own is None else self.own.fixed
        return bearer(token_of(caller))

    def refused(self, caller: Caller | None, header: Header) -> None:
        """As `CredentialSource.refused`: the caller has to bring another."""

    def shows_the_same_as(self, other: CredentialSource) -> bool:
        """As `CredentialSource.shows_the_same_as`."""
        return self == other

    async def close(self) -> None:
        """As `CredentialSource.close`."""
