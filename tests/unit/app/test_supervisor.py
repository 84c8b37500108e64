"""Are workers started, replaced, signalled and ended as the supervisor says?

The workers here are small programs that do of a worker what the supervisor sees of it: they report over the notify
socket, and accept at the sockets that they were passed.
"""

import asyncio
import fcntl
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sidecar.app import supervisor as supervision
from sidecar.app.supervisor import Supervisor, WorkerFailed
from sidecar.app.usable_cpus import usable_cpus, worker_count
from sidecar.errors import SettingsError
from sidecar.settings.load import load_settings
from sidecar.settings.sidecar_file import Settings
from tests.flow.world import PATIENCE_S, until

WORKER = """
import os, select, signal, socket, sys, threading
number, folder = os.environ["SIDECAR_SERVER__WORKER"], sys.argv[1]
def say(*words):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto("\\n".join(words).encode(), os.environ["NOTIFY_SOCKET"])
def note(what):
    with open(f"{folder}/notes", "a") as file:
        file.write(f"{number} {what}\\n")
def alive(every_s=0.05):
    say("WATCHDOG=1")
    timer = threading.Timer(every_s, alive)
    timer.daemon = True
    timer.start()
def serve():
    with socket.socket(fileno=3) as listener:
        listener.listen()
        while True:
            # Not without end: a signal that comes just before the system call is handled after it.
            select.select([listener], [], [], 0.05)
            try:
                listener.accept()[0].sendall(number.encode())
            except BlockingIOError:  # none waits, or another accepted it
                pass
note(f"started {os.getpid()}")
is_first = open(f"{folder}/notes").read().count(f"{number} started") == 1
signal.signal(signal.SIGHUP, lambda *_: (note("reloads"), say("RELOADING=1"), say("READY=1")))
"""
SERVES = "alive(); say('READY=1'); serve()"


def configured(folder: Path, count: int | str = 2, more: str = "") -> Settings:
    (folder / "sidecar.yaml").write_text(
        f'version: 1\nserver: {{listen: "127.0.0.1:0", workers: {count}{more}}}\n'
        'admin: {listen: "127.0.0.1:0"}\nstore: {url: "redis://127.0.0.1:9"}\n'
        "sessions: {store: redis}\ntasks: {store: redis}\n"
    )
    return load_settings(folder / "sidecar.yaml", {}, check_files=False)


class Running:
    """A supervisor of small programs, until it is stopped. `ended` is what `run` returned."""

    def __init__(self, folder: Path, behaviour: str, count: int, more: str) -> None:
        self.folder = folder
        command = [sys.executable, "-S", "-E", "-c", WORKER + behaviour, str(folder)]
        self.supervisor = Supervisor(
            folder / "sidecar.yaml", configured(folder, count, more), {"LISTEN_PID": "1"}, count, command
        )
        self.task = asyncio.create_task(self.supervisor.run())

    def notes(self) -> list[str]:
        path = self.folder / "notes"
        return path.read_text().splitlines() if path.exists() else []

    def count(self, what: str) -> int:
        return sum(what in line for line in self.notes())

    def pids(self) -> list[int]:
        return [worker.pid for worker in self.supervisor.workers]

    async def ready(self) -> None:
        workers = self.supervisor.workers
        await until(lambda: self.task.done() or (self.supervisor.serves and all(one.is_ready for one in workers)))

    @property
    def port(self) -> int:
        return next(sock.getsockname()[1] for _, sock, _ in self.supervisor._sockets)

    async def ask(self) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        async with asyncio.timeout(PATIENCE_S):
            number = await reader.read()
        writer.close()
        return number.decode()


@asynccontextmanager
async def running(tmp_path: Path, behaviour: str = SERVES, count: int = 2, more: str = "") -> AsyncIterator[Running]:
    one = Running(tmp_path, behaviour, count, more)
    try:
        yield one
        if not one.task.done():
            os.kill(os.getpid(), signal.SIGTERM)
            async with asyncio.timeout(PATIENCE_S):
                await one.task
    finally:
        for pid in filter(None, one.pids()):
            os.kill(pid, signal.SIGKILL)
        one.task.cancel()
        await asyncio.gather(one.task, return_exceptions=True)


async def test_the_first_starts_alone_and_all_accept_at_one_port(tmp_path: Path) -> None:
    async with running(tmp_path, count=3) as one:
        await one.ready()
        assert one.notes()[0].startswith("1 started") and one.count("started") == 3
        found = {await one.ask() for _ in range(3)}
        assert found <= {"1", "2", "3"}
    assert one.task.result() is True
    assert not list(tmp_path.glob("data/**/*.sock"))


async def test_a_connection_that_waits_survives_the_worker_that_is_killed(tmp_path: Path) -> None:
    async with running(tmp_path, count=2) as one:
        await one.ready()
        for pid in one.pids():
            os.kill(pid, signal.SIGSTOP)  # nobody accepts
        waiting = asyncio.create_task(one.ask())
        await asyncio.sleep(0.05)
        first, second = one.pids()
        os.kill(first, signal.SIGKILL)
        await until(lambda: one.pids()[0] not in (0, first))
        assert await waiting == "1"
        os.kill(second, signal.SIGCONT)
        await one.ready()
    assert one.task.result() is True


async def test_one_that_stands_still_is_ended_and_replaced(tmp_path: Path) -> None:
    behaviour = "say('READY=1')\nif number == '2' and is_first: threading.Event().wait()\nalive(); serve()"
    async with running(tmp_path, behaviour, more=", worker_timeout_s: 500ms") as one:
        await until(lambda: one.count("2 started") == 2)
        await one.ready()
        assert one.count("1 started") == 1


