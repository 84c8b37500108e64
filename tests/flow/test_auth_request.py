"""nginx's `auth_request` decides whether an upstream may be entered, and answers with 200, 401 or 403 alone."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from sidecar.errors import ANSWERS, Reason, Refusal
from sidecar.gateway.decisions.auth_request import NginxRefusal
from sidecar.gateway.error_responses import DenyManner
from tests.flow.causes import full_disk
from tests.flow.enforcement import KEY, NAME, SECRET, asked_world, decisions
from tests.flow.world import World

BOTS = "agents: {bot: {executable: cat}, other: {executable: cat}}\n"
PLANNER, READER = "nhi:planner", "nhi:reader"


def rows(*objects_and_actions: str) -> Mapping[str, str]:
    """Rows about agents for nhi:planner."""
    return {"policies/nhi_to_nhi.csv": "".join(f"p, {PLANNER}, {one}\n" for one in objects_and_actions)}


async def enter(
    running: World, uri: str, *, method: str = "POST", key: Mapping[str, str] = KEY, **more: str
) -> tuple[int, Mapping[str, str]]:
    """The status and the headers of the answer to nginx."""
    sent = {"X-Original-URI": uri, "X-Original-Method": method, **key}
    sent |= {name.replace("_", "-"): value for name, value in more.items()}
    async with running.http.get(f"{running.admin_url}/auth/nginx", headers=sent) as response:
        assert await response.read() == b""
        return response.status, dict(response.headers)


@pytest.mark.parametrize("uri", ["/mcp/github", "/mcp/github/", "/mcp/github?a=/b", "/mcp/github/sse", "/tools/g"])
async def test_a_caller_with_a_grant_enters_a_server(uri: str, tmp_path: Path) -> None:
    async with asked_world(tmp_path, "{paths: {/tools/g: /mcp/github}}") as (running, keys):
        method = "GET" if uri.endswith("/sse") else "POST"
        status, headers = await enter(running, uri, method=method, X_API_Key=keys[PLANNER])
        assert (status, headers["X-Sidecar-Principal"]) == (200, PLANNER)
        (record,) = decisions(running)
        found = [record[name] for name in ("event", "protocol", "enforcement_point", "method", "object", "action")]
        assert found == ["decision", "auth_request", NAME, "enter", "nhi:github", "ping"]
        assert (record["decision_id"], record["chain"]) == (headers["X-Sidecar-Decision-Id"], [PLANNER])
        assert running.upstream.seen == []
        assert 'protocol="auth_request"' in await running.metrics()


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("/mcp/github", "no-matching-rule"),
        ("/mcp/unknown", "no-matching-rule"),
        ("/mcp", "route-unknown"),
        ("/mcp/github/tools/x", "route-unknown"),
        ("/.well-known/jwks.json", "verb-not-allowed"),
        ("/mcp/github/../other", "malformed-call"),
        ("/mcp/%67ithub", "malformed-call"),
        ("", "malformed-call"),
    ],
)
async def test_every_other_refusal_is_403(uri: str, reason: str, tmp_path: Path) -> None:
    async with asked_world(tmp_path, callers=(READER,)) as (running, keys):
        status, headers = await enter(running, uri, X_API_Key=keys[READER])
        assert (status, headers["X-Sidecar-Reason"]) == (403, reason)
        assert "WWW-Authenticate" not in headers
        (record,) = decisions(running)
        assert (record["event"], record["reason"], record["http_status"]) == ("refusal", reason, 403)


async def test_a_caller_without_a_credential_is_asked_for_one(tmp_path: Path) -> None:
    async with asked_world(tmp_path) as (running, _):
        status, headers = await enter(running, "/mcp/github")
        assert status == 401
        assert "/.well-known/oauth-protected-resource/mcp/github" in headers["WWW-Authenticate"]
        assert headers["X-Sidecar-Reason"] == "unauthenticated"


@pytest.mark.parametrize("key", [{}, {"X-PDP-Key": "wrong"}, {"Authorization": f"Bearer {SECRET}"}])
async def test_an_enforcement_point_without_its_key_makes_no_client_ask_for_one(
    key: Mapping[str, str], tmp_path: Path
) -> None:
    async with asked_world(tmp_path) as (running, keys):
        sent = {"X-Original-URI": "/mcp/github", "X-Original-Method": "POST", "X-API-Key": keys[PLANNER], **key}
        async with running.http.get(f"{running.admin_url}/auth/nginx", headers=sent) as response:
            assert response.status == 403 and "WWW-Authenticate" not in response.headers
        assert decisions(running) == []


async def test_a_call_that_headers_claim_is_not_decided_on(tmp_path: Path) -> None:
    async with asked_world(tmp_path) as (running, keys):
        claimed = {"Mcp_Method": "tools/call", "Mcp_Name": "delete_repo", "X_API_Key": keys[PLANNER]}
        assert (await enter(running, "/mcp/github", **claimed))[0] == 200
        (record,) = decisions(running)
        assert record["object"] == "nhi:github"


@pytest.mark.parametrize("missing", ["X-Original-URI", "X-Original-Method"])
async def test_a_request_that_is_not_whole_is_refused(missing: str, tmp_path: Path) -> None:
    async with asked_world(tmp_path) as (running, keys):
        sent = {"X-Original-URI": "/mcp/github", "X-Original-Method": "POST", "X-API-Key": keys[PLANNER], **KEY}
        del sent[missing]
        async with running.http.get(f"{running.admin_url}/auth/nginx", headers=sent) as response:
            assert (response.status, response.headers["X-Sidecar-Reason"]) == (403, "malformed-call")


@pytest.mark.parametrize(
    ("row", "action"),
    [
        ("nhi:bot, use, -, -, -, allow", "message/send"),
        ("nhi:bot, tasks/get, -, -, -, allow", "tasks/get"),
        ("nhi:bot, message/stream, -, -, args.x == 1, allow", "message/stream"),
        ("nhi:bot, delegate, -, -, -, allow", ""),
        ("nhi:other, use, -, -, -, allow", ""),
    ],
)
async def test_an_agent_is_entered_by_a_caller_who_may_use_one_of_its_operations(
    row: str, action: str, tmp_path: Path
) -> None:
    async with asked_world(tmp_path, settings=BOTS, rules="", files=rows(row)) as (running, keys):
        for uri in ("/agents/bot/", "/agents/bot/v1/message:send", "/agents/bot/.well-known/agent-card.json"):
            method = "GET" if uri.endswith(".json") else "POST"
            status, headers = await enter(running, uri, method=method, X_API_Key=keys[PLANNER])
            assert (status, headers.get("X-Sidecar-Reason")) == ((200, None) if action else (403, "no-matching-rule"))
        assert {record["action"] for record in decisions(running)} == {action or "message/send"}


async def test_an_operation_that_every_rule_denies_opens_no_agent(tmp_path: Path) -> None:
    both = rows("nhi:bot, tasks/get, -, -, -, allow", "nhi:bot, use, -, -, -, deny")
    async with asked_world(tmp_path, settings=BOTS, rules="", files=both) as (running, keys):
        status, headers = await enter(running, "/agents/bot/", X_API_Key=keys[PLANNER])
        assert (status, headers["X-Sidecar-Reason"]) == (403, "denied-by-rule")


@pytest.mark.parametrize(
    "rest", ["/../other/", "/v1/..", "/./", "//x", "/%2e%2e/other/", "/..%2fother", "/a%5c..", "/\\..", "/..;/other/"]
)
async def test_a_path_that_nginx_may_read_differently_is_refused(rest: str, tmp_path: Path) -> None:
    async with asked_world(tmp_path, settings=BOTS, files=rows("nhi:bot, use, -, -, -, allow")) as (running, keys):
        status, headers = await enter(running, f"/agents/bot{rest}", X_API_Key=keys[PLANNER])
        assert status == 403 and headers["X-Sidecar-Reason"] in ("route-unknown", "malformed-call")


async def test_a_server_that_is_switched_off_is_not_entered(tmp_path: Path) -> None:
    async with asked_world(tmp_path) as (running, keys):
        await running.app.switch_off("github", "", reason="", until=None, by="test")
        status, headers = await enter(running, "/mcp/github", X_API_Key=keys[PLANNER])
        assert (status, headers["X-Sidecar-Reason"]) == (403, "tool-disabled")


async def test_entering_is_charged_where_nginx_says_so(tmp_path: Path) -> None:
    once = "sessions: {session_calls_per_minute: 1}\n"
    async with asked_world(tmp_path, settings=once) as (running, keys):
        asked = [{"X_API_Key": keys[PLANNER], "X_Sidecar_Charge": said} for said in ("false", "true", "true", "false")]
        found = [(await enter(running, "/mcp/github", **one))[0] for one in asked]
        assert found == [200, 200, 403, 200]
        assert decisions(running)[2]["reason"] == "rate-limited"


async def test_what_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    async with asked_world(tmp_path) as (running, keys):
        with full_disk(running):
            status, headers = await enter(running, "/mcp/github", X_API_Key=keys[PLANNER])
        assert (status, headers["X-Sidecar-Reason"]) == (403, "audit-unavailable")


@pytest.mark.parametrize("reason", ANSWERS)
def test_nginx_gets_no_status_that_it_does_not_know(reason: Reason) -> None:
    told = NginxRefusal().tell(Refusal(reason), "id", DenyManner(), "https://here/metadata")
    assert told.status == (401 if ANSWERS[reason].http == 401 else 403)
    assert ("WWW-Authenticate" in told.headers) == (told.status == 401)
