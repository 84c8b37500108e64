"""What does shadow mode let pass, what never, and what does it leave on record?"""

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest

import sidecar.gateway.forwarder
from sidecar.errors import Reason
from sidecar.settings.timestamps import rfc3339
from tests.flow.causes import CAUSES, SEARCH, budgets, row, slow_upstream
from tests.flow.guests import ALICE, RULES, emitter, gateway, gone, opened, stream
from tests.flow.streams import Emitter, event
from tests.flow.talk import Talk, reason_of, series_moved
from tests.flow.test_admin import get
from tests.flow.world import Upstream, until, world

GOOD = {"repo": "acme/site"}
PASSES = {
    *(Reason.DENIED_BY_RULE, Reason.EXPIRED, Reason.CONDITION_FALSE, Reason.NO_MATCHING_RULE),
    *(Reason.RATE_LIMITED, Reason.QUOTA_SPENT, Reason.BUDGET_SPENT, Reason.TOO_MANY_REFUSALS, Reason.STORE_UNAVAILABLE),
}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams are looked at more often than they need."""
    monkeypatch.setattr(sidecar.gateway.forwarder, "LOOK_EVERY_S", 0.1)


def shadow(seconds: float = 3600.0) -> str:
    return f"policy: {{mode: shadow, shadow_until: {rfc3339(time.time() + seconds)}}}\n"


def in_shadow(options: dict[str, Any]) -> dict[str, Any]:
    return {**options, "settings": options.get("settings", "") + shadow()}


# --- what passes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in CAUSES if name != "too-many-concurrent"])
async def test_policy_and_limits_let_pass_and_nothing_else_does(name: str, tmp_path: Path) -> None:
    cause = CAUSES[name]
    async with world(tmp_path, **in_shadow(cause.world())) as running:
        answer = await cause.run(Talk(running, cause.eras[0]))
        if cause.reason not in PASSES:
            assert reason_of(answer) == cause.reason
            return
        assert (answer[0], reason_of(answer)) == (200, ""), answer
        end = running.ends()[-1]
        assert (end["event"], end["status"], end["reason"]) == ("outcome", "success", None)
        assert end["enforcement"] == "shadow" and end["would_deny"]


NO = "#: id=no\n" + SEARCH.format(expires="-", per_hour="-", when="-", effect="deny")
NOT_I = "#: id=not-i shadow=true\n" + SEARCH.format(expires="-", per_hour="-", when="-", effect="deny")
EXPIRED = row(expires="2026-01-01T00:00:00Z") + row().replace("id=search", "id=x").replace("planner", "x")
NO_STORE = 'store: {url: "unix:///nonexistent/valkey.sock"}\n'
SAID: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a deny": ({"rules": row() + NO}, ["no"]),
    "two denies": ({"rules": row() + NO + NO.replace("id=no", "id=never")}, ["never", "no"]),
    "a shadow rule and a deny": ({"rules": row() + NOT_I + NO}, ["not-i", "no"]),
    "nothing that allows": ({"rules": row().replace("planner", "other")}, ["no-matching-rule"]),
    "an expired grant": ({"rules": EXPIRED}, ["expired"]),
    "a store that is out": ({"rules": row(per_hour="9"), "settings": NO_STORE}, ["store-unavailable"]),
    "nothing": ({"rules": row()}, []),
    "a shadow rule": ({"rules": row() + NOT_I}, ["not-i"]),
}


@pytest.mark.parametrize("case", SAID)
async def test_the_record_says_what_would_have_denied(case: str, tmp_path: Path) -> None:
    options, expected = SAID[case]
    async with world(tmp_path, **in_shadow(options)) as running:
        assert (await running.call("search_code", GOOD))[0] == 200
        records = [record for record in running.records() if record["event"] in ("decision", "outcome")]
        assert [record["would_deny"] for record in records] == [expected, expected]
        assert running.upstream.calls()


async def test_a_limit_that_would_refuse_is_named_and_charged_nothing_and_all_is_counted(tmp_path: Path) -> None:
    options = in_shadow({"rules": row(per_hour="1"), "files": budgets('tools: {"tool:github/*": {daily_quota: 9}}')})
    async with world(tmp_path, **options) as running:
        before = await running.metrics()
        denied = 'sidecar_decisions_total{decision="would_deny",kind="agent_to_tool",reason="no-matching-rule"}'
        assert f"{denied} 0.0" in before
        for _ in range(3):
            assert (await running.call("search_code", GOOD))[0] == 200
        first, second, third = running.ends()
        assert first["would_deny"] == [] and [limit["charged"] for limit in first["limits"]] == [1, 1]
        for end in (second, third):
            assert end["would_deny"] == ["limit:rule:search"]
            assert end["limits"] == [{"name": "rule:search", "charged": 0, "remaining": 0, "limit": 1}]
        await running.call("delete_repo", {})
        moved = series_moved(before, await running.metrics())
        assert 'sidecar_limit_checks_total{limit="rule:search",outcome="refused"} +2' in moved
        assert 'sidecar_limit_checks_total{limit="tools:tool:github/*:day",outcome="admitted"} +2' in moved
        allowed = 'sidecar_decisions_total{decision="allow",kind="agent_to_tool",reason="none"} +3'
        assert [line for line in moved if "decisions" in line] == [allowed, f"{denied} +1"]


async def test_one_too_many_at_once_passes_too(tmp_path: Path) -> None:
    options = in_shadow({"rules": row(), "files": budgets('tools: {"tool:github/*": {concurrency: 1}}')})
    async with world(tmp_path, **options) as running:
        with slow_upstream(Talk(running, "stateless")) as go:
            calls = [asyncio.create_task(running.call("search_code", GOOD)) for _ in range(3)]
            await until(lambda: len(running.upstream.calls()) == 3)
            go.set()
            assert [(await call)[0] for call in calls] == [200, 200, 200]
        would_deny = sorted(end["would_deny"] for end in running.ends())
        assert would_deny == [[], *[["limit:tools:tool:github/*:concurrency"]] * 2]


async def test_who_has_no_grant_at_all_may_list_and_lists_all(tmp_path: Path) -> None:
    rules = row().replace("planner", "other")
    async with world(tmp_path, rules=rules, settings=shadow()) as running:
        for era in ("stateless", "session"):
            _, body, _ = await Talk(running, era).ask("tools/list")
            listed = [[tool["name"] for tool in tools] for tools in (body["result"]["tools"], running.upstream.tools)]
            assert listed[0] == listed[1]
        assert all("no-matching-rule" in end["would_deny"] for end in running.ends())


async def test_a_server_may_ask_what_policy_would_not_let_it(tmp_path: Path) -> None:
    upstream = Upstream(script={"GET": Emitter().listen, "DELETE": gone})
    rules = RULES.replace("sampling/createMessage", "roots/list")
    async with gateway(tmp_path, upstream=upstream, rules=rules, settings=shadow()) as running:
        alice = await opened(running)
        theirs = next(iter(running.app.sessions)).upstream_id or ""
        async with stream(alice) as ear:
            await until(lambda: emitter(running).count == 1)
            ask = {"jsonrpc": "2.0", "id": "q", "method": "sampling/createMessage", "params": {}}
            await emitter(running).emit(theirs, event(ask))
            assert (await ear.message())["id"] == "q"
        asked = next(record for record in running.records() if record["action"] == "sampling/createMessage")
        assert (asked["enforcement"], asked["reason"]) == ("shadow", None)
        assert asked["would_deny"] == ["no-matching-rule"] and asked["links"][0]["decision"] == "deny"


# --- how it shows, and how it ends ----------------------------------------------------------------------------------


async def test_it_ends_by_the_clock_and_without_a_restart(tmp_path: Path) -> None:
    upstream = Upstream(script={"GET": Emitter().listen, "DELETE": gone})
    rules = RULES.replace("alice", "carol")
    async with gateway(tmp_path, upstream=upstream, rules=rules, settings=shadow(1800)) as running:
        app, alice = running.app, await opened(running)
        assert app.status()["policy"]["mode"] == "shadow" and "shadow" in app.banners()[0].lower()
        assert 'sidecar_enforcement_mode{mode="shadow"} 1.0' in await running.metrics()
        async with stream(alice) as ear:
            await until(lambda: emitter(running).count == 1)
            assert (await alice.call("search_code", GOOD))[0] == 200
            app.pipeline.live.clock = app.live.clock = lambda: time.time() + 1801
            assert reason_of(await alice.call("search_code", GOOD)) == "no-matching-rule"
            assert await ear.block() == b": closed, expired\n\n"
        await until(lambda: "enforce" in [_mode(record) for record in running.records()])
        assert app.status()["policy"]["mode"] == "enforce" and app.banners() == ()
        assert 'sidecar_enforcement_mode{mode="enforce"} 1.0' in await running.metrics()
        assert [mode for mode in map(_mode, running.records()) if mode] == ["shadow", "enforce"]
        told = {end["reason"]: end["enforcement"] for end in running.ends() if end["reason"]}
        assert told == {"no-matching-rule": "enforce", "expired": "shadow"}


def _mode(record: dict[str, Any]) -> str:
    control = record["control"] or {}
    return str(control["mode"]) if control.get("what") == "mode" else ""


async def test_a_start_and_each_reload_say_it_aloud_and_a_reload_turns_it_on_and_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path, settings=shadow()) as running:
        assert len(re.findall("SHADOW MODE until .*is recorded and let pass", caplog.text)) == 1
        await running.app.reload("test")
        assert len(re.findall("SHADOW MODE until", caplog.text)) == 2
        assert running.app.status()["banners"] == list(running.app.banners()) != []
        config = tmp_path / "sidecar.yaml"
        shadowing = config.read_text()
        enforcing = shadowing[: shadowing.index("policy: ")]
        for text, status in ((shadowing, 200), (enforcing, 403), (shadowing, 200), (enforcing + shadow(-60), 403)):
            config.write_text(text)
            await running.app.reload("test")
            assert (await running.call("delete_repo", {}))[0] == status
        assert [mode for mode in map(_mode, running.records()) if mode] == ["shadow", "enforce"] * 2
        assert running.app.status()["policy"]["mode"] == "enforce", "a mode that is over says so"
        assert (await get(running, "/readyz"))[0] == 200
        controls = [record["control"]["what"] for record in running.records() if record["control"]]
        assert controls[:3] == ["start", "mode", "reload"]


async def test_a_stream_that_shadow_mode_let_open_ends_when_it_is_turned_off(tmp_path: Path) -> None:
    upstream = Upstream(script={"GET": Emitter().listen, "DELETE": gone})
    async with gateway(tmp_path, upstream=upstream, rules=RULES.replace("alice", "x"), settings=shadow()) as running:
        config, alice = tmp_path / "sidecar.yaml", await opened(running, ALICE)
        async with stream(alice) as ear:
            await until(lambda: emitter(running).count == 1)
            config.write_text(config.read_text().replace(", shadow_until", ", watch: true, shadow_until"))
            await running.app.reload("test")
            await running.app.pipeline.forwarder.oversight.look()
            assert emitter(running).count == 1  # another revision, and still in shadow
            config.write_text(config.read_text().replace("mode: shadow", "mode: enforce"))
            await running.app.reload("test")
            assert await ear.block() == b": closed, no-matching-rule\n\n"
        assert running.ends()[-1]["reason"] == "no-matching-rule"


# --- one rule in shadow ---------------------------------------------------------------------------------------------


async def test_a_rule_in_shadow_is_recorded_and_changes_nothing(tmp_path: Path) -> None:
    allows = "#: id=may-delete shadow=true\np, nhi:planner, tool:github/delete_repo, use, -, -, -, allow\n"
    async with world(tmp_path, rules=row() + NOT_I + allows) as running:
        assert (await running.call("search_code", GOOD))[0] == 200
        assert (await running.call("delete_repo", {}))[0] == 403
        searched, deleted = running.ends()
        assert (searched["would_deny"], searched["would_allow"]) == (["not-i"], [])
        assert (deleted["would_deny"], deleted["would_allow"]) == ([], ["may-delete"])
        assert {searched["enforcement"], deleted["enforcement"]} == {"enforce"}
