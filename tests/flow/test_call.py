"""One stateless tools/call, from socket to audit."""

from __future__ import annotations

from pathlib import Path

from tests.flow.world import SESSION, World, request, world

ANYBODY = "p, anonymous, tool:github/*, use, -, -, -, allow\n"


async def test_an_allowed_call_reaches_the_upstream_and_leaves_two_records(planner: World) -> None:
    status, body, _ = await planner.call("search_code", {"repo": "acme/site"}, id="a-1")
    assert (status, body["id"], body["result"]["content"][0]["text"]) == (200, "a-1", "done")
    assert [call["params"]["arguments"] for call in planner.upstream.calls()] == [{"repo": "acme/site"}]
    decision, outcome = planner.records()[-2:]
    assert (decision["event"], outcome["event"]) == ("decision", "outcome")
    assert decision["decision_id"] == outcome["decision_id"]
    assert outcome["status"] == "success" and outcome["agent_id"] == "nhi:planner"


async def test_a_denied_call_never_reaches_the_upstream(planner: World) -> None:
    status, body, _ = await planner.call("delete_repo", {"repo": "acme/site"})
    assert (status, body["error"]["code"]) == (403, 403)
    assert body["error"]["data"]["reason"] == "no-matching-rule"
    assert planner.upstream.calls() == []
    assert planner.records()[-1]["event"] == "refusal"


async def test_a_condition_decides_on_arguments(planner: World) -> None:
    status, body, _ = await planner.call("search_code", {"repo": "evil/site"})
    assert (status, body["error"]["data"]["reason"]) == (403, "condition-false")


async def test_bad_arguments_are_a_tool_result_that_names_the_place_and_not_the_value(planner: World) -> None:
    status, body, _ = await planner.call("search_code", {"repo": "acme/x", "limit": 4711})
    assert status == 200 and body["result"]["isError"] is True and body["result"]["resultType"] == "complete"
    text = body["result"]["content"][0]["text"]
    assert "/arguments/limit" in text and "maximum" in text and "4711" not in text
    assert planner.upstream.calls() == []


async def test_the_fourth_of_three_calls_an_hour_is_refused(planner: World) -> None:
    statuses = [(await planner.call("get_file", {"path": "a"}))[0] for _ in range(4)]
    assert statuses == [200, 200, 200, 429]
    assert len(planner.upstream.calls()) == 3
    last = planner.ends()[-1]
    assert (last["status"], last["reason"]) == ("rate_limited", "rate-limited")


async def test_a_page_of_our_own_name_may_call_and_no_other(tmp_path: Path) -> None:
    async with world(tmp_path, principal="", upstream_settings="anonymous: true", rules=ANYBODY) as running:
        port = running.url.rpartition(":")[2]
        for origin, expected in {
            f"http://localhost:{port}": 200,
            f"http://127.0.0.1:{port}": 200,
            "http://localhost": 403,
            "http://localhost:1": 403,
            f"http://evil.example:{port}": 403,
            "null": 403,
        }.items():
            assert (await running.call("get_file", {}, headers={"Origin": origin}))[0] == expected, origin


async def test_a_session_takes_any_revision_of_its_era_in_the_header(planner: World) -> None:
    hello = {"protocolVersion": SESSION, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    status, _, headers = await planner.post(request("initialize", hello))
    assert status == 200
    session = {"Mcp-Session-Id": headers["Mcp-Session-Id"]}
    for version, expected in {"2025-03-26": 200, SESSION: 200, "2099-01-01": 400}.items():
        sent = session | {"MCP-Protocol-Version": version}
        assert (await planner.post(request("tools/list"), headers=sent))[0] == expected, version
