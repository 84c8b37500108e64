"""Credentials that upstreams receive.

source.py     one header for one exchange: what any kind looks like, and the one that is always the same
token_cache.py     tokens that others gave us: kept, renewed, fetched once however many wait
token_endpoint.py   one question to a token endpoint, and its answer, believed only where it is plain
token_exchange.py    a token for us (client credentials), a token for each caller (token exchange)
signed_tokens.py     a token that we sign, naming the chain
signer.py     the key for that, and what of it the world may see
passthrough.py     the caller's own token, where the operator says so
from_settings.py which of these it is

The caller's token is on `Caller.token` while its request lasts, and only `granted` and `passed` read it.
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
