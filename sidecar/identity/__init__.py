"""Authenticates callers and builds their chains.

    credentials.py    collects the credentials of a request
    jwt.py            verifies tokens                     jwks.py               their issuers' signing keys
    issuers.py        trusted issuers                     names.py              the grammar of principals
    api_keys.py       verifies API keys                   key_files.py          creates and stores them
    agent_tokens.py   tokens of one agent's addresses     from_settings.py      builds all of it from the settings
    certificates.py   maps certificates to principals     certificate_names.py  reads their names
    xfcc.py           certificates forwarded by a proxy   spiffe.py             maps SPIFFE IDs to NHIs
    key_proofs.py     proofs that a token's bearer has the key to which it is bound
    chain_builder.py  joins credentials into one chain
    authenticator.py  runs the steps in order: `Identity.identify(Presented, Audience) -> Caller`

A credential is never forwarded, logged or echoed. An invalid credential is answered with 401, never treated as
anonymous.
"""

from sidecar.identity.api_keys import ApiKeys
from sidecar.identity.authenticator import Identity, check_caller, digest_of
from sidecar.identity.credentials import UNIX, Audience, Presented
from sidecar.identity.issuers import KindRule, TrustedIssuer, with_preset
from sidecar.identity.jwks import KeyState

__all__ = [
    "UNIX", "ApiKeys", "Audience", "Identity", "KeyState", "KindRule", "Presented",
    "TrustedIssuer", "check_caller", "digest_of", "with_preset",
]  # fmt: skip
