"""Obtains tokens by client credentials and token exchange."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import ClassVar, Final

from sidecar.errors import CredentialFault, Reason, Unsent
from sidecar.settings.credentials import TokenClient, TokenExchange
from sidecar.upstreams.credentials.source import CredentialSource, Header, bearer, token_of
from sidecar.upstreams.credentials.token_cache import GrantedToken, TokenCache
from sidecar.upstreams.credentials.token_endpoint import DeniedError, Form, TokenEndpoint
from sidecar.vocabulary import Caller

_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_TYPES: Final = "urn:ietf:params:oauth:token-type:"
# Error codes about the token to be exchanged (RFC 8693 2.2.2); all others are about the sidecar.
_OF_THE_CALLER: Final = frozenset({"invalid_request", "invalid_grant", "invalid_target", "access_denied"})


@dataclass(frozen=True, slots=True)
class OwnGrant(CredentialSource):
    """One token for all callers (OAuth client credentials). `secrets`: the client's secret, or the id of its key, and
    the actor's token."""

    client: TokenClient
    secrets: tuple[str, str] = field(repr=False)
    endpoint: TokenEndpoint = field(compare=False)
    tokens: TokenCache = field(compare=False)
    varies: ClassVar[bool] = True

    async def header(self, caller: Caller | None, deadline_s: float) -> Header | None:
        return bearer(await self.tokens.get(_key_of(None), self._ask, deadline_s))

    def refused(self, caller: Caller | None, header: Header) -> None:
        self.tokens.drop(_key_of(None), header[1].removeprefix("Bearer "))

    async def close(self) -> None:
        await self.tokens.close()
        await self.endpoint.close()

    async def _ask(self) -> GrantedToken:
        try:
            return await self.endpoint.ask([("grant_type", "client_credentials"), *self._wanted])
        except DeniedError as denied:
            raise _refuses_us(denied) from None

    @property
    def _wanted(self) -> Form:
        client = self.client
        named = (("scope", " ".join(client.scope)), ("audience", client.audience), ("resource", client.resource))
        return [(name, value) for name, value in named if value]


@dataclass(frozen=True, slots=True)
class ExchangedTokens(OwnGrant):
    """A token exchanged for each caller's token (RFC 8693). The sidecar's own requests use a token like that of
    `OwnGrant`."""

    client: TokenExchange

    async def header(self, caller: Caller | None, deadline_s: float) -> Header | None:
        """See `CredentialSource.header`. Raises Unsent(UNAUTHENTICATED) for a caller without a token."""
        fetch = self._ask if caller is None else partial(self._exchange, token_of(caller))
        return bearer(await self.tokens.get(_key_of(caller), fetch, deadline_s))

    def refused(self, caller: Caller | None, header: Header) -> None:
        self.tokens.drop(_key_of(caller), header[1].removeprefix("Bearer "))

    async def _exchange(self, token: str) -> GrantedToken:
        form = [
            ("grant_type", _EXCHANGE),
            ("subject_token", token),
            ("subject_token_type", _TYPES + self.client.subject_token_type),
            ("requested_token_type", _TYPES + "access_token"),
            *self._wanted,
        ]
        if actor := self.secrets[1]:
            form += [("actor_token", actor), ("actor_token_type", _TYPES + "access_token")]
        try:
            granted = await self.endpoint.ask(form)
        except DeniedError as denied:
            if str(denied) not in _OF_THE_CALLER:
                raise _refuses_us(denied) from None
            detail = f"the token cannot be exchanged for one of this server ({denied})"
            challenge = f'error="invalid_token", error_description="{detail}"'
            fault = CredentialFault.NOT_EXCHANGED
            raise Unsent(Reason.BAD_CREDENTIAL, detail, challenge=challenge, credential_fault=fault) from None
        return GrantedToken(granted.value, min(granted.life_s, self.client.keep_s))


def _key_of(caller: Caller | None) -> bytes:
    """Returns the cache's key, which contains no caller's token. The sidecar's own token has an empty key."""
    return b"" if caller is None else sha256(caller.token.encode()).digest()


def _refuses_us(denied: DeniedError) -> Unsent:
    return Unsent(Reason.UPSTREAM_FAILED, f"its token endpoint refuses the sidecar ({denied})")
