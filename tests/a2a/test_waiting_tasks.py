"""Tasks of the task API whose message a person must approve: they wait, and go on by themselves."""

import asyncio
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from sidecar.gateway.approvals import ApprovalError, ApprovalState
from sidecar.storage import RecordShare
from sidecar.tasks.api import task_runner
from tests.a2a.approving import DMITRI, SENDS, answer, approving_world, asked, late, requests, rules_of
from tests.a2a.test_task_api import ORDER, QUICK, call, create, ended
from tests.a2a.world import BOB, ScriptedAgent
from tests.valkey import running_valkey


async def test_a_task_waits_for_a_person_and_goes_on_when_approved(tmp_path: Path) -> None:
    async with approving_world(tmp_path, settings=QUICK) as world:
        status, made = await call(world, "POST", body=ORDER)
        assert (status, made["status"]) == (201, "waiting")
        shown = (await call(world, "GET", f"/{made['task_id']}"))[1]
        one = await asked(world)
        assert (shown["state"], shown["approval"]["id"]) == ("waiting", one.name)
        assert (await call(world, "GET", "?state=waiting"))[1]["total"] == 1
        assert one.questions[0].arguments["message"]["parts"][0]["data"] == ORDER["input"]
        assert world.agent.methods() == []
        await answer(world)
        over = await ended(world, made["task_id"])
        assert over["state"] == "completed" and "approval" not in over
        assert world.agent.methods().count("SendMessage") == 1
        used = [record for record in world.records("decision") if record["approval"]]
        assert [record["approval"] for record in used] == [{"id": one.name, "by": ["user:dmitri"]}]
        kinds = [(record["control"] or {}).get("what") for record in world.records()]
        assert world.records().index(used[0]) > kinds.index("approval-given")


@pytest.mark.parametrize(("outcome", "said"), [("refuse", "not today"), ("expire", "in time")])
async def test_a_task_fails_with_the_reason_if_it_is_not_approved(outcome: str, said: str, tmp_path: Path) -> None:
    async with approving_world(tmp_path, settings=QUICK) as world:
        task = await create(world)
        if outcome == "refuse":
            await answer(world, "refuse", reason=said)
        else:
            await late(world)
        over = await ended(world, task)
        assert (over["state"], over["error_code"], over["started_at"]) == ("failed", "Unauthorized", None)
        assert said in over["error_message"]
        assert world.agent.methods() == []
        refusal = world.records("refusal")[-1]
        assert refusal["reason"] == ("approval-refused" if outcome == "refuse" else "approval-expired")
        assert refusal["request_id"] == task


async def test_cancelling_a_waiting_task_withdraws_its_request(tmp_path: Path) -> None:
    async with approving_world(tmp_path, settings=QUICK) as world:
        task = await create(world)
        one = await asked(world)
        assert (await call(world, "POST", f"/{task}/cancel"))[1]["state"] == "cancelled"
        assert [each.name for each in await requests(world, ApprovalState.WITHDRAWN)] == [one.name]
        controls = [record["control"]["what"] for record in world.records("control") if "what" in record["control"]]
        assert [what for what in controls if what.startswith("approval")] == ["approval-asked", "approval-withdrawn"]
        assert (await call(world, "GET", f"/{task}"))[1]["state"] == "cancelled"
        assert (await create(world)) != task and (await asked(world)).name != one.name


class SlowStore:
    """A store of approvals that answers when it may."""

    def __init__(self, store: Any) -> None:
        self._store, self.asked, self.may = store, asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, key: str) -> Any:
        self.asked.set()
        await self.may.wait()
        return await self._store.get(key)


async def test_a_caller_who_disconnects_while_its_task_is_cancelled_leaves_no_request_behind(tmp_path: Path) -> None:
    async with approving_world(tmp_path, settings=QUICK) as world:
        task, one = await create(world), await asked(world)
        approvals: Any = world.app.approvals
        approvals.store = store = SlowStore(approvals.store)
        leaving = asyncio.create_task(call(world, "POST", f"/{task}/cancel"))
        await store.asked.wait()
        leaving.cancel()
        await asyncio.sleep(0.2)  # until the sidecar has heard of it
        store.may.set()
        async with asyncio.timeout(5):
            while [each.name for each in await requests(world, ApprovalState.WITHDRAWN)] != [one.name]:
                await asyncio.sleep(0.02)
        assert (await call(world, "GET", f"/{task}"))[1]["state"] == "cancelled"


