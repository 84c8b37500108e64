"""Who was disabled, or has lost the permission, hears nothing more: neither what waits already nor what is pushed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sidecar.tasks.webhooks import outbox
from tests.a2a.test_pushing import DONE, SENT, Receiver, push, receiving
from tests.a2a.world import ALICE, CALLED_BACK, RULES, AgentWorld, agent_world, ask
from tests.flow.world import PATIENCE_S, listening, until


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "FIRST_RETRY_S", 0.1)


class Busy(Receiver):
    """A receiver that never takes anything."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        await super().handle(request)
        return web.Response(status=500)


async def withheld(world: AgentWorld) -> dict[str, Any]:
    """What is on record of the first callback that was withheld."""
    found: list[dict[str, Any]] = []

    def look() -> bool:
        controls = (record["control"] for record in world.records("control"))
        found[:] = [control for control in controls if control["what"] == "callback-withheld"]
        return bool(found)

    await until(look)
    return found[0]


async def test_the_kill_switch_stops_what_waits_and_what_is_pushed(tmp_path: Path) -> None:
    busy = Busy()
    async with listening(busy.handle) as base, agent_world(tmp_path, settings=CALLED_BACK) as world:
        await ask(world, "1.0", "jsonrpc", "message/send", SENT)
        await ask(world, "1.0", "jsonrpc", "push/set", {"taskId": "t1", "id": "p1", "url": f"{base}/hook"})
        (told,) = world.agent.configs
        assert await push(world, told, DONE) == 204
        await busy.hears()
        await world.app.switch.disable("user:alice", reason="", until=None, by="test")
        sent = len(busy.heard)
        record = await withheld(world)
        assert (record["kind"], record["principal"], record["reason"]) == ("push", "user:alice", "principal-disabled")
        assert await push(world, told, DONE) == 403
        assert len(busy.heard) <= sent + 1, "one may have been on its way"
        assert world.ends()[-1]["reason"] == "principal-disabled" and world.ends()[-1]["method"] == "push"


async def test_a_disabled_agent_says_nothing_also_not_of_the_end_of_a_task(tmp_path: Path) -> None:
    busy = Busy()
    async with listening(busy.handle) as base, agent_world(tmp_path, settings=CALLED_BACK) as world:
        order = {"target_agent_id": "researcher", "task_type": "search", "input": {}, "callback_url": f"{base}/hook"}
        async with world.http.post(f"{world.url}/a2a/tasks", json=order, headers=ALICE) as response:
            assert response.status == 201
        await busy.hears()
        assert busy.heard[0][1]["state"] == "completed"
        await world.app.switch.disable("nhi:researcher", reason="", until=None, by="test")
        record = await withheld(world)
        assert (record["kind"], record["upstream"]) == ("task", "researcher")
        assert list(await world.app.callbacks.outbox.store.waiting()) == []


async def test_a_push_is_asked_of_the_rules_of_now(tmp_path: Path) -> None:
    """Also one whose rule reads the skill that was asked for."""
    skilled = "p, user:alice, nhi:researcher, message/send|push/set, -, -, call.tool == 'search', allow\n"
    async with receiving() as receiver, agent_world(tmp_path, rules={**RULES, "user_to_nhi": skilled}) as world:
        config = {"taskPushNotificationConfig": {"url": receiver.url}}
        sent = {**SENT, "metadata": {"task_type": "search"}, "configuration": config}
        assert (await ask(world, "1.0", "jsonrpc", "message/send", sent)).error is None
        told = world.agent.seen[-1][1]["params"]["configuration"]["taskPushNotificationConfig"]
        assert await push(world, told, DONE) == 204
        await receiver.hears()
        (tmp_path / "policies" / "user_to_nhi.csv").write_text(skilled.replace("search", "write"))
        await world.app.reload("test")
        assert await push(world, told, DONE) == 403
        assert len(receiver.heard) == 1


async def test_who_has_no_secret_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    async with agent_world(tmp_path) as world:
        place = world.url.removeprefix("http://")
        reader, writer = await asyncio.open_connection(*place.split(":"))
        head = f"POST /a2a/push/{'A' * 43} HTTP/1.1\r\nHost: {place}\r\nContent-Type: application/json\r\n"
        writer.write(head.encode() + b"Content-Length: 1000000\r\n\r\n{")
        async with asyncio.timeout(PATIENCE_S):
            status = await reader.readline()
        writer.close()
        assert b" 404 " in status, status
