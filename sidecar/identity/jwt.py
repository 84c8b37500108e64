"""Verifies JWT access tokens.

The claims are parsed once, by the sidecar's strict parser, and PyJWT verifies the signature over the same bytes. The
token chooses neither the issuer (it must equal a configured one), nor the algorithm (configured for the issuer), nor
the key (by id, from that issuer's own set). Header members that carry keys (`jwk jku x5u x5c`) are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jwt

from sidecar.errors import CredentialFault, Refusal
from sidecar.identity.credentials import bad_credential
from sidecar.identity.issuers import TrustedIssuer
from sidecar.identity.jwks import IssuerKeys
from sidecar.identity.spiffe import trust_domain_of
from sidecar.protocols import base64url
from sidecar.protocols.jsonrpc import parse_json

LEEWAY_S = 30.0  # by how much clocks may differ
MAX_LIFETIME_S = 24 * 3600.0  # of a token; the default of `identity.max_token_lifetime_s`
MAX_TIME = 10**11  # rejects times in milliseconds
MAX_AUDIENCES = 64

_COMPACT = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
_KID = re.compile(r"[A-Za-z0-9._-]{1,128}")
# Members that change what the signature covers, or must be understood; none is supported.
_REFUSED_HEADERS = ("crit", "b64", "zip", "enc")
# Only ID tokens (OpenID Connect Core 3.1.3.6), logout tokens and security events carry these.
_FOREIGN_CLAIMS = ("at_hash", "c_hash", "s_hash", "events")
NOT_IN_ID_TOKENS = ("events",)  # for verifiers of ID tokens
_SHA256 = re.compile(r"[A-Za-z0-9_-]{43}")
_JWS = jwt.PyJWS()


@dataclass(frozen=True, slots=True)
class TokenBinding:
    """The thumbprints of the required key and certificate; "" for none. If both are set, both are required."""

    key: str = ""
    certificate: str = ""


UNBOUND = TokenBinding()


@dataclass(frozen=True, slots=True)
class Claims:
    """A verified token. `expires_at` is its `exp`; `generation` is that of the keys it was verified with, and
    `signed_by` the thumbprint of its key. Whether the bearer has the key to which it is `bound` is not verified yet."""

    issuer: TrustedIssuer
    subject: str
    audiences: frozenset[str]
    expires_at: float
    values: Mapping[str, Any]
    generation: int
    bound: TokenBinding = UNBOUND
    signed_by: str = ""


class Verifier:
    """Verifies tokens. `clock` returns seconds since the epoch; `max_lifetime_s` is from `iat` to `exp`. A token with
    one of the `foreign` claims is of another kind than the accepted ones."""

    def __init__(
        self,
        issuers: Mapping[str, TrustedIssuer],
        keys: Mapping[str, IssuerKeys],
        max_lifetime_s: float,
        clock: Callable[[], float],
        foreign: Sequence[str] = _FOREIGN_CLAIMS,
    ) -> None:
        self._issuers, self._keys, self._max_lifetime_s, self._clock = issuers, keys, max_lifetime_s, clock
        self._foreign = foreign
        self._of_domain = {one.spiffe.trust_domain: one for one in issuers.values() if one.svid and one.spiffe}

    async def verify(self, token: str) -> Claims:
        """Verifies a token of bounded length and returns its claims. Raises Refusal(BAD_CREDENTIAL)."""
        header, values = read_compact(token)
        issuer = self._issuer_of(values)
        algorithm, kid = _algorithm_and_kid(header, issuer)
        keys = self._keys[issuer.issuer]
        key = await keys.find(kid, algorithm)
        generation = keys.generation
        try:
            _JWS.decode_complete(token, key.public, algorithms=[algorithm])
        except jwt.PyJWTError:
            raise bad_credential("the token's signature does not hold", CredentialFault.SIGNATURE) from None
        return replace(self._claims(issuer, values, generation), signed_by=key.thumbprint)

    def _issuer_of(self, values: dict[str, Any]) -> TrustedIssuer:
        name = values.get("iss")
        issuer = self._issuers.get(name) if isinstance(name, str) else None
        if "iss" not in values:  # JWT-SVID 3: the trust domain in `sub` selects the keys
            issuer = self._of_domain.get(trust_domain_of(values.get("sub")))
        if issuer is None:
            raise bad_credential("the token's issuer is not known here", CredentialFault.ISSUER_UNKNOWN)
        return issuer

    def _claims(self, issuer: TrustedIssuer, values: dict[str, Any], generation: int) -> Claims:
        expires_at = self._alive(values, issuer)
        subject = values.get("sub")
        if not isinstance(subject, str) or not subject:
            raise bad_credential("the token's sub must be a string", CredentialFault.MALFORMED)
        if any(claim in values for claim in self._foreign):
            raise bad_credential("the token is of another kind", CredentialFault.NOT_ACCEPTED)
        if any(values.get(claim) != value for claim, value in issuer.must_claim.items()):
            raise bad_credential("the token is not an access token of this issuer", CredentialFault.NOT_ACCEPTED)
        audiences = _audiences(values.get("aud"))
        return Claims(issuer, subject, audiences, expires_at, values, generation, bound_to(values))

    def _alive(self, values: dict[str, Any], issuer: TrustedIssuer) -> float:
        now, expires_at = self._clock(), time_of(values, "exp")
        # A JWT-SVID may omit `iat`; its remaining lifetime is still bounded.
        issued_at = now - LEEWAY_S if issuer.svid and "iat" not in values else time_of(values, "iat")
        if now >= expires_at + LEEWAY_S:
            raise bad_credential("the token has expired", CredentialFault.EXPIRED)
        if issued_at > now + LEEWAY_S:
            raise bad_credential("the token was issued in the future", CredentialFault.NOT_YET_VALID)
        if "nbf" in values and time_of(values, "nbf") > now + LEEWAY_S:
            raise bad_credential("the token is not valid yet", CredentialFault.NOT_YET_VALID)
        if not 0 < expires_at - issued_at <= self._max_lifetime_s:
            raise bad_credential("the token lives longer than is accepted here", CredentialFault.NOT_ACCEPTED)
        return expires_at


def read_compact(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the header and the claims of a compact JWS, unverified. Raises Refusal."""
    match = _COMPACT.fullmatch(token)
    if match is None:
        raise bad_credential("the credential is not a signed JWT", CredentialFault.MALFORMED)
    header, values = _object(match[1]), _object(match[2])
    if any(name in header for name in _REFUSED_HEADERS):
        raise bad_credential("the token's header asks for what is not supported", CredentialFault.NOT_ACCEPTED)
    return header, values


