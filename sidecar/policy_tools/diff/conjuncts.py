"""Splits conditions into parts that must all hold, and compares them.

`a && b` is true exactly if `a` and `b` are, and false as soon as one is false (cel-spec, logical operators), so a
condition that gained a part is narrower on an allow row, whatever the parts test. A condition that cannot be split with
certainty, by its text alone, is one part.

Of two parts that test the same value, one may imply the other: `args.amount <= 50` implies `args.amount <= 100`, and
`args.repo.startsWith('acme/')` implies `args.repo.startsWith('ac')`. Only forms are compared in which an error of one
is also an error of the other, so that the implication holds for deny rows too.
"""

from __future__ import annotations

import re
from functools import lru_cache

_OPENING, _CLOSING = "([{", ")]}"
_TOO_CLEVER = ("//", "\\", "'''", '"""')  # comments, escapes, long strings: not split


_PATH = r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)"
_TEXT = r"'([^'\\]*)'"
_COMPARED = re.compile(_PATH + r" *(<=|<|>=|>|==) *(-?\d{1,15})")
_EQUAL = re.compile(_PATH + r" *== *" + _TEXT)
_BEGINS = re.compile(_PATH + r"\.startsWith\( *" + _TEXT + r" *\)")
_AMONG = re.compile(_PATH + r" +in +\[( *'[^'\\]*' *(?:, *'[^'\\]*' *)*)\]")


@lru_cache(4096)
def conjuncts(condition: str) -> frozenset[str]:
    """Return the parts, trimmed; the whole condition if it has only one part; none for an empty condition."""
    if not condition:
        return frozenset()
    cuts = [] if any(mark in condition for mark in _TOO_CLEVER) else _cuts(condition)
    ends = [*cuts, len(condition)]
    starts = [0, *(cut + 2 for cut in cuts)]
    return frozenset(condition[start:end].strip() for start, end in zip(starts, ends, strict=True))


def _cuts(text: str) -> list[int]:
    """Return the positions of `&&` outside all brackets and strings; none if an operator that binds less is there
    too.
    """
    cuts, depth, quote = [], 0, ""
    for place, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif depth == 0 and (character == "?" or text.startswith("||", place)):
            return []
        elif depth == 0 and text.startswith("&&", place):
            cuts.append(place)
    return cuts


@lru_cache(65536)
def implies(one: str, other: str) -> bool:
    """Whether the other part is true whenever this one is; False where that is not certain."""
    return one == other or _bounds(one, other) or _texts(one, other)


def _bounds(one: str, other: str) -> bool:
    """Compare integer bounds. Each comparison is an interval."""
    mine, theirs = _COMPARED.fullmatch(one), _COMPARED.fullmatch(other)
    if mine is None or theirs is None or mine[1] != theirs[1]:
        return False
    if "==" not in (mine[2], theirs[2]) and mine[2][0] != theirs[2][0]:
        return False
    number, bound = int(mine[3]), int(theirs[3])
    match mine[2], theirs[2]:
        case ("<", "<=") | (">", ">=") | ("<", "<") | (">", ">") | ("<=", "<=") | (">=", ">="):
            return number <= bound if mine[2][0] == "<" else number >= bound
        case ("<=", "<") | (">=", ">"):
            return number < bound if mine[2][0] == "<" else number > bound
        case ("==", "<="):
            return number <= bound
        case ("==", "<"):
            return number < bound
        case ("==", ">="):
            return number >= bound
        case ("==", ">"):
            return number > bound
    return False


def _texts(one: str, other: str) -> bool:
    """Compare strings: equality, membership and prefix."""
    mine, theirs = _EQUAL.fullmatch(one) or _AMONG.fullmatch(one), _AMONG.fullmatch(other)
    if mine is not None and theirs is not None:
        return mine[1] == theirs[1] and _listed(mine) <= _listed(theirs)
    begins = _BEGINS.fullmatch(other)
    mine = mine or _BEGINS.fullmatch(one)
    if mine is None or begins is None or mine[1] != begins[1]:
        return False
    return all(text.startswith(begins[2]) for text in _listed(mine))


def _listed(match: re.Match[str]) -> frozenset[str]:
    """Return the strings that a part names."""
    return frozenset(re.findall("'([^']*)'", match[0]))
