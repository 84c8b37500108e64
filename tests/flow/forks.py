"""Starts `sidecar` and `python -m sidecar...` without importing it again: a process that has imported it forks.

Tests start many commands, and importing is most of what each of them does. `bin_in` makes a folder for PATH: its
`sidecar` and `python` hand their arguments, folder, environment and standard streams to a process of this module,
which forks, and pass on signals and the exit code. What runs is the real command in a process of its own. One process
forks for all workers of a run; it imports when it is first asked. `Fork` is such a command as a child of the test.

What a test says of the start itself starts an interpreter of its own: see `test_start.py`, `test_service_manager.py`.
"""

import ast
import asyncio
import gc
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]
MCP1 = Path(os.environ.get("SIDECAR_MCP1_PYTHON") or ROOT / ".venv-mcp1" / "bin" / "python")
A2A03 = Path(os.environ.get("SIDECAR_A2A03_PYTHON") or ROOT / ".venv-a2a03" / "bin" / "python")
# What the commands of each interpreter import.
PRELOADED: Mapping[str, Sequence[str]] = {
    sys.executable: (
        "sidecar.app.application",
        "sidecar.cli",
        "mcp.server.mcpserver",
        "a2a.server.request_handlers",
        "uvicorn",
        "mcp",
        "a2a.client",
    ),
    str(MCP1): ("mcp.server.fastmcp", "mcp.client.sse", "mcp.client.streamable_http", "uvicorn"),
    str(A2A03): ("a2a.client", "grpc.aio"),
}
SOCKET = "forks.sock"
IMPORTS_WITHIN_S = 300.0
OURS = ("sidecar", "tests.", "bench.")  # the modules that `python -m` starts by a fork
CLIENT = """\
#!{python} -SE
import _socket, os, signal, sys
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
if name == "python" and not (words[:1] == ["-m"] and words[1].startswith({ours!r})):
    os.execv({python!r}, [{python!r}, *words])
line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
line.connect({path!r})
order = repr((name, words, os.getcwd(), dict(os.environ))).encode()
fds = b"".join(fd.to_bytes(4, sys.byteorder) for fd in range(3))
line.sendmsg([len(order).to_bytes(4, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)])
while order:
    order = order[line.send(order):]
pid = int.from_bytes(line.recv(4), "big")
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, _: os.kill(pid, number))
line.settimeout(0.1)  # a signal that comes just before the system call is handled after it
while True:
    try:
        code = int.from_bytes(line.recv(4) or b"\\0\\0\\0\\1", "big", signed=True)
        break
    except TimeoutError:
        pass
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


started: dict[str, str] = {}
"""The folder for PATH of each interpreter, in a run of the tests."""


def python(interpreter: str | Path = sys.executable) -> str:
    """The interpreter, which forks where it can."""
    return f"{started[str(interpreter)]}/python" if str(interpreter) in started else str(interpreter)


def sidecar() -> str:
    """The program, likewise."""
    return f"{started.get(sys.executable, Path(sys.executable).parent)}/sidecar"


async def imported(interpreter: str = sys.executable) -> None:
    """Waits until the process that forks has imported its modules, which on a busy machine takes longer than a test
    waits for an answer."""
    if interpreter not in started:
        return
    async with asyncio.timeout(IMPORTS_WITHIN_S):
        reader, writer = await asyncio.open_unix_connection(f"{Path(started[interpreter]).parent}/{SOCKET}")
        writer.write_eof()
        assert await reader.read() == b"", "a line without an order is closed"
        writer.close()


@contextmanager
def bin_in(folder: Path, interpreter: str = sys.executable) -> Iterator[Path]:
    """A folder for PATH, and the process that forks."""
    path = folder / SOCKET
    for name in ("sidecar", "python"):
        client = folder / "bin" / name
        client.parent.mkdir(parents=True, exist_ok=True)
        client.write_text(CLIENT.format(python=interpreter, path=str(path), ours=OURS))
        client.chmod(0o755)
    words = [interpreter, "-m", "tests.flow.forks", str(path), *PRELOADED[interpreter]]
    # It ends when its standard input does.
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        yield folder / "bin"


def serve(path: str, *modules: str) -> None:
    """Fork for each connection, until standard input ends."""
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as waiting:
        listener.bind(path)
        listener.listen(16)
        waiting.register(0, selectors.EVENT_READ, "stop")
        waiting.register(listener, selectors.EVENT_READ, "new")
        print("ready", flush=True)
        if any(key.data == "new" for key, _ in waiting.select()):
            preload(modules)
        while True:
            for key, _ in waiting.select():
                match key.data:
                    case "stop":
                        return
                    case "new":
                        begin(listener.accept()[0], waiting)
                    case pid, line, pidfd if line.fileno() >= 0:  # its other event may be in this batch, too
                        end(pid, line, pidfd, waiting)


def preload(modules: Iterable[str]) -> None:
    for module in modules:
        import_module(module)
    if cli := sys.modules.get("sidecar.cli"):
        load(cli.main, import_module("click").Context(cli.main))
    gc.collect()
    gc.freeze()  # a child's collector need not touch, and so copy, what is there already


def load(group: Any, context: Any) -> None:
    """Its commands, and theirs."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            load(command, context)


