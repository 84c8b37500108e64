"""Policy subjects with their roles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sidecar.policy.bounded_cache import BoundedCache
from sidecar.policy.grammar import NONE
from sidecar.policy.roles import RoleLinks, RolePaths
from sidecar.vocabulary import Principal

MEMO_SIZE = 4096


@dataclass(eq=False, slots=True)
class PolicySubject:
    """A principal as rows see it. `granted` are the roles of its token, `roles` all its roles; `domain` is its
    namespace, or `-`. While cached, each principal has exactly one object, which also serves as a key.
    """

    name: str
    granted: frozenset[str]
    roles: frozenset[str]
    domain: str


class PolicySubjects:
    """Finds and caches the roles of principals."""

    def __init__(self, ways: RolePaths) -> None:
        self._ways = ways
        self._memo: BoundedCache[tuple[str, frozenset[str]], PolicySubject] = BoundedCache(MEMO_SIZE)

    def asker(self, principal: Principal) -> PolicySubject:
        key = (principal.name, principal.roles)
        known = self._memo.get(key)
        if known is None:
            domain = _domain_of(principal.name)
            roles = self._ways.containers(principal.name, domain)
            for granted in principal.roles:
                roles = roles | {granted} | self._ways.containers(granted, domain)
            known = PolicySubject(principal.name, principal.roles, roles, domain)
            self._memo.put(key, known)
        return known

    def forget(self) -> None:
        """Clear the cache."""
        self._memo = BoundedCache(MEMO_SIZE)

    def roles_of(self, principal: Principal) -> frozenset[str]:
        """Return all roles of a principal."""
        return self.asker(principal).roles

    def behind(self, asker: PolicySubject, subjects: Iterable[str]) -> tuple[str, ...]:
        """Return the roles through which these rule subjects match the principal, each once."""
        found: dict[str, None] = {}
        for subject in subjects:
            if subject in asker.roles:
                found.update(dict.fromkeys(self._way(asker, subject)))
        return tuple(found)

    def _way(self, asker: PolicySubject, role: str) -> tuple[str, ...]:
        links: RoleLinks = self._ways.within(asker.domain)
        if role in asker.granted or role in links.parents.get(asker.name, ()):
            return (role,)
        return links.way((asker.name, *asker.granted), role)


def _domain_of(name: str) -> str:
    """Return the namespace in `user:<namespace>/<id>`."""
    return name.partition(":")[2].partition("/")[0] if "/" in name else NONE
