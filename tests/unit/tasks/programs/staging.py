"""Runs of an agent whose program is a script in this process: what they come to is what the script says."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from sidecar.observability.metrics import Metrics
from sidecar.settings.agents import CliAgent
from sidecar.storage import RecordBounds, RecordStore, RecordStoreOut
from sidecar.storage.redis_script import Run
from sidecar.tasks.programs.attempt import CHANGED, AttemptEnd, Event, OutputChunk, ProgramOrder, Prompt, Started
from sidecar.tasks.programs.executions import Executions
from sidecar.tasks.programs.run_record import Category, Execution, Failure, RunState, Usage
from sidecar.upstreams.processes.launcher import Exit
from sidecar.vocabulary import Caller, Principal
from tests.flow.world import PATIENCE_S
from tests.unit.tasks.programs.runs import in_memory

Script = Callable[[ProgramOrder], AsyncGenerator[Event]]
ALICE, BOB = (Caller((Principal(name),), ()) for name in ("user:alice", "user:bob"))
LEASE_S = 0.5
_numbers = count()
DONE = AttemptEnd(Exit(code=0), Usage())
SORRY = Failure(Category.TRANSIENT, "exit code 75")


def agent(**settings: Any) -> CliAgent:
    return CliAgent.model_validate({"executable": "/bin/true"} | settings)


def prompt(text: str = "say") -> Prompt:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
    return Prompt(text, {}, {}, None, message)


def saying(*events: Event) -> Script:
    """A program of which that is heard, whatever it is told."""

    async def script(order: ProgramOrder) -> AsyncGenerator[Event]:
        for event in events:
            yield event

    return script


async def says(order: ProgramOrder) -> AsyncGenerator[Event]:
    """It says what it is told and ends well."""
    yield Started(100)
    yield OutputChunk(order.prompt.text)
    yield DONE


def failing(times: int, failure: Failure = SORRY) -> Script:
    """It fails so many times, and then says what it is told."""

    async def script(order: ProgramOrder) -> AsyncGenerator[Event]:
        yield Started(100 + order.attempt)
        if order.attempt <= times:
            yield OutputChunk("half of ")
            yield AttemptEnd(Exit(code=75), Usage(cpu_s=1.0), failure)
            return
        yield OutputChunk(order.prompt.text)
        yield DONE

    return script


@dataclass
class Working:
    """A program that works until it is let go, or ended: `there` are the runs whose program is there, `most` how many
    were at once."""

    starts: bool = True
    cleanup_s: float = 0.0
    there: set[str] = field(default_factory=set)
    most: int = 0
    may_end: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, order: ProgramOrder) -> AsyncGenerator[Event]:
        self.there.add(order.execution_id)
        self.most = max(self.most, len(self.there))
        try:
            if self.starts:
                yield Started(100)
            await self.may_end.wait()
            yield DONE
        finally:
            await asyncio.sleep(self.cleanup_s)
            self.there.discard(order.execution_id)


@dataclass
class Scripted:
    """A `Runner` whose programs are a script."""

    script: Script
    closed: bool = False

    def run(self, order: ProgramOrder) -> AsyncGenerator[Event]:
        return self.script(order)

    async def close(self, why: str = CHANGED) -> None:
        self.closed = True


@dataclass
class Stage:
    """Runs of agents, and what they leave."""

    executions: Executions
    store: RecordStore[Execution]
    metrics: Metrics
    runners: list[Scripted]

    async def begin(self, text: str = "say", caller: Caller = ALICE, name: str = "writer") -> str:
        return (await self.executions.begin(name, prompt(text), caller, "context")).id

    async def at_work(self, **order: Any) -> str:
        """A run whose program is there."""
        execution_id = await self.begin(**order)
        await self.until(execution_id, RunState.RUNNING)
        return execution_id

    async def get(self, execution_id: str) -> Execution:
        return await self.executions.get(execution_id)

    async def until(self, execution_id: str, state: RunState) -> Execution:
        """The run, once it is in this state; one that is idle is over."""
        async with asyncio.timeout(PATIENCE_S):
            while (found := await self.get(execution_id)).state is not state or not (
                state is not RunState.IDLE or found.is_done
            ):
                await asyncio.sleep(0.001)
        return found

    async def over(self, execution_id: str) -> Execution:
        """The run at its end, as the store has it, also if that has only just come back."""
        await self.until(execution_id, RunState.IDLE)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(RecordStoreOut):
                    kept = await self.store.get(execution_id)
                    if kept and kept.is_done:
                        return kept
                await asyncio.sleep(0.001)

    async def heard(self, execution_id: str) -> list[Mapping[str, Any] | None]:
        """All that is told from now on."""
        async with aclosing(self.executions.follow(execution_id)) as told:
            return [event async for event in told]


def staged(
    script: Script,
    *,
    store: RecordStore[Execution] | None = None,
    holder: str = "me",
    run_shared: Run | None = None,
    strays_s: float = 0.0,
    **settings: Any,
) -> Stage:
    """One agent, `writer`, with these settings."""
    runners: list[Scripted] = []

    def make_runner(name: str, definition: CliAgent) -> Scripted:
        runners.append(Scripted(script))
        return runners[-1]

    kept: RecordStore[Execution] = in_memory() if store is None else store
    metrics = Metrics(upstreams=())
    executions = Executions(
        kept,
        make_runner,
        metrics,
        time.time,
        lambda: f"run-{os.getpid()}-{next(_numbers)}",
        holder,
        random=lambda: 0.5,
        bounds=RecordBounds,
        keep_s=lambda: 100.0,
        run_shared=run_shared,
        lease_s=LEASE_S,
        strays_s=strays_s,
    )
    executions.offer({"writer": agent(**settings)})
    return Stage(executions, kept, metrics, runners)


@asynccontextmanager
async def running(stage: Stage) -> AsyncIterator[Stage]:
    """With its job in the background; closed at the end."""
    job = asyncio.create_task(stage.executions.run())
    try:
        yield stage
    finally:
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
        await stage.executions.close(0.0)
