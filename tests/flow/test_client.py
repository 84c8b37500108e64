"""Applications ask for decisions with the Python client, which has an answer in time or one error."""

import asyncio
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sidecar.cli.free_ports import free_ports
from sidecar.client import Decision, DecisionPoint, DecisionUnavailable, Limit, Question
from sidecar.gateway.approvals import Approver
from sidecar.vocabulary import Principal
from tests.flow.enforcement import NAME, SECRET, asked_world, decisions
from tests.flow.world import listening
from tests.unit.identity.authority import authority

PLANNER, SEARCH, READ = "nhi:planner", "tool:github/search_code", "tool:github/get_file"
ALICE = {"policies/user_to_nhi.csv": "p, user:alice, nhi:planner, delegate, -, -, -, allow\n"}


async def test_a_decision_is_that_of_the_call_with_its_arguments(tmp_path: Path) -> None:
    async with asked_world(tmp_path) as (running, _), DecisionPoint(running.admin_url, key=SECRET) as point:
        allowed = await point.decide(PLANNER, SEARCH, {"repo": "acme/site"})
        denied = await point.decide(PLANNER, SEARCH, {"repo": "evil/site"})
        assert allowed and allowed.reason == ""
        assert not denied and denied.reason == "condition-false"
        records = decisions(running)
        assert [record["decision_id"] for record in records] == [allowed.decision_id, denied.decision_id]
        assert {(record["protocol"], record["enforcement_point"]) for record in records} == {("authzen", NAME)}


async def test_a_call_that_a_person_must_approve_is_denied_until_then(tmp_path: Path) -> None:
    rules = "#: id=deletes approval=role:oncall\np, nhi:planner, tool:github/delete_repo, use, -, -, -, allow\n"
    files = {"policies/roles.csv": "g, user:dmitri, role:oncall\n"}
    async with (
        asked_world(tmp_path, rules=rules, files=files) as (running, _),
        DecisionPoint(running.admin_url, key=SECRET) as point,
    ):
        repo = {"repo": "acme/old"}
        waiting = await point.decide(PLANNER, "tool:github/delete_repo", repo)
        assert not waiting and waiting.reason == "approval-pending"
        approvals = running.app.pipeline.stages.approvals
        (asked,), _ = await approvals.page(None, 10, 0)
        person = Approver(Principal("user:dmitri"), "test")
        await approvals.answer(asked.name, person, "approve")
        assert await point.decide(PLANNER, "tool:github/delete_repo", repo)
        assert decisions(running)[-1]["approval"]["by"] == ["user:dmitri"]
        assert not await point.decide(PLANNER, "tool:github/delete_repo", repo)


async def test_an_agent_acts_for_its_caller(tmp_path: Path) -> None:
    async with (
        asked_world(tmp_path, files=ALICE) as (running, _),
        DecisionPoint(running.admin_url, key=SECRET) as point,
    ):
        good = {"repo": "acme/site"}
        assert await point.decide("user:alice", SEARCH, good, via=PLANNER)
        assert not await point.decide("user:bob", SEARCH, good, via=PLANNER)
        assert not await point.decide("user:alice", SEARCH, good)
        assert decisions(running)[0]["chain"] == ["user:alice", PLANNER]


async def test_a_charged_decision_tells_what_is_left_and_when_to_come_again(tmp_path: Path) -> None:
    async with asked_world(tmp_path) as (running, _), DecisionPoint(running.admin_url, key=SECRET) as point:
        found = [await point.decide(PLANNER, READ, {"path": "a"}, charge=True) for _ in range(4)]
        assert [decision.allowed for decision in found] == [True, True, True, False]
        assert [decision.limits[0].remaining for decision in found[:3]] == [2, 1, 0]
        assert found[0].limits[0].name == "max_calls_per_hour" and found[0].limits[0].limit == 3
        assert found[3].reason == "rate-limited" and 0 < (found[3].retry_after_s or 0) <= 3660
        assert await point.decide(PLANNER, READ, {"path": "a"})  # charges nothing


async def test_many_questions_are_answered_in_their_order(tmp_path: Path) -> None:
    repos = ["acme/a", "evil/b", "acme/c", "evil/d"]
    async with asked_world(tmp_path) as (running, _), DecisionPoint(running.admin_url, key=SECRET) as point:
        found = await point.decide_many(Question(PLANNER, SEARCH, {"repo": repo}) for repo in repos)
        assert [decision.allowed for decision in found] == [True, False, True, False]
        assert await point.decide_many([]) == []


async def test_a_socket_needs_no_key(tmp_path: Path) -> None:
    async with asked_world(tmp_path, f"{{listen: 'unix:{tmp_path}/pdp.sock'}}") as (running, _):
        async with DecisionPoint(f"unix:{tmp_path}/pdp.sock") as point:
            assert await point.decide(PLANNER, SEARCH, {"repo": "acme/site"})
        assert decisions(running)[0]["enforcement_point"] == "local"


