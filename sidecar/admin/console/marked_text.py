"""Splits texts of callers, upstreams and files into pieces with marks, for pages.

A piece is `(text, mark)`; templates show it as `<span class="mark-…">`. Characters that are invisible, or that change
how others look, become escapes such as `\\u200b` with the mark `hidden`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Final

from sidecar.protocols.hidden_characters import revealed, shown

HIDDEN: Final = "hidden"
MAX_CHARACTERS: Final = 4_000

_ESCAPES: Final = re.compile(r"(?:\\u[0-9a-f]{4})+|\\.")

Piece = tuple[str, str]


def pieces_of(text: str, mark: str = "", *, most: int = MAX_CHARACTERS) -> list[Piece]:
    """The pieces of one line of text. Instead of the text after `most` characters, a last piece has its length."""
    cut, left_out = text[:most], len(text) - most
    found = [(cut, mark)] if cut.isprintable() and revealed(cut) == cut else list(_revealed(cut, mark))
    return [*found, (f" … {left_out} characters more", "more")] if left_out > 0 else found


def json_pieces(text: str, mark: str = "") -> list[Piece]:
    """The pieces of one line of JSON, whose hidden characters are already escapes, as `pins_file.readable` writes it. A
    line of more than MAX_CHARACTERS is cut as by `pieces_of`."""
    found, end, most = list[Piece](), 0, min(len(text), MAX_CHARACTERS)
    for escape in _ESCAPES.finditer(text, 0, most):
        if escape[0].startswith("\\u"):
            if escape.start() > end:
                found += pieces_of(text[end : escape.start()], mark)
            found.append((escape[0], HIDDEN))
            end = escape.end()
    rest = text[end:]
    return [*found, *pieces_of(rest, mark, most=most - end)] if rest or not found else found


def _revealed(text: str, mark: str) -> Iterator[Piece]:
    for is_seen, together in groupby(text, lambda each: each == "\t" or shown(each) == each):
        part = "".join(together)
        yield (part, mark) if is_seen else (shown(part), HIDDEN)
