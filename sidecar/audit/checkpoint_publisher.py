"""Publishes the newest checkpoint of the log to other places.

The newest checkpoint says all that those before it said. So each place is told the newest that it has not heard, and a
place that is out hears a newer one later: nothing is queued, and no record ever waits for one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final

from sidecar.audit.checkpoints import MAX_LINE_BYTES, Checkpoint, published_in

EVERY_S: Final = 1.0
DEADLINE_S: Final = 2.0
KEPT: Final = 10_000  # at the store, some 3 MB
KEY: Final = "audit:checkpoints:"  # behind the prefix of our keys, before the key id: each signer has its own list
SCRIPT: Final = """
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('LTRIM', KEYS[1], -tonumber(ARGV[2]), -1)
return 1
"""

READ_BACK: Final = 200  # of the newest; whoever can put more there can also delete
READ: Final = "return redis.call('LRANGE', KEYS[1], -tonumber(ARGV[1]), -1)"

Place = Callable[[Checkpoint], Awaitable[object]]
"""Somewhere a checkpoint is told. Raises OSError."""
Run = Callable[[str, str, Sequence[str]], Awaitable[Any]]
"""A Lua script on one key of a store. Raises OSError; None of a store that nobody shares."""

log = logging.getLogger("sidecar.audit")


class CheckpointPublisher:
    """Tells each of `places` the newest checkpoint."""

    def __init__(self, places: Mapping[str, Place]) -> None:
        self._places = places
        self._told: dict[str, Checkpoint] = {}
        self._failing: set[str] = set()

    async def tell(self, newest: Checkpoint | None, *, but: Collection[str] = ()) -> None:
        """Every place at once, within DEADLINE_S, `but` those. What fails is logged, once for each time that it begins
        to."""
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
    """A line for each, on standard output. Whoever does not read it keeps one thread waiting, and no more."""
    writing: asyncio.Future[None] | None = None

    async def place(checkpoint: Checkpoint) -> None:
        nonlocal writing
        if sys.stdout is None:  # closed from the beginning: what has its number now is not it
            raise OSError("standard output is closed")
        if writing is not None and not writing.done():
            raise OSError("nobody reads it")
        line = checkpoint.published + b"\n"  # below PIPE_BUF: whole, or not at all
        writing = asyncio.get_running_loop().run_in_executor(None, _write, descriptor, line)
        await asyncio.shield(writing)

    return place


def to_store(run: Run) -> Place:
    """The end of a list for each signer, at the store of limits."""

    async def place(checkpoint: Checkpoint) -> None:
        arguments = [checkpoint.published.decode(), str(KEPT)]
        if await run(SCRIPT, KEY + checkpoint.kid, arguments) is None:
            raise OSError("the store is in this process: it tells nobody")

    return place


async def told_to_store(run: Run, kid: str) -> Sequence[Checkpoint]:
    """What the store was told last under a key; nothing is checked. Raises OSError."""
    lines = await run(READ, KEY + kid, [str(READ_BACK)])
    listed = lines if isinstance(lines, list) else []
    return [found for line in listed if isinstance(line, bytes) for found in published_in(line[:MAX_LINE_BYTES])]


def _write(descriptor: int, line: bytes) -> None:
    os.write(descriptor, line)
