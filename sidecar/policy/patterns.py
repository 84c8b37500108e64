"""Matches names against wildcard patterns.

The functions that the Casbin models call: `who`, `glob`, `globs` (`live` and `holds` belong to one question, see
judge.py), and two relations between patterns. `*` is the only wildcard: any run of characters, `/` and line breaks
included, anchored, case-sensitive. There are no regular expressions here, so no pattern can be slow: each piece
between wildcards is looked for once, from left to right.
"""

from __future__ import annotations

from sidecar.vocabulary import ANONYMOUS

WILDCARD = "*"


def glob(text: str, pattern: str) -> bool:
    """Whether the whole text fits the pattern."""
    if WILDCARD not in pattern:
        return text == pattern
    head, *middle, tail = pattern.split(WILDCARD)
    at, end = len(head), len(text) - len(tail)
    if at > end or not text.startswith(head) or not text.endswith(tail):
        return False
    for piece in middle:
        found = text.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def globs(text: str, patterns: str) -> bool:
    """Whether the text fits one of the patterns in a `|` list."""
    return any(glob(text, pattern) for pattern in patterns.split("|"))


def who(subject: str, pattern: str, effect: str) -> bool:
    """Whether a rule's subject means this caller.

    `anonymous` is allowed only by exactly that word: a grant to `*` means everybody who was identified (CONTRACT 1.1).
    """
    if subject == ANONYMOUS and effect != "deny":
        return pattern == ANONYMOUS
    return glob(subject, pattern)


def covers(outer: str, inner: str) -> bool:
    """Whether everything that fits `inner` fits `outer`. A `*` in `inner` is only covered by one in `outer`."""
    return glob(inner, outer)


def meets_prefix(pattern: str, prefix: str) -> bool:
    """Whether some text that begins with `prefix` fits the pattern."""
    head, wildcard, _ = pattern.partition(WILDCARD)
    return head.startswith(prefix) or (wildcard != "" and prefix.startswith(head))
