"""Is a call the same call, whatever version and binding it comes in? (BL-009, BL-071)

Every operation, in every way to say it: one decision, one limit, one hash of the arguments, one message to the agent.
"""

from pathlib import Path
from typing import Any

import pytest

from sidecar.protocols.a2a.operations import OPERATIONS
from tests.a2a.world import (
    ALICE,
    BOB,
    CARD_10,
    HELLO,
    HOOK,
    PLANNER,
    RULES,
    SPOKEN,
    AgentWorld,
    Answered,
    No,
    ScriptedAgent,
    agent_world,
    ask,
    saying,
    task,
)
from tests.tables import tables

PUSH = {"taskId": "t1", "id": "p1", "url": HOOK, "token": "secret"}
PARAMS: dict[str, dict[str, Any]] = tables("a2a/one_operation")["params"]


OURS = ("url", "token", "authentication")  # of a push configuration: another secret of ours each time


def test_every_operation_is_tried() -> None:
    assert PARAMS.keys() == {one.action for one in OPERATIONS}


async def begun(world: AgentWorld, who: Any = ALICE) -> None:
    """The caller has a task."""
    answered = await ask(world, "1.0", "jsonrpc", "message/send", {"message": HELLO}, who)
    assert answered.error is None, answered


@pytest.mark.parametrize("action", ["message/send", "message/stream"])
async def test_what_failed_at_the_agent_is_delivered_and_told_from_a_success(action: str, tmp_path: Path) -> None:
    states = enumerate(("COMPLETED", "FAILED", "REJECTED"))
    said = [{"task": task(f"t{number}", f"c{number}", f"TASK_STATE_{state}")} for number, state in states]
    agent = ScriptedAgent()
    async with agent_world(tmp_path, agent) as world:
        for failures, one in enumerate([*said, No({"code": -32603, "message": "no"})]):
            agent.script = {"SendMessage": lambda *_, one=one: one, "SendStreamingMessage": lambda *_, one=one: [one]}
            await ask(world, "1.0", "jsonrpc", action, {"message": HELLO})
            end = world.ends()[-1]
            assert (end["status"], end["tool_error"]) == ("success", failures > 0)
            assert world.app.status()["upstreams"]["researcher"]["tool_errors"] == failures


def ways(action: str) -> list[tuple[Any, Any]]:
    """How it can be said: gRPC of 0.3 has no list."""
    return [way for way in SPOKEN if not (action == "tasks/list" and way == ("0.3", "grpc"))]


@pytest.mark.parametrize("action", list(PARAMS))
async def test_a_call_is_the_same_however_it_is_said(action: str, tmp_path: Path) -> None:
    limited = {kind: text.replace("-, -, -, allow", "-, 1000, -, allow") for kind, text in RULES.items()}
    able = {**CARD_10, "capabilities": {**CARD_10["capabilities"], "extendedAgentCard": True}}
    async with agent_world(tmp_path, ScriptedAgent(card=able), rules=limited) as world:
        await begun(world)
        if action in ("push/get", "push/list", "push/delete"):
            assert (await ask(world, "1.0", "jsonrpc", "push/set", PUSH)).error is None
        before = len(world.agent.seen)
        for version, binding in ways(action):
            answered = await ask(world, version, binding, action, PARAMS[action])
            assert answered.error is None, (version, binding, answered)
        decisions = world.records("decision")[-len(ways(action)) :]
        for record in decisions:
            for name in ("object", "method", "args_hash", "chain", "links"):
                assert record[name] == decisions[0][name], name
            assert [limit["name"] for limit in record["limits"]] == [limit["name"] for limit in decisions[0]["limits"]]
            assert record["args_hash"] and record["action"] == action
        sent = [message for _, message in world.agent.seen[before:]]
        assert len({message["method"] for message in sent}) == 1
        told = [{name: value for name, value in message["params"].items() if name not in OURS} for message in sent]
        assert all(params == told[0] for params in told)
        assert [record["protocol_version"] for record in decisions] == [version for version, _ in ways(action)]


@pytest.mark.parametrize("action", PARAMS)
async def test_what_no_rule_allows_reaches_nobody(action: str, tmp_path: Path) -> None:
    others = "|".join(one for one in PARAMS if one != action)
    rules = {"user_to_nhi": f"p, user:alice, nhi:researcher, {others}, -, -, -, allow\n"}

    async with agent_world(tmp_path, rules=rules) as world:
        for version, binding in ways(action):
            answered = await ask(world, version, binding, action, PARAMS[action])
            assert (answered.status, answered.reason) == (403, "no-matching-rule"), (version, binding)
        assert world.agent.seen == []
        assert [record["reason"] for record in world.ends()] == ["no-matching-rule"] * len(ways(action))


# --- whose task is it -------------------------------------------------------------------------------------------------

