"""Matches names against wildcard patterns.

Implements the functions that Casbin models call, `who`, `glob` and `globs` (`live` and `holds` depend on the request,
see link_decision.py), and relations between patterns. `*` is the only wildcard: it matches any run of characters,
including `/` and line breaks; matching is anchored and case-sensitive. Names are matched without regular expressions,
so no pattern is slow: each piece between wildcards is searched for once, from left to right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import repeat

from sidecar.vocabulary import ANONYMOUS

WILDCARD = "*"


def glob(text: str, pattern: str) -> bool:
    """Whether the pattern matches the whole text."""
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


class NamePattern:
    """`glob` for one pattern with wildcards and very many texts: several times as fast."""

    def __init__(self, pattern: str) -> None:
        self._head, *middle, self._tail = pattern.split(WILDCARD)
        self._middle = [piece for piece in middle if piece]
        self._longest = max(middle, key=len, default="")

    def among(self, texts: Sequence[str]) -> Sequence[str]:
        """Returns the texts that the pattern matches. Each step is applied to all texts before the next step begins."""
        head, tail, longest = self._head, self._tail, self._longest
        if head:
            texts = [text for text in texts if text.startswith(head)]
        if tail:
            texts = [text for text in texts if text.endswith(tail)]
        if longest:  # usually leaves few texts
            texts = [text for text in texts if longest in text]
        ends = [len(head)] * len(texts)
        for piece in self._middle:
            found = list(map(str.find, texts, repeat(piece), ends))
            texts = [text for text, at in zip(texts, found, strict=True) if at >= 0]
            ends = [at + len(piece) for at in found if at >= 0]
        return [text for text, end in zip(texts, ends, strict=True) if end + len(tail) <= len(text)] if tail else texts


def globs(text: str, patterns: str) -> bool:
    return any(glob(text, pattern) for pattern in patterns.split("|"))


def who(subject: str, pattern: str, effect: str) -> bool:
    """Whether a rule's subject matches this caller.

    `anonymous` is allowed only by exactly that name: a grant to `*` covers identified callers only."""
    if subject == ANONYMOUS and effect != "deny":
        return pattern == ANONYMOUS
    return glob(subject, pattern)


def inside(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns covers everything that the name, which may be a pattern itself, matches."""
    return any(covers(pattern, name) for pattern in patterns)


def file_matches(path: str, pattern: str) -> bool:
    """Whether a glob over paths, which the settings contain, matches: `**` crosses folders, `*` does not."""
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}
    pieces = re.split(r"(\*\*/|\*\*|\*)", pattern)
    return re.fullmatch("".join(parts.get(piece, re.escape(piece)) for piece in pieces), path, re.DOTALL) is not None


def covers(outer: str, inner: str) -> bool:
    """Whether `outer` matches everything that `inner` matches. A `*` in `inner` is covered only by one in `outer`."""
    return glob(inner, outer)


def meets_prefix(pattern: str, prefix: str) -> bool:
    """Whether the pattern matches some text that begins with `prefix`."""
    head, wildcard, _ = pattern.partition(WILDCARD)
    return head.startswith(prefix) or (wildcard != "" and prefix.startswith(head))


def meets(one: str, other: str) -> bool:
    """Whether some text matches both patterns."""
    if WILDCARD not in one or WILDCARD not in other:
        return covers(one, other) or covers(other, one)
    short, long = sorted((one.partition(WILDCARD)[0], other.partition(WILDCARD)[0]), key=len)
    low, high = sorted((one.rpartition(WILDCARD)[2], other.rpartition(WILDCARD)[2]), key=len)
    return long.startswith(short) and high.endswith(low)  # the remaining pieces can follow one another
