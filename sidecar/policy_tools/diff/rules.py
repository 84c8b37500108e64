"""Compares rules, limits, budgets, roles, sets and models as written. Rules are matched by id."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from sidecar.limits import Budgets
from sidecar.limits.amounts import in_units
from sidecar.policy import PolicySource
from sidecar.policy.model import ALLOW_AND_DENY, guardrail_model
from sidecar.policy.roles import RoleLinks, is_granted
from sidecar.policy_tools.diff.condition_parts import conjuncts
from sidecar.policy_tools.diff.describe import actions_text
from sidecar.policy_tools.diff.regions import Change
from sidecar.policy_tools.diff.terms import RowGuard, demands_as_much
from sidecar.policy_tools.rule_text import approval_text, moment
from sidecar.vocabulary import PermissionKind, RuleRef

INFORMATION = ("owner", "reason")
_FIELDS = (
    "kind", "subject", "object", "actions", "effect", "expires_at", "max_calls_per_hour", "when", "per", "shadow",
    "approval", *INFORMATION,
)  # fmt: skip


class Edit(NamedTuple):
    """One changed field of the item `what`; `old` or `new` is None if there was or is no value. `change` is the effect
    of this edit alone, None if it has none or regions report it."""

    what: str
    field: str
    old: Any
    new: Any
    change: Change | None = None


class RuleChange(NamedTuple):
    """One rule of both policies whose content changed. `rules` are its rows in the new policy."""

    rules: tuple[RuleRef, ...]
    edits: tuple[Edit, ...]


class RuleChanges(NamedTuple):
    """Rules that only one policy has, row by row, and rules whose content changed."""

    added: tuple[RuleRef, ...]
    removed: tuple[RuleRef, ...]
    changed: tuple[RuleChange, ...]


class LinkChange(NamedTuple):
    """A member of a role or set that was `added` or `removed` (`how`)."""

    how: str
    member: str
    container: str


class ModelChange(NamedTuple):
    kind: PermissionKind
    field: str
    old: str
    new: str


def rule_changes(old: Iterable[RuleRef], new: Iterable[RuleRef]) -> RuleChanges:
    before, after = _by_id(old), _by_id(new)
    order = attrgetter("file", "line", "id")
    added, removed = (
        tuple(sorted((rule for name in here.keys() - there.keys() for rule in here[name]), key=order))
        for here, there in ((after, before), (before, after))
    )
    both = (
        RuleChange(tuple(rules), tuple(_edits(name, before[name], rules)))
        for name, rules in after.items()
        if name in before
    )
    changed = sorted((change for change in both if change.edits), key=lambda change: order(change.rules[0]))
    return RuleChanges(added, removed, tuple(changed))


def _by_id(rules: Iterable[RuleRef]) -> dict[str, list[RuleRef]]:
    found: dict[str, list[RuleRef]] = {}
    for rule in rules:
        found.setdefault(rule.id, []).append(rule)
    return found


def _edits(name: str, before: list[RuleRef], after: list[RuleRef]) -> Iterator[Edit]:
    """Yields the changed fields of a rule. A field of several rows has their distinct values; `rows` stands for the
    same values in other combinations."""
    if len(before) == len(after) == 1 and _said(before[0]) == _said(after[0]):
        return
    told = False
    for field in _FIELDS:
        old, new = _values(before, field), _values(after, field)
        if old != new:
            told = True
            yield Edit(name, field, _shown(field, old), _shown(field, new), _direction(field, before, after, old, new))
    if not told and sorted(map(repr, map(_said, before))) != sorted(map(repr, map(_said, after))):
        yield Edit(name, "rows", len(before), len(after))  # the same values, combined differently


_said = attrgetter(*_FIELDS)


def _values(rules: list[RuleRef], field: str) -> list[Any]:
    values = {frozenset(rule.actions) if field == "actions" else getattr(rule, field) for rule in rules}
    return sorted(values, key=lambda value: sorted(value) if isinstance(value, frozenset) else [str(value)])


def _shown(field: str, values: list[Any]) -> Any:
    if field == "actions":
        values = list(map(actions_text, values))
    elif field == "expires_at":
        values = [None if value is None else moment(value) for value in values]
    elif field == "approval":
        values = [None if value is None else approval_text(value) for value in values]
    values = [value if value != "" else None for value in values]
    return values[0] if len(values) == 1 else values


def _direction(
    field: str, before: list[RuleRef], after: list[RuleRef], old: list[Any], new: list[Any]
) -> Change | None:
    """Returns whether this change alone grants more or less; None for a field that decides nothing, or whose changes
    regions report."""
    if field in INFORMATION or field in ("kind", "subject", "object", "actions", "effect"):
        return None
    if len(old) != 1 or len(new) != 1 or before[0].effect != after[0].effect:
        return "unknown"
    denies = after[0].effect == "deny"
    match field:
        case "max_calls_per_hour":
            return _more(old[0], new[0])
        case "expires_at":
            return _turned(_more(old[0], new[0]), denies)
        case "when" if RowGuard(conjuncts(old[0])).implies(RowGuard(conjuncts(new[0]))):
            return _turned("wider", denies)
        case "when" if RowGuard(conjuncts(new[0])).implies(RowGuard(conjuncts(old[0]))):
            return _turned("narrower", denies)
        case "approval":
            stricter, looser = demands_as_much(new[0], old[0]), demands_as_much(old[0], new[0])
            return "narrower" if stricter else "wider" if looser else "unknown"
        case "shadow":
            return _turned("narrower" if new[0] else "wider", denies)
    return "unknown"


def _more(old: float | None, new: float | None) -> Change:
    """Returns the effect of another bound: a missing or higher bound grants more."""
    if old is None or new is None:
        return "wider" if new is None else "narrower"
    return "wider" if new > old else "narrower"


def _turned(change: Change, turn: bool) -> Change:
    return ("narrower" if change == "wider" else "wider") if turn else change


def budget_changes(old: Budgets, new: Budgets) -> tuple[Edit, ...]:
    """Compares budgets entry by entry, cap by cap, and then costs. A cap that is removed or raised is wider."""
    before, after = dict(_caps(old)), dict(_caps(new))
    edits = []
    for key in sorted(before.keys() | after.keys()):
        was, now = before.get(key), after.get(key)
        if was != now:
            edits.append(Edit(f"{key[0]} {key[1]}", key[2], _cap(was), _cap(now), _cap_direction(key[2], was, now)))
    return (*edits, *_cost_changes(old, new))


def _cost_changes(old: Budgets, new: Budgets) -> Iterator[Edit]:
    """Yields the changed costs of calls, by object and unit. A lower cost is wider: the same budget allows more
    calls."""
    before, after = _costs(old), _costs(new)
    for key in sorted(before.keys() | after.keys()):
        was, now = before.get(key, _FREE), after.get(key, _FREE)
        fields = ["per_call", "max_per_call"] if was.paths or now.paths else ["per_call"]
        for field in fields:
            one, other = getattr(was, field), getattr(now, field)
            if one != other:
                then, since = (None if each is _FREE else in_units(getattr(each, field)) for each in (was, now))
                change: Change = "wider" if other < one else "narrower"
                yield Edit(f"costs {' '.join(key)}", field, then, since, change)
        if was.paths != now.paths and _FREE not in (was, now):
            told = [", ".join("/" + "/".join(path) for path in cost.paths) or None for cost in (was, now)]
            yield Edit(f"costs {' '.join(key)}", "from_result", told[0], told[1], "unknown")


class _Cost(NamedTuple):
    """The cost of one call by all entries for an object and unit, in millionths of the unit; `paths` are the places
    where results report it."""

    per_call: int
    max_per_call: int
    paths: tuple[tuple[str, ...], ...]


_FREE = _Cost(0, 0, ())


def _costs(budgets: Budgets) -> dict[tuple[str, str], _Cost]:
    found: dict[tuple[str, str], _Cost] = {}
    for cost in budgets.costs:
        told = found.get((cost.object, cost.unit), _FREE)
        paths = tuple(sorted((*told.paths, cost.path))) if cost.path else told.paths
        found[cost.object, cost.unit] = _Cost(told.per_call + cost.per_call, told.max_per_call + cost.most, paths)
    return found


def moved_budgets(old: Budgets, new: Budgets, before: RoleLinks, after: RoleLinks) -> Iterator[Edit]:
    """Yields the entries for roles whose members changed: a principal that left a role is no longer limited by it."""
    was, now = before.contents(), after.contents()
    named = {(entry.source, entry.pattern) for one in (old, new) for entry in (*one.principals, *one.spending)}
    for source, role in sorted(named, key=lambda pair: (pair[0] == "budgets", pair[1])):
        if was.get(role) != now.get(role):
            counts = (len(was.get(role, ())), len(now.get(role, ())))
            yield Edit(f"{source} {role}", "members", *counts, "unknown")


def moved_approvers(
    old: Iterable[RuleRef], new: Iterable[RuleRef], before: PolicySource, after: PolicySource
) -> Iterator[Edit]:
    """Yields the roles that must approve in both policies, and whose users, or whose roles by tokens, changed."""
    demanded = [{rule.approval.role for rule in rules if rule.approval is not None} for rules in (old, new)]
    for role in sorted(demanded[0] & demanded[1]):
        was, now = (_approvers(role, source) for source in (before, after))
        if was != now:
            change: Change = "wider" if was < now else "narrower" if was > now else "unknown"
            yield Edit(role, "approvers", len(was), len(now), change)


def _approvers(role: str, source: PolicySource) -> frozenset[str]:
    links = (source.roles, *source.domains.values())
    members = frozenset[str]().union(*(one.members(role) for one in links))
    return frozenset(name for name in members if name.startswith("user:") or is_granted(name))


Cap = tuple[float, float]  # the maximum, and for a rate the time between two calls in µs, otherwise 0


def _caps(budgets: Budgets) -> Iterator[tuple[tuple[str, str, str], Cap]]:
    for entry in budgets.entries:
        counter = "each" if entry.each else "together"
        what = [entry.object] if entry.unit and entry.object != "*" else []
        name = " ".join(filter(None, (entry.pattern, *what, entry.unit)))
        for cap in entry.caps:
            most = in_units(cap.most) if entry.unit else cap.most
            yield (entry.source, name, f"{cap.kind} ({counter})"), (most, cap.interval_us)
        if entry.timeout_s is not None:
            yield (entry.source, entry.pattern, "timeout_s"), (entry.timeout_s, 0)


def _cap(cap: Cap | None) -> Any:
    if cap is None:
        return None
    most, interval_us = cap
    return {"per_second": round(1e6 / interval_us, 6), "burst": most} if interval_us else most


def _cap_direction(field: str, was: Cap | None, now: Cap | None) -> Change:
    if field == "timeout_s":
        return "unknown"
    if was is None or now is None:
        return "wider" if now is None else "narrower"
    more, faster = now[0] >= was[0], now[1] <= was[1]
    if more and faster:
        return "wider"
    return "narrower" if now[0] <= was[0] and now[1] >= was[1] else "unknown"


def link_changes(old: RoleLinks, new: RoleLinks) -> tuple[LinkChange, ...]:
    before, after = ({(name, each) for name, above in links.parents.items() for each in above} for links in (old, new))
    found = [LinkChange("added", *pair) for pair in after - before]
    found += [LinkChange("removed", *pair) for pair in before - after]
    return tuple(sorted(found, key=lambda link: (link.container, link.member, link.how)))


def role_changes(old: PolicySource, new: PolicySource) -> tuple[LinkChange, ...]:
    """Returns the changes of `g` rows; with domains, separately for each domain."""
    if not (old.domains or new.domains):
        return link_changes(old.roles, new.roles)
    return tuple(
        change._replace(container=f"{change.container} in {domain}")
        for domain in sorted({*old.domains, *new.domains})
        for change in link_changes(old.domains.get(domain, RoleLinks()), new.domains.get(domain, RoleLinks()))
    )


def model_changes(old: PolicySource, new: PolicySource) -> tuple[ModelChange, ...]:
    found = []
    for kind in PermissionKind:
        if kind in old.stock or kind in new.stock:  # compared by `casbin_rows`
            continue
        before, after = old.models.get(kind), new.models.get(kind)
        for field, read in _MODEL_FIELDS.items():
            was, now = read(before), read(after)
            if _plain(was) != _plain(now):
                found.append(ModelChange(kind, field, was, now))
    return tuple(found)


_MODEL_FIELDS: Mapping[str, Callable[[Any], str]] = {
    "matcher": lambda model: model.matcher if model else "",
    "effect": lambda model: model.effect if model else "",
    "roles": lambda model: ", ".join(model.groups) if model else "",
    "domains": lambda model: "yes" if getattr(model, "by_domain", False) else "",
}


def is_shipped(source: PolicySource, kind: PermissionKind) -> bool:
    """Whether the model of this kind decides like the built-in one: it has the same effect, the same role definitions,
    and the same parts in its matcher, in any order."""
    model = source.models.get(kind)
    if model is None or kind is PermissionKind.GUARDRAIL:
        return True  # without a model there are no rows; guardrails have the built-in model
    same_parts = conjuncts(_plain(model.matcher)) == conjuncts(_plain(guardrail_model().matcher))
    return same_parts and _plain(model.effect) == _plain(ALLOW_AND_DENY) and set(model.groups) == {"g", "g2"}


def _plain(text: str) -> str:
    return "".join(text.split())
