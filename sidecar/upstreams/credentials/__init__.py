"""Credentials that upstreams receive.

source.py           the interface: one header for one exchange; and the fixed header
token_cache.py      caches tokens that others issue: renewed in advance, fetched once for all that wait
token_endpoint.py   one request to a token endpoint, and its strictly checked response
token_exchange.py   a token for the sidecar (client credentials), a token for each caller (token exchange)
signed_tokens.py    a token that the sidecar signs, naming the chain
signer.py           the signing key and its public key set
passthrough.py      the caller's own token, if the operator configured that
from_settings.py    chooses one of these by the settings

The caller's token is on `Caller.token` for the duration of its request; only `token_exchange` and `passthrough` read
it.
"""

from sidecar.upstreams.credentials.from_settings import source_from
from sidecar.upstreams.credentials.signer import NO_SIGNER, TokenSigner, signer_from
from sidecar.upstreams.credentials.source import CredentialSource, Header, UpstreamCredentialValue, same, shown_within

__all__ = [
    "NO_SIGNER",
    "CredentialSource",
    "Header",
    "TokenSigner",
    "UpstreamCredentialValue",
    "same",
    "shown_within",
    "signer_from",
    "source_from",
]
