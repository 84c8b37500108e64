"""Stores issuers' signing keys, with a bound on refreshes that unauthenticated callers can cause.

There is one instance per issuer. Tokens with unknown key ids cause at most one fetch in ten seconds, including failed
ones, however many there are. Nothing is stored per key id, so callers cannot fill memory. Fetched keys remain valid for
one hour while the issuer is unreachable; after that, its tokens are refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from sidecar.errors import CredentialFault, Refusal
from sidecar.http.client.failures import EgressError
from sidecar.http.signing_keys import thumbprint
from sidecar.identity.credentials import bad_credential
from sidecar.identity.spiffe import KeyUse
from sidecar.protocols.jsonrpc import parse_json
from sidecar.settings.reading import read_bounded

MAX_JWKS_BYTES = 256 * 1024
MAX_KEYS = 64
MIN_RSA_BITS = 2048  # NIST SP 800-131A
MIN_INTERVAL_S = 10.0  # a new key is used within 10 s, and unknown key ids cause one fetch in 10 s
STALE_S = 3600.0  # how long fetched keys remain valid while the issuer is unreachable
REFRESH_S = 300.0
FETCH_S = 5.0

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey
_CURVES = {"ES256": "secp256r1", "ES384": "secp384r1", "ES512": "secp521r1"}
_READERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "RSA": RSAAlgorithm.from_jwk,
    "EC": ECAlgorithm.from_jwk,
    "OKP": OKPAlgorithm.from_jwk,
}

log = logging.getLogger("sidecar.identity")


class JwksError(Exception):
    """A key set that cannot be used. The message contains no external data."""


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """One public key and its declared algorithm ("" allows every one that fits its type). `thumbprint` identifies
    it."""

    kid: str
    algorithm: str
    public: PublicKey
    thumbprint: str = ""

    def fits(self, algorithm: str) -> bool:
        """Whether this key may verify the algorithm, by its declared algorithm and its type."""
        if self.algorithm and self.algorithm != algorithm:
            return False
        if isinstance(self.public, RSAPublicKey):
            return algorithm[:2] in ("RS", "PS")
        if isinstance(self.public, EllipticCurvePublicKey):
            return _CURVES.get(algorithm) == self.public.curve.name
        return algorithm == "EdDSA"


class KeyState(NamedTuple):
    """The state of an issuer's keys. `age_s` is None before the first successful fetch."""

    issuer: str
    keys: int
    age_s: float | None
    usable: bool


def parse_jwks(raw: bytes, use: KeyUse = "sig") -> tuple[VerificationKey, ...]:
    """Returns the signing keys of a JWKS (RFC 7517). Unusable keys are skipped. Raises JwksError, also for a set
    without a usable key. `jwt-svid` selects the keys of a SPIFFE trust bundle, which declare that use and have a key
    id."""
    if len(raw) > MAX_JWKS_BYTES:
        raise JwksError(f"the key set is larger than {MAX_JWKS_BYTES} bytes")
    try:
        entries = parse_json(raw)["keys"]
    except (Refusal, KeyError, TypeError):
        raise JwksError("not a JSON Web Key Set") from None
    if not isinstance(entries, list) or len(entries) > MAX_KEYS:
        raise JwksError(f"`keys` must be a list of at most {MAX_KEYS}")
    keys = tuple(key for entry in entries if (key := _key_from(entry, use)) is not None)
    if not keys:
        raise JwksError("no usable signing key")
    return keys


def read_jwks_file(path: Path) -> bytes:
    """Reads a key set from a file. Raises OSError."""
    return read_bounded(path, MAX_JWKS_BYTES)


