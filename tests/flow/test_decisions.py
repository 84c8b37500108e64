"""What enforcement points ask for is decided as a call is, and recorded once."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.admin.decisions import decisions_from
from sidecar.audit.recorder import HASHED_HERE_BYTES
from sidecar.audit.verify import verify
from sidecar.gateway.decisions.checked import Permit
from sidecar.gateway.decisions.point import AskedRequest, Asking, DecisionPoint
from sidecar.policy_tools.policy_location import in_folder
from sidecar.policy_tools.replay import Candidate, replay
from sidecar.policy_tools.suggest.evidence import SuggestQuery, UsageEvidence
from tests.a2a.world import HELLO, HTTP, RULES as AGENT_RULES, ScriptedAgent, ask
from tests.flow.enforcement import KEY, NAME, SECRET, asked_world, decisions
from tests.flow.test_audit_trouble import frozen
from tests.flow.test_shadow import shadow
from tests.flow.test_vanishing_callers import hashing_until_asked_again
from tests.flow.world import PATIENCE_S, SESSION, STATELESS, Upstream, World, listening, request, stateless, until

ASKING = Asking("ext_authz", NAME, charge=True)
INITIALIZE = {"protocolVersion": SESSION, "capabilities": {}, "clientInfo": {"name": "client", "version": "1"}}


@pytest.mark.parametrize(("repo", "reason"), [("acme/site", None), ("evil/site", "condition-false")])
async def test_a_call_is_decided_without_reaching_its_server(tmp_path: Path, repo: str, reason: str | None) -> None:
    async with asked_world(tmp_path) as (running, keys):
        point = decisions_from(running.app.pipeline, running.app.settings, dict).point
        message = stateless("tools/call", {"name": "search_code", "arguments": {"repo": repo}})
        headers = {"Mcp-Method": "tools/call", "Mcp-Name": "search_code", "MCP-Protocol-Version": STATELESS}
        asked = request_of(message, **headers, **{"X-API-Key": keys["nhi:planner"]})
        context, response = await point.decide(asked, Asking("ext_authz", NAME, charge=True))
        assert (context.reason, isinstance(response, Permit)) == (reason, reason is None)
        assert running.upstream.calls() == []
        (record,) = decisions(running)
        found = [record[name] for name in ("event", "protocol", "enforcement_point", "peer", "reason", "object")]
        event = "decision" if reason is None else "refusal"
        assert found == [event, "ext_authz", NAME, "192.0.2.1", reason, "tool:github/search_code"]
        assert record["args_hash"] and record["http_status"] == (200 if reason is None else 403)


def request_of(message: dict[str, Any], **headers: str) -> AskedRequest:
    """A POST of a message to the server `github`, from another machine."""
    sent = {"content-type": "application/json", "accept": "application/json, text/event-stream", **headers}
    lines = [(name.encode(), value.encode()) for name, value in sent.items()]
    return AskedRequest("POST", "/mcp/github", lines, json.dumps(message).encode(), "192.0.2.1")


async def test_addresses_of_an_enforcement_point_have_names_of_their_own(tmp_path: Path) -> None:
    paths = "{/tools/github: /mcp/github, /tools: /mcp/other}"
    async with asked_world(tmp_path, f"{{paths: {paths}}}") as (running, _):
        target = decisions_from(running.app.pipeline, running.app.settings, dict).point.target
        assert target("/tools/github") == "/mcp/github" and target("/tools/github/?a=/b") == "/mcp/github/?a=/b"
        assert target("/tools/githubs") == "/mcp/other/githubs" and target("/mcp/github") == "/mcp/github"


PUSH = {"taskPushNotificationConfig": {"url": "http://127.0.0.1:1/hook"}}
OPERATIONS = [
    ("SendMessage", "/message:send", {"message": HELLO}, None),
    ("SendMessage", "/message:send", {"message": HELLO, "configuration": PUSH}, "malformed-call"),
    ("SendMessage", "/message:send", {"message": {**HELLO, "taskId": "t1"}}, "task-unknown"),
    ("GetTask", "GET /tasks/t1", {"id": "t1"}, "task-unknown"),
    ("CancelTask", "/tasks/t1:cancel", {"id": "t1"}, "task-unknown"),
    ("ListTasks", "GET /tasks", {}, "method-unknown"),
    ("GetExtendedAgentCard", "GET /extendedAgentCard", {}, None),
]


@pytest.mark.parametrize(("method", "address", "params", "reason"), OPERATIONS)
async def test_operations_of_an_agent_are_decided_unless_tasks_of_others_may_be_meant(
    tmp_path: Path, method: str, address: str, params: dict[str, Any], reason: str | None
) -> None:
    async with asked_agent(tmp_path) as (running, agent, key):
        verb, _, path = address.rpartition(" ")
        rpc = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        rest = b"" if "id" in params or verb else json.dumps(params).encode()
        lines = [(b"x-api-key", key.encode()), (b"content-type", b"application/json"), (b"a2a-version", b"1.0")]
        for asked in (
            AskedRequest("POST", "/agents/researcher", lines, rpc),
            AskedRequest(verb or "POST", f"/agents/researcher{path}", lines, rest),
        ):
            context, response = await point_of(running).decide(asked, ASKING)
            assert (context.reason, isinstance(response, Permit)) == (reason, reason is None)
        assert agent.seen == [] and {record["upstream"] for record in decisions(running)} == {"researcher"}


@asynccontextmanager
async def asked_agent(folder: Path) -> AsyncIterator[tuple[World, ScriptedAgent, str]]:
    """A sidecar with an agent too, whose card denies that it keeps push configurations; and a key of nhi:planner."""
    agent = ScriptedAgent()
    agent.card["capabilities"] = {**agent.card["capabilities"], "pushNotifications": False}
    files = {f"policies/{kind}.csv": rows for kind, rows in AGENT_RULES.items()}
    async with listening(agent.handle) as base:
        upstreams = f'  researcher: {{a2a: {{url: "{base}/", version: "1.0"}}}}\n'
        async with asked_world(folder, upstreams=upstreams, files=files) as (running, keys):
            yield running, agent, keys["nhi:planner"]


async def test_a_task_of_another_is_refused_also_where_the_card_denies_the_operation(tmp_path: Path) -> None:
    async with asked_agent(tmp_path) as (running, _, key):
        lines = [(b"x-api-key", key.encode()), (b"a2a-version", b"1.0")]
        address = "/agents/researcher/tasks/t1/pushNotificationConfigs"
        context, _ = await point_of(running).decide(AskedRequest("GET", address, lines), ASKING)
        assert context.reason == "task-unknown"


MESSAGES: list[tuple[dict[str, Any], str | None]] = [
    ({"id": 1, "method": "initialize", "params": INITIALIZE}, None),
    ({"id": 1, "method": "tools/list", "params": {}}, None),
    ({"id": 1, "method": "tasks/get", "params": {"taskId": "t1"}}, "task-unknown"),
    ({"id": 1, "method": "tasks/list", "params": {}}, "method-unknown"),
    ({"method": "notifications/initialized"}, None),
    ({"method": "notifications/made-up"}, "method-unknown"),
    ({"id": 1, "result": {}}, None),
]


@pytest.mark.parametrize(("message", "reason"), MESSAGES)
async def test_messages_of_a_session_are_decided_without_the_session(
    tmp_path: Path, message: dict[str, Any], reason: str | None
) -> None:
    async with asked_world(tmp_path) as (running, keys):
        headers = {"X-API-Key": keys["nhi:planner"], "MCP-Protocol-Version": SESSION, "Mcp-Session-Id": "theirs"}
        asked = request_of({"jsonrpc": "2.0", **message}, **headers)
        context, response = await point_of(running).decide(asked, ASKING)
        assert (context.reason, isinstance(response, Permit)) == (reason, reason is None)
        for verb in ("GET", "DELETE"):
            lines = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
            _, response = await point_of(running).decide(AskedRequest(verb, "/mcp/github", lines), ASKING)
            assert isinstance(response, Permit)
        assert 'sidecar_upstream_duration_seconds_count{upstream="github"} 0.0' in await running.metrics()


async def test_a_decision_that_cannot_be_recorded_is_refused_and_charged_to_nobody(tmp_path: Path) -> None:
    async with asked_world(tmp_path) as (running, keys):
        asked = partial(request_of, stateless("tools/call", {"name": "get_file", "arguments": {"path": "a"}}))
        headers = {"Mcp-Method": "tools/call", "Mcp-Name": "get_file", "MCP-Protocol-Version": STATELESS}
        headers["X-API-Key"] = keys["nhi:planner"]
        with frozen(running.app):
            context, response = await point_of(running).decide(asked(**headers), ASKING)
            assert (context.reason, response.status) == ("audit-unavailable", 503)
        await until(lambda: running.app.audit.writer.up)
        for remaining in (2, 1, 0):
            context, response = await point_of(running).decide(asked(**headers), ASKING)
            assert isinstance(response, Permit) and [state.remaining for state in response.limits] == [remaining]
        context, _ = await point_of(running).decide(asked(**headers), ASKING)
        assert context.reason == "rate-limited"


async def test_an_enforcement_point_that_hangs_up_leaves_a_record(tmp_path: Path) -> None:
    upstream = Upstream()

    async def never(*_: object) -> Any:
        await asyncio.sleep(PATIENCE_S)

    upstream.script["tools/list"] = never
    async with asked_world(tmp_path, upstream=upstream) as (running, _):
        question = {
            "subject": {"type": "nhi", "id": "planner"},
            "action": {"name": "tools/call"},
            "resource": {"type": "tool", "id": "github/search_code", "properties": {"arguments": {"repo": "acme/a"}}},
        }
        body = json.dumps(question).encode()
        head = f"POST /access/v1/evaluation HTTP/1.1\r\nHost: pdp\r\nX-PDP-Key: {SECRET}\r\n"
        _, writer = await asyncio.open_connection("127.0.0.1", int(running.admin_url.rpartition(":")[2]))
        typed = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(f"{head}{typed}".encode() + body)
        await until(lambda: bool(upstream.calls("tools/list")))
        writer.close()
        await until(lambda: bool(decisions(running)))
        (record,) = decisions(running)
        assert [record[name] for name in ("event", "reason", "http_status")] == ["refusal", "caller-gone", 499]


async def test_an_enforcement_point_that_hangs_up_before_its_permit_is_recorded_is_not_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asked_world(tmp_path) as (running, keys):
        arguments = {"path": "x" * HASHED_HERE_BYTES}
        asked = partial(request_of, stateless("tools/call", {"name": "get_file", "arguments": arguments}))
        headers = {"Mcp-Method": "tools/call", "Mcp-Name": "get_file", "MCP-Protocol-Version": STATELESS}
        headers["X-API-Key"] = keys["nhi:planner"]
        with hashing_until_asked_again(monkeypatch) as begun:
            leaving = asyncio.create_task(point_of(running).decide(asked(**headers), ASKING))
            await begun.wait()
            leaving.cancel()
            await asyncio.wait({leaving})
        _, response = await point_of(running).decide(asked(**headers), ASKING)
        assert isinstance(response, Permit) and [state.remaining for state in response.limits] == [2]
        assert [record["reason"] for record in decisions(running)] == ["caller-gone", None]


async def test_a_stop_ends_the_decisions_under_way_and_refuses_further_ones(tmp_path: Path) -> None:
    upstream = Upstream()

    async def never(*_: object) -> Any:
        await asyncio.sleep(PATIENCE_S)

    upstream.script["tools/list"] = never
    async with asked_world(tmp_path, upstream=upstream) as (running, keys):
        point, asked = point_of(running), partial(call_of, "search_code", keys["nhi:planner"])
        asking = asyncio.create_task(point.decide(asked(), ASKING))
        await until(lambda: bool(upstream.calls("tools/list")))
        await running.app.pipeline.drain(0.0)
        assert [(await found)[0].reason for found in (asking, point.decide(asked(), ASKING))] == ["draining"] * 2


async def test_records_of_decisions_are_verified_replayed_and_learned_from(tmp_path: Path) -> None:
    async with asked_agent(tmp_path) as (running, _, key):
        point = point_of(running)
        for repo in ("acme/a", "evil/a"):
            await point.decide(call_of("search_code", key, repo), ASKING)
        headers = {"X-API-Key": key, "MCP-Protocol-Version": SESSION}
        await point.decide(request_of(request("tasks/get", {"taskId": "t1"}), **headers), ASKING)
        lines = [(b"x-api-key", key.encode()), (b"a2a-version", b"1.0")]
        await point.decide(AskedRequest("GET", "/agents/researcher/tasks/t1", lines), ASKING)
        log = running.app.settings.audit_path
    assert verify([log]).ok and not verify([log]).unfinished
    report = replay(log, Candidate(in_folder(tmp_path / "policies").load(), None))
    assert (report.wider, report.narrower, report.same + sum(report.undecidable.values())) == (0, 0, 4)
    evidence = UsageEvidence()
    evidence.read(log.read_bytes().splitlines(), SuggestQuery(), "log")
    used = {(triple.object, triple.action) for triple in evidence.traces}
    assert used == {("tool:github/search_code", "tools/call")}, "what was refused is not used"


def call_of(tool: str, key: str, repo: str = "acme/site") -> AskedRequest:
    message = stateless("tools/call", {"name": tool, "arguments": {"repo": repo}})
    headers = {"Mcp-Method": "tools/call", "Mcp-Name": tool, "MCP-Protocol-Version": STATELESS, "X-API-Key": key}
    return request_of(message, **headers)


def point_of(running: World) -> DecisionPoint:
    return decisions_from(running.app.pipeline, running.app.settings, dict).point


async def test_shadow_mode_lets_pass_and_records_what_would_deny(tmp_path: Path) -> None:
    async with asked_world(tmp_path, settings=shadow()) as (running, keys):
        _, response = await point_of(running).decide(call_of("search_code", keys["nhi:planner"], "evil/a"), ASKING)
        assert isinstance(response, Permit)
        (record,) = decisions(running)
        found = [record[name] for name in ("event", "reason", "enforcement", "http_status")]
        assert found == ["decision", None, "shadow", 200] and record["links"][-1]["decision"] == "deny"


async def test_questions_do_not_slow_their_subject_down_but_its_own_calls_do(tmp_path: Path) -> None:
    settings = "refusals: {per_principal_per_minute: 3}\n"
    async with asked_world(tmp_path, settings=settings) as (running, keys):
        key = keys["nhi:planner"]
        asked = [call_of("search_code", key, repo) for repo in (*["evil/a"] * 5, "acme/a")]
        found = [(await point_of(running).decide(one, ASKING))[0].reason for one in asked]
        assert found == ["condition-false"] * 5 + [None]
        for _ in range(3):
            await running.call("search_code", {"repo": "evil/a"}, headers={"X-API-Key": key})
        context, _ = await point_of(running).decide(call_of("search_code", key), ASKING)
        assert context.reason == "too-many-refusals"


async def test_a_decision_takes_no_slot(tmp_path: Path) -> None:
    files = {"policies/budgets.yaml": 'version: 1\ntools: {"tool:github/*": {concurrency: 1}}\n'}
    async with asked_world(tmp_path, files=files) as (running, keys):
        for _ in range(3):
            _, response = await point_of(running).decide(call_of("search_code", keys["nhi:planner"]), ASKING)
            assert isinstance(response, Permit)
        status, _, _ = await running.call("search_code", {"repo": "acme/a"}, headers={"X-API-Key": keys["nhi:planner"]})
        assert status == 200


async def test_strangers_at_an_enforcement_point_are_answered_and_counted_apart(tmp_path: Path) -> None:
    settings = "refusals: {per_peer_per_minute: 2}\n"
    async with asked_world(tmp_path, settings=settings) as (running, _):
        for _ in range(5):
            asked = AskedRequest("POST", "/mcp/github", [], b"", "127.0.0.1")
            context, response = await point_of(running).decide(asked, ASKING)
            assert (context.reason, response.status) == ("unauthenticated", 401)
        assert len(decisions(running)) == 2
        await running.app.pipeline.stages.refusals.tell(running.app.audit.control)
        controls = [record["control"] for record in running.records() if record["event"] == "control"]
        (told,) = [control for control in controls if control["what"] == "refusals-counted"]
        assert (told["enforcement_point"], told["count"]) == (NAME, 3)
        status, _, _ = await running.call("search_code", {"repo": "acme/a"})
        assert status == 401, "a stranger of the same address is still answered"


SAME = ("reason", "links", "facts", "args_hash", "chain", "object", "action", "server", "tool", "method", "upstream")


@pytest.mark.parametrize("binding", HTTP)
@pytest.mark.parametrize("action", ["message/send", "push/set"])
async def test_an_operation_of_an_agent_is_decided_as_the_proxy_decides_it(
    tmp_path: Path, binding: tuple[Any, Any], action: str
) -> None:
    """In every version and binding over HTTP; `push/set` names a task that is not the caller's."""
    async with asked_agent(tmp_path) as (running, _, key):
        hook = {"taskId": "t1", "url": "http://127.0.0.1:1/hook"}
        params = {"message": HELLO} if action == "message/send" else hook
        found = []
        for url in (running.url, f"{running.admin_url}/ext-authz"):
            place: Any = SimpleNamespace(http=running.http, url=url)
            with suppress(ValueError):  # a permit has no body
                await ask(place, *binding, action, params, {"X-API-Key": key, **KEY})
            asked_by = NAME if "ext-authz" in url else None
            records = [one for one in running.records() if one["object"] and one["enforcement_point"] == asked_by]
            found.append({name: records[0][name] for name in SAME})
        assert found[0] == found[1] and found[0]["object"] == "nhi:researcher"
