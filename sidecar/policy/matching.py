"""Finds the rows that match a request, before expiry and conditions, for matchers that are compiled.

A `Matcher` serves one model and its rows. Its index has three arrays: the rows, sorted by the texts of the first
facet's column and then by those of the second's; these second texts; and the start of the rows of each first text. For
a request, the texts that a matching row can have are found for both facets, by name, by role or set, and by pattern.
The two sets are then joined: a short run of rows is scanned; in a long run each text is searched for. A decision's cost
therefore depends on its matching rows, not on all rows.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from sidecar.policy.compiler import Check, Facet, MatcherPlan, RowTest, compiled, plan_of
from sidecar.policy.expression import FunctionCall, Name
from sidecar.policy.grammar import ON_SERVERS
from sidecar.policy.model import Model
from sidecar.policy.pattern_index import PatternIndex
from sidecar.policy.patterns import WILDCARD, globs
from sidecar.policy.roles import RolePaths
from sidecar.policy.table import RowTable, places_of
from sidecar.vocabulary import ANONYMOUS

SEARCHED = 30  # so many numbers are cheaper to search for in a column one by one than to read the column once
WALKED = 12  # rows that are cheaper to scan than to search
MAX_ACTIONS = 128  # cached, of the few dozen that exist
MAX_SERVERS = 512  # cached


@dataclass(frozen=True, slots=True)
class Index:
    """`rows` sorted by the texts of two columns. `seconds` are the text numbers of the second column, in that order;
    the rows whose first text is number `t` are those from `begins[t]` up to `begins[t + 1]`. `wild` are the numbers of
    the texts with a wildcard in each of the two columns."""

    rows: array[int]
    seconds: array[int]
    begins: array[int]
    wild: tuple[array[int], ...]


def index_of(model: Model, table: RowTable) -> Index:
    """Builds the index, once per load. Takes seconds for a million rows, and holds the GIL while sorting."""
    facets = plan_of(model).index
    nothing = array("I", bytes(4 * len(table)))
    first = table.column(facets[0].column) if facets else nothing
    second = table.column(facets[1].column) if len(facets) > 1 else nothing
    keys = array("Q", (one << 32 | other for one, other in zip(first, second, strict=True)))
    rows = array("I", sorted(range(len(table)), key=keys.__getitem__))
    begins = array("I", bytes(4 * (len(table.texts.texts) + 1)))
    for text in first:
        begins[text + 1] += 1
    for at in range(1, len(begins)):
        begins[at] += begins[at - 1]
    texts = table.texts.texts
    wild = [{number for number in set(column) if WILDCARD in texts[number]} for column in (first, second)]
    return Index(
        rows, array("I", map(second.__getitem__, rows)), begins, tuple(array("I", sorted(found)) for found in wild)
    )


class Matcher:
    """Finds the rows of one model. Pure; caches only actions and servers, of which there are few."""

    def __init__(self, model: Model, table: RowTable, index: Index, ways: Mapping[str, RolePaths]) -> None:
        self.plan: MatcherPlan = plan_of(model)
        self._table, self._index, self._ways = table, index, ways
        sides = [_Side(facet, table, wild, ways) for facet, wild in zip(self.plan.index, index.wild, strict=False)]
        self._first = sides[0] if sides else None
        self._second = sides[1] if len(sides) > 1 else None
        self._objects = next((side for side in sides if side.facet.column == "obj"), None)
        self.by_action = _ACTIONS in self.plan.checks  # the usual conjunct, cached by action
        self._actions: dict[str, dict[int, bool]] = {}
        self._checks: list[Check] = [compiled(part, table, ways) for part in self.plan.checks if part != _ACTIONS]
        self._strict: list[Check] = [compiled(f.node, table, ways) for f in self.plan.index if f.strict]
        self._servers: dict[str, tuple[frozenset[int], tuple[tuple[int, int], ...]]] = {}

    def rows(self, asked: RowTest) -> list[int]:
        """Returns the matching rows, in no particular order."""
        found = self._indexed(asked)
        if found and self.by_action:
            found = self._of_action(asked.act, found)
        if found and asked.sub == ANONYMOUS:
            found = _checked(found, self._strict, asked)
        if found and self._checks:
            found = _checked(found, self._checks, asked)
        return found

    def of_subject(self, asked: RowTest) -> Iterator[int]:
        """Yields the rows whose column of the first facet fits; in the shipped models, that of the subject."""
        if self._first is not None:
            begins, rows = self._index.begins, self._index.rows
            for text in self._first.texts(asked):
                yield from rows[begins[text] : begins[text + 1]]

    def of_object(self, asked: RowTest) -> Iterator[int]:
        """Yields the rows whose object fits the second facet, which compares it in the shipped models. Reads the whole
        column."""
        if self._second is not None:
            yield from rows_with(self._table.obj, self._second.texts(asked))

    def on_server(self, asked: RowTest, server: str) -> Iterator[int]:
        """Yields the rows whose subject is this caller and whose object is the server or something on it, as far as the
        index shows; none if the matcher does not compare the subject alone."""
        first, index = self._first, self._index
        if first is None or first.facet.field != "sub":
            return
        texts, spans = self._texts_on(server)
        by_object = self._objects is not None and self._objects is self._second
        objects = self._table.obj
        for text in first.texts(asked):
            low, high = index.begins[text], index.begins[text + 1]
            if by_object and high - low > WALKED:
                yield from self._searched(low, high, texts, spans)
                continue
            for at in range(low, high):
                number = objects[index.rows[at]]
                if number in texts or any(begin <= number < end for begin, end in spans):
                    yield index.rows[at]

    def _indexed(self, asked: RowTest) -> list[int]:
        first, second, index = self._first, self._second, self._index
        if first is None:
            return list(range(len(self._table)))
        rows, seconds, begins = index.rows, index.seconds, index.begins
        found: list[int] = []
        others: list[int] | None = None
        among: Container[int] = ()
        for text in first.texts(asked):
            low, high = begins[text], begins[text + 1]
            if low == high:
                continue
            if second is None:
                found += rows[low:high]
                continue
            if others is None:
                others = second.texts(asked)
                among = others if len(others) <= WALKED else frozenset(others)
            if high - low <= WALKED:
                for at in range(low, high):
                    if seconds[at] in among:
                        found.append(rows[at])
                continue
            for other in others:
                at = bisect_left(seconds, other, low, high)
                while at < high and seconds[at] == other:
                    found.append(rows[at])
                    at += 1
        return found

    def _of_action(self, act: str, rows: list[int]) -> list[int]:
        """Returns the rows whose action list contains this action, with one check per row shape."""
        known = self._actions.get(act)
        if known is None:
            if len(self._actions) >= MAX_ACTIONS:
                self._actions.clear()
            known = self._actions[act] = {}
        shape_of, shapes = self._table.shape, self._table.shapes
        found = []
        for row in rows:
            number = shape_of[row]
            fits = known.get(number)
            if fits is None:
                fits = known[number] = globs(act, shapes[number].act)
            if fits:
                found.append(row)
        return found

    def _searched(
        self, low: int, high: int, texts: frozenset[int], spans: tuple[tuple[int, int], ...]
    ) -> Iterator[int]:
        rows, seconds = self._index.rows, self._index.seconds
        for begin, end in (*spans, *((text, text + 1) for text in texts)):
            at = bisect_left(seconds, begin, low, high)
            while at < high and seconds[at] < end:
                yield rows[at]
                at += 1

    def _texts_on(self, server: str) -> tuple[frozenset[int], tuple[tuple[int, int], ...]]:
        """Returns the objects on a server: single texts (patterns, sets, the server itself), and runs of texts."""
        if (known := self._servers.get(server)) is not None:
            return known
        texts = self._table.texts.texts
        prefixes = [f"{word}{server}/" for word in ON_SERVERS]
        # "0" follows "/" in ASCII: every text with the prefix sorts between the two.
        spans = [(bisect_left(texts, prefix), bisect_left(texts, prefix[:-1] + "0")) for prefix in prefixes]
        if self._objects is None:
            wild = sorted(number for number in set(self._table.obj) if WILDCARD in texts[number])
            self._objects = _Side(_ANY_OBJECT, self._table, array("I", wild), self._ways)
        single = self._objects.meeting(server, prefixes)
        if len(self._servers) >= MAX_SERVERS:
            self._servers.clear()
        known = self._servers[server] = frozenset(single), tuple(span for span in spans if span[0] < span[1])
        return known


class _Side:
    """One facet over its column: maps a request to the numbers of the texts that a matching row can have there."""

    def __init__(self, facet: Facet, table: RowTable, wild: array[int], ways: Mapping[str, RolePaths]) -> None:
        self.facet = facet
        self._value: Callable[[RowTest], str] = attrgetter(facet.field)
        self._ids = table.texts.ids
        self._by_roles = facet.field == "sub" and "g" in facet.groups
        self._ways = [ways[group] for group in facet.groups if not (group == "g" and facet.field == "sub")]
        texts = table.texts.texts
        self._patterns = PatternIndex((texts[number], number) for number in (wild if facet.globs else ()))
        self._patterned = bool(self._patterns)
        self._may_repeat = len(self._ways) + self._by_roles > 1

    def texts(self, asked: RowTest) -> list[int]:
        value, ids = self._value(asked), self._ids
        found = [ids[role] for role in asked.roles if role in ids] if self._by_roles else []
        if value in ids:
            found.append(ids[value])
        for ways in self._ways:
            containers = ways.containers(value, asked.dom)
            if containers:
                found += [ids[container] for container in containers if container in ids]
        if self._patterned:
            found += self._patterns.matches(value)
        if self._may_repeat or WILDCARD in value:  # a name that is also the text of a pattern
            return list(dict.fromkeys(found))
        return found

    def meeting(self, server: str, prefixes: Iterable[str]) -> Iterator[int]:
        """Yields the numbers of the texts that match the server as a whole or, as a pattern or a set, something on
        it."""
        whole = f"nhi:{server}"
        yield from self._patterns.matches(whole)
        for prefix in prefixes:
            yield from self._patterns.meeting(prefix)
        exact = (whole, *(container for ways in self._ways for container in ways.holding(server)))
        yield from (self._ids[name] for name in exact if name in self._ids)


def rows_with(column: array[int], numbers: Sequence[int]) -> Iterator[int]:
    """Yields the rows that have one of these numbers in a column."""
    if len(numbers) <= SEARCHED:
        for number in numbers:
            yield from places_of(column, number)
        return
    wanted = frozenset(numbers)
    yield from (row for row, number in enumerate(column) if number in wanted)


def _checked(rows: list[int], checks: list[Check], asked: RowTest) -> list[int]:
    for check in checks:
        rows = [row for row in rows if check(asked, row)]
    return rows


_ANY_OBJECT = Facet(
    FunctionCall("glob", (Name("r", "obj"), Name("p", "obj"))), "obj", "obj", ("g2",), globs=True, strict=False
)
_ACTIONS = FunctionCall("globs", (Name("r", "act"), Name("p", "act")))
