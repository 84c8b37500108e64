"""Can a script list and call tools without MCP, under the very rules that MCP callers are under?

What it hears for each reason stands in `test_answers_per_era.py`, and whether its document is true in
`test_openapi.py`; here is what is good, what the other side says went wrong, and what must not get by.
"""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from yarl import URL

from sidecar.gateway.frontends import rest
from tests.flow.apart import SessionsOnly, StatelessOnly
from tests.flow.described import CALL, LIST, check_described
from tests.flow.streams import streamed
from tests.flow.talk import Answer, Talk, reason_of
from tests.flow.test_crossings import RULES as ALL
from tests.flow.world import PATIENCE_S, STATELESS, TOOLS, Upstream, World, stateless, until, world
from tests.tables import tables

MAY_ALL = "p, nhi:planner, tool:github/*, use, -, -, -, allow\n"
GOOD = {"repo": "acme/site"}


def plain(running: World) -> Talk:
    return Talk(running, "plain")


async def post(running: World, path: str, body: Any, **headers: str) -> Answer:
    return await running.post(body, headers=headers, url=f"{running.url}/mcp/github/tools{path}")


def results(*said: Mapping[str, Any], status: int = 200) -> Any:
    """A responder whose answers are these members, one after another, the last again and again."""
    left = list(said)

    async def respond(_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        one = left.pop(0) if len(left) > 1 else left[0]
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], **one}, status=status)

    return respond


def page(*names: str, cursor: str | None = None) -> dict[str, Any]:
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
    return {"result": {"tools": tools, "ttlMs": 60000, **({"nextCursor": cursor} if cursor else {})}}


# --- lists ----------------------------------------------------------------------------------------------------------


async def test_a_list_is_what_the_caller_may_use_in_the_words_of_the_seed(tmp_path: Path) -> None:
    more: dict[str, Any] = {"_meta": {"_fastmcp": {"tags": ["files"]}, "x": 1}}
    tagged = {**TOOLS[0], "tags": ["crud", 7, "search"], "metadata": {"version": "1.0"}}
    async with world(tmp_path, upstream=Upstream(tools=[tagged, TOOLS[1], {**TOOLS[2], **more}])) as running:
        answer = await plain(running).ask("tools/list")
        check_described(LIST, answer)
        assert answer[0] == 200 and answer[2]["Cache-Control"] == "no-store"
        same = {"status": "active", "deprecated": False}
        search = {"name": "search_code", "description": "Search.", "input_schema": TOOLS[0]["inputSchema"], **same}
        get = {"name": "get_file", "description": None, "input_schema": TOOLS[2]["inputSchema"], **same}
        assert answer[1]["tools"] == [
            {**search, "tags": ["crud", "search"], "metadata": {"version": "1.0"}},
            {**get, "tags": ["files"], "metadata": more["_meta"]},
        ]
        (end,) = running.ends()
        assert (end["protocol"], end["method"], end["object"]) == ("http", "tools/list", "nhi:github")
        moved = 'sidecar_requests_total{method="tools/list",protocol="http",status="success",upstream="github"} 1.0'
        assert moved in await running.metrics()


async def test_what_is_off_or_cannot_be_named_in_a_path_is_not_listed(tmp_path: Path) -> None:
    remote = {"type": "object", "properties": {"a": {"$ref": "https://schemas.example/a.json"}}}
    odd = [
        {"name": name, "inputSchema": {"type": "object"}} for name in (".hidden", "a//b", "files/read.v2", "no/../w")
    ]
    old = {"name": "old", "inputSchema": {"type": "object", "deprecated": True}}
    older = {"name": "older", "inputSchema": {"type": "object"}, "annotations": {"deprecated": True}}
    upstream = Upstream(tools=[*TOOLS, *odd, {"name": "broken", "inputSchema": remote}, old, older])
    async with world(tmp_path, rules=MAY_ALL, upstream=upstream) as running:
        await running.app.switch_off("github", "delete_repo", reason="", until=None, by="test")
        _, body, _ = await plain(running).ask("tools/list")
        listed = {tool["name"]: tool["deprecated"] for tool in body["tools"]}
        current = dict.fromkeys(("search_code", "get_file", "files/read.v2"), False)
        assert listed == {**current, "old": True, "older": True}
        for name in listed:
            arguments = GOOD if name == "search_code" else {}
            assert (await plain(running).call(name, arguments))[0] == 200, name
        assert [message["params"]["name"] for message in upstream.calls()] == list(listed)


