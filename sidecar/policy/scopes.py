"""Bounds what each policy folder may grant.

`policy.scopes` bounds what the files of a folder may say (CONTRACT 2): whoever reviews `teams/payments/` need not fear
for the rest. A row is inside when every name in it is covered by a pattern of the scope; what a scope does not list,
it does not permit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sidecar.policy.patterns import covers


class ScopeLike(Protocol):
    """What `settings` hands over; `Scope` is one."""

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
    """Those that bound this file; a row must be inside every one of them."""
    return [scope for scope in scopes if _file_glob(scope.files).fullmatch(relative)]


def inside(name: str, patterns: Sequence[str]) -> bool:
    return any(covers(pattern, name) for pattern in patterns)


def _file_glob(pattern: str) -> re.Pattern[str]:
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}
    pieces = re.split(r"(\*\*/|\*\*|\*)", pattern)
    return re.compile("".join(parts.get(piece, re.escape(piece)) for piece in pieces), re.DOTALL)
