"""Starts the process of a conversation.

Programs that speak JSON-RPC, and programs kept for a conversation, are spoken with over pipes. A program that answers
in a file reports on its pipes only that the answer is there.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from sidecar.settings.agents import CliAgent
from sidecar.tasks.programs.attempt import Objection, ProgramOrder, ProgramRunner
from sidecar.tasks.programs.command_line import CommandLine, PromptFiles
from sidecar.tasks.programs.conversation import ConversationProcess
from sidecar.tasks.programs.conversations import Conversations, Endings
from sidecar.tasks.programs.json_rpc import RpcDialogue
from sidecar.tasks.programs.line_protocol import LineDialogue
from sidecar.tasks.programs.one_shot_rpc import OneShotRpc
from sidecar.tasks.programs.supervised_process import SupervisedProcess
from sidecar.tasks.programs.turn_protocol import Dialogue
from sidecar.tasks.programs.working_folders import WorkingFolder
from sidecar.upstreams.processes import Processes, StartFailed


def is_talked_with(definition: CliAgent) -> bool:
    """Whether its runs are turns over pipes that stay open."""
    return definition.patterns.input == "json-rpc" or definition.keeps_processes


def talking_runner_from(
    name: str, command: CommandLine, processes: Processes, objection: Objection, endings: Endings
) -> ProgramRunner:
    """Returns the runner of an agent whose runs are turns."""
    launch = ConversationLauncher(command, processes)
    if command.definition.keeps_processes:
        return Conversations(name, command.definition, launch, objection=objection, endings=endings)
    return OneShotRpc(launch)


class ConversationLauncher:
    """Launches the processes of one agent; implements `conversation.Launch`."""

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
    """Returns the dialogue for a process of this agent."""
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
        """Removes the file and its folder. Removing twice is allowed."""
        self._folder.remove()
