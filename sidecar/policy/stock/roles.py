"""Role definitions of Casbin models: `g = _, _`, with a domain, with conditions, with matching functions.

A link gives a member a role; roles have roles, up to MAX_HOPS links away, where pycasbin stops too. With a matching
function a name is also a member of each pattern that it matches, and has the roles of that pattern; a role that is a
pattern is every name that matches it. A conditional link counts while its condition, called with the parameters in the
link's row, is true.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self

from sidecar.policy.stock.expression import Attributed, EvaluationError
from sidecar.policy.stock.functions import BadPatternError, BadValueError, MatchFunction

MAX_HOPS: Final = 9
MAX_CONDITIONAL_HOPS: Final = 10
MAX_NAMES: Final = 8_192  # whose roles are kept

Condition = Callable[..., bool]
_Links = Mapping[str, Mapping[str, tuple[str, ...]]]  # the roles of each member, with the parameters of their links


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
        self._domains: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {}
        at = 2 + form.by_domain
        for link in links:
            domain = link[2] if form.by_domain else ""
            roles = self._domains.setdefault(domain, {}).setdefault(link[0], {})
            roles[link[1]] = tuple(link[at : at + form.parameters])  # of the last link, as in pycasbin
        self._within = lru_cache(MAX_NAMES)(self._links_within)
        self._above = lru_cache(MAX_NAMES)(self._containers) if options.condition is None else self._containers

    def containers(self, member: str, domain: str = "") -> frozenset[str]:
        """Return the roles that a member has, directly or through others."""
        if type(domain) is not str:  # an attribute; pycasbin takes its text
            domain = str(domain)
        found = self._above(member, domain)
        if granted := _granted(member):
            found = found.union(granted, *[self._above(role, domain) for role in granted])
        return found

    def holds(self, member: str, role: str, domain: str = "") -> bool:
        """Whether a member has a role, as the function of a matcher."""
        if member == role:
            return True
        if self.options.condition is not None:
            return self._is_reached(member, role, str(domain))
        found = self.containers(member, domain)
        if role in found:
            return True
        match = self.options.match
        return match is not None and any(_matches(match, role, each) for each in found)

    def _is_reached(self, member: str, role: str, domain: str) -> bool:
        """Whether conditional links lead to a role. The conditions of longer ways are not asked, as they may fail."""
        links, seen, level = self._within(domain), {member}, {member, *_granted(member)}
        for _ in range(MAX_CONDITIONAL_HOPS):
            if role in level:
                return True
            above = {role for name in level for role in self._direct(links, name)}
            level = above - seen
            seen |= level
        return role in level

    def _links_within(self, domain: str) -> _Links:
        match = self.options.match_domain
        if match is None:
            return self._domains.get(domain, {})
        merged: dict[str, dict[str, tuple[str, ...]]] = {}
        for other, links in self._domains.items():
            if other == domain or _matches(match, domain, other):
                for member, roles in links.items():
                    merged.setdefault(member, {}).update(roles)
        return merged

    def _containers(self, member: str, domain: str) -> frozenset[str]:
        links, targets = self._within(domain), set[str]()
        if self.options.match is not None:
            targets = {role for roles in links.values() for role in roles}
        seen, level = {member}, [member]
        for _ in range(MAX_HOPS if self.options.condition is None else MAX_CONDITIONAL_HOPS):
            above = {role for name in level for role in self._next(links, targets, name)}
            level = [name for name in above if name not in seen]
            seen.update(level)
            if not level:
                break
        return frozenset(seen - {member})

    def way(self, member: str, role: str, domain: str = "") -> tuple[str, ...]:
        """Return the roles on a shortest way from a member to a role, without the member; () if there is none. Raises
        EvaluationError, as a condition may fail."""
        links, targets = self._within(str(domain)), set[str]()
        if self.options.match is not None:
            targets = {role for roles in links.values() for role in roles}
        ways: dict[str, tuple[str, ...]] = {str(member): (), **{name: (name,) for name in _granted(member)}}
        level = [*ways]
        for _ in range(MAX_CONDITIONAL_HOPS):
            if role in ways or not level:
                break
            found = {above: (*ways[name], above) for name in level for above in self._next(links, targets, name)}
            level = [name for name in found if name not in ways]
            ways |= {name: found[name] for name in level}
        return ways.get(role, ())

    def _next(self, links: _Links, targets: Collection[str], name: str) -> Iterator[str]:
        """Yield the roles of a name, and the names that match it as a pattern."""
        yield from self._direct(links, name)
        if (match := self.options.match) is not None:
            yield from (each for each in (*links, *targets) if each != name and _matches(match, each, name))

    def _direct(self, links: _Links, name: str) -> Iterator[str]:
        match, condition = self.options.match, self.options.condition
        members = [name] if match is None else [each for each in links if each == name or _matches(match, name, each)]
        for member in members:
            for role, parameters in links.get(member, {}).items():
                if condition is None or condition(*parameters):
                    yield role


def role_graphs(
    forms: Mapping[str, RoleForm], links: Mapping[str, Sequence[Sequence[str]]], options: Mapping[str, RoleOptions]
) -> dict[str, RoleGraph]:
    """Return the role definitions of a model by name. If one of them has conditions, pycasbin compares only the names
    in all that have none."""
    is_conditional = any(form.parameters for form in forms.values())
    return {
        key: RoleGraph(form, ())
        if is_conditional and not form.parameters
        else RoleGraph(form, links.get(key, ()), options.get(key, PLAIN_ROLES))
        for key, form in forms.items()
    }


def _granted(member: str) -> tuple[str, ...]:
    return member.granted if isinstance(member, RequestCaller) else ()


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