def begin(line: socket.socket, waiting: selectors.BaseSelector) -> None:
    size, fds, _, _ = socket.recv_fds(line, 4, 3)
    order = line.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
    if not order or len(order) < int.from_bytes(size, "big"):  # whoever asked is gone
        for fd in [*fds, line.detach()]:
            os.close(fd)
        return
    pid = os.fork()
    if not pid:
        run(fds, *ast.literal_eval(order.decode()))
    for fd in fds:
        os.close(fd)
    with suppress(OSError):  # likewise; `end` follows
        line.sendall(pid.to_bytes(4, "big"))
    pidfd = os.pidfd_open(pid)
    for one in (line, pidfd):
        waiting.register(one, selectors.EVENT_READ, (pid, line, pidfd))


def end(pid: int, line: socket.socket, pidfd: int, waiting: selectors.BaseSelector) -> None:
    """The child has ended, or its client has, which then takes it along."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    with line:
        with suppress(OSError):
            line.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
        waiting.unregister(line)
    waiting.unregister(pidfd)
    os.close(pidfd)


def run(fds: list[int], name: str, words: list[str], folder: str, environ: dict[str, str]) -> None:
    """The child: becomes the command, and never returns."""
    code: Any = 1
    try:
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
        os.closerange(3, 256)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environ)
        sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
        sys.orig_argv = [sys.executable, *(("-m", name) if name == "sidecar" else ()), *words]  # for its workers
        if name == "sidecar":
            sys.argv = [name, *words]
            if words[:1] == ["demo"]:  # its server and its agent start at once, too
                sys.executable = f"{environ['PATH'].partition(':')[0]}/python"
            from sidecar.cli import main

            main(prog_name=name)
        else:
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            sys.stdout.flush()
        except OSError:
            pass
        os._exit(code)


class Fork:
    """A command that a test started, as `asyncio.subprocess.Process` has one."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.pid, self._writer = pid, writer
        self.returncode: int | None = None
        self._end = asyncio.create_task(self._ended(reader))

    @classmethod
    async def start(cls, *words: str, environ: Mapping[str, str], stderr: int) -> Self:
        """`python WORDS...`, whose other standard streams are the test's."""
        line = socket.socket(socket.AF_UNIX)
        line.connect(f"{Path(started[sys.executable]).parent}/{SOCKET}")
        order = repr(("python", [*words], str(Path.cwd()), dict(environ))).encode()
        socket.send_fds(line, [len(order).to_bytes(4, "big")], [0, 1, stderr])
        line.sendall(order)
        reader, writer = await asyncio.open_unix_connection(sock=line)
        return cls(int.from_bytes(await reader.readexactly(4), "big"), reader, writer)

    async def wait(self) -> int:
        return await asyncio.shield(self._end)

    async def _ended(self, reader: asyncio.StreamReader) -> int:
        said = await reader.readexactly(4)
        self._writer.close()
        self.returncode = int.from_bytes(said, "big", signed=True)
        return self.returncode


if __name__ == "__main__":
    serve(*sys.argv[1:])
