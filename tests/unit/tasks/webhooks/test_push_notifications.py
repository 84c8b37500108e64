"""Does what an agent pushes reach whoever asked for it, and nobody else?"""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from a2a.server.context import ServerCallContext
from a2a.server.tasks import BasePushNotificationSender, InMemoryPushNotificationConfigStore
from a2a.types import a2a_pb2
from aiohttp import web
from google.protobuf.json_format import MessageToDict, ParseDict

from sidecar.errors import Reason, Refusal
from sidecar.gateway.frontends.a2a import push_notifications
from sidecar.gateway.frontends.a2a.push_notifications import PATH, PushConfigs
from sidecar.http.client import GuardedClient
from sidecar.settings.callbacks import CallbackSettings
from sidecar.storage import RecordBounds, RecordStore, SqliteFile, SqliteRecordStore
from sidecar.storage.push_configs import PUSHES, PushRecord
from sidecar.tasks.webhooks.outbox import Outbox
from tests.a2a.agents import NO_OLD, OLD_PYTHON
from tests.flow.world import listening
from tests.unit.http.client.hostile import Hostile, response, say, serving
from tests.unit.tasks.webhooks.receiving import HERE, Seen, for_, header, running, verified

TAKEN = response(b"", status="204 No Content", framing="")
HERS = "alices-own-token"
BEHALF, ANOTHER = for_("alice"), for_("bob")
OWNER, OTHER = BEHALF.caller.binding, ANOTHER.caller.binding
TASK = {"id": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_WORKING"}}
TASK_03 = {"kind": "task", "id": "t-1", "contextId": "c-1", "status": {"state": "working"}}
STATUS = {"taskId": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_COMPLETED"}}


@dataclass
class World:
    pushes: PushConfigs
    seen: Seen
    receiver: Hostile
    store: RecordStore[PushRecord]
    outbox: Outbox

    def config(self, **more: Any) -> dict[str, Any]:
        return {
            "url": self.receiver.url,
            "token": HERS,
            "authentication": {"scheme": "Basic", "credentials": "eA=="},
        } | more

    async def registered(self, task_id: str = "t-1", version: Any = "1.0", **more: Any) -> tuple[str, str]:
        """The handle, and our secret."""
        rewritten = await self.pushes.register(BEHALF, task_id, self.config(**more), version)
        return rewritten.handle, rewritten.config["token"]

    async def push(self, handle: str, secret: str, body: Any, *, arrives: bool = True) -> bytes:
        """What the receiver got of it."""
        before = len(self.seen.told)
        await pushed(self.pushes, handle, secret, "", json.dumps(body).encode())
        if not arrives:
            return b""
        await self.seen.until(before + 1)
        return self.receiver.requests[-1]


async def nobodys(owner: str, server: str, task_id: str) -> bool:
    return False


async def as_it_is(owner: str, agent: str, event: dict[str, Any]) -> dict[str, Any]:
    return event


async def pushed(pushes: PushConfigs, handle: str, token: str, authorization: str, body: bytes) -> None:
    """As an agent's request is taken."""
    await pushes.pushed(await pushes.knocked(handle, token, authorization), body)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    store = SqliteRecordStore(SqliteFile(None), PUSHES)
    settings = CallbackSettings.model_validate(HERE)

    async def nobody(host: str, port: int) -> Sequence[str]:
        return ["10.0.0.1"]

    async with serving(say(TAKEN)) as receiver, running() as (box, seen):
        pushes = PushConfigs(
            store=store,
            outbox=box,
            check=GuardedClient(lambda: settings, nobody).check,
            is_anothers=nobodys,
            shows=as_it_is,
            base_url=lambda: "https://gw.acme.example",
            clock=time.time,
            new_secret=lambda: secrets.token_urlsafe(32),
            keep_s=lambda: 100.0,
        )
        yield World(pushes, seen, receiver, store, box)


async def refused(awaitable: Any) -> Reason:
    with pytest.raises(Refusal) as told:
        await awaitable
    assert HERS not in told.value.detail
    return told.value.reason


async def test_what_it_pushes_arrives_with_its_callers_credentials_in_its_callers_version(world: World) -> None:
    handle, secret = await world.registered()
    request = await world.push(handle, secret, {"task": TASK})
    assert json.loads(verified(request, world.receiver.url)) == {"task": TASK}
    assert header(request, "x-a2a-notification-token") == HERS
    assert header(request, "authorization") == "Basic eA=="
    assert header(request, "content-type") == "application/a2a+json"
    request = await world.push(handle, secret, TASK_03)
    assert json.loads(verified(request, world.receiver.url)) == {"task": TASK}, "an agent of 0.3, a caller of 1.0"
    handle, secret = await world.registered(version="0.3", token="", authentication={"scheme": "Bearer"})
    for body, state in (({"task": TASK}, "working"), (TASK_03, "working"), ({"statusUpdate": STATUS}, "completed")):
        request = await world.push(handle, secret, body)
        told = json.loads(verified(request, world.receiver.url))
        assert (told["kind"], told["id"], told["contextId"], told["status"]["state"]) == ("task", "t-1", "c-1", state)
        assert header(request, "content-type") == "application/json"
        assert b"authorization" not in request.lower() and b"x-a2a-notification-token" not in request.lower()
    artifact = {"taskId": "t-1", "contextId": "c-1", "artifact": {"artifactId": "a", "parts": [{"text": "x"}]}}
    await world.push(handle, secret, {"artifactUpdate": artifact}, arrives=False)
    assert list(await world.outbox.store.waiting()) == [], "0.3 has no word for it"


async def test_who_does_not_hold_our_secret_pushes_nothing(world: World) -> None:
    handle, secret = await world.registered()
    body = json.dumps({"task": TASK}).encode()
    for each, token, authorization in (
        (handle, "", ""), (handle, HERS, ""), (handle, secret[:-1], ""), (handle, "", "Basic eA=="),
        (handle, "", f"Basic {secret}"), (handle, "é\udc80", "Bearer "), (handle, "", "Bearer"),
        ("x" * 43, secret, ""), ("", secret, ""), (f"{handle}/", secret, ""), (handle + "\n", secret, ""),
    ):  # fmt: skip
        assert await refused(pushed(world.pushes, each, token, authorization, body)) is Reason.ROUTE_UNKNOWN
    await pushed(world.pushes, handle, "", f"bearer {secret}", body)
    await world.seen.until(1)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"null", b"{}", b"{", b'{"task": {}}', b'{"task": {"id": "t-1"}, "message": {}}', b'{"kind": "x"}',
        b'{"task": {"id": "t-1", "id": "t-2"}}', b'{"task": {"id": "t-2", "status": {"state": "TASK_STATE_WORKING"}}}',
        b'{"kind": "task", "id": "t-2", "contextId": "c", "status": {"state": "working"}}',
        b'{"task": {"id": "", "status": {"state": "TASK_STATE_WORKING"}}}',
        b'{"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "x"}]}}',
        b'{"statusUpdate": {"taskId": "t-2", "status": {"state": "TASK_STATE_COMPLETED"}}}', b"[" * 10_000, b"\xff",
    ],
)  # fmt: skip
async def test_what_is_no_notification_of_this_task_goes_nowhere(world: World, body: bytes) -> None:
    """A configuration is for one task; no task is not every task."""
    handle, secret = await world.registered()
    assert await refused(pushed(world.pushes, handle, secret, "", body)) is Reason.MALFORMED_CALL
    assert list(await world.outbox.store.waiting()) == []


