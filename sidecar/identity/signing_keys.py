"""How are development keys and tokens made?

For commands and demos: real issuers keep their own keys. The private key is one PEM file, the public one a JWKS as
`jwks_path` reads it; the key id is the RFC 7638 thumbprint, so that whoever has the one can name the other.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as generate_rsa_key
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ALGORITHMS = ("ES256", "RS256", "EdDSA")
_THUMBPRINT = {"RSA": ("e", "kty", "n"), "EC": ("crv", "kty", "x", "y"), "OKP": ("crv", "kty", "x")}  # RFC 7638 3.2

PrivateKey = RSAPrivateKey | EllipticCurvePrivateKey | Ed25519PrivateKey


@dataclass(frozen=True, slots=True)
class SigningKey:
    """One private key, the algorithm it signs with, and its public half as a JWK."""

    private: PrivateKey
    algorithm: str
    public_jwk: Mapping[str, Any]

    @property
    def kid(self) -> str:
        return str(self.public_jwk["kid"])

    def jwks(self) -> str:
        """The public key set, as a file."""
        return json.dumps({"keys": [dict(self.public_jwk)]}, indent=2) + "\n"

    def pem(self) -> str:
        """The private key, unencrypted (PKCS #8)."""
        return self.private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode("ascii")

    def sign(self, claims: Mapping[str, Any], typ: str = "at+jwt") -> str:
        """A compact JWT."""
        return jwt.encode(dict(claims), self.private, algorithm=self.algorithm, headers={"kid": self.kid, "typ": typ})


def generate(algorithm: str = "ES256") -> SigningKey:
    """A new key for one of ALGORITHMS."""
    if algorithm == "RS256":
        return _signing_key(generate_rsa_key(public_exponent=65537, key_size=2048))
    return _signing_key(Ed25519PrivateKey.generate() if algorithm == "EdDSA" else generate_private_key(SECP256R1()))


def read_signing_key(path: Path) -> SigningKey:
    """The key of a PEM file. Raises OSError, or ValueError where it is not such a key."""
    try:
        private = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except TypeError as error:
        raise ValueError("the key is encrypted") from error
    if not isinstance(private, RSAPrivateKey | EllipticCurvePrivateKey | Ed25519PrivateKey):
        raise ValueError("not an RSA, P-256 or Ed25519 key")
    if isinstance(private, EllipticCurvePrivateKey) and not isinstance(private.curve, SECP256R1):
        raise ValueError("not an RSA, P-256 or Ed25519 key")
    return _signing_key(private)


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
    """Claims of an access token (RFC 9068). `actors` go in the order of the chain; the last is the outermost `act`."""
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
    if isinstance(private, RSAPrivateKey):
        algorithm, jwk = "RS256", RSAAlgorithm.to_jwk(private.public_key())
    elif isinstance(private, EllipticCurvePrivateKey):
        algorithm, jwk = "ES256", ECAlgorithm.to_jwk(private.public_key())
    else:
        algorithm, jwk = "EdDSA", OKPAlgorithm.to_jwk(private.public_key())
    members = json.loads(jwk)
    needed = {name: members[name] for name in _THUMBPRINT[members["kty"]]}
    canonical = json.dumps(needed, sort_keys=True, separators=(",", ":")).encode()
    kid = urlsafe_b64encode(sha256(canonical).digest()).rstrip(b"=").decode()
    return SigningKey(private, algorithm, {**needed, "use": "sig", "alg": algorithm, "kid": kid})
