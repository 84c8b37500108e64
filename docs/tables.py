"""Markdown of generated pages."""

import re
from collections.abc import Iterator, Sequence

_CODE_OR_MARK = re.compile(r"`[^`]*`|[<*]")
_MARKS = {"<": "&lt;", "*": "\\*"}


def table(head: Sequence[str], rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> str:
    """A Markdown table. A `|` inside a cell would end it."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def escaped(text: str) -> str:
    """Text in which `<` and `*` outside code are no markup."""
    return _CODE_OR_MARK.sub(lambda found: _MARKS.get(found[0], found[0]), text)