async def test_what_came_inside_a_send_belongs_to_the_first_task_that_it_is_about(world: World) -> None:
    handle, secret = await world.registered("")
    await world.push(handle, secret, {"task": TASK})
    other = {"task": {**TASK, "id": "t-2"}}
    assert await refused(world.push(handle, secret, other)) is Reason.MALFORMED_CALL
    handle, secret = await world.registered("")
    await world.pushes.accepted(handle, "t-2")
    assert await refused(world.push(handle, secret, {"task": TASK})) is Reason.MALFORMED_CALL
    await world.push(handle, secret, other)


@pytest.mark.parametrize(
    "wrong",
    [
        {"token": "a\r\nX: 1"}, {"token": "é"}, {"token": "x" * 4097}, {"authentication": {"scheme": "Bad Scheme"}},
        {"authentication": {"scheme": "Bearer", "credentials": "a\nb"}}, {"authentication": {"scheme": "B\r\n"}},
    ],
)  # fmt: skip
async def test_what_no_header_can_carry_is_refused_when_it_is_registered(world: World, wrong: dict[str, Any]) -> None:
    config = world.config(**wrong)
    assert await refused(world.pushes.register(BEHALF, "t", config, "1.0")) is Reason.MALFORMED_CALL


async def test_a_configuration_is_shown_to_its_owner_only(world: World) -> None:
    rewritten = await world.pushes.register(BEHALF, "t-1", world.config(tenant="acme"), "1.0")
    told = {**rewritten.config, "id": "named-by-the-agent", "taskId": "t-1"}
    mine = await world.pushes.original(OWNER, "planner", told)
    assert mine == world.config(tenant="acme", id="named-by-the-agent", taskId="t-1")
    assert told["url"] == f"https://gw.acme.example{PATH}{rewritten.handle}"
    assert told["authentication"] == {"scheme": "Bearer", "credentials": told["token"]}
    assert not any(secret in json.dumps(told) for secret in (HERS, "eA==", world.receiver.url))
    for owner, server, config in (
        (OTHER, "planner", told), (OWNER, "other", told), (OWNER, "planner", {**told, "taskId": "t-2"}),
        (OWNER, "planner", {**told, "url": "https://hooks.example/"}), (OWNER, "planner", {}),
        (OWNER, "planner", {**told, "url": told["url"] + "x"}),
    ):  # fmt: skip
        assert await world.pushes.original(owner, server, config) is None


