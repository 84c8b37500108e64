"""Reuses roles and sets of the current policy in suggestions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sidecar.policy import PolicySource
from sidecar.policy.roles import RoleLinks
from sidecar.policy_tools.suggest.evidence import KINDS
from sidecar.policy_tools.suggest.terms import Terms
from sidecar.vocabulary import PermissionKind

COLUMNS = ("sub", "obj", "act", "expires_at", "max_calls_per_hour", "when", "eft")


@dataclass(frozen=True, slots=True)
class Present:
    """`roles` and `sets` by members; `taken` are all names of roles, sets and rules; `terms` is what a rule requires
    beside subject, object and action, in words, by its id; `source` is the policy itself, whose terms a suggestion
    keeps, and None if they are dropped.
    """

    roles: Mapping[frozenset[str], str] = field(default_factory=dict)
    sets: Mapping[frozenset[str], str] = field(default_factory=dict)
    taken: frozenset[str] = frozenset()
    terms: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[PermissionKind, tuple[str, ...]] = field(default_factory=lambda: dict.fromkeys(KINDS, COLUMNS))
    source: PolicySource | None = None

    @classmethod
    def of(cls, source: PolicySource) -> Present:
        """Read a loaded policy. Roles with a slash may be granted by tokens too, so their members are unknown."""
        taken = {name for links in (source.roles, source.sets) for above in links.parents.values() for name in above}
        terms: dict[str, str] = {}
        for rule in source.rules:
            taken |= {rule.id, rule.subject, rule.object}
            said = str(Terms(rule.when, rule.expires_at, rule.max_calls_per_hour, rule.per))
            if said:
                terms.setdefault(rule.id, said)
        return cls(
            roles=_by_contents(source.roles, lambda name: "/" not in name),
            sets=_by_contents(source.sets, lambda _: True),
            taken=frozenset(taken),
            terms=terms,
            columns={kind: tuple(model.columns) for kind, model in source.models.items()},
            source=source,
        )


def _by_contents(links: RoleLinks, fit: Callable[[str], bool]) -> dict[frozenset[str], str]:
    """Return names by direct and indirect members. Of two with the same members, the first by name."""
    found: dict[frozenset[str], str] = {}
    for name, contents in sorted(links.contents().items()):
        exact = frozenset(each for each in contents if not each.startswith(("role:", "set:")))
        if exact and fit(name):
            found.setdefault(exact, name)
    return found
