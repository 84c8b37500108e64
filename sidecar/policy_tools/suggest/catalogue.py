"""Collects the names that are known to exist; a suggestion may allow none of them beyond recorded use.

The names are those seen in the log, every exact name of the present policy, the entries of a catalogue, and each of
these principals as an NHI that others could call.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sidecar.policy import PolicySource, grammar
from sidecar.policy.patterns import WILDCARD, glob
from sidecar.vocabulary import ANONYMOUS, PermissionKind

_PRINCIPALS = ("user:", "nhi:")
_THINGS = (*grammar.ON_SERVERS, "nhi:")
_AFTER_EVERYTHING = chr(0x10FFFF)


@dataclass(frozen=True, slots=True)
class Known:
    """Every known name, sorted, so that pattern matches are found by prefix. `listed` as in KnownCatalogue."""

    subjects: tuple[str, ...]
    objects: tuple[str, ...]
    listed: frozenset[str] = frozenset()

    @classmethod
    def of(cls, subjects: Iterable[str], objects: Iterable[str], listed: frozenset[str] = frozenset()) -> Known:
        """Collect the names. Every NHI is an object too: others may call it."""
        principals = frozenset(subjects)
        nhis = {name for name in principals if name.startswith("nhi:")}
        return cls(tuple(sorted(principals)), tuple(sorted({*objects} | nhis)), listed)

    def fitting(self, pattern: str) -> list[str]:
        """Return the known objects that a rule's object, exact or pattern, matches."""
        head = pattern.partition(WILDCARD)[0]
        start = bisect_left(self.objects, head)
        end = bisect_left(self.objects, head + _AFTER_EVERYTHING)
        return [name for name in self.objects[start:end] if glob(name, pattern)]

    def subjects_of(self, kind: PermissionKind) -> list[str]:
        """Return the possible subjects of a permission kind (CONTRACT 1.3)."""
        match kind:
            case PermissionKind.NHI_TO_NHI:
                return [name for name in self.subjects if name.startswith("nhi:")]
            case PermissionKind.USER_TO_NHI:
                return [name for name in self.subjects if not name.startswith("nhi:")]
        return list(self.subjects)

    def objects_of(self, kind: PermissionKind) -> Sequence[str]:
        """Return the possible objects of a permission kind."""
        if kind is PermissionKind.AGENT_TO_TOOL:
            return self.objects
        return [name for name in self.objects if name.startswith("nhi:")]


def names_in(source: PolicySource) -> tuple[set[str], set[str]]:
    """Return the exact subjects and objects that a policy names, in rules, roles and sets."""
    subjects = {name for name in source.roles.parents if name.startswith(_PRINCIPALS)}
    objects = {name for name in source.sets.parents if name.startswith(_THINGS)}
    for rule in source.rules:
        if WILDCARD not in rule.subject and (rule.subject.startswith(_PRINCIPALS) or rule.subject == ANONYMOUS):
            subjects.add(rule.subject)
        if WILDCARD not in rule.object and rule.object.startswith(_THINGS):
            objects.add(rule.object)
    return subjects, objects
