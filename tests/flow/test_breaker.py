"""Is an upstream that fails given a rest, found again when it is back, and nobody else's trouble?"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sidecar.upstreams.breaker import BreakerState
from sidecar.upstreams.upstream_account import UpstreamAccount
from tests.flow.scripts import NO_SUCH_METHOD, after, answer, body, giving, hang, hang_up, status, stream
from tests.flow.streams import streamed
from tests.flow.talk import Talk, reason_of, talking
from tests.flow.test_admin import SECRET, SETTINGS, files, get
from tests.flow.world import RULES, SESSION, Respond, Upstream, World, listening, request, until, world

GOOD = {"repo": "acme/site"}
FAST = "breaker: {failures: 2, open_s: 0.4}, probe: {every_s: 0.1}"


def account(running: World, name: str = "github") -> UpstreamAccount:
    return running.app.live.current.services[name].account


DONE = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"content": []}}).encode()
FAULTS: dict[str, Respond] = {
    "HTTP 500": status(500), "HTTP 503": status(503), "silence": hang, "hung up": hang_up,
    "a page for people": body(b"<h1>Maintenance</h1>", "text/html"), "nothing at all": body(b""),
    "a stream of nothing": stream(), "a stream that falls silent": stream(b": working\n\n", then=hang),
    "a stream that breaks off": stream(b": working\n\n", then=hang_up),
}  # fmt: skip
NO_FAULTS: dict[str, Respond] = {
    "HTTP 400": answer(error={"code": -32602, "message": "no"}), "HTTP 401": status(401), "HTTP 404": status(404),
    "HTTP 429": status(429), "a redirect": status(307),
    "a JSON-RPC error": answer(error={"code": -32603, "message": "no"}),
    "a tool's own error": answer(result={"content": [], "isError": True}),
    "an answer that we refuse": answer(result=[]), "an answer that is too large": body(b"x" * 200_000),
    "what is not JSON": body(b"{{{"), "a stream": stream(b"data: " + DONE + b"\n\n"),
}  # fmt: skip


TOOL_ERRORS = {"HTTP 400", "a JSON-RPC error", "a tool's own error"}  # delivered, and said to have failed


@pytest.mark.parametrize("case", [*FAULTS, *NO_FAULTS])
async def test_only_what_no_caller_causes_is_a_fault(case: str, tmp_path: Path) -> None:
    upstream = Upstream(script={"tools/call": (FAULTS | NO_FAULTS)[case]})
    small = 'server: {listen: "127.0.0.1:0", max_response_bytes: 64KiB}\n'
    async with world(tmp_path, upstream=upstream, mcp_settings="timeout_s: 0.5", settings=small) as running:
        await running.ask("tools/list")  # so that the call's patience is all for the call
        await running.call("search_code", GOOD)
        known = account(running)
        assert known.breaker.in_a_row == (case in FAULTS)
        assert known.calls == 2 and known.successes + known.errors == 2
        assert known.plain()["last_error"] is not None or not known.errors
        told = case in TOOL_ERRORS
        assert known.tool_errors == told and {end["tool_error"] for end in running.ends()[1:]} == {told}
        counted = 'method="tools/call",protocol="mcp",status="tool_error",upstream="github"}'
        assert f"{counted} {float(told)}" in await running.metrics()


async def test_a_caller_with_less_patience_or_who_leaves_opens_nothing(tmp_path: Path) -> None:
    budgets = {"policies/budgets.yaml": 'version: 1\ntools: {"tool:github/get_file": {timeout: 100ms}}\n'}
    upstream = Upstream(script={"tools/call": hang})
    async with world(tmp_path, upstream=upstream, files=budgets) as running:
        assert reason_of(await running.call("get_file", {"path": "a"})) == "upstream-timeout"
        call = asyncio.create_task(running.call("search_code", GOOD))
        await until(lambda: len(upstream.calls()) == 2)
        call.cancel()
        await until(lambda: len(running.ends()) == 2)
        assert account(running).breaker.in_a_row == 0


async def test_a_server_without_a_stream_is_not_ill(tmp_path: Path) -> None:
    async with talking(world(tmp_path), "session") as talk:
        await talk.call("search_code", GOOD)
        for _ in range(6):
            async with talk.hearing() as ear:
                assert ear.status == 405
        assert account(talk.world).breaker.in_a_row == 0


# --- open -------------------------------------------------------------------------------------------------------------


async def test_an_open_breaker_lets_nothing_through_and_charges_nobody(tmp_path: Path) -> None:
    """BL-086: a clear 503, never an empty result; and the next call after a rest goes through."""
    upstream = Upstream(script={"tools/call": status(503)})
    settings = "breaker: {failures: 2, open_s: 0.4}"
    async with world(tmp_path, upstream=upstream, upstream_settings=settings) as running:
        for _ in range(2):
            assert reason_of(await running.call("get_file", {"path": "a"})) == "upstream-failed"
        refused = [await running.call("get_file", {"path": "a"}) for _ in range(10)]
        assert {(code, reason_of((code, said, {}))) for code, said, _ in refused} == {(503, "upstream-open")}
        assert all(int(headers["Retry-After"]) == 1 for _, _, headers in refused)
        assert len(upstream.calls()) == 2
        upstream.script["tools/call"] = after(0.1)
        await asyncio.sleep(0.4)
        answers = await asyncio.gather(*(running.call("get_file", {"path": "a"}) for _ in range(5)))
        assert sorted(map(reason_of, answers)) == ["", *["upstream-open"] * 4], "while one tries, the others wait"
        # It was the third of three an hour: none was charged.
        assert reason_of(await running.call("get_file", {"path": "a"})) == "rate-limited"
        assert account(running).breaker.state is BreakerState.CLOSED


async def test_listing_beginning_and_listening_are_refused_too_but_a_session_can_end(tmp_path: Path) -> None:
    upstream = Upstream()
    settings = "breaker: {failures: 1, open_s: 60}"
    async with talking(world(tmp_path, upstream=upstream, upstream_settings=settings), "session") as talk:
        assert (await talk.call("search_code", GOOD))[0] == 200
        upstream.script["tools/call"] = status(500)
        await talk.call("search_code", GOOD)
        assert reason_of(await talk.world.ask("tools/list")) == "upstream-open"
        begun = await talk.world.post(request("initialize", {"protocolVersion": SESSION, "capabilities": {}}))
        assert (begun[0], reason_of(begun)) == (200, "upstream-open")
        async with talk.hearing() as ear:
            assert ear.status == 503
        assert (await talk.verb("DELETE"))[0] == 204
        assert len(talk.world.app.sessions) == 0


@asynccontextmanager
async def two(folder: Path, other: Upstream, **options: Any) -> AsyncIterator[World]:
    """A sidecar before `github`, which is well, and `other`."""
    async with listening(other.handle) as base:
        more = f"probe: {{every_s: 0.1}}}}\n  other: {{mcp: {{url: '{base}/mcp', timeout_s: 0.3}}, {FAST}"
        rules = RULES + "p, nhi:planner, tool:other/*, use, -, -, -, allow\n"
        async with world(folder, rules=rules, upstream_settings=more, **options) as running:
            yield running


async def test_a_dead_upstream_costs_the_others_nothing(tmp_path: Path) -> None:
    """BL-036, BL-018: 0 errors, and health is told at once, while one hangs and is probed."""
    other = Upstream()
    async with two(tmp_path, other) as running:
        assert (await running.call("search_code", GOOD, server="other"))[0] == 200
        other.script = dict.fromkeys(("tools/call", "tools/list", "server/discover", "initialize", "ping"), hang)
        stop = asyncio.Event()

        async def hammer() -> set[str | None]:
            reasons = set()
            while not stop.is_set():
                reasons.add(reason_of(await running.call("search_code", GOOD, server="other")))
            return reasons

        hammers = [asyncio.create_task(hammer()) for _ in range(4)]
        await until(lambda: account(running, "other").breaker.state is BreakerState.OPEN)
        for path in ["/livez", "/readyz"] * 20:
            assert (await get(running, path))[0] == 200
            assert (await running.call("search_code", GOOD))[0] == 200
        stop.set()
        reasons = set[str | None]().union(*await asyncio.gather(*hammers))
        assert reasons == {"upstream-timeout", "upstream-open"}
        assert account(running).plain()["errors"] == 0


# --- probes -----------------------------------------------------------------------------------------------------------


async def test_an_upstream_that_is_back_is_found_without_a_call(tmp_path: Path) -> None:
    """BL-078: and recovery resets what was counted."""
    upstream = Upstream()
    async with world(tmp_path, upstream=upstream, upstream_settings=FAST) as running:
        await until(lambda: account(running).plain()["status"] == "ready")
        upstream.script = dict.fromkeys(("server/discover", "initialize"), status(502))
        await until(lambda: account(running).breaker.state is BreakerState.OPEN)
        text = await running.metrics()
        assert 'sidecar_upstream_up{upstream="github"} 0.0' in text
        assert 'sidecar_upstream_state{state="offline",upstream="github"} 1.0' in text
        asked = len(upstream.seen)
        await asyncio.sleep(0.2)
        assert len(upstream.seen) == asked  # it has its rest
        upstream.script.clear()
        await until(lambda: account(running).breaker.state is BreakerState.CLOSED)
        known = account(running).plain()
        assert (known["status"], known["connection"], known["breaker"]["failures"]) == ("ready", "connected", 0)
        text = await running.metrics()
        for to in ("open", "half_open", "closed"):
            assert f'sidecar_breaker_transitions_total{{to="{to}",upstream="github"}} 0.0' not in text
        assert upstream.calls() == []


@pytest.mark.parametrize("script", [{"ping": NO_SUCH_METHOD}, {"GET": status(404)}, {"GET": status(400)}])
async def test_a_server_without_ping_and_one_that_only_takes_posts_stay_well(
    script: dict[str, Respond], tmp_path: Path
) -> None:
    """BL-040."""
    upstream = Upstream(script={"server/discover": status(400), **script})
    async with world(tmp_path, upstream=upstream, upstream_settings=FAST) as running:
        await until(lambda: upstream.methods().count("ping") >= 3)
        assert account(running).plain()["status"] == "ready" and account(running).last_error == ""
        assert upstream.methods().count("initialize") == 1  # and one conversation is enough


async def test_a_server_that_keeps_silent_when_pinged_is_asked_for_its_list(tmp_path: Path) -> None:
    """BL-040: it has no ping, and does not say so."""
    upstream = Upstream(script={"server/discover": status(400), "ping": hang})
    async with world(tmp_path, upstream=upstream, upstream_settings=FAST, mcp_settings="timeout_s: 0.2") as running:
        await until(lambda: upstream.methods().count("tools/list") >= 4)
        known = account(running)
        assert upstream.methods().count("ping") == 1
        assert (known.breaker.state, known.standing.status) == (BreakerState.CLOSED, "ready")


async def test_a_slow_server_is_not_ill_and_a_fast_one_neither(tmp_path: Path) -> None:
    """BL-078: a probe waits as long as a call may take, and a call that takes as long is answered."""
    upstream = Upstream(script={"server/discover": after(0.6), "tools/call": after(0.6)})
    async with world(tmp_path, upstream=upstream, upstream_settings=FAST) as running:
        assert (await running.call("search_code", GOOD))[0] == 200
        await until(lambda: upstream.methods().count("server/discover") >= 2)
        known = account(running)
        assert (known.breaker.state, known.breaker.in_a_row, known.standing.status) == (BreakerState.CLOSED, 0, "ready")
        upstream.script.clear()
        await until(lambda: upstream.methods().count("server/discover") >= 4)
        assert known.standing.status == "ready"


async def test_a_session_that_the_server_forgot_is_begun_anew_by_the_probe(tmp_path: Path) -> None:
    """BL-086."""
    upstream = Upstream(script={"server/discover": status(400)})
    async with world(tmp_path, upstream=upstream, upstream_settings=FAST) as running:
        await until(lambda: "ping" in upstream.methods())
        upstream.script["ping"] = status(404)
        await until(lambda: upstream.sessions >= 2)
        assert account(running).plain()["status"] == "ready"


async def test_a_server_that_does_not_take_our_credential_is_never_ready(tmp_path: Path) -> None:
    upstream = Upstream(script={"server/discover": status(401)})
    async with world(tmp_path, upstream=upstream, upstream_settings=FAST) as running:
        await until(lambda: upstream.methods().count("server/discover") >= 2)
        known = account(running).plain()
        assert known["status"] != "ready" and "HTTP 401" in known["last_error"]
        assert known["breaker"]["state"] == "closed"
        assert running.app.upstreams()["github"]["transport_type"] == "http"


# --- what operators see -----------------------------------------------------------------------------------------------


async def test_operators_see_each_upstream_with_what_it_has(tmp_path: Path) -> None:
    able = {"tools": {}, "prompts": {}, "resources": {}}
    script = {
        "server/discover": giving({"supportedVersions": ["2026-07-28"], "capabilities": able}),
        "prompts/list": giving({"prompts": [{"name": "review"}]}),
        "resources/list": NO_SUCH_METHOD,
    }
    upstream = Upstream(script=script)
    async with world(tmp_path, upstream=upstream, upstream_settings=FAST, settings=SETTINGS, files=files()) as running:
        await running.call("search_code", GOOD)
        await until(lambda: account(running).last_check_at > 0)
        told = json.loads((await get(running, "/api/upstreams", SECRET))[1])["upstreams"]["github"]
        assert told["status"] == "ready" and told["handshake_latency_ms"] > 0 and told["average_latency_ms"] > 0
        assert (told["calls"], told["successes"], told["errors"], told["tools"], told["prompts"]) == (1, 1, 0, 3, 1)
        assert json.loads((await get(running, "/status", SECRET))[1])["upstreams"]["github"]["status"] == "ready"
        one = json.loads((await get(running, "/api/upstreams/github", SECRET))[1])
        tools = ["delete_repo", "get_file", "search_code"]
        assert one["discovered"] == {"tools": tools, "prompts": ["review"], "resources": []}
        assert (await get(running, "/api/upstreams/gitlab", SECRET))[0] == 404
        assert (await get(running, "/api/upstreams", "", "GET"))[0] == 401


async def test_what_is_known_survives_a_reload_for_as_long_as_the_definition_does(tmp_path: Path) -> None:
    upstream = Upstream(script={"tools/call": status(500)})
    async with world(tmp_path, upstream=upstream, upstream_settings="breaker: {failures: 1, open_s: 60}") as running:
        await running.call("search_code", GOOD)
        assert account(running).breaker.state is BreakerState.OPEN
        rules = tmp_path / "policies" / "agent_to_tool.csv"
        rules.write_text(RULES + "p, nhi:other, tool:github/get_file, use, -, -, -, allow\n")
        await running.app.reload("test")
        assert account(running).breaker.state is BreakerState.OPEN
        assert reason_of(await running.call("search_code", GOOD)) == "upstream-open"
        settings = tmp_path / "sidecar.yaml"
        settings.write_text(settings.read_text().replace("failures: 1,", "failures: 3,"))
        await running.app.reload("test")
        assert account(running).breaker.state is BreakerState.CLOSED


async def test_nothing_of_a_probe_is_left_when_the_sidecar_ends(tmp_path: Path) -> None:
    upstream = Upstream(script={"server/discover": hang})
    async with world(tmp_path, upstream=upstream, upstream_settings=FAST):
        await until(lambda: "server/discover" in upstream.methods())
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("probe")]


# --- what is no proof that it answers ---------------------------------------------------------------------------------


NO_SUCH_ERA = answer(400, error={"code": -32600, "message": "?"})


def hanging(**script: Respond) -> Upstream:
    """Its calls hang. It opens sessions, takes notifications, answers `ping`, and opens the session's stream."""
    return Upstream(script={"GET": stream(b": here\n\n", then=hang), "tools/call": hang, **script})


