"""What is left of a caller who goes away, or does not read?

A hundred callers hang up with an RST, at random bytes of what they send; others stop reading (BL-019).
"""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from sidecar.audit.recorder import HASHED_HERE_BYTES, Recording
from sidecar.http.server.listeners import Listener
from sidecar.http.server.response import WholeResponse
from tests.flow.bystanders import SPARE, open_files
from tests.flow.raw import CALL, Wire, listening, request, wire
from tests.flow.streams import event
from tests.flow.talk import Talk
from tests.flow.world import PATIENCE_S, Upstream, World, until, world

BUDGETS = {"policies/budgets.yaml": 'version: 1\nprincipals: {"nhi:planner": {concurrency: 20}}\n'}
NOTE = event({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}})


class Talker:
    """An upstream that goes on talking until its reader is gone. `busy` counts whom it talks to."""

    def __init__(self) -> None:
        self.busy = 0
        self.begun = 0

    async def call(self, asked: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        self.busy += 1
        self.begun += 1
        try:
            stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await stream.prepare(asked)
            while True:
                await stream.write(NOTE * 8)
                await asyncio.sleep(0.005)
        finally:
            self.busy -= 1


@asynccontextmanager
async def talking(folder: Path) -> AsyncIterator[tuple[World, Talker]]:
    talker = Talker()
    upstream = Upstream(script={"tools/call": talker.call})
    async with world(folder, upstream=upstream, files=BUDGETS) as running:
        await Talk(running, "stateless").ask("tools/list")
        yield running, talker


async def nothing_left(running: World, tasks: int, files: int) -> None:
    """No call under way, no slot held, no task and no file more than before."""
    pipeline = running.app.pipeline
    await until(
        lambda: pipeline.stages.inside == 0 and not pipeline.forwarder.streams and not pipeline.stages.limiter.held
    )
    await until(lambda: len(asyncio.all_tasks()) <= tasks + SPARE and open_files() <= files + SPARE)
    assert running.upstream_connections <= 4


async def test_a_hundred_callers_who_leave_while_they_ask(tmp_path: Path) -> None:
    chance = random.Random(19)
    async with talking(tmp_path) as (running, talker):
        whole = request(running)
        body_at = len(whole) - len(CALL)
        tasks, files = len(asyncio.all_tasks()), open_files()
        heads = 0
        for number in range(100):
            place = chance.randrange(1, len(whole) - 1) if number % 2 else chance.randrange(body_at, len(whole) - 1)
            heads += place >= body_at
            async with wire(running) as connection:
                await connection.send(whole[:place])
                await asyncio.sleep(0.005)
                connection.reset()
        await until(lambda: len(running.ends()) == heads + 1)
        await nothing_left(running, tasks, files)
        assert {record["reason"] for record in running.ends()[1:]} == {"caller-gone"}
        assert talker.begun == 0, "half a call is no call"


async def test_a_caller_who_leaves_before_any_answer_takes_its_upstream_call_along(planner: World) -> None:
    waiting = left = 0

    async def never(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        nonlocal waiting, left
        waiting += 1
        try:
            await asyncio.Event().wait()
        finally:
            left += 1
        raise AssertionError

    planner.upstream.script["tools/call"] = never
    async with wire(planner) as connection:
        await connection.send(request(planner))
        await until(lambda: waiting == 1)
        connection.reset()
    await until(lambda: left == 1, within_s=10)
    await until(lambda: [record["reason"] for record in planner.ends()] == ["caller-gone"])


@contextmanager
def hashing_until_asked_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.Event]:
    """The event: arguments are being hashed, which takes until some are to be hashed again."""
    begun, again, loop, hashed = asyncio.Event(), threading.Event(), asyncio.get_running_loop(), Recording._hash

    def slow(recording: Recording, *about: Any) -> Any:
        if begun.is_set():
            again.set()
        else:
            loop.call_soon_threadsafe(begun.set)
            assert again.wait(PATIENCE_S)
        return hashed(recording, *about)

    with monkeypatch.context() as patched:
        patched.setattr(Recording, "_hash", slow)
        try:
            yield begun
        finally:
            again.set()


async def test_who_leaves_while_the_refusal_of_a_large_call_is_recorded_is_on_record_as_refused(
    planner: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await Talk(planner, "stateless").ask("tools/list")
    before, large = len(planner.ends()), {"repo": f"evil/{'x' * HASHED_HERE_BYTES}"}
    with hashing_until_asked_again(monkeypatch) as begun:
        leaving = asyncio.create_task(planner.call("search_code", large))
        await begun.wait()
        leaving.cancel()
        await until(lambda: len(planner.ends()) > before)
    record = planner.ends()[-1]
    found = [record[name] for name in ("event", "reason", "http_status", "object")]
    assert found == ["refusal", "condition-false", 499, "tool:github/search_code"] and record["args_hash"]


async def test_a_caller_who_leaves_a_session_stream_leaves_the_session(planner: World) -> None:
    """In the session era a lost connection is no cancellation; the session lives, the stream's outcome is no error."""
    planner.upstream.script["GET"] = Talker().call
    talk = Talk(planner, "session")
    await talk.open()
    for _ in range(5):
        lines = [f"{name}: {value}" for name, value in talk.in_session.items()]
        first = "GET /mcp/github HTTP/1.1"
        async with wire(planner) as connection:
            lines = [*lines, "Accept: text/event-stream"]
            await connection.send(request(planner, *lines, first=first, body=b"", routing=False, length=False))
            await connection.reader.readuntil(b"notifications/progress")
            connection.reset()
    await until(lambda: not planner.app.pipeline.forwarder.streams)
    assert (await talk.ask("ping"))[0] == 200
    await until(lambda: [record["status"] for record in planner.ends()] == ["success"] * 7)


# --- who does not read ----------------------------------------------------------------------------------------------

LARGE = b"x" * 32 * 2**20


@asynccontextmanager
async def place_of(handle: Any, **patience: float) -> AsyncIterator[tuple[Any, Listener]]:
    """Where `wire` connects to, and who listens there."""
    async with listening(handle, **patience) as listener:
        yield SimpleNamespace(url=f"http://127.0.0.1:{listener.port}"), listener


def whole(size: int) -> Any:
    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        return WholeResponse(200, LARGE[:size])

    return answer


async def piecemeal(asked: web.BaseRequest) -> web.StreamResponse:
    stream = web.StreamResponse()
    await stream.prepare(asked)
    while True:
        await stream.write(LARGE[:65_536])


@pytest.mark.parametrize("handle", [whole(len(LARGE)), piecemeal], ids=["whole", "piecemeal"])
async def test_who_does_not_read_is_hung_up_on(handle: Any) -> None:
    async with place_of(handle, reading_timeout_s=0.3) as (place, _), wire(place, receive_bytes=4096) as connection:
        connection.stop_reading()
        await connection.send(request(place))
        await until(lambda: under_way("ServerConnection.start"))
        await until(lambda: not under_way("ServerConnection.start"))


def under_way(name: str) -> bool:
    """Whether a task runs this coroutine."""
    return any(name in repr(task.get_coro()) for task in asyncio.all_tasks())


async def test_a_slow_reader_of_a_stream_slows_its_upstream_and_not_our_memory(tmp_path: Path) -> None:
    sent = 0

    async def flood(asked: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        nonlocal sent
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(asked)
        while True:
            await stream.write(NOTE * 500)
            sent += len(NOTE) * 500

    upstream = Upstream(script={"tools/call": flood})
    async with world(tmp_path, upstream=upstream) as running, wire(running, receive_bytes=4096) as connection:
        await Talk(running, "stateless").ask("tools/list")
        connection.stop_reading()
        await connection.send(request(running))
        await until(lambda: sent > 0)
        before = -1
        while sent != before:  # until nothing moves any more
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 16 * 2**20, "what is on its way is in the kernel's buffers and in ours, and no more comes"
        assert (await Talk(running, "stateless").ask("tools/list"))[0] == 200


async def test_what_waits_for_all_who_do_not_read_is_bounded_and_who_reads_stays() -> None:
    async with place_of(whole(2**23), max_unread_bytes=24 * 2**20) as (place, listener), AsyncExitStack() as stack:
        reading = await stack.enter_async_context(wire(place, receive_bytes=4096))
        await reading.send(request(place, "Connection: close"))
        received, server = asyncio.create_task(slowly(reading)), listener._server
        await until(lambda: any(one.taken_bytes_s > 0 for one in server.slow_readers))
        for _ in range(8):
            idle = await stack.enter_async_context(wire(place, receive_bytes=4096))
            idle.stop_reading()
            await idle.send(request(place))
        await until(lambda: len(server.connections) <= 4)
        assert sum(one.unread_bytes for one in server.slow_readers) <= 24 * 2**20
        assert await received > 2**23


async def slowly(connection: Wire) -> int:
    """How much comes when a little is read now and then."""
    received = 0
    while data := await connection.reader.read(2**16):
        received += len(data)
        await asyncio.sleep(0.004)
    return received
