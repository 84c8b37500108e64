"""Encodes callers for storage, with everything that they are judged by, and never with the token."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field, TypeAdapter

from sidecar.vocabulary import Caller, Credential, CredentialKind, Principal

_Chain = Annotated[list[tuple[str, str, frozenset[str], frozenset[str]]], Field(min_length=1)]
_PLAIN: Final = TypeAdapter(
    tuple[_Chain, list[tuple[CredentialKind, str, str, str]], float | None], config=ConfigDict(allow_inf_nan=False)
)


def plain_caller(caller: Caller) -> list[Any]:
    """Returns the caller as JSON-compatible lists, strings and numbers."""
    chain = [[one.name, one.issuer, sorted(one.roles), sorted(one.scopes)] for one in caller.chain]
    shown = [[one.kind, one.issuer, one.key_id, one.trust] for one in caller.credentials]
    return [chain, shown, caller.expires_at]


def caller_from(plain: Any) -> Caller:
    """Restores a caller from `plain_caller`'s encoding. Raises ValueError if the data is not a caller."""
    chain, credentials, expires_at = _PLAIN.validate_python(plain)
    return Caller(tuple(Principal(*one) for one in chain), tuple(Credential(*one) for one in credentials), expires_at)
