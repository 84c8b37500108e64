"""What of the present policy can a suggestion use, and what must its reader carry over?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sidecar.policy import PolicySource
from sidecar.policy.roles import Links
from sidecar.vocabulary import PermissionKind, Rule
from sidecar.workbench.suggest.evidence import KINDS

COLUMNS = ("sub", "obj", "act", "expires_at", "max_calls_per_hour", "when", "eft")


@dataclass(frozen=True, slots=True)
class Present:
    """`roles` and `sets` by what is in them; `taken` every name of a role, set or rule; `terms` what a rule asks
    beside subject, object and action, in words, by its id."""

    roles: Mapping[frozenset[str], str] = field(default_factory=dict)
    sets: Mapping[frozenset[str], str] = field(default_factory=dict)
    taken: frozenset[str] = frozenset()
    terms: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[PermissionKind, tuple[str, ...]] = field(default_factory=lambda: dict.fromkeys(KINDS, COLUMNS))

    @classmethod
    def of(cls, source: PolicySource) -> Present:
        """What a loaded policy has. Roles with a slash may be granted by tokens too: nobody knows who is in them."""
        taken = {name for links in (source.roles, source.sets) for above in links.parents.values() for name in above}
        terms: dict[str, str] = {}
        for rule in source.rules:
            taken |= {rule.id, rule.subject, rule.object}
            said = _terms(rule)
            if said:
                terms.setdefault(rule.id, said)
        return cls(
            roles=_by_contents(source.roles, lambda name: "/" not in name),
            sets=_by_contents(source.sets, lambda _: True),
            taken=frozenset(taken),
            terms=terms,
            columns={kind: tuple(source.models[kind].columns) for kind in KINDS},
        )


def _by_contents(links: Links, fit: Callable[[str], bool]) -> dict[frozenset[str], str]:
    """Names by what is in them, roles within roles looked through. Of two alike, the first by name."""
    found: dict[frozenset[str], str] = {}
    for name, contents in sorted(links.contents().items()):
        exact = frozenset(each for each in contents if not each.startswith(("role:", "set:")))
        if exact and fit(name):
            found.setdefault(exact, name)
    return found


def _terms(rule: Rule) -> str:
    said = []
    if rule.when:
        said.append(f"when {rule.when}")
    if rule.max_calls_per_hour is not None:
        said.append(f"{rule.max_calls_per_hour} an hour per {rule.per}")
    if rule.expires_at is not None:
        said.append(f"until {datetime.fromtimestamp(rule.expires_at, UTC).isoformat().replace('+00:00', 'Z')}")
    return "; ".join(said)
