"""One stateless tools/call, from socket to audit."""

from __future__ import annotations

from tests.flow.world import World


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
