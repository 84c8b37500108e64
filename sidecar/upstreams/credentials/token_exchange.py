"""Obtains tokens by client credentials and token exchange."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from sidecar.errors import CredentialFault, Reason, Unsent
from sidecar.upstreams.credentials.source import CredentialSource, Header, bearer
from sidecar.upstreams.credentials.token_cache import GrantedToken, TokenCache
from sidecar.upstreams.credentials.token_endpoint import DeniedError, Form, TokenEndpoint
from sidecar.vocabulary import Caller

_GRANT: Final = "client_credentials"
_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_TYPES: Final = "urn:ietf:params:oauth:token-type:"
_OURS: Final = b""
# Error codes about the token to be exchanged (RFC 8693 2.2.2); all others are about the sidecar.
_OF_THE_CALLER: Final = frozenset({"invalid_request", "invalid_grant", "invalid_target", "access_denied"})


@dataclass(frozen=True, slots=True)
class WantedToken:
    """The parameters of a token request and its secrets: equal values obtain the same token."""

    definition: object
    secrets: tuple[str, ...] = field(repr=False)
    form: Form = ()
    subject_token_type: str = ""
    actor_token: str = field(default="", repr=False)
    keep_s: float = 0.0


class OwnGrant:
    """A `CredentialSource`: one token for all callers (OAuth client credentials)."""

    fixed: Header | None = None

    def __init__(self, endpoint: TokenEndpoint, tokens: TokenCache, wanted: WantedToken) -> None:
        self.wanted = wanted
        self._endpoint = endpoint
        self._tokens = tokens

    async def header(self, caller: Caller | None, deadline_s: float) -> Header | None:
        return bearer(await self._tokens.get(_OURS, self._ask, deadline_s))

    def refused(self, caller: Caller | None, header: Header) -> None:
        self._tokens.drop(_OURS, header[1].removeprefix("Bearer "))

    def shows_the_same_as(self, other: CredentialSource) -> bool:
        return type(other) is type(self) and isinstance(other, OwnGrant) and self.wanted == other.wanted

    async def close(self) -> None:
        await self._tokens.close()
        await self._endpoint.close()

    async def _ask(self) -> GrantedToken:
        try:
            return await self._endpoint.ask([("grant_type", _GRANT), *self.wanted.form])
        except DeniedError as denied:
            raise _refuses_us(denied) from None


class ExchangedTokens(OwnGrant):
    """A `CredentialSource`: a token exchanged for each caller's token (RFC 8693). The sidecar's own requests have a
    token of their own, which the same client is granted at the same endpoint.
    """

    async def header(self, caller: Caller | None, deadline_s: float) -> Header | None:
        """See `CredentialSource.header`. Raises Unsent(UNAUTHENTICATED) for a caller without a token."""
        if caller is None:
            return await super().header(caller, deadline_s)
        token = token_of(caller)
        return bearer(await self._tokens.get(_digest(token), lambda: self._exchange(token), deadline_s))

    def refused(self, caller: Caller | None, header: Header) -> None:
        if caller is None:
            super().refused(caller, header)
        else:
            self._tokens.drop(_digest(caller.token), header[1].removeprefix("Bearer "))

    async def _exchange(self, token: str) -> GrantedToken:
        wanted = self.wanted
        form = [
            ("grant_type", _EXCHANGE),
            ("subject_token", token),
            ("subject_token_type", _TYPES + wanted.subject_token_type),
            ("requested_token_type", _TYPES + "access_token"),
            *wanted.form,
        ]
        if wanted.actor_token:
            form += [("actor_token", wanted.actor_token), ("actor_token_type", _TYPES + "access_token")]
        try:
            granted = await self._endpoint.ask(form)
        except DeniedError as denied:
            if denied.code not in _OF_THE_CALLER:
                raise _refuses_us(denied) from None
            detail = f"the token cannot be exchanged for one of this server ({denied.code})"
            challenge = f'error="invalid_token", error_description="{detail}"'
            fault = CredentialFault.NOT_EXCHANGED
            raise Unsent(Reason.BAD_CREDENTIAL, detail, challenge=challenge, credential_fault=fault) from None
        return GrantedToken(granted.value, min(granted.life_s, wanted.keep_s))


def token_of(caller: Caller) -> str:
    """The caller's own token. Raises Unsent(UNAUTHENTICATED)."""
    if not caller.token:
        raise Unsent(Reason.UNAUTHENTICATED, "this server is called with an access token of the caller's own only")
    return caller.token


def _digest(token: str) -> bytes:
    return sha256(token.encode()).digest()


def _refuses_us(denied: DeniedError) -> Unsent:
    return Unsent(Reason.UPSTREAM_FAILED, f"its token endpoint refuses us ({denied.code})")
