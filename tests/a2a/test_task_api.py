"""Does the task API do what the original data models say, under the rules, limits and evidence that hold over A2A?"""

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sidecar.storage import RecordShare, RecordStoreOut
from sidecar.tasks.api import task_lifecycle, task_runner
from sidecar.tasks.api.task_record import Task
from sidecar.tasks.webhooks import outbox
from tests.a2a.world import (
    ALICE,
    BOB,
    HELLO,
    HOOK,
    PLANNER,
    AgentWorld,
    No,
    ScriptedAgent,
    agent_world,
    ask,
    saying,
    task,
)
from tests.flow.causes import full_disk
from tests.flow.described import Operation as Described, check_described
from tests.flow.world import PATIENCE_S, listening, until
from tests.valkey import LosingProxy, running_valkey

ORDER = {"target_agent_id": "researcher", "task_type": "search", "input": {"topic": "tides"}}
OURS, SEEDS = "/a2a/tasks", "/api/nhi/a2a/tasks"
QUICK = "tasks: {ask_every_s: 0.05}\n"
CALLED_BACK = QUICK + 'callbacks: {allow: ["127.0.0.1:*"], schemes: [http], networks: ["127.0.0.0/8"]}\n'
AGENT_ID = "0b5f0d0e-6d5b-4a51-9a3e-3a8d1f5c9b11"
NOBODY = "01939393-0000-7000-8000-000000000000"
WORKING, DONE = "TASK_STATE_WORKING", "TASK_STATE_COMPLETED"
BAD_QUERIES = ("state=done", "limit=0", "limit=101", "limit=x", "offset=-1", "offset=1.5", "page=1", "limit=1&limit=2")
LIST_FIELDS = [
    "id", "source_agent_id", "target_agent_id", "task_type", "state", "result", "error_code", "error_message",
    "created_at", "started_at", "completed_at",
]  # fmt: skip


async def call(
    world: AgentWorld, verb: str, path: str = "", body: Any = None, who: Mapping[str, str] = ALICE, base: str = OURS
) -> tuple[int, Any]:
    one = path.partition("?")[0]
    operation = "/a2a/tasks" + ("/{id}" if one else "") + ("/cancel" if one.endswith("/cancel") else "")
    async with world.http.request(verb, f"{world.url}{base}{path}", json=body, headers=who) as response:
        said = await response.json(content_type=None)
        check_described(Described(operation, verb.lower()), (response.status, said, response.headers))
        return response.status, said


async def create(world: AgentWorld, who: Mapping[str, str] = ALICE, **more: Any) -> str:
    status, said = await call(world, "POST", body={**ORDER, **more}, who=who)
    assert status == 201, said
    return str(said["task_id"])


