"""A Casbin model and its rows, unmodified, before a real server: calls, lists, sessions, records and reloads."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sidecar.errors import Reason
from tests.flow.process import served
from tests.flow.talk import ERAS, Era, Talk, reason_of
from tests.flow.test_hot_reload import taken
from tests.flow.world import ACCEPT, STATELESS, Upstream, listening, stateless, until, world
from tests.unit.policy.stock.setups import BY_ROLE, DENY_OVERRIDE, ROLES, conf

ROWS = "p, readers, github, search_code\np, alice, github, get_file\ng, alice, readers\n"
NAMES = 'policy: {names: {subjects: {"nhi:planner": alice}, objects: {"tool:*/*": {obj: "*", act: "*2"}}}}\n'


def files(model: str = conf(BY_ROLE, roles=ROLES), rows: str = ROWS, attributes: str = "") -> dict[str, str]:
    found = {"models/agent_to_tool.conf": model, "policies/agent_to_tool.csv": rows}
    return {**found, "policies/attributes.yaml": attributes} if attributes else found


@pytest.mark.parametrize("era", ERAS)
async def test_calls_and_lists_are_decided_by_the_rows(tmp_path: Path, era: Era) -> None:
    async with world(tmp_path, files=files(), settings=NAMES) as running:
        talk = Talk(running, era)
        assert reason_of(await talk.call("search_code", {"repo": "a"})) == ""
        assert reason_of(await talk.call("delete_repo")) == Reason.NO_MATCHING_RULE
        _, body, _ = await talk.ask("tools/list")
        assert [tool["name"] for tool in body["result"]["tools"]] == ["search_code", "get_file"]
        ended = [end for end in running.ends() if end["action"] == "tools/call"]
        assert [end["reason"] for end in ended] == [None, "no-matching-rule"]
        assert ended[0]["agent_role"] == "readers" and len(ended[0]["chain"]) == 1


async def test_a_caller_without_a_row_opens_no_session(tmp_path: Path) -> None:
    async with world(tmp_path, files=files(rows="p, bob, github, get_file\n"), settings=NAMES) as running:
        assert reason_of(await Talk(running, "session").open()) == Reason.NO_MATCHING_RULE


async def test_a_changed_row_is_in_force_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    async with world(tmp_path, files=files(), settings=NAMES) as running:
        talk, rows = Talk(running, "stateless"), tmp_path / "policies" / "agent_to_tool.csv"
        rows.write_text(ROWS.replace("search_code", "delete_repo"))
        await taken(running)
        assert reason_of(await talk.call("search_code", {"repo": "a"})) == Reason.NO_MATCHING_RULE
        assert reason_of(await talk.call("delete_repo")) == ""
        rows.write_text(ROWS.replace("alice, github", "alice"))
        await until(lambda: bool(running.app.reloader.trouble))
        assert reason_of(await talk.call("delete_repo")) == ""
        assert reason_of(await talk.call("search_code", {"repo": "a"})) == Reason.NO_MATCHING_RULE
        assert reason_of(await talk.call("delete_repo")) == ""


ABAC = conf("r.sub.Level >= 3 && r.obj.Owner == r.sub.name && r.act == p.act", columns="act")


async def test_attributes_and_arguments_decide_each_call(tmp_path: Path) -> None:
    attributes = "version: 1\nattributes: {nhi:planner: {Level: 4}}\n"
    settings = NAMES.replace("policy: {", 'policy: {request: {"obj.Owner": args.repo}, ')
    async with world(tmp_path, files=files(ABAC, "p, search_code\n", attributes), settings=settings) as running:
        talk = Talk(running, "stateless")
        assert reason_of(await talk.call("search_code", {"repo": "nhi:planner"})) == ""
        assert reason_of(await talk.call("search_code", {"repo": "other"})) == Reason.NO_MATCHING_RULE
        assert reason_of(await talk.call("search_code", {"repo": ["nhi:planner"]})) == Reason.NO_MATCHING_RULE
        _, body, _ = await talk.ask("tools/list")
        assert [tool["name"] for tool in body["result"]["tools"]] == ["search_code"]
        (allowed, *_) = running.ends()
        assert "nhi:planner" not in str(allowed.get("conditions", ""))  # arguments are on record as digests


# --- who decides ----------------------------------------------------------------------------------------------------

NOT_COMPILED = conf("[r.sub][0] == p.sub && r.obj == p.obj && r.act == p.act")


async def test_pycasbin_decides_in_a_process_of_its_own_what_is_not_compiled() -> None:
    upstream = Upstream()
    names = NAMES.replace('"nhi:planner": alice', "anonymous: alice")
    made = files(NOT_COMPILED, "p, alice, github, get_file\n")
    async with (
        listening(upstream.handle) as base,
        served(f"{base}/mcp", rules="", files=made, settings=names, upstream_settings="anonymous: true") as running,
        aiohttp.ClientSession() as http,
    ):
        answers = [
            await post(
                http, f"{running.url}/mcp/github", stateless("tools/call", {"name": name, "arguments": {}}), name
            )
            for name in ("get_file", "search_code")
        ]
        assert answers == [200, 403]
        ends = [record for record in running.records() if record["event"] in ("outcome", "refusal")]
        assert [(end["engine"], end["reason"]) for end in ends] == [("casbin", None), ("casbin", "no-matching-rule")]
        started = next(record for record in running.records() if record["event"] == "control")
        assert started["control"]["policy_engines"] == ["agent_to_tool=casbin"]
        _, told = await running.ask("/metrics")
        assert 'sidecar_policy_engine_info{engine="casbin",kind="agent_to_tool"} 1.0' in told
        assert 'sidecar_policy_engine_info{engine="compiled",kind="nhi_to_nhi"} 1.0' in told
        assert "P207" in running.log()


async def test_a_difference_is_refused_counted_logged_once_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("casbin.util.key_match_func", lambda text, pattern: text == pattern)
    model = conf("r.sub == p.sub && r.obj == p.obj && keyMatch(r.act, p.act)")
    settings = NAMES.replace("policy: {", "policy: {engine: both, ")
    made = files(model, "p, alice, github, get_*\np, alice, github, search_code\n")
    async with world(tmp_path, files=made, settings=settings) as running:
        talk = Talk(running, "stateless")
        assert reason_of(await talk.call("search_code", {"repo": "a"})) == ""
        assert (running.app.readiness())[1] == {"status": "ready"}
        for _ in range(2):
            assert reason_of(await talk.call("get_file")) == Reason.CONDITION_FALSE
        counted = 'sidecar_policy_engine_differences_total{kind="agent_to_tool"} 2.0'
        await until(lambda: running.app.status()["policy"]["engine_differences"] == {"agent_to_tool": 2})
        for _ in range(100):
            if counted in (told := await running.metrics()):
                break
            await asyncio.sleep(0.05)
        assert counted in told
        (said,) = [record for record in caplog.records if "decide a link differently" in record.message]
        assert (said.__dict__["kind"], said.__dict__["object"]) == ("agent_to_tool", "tool:github/get_file")
        assert running.app.readiness()[1]["reasons"] == {"engines-differ": 2}
        assert [end["engine"] for end in running.ends()] == ["both"] * 3


async def test_a_policy_that_allows_by_default_says_so(tmp_path: Path) -> None:
    model = conf(BY_ROLE, roles=ROLES, columns="sub, obj, act, eft", effect=DENY_OVERRIDE)
    made = files(model, "p, alice, github, delete_repo, deny\n")
    settings = NAMES.replace("policy: {", "policy: {default: allow, ")
    async with world(tmp_path, files=made, settings=settings) as running:
        talk = Talk(running, "stateless")
        assert reason_of(await talk.call("search_code", {"repo": "a"})) == ""
        assert reason_of(await talk.call("delete_repo")) == Reason.DENIED_BY_RULE
        status = running.app.status()
        assert status["policy"]["allows_by_default"] == ["agent_to_tool"]
        assert any(banner.startswith("ALLOWED BY DEFAULT: agent_to_tool") for banner in status["banners"])
        assert any("P209" in warning for warning in status["policy"]["warnings"])
        (started, *_) = [record for record in running.records() if record["event"] == "control"]
        assert started["control"]["policy_allows_by_default"] == ["agent_to_tool"]


async def post(http: aiohttp.ClientSession, url: str, message: dict[str, Any], name: str) -> int:
    headers = {"Mcp-Method": "tools/call", "Mcp-Name": name, "MCP-Protocol-Version": STATELESS, "Accept": ACCEPT}
    async with http.post(url, json=message, headers=headers) as response:
        await response.read()
        return response.status
