"""Do many servers look like one, to who may see them, and to nobody else?"""

import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sidecar.settings.timestamps import rfc3339
from tests.flow.federated import At, everywhere, federation, names_in
from tests.flow.guests import ALICE, BOB, IDP, result_of
from tests.flow.idp import SETTINGS
from tests.flow.scripts import answer, giving, hang, stream
from tests.flow.streams import event
from tests.flow.talk import ERAS, Era, Talk, error_of, reason_of
from tests.flow.world import TOOLS, Respond, Upstream, listening
from tests.tables import tables

SAME = [{"name": "send_email", "inputSchema": {"type": "object"}}]


def with_idp() -> dict[str, Any]:
    """A sidecar that knows alice and bob."""
    return {"files": IDP.files(), "settings": SETTINGS, "principal": ""}


both_eras = pytest.mark.parametrize("era", ERAS)


def tools(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "inputSchema": {"type": "object"}} for name in names]


# --- names ------------------------------------------------------------------------------------------------------------


@both_eras
async def test_two_servers_with_the_same_tool_are_told_apart_by_name(tmp_path: Path, era: Era) -> None:
    """BL-014. What names no server is asked once of each, and recorded once."""
    one, other = Upstream(tools=SAME), Upstream(tools=SAME)
    async with everywhere(federation(tmp_path, {"gitlab": other, "github": one}), era) as at:
        _, body, _ = await at.ask("tools/list")
        assert names_in(body) == ["github__send_email", "gitlab__send_email"]
        decision, outcome = at.world.records()[-2:]
        assert (decision["event"], outcome["event"]) == ("decision", "outcome")
        assert (outcome["object"], outcome["upstream"], outcome["action"]) == ("nhi:github", None, "tools/list")
        assert len(outcome["links"]) == 2 and outcome["federation"]["servers"] == ["github", "gitlab"]
        assert "result" in (await at.call("gitlab__send_email"))[1]
        assert (len(one.calls()), len(other.calls())) == (0, 1)
        assert other.calls()[0]["params"]["name"] == "send_email"
        record = at.world.ends()[-1]
        assert (record["object"], record["upstream"]) == ("tool:gitlab/send_email", "gitlab")
        assert record["federation"] == {"servers": ["gitlab"], "unavailable": []}


@both_eras
async def test_only_the_first_mark_splits(tmp_path: Path, era: Era) -> None:
    one, other = Upstream(tools=tools("a__b", "__", "_x")), Upstream(tools=tools("b"))
    async with everywhere(federation(tmp_path, {"github": one, "github-a": other}), era) as at:
        names = names_in((await at.ask("tools/list"))[1])
        assert names == ["github__a__b", "github____", "github___x", "github-a__b"]
        for name in names:
            assert "result" in (await at.call(name))[1]
        assert [call["params"]["name"] for call in one.calls()] == ["a__b", "__", "_x"]


ODD_NAMES = ["search", "", "__x", "_github__x", "GitHub__x", "github_x", "gi/th__x", "a" * 129]
ODD_URIS = ["", "/GitHub/note%3A", "/github/%zz", "/github/%ff", "/github/x%00"]
ODD_URIS += ["/github/note%3A%2F%2Fa%2F..%2Fb", "/github/note%3A%2F%2Fa%252Fb"]


@both_eras
async def test_a_name_of_no_server_and_one_that_is_not_plain_are_malformed(tmp_path: Path, era: Era) -> None:
    async with everywhere(federation(tmp_path, {"github": Upstream()}), era) as at:
        told = [await at.call(name) for name in ODD_NAMES] + [await at.ask("resources/read", {"uri": "note://x"})]
        told += [await at.ask("resources/read", {"uri": f"sidecar:/{uri or '/github'}"}) for uri in ODD_URIS]
        assert {(error_of(one)["code"], reason_of(one)) for one in told} == {(-32602, "malformed-call")}
        assert at.world.upstream.calls() == at.world.upstream.calls("resources/read") == []


@both_eras
async def test_a_name_that_would_be_too_long_is_left_out_and_reported(tmp_path: Path, era: Era) -> None:
    fits, long = "x" * (128 - len("github__")), "x" * 121
    async with everywhere(federation(tmp_path, {"github": Upstream(tools=tools(fits, long))}), era) as at:
        _, body, _ = await at.ask("tools/list")
        assert names_in(body) == [f"github__{fits}"]
        reason = "with its server's name it is longer than 128 characters"
        left_out = {"server": "github", "kind": "tool", "name": long, "reason": reason}
        assert body["result"]["_meta"] == {"sidecar/left_out": [left_out]}
        assert "result" in (await at.call(f"github__{fits}"))[1]
        assert reason_of(await at.call(f"github__{long}")) == "malformed-call"


