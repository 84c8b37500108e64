"""Do two sidecars with one store have the same tasks, and does one go on with what the other had?"""

from pathlib import Path

import pytest

from sidecar.tasks.api import task_runner
from tests.a2a.test_task_api import DONE, WORKING, busy, call, create, ended
from tests.a2a.world import BOB, agent_world, ask, task
from tests.valkey import running_valkey


async def test_what_one_began_the_other_goes_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_runner, "LOOK_EVERY_S", 0.05)
    agent, made = busy(WORKING), iter(range(1, 10))

    def stands(name: str, state: str) -> dict[str, object]:
        return task(name, name.replace("t", "c"), state)

    def sent(method: str, params: dict[str, object]) -> object:
        number = next(made)
        return {"task": task(f"t{number}", f"c{number}", WORKING)}

    agent.script["SendMessage"] = sent
    agent.script["GetTask"] = lambda _, params: stands(params["id"], WORKING)
    agent.script["CancelTask"] = lambda _, params: stands(params["id"], "TASK_STATE_CANCELED")
    with running_valkey() as server:
        settings = f'tasks: {{ask_every_s: 0.05, store: redis}}\nstore: {{url: "{server.url}"}}\n'
        async with agent_world(tmp_path / "two", agent, settings=settings) as two:
            async with agent_world(tmp_path / "one", agent, settings=settings) as one:
                first, second = await create(one), await create(one)
                shown = await ended(two, first, until="running")
                assert (await call(two, "GET"))[1]["total"] == 2
                assert (await call(two, "GET", f"/{first}", who=BOB))[0] == 404
                named = {"id": shown["a2a"]["task_id"]}
                assert (await ask(two, "1.0", "jsonrpc", "tasks/get", named)).error is None
                assert (await ask(two, "1.0", "jsonrpc", "tasks/get", named, BOB)).reason == "task-unknown"
                assert (await call(two, "POST", f"/{first}/cancel"))[0] == 200
                assert (await call(one, "GET", f"/{first}"))[1]["state"] == "cancelled"
            agent.script["GetTask"] = lambda _, params: stands(params["id"], DONE)
            assert (await ended(two, second))["state"] == "completed"
            assert agent.methods().count("SendMessage") == 2
