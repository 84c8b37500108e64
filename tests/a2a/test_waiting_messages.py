"""Messages to agents that a person must approve: their tasks are `auth-required`, and go on when they are approved."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sidecar.gateway.approvals import ApprovalError, ApprovalState, approvals
from sidecar.protocols.a2a.operations import Binding, Version
from sidecar.tasks.api import task_runner
from tests.a2a.approving import DMITRI, SENDS, answer, approving_world, asked, late, requests, rules_of
from tests.a2a.test_task_api import Receiver, call
from tests.a2a.world import BOB, HELLO, SPOKEN, AgentWorld, No, ScriptedAgent, ask, saying, task
from tests.flow.world import listening, until

QUICK = "tasks: {ask_every_s: 0.05}\n"
NOT_HELD = QUICK + "approvals: {hold: 0.05s}\n"
WAITS, DONE, WORKING = "TASK_STATE_AUTH_REQUIRED", "TASK_STATE_COMPLETED", "TASK_STATE_WORKING"
RPC: tuple[Version, Binding] = ("1.0", "jsonrpc")
FEW: list[tuple[Version, Binding]] = [("1.0", "http_json"), ("0.3", "jsonrpc"), ("0.3", "grpc")]
few_ways = pytest.mark.parametrize("way", FEW, ids=lambda way: "-".join(way))
ways = pytest.mark.parametrize("way", SPOKEN, ids=lambda way: "-".join(way))


async def send(world: AgentWorld, way: tuple[Version, Binding] = RPC, **more: Any) -> dict[str, Any]:
    """The task that a message is answered with."""
    message = {**HELLO, **more.pop("message", {})}
    answered = await ask(world, *way, "message/send", {"message": message, **more})
    assert answered.error is None, answered
    found: dict[str, Any] = answered.results[0]["task"]
    return found


async def state(world: AgentWorld, task_id: str, way: tuple[Version, Binding] = RPC) -> dict[str, Any]:
    answered = await ask(world, *way, "tasks/get", {"id": task_id})
    assert answered.error is None, answered
    found: dict[str, Any] = answered.results[0]
    return found


async def until_state(
    world: AgentWorld, task_id: str, wanted: str, way: tuple[Version, Binding] = RPC
) -> dict[str, Any]:
    async with asyncio.timeout(10):
        while (found := await state(world, task_id, way))["status"]["state"] != wanted:
            await asyncio.sleep(0.02)
    return found


def sent(world: AgentWorld) -> list[dict[str, Any]]:
    methods = ("SendMessage", "SendStreamingMessage")
    return [message for _, message in world.agent.seen if message["method"] in methods]


@ways
async def test_a_message_waits_as_a_task_that_goes_on_when_approved(
    way: tuple[Version, Binding], tmp_path: Path
) -> None:
    async with approving_world(tmp_path, settings=QUICK) as world:
        waiting = await send(world, way)
        one = await asked(world)
        assert waiting["status"]["state"] == WAITS and waiting["contextId"]
        assert waiting["metadata"]["sidecar/approval"]["id"] == one.name
        assert one.name in waiting["status"]["message"]["parts"][0]["text"]
        assert (await state(world, waiting["id"], way))["status"]["state"] == WAITS
        assert (await ask(world, *way, "tasks/get", {"id": waiting["id"]}, BOB)).reason == "task-unknown"
        assert sent(world) == []
        await answer(world)
        done = await until_state(world, waiting["id"], DONE, way)
        assert done["id"] == waiting["id"]
        (message,) = sent(world)
        assert message["params"]["message"]["parts"] == HELLO["parts"]
        assert message["params"]["message"]["messageId"] == "m1"
        decided = next(record for record in world.records("decision") if record["approval"])
        assert decided["approval"] == {"id": one.name, "by": ["user:dmitri"]}
        await until(
            lambda: [one["event"] for one in world.ends() if one["decision_id"] == decided["decision_id"]] != []
        )
        ends = [record for record in world.ends() if record["decision_id"] == decided["decision_id"]]
        assert [record["event"] for record in ends] == ["outcome"]
        stored = (world.folder / "data" / "records.sqlite-wal").read_bytes()
        stored += (world.folder / "data" / "records.sqlite").read_bytes()
        assert b"hello" not in stored


async def test_its_id_stays_valid_for_every_operation(tmp_path: Path) -> None:
    agent = ScriptedAgent()
    agent.script["GetTask"] = lambda _, params: task(params["id"], "c1", WORKING)
    async with approving_world(tmp_path, agent, settings=QUICK) as world:
        ours = (await send(world))["id"]
        await answer(world)
        found = await until_state(world, ours, WORKING)
        assert found["id"] == ours
        hook = {"taskId": ours, "id": "p1", "url": "http://127.0.0.1:9/hook"}
        made = (await ask(world, *RPC, "push/set", hook)).results[0]
        assert (made["taskId"], made["id"]) == (ours, "p1")
        (listed,) = (await ask(world, *RPC, "push/list", {"taskId": ours})).results
        assert [one["taskId"] for one in listed["configs"]] == [ours]
        events = (await ask(world, *RPC, "tasks/resubscribe", {"id": ours})).results
        assert [event.get("task", {}).get("id") or event["statusUpdate"]["taskId"] for event in events] == [ours] * 2
        listed = (await ask(world, *RPC, "tasks/list", {})).results[0]
        assert [one["id"] for one in listed["tasks"]] == [ours]
        cancelled = (await ask(world, *RPC, "tasks/cancel", {"id": ours})).results[0]
        assert cancelled["id"] == ours
        named = {message["params"].get("id") or message["params"].get("taskId") for _, message in agent.seen[1:]}
        assert named == {"t1", "p1", None}, "the agent knows its own id alone"


@ways
async def test_a_stream_is_held_and_goes_on_with_the_agents_events(
    way: tuple[Version, Binding], tmp_path: Path
) -> None:
    async with approving_world(tmp_path, settings=QUICK) as world:
        call = asyncio.create_task(ask(world, *way, "message/stream", {"message": HELLO}))
        await asked(world)
        await answer(world)
        answered = await call
        assert answered.error is None, answered
        first, *rest = answered.results
        assert first["task"]["status"]["state"] == WAITS
        ids = {event["statusUpdate"]["taskId"] for event in rest}
        assert ids == {first["task"]["id"]}, "one task of a stream, as clients take it"
        assert [event["statusUpdate"]["status"]["state"] for event in rest] == [WORKING, DONE]
        assert [message["method"] for message in sent(world)] == ["SendStreamingMessage"]
        assert (await state(world, first["task"]["id"], way))["status"]["state"] == DONE
        decided = [record for record in world.records("decision") if record["approval"]]
        assert len(decided) == 1


async def test_a_stream_whose_agent_takes_long_is_sent_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_runner, "LOOK_EVERY_S", 0.02)
    agent, go_on = ScriptedAgent(), asyncio.Event()

    async def later(method: str, params: dict[str, Any]) -> Any:
        await go_on.wait()
        return agent._answer(method, params)

    agent.script["SendStreamingMessage"] = later
    async with approving_world(tmp_path, agent, settings=QUICK) as world:
        call = asyncio.create_task(ask(world, *RPC, "message/stream", {"message": HELLO}))
        await answer(world)
        await until(lambda: bool(sent(world)))
        await asyncio.sleep(0.2)
        go_on.set()
        first, *_, last = (await call).results
        assert last["statusUpdate"]["status"]["state"] == DONE
        assert (await state(world, first["task"]["id"]))["status"]["state"] == DONE
        assert len(sent(world)) == 1


async def test_an_agent_that_fails_in_a_held_stream_fails_the_task(tmp_path: Path) -> None:
    error = No({"code": -32603, "message": "broken"})
    async with approving_world(tmp_path, saying(SendStreamingMessage=error), settings=QUICK) as world:
        call = asyncio.create_task(ask(world, *RPC, "message/stream", {"message": HELLO}))
        await answer(world)
        answered = await call
        assert answered.error is not None and answered.error["code"] == -32603
        failed = await until_state(world, answered.results[0]["task"]["id"], "TASK_STATE_FAILED")
        assert failed["status"]["message"]["parts"] == [{"text": "Internal error"}]


async def test_a_stop_ends_held_streams_and_loses_no_task(tmp_path: Path) -> None:
    async with approving_world(tmp_path, settings=QUICK) as world:
        stream = asyncio.create_task(ask(world, *RPC, "message/stream", {"message": HELLO}))
        one = await asked(world)
        ours = (await send(world, message={"messageId": "m2"}))["id"]
        heard = asyncio.create_task(ask(world, *RPC, "tasks/resubscribe", {"id": ours}))
        await until(lambda: len(world.app.pipeline.live.requests) == 2)
        await asyncio.sleep(0.05)
        async with asyncio.timeout(5):
            await world.app.pipeline.drain(4.0)
        ended = await stream
        assert ended.error is None and ended.results[0]["task"]["status"]["state"] == WAITS
        assert (await heard).results[0]["task"]["id"] == ours
    async with approving_world(tmp_path, world.agent, settings=QUICK) as world:
        await world.app.approvals.answer(one.name, DMITRI, "approve")
        await until_state(world, ended.results[0]["task"]["id"], DONE)
        assert (await state(world, ours))["status"]["state"] == WAITS


async def test_limits_are_charged_when_it_is_sent(tmp_path: Path) -> None:
    rules = {"user_to_nhi": rules_of()["user_to_nhi"].replace(f"{SENDS}, -, -, -", f"{SENDS}, -, 1, -")}
    async with approving_world(tmp_path, settings=QUICK, rules=rules) as world:
        tasks = []
        for number in range(2):
            tasks.append(
                (await send(world, message={"messageId": f"m{number}", "parts": [{"text": f"{number}"}]}))["id"]
            )
            await answer(world)
            await until(lambda: not world.app.pipeline.task_api.runner.worker.jobs)
        await until_state(world, tasks[0], DONE)
        failed = await until_state(world, tasks[1], "TASK_STATE_FAILED")
        assert failed["metadata"]["sidecar/approval"]["reason"] == "rate-limited"
        assert len(sent(world)) == 1


@few_ways
async def test_a_stream_ends_after_a_while_and_its_task_goes_on(way: tuple[Version, Binding], tmp_path: Path) -> None:
    async with approving_world(tmp_path, settings=NOT_HELD) as world:
        answered = await ask(world, *way, "message/stream", {"message": HELLO})
        assert answered.error is None, answered
        (first,) = answered.results
        assert first["task"]["status"]["state"] == WAITS
        await answer(world)
        await until_state(world, first["task"]["id"], DONE, way)
        assert [message["method"] for message in sent(world)] == ["SendMessage"]
        assert sent(world)[0]["params"]["configuration"]["returnImmediately"] is True


@few_ways
async def test_a_held_stream_ends_with_a_refusal(way: tuple[Version, Binding], tmp_path: Path) -> None:
    async with approving_world(tmp_path, settings=QUICK) as world:
        call = asyncio.create_task(ask(world, *way, "message/stream", {"message": HELLO}))
        await answer(world, "refuse", reason="not today")
        answered = await call
        assert answered.error is None, answered
        first, last = answered.results
        status = last["statusUpdate"]["status"]
        assert status["state"] == "TASK_STATE_REJECTED" and "not today" in status["message"]["parts"][0]["text"]
        await until_state(world, first["task"]["id"], "TASK_STATE_REJECTED", way)
        assert sent(world) == []


async def test_a_held_stream_whose_store_fails_ends_with_that_and_its_task_waits_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals, "TICK_S", 0.05)
    async with approving_world(tmp_path, settings=QUICK) as world:
        call = asyncio.create_task(ask(world, *RPC, "message/stream", {"message": HELLO}))
        await asked(world)
        await until(lambda: any(request.held for request in world.app.pipeline.live.requests))
        (file,) = tmp_path.rglob("records.sqlite")
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # another process does not let go of it
            answered = await call
        first = answered.results[0]["task"]
        assert answered.error is not None and answered.error["data"][0]["reason"] == "STORE_UNAVAILABLE", answered
        assert (await state(world, first["id"]))["status"]["state"] == WAITS


@pytest.mark.parametrize("outcome", ["refuse", "expire"])
async def test_a_task_ends_if_it_is_not_approved(outcome: str, tmp_path: Path) -> None:
    async with approving_world(tmp_path, settings=QUICK) as world:
        ours = (await send(world))["id"]
        if outcome == "refuse":
            await answer(world, "refuse", reason="not today")
        else:
            await late(world)
        wanted = "TASK_STATE_REJECTED" if outcome == "refuse" else "TASK_STATE_FAILED"
        found = await until_state(world, ours, wanted)
        reason = "approval-refused" if outcome == "refuse" else "approval-expired"
        assert found["metadata"]["sidecar/approval"]["reason"] == reason
        assert sent(world) == []
        error = (await ask(world, *RPC, "tasks/cancel", {"id": ours})).error
        assert error is not None and error["code"] == -32002


async def test_cancelling_it_withdraws_the_request(tmp_path: Path) -> None:
    async with approving_world(tmp_path, settings=QUICK) as world:
        ours = (await send(world))["id"]
        one = await asked(world)
        found = (await ask(world, *RPC, "tasks/cancel", {"id": ours})).results[0]
        assert (found["id"], found["status"]["state"]) == (ours, "TASK_STATE_CANCELED")
        assert [each.name for each in await requests(world, ApprovalState.WITHDRAWN)] == [one.name]
        with pytest.raises(ApprovalError, match="withdrawn"):
            await world.app.approvals.answer(one.name, DMITRI, "approve")
        assert (await state(world, ours))["status"]["state"] == "TASK_STATE_CANCELED"
        assert sent(world) == []


async def test_cancelling_one_that_is_being_sent_waits_no_longer_than_the_agent_may_take(tmp_path: Path) -> None:
    agent, go_on = ScriptedAgent(), asyncio.Event()

    async def later(method: str, params: dict[str, Any]) -> Any:
        await go_on.wait()
        return agent._answer(method, params)

    agent.script["SendMessage"] = later
    async with approving_world(tmp_path, agent, settings=QUICK, a2a="timeout_s: 30") as world:
        ours = (await send(world))["id"]
        await answer(world)
        await until(lambda: bool(sent(world)))
        settings = tmp_path / "sidecar.yaml"
        settings.write_text(settings.read_text().replace("timeout_s: 30", "timeout_s: 0.3"))
        await world.app.reload("test")
        assert (await ask(world, *RPC, "tasks/cancel", {"id": ours})).reason == "upstream-timeout"
        go_on.set()
        await until_state(world, ours, DONE)


@few_ways
async def test_one_that_subscribes_to_a_waiting_task_sees_it_go_on(
    way: tuple[Version, Binding], tmp_path: Path
) -> None:
    async with approving_world(tmp_path, settings=QUICK) as world:
        ours = (await send(world, way))["id"]
        call = asyncio.create_task(ask(world, *way, "tasks/resubscribe", {"id": ours}))
        await asyncio.sleep(0.05)
        await answer(world)
        answered = await call
        assert answered.error is None, answered
        first, *rest = answered.results
        assert first["task"]["status"]["state"] == WAITS
        assert rest[-1]["statusUpdate"]["status"]["state"] == DONE
        assert {event["statusUpdate"]["taskId"] for event in rest} == {ours}


async def test_the_same_message_again_is_the_same_task_and_is_sent_once(tmp_path: Path) -> None:
    async with approving_world(tmp_path, settings=QUICK) as world:
        first, second = await send(world), await send(world)
        assert first["id"] == second["id"]
        await answer(world)
        await until_state(world, first["id"], DONE)
        assert len(sent(world)) == 1
        third = await send(world)
        assert third["id"] != first["id"] and third["status"]["state"] == WAITS, "it needs an approval of its own"


async def test_a_message_into_a_task_waits_and_is_sent_again(tmp_path: Path) -> None:
    async with approving_world(tmp_path, settings=QUICK) as world:
        ours = (await send(world))["id"]
        await answer(world)
        await until_state(world, ours, DONE)
        into = {"taskId": ours, "messageId": "m2"}
        waiting = await send(world, message=into)
        assert (waiting["id"], waiting["status"]["state"]) == (ours, WAITS)
        await answer(world)
        assert (await send(world, message=into))["id"] == ours
        assert [message["params"]["message"].get("taskId") for message in sent(world)] == [None, "t1"]


async def test_a_message_into_a_waiting_task_is_answered_with_it(tmp_path: Path) -> None:
    async with approving_world(tmp_path, settings=QUICK) as world:
        waiting = await send(world)
        again = await send(world, message={"taskId": waiting["id"], "messageId": "m2"})
        assert again["id"] == waiting["id"] and again["status"]["state"] == WAITS
        assert len(await requests(world)) == 1
        unknown = await ask(world, *RPC, "push/set", {"taskId": waiting["id"], "url": "http://127.0.0.1:9/hook"})
        assert unknown.error is not None and unknown.error["code"] == -32004


async def test_an_agent_that_answers_with_a_message_completes_the_task(tmp_path: Path) -> None:
    said = {"messageId": "a1", "role": "ROLE_AGENT", "parts": [{"text": "high at noon"}]}
    async with approving_world(tmp_path, saying(SendMessage={"message": said}), settings=QUICK) as world:
        ours = (await send(world))["id"]
        await answer(world)
        found = await until_state(world, ours, DONE)
        assert found["status"]["message"]["parts"] == said["parts"]


async def test_a_push_configuration_inside_the_message_is_for_the_task(tmp_path: Path) -> None:
    async with approving_world(tmp_path, settings=QUICK) as world:
        config = {"id": "p1", "url": "http://127.0.0.1:9/hook", "token": "mine"}
        ours = (await send(world, configuration={"taskPushNotificationConfig": config}))["id"]
        await answer(world)
        await until_state(world, ours, DONE)
        (message,) = sent(world)
        pushed = message["params"]["configuration"]["taskPushNotificationConfig"]
        assert "/a2a/push/" in pushed["url"] and pushed["token"] != "mine"
        event = {"statusUpdate": {"taskId": "t1", "contextId": "c1", "status": {"state": DONE}}}
        headers = {"X-A2A-Notification-Token": pushed["token"], "Content-Type": "application/json"}
        path = "/a2a/push/" + pushed["url"].rpartition("/")[2]
        async with world.http.post(f"{world.url}{path}", json=event, headers=headers) as response:
            assert response.status == 204, await response.text()


async def test_the_end_of_a_message_that_is_not_sent_is_pushed(tmp_path: Path) -> None:
    receiver = Receiver()
    async with listening(receiver.handle) as hook, approving_world(tmp_path, settings=QUICK) as world:
        config = {"id": "p1", "url": f"{hook}/told", "token": "mine"}
        ours = (await send(world, configuration={"taskPushNotificationConfig": config}))["id"]
        await answer(world, "refuse", reason="not today")
        await until(lambda: bool(receiver.heard))
        headers, body = receiver.heard[0]
        assert headers["X-A2A-Notification-Token"] == "mine"
        assert body["statusUpdate"]["taskId"] == ours
        assert body["statusUpdate"]["status"]["state"] == "TASK_STATE_REJECTED"
        await until_state(world, ours, "TASK_STATE_REJECTED")
        assert sent(world) == []


async def test_a_waiting_message_survives_a_restart(tmp_path: Path) -> None:
    async with approving_world(tmp_path, settings=QUICK) as world:
        ours = (await send(world))["id"]
    async with approving_world(tmp_path, world.agent, settings=QUICK) as world:
        assert (await state(world, ours))["status"]["state"] == WAITS
        await answer(world)
        await until_state(world, ours, DONE)
        assert len(sent(world)) == 1


async def test_it_is_not_listed_by_the_task_api(tmp_path: Path) -> None:
    async with approving_world(tmp_path, settings=QUICK) as world:
        ours = (await send(world))["id"]
        assert (await call(world, "GET"))[1]["total"] == 0
        assert (await call(world, "GET", f"/{ours}"))[0] == 404
