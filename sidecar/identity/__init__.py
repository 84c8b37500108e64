"""Authenticates callers and builds their chains.

    credentials.py   what one request bears
    jwt.py           is this token genuine, and alive       jwks.py      which keys its issuer signs with
    issuers.py       whose tokens are believed              names.py     what a principal may be called
    api_keys.py      whose key is this                      key_files.py how keys are made and kept
    certificates.py  whose certificate is this              certificate_names.py what it says
    token_binding.py       to which key is a token bound          key_proofs.py    has its bearer that key
    xfcc.py          what a proxy tells of one              spiffe.py    which NHI is a SPIFFE ID
    chain_builder.py        credentials as one chain (CONTRACT 1.1)
    authenticator.py      all of it, in order: `Identity.identify(Presented, Audience) -> Caller`

A credential is never forwarded, logged or echoed. What is presented and bad is 401, never anonymous.
"""

from sidecar.identity.api_keys import ApiKeys, load_api_keys
from sidecar.identity.authenticator import Identity, check_caller
from sidecar.identity.credentials import NOTHING_PRESENTED, UNIX, Audience, Presented
from sidecar.identity.issuers import ALGORITHMS, KindRule, RoleClaim, TrustedIssuer, with_preset
from sidecar.identity.jwks import KeyState
from sidecar.identity.jwt import TokenBounds

__all__ = [
    "ALGORITHMS",
    "NOTHING_PRESENTED",
    "UNIX",
    "ApiKeys",
    "Audience",
    "Identity",
    "KeyState",
    "KindRule",
    "Presented",
    "RoleClaim",
    "TokenBounds",
    "TrustedIssuer",
    "check_caller",
    "load_api_keys",
    "with_preset",
]
