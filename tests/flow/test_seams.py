"""Does what holds on the straight way hold on every way round it?

Where two parts meet that know nothing of each other: the switch and tasks, evidence and subscriptions, revocation and
resumption, pins and the bridge, redaction and lines that say nothing of whose a message is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.flow.streams import event, hearing, streamed
from tests.flow.talk import ERAS, Era, Talk, reason_of
from tests.flow.test_pins import SEARCH, called, listed, pins
from tests.flow.test_responses import GONE, MAIL, before, evidence, text
from tests.flow.test_tasks import OPS, Listened, op, stage, subscription
from tests.flow.world import STATELESS, Upstream, world

GOOD = {"repo": "acme/site"}
OFF = {"reason": "", "until": None, "by": "test"}
PROGRESS = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}}


# --- tasks, and the switch of the tool that made them -----------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
async def test_a_task_of_a_tool_that_is_off_can_only_be_cancelled(era: Era, tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        owner = on.talk("nhi:planner", era)
        task_id = await on.create(owner)
        await on.running.app.switch_off("github", "search_code", **OFF)
        on.server.seen.clear()
        said = {method: reason_of(await op(owner, method, task_id)) for method in OPS[era]}
        assert said.pop("tasks/cancel") == ""
        assert set(said.values()) == {"tool-disabled"}
        assert on.server.methods() == ["tasks/cancel"]
        if era == "session":
            assert (await owner.ask("tasks/list"))[1]["result"]["tasks"] == []
        assert await on.running.app.switch_on("github", "search_code", by="test")
        assert reason_of(await op(owner, "tasks/get", task_id)) == ""


# --- results that come unasked, and evidence --------------------------------------------------------------------------


async def test_a_result_that_a_subscription_brings_is_kept_as_well(tmp_path: Path) -> None:
    rules = "anonymous: true, responses: {evidence: [search_code], redact: [{tools: [search_code], classes: [email]}]}"
    async with stage(tmp_path, upstream_settings=rules) as on:
        owner = on.talk("nhi:planner", "stateless")
        mine = await on.create(owner)
        told = {"taskId": mine, "status": "completed", "result": text(MAIL)}
        on.server.script["subscriptions/listen"] = Listened(
            [mine], {"jsonrpc": "2.0", "method": "notifications/tasks", "params": told}
        )
        routing = {"Mcp-Method": "subscriptions/listen", "MCP-Protocol-Version": STATELESS, **owner.headers}
        async with hearing(on.running.http, f"{on.running.url}/mcp/github", routing, subscription(mine)) as ear:
            heard = (await ear.rest())[1]["params"]["result"]
        assert heard["content"][0]["text"] == GONE
        kept = evidence(on.running)
        assert [one["data"] for one in kept] == [heard]
        assert [one["id"] for one in on.running.ends()[-1]["evidence"]] == [kept[0]["id"]]


# --- what is fetched later, and what was revoked meanwhile ------------------------------------------------------------


@pytest.mark.parametrize("how", ["rule", "tool"])
async def test_an_answer_that_is_fetched_later_needs_its_permission_still(how: str, tmp_path: Path) -> None:
    async def called(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        return await streamed(request, event(PROGRESS, id="e1"))

    async def resumed(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        return await streamed(request, event({"jsonrpc": "2.0", "id": 5, "result": text("secret")}, id="e2"))

    upstream = Upstream(script={"tools/call": called, "GET": resumed})
    async with world(tmp_path, upstream=upstream) as running:
        talk, address = Talk(running, "session"), f"{running.url}/mcp/github"
        await talk.open()
        call = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "search_code", "arguments": GOOD}}
        async with hearing(running.http, address, talk.in_session, call) as ear:
            last = next(line[4:] for line in (await ear.block()).decode().splitlines() if line.startswith("id: "))
            await ear.rest()
        there = {**talk.in_session, "Last-Event-ID": last}
        async with hearing(running.http, address, there) as ear:
            assert (await ear.message())["result"]["content"][0]["text"] == "secret"
        if how == "tool":
            await running.app.switch_off("github", "search_code", **OFF)
        else:
            (running.folder / "policies" / "agent_to_tool.csv").write_text(
                "p, nhi:planner, tool:github/get_file, use, -, -, -, allow\n"
            )
            await running.app.reload("test")
        async with hearing(running.http, address, there) as ear:
            heard = await ear.rest()
        assert "secret" not in json.dumps(heard)
        assert [one["error"]["data"]["reason"] for one in heard] == [
            "tool-disabled" if how == "tool" else "no-matching-rule"
        ]


# --- pins and output schemas, and the bridge --------------------------------------------------------------------------

LISTING: dict[str, Any] = {**SEARCH, "outputSchema": {"type": "array", "items": {"type": "integer"}}}
ALL = "p, nhi:planner, *, use, -, -, -, allow\n"


def only_stateless(result: dict[str, Any]) -> Upstream:
    """A server of the stateless era alone."""

    async def unknown(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        error = {"code": -32601, "message": "Method not found"}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": error}, status=404)

    async def answered(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        body = {"jsonrpc": "2.0", "id": message["id"], "result": {"resultType": "complete", **result}}
        return web.json_response(body)

    return Upstream(script={"initialize": unknown, "tools/call": answered}, tools=[dict(LISTING)])


@pytest.mark.parametrize("era", ERAS)
async def test_a_pinned_tool_is_the_same_tool_on_both_sides_of_the_bridge(era: Era, tmp_path: Path) -> None:
    server = only_stateless(text("[1]", structuredContent=[1]))
    async with world(tmp_path, rules=ALL, files=pins(LISTING), upstream=server) as running:
        talk = Talk(running, era)
        assert (await listed(talk), await called(talk)) == (["search"], "")
        running.app.drift.look()
        assert running.app.status()["upstreams"]["github"]["changed"] == {}


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("said", "expected"), [([1], ""), (["x"], "response-refused")])
async def test_an_output_schema_holds_on_both_sides_of_the_bridge(
    said: list[Any], expected: str, era: Era, tmp_path: Path
) -> None:
    server = only_stateless(text("[1]", structuredContent=said))
    settings = "responses: {check_output: true}"
    async with world(tmp_path, rules=ALL, upstream=server, upstream_settings=settings) as running:
        talk = Talk(running, era)
        answer = await talk.call("search")
        assert reason_of(answer) == expected
        if not expected:
            shown = answer[1]["result"].get("structuredContent")
            assert shown == ([1] if era == "stateless" else None), "an object in every revision that has sessions"
        entry = (await talk.ask("tools/list"))[1]["result"]["tools"][0]
        assert ("outputSchema" in entry) is (era == "stateless")


# --- redaction, and who can say whose a message is -------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
async def test_what_a_server_says_beside_an_answer_is_under_the_rules_of_all(era: Era, tmp_path: Path) -> None:
    """On a line that has one direction for everything, it goes to some call that is under way: not to its own."""

    async def respond(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        said = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": MAIL}}
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": {"resultType": "complete", **text(MAIL)}}
        return await streamed(request, event(said), event(answer))

    async with before(tmp_path, "redact: [{tools: [get_*], classes: [email]}]", respond) as running:
        talk = Talk(running, era)
        _, body, _ = await talk.call("search_code", GOOD)
        said, answer = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: ")]
        assert said["params"]["data"] == GONE
        assert answer["result"]["content"][0]["text"] == MAIL, "an answer is its own call's"
