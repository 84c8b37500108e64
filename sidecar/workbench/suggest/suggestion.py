"""Which are the fewest rules that allow what was recorded, and on which records does each stand?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sidecar.vocabulary import ANONYMOUS, PermissionKind
from sidecar.workbench.suggest.evidence import KINDS, MAX_CITED, Evidence, Trace, Triple
from sidecar.workbench.suggest.grid import Grid, components
from sidecar.workbench.suggest.known import Known
from sidecar.workbench.suggest.naming import role_name, rule_id, set_name
from sidecar.workbench.suggest.present import Present
from sidecar.workbench.suggest.shape import Draft, Names, Shaper


@dataclass(frozen=True, slots=True)
class Suggested:
    """One rule, and what it stands on: `uses` of `triples` distinct triples, up to three decisions. `rests_on` are the
    rules that those decisions rested on. `widened` are known objects that it allows beyond what was used."""

    id: str
    kind: PermissionKind
    subject: str
    object: str
    actions: tuple[str, ...]
    subjects: tuple[str, ...]
    objects: tuple[str, ...]
    widened: tuple[str, ...]
    triples: int
    uses: int
    first: str
    last: str
    decisions: tuple[str, ...]
    rests_on: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Rules, and what is in the roles and sets that they name; `reused` are those that the present policy has.

    No cover with fewer than `at_least` rules exists: with as many, the fewest are proved.
    """

    rules: tuple[Suggested, ...]
    roles: Mapping[str, tuple[str, ...]]
    sets: Mapping[str, tuple[str, ...]]
    reused: frozenset[str]
    at_least: int


def suggest(evidence: Evidence, known: Known, present: Present, *, patterns: bool = True, widen: int = 0) -> Suggestion:
    """The suggestion for what was read. With `widen`, a pattern may fit so many known objects that were not used."""
    shaper = Shaper(known, frozenset(present.roles), frozenset(present.sets), patterns, widen)
    drafts: list[Draft] = []
    at_least = 0
    for kind in KINDS:
        triples = [triple for triple in evidence.traces if triple.kind is kind]
        for part in _parts(triples, widen):
            found, fewest = shaper.rules(kind, Grid.of(part))
            drafts += found
            at_least += fewest
    return _named(drafts, shaper, evidence, present, at_least)


def _parts(triples: list[Triple], widen: int) -> list[list[Triple]]:
    """What can be covered by itself. A wide pattern may span all, but for `anonymous`, which no role can hold."""
    if not widen:
        return components(triples, lambda subject: subject == ANONYMOUS)
    parts = [[t for t in sorted(triples) if (t.subject == ANONYMOUS) is alone] for alone in (False, True)]
    return [part for part in parts if part]


def _named(drafts: list[Draft], shaper: Shaper, evidence: Evidence, present: Present, at_least: int) -> Suggestion:
    taken = set(present.taken)
    ordered = sorted(drafts, key=lambda draft: (KINDS.index(draft.kind), sorted(draft.subjects), sorted(draft.objects)))
    roles: dict[Names, str] = {}
    sets: dict[Names, str] = {}
    for draft in ordered:
        if len(draft.subjects) > 1 and draft.subjects not in roles:
            roles[draft.subjects] = present.roles.get(draft.subjects) or role_name(draft.subjects, taken)
    for draft in ordered:
        if not draft.object and draft.objects not in sets:
            owner = roles.get(draft.subjects) or min(draft.subjects)
            sets[draft.objects] = present.sets.get(draft.objects) or set_name(draft.objects, owner, taken)
    by_subject = _by_subject(evidence)
    rules = []
    for draft in ordered:
        subject = roles.get(draft.subjects) or min(draft.subjects)
        obj = draft.object or sets[draft.objects]
        rules.append(_rule(draft, rule_id(draft, subject, obj, taken), subject, obj, by_subject))
    return Suggestion(
        rules=tuple(sorted(rules, key=lambda rule: (KINDS.index(rule.kind), rule.subject, rule.object, rule.actions))),
        roles={name: tuple(sorted(group)) for group, name in sorted(roles.items(), key=lambda item: item[1])},
        sets={name: tuple(sorted(group)) for group, name in sorted(sets.items(), key=lambda item: item[1])},
        reused=frozenset({*roles.values(), *sets.values()} & present.taken),
        at_least=at_least,
    )


_BySubject = Mapping[tuple[PermissionKind, str], list[tuple[Triple, Trace]]]


def _by_subject(evidence: Evidence) -> _BySubject:
    found: dict[tuple[PermissionKind, str], list[tuple[Triple, Trace]]] = {}
    for triple, trace in evidence.traces.items():
        found.setdefault((triple.kind, triple.subject), []).append((triple, trace))
    return found


def _rule(draft: Draft, id_: str, subject: str, obj: str, by_subject: _BySubject) -> Suggested:
    traces = [
        trace
        for name in sorted(draft.subjects)
        for triple, trace in by_subject[draft.kind, name]
        if triple.object in draft.objects and triple.action in draft.actions
    ]
    return Suggested(
        id=id_,
        kind=draft.kind,
        subject=subject,
        object=obj,
        actions=draft.actions,
        subjects=tuple(sorted(draft.subjects)),
        objects=tuple(sorted(draft.objects)),
        widened=draft.widened,
        triples=len(traces),
        uses=sum(trace.uses for trace in traces),
        first=min(trace.first for trace in traces),
        last=max(trace.last for trace in traces),
        decisions=_cited(traces),
        rests_on=tuple(sorted({rule for trace in traces for rule in trace.rules})),
    )


def _cited(traces: Iterable[Trace]) -> tuple[str, ...]:
    """Up to three decisions, of different triples as far as there are."""
    found: dict[str, None] = {}
    known = list(traces)
    for place in range(MAX_CITED):
        for trace in known:
            if len(found) == MAX_CITED:
                return tuple(found)
            found.update(dict.fromkeys(trace.decisions[place : place + 1]))
    return tuple(found)
