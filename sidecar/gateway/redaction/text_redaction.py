"""Removes secrets from texts.

A text is read in slices, and every finder keeps its own position, because a match may end beyond a slice. The
replacement is in brackets, so that it is part of no token. Removing a match can still create a new one beside it, so a
changed text is searched again until there is no match. Redacting twice therefore equals redacting once.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Final

from sidecar.protocols.secret_patterns import LOCAL_CHARS, MIN_CHARS, Finder, Span

SLICE_CHARS: Final = 64 * 1024  # of one finder; nine finders take a few milliseconds for it
MAX_PASSES: Final = 8


@dataclass(frozen=True, slots=True)
class Wiping:
    finders: tuple[Finder, ...]
    replacement: str


Steps = Generator[None, None, tuple[str, int]]
"""Yields where other work may run; returns the text, and the number of replacements."""


def wiped(text: str, wipings: Sequence[Wiping]) -> Steps:
    """Returns the text without the matches of `wipings`."""
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
    return wipings[0].replacement, replaced + 1  # a text that keeps matching does not pass


def _once(text: str, wiping: Wiping) -> Steps:
    """Replaces the matches slice by slice: a million matches at once would be a million objects, and sorting or
    collecting them would block the loop."""
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
    """A text whose matches are removed from its beginning on."""

    text: str
    replacement: str
    replaced: int = 0
    _pieces: list[str] = field(default_factory=list)
    _done: int = 0

    def without(self, spans: Sequence[Span], *, before: int) -> list[Span]:
        """Removes these spans, which are in order; overlapping ones as one. Returns the spans that end at or after
        `before`, because later matches may overlap them."""
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
        return "".join(self._pieces) + self.text[self._done :]
