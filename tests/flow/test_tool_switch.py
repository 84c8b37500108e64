"""Is a tool that an operator switched off gone at once, for everybody, from list and call, and until it is on again?"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.gateway.kill_switch import SwitchError
from tests.flow.streams import event, hearing, streamed
from tests.flow.talk import ERAS, Era, Talk, reason_of
from tests.flow.test_admin import SECRET, SETTINGS, VIEW, files, get
from tests.flow.test_shadow import shadow
from tests.flow.world import PATIENCE_S, SESSION, STATELESS, Upstream, World, request, started, stateless, world
from tests.tables import tables

GOOD = {"repo": "acme/site"}
FOREVER = {"reason": "Incident 12", "until": None, "by": "test"}


def listed(answer: tuple[int, Any, Any]) -> list[str]:
    return [tool["name"] for tool in answer[1]["result"]["tools"]]


async def ordered(running: World, path: str, order: Any, secret: str = SECRET) -> tuple[int, Any]:
    sent = {"Authorization": f"Bearer {secret}"}
    async with running.http.post(running.admin_url + path, json=order, headers=sent) as response:
        return response.status, await response.json()


@pytest.mark.parametrize("era", ERAS)
async def test_a_tool_that_is_off_is_neither_listed_nor_called(era: Era, tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        talk = Talk(running, era)
        assert listed(await talk.ask("tools/list")) == ["search_code", "get_file"]
        await running.app.switch_off("github", "search_code", **FOREVER)
        answer = await talk.call("search_code", GOOD)
        assert (reason_of(answer), answer[0]) == ("tool-disabled", 403 if era == "stateless" else 200)
        assert listed(await talk.ask("tools/list")) == ["get_file"]
        assert (await talk.call("get_file", {"path": "a"}))[0] == 200
        assert await running.app.switch_on("github", "search_code", by="test")
        assert (await talk.call("search_code", GOOD))[1].get("result") is not None
        assert len(running.upstream.calls()) == 2


async def test_of_a_server_that_is_off_nothing_can_be_had_and_a_session_can_end(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        talk = Talk(running, "session")
        await talk.ask("tools/list")
        reached = len(running.upstream.seen)
        await running.app.switch_off("github", "", **FOREVER)
        begun = await running.post(request("initialize", {"protocolVersion": SESSION, "capabilities": {}}))
        asked = [await talk.call("search_code", GOOD), await talk.ask("tools/list"), await talk.ask("ping"), begun]
        assert {reason_of(answer) for answer in asked} == {"tool-disabled"}
        assert len(running.upstream.seen) == reached
        async with running.http.delete(f"{running.url}/mcp/github", headers=talk.in_session) as response:
            assert response.status == 204


@pytest.mark.parametrize(("mode", "reason"), [("enforce", "no-matching-rule"), ("shadow", "tool-disabled")])
async def test_who_may_not_use_a_tool_learns_that_it_is_off_in_shadow_mode_alone(
    mode: str, reason: str, tmp_path: Path
) -> None:
    """There it would be let pass, and the switch holds."""
    async with world(tmp_path, settings=shadow() if mode == "shadow" else "") as running:
        await running.app.switch_off("github", "delete_repo", **FOREVER)
        assert reason_of(await running.call("delete_repo", {})) == reason


async def test_it_survives_a_restart_and_is_on_record_with_who_did_it(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        await running.app.switch_off("github", "search_code", **FOREVER)
        await running.app.switch_off("github", "", reason="", until=None, by="local:uid=7")
        await running.app.switch_on("github", "", by="local:uid=7")
        told = [record["control"] for record in running.records() if record["event"] == "control"][1:]
        assert [(one["what"], one["object"], one["by"], one["reason"]) for one in told] == [
            ("tool-disabled", "tool:github/search_code", "test", "Incident 12"),
            ("tool-disabled", "mcp:github", "local:uid=7", None),
            ("tool-enabled", "mcp:github", "local:uid=7", None),
        ]
    again = await started(tmp_path)
    try:
        assert [entry.principal for entry in again.switched_off()] == ["tool:github/search_code"]
        assert again.disabled_principals() == ()
        assert again.upstreams()["github"]["disabled_tools"] == ["search_code"]
    finally:
        await again.stop()


async def test_an_answer_under_way_is_cut_off(tmp_path: Path) -> None:
    async def slowly(asked: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "so far"}}
        return await streamed(asked, *[event(note)] * 2000, pause_s=0.05)

    async with world(tmp_path, upstream=Upstream(script={"tools/call": slowly})) as running:
        routing = {"Mcp-Method": "tools/call", "Mcp-Name": "get_file", "MCP-Protocol-Version": STATELESS}
        body = stateless("tools/call", {"name": "get_file", "arguments": {"path": "a"}})
        async with hearing(running.http, f"{running.url}/mcp/github", routing, body) as ear:
            assert (await ear.message())["params"] == {"data": "so far"}
            await running.app.switch_off("github", "get_file", **FOREVER)
            assert (await ear.rest(PATIENCE_S))[-1]["error"]["data"]["reason"] == "tool-disabled"


DISABLE = "/api/upstreams/github/disable"
ORDERS: list[tuple[str, Any, int]] = tables("flow/tool_switch")["orders"]


async def test_over_http_an_order_is_obeyed_or_refused_and_it_is_said_what_is_off(tmp_path: Path) -> None:
    async with world(tmp_path, settings=SETTINGS, files=files()) as running:
        await running.call("search_code", GOOD)
        for path, order, expected in (*ORDERS, (DISABLE, {"tool": "search_code", "reason": "12"}, 200)):
            assert running.app.switched_off() == ()
            assert (await ordered(running, path, order, VIEW))[0] == 403
            status, told = await ordered(running, path, order)
            assert status == expected, (path, order)
        assert (told["enabled"], told["known"], told["entry"]["by"]) == (False, True, "admin:operator")
        one = json.loads((await get(running, "/api/upstreams/github", VIEW))[1])
        assert (one["enabled"], one["disabled_tools"]) == (True, ["search_code"])
        assert json.loads((await get(running, "/api/principals", VIEW))[1])["disabled"] == []


async def test_the_command_does_it_and_says_so(tmp_path: Path) -> None:
    async with world(tmp_path) as running:

        async def mcp(*words: str) -> Result:
            command = ["mcp", words[0], "-c", str(tmp_path / "sidecar.yaml"), *words[1:]]
            return await asyncio.to_thread(CliRunner().invoke, main, command)

        await running.call("search_code", GOOD)
        assert (await mcp("disable", "github", "search_code")).output == "github/search_code is disabled\n"
        assert "lists no tool" in (await mcp("disable", "github", "serch_code")).output
        assert "without search_code, serch_code" in (await mcp("list")).output
        assert (await mcp("enable", "github", "serch_code")).output == "github/serch_code is enabled\n"
        assert (await mcp("enable", "github", "serch_code")).output == "github/serch_code was not disabled\n"
        assert (await mcp("disable", "github")).output == "github is disabled\n"
        assert "github  disabled" in (await mcp("list")).output
        for unknown in ("gitlab", "a b", "github/x", "é"):
            refused = await mcp("disable", unknown)
            assert (refused.exit_code, refused.output) == (1, "no upstream has this name\n")
    assert (await mcp("list")).exit_code == 1


async def test_what_cannot_be_recorded_stays_off(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        await running.app.switch_off("github", "search_code", **FOREVER)
        await running.app.audit.close()
        with pytest.raises(SwitchError):
            await running.app.switch_on("github", "search_code", by="test")
        assert len(running.app.switched_off()) == 1
