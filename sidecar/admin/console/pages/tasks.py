"""Shows the tasks of the task API, of all callers, without their input and results."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final

from sidecar.admin.console.live import watched
from sidecar.admin.console.registry import StreamEvent, page, stream
from sidecar.admin.console.request import ConsoleRequest, fetched
from sidecar.tasks.api.task_record import TaskState

STATES: Final = tuple(state.value for state in TaskState)


@page("agents/tasks", title="Tasks", template="tasks.html")
async def tasks(asked: ConsoleRequest) -> Mapping[str, Any]:
    agent, state = asked.query.text("agent"), asked.query.choice("state", STATES)
    wanted = {name: value for name, value in {"agent": agent, "state": state}.items() if value}

    async def fetch(limit: int, offset: int) -> tuple[Sequence[Any], int]:
        found = await asked.operate("GET", "/api/tasks", query={**wanted, "limit": limit, "offset": offset})
        return found["tasks"], found["total"]

    rows, paging = await fetched(asked.query, fetch)
    return {
        "agent": agent,
        "state": state,
        "states": STATES,
        "agents": sorted(asked.app.desk.live.current.agents),
        "rows": rows,
        "paging": paging.plain(),
    }


@stream("agents/tasks/live")
async def tasks_live(asked: ConsoleRequest) -> AsyncGenerator[StreamEvent | None]:
    async for event in watched(asked, tasks, "rows", "tasks_rows.html"):
        yield event
