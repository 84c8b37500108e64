"""Holds a conversation with a running program, one turn at a time.

It is read all the time, whether it was asked anything or not, so that it never waits for us. What it says in a turn is
made safe to show; what it says beside its turns goes to nobody, and what of that is still on its way when a turn
begins is waited for and thrown away first: else everybody from then on would hear the answer to something else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, Final, Protocol

from sidecar.settings.agents import CliAgent
from sidecar.tasks.programs.attempt import AttemptEnd, OutputArtifact, OutputChunk, ProgramOrder, ProgressNote
from sidecar.tasks.programs.exit_reasons import FAILED, failure_of_exit
from sidecar.tasks.programs.output_cleaner import CleaningRules
from sidecar.tasks.programs.run_record import Failure, Usage
from sidecar.tasks.programs.run_states import Category
from sidecar.tasks.programs.supervised_process import SupervisedProcess
from sidecar.tasks.programs.turn_protocol import Dialogue, DialogueBroken, Heard, TurnAnswer, TurnReply
from sidecar.tasks.programs.working_folders import UnreadableFolder
from sidecar.upstreams.processes import Exit

CANCEL_GRACE_S: Final = 2.0  # to answer when it was asked to give up
PATIENCE_S: Final = 0.5  # to end by itself, once its input is closed or its output is
QUIET_PASSES: Final = 5  # of the event loop: from readable to read to heard takes three
QUIET_S: Final = 0.02
MAX_STRAYS: Final = 25  # half a second in which it never was
MAX_TOLD_CHARS: Final = 2_000
PIECE_BYTES: Final = 8 * 1024  # of what was read: thousands of lines at once would hold up everybody

Told = OutputChunk | OutputArtifact | ProgressNote | TurnAnswer


class ProcessLost(Exception):
    """It is of no use any more, in the middle of a turn."""


class AnswerFile(Protocol):
    """Where a process puts its answers that says on its pipes only that they are there."""

    async def taken(self) -> bytes:
        """The answer of this turn, which is not there any more then. Raises folders.Unreadable."""

    def remove(self) -> None:
        """It and its folder. Twice is no fault."""


class ConversationProcess:
    """A running process, and what is spoken with it: it is told what `talk` has begun. `lost` is called when no further
    turn can be had with it."""

    def __init__(
        self,
        attended: SupervisedProcess,
        talk: Dialogue,
        told: bytes,
        cleaning: CleaningRules,
        definition: CliAgent,
        lost: Callable[[ConversationProcess], None] = lambda _: None,
        file: AnswerFile | None = None,
    ) -> None:
        self._attended = attended
        self._talk = talk
        self._cleaning = cleaning
        self._definition = definition
        self._file = file
        self._heard: asyncio.Queue[Heard | None] = asyncio.Queue()  # bounded by what a turn may say
        self._chunks = 0
        self._broke, self._how = "", ""
        self._is_lost = False
        self._tell_lost = lost
        attended.tell(told)
        self._reading = asyncio.get_running_loop().create_task(self._read(), name=f"hears process {attended.pid}")

    @property
    def pid(self) -> int:
        return self._attended.pid

    @property
    def exit(self) -> Exit | None:
        """How it ended, None while it runs."""
        return self._attended.exit

    @property
    def usage(self) -> Usage:
        """What it took in this turn."""
        return self._attended.usage

    @property
    def is_lost(self) -> bool:
        """Whether no turn can be had with it any more."""
        return self._is_lost or not self._attended.listens

    async def is_quiet(self) -> bool:
        """Wait until what it said is heard; whether it says no more. One that only answers takes no time; one that has
        said more than that may be in the middle of it."""
        quiet = 0
        while quiet < QUIET_PASSES and not self._is_lost:
            quiet = 0 if await self._says_more(0.0) else quiet + 1
        if not self._talk.strays:
            return True
        for _ in range(MAX_STRAYS):
            if not await self._says_more(QUIET_S):
                return True
        return False

    async def _says_more(self, within_s: float) -> bool:
        before = self._chunks
        await asyncio.sleep(within_s)
        return self._chunks > before

    def begin(self, order: ProgramOrder) -> None:
        """Tell it a further turn. Raises talk.Unsayable."""
        told = self._talk.begin(order)
        self._attended.lives(order.term)
        self._attended.measure_anew()
        self._attended.tell(told)

    def rests(self) -> None:
        """Its turn is over, and what bounded that does not bound it any more."""
        self._attended.lives(None)

    async def turn(self, deadline_s: float) -> AsyncGenerator[Told]:
        """What it says to what it was told; the last is its answer. Raises TimeoutError after `deadline_s`, and Lost.
        Who does not hear it to its answer must give it up."""
        loop = asyncio.get_running_loop()
        until = loop.time() + deadline_s
        self._attended.end_in(deadline_s + 2 * CANCEL_GRACE_S)  # also where nobody takes what it says
        cleaner = self._cleaning.cleaner()
        while True:
            async with asyncio.timeout_at(until):
                heard = await self._heard.get()
            if loop.time() >= until and not isinstance(heard, TurnAnswer):
                raise TimeoutError
            async with self._attended.answer():  # to whoever takes it, and what they do with it
                match heard:
                    case OutputChunk(text):
                        if shown := cleaner.feed(text):
                            yield OutputChunk(shown)
                    case OutputArtifact(update):
                        yield OutputArtifact(self._cleaning.value(update))
                    case ProgressNote(message):
                        yield ProgressNote(self._told(message), heard.done, heard.total)
                    case TurnAnswer():
                        self._attended.end_in(None)
                        if self._file is not None and heard == TurnAnswer():
                            heard, found = await self._filed(self._file)
                            if shown := cleaner.feed(found):
                                yield OutputChunk(shown)
                        if rest := cleaner.end():
                            yield OutputChunk(rest)
                        yield self._shown(heard)
                        return
                    case None:
                        if rest := cleaner.end():
                            yield OutputChunk(rest)
                        raise ProcessLost

    async def give_up(self) -> bool:
        """Ask it to give up its turn; whether it did in time, and can be asked something else."""
        told = self._talk.cancel()
        if not told or self._is_lost:
            return False
        self._attended.tell(told)
        try:
            async with asyncio.timeout(CANCEL_GRACE_S):
                while (heard := await self._heard.get()) is not None:
                    if isinstance(heard, TurnAnswer):
                        self._attended.end_in(None)
                        return True
        except TimeoutError:
            pass
        return False

    async def end(self, *, patience_s: float = 0.0) -> Exit:
        """End it; nothing of it is left. A turn that is under way is lost."""
        self._lose("")
        self._attended.tell_no_more()
        exit_ = await self._attended.end(patience_s=patience_s)
        self._reading.cancel()
        await asyncio.wait({self._reading})
        if self._file is not None:
            await asyncio.to_thread(self._file.remove)
        return exit_

    async def failed(self) -> tuple[Exit | None, Failure]:
        """How it ended and why that is a failure, once it is lost by itself; nothing of it is left."""
        # What we end ourselves says nothing of why.
        exit_ = self.exit if self._broke else await self._attended.exits(PATIENCE_S)
        self._how = self._broke or ("it closed its pipes" if exit_ is None else f"it ended by itself, {exit_}")
        await self.end()
        if self._broke:
            return exit_, Failure(Category.AGENT, self._broke)
        if exit_ is None:
            return None, Failure(Category.AGENT, "it closed its output before its answer")
        said = self._attended.last_words.last
        definition = self._definition
        failure = failure_of_exit(exit_, said, definition.resources, self.usage, definition.retries.exit_codes)
        return exit_, failure or Failure(Category.AGENT, "it ended before its answer did")

    @property
    def how(self) -> str:
        """How it went, once it has `failed`, for who comes next."""
        return self._how

    # --- what it says -------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        broke = ""
        try:
            while chunk := await self._attended.read(gather_s=0.0):
                for at in range(0, len(chunk), PIECE_BYTES):
                    self._chunks += 1
                    self._take(self._talk.hear(chunk[at : at + PIECE_BYTES]))
                    await asyncio.sleep(0)  # a pipe that is always full is not all that there is
            self._take(self._talk.over())
        except DialogueBroken as broken:
            broke = str(broken)
        finally:
            self._lose(broke)

    def _take(self, heard: Iterator[Heard]) -> None:
        for one in heard:
            if isinstance(one, TurnReply):
                self._attended.tell(one.line)
            else:
                self._heard.put_nowait(one)

    def _lose(self, broke: str) -> None:
        if not self._is_lost:
            self._broke = broke
            self._is_lost = True
            self._heard.put_nowait(None)
            self._tell_lost(self)

    async def _filed(self, file: AnswerFile) -> tuple[TurnAnswer, bytes]:
        """The answer that it put into its file, and what it came to."""
        try:
            return TurnAnswer(), await file.taken()
        except UnreadableFolder as unreadable:
            return TurnAnswer(FAILED, failure=Failure(Category.AGENT, str(unreadable))), b""

    def _shown(self, answer: TurnAnswer) -> TurnAnswer:
        failure = answer.failure
        if failure is not None:
            failure = failure._replace(message=self._told(failure.message))
        return answer._replace(message=tuple(self._cleaning.value(part) for part in answer.message), failure=failure)

    def _told(self, text: str) -> str:
        return self._cleaning.text(text)[:MAX_TOLD_CHARS]


def ended(answer: TurnAnswer, exit_: Exit | None, usage: Usage) -> AttemptEnd:
    """The end of a try whose program answered."""
    return AttemptEnd(exit_, usage, answer.failure, state=answer.state, message=answer.message, alone=answer.alone)


Launch = Callable[[ProgramOrder, Callable[[ConversationProcess], None]], Coroutine[Any, Any, ConversationProcess]]
"""Starts a process for an order and tells it the turn; the other is called when it is lost. Raises
processes.StartFailed, and talk.Unsayable before anything is started."""
