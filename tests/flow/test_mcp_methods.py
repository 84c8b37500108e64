"""Is every MCP method asked as its object and action, over the wire, in its era?

Each row: allowed with exactly the row of policy that it needs, denied without it, closed by a deny; and any grant opens
a server. That a list shows what can be called: test_lists.py, test_listed_and_called.py, unit/policy.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sidecar.protocols.mcp.messages import METHODS, NOTIFICATIONS
from tests.flow.guests import result_of
from tests.flow.idp import SETTINGS, Idp, bearer
from tests.flow.scripts import answer, stream
from tests.flow.streams import event
from tests.flow.talk import ERAS, Era, Talk, reason_of
from tests.flow.world import Upstream, World, request, world
from tests.tables import tables

TABLES = tables("flow/mcp_methods")

URI = "file:///docs/a.md"
GRANT = "p, nhi:planner, tool:github/another, tools/call, -, -, -, allow\n"


@dataclass(frozen=True)
class Row:
    """One method and what it is asked as."""

    method: str
    params: Mapping[str, Any]
    object: str
    action: str
    eras: tuple[Era, ...] = ERAS


RESOURCE, ARGUMENT = f"resource:github/{URI}", {"argument": {"name": "a", "value": ""}}
OF_PROMPT: dict[str, Any] = {"ref": {"type": "ref/prompt", "name": "review"}, **ARGUMENT}
OF_RESOURCE: dict[str, Any] = {"ref": {"type": "ref/resource", "uri": URI}, **ARGUMENT}
LISTEN = {"notifications": {"resourceSubscriptions": [URI]}}
ASKED_AS = (
    Row("tools/call", {"name": "search_code", "arguments": {"repo": "a"}}, "tool:github/search_code", "tools/call"),
    Row("prompts/get", {"name": "review", "arguments": {"a": "b"}}, "prompt:github/review", "prompts/get"),
    Row("resources/read", {"uri": URI}, RESOURCE, "resources/read"),
    Row("resources/subscribe", {"uri": URI}, RESOURCE, "resources/read", ("session",)),
    Row("resources/unsubscribe", {"uri": URI}, RESOURCE, "resources/read", ("session",)),
    Row("subscriptions/listen", LISTEN, RESOURCE, "resources/read", ("stateless",)),
    Row("completion/complete", OF_PROMPT, "prompt:github/review", "prompts/get"),
    Row("completion/complete", OF_RESOURCE, RESOURCE, "resources/read"),
)
OPENED: tuple[tuple[str, dict[str, Any], tuple[Era, ...]], ...] = TABLES["opened"]
OF_A_TASK = {"tasks/get", "tasks/cancel", "tasks/result", "tasks/update"}  # test_tasks.py asks of those
UNKNOWN = ("tasks/resubscribe", "sampling/createMessage", "roots/list", "nonsense")


def allow(object_: str, action: str, effect: str = "allow") -> str:
    return f"p, nhi:planner, {object_}, {action}, -, -, -, {effect}\n"


def per_era(rows: Any) -> list[Any]:
    return [(row, era) for row in rows for era in (row.eras if isinstance(row, Row) else row[2])]


def test_every_method_of_mcp_stands_in_a_table_here() -> None:
    assert {row.method for row in ASKED_AS} | {method for method, _, _ in OPENED} | OF_A_TASK == set(METHODS)


@pytest.mark.parametrize(
    ("row", "era"), per_era(ASKED_AS), ids=lambda part: part if isinstance(part, str) else part.method + part.object
)
async def test_a_method_needs_its_row_and_no_other(row: Row, era: Era, tmp_path: Path) -> None:
    needed = allow(row.object, row.action)
    others = ("tools/call", "prompts/get", "resources/read", "message/send", "delegate", "tools/list")
    beside = "".join(allow(row.object, action) for action in others if action != row.action)
    expected = {
        "needed": (needed, ""),
        "used": (allow(row.object, "use"), ""),
        "without": (GRANT, "no-matching-rule"),
        "another action": (GRANT + beside, "no-matching-rule"),
        "another object": (GRANT + allow(row.object + "x", row.action), "no-matching-rule"),
        "another server": (GRANT + allow(row.object.replace("github", "jira"), row.action), "no-matching-rule"),
        "denied": (needed + allow(row.object, row.action, "deny"), "denied-by-rule"),
    }
    async with world(tmp_path) as running:
        for name, (rules, reason) in expected.items():
            await under(running, rules)
            answer = await Talk(running, era).ask(row.method, dict(row.params))
            assert reason_of(answer) == reason, name
            assert len(running.upstream.calls(row.method)) == (0 if reason else 1), name


async def under(running: World, rules: str) -> None:
    """Let these rules serve, and forget what the upstream has seen."""
    (running.folder / "policies" / "agent_to_tool.csv").write_text(rules)
    await running.app.reload("test")
    running.upstream.seen.clear()


NO_GRANTS = {
    "nothing": ("p, nhi:other, tool:github/x, use, -, -, -, allow\n", "no-matching-rule"),
    "another server": (allow("tool:jira/x", "use"), "no-matching-rule"),
    "a server with a longer name": (allow("tool:github-2/*", "use"), "no-matching-rule"),
    "a deny": (allow("tool:github/x", "use", "deny"), "no-matching-rule"),
    "an expired one": ("p, nhi:planner, tool:github/x, use, 2026-01-01T00:00:00Z, -, -, allow\n", "expired"),
}
ROLES = {"policies/roles.csv": "g, nhi:planner, role:readers\n"}


@pytest.mark.parametrize(
    ("method", "era"), per_era(OPENED), ids=lambda part: str(part[0]) if isinstance(part, tuple) else part
)
async def test_a_session_call_is_opened_by_any_grant_and_closed_by_a_deny(
    method: Any, era: Era, tmp_path: Path
) -> None:
    name, params, _ = method
    async with world(tmp_path, files=ROLES) as running:
        for kind, rules in TABLES["grants"].items():
            await under(running, rules)
            assert reason_of(await Talk(running, era).ask(name, params)) == "", kind
            for pattern in ("nhi:github", "*"):
                await under(running, rules + allow(pattern, name, "deny"))
                assert reason_of(await Talk(running, era).ask(name, params)) == "denied-by-rule", kind
                assert running.upstream.calls(name) == []
        for kind, (rules, reason) in NO_GRANTS.items():
            await under(running, rules)
            status, body, _ = answer = await Talk(running, era).ask(name, params)
            assert running.upstream.seen == []
            if era == "session" and name != "initialize":  # there is no session to ask in
                assert status == 400 and "result" not in body
            else:
                assert (status, reason_of(answer)) == (200 if era == "session" else 403, reason), kind


async def test_a_notification_is_closed_by_a_deny_and_listening_and_leaving_as_a_ping(tmp_path: Path) -> None:
    async with world(tmp_path, rules=GRANT) as running:
        for method in NOTIFICATIONS:
            for rules, status in ((GRANT, 202), (GRANT + allow("nhi:github", method, "deny"), 200)):
                await under(running, GRANT)
                talk = Talk(running, "session")
                await talk.open()
                await under(running, rules)
                params = {"requestId": 1, "progressToken": 1, "progress": 1}
                message = {"jsonrpc": "2.0", "method": method, "params": params}
                assert (await running.post(message, headers=talk.in_session))[0] == status, method
                assert len(running.upstream.calls(method)) == (status == 202)
        for rules, codes in ((GRANT + allow("nhi:github", "ping", "deny"), (403, 403)), (GRANT, (405, 204))):
            await under(running, rules)
            for verb, code in zip(("GET", "DELETE"), codes, strict=True):  # 405: this upstream offers no stream
                assert (await talk.verb(verb, {"Accept": "text/event-stream"}))[0] == code


@pytest.mark.parametrize("era", ERAS)
async def test_what_is_in_no_row_does_not_pass(era: Era, tmp_path: Path) -> None:
    async with world(tmp_path, rules=allow("*", "*")) as running:
        talk = Talk(running, era)
        foreign = [method for method, _, eras in OPENED if era not in eras]
        foreign += [row.method for row in ASKED_AS if era not in row.eras]
        for method in {*UNKNOWN, *foreign} - {"initialize"}:
            assert reason_of(await talk.ask(method, {"uri": URI})) == "method-unknown", method
            assert running.upstream.calls(method) == []


# --- what a server asks of its client -------------------------------------------------------------------------------

ASKED_OF_CLIENT = ("sampling/createMessage", "elicitation/create", "roots/list")


@pytest.mark.parametrize("method", ASKED_OF_CLIENT)
async def test_a_result_that_asks_the_client_needs_a_row(method: str, tmp_path: Path) -> None:
    asks = answer(result={"resultType": "input_required", "inputRequests": {"a": {"method": method, "params": {}}}})
    others = "".join(allow("nhi:github", other) for other in ASKED_OF_CLIENT if other != method)
    async with world(tmp_path, rules=GRANT, upstream=Upstream(script={"tools/call": asks})) as running:
        for name, more, reason in (
            ("with", allow("nhi:github", method), ""),
            ("without", "", "no-matching-rule"),
            ("another", others, "no-matching-rule"),
            ("use", allow("nhi:github", "use"), "no-matching-rule"),
        ):
            await under(running, allow("tool:github/search_code", "use") + more)
            before = len(running.records())
            told = await Talk(running, "stateless").call("search_code", {"repo": "a"})
            assert reason_of(told) == reason, name
            assert ("inputRequests" in json.dumps(told[1])) == (reason == "")
            decisions = [r for r in running.records()[before:] if r["event"] == "decision" and r["action"] == method]
            assert [(r["object"], r["reason"]) for r in decisions] == [("nhi:github", reason or None)]


@pytest.mark.parametrize("method", ASKED_OF_CLIENT)
async def test_a_request_of_the_server_needs_a_row(method: str, tmp_path: Path) -> None:
    asks = stream(event(request(method, {}, id="s-1")), lambda message: result_of(message, {"content": []}))
    async with world(tmp_path, rules=GRANT, upstream=Upstream(script={"tools/call": asks})) as running:
        for more, allowed in ((allow("nhi:github", method), True), ("", False)):
            await under(running, allow("tool:github/search_code", "use") + more)
            talk = Talk(running, "session")
            _, body, _ = await talk.call("search_code", {"repo": "a"})
            assert (method.encode() in body) == allowed and b'"content":[]' in body
            replies = [message for _, message in running.upstream.seen if "method" not in message]
            assert [reply["error"]["code"] for reply in replies] == ([] if allowed else [403])
            answered = await running.post({"jsonrpc": "2.0", "id": "s-1", "result": {}}, headers=talk.in_session)
            assert (answered[0], reason_of(answered)) == ((202, "") if allowed else (200, "malformed-call"))


# --- how often ------------------------------------------------------------------------------------------------------

CALLERS = ("nhi:planner", "nhi:researcher", "user:alice", "user:bob", "nhi:cron")
IDP = Idp()
KEYS = {name: IDP.api_key(name) for name in CALLERS}


@pytest.mark.parametrize("era", ERAS)
async def test_session_calls_are_bounded_per_principal_and_cost_nobody_else(era: Era, tmp_path: Path) -> None:
    rules = "".join(f"p, {caller}, tool:github/get_file, use, -, -, -, allow\n" for caller in CALLERS)
    settings = SETTINGS + "sessions: {session_calls_per_minute: 5}\n"
    async with world(tmp_path, rules=rules, settings=settings, files=IDP.files(), principal="") as running:
        talk = Talk(running, era, bearer(KEYS["nhi:planner"]))
        spent = 0
        if era == "session":
            await talk.open()
            spent = 1
        statuses = [reason_of(await talk.ask("tools/list")) for _ in range(7 - spent)]
        assert statuses == [""] * (5 - spent) + ["rate-limited"] * 2
        other = Talk(running, era, bearer(KEYS["nhi:researcher"]))
        assert reason_of(await other.ask("tools/list")) == ""
        assert reason_of(await talk.call("get_file", {"path": "a"})) == ""
        assert len(running.upstream.calls("tools/list")) <= 8  # ours included
