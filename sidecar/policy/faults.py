"""Positions and suggestions for faults in policy files.

One collector for a whole load, so that every fault is told at once (CONTRACT 3), with its position and a hint.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

from sidecar.errors import Fault, visible

MAX_FAULTS = 200  # a wrong separator makes every row wrong; a screenful says it as well as a million lines


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of a file. `number` counts from 1."""

    file: str
    number: int
    text: str


@dataclass(slots=True)
class Faults:
    """What was found so far. Warnings never stop a load."""

    errors: list[Fault] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        """Whether no further error is kept."""
        return len(self.errors) >= MAX_FAULTS

    def error(self, code: str, message: str, line: SourceLine, column: int = 1, width: int = 1, hint: str = "") -> None:
        if len(self.errors) < MAX_FAULTS:
            self.errors.append(Fault(line.file, line.number, column, code, message, hint, line.text, width))

    def warn(self, code: str, message: str, line: SourceLine, column: int = 1, width: int = 1, hint: str = "") -> None:
        if len(self.warnings) < MAX_FAULTS:
            fault = Fault(line.file, line.number, column, code, message, hint, line.text, width, "warning")
            self.warnings.append(fault)

    def whole(self, code: str, message: str, file: str, hint: str = "") -> None:
        """A fault of a file as a whole: missing, unknown, empty."""
        self.error(code, message, SourceLine(file, 0, ""), hint=hint)


def meant(word: str, known: Iterable[str]) -> str:
    """`did you mean "tools/call"?`, or "" when nothing is near."""
    near = difflib.get_close_matches(word[:128], list(known), n=1, cutoff=0.6)
    return f'did you mean "{near[0]}"?' if near else ""


def shown(text: str) -> str:
    """A value inside a message: short, and with nothing that a terminal would obey."""
    cut = text if len(text) <= 80 else text[:77] + "..."
    return f'"{visible(cut)}"'
