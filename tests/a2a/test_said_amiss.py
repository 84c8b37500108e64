"""What does a caller of an agent hear who said something amiss? Found by the official TCK and the official clients."""

import json
from pathlib import Path
from typing import Any

from tests.a2a.world import ALICE, BOB, HELLO, SPOKEN, AgentWorld, No, agent_world, ask, saying, task
from tests.tables import tables

SENT = {"jsonrpc": "2.0", "method": "SendMessage", "params": {"message": HELLO}}


async def posted(world: AgentWorld, message: Any, version: str = "1.0") -> tuple[int, str, bytes]:
    """Status, media type and body."""
    url, headers = f"{world.url}/agents/researcher/", {**ALICE, "A2A-Version": version}
    async with world.http.post(url, json=message, headers=headers) as response:
        return response.status, response.content_type, await response.read()


async def test_what_is_no_good_message_hears_its_own_id_and_what_is_worst_about_it(tmp_path: Path) -> None:
    async with agent_world(tmp_path) as world:
        for message, version, told_to, code in tables("a2a/said_amiss")["amiss"]:
            status, _, body = await posted(world, message, version)
            said = json.loads(body)
            assert (status, said["id"], said["error"]["code"]) == (200, told_to, code), message
            assert version == "1.0" or "0.3 and 1.0" in said["error"]["message"]
        assert world.agent.seen == []


async def test_anothers_conversation_and_none_are_an_empty_list_that_the_agent_is_not_asked_for(tmp_path: Path) -> None:
    async with agent_world(tmp_path) as world:
        await ask(world, "1.0", "jsonrpc", "message/send", {"message": HELLO})
        reached = len(world.agent.seen)
        for version, binding in SPOKEN[:-1]:  # gRPC of 0.3 has no lists
            for context in ("c1", "never-was"):
                (page,) = (await ask(world, version, binding, "tasks/list", {"contextId": context}, BOB)).results
                assert not page.get("tasks") and not page.get("totalSize")
            assert len(world.agent.seen) == reached
            (page,) = (await ask(world, version, binding, "tasks/list", {"contextId": "c1"}, ALICE)).results
            assert [task["id"] for task in page["tasks"]] == ["t1"]
            reached = len(world.agent.seen)


async def test_a_stream_of_0_3_that_comes_to_nothing_is_a_stream_all_the_same(tmp_path: Path) -> None:
    """The official 0.3 client reads nothing else, and would never see the error's code."""
    message = {"jsonrpc": "2.0", "id": 1, "method": "tasks/resubscribe", "params": {"id": "never-was"}}
    async with agent_world(tmp_path) as world:
        status, media_type, body = await posted(world, message, "0.3")
        assert (status, media_type) == (200, "text/event-stream")
        assert json.loads(body.removeprefix(b"data: "))["error"]["code"] == -32001
        status, media_type, _ = await posted(world, {**message, "method": "SubscribeToTask"})
        assert (status, media_type) == (200, "application/json")


async def test_where_an_agent_is_is_not_told_by_its_errors(tmp_path: Path) -> None:
    where = "http://user:pw@127.0.0.1:9999/rpc?key=1"
    detail = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "metadata": {"tried": where}}
    no = No({"code": -32603, "message": f"cannot read {where}, nor 127.0.0.1", "data": [detail]})
    agent = saying(SendMessage=no, SendStreamingMessage=[{"task": task(state="TASK_STATE_WORKING")}, no])
    async with agent_world(tmp_path, agent) as world:
        for action in ("message/send", "message/stream"):
            told = str((await ask(world, "1.0", "jsonrpc", action, {"message": HELLO})).error)
            assert "cannot read (the agent), nor (the agent)" in told
            assert "127.0.0.1" not in told and "key=1" not in told
