"""Prints a run's output on a terminal as it arrives.

What it says goes to standard output as it comes. How it stands is one line on a terminal, which is gone when something
else is written, and nothing on anything else.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import click

from sidecar.protocols.hidden_characters import shown

MAX_LINE_CHARS: Final = 100
_WORDS: Final = {"SUBMITTED": "waiting", "WORKING": "running", "INPUT_REQUIRED": "it asks", "AUTH_REQUIRED": "it asks"}


@dataclass(slots=True)
class RunOutput:
    """What was written so far. `quiet` is for whoever wants the end alone."""

    quiet: bool = False
    began_mono_s: float = field(default_factory=time.monotonic)
    _stands: str = "waiting"
    _line_chars: int = 0
    _at_start: bool = True

    def tick(self) -> None:
        """Half a second is over."""
        self._draw()

    def status(self, data: Mapping[str, Any]) -> None:
        """How it stands now."""
        state = str(data.get("state") or "").removeprefix("TASK_STATE_")
        words = [_WORDS.get(state, state.lower().replace("_", " "))]
        done, total = data.get("progress"), data.get("total")
        if done is not None and total:
            words.append(f"{100 * done / total:.0f} %")
        elif done is not None:
            words.append(f"{done:g}")
        self._stands = " ".join(words + ([shown(data["message"])] if data.get("message") else []))
        self._draw()

    def output(self, data: Mapping[str, Any]) -> None:
        """More of what it says."""
        if self.quiet:
            return
        self.clear()
        if data.get("anew"):
            click.echo("-- once more --" if self._at_start else "\n-- once more --", err=True)
        text = data["text"]
        written(text)
        self._at_start = text.endswith("\n") if text else self._at_start

    def clear(self) -> None:
        """Take the line away."""
        if self._line_chars:
            click.echo("\r" + " " * self._line_chars + "\r", err=True, nl=False)
            self._line_chars = 0

    def end(self) -> None:
        """Nothing more comes; a terminal's next line begins at its start."""
        self.clear()
        if not self._at_start and sys.stdout.isatty():
            click.echo()

    def _draw(self) -> None:
        """Not behind half a line of output: there it would be taken for more of it."""
        if self.quiet or not sys.stderr.isatty() or not self._at_start:
            return
        room = min(MAX_LINE_CHARS, shutil.get_terminal_size().columns - 1)  # a line that wraps cannot be taken away
        line = f"{time.monotonic() - self.began_mono_s:5.0f} s  {self._stands}"[:room]
        click.echo("\r" + line.ljust(self._line_chars) + "\r", err=True, nl=False)
        self._line_chars = max(self._line_chars, len(line))


def written(text: str) -> None:
    """On standard output: a terminal gets what it would obey spelt out, anything else the text as it is."""
    if sys.stdout.isatty():
        click.echo(visible(text), nl=False)
    else:
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()


def visible(text: str) -> str:
    """A text for a terminal, its lines and tabs as they are, and everything that a terminal obeys spelt out."""
    return "\n".join("\t".join(map(shown, line.split("\t"))) for line in text.split("\n"))