OF_A_TASK = [action for action in PARAMS if action.startswith(("tasks/", "push/")) and action != "tasks/list"]


def without_id(answered: Answered) -> bytes:
    """What was said, without what is another each time."""
    raw = answered.raw
    for record_id in [part for part in raw.split(b'"') if len(part) == 36 and part.count(b"-") == 4]:
        raw = raw.replace(record_id, b"")
    return raw


async def test_nobody_speaks_in_anothers_task(tmp_path: Path) -> None:
    async with agent_world(tmp_path) as world:
        await begun(world)
        for named in ({"taskId": "t1"}, {"referenceTaskIds": ["t1"]}):
            reached, sent = len(world.agent.seen), {"message": {**HELLO, **named}}
            for action in ("message/send", "message/stream"):
                assert (await ask(world, "1.0", "jsonrpc", action, sent, BOB)).reason == "task-unknown"
            assert len(world.agent.seen) == reached
            assert (await ask(world, "1.0", "jsonrpc", "message/send", sent)).error is None


async def test_a_list_holds_the_callers_own_and_tells_of_no_others(tmp_path: Path) -> None:
    async with agent_world(tmp_path) as world:
        for who in (ALICE, BOB, ALICE, PLANNER):
            await begun(world, who)
        for version, binding in ways("tasks/list"):
            for who, ids in ((ALICE, ["t1", "t3"]), (BOB, ["t2"]), (PLANNER, ["t4"])):
                (page,) = (await ask(world, version, binding, "tasks/list", {}, who)).results
                assert [one["id"] for one in page["tasks"]] == ids
                assert page.get("totalSize") == len(ids)


async def test_a_task_made_by_one_binding_is_there_for_every_other_also_after_a_restart(tmp_path: Path) -> None:
    """BL-009."""
    made = []
    async with agent_world(tmp_path) as world:
        for version, binding in SPOKEN:
            answered = await ask(world, version, binding, "message/send", {"message": HELLO})
            made.append(answered.results[0]["task"]["id"])
        assert len(set(made)) == len(SPOKEN)
    async with agent_world(tmp_path) as world:
        for version, binding in SPOKEN:
            for name in made:
                assert (await ask(world, version, binding, "tasks/get", {"id": name})).results[0]["id"] == name


async def test_a_push_configuration_inside_a_send_is_asked_for_itself(tmp_path: Path) -> None:
    rules = {"user_to_nhi": "p, user:alice, nhi:researcher, use, -, -, -, allow\n"}
    sent = {"message": HELLO, "configuration": {"taskPushNotificationConfig": {"url": HOOK}}}
    async with agent_world(tmp_path, rules=rules) as world:
        for version, binding in SPOKEN:
            answered = await ask(world, version, binding, "message/send", sent)
            assert (answered.status, answered.reason) == (403, "no-matching-rule"), (version, binding)
        assert world.agent.seen == []


async def test_an_agent_that_only_says_something_is_heard_in_every_way(tmp_path: Path) -> None:
    """As the official examples do: neither a task nor a conversation is named, so nobody can own either."""
    said = {"messageId": "a1", "role": "ROLE_AGENT", "parts": [{"text": "Hello World"}]}
    agent = saying(SendMessage={"message": said}, SendStreamingMessage=[{"message": said}])
    async with agent_world(tmp_path, agent) as world:
        for action in ("message/send", "message/stream"):
            for version, binding in SPOKEN:
                answered = await ask(world, version, binding, action, {"message": HELLO})
                assert [one["message"]["parts"] for one in answered.results] == [said["parts"]], answered


async def test_a_request_says_itself_which_run_it_is_of(tmp_path: Path) -> None:
    """In every version and binding; metadata of the request comes before that of its message, and both before headers.
    What is not well formed there changes nothing."""
    head = {**ALICE, "X-Run-Id": "run-1", "X-Thread-Id": "thread-1"}
    of_message = {**HELLO, "metadata": {"run_id": "run-2", "thread_id": "thread-2"}}
    cases: list[tuple[dict[str, Any], tuple[str, str]]] = [
        ({"message": HELLO}, ("run-1", "thread-1")),
        ({"message": of_message}, ("run-2", "thread-2")),
        ({"message": of_message, "metadata": {"run_id": "run-3"}}, ("run-3", "thread-2")),
        ({"message": HELLO, "metadata": {"run_id": "a b", "thread_id": {"n": 1}}}, ("run-1", "thread-1")),
    ]
    async with agent_world(tmp_path) as world:
        for version, binding in SPOKEN:
            for params, expected in cases:
                answer = await ask(world, version, binding, "message/send", params, head)
                assert answer.error is None, answer
                for record in world.records()[-2:]:
                    assert (record["run_id"], record["thread_id"]) == expected, (version, binding, params)
