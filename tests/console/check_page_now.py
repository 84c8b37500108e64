"""The page of what is happening now: its numbers, what it says wants attention, and how soon it shows it."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sidecar.admin.console.pages import now
from sidecar.settings.timestamps import rfc3339
from tests.flow.idp import PEPPER, Idp
from tests.flow.test_console import JSON, OPERATOR, SETTINGS, Browser, browsed
from tests.flow.world import PATIENCE_S, RULES

DAY_S = 86_400
SOON_S, LATER_S = 3 * DAY_S, 30 * DAY_S
KEYS = "identity: {api_keys_path: keys.yaml}\n"


async def data(browser: Browser, path: str = "/console/now") -> Any:
    status, page, _ = await browser.get(path, **JSON, Authorization=f"Bearer {OPERATOR}")
    assert status == 200, page
    return json.loads(page)


async def told(browser: Browser) -> list[str]:
    return [one["text"] for one in (await data(browser))["attention"]]


async def test_its_numbers_are_those_of_the_calls(tmp_path: Path) -> None:
    async with browsed(tmp_path) as (running, browser):
        for _ in range(3):
            await running.call("search_code", {"repo": "acme/site"})
        await running.call("search_code", {"repo": "other/site"})
        for _ in range(4):
            await running.call("get_file", {"path": "x"})  # the rule says three an hour
        found = await data(browser)
        assert found["minute"] == {"calls": 8, "denied": 1, "limited": 1, "failed": 0}
        columns = found["traffic"]["columns"]
        assert {name: column[-1] for name, column in columns.items()} == found["minute"]
        assert {len(column) for column in columns.values()} == {len(found["traffic"]["at"])}
        (github,) = found["upstreams"]
        assert (github["name"], github["calls"], github["status"]) == ("github", 6, "ready")
        await browser.log_in()
        _, page, _ = await browser.get("/console/now?span=1h")
        assert '<dd id="calls">8</dd>' in page and 'href="/console/now?span=15m"' in page
        assert (await browser.get("/console/now?span=1y"))[0] == 400


async def test_the_stream_brings_what_is_called_meanwhile(tmp_path: Path) -> None:
    async with browsed(tmp_path) as (running, browser):
        await browser.log_in()
        async with asyncio.timeout(PATIENCE_S), browser.http.get(f"{browser.base}/console/now/live") as stream:
            assert (await shown_by(stream, '<dd id="calls">0</dd>'))[0] == "event: figures"
            await running.call("search_code", {"repo": "acme/site"})
            await shown_by(stream, '<dd id="calls">1</dd>')


async def shown_by(stream: aiohttp.ClientResponse, wanted: str) -> list[str]:
    """The lines of a stream up to the one that has this text."""
    lines: list[str] = []
    async for line in stream.content:
        lines.append(line.decode().rstrip("\n"))
        if wanted in lines[-1]:
            return lines
    raise AssertionError("the stream ended")


async def test_it_names_what_wants_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(now, "SLOW_S", 0.1)
    now_s, idp = time.time(), Idp()
    for whose in ("nhi:soon", "nhi:later"):
        idp.api_key(whose)
    written = idp.files()["keys.yaml"]
    for whose, ends_in_s in (("nhi:soon", SOON_S), ("nhi:later", LATER_S)):
        ends = f"expires_at: {rfc3339(now_s + ends_in_s)}"
        written = written.replace(f'principal: "{whose}"', f'principal: "{whose}", {ends}')
    keys = {PEPPER: idp.pepper, "keys.yaml": written}
    rules = RULES + (
        f"#: id=ends-soon\np, nhi:guest, tool:github/get_file, use, {rfc3339(now_s + SOON_S)}, -, -, allow\n"
        f"#: id=ends-later\np, nhi:guest, tool:github/x, use, {rfc3339(now_s + LATER_S)}, -, -, allow\n"
        f"#: id=ended\np, nhi:guest, tool:github/y, use, {rfc3339(now_s - SOON_S)}, -, -, allow\n"
    )
    async with browsed(tmp_path, rules=rules, settings=SETTINGS + KEYS, files=keys) as (running, browser):
        assert await told(browser) == [
            f"The grant ends-soon of nhi:guest ends at {rfc3339(now_s + SOON_S)}",
            *[one for one in await told(browser) if one.startswith("The API key")],
        ]
        assert sum(one.startswith("The API key") and "nhi:soon" in one for one in await told(browser)) == 1
        for _ in range(3):
            await running.call("get_file", {"path": "x"})
        await running.app.disable("nhi:rogue", reason="it runs amok", until=None, by="test")
        await running.app.switch_off("github", "search_code", reason="", until=None, by="test")
        (tmp_path / "policies" / "agent_to_tool.csv").write_text("p, nonsense\n")
        with pytest.raises(Exception, match="P1"):
            await running.app.reload("test")
        now_told = await eventually(browser, "rule:planner-reads of nhi:planner: 3 of 3 used")
        assert "nhi:rogue is disabled: it runs amok" in now_told
        assert "The tool search_code of github is switched off" in now_told
        assert any("agent_to_tool.csv:1" in one for one in now_told)
        tones = [one["tone"] for one in (await data(browser))["attention"]]
        assert tones == sorted(tones, key=("bad", "warn", "plain").index)


async def eventually(browser: Browser, wanted: str) -> list[str]:
    """What it says once it says this; limits are read every few seconds."""
    async with asyncio.timeout(PATIENCE_S):
        while wanted not in (found := await told(browser)):
            await asyncio.sleep(0.1)
    return found


async def test_an_upstream_that_is_gone_is_in_front(tmp_path: Path) -> None:
    async with browsed(tmp_path, upstream_url="http://127.0.0.1:9/mcp") as (running, browser):
        for _ in range(5):
            await running.call("search_code", {"repo": "acme/site"})
        assert (await told(browser))[0] == "github is offline: it cannot be reached"
        await browser.log_in()
        _, page, _ = await browser.get("/console/now")
        assert 'href="/console/tools?server=github"' in page


def test_steps_of_workers_are_added_where_they_are_of_one_time() -> None:
    one = {"step_s": 5, "at": [10, 15, 20], "by_status": {"success": [1, 2, 3], "error": [0, 0, 1]}}
    two = {"step_s": 5, "at": [15, 20, 25], "by_status": {"success": [10, 20, 30], "error": [0, 0, 0]}}
    added = now._added([one, two])
    assert added == {
        "step_s": 5,
        "at": [10, 15, 20, 25],
        "by_status": {"success": [1, 12, 23, 30], "error": [0, 0, 1, 0]},
    }
    assert now._sums([1] * 15, 12) == [*range(1, 13), 12, 12, 12]
    workers = [
        {
            "a": {
                "status": "ready",
                "breaker": {"state": "closed"},
                "calls": 3,
                "successes": 3,
                "errors": 0,
                "tool_errors": 0,
                "average_latency_ms": 2.0,
                "last_error": None,
                "last_error_at": None,
            }
        },
        {
            "a": {
                "status": "offline",
                "breaker": {"state": "open"},
                "calls": 1,
                "successes": 0,
                "errors": 1,
                "tool_errors": 0,
                "average_latency_ms": 6.0,
                "last_error": "gone",
                "last_error_at": "2026-11-30T00:00:00Z",
            }
        },
    ]
    (a,) = now._upstreams(workers)
    assert (a["status"], a["breaker"]["state"], a["calls"], a["average_latency_ms"], a["last_error"]) == (
        "offline",
        "open",
        4,
        3.0,
        "gone",
    )
