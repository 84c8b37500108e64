"""Is everybody answered who can be, when connections, descriptors, time or patience run out?"""

import asyncio
import gc
import json
import os
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sidecar.errors import Refusal
from sidecar.gateway import routing
from sidecar.http.client import ANSWERS
from sidecar.http.server import listeners, memory_trim
from sidecar.http.server.connection_limits import Seat
from sidecar.http.server.listeners import Listener, ServerConnection
from sidecar.http.server.memory_trim import MemoryTrim
from sidecar.http.server.response import WholeResponse
from sidecar.settings.addresses import UnixAddress
from sidecar.settings.server import ServerSettings
from tests.flow.forks import Fork
from tests.flow.guests import result_of
from tests.flow.process import Served
from tests.flow.raw import CALL, Wire, answer_in, listening, request, statuses, wire
from tests.flow.talk import reason_of
from tests.flow.test_kill import Held, process, until_draining
from tests.flow.world import Upstream, World, until, world, write_folder

# --- places ---------------------------------------------------------------------------------------------------------


async def here(_: web.BaseRequest) -> web.StreamResponse:
    return WholeResponse(200, b"here")


@asynccontextmanager
async def asking(listener: Listener, data: bytes, source: str = "127.0.0.1") -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, local_addr=(source, 0))
    try:
        writer.write(data)
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


