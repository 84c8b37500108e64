"""Compares the access that two policies grant: `load` both, then `difference`.

The comparison covers every question that a policy answers: (subject, object, action) of one kind; guardrails are a
fourth kind that can only deny. Nothing is sampled: a question that is in no region has the same answer in both. Kinds
that Casbin models of other forms decide are compared as written (`casbin_rows`).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from sidecar.errors import ConfigError
from sidecar.limits import Budgets, load_budgets
from sidecar.policy import PolicySource
from sidecar.policy.grammar import ACTIONS
from sidecar.policy_tools.catalogue import exact_names
from sidecar.policy_tools.diff import rules as texts, terms
from sidecar.policy_tools.diff.access_changes import lifted, lost_limits
from sidecar.policy_tools.diff.casbin_rows import CasbinRowChange, casbin_difference
from sidecar.policy_tools.diff.describe import merged
from sidecar.policy_tools.diff.regions import Change, Region, changed_regions, with_something_in_them
from sidecar.policy_tools.diff.search import Search, TooHard
from sidecar.policy_tools.git_revisions import Revision
from sidecar.policy_tools.glob_algebra import TooManyStates
from sidecar.vocabulary import PermissionKind, RuleRef

MAX_KNOWN = 20_000  # names of each side of a question, by which examples are found


class ComparedPolicy(NamedTuple):
    """One of the two policies. `rules` are those of the sidecar's own models. `shown` returns a file name as the user
    knows it."""

    label: str
    source: PolicySource
    rules: tuple[RuleRef, ...]
    budgets: Budgets
    shown: Callable[[str], str] = str


@dataclass(frozen=True)
class Difference:
    """All differences. `notes` name what was not compared, and why; `moved` are the roles and sets whose members
    changed; `lifted` are rules whose limits another rule now bypasses."""

    old: str
    new: str
    regions: tuple[Region, ...]
    rules: texts.RuleChanges
    budgets: tuple[texts.Edit, ...]
    roles: tuple[texts.LinkChange, ...]
    sets: tuple[texts.LinkChange, ...]
    models: tuple[texts.ModelChange, ...]
    notes: tuple[str, ...]
    old_ids: frozenset[str]
    new_ids: frozenset[str]
    moved: frozenset[str]
    lifted: tuple[RuleRef, ...] = ()
    approvers: tuple[texts.Edit, ...] = ()
    casbin: tuple[CasbinRowChange, ...] = ()

    @cached_property
    def counts(self) -> Mapping[str, int]:
        found = Counter(region.change for region in self.regions)
        return {change: found[change] for change in _CHANGES}

    @property
    def may_be_wider(self) -> bool:
        edits = [edit for change in self.rules.changed for edit in change.edits if edit.field in _AMOUNTS]
        if self.lifted or any(region.change != "narrower" for region in self.regions):
            return True
        return any(edit.change in ("wider", "unknown") for edit in (*edits, *self.budgets, *self.approvers))

    @property
    def anything(self) -> bool:
        rules = self.rules.added or self.rules.removed or self.rules.changed or self.casbin
        return bool(self.regions or rules or self.budgets or self.roles or self.sets or self.models)


_CHANGES: tuple[Change, ...] = ("wider", "narrower", "unknown")
_AMOUNTS = ("max_calls_per_hour", "per", "approval")


def load(revision: Revision) -> ComparedPolicy:
    """Reads one of the two policies, without the limits of agents in sidecar.yaml. Raises ConfigError, with file names
    as the user knows them."""
    try:
        source = revision.place.load()
        budgets = load_budgets(revision.place.policies / "budgets.yaml")
    except ConfigError as error:
        raise type(error)([replace(fault, file=revision.shown(fault.file)) for fault in error.faults]) from None
    rules = tuple(rule._replace(file=revision.shown(rule.file)) for rule in source.own_rules)
    return ComparedPolicy(revision.label, source, rules, budgets, revision.shown)


def difference(old: ComparedPolicy, new: ComparedPolicy, objects: frozenset[str] | None = None) -> Difference:
    """Returns all differences. With `objects`, a region is included only if it contains one of these or of the objects
    that the policies name, or was not computed."""
    regions, notes, limits = _regions(old, new)
    stock = casbin_difference(old.source, new.source, lambda file, is_new: (new if is_new else old).shown(file))
    notes += stock.notes
    if objects is not None:
        subjects, named = exact_names((old.rules, new.rules), (old.source, new.source), MAX_KNOWN)
        regions = list(with_something_in_them(regions, subjects, {*objects, *named}))
    regions += (_anything_of(kind, change) for kind, change in stock.kinds.items())
    return Difference(
        old=old.label,
        new=new.label,
        regions=tuple(merged(regions)),
        rules=texts.rule_changes(old.rules, new.rules),
        budgets=(
            *texts.budget_changes(old.budgets, new.budgets),
            *texts.moved_budgets(old.budgets, new.budgets, old.source.roles, new.source.roles),
        ),
        roles=texts.role_changes(old.source, new.source),
        sets=texts.link_changes(old.source.sets, new.source.sets),
        models=(*texts.model_changes(old.source, new.source), *stock.models),
        notes=tuple(notes),
        old_ids=frozenset(rule.id for rule in old.rules),
        new_ids=frozenset(rule.id for rule in new.rules),
        moved=terms.moved(old.source, new.source),
        lifted=tuple(limits),
        approvers=tuple(texts.moved_approvers(old.rules, new.rules, old.source, new.source)),
        casbin=stock.rows,
    )


def _anything_of(kind: PermissionKind, change: Change = "unknown") -> Region:
    """Returns the region of all questions of a kind, for answers that were not compared."""
    everything = ((terms.EVERY_CALLER,), (terms.EVERYTHING,), ACTIONS, terms.ALWAYS)
    return Region(kind, change, *everything, None, (), undecided=True)


def _regions(old: ComparedPolicy, new: ComparedPolicy) -> tuple[list[Region], list[str], list[RuleRef]]:
    touched = terms.changed_meanings(old.rules, new.rules, old.source, new.source)
    reader, places = terms.Reader(old.source, new.source), {terms.place_of(meaning.object) for meaning in touched}
    places |= {terms.place_of(rule.object) for rule in lost_limits(old.rules, new.rules)}
    asking = terms.changed_demands(old.rules, new.rules)
    places |= {terms.place_of(rule.object) for rule in asking}
    # Rules whose objects are all on servers without a change have the same effect in both policies.
    near_old, near_new = (
        [rule for rule in side.rules if "" in places or (place := terms.place_of(rule.object)) in places or not place]
        for side in (old, new)
    )
    before, after = reader.sides(near_old, old.source, terms.THEN), reader.sides(near_new, new.source, terms.NOW)
    names = exact_names((old.rules, new.rules), (old.source, new.source), MAX_KNOWN)
    regions: list[Region] = []
    notes: list[str] = []
    limits: list[RuleRef] = []
    for kind in {rule.kind: None for rule in (*old.rules, *new.rules)}:
        note = _other_model(old.source, new.source, kind)
        try:
            limits += [] if note else lifted(before[kind], after[kind])
        except TooHard:
            note = f"{kind.value}: so much is different that limits were not worked out; see the rules"
        if not note and not any(rule.kind is kind for rule in (*touched, *asking)):
            continue
        try:
            found = [] if note else changed_regions(Search(kind, *names), kind, before[kind], after[kind])
        except (TooHard, TooManyStates):
            note = f"{kind.value}: so much is different that its regions were not worked out; see the rules"
        if note:
            notes.append(note)
            found = [_anything_of(kind)]
        elif any(region.undecided for region in found):
            notes.append(f"{kind.value}: too many patterns meet; regions without a witness may be empty")
        regions += found
    return regions, notes, limits


def _other_model(old: PolicySource, new: PolicySource, kind: PermissionKind) -> str:
    """Returns why a kind cannot be compared; "" if it has the built-in model in both policies, without domains, or if
    nothing changed."""
    if old.revision == new.revision:
        return ""
    if old.domains or new.domains:  # the engine then uses the caller's own domain, in every kind
        return f"{kind.value}: roles have domains; what its rows mean together is not worked out"
    if texts.is_shipped(old, kind) and texts.is_shipped(new, kind):
        return ""
    if any(change.kind is kind for change in texts.model_changes(old, new)):
        return f"{kind.value}: the model changed; any answer of this kind may be another one"
    return f"{kind.value}: not the shipped model; what its rows mean together is not worked out"
