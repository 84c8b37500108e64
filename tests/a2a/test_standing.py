"""Is an agent watched over like any other upstream: breaker, probes, limits, streams that lose their permission?"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import sidecar.gateway.forwarder
from sidecar.http.signing_keys import generate
from tests.a2a.world import ALICE, BOB, EVERYTHING, HELLO, HTTP, IDP, SPOKEN, No, agent_world, ask, opened, saying, task
from tests.flow.idp import bearer
from tests.flow.test_audit_trouble import frozen
from tests.flow.world import until
from tests.tables import tables

SEND = {"message": HELLO}
WORKS = {"task": task(state="TASK_STATE_WORKING")}
QUIET = "probe: {enabled: false}"


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar.gateway.forwarder, "LOOK_EVERY_S", 0.05)


async def test_an_agent_that_fails_is_given_a_rest_and_its_own_no_is_no_fault(tmp_path: Path) -> None:
    agent = saying()
    agent.script["SendMessage"] = lambda *_: web.Response(status=500)
    async with agent_world(tmp_path, agent, upstream=QUIET) as world:
        for _ in range(5):
            assert (await ask(world, "1.0", "jsonrpc", "message/send", SEND)).reason == "upstream-failed"
        answered = await ask(world, "1.0", "jsonrpc", "message/send", SEND)
        assert (answered.status, answered.reason, len(agent.seen)) == (503, "upstream-open", 5)
    agent = saying(SendMessage=No({"code": -32004, "message": "not this one"}))
    async with agent_world(tmp_path / "b", agent, upstream=QUIET) as world:
        for _ in range(7):
            answered = await ask(world, "1.0", "jsonrpc", "message/send", SEND)
            assert answered.error is not None and answered.error["code"] == -32004
        assert len(agent.seen) == 7
        ended = [record for record in world.ends() if record["method"] == "message/send"]
        assert {(record["event"], record["status"]) for record in ended} == {("outcome", "success")}


async def test_its_card_is_a_sign_of_life(tmp_path: Path) -> None:
    async with agent_world(tmp_path, upstream="probe: {every_s: 0.1}") as world:
        account = world.app.live.current.agents["researcher"].account
        await until(lambda: account.standing.status == "ready")
        assert world.app.upstreams()["researcher"]["protocol"] == "a2a"


async def test_integers_of_64_bits_pass_unchanged(tmp_path: Path) -> None:
    """But over gRPC, whose numbers are doubles."""
    large = {"n": [2**53 + 1, 2**63, 2**64 - 1, -(2**63)]}
    agent = saying(SendMessage={"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"data": large}]}})
    async with agent_world(tmp_path, agent) as world:
        for way in HTTP:
            answered = await ask(world, *way, "message/send", {"message": {**HELLO, "parts": [{"data": large}]}})
            assert json.dumps(large["n"], separators=(",", ":")).encode() in answered.raw
            assert agent.seen[-1][1]["params"]["message"]["parts"] == [{"data": large}]


@pytest.mark.parametrize("way", SPOKEN)
async def test_limits_count_calls_of_agents_and_leave_what_was_begun_to_be_cancelled(way: Any, tmp_path: Path) -> None:
    rules = {"user_to_nhi": "p, user:alice, nhi:researcher, use, -, 2, -, allow\n"}
    async with agent_world(tmp_path, rules=rules) as world:
        for action in ("message/send", "message/stream"):
            assert (await ask(world, *way, action, SEND)).error is None
        answered = await ask(world, *way, "message/stream", SEND)
        assert (answered.status, answered.reason) == (429, "rate-limited")
        assert "'limit': 'max_calls_per_hour'" in str(answered.error), answered.error  # which one, in every binding
        assert len(world.agent.seen) == 2
        assert (await ask(world, *way, "tasks/get", {"id": "t1"})).reason == "rate-limited"
        assert (await ask(world, *way, "tasks/cancel", {"id": "t1"})).error is None


STYLES = [("auto", 403, 429, 502), ("http", 403, 429, 502), ("jsonrpc", 200, 200, 200), ("tool_result", 200, 200, 200)]


@pytest.mark.parametrize(("style", "denied", "limited", "failed"), STYLES)
async def test_a_no_in_json_rpc_has_the_status_that_the_operator_wants(
    style: str, denied: int, limited: int, failed: int, tmp_path: Path
) -> None:
    """Of an answer that is no 200 the official SDK shows its caller no word; other bindings have their own statuses."""
    rules = {"user_to_nhi": "p, user:alice, nhi:researcher, use, -, 2, -, allow\n"}
    agent = saying()
    agent.script["SendStreamingMessage"] = lambda *_: web.Response(status=500)
    settings = f"answers: {{deny_style: {style}}}\n"
    async with agent_world(tmp_path, agent, rules=rules, settings=settings, upstream=QUIET) as world:
        for version in ("1.0", "0.3"):
            answered = await ask(world, version, "jsonrpc", "message/send", SEND, BOB)
            assert (answered.status, answered.reason) == (denied, "no-matching-rule")
            answered = await ask(world, version, "jsonrpc", "message/stream", SEND)
            assert (answered.status, answered.reason) == (failed, "upstream-failed")
            assert (await ask(world, version, "http_json", "message/send", SEND, BOB)).status == 403
            assert (await ask(world, version, "jsonrpc", "message/send", SEND, {})).status == 401
        answered = await ask(world, "1.0", "jsonrpc", "message/send", SEND)
        assert (answered.status, answered.reason) == (limited, "rate-limited")
        answered = await ask(world, "1.0", "jsonrpc", "tasks/cancel", {"id": "t0"})
        assert answered.status == 200 and answered.error and answered.error["code"] == -32001


async def test_a_stream_takes_a_slot_of_concurrency_for_as_long_as_it_lasts(tmp_path: Path) -> None:
    go_on = asyncio.Event()
    agent = saying(SendStreamingMessage=[WORKS, go_on, {"task": task()}])
    budgets = {"policies/budgets.yaml": 'version: 1\nprincipals: {"user:alice": {concurrency: 1}}\n'}
    async with agent_world(tmp_path, agent, files=budgets) as world:
        streaming = await opened(world, "1.0", "jsonrpc")
        assert (await ask(world, "1.0", "http_json", "message/send", SEND)).reason == "too-many-concurrent"
        go_on.set()
        assert len((await streaming).results) == 2
        assert (await ask(world, "1.0", "http_json", "message/send", SEND)).error is None


@pytest.mark.parametrize("way", [("1.0", "jsonrpc"), ("1.0", "http_json"), ("0.3", "jsonrpc"), ("1.0", "grpc")])
async def test_a_stream_ends_when_its_permission_does(way: Any, tmp_path: Path) -> None:
    async with agent_world(tmp_path, saying(SendStreamingMessage=[WORKS, asyncio.Event()])) as world:
        streaming = await opened(world, *way)
        await world.app.disable("user:alice", reason="", until=None, by="test")
        assert (await streaming).reason == world.ends()[-1]["reason"] == "principal-disabled"
        assert not world.app.pipeline.forwarder.streams


async def test_a_stream_ends_when_the_key_of_its_token_is_taken_out(tmp_path: Path) -> None:
    async with agent_world(tmp_path, saying(SendStreamingMessage=[WORKS, asyncio.Event()])) as world:
        token = IDP.token("user:alice", f"{world.app.live.current.base_url}/agents/researcher")
        streaming = await opened(world, "1.0", "jsonrpc", who=bearer(token))
        (tmp_path / "jwks.json").write_text(generate().jwks())
        await world.app.reload("test")
        assert (await streaming).reason == "bad-credential"


@pytest.mark.parametrize("way", [("1.0", "jsonrpc"), ("1.0", "grpc")])
async def test_who_waits_for_the_first_event_of_a_stream_is_watched_over_too(way: Any, tmp_path: Path) -> None:
    go_on = asyncio.Event()
    agent = saying(SendStreamingMessage=[go_on, {"task": task()}])
    async with agent_world(tmp_path, agent) as world:
        streaming = asyncio.create_task(ask(world, *way, "message/stream", SEND))
        await until(lambda: bool(agent.seen))
        await world.app.disable("user:alice", reason="", until=None, by="test")
        answered = await streaming
        go_on.set()
        assert (answered.status, answered.reason, answered.results) == (403, "principal-disabled", ())
        assert world.ends()[-1]["reason"] == "principal-disabled"
        assert world.app.pipeline.forwarder.oversight.open.calls == set()


async def test_what_never_reached_the_agent_costs_nothing(tmp_path: Path) -> None:
    """A receiver that nobody may call, and a stream that finds no place."""
    agent = saying(SendStreamingMessage=[WORKS, asyncio.Event()])
    rules = {"user_to_nhi": f"p, user:alice, nhi:researcher, {EVERYTHING}, -, 3, -, allow\n"}
    async with agent_world(tmp_path, agent, rules=rules, settings="streams: {max_per_principal: 1}\n") as world:
        streaming = await opened(world, "1.0", "jsonrpc")
        for _ in range(3):
            assert (await ask(world, "1.0", "grpc", "message/stream", SEND)).reason == "too-many-concurrent"
            inside = SEND | {"configuration": {"taskPushNotificationConfig": {"url": "http://10.0.0.1/"}}}
            assert (await ask(world, "1.0", "jsonrpc", "message/send", inside)).reason == "malformed-call"
        assert len(agent.seen) == 1
        agent.made = 1
        for reason in ("", "", "rate-limited"):
            assert (await ask(world, "1.0", "jsonrpc", "message/send", SEND)).reason == reason
        streaming.cancel()


async def test_a_lying_agent_hands_out_nobody_elses_task(tmp_path: Path) -> None:
    """It answers with the task of another caller, or with another task than was asked for."""
    agent = saying(SendMessage={"task": task("t1", "c1")}, GetTask=task("t7", "c7"))
    async with agent_world(tmp_path, agent) as world:
        assert (await ask(world, "1.0", "jsonrpc", "message/send", SEND)).error is None
        assert (await ask(world, "1.0", "jsonrpc", "message/send", SEND, BOB)).reason == "response-refused"

        assert (await ask(world, "1.0", "jsonrpc", "tasks/get", {"id": "t1"})).reason == "response-refused"


LIES: dict[str, Any] = tables("a2a/standing")["lies"]


async def test_what_is_no_answer_is_refused_and_told(tmp_path: Path) -> None:
    agent = saying()
    async with agent_world(tmp_path, agent) as world:
        for lie, said in LIES.items():
            agent.script["SendMessage"] = lambda *_, said=said: said
            answered = await ask(world, "1.0", "http_json", "message/send", SEND)
            assert (answered.status, answered.reason) == (502, "response-refused"), lie


async def test_evidence_holds_no_argument_no_token_and_no_result(tmp_path: Path) -> None:
    secret = "a very particular sentence"
    sent = {"message": {**HELLO, "parts": [{"text": secret}], "metadata": {"task_type": "search"}}}
    async with agent_world(tmp_path) as world:
        await ask(world, "1.0", "jsonrpc", "message/send", sent)
        text = json.dumps(world.records())
        assert secret not in text and ALICE["Authorization"] not in text
        decision = world.records("decision")[-1]
        told = [decision[name] for name in ("protocol", "protocol_version", "action")]
        assert told == ["a2a", "1.0", "message/send"]
        assert decision["object"] == "nhi:researcher" and len(decision["args_hash"]) == 64


async def test_a_caller_who_leaves_a_stream_that_cannot_be_recorded_is_not_answered(tmp_path: Path) -> None:
    async with agent_world(tmp_path, saying(SendStreamingMessage=[WORKS, asyncio.Event()])) as world:
        streaming = await opened(world, "1.0", "jsonrpc")
        [serving] = [one for one in asyncio.all_tasks() if "ServerConnection.start" in repr(one.get_coro())]
        with frozen(world.app):
            streaming.cancel()
            await until(serving.done)
        assert serving.cancelled()