async def test_all_pages_are_one_answer_and_each_counts_as_it_does_over_mcp(tmp_path: Path) -> None:
    pages = results(page("a", "b", "c"), page("a", cursor="1"), page("hidden", "b", cursor="2"), page("c"))
    upstream, four = Upstream(script={"tools/list": pages}), "sessions: {session_calls_per_minute: 4}\n"
    async with world(tmp_path, rules=MAY_ALL, upstream=upstream, settings=four) as running:
        _, body, _ = await plain(running).ask("tools/list")
        assert [tool["name"] for tool in body["tools"]] == ["a", "b", "c"]
        cursors = [call["params"].get("cursor") for call in running.upstream.calls("tools/list")]
        assert list(filter(None, cursors)) == ["1", "2"]
        assert len(running.ends()) == 1
        assert (await plain(running).ask("tools/list"))[0] == 200
        answer = await plain(running).ask("tools/list")
        check_described(LIST, answer)
        assert (answer[0], reason_of(answer)) == (429, "rate-limited")


@pytest.mark.parametrize(
    "said",
    [
        page("a", cursor="again"),
        page("a", cursor="x" * 5000),
        {"result": {"tools": [], "nextCursor": 7}},
        {"result": {"resultType": "input_required", "inputRequests": {}}},
    ],
    ids=["without end", "a long cursor", "a number", "a question"],
)
async def test_a_list_that_is_out_of_shape_is_refused(
    said: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest, "MAX_PAGES", 5)
    upstream = Upstream(script={"tools/list": results(page("a"), said)})
    async with world(tmp_path, rules=MAY_ALL, upstream=upstream) as running:
        answer = await plain(running).ask("tools/list")
        check_described(LIST, answer)
        assert (answer[0], reason_of(answer)) == (502, "response-refused")
        assert len(upstream.calls("tools/list")) <= 6


# --- calls ----------------------------------------------------------------------------------------------------------


async def test_a_call_is_answered_with_its_id_in_the_evidence_which_is_that_of_an_mcp_call(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        headers = {"X-Run-Id": "run-7", "X-Thread-Id": "thread-7", "Cookie": "a=b", "X-Custom": "secret"}
        answer = await plain(running).call("search_code", GOOD, headers=headers)
        check_described(CALL, answer)
        status, body, _ = answer
        assert status == 200 and set(body) == {"call_id", "result", "latency_ms"}
        assert body["result"] == {"content": [{"type": "text", "text": "done"}], "isError": False}
        decision, outcome = running.records()[-2:]
        assert decision["decision_id"] == outcome["decision_id"] == body["call_id"]
        assert (outcome["protocol"], outcome["run_id"], outcome["thread_id"]) == ("http", "run-7", "thread-7")
        end = (outcome["object"], outcome["status"], outcome["http_status"])
        assert end == ("tool:github/search_code", "success", 200)
        assert 0 <= body["latency_ms"] <= outcome["duration_ms"]
        sent, message = next(entry for entry in running.upstream.seen if entry[1]["method"] == "tools/call")
        assert message["params"]["arguments"] == GOOD
        assert (sent["Mcp-Method"], sent["Mcp-Name"]) == ("tools/call", "search_code")
        assert not {"Cookie", "X-Custom", "X-Run-Id", "Authorization"} & set(sent)
        await running.call("search_code", GOOD)
        same = ("args_hash", "chain", "links", "facts", "object", "action", "policy_revision", "limits", "status")
        assert [outcome[name] for name in same] == [running.ends()[-1][name] for name in same]


LARGE = [2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)]


