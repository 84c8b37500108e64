"""AuthZEN's evaluations are decided as calls are."""

from pathlib import Path
from typing import Any

import pytest

from tests.flow.authzen import ALICE, BOB, FILES, PLANNER, arguments, ask, authzen_world, question
from tests.flow.authzen_mutations import send
from tests.flow.enforcement import NAME, SECRET, decisions
from tests.flow.world import Upstream

TOOL = "tool:github/get_file"
UNASKABLE = {"type": "user", "id": "no blanks"}


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (question(PLANNER, "tools/call", TOOL, properties=arguments(path="x")), None),
        (question(PLANNER, "can_call", TOOL, properties=arguments(path="x")), None),
        (question(PLANNER, "tools/call", TOOL, properties=arguments(path=7)), "bad-arguments"),
        (question(PLANNER, "prompts/get", TOOL), "no-matching-rule"),
        (
            question(PLANNER, "tools/call", "tool:github/search_code", properties=arguments(repo="a/b")),
            "condition-false",
        ),
        (question(PLANNER, "tools/list", "mcp_server:github"), None),
        (question(BOB, "tools/list", "mcp_server:github"), "no-matching-rule"),
        (question(PLANNER, "tasks/get", "mcp_server:github", properties=arguments(taskId="1")), "task-unknown"),
        (question(PLANNER, "sampling/createMessage", "mcp_server:github"), "no-matching-rule"),
        (question(PLANNER, "notifications/initialized", "mcp_server:github"), None),
        (question(ALICE, "delegate", "agent:planner"), None),
        (question(ALICE, "message/send", "agent:planner"), "no-matching-rule"),
        (question(ALICE, "read", "record:101"), None),
        (question(ALICE, "write", "record:101", properties={"status": "active"}), None),
        (question(ALICE, "write", "record:101", properties={"status": "closed"}), "condition-false"),
        (question(ALICE, "write", "record:101"), "condition-false"),
        (question(ALICE, "read", "letter:101"), "no-matching-rule"),
        (question(ALICE, "re/ad", "record:101"), "no-matching-rule"),
        (question(ALICE, "frobnicate", TOOL), "no-matching-rule"),
        (question(BOB, "read", "record:*"), "no-matching-rule"),
        (question(UNASKABLE, "read", "record:101"), "no-matching-rule"),
        (question({"type": "robot", "id": "r2"}, "read", "record:101"), "no-matching-rule"),
    ],
)
async def test_an_evaluation_is_decided_and_recorded(tmp_path: Path, asked: Any, reason: str | None) -> None:
    async with authzen_world(tmp_path) as running:
        status, answer, headers = await ask(running, "evaluation", asked)
        assert (status, answer["decision"], answer["context"].get("reason")) == (200, reason is None, reason), answer
        assert headers["Content-Type"] == "application/json"
        (record,) = decisions(running)
        found = [record[name] for name in ("decision_id", "reason", "http_status", "protocol", "enforcement_point")]
        assert found == [answer["context"]["decision_id"], reason, 200, "authzen", NAME]
        assert record["event"] == ("decision" if reason is None else "refusal")
        assert "rule" not in str(answer).replace("no-matching-rule", "")
        assert not running.upstream.calls()


