"""Finishes clean-up work even when its task is cancelled.

If a run is cancelled while its program is being ended, its end must not be reported before that is done: its slot would
be given away while part of the program still runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def to_its_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Returns the coroutine's result. If the caller is cancelled, raises CancelledError once the coroutine is done;
    otherwise raises what it raised."""
    ending = asyncio.ensure_future(coroutine)
    cancelled: asyncio.CancelledError | None = None
    while not ending.done():
        try:
            await asyncio.wait({ending})
        except asyncio.CancelledError as now:
            cancelled = now
    if cancelled is not None:
        raise cancelled
    return ending.result()
