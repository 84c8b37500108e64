"""Does the whole chain hold, from sidecar to sidecar?

Alice calls the planner, which calls the researcher, which calls the writer: each agent has a sidecar before it and
shows, to the next one, what its own was told. Every sidecar sees everybody, decides every link, and believes nobody's
word alone.
"""

import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
from aiohttp import web

from sidecar.app.application import Application
from sidecar.http.signing_keys import generate
from tests.a2a.world import ALICE, HELLO, ScriptedAgent, task, write
from tests.flow.idp import SETTINGS, bearer
from tests.flow.world import listening, started

LENDS = "message/send|delegate"
TO_PLANNER = f"p, user:alice, nhi:planner, {LENDS}, -, -, -, allow\n"
TO_RESEARCHER = f"p, nhi:planner, nhi:researcher, {LENDS}, -, -, -, allow\n"
TO_WRITER = f"p, nhi:researcher, nhi:writer, {LENDS}, -, -, -, allow\n"


@dataclass
class Passing(ScriptedAgent):
    """An agent that asks the next one, showing what it was shown."""

    onward: str = ""
    shown: list[str] = field(default_factory=list)
    told: list[tuple[int, Any]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST":
            self.shown.append(request.headers["Authorization"])
            if self.onward:
                self.told.append(await send(self.onward, {"Authorization": request.headers["Authorization"]}))
                if self.told[-1][0] != 200:
                    message = json.loads(await request.read())
                    failed = {"task": {**task(), "status": {"state": "TASK_STATE_FAILED"}}}
                    return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": failed})
        return await super().handle(request)


async def send(url: str, headers: dict[str, str]) -> tuple[int, Any]:
    message = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": HELLO}}
    headers = {**headers, "A2A-Version": "1.0"}
    async with aiohttp.ClientSession() as http, http.post(url, json=message, headers=headers) as response:
        return response.status, await response.json()


@dataclass
class Row:
    """Three sidecars in a row, and the agents behind them."""

    folders: list[Path]
    apps: list[Application]
    agents: list[Passing]

    def url(self, place: int, agent: str, *, local: bool = False) -> str:
        return f"http://127.0.0.1:{self.apps[place].listeners[1 if local else 0].port}/agents/{agent}/"

    def records(self, place: int) -> list[dict[str, Any]]:
        lines = self.apps[place].settings.audit_path.read_bytes().splitlines()
        ends = (record for record in map(json.loads, lines) if record["event"] in ("outcome", "refusal"))
        return [record for record in ends if record["method"] != "jwks"]


@asynccontextmanager
async def row(folder: Path) -> AsyncIterator[Row]:
    names, workloads = ("planner", "researcher", "writer"), ("", "planner", "researcher")
    users, nhis = TO_PLANNER, (TO_RESEARCHER, TO_RESEARCHER + TO_WRITER)
    made = Row([], [], [])
    async with AsyncExitStack() as stack:
        for place, (name, workload) in enumerate(zip(names, workloads, strict=True)):
            agent = Passing()
            url = await stack.enter_async_context(listening(agent.handle))
            here = folder / name
            local, issuers = "", SETTINGS
            if workload:
                before = made.apps[-1].live.current.base_url
                local = f'local: [{{listen: "127.0.0.1:0", principal: "nhi:{workload}"}}]\n'
                issuers = (
                    f'identity:\n  issuers: [{{issuer: "{before}", preset: sidecar, '
                    f'jwks_url: "{before}/.well-known/jwks.json", actors: ["nhi:{workload}"]}}]\n'
                )
            rules = {"user_to_nhi": users, **({"nhi_to_nhi": nhis[place - 1]} if place else {})}
            write(here, f"{url}/", rules=rules, settings=local, name=name, identity=issuers)
            app = await started(here)
            stack.push_async_callback(app.stop)
            made.folders.append(here)
            made.apps.append(app)
            made.agents.append(agent)
        made.agents[0].onward = made.url(1, "researcher", local=True)
        made.agents[1].onward = made.url(2, "writer", local=True)
        yield made


async def test_every_sidecar_sees_and_decides_the_whole_chain(tmp_path: Path) -> None:
    async with row(tmp_path) as made:
        status, body = await send(made.url(0, "planner"), ALICE)
        assert (status, body["result"]["task"]["status"]["state"]) == (200, "TASK_STATE_COMPLETED")
        chain = ["user:alice", "nhi:planner", "nhi:researcher"]
        assert [made.records(place)[-1]["chain"] for place in range(3)] == [chain[:1], chain[:2], chain]
        links = [(link["kind"], link["action"]) for link in made.records(2)[-1]["links"]]
        assert links == [("user_to_nhi", "delegate"), ("nhi_to_nhi", "delegate"), ("nhi_to_nhi", "message/send")]
        token = made.agents[2].shown[-1].removeprefix("Bearer ")
        claims = jwt.decode(token, options={"verify_signature": False})
        assert (claims["sub"], claims["aud"]) == ("user:alice", "nhi:writer")
        assert claims["act"] == {"sub": "nhi:researcher", "act": {"sub": "nhi:planner"}}
        assert claims["exp"] - claims["iat"] <= 300
        assert claims["iss"] == made.apps[2].live.current.base_url


@pytest.mark.parametrize(("place", "state"), [(1, "TASK_STATE_FAILED"), (2, "TASK_STATE_COMPLETED")])
async def test_without_the_middle_link_nothing_behind_it_happens(place: int, state: str, tmp_path: Path) -> None:
    async with row(tmp_path) as made:
        await send(made.url(0, "planner"), ALICE)
        reached = len(made.agents[2].seen)
        only_talks = "p, user:alice, nhi:planner, message/send, -, -, -, allow\n"  # and lends nothing
        (made.folders[place] / "policies" / "user_to_nhi.csv").write_text(only_talks)
        await made.apps[place].reload("test")
        status, body = await send(made.url(0, "planner"), ALICE)
        assert (status, body["result"]["task"]["status"]["state"]) == (200, state), "the planner itself answers"
        assert len(made.agents[2].seen) == reached
        assert made.records(place)[-1]["reason"] == "no-matching-rule"


async def test_a_disabled_middle_stops_the_whole(tmp_path: Path) -> None:
    async with row(tmp_path) as made:
        await made.apps[2].disable("nhi:planner", reason="", until=None, by="test")
        await send(made.url(0, "planner"), ALICE)
        assert made.agents[2].seen == [] and made.records(2)[-1]["reason"] == "principal-disabled"


async def test_what_was_lent_to_one_is_nobody_elses(tmp_path: Path) -> None:
    """A token is good for its audience, in the hand of its audience, at the sidecar of its issuer's peers."""
    async with row(tmp_path) as made:
        await send(made.url(0, "planner"), ALICE)
        to_planner, to_researcher, to_writer = ({"Authorization": agent.shown[-1]} for agent in made.agents)
        reached = [len(agent.seen) for agent in made.agents]
        for url, shown in (
            (made.url(2, "writer", local=True), to_planner),  # another's, and of an issuer that is no peer there
            (made.url(1, "researcher", local=True), to_researcher),  # lent to another
            (made.url(1, "researcher"), to_planner),  # without the planner's own credential
            (made.url(2, "writer", local=True), to_writer),
            (made.url(0, "planner"), to_planner),  # back at who signed it
        ):
            status, _ = await send(url, shown)
            assert status == 401, url
        assert [len(agent.seen) for agent in made.agents] == reached


async def test_a_forged_widened_or_closed_chain_is_refused(tmp_path: Path) -> None:
    async with row(tmp_path) as made:

        def signed(place: int, audience: str, signer: Any = None, **changed: Any) -> dict[str, str]:
            live, now = made.apps[place].live.current, int(time.time())
            good = {"iss": live.base_url, "sub": "user:alice", "aud": audience, "iat": now, "exp": now + 60, "jti": "1"}
            if signer == "none":
                return bearer(jwt.encode(good, None, algorithm="none"))
            return bearer((signer or live.signer.key).sign({**good, **changed}, typ="JWT"))

        now, url = int(time.time()), made.url(1, "researcher", local=True)
        assert (await send(url, signed(0, "nhi:planner")))[0] == 200
        widened: dict[str, tuple[int, dict[str, Any]]] = {
            "another's key": (401, {"signer": generate()}),
            "no signature": (401, {"signer": "none"}),
            "for another": (401, {"aud": "nhi:researcher"}),
            "through somebody of whom no rule speaks": (403, {"act": {"sub": "nhi:other"}}),
            "itself again": (401, {"act": {"sub": "nhi:planner"}, "sub": "nhi:planner"}),
            "over": (401, {"iat": now - 600, "exp": now - 300}),
            "nobody": (401, {"sub": ""}),
        }
        for name, (status, changed) in widened.items():
            assert (await send(url, signed(0, "nhi:planner", **changed)))[0] == status, name
        loop = {"sub": "nhi:planner", "act": {"sub": "nhi:researcher"}}
        assert (await send(made.url(2, "writer", local=True), signed(1, "nhi:researcher", act=loop)))[0] == 401