async def say_by_ourselves(talk: Talk) -> None:
    """What a client, and the sidecar, say beside calls: notifications, and a GET for the session's stream."""
    assert (await talk.say({"method": "notifications/cancelled", "params": {"requestId": 1}}))[0] == 202
    async with talk.hearing() as ear:
        assert ear.status == 200


@pytest.mark.parametrize("how", ["session", "bridged", "bridged and able", "stateless"])
async def test_a_server_that_hangs_opens_its_breaker_whatever_else_it_takes(tmp_path: Path, how: str) -> None:
    sessions_only = {"server/discover": NO_SUCH_ERA} if how.startswith("bridged") else {}
    upstream = hanging(**sessions_only)
    settings = "breaker: {failures: 3, open_s: 60}, probe: {every_s: 0.05}"
    async with world(tmp_path, upstream=upstream, mcp_settings="timeout_s: 0.5", upstream_settings=settings) as running:
        talk = Talk(running, "session")
        await talk.open()
        await running.ask("tools/list")
        able = {"_meta": {"io.modelcontextprotocol/clientCapabilities": {"roots": {}}}} if "able" in how else {}
        params = {"name": "search_code", "arguments": GOOD, **able}
        for _ in range(12):  # three, unless a busy machine takes a part of a call's patience
            if account(running).breaker.state is BreakerState.OPEN:
                break
            caller = talk if how == "session" else Talk(running, "stateless")
            late = await caller.ask("tools/call", params)
            assert reason_of(late) == "upstream-timeout"
            if account(running).breaker.state is BreakerState.CLOSED:
                await say_by_ourselves(talk)
        await until(lambda: account(running).breaker.state is BreakerState.OPEN)
        if how.startswith("bridged"):
            await until(lambda: len(upstream.calls("notifications/cancelled")) >= 3)


