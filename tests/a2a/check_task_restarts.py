"""What becomes of a task when the sidecar is killed, wherever it was? Nothing is lost, and nothing is sent twice."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from sidecar.storage import RecordBounds, RecordShare, SqliteFile, SqliteRecordStore
from sidecar.tasks.api.task_lifecycle import UNKNOWN_WHETHER_SENT
from sidecar.tasks.api.task_record import TASKS, Task, TaskState, TaskStep
from tests.a2a.test_task_api import CALLED_BACK, ORDER, Receiver
from tests.a2a.world import ALICE, ScriptedAgent, task, write
from tests.flow.process import Served
from tests.flow.world import PATIENCE_S, listening, until


@dataclass
class Restarted:
    """A process before an agent, and its folder."""

    agent: ScriptedAgent
    served: Served
    http: aiohttp.ClientSession

    async def create(self, kind: str) -> str:
        order = {**ORDER, "task_type": kind}
        async with self.http.post(f"{self.served.url}/a2a/tasks", json=order, headers=ALICE) as response:
            assert response.status == 201
            return str((await response.json())["task_id"])

    async def ended(self, task_id: str) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                async with self.http.get(f"{self.served.url}/a2a/tasks/{task_id}", headers=ALICE) as response:
                    found = await response.json()
                    if found["completed_at"]:
                        return dict(found)
                await asyncio.sleep(0.05)

    def asked_about(self) -> set[str]:
        """The agent's tasks that were followed."""
        return {message["params"]["id"] for _, message in self.agent.seen if message["method"] == "GetTask"}

    async def step_of(self, task_id: str) -> TaskStep:
        return (await self._record(task_id)).step

    async def rewind(self, task_id: str) -> None:
        """As a kill leaves it that comes just before the task is marked as being sent."""
        record = await self._record(task_id)
        async with self._store() as store:
            await store.replace(record._replace(step=TaskStep.UNSENT, revision=record.revision + 1))

    async def ended_untold(self, url: str) -> str:
        """A task as a kill leaves it that comes between its end and the word of it."""
        about = await self._record(await self._any())
        record = about._replace(id="0199aaaa-0000-7000-8000-000000000001", callback_url=url, step=TaskStep.UNSENT)
        async with self._store() as store:
            await store.add(record.ended(TaskState.COMPLETED, record.created_at), "file", 0.0, RecordBounds())
        return record.id

    async def _any(self) -> str:
        async with self._store() as store:
            return (await store.take("file", 0.0, 0.0, RecordShare()))[0].id

    async def _record(self, task_id: str) -> Task:
        async with self._store() as store:
            record = await store.get(task_id)
        assert record is not None
        return record

    @asynccontextmanager
    async def _store(self) -> AsyncIterator[SqliteRecordStore[Task]]:
        file = SqliteFile(self.served.folder / "data" / "records.sqlite")
        try:
            yield SqliteRecordStore(file, TASKS)
        finally:
            await file.close()


@asynccontextmanager
async def restarted(agent: ScriptedAgent) -> AsyncIterator[Restarted]:
    with tempfile.TemporaryDirectory(prefix="sidecar") as name:
        folder = Path(name)
        async with listening(agent.handle) as base, aiohttp.ClientSession() as http:
            write(folder, f"{base}/", settings=CALLED_BACK)
            served = Served(folder)
            await served.start()
            try:
                yield Restarted(agent, served, http)
            finally:
                if served.process is not None and served.process.returncode is None:
                    await served.kill()


async def test_killed_wherever_its_tasks_are_it_loses_none_and_sends_none_twice() -> None:
    never, killed = asyncio.Event(), [False]
    states_ = {"submitted": "SUBMITTED", "working": "WORKING", "asking": "INPUT_REQUIRED"}
    kinds = {kind: f"TASK_STATE_{state}" for kind, state in states_.items()}

    async def sent(_: str, params: dict[str, Any]) -> Any:
        kind = params["metadata"]["task_type"]
        if kind in ("sending", "unsent") and not killed[0]:
            await never.wait()
        return {"task": task(kind, f"c-{kind}", kinds.get(kind, "TASK_STATE_COMPLETED"))}

    def got(_: str, params: dict[str, Any]) -> Any:
        return task(params["id"], f"c-{params['id']}", "TASK_STATE_COMPLETED" if killed[0] else kinds[params["id"]])

    agent = ScriptedAgent(script={"SendMessage": sent, "GetTask": got})
    receiver = Receiver()
    async with listening(receiver.handle) as hook, restarted(agent) as world:
        names = {kind: await world.create(kind) for kind in ("unsent", "sending", *kinds)}
        await until(lambda: len(world.asked_about()) == 3 and agent.methods().count("SendMessage") == len(names))
        await world.served.kill()
        steps = {kind: await world.step_of(task_id) for kind, task_id in names.items()}
        assert steps == {**dict.fromkeys(names, TaskStep.SENT), "sending": TaskStep.SENDING, "unsent": TaskStep.SENDING}
        await world.rewind(names["unsent"])
        told = await world.ended_untold(f"{hook}/tasks")
        killed[0] = True
        await world.served.start()
        found = {kind: await world.ended(task_id) for kind, task_id in names.items()}
        states = {kind: one["state"] for kind, one in found.items()}
        assert states == {**dict.fromkeys(names, "completed"), "sending": "failed"}
        sending = found["sending"]
        assert (sending["error_code"], sending["error_message"]) == ("ExecutionFailed", UNKNOWN_WHETHER_SENT)
        assert sending["started_at"]
        sent_ = [message["params"] for _, message in agent.seen if "message" in message["params"]]
        sends = [params["metadata"]["task_type"] for params in sent_]
        assert sorted(sends) == sorted([*names, "unsent"]), "the one that was rewound, and no other"
        await until(lambda: bool(receiver.heard))
        assert [body["id"] for _, body in receiver.heard] == [told]
        await world.served.kill()
        assert world.served.verify()[0] == 0
        assert {await world.step_of(task_id) for task_id in names.values()} == {TaskStep.OVER}
