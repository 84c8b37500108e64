"""Finishes clean-up work even when its task is cancelled.

A run that is given up while its program is just being ended anyway must not be told before that is done: its turn would
be another's while something of it is still there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def to_its_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """What it comes to. Whoever is cancelled here hears of it when it is over; what it raised is raised otherwise."""
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
