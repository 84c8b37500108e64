"""Resolves roles and sets, and the roles of principals.

`g` and `g2` rows are one-way links between exact names: a member has a role, a role may have roles; an object is in a
set, a set may be in sets. Casbin silently stops after ten links and accepts cycles; here a chain of more than eight
roles and any cycle are faults at load time, so following links always terminates.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache, partial
from graphlib import CycleError, TopologicalSorter

from sidecar.policy.grammar import NONE
from sidecar.vocabulary import Principal

MAX_DEPTH = 8
MAX_SUBJECTS = 8192  # cached principals
_NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RoleLinks:
    """Maps each member to its direct containers. `RoleLinks.of` builds it; acyclic once `cycle()` returned ()."""

    parents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> RoleLinks:
        parents: dict[str, set[str]] = {}
        for member, container in pairs:
            parents.setdefault(member, set()).add(container)
        return cls({member: tuple(sorted(found)) for member, found in sorted(parents.items())})

    def closure(self, start: Iterable[str]) -> frozenset[str]:
        """Returns every direct and indirect container of the names in `start`."""
        todo = [container for name in start for container in self.parents.get(name, ())]
        if not todo:
            return _NOTHING
        seen: set[str] = set()
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo.extend(self.parents.get(name, ()))
        return frozenset(seen)

    def way(self, start: Iterable[str], goal: str) -> tuple[str, ...]:
        """Returns the containers on a shortest path from one of `start`, which may be a container itself, to `goal`; ()
        if there is none. A name in `start` that is the goal is a path: a token may grant the role directly."""
        came_from: dict[str, str] = {}
        queue = deque(sorted(start))
        seen = set(queue)
        while queue:
            name = queue.popleft()
            if name == goal:
                way = [name]
                while name in came_from:
                    name = came_from[name]
                    way.append(name)
                return tuple(filter(_is_container, reversed(way)))
            for container in self.parents.get(name, ()):
                if container not in seen:
                    seen.add(container)
                    came_from[container] = name
                    queue.append(container)
        return ()

    def members(self, container: str) -> frozenset[str]:
        """Returns the direct and indirect members of a container, including other containers."""
        inner = {name for name in self.parents if _is_container(name) and container in self.closure((name,))}
        return frozenset(name for name, above in self.parents.items() if not {container, *inner}.isdisjoint(above))

    def contents(self) -> Mapping[str, frozenset[str]]:
        """Returns the direct and indirect members of each container, including other containers."""
        contents: dict[str, set[str]] = {}
        for name in self.parents:
            for container in self.closure((name,)):
                contents.setdefault(container, set()).add(name)
        return {container: frozenset(names) for container, names in contents.items()}

    def cycle(self) -> tuple[str, ...]:
        """Returns one cycle, with its first name repeated at the end; () if there is none."""
        try:
            self._order().prepare()
        except CycleError as error:
            first, *others = reversed(error.args[1])
            names = (first, *others[:-1])
            begin = names.index(min(names))
            return (*names[begin:], *names[: begin + 1])
        return ()

    def chains(self) -> Mapping[str, int]:
        """Returns the number of containers on the longest chain from each name; a container counts itself. Links are
        acyclic."""
        chains = {container: 1 for above in self.parents.values() for container in above}
        for name in self._order().static_order():
            chains[name] = 1 + max((chains[parent] for parent in self.parents.get(name, ())), default=0)
        members = self.parents.keys() - chains.keys()
        return chains | {name: max(chains[parent] for parent in self.parents[name]) for name in members}

    def _order(self) -> TopologicalSorter[str]:
        """Returns a sorter of the containers, outer ones first. Only containers can be in a cycle."""
        return TopologicalSorter({name: above for name, above in self.parents.items() if _is_container(name)})


class RolePaths:
    """Evaluates `g` or `g2`, by domain. Without domains, all links are in domain "".

    `holding` is for sets: it returns the sets that contain an object on a server. `members` are all names in a
    container, of all domains together."""

    def __init__(self, links: Mapping[str, RoleLinks], *, by_domain: bool = False) -> None:
        self._links = links
        self._by_domain = by_domain
        self._above = {domain: _above(one) for domain, one in links.items()}
        self._on_server: Mapping[str, frozenset[str]] | None = None
        self._members: Mapping[str, set[str]] | None = None

    def within(self, domain: str) -> RoleLinks:
        return self._links.get(domain if self._by_domain else "", _NO_LINKS)

    def containers(self, name: str, domain: str) -> frozenset[str]:
        """Returns every direct and indirect container of a name in a domain."""
        where = domain if self._by_domain else ""
        links = self._links.get(where)
        parents = links.parents.get(name) if links is not None else None
        if not parents:
            return _NOTHING
        above = self._above[where]
        return above[parents[0]] if len(parents) == 1 else _NOTHING.union(*[above[parent] for parent in parents])

    def holds(self, name: str, container: str, domain: str) -> bool:
        """Whether a name is in a container, or is the container, like the function in matchers."""
        return name == container or container in self.containers(name, domain)

    def members(self, container: str) -> Set[str]:
        if self._members is None:
            found: dict[str, set[str]] = {}
            for links in self._links.values():
                for name, names in links.contents().items():
                    found.setdefault(name, set()).update(names)
            self._members = found
        return self._members.get(container, _NOTHING)

    def holding(self, server: str) -> frozenset[str]:
        """Returns the containers that hold the server or an object on it."""
        if self._on_server is None:
            found: dict[str, set[str]] = {}
            for links in self._links.values():
                for container, names in links.contents().items():
                    for name in names:
                        server = name.partition(":")[2].partition("/")[0]
                        found.setdefault(server, set()).add(container)
            self._on_server = {server: frozenset(containers) for server, containers in found.items()}
        return self._on_server.get(server, _NOTHING)


def _above(links: RoleLinks) -> Mapping[str, frozenset[str]]:
    """Returns, for every container, the container and all its containers. Containers are few."""
    containers = {container for found in links.parents.values() for container in found}
    return {container: links.closure((container,)) | {container} for container in containers}


def domain_of(name: str) -> str:
    """Returns the namespace in `user:<namespace>/<id>`, which is the domain of a model with domains; otherwise `-`."""
    return name.partition(":")[2].partition("/")[0] if "/" in name else NONE


def is_granted(name: str) -> bool:
    """Whether a token may grant the role: `role:<namespace>/<value>`."""
    return name.startswith("role:") and "/" in name


def _is_container(name: str) -> bool:
    return name.startswith(("role:", "set:"))


_NO_LINKS = RoleLinks()


@dataclass(eq=False, slots=True)
class PolicySubject:
    """A principal as rows see it. `granted` are the roles of its token, `roles` all its roles; `domain` is its
    namespace, or `-`. While cached, each principal has exactly one object, which is also used as a key."""

    name: str
    granted: frozenset[str]
    roles: frozenset[str]
    domain: str


class PolicySubjects:
    """The principals of one policy, resolved and cached."""

    def __init__(self, ways: RolePaths) -> None:
        self._ways = ways
        self._known = lru_cache(MAX_SUBJECTS)(partial(_subject, ways))
        self.forget = self._known.cache_clear

    def asker(self, principal: Principal) -> PolicySubject:
        return self._known(principal.name, principal.roles)

    def roles_of(self, principal: Principal) -> frozenset[str]:
        return self.asker(principal).roles

    def behind(self, asker: PolicySubject, subjects: Iterable[str]) -> tuple[str, ...]:
        """Returns the roles through which a principal has those of `subjects` that are its roles, these included."""
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


def _subject(ways: RolePaths, name: str, granted: frozenset[str]) -> PolicySubject:
    domain = domain_of(name)
    roles = ways.containers(name, domain)
    for role in granted:
        roles = roles | {role} | ways.containers(role, domain)
    return PolicySubject(name, granted, roles, domain)