async def test_one_approval_carries_out_one_of_two_equal_tasks(tmp_path: Path) -> None:
    async with approving_world(tmp_path, settings=QUICK) as world:
        tasks = [await create(world), await create(world)]
        first = await answer(world)
        done = {"completed"}
        async with asyncio.timeout(10):
            while not done & {(await call(world, "GET", f"/{task}"))[1]["state"] for task in tasks}:
                await asyncio.sleep(0.02)
        second = await asked(world)
        assert second.name != first.name
        states = sorted([(await call(world, "GET", f"/{task}"))[1]["state"] for task in tasks])
        assert states == ["completed", "waiting"]
        assert world.agent.methods().count("SendMessage") == 1
        await answer(world)
        assert {(await ended(world, task))["state"] for task in tasks} == done
        assert world.agent.methods().count("SendMessage") == 2


async def test_who_stands_in_the_chain_approves_no_task(tmp_path: Path) -> None:
    async with approving_world(tmp_path, settings=QUICK) as world:
        task = await create(world)
        with pytest.raises(ApprovalError, match="is in the chain"):
            await answer(world, who="user:alice")
        assert (await call(world, "GET", f"/{task}"))[1]["state"] == "waiting"


async def test_a_waiting_task_survives_a_restart(tmp_path: Path) -> None:
    async with approving_world(tmp_path, settings=QUICK) as world:
        task = await create(world)
        one = await asked(world)
    async with approving_world(tmp_path, world.agent, settings=QUICK) as world:
        assert (await call(world, "GET", f"/{task}"))[1]["state"] == "waiting"
        assert (await answer(world)).name == one.name
        assert (await ended(world, task))["state"] == "completed"
        assert world.agent.methods().count("SendMessage") == 1


async def test_two_replicas_carry_a_task_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_runner, "LOOK_EVERY_S", 0.05)
    agent = ScriptedAgent()
    with running_valkey() as server:
        key = {"audit.key": sha256(b"shared").hexdigest()}
        settings = "tasks: {ask_every_s: 0.05, store: redis}\naudit: {key_path: audit.key}\n"
        settings += f'store: {{url: "{server.url}"}}\n'
        more = {"settings": settings, "files": key}
        async with approving_world(tmp_path / "two", agent, **more) as two:
            async with approving_world(tmp_path / "one", agent, **more) as one:
                kept, left = await create(one), await create(one, task_type="other")
                first, second = await requests(two)
                for record in (first, second):
                    if record.questions[0].arguments["metadata"]["task_type"] == "search":
                        await two.app.approvals.answer(record.name, DMITRI, "approve")
                assert (await ended(one, kept))["state"] == "completed"
                assert (await call(two, "GET", f"/{left}"))[1]["state"] == "waiting"
            await answer(two)  # the other replica has stopped
            assert (await ended(two, left))["state"] == "completed"
            assert agent.methods().count("SendMessage") == 2


async def test_tasks_that_wait_keep_no_others_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_runner, "SHARE", RecordShare(2, 1))
    monkeypatch.setattr(task_runner, "LOOK_EVERY_S", 0.05)
    free = f"p, user:bob, nhi:researcher, {SENDS}, -, -, -, allow\n"
    both = rules_of()["user_to_nhi"] + free
    async with approving_world(tmp_path, settings=QUICK, rules={"user_to_nhi": both}) as world:
        waiting = [await create(world, task_type=f"t{number}") for number in range(5)]
        assert (await ended(world, await create(world, BOB), BOB))["state"] == "completed"
        last = next(one for one in await requests(world) if one.questions[0].arguments["metadata"]["task_type"] == "t4")
        await world.app.approvals.answer(last.name, DMITRI, "approve")
        assert (await ended(world, waiting[-1]))["state"] == "completed"
