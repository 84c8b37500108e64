"""Holds a conversation with a running program, one turn at a time.

Output is read at all times, so that the program never blocks. Output between turns is discarded, and pending output is
awaited before a turn, because otherwise every later turn would get the answer to another prompt.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, Final

from sidecar.settings.agents import CliAgent
from sidecar.tasks.programs.attempt import (
    FAILED,
    Dialogue,
    DialogueBroken,
    Heard,
    OutputArtifact,
    OutputChunk,
    ProgramOrder,
    ProgressNote,
    TurnAnswer,
    TurnReply,
    failure_of_exit,
)
from sidecar.tasks.programs.command_line import PromptFiles
from sidecar.tasks.programs.output_cleaner import CleaningRules
from sidecar.tasks.programs.run_record import Category, Failure, Usage
from sidecar.tasks.programs.supervised_process import SupervisedProcess
from sidecar.tasks.programs.working_folders import UnreadableFolder, WorkingFolder
from sidecar.upstreams.processes.launcher import Exit, StartFailed

CANCEL_GRACE_S: Final = 2.0  # to answer after a request to cancel
PATIENCE_S: Final = 0.5  # to end on its own after its input or output is closed
QUIET_PASSES: Final = 5  # of the event loop: from readable to parsed takes three passes
QUIET_S: Final = 0.02
MAX_STRAYS: Final = 25  # half a second without a pause
MAX_TOLD_CHARS: Final = 2_000
PIECE_BYTES: Final = 8 * 1024  # of input parsed per pass: thousands of lines at once would block the event loop

Told = OutputChunk | OutputArtifact | ProgressNote | TurnAnswer


class ProcessLost(Exception):
    pass


class OutputFile:
    """The file in which a process puts each answer, removed with its folder. Raises StartFailed if it cannot be
    created."""

    def __init__(self, order: ProgramOrder, definition: CliAgent) -> None:
        try:
            self._folder = WorkingFolder()
        except OSError as error:
            raise StartFailed(f"it has no folder: {os.strerror(error.errno or 0)}", error.errno) from None
        self._name = definition.output_file_template.replace("{execution_id}", order.execution_id)
        self._max_bytes = definition.a2a.capabilities.max_output_size
        self.files = PromptFiles(self._folder.path, "", self._folder.at(self._name))

    async def taken(self) -> bytes:
        """Reads and removes the answer, so that the next turn has its own. Raises UnreadableFolder."""
        return await asyncio.to_thread(self._folder.take, self._name, self._max_bytes)

    def remove(self) -> None:
        self._folder.remove()


class ConversationProcess:
    """A running process whose first turn has begun."""

    def __init__(
        self,
        attended: SupervisedProcess,
        talk: Dialogue,
        told: bytes,
        cleaning: CleaningRules,
        definition: CliAgent,
        file: OutputFile | None = None,
    ) -> None:
        self._attended, self._talk, self._cleaning, self.pid = attended, talk, cleaning, attended.pid
        self._definition, self._file = definition, file
        self._heard: asyncio.Queue[Heard | None] = asyncio.Queue()  # bounded by the output limit of a turn
        self._chunks = 0
        self._broke = self.how = ""  # how it ended, once it has `failed`, for the next turn
        self._is_lost = False
        attended.tell(told)
        self._reading = asyncio.get_running_loop().create_task(self._read(), name=f"reads process {attended.pid}")

    @property
    def exit(self) -> Exit | None:
        return self._attended.exit

    @property
    def usage(self) -> Usage:
        return self._attended.usage

    @property
    def is_lost(self) -> bool:
        return self._is_lost or not self._attended.listens

    async def is_quiet(self) -> bool:
        """Waits until its pending output is parsed. Returns whether no more follows. Takes no time if it only
        answered."""
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
        told = self._talk.begin(order)
        self._attended.lives(order.term)
        self._attended.measure_anew()
        self._attended.tell(told)

    def rests(self) -> None:
        self._attended.lives(None)

    async def turn(self, deadline_s: float) -> AsyncGenerator[Told]:
        """Yields the turn's events; the last is its answer. Raises TimeoutError after `deadline_s`, and ProcessLost. A
        caller that stops before the answer must call `give_up`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + deadline_s
        self._attended.end_in(deadline_s + 2 * CANCEL_GRACE_S)  # also if its events are not consumed
        cleaner = self._cleaning.cleaner()
        while True:
            async with asyncio.timeout_at(until):
                heard = await self._heard.get()
            if loop.time() >= until and not isinstance(heard, TurnAnswer):
                raise TimeoutError
            async with self._attended.answer():  # includes the time that the consumer takes
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
                            try:
                                if shown := cleaner.feed(await self._file.taken()):
                                    yield OutputChunk(shown)
                            except UnreadableFolder as unreadable:
                                heard = TurnAnswer(FAILED, failure=Failure(Category.AGENT, str(unreadable)))
                        if rest := cleaner.end():
                            yield OutputChunk(rest)
                        yield self._shown(heard)
                        return
                    case None:
                        if rest := cleaner.end():
                            yield OutputChunk(rest)
                        raise ProcessLost

    async def give_up(self) -> bool:
        """Asks it to cancel its turn. Returns whether it did so in time and can take another turn."""
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
        self._lose("")
        self._attended.tell_no_more()
        exit_ = await self._attended.end(patience_s=patience_s)
        self._reading.cancel()
        await asyncio.wait({self._reading})
        if self._file is not None:
            await asyncio.to_thread(self._file.remove)
        return exit_

    async def failed(self) -> tuple[Exit | None, Failure]:
        """Returns how it ended and why that is a failure, if it ended on its own; no part of it is left."""
        # The exit status of a process that the sidecar ends says nothing about the cause.
        exit_ = self.exit if self._broke else await self._attended.exits(PATIENCE_S)
        self.how = self._broke or ("it closed its pipes" if exit_ is None else f"it exited on its own, {exit_}")
        await self.end()
        if self._broke:
            return exit_, Failure(Category.AGENT, self._broke)
        if exit_ is None:
            return None, Failure(Category.AGENT, "it closed its output before its answer")
        said = self._attended.last_words.last
        definition = self._definition
        failure = failure_of_exit(exit_, said, definition.resources, self.usage, definition.retries.exit_codes)
        return exit_, failure or Failure(Category.AGENT, "it ended before its answer did")

    async def _read(self) -> None:
        broke = ""
        try:
            while chunk := await self._attended.read(gather_s=0.0):
                for at in range(0, len(chunk), PIECE_BYTES):
                    self._chunks += 1
                    self._take(self._talk.hear(chunk[at : at + PIECE_BYTES]))
                    await asyncio.sleep(0)  # lets other tasks run while a pipe is always full
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

    def _shown(self, answer: TurnAnswer) -> TurnAnswer:
        failure = answer.failure
        if failure is not None:
            failure = failure._replace(message=self._told(failure.message))
        return answer._replace(message=tuple(self._cleaning.value(part) for part in answer.message), failure=failure)

    def _told(self, text: str) -> str:
        return self._cleaning.text(text)[:MAX_TOLD_CHARS]


Launch = Callable[[ProgramOrder], Coroutine[Any, Any, ConversationProcess]]
"""Starts a process for an order and sends it the turn. Raises StartFailed, and UnsayableError before any start."""