@both_eras
async def test_a_page_of_mcp_apps_is_read_where_it_was_given(tmp_path: Path, era: Era) -> None:
    """Hosts look for the scheme, in `_meta` of a tool, of its result and of what a result holds."""
    page, there = "ui://w/a.html", "ui://github/ui%3A%2F%2Fw%2Fa.html"
    meta = {"ui": {"resourceUri": page, "csp": {"connectDomains": ["https://a.example"]}}, "ui/resourceUri": page}
    named = {"ui": {**meta["ui"], "resourceUri": there}, "ui/resourceUri": there}  # type: ignore[dict-item]
    block = {"type": "text", "text": page, "_meta": {"openai/outputTemplate": page, "n": [1, "ui://a b", "see ui://w"]}}
    upstream = Upstream(tools=[{**tools("look")[0], "_meta": meta}])
    upstream.script = {
        "resources/list": giving({"resources": [{"uri": page, "name": "n", "mimeType": "text/html;profile=mcp-app"}]}),
        "resources/read": giving({"contents": [{"uri": page, "text": "<p>", "_meta": {"ui": {"resourceUri": page}}}]}),
        "tools/call": giving({"content": [block], "_meta": meta}),
    }
    async with everywhere(federation(tmp_path, {"github": upstream}), era) as at:
        (tool,) = (await at.ask("tools/list"))[1]["result"]["tools"]
        assert tool["_meta"] == named
        assert names_in((await at.ask("resources/list"))[1], "resources", "uri") == [there]
        read = await at.ask("resources/read", {"uri": tool["_meta"]["ui"]["resourceUri"]})
        (content,) = read[1]["result"]["contents"]
        assert (content["uri"], content["_meta"]) == (there, {"ui": {"resourceUri": there}})
        result = (await at.call("github__look"))[1]["result"]
        assert result["_meta"] == named
        assert result["content"] == [{**block, "_meta": {**block["_meta"], "openai/outputTemplate": there}}]
    assert [message["params"]["uri"] for message in upstream.calls("resources/read")] == [page]


@both_eras
async def test_resources_are_named_there_and_back_wherever_they_stand(tmp_path: Path, era: Era) -> None:
    note, wrapped = "note://by/a%20b?x=1", "sidecar://github/note%3A%2F%2Fby%2Fa%2520b%3Fx%3D1"
    block = {"type": "resource_link", "uri": note, "name": "n"}
    inside = {"type": "resource", "resource": {"uri": note, "text": "t"}}
    upstream = Upstream(tools=tools("look"))
    upstream.script = {
        "resources/list": giving({"resources": [{"uri": note, "name": "n"}]}),
        "resources/templates/list": giving({"resourceTemplates": [{"uriTemplate": "note://by/{+name}", "name": "n"}]}),
        "resources/read": giving({"contents": [{"uri": note, "text": "t"}]}),
        "tools/call": giving({"content": [block, inside, {"type": "text", "text": note}]}),
        "prompts/get": giving({"messages": [{"role": "user", "content": dict(inside)}]}),
        "completion/complete": giving({"completion": {"values": ["a"]}}),
    }
    async with everywhere(federation(tmp_path, {"github": upstream}), era) as at:
        assert names_in((await at.ask("resources/list"))[1], "resources", "uri") == [wrapped]
        templates = (await at.ask("resources/templates/list"))[1]["result"]["resourceTemplates"]
        assert [one["uriTemplate"] for one in templates] == ["sidecar://github/note%3A%2F%2Fby%2F{+name}"]
        assert (await at.ask("resources/read", {"uri": wrapped}))[1]["result"]["contents"][0]["uri"] == wrapped
        content = (await at.call("github__look"))[1]["result"]["content"]
        assert (content[0]["uri"], content[1]["resource"]["uri"], content[2]["text"]) == (wrapped, wrapped, note)
        got = (await at.ask("prompts/get", {"name": "github__p"}))[1]["result"]
        assert got["messages"][0]["content"]["resource"]["uri"] == wrapped
        ref_of_prompt = {"type": "ref/prompt", "name": "github__p"}
        for ref in ({"type": "ref/resource", "uri": templates[0]["uriTemplate"]}, ref_of_prompt):
            asked = {"ref": ref, "argument": {"name": "name", "value": ""}}
            assert (await at.ask("completion/complete", asked))[1]["result"]["completion"]["values"] == ["a"]
        # As a client expands `{+name}`: what policy is asked, and what the server gets.
        expanded = "sidecar://github/note%3A%2F%2Fby%2Fx/y%20z"
        assert "result" in (await at.ask("resources/read", {"uri": expanded}))[1]
    read = [message["params"]["uri"] for message in upstream.calls("resources/read")]
    assert read == [note, "note://by/x/y%20z"]
    refs = [message["params"]["ref"] for message in upstream.calls("completion/complete")]
    assert refs == [{"type": "ref/resource", "uri": "note://by/{+name}"}, {"type": "ref/prompt", "name": "p"}]
    assert at.world.ends()[-1]["object"] == "resource:github/note://by/x/y%20z"


