"""Shows schedules, and pauses, resumes and runs them."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final
from urllib.parse import quote

from sidecar.admin.console.live import watched
from sidecar.admin.console.pages.agents import LATEST, after_order
from sidecar.admin.console.registry import StreamEvent, action, page, stream
from sidecar.admin.console.request import ConsoleFault, ConsoleRequest, matches, paged

STATES: Final = ("active", "executing", "waiting", "paused", "created", "unreadable")


@page("agents/schedules", title="Schedules", template="schedules.html")
async def schedules(asked: ConsoleRequest) -> Mapping[str, Any]:
    """All schedules: those of sidecar.yaml and those that were added."""
    wanted, state = asked.query.text("schedule"), asked.query.choice("state", STATES)
    found = (await asked.operate("GET", "/api/schedules"))["schedules"]
    rows = [
        one
        for one in found
        if state in ("", one["state"]) and matches(wanted, one["name"], one["title"], one["agent"], one["principal"])
    ]
    return {"schedule": wanted, "state": state, "states": STATES, "known": len(found), **paged(rows, asked.query)}


@stream("agents/schedules/live")
async def schedules_live(asked: ConsoleRequest) -> AsyncGenerator[StreamEvent | None]:
    async for event in watched(asked, schedules, "rows", "schedules_rows.html"):
        yield event


@page("agents/schedules/{name}", title="Schedule", template="schedule.html")
async def schedule(asked: ConsoleRequest) -> Mapping[str, Any]:
    """One schedule, with its newest runs."""
    name = asked.parts["name"]
    known = (await asked.operate("GET", "/api/schedules"))["schedules"]
    one = next((one for one in known if one["name"] == name), None)
    if one is None:
        raise ConsoleFault(404, f"there is no schedule {name}; it may have been removed")
    found = await asked.operate("GET", "/api/runs", query={"schedule": name, "limit": LATEST})
    return {"one": one, "runs": found["runs"], "more": found["next_offset"] is not None}


@stream("agents/schedules/{name}/live")
async def schedule_live(asked: ConsoleRequest) -> AsyncGenerator[StreamEvent | None]:
    async for event in watched(asked, schedule, "state", "schedule_state.html"):
        yield event


@action("agents/schedules/{name}/run")
async def run_schedule(asked: ConsoleRequest) -> str:
    """Runs a schedule now, as its own principal."""
    return after_order(await asked.operate("POST", f"{_address_of(asked)}/run"))


@action("agents/schedules/{name}/pause")
async def pause_schedule(asked: ConsoleRequest) -> str:
    await asked.operate("POST", f"{_address_of(asked)}/pause")
    return f"agents/schedules/{quote(asked.parts['name'])}"


@action("agents/schedules/{name}/resume")
async def resume_schedule(asked: ConsoleRequest) -> str:
    await asked.operate("POST", f"{_address_of(asked)}/resume")
    return f"agents/schedules/{quote(asked.parts['name'])}"


def _address_of(asked: ConsoleRequest) -> str:
    return f"/api/schedules/{quote(asked.parts['name'], safe='')}"
