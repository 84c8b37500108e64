"""Builds suggestions and cites their records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sidecar.policy_tools.suggest.catalogue import Known
from sidecar.policy_tools.suggest.current_policy import Present
from sidecar.policy_tools.suggest.evidence import KINDS, MAX_CITED, Trace, Triple, UsageEvidence
from sidecar.policy_tools.suggest.naming import role_name, rule_id, set_name
from sidecar.policy_tools.suggest.rule_shape import Names, RuleDraft, RuleShaper
from sidecar.policy_tools.suggest.terms import NOTHING_CARRIED, PLAIN, Backed, Backing, Carried, Terms, carried, grouped
from sidecar.policy_tools.suggest.usage_grid import Grid, components
from sidecar.vocabulary import ANONYMOUS, PermissionKind


@dataclass(frozen=True, slots=True)
class Suggested:
    """One rule with its evidence: `uses` of `triples` distinct triples, and up to three decisions. `rests_on` are the
    rules that those decisions rested on. `widened` are known objects that it allows beyond what was used. A rule with a
    limit may have several rows: `part` is true for those after the first, which have its id.
    """

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
    terms: Terms = PLAIN
    part: bool = False


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Rules, and the members of the roles and sets that they name; `reused` are those of the present policy, and
    `carried` what is carried over from it unchanged.

    No cover with fewer than `at_least` rules exists: if there are as many, they are proved to be the fewest.
    """

    rules: tuple[Suggested, ...]
    roles: Mapping[str, tuple[str, ...]]
    sets: Mapping[str, tuple[str, ...]]
    reused: frozenset[str]
    at_least: int
    carried: Carried = NOTHING_CARRIED

    def bare(self) -> Suggestion:
        """Return the same rules without their terms and what is carried over: their meaning for known names."""
        rules = tuple(replace(rule, terms=PLAIN) for rule in self.rules)
        return replace(self, rules=rules, carried=NOTHING_CARRIED)


def suggest(
    evidence: UsageEvidence, known: Known, present: Present, *, patterns: bool = True, widen: int = 0
) -> Suggestion:
    """Return the suggestion for the recorded use. With `widen`, a pattern may match that many unused known objects.

    Without the source of the present policy, the suggestion is the use without terms, which may be more than that
    policy allows.
    """
    source = present.source
    groups = grouped(evidence, Backing(source) if source else None)
    shaper = RuleShaper(known, frozenset(present.roles), frozenset(present.sets), patterns, widen)
    drafts: list[RuleDraft] = []
    at_least = 0
    for kind in KINDS:
        for said, backed in sorted(groups.get(kind, {}).items(), key=lambda item: repr(item[0])):
            found, fewest = _group(shaper, kind, backed, widen)
            drafts += _under(said, found)
            at_least += fewest
    whole = carried(source, {draft.terms.when for draft in drafts}) if source else NOTHING_CARRIED
    return _named(drafts, shaper, evidence, present, at_least, whole)


def _group(shaper: RuleShaper, kind: PermissionKind, backed: Backed, widen: int) -> tuple[list[RuleDraft], int]:
    drafts: list[RuleDraft] = []
    at_least = 0
    for part in _parts(backed.triples, widen):
        found, fewest = shaper.rules(kind, Grid.of(part), backed)
        drafts += found
        at_least += fewest
    return drafts, at_least


def _under(terms: Terms, drafts: list[RuleDraft]) -> list[RuleDraft]:
    """Return the drafts with their terms. What one limit counts is one rule, and all its parts have the same
    actions.
    """
    if terms.limit is None or len(drafts) < 2:
        return [replace(draft, terms=terms) for draft in drafts]
    actions = tuple(sorted({action for draft in drafts for action in draft.actions}))
    alike = [_for_actions(replace(draft, terms=terms), actions) for draft in sorted(drafts, key=_order)]
    return [alike[0], *(replace(draft, whole=alike[0]) for draft in alike[1:])]


def _for_actions(draft: RuleDraft, actions: tuple[str, ...]) -> RuleDraft:
    if draft.actions == actions:
        return draft
    return replace(draft, actions=actions, widened=tuple(sorted(draft.objects)))


def _order(draft: RuleDraft) -> tuple[int, list[str], list[str]]:
    return KINDS.index(draft.kind), sorted(draft.subjects), sorted(draft.objects)


def _parts(triples: list[Triple], widen: int) -> list[list[Triple]]:
    """Split the triples into parts that can be covered separately. A wide pattern may span all, except for `anonymous`,
    which no role can hold.
    """
    if not widen:
        return components(triples, lambda subject: subject == ANONYMOUS)
    parts = [[t for t in sorted(triples) if (t.subject == ANONYMOUS) is alone] for alone in (False, True)]
    return [part for part in parts if part]


def _named(
    drafts: list[RuleDraft],
    shaper: RuleShaper,
    evidence: UsageEvidence,
    present: Present,
    at_least: int,
    whole: Carried,
) -> Suggestion:
    taken = set(present.taken)
    ordered = sorted(drafts, key=_order)
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
    rules: dict[RuleDraft, list[Suggested]] = {}
    for draft in sorted(ordered, key=lambda draft: draft.whole is not None):
        subject = roles.get(draft.subjects) or min(draft.subjects)
        obj = draft.object or sets[draft.objects]
        parts = rules.setdefault(draft.whole or draft, [])
        name = parts[0].id if parts else rule_id(draft, subject, obj, taken)
        parts.append(_rule(draft, name, subject, obj, by_subject))
    found = sorted(rules.values(), key=lambda parts: (KINDS.index(parts[0].kind), *_said(parts[0])))
    return Suggestion(
        rules=tuple(rule for parts in found for rule in parts),
        roles={name: tuple(sorted(group)) for group, name in sorted(roles.items(), key=lambda item: item[1])},
        sets={name: tuple(sorted(group)) for group, name in sorted(sets.items(), key=lambda item: item[1])},
        reused=frozenset({*roles.values(), *sets.values()} & present.taken),
        at_least=at_least,
        carried=whole,
    )


def _said(rule: Suggested) -> tuple[str, str, tuple[str, ...]]:
    return rule.subject, rule.object, rule.actions


_BySubject = Mapping[tuple[PermissionKind, str], list[tuple[Triple, Trace]]]


def _by_subject(evidence: UsageEvidence) -> _BySubject:
    found: dict[tuple[PermissionKind, str], list[tuple[Triple, Trace]]] = {}
    for triple, trace in evidence.traces.items():
        found.setdefault((triple.kind, triple.subject), []).append((triple, trace))
    return found


def _rule(draft: RuleDraft, id_: str, subject: str, obj: str, by_subject: _BySubject) -> Suggested:
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
        terms=draft.terms,
        part=draft.whole is not None,
    )


def _cited(traces: Iterable[Trace]) -> tuple[str, ...]:
    """Return up to three decisions, of different triples as far as possible."""
    found: dict[str, None] = {}
    known = list(traces)
    for place in range(MAX_CITED):
        for trace in known:
            if len(found) == MAX_CITED:
                return tuple(found)
            found.update(dict.fromkeys(trace.decisions[place : place + 1]))
    return tuple(found)