async def ended(world: AgentWorld, task_id: str, who: Mapping[str, str] = ALICE, *, until: str = "") -> dict[str, Any]:
    """The task, once it is over or in that state."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            status, said = await call(world, "GET", f"/{task_id}", who=who)
            assert status == 200, said
            if said["state"] == until or (not until and said["completed_at"]):
                return dict(said)
            await asyncio.sleep(0.02)


def busy(*states: str) -> ScriptedAgent:
    """An agent that begins, and then says one state after the other, the last one for ever."""
    left = list(states)

    def got(method: str, params: dict[str, Any]) -> Any:
        state = left.pop(0) if len(left) > 1 else left[0]
        found = task(params["id"], "c1", state)
        if state == DONE:
            found["artifacts"] = [{"artifactId": "a1", "parts": [{"text": "high at noon"}]}]
            found["status"]["message"] = {"messageId": "m2", "role": "ROLE_AGENT", "parts": [{"text": "done"}]}
        return found

    agent = saying(SendMessage={"task": task("t1", "c1", "TASK_STATE_SUBMITTED")})
    agent.script |= {"GetTask": got, "CancelTask": lambda _, params: task(params["id"], "c1", "TASK_STATE_CANCELED")}
    return agent


async def test_a_task_is_sent_as_a_message_and_followed_to_its_end(tmp_path: Path) -> None:
    agent = busy("TASK_STATE_SUBMITTED", WORKING, WORKING, DONE)
    async with agent_world(tmp_path, agent, settings=QUICK) as world:
        status, made = await call(world, "POST", body=ORDER)
        assert status == 201 and made["status"] == "pending" and list(made) == ["task_id", "status", "created_at"]
        found = await ended(world, made["task_id"])
        assert [name for name in found if name != "a2a"] == LIST_FIELDS
        assert (found["state"], found["error_code"], found["source_agent_id"]) == ("completed", None, None)
        assert found["result"]["artifacts"][0]["parts"] == [{"text": "high at noon"}]
        assert found["result"]["message"]["parts"] == [{"text": "done"}]
        assert found["created_at"] <= found["started_at"] <= found["completed_at"]
        assert found["a2a"] == {"task_id": "t1", "context_id": "c1", "state": DONE}
    message = world.agent.seen[0][1]["params"]
    assert message["message"]["messageId"] == made["task_id"]
    assert message["message"]["parts"] == [{"data": {"topic": "tides"}, "mediaType": "application/json"}]
    assert message["metadata"] == {"task_type": "search"}
    assert world.agent.methods().count("SendMessage") == 1


async def test_both_addresses_are_one_and_an_agent_goes_by_its_name_or_its_uuid(tmp_path: Path) -> None:
    async with agent_world(tmp_path, settings=QUICK, a2a=f'agent_id: "{AGENT_ID}"') as world:
        status, made = await call(world, "POST", body={**ORDER, "target_agent_id": AGENT_ID}, base=SEEDS)
        assert status == 201
        found = await ended(world, made["task_id"])
        assert found["target_agent_id"] == AGENT_ID
        assert await call(world, "GET", f"/{made['task_id']}", base=SEEDS) == (200, found)
        for named in ("researcher", AGENT_ID):
            assert (await call(world, "GET", f"?target_agent_id={named}"))[1]["total"] == 1


LONG = {"artifacts": [{"artifactId": "a", "parts": [{"text": "x" * 1024}]}]}
SAID = {"messageId": "m2", "contextId": "c1", "role": "ROLE_AGENT", "parts": [{"text": "42"}]}
NO = No({"code": -32602, "message": "topic: unknown\u0007"})
ENDS: list[tuple[ScriptedAgent, str | None, str | None]] = [
    (saying(SendMessage={"message": SAID}), None, None),
    (saying(SendMessage=NO), "InvalidParameters", "topic: unknown"),
    (saying(SendMessage={"task": {**task(), **LONG}}), "ExecutionFailed", "The agent's result is too large"),
    (saying(SendMessage=web.Response(status=500)), "ExecutionFailed", None),
    (busy("TASK_STATE_FAILED"), "ExecutionFailed", "The agent failed"),
    (busy("TASK_STATE_REJECTED"), "ExecutionFailed", "The agent rejected the task"),
]


@pytest.mark.parametrize(("agent", "code", "told"), ENDS)
async def test_how_a_task_ends_at_its_agent_is_told_and_it_is_not_sent_again(
    tmp_path: Path, agent: ScriptedAgent, code: str | None, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_lifecycle, "MAX_RESULT_BYTES", 1024)
    async with agent_world(tmp_path, agent, settings=QUICK) as world:
        found = await ended(world, await create(world))
        assert (found["state"], found["error_code"]) == ("failed" if code else "completed", code)
        assert told in (None, found["error_message"]) and found["started_at"]
        assert (found["result"] or {}).get("message", {}).get("parts") == (None if code else [{"text": "42"}])
    assert agent.methods().count("SendMessage") == 1


async def test_an_agent_that_streams_is_asked_as_soon_as_something_happened(tmp_path: Path) -> None:
    agent, happened = busy(WORKING), asyncio.Event()

    def stream(method: str, params: dict[str, Any]) -> Any:
        working = {"status": {"state": WORKING}, "taskId": "t1", "contextId": "c1"}
        return [{"task": task("t1", "c1", WORKING)}, happened, {"statusUpdate": working}]

    agent.script["SubscribeToTask"] = stream
    async with agent_world(tmp_path, agent, settings="tasks: {ask_every_s: 60}\n") as world:
        task_id = await create(world)
        await until(lambda: "SubscribeToTask" in agent.methods())
        agent.script["GetTask"] = lambda *_: task("t1", "c1")
        happened.set()
        assert (await ended(world, task_id))["state"] == "completed"


# --- whose they are ---------------------------------------------------------------------------------------------------


async def test_anothers_task_looks_like_none(tmp_path: Path) -> None:
    async with agent_world(tmp_path, busy(WORKING), settings=QUICK) as world:
        mine = await create(world)
        await ended(world, mine, until="running")
        reached = world.agent.methods().count("CancelTask")
        for who in (BOB, PLANNER, ALICE):
            for verb, tail in (("GET", ""), ("POST", "/cancel")):
                none = await call(world, verb, f"/{NOBODY}{tail}", who=who)
                found = (404, "task-unknown", "NotFound")
                assert (none[0], none[1]["reason"], none[1]["error_code"]) == found
                if who is not ALICE:
                    status, said = await call(world, verb, f"/{mine}{tail}", who=who)
                    assert (status, {**said, "decision_id": ""}) == (404, {**none[1], "decision_id": ""})
        assert (await call(world, "GET", f"/{mine}", who={}))[0] == 401
        assert (await call(world, "POST", body=ORDER, who={}))[0] == 401
        assert (await call(world, "GET", who=BOB)) == (200, {"tasks": [], "total": 0, "limit": 20, "offset": 0})
        assert world.agent.methods().count("CancelTask") == reached


async def test_a_list_has_filters_and_pages(tmp_path: Path) -> None:
    async with agent_world(tmp_path, settings=QUICK) as world:
        made = [await create(world) for _ in range(5)]
        for task_id in made:
            await ended(world, task_id)
        status, said = await call(world, "GET", "?limit=2&offset=1")
        assert status == 200 and [one["id"] for one in said["tasks"]] == [made[3], made[2]]
        assert (said["total"], said["limit"], said["offset"]) == (5, 2, 1)
        assert (await call(world, "GET", "?state=completed"))[1]["total"] == 5
        assert (await call(world, "GET", "?state=pending"))[1]["total"] == 0
        for bad in BAD_QUERIES:
            status, said = await call(world, "GET", f"?{bad}")
            assert (status, said["reason"], said["error_code"]) == (400, "malformed-call", "InvalidParameters"), bad


async def test_the_task_is_there_over_a2a_too_and_for_its_owner_only(tmp_path: Path) -> None:
    """BL-009."""
    async with agent_world(tmp_path, busy(WORKING), settings=QUICK) as world:
        await ended(world, await create(world), until="running")
        assert (await ask(world, "1.0", "jsonrpc", "tasks/get", {"id": "t1"})).results[0]["id"] == "t1"
        assert (await ask(world, "1.0", "jsonrpc", "tasks/get", {"id": "t1"}, BOB)).reason == "task-unknown"


NO_ORDERS: dict[str, tuple[Any, ...]] = {
    "target_agent_id": ("", "a/b", None),
    "task_type": ("", 1, "x" * 129),
    "input": ([], None),
    "source_agent_id": ("planner", "user:bob", {}, ["user:alice"]),
    "callback_url": ("", "http://169.254.169.254/latest", "https://hook.example/", "file:///etc/passwd", f"{HOOK}#x"),
    "Input": ({},),
    "more": (1,),
}


async def test_what_is_no_order_is_refused_at_once(tmp_path: Path) -> None:
    """BL-055: an address that nobody may call back, too."""
    async with agent_world(tmp_path, settings=CALLED_BACK) as world:
        for name, value in [(name, value) for name, values in NO_ORDERS.items() for value in values]:
            status, said = await call(world, "POST", body={**ORDER, name: value})
            assert (status, said["reason"]) == (400, "malformed-call"), (name, value)
        assert world.agent.seen == []


async def test_the_source_is_who_calls(tmp_path: Path) -> None:
    async with agent_world(tmp_path, settings=QUICK) as world:
        for named in ("nhi:planner", "planner", None):
            found = await ended(world, await create(world, PLANNER, source_agent_id=named), PLANNER)
            assert found["source_agent_id"] == "planner"


async def test_without_a_row_nothing_is_created_and_nobody_learns_who_is_there(tmp_path: Path) -> None:
    rules = {"user_to_nhi": "p, user:alice, nhi:researcher, tasks/get, -, -, -, allow\n"}
    async with agent_world(tmp_path, rules=rules) as world:
        for target in ("researcher", "nobody", AGENT_ID):
            status, said = await call(world, "POST", body={**ORDER, "target_agent_id": target})
            assert (status, said["reason"], said["error_code"]) == (403, "no-matching-rule", "Unauthorized")
        assert (await call(world, "GET"))[0] == 403
        assert world.agent.seen == []


async def test_limits_hold_for_tasks_as_for_messages(tmp_path: Path) -> None:
    rules = {"user_to_nhi": "p, user:alice, nhi:researcher, message/send|tasks/get, -, 2, -, allow\n"}
    async with agent_world(tmp_path, rules=rules, settings=QUICK) as world:
        await create(world)
        assert (await ask(world, "1.0", "jsonrpc", "message/send", {"message": HELLO})).error is None
        status, said = await call(world, "POST", body=ORDER)
        assert (status, said["reason"], said["error_code"]) == (429, "rate-limited", "RateLimitExceeded")
        assert (said["limit"], said["most"]) == ("max_calls_per_hour", 2)


async def test_tasks_that_wait_are_sent_one_after_the_other_where_one_call_at_a_time_is_allowed(tmp_path: Path) -> None:
    at_once: list[int] = [0, 0]

    async def slow(*_: Any) -> Any:
        at_once[0] += 1
        at_once[1] = max(at_once)
        await asyncio.sleep(0.02)
        at_once[0] -= 1
        return {"message": SAID}

    agent = ScriptedAgent(script={"SendMessage": slow})
    budgets = {"policies/budgets.yaml": 'version: 1\ntools: {"nhi:researcher": {concurrency: 1}}\n'}
    async with agent_world(tmp_path, agent, files=budgets) as world:
        runner = world.app.pipeline.task_api.runner
        runner._closing = True  # as if it stopped before any of them was sent
        tasks = [await create(world) for _ in range(3)]
        runner._closing = False
        for one in tasks:
            record = await runner.means.store.get(one)
            assert record is not None
            runner.begin(record, record.caller)
        assert [(await ended(world, one))["state"] for one in tasks] == ["completed"] * 3
        assert at_once == [0, 1]


# --- cancelling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["answers", "is out", "answers a look first"])
async def test_a_task_whose_order_cannot_be_recorded_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, store: str
) -> None:
    async with agent_world(tmp_path, settings=QUICK) as world:
        runner, stored = world.app.task_api.runner, asyncio.Future[Task]()
        add, replace = runner.means.store.add, runner.means.store.replace

        async def not_at_once(record: Task) -> bool:
            if store == "is out":
                raise RecordStoreOut("timeout")
            monkeypatch.setattr(runner.means.store, "replace", replace)
            assert await runner.worker.turn() and not runner.held.refused
            return await replace(record)

        with monkeypatch.context() as patched, ExitStack() as stack:

            async def looked_at(record: Task, *about: Any) -> Any:
                added = await add(record, *about)
                await runner.worker.turn()
                assert not runner.worker.jobs, "nothing is on record yet"
                stack.enter_context(full_disk(world))  # type: ignore[arg-type]
                if store != "answers":
                    patched.setattr(runner.means.store, "replace", not_at_once)
                stored.set_result(record)
                return added

            patched.setattr(runner.means.store, "add", looked_at)
            assert (await call(world, "POST", body=ORDER))[0] == 503
        await runner.worker.turn()
        assert not runner.worker.jobs and not runner.held.refused and "bug" not in caplog.messages
        assert (await ended(world, stored.result().id))["state"] == "cancelled"
        assert world.agent.methods() == []


async def test_a_running_task_is_cancelled_at_its_agent(tmp_path: Path) -> None:
    async with agent_world(tmp_path, busy(WORKING), settings=QUICK) as world:
        task_id = await create(world)
        await ended(world, task_id, until="running")
        status, said = await call(world, "POST", f"/{task_id}/cancel")
        assert status == 200 and list(said) == ["task_id", "state", "cancelled_at"] and said["state"] == "cancelled"
        found = await ended(world, task_id)
        assert (found["state"], found["a2a"]["state"]) == ("cancelled", "TASK_STATE_CANCELED")
        assert world.agent.methods().count("CancelTask") == 1
        status, said = await call(world, "POST", f"/{task_id}/cancel")
        assert (status, said["reason"], said["detail"]) == (409, "not-cancelable", "it is cancelled")


async def test_a_task_that_is_being_sent_is_cancelled_once_it_has_a_name_at_the_agent(tmp_path: Path) -> None:
    may_answer = asyncio.Event()
    agent = busy(WORKING)

    async def slow(*_: Any) -> Any:
        await may_answer.wait()
        return {"task": task("t1", "c1", WORKING)}

    agent.script["SendMessage"] = slow
    async with agent_world(tmp_path, agent, settings=QUICK) as world:
        task_id = await create(world)
        await until(lambda: bool(agent.seen))  # before that it is cancelled without the agent
        cancelling = asyncio.create_task(call(world, "POST", f"/{task_id}/cancel"))
        await asyncio.sleep(0.1)
        assert not cancelling.done()
        may_answer.set()
        assert (await cancelling)[0] == 200
        assert (await ended(world, task_id))["state"] == "cancelled"
        assert world.agent.methods()[0] == "SendMessage" and "CancelTask" in world.agent.methods()


async def test_whoever_cancels_hears_yes_also_where_the_end_was_noticed_before_the_answer(tmp_path: Path) -> None:
    agent, told = busy(WORKING), asyncio.Event()

    async def cancel(*_: Any) -> Any:
        agent.script["GetTask"] = lambda *_: task("t1", "c1", "TASK_STATE_CANCELED")
        await told.wait()
        return task("t1", "c1", "TASK_STATE_CANCELED")

    agent.script["CancelTask"] = cancel
    async with agent_world(tmp_path, agent, settings=QUICK) as world:
        task_id = await create(world)
        await ended(world, task_id, until="running")
        cancelling = asyncio.create_task(call(world, "POST", f"/{task_id}/cancel"))
        found = await ended(world, task_id)
        told.set()
        told_ = {"task_id": task_id, "state": "cancelled", "cancelled_at": found["completed_at"]}
        assert await cancelling == (200, told_)


async def test_what_an_agent_does_not_cancel_goes_on(tmp_path: Path) -> None:
    agent = busy(WORKING)
    agent.script["CancelTask"] = lambda *_: No({"code": -32002, "message": "too late"})
    async with agent_world(tmp_path, agent, settings=QUICK) as world:
        task_id = await create(world)
        await ended(world, task_id, until="running")
        status, said = await call(world, "POST", f"/{task_id}/cancel")
        assert (status, said["reason"]) == (409, "not-cancelable")
        assert (await call(world, "GET", f"/{task_id}"))[1]["state"] == "running"


# --- lost, and lied about ---------------------------------------------------------------------------------------------


async def test_who_is_disabled_loses_the_task_here_and_at_the_agent(tmp_path: Path) -> None:
    async with agent_world(tmp_path, busy(WORKING), settings=QUICK) as world:
        task_id = await create(world)
        await ended(world, task_id, until="running")
        await world.app.disable("user:alice", reason="gone", until=None, by="test")
        await until(lambda: "CancelTask" in world.agent.methods())
        await world.app.enable("user:alice", by="test")
        found = await ended(world, task_id)
        assert (found["state"], found["error_code"]) == ("failed", "Unauthorized")


async def test_what_came_of_it_after_the_permission_ended_is_unidentified(tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*_: Any) -> Any:
        begun.set()
        await go_on.wait()
        return {"message": SAID}

    async with agent_world(tmp_path, ScriptedAgent(script={"SendMessage": slow})) as world:
        task_id = await create(world)
        await begun.wait()
        await world.app.disable("user:alice", reason="", until=None, by="test")
        go_on.set()
        runner = world.app.pipeline.task_api.runner
        await until(lambda: not runner.worker.jobs)
        record = await runner.means.store.get(task_id)
        assert record is not None
        assert (record.state, record.error_code, record.result) == ("failed", "Unauthorized", None)


async def test_whose_tasks_never_end_keep_nobody_elses_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_runner, "SHARE", RecordShare(total=4, per_owner=2))
    agent = busy(WORKING)
    agent.script["SendMessage"] = lambda *_: {"task": task(f"t{agent.methods().count('SendMessage')}", "c1", WORKING)}
    async with agent_world(tmp_path, agent, settings=QUICK) as world:
        endless = [await create(world) for _ in range(6)]
        for task_id in endless[:2]:
            await ended(world, task_id, until="running")
        agent.script["SendMessage"] = lambda *_: {"task": task("b1", "b1")}
        assert (await ended(world, await create(world, BOB), BOB))["state"] == "completed"
        assert agent.methods().count("SendMessage") == 3


async def test_an_agent_that_tells_of_another_task_is_not_believed(tmp_path: Path) -> None:
    agent = busy(WORKING)
    async with agent_world(tmp_path, agent, settings=QUICK) as world:
        bobs = await create(world, BOB)
        await ended(world, bobs, BOB, until="running")
        found = await ended(world, await create(world))  # it says that alice's is bob's t1
        assert (found["state"], found["error_code"]) == ("failed", "ExecutionFailed")
        assert found["a2a"]["task_id"] is None
        agent.script["GetTask"] = lambda *_: task("t2", "c1")
        found = await ended(world, bobs, BOB)
        assert (found["state"], found["result"]) == ("failed", None)


async def test_an_agent_that_is_away_may_come_back_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_lifecycle, "AWAY_S", 1.0)
    agent = busy(WORKING)
    here, away = agent.script["GetTask"], lambda *_: No({"code": -32603, "message": "?"})
    async with agent_world(tmp_path, agent, settings=QUICK) as world:
        task_id = await create(world)
        await ended(world, task_id, until="running")
        for answer in (away, here):
            agent.script["GetTask"] = answer
            asked = agent.methods().count("GetTask")
            await until(lambda asked=asked: agent.methods().count("GetTask") > asked + 1)  # type: ignore[misc]
        assert (await call(world, "GET", f"/{task_id}"))[1]["state"] == "running"
        agent.script["GetTask"] = away
        assert (await ended(world, task_id))["error_code"] == "ExecutionFailed"


async def test_a_task_that_takes_too_long_is_given_up_here_and_at_the_agent(tmp_path: Path) -> None:
    async with agent_world(tmp_path, busy(WORKING), settings="tasks: {ask_every_s: 0.05, follow_s: 0.3}\n") as world:
        found = await ended(world, await create(world))
        assert (found["state"], found["error_code"]) == ("failed", "Timeout")
        assert world.agent.methods()[-1] == "CancelTask"


# --- calling back -----------------------------------------------------------------------------------------------------


class Receiver:
    """Takes callbacks, and after how many refusals is its own to say."""

    def __init__(self, refuses: int = 0) -> None:
        self.refuses = refuses
        self.heard: list[tuple[Mapping[str, str], dict[str, Any]]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.heard.append((dict(request.headers), await request.json()))
        return web.Response(status=500 if len(self.heard) <= self.refuses else 204)


@pytest.mark.parametrize("ends", ["completed", "failed", "cancelled"])
async def test_who_asked_to_be_called_back_hears_of_the_end_signed_and_at_least_once(
    tmp_path: Path, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "FIRST_RETRY_S", 0.05)
    receiver = Receiver(refuses=1)
    agent = busy({"completed": DONE, "failed": "TASK_STATE_FAILED", "cancelled": WORKING}[ends])
    async with listening(receiver.handle) as hook, agent_world(tmp_path, agent, settings=CALLED_BACK) as world:
        task_id = await create(world, callback_url=f"{hook}/tasks")
        if ends == "cancelled":
            await ended(world, task_id, until="running")
            assert (await call(world, "POST", f"/{task_id}/cancel"))[0] == 200
        found = await ended(world, task_id)
        await until(lambda: len(receiver.heard) == 2)
        assert [body for _, body in receiver.heard] == [found, found] and found["state"] == ends
        assert all(headers["webhook-signature"] for headers, _ in receiver.heard)


async def test_an_end_whose_result_is_no_callback_is_told_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = Receiver()
    monkeypatch.setattr(outbox, "MAX_BODY_BYTES", 1024)
    agent = saying(SendMessage={"task": {**task(), **LONG}})
    async with listening(receiver.handle) as hook, agent_world(tmp_path, agent, settings=CALLED_BACK) as world:
        found = await ended(world, await create(world, callback_url=hook))
        await until(lambda: bool(receiver.heard))
        assert receiver.heard[0][1] == {**found, "result": None, "result_omitted": True}
        assert found["result"]["artifacts"] == LONG["artifacts"]


# --- a store that is out ----------------------------------------------------------------------------------------------


async def test_what_was_refused_is_not_carried_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store keeps the task, and its answer is lost."""
    monkeypatch.setattr(task_runner, "LOOK_EVERY_S", 0.05)
    with running_valkey() as valkey:
        proxy = LosingProxy(valkey.path, b"tides")
        async with proxy.listening() as url:
            settings = f'tasks: {{ask_every_s: 0.05, store: redis}}\nstore: {{url: "{url}"}}\n'
            async with agent_world(tmp_path, settings=settings) as world:
                proxy.before = 0
                status, said = await call(world, "POST", body=ORDER)
                assert (status, said["reason"], proxy.before) == (503, "store-unavailable", None)
                async with asyncio.timeout(PATIENCE_S):
                    while (await call(world, "GET", "?state=cancelled"))[1]["total"] == 0:
                        await asyncio.sleep(0.02)
                assert world.agent.seen == []


# --- evidence ---------------------------------------------------------------------------------------------------------


async def test_both_what_was_ordered_and_what_was_done_for_it_are_on_record(tmp_path: Path) -> None:
    async with agent_world(tmp_path, busy(WORKING, DONE), settings=QUICK) as world:
        task_id = await create(world)
        await ended(world, task_id)
        about = [record for record in world.records() if record["request_id"] == task_id]
        ours = [record for record in about if record["action"] == "message/send"]
        told = [(record["event"], record["peer"] == "sidecar", record["status"]) for record in ours]
        assert told == [
            ("decision", False, None),
            ("outcome", False, "success"),
            ("decision", True, None),
            ("outcome", True, "success"),
        ]
        assert len({record["args_hash"] for record in ours}) == 1
        assert {record["object"] for record in ours} == {"nhi:researcher"}
