"""Does what `A2AEndpoint` says of an agent hold: its path, its token, what is spoken there, how often?"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sidecar.app.file_watcher import key_files
from sidecar.app.loader import check_files, digest_of_keys
from sidecar.cli import main
from sidecar.errors import ConfigError, SettingsError
from sidecar.settings.load import load_settings
from tests.a2a.test_cards import card
from tests.a2a.world import (
    ALICE,
    EVERYTHING,
    HELLO,
    HOOK,
    HTTP,
    IDP,
    PLANNER,
    RULES,
    SPOKEN,
    WHO,
    AgentWorld,
    agent_world,
    ask,
    opened,
    saying,
    task,
    write,
)
from tests.flow.idp import bearer
from tests.flow.test_admin import files
from tests.tables import tables

ALIAS = "/tools/find.out"
SEND: dict[str, Any] = {"message": HELLO}
TOKEN, CHANGED = "7fQ-2c51e8a94b0d3f6a7c81e2d95b40aa63", "0b-91d2c7e4f5a6038d7c81e2d95b40aa63f"
OWN = {"bearer_token": bearer(TOKEN), "api_key": {"X-API-Key": TOKEN}, "header": {"X-Agent-Token": TOKEN}}
WITH_CI = {**RULES, "nhi_to_nhi": RULES["nhi_to_nhi"] + f"p, nhi:ci, nhi:researcher, {EVERYTHING}, -, -, -, allow\n"}


def own(how: str, *, required: bool = True) -> str:
    kind = "api_key, header_name: X-Agent-Token" if how == "header" else how
    more = "" if required else ", required: false"
    return f'authentication: {{type: {kind}, token_path: own.token, principal: "nhi:ci"{more}}}'


@asynccontextmanager
async def guarded(folder: Path, how: str, *, required: bool = True, **what: Any) -> AsyncIterator[AgentWorld]:
    kept = {"own.token": TOKEN + "\n", **what.pop("files", {})}
    async with agent_world(folder, a2a=own(how, required=required), rules=WITH_CI, files=kept, **what) as world:
        yield world


# --- a path of its own ------------------------------------------------------------------------------------------------


async def test_a_path_of_its_own_is_the_agents_address_in_every_way(tmp_path: Path) -> None:
    async with agent_world(tmp_path, a2a=f"base_path: {ALIAS}") as world:
        for version, binding in HTTP:
            sent = await ask(world, version, binding, "message/send", SEND, at=ALIAS)
            assert sent.status == 200, (version, binding, sent)
            begun = await ask(world, version, binding, "message/stream", SEND, at=ALIAS)
            assert (begun.status, len(begun.results)) == (200, 2)
            begun_ = {"id": sent.results[0]["task"]["id"]}
            for way in (ALIAS, ""):  # one agent, one owner of the task, one policy
                assert (await ask(world, version, binding, "tasks/get", begun_, at=way)).status == 200
                anothers = await ask(world, version, binding, "tasks/get", begun_, PLANNER, at=way)
                assert anothers.reason == "task-unknown", anothers
        told = {(one["upstream"], one["protocol"], one["object"]) for one in world.ends()}
        assert told == {("researcher", "a2a", "nhi:researcher")}


async def test_whoever_is_refused_there_learns_of_that_address(tmp_path: Path) -> None:
    async with agent_world(tmp_path, a2a=f"base_path: {ALIAS}", upstream="scopes: [research]") as world:
        base = world.app.live.current.base_url
        for path in (ALIAS, "/agents/researcher"):
            async with world.http.post(f"{world.url}{path}/", json={}) as response:
                told = response.headers["WWW-Authenticate"]
            metadata = f"/.well-known/oauth-protected-resource{path}"
            assert response.status == 401 and f'resource_metadata="{base}{metadata}"' in told
            status, document, _ = await card(world, path=metadata)
            assert (status, document["resource"], document["scopes_supported"]) == (200, base + path, ["research"])
            minted = bearer(IDP.token("user:alice", base + path, scopes=["research"]))
            for way in (ALIAS, ""):  # a token for one of its addresses is a token for the agent
                assert (await ask(world, "1.0", "jsonrpc", "message/send", SEND, minted, at=way)).status == 200
                elsewhere = await ask(world, "1.0", "jsonrpc", "message/send", SEND, minted, agent="other")
                assert elsewhere.status == 401


async def test_a_card_names_the_address_at_which_it_was_read(tmp_path: Path) -> None:
    async with agent_world(tmp_path, a2a=f"base_path: {ALIAS}") as world:
        base = world.app.live.current.base_url
        for path, at in ((f"{ALIAS}/.well-known/agent-card.json", ALIAS), ("", "/agents/researcher")):
            for _ in range(2):  # written once, and kept apart
                _, told, _ = await card(world, ALICE, path)
                http = [one["url"] for one in told["supportedInterfaces"] if one["protocolBinding"] != "GRPC"]
                assert http == [f"{base}{at}/", f"{base}{at}"] * 2
                assert told["url"].startswith(base + at)
            extended = await ask(world, "1.0", "http_json", "card/extended", {}, at=at)
            assert extended.results[0]["supportedInterfaces"][0]["url"] == f"{base}{at}/"


NEAR = tables("a2a/own_door")["near"]


async def test_nothing_near_the_path_leads_there(tmp_path: Path) -> None:
    async with agent_world(tmp_path, a2a=f"base_path: {ALIAS}") as world:
        port, found = world.app.listeners[0].port, {}
        for path in NEAR:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            who = ALICE["Authorization"] if NEAR[path] != 401 else "Bearer nonsense"
            head = f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Authorization: {who}", "A2A-Version: 1.0"
            writer.write("\r\n".join((*head, "", "")).encode())
            found[path] = int((await reader.readline()).split()[1])
            writer.close()
            await writer.wait_closed()
        assert found == NEAR and world.agent.seen == []


async def test_the_seeds_base_path_is_where_every_agent_is_found(tmp_path: Path) -> None:
    async with agent_world(tmp_path, a2a='base_path: "/agents/{agentId}/v1"') as world:
        at = "/agents/researcher/v1"
        assert (await ask(world, "1.0", "jsonrpc", "message/send", SEND, at=at)).status == 200
        assert (await ask(world, "0.3", "jsonrpc", "message/send", SEND, at=at)).status == 200
        assert (await ask(world, "0.3", "http_json", "message/send", SEND)).status == 200, "at /v1/message:send"


async def test_paths_change_with_a_reload(tmp_path: Path) -> None:
    async with agent_world(tmp_path, a2a=f"base_path: {ALIAS}") as world:
        config = tmp_path / "sidecar.yaml"
        config.write_text(config.read_text().replace(ALIAS, "/find"))
        await world.app.reload("test")
        assert (await ask(world, "1.0", "jsonrpc", "message/send", SEND, at="/find")).status == 200
        async with world.http.post(f"{world.url}{ALIAS}", json={}, headers=ALICE) as response:
            assert response.status == 404


# --- a token of its own -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", OWN)
async def test_a_token_of_its_own_lets_its_bearer_in_everywhere_at_the_agent(how: str, tmp_path: Path) -> None:
    async with guarded(tmp_path, how) as world:
        for version, binding in SPOKEN:
            for action in ("message/send", "message/stream"):
                answered = await ask(world, version, binding, action, SEND, OWN[how])
                assert answered.status == 200, (version, binding, answered)
            for who in ({}, ALICE, PLANNER, bearer(CHANGED), dict.fromkeys(OWN[how], CHANGED)):
                answered = await ask(world, version, binding, "message/send", SEND, who)
                assert answered.status == 401, (version, binding, who, answered)
            both = {"X-API-Key": PLANNER["Authorization"][7:], **bearer(TOKEN)} if how == "bearer_token" else {}
            both = both or {**PLANNER, **OWN[how]}
            answered = await ask(world, version, binding, "message/send", SEND, both)
            assert (answered.status, answered.reason) == (401, "credential-conflict")
        assert len(world.agent.seen) == 2 * len(SPOKEN)
        for decided in world.records("decision"):
            assert decided["chain"] == ["nhi:ci"] and decided["agent_id"] == "nhi:ci"
            (credential,) = decided["credential"]
            assert (credential["kind"], credential["issuer"]) == ("agent_token", "agent:researcher")
            assert len(credential["key_id"]) == 12
        for headers, message in world.agent.seen:  # nobody is shown it
            assert TOKEN not in json.dumps(headers) + json.dumps(message)
        assert TOKEN not in world.app.settings.audit_path.read_text()


async def test_its_token_may_stand_in_a_variable(tmp_path: Path) -> None:
    by_name = own("bearer_token").replace("token_path: own.token", "token_env: RESEARCHER_TOKEN")
    environ = {"RESEARCHER_TOKEN": TOKEN}
    async with agent_world(tmp_path, a2a=by_name, rules=WITH_CI, environ=environ) as world:
        for token, status in ((TOKEN, 200), (CHANGED, 401)):
            assert (await ask(world, "1.0", "jsonrpc", "message/send", SEND, bearer(token))).status == status
    for value, code in ((None, "S204"), ("short", "S121")):
        with pytest.raises(SettingsError) as told:
            load_settings(tmp_path / "sidecar.yaml", {"RESEARCHER_TOKEN": value} if value else {})
        (fault,) = told.value.faults
        assert fault.code == code and "short" not in f"{fault.message}{fault.hint}"
    assert load_settings(tmp_path / "sidecar.yaml", {}, check_files=False), "who only reads rules needs no secret"


@pytest.mark.parametrize(("required", "named"), [(True, 0), (False, 2)])
async def test_issuers_are_named_where_a_token_of_theirs_is_enough(required: bool, named: int, tmp_path: Path) -> None:
    async with guarded(tmp_path, "header", required=required) as world:
        _, told, _ = await card(world, path="/.well-known/oauth-protected-resource/agents/researcher")
        assert len(told["authorization_servers"]) == named


async def test_it_is_no_credential_anywhere_else(tmp_path: Path) -> None:
    async with guarded(tmp_path, "bearer_token") as world:
        body = {"target_agent_id": "researcher", "task_type": "t", "input": {}}
        for path, who in (("/a2a/tasks", bearer(TOKEN)), ("/a2a/tasks", ALICE), ("/mcp/github", bearer(TOKEN))):
            async with world.http.post(world.url + path, json=body, headers=who) as response:
                assert response.status == 401, (path, await response.text())
        answered = await ask(world, "1.0", "jsonrpc", "message/send", SEND, bearer(TOKEN), agent="other")
        assert (answered.status, answered.reason) == (401, "bad-credential")
        assert world.agent.seen == []


async def test_where_it_is_not_required_others_are_let_in_as_ever(tmp_path: Path) -> None:
    async with guarded(tmp_path, "header", required=False) as world:
        base = world.app.live.current.base_url
        user = bearer(IDP.token("user:alice", f"{base}/agents/researcher"))
        for who, chain in ((OWN["header"], ["nhi:ci"]), (ALICE, ["user:alice"]), (user, ["user:alice"])):
            assert (await ask(world, "1.0", "http_json", "message/send", SEND, who)).status == 200
            assert world.records("decision")[-1]["chain"] == chain
        together = await ask(world, "1.0", "http_json", "message/send", SEND, {**user, **OWN["header"]})
        assert (together.status, together.reason) == (403, "no-matching-rule")  # alice lent nhi:ci nothing
        bad = await ask(world, "1.0", "http_json", "message/send", SEND, {**ALICE, "X-Agent-Token": CHANGED})
        assert (bad.status, bad.reason) == (401, "bad-credential")


async def test_an_agent_that_asks_for_no_credential_is_for_anonymous_by_that_word(tmp_path: Path) -> None:
    asks_for_none: dict[str, Any] = {"a2a": "authentication: {type: none}", "upstream": "anonymous: true"}
    for rule, status in (("user:alice", 403), ("anonymous", 200)):
        rules = {"user_to_nhi": f"p, {rule}, nhi:researcher, use, -, -, -, allow\n"}
        async with agent_world(tmp_path / rule[:4], rules=rules, **asks_for_none) as world:
            for version, binding in SPOKEN:
                for action in ("message/send", "message/stream"):
                    assert (await ask(world, version, binding, action, SEND, {})).status == status
            _, told, _ = await card(world)
            assert told.get("securityRequirements", []) == [] and "security" not in told


async def test_what_nobody_began_is_unidentified(tmp_path: Path) -> None:
    """Everybody could be anonymous."""
    everybody = f"p, anonymous, nhi:researcher, {EVERYTHING}, -, -, -, allow\n"
    rules = {**RULES, "user_to_nhi": RULES["user_to_nhi"] + everybody}
    async with agent_world(tmp_path, rules=rules, upstream="anonymous: true") as world:
        begun = await ask(world, "1.0", "jsonrpc", "message/send", SEND, {})
        name, context = (begun.results[0]["task"][member] for member in ("id", "contextId"))
        for version, binding in SPOKEN:
            named_tasks = ({"taskId": name}, {"referenceTaskIds": [name]})[: 2 if version == "1.0" else 1]
            for named in (*named_tasks, {"contextId": context}, {"contextId": "new"}):
                further = await ask(world, version, binding, "message/send", {"message": {**HELLO, **named}}, {})
                assert further.reason == "task-unknown", (version, binding, named, further)
            for action in ("tasks/get", "tasks/cancel", "tasks/resubscribe"):
                assert (await ask(world, version, binding, action, {"id": name}, {})).reason == "task-unknown"
            pushed = {**SEND, "configuration": {"taskPushNotificationConfig": {"url": HOOK}}}
            assert (await ask(world, version, binding, "message/send", pushed, {})).status == 401
        listed = await ask(world, "1.0", "jsonrpc", "tasks/list", {}, {})
        assert listed.results[0]["tasks"] == []
        alices = (await ask(world, "1.0", "jsonrpc", "message/send", SEND)).results[0]["task"]
        world.agent.script["SendMessage"] = lambda method, params: {"task": alices}
        lent = await ask(world, "1.0", "jsonrpc", "message/send", SEND, {})
        assert (lent.status, lent.reason) == (502, "response-refused")
        assert (await ask(world, "1.0", "jsonrpc", "tasks/get", {"id": alices["id"]})).status == 200


BEARER, AGENT_TOKEN = {"scheme": "Bearer"}, {"location": "header", "name": "X-Agent-Token"}
OF_HEADER = {
    "agent-token": {"apiKeySecurityScheme": AGENT_TOKEN},
    "bearer": {"httpAuthSecurityScheme": {**BEARER, "bearerFormat": "JWT"}},
}
CARDS: list[tuple[str, bool, dict[str, Any]]] = [
    ("bearer_token", True, {"bearer": {"httpAuthSecurityScheme": BEARER}}),
    ("bearer_token", False, {"bearer": {"httpAuthSecurityScheme": BEARER}}),
    ("api_key", True, {"agent-token": {"apiKeySecurityScheme": {**AGENT_TOKEN, "name": "X-API-Key"}}}),
    ("header", False, OF_HEADER),
]


@pytest.mark.parametrize(("how", "required", "schemes"), CARDS)
async def test_a_card_says_how_callers_prove_themselves(
    how: str, required: bool, schemes: dict[str, Any], tmp_path: Path
) -> None:
    async with guarded(tmp_path, how, required=required) as world:
        status, told, headers = await card(world)
        assert status == 200
        for name, scheme in schemes.items():
            assert scheme.items() <= told["securitySchemes"][name].items()  # those of 0.3 stand in the same object
        assert told["securitySchemes"].keys() == schemes.keys()
        assert told["securityRequirements"] == [{"schemes": {name: {}}} for name in schemes]
        assert told["security"] == [{name: []} for name in schemes]
        if how == "header":
            assert headers["Vary"] == "Authorization, X-API-Key, X-Agent-Token"
        _, mine, _ = await card(world, OWN[how])
        assert mine["skills"] and not told["skills"]
        assert (await card(world, {**OWN[how], next(iter(OWN[how])): f"Bearer {CHANGED}"}))[0] == 401


async def test_a_changed_token_is_taken_and_ends_what_the_old_one_opened(tmp_path: Path) -> None:
    agent = saying(SendStreamingMessage=[{"task": task(state="TASK_STATE_WORKING")}, asyncio.Event()])
    async with guarded(tmp_path, "bearer_token", agent=agent) as world:
        begun = await opened(world, "1.0", "jsonrpc", who=bearer(TOKEN))
        (tmp_path / "own.token").write_text(CHANGED)
        await world.app.reload("test")
        for token, status in ((TOKEN, 401), (CHANGED, 200)):
            assert (await ask(world, "1.0", "jsonrpc", "message/send", SEND, bearer(token))).status == status
        await world.app.pipeline.forwarder.oversight.look()
        assert (await begun).reason == "bad-credential"


def test_a_check_tells_of_every_token_that_is_none_with_all_else_that_is_wrong(tmp_path: Path) -> None:
    kept = {"own.token": "changeme-changeme-changeme-changeme", "policies/budgets.yaml": "version: 2\n"}
    write(tmp_path, "http://127.0.0.1:9/", a2a=own("bearer_token"), files=kept)
    config = tmp_path / "sidecar.yaml"
    lost = own("header").replace("own.token", "lost.token")
    another = f'  other: {{a2a: {{url: "http://127.0.0.1:9/", {lost}}}}}\n'
    config.write_text(config.read_text().replace("callbacks:", another + "callbacks:"))
    with pytest.raises(ConfigError) as told:
        check_files(config, {})
    found = [(Path(fault.file).name, fault.code, fault.line > 0) for fault in told.value.faults]
    assert found == [("sidecar.yaml", "S121", True), ("sidecar.yaml", "S116", True), ("budgets.yaml", "Y104", True)]
    assert "changeme" not in str(told.value)


def test_a_token_is_among_the_files_that_a_reload_looks_at(tmp_path: Path) -> None:
    write(tmp_path, "http://127.0.0.1:9/", a2a=own("api_key"), files={"own.token": TOKEN})
    settings = load_settings(tmp_path / "sidecar.yaml", {})
    before = digest_of_keys(settings)
    assert tmp_path / "own.token" in key_files(settings)
    (tmp_path / "own.token").write_text(CHANGED)
    assert digest_of_keys(settings) != before


# --- what is spoken there ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spoken", [("json_rpc",), ("http_json", "grpc")])
async def test_what_is_not_spoken_is_in_no_card_and_refused(spoken: tuple[str, ...], tmp_path: Path) -> None:
    listed = ", ".join(spoken)
    async with agent_world(tmp_path, a2a=f"transport_protocols: [{listed}], base_path: {ALIAS}") as world:
        for version, binding in SPOKEN:
            for at in ("", ALIAS):
                answered = await ask(world, version, binding, "message/send", SEND, at=at)
                there = binding.replace("jsonrpc", "json_rpc") in spoken
                expected = (200, "") if there else (404, "route-unknown")
                assert (answered.status, answered.reason) == expected, (version, binding, answered)
        if "grpc" not in spoken:
            for who, reason in ((ALICE, "route-unknown"), (WHO["nhi:other"], "no-matching-rule")):
                named = await ask(world, "1.0", "grpc", "message/send", {**SEND, "tenant": "researcher"}, who)
                assert named.reason == reason
        _, told, _ = await card(world)
        bindings = {one["protocolBinding"] for one in told["supportedInterfaces"]}
        assert bindings == {{"json_rpc": "JSONRPC", "http_json": "HTTP+JSON"}[spoken[0]]}
        for version, binding in HTTP:  # who may not call it learns nothing of what is spoken
            for who, status in (({}, 401), (WHO["nhi:other"], 403)):
                assert (await ask(world, version, binding, "message/send", SEND, who)).status == status


async def test_a_card_waits_for_the_listener_that_it_would_name(tmp_path: Path) -> None:
    """What is spoken changes with a reload, a listener with a restart."""
    async with agent_world(tmp_path, settings='server: {listen: "127.0.0.1:0"}\n') as world:
        config = tmp_path / "sidecar.yaml"
        spoken = config.read_text().replace("{a2a: {", "{a2a: {transport_protocols: [grpc], ")
        config.write_text(spoken.replace("server: {", 'server: {grpc: "127.0.0.1:8081", '))
        await world.app.reload("test")
        assert (await card(world))[0] == 404
        assert (await ask(world, "1.0", "jsonrpc", "message/send", SEND)).status == 404


# --- how often --------------------------------------------------------------------------------------------------------

LIMITED = "rate_limiting: {requests_per_second: 0.01, burst: 3, daily_quota: 100}"


async def counted(world: AgentWorld, who: Mapping[str, str] = ALICE) -> int:
    """How many calls pass until one is refused."""
    for passed in range(20):
        answered = await ask(world, "1.0", "jsonrpc", "message/send", SEND, who)
        if answered.status == 429:
            return passed
        assert answered.status == 200
    return 20


@pytest.mark.parametrize(("budgets", "first", "name"), tables("a2a/own_door")["budgets"])
async def test_budgets_can_only_narrow_what_an_agent_bears(budgets: str, first: int, name: str, tmp_path: Path) -> None:
    limits = {"policies/budgets.yaml": f"version: 1\n{budgets}\n"} if budgets else {}
    async with agent_world(tmp_path, a2a=LIMITED, files=limits) as world:
        assert await counted(world) == first
        assert await counted(world, PLANNER) == 0  # all callers together
        refused = [one for one in world.ends() if one["event"] == "refusal"]
        assert {one["reason"] for one in refused} == {"rate-limited"}
        assert name in json.dumps(refused[-1])


async def test_each_caller_has_all_of_it_where_that_is_said(tmp_path: Path) -> None:
    async with agent_world(tmp_path, a2a=LIMITED.replace("}", ", per_principal: true}")) as world:
        assert (await counted(world), await counted(world, PLANNER)) == (3, 3)


async def test_what_an_agent_bears_is_shown_counted_and_changed_by_a_reload(tmp_path: Path) -> None:
    async with agent_world(tmp_path, a2a=LIMITED, files=files()) as world:
        assert await counted(world) == 3
        port = next(one.port for one in world.app.listeners[1:] if getattr(one, "port", 0))
        async with world.http.get(f"http://127.0.0.1:{port}/metrics") as response:
            series = await response.text()
        assert 'sidecar_limit_checks_total{limit="agents:nhi:researcher:rate",outcome="refused"} 1.0' in series
        assert 'sidecar_limit_checks_total{limit="agents:nhi:researcher:day",outcome="admitted"} 3.0' in series
        command = ["limits", "show", "-c", str(tmp_path / "sidecar.yaml"), "--tool", "nhi:researcher"]
        told = await asyncio.to_thread(CliRunner().invoke, main, command)
        assert "agents:nhi:researcher:rate" in told.output and "3 of 100" in told.output, told.output
        config = tmp_path / "sidecar.yaml"
        config.write_text(config.read_text().replace("burst: 3", "burst: 500"))
        await world.app.reload("test")
        assert (await ask(world, "1.0", "jsonrpc", "message/send", SEND)).status == 200
