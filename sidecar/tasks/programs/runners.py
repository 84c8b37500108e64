"""Chooses the runner of an agent, and starts the processes with which it communicates over pipes."""

from collections.abc import Mapping
from functools import partial

from sidecar.settings.agents import CliAgent
from sidecar.tasks.programs.attempt import Dialogue, Objection, ProgramOrder, ProgramRunner, no_objection
from sidecar.tasks.programs.command_line import CommandLine, command_from
from sidecar.tasks.programs.conversation import ConversationProcess, OutputFile
from sidecar.tasks.programs.conversations import Conversations, Endings
from sidecar.tasks.programs.executions import MakeRunner
from sidecar.tasks.programs.json_rpc import RpcDialogue
from sidecar.tasks.programs.line_protocol import LineDialogue
from sidecar.tasks.programs.one_shot import OneShot
from sidecar.tasks.programs.supervised_process import SupervisedProcess
from sidecar.upstreams.processes.launcher import Processes


def runner_from(
    name: str,
    definition: CliAgent,
    processes: Processes,
    environ: Mapping[str, str],
    *,
    objection: Objection = no_objection,
    endings: Endings | None = None,
) -> ProgramRunner:
    """Returns the runner of an agent; starts nothing yet. `endings` outlives it. Raises SettingsError."""
    command = command_from(name, definition, environ)
    if definition.keeps_processes or definition.patterns.input == "json-rpc":
        start = partial(launch, command, processes)
        return Conversations(name, definition, start, objection=objection, endings=endings)
    return OneShot(name, command, processes)


def runners(processes: Processes, objection: Objection) -> MakeRunner:
    """Returns the factory of runners for all agents of a sidecar."""
    return partial(runner_from, processes=processes, environ=processes.environ, objection=objection, endings=Endings())


async def launch(command: CommandLine, processes: Processes, order: ProgramOrder) -> ConversationProcess:
    """Starts a process for an order and sends it the turn. Raises StartFailed, and UnsayableError before any start."""
    definition, prompt = command.definition, order.prompt
    most, by_file = definition.a2a.capabilities.max_output_size, definition.patterns.output == "file"
    speaks_rpc = definition.patterns.input == "json-rpc"
    talk: Dialogue = RpcDialogue(most)
    if not speaks_rpc:
        ends = (definition.turn_end, definition.newlines)
        talk = LineDialogue(*ends, greets=definition.greets, says=not by_file, max_said_bytes=most)
    told = talk.begin(order)
    if speaks_rpc:
        prompt = prompt._replace(cli_args={})  # they are sent with each turn
    file = OutputFile(order, definition) if by_file else None
    try:
        program = command.program(prompt, None if file is None else file.files)
        attended = await SupervisedProcess.start(processes, program, command.cleaning, order.term)
    except BaseException:
        if file is not None:
            file.remove()
        raise
    return ConversationProcess(attended, talk, told, command.cleaning, definition, file)
