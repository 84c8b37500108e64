"""Shows the agents that are CLI programs, and starts runs of them."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from sidecar.admin.console.live import watched
from sidecar.admin.console.registry import StreamEvent, action, page, stream
from sidecar.admin.console.request import ConsoleRequest, matches, paged

MAX_PROMPT_CHARS: Final = 64 * 1024
MAX_ORDER_BYTES: Final = 4 * MAX_PROMPT_CHARS
LATEST: Final = 10


@page("agents", title="Agents and runs", template="agents.html")
async def agents(asked: ConsoleRequest) -> Mapping[str, Any]:
    """The agents with their pools at all workers, and the newest runs that have not ended."""
    wanted = asked.query.text("agent")
    found, busy = await asyncio.gather(
        asked.operate("GET", "/api/agents"),
        asked.operate("GET", "/api/runs", query={"active": "true", "limit": LATEST}),
    )
    rows = [one for one in found["agents"] if matches(wanted, one["name"], one["title"])]
    shown = paged(rows, asked.query)
    return {
        "agent": wanted,
        **shown,
        "rows": _of_all_workers(shown["rows"], await asked.of_others()),
        "active": busy["runs"],
        "more_active": busy["next_offset"] is not None,
    }


@stream("agents/live")
async def agents_live(asked: ConsoleRequest) -> AsyncGenerator[StreamEvent | None]:
    async for event in watched(asked, agents, "state", "agents_state.html"):
        yield event


@page("agents/programs/{name}", title="Agent", template="agent.html")
async def agent(asked: ConsoleRequest) -> Mapping[str, Any]:
    """One agent: its definition, its pool at all workers, and its newest runs."""
    address = f"/api/agents/{quote(asked.parts['name'], safe='')}"
    found, runs = await asyncio.gather(
        asked.operate("GET", address), asked.operate("GET", f"{address}/runs", query={"limit": LATEST})
    )
    others = [{"rows": [other["one"]]} for other in await asked.of_others()]
    return {"one": _of_all_workers([found], others)[0], "runs": runs["runs"], "more": runs["next_offset"] is not None}


@stream("agents/programs/{name}/live")
async def agent_live(asked: ConsoleRequest) -> AsyncGenerator[StreamEvent | None]:
    async for event in watched(asked, agent, "state", "agent_state.html"):
        yield event


@action("agents/programs/{name}/run", max_bytes=MAX_ORDER_BYTES)
async def run_agent(asked: ConsoleRequest) -> str:
    """Runs an agent as `nhi:operator`, under policy, limits and audit."""
    name = asked.parts["name"]
    body = {"prompt": prompt_in(asked)}
    if context := asked.form.text("context", most=256):
        body["context"] = context
    ordered = await asked.operate("POST", f"/api/agents/{quote(name, safe='')}/runs", body)
    return after_order(ordered)


def prompt_in(asked: ConsoleRequest) -> str:
    """The text of a form for an agent, with the line ends that a program expects."""
    return asked.form.get("prompt", "").replace("\r\n", "\n")


def after_order(ordered: Mapping[str, Any]) -> str:
    """The path of the page after an order: its run, the request for approval that it waits for, or all tasks."""
    if ordered["approval"]:
        return f"approvals/{quote(ordered['approval'])}"
    return f"agents/runs/{quote(ordered['run_id'])}" if ordered["run_id"] else "agents/tasks"


def _of_all_workers(
    rows: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]
) -> Sequence[Mapping[str, Any]]:
    """The agents with the sums of the pools of all workers."""
    sums = {name: Counter[str]() for name in ("running", "waiting", "places")}
    for other in ({"rows": rows}, *others):
        for one in other["rows"]:
            for name, counted in sums.items():
                counted[one["name"]] += one[name]
    return [{**one, **{name: counted[one["name"]] for name, counted in sums.items()}} for one in rows]
