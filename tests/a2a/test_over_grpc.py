"""What of HTTP's care has a caller over gRPC: who is refused hears so, and who is slow has an end?"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

import sidecar.gateway.frontends.grpc_connections
import sidecar.gateway.frontends.grpc_listener
from sidecar.gateway.frontends.grpc_connections import GrpcConnections
from sidecar.protocols.a2a.operations import BY_ACTION
from sidecar.protocols.a2a.wire import WIRES
from tests.a2a.world import ALICE, BOB, HELLO, AgentWorld, agent_world, ask, saying, task
from tests.flow.world import PATIENCE_S, until
from tests.tables import tables

KEY = ("authorization", ALICE["Authorization"])
SEND = {"message": HELLO}


def written(action: str, params: dict[str, Any]) -> tuple[str, bytes]:
    """The method, and the message, of 1.0."""
    operation = BY_ACTION[action]
    path = f"/lf.a2a.v1.A2AService/{operation.grpc('1.0')}"
    return path, WIRES["1.0"].encode(operation.request, params)


def channel(world: AgentWorld) -> aio.Channel:
    return aio.insecure_channel(f"127.0.0.1:{world.app.grpc_ports['']}")


def halves(line: aio.Channel) -> list[Any]:
    """Calls that send no message."""

    async def never() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    path, _ = written("message/send", SEND)
    return [line.stream_unary(path)(never(), metadata=(KEY,)) for _ in range(4)]


@pytest.mark.parametrize(
    ("action", "params"),
    [("message/send", SEND), ("message/stream", SEND), ("push/delete", {"taskId": "t", "id": "p"})],
)
async def test_a_no_before_anything_is_known_is_a_no(action: str, params: dict[str, Any], tmp_path: Path) -> None:
    """What has no answer but "done" would else say that it was done."""
    async with agent_world(tmp_path) as world, channel(world) as line:
        for said, tenant, code, reason in (
            (("origin", "https://evil.example"), "researcher", "PERMISSION_DENIED", "origin-refused"),
            (("transfer-encoding", "gzip"), "researcher", "INVALID_ARGUMENT", "malformed-call"),
            (("x-run-id", "1"), "../researcher", "NOT_FOUND", "route-unknown"),
            (("x-run-id", "1"), "researcher/v1", "NOT_FOUND", "route-unknown"),
        ):
            path, message = written(action, {**params, "tenant": tenant})
            call: Any = line.unary_stream(path)(message, metadata=(KEY, said))
            with pytest.raises(aio.AioRpcError) as told:
                _ = [one async for one in call]
            assert told.value.code().name == code, (said, tenant)
            assert world.ends()[-1]["reason"] == reason
        assert world.agent.seen == []


async def test_who_sends_no_message_keeps_nobody_out(tmp_path: Path) -> None:
    server = 'server: {listen: "127.0.0.1:0", grpc: "127.0.0.1:0", max_connections: 4, body_timeout_s: 0.2}\n'
    async with agent_world(tmp_path, settings=server) as world, channel(world) as line:
        for half in halves(line):
            with pytest.raises(aio.AioRpcError, match="did not arrive in time"):
                await half
        assert [record["reason"] for record in world.ends()] == ["malformed-call"] * 4
        assert (await ask(world, "1.0", "grpc", "message/send", SEND)).error is None


async def test_who_does_not_read_holds_nothing_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar.gateway.frontends.grpc_listener, "READING_S", 0.2)
    monkeypatch.setattr(sidecar.gateway.frontends.grpc_listener, "READ_BYTES_PER_S", 10**9)
    large = {"task": {**task(state="TASK_STATE_WORKING"), "metadata": {"x": "y" * 100_000}}}
    agent = saying(SendStreamingMessage=[large] * 200 + [asyncio.Event()])
    budgets = {"policies/budgets.yaml": 'version: 1\ntools: {"nhi:researcher": {concurrency: 1}}\n'}
    async with agent_world(tmp_path, agent, files=budgets) as world, channel(world) as line:
        path, message = written("message/stream", SEND)
        call: Any = line.unary_stream(path)(message, metadata=(KEY,))
        await call.read()
        await until(lambda: not world.app.pipeline.stages.inside)
        assert not world.app.pipeline.forwarder.streams
        assert world.ends()[-1]["event"] == "outcome" or world.ends()[-1]["reason"] == "caller-gone"
        agent.made = 1
        assert (await ask(world, "1.0", "grpc", "message/send", SEND, BOB)).error is None
        with pytest.raises(aio.AioRpcError, match="does not read"):
            while await call.read() is not aio.EOF:
                pass


@pytest.mark.parametrize("begins", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"])
async def test_who_connects_and_does_nothing_is_hung_up_on(begins: bytes, tmp_path: Path) -> None:
    server = 'server: {listen: "127.0.0.1:0", grpc: "127.0.0.1:0", header_timeout_s: 0.2, keepalive_timeout_s: 0.3}\n'
    async with agent_world(tmp_path, settings=server) as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.app.grpc_ports[""])
        writer.write(begins)
        async with asyncio.timeout(PATIENCE_S):
            while await reader.read(4096):
                pass
        assert reader.at_eof()
        writer.close()


async def test_who_vanishes_holds_nothing_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar.gateway.frontends.grpc_listener, "PING_S", 1.0)
    vanished, never, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    agent = saying(SendStreamingMessage=[{"task": task(state="TASK_STATE_WORKING")}, never])

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if vanished.is_set():  # a cable is out: nothing arrives, and nobody says so
                await never.wait()
            writer.write(data)
        writer.close()

    async with agent_world(tmp_path, agent) as world:

        async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            onward = await asyncio.open_connection("127.0.0.1", world.app.grpc_ports[""])
            try:
                with suppress(ConnectionError):
                    await asyncio.gather(carry(reader, onward[1]), carry(onward[0], writer))
            finally:
                for each in (writer, onward[1]):
                    each.transport.abort()
                ended.set()

        line = await asyncio.start_server(between, "127.0.0.1", 0)
        path, message = written("message/stream", SEND)
        async with line, aio.insecure_channel(f"127.0.0.1:{line.sockets[0].getsockname()[1]}") as through:
            call: Any = through.unary_stream(path)(message, metadata=(KEY,))
            await call.read()
            assert world.app.pipeline.forwarder.streams
            vanished.set()
            await until(lambda: not world.app.pipeline.forwarder.streams)
            never.set()
        async with asyncio.timeout(PATIENCE_S):
            await ended.wait()


@pytest.mark.parametrize("binding", ["jsonrpc", "http_json", "grpc"])
async def test_a_large_message_waits_its_turn_however_it_comes(binding: Any, tmp_path: Path) -> None:
    async with agent_world(tmp_path) as world:
        pace = world.app.pipeline.body_admission
        assert (await ask(world, "1.0", binding, "message/send", SEND)).error is None
        assert not len(pace)
        large = {"message": {**HELLO, "parts": [{"data": {"values": [None] * 15_000}}]}}
        assert (await ask(world, "1.0", binding, "message/send", large)).error is None
        assert len(pace) == 1


async def test_who_comes_when_too_many_are_heard_out_is_counted_and_on_record(tmp_path: Path) -> None:
    server = 'server: {listen: "127.0.0.1:0", grpc: "127.0.0.1:0", max_connections: 4, body_timeout_s: 60}\n'
    async with agent_world(tmp_path, settings=server) as world, channel(world) as line:
        path, message = written("message/send", SEND)
        waiting = halves(line)
        for half in waiting:
            await half.wait_for_connection()
        for _ in range(3):
            with pytest.raises(aio.AioRpcError, match="too many calls") as told:
                await line.unary_unary(path)(message, metadata=(KEY,))
            assert told.value.code().name == "RESOURCE_EXHAUSTED"
        for half in waiting:
            half.cancel()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(aio.AioRpcError):
                    await line.unary_unary(path)(message, metadata=(KEY,))
                    break
        told_of: list[Any] = []

        async def witness(what: str, by: str, **facts: object) -> None:
            told_of.append((what, facts["peer"], facts["count"]))

        await world.app.pipeline.stages.refusals.tell(witness)
        assert told_of[0][:2] == ("refusals-closed", "127.0.0.1") and told_of[0][2] >= 3


async def test_connections_are_capped_who_is_answered_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """grpc itself takes them until no descriptor is left."""
    monkeypatch.setattr(sidecar.gateway.frontends.grpc_connections, "LOOK_EVERY_S", 0.02)
    never = asyncio.Event()
    agent = saying(SendStreamingMessage=[{"task": task()}, never])
    server = 'server: {listen: "127.0.0.1:0", grpc: "127.0.0.1:0", max_connections: 8}\n'
    async with agent_world(tmp_path, agent, settings=server) as world, channel(world) as line:
        path, message = written("message/stream", SEND)
        call: Any = line.unary_stream(path)(message, metadata=(KEY,))
        await call.read()
        flood = [await asyncio.open_connection("127.0.0.1", world.app.grpc_ports[""]) for _ in range(40)]
        hung_up = [asyncio.create_task(reader.read()) for reader, _ in flood]  # a greeting may come before
        await until(lambda: sum(one.done() for one in hung_up) >= 33)
        assert sum(one.done() for one in hung_up) == 33 and not call.done()
        for _, writer in flood:
            writer.transport.abort()
        await asyncio.gather(*hung_up, return_exceptions=True)
        never.set()


@pytest.mark.parametrize(
    ("there", "busy", "leave"),
    tables("a2a/over_grpc")["leaves"],
    ids=["there is room", "too many in all", "too many of one", "who is answered stays", "a subnet is one"],
)
def test_who_has_to_leave(there: dict[str, int], busy: dict[str, int], leave: int) -> None:
    guests = GrpcConnections(max_connections=8, max_per_peer=5)
    peers = [(host, port) for host, count in there.items() for port in range(count)]
    with ExitStack() as stack:
        for host, count in busy.items():
            for port in range(count):
                stack.enter_context(guests.answering((host, port)))
        leaves = guests.too_many(peers)
        short = guests.too_many(peers, 3)
    assert len(leaves) == leave
    assert len(short) >= min(3, len(peers) - sum(busy.values()))
    assert not {host for host, _ in leaves} & busy.keys()


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


@pytest.mark.parametrize("confirms", [True, False], ids=["who confirms", "who does not"])
async def test_a_head_that_grows_when_it_is_read_is_the_end_of_its_connection(
    confirms: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar.gateway.frontends.grpc_listener, "CONFIRM_S", 0.3)
    remember = b"\x40\x03x-b" + b"\x7f\xbd\x1d" + b"z" * 3900  # 127 + 61 + 29 * 128
    bomb = b"\x83\x86\x84" + b"\xbe" * 4000  # POST, http, /, and what was remembered, again and again
    async with agent_world(tmp_path) as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.app.grpc_ports[""])
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + (frame(4, 1, 0) if confirms else b""))
        writer.write(frame(1, 5, 1, b"\x83\x86\x84" + remember) + frame(1, 5, 3, bomb))
        with suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE_S):
                while await reader.read(65536):
                    pass
        writer.transport.abort()
        assert (await ask(world, "1.0", "grpc", "message/send", SEND)).error is None
