"""Calls that wait for a person, over every way of MCP, and the people who answer."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sidecar.admin.decisions import decisions_from
from sidecar.gateway.approvals import ApprovalState, approvals as approvals_module
from sidecar.gateway.approvals.approval_record import Approver
from sidecar.gateway.decisions.point import Asking
from sidecar.policy_tools.policy_location import in_folder
from sidecar.policy_tools.replay import Candidate, replay
from sidecar.settings.timestamps import rfc3339
from sidecar.storage import RecordStoreOut
from sidecar.vocabulary import Principal
from tests.flow.causes import full_disk
from tests.flow.enforcement import NAME, asked_world
from tests.flow.idp import SETTINGS as IDENTITY, Idp, bearer
from tests.flow.pairs import pair
from tests.flow.test_decisions import request_of
from tests.flow.world import ACCEPT, SESSION, STATELESS, Upstream, World, request, stateless, until, world
from tests.valkey import Valkey

RULES = """\
#: id=deletes approval=role:oncall within=15m
p, nhi:planner, tool:github/get_file, use, -, -, -, allow
#: id=searches
p, nhi:planner, tool:github/search_code, use, -, -, -, allow
"""
ROLES = "g, user:dmitri, role:oncall\ng, user:olga, role:oncall\ng, nhi:planner, role:oncall\n"
KEYS = {who: sha256(who.encode()).hexdigest() for who in ("dmitri", "alice", "machine")}
SETTINGS = """\
admin:
  listen: 127.0.0.1:0
  credentials:
    - {role: viewer, secret_path: dmitri, name: dmitri, principal: user:dmitri}
    - {role: operator, secret_path: alice, name: alice, principal: user:alice}
    - {role: operator, secret_path: machine, name: machine}
