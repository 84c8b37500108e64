"""With which key do we sign, and what of it may the world see?

The private key stays in its file and in memory; its public half, and those of the keys before it, are one JWKS. A key
that others may read is refused.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
from cryptography.exceptions import UnsupportedAlgorithm

from sidecar.errors import SettingsError, fault_in
from sidecar.settings.root import Settings
from sidecar.settings.secrets import keep_once
from sidecar.signing_keys import SigningKey, generate, read_public_jwk, read_signing_key

MAX_PUBLISHED: Final = 16
_TYP: Final = "JWT"


@dataclass(frozen=True, slots=True)
class Signer:
    """Whoever signs as `issuer`. Two with the same issuer and the same key are the same; None signs nothing."""

    issuer: str
    key: SigningKey | None = field(default=None, repr=False, compare=False)
    before: tuple[Mapping[str, Any], ...] = field(default=(), repr=False, compare=False)
    kid: str = field(default="", init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kid", "" if self.key is None else self.key.kid)

    def sign(self, claims: Mapping[str, Any]) -> str:
        """A compact JWT."""
        if self.key is None:
            raise ValueError("there is a key wherever something is to be signed")
        return self.key.sign(claims, typ=_TYP)

    @property
    def key_set(self) -> bytes:
        """The JWKS (RFC 7517): public halves only, ours first."""
        ours = () if self.key is None else (self.key.public_jwk,)
        by_kid = {key["kid"]: dict(key) for key in (*ours, *self.before)[:MAX_PUBLISHED]}
        return orjson.dumps({"keys": list(by_kid.values())})


NO_SIGNER: Final = Signer("")


def signer_from(settings: Settings, issuer: str, *, make: bool) -> Signer:
    """The signer as configured, without a key where nothing is signed. Where a key in the data folder is not there yet
    it is made; without `make`, in memory only, for those who check. Raises SettingsError."""
    if not settings.signs:
        return Signer(issuer)
    path = settings.signing_key_path
    if settings.signing.key_path is None and not path.exists():
        key = generate()
        if make:
            _keep(path, key)
            key = private_key_from(path)
    else:
        key = private_key_from(path)
    return Signer(issuer, key, tuple(_public(path) for path in settings.previous_key_paths if path.exists()))


def _public(path: Path) -> Mapping[str, Any]:
    with _told(path):
        return read_public_jwk(path)


def private_key_from(path: Path) -> SigningKey:
    """A private key out of a PEM file that nobody else may read. Raises SettingsError."""
    with _told(path):
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise _unusable(path, "is not a regular file")
        if mode & 0o037:  # the group may read: that is how secrets are mounted
            raise _unusable(path, f"can be read by others (mode {stat.S_IMODE(mode):04o})", f"chmod 600 {path}")
        return read_signing_key(path)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """A file that is no key is told to the operator."""
    try:
        yield
    except OSError as error:
        raise _unusable(path, f"cannot be read: {(error.strerror or 'unreadable').lower()}") from None
    except (ValueError, UnsupportedAlgorithm):
        hint = "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256"
        raise _unusable(path, "is no PEM key that we sign with", hint) from None


def _keep(path: Path, key: SigningKey) -> None:
    try:
        keep_once(path, key.pem().encode())
    except OSError as error:
        raise _unusable(path, f"cannot be made: {(error.strerror or 'unwritable').lower()}") from None


def _unusable(path: Path, message: str, hint: str = "") -> SettingsError:
    return SettingsError([fault_in(path, f"the key {message}", code="S119", hint=hint)])
