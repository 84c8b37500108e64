"""Where do servers that nobody here wrote meet clients of the official SDK, with us in between?

Stand    a whole sidecar before several such servers, and what a test asks of it
"""

import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidecar.app.application import Application
from tests.flow.world import started, write_folder
from tests.servers import node_bin, npm_server, python

LOOPBACK = Path(__file__).parent / "loopback.cjs"
ENDS_WITHIN_S = 10.0
WORDS_MEANT = 40  # lines that a server may say before it names its port


def node(name: str, *arguments: str, **env: str) -> dict[str, Any]:
    """The settings of a server of npm, as a program."""
    return {"command": str(node_bin() / "node"), "args": [str(npm_server(name)), *arguments], "env": env}


def pypi(name: str, *arguments: str, **env: str) -> dict[str, Any]:
    """The settings of a server of PyPI, as a program."""
    return {"command": str(python()), "args": ["-m", name, *arguments], "env": env}


@contextmanager
def everything_over(transport: str) -> Iterator[str]:
    """`server-everything` over HTTP, on loopback, until the block ends; its base URL."""
    command = (str(node_bin() / "node"), "--require", str(LOOPBACK), str(npm_server("server-everything")), transport)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdin is not None and process.stdout is not None
    try:
        words = (process.stdout.readline().decode() for _ in range(WORDS_MEANT))
        yield f"http://127.0.0.1:{next(int(line.split()[1]) for line in words if line.startswith('port '))}"
    finally:
        process.stdin.close()
        try:
            process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


@dataclass
class Stand:
    """A running sidecar. `doors` are the base URLs of its callers, by principal."""

    app: Application
    doors: Mapping[str, str]

    def at(self, server: str, principal: str = "nhi:planner") -> str:
        """A server's address, for one caller."""
        return f"{self.doors[principal]}/mcp/{server}"

    def ends(self) -> list[dict[str, Any]]:
        """The terminal records of calls so far, in order."""
        records = [json.loads(line) for line in self.app.settings.audit_path.read_bytes().splitlines()]
        return [one for one in records if one["event"] in ("outcome", "refusal") and one["action"] == "tools/call"]


@asynccontextmanager
async def stand(
    folder: Path, servers: Mapping[str, Mapping[str, Any]], rules: str, *principals: str
) -> AsyncIterator[Stand]:
    """A sidecar with these rules before the servers (name → `mcp` section), with a door for each principal."""
    principals = principals or ("nhi:planner",)
    write_folder(folder, "http://127.0.0.1:9/unused", rules)
    settings = {
        "version": 1,
        "server": {"listen": "127.0.0.1:0", "shutdown_grace_s": "1s"},
        "admin": {"listen": "127.0.0.1:0"},
        "local": [{"listen": "127.0.0.1:0", "principal": principal} for principal in principals],
        "upstreams": {name: {"mcp": dict(mcp), "probe": {"enabled": False}} for name, mcp in servers.items()},
    }
    (folder / "sidecar.yaml").write_text(json.dumps(settings))
    app = await started(folder)
    try:
        ports = [listener.port for listener in app.listeners][1 : 1 + len(principals)]
        doors = {who: f"http://127.0.0.1:{port}" for who, port in zip(principals, ports, strict=True)}
        yield Stand(app, doors)
    finally:
        await app.stop()


def pids(program: Mapping[str, Any]) -> list[int]:
    """The processes that we, or what we started, run of this program."""
    parents = dict(_parents())
    wanted = [program["command"], *program["args"]]
    return [pid for pid in parents if _is_ours(pid, parents) and _command(pid) == wanted]


def _parents() -> Iterator[tuple[int, int]]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            yield int(folder.name), int((folder / "stat").read_text().rpartition(")")[2].split()[1])


def _is_ours(pid: int, parents: Mapping[int, int]) -> bool:
    while pid in parents and pid != os.getpid():
        pid = parents[pid]
    return pid == os.getpid()


def _command(pid: int) -> Sequence[str]:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []
