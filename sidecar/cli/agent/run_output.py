"""Prints a run's output as it arrives. On a terminal, a line below it shows the run's state; it is erased before more
output."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from sidecar.protocols.hidden_characters import shown

if TYPE_CHECKING:
    from rich.live import Live

_WORDS: Final = {"SUBMITTED": "waiting", "WORKING": "running", "INPUT_REQUIRED": "it asks", "AUTH_REQUIRED": "it asks"}


@dataclass(slots=True)
class RunOutput:
    """The output written so far; nothing if `quiet`."""

    quiet: bool = False
    began_mono_s: float = field(default_factory=time.monotonic)
    _stands: str = "waiting"
    _line: Live | None = None
    _at_start: bool = True

    def _draw(self) -> None:
        """Shows the status line, except after an incomplete line of output, where it would look like part of it."""
        if self.quiet or not sys.stderr.isatty() or not self._at_start or self._line is not None:
            return
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        def line() -> Text:
            text = f"{time.monotonic() - self.began_mono_s:5.0f} s  {self._stands}"
            return Text(text, no_wrap=True, overflow="ellipsis")

        self._line = Live(console=Console(stderr=True), transient=True, refresh_per_second=2, get_renderable=line)
        self._line.start()

    def status(self, data: Mapping[str, Any]) -> None:
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
        if self.quiet:
            return
        self.clear()
        if data.get("anew"):
            click.echo("-- once more --" if self._at_start else "\n-- once more --", err=True)
        text = data["text"]
        written(text)
        self._at_start = text.endswith("\n") if text else self._at_start
        self._draw()

    def clear(self) -> None:
        if self._line is not None:
            self._line.stop()
            self._line = None

    def end(self) -> None:
        """Ends the output. On a terminal, the next line starts at its beginning."""
        self.clear()
        if not self._at_start and sys.stdout.isatty():
            click.echo()


def written(text: str) -> None:
    """Writes text to standard output: with control characters escaped on a terminal, otherwise unchanged."""
    if sys.stdout.isatty():
        click.echo("\n".join("\t".join(map(shown, line.split("\t"))) for line in text.split("\n")), nl=False)
    else:
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()
