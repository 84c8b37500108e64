"""How does a test run the real thing: `sidecar serve`, a process of its own?

Its log goes to a file beside its folder, its data listener to a free port that it announces, and what an operator
would ask goes through the control socket.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.flow.forks import Fork, sidecar, started
from tests.flow.world import PATIENCE_S, PATIENT, write_folder

RECOMPUTE = Path(__file__).parent.parent / "peers" / "recompute_audit.py"


@dataclass
class Served:
    """A folder and the process that serves it. `url` is the data listener's."""

    folder: Path
    process: asyncio.subprocess.Process | Fork | None = None
    url: str = ""
    starts: int = 0
    module: str = "sidecar"
    is_fresh: bool = False  # whether an interpreter of its own starts it
    _read_bytes: int = 0
    _controls: list[str] = field(default_factory=list)

    async def start(self) -> None:
        """Start it, and wait until it says that it serves."""
        self.starts += 1
        log = self.folder / f"stderr-{self.starts}.log"
        with log.open("wb") as stderr:
            words = ("-m", self.module, "serve", "-c", str(self.folder / "sidecar.yaml"))
            environ = {**os.environ, **PATIENT}
            if self.is_fresh or not started:
                self.process = await asyncio.create_subprocess_exec(sys.executable, *words, stderr=stderr, env=environ)
            else:
                self.process = await Fork.start(*words, environ=environ, stderr=stderr.fileno())
        async with asyncio.timeout(PATIENCE_S):
            while not (found := re.search(r"sidecar serves .* at (http://[^/\s]+)/mcp", log.read_text())):
                assert self.process.returncode is None, log.read_text()
                await asyncio.sleep(0.02)
        self.url = found[1]

    def signal(self, number: int) -> None:
        """ProcessLookupError where it has ended. Not by `send_signal`, which reaps a child that has just ended: whoever
        awaits its exit code would hear 255."""
        assert self.process is not None
        os.kill(self.process.pid, number)

    async def ended(self, within_s: float = 30.0) -> int:
        """Its exit code."""
        assert self.process is not None
        async with asyncio.timeout(within_s):
            return await self.process.wait()

    async def kill(self) -> None:
        """As a power cut would."""
        self.signal(signal.SIGKILL)
        assert await self.ended() == -signal.SIGKILL

    async def ask(self, path: str) -> tuple[int, str]:
        """What the control socket answers."""
        connector = aiohttp.UnixConnector(str(self.folder / "data" / "control.sock"))
        async with aiohttp.ClientSession(connector=connector) as http, http.get(f"http://localhost{path}") as response:
            return response.status, await response.text()

    @property
    def audit_path(self) -> Path:
        return self.folder / "data" / "audit" / "audit.jsonl"

    @property
    def key_path(self) -> Path:
        return self.folder / "data" / "keys" / "audit.key"

    def records(self) -> list[dict[str, Any]]:
        whole, _, _ = self.audit_path.read_bytes().rpartition(b"\n")  # a line may be just being written
        return [json.loads(line) for line in whole.splitlines()]

    def controls(self) -> list[str]:
        """What was recorded of the process itself. Reads only what is new, so that it can be asked again and again."""
        with self.audit_path.open("rb") as file:
            file.seek(self._read_bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read_bytes += len(line)
                if b'"event":"control"' in line:
                    self._controls.append(json.loads(line)["control"]["what"])
        return self._controls

    def log(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("stderr-*.log")))

    def verify(self) -> tuple[int, str]:
        """What `sidecar audit verify` says."""
        command = [sidecar(), "audit", "verify", str(self.audit_path), "--key", str(self.key_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        return done.returncode, done.stdout + done.stderr


def recompute(*arguments: str, stdin: str = "") -> list[str]:
    """What the second program comes to."""
    command = [sys.executable, str(RECOMPUTE), *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=True).stdout.split()


@asynccontextmanager
async def served(
    upstream_url: str,
    *,
    rules: str,
    settings: str = "",
    files: Mapping[str, str] | None = None,
    upstream_settings: str = "",
    mcp_settings: str = "",
    module: str = "sidecar",
    program: str = "",
    is_fresh: bool = False,
) -> AsyncIterator[Served]:
    """A running process before one upstream called `github`; it is gone at the end, whatever happened."""
    with tempfile.TemporaryDirectory(prefix="sidecar") as name:  # a socket's path holds 107 bytes: not tmp_path
        folder = Path(name)
        write_folder(folder, upstream_url, rules, files, settings, upstream_settings, "", mcp_settings, program)
        running = Served(folder, module=module, is_fresh=is_fresh)
        await running.start()
        try:
            yield running
        finally:
            if running.process is not None and running.process.returncode is None:
                os.kill(running.process.pid, signal.SIGKILL)
                await running.process.wait()
