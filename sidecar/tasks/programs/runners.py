"""Chooses the runner of an agent, and starts the processes that it speaks with over pipes.

Programs that speak JSON-RPC, and programs kept for a conversation, are spoken with over pipes. A program that answers
in a file reports on its pipes only that the answer is there.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from sidecar.settings.agents import CliAgent
from sidecar.tasks.programs.attempt import (
    CHANGED,
    Event,
    Objection,
    ProgramOrder,
    ProgramRunner,
    Started,
    failure_of_start,
    fell,
    no_objection,
    overdue,
)
from sidecar.tasks.programs.command_line import CommandLine, PromptFiles, command_from
from sidecar.tasks.programs.conversation import PATIENCE_S, ConversationProcess, Launch, ProcessLost, ended
from sidecar.tasks.programs.conversations import Conversations, Endings
from sidecar.tasks.programs.json_rpc import RpcDialogue
from sidecar.tasks.programs.line_protocol import LineDialogue
from sidecar.tasks.programs.one_shot import OneShot
from sidecar.tasks.programs.run_record import Category, Failure
from sidecar.tasks.programs.supervised_process import SupervisedProcess, to_its_end
from sidecar.tasks.programs.turn_protocol import Dialogue, TurnAnswer, UnsayableError
from sidecar.tasks.programs.working_folders import WorkingFolder
from sidecar.upstreams.processes import Processes, StartFailed


def runner_from(
    name: str,
    definition: CliAgent,
    processes: Processes,
    environ: Mapping[str, str],
    *,
    objection: Objection = no_objection,
    endings: Endings | None = None,
) -> ProgramRunner:
    """Returns the runner of an agent; starts nothing yet. `environ` is the sidecar's own. `objection` says which
    callers may not continue a conversation, and `endings` remembers why conversations ended, also for the runner of a
    later definition. Raises SettingsError if the program is not found, or its `env_path` cannot be read."""
    command = command_from(name, definition, environ)
    if definition.keeps_processes:
        launch = ConversationLauncher(command, processes)
        return Conversations(name, definition, launch, objection=objection, endings=endings)
    if definition.patterns.input == "json-rpc":
        return OneShotRpc(ConversationLauncher(command, processes))
    return OneShot(name, command, processes)


class ConversationLauncher:
    def __init__(self, command: CommandLine, processes: Processes) -> None:
        self._command = command
        self._processes = processes

    async def __call__(self, order: ProgramOrder, lost: Callable[[ConversationProcess], None]) -> ConversationProcess:
        definition, prompt = self._command.definition, order.prompt
        talk = talk_from(definition)
        told = talk.begin(order)
        if definition.patterns.input == "json-rpc":
            prompt = prompt._replace(cli_args={})  # they are sent with each turn
        file = OutputFile(order, definition) if definition.patterns.output == "file" else None
        try:
            program = self._command.program(prompt, None if file is None else file.files)
            attended = await SupervisedProcess.start(self._processes, program, self._command.cleaning, order.term)
        except BaseException:
            if file is not None:
                file.remove()
            raise
        return ConversationProcess(attended, talk, told, self._command.cleaning, definition, lost, file)


def talk_from(definition: CliAgent) -> Dialogue:
    most = definition.a2a.capabilities.max_output_size
    if definition.patterns.input == "json-rpc":
        return RpcDialogue(most)
    says = definition.patterns.output == "stdout"
    return LineDialogue(
        definition.turn_end, definition.newlines, greets=definition.greets, says=says, max_said_bytes=most
    )


class OutputFile:
    """The file in which a process puts each answer. Its folder is removed with it."""

    def __init__(self, order: ProgramOrder, definition: CliAgent) -> None:
        """Raises StartFailed if the folder cannot be made."""
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


class OneShotRpc:
    """Runs a program once over JSON-RPC: each order has a process of its own, which answers one request and is ended.
    Its input stays open until it has answered, because a cancellation is sent there."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    async def run(self, order: ProgramOrder) -> AsyncGenerator[Event]:
        loop = asyncio.get_running_loop()
        until, answer, is_over = loop.time() + order.deadline_s, TurnAnswer(), False
        try:
            partner = await self._launch(order, lambda _: None)
        except UnsayableError as unsayable:
            yield fell(Failure(Category.PERMANENT, str(unsayable)))
            return
        except StartFailed as failed:
            yield fell(failure_of_start(failed))
            return
        try:
            yield Started(partner.pid)
            async with aclosing(partner.turn(until - loop.time())) as told:
                async for one in told:
                    if isinstance(one, TurnAnswer):
                        answer = one
                    else:
                        yield one
            is_over = True
            end = ended(answer, await partner.end(patience_s=PATIENCE_S), partner.usage)
        except TimeoutError:
            await partner.give_up()
            end = overdue(order, await partner.end(), partner.usage)
        except ProcessLost:
            exit_, failure = await partner.failed()
            end = fell(failure, exit_, partner.usage)
        finally:
            await to_its_end(_gone(partner, is_over))
        yield end

    async def close(self, why: str = CHANGED) -> None:
        """Does nothing: no process is kept."""


async def _gone(partner: ConversationProcess, is_over: bool) -> None:
    """Ends the process; one that has not answered is asked to cancel first."""
    if not is_over and not partner.is_lost:
        await partner.give_up()
    await partner.end()
