"""The interface of a turn with a running program, whatever protocol it speaks.

No I/O: an order goes in and the bytes to write come out; bytes that were read go in and what they mean comes out.
There is one turn at a time. What a program says while there is none goes to nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from sidecar.tasks.programs.attempt import OutputArtifact, OutputChunk, ProgramOrder, ProgressNote
from sidecar.tasks.programs.run_record import Failure


class DialogueBroken(Exception):
    """A program said what it must not: nobody knows any more what its next word belongs to. The text says what it was,
    never a value."""


class UnsayableError(Exception):
    """An order cannot be told to this program; the text says why. Nothing was written."""


class TurnAnswer(NamedTuple):
    """The end of a turn, with the meaning that these have in `running.Ended`."""

    state: str = "TASK_STATE_COMPLETED"
    message: tuple[Mapping[str, Any], ...] = ()
    alone: bool = False
    failure: Failure | None = None


class TurnReply(NamedTuple):
    """What is to be written back at once."""

    line: bytes


Heard = OutputChunk | OutputArtifact | ProgressNote | TurnAnswer | TurnReply


class Dialogue(Protocol):
    """What is spoken with one process, from its start to its end."""

    @property
    def strays(self) -> bool:
        """Whether it said something since its answer, and more of that would be taken for the next one."""

    def begin(self, order: ProgramOrder) -> bytes:
        """A turn, as it is written. Raises Unsayable."""

    def cancel(self) -> bytes:
        """What asks the program to give up the turn; b"" where it cannot be asked."""

    def hear(self, chunk: bytes) -> Iterator[Heard]:
        """What more of its output means. Raises Broken, and is of no use after that."""

    def over(self) -> Iterator[Heard]:
        """What is left to be heard when its output has ended. Raises Broken."""
