"""The signing key of the sidecar's tokens and its public key set.

The private key stays in its file and in memory; its public half and those of earlier keys form one JWKS. A key file
that other users can read is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from sidecar.http.signing_keys import SigningKey, generate, keep_private_key, private_key_from, public_jwk_from
from sidecar.settings.sidecar_file import Settings

MAX_PUBLISHED: Final = 16
_TYP: Final = "JWT"


@dataclass(frozen=True, slots=True)
class TokenSigner:
    """Signs tokens as `issuer`. Two signers with the same issuer and the same key are equal; without a key, none can
    sign.
    """

    issuer: str
    key: SigningKey | None = field(default=None, repr=False, compare=False)
    before: tuple[Mapping[str, Any], ...] = field(default=(), repr=False, compare=False)
    kid: str = field(default="", init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kid", "" if self.key is None else self.key.kid)

    def sign(self, claims: Mapping[str, Any]) -> str:
        """Sign the claims; returns a compact JWT."""
        if self.key is None:
            raise ValueError("there is a key wherever something is to be signed")
        return self.key.sign(claims, typ=_TYP)

    @property
    def key_set(self) -> bytes:
        """The JWKS (RFC 7517): public halves only, the current key first."""
        ours = () if self.key is None else (self.key.public_jwk,)
        by_kid = {key["kid"]: dict(key) for key in (*ours, *self.before)[:MAX_PUBLISHED]}
        return orjson.dumps({"keys": list(by_kid.values())})


NO_SIGNER: Final = TokenSigner("")


def signer_from(settings: Settings, issuer: str, *, make: bool) -> TokenSigner:
    """The signer of the settings, without a key if nothing is to be signed. A key that is missing in the data folder is
    created; without `make`, in memory only, for commands that only check. Raises SettingsError.
    """
    if not settings.signs:
        return TokenSigner(issuer)
    path = settings.signing_key_path
    if settings.signing.key_path is None and not path.exists():
        key = generate()
        if make:
            keep_private_key(path, key)
            key = private_key_from(path)
    else:
        key = private_key_from(path)
    return TokenSigner(
        issuer, key, tuple(public_jwk_from(path) for path in settings.previous_key_paths if path.exists())
    )
