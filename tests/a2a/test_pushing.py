"""Who is called back, by whom, and for what? (BL-055)"""

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.a2a.world import ALICE, BOB, CALLED_BACK, HELLO, SPOKEN, AgentWorld, agent_world, ask, task
from tests.flow.world import listening, until
from tests.valkey import running_valkey

SENT = {"message": HELLO}
DONE = {"statusUpdate": {"taskId": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_COMPLETED"}}}


@dataclass
class Receiver:
    """Who is called back."""

    url: str = ""
    heard: list[tuple[dict[str, str], Any]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.heard.append((dict(request.headers), json.loads(await request.read())))
        return web.Response(status=204)

    async def hears(self, count: int = 1) -> None:
        await until(lambda: len(self.heard) >= count)


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    async with listening(receiver.handle) as base:
        receiver.url = f"{base}/hook"
        yield receiver


async def push(world: AgentWorld, config: dict[str, Any], event: Any, **headers: str) -> int:
    """What an agent does that was told this configuration."""
    shown = {"X-A2A-Notification-Token": config.get("token", ""), **headers}
    async with world.http.post(config["url"], json=event, headers=shown) as response:
        return response.status


@pytest.mark.parametrize("way", SPOKEN)
async def test_what_an_agent_pushes_reaches_its_owner_by_us(way: Any, tmp_path: Path) -> None:
    async with receiving() as receiver, agent_world(tmp_path) as world:
        await ask(world, *way, "message/send", SENT)
        wanted = {"taskId": "t1", "id": "p1", "url": receiver.url, "token": "mine"}
        answered = await ask(world, *way, "push/set", wanted)
        assert answered.error is None, answered
        assert answered.results[0]["url"] == receiver.url, "its owner sees what it wrote"
        (told,) = world.agent.configs
        assert told["url"].startswith(f"{world.url}/a2a/push/") and "mine" not in json.dumps(told)
        assert await push(world, told, {"task": task()} if way[0] == "0.3" else DONE) == 204
        await receiver.hears()
        headers, body = receiver.heard[0]
        assert headers["X-A2A-Notification-Token"] == "mine" and headers["webhook-id"]
        assert (body["id"] if way[0] == "0.3" else body["statusUpdate"]["taskId"]) == "t1"


@pytest.mark.parametrize("action", ["message/send", "message/stream"])
async def test_what_comes_inside_a_send_is_for_the_task_that_it_begins(action: str, tmp_path: Path) -> None:
    async with receiving() as receiver, agent_world(tmp_path) as world:
        sent = {**SENT, "configuration": {"taskPushNotificationConfig": {"url": receiver.url, "token": "mine"}}}
        assert (await ask(world, "1.0", "jsonrpc", action, sent)).error is None
        told = world.agent.seen[-1][1]["params"]["configuration"]["taskPushNotificationConfig"]
        assert receiver.url not in json.dumps(told)
        assert await push(world, told, {"statusUpdate": {**DONE["statusUpdate"], "taskId": "t9"}}) == 400
        assert await push(world, told, DONE) == 204
        await receiver.hears()
        assert len(receiver.heard) == 1


REFUSED = ["http://169.254.169.254/latest", "http://127.1/", "file:///etc/passwd"]  # and what `wire/egress` has


async def test_where_nobody_may_be_called_is_refused_before_the_agent_hears_of_it(tmp_path: Path) -> None:
    """BL-055: at registration."""
    async with agent_world(tmp_path) as world:
        await ask(world, "1.0", "jsonrpc", "message/send", SENT)
        reached = len(world.agent.seen)
        for url in REFUSED:
            inside = {**SENT, "configuration": {"taskPushNotificationConfig": {"url": url}}}
            for action, params in (("message/send", inside), ("push/set", {"taskId": "t1", "url": url})):
                answered = await ask(world, "1.0", "jsonrpc", action, params)
                assert answered.error is not None and answered.error["code"] == -32602, (url, action)
        assert len(world.agent.seen) == reached


async def test_nobody_pushes_who_was_not_told_how_nor_for_what_was_deleted(tmp_path: Path) -> None:
    async with receiving() as receiver, agent_world(tmp_path) as world:
        await ask(world, "1.0", "jsonrpc", "message/send", SENT)
        await ask(world, "1.0", "jsonrpc", "push/set", {"taskId": "t1", "id": "p1", "url": receiver.url})
        (told,) = world.agent.configs
        assert await push(world, {**told, "token": "guessed"}, DONE) == 404
        assert await push(world, {**told, "url": f"{world.url}/a2a/push/{'A' * 43}"}, DONE) == 404
        assert await push(world, told, {"nothing": 1}) == 400
        assert await push(world, told, DONE) == 204
        await receiver.hears()
        assert (await ask(world, "1.0", "jsonrpc", "push/delete", {"taskId": "t1", "id": "p1"})).error is None
        assert await push(world, told, DONE) == 404
        assert len(receiver.heard) == 1


async def test_what_an_agent_took_from_elsewhere_is_shown_to_nobody(tmp_path: Path) -> None:
    """Configurations that did not pass here, and those of others, whatever the agent lists."""
    async with receiving() as receiver, agent_world(tmp_path) as world:
        for who in (ALICE, BOB):
            await ask(world, "1.0", "jsonrpc", "message/send", SENT, who)
        await ask(world, "1.0", "jsonrpc", "push/set", {"taskId": "t1", "id": "p1", "url": receiver.url})
        world.agent.configs.append({"taskId": "t2", "id": "x", "url": "https://elsewhere.example/"})
        (mine,) = (await ask(world, "1.0", "jsonrpc", "push/list", {"taskId": "t1"})).results
        assert [one["url"] for one in mine["configs"]] == [receiver.url]
        (others,) = (await ask(world, "1.0", "jsonrpc", "push/list", {"taskId": "t2"}, BOB)).results
        assert others.get("configs", []) == []


async def test_what_is_registered_at_one_replica_is_known_at_the_other(tmp_path: Path) -> None:
    """An agent pushes to one address, behind which any replica may stand."""
    key = tmp_path / "callbacks.key"
    key.write_text(secrets.token_hex(32) + "\n")
    key.chmod(0o600)
    with running_valkey() as server:
        settings = f'tasks: {{store: redis}}\nstore: {{url: "{server.url}"}}\n'
        settings += CALLED_BACK.replace("{", f'{{key_path: "{key}", ', 1)
        async with (
            receiving() as receiver,
            agent_world(tmp_path / "one", settings=settings) as one,
            agent_world(tmp_path / "two", one.agent, settings=settings) as two,
        ):
            await ask(one, "1.0", "jsonrpc", "message/send", SENT)
            wanted = {"taskId": "t1", "id": "p1", "url": receiver.url, "token": "mine"}
            assert (await ask(one, "1.0", "jsonrpc", "push/set", wanted)).error is None
            (told,) = one.agent.configs
            elsewhere = {**told, "url": told["url"].replace(one.url, two.url)}
            assert await push(two, elsewhere, DONE, **{"X-A2A-Notification-Token": "guessed"}) == 404
            assert await push(two, elsewhere, DONE) == 204
            await receiver.hears()
            assert receiver.heard[0][0]["X-A2A-Notification-Token"] == "mine"
            named = {"taskId": "t1", "id": "p1"}
            assert (await ask(two, "1.0", "jsonrpc", "push/get", named)).results[0]["url"] == receiver.url
            assert (await ask(two, "1.0", "jsonrpc", "push/get", named, BOB)).error is not None
            assert (await ask(two, "1.0", "jsonrpc", "push/delete", named)).error is None
            assert await push(one, told, DONE) == 404
