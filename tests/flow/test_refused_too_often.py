"""What becomes of a flood of refusals, and of those who come from the same address?"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from sidecar.audit.verify import verify
from sidecar.policy_tools.audit_records import NAME_HASHED, asked_in
from tests.flow.causes import GOOD, IDP, OTHER_KEY, PLANNER_KEY, row
from tests.flow.idp import SETTINGS, bearer
from tests.flow.raw import wire
from tests.flow.talk import Talk, reason_of
from tests.flow.world import World, world

MOST = 5
BOUNDED = f"refusals: {{per_peer_per_minute: {MOST}}}\n"


@asynccontextmanager
async def known(folder: Path, settings: str = BOUNDED, rules: str = row()) -> AsyncIterator[World]:
    """A sidecar that knows the planner and another, with these bounds."""
    async with world(folder, principal="", settings=SETTINGS + settings, files=IDP.files(), rules=rules) as running:
        yield running


def told_last(running: World) -> Any:
    return [one["control"] for one in running.records() if one["control"]][-1]


async def knock(running: World, path: str = "/mcp/github", headers: dict[str, str] | None = None) -> int | None:
    """The status, or None for a connection that was closed without a word."""
    try:
        async with running.http.post(f"{running.url}{path}", data=b"{}", headers=headers) as response:
            return response.status
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
        return None


async def test_strangers_are_closed_unanswered_and_counted_and_nobody_else_is(tmp_path: Path) -> None:
    async with known(tmp_path) as running:
        answers = [await knock(running) for _ in range(MOST + 20)]
        assert answers == [401] * MOST + [None] * 20
        assert [await knock(running, path) for path in ("/nowhere", "/mcp/../x", "/agents/a/")] == [None] * 3
        assert await knock(running, headers={"Authorization": "Bearer forged"}) is None
        talk = Talk(running, "stateless", headers=bearer(PLANNER_KEY))
        crowd = await asyncio.gather(
            *(talk.call("search_code", GOOD) for _ in range(10)), *(knock(running) for _ in range(10))
        )
        assert [one[0] for one in crowd[:10] if isinstance(one, tuple)] == [200] * 10
        assert crowd[10:] == [None] * 10
        assert reason_of(await talk.call("delete_repo", {"repo": "x"})) == "no-matching-rule", "who is known is told"
        text = await running.metrics()
        assert "sidecar_refusals_unanswered_total 34.0" in text
        assert 'sidecar_auth_failures_total{credential="none",reason="unauthenticated"} 36.0' in text
        assert 'sidecar_inflight_requests{protocol="mcp"} 0.0' in text
        await running.app.pipeline.stages.refusals.tell(running.app.audit.control)
        ends = running.ends()
        assert [one["reason"] for one in ends].count("unauthenticated") == MOST
        told = told_last(running)
        assert (told["what"], told["peer"], told["count"]) == ("refusals-closed", "127.0.0.1", 34)
        await knock(running)
    last = [(one["control"]["what"], one["control"].get("count")) for one in running.records() if one["control"]]
    assert last[-3:] == [("refusals-closed", 1), ("stop", None), ("checkpoint", None)]
    assert verify([running.app.settings.audit_path]).ok


async def test_a_throttled_caller_does_not_choose_how_much_evidence_there_is(tmp_path: Path) -> None:
    settings = "refusals: {per_principal_per_minute: 1, recorded_per_principal_per_minute: 3}\n"
    async with known(tmp_path, settings) as running:
        talk = Talk(running, "stateless", headers=bearer(PLANNER_KEY))
        assert reason_of(await talk.call("delete_repo", {"repo": "x"})) == "no-matching-rule"
        for _ in range(10):
            assert reason_of(await talk.call("search_code", GOOD)) == "too-many-refusals"
        assert [one["reason"] for one in running.ends()].count("too-many-refusals") == 3
        assert 'status="rate_limited",upstream="github"} 10.0' in await running.metrics()
        await running.app.pipeline.stages.refusals.tell(running.app.audit.control)
        told = told_last(running)
        assert (told["what"], told["reason"], told["count"]) == ("refusals-counted", "too-many-refusals", 7)
        assert told["chain"] == ["nhi:planner"]


async def test_what_is_no_http_counts_as_well_and_the_bound_changes_with_a_reload(tmp_path: Path) -> None:
    async with known(tmp_path) as running:
        place: Any = SimpleNamespace(url=f"http://127.0.0.1:{running.app.listeners[0].port}")
        heard = []
        for _ in range(MOST + 3):
            async with wire(place) as connection:
                await connection.send(b"\x16\x03\x01 no http\r\n\r\n")
                heard.append(await connection.everything())
        assert all(one.startswith(b"HTTP/1.0 400") for one in heard[:MOST]) and heard[MOST:] == [b""] * 3
        assert len(running.ends()) == MOST and await knock(running) is None
        path = tmp_path / "sidecar.yaml"
        path.write_text(path.read_text().replace(BOUNDED, ""))
        await running.app.reload("test")
        assert await knock(running) == 401


@pytest.mark.parametrize("era", ["stateless", "session", "plain"])
async def test_a_principal_who_was_refused_too_often_waits_and_others_do_not(era: Any, tmp_path: Path) -> None:
    rules = row() + row().replace("id=search", "id=other").replace("nhi:planner", "nhi:other")
    async with known(tmp_path, "refusals: {per_principal_per_minute: 3}\n", rules) as running:
        talk = Talk(running, era, headers=bearer(PLANNER_KEY))
        for _ in range(3):
            assert reason_of(await talk.call("delete_repo", {"repo": "x"})) == "no-matching-rule"
        for _ in range(4):
            status, _, headers = answer = await talk.call("search_code", GOOD)
            assert reason_of(answer) == "too-many-refusals" and 1 <= int(headers["Retry-After"]) <= 60
            assert status == (200 if era == "session" else 429)
        assert len(running.upstream.calls()) == 0
        other = Talk(running, era, headers=bearer(OTHER_KEY))
        assert reason_of(await other.call("search_code", GOOD)) == ""


async def test_names_that_a_refused_call_brought_and_that_are_not_ours_are_on_record_as_digests(tmp_path: Path) -> None:
    """What stands in the evidence is not a caller's choice; what is ours is there as it is called."""
    mine = "alice@example.org-owes-me-money"
    rules = row() + "p, nhi:planner, tool:github/*, use, -, -, -, allow\n"
    async with known(tmp_path, rules=rules) as running:
        talk = Talk(running, "stateless", headers=bearer(PLANNER_KEY))
        assert (await talk.call("search_code", GOOD))[0] == 200
        other = Talk(running, "stateless", headers=bearer(OTHER_KEY))
        await other.call("delete_repo", {"repo": "x"})  # denied, and ours
        ours = running.ends()[-1]
        assert (ours["object"], ours["tool"], ours["server"]) == ("tool:github/delete_repo", "delete_repo", "github")
        await talk.call("alice-owes-me-money", {})
        await other.call("alice-owes-me-money", {})
        await talk.ask("resources/read", {"uri": f"notes:///{mine}"})
        await talk.ask(mine, {})
        for headers in ({}, bearer(PLANNER_KEY)):
            ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            await running.post(ping, server="alice-owes-me-money", headers=headers)
        ends = running.ends()[2:]
        assert len(ends) == 6 and b"owes-me-money" not in running.app.settings.audit_path.read_bytes()
        unknown, denied = ends[:2]
        assert unknown["reason"] == "tool-unknown" and unknown["object"] == denied["object"]
        assert re.fullmatch(r"tool:github/~hmac:[0-9a-f]{32}", unknown["object"]) and unknown["server"] == "github"
        assert unknown["object"].endswith(unknown["tool"]) and unknown["redaction_applied"]
        asked = asked_in(denied)  # a replay, or an explanation, says that nobody can tell
        assert asked is not None and asked.gaps == (NAME_HASHED,) and not asked.allowed
        assert ends[2]["object"].startswith("resource:github/~hmac:") and ends[3]["method"].startswith("~hmac:")
        assert {end["upstream"][:6] for end in ends[4:]} == {"~hmac:"}
    assert verify([running.app.settings.audit_path]).ok
