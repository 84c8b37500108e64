"""How is a caller kept, so that they can be asked about later, also after a restart?

Everything that rules, the kill switch and issuers are asked about; never the token.
"""

from __future__ import annotations

from typing import Any

from sidecar.vocabulary import Caller, Credential, Principal


def plain_caller(caller: Caller) -> list[Any]:
    """A caller in lists and words, as JSON has them."""
    chain = [[one.name, one.issuer, sorted(one.roles), sorted(one.scopes)] for one in caller.chain]
    shown = [[one.kind, one.issuer, one.key_id, one.trust] for one in caller.credentials]
    return [chain, shown, caller.expires_at]


def caller_from(plain: Any) -> Caller:
    """The same caller."""
    chain, credentials, expires_at = plain
    principals = tuple(
        Principal(name, issuer, frozenset(roles), frozenset(scopes)) for name, issuer, roles, scopes in chain
    )
    return Caller(principals, tuple(Credential(*one) for one in credentials), expires_at)