async def test_the_mirrored_headers_are_checked_as_they_came_and_made_anew(tmp_path: Path) -> None:
    async with everywhere(federation(tmp_path, {"github": Upstream(tools=tools("look"))}), "stateless") as at:
        assert reason_of(await at.call("github__look", headers={"Mcp-Name": "look"})) == "header-mismatch"
        assert "result" in (await at.call("github__look"))[1]
        headers = next(headers for headers, message in at.world.upstream.seen if message["method"] == "tools/call")
        assert headers["Mcp-Name"] == "look"


# --- who sees what ----------------------------------------------------------------------------------------------------

MIXED = tables("flow/federation")["mixed"]


@both_eras
async def test_what_is_listed_is_what_can_be_called_at_every_server(tmp_path: Path, era: Era) -> None:
    """BL-035."""
    names = ["read_a", "read_b", "write_a", "write_b", "other"]
    servers = {name: Upstream(tools=tools(*names)) for name in ("github", "gitlab", "secret")}
    roles = "g, nhi:planner, role:readers\ng2, tool:gitlab/other, set:some\n"
    async with everywhere(federation(tmp_path, servers, rules=MIXED, files={"policies/roles.csv": roles}), era) as at:
        listed = names_in((await at.ask("tools/list"))[1])
        everything = [f"{server}__{name}" for server in (*servers, "nowhere") for name in names]
        callable_ = [name for name in everything if "result" in (await at.call(name))[1]]
        assert listed == callable_ == ["github__read_a", "gitlab__other"]
        assert servers["secret"].methods() == []
        hidden, nowhere = await at.call("secret__read_a"), await at.call("nowhere__read_a")
        assert reason_of(hidden) == reason_of(nowhere) == "no-matching-rule" and hidden[0] == nowhere[0]


@both_eras
async def test_a_row_that_closes_one_servers_lists_leaves_the_others(tmp_path: Path, era: Era) -> None:
    servers = {name: Upstream(tools=tools("read_a")) for name in ("github", "closed")}
    rules = MIXED + "p, nhi:planner, tool:github/*, use, -, -, -, allow\n"
    async with federation(tmp_path, servers, rules=rules) as on:
        at = At(on, era)
        assert names_in((await at.ask("tools/list"))[1]) == ["github__read_a"]
        assert "result" in (await at.call("closed__read_a"))[1]


@both_eras
async def test_the_most_permissive_policy_lists_everything_over_streams(tmp_path: Path, era: Era) -> None:
    """BL-032."""

    note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "working"}}
    listed = stream(event(note), lambda message: result_of(message, {"tools": TOOLS}))
    servers = {name: Upstream(script={"tools/list": listed}) for name in ("github", "gitlab")}
    async with federation(tmp_path, servers, rules='p, *, *, *, -, -, "true", allow\n') as running:
        names = names_in((await At(running, era).ask("tools/list"))[1])
        assert names == [f"{server}__{tool['name']}" for server in servers for tool in TOOLS]


@both_eras
async def test_without_a_grant_on_any_server_there_is_nothing(tmp_path: Path, era: Era) -> None:
    async with federation(tmp_path, {"github": Upstream()}, rules="p, nhi:x, tool:*, use, -, -, -, allow\n") as running:
        at = At(running, era)
        told = await at.ask("tools/list") if era == "stateless" else await at.open()
        assert (told[0], reason_of(told)) == (403 if era == "stateless" else 200, "no-matching-rule")
        assert running.upstream.seen == []
        assert len(running.ends()) == 1


