"""What is left of a text when all that looks like a secret is taken out?

A text is read in slices, and every finder keeps its own place, as what it found may end beyond a slice. What is put in
stands in brackets of its own, so that it belongs to no token; still, taking something out can leave something new to be
found beside it, so that a changed text is read again until nothing is. So screening twice is screening once.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from sidecar.screening.classes import MIN_CHARS, Finder, Span

SLICE_CHARS: Final = 64 * 1024  # of one finder; nine of them take a few milliseconds for it
SLICE_SPANS: Final = 20_000  # of what was found: each takes some 0.4 us
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
            spans = yield from _found(text, wiping.finders)
            if spans:
                text = yield from _without(text, spans, wiping.replacement)
                replaced += len(spans)
        if text is before:
            return text, replaced
    return wipings[0].replacement, replaced + 1  # a text that never comes to rest does not pass


def _found(text: str, finders: Sequence[Finder]) -> Generator[None, None, list[Span]]:
    spans: list[Span] = []
    places = [0] * len(finders)
    for start in range(0, len(text), SLICE_CHARS):
        if start:
            yield
        stop = min(start + SLICE_CHARS, len(text))
        for index, find in enumerate(finders):
            if places[index] < stop:
                places[index] = find(text, places[index], stop, spans)
    return (yield from _apart(spans)) if len(spans) > 1 else spans


def _apart(spans: list[Span]) -> Generator[None, None, list[Span]]:
    """In order, and what overlaps as one."""
    spans.sort()
    apart = [spans[0]]
    for number, (start, end) in enumerate(islice(spans, 1, None), 1):
        if number % SLICE_SPANS == 0:
            yield
        if start < apart[-1][1]:
            apart[-1] = (apart[-1][0], max(end, apart[-1][1]))
        else:
            apart.append((start, end))
    return apart


def _without(text: str, spans: Sequence[Span], replacement: str) -> Generator[None, None, str]:
    pieces: list[str] = []
    at = 0
    for number, (start, end) in enumerate(spans):
        if number and number % SLICE_SPANS == 0:
            yield
        pieces += (text[at:start], replacement)
        at = end
    return "".join([*pieces, text[at:]])
