"""Bounds what each policy folder may grant.

`policy.scopes` bounds what the files of a folder may contain (CONTRACT 2): a change in `teams/payments/` cannot affect
the rest of the policy. A row is inside a scope when every name in it is covered by one of the scope's patterns; what a
scope does not list is not permitted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sidecar.policy.patterns import covers


class ScopeLike(Protocol):
    """What `settings` passes; `Scope` implements it."""

    @property
    def files(self) -> str: ...
    @property
    def subjects(self) -> Sequence[str]: ...
    @property
    def objects(self) -> Sequence[str]: ...
    @property
    def roles(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class Scope:
    """`files` is a glob over paths under the policy folder: `**` crosses folders, `*` does not."""

    files: str
    subjects: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()


def scopes_of(relative: str, scopes: Sequence[ScopeLike]) -> list[ScopeLike]:
    """Return the scopes that bound this file; a row must be inside every one of them."""
    return [scope for scope in scopes if _file_glob(scope.files).fullmatch(relative)]


def inside(name: str, patterns: Sequence[str]) -> bool:
    return any(covers(pattern, name) for pattern in patterns)


def _file_glob(pattern: str) -> re.Pattern[str]:
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}
    pieces = re.split(r"(\*\*/|\*\*|\*)", pattern)
    return re.compile("".join(parts.get(piece, re.escape(piece)) for piece in pieces), re.DOTALL)