async def test_a_disabled_server_is_not_there_and_a_disabled_caller_sees_none(tmp_path: Path) -> None:
    servers = {name: Upstream(tools=tools("read")) for name in ("github", "gitlab")}
    async with everywhere(federation(tmp_path, servers), "stateless") as at:
        await at.world.app.disable("nhi:gitlab", reason="", until=None, by="test")
        assert names_in((await at.ask("tools/list"))[1]) == ["github__read"]
        assert reason_of(await at.call("gitlab__read")) == "principal-disabled"
        await at.world.app.disable("nhi:planner", reason="", until=None, by="test")
        assert reason_of(await at.ask("tools/list")) == "principal-disabled"


async def test_a_server_asks_for_its_own_scopes_and_of_nobody_for_the_others(tmp_path: Path) -> None:
    servers = {name: Upstream(tools=tools("read")) for name in ("github", "gitlab")}
    rules = "p, user:alice, tool:*, use, -, -, -, allow\np, anonymous, tool:gitlab/*, use, -, -, -, allow\n"
    extra = {"github": "scopes: [repo]", "gitlab": "anonymous: true"}
    async with federation(tmp_path, servers, rules=rules, extra=extra, **with_idp()) as running:
        alice, nobody = At(running, "stateless", dict(ALICE)), At(running, "stateless")
        assert names_in((await alice.ask("tools/list"))[1]) == ["gitlab__read"]
        refused = await alice.call("github__read")
        assert (refused[0], reason_of(refused)) == (403, "insufficient-scope")
        assert 'scope="repo"' in refused[2]["WWW-Authenticate"]
        about = f"{running.app.base_url}/.well-known/oauth-protected-resource/mcp"
        assert f'resource_metadata="{about}"' in refused[2]["WWW-Authenticate"]
        assert names_in((await nobody.ask("tools/list"))[1]) == ["gitlab__read"]
        assert "result" in (await nobody.call("gitlab__read"))[1]
        assert reason_of(await nobody.call("github__read")) == "no-matching-rule"


async def test_a_token_for_one_server_opens_no_other_address(tmp_path: Path) -> None:
    rules = "p, user:alice, tool:*, use, -, -, -, allow\n"
    async with federation(tmp_path, {"github": Upstream(tools=tools("read"))}, rules=rules, **with_idp()) as running:
        base = running.app.base_url
        for audience, opens in ((f"{base}/mcp", "all"), (f"{base}/mcp/github", "one")):
            bearer = {"Authorization": f"Bearer {IDP.token('user:alice', audience)}"}
            everywhere, there = At(running, "stateless", bearer), Talk(running, "stateless", bearer)
            assert (await everywhere.ask("tools/list"))[0] == (200 if opens == "all" else 401)
            assert (await there.ask("tools/list"))[0] == (200 if opens == "one" else 401)
        async with running.http.get(f"{running.url}/.well-known/oauth-protected-resource/mcp") as response:
            assert (await response.json())["resource"] == f"{base}/mcp"


# --- lists ------------------------------------------------------------------------------------------------------------


def paged(*pages: list[dict[str, Any]]) -> Respond:
    """A list in pages, whose cursors are this server's own. The sidecar's own enquiry has all of them, too."""

    async def script(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        cursor = message.get("params", {}).get("cursor", "0")
        if not cursor.isdigit() or int(cursor) >= len(pages):
            return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32602, "message": "?"}})
        more = {"nextCursor": str(int(cursor) + 1)} if int(cursor) + 1 < len(pages) else {}
        return web.json_response(result_of(message, {"tools": pages[int(cursor)], **more, "ttlMs": 60000}))

    return script


@both_eras
async def test_pages_are_merged_and_end_when_the_last_server_has_no_more(tmp_path: Path, era: Era) -> None:
    servers = {
        "github": Upstream(script={"tools/list": paged(tools("a"), tools("b"), tools("c"))}),
        "gitlab": Upstream(script={"tools/list": paged(tools("a"))}),
        "wiki": Upstream(script={"tools/list": paged(tools("a"), tools("b"))}),
    }
    async with federation(tmp_path, servers) as running:
        at, pages, cursor = At(running, era), [], {}
        while True:
            result = (await at.ask("tools/list", cursor))[1]["result"]
            pages.append([tool["name"] for tool in result["tools"]])
            if "nextCursor" not in result:
                break
            cursor = {"cursor": result["nextCursor"]}
        assert pages == [["github__a", "gitlab__a", "wiki__a"], ["github__b", "wiki__b"], ["github__c"]]
        if era == "stateless":
            assert (result["ttlMs"], result["cacheScope"], result["resultType"]) == (60000, "private", "complete")


