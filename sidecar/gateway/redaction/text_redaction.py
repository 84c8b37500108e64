"""Removes secrets from texts.

A text is read in slices, and every finder keeps its own place, as what it found may end beyond a slice. What is put in
stands in brackets of its own, so that it belongs to no token; still, taking something out can leave something new to be
found beside it, so that a changed text is read again until nothing is. So screening twice is screening once.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Final

from sidecar.protocols.secret_patterns import LOCAL_CHARS, MIN_CHARS, Finder, Span

SLICE_CHARS: Final = 64 * 1024  # of one finder; nine of them take a few milliseconds for it
MAX_PASSES: Final = 8


@dataclass(frozen=True, slots=True)
class Wiping:
    """What is looked for, and what stands in its place."""

    finders: tuple[Finder, ...]
    replacement: str


Steps = Generator[None, None, tuple[str, int]]
"""Yields where others may have their turn; returns the text, and how much was replaced in it."""


def wiped(text: str, wipings: Sequence[Wiping]) -> Steps:
    """The text without what any of `wipings` finds."""
    if len(text) < MIN_CHARS:
        return text, 0
    replaced = 0
    for _ in range(MAX_PASSES):
        before = text
        for wiping in wipings:
            text, found = yield from _once(text, wiping)
            replaced += found
        if text is before:
            return text, replaced
    return wipings[0].replacement, replaced + 1  # a text that never comes to rest does not pass


def _once(text: str, wiping: Wiping) -> Steps:
    """What was found is put in its place slice by slice: a million places at once would be a million objects, and to
    sort them, or to look through them for garbage, would hold the loop."""
    cut, spans = TextCut(text, wiping.replacement), list[Span]()
    places = [0] * len(wiping.finders)
    for start in range(0, len(text), SLICE_CHARS):
        if start:
            yield
        stop = min(start + SLICE_CHARS, len(text))
        for index, find in enumerate(wiping.finders):
            if places[index] < stop:
                places[index] = find(text, places[index], stop, spans)
        spans = cut.without(sorted(spans), before=stop - LOCAL_CHARS)
    cut.without(spans, before=len(text) + 1)
    return (cut.rest(), cut.replaced) if cut.replaced else (text, 0)


@dataclass(slots=True)
class TextCut:
    """A text, from its beginning on without what was found in it."""

    text: str
    replacement: str
    replaced: int = 0
    _pieces: list[str] = field(default_factory=list)
    _done: int = 0

    def without(self, spans: Sequence[Span], *, before: int) -> list[Span]:
        """Leave out these, which are in order; what overlaps as one. Gives back those that end at `before` or after
        it: what is still to be found may overlap them."""
        apart: list[Span] = []
        for start, end in spans:
            if apart and start < apart[-1][1]:
                apart[-1] = (apart[-1][0], max(apart[-1][1], end))
            else:
                apart.append((start, end))
        final = sum(end < before for _, end in apart)
        pieces: list[str] = []
        for start, end in apart[:final]:
            pieces += (self.text[self._done : start], self.replacement)
            self._done = end
        self._pieces.append("".join(pieces))
        self.replaced += final
        return apart[final:]

    def rest(self) -> str:
        """The text as it is now."""
        return "".join(self._pieces) + self.text[self._done :]
