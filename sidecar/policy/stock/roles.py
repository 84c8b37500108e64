"""Role definitions of Casbin models: `g = _, _`, with a domain, with conditions, with matching functions.

A link gives a member a role; roles have roles, up to MAX_HOPS links away, where pycasbin also stops. With a matching
function a name is also a member of each pattern that it matches, and has the roles of that pattern; a role that is a
pattern stands for every name that matches it. A conditional link applies while its condition, called with the
parameters in the link's row, is true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self

from sidecar.policy.stock.expression import Attributed, EvaluationError
from sidecar.policy.stock.functions import BadPatternError, BadValueError, MatchFunction
from sidecar.policy.stock.pattern_roles import MAX_HOPS, MAX_NAMES, PatternRoles, matches

MAX_CONDITIONAL_HOPS: Final = 10
MAX_MERGED: Final = 256  # sets of domains whose links are cached together

Condition = Callable[..., bool]


class RequestCaller(Attributed):
    """The subject of a request. `granted` are the roles that its token grants, without any row."""

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
    """Settings that a Casbin program makes in code: how names and domains match, and the condition of links."""

    match: MatchFunction | None = None
    match_domain: MatchFunction | None = None
    condition: Condition | None = None


PLAIN_ROLES: Final = RoleOptions()


class RoleGraph:
    """Decides one role definition. Safe to use from several threads."""

    def __init__(self, form: RoleForm, links: Iterable[Sequence[str]], options: RoleOptions = PLAIN_ROLES) -> None:
        self.form, self.options = form, options
        self._links: dict[str, list[tuple[str, str, tuple[str, ...]]]] = {}
        at = 2 + form.by_domain
        for link in links:
            domain = link[2] if form.by_domain else ""
            self._links.setdefault(domain, []).append((link[0], link[1], tuple(link[at : at + form.parameters])))
        self._domains = lru_cache(MAX_NAMES)(self._domains_within)
        self._within = lru_cache(MAX_MERGED)(self._links_within)
        self._patterns = lru_cache(MAX_MERGED)(self._pattern_roles)
        self._above = lru_cache(MAX_NAMES)(self._containers)

    def containers(self, member: str, domain: str = "") -> frozenset[str]:
        """Returns the roles that a member has, directly or through others, whatever the conditions of the links."""
        if type(domain) is not str:  # an attribute; pycasbin takes its text
            domain = str(domain)
        found = self._above(member, domain)
        if granted := _granted(member):
            found = found.union(granted, *[self._above(role, domain) for role in granted])
        return found

    def holds(self, member: str, role: str, domain: str = "") -> bool:
        """Reports whether a member has a role, like the function in matchers."""
        if member == role:
            return True
        if self.options.condition is not None:
            return self._is_reached(member, role, str(domain))
        if self.options.match is not None:
            roles = self._patterns(self._domains(str(domain)))
            return role in _granted(member) or any(roles.holds(name, role) for name in (member, *_granted(member)))
        return role in self.containers(member, domain)

    def _is_reached(self, member: str, role: str, domain: str) -> bool:
        """Whether conditional links lead to a role. The conditions of longer paths are not evaluated, because they may
        fail."""
        seen, level = {member}, {member, *_granted(member)}
        for _ in range(MAX_CONDITIONAL_HOPS):
            if role in level:
                return True
            level = {above for name in level for above in self._next(name, domain)} - seen
            seen |= level
        return role in level

    def way(self, member: str, role: str, domain: str = "") -> tuple[str, ...]:
        """Returns the roles on a shortest path from a member to a role, without the member; () if there is none. Raises
        EvaluationError if a condition fails."""
        if member == role:
            return ()
        ways: dict[str, tuple[str, ...]] = {str(member): (), **{name: (name,) for name in _granted(member)}}
        level, ends = [*ways], self._ends(role, str(domain))
        for _ in range(MAX_CONDITIONAL_HOPS):
            if reached := next((end for end in ends if ways.get(end)), ""):
                return ways[reached] if reached == role else (*ways[reached], role)
            found = {above: (*ways[name], above) for name in level for above in self._next(name, str(domain))}
            level = [name for name in found if not ways.get(name)]
            ways |= {name: found[name] for name in level}
        return ways.get(role, ())

    def _ends(self, role: str, domain: str) -> Sequence[str]:
        """Returns the names to reach: the role, or a pattern that it matches."""
        if self.options.match is None:
            return (role,)
        return (role, *self._patterns(self._domains(domain)).patterns(role))

    def _next(self, name: str, domain: str) -> Iterable[str]:
        domains, condition = self._domains(domain), self.options.condition
        if self.options.match is not None:
            return self._patterns(domains).next(name)
        links = self._within(domains).get(name, {})
        return [role for role, parameters in links.items() if condition is None or condition(*parameters)]

    def _domains_within(self, domain: str) -> tuple[str, ...]:
        """Returns the domains whose links apply in a domain, beginning with the domain itself."""
        match = self.options.match_domain
        own = (domain,) if domain in self._links else ()
        if match is None:
            return own
        return (*own, *(each for each in self._links if each != domain and matches(match, domain, each)))

    def _links_within(self, domains: tuple[str, ...]) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        """Returns the roles of each member, with the parameters of their last links, like in pycasbin."""
        found: dict[str, dict[str, tuple[str, ...]]] = {}
        for domain in domains:
            for member, role, parameters in self._links[domain]:
                found.setdefault(member, {})[role] = parameters
        return found

    def _pattern_roles(self, domains: tuple[str, ...]) -> PatternRoles:
        assert self.options.match is not None
        links = [(member, role) for domain in domains for member, role, _ in self._links[domain]]
        return PatternRoles(self.options.match, links)

    def _containers(self, member: str, domain: str) -> frozenset[str]:
        domains = self._domains(domain)
        if self.options.match is not None:
            return self._patterns(domains).above(member)
        links, seen, level = self._within(domains), {member}, {member}
        for _ in range(MAX_HOPS if self.options.condition is None else MAX_CONDITIONAL_HOPS):
            level = {role for name in level for role in links.get(name, ())} - seen
            if not level:
                break
            seen |= level
        return frozenset(seen - {member})


def role_graphs(
    forms: Mapping[str, RoleForm], links: Mapping[str, Sequence[Sequence[str]]], options: Mapping[str, RoleOptions]
) -> dict[str, RoleGraph]:
    """Returns the role definitions of a model by name. If one of them has conditions, pycasbin compares names in all
    definitions without conditions only by equality. It matches no patterns in definitions with conditions."""
    is_conditional = any(form.parameters for form in forms.values())
    graphs: dict[str, RoleGraph] = {}
    for key, form in forms.items():
        if form.parameters:
            condition = options.get(key, PLAIN_ROLES).condition
            graphs[key] = RoleGraph(form, links.get(key, ()), RoleOptions(condition=condition))
        elif is_conditional:
            graphs[key] = RoleGraph(form, ())
        else:
            graphs[key] = RoleGraph(form, links.get(key, ()), options.get(key, PLAIN_ROLES))
    return graphs


def _granted(member: str) -> tuple[str, ...]:
    return member.granted if isinstance(member, RequestCaller) else ()


def checked(condition: Condition) -> Condition:
    """Returns a condition whose failure causes the request to be refused."""

    def check(*parameters: str) -> bool:
        try:
            return condition(*parameters)
        except (BadPatternError, BadValueError, TypeError) as error:
            raise EvaluationError(str(error)) from None

    return check
