"""Shows the tasks of the task API, of all callers, without their input and results."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

from sidecar.admin.console.registry import StreamEvent, page, stream
from sidecar.admin.console.request import ConsoleRequest, Paging
from sidecar.admin.operator_api import MAX_OFFSET
from sidecar.tasks.api.task_record import TaskState

STATES: Final = tuple(state.value for state in TaskState)


@page("agents/tasks", title="Tasks", template="tasks.html")
async def tasks(asked: ConsoleRequest) -> Mapping[str, Any]:
    agent, state = asked.query.text("agent"), asked.query.choice("state", STATES)
    wanted = {name: value for name, value in {"agent": agent, "state": state}.items() if value}
    at = Paging.of(MAX_OFFSET, asked.query)
    while True:
        found = await asked.operate("GET", "/api/tasks", query={**wanted, "limit": at.size, "offset": at.first})
        paging = Paging.of(found["total"], asked.query)
        if paging.first >= at.first:
            break
        at = paging  # the page is behind the last one
    return {
        "agent": agent,
        "state": state,
        "states": STATES,
        "agents": sorted(asked.app.desk.live.current.agents),
        "rows": found["tasks"],
        "paging": paging.plain(),
    }


@stream("agents/tasks/live")
async def tasks_live(asked: ConsoleRequest) -> AsyncGenerator[StreamEvent | None]:
    async for found in asked.changes(tasks):
        yield None if found is None else StreamEvent("rows", found, "tasks_rows.html")
