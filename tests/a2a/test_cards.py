"""Does a card tell the truth: our addresses, this caller's skills, a signature of ours? (BL-088)"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from a2a.client.card_resolver import parse_agent_card
from a2a.utils.signing import create_signature_verifier

from sidecar.app.loader import check_files
from sidecar.cli.free_ports import free_ports
from tests import wire
from tests.a2a.world import (
    ALICE,
    BOB,
    CARD_10,
    IDP,
    PLANNER,
    SPOKEN,
    AgentWorld,
    ScriptedAgent,
    agent_world,
    ask,
    write,
)
from tests.flow.idp import bearer
from tests.tables import tables

SKILLS = """\
p, user:alice, nhi:researcher, use|card/extended, -, -, call.tool == 'search', allow
p, user:bob, nhi:researcher, tasks/get, -, -, -, allow
"""
RULES = {"user_to_nhi": SKILLS, "nhi_to_nhi": "p, nhi:planner, nhi:researcher, use|card/extended, -, -, -, allow\n"}
CARD_03: dict[str, Any] = wire.table("cards")["a researcher's of 0.3"]


async def card(world: AgentWorld, who: Any = None, path: str = "", **headers: str) -> tuple[int, Any, Any]:
    url = world.url + (path or "/agents/researcher/.well-known/agent-card.json")
    async with world.http.get(url, headers={**(who or {}), **headers}) as response:
        raw = await response.read()
        return response.status, json.loads(raw) if raw else None, response.headers


@pytest.mark.parametrize("given", [CARD_10, CARD_03])
async def test_every_address_is_ours_and_no_other_is_left(given: dict[str, Any], tmp_path: Path) -> None:
    """BL-088."""
    async with agent_world(tmp_path, ScriptedAgent(card=given), rules=RULES) as world:
        _, told, _ = await card(world, PLANNER)
        assert not [one for one in ("10.1.2.3", "9200", "AAAA") if one in json.dumps(told)]
        here = f"{world.url}/agents/researcher"
        spoken = {(one["protocolBinding"], one["protocolVersion"], one["url"]) for one in told["supportedInterfaces"]}
        assert {("JSONRPC", "1.0", f"{here}/"), ("HTTP+JSON", "1.0", here)} <= spoken
        assert told["url"] == f"{here}/" and told["preferredTransport"] == "JSONRPC"
        assert all(one["url"].startswith(here) or ":" in one["url"] for one in told["additionalInterfaces"])


async def test_a_caller_sees_the_skills_that_it_may_use_and_fetches_again_what_changed(tmp_path: Path) -> None:
    async with agent_world(tmp_path, rules=RULES) as world:
        seen, tags = {}, {}
        for name, who in (("nobody", None), ("alice", ALICE), ("bob", BOB), ("planner", PLANNER)):
            status, told, headers = await card(world, who)
            assert status == 200 and headers["Cache-Control"].startswith("public" if who is None else "private")
            seen[name], tags[name] = [skill["id"] for skill in told["skills"]], {"If-None-Match": headers["ETag"]}
        assert seen == {"nobody": [], "alice": ["search"], "bob": [], "planner": ["search", "write"]}
        assert world.agent.cards == 1, "for a minute it is asked once"
        status, body, again = await card(world, ALICE, **tags["alice"])
        assert (status, body, again["ETag"]) == (304, None, tags["alice"]["If-None-Match"])
        assert (await card(world, PLANNER, **tags["alice"]))[0] == 200, "another sees another"
        status, _, headers = await card(world, {"Authorization": "Bearer nonsense"})
        assert status == 401 and "agents/researcher" in headers["WWW-Authenticate"], "a bad credential is no stranger"


async def test_the_signature_is_ours_and_the_official_sdk_verifies_it(tmp_path: Path) -> None:
    async with agent_world(tmp_path, rules=RULES) as world:
        _, told, _ = await card(world, PLANNER)
        _, keys, _ = await card(world, path="/.well-known/jwks.json")
        known = {key["kid"]: jwt.PyJWK(key).key for key in keys["keys"]}
        verify = create_signature_verifier(lambda kid, jku: known[kid], ["ES256"])
        verify(parse_agent_card(told))
        told["skills"][0]["id"] = "other"
        with pytest.raises(Exception, match=r"(?i)signature"):
            verify(parse_agent_card(told))


def over_grpc(told: Any) -> list[tuple[str, str, str | None]]:
    spoken = (one for one in told["supportedInterfaces"] if one["protocolBinding"] == "GRPC")
    return [(one["protocolVersion"][:3], one["url"], one.get("tenant")) for one in spoken]


NAMES = "https://{agent}.grpc.acme.example"


@pytest.mark.parametrize(("more", "a2a", "is_alone", "told"), tables("a2a/cards")["authentications"])
async def test_a_card_tells_absolute_addresses_of_grpc(
    more: str, a2a: str, is_alone: bool, told: list[tuple[str, str, str | None]], tmp_path: Path
) -> None:
    """Clients read an address by its scheme; ADK refuses a bare `host:port`."""
    shared, own = map(str, free_ports(2))
    settings = f'server: {{listen: "127.0.0.1:0", grpc: "127.0.0.1:{shared}"{more and ", "}{more}}}\n'
    if not is_alone:
        settings += "agents: {second: {executable: cat}}\n"
    async with agent_world(tmp_path, rules=RULES, settings=settings, a2a=a2a.replace("OWN", own)) as world:
        _, document, _ = await card(world, PLANNER)
        assert over_grpc(document) == [
            (version, url.replace("PORT", shared).replace("OWN", own), tenant) for version, url, tenant in told
        ]
        for one in document["additionalInterfaces"]:
            assert "://" in one["url"] or more.endswith(":443'")


async def test_the_card_of_a_local_listener_offers_no_grpc_that_would_refuse_its_caller(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    settings = f'server: {{listen: "127.0.0.1:0", grpc: "127.0.0.1:{port}"}}\n'
    settings += 'local: [{listen: "127.0.0.1:0", principal: "nhi:planner"}]\n'
    async with agent_world(tmp_path, rules=RULES, settings=settings) as world:
        assert over_grpc((await card(world, PLANNER))[1])
        local = replace(world, url=f"http://127.0.0.1:{world.app.listeners[1].port}")
        told = (await card(local))[1]
        assert not over_grpc(told) and "GRPC" not in json.dumps(told)
        assert told["url"] == f"{local.url}/agents/researcher/"
        told = (await ask(local, "1.0", "jsonrpc", "card/extended", {}, {})).results[0]
        assert not over_grpc(told)


async def test_an_extended_card_is_told_of_where_there_is_one_and_its_reader_may_read_it(tmp_path: Path) -> None:
    rules = {
        "user_to_nhi": "p, user:alice, nhi:researcher, card/extended, -, -, -, allow\n"
        "p, user:bob, nhi:researcher, use, -, -, -, allow\n"
    }
    has_one = {**CARD_10, "capabilities": {**CARD_10["capabilities"], "extendedAgentCard": True}}
    seen = {}
    for name, given in (("some", has_one), ("none", CARD_10)):
        async with agent_world(tmp_path / name, ScriptedAgent(card=given), rules=rules) as world:
            for who, proof in (("nobody", None), ("bob", BOB), ("alice", ALICE)):
                told = (await card(world, proof))[1]
                seen[name, who] = told["capabilities"].get("extendedAgentCard", False)
                assert told.get("supportsAuthenticatedExtendedCard", False) is seen[name, who]
    assert {one for one, has in seen.items() if has} == {("some", "alice")}


async def test_the_extended_card_is_for_callers_that_policy_names(tmp_path: Path) -> None:
    extended = {**CARD_10, "capabilities": {**CARD_10["capabilities"], "extendedAgentCard": True}}
    async with agent_world(tmp_path, ScriptedAgent(card=extended), rules=RULES) as world:
        for way in SPOKEN:
            answered = await ask(world, *way, "card/extended", {}, PLANNER)
            assert answered.error is None, answered
            told = answered.results[0]
            assert told["description"] == "more for those who are known"
            assert [skill["id"] for skill in told["skills"]] == ["search", "write"]
            assert "10.1.2.3" not in json.dumps(told)
            assert (await ask(world, *way, "card/extended", {}, BOB)).status == 403
            assert (await ask(world, *way, "card/extended", {}, {})).status == 401


@pytest.mark.parametrize("path", ["/.well-known/agents/researcher", "/api/nhi/a2a/agent-card/researcher"])
async def test_the_seeds_card_is_of_the_same(path: str, tmp_path: Path) -> None:
    async with agent_world(tmp_path, rules=RULES) as world:
        _, told, _ = await card(world, ALICE, path)
        assert told == {
            "name": "Researcher",
            "description": told["description"],
            "url": f"{world.url}/agents/researcher/",
            "version": "1.2",
            "protocol_version": "1.0",
            "capabilities": {"streaming": True, "push_notifications": True},
            "authentication": {"schemes": ["bearer"]},
            "skills": [{"id": "search", "name": "Search", "description": "s"}],
        }


async def test_an_agent_has_a_uuid_too_and_an_unknown_one_is_nowhere(tmp_path: Path) -> None:
    name = "0d1f6c1e-2d0f-4b43-9c4a-8f6f4c8a0001"
    async with agent_world(tmp_path, rules=RULES, a2a=f"agent_id: {name}") as world:
        assert (await card(world, path=f"/api/nhi/a2a/agent-card/{name}"))[0] == 200
        meant = bearer(IDP.token("user:alice", f"{world.app.live.current.base_url}/agents/researcher"))
        assert (await card(world, meant, path=f"/api/nhi/a2a/agent-card/{name}"))[0] == 200, "one agent, one audience"
        for other in (name[:-1] + "2", "nobody"):
            assert (await card(world, path=f"/api/nhi/a2a/agent-card/{other}"))[0] == 404


@pytest.mark.parametrize(
    "given", [{}, [], {"name": "x"}, {**CARD_10, "skills": [{"name": "no id"}]}, {**CARD_10, "version": 5}]
)
async def test_a_card_that_is_none_is_told_to_nobody(given: Any, tmp_path: Path) -> None:
    async with agent_world(tmp_path, ScriptedAgent(card=given), rules=RULES) as world:
        for who in (PLANNER, ALICE):
            status, told, _ = await card(world, who)
            assert (status, told["reason"]) == (502, "response-refused")
        for path in ("/agents/{}/.well-known/agent-card.json", "/.well-known/agents/{}"):
            found = [await card(world, path=path.format(name)) for name in ("researcher", "unknown")]
            told = [{**one[1], "decision_id": "", "status": one[0]} for one in found]
            assert told[0] == told[1], "a stranger hears of it as of one that is not there"
            assert told[0]["status"] == 404


async def test_who_is_disabled_reads_no_card_and_a_disabled_agent_is_one_that_is_not_there(tmp_path: Path) -> None:
    async with agent_world(tmp_path) as world:
        assert (await card(world, ALICE))[1]["skills"]
        await world.app.disable("user:alice", reason="", until=None, by="test")
        assert [(await card(world, who))[0] for who in (ALICE, None)] == [403, 200]
        await world.app.disable("nhi:researcher", reason="", until=None, by="test")
        assert [(await card(world, who))[0] for who in (None, PLANNER)] == [404, 403]


async def test_the_version_that_was_left_open_is_the_cards(tmp_path: Path) -> None:
    """An agent of 0.3 is spoken to in 0.3, whoever calls."""
    async with agent_world(tmp_path, ScriptedAgent(card=CARD_03)) as world:
        assert world.app.live.current.agents["researcher"].cards.version() == "1.0", "as configured"
        file = tmp_path / "sidecar.yaml"
        file.write_text(file.read_text().replace(', version: "1.0"', ""))
        await world.app.reload("test")
        keeper = world.app.live.current.agents["researcher"].cards
        await keeper.prepare()
        assert keeper.version() == "0.3"


def test_a_check_warns_of_an_agent_whose_card_nobody_finds(tmp_path: Path) -> None:
    write(tmp_path, "grpc://127.0.0.1:9300")
    engine, doubts = check_files(tmp_path / "sidecar.yaml", {})
    assert engine is not None and [(one.code, one.severity) for one in doubts] == [("S134", "warning")]
    assert "card_url" in doubts[0].hint and "researcher" in doubts[0].source
    write(tmp_path, "grpc://127.0.0.1:9300", a2a='card_url: "http://127.0.0.1:9200/card"')
    assert check_files(tmp_path / "sidecar.yaml", {})[1] == ()
