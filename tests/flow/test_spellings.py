"""Do all spellings of a URI get one decision, and reach the upstream in one form?"""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.flow.federated import At, federation
from tests.flow.scripts import giving
from tests.flow.talk import ERAS, Era, Talk, reason_of
from tests.flow.world import Upstream, World, world
from tests.tables import tables

RULES = """\
p, nhi:planner, resource:*, use, -, -, -, allow
p, *, resource:github/FILE:/etc/*, *, -, -, -, deny
p, *, resource:github/notes://HR/*, *, -, -, -, deny
"""
CLOSED = (
    *("file:///etc/passwd", "FILE:///etc/passwd", "file:/etc/passwd", "file://localhost/etc/passwd", "file:////etc//x"),
    *("file:///%65tc/passwd", "File://LOCALHOST/%65%74c/passwd", "notes://hr/x", "NOTES://h%72/x", "notes://Hr:/x"),
)
OPEN = ("Notes://Team%2d1/a%7eb", "notes://team-1/a~b", "notes://TEAM-1:/%61%7Eb#")
FORM = "notes://team-1/a~b"


def server() -> Upstream:
    contents, values = {"contents": [{"uri": FORM, "text": "t"}]}, {"completion": {"values": []}}
    subscriptions = dict.fromkeys(("resources/subscribe", "resources/unsubscribe"), giving({}))
    reads = {"resources/read": giving(contents), "completion/complete": giving(values)}
    return Upstream(script={**reads, **subscriptions})


def asked(method: str, uri: str) -> dict[str, Any]:
    if method == "completion/complete":
        return {"ref": {"type": "ref/resource", "uri": uri}, "argument": {"name": "a", "value": ""}}
    if method == "subscriptions/listen":
        return {"notifications": {"resourceSubscriptions": [uri]}}
    return {"uri": uri}


METHODS = (
    *(("stateless", method) for method in ("resources/read", "completion/complete", "subscriptions/listen")),
    *(("session", method) for method in ("resources/read", "resources/subscribe", "resources/unsubscribe")),
)


@pytest.mark.parametrize(("era", "method"), METHODS)
async def test_no_spelling_gets_past_a_deny_row(tmp_path: Path, era: Era, method: str) -> None:
    upstream = server()
    async with federation(tmp_path, {"github": upstream}, rules=RULES) as running:
        for uri in CLOSED:
            assert reason_of(await Talk(running, era).ask(method, asked(method, uri))) == "denied-by-rule", uri
            wrapped = f"sidecar://github/{quote(uri, safe='')}"
            assert reason_of(await At(running, era).ask(method, asked(method, wrapped))) == "denied-by-rule", uri
    assert upstream.calls(method) == []


def uris_sent(upstream: Upstream, method: str) -> set[str]:
    params = [message["params"] for message in upstream.calls(method)]
    return {found["ref"]["uri"] if "ref" in found else found["uri"] for found in params}


@pytest.mark.parametrize(("era", "method"), [one for one in METHODS if one[1] != "subscriptions/listen"])
async def test_every_spelling_is_forwarded_in_one_form(tmp_path: Path, era: Era, method: str) -> None:
    upstream = server()
    async with federation(tmp_path, {"github": upstream}, rules=RULES) as running:
        one, all_of_them = Talk(running, era), At(running, era)
        for uri in OPEN:
            assert "result" in (await one.ask(method, asked(method, uri)))[1]
            wrapped = f"SIDECAR://GitHub/{quote(uri, safe='')}"
            assert "result" in (await all_of_them.ask(method, asked(method, wrapped)))[1]
        objects = {record["object"] for record in running.ends() if "resource:" in str(record["object"])}
        assert objects == {f"resource:github/{FORM}"}
    assert uris_sent(upstream, method) == {FORM}
    headers = [seen for seen, message in upstream.seen if message["method"] == "resources/read" and "Mcp-Name" in seen]
    assert {seen["Mcp-Name"] for seen in headers} <= {FORM}


