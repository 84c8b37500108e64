"""Do the clients of the official A2A SDK, both lines, have every kind of program do its work?

Each way to tell a program what to do, each way to hear it, each mode. What `program.py` does beside is what
`test_a2a_clients.py` has agents of the SDK do.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sidecar.app.application import Application
from tests.a2a.agents import NO_OLD, OLD_PYTHON
from tests.a2a.world import EVERYTHING, PLANNER, write
from tests.flow.world import started
from tests.peers.a2a_client import play, play_briefly
from tests.peers.test_a2a_clients import OF_03, OF_OLD_CLIENT, free_port, old_client, seen_by_new, seen_by_old

pytestmark = pytest.mark.asyncio(loop_scope="module")
old = pytest.mark.skipif(not OLD_PYTHON.exists(), reason=NO_OLD)

PYTHON = os.path.realpath(sys.executable)
PROGRAM = Path(__file__).parents[1] / "a2a" / "agents" / "program.py"
TALKS: dict[str, Any] = {"mode": "interactive"}
ANEW = {**TALKS, "keep_alive": False}
ON_RPC: dict[str, Any] = {"executable": PYTHON, "args": ["-I", "-S", str(PROGRAM)], "agent_type": "json-rpc"}
RPC_FILE: dict[str, Any] = {
    "executable": PYTHON,
    "args": ["-I", "-S", str(PROGRAM), "{output_file}"],
    "input_pattern": "json-rpc",
    "output_pattern": "file",
}
COPIES: dict[str, Any] = {"executable": "cp", "args": ["{input_file}", "{output_file}"], "agent_type": "file-file"}
PRINTS: dict[str, Any] = {"executable": "printf", "args": ["%s", "{prompt}"], "agent_type": "args-stdout"}


def shell(script: str, *args: str, **more: str) -> dict[str, Any]:
    return {"executable": "sh", "args": ["-c", script, "sh", *args], **more}


# By input and output, and `talk` for conversations. Each says what it is told.
PROGRAMS: Mapping[str, dict[str, Any]] = {
    "stdin-stdout": {"executable": "cat"},
    "stdin-file": shell('cat > "$1"', "{output_file}", output_pattern="file"),
    "file-stdout": {"executable": "cat", "args": ["{input_file}"], "input_pattern": "file"},
    "file-file": COPIES,
    "args-stdout": PRINTS,
    "args-file": shell('printf %s "$1" > "$2"', "{prompt}", "{output_file}", agent_type="args-file"),
    "rpc-rpc": ON_RPC,
    "rpc-file": RPC_FILE,
    "talk-stdin-stdout": {"executable": "cat", **TALKS},
    "talk-stdin-file": {
        **shell('while IFS= read -r line; do printf %s "$line" > "$1"; echo; done', "{output_file}"),
        **TALKS,
        "output_pattern": "file",
    },
    "talk-file-file": {**COPIES, **ANEW},
    "talk-args-stdout": {**PRINTS, **ANEW},
    "talk-rpc-file": {**RPC_FILE, **TALKS},
    "talk-rpc-rpc": {**ON_RPC, **TALKS},
}
SAID = "hello, world"
ECHOED = {"send": f"completed: {SAID}", "stream": f"completed: {SAID}"}
FULL = "talk-rpc-rpc"
OF_PROGRAM: Mapping[str, Any] = {
    "send": "task completed",
    "conversation": ["task input_required: name?", "task completed"],
    "cancel": "canceled: its caller cancelled it",
    "card": False,
}


def without_pushes(no: str) -> dict[str, str]:
    """How a client hears that there are none."""
    return dict.fromkeys(("push set", "push get", "push list", "push delete", "push gone"), no)


# Of 0.3 over HTTP+JSON it hears a status alone.
NO_PUSHES: Mapping[tuple[str, str], dict[str, str]] = {
    ("JSONRPC", "1.0"): without_pushes("PushNotificationNotSupportedError"),
    ("HTTP+JSON", "0.3"): without_pushes("A2AClientError"),
    ("GRPC", "1.0"): without_pushes("PushNotificationNotSupportedError"),
}


def in_order(seen: Mapping[str, Any]) -> dict[str, Any]:
    """What was seen; whether a program had begun before its stream's first event is chance."""
    stream = seen["stream"]
    return {**seen, "stream": ["task submitted", "working", *stream[1:]] if stream[:1] == ["task working"] else stream}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sidecar(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Application]:
    """nhi:planner may everything."""
    folder = tmp_path_factory.mktemp("programs")
    agents = {
        name: {**program, "a2a": {"grpc_port": free_port()}} if name == FULL else program
        for name, program in PROGRAMS.items()
    }
    write(
        folder,
        "",
        rules={"nhi_to_nhi": f"p, nhi:planner, nhi:*, {EVERYTHING}, -, -, -, allow\n"},
        behind="agents:\n" + "".join(f"  {name}: {json.dumps(agent)}\n" for name, agent in agents.items()),
    )
    app = await started(folder, {"PATH": os.environ["PATH"], "SIDECAR_SERVER__SHUTDOWN_GRACE_S": "0.1"})
    try:
        yield app
    finally:
        await app.stop()


def url(app: Application, name: str) -> str:
    return f"http://127.0.0.1:{app.listeners[0].port}/agents/{name}"


async def test_a_new_client_is_answered_by_every_kind_of_program(sidecar: Application) -> None:
    say = partial(play_briefly, text=SAID)
    plays = [play(url(sidecar, name), "JSONRPC", "1.0", PLANNER, say) for name in PROGRAMS]
    assert dict(zip(PROGRAMS, await asyncio.gather(*plays), strict=True)) == dict.fromkeys(PROGRAMS, ECHOED)


@old
async def test_an_old_client_is_answered_by_every_kind_of_program(sidecar: Application) -> None:
    urls = ",".join(url(sidecar, name) for name in PROGRAMS)
    seen = await old_client(urls, "JSONRPC", PLANNER, SAID)
    assert dict(zip(PROGRAMS, seen, strict=True)) == dict.fromkeys(PROGRAMS, ECHOED)


@pytest.mark.parametrize(("binding", "version"), NO_PUSHES)
async def test_a_new_client_has_every_operation_of_a_program(sidecar: Application, binding: str, version: str) -> None:
    seen = await play(url(sidecar, FULL), binding, version, PLANNER)
    of_version = OF_03[binding] if version == "0.3" else {}
    assert in_order(seen) == seen_by_new(OF_PROGRAM, NO_PUSHES[binding, version], of_version)


@old
async def test_an_old_client_has_every_operation_of_a_program(sidecar: Application) -> None:
    seen = await old_client(url(sidecar, FULL), "GRPC", PLANNER)
    assert in_order(seen) == seen_by_old(OF_PROGRAM, without_pushes("FAILED_PRECONDITION"), OF_OLD_CLIENT["GRPC"])
