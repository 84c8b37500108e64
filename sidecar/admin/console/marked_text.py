"""Splits texts into pieces with marks, for texts of callers, upstreams and files that a page shows.

A piece is `(text, mark)`; templates show it as `<span class="mark-…">`. Characters that a reader does not see, or that
change how others look, become escapes such as `\\u200b` with the mark `hidden`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from sidecar.protocols.hidden_characters import revealed, shown

HIDDEN: Final = "hidden"
MAX_CHARACTERS: Final = 4_000

Piece = tuple[str, str]


def pieces_of(text: str, mark: str = "", *, most: int = MAX_CHARACTERS) -> list[Piece]:
    """The pieces of one line of text; what is beyond `most` characters is left out, and said."""
    cut, left_out = text[:most], len(text) - most
    found = [(cut, mark)] if cut.isprintable() and revealed(cut) == cut else list(_revealed(cut, mark))
    return [*found, (f" … {left_out} characters more", "more")] if left_out > 0 else found


def _revealed(text: str, mark: str) -> Iterator[Piece]:
    for is_seen, together in groupby(text, lambda each: each == "\t" or shown(each) == each):
        part = "".join(together)
        yield (part, mark) if is_seen else (shown(part), HIDDEN)
