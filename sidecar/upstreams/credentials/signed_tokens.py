"""Signs tokens that name the chain of a call for an upstream.

A JWT that names the chain as RFC 8693 4.1 does: `sub` is the first principal, and each further one is an `act` around
those before it, so that the outermost is the direct caller. Each principal has its full name (`user:corp/alice`), and
the roles that a token granted to the first of them may be included: another sidecar reads the token as a peer's
(identity/issuers.py). In the sidecar's own requests `sub` is the sidecar, or the configured subject.

A token is valid for one audience, for about a minute, and never longer than the caller's credential. It is reused for
half of that time, so that few calls wait for a signature.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sidecar.upstreams.credentials.signer import TokenSigner
from sidecar.upstreams.credentials.source import CredentialSource, Header, bearer
from sidecar.vocabulary import Caller

MAX_KEPT: Final = 10_000
_NO_ROLES: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class _Kept:
    header: Header = field(repr=False)
    from_s: float
    until_s: float
    ends_s: float


class SignedSource:
    """A `CredentialSource`. `roles` says whether the token includes the roles granted to the first of the chain; `own`
    is the `sub` in the sidecar's own requests, "" for its address. `clock` gives seconds since the epoch, `new_id` a
    unique id.
    """

    fixed: Header | None = None

    def __init__(
        self,
        signer: TokenSigner,
        audience: str,
        ttl_s: float,
        *,
        clock: Callable[[], float],
        new_id: Callable[[], str],
        roles: bool = False,
        own: str = "",
    ) -> None:
        self._signer = signer
        self._audience = audience
        self._ttl_s = ttl_s
        self._clock = clock
        self._new_id = new_id
        self._roles = roles
        self._own = own or signer.issuer
        self._kept: OrderedDict[tuple[tuple[str, ...], frozenset[str]], _Kept] = OrderedDict()

    async def header(self, caller: Caller | None, deadline_s: float) -> Header | None:
        names = () if caller is None else tuple([principal.name for principal in caller.chain])
        ends_s = None if caller is None else caller.expires_at
        roles = caller.first.roles if caller is not None and self._roles else _NO_ROLES
        now, place = self._clock(), (names, roles)
        kept = self._kept.get(place)
        if (
            kept is not None
            and kept.from_s <= now < kept.until_s  # a clock that was set back makes a new one
            and (ends_s is None or kept.ends_s <= ends_s)
        ):
            self._kept.move_to_end(place)
            return kept.header
        made = self._made(names, roles, now, ends_s)
        self._kept[place] = made
        self._kept.move_to_end(place)
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return made.header

    def refused(self, caller: Caller | None, header: Header) -> None:
        """Does nothing: another token would have the same claims."""

    def shows_the_same_as(self, other: CredentialSource) -> bool:
        return (
            isinstance(other, SignedSource)
            and self._signer == other._signer
            and (self._audience, self._ttl_s) == (other._audience, other._ttl_s)
            and (self._roles, self._own) == (other._roles, other._own)
        )

    async def close(self) -> None:
        self._kept.clear()

    def _made(self, names: tuple[str, ...], roles: frozenset[str], now: float, caller_ends_s: float | None) -> _Kept:
        ends_s = now + self._ttl_s
        if caller_ends_s is not None:  # a credential within the clock's leeway: one second at least
            ends_s = max(min(ends_s, caller_ends_s), now + 1)
        claims: dict[str, Any] = {
            "iss": self._signer.issuer,
            "sub": names[0] if names else self._own,
            "aud": self._audience,
            "iat": int(now),
            "exp": int(ends_s),
            "jti": self._new_id(),
        }
        if len(names) > 1:
            claims["act"] = _act(names[1:])
        if roles:
            claims["roles"] = sorted(roles)
        header = bearer(self._signer.sign(claims))
        return _Kept(header, now, now + (ends_s - now) / 2, ends_s)


def _act(names: tuple[str, ...]) -> dict[str, Any]:
    """The nested `act` claim, the newest principal outermost."""
    act: dict[str, Any] = {}
    for name in names:
        act = {"sub": name, "act": act} if act else {"sub": name}
    return act
