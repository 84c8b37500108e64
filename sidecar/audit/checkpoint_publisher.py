"""Publishes the newest checkpoint of the log to other systems.

It covers all earlier ones, so a system that was unavailable gets a newer one later: nothing is queued, and no record
waits.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from sidecar.audit.checkpoints import MAX_LINE_BYTES, Checkpoint, published_in
from sidecar.storage.redis_script import Run, script_text

EVERY_S: Final = 1.0
DEADLINE_S: Final = 2.0
KEPT: Final = 10_000  # in the store, about 3 MB
KEY: Final = "audit:checkpoints:"  # after the sidecar's key prefix and before the key id: each signer has its own list
READ_BACK: Final = 200  # of the newest; an attacker who can flood the list can also delete it

Place = Callable[[Checkpoint], Awaitable[object]]
"""Publishes a checkpoint to one system. Raises OSError."""
log = logging.getLogger("sidecar.audit")


class CheckpointPublisher:
    def __init__(self, places: Mapping[str, Place]) -> None:
        self._places = places
        self._told: dict[str, Checkpoint] = {}
        self._failing: set[str] = set()

    async def tell(self, newest: Checkpoint | None, *, but: Collection[str] = ()) -> None:
        """Publishes to every system that has not received it, except those in `but`, concurrently, within DEADLINE_S.
        Logs failures; the next call tries again."""
        if newest is not None:
            late = [name for name in self._places if name not in but and self._told.get(name) != newest]
            await asyncio.gather(*(self._tell(name, newest) for name in late))

    async def _tell(self, name: str, newest: Checkpoint) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                await self._places[name](newest)
        except (OSError, TimeoutError) as error:
            if name not in self._failing:
                log.error("a checkpoint cannot be published", extra={"to": name, "error": str(error)[:200]})
            self._failing.add(name)
        else:
            self._failing.discard(name)
            self._told[name] = newest


def to_descriptor(descriptor: int) -> Place:
    """Publishes one line per checkpoint to a descriptor of standard output. If the output is not read, only one thread
    blocks."""
    writing: asyncio.Future[int] | None = None

    async def place(checkpoint: Checkpoint) -> None:
        nonlocal writing
        if sys.stdout is None:  # closed at start: the descriptor number may belong to another file
            raise OSError("standard output is closed")
        if writing is not None and not writing.done():
            raise OSError("the last checkpoint is not read yet")
        line = checkpoint.published + b"\n"  # below PIPE_BUF: written whole or not at all
        writing = asyncio.get_running_loop().run_in_executor(None, os.write, descriptor, line)
        await asyncio.shield(writing)

    return place


def to_store(run: Run) -> Place:
    """Appends to a list per signer in the store of limits."""

    async def place(checkpoint: Checkpoint) -> None:
        arguments = [checkpoint.published.decode(), str(KEPT)]
        if await run(script_text("checkpoint_push"), KEY + checkpoint.kid, arguments) is None:
            raise OSError("the store is in this process: no other process can read it")

    return place


async def told_to_store(run: Run, kid: str) -> Sequence[Checkpoint]:
    """The newest `READ_BACK` checkpoints that are published in the store under the key id `kid`, unverified. Raises
    OSError."""
    lines = await run(script_text("checkpoint_read"), KEY + kid, [str(READ_BACK)])
    listed = lines if isinstance(lines, list) else []
    return [found for line in listed if isinstance(line, bytes) for found in published_in(line[:MAX_LINE_BYTES])]
