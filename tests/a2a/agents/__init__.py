"""How does a test get an agent whose protocol nobody here wrote? As a process, on either line of the official SDK.

    with agent("sdk1", "--compat") as one:      # or "sdk03"
        one.rpc, one.rest, one.grpc, one.card, one.seen

sdk1     a2a-sdk 1.3: A2A 1.0, with `--compat` 0.3 too; runs under the interpreter of the tests
sdk03    a2a-sdk 0.3: A2A 0.3; runs under `.venv-a2a03`, or the interpreter that SIDECAR_A2A03_PYTHON names

Both act as the first word of a message says: see `plays.py`.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Literal

from tests.flow.forks import A2A03 as OLD_PYTHON, python

ROOT = Path(__file__).parents[3]
NO_OLD = "no interpreter with a2a-sdk 0.3: make builds .venv-a2a03, or set SIDECAR_A2A03_PYTHON"
PATIENCE_S = 10.0

Line = Literal["sdk1", "sdk03"]
PYTHONS: Mapping[Line, str] = {"sdk1": sys.executable, "sdk03": str(OLD_PYTHON)}


@dataclass(frozen=True)
class Agent:
    """One that runs: its base URL, and where its gRPC is (`host:port`)."""

    url: str
    grpc: str

    @property
    def rpc(self) -> str:
        """JSON-RPC. The slash belongs to it: the official TCK posts to nothing else."""
        return f"{self.url}/"

    @property
    def rest(self) -> str:
        return f"{self.url}/rest"

    @property
    def card(self) -> str:
        return f"{self.url}/.well-known/agent-card.json"

    @property
    def seen(self) -> str:
        """Everything that reached it, in order (`serving.Watched`), as JSON; `?since=N` leaves out the first N."""
        return f"{self.url}/seen"


@contextmanager
def agent(line: Line, *flags: str) -> Iterator[Agent]:
    """An agent as a process of its own, until the block ends."""
    command = (python(PYTHONS[line]), "-m", f"tests.a2a.agents.{line}", *flags)
    with TemporaryFile() as complaints, _process(command, complaints) as process:
        said = process.stdout.readline() if process.stdout else b""
        if not said:
            complaints.seek(0)
            raise AssertionError(f"the agent did not start:\n{complaints.read().decode()}")
        ports: dict[str, Any] = json.loads(said)
        yield Agent(f"http://127.0.0.1:{ports['http']}", f"127.0.0.1:{ports['grpc']}")


@contextmanager
def _process(command: Sequence[str], complaints: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    # The 0.3 line prints a trace of whatever callers do wrong.
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints)
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait(PATIENCE_S)
        process.stdout.close()
