"""Roles whose names match patterns, with the result of pycasbin's role manager after it has read the links in order.

A name is a member of each pattern that it matches: it has the roles of that pattern, and a member with that pattern as
a role has the name as a role too. The links of a pattern depend on the order of the rows, so they are added one by one.
pycasbin adds a name that no row contains when it is looked up, and stores it. Here it is not stored, so a decision does
not depend on earlier ones.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

from sidecar.policy.stock.functions import BadPatternError, BadValueError, MatchFunction

MAX_HOPS: Final = 9
MAX_NAMES: Final = 8_192  # whose roles are cached


class PatternRoles:
    """The roles of one domain. Safe to use from several threads."""

    def __init__(self, match: MatchFunction, links: Iterable[tuple[str, str]]) -> None:
        self._match = match
        self._roles: dict[str, dict[str, None]] = {}
        self._users: dict[str, dict[str, None]] = {}
        self._order: dict[str, int] = {}
        self._sorted: list[str] = []
        self._by_prefix: dict[str, list[str]] = {}
        for member, role in links:
            self._add(member, role)
        self.above = lru_cache(MAX_NAMES)(self._above)
        self._matched = lru_cache(MAX_NAMES)(self._patterns_of)

    def holds(self, member: str, role: str) -> bool:
        if member == role:
            return True
        found = self.above(member)
        if role in self._roles:
            return role in found
        if any(pattern in found for pattern in self.patterns(role)):
            return True
        return member in found and member not in self._roles and matches(self._match, role, member)

    def next(self, name: str) -> Iterable[str]:
        """Returns the roles that a name has directly."""
        return self._roles[name] if name in self._roles else self._as_added(name)[0]

    def patterns(self, role: str) -> Sequence[str]:
        """Returns the patterns whose members have a role that no row contains."""
        return () if role in self._roles else self._matched(role)

    def _above(self, member: str) -> frozenset[str]:
        """Returns the roles that a member reaches; with itself only if a link leads back to it."""
        roles, users = (self._roles[member], set[str]()) if member in self._roles else self._as_added(member)
        seen, level = set[str](), set(roles)
        for _ in range(MAX_HOPS):
            level -= seen
            seen |= level
            above = {role for name in level for role in self._roles.get(name, ())}
            level = above | {member} if not level.isdisjoint(users) else above
        return frozenset(seen)

    def _as_added(self, name: str) -> tuple[dict[str, None], set[str]]:
        """Returns the roles and users that a name without rows has once pycasbin has added it."""
        roles, users = dict[str, None](), set[str]()
        for pattern in self._patterns_of(name):
            roles |= self._roles[pattern]
            if pattern in users:
                roles[name] = None
            users.update(self._users[pattern])
            if pattern in roles:
                roles[name] = None
        return roles, users

    def _patterns_of(self, name: str) -> list[str]:
        """Returns the names of rows that are patterns and match a name, in the order in which they were added."""
        prefixes = {name[:length] for length in range(len(name) + 1)} & self._by_prefix.keys()
        found = [each for prefix in prefixes for each in self._by_prefix[prefix] if matches(self._match, name, each)]
        return sorted(found, key=self._order.__getitem__)

    def _matching(self, pattern: str) -> Iterator[str]:
        """Yields the names of rows that match a pattern."""
        prefix = self._match.prefix(pattern)
        at = bisect_left(self._sorted, prefix)
        while at < len(self._sorted) and self._sorted[at].startswith(prefix):
            if matches(self._match, self._sorted[at], pattern):
                yield self._sorted[at]
            at += 1

    def _add(self, member: str, role: str) -> None:
        self._create(member)
        self._create(role)
        self._link(member, role)
        for name in self._matching(member):
            if name != member:
                self._link(name, role)
        for name in self._matching(role):
            if name != role:
                self._link(role, name)

    def _create(self, name: str) -> None:
        if name in self._roles:
            return
        patterns = self._patterns_of(name)
        self._roles[name], self._users[name], self._order[name] = {}, {}, len(self._order)
        for pattern in patterns:
            for role in list(self._roles[pattern]):
                self._link(name, role)
            for user in list(self._users[pattern]):
                self._link(user, name)
        insort(self._sorted, name)
        self._by_prefix.setdefault(self._match.prefix(name), []).append(name)

    def _link(self, member: str, role: str) -> None:
        self._roles[member][role] = None
        self._users[role][member] = None


def matches(function: MatchFunction, text: str, pattern: str) -> bool:
    """Matches like Casbin's role managers, for which an error is no match."""
    try:
        return function.compiled(pattern)(text)
    except (BadPatternError, BadValueError):
        return False