@pytest.mark.parametrize("era", ["stateless", "session", "plain"])
async def test_integers_of_64_bits_pass_unchanged(tmp_path: Path, era: Any) -> None:
    """In arguments, where a condition reads them, and in results."""

    async def echo(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        result = {"content": [], "structuredContent": message["params"]["arguments"], "resultType": "complete"}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result})

    schema = {"type": "object", "properties": {"n": {"type": "array", "items": {"type": "integer"}}}}
    upstream = Upstream(tools=[{"name": "search_code", "inputSchema": schema}], script={"tools/call": echo})
    rules = "p, nhi:planner, tool:github/search_code, use, -, -, args.n.size() > 1, allow\n"
    async with world(tmp_path, upstream=upstream, rules=rules) as running:
        _, body, _ = await Talk(running, era).call("search_code", {"n": LARGE})
        assert body["result"]["structuredContent"] == {"n": LARGE}
        assert [call["params"]["arguments"]["n"] for call in upstream.calls()] == [LARGE]


@pytest.mark.parametrize("era", ["stateless", "session"])
async def test_a_message_says_itself_which_run_it_is_of(tmp_path: Path, era: Any) -> None:
    """Of `_meta` of a call; what is not well formed there leaves what the head says."""
    trace, other = "0af7651916cd43dd8448eb211c80319c", "1af7651916cd43dd8448eb211c80319c"
    head = {"X-Run-Id": "run-7", "X-Thread-Id": "thread-7", "traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    said = {"run_id": "run-8", "thread_id": "thread-8", "traceparent": f"00-{other}-b7ad6b7169203331-01"}
    bad = {"run_id": "a b", "thread_id": 7, "traceparent": "00-0-0-01"}
    async with world(tmp_path) as running:
        talk = Talk(running, era)
        for own, expected in ((said, ("run-8", "thread-8", other)), (bad, ("run-7", "thread-7", trace))):
            params = {"name": "search_code", "arguments": GOOD, "_meta": own}
            assert (await talk.ask("tools/call", params, headers=head))[0] == 200
            for record in running.records()[-2:]:
                assert (record["run_id"], record["thread_id"], record["trace_id"]) == expected


async def test_a_message_to_all_servers_says_itself_which_run_it_is_of(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        params = {
            "name": "github__search_code",
            "arguments": GOOD,
            "_meta": {"run_id": "run-9", "thread_id": "thread-9"},
        }
        routing = {"Mcp-Method": "tools/call", "Mcp-Name": "github__search_code", "MCP-Protocol-Version": STATELESS}
        message = stateless("tools/call", params)
        assert (await running.post(message, headers=routing, url=f"{running.url}/mcp"))[0] == 200
        for record in running.records()[-2:]:
            assert (record["run_id"], record["thread_id"]) == ("run-9", "thread-9")


async def test_a_limit_is_one_for_all_ways_to_call(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        for way in (plain(running).call, running.call, plain(running).call):
            assert (await way("get_file", {"path": "a"}))[0] == 200
        for way in (plain(running).call, running.call):
            assert (await way("get_file", {"path": "a"}))[0] == 429


@pytest.mark.parametrize(("said", "status", "kind"), tables("flow/plain")["failures"])
async def test_what_fails_at_the_other_side_is_an_error_that_was_delivered(
    said: dict[str, Any], status: int, kind: str, tmp_path: Path
) -> None:
    upstream = Upstream(script={"tools/call": results(said, status=status)})
    async with world(tmp_path, upstream=upstream) as running:
        answer = await plain(running).call("search_code", GOOD)
        check_described(CALL, answer)
        assert answer[0] == answer[1]["status"] == 502 and answer[2]["Content-Type"] == "application/problem+json"
        assert (answer[1]["error_code"], answer[1]["type"]) == ("ExecutionFailed", f"urn:sidecar:{kind}")
        assert answer[1]["details"] == next(iter(said.values()))
        (end,) = running.ends()
        assert (end["status"], end["reason"], end["http_status"], end["tool_error"]) == ("success", None, 502, True)
        assert running.app.status()["upstreams"]["github"]["tool_errors"] == 1
        assert 'status="tool_error",upstream="github"} 1.0' in await running.metrics()
        assert end["decision_id"] == answer[1]["decision_id"]


@pytest.mark.parametrize("server", [SessionsOnly, StatelessOnly])
async def test_a_server_of_either_era_is_called_and_only_its_result_goes_out(server: Any, tmp_path: Path) -> None:
    notes = [{"method": "notifications/message", "params": {"level": "error", "data": n}} for n in range(3)]
    async with world(tmp_path, rules=ALL.format(who="nhi:planner"), upstream=server()) as running:
        _, listed, _ = await plain(running).ask("tools/list")
        assert [tool["name"] for tool in listed["tools"]] == ["act"]
        for told in ([], notes):
            answer = await plain(running).call("act", {"say": told})
            check_described(CALL, answer)
            assert (answer[0], answer[1]["result"]["content"]) == (200, [{"type": "text", "text": "[]"}])
        failed = await plain(running).call("act", {"fail": {"code": -32000, "message": "no"}})
        assert (failed[0], failed[1]["details"]["message"]) == (502, "no")


@pytest.mark.parametrize(
    ("rules", "server", "reason"),
    [
        (ALL.format(who="nhi:planner"), StatelessOnly, "response-refused"),
        (MAY_ALL, StatelessOnly, "no-matching-rule"),
        (ALL.format(who="nhi:planner"), SessionsOnly, ""),
    ],
)
async def test_a_question_cannot_be_answered_here(rules: str, server: Any, reason: str, tmp_path: Path) -> None:
    """A server of sessions hears that nobody can be asked."""
    async with world(tmp_path, rules=rules, upstream=server()) as running:
        answer = await plain(running).call("act", {"ask": ["elicitation/create"]})
        check_described(CALL, answer)
        assert reason_of(answer) == reason
        assert ("a plain call cannot answer" in answer[1].get("detail", "")) is (reason == "response-refused")
        if not reason:
            (heard,) = json.loads(answer[1]["result"]["content"][0]["text"])
            assert answer[0] == 200 and "code" in heard


async def test_a_caller_who_leaves_takes_the_call_along(tmp_path: Path) -> None:
    begun, left = asyncio.Event(), asyncio.Event()

    async def never(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        raise AssertionError

    async with world(tmp_path, upstream=Upstream(script={"tools/call": never})) as running:
        call = asyncio.create_task(plain(running).call("search_code", GOOD))
        await begun.wait()
        call.cancel()
        await asyncio.wait_for(left.wait(), PATIENCE_S)
        await until(lambda: len(running.ends()) == 1)
        assert (running.ends()[0]["reason"], running.ends()[0]["http_status"]) == ("caller-gone", 499)


async def test_a_stream_behind_a_plain_call_ends_when_its_caller_is_disabled(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def talk(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        asyncio.get_running_loop().call_later(0.05, begun.set)
        return await streamed(request, b": still here\n\n", b": and so on\n\n", pause_s=60)

    async with world(tmp_path, upstream=Upstream(script={"tools/call": talk})) as running:
        call = asyncio.create_task(plain(running).call("search_code", GOOD))
        await begun.wait()
        await running.app.disable("nhi:planner", reason="", until=None, by="test")
        await running.app.pipeline.forwarder.oversight.look()  # as it does each second
        answer = await asyncio.wait_for(call, PATIENCE_S)
        check_described(CALL, answer)
        assert (answer[0], reason_of(answer)) == (403, "principal-disabled")


async def test_headers_that_a_schema_asks_for_are_made_from_the_arguments(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    upstream = Upstream(tools=[{"name": "near", "inputSchema": schema}])
    async with world(tmp_path, rules=MAY_ALL, upstream=upstream) as running:
        answer = await plain(running).call("near", {"region": "eu"}, headers={"Mcp-Param-Region": "us"})
        assert answer[0] == 200
        (sent,) = [headers for headers, message in upstream.seen if message["method"] == "tools/call"]
        assert sent["Mcp-Param-Region"] == "eu"


async def test_what_an_answer_may_hold_holds_here(tmp_path: Path) -> None:
    said = {"result": {"content": [{"type": "text", "text": "write to ada@example.org"}], "isError": True}}
    redacting = "responses: {redact: [{classes: [email]}]}"
    upstream = Upstream(script={"tools/call": results(said)})
    async with world(tmp_path, upstream=upstream, upstream_settings=redacting) as running:
        _, body, _ = await plain(running).call("search_code", GOOD)
        assert "ada@" not in json.dumps(body) and "write to" in json.dumps(body)
        assert running.ends()[0]["redactions"] == 1


# --- what is not taken ----------------------------------------------------------------------------------------------

NOT_TAKEN = {
    **{name: raw.encode("latin-1") for name, raw in tables("flow/plain")["not_taken"].items()},
    "a tower": b'{"arguments": ' + b'{"a":' * 40 + b"1" + b"}" * 40 + b"}",
}


KEPT_BACK = ("disclosure: kind", "disclosure: hide")


AMBIGUOUS = ("/search%5Fcode", "/.hidden", "/a//b", "/a/../search_code", "/", "/search_code?repo=acme")


async def test_what_can_be_read_in_two_ways_is_malformed(tmp_path: Path) -> None:
    """A body that is not one object with arguments; a path; a query. And a page of another origin gets no further."""
    async with world(tmp_path) as running:
        said = json.dumps({"arguments": GOOD}).encode()
        for path, body in (
            *(("/search_code", body) for body in NOT_TAKEN.values()),
            *((one, said) for one in AMBIGUOUS),
        ):
            url: Any = URL(f"{running.url}/mcp/github/tools{path}", encoded=True)
            answer = await running.post(body, url=url)
            check_described(CALL, answer)
            assert (answer[0], reason_of(answer)) == (400, "malformed-call"), (path, body)
            assert answer[1]["error_code"] == "InvalidParameters"
        assert len(running.ends()) == len(NOT_TAKEN) + len(AMBIGUOUS)
        answer = await post(running, "/search_code", {"arguments": GOOD}, Origin="https://evil.example")
        check_described(CALL, answer)
        assert (answer[0], reason_of(answer)) == (403, "origin-refused") and not running.upstream.seen
        assert (await post(running, "/get_file", {}))[0] == 200, "a body may leave the arguments out"
        assert running.upstream.calls()[0]["params"]["arguments"] == {}


@pytest.mark.parametrize("manner", ["deny_style: jsonrpc", "deny_style: tool_result", *KEPT_BACK])
async def test_a_style_of_denial_is_for_protocols_and_what_is_kept_back_is_kept_back_here(
    manner: str, tmp_path: Path
) -> None:
    async with world(tmp_path, settings=f"answers: {{{manner}}}\n") as running:
        calls: list[Any] = [("delete_repo", {}), ("search_code", {"repo": "evil/a"})]
        denied = [await plain(running).call(*call) for call in calls]
        for answer in denied:
            check_described(CALL, answer)
            answer[1].pop("decision_id")
        if manner in KEPT_BACK:
            assert denied[0][:2] == denied[1][:2]
        else:
            assert (denied[0][0], reason_of(denied[0])) == (403, "no-matching-rule")
