"""Role definitions of Casbin models: `g = _, _`, with a domain, with conditions, with matching functions.

A link gives a member a role; roles have roles, up to MAX_HOPS links away, where pycasbin stops too. With a matching
function a name is also a member of each pattern that it matches, and has the roles of that pattern; a role that is a
pattern is every name that matches it. A conditional link counts while its condition, called with the parameters in the
link's row, is true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self

from sidecar.policy.stock.expression import Attributed, EvaluationError
from sidecar.policy.stock.functions import BadPatternError, BadValueError, MatchFunction

MAX_HOPS: Final = 9
MAX_CONDITIONAL_HOPS: Final = 10
MAX_NAMES: Final = 8_192  # whose roles are kept

Condition = Callable[..., bool]


class RequestCaller(Attributed):
    """The subject of a request. `granted` are the roles that its token grants, which no row has to give it."""

    __slots__ = ("granted",)
    granted: tuple[str, ...]

    def __new__(cls, text: str, attributes: Mapping[str, Any], granted: tuple[str, ...] = ()) -> Self:
        caller = super().__new__(cls, text, attributes)
        caller.granted = granted
        return caller


class RoleForm(NamedTuple):
    """A role definition: whether links have a domain, and the number of parameters of their condition."""

    by_domain: bool = False
    parameters: int = 0

    @property
    def fields(self) -> int:
        return 2 + self.by_domain + self.parameters

    @property
    def arguments(self) -> int:
        """The number of arguments of the function in matchers."""
        return 2 + self.by_domain


@dataclass(frozen=True, slots=True)
class RoleOptions:
    """What a Casbin program sets in code: how names and domains match, and the condition of links."""

    match: MatchFunction | None = None
    match_domain: MatchFunction | None = None
    condition: Condition | None = None


PLAIN_ROLES: Final = RoleOptions()


class RoleGraph:
    """Decides one role definition. Safe to use from several threads."""

    def __init__(self, form: RoleForm, links: Iterable[Sequence[str]], options: RoleOptions = PLAIN_ROLES) -> None:
        self.form, self.options = form, options
        self._domains: dict[str, dict[str, list[tuple[str, tuple[str, ...]]]]] = {}
        at = 2 + form.by_domain
        for link in links:
            domain = link[2] if form.by_domain else ""
            found = self._domains.setdefault(domain, {}).setdefault(link[0], [])
            found.append((link[1], tuple(link[at : at + form.parameters])))
        self._within = lru_cache(MAX_NAMES)(self._links_within)
        self._above = lru_cache(MAX_NAMES)(self._containers) if options.condition is None else self._containers

    def containers(self, member: str, domain: str = "") -> frozenset[str]:
        """Return the roles that a member has, directly or through others."""
        found = self._above(member, domain)
        if isinstance(member, RequestCaller) and member.granted:
            found = found.union(member.granted, *[self._above(role, domain) for role in member.granted])
        return found

    def holds(self, member: str, role: str, domain: str = "") -> bool:
        """Whether a member has a role, as the function of a matcher."""
        if member == role:
            return True
        found = self.containers(member, domain)
        if role in found:
            return True
        match = self.options.match
        return match is not None and any(_matches(match, role, each) for each in found)

    def _links_within(self, domain: str) -> dict[str, list[tuple[str, tuple[str, ...]]]]:
        match = self.options.match_domain
        if match is None:
            return self._domains.get(domain, {})
        merged: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
        for other, links in self._domains.items():
            if other == domain or _matches(match, domain, other):
                for member, roles in links.items():
                    merged.setdefault(member, []).extend(roles)
        return merged

    def _containers(self, member: str, domain: str) -> frozenset[str]:
        links, match, condition = self._within(domain), self.options.match, self.options.condition
        targets = {role for roles in links.values() for role, _ in roles} if match is not None else set()
        seen, level = {member}, [member]
        for _ in range(MAX_HOPS if condition is None else MAX_CONDITIONAL_HOPS):
            above: set[str] = set()
            for name in level:
                for role, parameters in self._direct(links, name):
                    if condition is None or condition(*parameters):
                        above.add(role)
                if match is not None:
                    above.update(each for each in (*links, *targets) if each != name and _matches(match, each, name))
            level = [name for name in above if name not in seen]
            seen.update(level)
            if not level:
                break
        return frozenset(seen - {member})

    def _direct(
        self, links: dict[str, list[tuple[str, tuple[str, ...]]]], name: str
    ) -> Iterable[tuple[str, tuple[str, ...]]]:
        match = self.options.match
        if match is None:
            return links.get(name, ())
        return [
            link for member, roles in links.items() if member == name or _matches(match, name, member) for link in roles
        ]


def _matches(function: MatchFunction, text: str, pattern: str) -> bool:
    """Like Casbin's role managers, which take an error for no match."""
    try:
        return function.compiled(pattern)(text)
    except (BadPatternError, BadValueError):
        return False


def checked(condition: Condition) -> Condition:
    """Return a condition whose failure refuses the request."""

    def check(*parameters: str) -> bool:
        try:
            return condition(*parameters)
        except (BadPatternError, BadValueError, TypeError) as error:
            raise EvaluationError(str(error)) from None

    return check
