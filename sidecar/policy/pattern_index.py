"""Finds the patterns that match a text.

A pattern is split at its wildcards into the head before the first one, the tail after the last one, and the pieces
between. Patterns are looked up by head and then by tail, with one lookup for each length in use. Where many patterns
share both, they are also looked up by their first inner piece. The time therefore depends on the text and the number of
matches, not on the number of patterns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sidecar.policy.patterns import WILDCARD

MANY = 32  # from this number on, patterns with one head and tail are looked up by their inner pieces


@dataclass(slots=True)
class _Tails:
    by_tail: dict[str, _Between] = field(default_factory=dict)
    lengths: tuple[int, ...] = ()


@dataclass(slots=True)
class _Between:
    """The patterns of one head and one tail: those without inner pieces, and the others."""

    plain: list[int] = field(default_factory=list)
    pieces: list[tuple[tuple[str, ...], int]] = field(default_factory=list)
    by_first: dict[str, list[tuple[tuple[str, ...], int]]] = field(default_factory=dict)
    lengths: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of the first pieces, by their beginning


class PatternIndex:
    """Patterns with a wildcard, each with a number assigned by the caller."""

    def __init__(self, patterns: Iterable[tuple[str, int]]) -> None:
        self._by_head: dict[str, _Tails] = {}
        for pattern, number in patterns:
            head, *middle, tail = pattern.split(WILDCARD)
            tails = self._by_head.setdefault(head, _Tails())
            between = tails.by_tail.setdefault(tail, _Between())
            pieces = tuple(piece for piece in middle if piece)
            if pieces:
                between.pieces.append((pieces, number))
            else:
                between.plain.append(number)
        self._lengths = tuple(sorted({len(head) for head in self._by_head}))
        for tails in self._by_head.values():
            tails.lengths = tuple(sorted({len(tail) for tail in tails.by_tail}))
            for between in tails.by_tail.values():
                _index_pieces(between)

    def __bool__(self) -> bool:
        return bool(self._by_head)

    def matches(self, text: str) -> list[int]:
        """Returns the numbers of the patterns that match the text."""
        found: list[int] = []
        size = len(text)
        for length in self._lengths:
            if length > size:
                break
            tails = self._by_head.get(text[:length])
            if tails is None:
                continue
            for tail in tails.lengths:
                if length + tail > size:
                    break
                between = tails.by_tail.get(text[size - tail :])
                if between is not None:
                    found += between.plain
                    if between.pieces:
                        found += _between(text[length : size - tail], between)
        return found

    def meeting(self, prefix: str) -> list[int]:
        """Returns the numbers of the patterns that match some text with this prefix, except those that begin with the
        prefix."""
        heads = (self._by_head.get(prefix[:length]) for length in self._lengths if length < len(prefix))
        return [
            number
            for tails in heads
            if tails is not None
            for between in tails.by_tail.values()
            for number in (*between.plain, *(number for _, number in between.pieces))
        ]


def _index_pieces(between: _Between) -> None:
    if len(between.pieces) >= MANY:
        lengths: dict[str, set[int]] = {}
        for pieces, number in between.pieces:
            between.by_first.setdefault(pieces[0], []).append((pieces, number))
            lengths.setdefault(pieces[0][0], set()).add(len(pieces[0]))
        between.lengths = {begin: tuple(sorted(found)) for begin, found in lengths.items()}


def _between(text: str, between: _Between) -> Iterator[int]:
    for pieces, number in _beginning(text, between) if between.by_first else between.pieces:
        at = 0
        for piece in pieces:
            at = text.find(piece, at)
            if at < 0:
                break
            at += len(piece)
        else:
            yield number


def _beginning(text: str, between: _Between) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yields the patterns whose first inner piece occurs in the text."""
    firsts: set[str] = set()
    for begin, lengths in between.lengths.items():
        at = text.find(begin)
        while at >= 0:
            firsts.update([text[at : at + length] for length in lengths])
            at = text.find(begin, at + 1)
    known = between.by_first
    for first in firsts:
        if first in known:
            yield from known[first]
