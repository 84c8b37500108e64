"""Chooses the runner of an agent, and starts the processes that it speaks with over pipes.

Programs that speak JSON-RPC, and programs kept for a conversation, are spoken with over pipes. A program that answers
in a file reports on its pipes only that the answer is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial

from sidecar.settings.agents import CliAgent
from sidecar.tasks.programs.attempt import (
    CHANGED,
    Dialogue,
    Event,
    Objection,
    ProgramOrder,
    ProgramRunner,
    Started,
    TurnAnswer,
    UnsayableError,
    failure_of_start,
    fell,
    no_objection,
    overdue,
)
from sidecar.tasks.programs.command_line import CommandLine, command_from
from sidecar.tasks.programs.conversation import (
    PATIENCE_S,
    ConversationProcess,
    Launch,
    OutputFile,
    ProcessLost,
    ended,
)
from sidecar.tasks.programs.conversations import Conversations, Endings
from sidecar.tasks.programs.json_rpc import RpcDialogue
from sidecar.tasks.programs.line_protocol import LineDialogue
from sidecar.tasks.programs.one_shot import OneShot
from sidecar.tasks.programs.run_record import Category, Failure
from sidecar.tasks.programs.supervised_process import SupervisedProcess, to_its_end
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
    """Returns the runner of an agent; starts nothing yet. `endings` also serves the runner of a later definition.
    Raises SettingsError."""
    command = command_from(name, definition, environ)
    if definition.keeps_processes:
        start = partial(launch, command, processes)
        return Conversations(name, definition, start, objection=objection, endings=endings)
    if definition.patterns.input == "json-rpc":
        return OneShotRpc(partial(launch, command, processes))
    return OneShot(name, command, processes)


async def launch(
    command: CommandLine, processes: Processes, order: ProgramOrder, lost: Callable[[ConversationProcess], None]
) -> ConversationProcess:
    """Starts a process for an order and sends it the turn. Raises StartFailed, and UnsayableError before anything is
    started."""
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
    return ConversationProcess(attended, talk, told, command.cleaning, definition, lost, file)


class OneShotRpc:
    """Runs a process for each order, which answers one request over JSON-RPC. Its input stays open for a
    cancellation."""

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
    if not is_over and not partner.is_lost:
        await partner.give_up()
    await partner.end()
