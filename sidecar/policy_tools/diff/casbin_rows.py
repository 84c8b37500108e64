"""Compares the kinds that Casbin models of other forms decide, as written.

The changed answers are not computed: a matcher may be any expression, rows may be rules, and several rows together
decide. If anything differs that affects the decisions of such a kind, all its answers may differ. The direction is
reported only if nothing but rows differ and no evaluation can fail: allow rows widen access, deny rows narrow it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sidecar.policy import PolicySource
from sidecar.policy.stock.compiler import read_expression
from sidecar.policy.stock.expression import BadExpressionError
from sidecar.policy.stock.model import Effect, definitions_of
from sidecar.policy.stock.reading import EFFECT, EXPIRES_AT, LIMIT, WHEN
from sidecar.policy.stock.table import StockTable
from sidecar.policy_tools.casbin_calls import is_asked
from sidecar.policy_tools.diff.regions import Change
from sidecar.policy_tools.diff.rules import ModelChange
from sidecar.settings.policy import CasbinSettings
from sidecar.vocabulary import PermissionKind

_OTHER: Final[Mapping[Change, str]] = {"wider": "narrower", "narrower": "wider"}
_ORDERED: Final = (Effect.PRIORITY, Effect.SUBJECT_PRIORITY)


class CasbinRowChange(NamedTuple):
    """A row, or a link of roles, that only one of the policies has (`how` is `added` or `removed`), or a changed order
    of rows (`moved`). `kinds` are those that it affects; `effect` is that of a row, otherwise ""."""

    how: str
    kinds: tuple[PermissionKind, ...]
    row: str
    file: str = ""
    line: int = 0
    effect: str = ""


class CasbinDifference(NamedTuple):
    """The differences. `kinds` are those with any difference, each with the possible change of its answers; `notes` are
    sentences about them for the user."""

    rows: tuple[CasbinRowChange, ...]
    models: tuple[ModelChange, ...]
    kinds: Mapping[PermissionKind, Change]
    notes: tuple[str, ...]


def casbin_difference(old: PolicySource, new: PolicySource, shown: Callable[[str, bool], str]) -> CasbinDifference:
    """Returns the differences in the kinds that a Casbin model of another form decides in either policy. `shown`
    returns the display name of a file; its second argument is true for a file of the new policy."""
    groups: dict[tuple[int, int], list[PermissionKind]] = {}
    for kind in PermissionKind:
        before, after = old.stock.get(kind), new.stock.get(kind)
        if (before or after) and (is_asked(old, kind) or is_asked(new, kind)):
            key = tuple(id(table.source) if table is not None else 0 for table in (before, after))
            groups.setdefault((key[0], key[1]), []).append(kind)
    rows: list[CasbinRowChange] = []
    models: list[ModelChange] = []
    kinds: dict[PermissionKind, Change] = {}
    notes: list[str] = []
    attributes = old.attributes.entries != new.attributes.entries
    for of in groups.values():
        tables = old.stock.get(of[0]), new.stock.get(of[0])
        changes, edits = list(_row_changes(tables, tuple(of), shown)), list(_model_changes(tables, old, new, of[0]))
        if changes or edits or attributes:
            names = ", ".join(kind.value for kind in of)
            change: Change = "unknown" if edits or attributes else _direction(tables[1], changes)
            rows += changes
            models += edits
            kinds |= dict.fromkeys(of, change)
            only = "" if change == "unknown" else f", but none becomes {_OTHER[change]}"
            notes.append(f"{names}: decided by a Casbin model; which answers change is not worked out{only}")
    if kinds and attributes:
        notes.append("attributes.yaml: the attributes of principals or objects changed")
    return CasbinDifference(tuple(rows), tuple(models), kinds, tuple(notes))


def _direction(table: StockTable | None, changes: Sequence[CasbinRowChange]) -> Change:
    """Returns how answers may change by added or removed rows. That is certain only if no evaluation can fail: a row
    that fails denies requests that later rows allow."""
    if table is None or any(change.effect == "" for change in changes):
        return "unknown"
    model = table.source.model
    try:
        total = read_expression(model.matcher, definitions_of(model), {}).total
        total = total and not any(form.parameters for form in model.roles.values())  # their conditions may fail
    except BadExpressionError:
        return "unknown"
    if not total or model.effect in _ORDERED or {EXPIRES_AT, LIMIT, WHEN} & {*model.columns}:
        return "unknown"
    counting = [one for one in changes if one.effect == "allow" or model.effect is not Effect.ALLOW_OVERRIDE]
    gains = {(one.how == "added") is (one.effect == "allow") for one in counting}
    return "unknown" if len(gains) != 1 else "wider" if gains.pop() else "narrower"


def _row_changes(
    tables: tuple[StockTable | None, StockTable | None],
    kinds: tuple[PermissionKind, ...],
    shown: Callable[[str, bool], str],
) -> Iterator[CasbinRowChange]:
    before, after = map(_texts, tables)
    for how, found, others in (("added", after, before), ("removed", before, after)):
        for text, (file, line, effect) in found.items():
            if text not in others:
                yield CasbinRowChange(how, kinds, text, shown(file, found is after) if file else "", line, effect)
    if before.keys() == after.keys() and _order(tables[0]) != _order(tables[1]):
        yield CasbinRowChange("moved", kinds, "the order of rows, which decides")


def _texts(table: StockTable | None) -> dict[str, tuple[str, int, str]]:
    """Returns the rows and links of a table by their text, each with its file, line and effect; a link has none of
    these."""
    if table is None:
        return {}
    source, found = table.source, dict[str, tuple[str, int, str]]()
    for at, row in enumerate(source.rows):
        text = ", ".join((f"p{source.model.suffix}", *row))
        found.setdefault(text, (source.names[source.files[at]], source.lines[at], table.text(EFFECT, at)))
    for key, links in source.links.items():
        for link in links:
            found.setdefault(", ".join((key, *link)), ("", 0, ""))
    return found


def _order(table: StockTable | None) -> list[tuple[str, ...]]:
    return list(table.source.rows) if table is not None and table.source.model.effect in _ORDERED else []


def _model_changes(
    tables: tuple[StockTable | None, StockTable | None], old: PolicySource, new: PolicySource, kind: PermissionKind
) -> Iterator[ModelChange]:
    before, after = (
        {**_model(table), **_settings(source.casbin)} if table is not None else {"form": "our own"}
        for table, source in zip(tables, (old, new), strict=True)
    )
    for field in dict.fromkeys((*before, *after)):
        if before.get(field, "") != after.get(field, ""):
            yield ModelChange(kind, field, before.get(field, ""), after.get(field, ""))


def _model(table: StockTable) -> dict[str, str]:
    model = table.source.model
    roles = {f"roles {key}": ", ".join("_" * form.fields) for key, form in model.roles.items()}
    fields = {"request": ", ".join(model.request), "columns": ", ".join(model.columns), **roles}
    return {"form": "a Casbin model", **fields, "effect": model.effect.value, "matcher": model.matcher}


def _settings(settings: CasbinSettings) -> dict[str, str]:
    """Returns the settings that affect decisions as texts, by their path in `policy`."""
    said: Mapping[str, Any] = settings.model_dump(include={"names", "roles", "request", "default"}, exclude_none=True)
    return dict(_flat(said, ()))


def _flat(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and not (path[:2] == ("names", "objects") and len(path) == 3):
        for key, each in value.items():
            yield from _flat(each, (*path, key))
    elif isinstance(value, Mapping):
        yield ".".join(path), ", ".join(f"{key} {each}" for key, each in value.items())
    else:
        yield ".".join(path), str(value)