@pytest.mark.parametrize("number", ["1", "2"])
async def test_one_that_ends_before_it_serves_stops_the_start_with_its_code(tmp_path: Path, number: str) -> None:
    async with running(tmp_path, f"if number == '{number}': sys.exit(3)\n{SERVES}") as one:
        await asyncio.wait((one.task,), timeout=PATIENCE_S)
        with pytest.raises(WorkerFailed, match=f"worker {number} ended before it served") as failed:
            one.task.result()
    assert failed.value.code == 3
    assert one.pids() == [0, 0], "none is left behind"


async def test_one_that_never_serves_stops_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "READY_WITHIN_S", 0.3)
    async with running(tmp_path, "alive(); threading.Event().wait()") as one:
        await asyncio.wait((one.task,), timeout=PATIENCE_S)
        with pytest.raises(WorkerFailed, match="worker 1 does not serve after"):
            one.task.result()
    assert one.pids() == [0, 0]


async def test_one_that_fails_again_and_again_is_started_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "FIRST_REST_S", 0.02)
    async with running(tmp_path, f"if number == '2' and not is_first: sys.exit(1)\n{SERVES}") as one:
        await one.ready()
        os.kill(one.pids()[1], signal.SIGKILL)
        await until(lambda: one.count("2 started") >= 4)
        assert one.supervisor.workers[1].failures >= 3
        assert await one.ask() == "1"
        assert supervision.rest_s(0) == supervision.rest_s(1) == 0.0
        rests = [supervision.rest_s(failures) for failures in range(2, 40)]
        assert rests == sorted(rests) and rests[0] > 0.0 and rests[-1] == supervision.LONGEST_REST_S


async def test_one_that_cannot_be_started_for_want_of_descriptors_is_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervision, "LONGEST_REST_S", 0.05)
    async with running(tmp_path) as one:
        await one.ready()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # what is open stays open
            os.kill(one.pids()[1], signal.SIGKILL)
            await until(lambda: caplog.messages.count("a worker cannot be started") >= 2)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await until(lambda: one.count("2 started") == 2)
        await one.ready()


async def test_a_reload_reaches_each_once_and_one_that_starts_when_it_serves(tmp_path: Path) -> None:
    may_serve = tmp_path / "may_serve"
    behaviour = f"while not (is_first or os.path.exists({str(may_serve)!r})): select.select([], [], [], 0.01)\n{SERVES}"
    async with running(tmp_path, behaviour) as one:
        await one.ready()
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: one.count("reloads") == 2)
        os.kill(one.pids()[1], signal.SIGKILL)
        await until(lambda: one.count("2 started") == 2)
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: one.count("1 reloads") == 2)
        may_serve.touch()
        await until(lambda: one.count("2 reloads") == 2)


async def test_the_second_signal_does_not_wait(tmp_path: Path) -> None:
    async with running(tmp_path, f"signal.signal(signal.SIGTERM, lambda *_: note('asked'))\n{SERVES}") as one:
        await one.ready()
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: one.count("asked") == 2)
        assert not one.task.done()
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            assert await one.task is False


async def test_a_stop_during_the_start_replaces_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path, "threading.Event().wait()") as one:
        await until(lambda: one.count("1 started") == 1)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            assert await one.task is True
    assert one.count("started") == 1
    assert "a worker ended and is replaced" not in caplog.messages


async def test_one_that_does_not_stop_in_time_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "LAST_S", 0.3)
    behaviour = f"signal.signal(signal.SIGTERM, lambda *_: note('asked'))\n{SERVES}"
    async with running(tmp_path, behaviour, more=", shutdown_grace_s: 100ms") as one:
        await one.ready()
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            assert await one.task is False
        assert one.count("asked") == 2


async def test_a_folder_that_other_workers_write_to_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers hold the lock too, so that one whose supervisor was killed keeps the next one waiting."""
    monkeypatch.setattr(supervision, "LEFT_S", 0.1)
    async with running(tmp_path) as one:
        await one.ready()
        other = Supervisor(tmp_path / "sidecar.yaml", configured(tmp_path), {}, 2, [sys.executable, "-c", ""])
        with pytest.raises(SettingsError, match=r"A113.*is being written by another sidecar"):
            await other.run()
    with (tmp_path / "data" / "workers" / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


async def test_an_address_that_is_taken_is_a_fault_and_nothing_is_started(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        configured(tmp_path)
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        file = tmp_path / "sidecar.yaml"
        file.write_text(f'{file.read_text()}metrics: {{listen: "{address}"}}\n')
        settings = load_settings(file, {}, check_files=False)
        one = Supervisor(tmp_path / "sidecar.yaml", settings, {}, 2, [sys.executable, "-c", "raise SystemExit"])
        with pytest.raises(SettingsError, match=f"S133.*cannot listen on {address}"):
            await one.run()
    assert not (tmp_path / "data" / "control.sock").exists()


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ({}, None),
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "max 100000"}, None),
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"}, 1),
        ({"a/b/cpu.max": "nonsense"}, None),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_cpus_are_counted_by_affinity_and_quota(tmp_path: Path, files: dict[str, str], most: int | None) -> None:
    (tmp_path / "own").write_text("0::/a/b\n")
    for name, text in files.items():
        (tmp_path / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys" / name).write_text(text)
    allowed = len(os.sched_getaffinity(0))
    assert usable_cpus(tmp_path / "sys", tmp_path / "own") == min(allowed, most or allowed)


def test_a_worker_is_alone_and_auto_is_one_for_each_cpu(tmp_path: Path) -> None:
    assert worker_count(configured(tmp_path, 3)) == 3
    assert worker_count(configured(tmp_path, "auto")) == min(64, usable_cpus())
    assert worker_count(configured(tmp_path, 3, ", worker: 2")) == 1
