"""Do the clients of the official A2A SDK, both lines, see the same in every binding?

The 0.3 line cannot live in one environment with 1.x: `a2a03_client.py` runs under an interpreter of its own, and so
does the agent of that line.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.a2a.agents import NO_OLD, OLD_PYTHON, Agent, agent
from tests.peers.a2a_client import HOOK, play

OLD_CLIENT = Path(__file__).with_name("a2a03_client.py")
BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")
old = pytest.mark.skipif(not OLD_PYTHON.exists(), reason=NO_OLD)

SEEN: Mapping[str, Any] = {
    "send": "task completed: hällo",
    "message": "message hi",
    "stream": ["task submitted", "working", "artifact one ", "artifact two ", "artifact three.", "completed"],
    "conversation": ["task input_required: name?", "task completed: Bob"],
    "get": "working: on it",
    "list": [True],
    "push set": f"hook {HOOK}",
    "push get": f"hook {HOOK}",
    "push list": ["hook"],
    "push delete": None,
    "push gone": [],
    "cancel": "canceled",
    "cancel again": "TaskNotCancelableError",
    "resubscribe": ["canceled", "working:"],
    "unknown": "TaskNotFoundError",
    "card": True,
}
# 1.x as a caller of 0.3 does not ask for these.
_NOT_ASKED = "NotImplementedError"
_BY_STATUS = {"cancel again": "A2AClientError", "unknown": "MethodNotFoundError"}
OF_03: Mapping[str, Mapping[str, Any]] = {
    "JSONRPC": {"list": _NOT_ASKED},
    "HTTP+JSON": {
        **dict.fromkeys(("list", "push list", "push delete", "push gone"), _NOT_ASKED),
        **_BY_STATUS,
    },
    "GRPC": {"list": _NOT_ASKED},
}
# The 0.3 line's own client has no such calls at all, and names errors as the binding does.
_NO_CALL = ("list", "push list", "push delete", "push gone")
OF_OLD_CLIENT: Mapping[str, Mapping[str, Any]] = {
    "JSONRPC": {"cancel again": -32002, "unknown": -32001},
    "HTTP+JSON": {"cancel again": 400, "unknown": 404},
    "GRPC": {"cancel again": "FAILED_PRECONDITION", "unknown": "NOT_FOUND"},
}
# An agent of the 0.3 line ends other streams of a cancelled task without a word; over gRPC it lacks these calls, and
# has the public card alone. It answers with statuses of its own, too.
_UNIMPLEMENTED = dict.fromkeys(("push list", "push delete", "push gone"), "A2AClientError")
OF_OLD_AGENT: Mapping[str, Mapping[str, Any]] = {
    "JSONRPC": {"resubscribe": ["working:"]},
    "HTTP+JSON": {"resubscribe": ["working:"]},
    "GRPC": {"resubscribe": ["working:"], "card": False, **_UNIMPLEMENTED},
}
BETWEEN_OLD: Mapping[str, Mapping[str, Any]] = {
    "JSONRPC": {},
    "HTTP+JSON": {"cancel again": 409},
    "GRPC": {"cancel again": "UNIMPLEMENTED"},
}


def seen_by_new(*differences: Mapping[str, Any]) -> dict[str, Any]:
    """What a client of 1.x comes to see."""
    expected = dict(SEEN)
    for one in differences:
        expected |= one
    return expected


def seen_by_old(*differences: Mapping[str, Any]) -> dict[str, Any]:
    """What a client of 0.3 comes to see."""
    expected = seen_by_new(*differences)
    return {name: expected[name] for name in expected if name not in _NO_CALL}


async def old_client(url: str, binding: str, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What a client of the 0.3 line sees under this URL."""
    process = await asyncio.create_subprocess_exec(
        OLD_PYTHON, OLD_CLIENT, url, binding, json.dumps(headers or {}), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    seen: dict[str, Any] = json.loads(said)
    return seen


@pytest.fixture(scope="module")
def new() -> Iterator[Agent]:
    """An agent of 1.x that speaks both versions."""
    with agent("sdk1", "--compat") as one:
        yield one


@pytest.fixture(scope="module")
def aged() -> Iterator[Agent]:
    """An agent of the 0.3 line."""
    with agent("sdk03") as one:
        yield one


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_new_client_and_a_new_agent_speak_1_0(new: Agent, binding: str) -> None:
    assert await play(new.url, binding, "1.0") == SEEN


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_new_client_and_a_new_agent_speak_0_3(new: Agent, binding: str) -> None:
    assert await play(new.url, binding, "0.3") == seen_by_new(OF_03[binding])


@old
@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_new_client_and_an_old_agent_speak_0_3(aged: Agent, binding: str) -> None:
    assert await play(aged.url, binding, "0.3") == seen_by_new(OF_OLD_AGENT[binding], OF_03[binding])


@old
@pytest.mark.parametrize("binding", BINDINGS)
async def test_an_old_client_and_a_new_agent_speak_0_3(new: Agent, binding: str) -> None:
    assert await old_client(new.url, binding) == seen_by_old(OF_OLD_CLIENT[binding])


@old
@pytest.mark.parametrize("binding", BINDINGS)
async def test_an_old_client_and_an_old_agent_speak_0_3(aged: Agent, binding: str) -> None:
    expected = seen_by_old(OF_OLD_AGENT[binding], OF_OLD_CLIENT[binding], BETWEEN_OLD[binding])
    assert await old_client(aged.url, binding) == expected
