"""What would have made a task or a conversation somebody else's, or told them of it?"""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sidecar.gateway.frontends.a2a import cards
from sidecar.gateway.frontends.a2a.task_ownership import CONTEXTS
from sidecar.protocols import base64url
from sidecar.upstreams.agents.card import CardKeeper
from tests.a2a.test_pushing import DONE, SENT, push, receiving
from tests.a2a.test_task_api import create, ended
from tests.a2a.world import ALICE, BOB, CARD_10, HELLO, HOOK, RULES, ScriptedAgent, agent_world, ask, saying, task
from tests.flow.world import PATIENCE_S, listening

RPC: Any = ("1.0", "jsonrpc")


async def test_the_same_id_below_another_tenant_is_another_task(tmp_path: Path) -> None:
    """The agent counts its tasks for each tenant of its own."""
    agent = ScriptedAgent()
    agent.script["SendMessage"] = lambda _, params: {"task": task("t1", f"c-{params.get('tenant')}")}
    async with agent_world(tmp_path, agent) as world:
        assert (await ask(world, *RPC, "message/send", {**SENT, "tenant": "one"})).error is None
        assert (await ask(world, *RPC, "message/send", {**SENT, "tenant": "two"}, BOB)).reason == "response-refused"
        assert (await ask(world, *RPC, "tasks/get", {"id": "t1", "tenant": "one"})).error is None
        reached = len(world.agent.seen)
        for tenant in ({"tenant": "two"}, {}):
            for action, params in (
                ("tasks/get", {"id": "t1"}),
                ("tasks/cancel", {"id": "t1"}),
                ("message/send", {"message": {**HELLO, "taskId": "t1"}}),
                ("message/send", {"message": {**HELLO, "contextId": "c-one"}}),
                ("push/set", {"taskId": "t1", "url": HOOK}),
            ):
                answered = await ask(world, *RPC, action, {**params, **tenant})
                assert answered.error is not None and answered.error["code"] == -32001, (action, answered)
        assert len(world.agent.seen) == reached


async def test_who_was_refused_has_begun_nothing(tmp_path: Path) -> None:
    """A send beyond a limit writes nothing down, and takes no conversation from who may send."""
    rules = {**RULES, "user_to_nhi": RULES["user_to_nhi"].replace("-, -, -, allow", "-, 1, -, allow", 1)}
    async with agent_world(tmp_path, rules=rules) as world:
        assert (await ask(world, *RPC, "message/send", SENT)).error is None
        sent = {"message": {**HELLO, "contextId": "common"}}
        assert (await ask(world, *RPC, "message/send", sent)).status == 429
        assert (await ask(world, *RPC, "message/send", sent, BOB)).error is None
        assert await world.app.pipeline.stages.tasks.is_anothers("nobody", "researcher", "common", namespace=CONTEXTS)


async def test_a_message_names_so_many_tasks_and_no_more(tmp_path: Path) -> None:
    async with agent_world(tmp_path) as world:
        named = {"message": {**HELLO, "referenceTaskIds": [f"t{n}" for n in range(101)]}}
        answered = await ask(world, *RPC, "message/send", named)
        assert answered.error is not None and answered.error["code"] == -32602


async def test_a_task_without_a_name_is_none(tmp_path: Path) -> None:
    """Nobody could own it, nor ask for it again."""
    nameless = {"contextId": "c1", "status": {"state": "TASK_STATE_WORKING"}}
    agent = saying(SendMessage={"task": nameless}, SendStreamingMessage=[{"statusUpdate": nameless}])
    async with agent_world(tmp_path, agent) as world:
        for action in ("message/send", "message/stream"):
            assert (await ask(world, *RPC, action, SENT)).reason == "response-refused"
        shown = await ended(world, await create(world))
        assert (shown["state"], shown["error_code"]) == ("failed", "ExecutionFailed")


