"""Opens the stores that replicas share.

The store of limits, and what else is kept in it where several replicas serve: who owns which task, the tasks of the
task API, how schedules stand, sessions, whom an operator disabled, which proofs were used. Where nobody shares it, each
of them is in this process or in its data folder. A store that is out means something else to each who asks; what, is
said here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Self

from sidecar.app.loader import run_at, schedule_store_from, task_store_from, tasks_from
from sidecar.audit import Audit
from sidecar.errors import Reason, Refusal
from sidecar.identity.key_proofs import KEY, SCRIPT
from sidecar.limits import Limiter, StoreUnavailable, open_store
from sidecar.limits.store_monitor import StoreMonitor
from sidecar.observability.metrics import Metrics
from sidecar.settings import Settings
from sidecar.storage import RecordStore
from sidecar.storage.task_owners import TaskOwners
from sidecar.tasks.api.task_record import Task
from sidecar.tasks.schedules.schedule_state import ScheduleStanding

log = logging.getLogger("sidecar.app.shared_store")


@dataclass(frozen=True, slots=True)
class SharedStore:
    """Counters, owners of tasks, tasks, and how schedules stand: in one store that replicas share, or here."""

    limiter: Limiter
    counting: StoreMonitor
    tasks: TaskOwners
    task_store: RecordStore[Task]
    schedule_store: RecordStore[ScheduleStanding]

    @classmethod
    def open(cls, settings: Settings, metrics: Metrics, audit: Audit, undo: AsyncExitStack) -> Self:
        """Nothing is connected yet. Closed by `undo` if the start fails. Raises SettingsError."""
        counting = StoreMonitor(metrics, audit.control, settings.store.degraded_calls)
        limiter = Limiter(open_store(settings.store, time.time, observer=counting))
        undo.push_async_callback(limiter.close)
        tasks = tasks_from(settings, limiter.store, audit.key.secret)
        undo.push_async_callback(tasks.store.close)
        task_store = task_store_from(settings, limiter.store)
        undo.push_async_callback(task_store.close)
        schedule_store = schedule_store_from(settings, limiter.store)
        undo.push_async_callback(schedule_store.close)
        return cls(limiter, counting, tasks, task_store, schedule_store)

    async def greet(self) -> None:
        """Connect before the first call needs it. A store that is out stops no start: calls with limits are refused."""
        try:
            await self.limiter.store.ping()
        except StoreUnavailable as error:
            log.warning("the store is out: calls with limits are refused until it answers", extra={"error": str(error)})

    async def run(self, script: str, key: str, arguments: Sequence[str]) -> Any:
        """As all but the one below ask. Raises ConnectionError."""
        return await run_at(self.limiter.store, script, key, arguments)

    async def proof(self, name: str, for_ms: int) -> bool | None:
        """Whether a proof is new to all replicas. A store that is out lets none pass: raises Refusal."""
        try:
            answer = await self.limiter.store.run(SCRIPT, f"{KEY}{name}", [str(for_ms)])
        except StoreUnavailable:
            raise Refusal(Reason.STORE_UNAVAILABLE) from None
        return None if answer is None else bool(answer)
