"""Sends the data of a page to the browsers that show it, each time it changes."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Any, Final

from sidecar.admin.console.registry import PageFunction, StreamEvent
from sidecar.admin.console.request import ConsoleFault, ConsoleRequest
from sidecar.errors import Refusal

LOOK_S: Final = 0.8
REST: Final = 3
"""The pause after the data of a costly view was read, as a multiple of the time that it took."""


async def watched(
    asked: ConsoleRequest, page: PageFunction, event: str, template: str, *, is_personal: bool = False
) -> AsyncGenerator[StreamEvent | None]:
    """Yields the data of a page each time it differs from what the browser shows, otherwise None. While the data cannot
    be read, nothing changes.

    Browsers that show the same view share the data, so that ten of them cost as much as one. If it `is_personal`, only
    browsers of the same person share it."""
    view = (asked.path, asked.query.with_changes({}), asked.role, asked.person if is_personal else None)
    before: Mapping[str, Any] | None = None
    while True:
        began_s = time.monotonic()
        try:
            found = await asked.shared(view, LOOK_S / 2, partial(page, asked))
        except (ConsoleFault, Refusal):
            found = before or {}
        took_s = time.monotonic() - began_s
        is_news = found and found != before and not (before is None and asked.is_seen(found))
        yield StreamEvent(event, found, template) if is_news else None
        before = found
        await asyncio.sleep(max(LOOK_S, REST * took_s))
