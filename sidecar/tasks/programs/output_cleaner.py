"""Removes control sequences and secrets from a program's output as it streams.

Takes bytes in chunks and returns text without terminal control sequences, with secret values replaced. The result does
not depend on where chunks begin: at most the beginning of a character, a secret or a sequence is held back.
"""

import codecs
import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

REPLACEMENT: Final = "[redacted]"
MIN_SECRET_CHARS: Final = 4  # a shorter value, such as `1` or `on`, is not a secret, and occurs everywhere

# An empty group marks a sequence that the end of the text truncates.
_CONTROL: Final = re.compile(
    r"(?:\x1b\[|\x9b)[\x20-\x3f]*(?:[\x40-\x7e]|(\Z)|)"  # CSI
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x18\x1a\x1b\x9c]*(?:[\x07\x18\x1a\x9c]|\x1b\\|(\Z)|)"  # OSC, DCS …
    r"|\x1b[\x20-\x2f]*(?:[\x30-\x7e]|(\Z)|)"
    r"|\r(?:(\Z)|(?!\n))"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]"
)


class ControlStripper:
    """Removes ECMA-48 control sequences and strings, and control characters except tab and line ends. A lone carriage
    return becomes a line end. An unterminated string (a title, a clipboard) is dropped to its end."""

    def __init__(self) -> None:
        self._held = ""  # the beginning of an unfinished sequence, without its content

    def feed(self, text: str) -> str:
        text, self._held = self._held + text, ""
        return _CONTROL.sub(self._replacement, text)

    def end(self) -> str:
        held, self._held = self._held, ""
        return "\n" if held == "\r" else ""

    def _replacement(self, found: re.Match[str]) -> str:
        if found.lastindex is None:
            return "\n" if found[0] == "\r" else ""
        self._held = ("\x1b[", "\x1b]", found[0][:2], "\r")[found.lastindex - 1]
        return ""


class SecretRedactor:
    """Replaces every secret in the text. Overlapping secrets are replaced as one."""

    def __init__(self, secrets: Collection[str]) -> None:
        self._secrets = tuple(secrets)
        self._held = ""
        self._covered = 0  # how much of the held text belongs to a secret that began earlier
        self._in_secret = False  # whether the last output was a replacement

    def feed(self, text: str) -> str:
        if not self._secrets:
            return text
        whole = self._held + text
        return self._settled(whole, min(_begun(whole, secret) for secret in self._secrets))

    def end(self) -> str:
        return self._settled(self._held, len(self._held))

    def _settled(self, text: str, until: int) -> str:
        kept: list[str] = []
        at, covered = 0, self._covered
        for start, end in sorted(self._found(text, until)):
            if start > covered:
                at = self._give(text, at, covered, start, kept)
            covered = max(covered, end)
        self._give(text, at, min(covered, until), until, kept)
        self._held = text[until:]
        self._covered = max(covered - until, 0)
        return "".join(kept)

    def _give(self, text: str, at: int, covered: int, until: int, kept: list[str]) -> int:
        """Emits text[at:covered] as one replacement, and then the plain text after it."""
        if covered > at:
            if not self._in_secret:
                kept.append(REPLACEMENT)
            self._in_secret = True
        if until > covered:
            kept.append(text[max(at, covered) : until])
            self._in_secret = False
        return until

    def _found(self, text: str, until: int) -> Iterator[tuple[int, int]]:
        for secret in self._secrets:
            at = text.find(secret)
            while 0 <= at < until:
                yield at, at + len(secret)
                at = text.find(secret, at + 1)


def _begun(text: str, secret: str) -> int:
    """Returns where, at the end of the text, a secret may begin that continues in the next chunk."""
    at = text.find(secret[0], max(0, len(text) - len(secret) + 1))
    while at >= 0 and not secret.startswith(text[at:]):
        at = text.find(secret[0], at + 1)
    return len(text) if at < 0 else at


class OutputCleaner:
    def __init__(self, strip_control: bool, secrets: Collection[str]) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stripper = ControlStripper() if strip_control else None
        self._redactor = SecretRedactor(secrets)

    def feed(self, said: bytes | str) -> str:
        text = said if isinstance(said, str) else self._decoder.decode(said)
        return self._redactor.feed(self._stripper.feed(text) if self._stripper else text)

    def end(self) -> str:
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        if self._stripper:
            text = self._stripper.feed(text) + self._stripper.end()
        return self._redactor.feed(text) + self._redactor.end()


class CleaningRules:
    """The rules for cleaning one agent's output. `secrets` are also found in JSON and URL encoding."""

    def __init__(self, *, strip_control: bool = True, secrets: Collection[str] = ()) -> None:
        self._strip_control = strip_control
        self._secrets = tuple(sorted({form for secret in secrets for form in _forms(secret)}))

    def cleaner(self, *, plain: bool = False) -> OutputCleaner:
        """Returns a cleaner for one stream. `plain` removes control sequences whatever the settings are, for logs."""
        return OutputCleaner(self._strip_control or plain, self._secrets)

    def text(self, said: str, *, plain: bool = False) -> str:
        cleaner = self.cleaner(plain=plain)
        return cleaner.feed(said) + cleaner.end()

    def value(self, said: Any) -> Any:
        """Cleans every text in a JSON value, including the names of members."""
        if isinstance(said, str):
            return self.text(said)
        if isinstance(said, Mapping):
            return {self.text(name): self.value(value) for name, value in said.items()}
        return [self.value(value) for value in said] if isinstance(said, list | tuple) else said


def _forms(secret: str) -> set[str]:
    if len(secret) < MIN_SECRET_CHARS:
        return set()
    return {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], quote(secret, safe="")}