"""
TOOL, PATH = "get_file", {"path": "secret-name"}
STATES = "approval-pending"


@asynccontextmanager
async def asking(
    folder: Path, rules: str = RULES, approvals: str = "hold: 30s", settings: str = "", **more: Any
) -> AsyncIterator[World]:
    settings = f"{SETTINGS}approvals: {{{approvals}}}\n{settings}"
    files = {"policies/roles.csv": ROLES, **KEYS, **more.pop("files", {})}
    async with world(folder, rules=rules, settings=settings, files=files, **more) as running:
        yield running


async def admin(
    running: World, who: str, path: str, body: Mapping[str, Any] | None = None
) -> tuple[int, dict[str, Any]]:
    headers = {"Authorization": f"Bearer {KEYS[who]}"}
    method = "GET" if body is None else "POST"
    async with running.http.request(method, f"{running.admin_url}{path}", json=body, headers=headers) as response:
        return response.status, await response.json(content_type=None)


async def waiting(running: World, who: str = "dmitri") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await admin(running, who, "/api/approvals?state=waiting"))[1]["approvals"]
    return found


async def answer(running: World, who: str, outcome: str, **body: Any) -> tuple[int, dict[str, Any]]:
    (one,) = await waiting(running, who)
    return await admin(running, who, f"/api/approvals/{one['id']}/{outcome}", body)


async def again(running: World, answered: Mapping[str, Any]) -> tuple[int, Any, Mapping[str, str]]:
    """The same stateless call, with the state that it was given."""
    params = {"name": TOOL, "arguments": PATH, "requestState": answered["result"]["requestState"]}
    headers = {"Mcp-Method": "tools/call", "Mcp-Name": TOOL, "MCP-Protocol-Version": "2026-07-28"}
    return await running.post(stateless("tools/call", params, id=2), headers=headers)


def controls(running: World, what: str = "approval") -> list[dict[str, Any]]:
    records = [record["control"] for record in running.records() if record["event"] == "control"]
    return [record for record in records if record["what"].startswith(what)]


async def test_a_stateless_call_is_answered_that_input_is_required_and_goes_on_when_approved(tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        status, asked, _ = await running.call(TOOL, PATH)
        assert (status, asked["result"]["resultType"]) == (200, "input_required")
        assert asked["result"]["_meta"]["sidecar/refusal"]["reason"] == "approval-pending"
        assert running.upstream.calls() == []
        held = asyncio.create_task(again(running, asked))
        await until(lambda: bool(running.app.approvals._held))
        assert (await answer(running, "dmitri", "approve"))[0] == 200
        status, done, _ = await held
        assert done["result"]["content"][0]["text"] == "done"
        (sent,) = running.upstream.calls()
        assert "requestState" not in sent["params"]
        decision = next(record for record in running.records() if record["event"] == "decision")
        assert decision["approval"]["by"] == ["user:dmitri"]
        assert [one["what"] for one in controls(running)] == ["approval-asked", "approval-given"]
        assert "secret-name" not in (running.folder / "data" / "audit" / "audit.jsonl").read_text()


async def test_it_is_used_once(tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        _, asked, _ = await running.call(TOOL, PATH)
        await answer(running, "dmitri", "approve")
        assert "content" in (await again(running, asked))[1]["result"]
        second = (await running.call(TOOL, PATH))[1]
        assert second["result"]["resultType"] == "input_required"
        assert len(running.upstream.calls()) == 1
        (one,) = await waiting(running)
        assert one["state"] == "waiting"


async def test_other_arguments_need_another_approval(tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        _, asked, _ = await running.call(TOOL, PATH)
        await answer(running, "dmitri", "approve")
        params = {"name": TOOL, "arguments": {"path": "other"}, "requestState": asked["result"]["requestState"]}
        headers = {"Mcp-Method": "tools/call", "Mcp-Name": TOOL, "MCP-Protocol-Version": "2026-07-28"}
        params_task = asyncio.create_task(running.post(stateless("tools/call", params, id=2), headers=headers))
        await until(lambda: bool(running.app.approvals._held))
        (one,) = await waiting(running)
        await admin(running, "dmitri", f"/api/approvals/{one['id']}/refuse", {"reason": "not this one"})
        status, refused, _ = await params_task
        assert (status, refused["error"]["data"]["reason"]) == (403, "approval-refused")
        assert refused["error"]["data"]["answer"] == "not this one"
        assert running.upstream.calls() == []


async def test_who_stands_in_the_chain_or_lacks_the_role_is_no_approver(tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        await running.call(TOOL, PATH)
        assert (await answer(running, "alice", "approve"))[0] == 403
        status, told = await answer(running, "machine", "approve")
        assert (status, "names none" in told["error"]) == (403, True)
        (one,) = await waiting(running)
        assert one["state"] == "waiting" and not one["answers"]


async def test_only_an_approver_sees_the_arguments_and_that_is_recorded(tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        await running.call(TOOL, PATH)
        (one,) = await waiting(running)
        for who in ("alice", "machine"):
            shown = (await admin(running, who, f"/api/approvals/{one['id']}"))[1]
            assert shown["questions"] is None and shown["objection"]
        shown = (await admin(running, "dmitri", f"/api/approvals/{one['id']}"))[1]
        assert shown["questions"][0]["arguments"] == PATH and shown["objection"] is None
        assert shown["seen_by"] == ["user:dmitri"]
        await admin(running, "dmitri", f"/api/approvals/{one['id']}")
        assert [record["principal"] for record in controls(running, "approval-shown")] == ["user:dmitri"]
        stored = (running.folder / "data" / "records.sqlite").read_bytes()
        stored += (running.folder / "data" / "records.sqlite-wal").read_bytes()
        assert b"secret-name" not in stored


async def test_a_call_without_an_approval_row_does_not_wait(tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        assert "content" in (await running.call("search_code", {"repo": "acme/site"}))[1]["result"]
        assert await waiting(running) == []


# --- sessions ---------------------------------------------------------------------------------------------------------


async def session_call(running: World, token: str | None = None) -> tuple[int, str]:
    """One call in a session; the status and the body's text."""
    hello = {"protocolVersion": SESSION, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    _, _, headers = await running.post(request("initialize", hello))
    inside = {"Mcp-Session-Id": headers["Mcp-Session-Id"], "MCP-Protocol-Version": SESSION}
    await running.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=inside)
    params: dict[str, Any] = {"name": TOOL, "arguments": PATH}
    if token is not None:
        params["_meta"] = {"progressToken": token}
    sent = {"Content-Type": "application/json", "Accept": ACCEPT, **inside}
    body = json.dumps(request("tools/call", params, id=7)).encode()
    async with running.http.post(f"{running.url}/mcp/github", data=body, headers=sent) as response:
        return response.status, (await response.read()).decode()


