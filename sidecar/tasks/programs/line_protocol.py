"""The line protocol: writes a turn to a program as one line and finds the end of its answer, `turn_end`.

A program would answer each further line as a separate prompt, and every later turn would get the answer to an earlier
one. Other output is discarded: before the first turn (`greets`), after the answer, and between turns.
"""

import codecs
import json
from collections.abc import Iterator
from typing import Final

from sidecar.settings.agents import CliAgent, Newlines
from sidecar.tasks.programs.attempt import DialogueBroken, Heard, OutputChunk, ProgramOrder, TurnAnswer, UnsayableError

_LINE_END: Final = b"\n"


class LineDialogue:
    """At most `max_said_bytes` of each answer are read, or discarded between turns. Unless `says`, the answer is in a
    file."""

    def __init__(
        self, turn_end: str, newlines: Newlines, *, greets: bool, max_said_bytes: int, says: bool = True
    ) -> None:
        self._turn_end, self._newlines, self._greeting = turn_end.encode(), newlines, greets
        self._says, self._max_said_bytes, self._asked = says, max_said_bytes, False
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held = b""
        self._said_bytes = 0

    @property
    def strays(self) -> bool:
        return not self._asked and not self._greeting and self._said_bytes > 0

    def begin(self, order: ProgramOrder) -> bytes:
        line = _one_line(order.prompt.text, self._newlines)
        self._asked = True
        self._said_bytes = 0
        if not self._greeting:
            self._held = b""
        return line.encode("utf-8", "replace") + _LINE_END

    def cancel(self) -> bytes:
        """Returns b"": anything written would be a prompt."""
        return b""

    def hear(self, chunk: bytes) -> Iterator[Heard]:
        self._said_bytes += len(chunk)
        said, found, rest = (self._held + chunk).partition(self._turn_end)
        if self._greeting:
            self._greeted(found, said, rest)
            if not found or not rest:
                return
            said, found, rest = rest.partition(self._turn_end)
        if not self._asked:
            self._bound(self._said_bytes)
            self._held = b""
            return
        held = 0 if found else _begun(said, self._turn_end)
        self._held = said[len(said) - held :]
        said = said[: len(said) - held]
        self._bound(self._said_bytes - len(rest))
        if (text := self._decode(said, final=bool(found))) and self._says:
            yield OutputChunk(text)
        if found:
            self._asked = False
            self._said_bytes = len(rest)
            yield TurnAnswer()

    def over(self) -> Iterator[Heard]:
        if self._asked and not self._greeting and (text := self._decode(self._held, final=True)) and self._says:
            yield OutputChunk(text)
        self._held = b""

    def _greeted(self, found: bytes, said: bytes, rest: bytes) -> None:
        self._bound(self._said_bytes - len(rest))
        if found:
            self._greeting = False
            self._said_bytes = len(rest)
            self._held = b""
        else:
            self._held = said[len(said) - _begun(said, self._turn_end) :]

    def _bound(self, size: int) -> None:
        if size > self._max_said_bytes:
            raise DialogueBroken(f"it said more than {self._max_said_bytes} bytes")


def is_sayable(text: str, definition: CliAgent) -> bool:
    reads_lines = definition.keeps_processes and definition.patterns.input == "stdin"
    return not reads_lines or definition.newlines != "refuse" or len(text.splitlines()) < 2


def _one_line(text: str, newlines: Newlines) -> str:
    """Returns a prompt as one line. All of Unicode's line ends count, because other languages accept more than
    `\\n`."""
    if newlines == "json":
        return json.dumps(text)  # pure ASCII, so it contains none of those line ends
    lines = text.splitlines()
    if len(lines) < 2:
        return "".join(lines)
    if newlines == "refuse":
        raise UnsayableError("a prompt of this agent is one line, and this one has several")
    return " ".join(lines)


def _begun(said: bytes, end: bytes) -> int:
    """Returns how many of the last bytes may be the beginning of `end`."""
    for size in range(min(len(said), len(end) - 1), 0, -1):
        if end.startswith(said[-size:]):
            return size
    return 0
