"""Who else is there while a server misbehaves, and what do they notice of it?

unharmed      others go on calling inside the block: every call is answered, and soon
nothing_left  after the block nothing of it is left: no task, descriptor, session, connection, slot
callbacks     the longest that one step of ours held the event loop, in seconds of processor time
"""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.flow.world import PATIENCE_S, World, until

SPARE = 60  # idle connections, both ends of each, and what serves them; a leak would be one for each script
PAUSE_S = 0.01
Call = Callable[[], Awaitable[tuple[int, Any, Any]]]


@dataclass
class Noticed:
    """What others noticed. `slowest_s` is the longest wait for an answer, `failures` what was none."""

    answered: dict[str, int] = field(default_factory=dict)
    failures: list[Any] = field(default_factory=list)
    slowest_s: float = 0.0


@asynccontextmanager
async def unharmed(within_s: float = PATIENCE_S, **others: Call) -> AsyncIterator[Noticed]:
    """Everybody calls again and again, each for himself. Whoever has a wait that is too long was harmed."""
    noticed = Noticed(dict.fromkeys(others, 0))

    async def go_on(name: str, call: Call) -> None:
        while True:
            began = time.monotonic()
            status, body, _ = await call()
            noticed.slowest_s = max(noticed.slowest_s, time.monotonic() - began)
            if status != 200 or "result" not in body or body["result"].get("isError"):
                noticed.failures.append((name, status, body))
            noticed.answered[name] += 1
            await asyncio.sleep(PAUSE_S)

    tasks = [asyncio.create_task(go_on(name, call)) for name, call in others.items()]
    try:
        yield noticed
        least = min(noticed.answered.values())
        await until(lambda: min(noticed.answered.values()) > least, within_s)  # they still can
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert not [end for end in ends if not isinstance(end, asyncio.CancelledError)]
    assert not noticed.failures, noticed.failures[:3]
    assert noticed.slowest_s < within_s


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@asynccontextmanager
async def nothing_left(running: World, *, sessions: int = 0, spare: int = SPARE) -> AsyncIterator[None]:
    """No call under way, no slot held, no session beyond those, no task and no file more than before."""
    pipeline, app = running.app.pipeline, running.app
    tasks, files = len(asyncio.all_tasks()), open_files()
    yield
    await until(
        lambda: pipeline.stages.inside == 0 and not pipeline.forwarder.streams and not pipeline.stages.limiter.held
    )
    await until(lambda: not (app.live._readers or app.live.requests or pipeline.forwarder.pairs))
    await until(lambda: len(app.sessions) <= sessions)
    await until(lambda: len(asyncio.all_tasks()) <= tasks + spare and open_files() <= files + spare)


@contextmanager
def callbacks(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, float]]:
    """By what ran: how long its longest step held the loop. Processor time, so that a busy machine says nothing; steps
    of the tests' own are not among them."""
    longest: dict[str, float] = {}
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        callback: Any = handle._callback  # gone after it ran
        began = time.thread_time()
        run(handle)
        took_s = time.thread_time() - began
        if took_s > 0.01:
            task = getattr(callback, "__self__", None)
            code = getattr(task.get_coro(), "cr_code", None) if isinstance(task, asyncio.Task) else None
            if code is None or "/tests/" not in code.co_filename:
                name = code.co_qualname if code else getattr(callback, "__qualname__", repr(callback))
                longest[name] = max(longest.get(name, 0.0), took_s)

    gc.collect()
    gc.freeze()  # as the server does after its start
    with monkeypatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", timed)
        yield longest
    gc.unfreeze()