def _object(segment: str) -> dict[str, Any]:
    try:
        value = parse_json(base64url.decode(segment))
    except (Refusal, ValueError):
        value = None
    if not isinstance(value, dict):
        raise bad_credential("the token is not a JSON Web Token", CredentialFault.MALFORMED)
    return value


def _algorithm_and_kid(header: dict[str, Any], issuer: TrustedIssuer) -> tuple[str, str]:
    algorithm, kid, typ = header.get("alg"), header.get("kid", ""), header.get("typ", "")
    if not isinstance(algorithm, str) or algorithm not in issuer.algorithms:
        raise bad_credential("the token's algorithm is not accepted from its issuer", CredentialFault.NOT_ACCEPTED)
    if "kid" in header and (not isinstance(kid, str) or _KID.fullmatch(kid) is None):
        raise bad_credential("the token's kid is malformed", CredentialFault.MALFORMED)
    # RFC 7515 4.1.9: the prefix may be omitted, and media types are case-insensitive.
    if not isinstance(typ, str) or _plain(typ) not in map(_plain, issuer.typ):
        raise bad_credential("the token's typ is not accepted from its issuer", CredentialFault.NOT_ACCEPTED)
    return algorithm, kid


def _plain(typ: str) -> str:
    return typ.lower().removeprefix("application/")


def time_of(values: Mapping[str, Any], claim: str, whose: str = "token") -> float:
    """Reads a time claim, in seconds since the epoch. Raises Refusal."""
    value = values.get(claim)
    # PyJWT accepts "9999999999" and 10**30, and True is an int in Python.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MAX_TIME:
        raise bad_credential(f"the {whose}'s {claim} must be a time in seconds", CredentialFault.MALFORMED)
    return float(value)


def _audiences(value: object) -> frozenset[str]:
    values = [value] if isinstance(value, str) else value
    if (
        isinstance(values, list)
        and 0 < len(values) <= MAX_AUDIENCES
        and all(isinstance(one, str) and one for one in values)
    ):
        return frozenset(values)
    raise bad_credential("the token's aud must be a string or a list of strings", CredentialFault.MALFORMED)


def bound_to(values: Mapping[str, Any]) -> TokenBinding:
    """Returns the keys that a token is bound to: the claim `cnf` (RFC 7800) has the thumbprint of a key whose owner
    signs a proof with each request (`jkt`, RFC 9449 6.1), or of a certificate presented in the handshake (`x5t#S256`,
    RFC 8705 3.1). Raises Refusal for a token that is bound in any other way, because it may be stolen."""
    if "cnf" not in values:
        return UNBOUND
    cnf = values["cnf"]
    if not isinstance(cnf, dict) or not cnf or not cnf.keys() <= {"jkt", "x5t#S256"}:
        what = "the token is bound to a key in a way that is not checked here"
        raise bad_credential(what, CredentialFault.NOT_ACCEPTED)
    if not all(isinstance(value, str) and _SHA256.fullmatch(value) for value in cnf.values()):
        raise bad_credential("the token's cnf is malformed", CredentialFault.MALFORMED)
    return TokenBinding(cnf.get("jkt", ""), cnf.get("x5t#S256", ""))