async def test_a_client_certificate_names_its_enforcement_point(tmp_path: Path) -> None:
    server, clients = authority("server"), authority("clients")
    server.issue(address="127.0.0.1").write(tmp_path, "server")
    (tmp_path / "ca.pem").write_text(clients.own.pem)
    tls = "{cert_path: server.pem, key_path: server.key, client_ca_path: ca.pem}"
    async with asked_world(tmp_path, f'{{listen: "127.0.0.1:0", tls: {tls}}}') as (running, _):
        url, name = f"https://127.0.0.1:{running.app.listeners[-1].port}", "spiffe://acme.example/crm"
        known, stranger = clients.issue(uris=[name]), ssl.create_default_context(cadata=server.own.pem)
        async with DecisionPoint(url, tls=known.client(tmp_path, server)) as point:
            assert await point.decide(PLANNER, SEARCH, {"repo": "acme/site"})
        assert decisions(running)[0]["enforcement_point"] == name
        async with DecisionPoint(url, tls=stranger) as point:
            with pytest.raises(DecisionUnavailable, match="HTTP 401"):
                await point.decide(PLANNER, SEARCH)
        async with DecisionPoint(url) as point:
            with pytest.raises(DecisionUnavailable, match="no answer"):  # its authority is not trusted
                await point.decide(PLANNER, SEARCH)


async def test_a_wrong_key_gives_no_decision(tmp_path: Path) -> None:
    async with asked_world(tmp_path) as (running, _), DecisionPoint(running.admin_url, key="wrong") as point:
        with pytest.raises(DecisionUnavailable, match="HTTP 401: a credential of the role pdp is needed") as caught:
            await point.decide(PLANNER, SEARCH)
        assert caught.value.status == 401


@asynccontextmanager
async def answering(answer: Any, *, status: int = 200, after_s: float = 0.0) -> AsyncIterator[DecisionPoint]:
    """A client of a decision point that answers so."""

    async def handle(request: web.Request) -> web.StreamResponse:
        await request.read()
        await asyncio.sleep(after_s)
        if isinstance(answer, bytes):
            return web.Response(body=answer, status=status)
        return web.json_response(answer, status=status, headers={"Location": "/elsewhere"})

    async with listening(handle) as url, DecisionPoint(url, timeout_s=0.3 if after_s else 10.0) as point:
        yield point


@pytest.mark.parametrize(
    ("answer", "status", "told"),
    [
        ({"decision": "true"}, 200, "no decision"),
        ({"decision": 1}, 200, "no decision"),
        ({}, 200, "no decision"),
        ([], 200, "not a JSON object"),
        (b"<html>", 200, "not a JSON object"),
        (b"[" * 100_000, 200, "not a JSON object"),
        (b'"' + b"a" * 5_000_000, 200, "more than"),
        ({"decision": True}, 201, "HTTP 201"),
        ({"decision": True}, 302, "HTTP 302"),
        ({"error": "the key is missing"}, 400, "HTTP 400: the key is missing"),
        ({"decision": False, "context": {"error": {"status": 503, "message": "out"}}}, 503, "HTTP 503: out"),
    ],
)
async def test_what_is_no_decision_is_an_error(answer: Any, status: int, told: str) -> None:
    async with answering(answer, status=status) as point:
        with pytest.raises(DecisionUnavailable, match=told) as caught:
            await point.decide(PLANNER, SEARCH)
        assert caught.value.status == status


@pytest.mark.parametrize("answers", [[], [{"decision": True}], [{"decision": True}, {}], None, {"decision": True}])
async def test_each_of_many_questions_needs_its_decision(answers: Any) -> None:
    async with answering({"evaluations": answers}) as point:
        with pytest.raises(DecisionUnavailable) as caught:
            await point.decide_many([Question(PLANNER, SEARCH), Question(PLANNER, READ)])
        assert caught.value.status == 200


async def test_a_question_ends_at_its_deadline() -> None:
    async with answering({"decision": True}, after_s=5.0) as point:
        with pytest.raises(DecisionUnavailable, match=r"within 0\.3 s"):
            await point.decide(PLANNER, SEARCH)


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}", "unix:/nonexistent/socket", "nonsense", "http://a b:1"])
async def test_what_cannot_be_reached_is_an_error(url: str) -> None:
    async with DecisionPoint(url.format(port=free_ports(1)[0])) as point:
        with pytest.raises(DecisionUnavailable, match="no answer"):
            await point.decide(PLANNER, SEARCH)
    with pytest.raises(DecisionUnavailable, match="closed"):
        await point.decide(PLANNER, SEARCH)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"caller": "alice"}, "'alice' is not a caller"),
        ({"object": "github"}, "'github' is not an object"),
        ({"via": "user:bob"}, "'user:bob' is not an agent"),
        ({"arguments": {"at": float("nan")}}, "not JSON"),
        ({"arguments": {"at": object()}}, "not JSON"),
    ],
)
async def test_a_question_that_cannot_be_asked_is_an_error(wrong: Mapping[str, Any], told: str) -> None:
    async with DecisionPoint("http://127.0.0.1:9") as point:
        with pytest.raises(DecisionUnavailable, match=told):
            await point.decide(**{"caller": PLANNER, "object": SEARCH, **wrong})


async def test_what_a_decision_tells_beside_its_answer_is_read_loosely() -> None:
    limit = {"id": "hourly", "type": "limit", "properties": {"limit": 9, "remaining": 8, "new": 1}}
    told = {"reason": "", "obligations": [limit, {"type": "other"}, 1], "retry_after_s": "soon", "new": 1}
    async with answering({"decision": True, "context": told}) as point:
        assert await point.decide(PLANNER, SEARCH) == Decision(True, limits=(Limit("hourly", 9, 8),))


def test_the_client_imports_nothing_else_of_the_sidecar() -> None:
    code = "import sys, sidecar.client; print(*sorted(name for name in sys.modules if name.startswith('sidecar')))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert found.stdout.split() == ["sidecar", "sidecar.client"]