async def test_an_agent_cannot_push_out_what_its_caller_has_elsewhere(tmp_path: Path) -> None:
    """One that tells of ever more tasks would make its caller lose the oldest, at every agent and server."""
    agent = saying(SendStreamingMessage=[{"task": task(f"x{n}", "c1")} for n in range(30)])
    async with agent_world(tmp_path, agent, settings="tasks: {max_per_principal: 20}\n") as world:
        await ask(world, *RPC, "message/send", SENT)
        streamed = await ask(world, *RPC, "message/stream", SENT)
        assert streamed.reason == "response-refused" and len(streamed.results) == 1
        assert (await ask(world, *RPC, "tasks/get", {"id": "t1"})).error is None


async def test_a_page_tells_nothing_of_the_tasks_of_others(tmp_path: Path) -> None:
    """The official SDK's page tokens are the id of the next task, and how many pages there are is how many tasks."""
    agent = ScriptedAgent()

    def listed(_: str, params: dict[str, Any]) -> dict[str, Any]:
        size, start = params.get("pageSize", 50), int(base64.b64decode(params.get("pageToken", "")).decode()[1:] or 1)
        more = base64.b64encode(f"t{start + size}".encode()).decode() if start + size <= agent.made else ""
        names = range(start, min(agent.made + 1, start + size))
        tasks = [task(f"t{n}", f"c{n}") for n in names]
        return {"tasks": tasks, "nextPageToken": more, "pageSize": size, "totalSize": agent.made}

    agent.script["ListTasks"] = listed
    async with agent_world(tmp_path, agent) as world:
        for who in (ALICE, BOB, BOB, BOB, ALICE, BOB):
            assert (await ask(world, *RPC, "message/send", SENT, who)).error is None
        pages, token = [], ""
        while True:
            (page,) = (await ask(world, *RPC, "tasks/list", {"pageSize": 1, "pageToken": token})).results
            pages.append([one["id"] for one in page["tasks"]])
            token = page["nextPageToken"]
            if not token:
                break
            assert b"t2" not in base64url.decode(token)
            stolen = await ask(world, *RPC, "tasks/list", {"pageSize": 1, "pageToken": token}, BOB)
            assert stolen.error is not None and stolen.error["code"] == -32602
        assert pages in ([["t1"], ["t5"]], [["t1"], ["t5"], []])
        for wrong in ({"pageToken": base64.b64encode(b"t2").decode()}, *({"pageSize": n} for n in (0, -1, 101))):
            refused = await ask(world, *RPC, "tasks/list", wrong)
            assert refused.error is not None and refused.error["code"] == -32602, wrong


async def test_two_configurations_of_one_task_that_came_inside_sends_live_beside_each_other(tmp_path: Path) -> None:
    async with receiving() as receiver, agent_world(tmp_path) as world:
        told = []
        for name, more in (("a", {}), ("b", {"taskId": "t1"})):
            config = {"id": name, "url": f"{receiver.url}/{name}"}
            sent = {"message": {**HELLO, **more}, "configuration": {"taskPushNotificationConfig": config}}
            assert (await ask(world, *RPC, "message/send", sent)).error is None
            told.append(world.agent.seen[-1][1]["params"]["configuration"]["taskPushNotificationConfig"])
        assert [await push(world, one, DONE) for one in told] == [204, 204]
        await receiver.hears(2)
        assert (await ask(world, *RPC, "push/delete", {"taskId": "t1", "id": "a"})).error is None
        assert [await push(world, one, DONE) for one in told] == [404, 204]


async def test_an_address_that_is_bound_to_no_task_yet_is_never_bound_to_anothers(tmp_path: Path) -> None:
    """An agent that mixes its callers up tells nobody's receiver of another's task."""
    agent, asked = ScriptedAgent(), asyncio.Event()
    pushed: list[int] = []

    async def answer(_: str, params: dict[str, Any]) -> Any:
        config = params.get("configuration", {}).get("taskPushNotificationConfig")
        if config is None:
            return {"task": task("t1", "c1")}
        pushed.append(await push(world, config, DONE))
        pushed.append(await push(world, config, {"task": task("t2", "c2")}))
        asked.set()
        return {"task": task("t2", "c2")}

    agent.script["SendMessage"] = answer
    async with receiving() as receiver, agent_world(tmp_path, agent) as world:
        assert (await ask(world, *RPC, "message/send", SENT, BOB)).error is None
        sent = {**SENT, "configuration": {"taskPushNotificationConfig": {"url": receiver.url}}}
        assert (await ask(world, *RPC, "message/send", sent)).error is None
        await receiver.hears()
        assert pushed == [400, 204] and receiver.heard[0][1]["task"]["id"] == "t2"


