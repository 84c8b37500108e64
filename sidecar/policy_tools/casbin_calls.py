"""Finds the calls that rows of Casbin models apply to: the sidecar's names that map to the names in rows.

An entry of `policy.names` with wildcards is inverted: the name in a row determines what they matched, as far as the
result contains it. Every name that is found is mapped again, and must give the name in the row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from sidecar.policy import PolicySource
from sidecar.policy.link_decision import ASKED
from sidecar.policy.stock.expression import place_of
from sidecar.policy.stock.names import NameTable, ObjectName
from sidecar.policy.stock.request import name_map
from sidecar.policy.stock.table import StockTable
from sidecar.settings.policy import CasbinNames, ObjectTarget
from sidecar.vocabulary import ACTION_ON, PermissionKind, RuleRef

MAX_ROWS: Final = 100_000  # of one table, whose objects are listed
MAX_TRIED: Final = 100  # rows of one table, of which one call is searched for
ANY: Final = "x"  # substituted for a wildcard that the row does not determine
_CAPTURE: Final = re.compile(r"\*([1-9]?)")


class RowCall(NamedTuple):
    """A call that maps to a request with the names of a row."""

    subject: str
    object: str
    action: str


def is_asked(source: PolicySource, kind: PermissionKind) -> bool:
    """Whether a Casbin model of another form decides this kind, and `policy.names` has names for its objects."""
    if kind not in source.stock:
        return False
    objects = name_map(source.casbin.names).objects
    return any(objects.meets(prefix) for prefix in ASKED[kind][1])


def asked_rules(source: PolicySource) -> Iterator[RuleRef]:
    """Yields the rules of the sidecar's own models, and those of each kind of Casbin models for which `is_asked` is
    true."""
    yield from source.own_rules
    for kind, table in source.stock.items():
        if is_asked(source, kind):
            yield from table


class RowCalls:
    """The calls about the rows of one table."""

    def __init__(self, table: StockTable, names: CasbinNames) -> None:
        self.table = table
        columns = table.source.model.columns
        self._sub, self._dom = place_of("sub", columns), place_of("dom", columns)
        self._obj, self._act = place_of("obj", columns), place_of("act", columns)
        tables = name_map(names)
        self._subjects = _Inverse(names.subjects, tables.subjects)
        self._objects = _Inverse(names.objects, tables.objects)
        self._actions = _Inverse(names.actions, tables.actions)
        self._members: dict[str, str] = {}
        for link in table.source.links.get("g", ()):
            self._members.setdefault(link[1], link[0])

    def of(self, row: int, other: int | None = None) -> RowCall | None:
        """Returns a call that maps to a row, by its number; with `other`, to the subject of this row and the object and
        action of the other one. None if no name of the sidecar maps to the subject or the object."""
        obj, action = self._object(row if other is None else other)
        subject = self._subject(row)
        return RowCall(subject, obj, action) if subject and obj else None

    def objects(self) -> Iterator[str]:
        """Yields the sidecar's names of the objects in the first MAX_ROWS rows. Some occur more than once."""
        found = (self._object(row)[0] for row in range(min(len(self.table), MAX_ROWS)))
        return (name for name in found if name)

    def _subject(self, row: int) -> str:
        if self._sub is None:
            return "nhi:x" if self._subjects.entries else ""
        name, seen = self.table.source.rows[row][self._sub], set[str]()
        while name in self._members and name not in seen:
            seen.add(name)
            name = self._members[name]
        domain = self.table.source.rows[row][self._dom] if self._dom is not None else ""
        found = self._subjects.names(ObjectName(name))
        return next((one for one in found if not domain or f":{domain}/" in one), next(iter(found), ""))

    def _object(self, row: int) -> tuple[str, str]:
        """Returns the object and the action of a call that maps to those of a row; "" for both if there is none."""
        values = self.table.source.rows[row]
        obj = None if self._obj is None else values[self._obj]
        act = None if self._act is None else values[self._act]
        for name in self._objects.names(ObjectName(obj if obj is not None else ANY, act)):
            kind = name.partition(":")[0]
            if self._objects.gives_action(name) or act is None:
                return name, ACTION_ON.get(kind, "message/send")
            actions = self._actions.names(ObjectName(act))
            if actions:
                return name, actions[0]
        return "", ""


class _Inverse:
    """The inverse of one table of `policy.names`: from the names in rows to the sidecar's."""

    def __init__(self, entries: Mapping[str, str | ObjectTarget], table: NameTable) -> None:
        self.entries, self._table = entries, table

    def names(self, wanted: ObjectName) -> list[str]:
        """Returns the sidecar's names that map to this one. An action that an entry does not set is not compared."""
        found = []
        for ours, theirs in self.entries.items():
            obj, act = (theirs.obj, theirs.act) if isinstance(theirs, ObjectTarget) else (theirs, None)
            captures = _captured(obj, wanted.obj)
            if captures is not None and act is not None and wanted.act is not None:
                more = _captured(act, wanted.act)
                same = more is not None and all(captures.get(at, text) == text for at, text in more.items())
                captures = {**captures, **more} if more is not None and same else None
            if captures is None:
                continue
            name = _filled(ours, captures)
            mapped = self._table.map(name)
            if mapped is not None and mapped.obj == wanted.obj and mapped.act in (None, wanted.act, act):
                found.append(name)
        return found

    def gives_action(self, name: str) -> bool:
        mapped = self._table.map(name)
        return mapped is not None and mapped.act is not None


def _captured(template: str, text: str) -> dict[int, str] | None:
    """Returns the texts that the wildcards must have matched, by their number, if this template gives `text`; None if
    it cannot."""
    numbers = [int(found[1] or 1) for found in _CAPTURE.finditer(template)]
    pieces = [re.escape(piece) for piece in _CAPTURE.split(template)[::2]]
    match = re.fullmatch("(.*)".join(pieces), text, re.DOTALL)
    if match is None:
        return None
    found = dict(zip(numbers, match.groups(), strict=True))
    same = all(found[number] == each for number, each in zip(numbers, match.groups(), strict=True))
    return found if same else None


def _filled(pattern: str, captures: Mapping[int, str]) -> str:
    head, *rest = pattern.split("*")
    return head + "".join(f"{captures.get(at, ANY)}{piece}" for at, piece in enumerate(rest, start=1))


def known_objects(source: PolicySource) -> Iterator[str]:
    """Yields the sidecar's names of the objects in rows of Casbin models, and the entries of `policy.names.objects`
    without a wildcard."""
    for kind, table in source.stock.items():
        if is_asked(source, kind):
            yield from RowCalls(table, source.casbin.names).objects()
    yield from (name for name in source.casbin.names.objects if "*" not in name and source.stock)


def first_call(source: PolicySource) -> RowCall | None:
    """Returns a call that a row of a Casbin model applies to; None if the first MAX_TRIED rows of each table have
    none."""
    for kind, table in source.stock.items():
        if is_asked(source, kind):
            calls = RowCalls(table, source.casbin.names)
            found = (calls.of(row) for row in range(min(len(table), MAX_TRIED)))
            if (call := next(filter(None, found), None)) is not None:
                return call
    return None
