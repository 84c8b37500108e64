"""Replicas that look at a clock which a test sets, before an agent that is really called.

Everything is real but the clock: policy, limits, evidence and the agent are those of a sidecar in this process, the
stores are those of its kind, and each replica has a runner and a scheduler of its own.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from sidecar.gateway.snapshot import Live
from sidecar.http.client import fetch
from sidecar.identity import Identity
from sidecar.limits import open_store
from sidecar.settings.schedules import ScheduleSettings
from sidecar.settings.store import StoreSettings
from sidecar.storage import RecordStore, RecordStores, SqliteFile
from sidecar.tasks.api.task_lifecycle import TaskLifecycle
from sidecar.tasks.api.task_orders import TaskOrders
from sidecar.tasks.api.task_record import TASKS, Task, TaskStep
from sidecar.tasks.api.task_runner import TaskRunner
from sidecar.tasks.schedules.schedule_state import SCHEDULES, ScheduleStanding
from sidecar.tasks.schedules.scheduler import Scheduler
from tests.a2a.world import EVERYTHING, AgentWorld, ScriptedAgent, agent_world
from tests.flow.world import until

BEGIN = "2026-11-28T12:00:30"
RULES = {
    "nhi_to_nhi": "".join(
        f"p, {who}, nhi:researcher, {EVERYTHING}, -, -, -, allow\n" for who in ("nhi:planner", "nhi:minutely")
    )
}
MINUTELY = {"agent": "researcher", "cron": "* * * * *", "input_parameters": {"prompt": "tides"}}
ANSWER = {"message": {"messageId": "m2", "role": "ROLE_AGENT", "parts": [{"text": "high at noon"}]}}


def moment(said: str, zone: str = "UTC") -> float:
    """A time, as a clock of that zone shows it."""
    return datetime.fromisoformat(said).replace(tzinfo=ZoneInfo(zone)).timestamp()


def minute_of(due_s: float | None) -> str:
    """What a clock in UTC shows then."""
    return "never" if due_s is None else datetime.fromtimestamp(due_s, ZoneInfo("UTC")).strftime("%H:%M")


@dataclass
class Counted:
    """What the metrics of all replicas were told."""

    ran: dict[tuple[str, str], int] = field(default_factory=dict)
    succeeded: dict[str, float] = field(default_factory=dict)
    added: Sequence[str] = ()

    def schedule_ran(self, schedule: str, result: str, count: int = 1) -> None:
        self.ran[schedule, str(result)] = self.ran.get((schedule, str(result)), 0) + count

    def schedule_succeeded(self, schedule: str, at_s: float) -> None:
        self.succeeded[schedule] = at_s

    def schedules_added(self, schedules: Collection[str]) -> None:
        self.added = sorted(schedules)


_NOT_SENT = (TaskStep.UNSENT, TaskStep.SENDING)


@dataclass
class Life:
    """Of one process, which ends at `ends_at`: when a due time is `owed` and not placed, `charged` and not kept,
    `added` and not begun, `ordered` and not settled, or `running` at its agent and not settled."""

    ends_at: str = ""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    jobs: Mapping[str, TaskLifecycle] = field(default_factory=dict)
    added: str = ""

    async def before(self, verb: str, first: Any) -> None:
        settles = verb == "replace" and isinstance(first, ScheduleStanding) and self.added == first.last_task
        if self.ends_at == "running" and settles:
            await until(lambda: not any(course.record.step in _NOT_SENT for course in self.jobs.values()))
        is_there = {"charged": verb == "add", "ordered": settles, "running": settles}.get(self.ends_at, False)
        if self.over.is_set() or is_there:
            await self._end()

    async def after(self, verb: str, first: Any, answer: Any) -> None:
        if verb == "add":
            self.added = first.id
        if {"owed": verb == "get" and answer is None, "added": verb == "add"}.get(self.ends_at, False):
            await self._end()

    async def _end(self) -> None:
        self.over.set()
        await asyncio.Event().wait()


class MortalStore:
    """A store as one process has it: from the end of its life on, it asks nothing more."""

    def __init__(self, store: Any, life: Life) -> None:
        self._store, self._life = store, life

    def __getattr__(self, verb: str) -> Any:
        there = getattr(self._store, verb)
        if not callable(there):
            return there

        async def asked(*about: Any) -> Any:
            first = about[0] if about else None
            await self._life.before(verb, first)
            answer = await there(*about)
            await self._life.after(verb, first, answer)
            return answer

        return asked


@dataclass
class Replica:
    """One process, as far as schedules go."""

    live: Live
    runner: TaskRunner
    scheduler: Scheduler
    life: Life

    async def looks(self) -> bool:
        """It looks; whether it outlives that."""
        looking, dying = map(asyncio.ensure_future, (self.scheduler.worker.turn(), self.life.over.wait()))
        await asyncio.wait({looking, dying}, return_when=asyncio.FIRST_COMPLETED)
        dying.cancel()
        if self.life.over.is_set():
            looking.cancel()
            self.kill()
        return not self.life.over.is_set()

    async def dies_at(self, point: str) -> None:
        """It does, as soon as it comes there; what it took up before is at the agent by then."""
        await until(lambda: not any(course.record.step in _NOT_SENT for course in self.runner.worker.jobs.values()))
        self.life.ends_at = point

    def kill(self) -> None:
        """It does nothing more, and lets go of nothing."""
        for task in (*self.runner.worker.tasks.values(), *self.scheduler.worker.tasks.values()):
            task.cancel()
        self.runner._closing = True


@dataclass
class Clockwork:
    """Replicas before one agent. `now_s` is what all of them see."""

    world: AgentWorld
    tasks: RecordStore[Task]
    standings: RecordStore[ScheduleStanding]
    now_s: float
    schedules: dict[str, ScheduleSettings] = field(default_factory=dict)
    replicas: list[Replica] = field(default_factory=list)
    counted: Counted = field(default_factory=Counted)
    witnessed: list[tuple[str, str, Mapping[str, object]]] = field(default_factory=list)

    def replica(self) -> Replica:
        """One more process."""
        name, life = f"replica-{len(self.replicas)}", Life()
        tasks: Any = MortalStore(self.tasks, life)
        standings: Any = MortalStore(self.standings, life)
        live = Live(self._snapshot(), lambda: self.now_s)
        pipeline = self.world.app.pipeline
        stages = replace(pipeline.stages, clock=live.clock)
        means = replace(pipeline.task_api.runner.means, live=live, store=tasks, stages=stages)
        runner = TaskRunner(means, pipeline.metrics, name)
        life.jobs = runner.worker.jobs
        orders = TaskOrders(runner, stages, pipeline.metrics)
        scheduler = Scheduler(live, standings, orders, self._witness, self.counted, name, pipeline.audit.new_id)
        made = Replica(live, runner, scheduler, life)
        self.replicas.append(made)
        return made

    def write(self, **schedules: Mapping[str, Any]) -> None:
        """These are the schedules from now on, at every replica."""
        self.schedules = {key: ScheduleSettings.model_validate(one) for key, one in schedules.items()}
        for replica in self.replicas:
            replica.live.current = self._snapshot()

    async def at(self, said: str, *, looks: Sequence[Replica] | None = None) -> None:
        """It is that time now, and each of them looks."""
        self.now_s = moment(f"2026-11-28T{said}")
        for replica in self.replicas if looks is None else looks:
            await replica.looks()

    async def through(self, said: str, **more: Any) -> None:
        """The same, and what was begun is over."""
        await self.at(said, **more)
        await self.settle()

    async def standing(self, key: str = "minutely") -> ScheduleStanding:
        """How one stands."""
        return await self.standings.get(key)

    async def settle(self) -> None:
        """What was begun is over."""
        await until(lambda: not any(replica.runner.worker.jobs for replica in self.replicas))

    def told(self) -> list[dict[str, Any]]:
        """What the agent was told, message by message."""
        return [said["params"] for _, said in self.world.agent.seen if said["method"] == "SendMessage"]

    def _snapshot(self) -> Any:
        now = self.world.app.live.current
        settings = now.settings.model_copy(update={"schedules": self.schedules})
        identity = Identity.from_settings(settings, lambda: self.now_s, fetch)
        return replace(now, settings=settings, identity=identity)

    async def _witness(self, what: str, by: str, **facts: object) -> None:
        self.witnessed.append((what, by, facts))


@asynccontextmanager
async def clockwork(
    folder: Path,
    *,
    agent: ScriptedAgent | None = None,
    replicas: int = 1,
    store: str = "memory",
    url: str = "",
    rules: Mapping[str, str] = RULES,
    begin: str = BEGIN,
    timeout_s: float = 10.0,
    **more: Any,
) -> AsyncIterator[Clockwork]:
    """`store` is where tasks and schedules are kept: memory, file, or redis at that URL."""
    scripted = agent or ScriptedAgent(script={"SendMessage": lambda *_: ANSWER})
    shared = open_store(StoreSettings(url=url or "memory://", timeout=timeout_s), time.time)

    records = RecordStores(store, SqliteFile(None if store == "memory" else folder / "records.sqlite"), shared.run)
    async with agent_world(folder, scripted, rules=rules, **more) as world:
        works = Clockwork(world, records.of(TASKS), records.of(SCHEDULES), moment(begin))
        works.schedules = {"minutely": ScheduleSettings.model_validate(MINUTELY)}
        for _ in range(replicas):
            works.replica()
        try:
            yield works
        finally:
            for replica in works.replicas:
                replica.kill()
            await records.close()
            await shared.close()