@pytest.mark.parametrize("token", [None, "t-1"])
async def test_a_call_of_a_session_is_held_until_it_is_approved(token: str | None, tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        held = asyncio.create_task(session_call(running, token))
        await until(lambda: bool(running.app.approvals._held))
        await answer(running, "dmitri", "approve")
        status, text = await held
        assert status == 200
        if token is None:
            assert json.loads(text)["result"]["content"][0]["text"] == "done"
            return
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
        assert events[0]["method"] == "notifications/progress" and events[0]["params"]["progressToken"] == token
        assert events[-1]["id"] == 7 and events[-1]["result"]["content"][0]["text"] == "done"


async def test_the_time_that_a_call_is_held_is_not_the_servers(tmp_path: Path) -> None:
    async def slowly(_: web.Request, message: dict[str, Any]) -> web.Response:
        await asyncio.sleep(0.3)
        return upstream.answer(message)

    upstream = Upstream({"tools/call": slowly})
    async with asking(tmp_path, upstream=upstream, mcp_settings="timeout_s: 1") as running:
        held = asyncio.create_task(session_call(running))
        await until(lambda: bool(running.app.approvals._held))
        await asyncio.sleep(1.0)
        await answer(running, "dmitri", "approve")
        assert json.loads((await held)[1])["result"]["content"][0]["text"] == "done"


async def test_a_held_call_reaches_its_server_also_if_that_is_defined_anew_meanwhile(tmp_path: Path) -> None:
    async with asking(tmp_path, mcp_settings="timeout_s: 1") as running:
        held = asyncio.create_task(session_call(running))
        await until(lambda: bool(running.app.approvals._held))
        config = tmp_path / "sidecar.yaml"
        config.write_text(config.read_text().replace("timeout_s: 1", "timeout_s: 2"))
        await running.app.reload("test")
        await asyncio.wait(running.app.reloader.retiring, timeout=2.0)  # longer than the time-out of a call
        await answer(running, "dmitri", "approve")
        assert json.loads((await held)[1])["result"]["content"][0]["text"] == "done"


@pytest.mark.parametrize("token", [None, "t-1"])
async def test_a_held_call_is_refused_with_the_id_and_the_same_call_finds_the_answer(
    token: str | None, tmp_path: Path
) -> None:
    async with asking(tmp_path, approvals="hold: 50ms") as running:
        status, text = await session_call(running, token)
        refused = json.loads(text.removeprefix("data: ") if token is None else text.split("data: ")[-1])
        assert (status, refused["error"]["code"]) == (200, 403)
        data = refused["error"]["data"]
        (one,) = await waiting(running)
        assert (data["reason"], data["approval"]) == ("approval-pending", one["id"])
        await answer(running, "dmitri", "approve")
        _, text = await session_call(running, token)
        assert '"done"' in text


# --- plain calls ---


async def plain(running: World) -> tuple[int, Any, Mapping[str, str]]:
    return await running.post({"arguments": PATH}, url=f"{running.url}/mcp/github/tools/{TOOL}")


async def test_a_plain_call_is_accepted_with_an_address_to_poll(tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        status, told, headers = await plain(running)
        assert (status, told["status"], told["reason"]) == (202, 202, "approval-pending")
        place = f"{running.url}{headers['Location']}"
        async with running.http.get(place) as response:
            assert (response.status, (await response.json())["state"]) == (200, "waiting")
        await answer(running, "dmitri", "approve")
        async with running.http.get(place) as response:
            assert (await response.json())["state"] == "approved"
        status, done, _ = await plain(running)
        assert (status, done["result"]["content"][0]["text"]) == (200, "done")
        async with running.http.get(place) as response:
            assert (await response.json())["state"] == "used"
        async with running.http.get(place[:-1] + ("0" if place[-1] != "0" else "1")) as response:
            assert response.status == 404


# --- other ways -------------------------------------------------------------------------------------------------------


async def test_a_call_over_http_and_sse_is_held_and_answered_on_its_stream(tmp_path: Path) -> None:
    async with asking(tmp_path) as running, pair(running, {}) as mine:
        params = {"name": TOOL, "arguments": PATH, "_meta": {"progressToken": 5}}
        held = asyncio.create_task(mine.ask("tools/call", params, id=9))
        await until(lambda: bool(running.app.approvals._held))
        await answer(running, "dmitri", "approve")
        assert (await held)["result"]["content"][0]["text"] == "done"
        assert mine.heard[0]["params"]["progressToken"] == 5


async def test_a_call_at_the_address_of_all_servers_waits_as_at_its_own(tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        name = f"github__{TOOL}"
        headers = {"Mcp-Method": "tools/call", "Mcp-Name": name, "MCP-Protocol-Version": "2026-07-28"}
        params: dict[str, Any] = {"name": name, "arguments": PATH}
        _, asked, _ = await running.post(stateless("tools/call", params), headers=headers, url=f"{running.url}/mcp")
        await answer(running, "dmitri", "approve")
        params["requestState"] = asked["result"]["requestState"]
        _, done, _ = await running.post(stateless("tools/call", params), headers=headers, url=f"{running.url}/mcp")
        assert done["result"]["content"][0]["text"] == "done"


@pytest.mark.parametrize("mode", ["enforce", "shadow"])
async def test_a_replay_by_the_same_policy_finds_the_answers_on_record(tmp_path: Path, mode: str) -> None:
    settings = f"policy: {{mode: shadow, shadow_until: {rfc3339(time.time() + 600)}}}\n" if mode == "shadow" else ""
    async with asking(tmp_path, settings=settings) as running:
        _, asked, _ = await running.call(TOOL, PATH)
        if mode == "enforce":
            await answer(running, "dmitri", "approve")
            await again(running, asked)
        await running.call("search_code", {"repo": "acme/site"})
        log = running.folder / "data" / "audit" / "audit.jsonl"
        report = replay(log, Candidate(in_folder(running.folder).load()))
    assert (report.replayed, report.same) == ((3, 3) if mode == "enforce" else (2, 2))


async def test_shadow_mode_asks_no_one_and_says_what_it_would_have_done(tmp_path: Path) -> None:
    settings = f"policy: {{mode: shadow, shadow_until: {rfc3339(time.time() + 600)}}}\n"
    async with asking(tmp_path, settings=settings) as running:
        assert "content" in (await running.call(TOOL, PATH))[1]["result"]
        assert running.ends()[-1]["would_deny"] == ["approval-pending"]
        assert await waiting(running) == []


# --- people -----------------------------------------------------------------------------------------------------------


async def test_the_user_for_whom_a_call_is_made_does_not_approve_it(tmp_path: Path) -> None:
    idp = Idp()
    rules = RULES.replace("nhi:planner", "user:alice")
    delegated = {"policies/user_to_nhi.csv": "p, user:alice, nhi:planner, delegate, -, -, -, allow\n"}
    files = {**idp.files(), **delegated, "policies/roles.csv": f"{ROLES}g, user:alice, role:oncall\n"}
    async with asking(
        tmp_path, RULES + rules.replace("id=", "id=a-"), settings=IDENTITY, files=files, principal=""
    ) as running:
        base = running.app.base_url
        for actors in ((), ("nhi:planner",)):
            key = bearer(idp.token("user:alice", f"{base}/mcp/github", actors=actors))
            assert (await running.call(TOOL, PATH, headers=key))[1]["result"]["resultType"] == "input_required"
            status, told = await answer(running, "alice", "approve")
            assert (status, told["error"]) == (403, "user:alice is in the chain")
            assert (await answer(running, "dmitri", "approve"))[0] == 200


async def test_two_rules_may_demand_two_roles(tmp_path: Path) -> None:
    rules = RULES + "#: id=leads approval=role:lead\np, nhi:planner, tool:github/get_*, use, -, -, -, allow\n"
    roles = f"{ROLES}g, user:alice, role:lead\n"
    async with asking(tmp_path, rules, files={"policies/roles.csv": roles}) as running:
        await running.call(TOOL, PATH)
        _, one = await answer(running, "dmitri", "approve")
        assert (one["state"], one["open_roles"]) == ("waiting", ["role:lead"])
        assert (await answer(running, "dmitri", "approve"))[0] == 403
        _, one = await answer(running, "alice", "approve")
        assert (one["state"], [each["principal"] for each in one["answers"]]) == (
            "approved",
            ["user:dmitri", "user:alice"],
        )
        assert "content" in (await running.call(TOOL, PATH))[1]["result"]


# --- ends -------------------------------------------------------------------------------------------------------------


async def test_one_that_no_one_answers_expires_and_the_next_call_asks_anew(tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        clock = running.app.approvals.clock
        await running.call(TOOL, PATH)
        running.app.approvals.clock = lambda: clock() + 901
        _, told, _ = await running.call(TOOL, PATH)
        assert told["error"]["data"]["reason"] == "approval-expired"
        assert (await running.call(TOOL, PATH))[1]["result"]["resultType"] == "input_required"
        assert [one["what"] for one in controls(running)] == ["approval-asked", "approval-expired", "approval-asked"]


async def test_requests_that_are_withdrawn_take_a_bounded_memory_and_later_ones_expire_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals_module, "MAX_DUE", 2)
    async with asking(tmp_path) as running:
        approvals = running.app.approvals
        for _ in range(3):
            await running.call(TOOL, PATH)
            (one,), _ = await approvals.page(ApprovalState.WAITING, 1, 0)
            await approvals.withdraw(one.name, one.caller)
        await running.call(TOOL, PATH)
        assert len(approvals._due) == 2
        clock = approvals.clock
        approvals.clock = lambda: clock() + 901
        await approvals._sweep((ApprovalState.WAITING,))
        assert [control["what"] for control in controls(running)][-1] == "approval-expired"


async def test_a_refusal_stands_until_its_time_is_over(tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        clock = running.app.approvals.clock
        await running.call(TOOL, PATH)
        await answer(running, "dmitri", "refuse")
        for _ in range(2):
            assert (await running.call(TOOL, PATH))[1]["error"]["data"]["reason"] == "approval-refused"
        running.app.approvals.clock = lambda: clock() + 901
        assert (await running.call(TOOL, PATH))[1]["result"]["resultType"] == "input_required"


async def test_an_approver_who_lost_the_role_approved_nothing(tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        _, asked, _ = await running.call(TOOL, PATH)
        await answer(running, "dmitri", "approve")
        (tmp_path / "policies" / "roles.csv").write_text("g, user:olga, role:oncall\n")
        await running.app.reload("test")
        assert (await again(running, asked))[1]["error"]["data"]["reason"] == "approval-expired"
        assert running.upstream.calls() == []


async def test_an_approver_who_is_disabled_approved_nothing(tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        _, asked, _ = await running.call(TOOL, PATH)
        await answer(running, "dmitri", "approve")
        await admin(running, "alice", "/api/principals/user:dmitri/disable", {"reason": "left"})
        assert (await again(running, asked))[1]["error"]["data"]["reason"] == "approval-expired"
        assert running.upstream.calls() == []


async def test_a_held_call_is_decided_again_when_it_goes_on(tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        held = asyncio.create_task(session_call(running))
        await until(lambda: bool(running.app.approvals._held))
        (one,) = await waiting(running)
        (tmp_path / "policies" / "agent_to_tool.csv").write_text(RULES.replace("get_file", "search_code", 1))
        await running.app.reload("test")
        await admin(running, "dmitri", f"/api/approvals/{one['id']}/approve", {})
        assert json.loads((await held)[1])["error"]["data"]["reason"] == "no-matching-rule"
        assert running.upstream.calls() == []


async def test_an_approval_may_last(tmp_path: Path) -> None:
    rules = RULES.replace("within=15m", "within=15m valid=1h")
    async with asking(tmp_path, rules) as running:
        clock = running.app.approvals.clock
        await running.call(TOOL, PATH)
        await answer(running, "dmitri", "approve")
        for _ in range(3):
            assert "content" in (await running.call(TOOL, PATH))[1]["result"]
        running.app.approvals.clock = lambda: clock() + 3601
        assert (await running.call(TOOL, PATH))[1]["error"]["data"]["reason"] == "approval-expired"


async def test_a_row_may_require_a_reason(tmp_path: Path) -> None:
    rules = RULES.replace("within=15m", "reason=required")
    async with asking(tmp_path, rules) as running:
        await running.call(TOOL, PATH)
        assert (await answer(running, "dmitri", "approve"))[0] == 400
        status, one = await answer(running, "dmitri", "approve", reason="incident 7")
        assert (status, one["answers"][0]["reason"]) == (200, "incident 7")
        assert controls(running, "approval-given")[0]["reason"] == "incident 7"


async def test_an_approval_that_was_given_can_be_withdrawn_until_it_is_used(tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        await running.call(TOOL, PATH)
        _, one = await answer(running, "dmitri", "approve")
        status, _ = await admin(running, "dmitri", f"/api/approvals/{one['id']}/approve", {})
        assert status == 409
        status, _ = await admin(running, "dmitri", f"/api/approvals/{one['id']}/refuse", {})
        assert status == 200
        assert (await running.call(TOOL, PATH))[1]["error"]["data"]["reason"] == "approval-refused"


async def test_a_restart_loses_nothing(tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        await running.call(TOOL, PATH)
        (one,) = await waiting(running)
    async with asking(tmp_path) as running:
        assert [each["id"] for each in await waiting(running)] == [one["id"]]
        await answer(running, "dmitri", "approve")
        assert "content" in (await running.call(TOOL, PATH))[1]["result"]


async def test_what_cannot_be_recorded_is_neither_asked_nor_given_nor_used_and_is_not_lost(tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        with full_disk(running):
            assert (await plain(running))[0] == 503
        assert (await plain(running))[0] == 202
        (one,) = await waiting(running)
        with full_disk(running):
            assert (await admin(running, "dmitri", f"/api/approvals/{one['id']}/approve", {}))[0] == 503
            assert (await plain(running))[0] == 503
        events = [record["what"] for record in controls(running)]
        assert events == ["approval-asked"]
        await admin(running, "dmitri", f"/api/approvals/{one['id']}")
        assert [record["what"] for record in controls(running)][:2] == ["approval-asked", "approval-given"]
        with full_disk(running):
            assert (await plain(running))[0] == 503
        assert running.upstream.calls() == []
        assert (await plain(running))[0] == 200
        assert len(running.upstream.calls()) == 1


@pytest.mark.parametrize("reply", ["no reply", "lost"])
async def test_who_leaves_while_an_approval_is_being_used_or_whose_stores_reply_is_lost_has_not_used_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: str
) -> None:
    async with asking(tmp_path) as running:
        await plain(running)
        await answer(running, "dmitri", "approve")
        store, taken = running.app.approvals.store, asyncio.Event()
        replace = store.replace

        async def slow(record: Any) -> bool:
            await replace(record)
            taken.set()
            if reply == "lost":
                raise RecordStoreOut("timeout")
            await asyncio.Event().wait()
            raise AssertionError

        with monkeypatch.context() as patched:
            patched.setattr(store, "replace", slow)
            leaving = asyncio.create_task(plain(running))
            await taken.wait()
            if reply == "no reply":
                leaving.cancel()
            await asyncio.wait({leaving})
            await until(lambda: running.app.pipeline.stages.inside == 0)
        assert running.upstream.calls() == []
        assert (await plain(running))[0] == 200
        assert (await plain(running))[0] == 202, "it is used once"
        decided = [record["approval"] for record in running.records() if record["event"] == "decision"]
        assert len(decided) == len(running.upstream.calls()) == 1


async def test_an_approval_that_a_call_alike_has_used_is_not_given_back(tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        await plain(running)
        await answer(running, "dmitri", "approve")
        approvals = running.app.approvals
        (approved,), _ = await approvals.page(None, 1, 0)
        theirs, mine = (approved._replace(used_by=who).moved(ApprovalState.USED) for who in ("theirs", "mine"))
        assert await approvals.store.replace(theirs)
        await approvals.give_back(mine)
        assert await approvals.store.get(approved.id) == theirs
        await approvals.give_back(theirs)
        assert (await plain(running))[0] == 200


async def test_a_permit_that_cannot_be_recorded_uses_no_approval(tmp_path: Path) -> None:
    files = {"policies/roles.csv": ROLES}
    async with asked_world(tmp_path, rules=RULES, files=files) as (running, keys):
        point = decisions_from(running.app.pipeline, running.app.settings, dict).point
        message = stateless("tools/call", {"name": TOOL, "arguments": PATH})
        headers = {"Mcp-Method": "tools/call", "Mcp-Name": TOOL, "MCP-Protocol-Version": STATELESS}

        async def decided() -> str | None:
            asked = request_of(message, **headers, **{"X-API-Key": keys["nhi:planner"]})
            return (await point.decide(asked, Asking("ext_authz", NAME, charge=True)))[0].reason

        assert await decided() == "approval-pending"
        (one,), _ = await running.app.approvals.page(None, 1, 0)
        await running.app.approvals.answer(one.name, Approver(Principal("user:dmitri"), "test"), "approve")
        with full_disk(running):
            assert await decided() == "audit-unavailable"
        assert [await decided(), await decided()] == [None, "approval-pending"]


async def test_a_principal_has_only_so_many(tmp_path: Path) -> None:
    async with asking(tmp_path, approvals="max_per_principal: 2") as running:
        for number in range(2):
            await running.call(TOOL, {"path": f"p{number}"})
        _, told, _ = await running.call(TOOL, {"path": "p2"})
        assert told["error"]["data"]["reason"] == "too-many-concurrent"


async def test_any_replica_takes_the_answer_and_a_call_at_another_one_goes_on(tmp_path: Path, valkey: Valkey) -> None:
    settings = f'store: {{url: "{valkey.url}"}}\ntasks: {{store: redis}}\n'
    async with asking(tmp_path / "a", settings=settings) as one:
        keys = {name: (tmp_path / "a" / "data" / "keys" / name).read_text() for name in ("audit.key",)}
        files = {f"data/keys/{name}": text for name, text in keys.items()}
        async with asking(tmp_path / "b", settings=settings, files=files) as other:
            held = asyncio.create_task(session_call(one))
            await until(lambda: bool(one.app.approvals._held))
            assert (await answer(other, "dmitri", "approve"))[0] == 200
            assert json.loads((await held)[1])["result"]["content"][0]["text"] == "done"
            refused = (await other.call(TOOL, PATH))[1]
            assert refused["result"]["resultType"] == "input_required"
            assert [record["what"] for record in controls(other, "approval-given")] == ["approval-given"]
            assert other.upstream.calls() == []


# --- rounds -----------------------------------------------------------------------------------------------------------


async def test_the_next_round_of_an_approved_call_needs_no_other_approval_and_passes_once(tmp_path: Path) -> None:
    async def asks(_: web.Request, message: dict[str, Any]) -> web.Response:
        if message["params"].get("requestState") == "s1":
            result: dict[str, Any] = {"resultType": "complete", "content": [{"type": "text", "text": "done"}]}
        else:
            result = {"resultType": "input_required", "requestState": "s1"}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result})

    async with asking(tmp_path, upstream=Upstream({"tools/call": asks})) as running:
        await running.call(TOOL, PATH)
        await answer(running, "dmitri", "approve")
        _, first, _ = await running.call(TOOL, PATH)
        assert first["result"]["resultType"] == "input_required"
        assert (await again(running, first))[1]["result"]["content"][0]["text"] == "done"
        _, replayed, _ = await again(running, first)
        assert replayed["result"]["_meta"]["sidecar/refusal"]["reason"] == "approval-pending"
        assert len(running.upstream.calls()) == 2