async def answered(listener: Listener, source: str = "127.0.0.1") -> bool:
    """Whether one who comes from there is answered."""
    async with asking(listener, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", source) as one:
        return statuses(await one.everything()) == [200]


@contextmanager
def half_open(listener: Listener, count: int, source: str = "127.0.0.1") -> Iterator[list[socket.socket]]:
    """Connections on which nothing is said."""
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            sock = socket.create_connection(("127.0.0.1", listener.port), source_address=(source, 0))
            made.append(stack.enter_context(closing(sock)))
            sock.setblocking(False)
        yield made


def still_open(socks: list[socket.socket]) -> int:
    def is_open(sock: socket.socket) -> bool:
        try:
            return sock.recv(1) != b""
        except BlockingIOError:
            return True
        except ConnectionError:
            return False

    return sum(map(is_open, socks))


async def test_a_flood_of_silence_takes_nobodys_place() -> None:
    async with listening(here, max_connections=20) as listener:
        with ExitStack() as stack:
            flood = []
            for _ in range(10):
                flood += stack.enter_context(half_open(listener, 10, "127.0.0.66"))
                assert await answered(listener, "127.0.0.2")
            assert await answered(listener, "127.0.0.66"), "not even the place of who is behind the same address"
            await until(lambda: still_open(flood) <= 20)


async def test_one_address_has_as_many_places_as_it_may_and_a_socket_file_as_many_as_there_are(tmp_path: Path) -> None:
    async with listening(here, max_connections=20, max_per_peer=5) as listener:
        with half_open(listener, 12) as flood, half_open(listener, 4, "127.0.0.2") as others:
            await until(lambda: still_open(flood) == 5)
            assert still_open(others) == 4
    path = tmp_path / "sock"
    async with listening(here, UnixAddress(path), max_connections=20, max_per_peer=5):
        with ExitStack() as stack:
            socks = [stack.enter_context(closing(socket.socket(socket.AF_UNIX))) for _ in range(12)]
            for sock in socks:
                sock.connect(str(path))
                sock.setblocking(False)
            await asyncio.sleep(0.1)
            assert still_open(socks) == 12


LINGERER = b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nx"


async def test_who_was_answered_and_lingers_gives_its_place_to_the_next() -> None:
    async with listening(here, max_connections=20) as listener, AsyncExitStack() as open_ones:
        back = await open_ones.enter_async_context(asking(listener, LINGERER, "127.0.0.3"))
        assert (await back.response())[0] == 200
        await back.send(b"x" * 999 + b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await back.response())[0] == 200 and not listener.seats.lingering, "its body came with the next head"
        lingering = []
        for number in range(60):
            on = asking(listener, LINGERER, f"127.0.0.{66 + number % 2}")
            lingering.append(await open_ones.enter_async_context(on))
            assert (await lingering[-1].response())[0] == 200
            if not number % 10:
                assert await answered(listener, "127.0.0.2")
        assert [await one.everything() for one in lingering[:-2]] == [b""] * 58, "two of 20 may linger, the last ones"


async def test_probes_have_places_that_nobody_else_takes() -> None:
    go = asyncio.Event()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if request.path != "/livez":
            await go.wait()
        return WholeResponse(200, b"here")

    async with listening(handle, probes=("/livez",), max_connections=3) as listener, AsyncExitStack() as stack:
        request = b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n"
        busy = [await stack.enter_async_context(asking(listener, request % b"/metrics")) for _ in range(3)]
        await until(lambda: len(listener.seats) == 3)
        stack.enter_context(half_open(listener, 100, "127.0.0.66"))
        for path, status in ((b"/livez", 200), (b"/metrics", 503), (b"/livez?x", 200)):
            async with asking(listener, request % path) as probe:
                assert statuses(await probe.everything()) == [status], "and the connection is closed"
        go.set()
        assert [(await one.response())[0] for one in busy] == [200] * 3


async def test_a_drain_ends_connections_with_the_next_answer_and_takes_new_ones() -> None:
    go = asyncio.Event()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/slow":
            await go.wait()
        return WholeResponse(200, b"here")

    ask = b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n"
    async with (
        listening(handle) as listener,
        asking(listener, ask % b"/") as idle,
        asking(listener, ask % b"/slow") as busy,
    ):
        assert await idle.response() == (200, b"here")
        await until(lambda: len(listener.seats) == 2)
        listener.close_connections_after_answers()
        go.set()
        assert b"\r\nConnection: close\r\n" in await busy.everything(), "a call in flight"
        await idle.send(ask % b"/")
        assert b"\r\nConnection: close\r\n" in await idle.everything(), "a connection that was kept"
        async with asking(listener, ask % b"/") as late:
            assert b"\r\nConnection: close\r\n" in await late.everything(), "a connection of one that has not noticed"


async def test_bodies_that_come_slowly_give_way_and_one_caller_has_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest hears why, with the word for it; who is quick is not asked to."""
    monkeypatch.setattr(listeners, "GIVES_WAY_S", 0.05)

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        types = {"content-type": ["application/json"]}
        try:
            await routing.read_body(request, types, routing.BodyBounds(), lambda _: None, who=request.path)
        except Refusal as refusal:
            return WholeResponse(refusal.answer.http, refusal.reason.value.encode())
        return WholeResponse(200, b"read")

    slow = b"POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nx"
    async with listening(handle, max_connections=20) as listener, AsyncExitStack() as stack:
        callers = [number // 5 for number in range(20)]  # a quarter of all places is one caller's
        waiting = [await stack.enter_async_context(asking(listener, slow % caller)) for caller in callers]
        await asyncio.sleep(0.2)
        async with asking(listener, b"POST /9 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok") as quick:
            assert await quick.response() == (200, b"read")
        assert await waiting[0].response() == (503, b"overloaded")
        async with asking(listener, slow % 1), asking(listener, slow % 1):
            assert await waiting[1].response() == (503, b"overloaded"), "for the places of these two"
            assert await waiting[5].response() == (503, b"overloaded"), "and for the bound of this caller"
        await waiting[19].send(b"yz")
        assert await waiting[19].response() == (200, b"read")


async def test_a_handshake_that_never_ends_has_a_place_and_loses_it() -> None:
    tls, files = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), descriptors_in("/proc/self/fd")
    async with listening(here, tls=tls, max_connections=5, header_timeout_s=0.4) as listener:
        with half_open(listener, 12) as flood:
            await until(lambda: still_open(flood) == 5)
            await until(lambda: still_open(flood) == 0)
    assert descriptors_in("/proc/self/fd") <= files


async def test_a_connection_that_is_over_leaves_nothing_to_be_collected() -> None:
    async with listening(here) as listener:
        gc.collect()
        gc.disable()
        try:
            with half_open(listener, 20):
                pass
            for _ in range(5):
                assert await answered(listener)
            await until(lambda: not any(isinstance(one, ServerConnection | Seat) for one in gc.get_objects()))
        finally:
            gc.enable()


FACING: dict[str, Any] = {"listen": "10.0.0.1:80", "tls": {"cert_path": "a", "key_path": "b"}}


@pytest.mark.parametrize(
    ("section", "per_peer"),
    [
        ({"max_connections": 100}, 0),  # agents beside us all have the same address
        ({"max_connections": 100, "max_connections_per_peer": 7}, 7),
        ({"max_connections": 100, "listen": "10.0.0.1:80", "tls": "external"}, 0),
        ({"max_connections": 100, **FACING}, 75),
        ({"max_connections": 1, **FACING}, 1),
    ],
)
def test_how_many_connections_one_address_may_have(section: dict[str, Any], per_peer: int) -> None:
    settings = ServerSettings.model_validate({"public_url": "https://gw.acme.example", **section})
    assert settings.connections_per_peer == per_peer


# --- patience -------------------------------------------------------------------------------------------------------


async def test_a_body_must_come_at_its_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "BODY_PATIENCE_S", 0.3)
    monkeypatch.setattr(routing, "BODY_RATE_BYTES_S", 1000)
    async with world(tmp_path) as running:
        slow, steady = await asyncio.gather(sent_in_pieces(running, 20), sent_in_pieces(running, 120))
        assert statuses(slow) == [400] and "did not arrive in time" in answer_in(slow)["error"]["message"]
        assert statuses(steady) == [200]


async def sent_in_pieces(running: World, size: int) -> bytes:
    """What is answered to a body of which so many bytes come every 60 ms."""
    body = CALL.ljust(1000)
    async with wire(running) as connection:
        lines = ("Connection: close", f"Content-Length: {len(body)}")
        await connection.send(request(running, *lines, body=b"", length=False))

        async def send() -> None:
            for start in range(0, len(body), size):
                await connection.send(body[start : start + size])
                await asyncio.sleep(0.06)

        sending = asyncio.create_task(send())
        answer = await connection.quiet()
        sending.cancel()
        return answer


# --- more than can be done ------------------------------------------------------------------------------------------


async def test_under_pressure_what_is_under_way_and_health_go_on(tmp_path: Path) -> None:
    held = Held()
    async with world(tmp_path, upstream=held.upstream) as running:
        under_way = asyncio.create_task(running.call("search_code", {"repo": "acme/x"}))
        await held.until(1)
        running.app.pipeline.stages.load_shedding.refused_share = 1.0
        answer = await running.call("search_code", {"repo": "acme/x"})
        assert (answer[0], reason_of(answer), answer[2]["Retry-After"]) == (503, "overloaded", "1")
        for path, status in (("/livez", 200), ("/readyz", 200), ("/metrics", 200)):
            async with running.http.get(running.admin_url + path) as response:
                assert response.status == status
                if path == "/readyz":
                    assert "overloaded" in await response.text()
        held.go.set()
        assert (await under_way)[0] == 200
        running.app.pipeline.stages.load_shedding.refused_share = 0.0
        assert (await running.call("search_code", {"repo": "acme/x"}))[0] == 200
        assert [record["reason"] for record in running.ends()] == ["overloaded", None, None]


async def test_a_clock_that_jumps_is_on_record_and_stops_nobody(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        pressure = running.app.pipeline.stages.load_shedding
        for offset_s in (0.0, 3600.0, 0.0):
            pressure.clock = partial(lambda offset_s: time.time() + offset_s, offset_s)
            await pressure.look_at_clock()
            assert (await running.call("search_code", {"repo": "acme/x"}))[0] == 200
        jumps = [record["control"] for record in running.records() if record["event"] == "control"]
        assert [round(one["seconds"]) for one in jumps if one["what"] == "clock-jump"] == [3600, -3600]


# --- bombs ----------------------------------------------------------------------------------------------------------


async def test_an_idle_connection_holds_neither_its_last_call_nor_its_answer(tmp_path: Path) -> None:
    async def echo(_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        content = [{"type": "text", "text": message["params"]["arguments"]["repo"]}]
        return web.json_response(result_of(message, {"resultType": "complete", "content": content}))

    large = CALL.replace(b"acme/raw", b"acme/" + b"x" * 900_000)
    tools = [{"name": "search_code", "inputSchema": {"type": "object"}}]
    upstream = Upstream(tools=tools, script={"tools/call": echo})
    async with world(tmp_path, upstream=upstream) as running, AsyncExitStack() as idle:
        for number in range(28):
            connection = await idle.enter_async_context(wire(running))
            await connection.send(request(running, body=large))
            status, body = await connection.response()
            assert (status, len(body) > 900_000) == (200, True)
            upstream.seen.clear()
            if number == 7:
                before = rss_bytes()
        assert rss_bytes() - before < 20 * 2**20


@pytest.mark.parametrize("media", ["application/json", "text/event-stream"])
async def test_large_answers_take_turns_in_memory_and_a_crowd_of_them_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, media: str
) -> None:
    monkeypatch.setattr(ANSWERS, "total", 3 * 2**20)
    monkeypatch.setattr(memory_trim, "CROWD", 30)
    crowds, size = list[int](), 2 * 2**20

    async def large(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        result = {"content": [{"type": "text", "text": "x" * size}], "isError": False, "resultType": "complete"}
        said = json.dumps(result_of(message, result)).encode()
        return web.Response(body=said if "json" in media else b"data: " + said + b"\n\n", content_type=media)

    async with world(tmp_path, upstream=Upstream(script={"tools/call": large})) as running:
        trim = running.app.gauges._crowds = MemoryTrim(lambda: crowds.append(trim.most))
        answers = await asyncio.gather(*(running.call("search_code", {"repo": "acme/x"}) for _ in range(12)))
        assert [answer[0] for answer in answers] == [200] * 12
        assert ANSWERS.held == 0
        await until(lambda: crowds)
        assert size * 3 // 4 < max(crowds) * memory_trim.STREAM_BYTES < 3 * 2**20 + 2 * size


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors_in(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())


# --- no descriptor --------------------------------------------------------------------------------------------------


# --- signals, one upon the other ------------------------------------------------------------------------------------


async def test_told_to_reload_and_to_stop_at_once_it_finishes_what_it_began() -> None:
    held = Held()
    async with process(held.upstream) as client:
        running = client.running
        in_flight = asyncio.create_task(client.call())
        await held.until(1)
        rules = running.folder / "policies" / "agent_to_tool.csv"
        rules.write_text(rules.read_text() + "p, nhi:new, tool:github/new, use, -, -, -, allow\n")
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
            running.signal(number)
        await until_draining(running)
        running.signal(signal.SIGHUP)
        await asyncio.sleep(0.1)
        assert not in_flight.done()
        held.go.set()
        assert (await in_flight)[0] == 200
        ended = asyncio.create_task(running.ended())
        while not ended.done():  # up to its very end
            with suppress(ProcessLookupError):
                running.signal(signal.SIGHUP)
            await asyncio.sleep(0.001)
        assert await ended == 0
        assert running.controls().count("start") == running.controls().count("stop") == 1
        assert running.verify()[0] == 0
        lines = [json.loads(line) for line in running.log().splitlines()]  # the log is JSON from its first line on
        assert all({"time", "level", "logger", "event"} <= line.keys() for line in lines)
        (serves,) = (line for line in lines if line["event"].startswith("sidecar serves github at http://"))
        assert serves["store"] == "memory" and serves["policy"] == running.records()[0]["control"]["policy_revision"]
        events = [line["event"] for line in lines]
        assert events.count("stopping") == 1 and events[-1] == "stopped"


# --- asked to stop before it served ---------------------------------------------------------------------------------


async def test_a_start_that_is_told_to_stop_leaves_nothing(tmp_path: Path) -> None:
    """Its issuer does not answer, so that its start takes long."""
    silent = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{silent.getsockname()[1]}"
    issuer = f'{{issuer: "https://idp.example", jwks_url: "{address}/keys", algorithms: [ES256], kinds: [user]}}'
    write_folder(tmp_path, "http://127.0.0.1:9/mcp", settings=f"identity: {{issuers: [{issuer}]}}\n")
    running = Served(tmp_path)
    log = (tmp_path / "stderr-1.log").open("wb")
    words = ("-m", "sidecar", "serve", "-c", str(tmp_path / "sidecar.yaml"))
    running.process = await Fork.start(*words, environ=os.environ, stderr=log.fileno())
    log.close()
    asking, _ = await asyncio.to_thread(silent.accept)
    running.signal(signal.SIGHUP)
    running.signal(signal.SIGTERM)
    assert await running.ended() == 0, running.log()
    assert "a stop was requested before the start completed" in running.log()
    assert not (tmp_path / "data" / "control.sock").exists()
    asking.close()
    silent.close()
