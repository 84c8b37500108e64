"""Finds the rows of a Casbin policy that a request can concern.

An index is arrays. It is built once, in the process that reads the policy, and sent to the process that decides. Each
alternative of a matcher has its own. Its tests of single columns are the levels: rows are sorted by their key at the
first level, then at the second, and so on. The key of a row is its text, or the prefix of its pattern. The possible
keys of a request are searched for, level by level, in the runs of rows found so far.

The result has all rows that can match and some that do not: the matcher is evaluated for each of them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import merge
from typing import Any, Final, NamedTuple

from sidecar.policy.stock.expression import Alternative, ColumnTest
from sidecar.policy.stock.functions import FUNCTIONS, BadPatternError, BadValueError, MatchFunction
from sidecar.policy.stock.pattern_roles import MAX_NAMES
from sidecar.policy.stock.roles import RoleGraph

FEW: Final = 3  # rows that are cheaper to evaluate than to narrow down
SCANNED: Final = 8  # rows that can be scanned in the time of one search
SORTED: Final = 512  # rows that are sorted at a time
MERGED: Final = 4_096  # maximum number of runs that are merged
FREQUENT: Final = 64  # a pattern with 1/64 of the rows of a prefix that has at least 64 gets its own key
MAX_KEY_CHARS: Final = 65_535
_NONE: Final = array("I")

Row = tuple[str, ...]
Run = tuple[int, int]


class CompactRows:
    """Rows whose texts are stored once. `columns` are the text numbers of each column, row by row."""

    __slots__ = ("columns", "texts")

    def __init__(self, texts: Sequence[str], columns: Sequence[array[int]]) -> None:
        self.texts, self.columns = texts, columns

    @classmethod
    def of(cls, rows: Iterable[Row], columns: int) -> CompactRows:
        numbers: dict[str, int] = {}
        found = [array("I") for _ in range(columns)]
        for row in rows:
            for column, text in zip(found, row, strict=True):
                column.append(numbers.setdefault(text, len(numbers)))
        return cls(list(numbers), found)

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, row: int) -> Row:
        texts = self.texts
        return tuple([texts[column[row]] for column in self.columns])

    def __iter__(self) -> Iterator[Row]:
        return map(self.__getitem__, range(len(self)))


class IndexLevel(NamedTuple):
    """The keys of one column, sorted and numbered, and those of the rows, in the order of the index.

    Key `k` is the text number `texts[k]`. If the column has patterns, it is that text from `starts[k]` to `ends[k]`,
    the prefix of patterns, and `parents[k]` is the longest other prefix that it begins with (the key itself if there is
    none). Patterns with many of their prefix's rows have keys of their own, which follow: `frequent` are their text
    numbers, and `prefixes` the keys of their prefixes, sorted."""

    test: ColumnTest
    keys: array[int]
    texts: array[int]
    starts: array[int] = _NONE
    ends: array[int] = _NONE
    parents: array[int] = _NONE
    frequent: array[int] = _NONE
    prefixes: array[int] = _NONE


class AlternativeIndex(NamedTuple):
    """`rows` sorted by the keys of `levels`; without levels, in order. They are all rows, or those in which each column
    that is compared with a constant equals it. `by_subject` are the same rows sorted by their key at the level
    `subject`, and these keys; None if no level tests the subject. `walks` is the number of rows that every request
    tries, because no test of the matcher looks them up."""

    rows: array[int]
    levels: tuple[IndexLevel, ...]
    walks: int
    subject: int | None = None
    by_subject: tuple[array[int], array[int]] | None = None


class IndexBuilder:
    """Builds the indexes of the alternatives of one matcher, which share levels. Takes seconds for a million rows."""

    def __init__(self, rows: CompactRows, plain_roles: Collection[str], subject: int | None) -> None:
        """`plain_roles` are the role definitions without a matching function, and `subject` is the position of the
        subject in a request."""
        self._rows, self._subject = rows, subject
        self._functions = ("", *FUNCTIONS, *plain_roles)
        self._levels: dict[ColumnTest, IndexLevel | None] = {}

    def index(self, alternative: Alternative) -> AlternativeIndex:
        chosen: Sequence[int] = range(len(self._rows))
        found: list[IndexLevel] = []
        for test in alternative.facets:
            if test.constant is not None:
                chosen = _equal(self._rows, test.column, test.constant, chosen)
            elif test.function in self._functions and (level := self._level(test)) is not None:
                found.append(level)
        found.sort(key=_rank)
        order = chosen
        for level in reversed(found):
            order = sorted(order, key=level.keys.__getitem__)
        levels = tuple(_in_order(level, order) for level in found)
        walks = 0 if alternative.asked is not None else sum(all(_is_free(one, at) for one in found) for at in chosen)
        subject = next((at for at, level in enumerate(found) if level.test.place == self._subject), None)
        if subject is None:
            return AlternativeIndex(array("I", order), levels, walks)
        by_subject = sorted(chosen, key=found[subject].keys.__getitem__)
        keys = _in_order(found[subject], by_subject).keys
        return AlternativeIndex(array("I", order), levels, walks, subject, (array("I", by_subject), keys))

    def _level(self, test: ColumnTest) -> IndexLevel | None:
        if test not in self._levels:
            self._levels[test] = _level(test, self._rows)
        return self._levels[test]


def _equal(rows: CompactRows, column: int, text: str, chosen: Iterable[int]) -> list[int]:
    """Returns the rows in which a column has this text."""
    number = rows.texts.index(text) if text in rows.texts else -1
    return [at for at in chosen if rows.columns[column][at] == number]


def _in_order(level: IndexLevel, order: Iterable[int]) -> IndexLevel:
    return level._replace(keys=array("I", map(level.keys.__getitem__, order)))


def _rank(level: IndexLevel) -> tuple[bool, int]:
    """Returns the order of a level. Levels at which a request has one key come first, because each further key
    multiplies the searches at later levels. Then come those with more keys, which leave fewer rows."""
    return bool(level.test.function), -len(level.texts) - len(level.frequent)


def _is_free(level: IndexLevel, row: int) -> bool:
    """Whether the key of a row is a prefix of every text."""
    key = level.keys[row]
    return key < len(level.ends) and level.starts[key] == level.ends[key]


def _level(test: ColumnTest, rows: CompactRows) -> IndexLevel | None:
    """Returns the level of a test, with the keys of the rows in their order; None if every key is a prefix of every
    text."""
    texts, column = rows.texts, rows.columns[test.column]
    key_of = array("I", bytes(4 * len(texts)))
    if test.function in FUNCTIONS:
        level = _pattern_level(test, texts, Counter(column), key_of)
        if len(level.texts) <= 1 and not level.frequent and not any(level.ends):
            return None
    else:
        level = IndexLevel(test, _NONE, array("I", sorted(set(column), key=texts.__getitem__)))
        for key, number in enumerate(level.texts):
            key_of[number] = key
    return level._replace(keys=array("I", map(key_of.__getitem__, column)))


def _pattern_level(
    test: ColumnTest, texts: Sequence[str], rows_of: Mapping[int, int], key_of: array[int]
) -> IndexLevel:
    """Returns the level of patterns, without the keys of rows. Sets `key_of` for the text numbers in `rows_of`, which
    are the numbers of their rows."""
    prefix_of = {number: _prefix(test.function, texts[number]) for number in rows_of}
    holders = {prefix: number for number, prefix in prefix_of.items()}
    prefixes = sorted(holders)
    keys = {prefix: key for key, prefix in enumerate(prefixes)}
    held = array("I", map(holders.__getitem__, prefixes))
    rows_below = array("I", bytes(4 * len(prefixes)))
    for number, prefix in prefix_of.items():
        key_of[number] = keys[prefix]
        rows_below[keys[prefix]] += rows_of[number]
    frequent = sorted(
        (key_of[number], number)
        for number, count in rows_of.items()
        if count * FREQUENT >= rows_below[key_of[number]] >= FREQUENT
    )
    for at, (_, number) in enumerate(frequent):
        key_of[number] = len(prefixes) + at
    starts = array("H", [texts[number].find(prefix) for prefix, number in zip(prefixes, held, strict=True)])
    return IndexLevel(
        test,
        _NONE,
        held,
        starts,
        array("H", [start + len(prefix) for prefix, start in zip(prefixes, starts, strict=True)]),
        _parents(prefixes),
        array("I", [number for _, number in frequent]),
        array("I", [key for key, _ in frequent]),
    )


def _prefix(function: str, pattern: str) -> str:
    """Returns the prefix of a pattern as a part of its text, so that it needs no memory."""
    prefix = FUNCTIONS[function].prefix(pattern)
    at = pattern.find(prefix)
    return "" if at < 0 else prefix[: max(0, MAX_KEY_CHARS - at)]


def _parents(prefixes: Sequence[str]) -> array[int]:
    """Returns, for each of sorted texts, the longest other text that it begins with; the text itself if there is
    none."""
    parents, open_keys = array("I"), list[int]()
    for key, prefix in enumerate(prefixes):
        while open_keys and not prefix.startswith(prefixes[open_keys[-1]]):
            open_keys.pop()
        parents.append(open_keys[-1] if open_keys else key)
        open_keys.append(key)
    return parents


class IndexSearch:
    """Searches the index of one alternative. Safe to use from several threads."""

    def __init__(
        self, alternative: Alternative, index: AlternativeIndex, rows: CompactRows, roles: Mapping[str, RoleGraph]
    ) -> None:
        self._alternative, self._index, self._every = alternative, index, range(len(rows))
        self._levels = [(level.keys, _keys_of(level, rows.texts, roles)) for level in index.levels]

    def rows(self, request: Sequence[Any]) -> Iterable[int]:
        """Returns the rows to try, in order; the range of all rows if all must be tried."""
        asked = self._alternative.asked
        if asked is not None and not asked(request, ()):
            return ()
        rows = self._index.rows
        if not self._levels:
            return self._every if len(rows) == len(self._every) else rows
        runs: list[Run] = [(0, len(rows))]
        for column, keys_of in self._levels:
            runs = _narrowed(runs, column, keys_of(request))
            if not runs:
                return ()
            if len(runs) <= FEW and sum([high - low for low, high in runs]) <= FEW:
                break
        if len(runs) > MERGED or sum([high - low for low, high in runs]) <= SORTED:
            return sorted([row for low, high in runs for row in rows[low:high]])
        return merge(*[memoryview(rows)[low:high] for low, high in runs])  # each is sorted, and few rows may be needed

    def of_subject(self, request: Sequence[Any], unknown: Collection[int]) -> Iterator[int]:
        """Yields the rows that can concern the subject of a request, whatever its values at the positions `unknown`."""
        asked, index = self._alternative.asked, self._index
        if asked is not None and self._alternative.places.isdisjoint(unknown) and not asked(request, ()):
            return
        if index.subject is None or index.by_subject is None:
            yield from index.rows
            return
        rows, column = index.by_subject
        for key in sorted(self._levels[index.subject][1](request)):
            yield from rows[bisect_left(column, key) : bisect_right(column, key)]


def _narrowed(runs: Sequence[Run], column: array[int], keys: Collection[int]) -> list[Run]:
    """Returns the parts of runs, each sorted by `column`, whose key is one of `keys`."""
    found: list[Run] = []
    for low, high in runs:
        if high - low <= SCANNED * len(keys):
            found += [(at, at + 1) for at in range(low, high) if column[at] in keys]
            continue
        for key in keys:
            at = bisect_left(column, key, low, high)
            if at < high and column[at] == key:
                is_one = at + 1 == high or column[at + 1] != key
                found.append((at, at + 1 if is_one else bisect_right(column, key, at, high)))
    return found


KeysOf = Callable[[Sequence[Any]], Collection[int]]
"""Returns the keys that a fitting row can have, for a request."""


def _keys_of(level: IndexLevel, texts: Sequence[str], roles: Mapping[str, RoleGraph]) -> KeysOf:
    test = level.test
    if test.function in FUNCTIONS:
        return _prefixes_of(level, texts)
    if test.function:
        return _roles_of(level, texts, roles[test.function])
    place, numbers = test.place, level.texts

    @lru_cache(MAX_NAMES)
    def exact(text: str) -> tuple[int, ...]:
        return _searched(text, numbers, texts)

    return lambda request: exact(str(request[place]))


def _roles_of(level: IndexLevel, texts: Sequence[str], graph: RoleGraph) -> KeysOf:
    place, domain, numbers = level.test.place, level.test.domain, level.texts

    @lru_cache(MAX_NAMES)
    def keys(roles: frozenset[str]) -> frozenset[int]:  # which many members share
        return frozenset(key for role in roles for key in _searched(role, numbers, texts))

    def of(request: Sequence[Any]) -> frozenset[int]:
        value = request[place]
        found = keys(graph.containers(value, "" if domain is None else request[domain]))
        own = _searched(value, numbers, texts)
        return found.union(own) if own else found

    return of


def _searched(text: str, numbers: array[int], texts: Sequence[str]) -> tuple[int, ...]:
    at = bisect_left(numbers, text, key=texts.__getitem__)
    return (at,) if at < len(numbers) and texts[numbers[at]] == text else ()


def _prefixes_of(level: IndexLevel, texts: Sequence[str]) -> KeysOf:
    """Returns a search for all prefixes that a text begins with, and the frequent patterns that it matches. Among
    sorted texts, every prefix of a text is the last one that is not greater, or a prefix of that one."""
    place, function, parents = level.test.place, FUNCTIONS[level.test.function], level.parents
    numbers, starts, ends, every = level.texts, level.starts, level.ends, range(len(level.texts))
    frequent, prefixes = level.frequent, level.prefixes

    def key_text(key: int) -> str:
        return texts[numbers[key]][starts[key] : ends[key]]

    def begun_by(text: str) -> list[int]:
        key = bisect_right(every, text, key=key_text) - 1
        while key >= 0 and not text.startswith(key_text(key)):
            key = -1 if parents[key] == key else parents[key]
        found = list[int]()
        while key >= 0:
            found.append(key)
            key = -1 if parents[key] == key else parents[key]
        return found

    def of(request: Sequence[Any]) -> list[int]:
        value = request[place]
        found = begun_by(function.form(value))
        if frequent:
            for key in found.copy():
                low, high = bisect_left(prefixes, key), bisect_right(prefixes, key)
                found += [every.stop + at for at in range(low, high) if _matches(function, value, texts[frequent[at]])]
        return found

    return of


def _matches(function: MatchFunction, text: str, pattern: str) -> bool:
    """Whether a text can match a pattern. A failure counts as possible; the evaluation of the matcher reports it."""
    try:
        return function.compiled(pattern)(text)
    except (BadPatternError, BadValueError):
        return True