class IssuerKeys:
    """The keys of one issuer. `source` is the set's URL or path, `read` returns its bytes; `mono` is in seconds; `use`
    is the purpose that the keys must have."""

    def __init__(
        self,
        issuer: str,
        source: str,
        read: Callable[[], Awaitable[bytes]],
        *,
        mono: Callable[[], float],
        use: KeyUse = "sig",
    ) -> None:
        self.issuer, self.source, self.use = issuer, source, use
        self.generation = 0
        """Increases when the content changes; cached verifications are then repeated."""
        self._read, self._mono = read, mono
        self._keys: tuple[VerificationKey, ...] = ()
        self._digest = b""
        self._fetched_mono_s = self._attempted_mono_s = -inf
        self._flight: asyncio.Task[None] | None = None

    @property
    def usable(self) -> bool:
        return self._mono() - self._fetched_mono_s < STALE_S

    @property
    def state(self) -> KeyState:
        age_s = self._mono() - self._fetched_mono_s
        return KeyState(self.issuer, len(self._keys), None if age_s == inf else age_s, self.usable)

    def has(self, thumbprint: str) -> bool:
        """Whether the issuer still has this key; false before the first successful fetch."""
        return not self._keys or any(key.thumbprint == thumbprint for key in self._keys)

    async def find(self, kid: str, algorithm: str) -> VerificationKey:
        """Returns the only key with this id ("" if the token names none) and algorithm; fetches the keys if it is
        unknown. Raises Refusal."""
        key = self._pick(kid, algorithm) if self.usable else None
        may_ask = self._flight is not None or self._mono() - self._attempted_mono_s >= MIN_INTERVAL_S
        if key is None and may_ask:
            await self.refresh()
            key = self._pick(kid, algorithm)
        if not self.usable:
            raise bad_credential("keys of the issuer cannot be had", CredentialFault.KEYS_UNAVAILABLE)
        if key is None:
            raise bad_credential("the token's key is not known", CredentialFault.KEY_UNKNOWN)
        return key

    def take_over(self, older: IssuerKeys) -> None:
        """Copies another instance's keys, if they came from the same source."""
        if (self.source, self.use) == (older.source, older.use):
            self._keys, self._digest, self.generation = older._keys, older._digest, older.generation
            self._fetched_mono_s = older._fetched_mono_s

    async def refresh(self) -> None:
        """Fetches now; concurrent calls wait for the same fetch. After a failure, which is logged, the old keys
        remain."""
        if self._flight is None:
            self._flight = asyncio.create_task(self._fetch(), name="jwks")
            self._flight.add_done_callback(self._landed)
        # Callers wait for the task without awaiting it directly, so a cancelled caller does not cancel the fetch, and
        # vice versa.
        flight = self._flight
        await asyncio.wait({flight})
        if not flight.cancelled():
            flight.result()

    async def keep_fresh(self, every_s: float = REFRESH_S) -> None:
        """Refreshes periodically, so that a rotated key is known before its first token arrives."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.refresh()
            except Exception:  # an internal error must not stop the refreshing of any issuer's keys
                log.exception("jwks_fetch_failed", extra={"issuer": self.issuer})

    async def close(self) -> None:
        if self._flight is not None:
            self._flight.cancel()
            await asyncio.gather(self._flight, return_exceptions=True)

    def _pick(self, kid: str, algorithm: str) -> VerificationKey | None:
        fitting = [key for key in self._keys if key.fits(algorithm) and (not kid or key.kid == kid)]
        # Two matching keys are treated as none: verification must not try keys in turn.
        return fitting[0] if len(fitting) == 1 else None

    def _landed(self, _: asyncio.Task[None]) -> None:
        self._flight = None

    async def _fetch(self) -> None:
        self._attempted_mono_s = self._mono()
        try:
            async with asyncio.timeout(FETCH_S):
                raw = await self._read()
            keys = parse_jwks(raw, self.use)
        except (JwksError, EgressError, OSError, ValueError) as error:
            log.warning("jwks_fetch_failed", extra={"issuer": self.issuer, "error": f"{type(error).__name__}: {error}"})
            return
        self._fetched_mono_s = self._mono()
        digest = sha256(raw).digest()
        if digest != self._digest:
            self._keys, self._digest = keys, digest
            self.generation += 1


def _key_from(entry: Any, use: KeyUse) -> VerificationKey | None:
    # SPIFFE Trust Domain and Bundle 4.2.2: an entry without a use is ignored.
    if not isinstance(entry, dict) or entry.get("use", "sig" if use == "sig" else None) != use:
        return None
    kid, algorithm, operations = entry.get("kid", ""), entry.get("alg", ""), entry.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    if not isinstance(kid, str) or not isinstance(algorithm, str) or (use == "jwt-svid" and not kid):
        return None
    public = public_key_from(entry)
    return None if public is None else VerificationKey(kid, algorithm, public, thumbprint(public))


def public_key_from(entry: dict[str, Any]) -> PublicKey | None:
    """Returns the key of a JWK; None if it is not public, not of a supported type, or too short."""
    read = _READERS.get(str(entry.get("kty")))
    if read is None:
        return None
    try:
        key = read(entry)
    except (jwt.PyJWTError, UnsupportedAlgorithm, ValueError, TypeError, KeyError, AttributeError):
        return None
    if isinstance(key, RSAPublicKey):
        return key if key.key_size >= MIN_RSA_BITS else None
    # Private keys are rejected, because a published one proves nothing.
    return key if isinstance(key, EllipticCurvePublicKey | Ed25519PublicKey) else None