@pytest.mark.parametrize("era", ["stateless", "bridged"])
async def test_an_answer_that_drips_until_its_time_is_over_is_a_fault(tmp_path: Path, era: str) -> None:
    drop = b'data: {"jsonrpc":"2.0","method":"notifications/progress","params":{}}\n\n'

    async def drip(asked: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        return await streamed(asked, *[drop] * 1000, pause_s=0.02)

    upstream = hanging(**{"tools/call": drip})
    if era == "bridged":
        upstream.script["server/discover"] = NO_SUCH_ERA
    settings = "breaker: {failures: 4, open_s: 60}"
    async with world(tmp_path, upstream=upstream, mcp_settings="timeout_s: 0.5", upstream_settings=settings) as running:
        await running.ask("tools/list")
        for _ in range(8):  # two at once: neither vouches for the other
            if account(running).breaker.state is BreakerState.CLOSED:
                await asyncio.gather(*(running.call("search_code", GOOD) for _ in range(2)))
        await until(lambda: account(running).breaker.state is BreakerState.OPEN)


async def test_a_call_that_others_were_answered_beside_is_no_fault(tmp_path: Path) -> None:
    async def some(asked: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if message["params"]["arguments"] == GOOD:
            return await hang(asked, message)
        return Upstream().answer(message)

    upstream = Upstream(script={"tools/call": some})
    async with world(tmp_path, upstream=upstream, mcp_settings="timeout_s: 0.5") as running:
        await running.ask("tools/list")
        slow = asyncio.create_task(running.call("search_code", GOOD))
        await until(lambda: len(upstream.calls()) == 1)
        assert (await running.call("search_code", {"repo": "acme/other"}))[0] == 200
        assert reason_of(await slow) == "upstream-timeout"
        assert account(running).breaker.in_a_row == 0
