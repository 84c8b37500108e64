"""Runs a program once over JSON-RPC.

Each order has a process of its own: one request, its answer, then its input is closed and it is ended. Its input stays
open until it has answered, because a cancellation is sent there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from sidecar.tasks.programs.attempt import CHANGED, Event, ProgramOrder, Started
from sidecar.tasks.programs.conversation import PATIENCE_S, ConversationProcess, Launch, ProcessLost, ended
from sidecar.tasks.programs.exit_reasons import failure_of_start, fell, overdue
from sidecar.tasks.programs.run_record import Failure
from sidecar.tasks.programs.run_states import Category
from sidecar.tasks.programs.shielding import to_its_end
from sidecar.tasks.programs.turn_protocol import TurnAnswer, UnsayableError
from sidecar.upstreams.processes import StartFailed


class OneShotRpc:
    """A ProgramRunner whose processes answer one request each."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    async def run(self, order: ProgramOrder) -> AsyncGenerator[Event]:
        loop = asyncio.get_running_loop()
        until = loop.time() + order.deadline_s
        try:
            partner = await self._launch(order, lambda _: None)
        except UnsayableError as unsayable:
            yield fell(Failure(Category.PERMANENT, str(unsayable)))
        except StartFailed as failed:
            yield fell(failure_of_start(failed))
        else:
            async with aclosing(self._asked(order, partner, until)) as events:
                async for event in events:
                    yield event

    async def close(self, why: str = CHANGED) -> None:
        """Does nothing: no process is kept."""

    async def _asked(self, order: ProgramOrder, partner: ConversationProcess, until: float) -> AsyncGenerator[Event]:
        answer, over = TurnAnswer(), False
        try:
            yield Started(partner.pid)
            async with aclosing(partner.turn(until - asyncio.get_running_loop().time())) as told:
                async for one in told:
                    if isinstance(one, TurnAnswer):
                        answer = one
                    else:
                        yield one
            over = True
            end = ended(answer, await partner.end(patience_s=PATIENCE_S), partner.usage)
        except TimeoutError:
            await partner.give_up()
            end = overdue(order, await partner.end(), partner.usage)
        except ProcessLost:
            exit_, failure = await partner.failed()
            end = fell(failure, exit_, partner.usage)
        finally:
            await to_its_end(_gone(partner, over))
        yield end


async def _gone(partner: ConversationProcess, over: bool) -> None:
    """Ends the process; one that has not answered is asked to cancel first."""
    if not over and not partner.is_lost:
        await partner.give_up()
    await partner.end()