async def listed_at(running: World, era: Era) -> list[str]:
    found = (await Talk(running, era).ask("resources/list"))[1]["result"]["resources"]
    return [entry["uri"] for entry in found]


@pytest.mark.parametrize("era", ERAS)
async def test_what_a_server_lists_in_a_spelling_of_its_own_can_be_read(tmp_path: Path, era: Era) -> None:
    """It compares texts; and a caller who had the list before we started reads without listing again."""
    upstream = server()
    entries = [{"uri": uri, "name": "n"} for uri in ("docs://README", "NOTES://HR/x", "file:/etc/passwd", FORM)]
    upstream.script["resources/list"] = giving({"resources": entries})
    async with world(tmp_path, rules=RULES, upstream=upstream) as running:
        for uri in ("docs://README", "DOCS://readme", "docs://Readme"):
            assert "result" in (await Talk(running, era).ask("resources/read", {"uri": uri}))[1]
        assert uris_sent(upstream, "resources/read") == {"docs://README"}
        assert await listed_at(running, era) == ["docs://README", FORM]
        assert "result" in (await Talk(running, era).ask("resources/read", {"uri": "docs://readme"}))[1]
    assert uris_sent(upstream, "resources/read") == {"docs://README"}
    assert len(upstream.calls("resources/list")) == 2  # ours once, the caller's once


async def test_a_row_in_another_spelling_is_told_at_the_start(tmp_path: Path) -> None:
    async with world(tmp_path, rules=RULES, upstream=server()) as running:
        told = [(fault.code, fault.message) for fault in running.app.live.current.engine.warnings]
    assert told == [
        ("P122", 'read as "resource:github/file:///etc/*"'),
        ("P122", 'read as "resource:github/notes://hr/*"'),
    ]


# --- keys of arguments ----------------------------------------------------------------------------------------------

CONDITIONS = """\
p, nhi:planner, tool:github/search_code, use, -, -, args.repo.startsWith('acme/'), allow
p, nhi:planner, tool:github/get_file, use, -, -, -, allow
p, nhi:planner, prompt:*, use, -, -, -, allow
p, *, tool:github/get_file, *, -, -, has(args.path) && args.path.startsWith('/etc'), deny
p, *, prompt:*, *, -, -, has(args.topic) && args.topic == 'pay', deny
"""
LOOSE = [{"name": name, "inputSchema": {"type": "object", "properties": {"ref": {}}}} for name in
         ("search_code", "get_file")]  # fmt: skip
SIMILAR = tables("flow/spellings")["similar"]


@pytest.mark.parametrize("era", (*ERAS, "plain"))
async def test_a_key_in_another_spelling_reaches_no_tool(tmp_path: Path, era: Era) -> None:
    async with world(tmp_path, rules=CONDITIONS, upstream=Upstream(tools=LOOSE)) as running:
        talk = Talk(running, era)
        for tool, arguments, pointer in SIMILAR:
            said = str((await talk.call(tool, arguments))[1])
            assert f"{pointer} does not satisfy distinct-names" in said, said
            assert running.ends()[-1]["reason"] == "bad-arguments"
        if era != "plain":
            answer = await talk.ask("prompts/get", {"name": "p", "arguments": {"Topic": "pay"}})
            assert reason_of(answer) == "malformed-call"
        assert running.upstream.calls() == running.upstream.calls("prompts/get") == []


async def test_an_upstream_that_needs_such_keys_may_have_them(tmp_path: Path) -> None:
    upstream = Upstream(tools=LOOSE)
    settings = "similar_keys: allow"
    async with world(tmp_path, rules=CONDITIONS, upstream=upstream, upstream_settings=settings) as running:
        for tool, arguments, _ in SIMILAR:
            assert "result" in (await Talk(running, "stateless").call(tool, arguments))[1]
    assert [call["params"]["arguments"] for call in upstream.calls()] == [arguments for _, arguments, _ in SIMILAR]