async def test_a_cursor_is_of_one_caller_and_one_list(tmp_path: Path) -> None:
    rules = "p, user:*, tool:*, use, -, -, -, allow\n"
    upstream = Upstream(script={"tools/list": paged(tools("a"), tools("b"))})
    async with federation(tmp_path, {"github": upstream}, rules=rules, **with_idp()) as running:
        alice, bob = (At(running, "stateless", dict(who)) for who in (ALICE, BOB))
        cursor = (await alice.ask("tools/list"))[1]["result"]["nextCursor"]
        other = cursor[:-2] + ("AA" if cursor[-2:] != "AA" else "BB")
        assert names_in((await alice.ask("tools/list", {"cursor": cursor}))[1]) == ["github__b"]
        strange = [(alice, "tools/list", given) for given in (other, "1", "", "ä")]
        for who, method, given in [(bob, "tools/list", cursor), (alice, "prompts/list", cursor), *strange]:
            told = await who.ask(method, {"cursor": given})
            assert (error_of(told)["code"], reason_of(told)) == (-32602, "malformed-call"), given


@both_eras
async def test_a_server_that_is_down_or_hangs_is_named_and_costs_the_others_nothing(
    tmp_path: Path, era: Era, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BL-036."""
    monkeypatch.setattr("sidecar.gateway.frontends.aggregate.fan_out.PATIENCE_S", 0.3)
    monkeypatch.setattr("sidecar.gateway.frontends.aggregate.frontend.HELLO_S", 0.2)
    slow = Upstream(script=dict.fromkeys(("server/discover", "initialize", "tools/list"), hang))
    servers: dict[str, Upstream | str] = {"github": Upstream(tools=tools("read")), "slow": slow}
    servers["dead"] = "http://127.0.0.1:9/mcp"
    async with everywhere(federation(tmp_path, servers), era) as at:
        status, body, _ = await at.ask("tools/list")
        missing = [{"server": "dead", "reason": "upstream-failed"}, {"server": "slow", "reason": "upstream-timeout"}]
        assert status == 200 and names_in(body) == ["github__read"]
        assert body["result"]["_meta"] == {"sidecar/unavailable": missing}
        assert at.world.ends()[-1]["federation"] == {"servers": ["dead", "github", "slow"], "unavailable": missing}
        metrics = await at.world.metrics()
        assert 'sidecar_federation_unavailable_total{reason="upstream-failed",upstream="dead"} 1.0' in metrics
        assert "result" in (await at.call("github__read"))[1]
        assert reason_of(await at.call("dead__read")) == "upstream-failed"


@both_eras
async def test_where_no_server_answers_there_is_no_list(tmp_path: Path, era: Era) -> None:
    async with federation(tmp_path, {"github": "http://127.0.0.1:9/mcp"}) as running:
        told = await At(running, era).ask("tools/list")
        assert told[0] == (502 if era == "stateless" else 200)
        assert error_of(told)["data"]["unavailable"] == [{"server": "github", "reason": "upstream-failed"}]
        assert [record["reason"] for record in running.ends()][-1] == "upstream-failed"


@both_eras
async def test_a_server_without_prompts_has_none_and_is_not_missed(tmp_path: Path, era: Era) -> None:
    unknown = answer(404 if era == "stateless" else 200, error={"code": -32601, "message": "no"})
    prompts = giving({"prompts": [{"name": "review"}]})
    servers = {"github": Upstream(script={"prompts/list": unknown}), "wiki": Upstream(script={"prompts/list": prompts})}
    async with federation(tmp_path, servers) as running:
        _, body, _ = await At(running, era).ask("prompts/list")
        assert names_in(body, "prompts") == ["wiki__review"] and "_meta" not in body["result"]


# --- what a call is charged, and what it shows ------------------------------------------------------------------------


@both_eras
async def test_a_limit_is_one_at_both_addresses(tmp_path: Path, era: Era) -> None:
    rules = "p, nhi:planner, tool:github/read, use, -, 2, -, allow\n"
    async with federation(tmp_path, {"github": Upstream(tools=tools("read"))}, rules=rules) as running:
        at, there = At(running, era), Talk(running, era)
        assert "result" in (await at.call("github__read"))[1]
        assert "result" in (await there.call("read"))[1]
        assert reason_of(await at.call("github__read")) == reason_of(await there.call("read")) == "rate-limited"


@both_eras
async def test_arguments_are_checked_by_that_servers_schema(tmp_path: Path, era: Era) -> None:
    async with federation(tmp_path, {"github": Upstream(), "wiki": Upstream(tools=tools("search_code"))}) as running:
        at = At(running, era)
        assert (await at.call("github__search_code", {"repo": 1}))[1]["result"]["isError"] is True
        assert (await at.call("wiki__search_code", {"repo": 1}))[1]["result"]["isError"] is False
        assert running.upstream.calls() == []


async def test_lists_cost_as_many_session_calls_as_servers_are_asked(tmp_path: Path) -> None:
    servers = {name: Upstream(tools=tools("read")) for name in ("github", "gitlab")}
    settings = "sessions: {session_calls_per_minute: 4}\n"
    async with everywhere(federation(tmp_path, servers, settings=settings), "stateless") as at:
        answers = [reason_of(await at.ask("tools/list")) for _ in range(3)]
        assert answers == ["", "", "rate-limited"]


@both_eras
async def test_in_shadow_mode_what_would_be_hidden_is_shown(tmp_path: Path, era: Era) -> None:
    settings = f"policy: {{mode: shadow, shadow_until: {rfc3339(time.time() + 3600)}}}\n"
    rules = "p, nhi:somebody, tool:*, use, -, -, -, allow\n"
    upstream = Upstream(tools=tools("read"))
    async with everywhere(federation(tmp_path, {"github": upstream}, rules=rules, settings=settings), era) as at:
        assert names_in((await at.ask("tools/list"))[1]) == ["github__read"]
        assert at.world.ends()[-1]["would_deny"] == ["no-matching-rule"]
        assert "result" in (await at.call("github__read"))[1]
        assert reason_of(await at.call("nowhere__read")) == "upstream-unknown"


# --- hello ------------------------------------------------------------------------------------------------------------


async def test_discovery_offers_what_any_of_them_can(tmp_path: Path) -> None:
    said = {"supportedVersions": ["2026-07-28"], "capabilities": {"prompts": {}, "tasks": {}, "x": {}}, "ttlMs": 9}
    other = Upstream(script={"server/discover": giving(said)})
    async with everywhere(federation(tmp_path, {"github": Upstream(), "wiki": other}), "stateless") as at:
        await at.ask("tools/list")
        result = (await at.ask("server/discover"))[1]["result"]
        assert result["capabilities"] == {"tools": {"listChanged": True}, "prompts": {"listChanged": True}}
        assert (result["supportedVersions"], result["cacheScope"]) == (["2026-07-28"], "private")
        assert result["instructions"] == "Tools and prompts are named server__name. Servers: github, wiki."
        assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "sidecar"


async def test_a_server_added_at_run_time_is_there_at_once(tmp_path: Path) -> None:
    """BL-101, BL-014: added live."""
    added = Upstream(tools=SAME)
    async with listening(added.handle) as base, federation(tmp_path, {"github": Upstream(tools=SAME)}) as running:
        ats = [At(running, era) for era in ERAS]
        for at in ats:
            assert names_in((await at.ask("tools/list"))[1]) == ["github__send_email"]
        config = tmp_path / "sidecar.yaml"
        text = config.read_text().replace("upstreams:\n", f"upstreams:\n  added: {{mcp: {{url: '{base}/mcp'}}}}\n")
        config.write_text(text)
        await running.app.reload("test")
        for at in ats:
            assert names_in((await at.ask("tools/list"))[1]) == ["added__send_email", "github__send_email"]
            assert "result" in (await at.call("added__send_email"))[1]
        assert len(added.calls()) == 2


@both_eras
async def test_what_no_server_is_asked_is_refused(tmp_path: Path, era: Era) -> None:
    async with everywhere(federation(tmp_path, {"github": Upstream()}), era) as at:
        for method in ("tasks/list", "tasks/get", "x/y", "sampling/createMessage"):
            assert reason_of(await at.ask(method, {"taskId": "t"})) == "method-unknown"
        if era == "stateless":
            wanted = {"notifications": {"toolsListChanged": True, "taskIds": ["t"]}}
            assert reason_of(await at.ask("subscriptions/listen", wanted)) == "method-unknown"
        related = {"_meta": {"io.modelcontextprotocol/related-task": {"taskId": "t"}}}
        if era == "session":
            assert reason_of(await at.ask("tools/list", related)) == "task-unknown"
        assert at.world.records()[-1]["event"] == "refusal"
        assert reason_of(await at.verb("PUT")) == ""
        assert at.world.upstream.calls("x/y") == []
