"""Makes and reads signing keys, and signs tokens.

Used for the sidecar's own tokens, and for development. The private key is one PEM file, the public one a JWKS as
`jwks_path` reads it. The key id is the RFC 7638 thumbprint, which can be computed from either file.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import (
    RSAPrivateKey,
    RSAPublicKey,
    generate_private_key as generate_rsa_key,
)
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from sidecar.errors import SettingsError, fault_in
from sidecar.protocols import base64url
from sidecar.settings.reading import read_bounded
from sidecar.settings.secrets import MAX_BYTES, keep_once

ALGORITHMS = ("ES256", "RS256", "EdDSA")
_NO_KEY = "not an RSA, P-256 or Ed25519 key"
_THUMBPRINT = {"RSA": ("e", "kty", "n"), "EC": ("crv", "kty", "x", "y"), "OKP": ("crv", "kty", "x")}  # RFC 7638 3.2

PrivateKey = RSAPrivateKey | EllipticCurvePrivateKey | Ed25519PrivateKey
PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey


@dataclass(frozen=True, slots=True)
class SigningKey:
    """One private key, its algorithm, and its public half as a JWK."""

    private: PrivateKey = field(repr=False)
    algorithm: str
    public_jwk: Mapping[str, Any]

    @property
    def kid(self) -> str:
        return str(self.public_jwk["kid"])

    def jwks(self) -> str:
        return json.dumps({"keys": [dict(self.public_jwk)]}, indent=2) + "\n"

    def pem(self) -> str:
        """Returns the private key, unencrypted (PKCS #8)."""
        return self.private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode("ascii")

    def sign(self, claims: Mapping[str, Any], typ: str = "at+jwt", kid: str = "") -> str:
        """Returns a signed compact JWT. `kid` is the key's id for the verifier, by default its thumbprint."""
        headers = {"kid": kid or self.kid, "typ": typ}
        return jwt.encode(dict(claims), self.private, algorithm=self.algorithm, headers=headers)

    def sign_bytes(self, data: bytes) -> bytes:
        """Returns the bare signature of some bytes, in the form of a JWS with this algorithm."""
        signed: bytes = jwt.get_algorithm_by_name(self.algorithm).sign(data, self.private)
        return signed


def generate(algorithm: str = "ES256") -> SigningKey:
    """Generates a key for one of ALGORITHMS: on P-256, of 2,048 bits (RSA), or Ed25519."""
    if algorithm == "RS256":
        return _signing_key(generate_rsa_key(public_exponent=65537, key_size=2048))
    return _signing_key(Ed25519PrivateKey.generate() if algorithm == "EdDSA" else generate_private_key(SECP256R1()))


def read_signing_key(path: Path) -> SigningKey:
    """Reads a private key from a PEM file. Raises OSError, or ValueError for any other file, key or an encrypted
    one."""
    try:
        private = serialization.load_pem_private_key(read_bounded(path, MAX_BYTES), password=None)
    except TypeError as error:
        raise ValueError("the key is encrypted") from error
    except UnsupportedAlgorithm as error:
        raise ValueError(_NO_KEY) from error
    if not isinstance(private, PrivateKey):
        raise ValueError(_NO_KEY)
    return _signing_key(private)


def read_public_jwk(path: Path) -> Mapping[str, Any]:
    """Returns the public half of a PEM file with either half. Raises OSError, or ValueError for another file."""
    pem = read_bounded(path, MAX_BYTES)
    if b"PRIVATE KEY" in pem:
        return read_signing_key(path).public_jwk
    try:
        public = serialization.load_pem_public_key(pem)
    except UnsupportedAlgorithm as error:
        raise ValueError(_NO_KEY) from error
    if not isinstance(public, PublicKey):
        raise ValueError(_NO_KEY)
    return _jwk(public)


def thumbprint(public: PublicKey) -> str:
    return str(_jwk(public)["kid"])


def public_jwk_from(path: Path) -> Mapping[str, Any]:
    """Reads a public key like `read_public_jwk`. Raises SettingsError."""
    with _told(path):
        return read_public_jwk(path)


def private_key_from(path: Path) -> SigningKey:
    """Reads a private key from a PEM file. Raises SettingsError, also if other users can read the file."""
    with _told(path):
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise _unusable(path, "is not a regular file")
        if mode & 0o037:  # the group may read, because secrets are mounted this way
            raise _unusable(path, f"is open to others (mode {stat.S_IMODE(mode):04o})", f"chmod 600 {path}")
        return read_signing_key(path)


def keep_private_key(path: Path, key: SigningKey) -> None:
    """Writes the key to its own file, unless the file exists. Raises SettingsError."""
    try:
        keep_once(path, key.pem().encode())
    except OSError as error:
        raise _unusable(path, f"cannot be made: {(error.strerror or 'unwritable').lower()}") from None


def claims_for(
    issuer: str,
    subject: str,
    audiences: tuple[str, ...],
    *,
    now: float,
    ttl_s: float,
    actors: tuple[str, ...] = (),
    scopes: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Returns the claims of a token for development: `act` (RFC 8693) names the `actors`, in the chain's order, the
    last outermost."""
    claims: dict[str, Any] = {
        "iss": issuer,
        "sub": subject,
        "aud": audiences[0] if len(audiences) == 1 else list(audiences),
        "iat": int(now),
        "exp": int(now + ttl_s),
    }
    if scopes:
        claims["scope"] = " ".join(scopes)
    act: dict[str, Any] = {}
    for actor in actors:
        act = {"sub": actor, "act": act} if act else {"sub": actor}
    return {**claims, "act": act} if act else claims


def _signing_key(private: PrivateKey) -> SigningKey:
    jwk = _jwk(private.public_key())
    return SigningKey(private, str(jwk["alg"]), jwk)


def _jwk(public: PublicKey) -> Mapping[str, Any]:
    if isinstance(public, RSAPublicKey):
        algorithm, jwk = "RS256", RSAAlgorithm.to_jwk(public, as_dict=True)
    elif isinstance(public, Ed25519PublicKey):
        algorithm, jwk = "EdDSA", OKPAlgorithm.to_jwk(public, as_dict=True)
    elif isinstance(public.curve, SECP256R1):
        algorithm, jwk = "ES256", ECAlgorithm.to_jwk(public, as_dict=True)
    else:
        raise ValueError(_NO_KEY)
    needed = {name: jwk[name] for name in _THUMBPRINT[jwk["kty"]]}
    canonical = json.dumps(needed, sort_keys=True, separators=(",", ":")).encode()
    return {**needed, "use": "sig", "alg": algorithm, "kid": base64url.encode(sha256(canonical).digest())}


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Converts errors about a key file into SettingsError."""
    try:
        yield
    except OSError as error:
        raise _unusable(path, f"cannot be read: {(error.strerror or 'unreadable').lower()}") from None
    except ValueError:
        hint = "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256"
        raise _unusable(path, "is not a PEM key of a supported kind", hint) from None


def _unusable(path: Path, message: str, hint: str = "") -> SettingsError:
    return SettingsError([fault_in(path, f"the key {message}", code="S119", hint=hint)])
