"""A sidecar under a service manager: passed sockets, reports to its notify socket, the watchdog, the drain delay."""

import asyncio
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from sidecar.app.service_manager import ServiceManager
from sidecar.http.server.inherited_sockets import InheritedSockets
from sidecar.settings.addresses import parse_address
from tests.flow.world import PATIENCE_S, PATIENT, RULES, write_folder

BECOME = """import os, sys
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.executable, [sys.executable, "-m", "sidecar", "serve", "-c", *sys.argv[1:]])"""


@contextmanager
def notify_socket(path: Path) -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sock:
        sock.bind(str(path))
        sock.setblocking(False)
        yield sock


def bound(path: Path | None = None, mode: int = 0o660) -> socket.socket:
    """A listening socket, as a socket unit has it."""
    sock = socket.socket(socket.AF_INET if path is None else socket.AF_UNIX)
    sock.bind(("127.0.0.1", 0) if path is None else str(path))
    if path is not None:
        path.chmod(mode)
    sock.listen(128)
    return sock


async def start(folder: Path, *sockets: socket.socket, **environ: str) -> asyncio.subprocess.Process:
    def place() -> None:
        for number, copy in enumerate([fcntl.fcntl(one, fcntl.F_DUPFD, 50) for one in sockets], 3):
            os.dup2(copy, number)
            os.set_inheritable(number, True)

    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", BECOME, str(folder / "sidecar.yaml")),
        env={**os.environ, **PATIENT, **environ, "LISTEN_FDS": str(len(sockets)), "LISTEN_FDNAMES": "agents:planner"},
        preexec_fn=place,
        close_fds=False,
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.mark.parametrize("fault", ["address", "mode"])
async def test_a_passed_socket_that_does_not_fit_stops_the_start(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "planner.sock"
    with bound() as data, bound() if fault == "address" else bound(path, 0o666) as other:
        settings = f'server: {{listen: "127.0.0.1:{data.getsockname()[1]}"}}\n'
        settings += f'local: [{{listen: "unix:{path}", principal: "nhi:planner"}}]\n'
        write_folder(tmp_path, "http://127.0.0.1:9/mcp", RULES, settings=settings, principal="")
        process = await start(tmp_path, data, other)
        _, told = await process.communicate()
        assert process.returncode == 3
        (line,) = (one for one in map(json.loads, told.splitlines()) if "code" in one)
        if fault == "address":
            address = f"127.0.0.1:{other.getsockname()[1]} (planner)"
            expected = f"no listener has the address of a socket that was passed: {address}"
            assert (line["code"], line["event"]) == ("S135", expected)
        else:
            assert line["code"] == "S133" and "write SocketMode=0660" in line["event"]


@contextmanager
def placed(*sockets: socket.socket) -> Iterator[int]:
    """Copies of them, as consecutive descriptors. Yields the first."""
    first = 300
    for number, sock in enumerate(sockets, first):
        os.dup2(sock.fileno(), number)
    yield first


def test_sockets_are_found_by_the_address_that_settings_say() -> None:
    v6 = socket.socket(socket.AF_INET6)
    v6.bind(("::1", 0))
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with bound() as v4, closing(v6), closing(udp), placed(v4, v6, udp) as first:
        environ = {"LISTEN_FDS": "3", "LISTEN_PID": "7"}
        passed = InheritedSockets(environ, 7, first)
        for said in (f"localhost:{v4.getsockname()[1]}", f"[0:0::1]:{v6.getsockname()[1]}"):
            sock = passed.take(parse_address(said))
            assert sock is not None and not sock.getblocking() and not sock.get_inheritable()
            sock.close()
            assert passed.take(parse_address(said)) is None, "a socket is one listener's"
        assert passed.take(parse_address("a.example:1")) is None
        assert passed.close() == (f"descriptor {first + 2}, which is not a stream socket",)
        assert InheritedSockets(environ, 8, first).close() == (), "they are another process's"
        with pytest.raises(OSError, match=f"names 3 sockets, and descriptor {first} is not a socket"):
            InheritedSockets(environ, 7, first)
        with pytest.raises(OSError, match="at most 64"):
            InheritedSockets({"LISTEN_FDS": "65"}, 7, first)


async def test_a_loop_that_hangs_sends_no_sign_of_life(tmp_path: Path) -> None:
    def signs() -> int:
        count = 0
        while True:
            try:
                assert manager.recv(100) == b"WATCHDOG=1"
            except BlockingIOError:
                return count
            count += 1

    with notify_socket(tmp_path / "notify") as manager:
        environ = {
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "WATCHDOG_USEC": "20000",
            "WATCHDOG_PID": str(os.getpid()),
        }
        watchdog = asyncio.create_task(ServiceManager(environ).run_watchdog())
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(3):
                while not signs():
                    await asyncio.sleep(0.005)
        time.sleep(0.1)
        assert not signs()
        watchdog.cancel()
        await ServiceManager({**environ, "WATCHDOG_PID": "1"}).run_watchdog()  # another's: it ends at once
        assert not signs()


async def test_a_manager_that_cannot_be_reached_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("@nobody-listens-here", "/nowhere/at/all", "vsock:2:1234"):
        manager = ServiceManager({"NOTIFY_SOCKET": name})
        caplog.clear()
        manager.ready("a")
        manager.stopping(1.0)
        assert [record.getMessage() for record in caplog.records] == ["the service manager cannot be reached"]
    ServiceManager({}).ready("a")
