"""What do we show to an upstream, so that it knows who calls?

source.py     one header for one exchange: what any kind looks like, and the one that is always the same
tokens.py     tokens that others gave us: kept, renewed, fetched once however many wait
endpoint.py   one question to a token endpoint, and its answer, believed only where it is plain
granted.py    a token for us (client credentials), a token for each caller (token exchange)
signed.py     a token that we sign, naming the chain
signer.py     the key for that, and what of it the world may see
passed.py     the caller's own token, where the operator says so
configured.py which of these it is

The caller's token is on `Caller.token` while its request lasts, and only `granted` and `passed` read it.
"""

from sidecar.upstreams.credentials.configured import source_from
from sidecar.upstreams.credentials.signer import NO_SIGNER, Signer, signer_from
from sidecar.upstreams.credentials.source import Credential, CredentialSource, Header, same, shown_within

__all__ = [
    "NO_SIGNER",
    "Credential",
    "CredentialSource",
    "Header",
    "Signer",
    "same",
    "shown_within",
    "signer_from",
    "source_from",
]
