"""Builds upstream credentials from the settings."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from sidecar.http.signing_keys import private_key_from
from sidecar.settings.credentials import ClientCredentials, TokenClient, TokenExchange, UpstreamCredential
from sidecar.settings.secrets import read_secret
from sidecar.upstreams.credentials.passthrough import PassedToken
from sidecar.upstreams.credentials.signed_tokens import SignedSource
from sidecar.upstreams.credentials.signer import TokenSigner
from sidecar.upstreams.credentials.source import CredentialSource, UpstreamCredentialValue, bearer
from sidecar.upstreams.credentials.token_cache import TokenCache
from sidecar.upstreams.credentials.token_endpoint import ClientProof, TokenEndpoint
from sidecar.upstreams.credentials.token_exchange import ExchangedTokens, OwnGrant, WantedToken


def source_from(
    section: UpstreamCredential | None,
    url: str,
    signer: TokenSigner,
    *,
    clock: Callable[[], float] = time.time,
    clock_mono: Callable[[], float] = time.monotonic,
    new_id: Callable[[], str] = secrets.token_urlsafe,
) -> CredentialSource | None:
    """The credential source of the upstream at `url`, its secrets read; None if it has none. Raises SettingsError."""
    if section is None:
        return None
    if section.bearer_path is not None:
        return UpstreamCredentialValue(*bearer(read_secret(section.bearer_path, "theirs")))
    if section.passthrough:
        path = section.own_bearer_path
        return PassedToken(None if path is None else UpstreamCredentialValue(*bearer(read_secret(path, "theirs"))))
    if section.signed is not None:
        signed = section.signed
        return SignedSource(
            signer,
            signed.audience or url,
            signed.ttl_s,
            clock=clock,
            new_id=new_id,
            roles=signed.roles,
            own=signed.own or "",
        )
    for client in (section.client_credentials, section.token_exchange):
        if client is not None:
            return _granted(client, clock, clock_mono, new_id)
    if section.header is None or section.value_path is None:
        raise ValueError("the settings promise a credential its header and value")
    return UpstreamCredentialValue(section.header, read_secret(section.value_path, "theirs"))


def _granted(
    client: ClientCredentials | TokenExchange,
    clock: Callable[[], float],
    clock_mono: Callable[[], float],
    new_id: Callable[[], str],
) -> OwnGrant:
    proof = _proof(client)
    endpoint = TokenEndpoint(client.token_url, proof, clock=clock, new_id=new_id)
    named = (("scope", " ".join(client.scope)), ("audience", client.audience), ("resource", client.resource))
    form = tuple((name, value) for name, value in named if value)
    secret = proof.secret or (proof.key.kid if proof.key is not None else "")
    if not isinstance(client, TokenExchange):
        return OwnGrant(endpoint, TokenCache(clock_mono), WantedToken(client, (secret,), form))
    actor = "" if client.actor_token_path is None else read_secret(client.actor_token_path, "theirs")
    wanted = WantedToken(client, (secret,), form, client.subject_token_type, actor, client.keep_s)
    return ExchangedTokens(endpoint, TokenCache(clock_mono), wanted)


def _proof(client: TokenClient) -> ClientProof:
    if client.key_path is not None:
        key = private_key_from(client.key_path)
        audience = client.assertion_audience or client.token_url
        return ClientProof(client.client_id, key=key, key_id=client.key_id or key.kid, audience=audience)
    if client.secret_path is None:
        raise ValueError("the settings promise a client its secret")
    return ClientProof(client.client_id, read_secret(client.secret_path, "theirs"), client.auth == "post")