@pytest.mark.parametrize("what", ["cards", "calls"])
async def test_a_card_that_cannot_be_had_holds_nobody_up_twice(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers may ask for it: each must not be one more time-out that every call of the agent waits for."""
    monkeypatch.setattr("sidecar.upstreams.agents.card.DEADLINE_S", 0.2)

    asked: list[str] = []

    async def hangs(request: web.Request) -> web.Response:
        asked.append(request.path)
        await asyncio.Event().wait()
        raise AssertionError

    async with (
        listening(hangs) as elsewhere,
        agent_world(tmp_path, a2a=f'card_url: "{elsewhere}/card"', spoken="auto") as world,
    ):
        card = f"{world.url}/agents/researcher/.well-known/agent-card.json"

        async def one() -> int:
            if what == "calls":
                return (await ask(world, *RPC, "message/send", SENT)).status
            async with world.http.get(card) as response:
                return response.status

        assert set(await asyncio.gather(*(one() for _ in range(20)))) == {404 if what == "cards" else 200}
        assert len(asked) <= 2


async def test_a_card_is_written_once_however_often_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may ask, and an agent may have made it long in the writing. No two signatures of ES256 are the same."""
    monkeypatch.setattr("sidecar.upstreams.agents.card.KEPT_S", 0.0)
    written: list[bytes] = []
    async with agent_world(tmp_path) as world:
        for who, many in (({}, 1), ({}, 1), (ALICE, 2), (BOB, 2), ({}, 2), ({}, 3)):
            if many == 3:
                world.agent.card = {**world.agent.card, "version": "2"}
            url = f"{world.url}/agents/researcher/.well-known/agent-card.json"
            async with world.http.get(url, headers=who) as response:
                written.append(await response.read())
            assert response.status == 200 and len(set(written)) == many
        assert world.agent.cards >= 5 and json.loads(written[-1])["version"] == "2"


def test_the_cards_that_are_kept_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "MAX_WRITTEN_BYTES", 100)
    written, view = cards.CardText(), cards.CardView((), frozenset())
    for n in range(10):
        written.of({"n": n}, (str(n), "", "", view), lambda: {"x": "y" * 20})
    assert len(written.kept) == 3 and written.size == sum(len(body) for _, body in written.kept.values()) <= 100
    assert written.of({}, ("large", "", "", view), lambda: {"x": "y" * 200}) and written.size == 0


async def test_an_agent_that_was_changed_is_spoken_to_as_it_is_now_and_no_call_waits_for_that() -> None:
    now_s, may_answer = 0.0, asyncio.Event()
    may_answer.set()
    old = {"name": "n", "version": "1", "url": "http://a.example/", "capabilities": {}, "protocolVersion": "0.3.0"}
    said: dict[str, Any] = {**old, "skills": [], "defaultInputModes": [], "defaultOutputModes": [], "description": ""}

    async def get(within_s: float) -> bytes:
        await may_answer.wait()
        return json.dumps(said).encode()

    keeper = CardKeeper(get, "jsonrpc", None, lambda: now_s)
    await keeper.prepare()
    assert keeper.version() == "0.3"
    said, now_s = {**CARD_10}, 61.0
    may_answer.clear()
    async with asyncio.timeout(PATIENCE_S):
        await keeper.prepare()
    assert keeper.version() == "0.3"
    may_answer.set()
    assert (await keeper.card())["name"] == "Researcher" and keeper.version() == "1.0"
    may_answer.clear()
    now_s = 130.0
    await keeper.prepare()
    await keeper.close()
