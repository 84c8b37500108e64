"""Bounds prompts and answers, and removes secrets, before they are stored with a run for operators."""

import asyncio
import re
from typing import Final

from sidecar.gateway.redaction import Wiping, wiped
from sidecar.protocols.secret_patterns import CLASSES, Span

REPLACEMENT: Final = "[redacted]"
MAX_WORK_CHARS: Final = 256 * 1024  # a few milliseconds of work; far less is stored
_KEY_BEGIN: Final = "-----BEGIN "
_KEY_END: Final = "-----END "
_MARGIN_CHARS: Final = 8 * 1024  # longer than any key, so that a key cut at the edge is found

# Names that people and programs give to secrets, in any spelling, and the syntax of the values that follow.
_PAIR: Final = re.compile(
    r"(?:pass(?:word|wd|phrase)?|pwd|secret|token|api[ _-]?key|access[ _-]?key|private[ _-]?key|credentials?)"
    r"[\"']?\s{0,8}[:=]\s{0,8}"
    r"(?!\"?\[redacted\])"
    r"(\"(?:[^\"\\\n]|\\.){1,4096}\"?|'(?:[^'\\\n]|\\.){1,4096}'?|[^\s\"',;&<>(){}\[\]]{1,4096})",
    re.IGNORECASE,
)
_USERINFO: Final = re.compile(r"://[^\s/@:\"']{0,256}:((?!\[redacted\]@)[^\s/@\"']{1,1024})@")


def find_pairs(text: str, start: int, stop: int, spans: list[Span]) -> int:
    """Finds values that follow the name of a secret, and passwords in URLs; a `Finder`."""
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
    """Returns the text without secrets. A text longer than `MAX_WORK_CHARS` is cut to its beginning."""
    steps = wiped(text[:MAX_WORK_CHARS], (_WIPING,))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return _text_of(end)


async def all_sanitized(text: str) -> str:
    """Returns all of the text without secrets, whatever its length. Yields to the event loop in between."""
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
    return sanitized(text[: max_chars + _MARGIN_CHARS])[:max_chars]


class SanitizedLines:
    """Removes secrets from a text as it streams, line by line; a private key is held until it is complete."""

    def __init__(self) -> None:
        self._held = ""

    async def feed(self, text: str) -> str:
        held = self._held + text
        until, begun = held.rfind("\n") + 1, held.rfind(_KEY_BEGIN)
        if begun >= 0 and "\n" not in held[begun:].partition(_KEY_END)[2]:
            until = min(until, begun)
        if len(held) - until > _MARGIN_CHARS:
            until = len(held)
        self._held = held[until:]
        return await all_sanitized(held[:until])

    async def rest(self) -> str:
        held, self._held = self._held, ""
        return await all_sanitized(held)


class KeptEnd:
    """Stores the end of an answer as the answer streams."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._said = ""
        self._kept: str | None = ""

    def add(self, text: str) -> None:
        self._said = (self._said + text)[-(self._max_chars + _MARGIN_CHARS) :]
        self._kept = None

    def text(self) -> str:
        if self._kept is None:
            self._kept = sanitized(self._said)[-self._max_chars :]
        return self._kept
