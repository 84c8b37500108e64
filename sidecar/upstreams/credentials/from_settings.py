"""Builds upstream credentials from the settings."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path

from sidecar.http.client import DIRECT, Egress
from sidecar.http.signing_keys import private_key_from
from sidecar.settings.credentials import TokenClient, TokenExchange, UpstreamCredential
from sidecar.settings.secrets import read_secret
from sidecar.upstreams.credentials.signed_tokens import SignedSource, TokenSigner
from sidecar.upstreams.credentials.source import (
    NO_CREDENTIAL,
    CredentialSource,
    PassedToken,
    UpstreamCredentialValue,
    bearer,
)
from sidecar.upstreams.credentials.token_cache import TokenCache
from sidecar.upstreams.credentials.token_endpoint import ClientProof, TokenEndpoint
from sidecar.upstreams.credentials.token_exchange import ExchangedTokens, OwnGrant


def source_from(
    section: UpstreamCredential | None,
    url: str,
    signer: TokenSigner,
    *,
    egress: Egress = DIRECT,
    clock: Callable[[], float] = time.time,
    clock_mono: Callable[[], float] = time.monotonic,
    new_id: Callable[[], str] = secrets.token_urlsafe,
) -> CredentialSource:
    """Returns the credential source of the upstream at `url`, its secrets read. Raises SettingsError."""
    if section is None:
        return NO_CREDENTIAL
    if section.bearer_path is not None:
        return _bearer_in(section.bearer_path)
    if section.passthrough:
        return PassedToken(NO_CREDENTIAL if section.own_bearer_path is None else _bearer_in(section.own_bearer_path))
    if (signed := section.signed) is not None:
        audience, own = signed.audience or url, signed.own or signer.issuer
        return SignedSource(signer, audience, signed.ttl_s, signed.roles, own, clock=clock, new_id=new_id)
    client = section.client_credentials or section.token_exchange
    if client is not None:
        proof = _proof(client)
        secret = proof.secret or (proof.key.kid if proof.key is not None else "")
        endpoint = TokenEndpoint(client.token_url, proof, clock=clock, new_id=new_id, egress=egress)
        if not isinstance(client, TokenExchange):
            return OwnGrant(client, (secret, ""), endpoint, TokenCache(clock_mono))
        actor = "" if client.actor_token_path is None else read_secret(client.actor_token_path, "theirs")
        return ExchangedTokens(client, (secret, actor), endpoint, TokenCache(clock_mono))
    if section.header is None or section.value_path is None:
        raise ValueError("the settings promise a credential its header and value")
    return UpstreamCredentialValue(section.header, read_secret(section.value_path, "theirs"))


def _bearer_in(path: Path) -> UpstreamCredentialValue:
    return UpstreamCredentialValue(*bearer(read_secret(path, "theirs")))


def _proof(client: TokenClient) -> ClientProof:
    if client.key_path is not None:
        key = private_key_from(client.key_path)
        audience = client.assertion_audience or client.token_url
        return ClientProof(client.client_id, key=key, key_id=client.key_id or key.kid, audience=audience)
    if client.secret_path is None:
        raise ValueError("the settings promise a client its secret")
    return ClientProof(client.client_id, read_secret(client.secret_path, "theirs"), client.auth == "post")
