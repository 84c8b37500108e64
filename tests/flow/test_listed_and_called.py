"""Is what is listed what can be called, and who learns what there is?"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.flow.talk import ERAS, Era, Talk, reason_of, talking
from tests.flow.world import Upstream, listening, world


@pytest.mark.parametrize("era", ERAS)
async def test_what_is_listed_is_what_can_be_called(tmp_path: Path, era: Era) -> None:
    """BL-035: for every tool, and for rules of every kind."""
    names = ["read_a", "read_b", "write_a", "write_b", "other"]
    rules = """\
p, role:readers, tool:github/read_*, use, -, -, -, allow
p, nhi:planner, set:some, tools/call, -, -, -, allow
p, nhi:planner, tool:github/write_b, tools/call, 2020-01-01T00:00:00Z, -, -, allow
p, *, tool:github/*_b, tools/call, -, -, "has(args.x) && args.x == 'never'", deny
p, *, tool:github/read_b, tools/call, -, -, -, deny
"""
    roles = "g, nhi:planner, role:readers\ng2, tool:github/other, set:some\n"
    upstream = Upstream(tools=[{"name": name, "inputSchema": {"type": "object"}} for name in names])
    async with world(tmp_path, rules=rules, files={"policies/roles.csv": roles}, upstream=upstream) as running:
        talk = Talk(running, era)
        _, body, _ = await talk.ask("tools/list")
        callable_ = [name for name in names if "result" in (await talk.call(name))[1]]
        assert [tool["name"] for tool in body["result"]["tools"]] == callable_ == ["read_a", "other"]


async def test_a_tool_without_a_usable_schema_is_not_listed_and_ten_good_ones_are(tmp_path: Path) -> None:
    """BL-010."""
    good = [{"name": f"good_{number}", "inputSchema": {"type": "object"}} for number in range(10)]
    bad = [
        {"name": "bad_ref", "inputSchema": {"$ref": "https://evil.example/schema"}},
        {"name": "bad_type", "inputSchema": {"type": "objekt"}},
        {"name": "bad_none"},
        {"name": "twice", "inputSchema": {"type": "object"}},
        {"name": "twice", "inputSchema": {"type": "object", "required": ["x"]}},
    ]
    upstream = Upstream(tools=[*bad[:2], *good, *bad[2:]])
    rules = "p, nhi:planner, tool:github/*, use, -, -, -, allow\n"
    async with world(tmp_path, rules=rules, upstream=upstream) as running:
        for era in ERAS:
            talk = Talk(running, era)
            _, body, _ = await talk.ask("tools/list")
            assert [tool["name"] for tool in body["result"]["tools"]] == [tool["name"] for tool in good]
            for name in ("bad_ref", "bad_type", "bad_none", "twice"):
                assert reason_of(await talk.call(name)) == "schema-unavailable", name
            assert "result" in (await talk.call("good_9"))[1]
        assert upstream.methods().count("tools/call") == 2


@pytest.mark.parametrize("era", ERAS)
async def test_denied_unknown_and_hidden_look_alike_and_are_told_apart_in_the_audit(tmp_path: Path, era: Era) -> None:
    """BL-064."""
    rules = """\
p, nhi:planner, tool:github/search_*, use, -, -, -, allow
p, *, tool:github/search_private, tools/call, -, -, -, deny
"""
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("search_code", "delete_repo")]
    async with talking(world(tmp_path, rules=rules, upstream=Upstream(tools=tools)), era) as talk:
        there, nowhere = await talk.call("delete_repo"), await talk.call("no_such_tool")
        assert bare(there) == bare(nowhere), "who may not use a tool does not learn whether it is there"
        assert [reason_of(one) for one in (there, nowhere)] == ["no-matching-rule"] * 2
        assert reason_of(await talk.call("search_private")) == "denied-by-rule"
        missing = await talk.call("search_gone")
        status = 404 if era == "stateless" else 200  # a session's client would take a 404 for the end of it
        assert (missing[0], missing[1]["error"]["code"], reason_of(missing)) == (status, -32602, "tool-unknown")
        reasons = [record["reason"] for record in talk.world.ends() if record["reason"]]
        assert reasons == ["no-matching-rule", "no-matching-rule", "denied-by-rule", "tool-unknown"]
        assert "tools/call" not in talk.world.upstream.methods()


def bare(answer: tuple[int, Any, Any]) -> tuple[int, str, list[str]]:
    """What a caller can tell answers apart by, without what is new in each."""
    status, body, headers = answer
    return status, re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "", json.dumps(body)), sorted(set(headers) - {"Date"})


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("server", ["github", "no-such-server"])
async def test_without_a_grant_there_is_no_list_not_even_an_empty_one(tmp_path: Path, server: str, era: Era) -> None:
    """A model takes an empty list for a server without tools."""
    rules = "p, nhi:somebody, tool:github/*, use, -, -, -, allow\n"
    async with talking(world(tmp_path, rules=rules), era, server=server) as talk:
        answer = await talk.ask("tools/list") if era == "stateless" else await talk.open()
        assert (answer[0], reason_of(answer)) == (403 if era == "stateless" else 200, "no-matching-rule")
        assert talk.world.upstream.seen == []


@pytest.mark.parametrize("era", ERAS)
async def test_a_server_without_tools_has_an_empty_list(tmp_path: Path, era: Era) -> None:
    async with world(tmp_path, upstream=Upstream(tools=[])) as running:
        _, body, _ = await Talk(running, era).ask("tools/list")
        assert body["result"]["tools"] == []


def two_upstreams(second: str, more: str = "") -> str:
    """Settings of `github` that go on with another upstream."""
    return f"anonymous: false}}\n  gitlab: {{mcp: {{url: '{second}'}}{more}"


@pytest.mark.parametrize("era", ERAS)
async def test_two_servers_with_the_same_tool_never_meet(tmp_path: Path, era: Era) -> None:
    """BL-014."""
    tools = [{"name": "send_email", "inputSchema": {"type": "object"}}]
    one, other = Upstream(tools=tools), Upstream(tools=tools)
    rules = "p, nhi:planner, tool:github/send_email, use, -, -, -, allow\n"
    rules += "p, nhi:planner, tool:gitlab/read, use, -, -, -, allow\n"
    async with (
        listening(other.handle) as base,
        world(tmp_path, rules=rules, upstream=one, upstream_settings=two_upstreams(f"{base}/mcp")) as running,
    ):
        github, gitlab = Talk(running, era), Talk(running, era, server="gitlab")
        assert "result" in (await github.call("send_email"))[1]
        assert reason_of(await gitlab.call("send_email")) == "no-matching-rule"
        for name in ("gitlab/send_email", "github/send_email", "../gitlab/send_email"):
            assert reason_of(await github.call(name)) in ("no-matching-rule", "malformed-call")
        assert (await gitlab.ask("tools/list"))[1]["result"]["tools"] == []
        assert (one.methods().count("tools/call"), other.methods().count("tools/call")) == (1, 0)
