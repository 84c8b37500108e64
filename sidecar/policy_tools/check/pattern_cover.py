"""Finds the patterns that cover a name without trying each.

A pattern that covers a text begins with the text's own beginning, so patterns are indexed by the part before their
first wildcard, and below that by the part after their last one. A lookup tries only the few lengths in use.
"""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.policy.patterns import WILDCARD, covers

MAX_ALIKE = 256  # patterns that differ only between their wildcards; further ones are not found
_FEW = 8  # up to this many tails are tried one by one


class PatternCover:
    """A set of patterns and exact names."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._exact: set[str] = set()
        self._by_head: dict[str, dict[str, list[str]]] = {}
        self._lengths: list[int] = []
        for pattern in patterns:
            self.add(pattern)

    def add(self, pattern: str) -> None:
        if pattern in self._exact:
            return
        self._exact.add(pattern)
        if WILDCARD not in pattern:
            return
        head, _, rest = pattern.partition(WILDCARD)
        tails = self._by_head.setdefault(head, {})
        alike = tails.setdefault(rest.rpartition(WILDCARD)[2], [])
        if len(alike) < MAX_ALIKE:
            alike.append(pattern)
        if len(head) not in self._lengths:
            self._lengths.append(len(head))

    def covering(self, text: str) -> list[str]:
        """Return those that match everything that `text` matches; it is a name or a pattern. Includes `text` itself if
        it was added.
        """
        found = [text] if text in self._exact else []
        for length in self._lengths:
            tails = self._by_head.get(text[:length]) if length <= len(text) else None
            if tails:
                found += [pattern for pattern in _ending(tails, text) if pattern != text and covers(pattern, text)]
        return found


def _ending(tails: dict[str, list[str]], text: str) -> Iterable[str]:
    if len(tails) <= _FEW:
        return [pattern for patterns in tails.values() for pattern in patterns]
    return [pattern for at in range(len(text) + 1) for pattern in tails.get(text[at:], ())]
