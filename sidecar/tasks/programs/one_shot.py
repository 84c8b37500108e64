"""Runs a program once for one prompt, answered by its standard output or a file, and leaves nothing behind."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Final

from sidecar.tasks.programs.attempt import (
    CHANGED,
    AttemptEnd,
    Event,
    OutputChunk,
    ProgramOrder,
    Started,
    failure_of_exit,
    failure_of_start,
    fell,
    overdue,
)
from sidecar.tasks.programs.command_line import CommandLine, PromptFiles
from sidecar.tasks.programs.run_record import Category, Failure
from sidecar.tasks.programs.supervised_process import GRACE_S, StderrTail, SupervisedProcess
from sidecar.tasks.programs.working_folders import UnreadableFolder, WorkingFolder
from sidecar.tasks.worker import to_its_end
from sidecar.upstreams.processes.launcher import Processes, StartFailed

_SLICE_BYTES: Final = 64 * 1024  # of an output file, per event

log = logging.getLogger("sidecar.tasks.programs")


class OneShot:
    def __init__(self, name: str, command: CommandLine, processes: Processes, *, grace_s: float = GRACE_S) -> None:
        self._name, self._command, self._processes, self._grace_s = name, command, processes, grace_s

    async def run(self, order: ProgramOrder) -> AsyncGenerator[Event]:
        definition, folder, files = self._command.definition, None, None
        async with AsyncExitStack() as stack:
            try:
                if "file" in definition.patterns:
                    folder = WorkingFolder()
                    stack.push_async_callback(_removed, folder)
                    told, answers = definition.input_file_template, definition.output_file_template
                    files = PromptFiles(folder.path, *(folder.at(_named(one, order)) for one in (told, answers)))
                    if definition.patterns.input == "file":
                        folder.write(_named(told, order), order.prompt.text.encode())
                program = self._command.program(order.prompt, files)
                attended = await SupervisedProcess.start(self._processes, program, self._command.cleaning, order.term)
            except StartFailed as failed:
                log.error("an agent cannot be started", extra={"agent": self._name, "why": str(failed)})
                yield fell(failure_of_start(failed))
                return
            except OSError as error:
                log.error(
                    "no folder can be made for a run: check the temporary directory",
                    extra={"agent": self._name, "why": error.strerror},
                )
                yield fell(Failure(Category.SYSTEM, "no folder can be made for its files"))
                return
            stack.push_async_callback(attended.end, grace_s=self._grace_s)
            yield Started(attended.pid)
            attended.end_in(order.deadline_s)
            if definition.patterns.input == "stdin":
                attended.tell(order.prompt.text.encode())
            attended.tell_no_more()
            async with aclosing(self._heard(attended, order, folder)) as events:
                async for event in events:
                    yield event

    async def close(self, why: str = CHANGED) -> None:
        """Does nothing: no process is held."""

    async def _heard(
        self, attended: SupervisedProcess, order: ProgramOrder, folder: WorkingFolder | None
    ) -> AsyncGenerator[Event]:
        definition = self._command.definition
        by_file, most = definition.patterns.output == "file", definition.a2a.capabilities.max_output_size
        cleaner, size = self._command.cleaning.cleaner(), 0
        printed = StderrTail(self._command.cleaning.cleaner(plain=True))
        while said := await attended.read():
            if by_file:  # its answer is in the file: this output may be an error message
                async with attended.aside():
                    printed.add(said)
                continue
            size += len(said)
            async with attended.answer():
                if shown := cleaner.feed(said[: max(0, len(said) - max(0, size - most))]):
                    yield OutputChunk(shown)
            if size > most:
                how = await attended.end(grace_s=self._grace_s)
                yield fell(Failure(Category.AGENT, f"it said more than {most} bytes"), how, attended.usage)
                return
        if shown := cleaner.end():
            yield OutputChunk(shown)
        end = await self._end(attended, order, printed.last)
        if by_file and folder is not None and end.failure is None:
            try:
                content = await asyncio.to_thread(folder.read, _named(definition.output_file_template, order), most)
            except UnreadableFolder as unreadable:
                end, content = fell(Failure(Category.AGENT, str(unreadable)), end.exit, end.usage), b""
            for at in range(0, len(content), _SLICE_BYTES):
                if shown := cleaner.feed(content[at : at + _SLICE_BYTES]):
                    yield OutputChunk(shown)
            if shown := cleaner.end():
                yield OutputChunk(shown)
        yield end

    async def _end(self, attended: SupervisedProcess, order: ProgramOrder, printed: str) -> AttemptEnd:
        """Returns its end once no part of it is left. A program that closed its output may run until its deadline."""
        definition = self._command.definition
        await attended.exits()
        timed_out = attended.timed_out
        how = await attended.end()
        if timed_out:
            return overdue(order, how, attended.usage)
        complaint, codes = attended.last_words.last or printed, definition.retries.exit_codes
        failure = failure_of_exit(how, complaint, definition.resources, attended.usage, codes)
        return AttemptEnd(how, attended.usage) if failure is None else fell(failure, how, attended.usage)


async def _removed(folder: WorkingFolder) -> None:
    """Runs in a thread, because it may take long. No process uses the folder any more."""
    await to_its_end(asyncio.to_thread(folder.remove))


def _named(template: str, order: ProgramOrder) -> str:
    return template.replace("{execution_id}", order.execution_id)
