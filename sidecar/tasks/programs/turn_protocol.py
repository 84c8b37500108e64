"""The interface of a turn with a running program, for any protocol.

No I/O: it takes an order and returns the bytes to write; it takes the bytes read and returns what they mean. There is
one turn at a time. Output between turns is discarded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from sidecar.tasks.programs.attempt import OutputArtifact, OutputChunk, ProgramOrder, ProgressNote
from sidecar.tasks.programs.run_record import Failure


class DialogueBroken(Exception):
    """A program sent what makes its further output ambiguous. The message says what, never a value."""


class UnsayableError(Exception):
    """An order cannot be sent to this program; the message says why. Nothing was written."""


class TurnAnswer(NamedTuple):
    """The end of a turn; the fields mean what they mean in `attempt.AttemptEnd`."""

    state: str = "TASK_STATE_COMPLETED"
    message: tuple[Mapping[str, Any], ...] = ()
    alone: bool = False
    failure: Failure | None = None


class TurnReply(NamedTuple):
    line: bytes


Heard = OutputChunk | OutputArtifact | ProgressNote | TurnAnswer | TurnReply


class Dialogue(Protocol):
    """The dialogue with one process, from its start to its end."""

    @property
    def strays(self) -> bool:
        """Whether it has output since its answer that would be taken for the next answer."""

    def begin(self, order: ProgramOrder) -> bytes:
        pass

    def cancel(self) -> bytes:
        """Returns what asks the program to cancel the turn; b"" if it cannot be asked."""

    def hear(self, chunk: bytes) -> Iterator[Heard]:
        """Parses more of its output. Raises DialogueBroken, and is unusable afterwards."""

    def over(self) -> Iterator[Heard]:
        """Parses what is left when its output has ended. Raises DialogueBroken."""
