"""Builds suggestions, cites their records, and names their roles, sets and rules by the common part of their members.

Roles and sets of the present policy with the same members are used again. A new name is none that the present policy
has, and a new role's name has no slash, because tokens grant such roles.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import chain, count, zip_longest
from typing import NamedTuple, Self

from sidecar.policy_tools.catalogue import Known
from sidecar.policy_tools.suggest.evidence import KINDS, MAX_CITED, Trace, Triple, UsageEvidence
from sidecar.policy_tools.suggest.grid import Grid, components
from sidecar.policy_tools.suggest.rule_shape import Names, RuleDraft, RuleShaper, common_head
from sidecar.policy_tools.suggest.terms import NOTHING_CARRIED, PLAIN, Carried, Present, Terms, carried, grouped
from sidecar.vocabulary import ANONYMOUS, PermissionKind

SUGGESTED = "suggested"
_MAX_STEM = 48
_MAX_ID = 128  # from the grammar of rule ids
_MEMBERS = {"nhi": "agents", "user": "users"}
_THINGS = {"tool": "tools", "prompt": "prompts", "resource": "resources", "nhi": "agents"}
_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9._\-]+")
_WORD_ENDS = "_-./:"


class Suggested(NamedTuple):
    """One row of a rule with its evidence: `uses` of `triples` distinct triples, the times of the `first` and `last`,
    and up to MAX_CITED decisions. `rests_on` are the rules that decided these uses. `widened` are known objects that it
    allows although not all of its subjects used them with all of its actions. A rule with a limit may have several
    rows: `part` is true for those after the first, which have its id."""

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


class Suggestion(NamedTuple):
    """Rules, and the members of the roles and sets that they name. `reused` are those roles and sets that the present
    policy has, `carried` its parts that are carried over unchanged. `fewest`: it is proved that fewer rules are not
    enough."""

    rules: tuple[Suggested, ...]
    roles: Mapping[str, tuple[str, ...]]
    sets: Mapping[str, tuple[str, ...]]
    reused: frozenset[str]
    fewest: bool = False
    carried: Carried = NOTHING_CARRIED

    def bare(self) -> Self:
        """Returns the same rules without terms and without carried-over parts, for `prove`."""
        rules = tuple(rule._replace(terms=PLAIN) for rule in self.rules)
        return self._replace(rules=rules, carried=NOTHING_CARRIED)


def suggest(evidence: UsageEvidence, known: Known, present: Present, *, widen: int = 0) -> Suggestion:
    """Returns the suggestion for the recorded use. `widen` is the number of unused known objects that a pattern may
    match. Removes from the evidence the uses that cannot be suggested (`grouped`)."""
    source = present.source
    groups = grouped(evidence, source)
    shaper = RuleShaper(known, frozenset(present.roles), frozenset(present.sets), widen)
    drafts: list[RuleDraft] = []
    fewest = True
    for kind in KINDS:
        for said, backed in sorted(groups.get(kind, {}).items(), key=lambda item: repr(item[0])):
            found: list[RuleDraft] = []
            for part in _parts(backed.triples, widen):
                rules, proved = shaper.rules(kind, Grid.of(part), backed)
                found += rules
                fewest = fewest and proved
            drafts += _under(said, found)
    whole = carried(source, {draft.terms.when for draft in drafts}) if source else NOTHING_CARRIED
    return _named(drafts, evidence, present, fewest, whole)


def _under(terms: Terms, drafts: list[RuleDraft]) -> list[RuleDraft]:
    """Returns the drafts with their terms. A limit counts the calls of one rule, so drafts with the same limit become
    parts of one rule, all with the same actions."""
    if terms.limit is None or len(drafts) < 2:
        return [replace(draft, terms=terms) for draft in drafts]
    actions = tuple(sorted({action for draft in drafts for action in draft.actions}))
    alike: list[RuleDraft] = []
    for draft in sorted(drafts, key=_order):
        widened = draft.widened if draft.actions == actions else tuple(sorted(draft.objects))
        whole = alike[0] if alike else None
        alike.append(replace(draft, terms=terms, actions=actions, widened=widened, whole=whole))
    return alike


def _order(draft: RuleDraft) -> tuple[int, list[str], list[str]]:
    return KINDS.index(draft.kind), sorted(draft.subjects), sorted(draft.objects)


def _parts(triples: list[Triple], widen: int) -> list[list[Triple]]:
    """Splits the triples into parts that are covered separately. With `widen`, only those of `anonymous` are separate,
    because a pattern may match objects of several components."""
    if not widen:
        return components(triples, lambda subject: subject == ANONYMOUS)
    parts = [[t for t in sorted(triples) if (t.subject == ANONYMOUS) is alone] for alone in (False, True)]
    return [part for part in parts if part]


def _named(
    drafts: list[RuleDraft], evidence: UsageEvidence, present: Present, fewest: bool, whole: Carried
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
    by_subject: _BySubject = {}
    for triple, trace in evidence.traces.items():
        by_subject.setdefault((triple.kind, triple.subject), []).append((triple, trace))
    rules: dict[RuleDraft, list[Suggested]] = {}
    for draft in sorted(ordered, key=lambda draft: draft.whole is not None):
        subject = roles.get(draft.subjects) or min(draft.subjects)
        obj = draft.object or sets[draft.objects]
        parts = rules.setdefault(draft.whole or draft, [])
        name = parts[0].id if parts else rule_id(draft, subject, obj, taken)
        parts.append(_rule(draft, name, subject, obj, by_subject))
    found = sorted(
        rules.values(),
        key=lambda parts: (KINDS.index(parts[0].kind), parts[0].subject, parts[0].object, parts[0].actions),
    )
    return Suggestion(
        rules=tuple(rule for parts in found for rule in parts),
        roles={name: tuple(sorted(group)) for group, name in sorted(roles.items(), key=lambda item: item[1])},
        sets={name: tuple(sorted(group)) for group, name in sorted(sets.items(), key=lambda item: item[1])},
        reused=frozenset({*roles.values(), *sets.values()} & present.taken),
        fewest=fewest,
        carried=whole,
    )


_BySubject = dict[tuple[PermissionKind, str], list[tuple[Triple, Trace]]]


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
    """Returns up to MAX_CITED decisions, of different triples as far as possible."""
    ranks = zip_longest(*(trace.decisions for trace in traces), fillvalue="")
    return tuple(dict.fromkeys(decision for rank in ranks for decision in rank if decision))[:MAX_CITED]


def role_name(members: Names, taken: set[str]) -> str:
    """Returns a free name for a role: `role:payments-agents` for nhi:payments-ledger and nhi:payments-refunds,
    `role:suggested-1` for members with nothing in common. Adds it to `taken`."""
    stem, what = _in_common([name.partition(":")[2] for name in members]), _what(members, _MEMBERS, "principals")
    return _free("role:", _joined(stem, what), taken)


def set_name(objects: Names, subject: str, taken: set[str]) -> str:
    """Returns a free name for a set: `set:github-get` for tools with that prefix on one server, `set:planner-tools` for
    various tools of a subject. Adds it to `taken`."""
    rests = [name.partition(":")[2] for name in objects]
    what = _what(objects, _THINGS, "objects")
    servers = {rest.partition("/")[0] for rest in rests}
    stem = _in_common(rests) if len(servers) == 1 or what == "agents" else ""
    if len(servers) == 1 and stem not in map(_slug, servers):
        return _free("set:", stem, taken)  # "github-get" is specific enough
    return _free("set:", _joined(stem or _slug(subject.partition(":")[2]), what), taken)


def rule_id(draft: RuleDraft, subject: str, obj: str, taken: set[str]) -> str:
    """Returns `suggested-<subject>-<object>`, with a digest of the rule's content if that is too long or taken. Adds it
    to `taken`."""
    thing = _slug(obj.partition(":")[2].replace("*", "")) or "all"
    who = _slug(subject.partition(":")[2]) or subject
    stem = f"{SUGGESTED}-{who.removeprefix(f'{SUGGESTED}-')}-{thing.removeprefix(f'{who}-')}"
    if len(stem) > _MAX_ID - 9 or stem in taken:
        box = (sorted(draft.subjects), sorted(draft.objects), draft.object, draft.actions)
        said = repr((draft.kind.value, *box, draft.terms.stated))
        stem = f"{stem[: _MAX_ID - 9]}-{sha256(said.encode()).hexdigest()[:8]}"
    taken.add(stem)
    return stem


def _in_common(names: Sequence[str]) -> str:
    head = common_head(names)
    return _slug(head[: max(head.rfind(mark) for mark in _WORD_ENDS) + 1])


def _joined(stem: str, what: str) -> str:
    singular = f"-{what.removesuffix('s')}"
    return f"{stem.removesuffix(singular)}-{what}" if stem else ""


def _what(names: Collection[str], words: dict[str, str], mixed: str) -> str:
    kinds = {words.get(name.partition(":")[0], mixed) for name in names}
    return kinds.pop() if len(kinds) == 1 else mixed


def _slug(text: str) -> str:
    return _NOT_IN_AN_ID.sub("-", text)[:_MAX_STEM].strip("._-")


def _free(word: str, stem: str, taken: set[str]) -> str:
    name = f"{word}{stem or SUGGESTED}"
    numbered = (f"{name}-{number}" for number in count(2 if stem else 1))
    free = next(one for one in chain([name] if stem else [], numbered) if one not in taken)
    taken.add(free)
    return free
