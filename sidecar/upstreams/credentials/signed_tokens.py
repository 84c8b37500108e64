"""Signs tokens that name the chain of a call for an upstream.

Signs a JWT that names the chain by RFC 8693 4.1: `sub` is the first principal, and each further one is an `act` around
the earlier ones, so that the outermost is the direct caller. Names are full (`user:corp/alice`); another sidecar reads
the token as a peer's (identity/issuers.py). A token is valid for one audience, and never longer than the caller's
credential, but for at least a second; it is reused for half of its lifetime. A key file that other users can read is
refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, ClassVar, Final, NamedTuple

import orjson

from sidecar.http.signing_keys import SigningKey, generate, keep_private_key, private_key_from, public_jwk_from
from sidecar.settings.sidecar_file import Settings
from sidecar.upstreams.credentials.source import CredentialSource, Header, bearer
from sidecar.vocabulary import Caller

MAX_KEPT: Final = 10_000
MAX_PUBLISHED: Final = 16
_NO_ROLES: Final[frozenset[str]] = frozenset()
_NAME: Final = attrgetter("name")


@dataclass(frozen=True, slots=True)
class TokenSigner:
    """Signs tokens as `issuer`. `before` are the public halves of earlier keys (JWK). Signers of one issuer and key are
    equal; one without a key cannot sign."""

    issuer: str
    key: SigningKey | None = field(default=None, repr=False, compare=False)
    before: tuple[Mapping[str, Any], ...] = field(default=(), repr=False, compare=False)
    kid: str = field(default="", init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kid", "" if self.key is None else self.key.kid)

    def sign(self, claims: Mapping[str, Any]) -> str:
        if self.key is None:
            raise ValueError("there is a key wherever something is to be signed")
        return self.key.sign(claims, typ="JWT")

    @property
    def key_set(self) -> bytes:
        """The JWKS (RFC 7517): public halves only, the current key first."""
        ours = () if self.key is None else (self.key.public_jwk,)
        by_kid = {key["kid"]: dict(key) for key in (*ours, *self.before)[:MAX_PUBLISHED]}
        return orjson.dumps({"keys": list(by_kid.values())})


NO_SIGNER: Final = TokenSigner("")


def signer_from(settings: Settings, issuer: str, *, make: bool) -> TokenSigner:
    """Returns the settings' signer, without a key if nothing is to be signed. A missing key in the data folder is
    generated, and written there if `make`. Raises SettingsError."""
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
    before = tuple(public_jwk_from(path) for path in settings.previous_key_paths if path.exists())
    return TokenSigner(issuer, key, before)


class _Kept(NamedTuple):
    header: Header
    from_s: float
    until_s: float
    ends_s: float


@dataclass(frozen=True, slots=True)
class SignedSource(CredentialSource):
    """Tokens for `audience` that live for `ttl_s`. `roles`: whether they have the first principal's roles. `own`: the
    `sub` of the sidecar's own requests."""

    signer: TokenSigner
    audience: str
    ttl_s: float
    roles: bool
    own: str
    clock: Callable[[], float] = field(compare=False, kw_only=True)
    new_id: Callable[[], str] = field(compare=False, kw_only=True)
    _kept: OrderedDict[tuple[tuple[str, ...], frozenset[str]], _Kept] = field(
        default_factory=OrderedDict, init=False, compare=False, repr=False
    )
    varies: ClassVar[bool] = True

    async def header(self, caller: Caller | None, deadline_s: float) -> Header | None:
        return self.at_hand(caller)

    def at_hand(self, caller: Caller | None) -> Header:
        names = () if caller is None else tuple(map(_NAME, caller.chain))
        ends_s = None if caller is None else caller.expires_at
        roles = caller.chain[0].roles if caller is not None and self.roles else _NO_ROLES
        now, place = self.clock(), (names, roles)
        kept = self._kept.get(place)
        # If the clock was set back, a new token is signed.
        if kept is None or not kept.from_s <= now < kept.until_s or (ends_s is not None and kept.ends_s > ends_s):
            kept = self._kept[place] = self._made(names, roles, now, ends_s)
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(place)
        return kept.header

    async def close(self) -> None:
        self._kept.clear()

    def _made(self, names: tuple[str, ...], roles: frozenset[str], now: float, caller_ends_s: float | None) -> _Kept:
        ends_s = now + self.ttl_s
        if caller_ends_s is not None:  # for a credential within the clock's leeway, at least one second
            ends_s = max(min(ends_s, caller_ends_s), now + 1)
        claims: dict[str, Any] = {
            "iss": self.signer.issuer,
            "sub": names[0] if names else self.own,
            "aud": self.audience,
            "iat": int(now),
            "exp": int(ends_s),
            "jti": self.new_id(),
        }
        act: dict[str, Any] = {}
        for name in names[1:]:  # the newest principal is the outermost
            act = {"sub": name, "act": act} if act else {"sub": name}
        if act:
            claims["act"] = act
        if roles:
            claims["roles"] = sorted(roles)
        return _Kept(bearer(self.signer.sign(claims)), now, now + (ends_s - now) / 2, ends_s)
