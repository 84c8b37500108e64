"""Verifies that the presenter of a bound token holds its key (DPoP, mutual TLS).

A DPoP proof (RFC 9449 4.3) is a JWT that the owner of the key signs for one request: its method, its address in the
callers' view, its token, and an id that is used once. Ids are remembered for as long as a proof could be replayed, here
and in the store that replicas share; a proof whose id cannot be remembered is refused.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Final
from urllib.parse import urlsplit

import jwt

from sidecar.errors import CredentialFault, Reason, Refusal
from sidecar.http.signing_keys import thumbprint
from sidecar.identity.credentials import Presented, bad_credential
from sidecar.identity.jwks import VerificationKey, public_key_from
from sidecar.identity.jwt import LEEWAY_S, read_compact, time_of
from sidecar.identity.names import parts_of_url
from sidecar.protocols import base64url
from sidecar.settings.identity import ALGORITHMS

TYP: Final = "dpop+jwt"
MAX_AGE_S: Final = 60.0  # of a proof
MAX_PROOF_CHARS: Final = 8 * 1024
MAX_ID_CHARS: Final = 512
MAX_KEPT: Final = 100_000  # about 100 bytes each
KEY: Final = "dpop:"
_JWS: Final = jwt.PyJWS()

Share = Callable[[str, int], Awaitable[bool | None]]
"""(id, milliseconds to remember it) → whether no replica has seen it; None if nothing is shared. Raises
Refusal(STORE_UNAVAILABLE)."""


class SeenProofs:
    """The ids that were used. `clock` returns seconds since the epoch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.share: Share | None = None  # None: nothing is shared
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self._shares: Counter[str] = Counter()

    async def is_first(self, name: str, for_s: float, owner: str = "") -> bool:
        """Whether no replica has seen this id, which is then remembered for `for_s`. `owner` presents it; one owner may
        use at most three quarters of the memory. Raises Refusal if the result cannot be known."""
        now = self._clock()
        while self._kept and next(iter(self._kept.values()))[0] <= now:
            _, (_, forgotten) = self._kept.popitem(last=False)
            self._shares[forgotten] -= 1
            if not self._shares[forgotten]:
                del self._shares[forgotten]
        if name in self._kept:
            return False
        if len(self._kept) >= MAX_KEPT or self._shares[owner] >= max(1, MAX_KEPT * 3 // 4):
            raise Refusal(Reason.STORE_UNAVAILABLE, "too many proofs are remembered")
        self._kept[name] = now + for_s, owner
        self._shares[owner] += 1
        return self.share is None or await self.share(name, int(for_s * 1000)) is not False


class KeyProofs:
    """Checks the proofs of requests. `clock` returns seconds since the epoch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seen, self._clock = SeenProofs(clock), clock

    async def check(self, presented: Presented, token: str, key: str, owner: str) -> None:
        """Raises Refusal unless the request has one new proof for this token by the key with this thumbprint. `owner`
        is the principal that presents it."""
        if len(presented.proofs) != 1:
            if presented.proofs:
                raise _bad("a credential header is there twice", CredentialFault.MALFORMED)
            raise _bad("one DPoP proof is needed", CredentialFault.PROOF)
        try:
            claims = _claims(presented.proofs[0], key)
        except Refusal as refusal:
            raise _bad(refusal.detail, refusal.credential_fault or CredentialFault.MALFORMED) from None
        address = _plain(claims.get("htu"))
        if claims.get("htm") != presented.method or not address or address not in map(_plain, presented.urls):
            raise _bad("the proof is for another request", CredentialFault.PROOF)
        if not _same(claims.get("ath"), base64url.encode(sha256(token.encode()).digest())):
            raise _bad("the proof is for another token", CredentialFault.PROOF)
        issued_at, now = claims["iat"], self._clock()
        if not now - MAX_AGE_S - LEEWAY_S <= issued_at <= now + LEEWAY_S:
            fault = CredentialFault.EXPIRED if issued_at < now else CredentialFault.NOT_YET_VALID
            raise _bad("the proof is too old, or from the future", fault)
        # Until the last moment at which it could be replayed, by any clock within the leeway.
        for_s = MAX_AGE_S + 2 * LEEWAY_S
        if not await self.seen.is_first(sha256(f"{key} {claims['jti']}".encode()).hexdigest(), for_s, owner):
            raise _bad("the proof was used before", CredentialFault.REPLAYED)


def unproven(detail: str) -> Refusal:
    """Returns a refusal with 401: a token and its scheme disagree on whether the token is bound to a key."""
    return bad_credential(detail, CredentialFault.PROOF, scheme="DPoP", more=_ALGORITHMS)


_ALGORITHMS: Final = f'algs="{" ".join(sorted(ALGORITHMS))}"'


def _bad(detail: str, fault: CredentialFault) -> Refusal:
    return bad_credential(detail, fault, scheme="DPoP", error="invalid_dpop_proof", more=_ALGORITHMS)


def _claims(proof: str, key: str) -> dict[str, Any]:
    """Returns the claims of a proof signed by this key; `iat` and `jti` have the right types. Raises Refusal."""
    if len(proof) > MAX_PROOF_CHARS:
        raise bad_credential("the proof is too long", CredentialFault.MALFORMED)
    header, claims = read_compact(proof)
    algorithm, jwk = header.get("alg"), header.get("jwk")
    public = public_key_from(jwk) if isinstance(jwk, dict) else None
    if header.get("typ") != TYP or algorithm not in ALGORITHMS or public is None:
        raise bad_credential("the proof is not a DPoP proof", CredentialFault.MALFORMED)
    if not VerificationKey("", "", public).fits(algorithm) or not _same(thumbprint(public), key):
        raise bad_credential("the proof is by another key than the token's", CredentialFault.PROOF)
    try:
        _JWS.decode_complete(proof, public, algorithms=[algorithm])
    except jwt.PyJWTError:
        raise bad_credential("the proof's signature does not hold", CredentialFault.SIGNATURE) from None
    name = claims.get("jti")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_ID_CHARS:
        raise bad_credential("the proof's jti must be a string", CredentialFault.MALFORMED)
    return {**claims, "iat": time_of(claims, "iat", "proof")}


def _same(one: object, other: str) -> bool:
    return isinstance(one, str) and one.isascii() and compare_digest(one, other)


def _plain(url: object) -> str:
    """Returns a URL without query and fragment (RFC 9449 4.3), its origin in canonical form; "" for an invalid URL."""
    if not isinstance(url, str):
        return ""
    scheme, host, port, path = parts_of_url(url)
    if not host or not port or urlsplit(url).username is not None:
        return ""
    return f"{scheme}://{host}:{port}{path or '/'}"
