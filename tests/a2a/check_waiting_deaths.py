"""Messages that wait for approval when the sidecar is killed, when two share a store, and when the agent needs the
caller's own token: each approved message is sent once, and its evidence is there."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sidecar.tasks.api import task_runner
from sidecar.tasks.api.task_lifecycle import UNKNOWN_WHETHER_SENT
from tests.a2a.approving import DMITRI, ROLES, answer, approving_world, requests, rules_of
from tests.a2a.test_task_api import ORDER, call, ended
from tests.a2a.test_waiting_messages import DONE, QUICK, RPC, WAITS, sent, until_state
from tests.a2a.world import ALICE, HELLO, IDP, ScriptedAgent, ask, task, write
from tests.flow.idp import bearer
from tests.flow.process import Served
from tests.flow.world import PATIENCE_S, listening, until
from tests.valkey import running_valkey


@dataclass
class Killable:
    """A process before an agent, which can be killed."""

    agent: ScriptedAgent
    served: Served
    http: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return self.served.url

    async def send(self, text: str) -> dict[str, Any]:
        message = {**HELLO, "messageId": text, "parts": [{"text": text}]}
        found: dict[str, Any] = (await ask(self, *RPC, "message/send", {"message": message})).results[0]["task"]
        return found

    async def until_state(self, task_id: str, wanted: str) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found: dict[str, Any] = (await ask(self, *RPC, "tasks/get", {"id": task_id})).results[0]
                if found["status"]["state"] == wanted:
                    return found
                await asyncio.sleep(0.05)

    async def approve(self, name: str) -> int:
        connector = aiohttp.UnixConnector(str(self.served.folder / "data" / "control.sock"))
        url = f"http://localhost/api/approvals/{name}/approve"
        async with (
            aiohttp.ClientSession(connector=connector) as http,
            http.post(url, json={"principal": "user:dmitri"}) as response,
        ):
            return response.status

    def texts(self) -> list[str]:
        """What the agent was sent."""
        methods = ("SendMessage", "SendStreamingMessage")
        messages = [message["params"]["message"] for _, message in self.agent.seen if message["method"] in methods]
        return [message["parts"][0].get("text", "ordered") for message in messages]


@asynccontextmanager
async def killable(agent: ScriptedAgent) -> AsyncIterator[Killable]:
    with tempfile.TemporaryDirectory(prefix="sidecar") as name:
        folder = Path(name)
        async with listening(agent.handle) as base, aiohttp.ClientSession() as http:
            write(folder, f"{base}/", rules=rules_of(), files=ROLES, settings=QUICK)
            served = Served(folder)
            await served.start()
            try:
                yield Killable(agent, served, http)
            finally:
                if served.process is not None and served.process.returncode is None:
                    await served.kill()


async def test_killed_while_messages_wait_or_are_sent_it_sends_none_twice() -> None:
    never, killed = asyncio.Event(), [False]

    async def answered(_: str, params: dict[str, Any]) -> Any:
        text = params["message"]["parts"][0].get("text", "ordered")
        if text == "sending" and not killed[0]:
            await never.wait()
        return {"task": task(f"t-{text}", params["message"].get("contextId", "c1"))}

    agent = ScriptedAgent(script={"SendMessage": answered})
    async with killable(agent) as world:
        waiting, sending = await world.send("waiting"), await world.send("sending")
        async with world.http.post(f"{world.url}/a2a/tasks", json=ORDER, headers=ALICE) as response:
            ordered = await response.json()
        assert ordered["status"] == "waiting"
        names = [one["metadata"]["sidecar/approval"]["id"] for one in (waiting, sending)]
        assert await world.approve(names[1]) == 200
        await until(lambda: world.texts() == ["sending"])
        await world.served.kill()
        killed[0] = True
        await world.served.start()
        failed = await world.until_state(sending["id"], "TASK_STATE_FAILED")
        assert failed["status"]["message"]["parts"] == [{"text": UNKNOWN_WHETHER_SENT}]
        await world.until_state(waiting["id"], WAITS)
        assert await world.approve(names[0]) == 200
        await world.until_state(waiting["id"], DONE)
        assert await world.approve(names[1]) == 409, "it was used"
        assert world.texts() == ["sending", "waiting"]
        task_url = f"{world.url}/a2a/tasks/{ordered['task_id']}"
        async with world.http.get(task_url, headers=ALICE) as response:
            names.append((await response.json())["approval"]["id"])
        assert await world.approve(names[2]) == 200
        await until(lambda: world.texts() == ["sending", "waiting", "ordered"])
        records = world.served.records()
        used = [record["approval"]["id"] for record in records if record["event"] == "decision" and record["approval"]]
        assert used == [names[1], names[0], names[2]], "each is used by the decision that is on record"
        assert world.served.verify()[0] == 0


async def test_two_replicas_send_an_approved_message_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_runner, "LOOK_EVERY_S", 0.05)
    agent = ScriptedAgent()
    with running_valkey() as server:
        settings = "tasks: {ask_every_s: 0.05, store: redis}\naudit: {key_path: audit.key}\n"
        more: dict[str, Any] = {"files": {"audit.key": sha256(b"shared").hexdigest()}}
        more["settings"] = f'{settings}store: {{url: "{server.url}"}}\n'
        async with approving_world(tmp_path / "two", agent, **more) as two:
            async with approving_world(tmp_path / "one", agent, **more) as one:
                first = (await ask(one, *RPC, "message/send", {"message": HELLO})).results[0]["task"]
                stream = asyncio.create_task(ask(one, *RPC, "message/stream", {"message": HELLO}))
                await until(lambda: bool(one.app.pipeline.live.requests))
                async with asyncio.timeout(PATIENCE_S):
                    while len(found := await requests(two)) < 2:
                        await asyncio.sleep(0.01)
                for record in found:
                    await two.app.approvals.answer(record.name, DMITRI, "approve")
                await until_state(two, first["id"], DONE)
                streamed = await stream
                assert streamed.results[-1]["statusUpdate"]["status"]["state"] == DONE
                second = (await ask(one, *RPC, "message/send", {"message": {**HELLO, "messageId": "m2"}})).results[0]
                assert (await ask(two, *RPC, "tasks/get", {"id": second["task"]["id"]})).error is None
            assert (await answer(two)).name  # the other replica has stopped
            await until_state(two, second["task"]["id"], DONE)
            assert len(sent(two)) == 3


async def test_an_agent_that_needs_the_callers_token_gets_it_with_the_callers_next_request(tmp_path: Path) -> None:
    more: dict[str, Any] = {"settings": QUICK, "upstream": "credential: {passthrough: true}"}
    async with approving_world(tmp_path, **more) as world:
        alice = bearer(IDP.token("user:alice", f"{world.url}/agents/researcher"))
        waiting = (await ask(world, *RPC, "message/send", {"message": HELLO}, alice)).results[0]["task"]
        await answer(world)
        await asyncio.sleep(0.2)
        assert sent(world) == [], "the token of the first request is not kept"
    agent = world.agent
    async with approving_world(tmp_path, agent, **more) as world:
        alice = bearer(IDP.token("user:alice", f"{world.url}/agents/researcher"))
        async with asyncio.timeout(PATIENCE_S):
            while True:
                answered = await ask(world, *RPC, "tasks/get", {"id": waiting["id"]}, alice)
                if answered.results[0]["status"]["state"] == DONE:
                    break
                await asyncio.sleep(0.05)
        (headers, _) = next(one for one in agent.seen if one[1]["method"] == "SendMessage")
        assert headers["Authorization"] == alice["Authorization"]
        assert len(sent(world)) == 1


async def test_a_task_for_such_an_agent_goes_on_when_its_caller_reads_it(tmp_path: Path) -> None:
    more: dict[str, Any] = {"settings": QUICK, "upstream": "credential: {passthrough: true}"}
    async with approving_world(tmp_path, **more) as world:
        alice = bearer(IDP.token("user:alice", [f"{world.url}/agents/researcher", f"{world.url}/a2a/tasks"]))
        status, made = await call(world, "POST", body=ORDER, who=alice)
        assert (status, made["status"]) == (201, "waiting")
        await answer(world)
        await asyncio.sleep(0.2)
        assert sent(world) == []
        assert (await ended(world, made["task_id"], alice))["state"] == "completed"
        assert world.agent.seen[-1][0]["Authorization"] == alice["Authorization"]
