"""Shows what is happening now: the state of the parts, and what wants attention."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

from sidecar.admin.console.registry import StreamEvent, page, stream
from sidecar.admin.console.request import ConsoleRequest

LOOK_S: Final = 0.5


@page("now", title="Now", template="now.html")
async def now(asked: ConsoleRequest) -> Mapping[str, Any]:
    return {"status": await asked.operate("GET", "/status")}


@stream("now/live")
async def live(asked: ConsoleRequest) -> AsyncGenerator[StreamEvent | None]:
    """The state, each time it differs."""
    before: Mapping[str, Any] = {}
    while True:
        found = await now(asked)
        yield StreamEvent("state", found, "now_state.html") if found != before else None
        before = found
        await asyncio.sleep(LOOK_S)
