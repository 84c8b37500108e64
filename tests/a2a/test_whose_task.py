"""May anybody but its owner do anything with a task, or learn that it is there? (BL-071)

The whole matrix: each operation that names a task, in every way to say it, by everybody who is not the owner, in every
state that a task can be in. What is foreign is held against what does not exist.
"""

from pathlib import Path
from typing import Any

import pytest

from sidecar.protocols.a2a.messages import STATES as SAID
from tests.a2a.test_one_operation import OF_A_TASK, PARAMS, PUSH, without_id
from tests.a2a.world import (
    ALICE,
    BOB,
    HELLO,
    IDP,
    PLANNER,
    RULES,
    SPOKEN,
    ScriptedAgent,
    agent_world,
    ask,
    saying,
    task,
)
from tests.flow.idp import bearer

STATES = sorted(set(SAID) - {"TASK_STATE_UNSPECIFIED"})
NAMESAKE = bearer(IDP.api_key("user:corp/alice"))
STRANGERS = {
    "of the same tenant": BOB,
    "an agent": PLANNER,
    "of another tenant, with the same name": NAMESAKE,
    "anonymous": {},
}
ALL = RULES["user_to_nhi"].splitlines()[0].partition(", nhi:")[2]
OPEN = {
    "user_to_nhi": RULES["user_to_nhi"] + f"p, user:corp/alice, nhi:{ALL}\np, anonymous, nhi:{ALL}\n",
    "nhi_to_nhi": RULES["nhi_to_nhi"],
}


def agent_in(state: str) -> ScriptedAgent:
    """An agent whose tasks are all in this state."""
    now = task(state=state)
    return saying(SendMessage={"task": now}, GetTask=now, CancelTask=now, SubscribeToTask=[{"task": now}])


CODES: dict[Any, Any] = {way: -32001 if way[1] == "jsonrpc" else "NOT_FOUND" for way in SPOKEN}
CODES |= {("1.0", "http_json"): 404, ("0.3", "http_json"): -32001}


def of(action: str, name: str) -> dict[str, Any]:
    """The parameters, about this task."""
    return {**PARAMS[action], "taskId" if "taskId" in PARAMS[action] else "id": name}


@pytest.mark.parametrize("state", STATES)
async def test_to_everybody_but_its_owner_a_task_is_missing_in_every_state(state: str, tmp_path: Path) -> None:
    """BL-055, BL-071. The answer comes of itself: the agent is not asked, whose time would tell."""
    async with agent_world(tmp_path, agent_in(state), rules=OPEN, upstream="anonymous: true") as world:
        for action, params in (("message/send", {"message": HELLO}), ("push/set", PUSH)):
            assert (await ask(world, "1.0", "jsonrpc", action, params)).error is None
        reached = len(world.agent.seen)
        for action in OF_A_TASK:
            for version, binding in SPOKEN:
                for name, who in STRANGERS.items():
                    asked = (action, version, binding, name)
                    foreign = await ask(world, version, binding, action, of(action, "t1"), who)
                    missing = await ask(world, version, binding, action, of(action, "t9"), who)
                    assert foreign.reason == "task-unknown" and foreign.error, (asked, foreign)
                    assert foreign.error["code"] == CODES[version, binding], asked
                    assert (foreign.status, without_id(foreign)) == (missing.status, without_id(missing)), asked
        assert len(world.agent.seen) == reached, "the agent heard of none of it"
        for action in OF_A_TASK:
            for version, binding in SPOKEN:
                assert (await ask(world, version, binding, action, of(action, "t1"), ALICE)).error is None


@pytest.mark.parametrize(("version", "binding"), SPOKEN)
async def test_the_record_of_a_call_names_its_task(version: Any, binding: Any, tmp_path: Path) -> None:
    """What a caller only says, and is not theirs, stands nowhere."""
    async with agent_world(tmp_path, agent_in("TASK_STATE_WORKING")) as world:
        for action, params in (
            ("message/send", {"message": HELLO}),
            ("tasks/get", of("tasks/get", "t1")),
            ("message/stream", {"message": {**HELLO, "taskId": "t1"}}),
            ("tasks/cancel", of("tasks/cancel", "t9")),
        ):
            await ask(world, version, binding, action, params)
        told = [(record["event"], record["action"], record["task_id"]) for record in world.records()[1:]]
        assert told == [
            ("decision", "message/send", None),  # nobody knows it yet
            ("outcome", "message/send", "t1"),
            ("decision", "tasks/get", "t1"),
            ("outcome", "tasks/get", "t1"),
            ("decision", "message/stream", "t1"),
            ("outcome", "message/stream", "t1"),
            ("refusal", "tasks/cancel", None),
        ]
