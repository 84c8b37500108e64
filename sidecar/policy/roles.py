"""Resolves roles and sets.

`g` and `g2` rows are one-way links between exact names: a member has a role, a role may have roles; an object is in a
set, a set may be in sets. Casbin silently stops after ten links and accepts cycles (threats K11); here a chain of more
than eight roles and any cycle are faults at load time, so following links always terminates.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MAX_DEPTH = 8  # CONTRACT 2.1
_NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RoleLinks:
    """Maps each member to its direct containers. `RoleLinks.of` builds it; acyclic once `cycle()` returned ()."""

    parents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> RoleLinks:
        """Build the links from (member, container) pairs, in any order."""
        parents: dict[str, set[str]] = {}
        for member, container in pairs:
            parents.setdefault(member, set()).add(container)
        return cls({member: tuple(sorted(found)) for member, found in sorted(parents.items())})

    def closure(self, start: Iterable[str]) -> frozenset[str]:
        """Return every direct and indirect container of `start`, without `start` itself."""
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
        """Return the containers on a shortest path from one of `start` to `goal`, `goal` last; () if there is none.

        A name in `start` that is the goal itself counts as one step: a token may grant the role directly.
        """
        came_from: dict[str, str] = {}
        queue = deque(sorted(start))
        seen = set(queue)
        while queue:
            name = queue.popleft()
            if name == goal:
                return _walked(name, came_from)
            for container in self.parents.get(name, ()):
                if container not in seen:
                    seen.add(container)
                    came_from[container] = name
                    queue.append(container)
        return ()

    def contents(self) -> Mapping[str, frozenset[str]]:
        """Return the direct and indirect members of every container."""
        contents: dict[str, set[str]] = {}
        for name in self.parents:
            for container in self.closure((name,)):
                contents.setdefault(container, set()).add(name)
        return {container: frozenset(names) for container, names in contents.items()}

    def cycle(self) -> tuple[str, ...]:
        """Return one cycle, with its first name repeated at the end; () if there is none."""
        left = _peeled(self.parents)
        if not left:
            return ()
        path, name = [], min(left)
        while name not in path:
            path.append(name)
            name = next(parent for parent in self.parents[name] if parent in left)
        return (*path[path.index(name) :], name)

    def chains(self) -> Mapping[str, int]:
        """Return for every name the number of containers in the longest chain from it, itself included. Requires
        acyclic links.
        """
        chains: dict[str, int] = {}
        for name in self.parents:
            todo = [name]
            while todo:
                top = todo[-1]
                above = self.parents.get(top, ())
                unknown = [parent for parent in above if parent not in chains]
                if unknown:
                    todo.extend(unknown)
                else:
                    chains[top] = max((chains[parent] for parent in above), default=0) + int(_is_container(top))
                    todo.pop()
        return chains


class RolePaths:
    """Evaluates `g` or `g2`, by domain. Without domains, all links are in the domain "".

    `holding` is for sets: it returns those that contain something on a server.
    """

    def __init__(self, links: Mapping[str, RoleLinks], *, by_domain: bool = False) -> None:
        self._links = links
        self._by_domain = by_domain
        self._above = {domain: _above(one) for domain, one in links.items()}
        self._on_server: Mapping[str, frozenset[str]] | None = None

    def within(self, domain: str) -> RoleLinks:
        """Return the links of one domain."""
        return self._links.get(domain if self._by_domain else "", _NO_LINKS)

    def containers(self, name: str, domain: str) -> frozenset[str]:
        """Return every direct and indirect container of a name."""
        where = domain if self._by_domain else ""
        links = self._links.get(where)
        parents = links.parents.get(name) if links is not None else None
        if not parents:
            return _NOTHING
        above = self._above[where]
        return above[parents[0]] if len(parents) == 1 else _NOTHING.union(*[above[parent] for parent in parents])

    def holds(self, name: str, container: str, domain: str) -> bool:
        """Whether a name is the container, or in it."""
        return name == container or container in self.containers(name, domain)

    def holding(self, server: str) -> frozenset[str]:
        """Return the containers that hold the server or something on it."""
        if self._on_server is None:
            found: dict[str, set[str]] = {}
            for links in self._links.values():
                for container, names in links.contents().items():
                    for name in names:
                        found.setdefault(_server_of(name), set()).add(container)
            self._on_server = {server: frozenset(containers) for server, containers in found.items()}
        return self._on_server.get(server, _NOTHING)


def _above(links: RoleLinks) -> Mapping[str, frozenset[str]]:
    """Return for every container itself and all its containers. There are few; a member's containers are the union of
    these.
    """
    containers = {container for found in links.parents.values() for container in found}
    return {container: links.closure((container,)) | {container} for container in containers}


def _server_of(name: str) -> str:
    return name.partition(":")[2].partition("/")[0]


def _walked(name: str, came_from: Mapping[str, str]) -> tuple[str, ...]:
    way = [name]
    while name in came_from:
        name = came_from[name]
        way.append(name)
    return tuple(step for step in reversed(way) if _is_container(step))


def _is_container(name: str) -> bool:
    return name.startswith(("role:", "set:"))


def _peeled(parents: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """Return the names left after repeatedly removing those without containers."""
    children: dict[str, list[str]] = {}
    above = {name: len(containers) for name, containers in parents.items()}
    for name, containers in parents.items():
        for container in containers:
            children.setdefault(container, []).append(name)
    free = [name for name in children if name not in above]
    while free:
        for child in children.get(free.pop(), ()):
            above[child] -= 1
            if above[child] == 0:
                free.append(child)
    return frozenset(name for name, count in above.items() if count > 0)


_NO_LINKS = RoleLinks()
