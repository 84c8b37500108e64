"""Settings of the task store."""

from __future__ import annotations

from typing import Literal

from sidecar.settings.field_types import Bytes, Count, Seconds, Section


class TaskSettings(Section):
    """Who owns which task of MCP and A2A, the tasks of the task API, and the runs of agents that are programs."""

    store: Literal["file", "memory", "redis"] = "file"
    """`file` is `tasks.sqlite` in the data folder, `a2a-tasks.sqlite` for the task API, and `runs.sqlite` for what
    agents that are programs did; what `memory` held, nobody owns or follows after a restart. `redis` is the store of
    limits (`store.url`), which replicas share: a task that one of them created is there at all of them, and one that
    dies leaves its tasks to the others."""
    keep_s: Seconds = 7 * 86_400.0
    """How long an owner is remembered at most; a task that says that it lasts shorter is forgotten with its end."""
    max_per_principal: Count = 1_000
    """Tasks of one chain; the oldest is forgotten, one that ended first."""
    max: Count = 100_000
    """Tasks of all together. Beyond, what ended gives way, of whoever has most of it; where nothing ended, no new one
    is created."""
    follow_s: Seconds = 86_400.0
    """How long a task of the task API may take at most; then it is cancelled at its agent, and has failed."""
    away_s: Seconds = 300.0
    """How long an agent may not answer for a task of the task API, until the task has failed."""
    ask_every_s: Seconds = 10.0
    """How often an agent is asked how such a task stands, when nothing became of it for a while."""
    max_result: Bytes = 1024 * 1024
    """The largest result of such a task that is kept; one with a larger one has failed."""
