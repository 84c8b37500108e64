"""Has a program the door that its definition says: a path, a token, what is spoken there, how often?"""

import json
from pathlib import Path

from sidecar.protocols.a2a.operations import Binding, Version
from tests.a2a.test_own_door import CHANGED, TOKEN
from tests.a2a.world import ALICE, EVERYTHING, SPOKEN, WHO, ask
from tests.flow.idp import bearer
from tests.flow.test_cli_agents import message, output_of, sidecar, state_of, task_in
from tests.tables import tables

RULES = {
    "user_to_nhi": f"p, user:alice, nhi:*, {EVERYTHING}, -, -, -, allow\np, anonymous, nhi:open, use, -, -, -, allow\n",
    "nhi_to_nhi": f"p, nhi:ci, nhi:guarded, {EVERYTHING}, -, -, -, allow\n",
}
AGENTS = tables("flow/cli_doors")["agents"]
OWN = {"X-Agent-Token": TOKEN}
RPC: tuple[Version, Binding] = ("1.0", "jsonrpc")


async def test_a_program_has_a_door_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "own.token").write_text(TOKEN)
    async with sidecar(tmp_path, AGENTS, rules=RULES) as world:
        for version, binding in SPOKEN:
            for at in ("", "/tools/guarded") if binding != "grpc" else ("",):
                sent = await ask(world, version, binding, "message/send", message("hello"), OWN, "guarded", at)
                told = output_of(task_in(sent))
                assert "hello" in told and TOKEN not in told, (version, binding, at)
                task = {"id": task_in(sent)["id"]}
                got = await ask(world, version, binding, "tasks/get", task, OWN, "guarded", at)
                assert state_of(task_in(got)) == "completed"
        for who in ({}, ALICE, WHO["nhi:planner"], {"X-Agent-Token": CHANGED}, bearer(TOKEN)):
            assert (await ask(world, *RPC, "message/send", message("hello"), who, "guarded")).status == 401
            assert (await ask(world, *RPC, "message/send", message("hello"), who, "", "/tools/guarded")).status == 401
        told_by = [one["credential"][0] for one in world.records("decision")]
        assert {(one["kind"], one["issuer"]) for one in told_by} == {("agent_token", "agent:guarded")}
        limited = await ask(world, *RPC, "message/send", message("hello"), OWN, "guarded")
        assert (limited.status, limited.reason) == (429, "rate-limited"), "ten sends and ten looks were its burst"
        assert "agents:nhi:guarded:rate" in json.dumps(world.records("refusal")[-1])
        async with world.http.get(f"{world.url}/tools/guarded/.well-known/agent-card.json") as response:
            shown = await response.json()
        assert shown["supportedInterfaces"][0]["url"].endswith("/tools/guarded/")
        assert shown["securityRequirements"] == [{"schemes": {"agent-token": {}}}]


async def test_a_program_may_be_for_everybody_or_speak_little(tmp_path: Path) -> None:
    (tmp_path / "own.token").write_text(TOKEN)
    async with sidecar(tmp_path, AGENTS, rules=RULES) as world:
        for version, binding in SPOKEN[:4]:
            sent = await ask(world, version, binding, "message/send", message("hello"), {}, "", "/open")
            assert output_of(task_in(sent)) == "hello"
            task = {"id": task_in(sent)["id"]}
            for who in ({}, ALICE):  # nobody's, and not another's either
                assert (await ask(world, version, binding, "tasks/get", task, who, "open")).reason == "task-unknown"
            streamed = await ask(world, version, binding, "message/stream", message("hello"), {}, "open")
            assert streamed.error is None and len(streamed.results) > 2
            there = await ask(world, version, binding, "message/send", message("hello"), ALICE, "terse")
            expected = {"jsonrpc": "", "http_json": "route-unknown"}[binding]
            assert there.reason == expected, (version, binding, there)
        spent = await ask(world, *RPC, "message/send", message("hello"), ALICE, "terse")
        assert (spent.status, spent.reason) == (429, "quota-spent")
        assert (await ask(world, *RPC, "message/send", message("hello"), ALICE, "away")).status == 404
        async with world.http.post(f"{world.url}/away", json={}, headers=ALICE) as response:
            assert response.status == 404
        (tmp_path / "own.token").write_text(CHANGED)
        await world.app.reload("test")
        for token, status in ((TOKEN, 401), (CHANGED, 200)):
            who = {"X-Agent-Token": token}
            assert (await ask(world, *RPC, "message/send", message("hello"), who, "guarded")).status == status
