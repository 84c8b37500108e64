"""How is a text from outside shown, so that no terminal obeys it?

Names of files, rules, tools and principals come from others. Whatever prints one writes control characters, terminal
escapes, bidirectional controls and bytes that are no UTF-8 as escapes (threats O1).
"""

from __future__ import annotations


def visible(text: str) -> str:
    """The same text where every character is printable; else with escapes for those that are not. A line end is one of
    them: a name must not begin a line of its own."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def visible_lines(text: str) -> str:
    """A text of several lines: their ends and tabs stay."""
    return "\n".join("\t".join(map(visible, line.split("\t"))) for line in text.split("\n"))
