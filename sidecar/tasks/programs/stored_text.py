"""Bounds prompts and answers, and removes secrets, before they are stored with a run.

People paste keys into prompts, and programs print them. What goes out to whoever asked is theirs; what is kept is for
whoever looks at runs later (the seed: "sanitized of sensitive data"). Secrets of known looks are taken out
(`screening/`), and what stands behind words such as `password=`. What an agent's own environment holds is gone from its
answers before (`output_cleaner.py`).
"""

from __future__ import annotations

import asyncio
import re
from typing import Final

from sidecar.gateway.redaction.text_redaction import Wiping, wiped
from sidecar.protocols.secret_patterns import CLASSES, Span

REPLACEMENT: Final = "[redacted]"
MAX_WORK_CHARS: Final = 256 * 1024  # a few milliseconds of work; what is kept is far less
_KEY_BEGIN: Final = "-----BEGIN "
_KEY_END: Final = "-----END "
_MARGIN_CHARS: Final = 8 * 1024  # longer than any key: what begins before what is kept is known by its beginning

# What people and programs call secrets, in any spelling, and how they write what it is.
_PAIR: Final = re.compile(
    r"(?:pass(?:word|wd|phrase)?|pwd|secret|token|api[ _-]?key|access[ _-]?key|private[ _-]?key|credentials?)"
    r"[\"']?\s{0,8}[:=]\s{0,8}"
    r"(?!\"?\[redacted\])"
    r"(\"(?:[^\"\\\n]|\\.){1,4096}\"?|'(?:[^'\\\n]|\\.){1,4096}'?|[^\s\"',;&<>(){}\[\]]{1,4096})",
    re.IGNORECASE,
)
_USERINFO: Final = re.compile(r"://[^\s/@:\"']{0,256}:((?!\[redacted\]@)[^\s/@\"']{1,1024})@")


def find_pairs(text: str, start: int, stop: int, spans: list[Span]) -> int:
    """The value behind a word that says that it is secret; a password in an address."""
    looked = stop
    for pattern in (_PAIR, _USERINFO):
        for found in pattern.finditer(text, start):
            if found.start() >= stop:
                break
            spans.append(found.span(1))
            looked = max(looked, found.end())
    return looked


_WIPING: Final = Wiping(
    (CLASSES["private_key"], CLASSES["jwt"], CLASSES["bearer"], CLASSES["api_key"], find_pairs), REPLACEMENT
)


def sanitized(text: str) -> str:
    """The text without secrets. It is read as a whole: what is longer than `MAX_WORK_CHARS` keeps its beginning."""
    steps = wiped(text[:MAX_WORK_CHARS], (_WIPING,))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return _text_of(end)


async def all_sanitized(text: str) -> str:
    """All of the text without secrets, however long it is: others have their turn meanwhile."""
    steps = wiped(text, (_WIPING,))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return _text_of(end)
        await asyncio.sleep(0)


def _text_of(end: StopIteration) -> str:
    kept, _ = end.value
    return str(kept)


def kept_beginning(text: str, max_chars: int) -> str:
    """The beginning of a prompt, as it is kept."""
    return sanitized(text[: max_chars + _MARGIN_CHARS])[:max_chars]


class SanitizedLines:
    """A text without secrets while it comes: line by line, as what is secret rarely has more than one. Of a private key
    all lines are waited for, within `_MARGIN_CHARS`."""

    def __init__(self) -> None:
        self._held = ""

    async def feed(self, text: str) -> str:
        """More of it, as far as its lines are whole."""
        held = self._held + text
        until, begun = held.rfind("\n") + 1, held.rfind(_KEY_BEGIN)
        if begun >= 0 and "\n" not in held[begun:].partition(_KEY_END)[2]:
            until = min(until, begun)
        if len(held) - until > _MARGIN_CHARS:
            until = len(held)
        self._held = held[until:]
        return await all_sanitized(held[:until])

    async def rest(self) -> str:
        """What waited for more."""
        held, self._held = self._held, ""
        return await all_sanitized(held)


class KeptEnd:
    """The end of an answer, as it is kept, while the answer comes."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._said = ""
        self._kept: str | None = ""

    def add(self, text: str) -> None:
        """More of it."""
        self._said = (self._said + text)[-(self._max_chars + _MARGIN_CHARS) :]
        self._kept = None

    def text(self) -> str:
        """As it is now. Only what was added since the last time is work."""
        if self._kept is None:
            self._kept = sanitized(self._said)[-self._max_chars :]
        return self._kept
