"""Collects the faults of policy files, with positions and hints.

One collector serves a whole load, so that all faults are reported together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sidecar.errors import Fault, visible, way_to_read
from sidecar.settings.validation_errors import meant as meant

MAX_FAULTS = 200  # a wrong separator makes every row wrong; this many faults show it


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of a file. `number` counts from 1; 0 is the file as a whole."""

    file: str
    number: int
    text: str


@dataclass(slots=True)
class Faults:
    """The faults found so far; beyond MAX_FAULTS they are dropped. Warnings never stop a load."""

    errors: list[Fault] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return len(self.errors) >= MAX_FAULTS

    def error(self, code: str, message: str, line: SourceLine, column: int = 1, width: int = 1, hint: str = "") -> None:
        if len(self.errors) < MAX_FAULTS:
            self.errors.append(Fault(line.file, line.number, column, code, message, hint, line.text, width))

    def warn(self, code: str, message: str, line: SourceLine, column: int = 1, width: int = 1, hint: str = "") -> None:
        if len(self.warnings) < MAX_FAULTS:
            fault = Fault(line.file, line.number, column, code, message, hint, line.text, width, "warning")
            self.warnings.append(fault)

    def whole(self, code: str, message: str, file: str, hint: str = "") -> None:
        """Reports a fault of a whole file or folder, such as a missing one."""
        self.error(code, message, SourceLine(file, 0, ""), hint=hint)

    def unreadable(self, error: OSError, path: Path) -> None:
        """Reports a file or folder that the system does not open."""
        self.whole("P001", f"cannot be read: {error.strerror}", str(path), way_to_read(error))


def shown(text: str) -> str:
    """Returns a value for use in a message: shortened, without terminal control characters."""
    cut = text if len(text) <= 80 else text[:77] + "..."
    return f'"{visible(cut)}"'
