"""Compares two JSON texts line by line, for two columns, and marks the words that differ.

The texts are an upstream's, so the work is bounded. Beyond the bounds, equal text may be marked too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Final, NamedTuple

from sidecar.admin.console.marked_text import MAX_CHARACTERS, Piece, json_pieces

CONTEXT_LINES: Final = 3
MAX_ITEMS: Final = 400  # lines of a text, or words of a line, that are aligned between equal beginnings and ends
MAX_SHOWN: Final = 1_000
_WORDS: Final = re.compile(r"\\u[0-9a-f]{4}|\\.|\w+|\s+|.", re.DOTALL)


class LinePair(NamedTuple):
    """A line of the old text and the line of the new text next to it; None if that text has no line there. A pair
    without both stands for `skipped` lines that are left out."""

    old: list[Piece] | None
    new: list[Piece] | None
    skipped: int = 0


def side_by_side(old: Sequence[str], new: Sequence[str]) -> list[LinePair]:
    """The lines of both texts in pairs, with a few equal lines around those that differ, at most MAX_SHOWN pairs. Empty
    for equal texts."""
    if list(old) == list(new):
        return []
    pairs = list[LinePair]()
    steps = steps_between(old, new)
    for number, (tag, a, b, c, d) in enumerate(steps):
        if tag == "equal":
            pairs += _equal(old[a:b], is_first=number == 0, is_last=number == len(steps) - 1)
        else:
            pairs += [_pair(*both) for both in zip_longest(old[a:b], new[c:d])]
    if len(pairs) > MAX_SHOWN:
        pairs = [*pairs[:MAX_SHOWN], LinePair(None, None, len(pairs) - MAX_SHOWN)]
    return pairs


def steps_between(old: Sequence[str], new: Sequence[str]) -> list[tuple[str, int, int, int, int]]:
    """The steps from old to new, in the form of `SequenceMatcher.get_opcodes`. Equal beginnings and ends, which are
    most of a text, are found first. More than MAX_ITEMS items between them are one `replace`."""
    head = _equal_at(old, new)
    tail = _equal_at(old[head:][::-1], new[head:][::-1])
    a, c = len(old) - tail, len(new) - tail
    before, after = old[head:a], new[head:c]
    if max(len(before), len(after)) > MAX_ITEMS:
        between = [("replace", 0, len(before), 0, len(after))]
    else:
        between = list(SequenceMatcher(None, before, after).get_opcodes())
    found = [(tag, i + head, j + head, k + head, m + head) for tag, i, j, k, m in between]
    beginning = [("equal", 0, head, 0, head)] if head else []
    end = [("equal", a, len(old), c, len(new))] if tail else []
    return [*beginning, *found, *end]


def _equal_at(old: Sequence[str], new: Sequence[str]) -> int:
    """The number of equal items at the beginning of both."""
    differing = (at for at, both in enumerate(zip(old, new, strict=False)) if both[0] != both[1])
    return next(differing, min(len(old), len(new)))


def _equal(lines: Sequence[str], *, is_first: bool, is_last: bool) -> Iterator[LinePair]:
    before, after = 0 if is_first else CONTEXT_LINES, 0 if is_last else CONTEXT_LINES
    skipped = max(0, len(lines) - before - after)
    skipped = 0 if skipped == 1 else skipped  # its replacement would need a line too
    for line in lines[: len(lines) - after if not skipped else before]:
        yield LinePair(json_pieces(line), json_pieces(line))
    if skipped:
        yield LinePair(None, None, skipped)
    for line in lines[len(lines) - after :] if after else []:
        yield LinePair(json_pieces(line), json_pieces(line))


def _pair(old: str | None, new: str | None) -> LinePair:
    if old is None:
        return LinePair(None, json_pieces(new or "", "added"))
    if new is None:
        return LinePair(json_pieces(old, "removed"), None)
    if max(len(old), len(new)) > MAX_CHARACTERS:
        return LinePair(json_pieces(old, "removed"), json_pieces(new, "added"))
    before, after = _WORDS.findall(old), _WORDS.findall(new)
    left, right = list[Piece](), list[Piece]()
    for tag, a, b, c, d in steps_between(before, after):
        same = tag == "equal"
        if b > a:
            left += json_pieces("".join(before[a:b]), "" if same else "removed")
        if d > c:
            right += json_pieces("".join(after[c:d]), "" if same else "added")
    return LinePair(left, right)