async def test_an_agent_in_the_context_is_the_last_of_the_chain(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        asked = question(ALICE, "tools/call", TOOL, properties=arguments(path="x"))
        assert (await ask(running, "evaluation", asked)).body["decision"] is False
        assert (await ask(running, "evaluation", {**asked, "context": {"agent": "planner"}})).body["decision"] is True
        asked["subject"] = BOB
        assert (await ask(running, "evaluation", {**asked, "context": {"agent": "planner"}})).body["decision"] is False
        asked["subject"] = PLANNER
        assert (await ask(running, "evaluation", {**asked, "context": {"agent": "planner"}})).body["decision"] is True
        assert (await ask(running, "evaluation", {**asked, "context": {"agent": "a b"}})).body["decision"] is False
        chains = [record["chain"] for record in decisions(running)]
        assert chains == [
            ["user:alice"],
            ["user:alice", "nhi:planner"],
            ["user:bob", "nhi:planner"],
            ["nhi:planner"],
            [],
        ]
        (credential,) = decisions(running)[1]["credential"]
        assert (credential["kind"], credential["issuer"]) == ("asserted", NAME)


async def test_ids_at_the_address_of_a_server_are_that_servers(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        asked = question({**PLANNER}, "tools/call", "tool:get_file", properties=arguments(path="x"))
        assert (await ask(running, "/github/access/v1/evaluation", asked)).body["decision"] is True
        assert (await ask(running, "/access/v1/evaluation", asked)).body["decision"] is False
        assert (await ask(running, "/other/access/v1/evaluation", asked)).body["decision"] is False
        audience = running.app.live.current.audience("github").resource
        for named in ("github", audience):
            asked = question(PLANNER, "tools/list", f"mcp_server:{named}")
            assert (await ask(running, "/github/access/v1/evaluation", asked)).body["decision"] is True
            assert (await ask(running, "/other/access/v1/evaluation", asked)).body["decision"] is (named == "github")


async def test_limits_are_charged_where_the_request_says_so(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        asked = question(PLANNER, "tools/call", TOOL, properties=arguments(path="x"))
        for _ in range(5):
            assert "obligations" not in (await ask(running, "evaluation", asked)).body["context"]
        asked["context"] = {"charge": True}
        told = [(await ask(running, "evaluation", asked)).body for _ in range(4)]
        assert [one["decision"] for one in told] == [True, True, True, False]
        (obligation,) = told[0]["context"]["obligations"]
        assert (obligation["id"], obligation["type"]) == ("max_calls_per_hour", "limit")
        assert (obligation["properties"]["limit"], obligation["properties"]["remaining"]) == (3, 2)
        last = told[3]["context"]
        assert (last["reason"], last["limit"], last["remaining"]) == ("rate-limited", "max_calls_per_hour", 0)


@pytest.mark.parametrize(
    ("disclosure", "shown"), [("kind", {"reason": "denied", "error_code": "Unauthorized"}), ("hide", {})]
)
async def test_a_denial_tells_what_the_operator_discloses(tmp_path: Path, disclosure: str, shown: Any) -> None:
    settings = f"answers: {{disclosure: {disclosure}}}\n"
    async with authzen_world(tmp_path, settings=settings) as running:
        context = (await ask(running, "evaluation", question(ALICE, "read", "record:7"))).body["context"]
        assert context.pop("decision_id") and context == shown


async def test_a_disabled_principal_is_denied(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        asked = question(ALICE, "read", "record:101")
        assert (await ask(running, "evaluation", asked)).body["decision"] is True
        await running.app.disable("user:alice", reason="", until=None, by="test")
        assert (await ask(running, "evaluation", asked)).body["context"]["reason"] == "principal-disabled"
        search = {"subject": ALICE, "action": {"name": "read"}, "resource": {"type": "record"}}
        assert (await ask(running, "search/resource", search)).body["results"] == []


async def test_a_tool_that_is_off_is_denied(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        await running.app.switch_off("github", "get_file", reason="", until=None, by="test")
        asked = question(PLANNER, "tools/call", TOOL, properties=arguments(path="x"))
        assert (await ask(running, "evaluation", asked)).body["context"]["reason"] == "tool-disabled"
        search = {"subject": PLANNER, "action": {"name": "tools/call"}, "resource": {"type": "tool"}}
        assert {"type": "tool", "id": "github/get_file"} not in (await ask(running, "search/resource", search)).body[
            "results"
        ]


async def test_what_cannot_be_recorded_is_an_error_and_no_decision(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        await running.app.pipeline.audit.close()
        asked = question(ALICE, "read", "record:101")
        status, body, headers = await ask(running, "evaluation", asked, X_Request_ID="7")
        assert (status, body["reason"], headers["X-Request-ID"]) == (503, "audit-unavailable", "7")
        assert "decision" not in body and headers["Retry-After"]
        (answer,) = (await ask(running, "evaluations", {"evaluations": [asked]})).body["evaluations"]
        assert answer["decision"] is False and answer["context"]["error"]["status"] == 503
        search = {"subject": ALICE, "action": {"name": "read"}, "resource": {"type": "record"}}
        assert (await ask(running, "search/resource", search)).status == 503


async def test_a_bearer_token_is_the_enforcement_points(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        asked = question(ALICE, "read", "record:101")
        status, _, _ = await ask(running, "evaluation", asked, X_PDP_Key="", Authorization=f"Bearer {SECRET}")
        assert status == 200
        status, body, headers = await ask(running, "evaluation", asked, X_PDP_Key="", X_Request_ID="a b")
        assert (status, headers["WWW-Authenticate"], headers["X-Request-ID"]) == (401, "Bearer", "a b"), body
        assert len(decisions(running)) == 1


async def test_mutated_bodies_are_answered_and_never_fail(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        counts = await send(running, range(500))
        assert counts[200] > 100 and counts[400] > 100 and counts.keys() <= {200, 400, 413}
        assert {record["reason"] for record in decisions(running)} >= {None, "no-matching-rule"}


async def test_a_reload_changes_the_vocabulary(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        asked = question(ALICE, "read", "file:101")
        assert (await ask(running, "evaluation", asked)).body["decision"] is False
        file = running.folder / "sidecar.yaml"
        file.write_text(file.read_text().replace("{record:", '{file: "tool:records/{action}/*", record:', 1))
        await running.app.reload(by="test")
        assert (await ask(running, "evaluation", asked)).body["decision"] is True


async def test_a_record_has_the_version_of_the_protocol_that_was_asked_about(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        for asked in (
            question(ALICE, "read", "record:101"),
            question(PLANNER, "tools/call", TOOL),
            question(PLANNER, "ping", "mcp_server:github"),
        ):
            assert (await ask(running, "evaluation", asked)).body["decision"] is True
        assert [one["protocol_version"] for one in decisions(running)] == [None, "2026-07-28", "2025-11-25"]


async def test_an_agents_operation_is_decided_by_its_parameters(tmp_path: Path) -> None:
    rows = "p, user:alice, nhi:helper, message/send, -, 2, args.message.metadata.task_type == 'sum', allow\n"
    files = {**FILES, "policies/user_to_nhi.csv": rows}
    async with authzen_world(tmp_path, files=files) as running:
        file = running.folder / "sidecar.yaml"
        agent = 'upstreams:\n  helper: {a2a: {url: "http://127.0.0.1:9/"}, probe: {enabled: false}}\n'
        file.write_text(file.read_text().replace("upstreams:\n", agent))
        await running.app.reload(by="test")
        for skill, reason in (("sum", None), ("delete", "condition-false")):
            message = arguments(message={"parts": [{"text": "1"}], "metadata": {"task_type": skill}})
            asked = question(ALICE, "message/send", "agent:helper", properties=message, context={"charge": True})
            context = (await ask(running, "evaluation", asked)).body["context"]
            assert context.get("reason") == reason
            assert ("obligations" in context) is (reason is None)
        found = [(one["upstream"], one["object"], one["protocol_version"]) for one in decisions(running)]
        assert found == [("helper", "nhi:helper", "1.0")] * 2
        search = {"subject": ALICE, "resource": {"type": "agent", "id": "helper", "properties": arguments()}}
        assert (await ask(running, "search/action", search)).body["results"] == []


async def test_headers_that_a_caller_would_send_are_not_missed(tmp_path: Path) -> None:
    region = {"type": "string", "x-mcp-header": "Region"}
    schema = {"type": "object", "properties": {"region": region}}
    upstream = Upstream(tools=[{"name": "get_file", "inputSchema": schema}])
    async with authzen_world(tmp_path, upstream=upstream) as running:
        asked = question(PLANNER, "tools/call", TOOL, properties=arguments(region="eu"))
        assert (await ask(running, "evaluation", asked)).body["decision"] is True


async def test_names_of_limits_are_told_as_far_as_reasons_are(tmp_path: Path) -> None:
    async with authzen_world(tmp_path, settings="answers: {disclosure: kind}\n") as running:
        asked = question(PLANNER, "tools/call", TOOL, properties=arguments(path="x"), context={"charge": True})
        (obligation,) = (await ask(running, "evaluation", asked)).body["context"]["obligations"]
        assert obligation["id"] == "limit"


async def test_nothing_is_decided_while_the_sidecar_stops(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        running.app.pipeline.stages.draining = True
        asked = question(ALICE, "read", "record:101")
        for path in ("evaluation", "search/resource", "search/subject", "search/action"):
            status, body, _ = await ask(running, path, asked)
            assert (status, body["reason"]) == (503, "draining"), path


async def test_limits_whose_store_is_out_are_not_decided(tmp_path: Path) -> None:
    settings = 'store: {url: "redis://127.0.0.1:1"}\n'
    async with authzen_world(tmp_path, settings=settings) as running:
        asked = question(PLANNER, "tools/call", TOOL, properties=arguments(path="x"))
        assert (await ask(running, "evaluation", asked)).body["decision"] is True
        charged = {**asked, "context": {"charge": True}}
        status, body, headers = await ask(running, "evaluation", charged)
        assert (status, body["reason"]) == (503, "store-unavailable") and headers["Retry-After"]
        answers = (await ask(running, "evaluations", {"evaluations": [charged, asked]})).body["evaluations"]
        assert [one["decision"] for one in answers] == [False, True]
        assert answers[0]["context"]["error"]["status"] == 503


async def test_a_gateway_asks_as_the_coaz_binding_of_mcp_says(tmp_path: Path) -> None:
    pdp = "{authzen: {arguments: {tool: {repo: context.repo}}}}"
    async with authzen_world(tmp_path, pdp) as running:
        audience = running.app.live.current.audience("github").resource
        for method, resource, repo, decision in (
            ("tools/call", {"type": "tool", "id": "search_code"}, "acme/x", True),
            ("tools/call", {"type": "tool", "id": "search_code"}, "evil/x", False),
            ("tools/call", {"type": "tool", "id": "delete_repo"}, "acme/x", False),
            ("tools/list", {"type": "mcp_server", "id": audience}, "", True),
            ("server/discover", {"type": "mcp_server", "id": audience}, "", True),
            ("tools/list", {"type": "mcp_server", "id": "https://elsewhere.example"}, "", False),
            ("resources/read", {"type": "resource", "id": "docs://a/b"}, "", False),
            ("tasks/get", {"type": "task", "id": "7"}, "", False),
        ):
            subject, context = {"type": "identity", "id": "alice"}, {"agent": "planner", "repo": repo}
            asked = {"subject": subject, "action": {"name": method}, "resource": resource, "context": context}
            answer = (await ask(running, "/github/access/v1/evaluation", asked)).body
            assert answer["decision"] is decision, (method, resource, answer)