async def test_what_was_deleted_is_pushed_to_nobody_even_what_waits(world: World) -> None:
    handle, secret = await world.registered(id="cfg")
    for owner, server, task_id, config_id in (
        (OTHER, "planner", "t-1", "cfg"), (OWNER, "other", "t-1", "cfg"), (OWNER, "planner", "t-2", "cfg"),
        (OWNER, "planner", "t-1", ""), (OWNER, "planner", "t-1", "t-1"), (OWNER, "planner", "", ""),
    ):  # fmt: skip
        await world.pushes.forget(owner, server, task_id, config_id)
    await world.push(handle, secret, {"task": TASK})
    for forgets in (
        lambda _: world.pushes.forget(OWNER, "planner", "t-1", "cfg"),
        lambda _: world.pushes.forget(OWNER, "planner", "t-1", "t-1"),
        world.pushes.abandon,
    ):
        await forgets(handle)
        assert await refused(world.push(handle, secret, {"task": TASK})) is Reason.ROUTE_UNKNOWN
        handle, secret = await world.registered()


async def test_a_configuration_of_the_same_name_replaces_the_older_one(world: World) -> None:
    old, old_secret = await world.registered(id="cfg")
    new, new_secret = await world.registered(id="cfg")
    await world.push(old, old_secret, {"task": TASK})
    await world.pushes.accepted(new, "t-1", "cfg")
    assert await refused(world.push(old, old_secret, {"task": TASK})) is Reason.ROUTE_UNKNOWN
    await world.push(new, new_secret, {"task": TASK})


async def test_there_are_so_many_configurations_of_one_chain(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push_notifications, "BOUNDS", RecordBounds(per_owner=2))
    pushes = world.pushes
    for _ in range(2):
        await pushes.register(BEHALF, "t", world.config(), "1.0")
    assert await refused(pushes.register(BEHALF, "t", world.config(), "1.0")) is Reason.TOO_MANY_CONCURRENT
    await pushes.register(ANOTHER, "t", world.config(), "1.0")


@asynccontextmanager
async def at_an_address(pushes: PushConfigs) -> AsyncIterator[str]:
    """Where agents push to, for one real agent."""

    async def take(request: web.BaseRequest) -> web.Response:
        token, authorization = (request.headers.get(name, "") for name in ("X-A2A-Notification-Token", "Authorization"))
        await pushed(pushes, request.path.removeprefix(PATH), token, authorization, await request.read())
        return web.Response(status=204)

    async with listening(take) as base:
        yield base


async def test_the_official_agent_of_1_0_pushes_through_us(world: World) -> None:
    handle, told = await world.pushes.register(BEHALF, "t-1", world.config(taskId="t-1"), "1.0")
    async with at_an_address(world.pushes) as here, httpx.AsyncClient() as client:
        config = ParseDict({**told, "url": f"{here}{PATH}{handle}"}, a2a_pb2.TaskPushNotificationConfig())
        kept = InMemoryPushNotificationConfigStore()
        await kept.set_info("t-1", config, ServerCallContext())
        sender = BasePushNotificationSender(client, kept)
        update = ParseDict(STATUS, a2a_pb2.TaskStatusUpdateEvent())
        for event in (ParseDict(TASK, a2a_pb2.Task()), update):
            await sender.send_notification("t-1", event)
    await world.seen.until(2)
    heard = [json.loads(verified(request, world.receiver.url)) for request in world.receiver.requests]
    assert heard == [{"task": TASK}, {"statusUpdate": MessageToDict(update)}]


OLD_AGENT = """
import asyncio, json, sys
import httpx
from a2a.server.tasks import BasePushNotificationSender, InMemoryPushNotificationConfigStore
from a2a.types import PushNotificationConfig, Task
async def main(config, task):
    kept = InMemoryPushNotificationConfigStore()
    await kept.set_info("t-1", PushNotificationConfig.model_validate(config))
    async with httpx.AsyncClient() as client:
        await BasePushNotificationSender(client, kept).send_notification(Task.model_validate(task))
asyncio.run(main(*map(json.loads, sys.argv[1:])))
"""


@pytest.mark.skipif(not OLD_PYTHON.is_file(), reason=NO_OLD)
async def test_the_official_agent_of_0_3_pushes_through_us_to_a_caller_of_1_0(world: World) -> None:
    handle, told = await world.pushes.register(BEHALF, "t-1", world.config(), "1.0")
    async with at_an_address(world.pushes) as here:
        config = {"url": f"{here}{PATH}{handle}", "token": told["token"]}
        program = (str(OLD_PYTHON), "-c", OLD_AGENT, json.dumps(config), json.dumps(TASK_03))
        process = await asyncio.create_subprocess_exec(*program)
        assert await process.wait() == 0
    await world.seen.until(1)
    assert json.loads(verified(world.receiver.requests[0], world.receiver.url)) == {"task": TASK}
