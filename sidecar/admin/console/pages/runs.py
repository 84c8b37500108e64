"""Shows runs of CLI programs, with live output; cancels them, and answers those that ask for input."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from sidecar.admin.console.live import watched
from sidecar.admin.console.pages.agents import MAX_ORDER_BYTES, after_order, prompt_in
from sidecar.admin.console.registry import StreamEvent, action, page, stream
from sidecar.admin.console.request import MAX_PAGE_ROWS, PAGE_ROWS, ConsoleRequest
from sidecar.admin.operator_api import MAX_OFFSET, OPERATOR
from sidecar.admin.run_stream import OUTPUT, STATUS, RunNews
from sidecar.errors import Refusal
from sidecar.tasks.programs.run_record import RunState, RunStatus, asks

MAX_OUTPUT_CHARS: Final = 64 * 1024
"""The maximum length of the end of an output that is shown."""
TICK_S: Final = 0.25
_ACTING: Final = ("is_over", "task_state", "cancel_requested")
FILTERS: Final = ("agent", "state", "status", "schedule", "owner")


@page("agents/runs", title="Runs", template="runs.html")
async def runs(asked: ConsoleRequest) -> Mapping[str, Any]:
    """Runs of all agents, newest first."""
    query = asked.query
    wanted = {
        **{name: query.text(name) for name in FILTERS},
        "active": "true" if query.choice("active", ("true",)) else "",
    }
    size = query.number("rows", PAGE_ROWS, least=1, most=MAX_PAGE_ROWS)
    offset = query.number("offset", 0, least=0, most=MAX_OFFSET)
    sent = {name: value for name, value in wanted.items() if value}
    found, known = await asyncio.gather(
        asked.operate("GET", "/api/runs", query={**sent, "limit": size, "offset": offset}),
        asked.operate("GET", "/api/agents"),
    )
    return {
        "filter": wanted,
        "rows": found["runs"],
        "offset": offset,
        "next_offset": found["next_offset"],
        "agents": [one["name"] for one in known["agents"]],
        "states": [state.value for state in RunState],
        "statuses": [status.value for status in RunStatus],
    }


@stream("agents/runs/live")
async def runs_live(asked: ConsoleRequest) -> AsyncGenerator[StreamEvent | None]:
    async for event in watched(asked, runs, "rows", "runs_rows.html"):
        yield event


@page("agents/runs/{id}", title="Run", template="run.html")
async def run(asked: ConsoleRequest) -> Mapping[str, Any]:
    """One run in full, with the end of its output."""
    text: str = await asked.operate("GET", f"{_address_of(asked)}/output")
    return await _facts(asked) | {"output": text[-MAX_OUTPUT_CHARS:], "is_cut": len(text) > MAX_OUTPUT_CHARS}


@stream("agents/runs/{id}/live")
async def run_live(asked: ConsoleRequest) -> AsyncGenerator[StreamEvent | None]:
    """The state and the actions each time they change, new output, and `end` after the end. `actions` in the query
    identifies those on the page. They are sent only if they differ, because a person may be typing there."""
    actions = asked.query.text("actions")
    shown, before, is_over = LiveOutput(), dict[str, Any](), False
    async with aclosing(asked.app.desk.follow(asked.parts["id"])) as news:
        coming: asyncio.Future[RunNews | None] = asyncio.ensure_future(anext(news))
        try:
            while not is_over:
                is_over, coming = await _heard(news, coming, shown)
                facts = {**await _facts(asked), **shown.progress}
                if facts != before:
                    yield StreamEvent("state", facts, "run_state.html")
                    yield StreamEvent("facts", facts, "run_facts.html")
                if actions != (now := " ".join(str(facts["run"][name]) for name in _ACTING)):
                    yield StreamEvent("actions", facts, "run_actions.html")
                    actions = now
                before = facts
                yield shown.event()
        finally:
            coming.cancel()
            with suppress(asyncio.CancelledError, StopAsyncIteration, Refusal):
                await coming
    yield StreamEvent("end", {})


@action("agents/runs/{id}/cancel")
async def cancel_run(asked: ConsoleRequest) -> str:
    """Cancels a run, and all of its processes."""
    await asked.operate("POST", f"{_address_of(asked)}/cancel", {"reason": asked.form.text("reason", most=500)})
    return f"agents/runs/{quote(asked.parts['id'])}"


@action("agents/runs/{id}/answer", max_bytes=MAX_ORDER_BYTES)
async def answer_run(asked: ConsoleRequest) -> str:
    """Answers a run that asks for input, as `nhi:operator`."""
    return after_order(await asked.operate("POST", f"{_address_of(asked)}/answer", {"prompt": prompt_in(asked)}))


def _address_of(asked: ConsoleRequest) -> str:
    return f"/api/runs/{quote(asked.parts['id'], safe='')}"


async def _facts(asked: ConsoleRequest) -> dict[str, Any]:
    """The data of a run without its output."""
    found = await asked.operate("GET", _address_of(asked))
    found.pop("output")
    return {
        "run": found,
        "is_answerable": asks(found) and found["caller"] == [OPERATOR],
        "progress": None,
        "total": None,
    }


@dataclass(slots=True)
class LiveOutput:
    """The output of a run for one viewer: first all of it, then the text that is added."""

    progress: dict[str, Any] = field(default_factory=dict)
    _texts: dict[str, str] = field(default_factory=dict)
    _cut: set[str] = field(default_factory=set)
    _added: list[str] = field(default_factory=list)
    _chars: int = 0
    _is_new: bool = True

    def add(self, heard: RunNews) -> None:
        if heard.event == STATUS:
            self.progress = {name: heard.data.get(name) for name in ("progress", "total")}
        if heard.event != OUTPUT:
            return
        name, text = heard.data["artifact"], heard.data["text"]
        known = "" if heard.data.get("anew") else self._texts.get(name, "")
        self._is_new = self._is_new or bool(heard.data.get("anew"))
        self._texts[name] = (known + text)[-MAX_OUTPUT_CHARS:]
        if len(known) + len(text) > MAX_OUTPUT_CHARS:
            self._cut.add(name)
        elif not known:
            self._cut.discard(name)
        self._added.append(text)
        self._chars += len(text)

    def event(self) -> StreamEvent | None:
        """The output since the last event; None without any. After MAX_OUTPUT_CHARS of added text, the viewer gets the
        whole end of the output again."""
        added = "".join(self._added)
        self._added.clear()
        if not added and not (self._is_new and self._texts):
            return None
        if not self._is_new and self._chars <= MAX_OUTPUT_CHARS:
            return StreamEvent("output", {"text": added}, "run_output.html")
        whole = "".join(self._texts.values())
        is_cut = bool(self._cut) or len(whole) > MAX_OUTPUT_CHARS
        text = whole[-MAX_OUTPUT_CHARS:]
        self._is_new, self._chars = False, len(text)
        return StreamEvent("whole", {"text": text, "is_cut": is_cut}, "run_whole.html")


async def _heard(
    news: AsyncGenerator[RunNews | None], coming: asyncio.Future[RunNews | None], shown: LiveOutput
) -> tuple[bool, asyncio.Future[RunNews | None]]:
    """Adds the news of the next TICK_S to `shown`. Returns whether the run is over, and the future of the next news.
    Raises Refusal."""
    ends_s = time.monotonic() + TICK_S
    while (left_s := ends_s - time.monotonic()) > 0:
        await asyncio.wait({coming}, timeout=left_s)
        if not coming.done():
            break
        try:
            heard = coming.result()
        except StopAsyncIteration:
            return True, coming
        if heard is not None:
            shown.add(heard)
        coming = asyncio.ensure_future(anext(news))
    return False, coming
