"""The page Decisions: what calls became, live and filtered, and why."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sidecar.admin.console.log_news import MAX_RECORDS, MAX_ROWS
from tests.flow.test_console import JSON, SETTINGS, VIEWER, Browser, browsed
from tests.flow.world import PATIENCE_S, World, listening
from tests.unit.audit.scenes import understood

HOSTILE = "<img/src=x/onerror=alert(1)>"
RULES = """\
#: id=planner-searches
p, nhi:planner, tool:github/search_code, use, -, -, args.repo.startsWith('acme/'), allow
#: id=planner-reads
p, nhi:planner, tool:github/get_file, use, -, 2, -, allow
"""


@asynccontextmanager
async def looked_at(folder: Path, **more: Any) -> AsyncIterator[tuple[World, Browser]]:
    """A sidecar with four calls on record: allowed, by a condition denied, without a rule, and limited; by a viewer."""
    async with browsed(folder, rules=RULES, **more) as (world, browser):
        await world.call("search_code", {"repo": "acme/site"}, headers={"X-Run-Id": "run-7"})
        await world.call("search_code", {"repo": "other/secret-repo"})
        await world.call("delete_repo")
        for _ in range(3):
            await world.call("get_file", {"path": "a"})
        await browser.log_in(VIEWER)
        yield world, browser


async def data(browser: Browser, path: str) -> Any:
    async with browser.http.get(browser.base + path, headers=JSON) as response:
        return await response.json()


async def events(browser: Browser, path: str) -> AsyncIterator[tuple[str, str]]:
    """The events of a stream, until it is closed."""
    async with browser.http.get(browser.base + path, headers={"Accept": "text/event-stream"}) as response:
        assert response.status == 200
        name, lines = "", list[str]()
        async for raw in response.content:
            line = raw.decode().rstrip("\n")
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data:"):
                lines.append(line[6:])
            elif not line and lines:
                yield name, "\n".join(lines)
                lines = []


async def test_the_newest_calls_stand_first_with_outcome_rule_and_time(tmp_path: Path) -> None:
    async with looked_at(tmp_path) as (_, browser):
        found = await data(browser, "/console/decisions")
        shown = [(row["outcome"], row["reason"], row["object"], row["rules"]) for row in found["rows"]]
        assert shown == [
            ("limited", "rate-limited", "tool:github/get_file", ["planner-reads"]),
            ("allowed", None, "tool:github/get_file", ["planner-reads"]),
            ("allowed", None, "tool:github/get_file", ["planner-reads"]),
            ("denied", "no-matching-rule", "tool:github/delete_repo", []),
            ("denied", "condition-false", "tool:github/search_code", []),
            ("allowed", None, "tool:github/search_code", ["planner-searches"]),
        ]
        assert found["next"] is None and found["source"]["in_files"]
        _, page, _ = await browser.get("/console/decisions")
        assert page.count('<tr id="call-0-') == 6 and "secret-repo" not in page
        assert "condition-false" in page and f'href="/console/decisions/{found["rows"][0]["id"]}"' in page


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("status=permission_denied", 2),
        ("reason=rate-limited", 1),
        ("object=get_file", 3),
        ("object=tool:github/get*", 3),
        ("object=get_fil?", 0),
        ("principal=nhi:planner", 6),
        ("principal=plann", 6),
        ("principal=nhi:plann", 0),
        ("upstream=github&protocol=mcp", 6),
        ("since=1h&object=delete", 1),
        ("until=2020-01-01T00:00:00Z", 0),
    ],
)
async def test_filters_of_the_query_select_calls(tmp_path: Path, query: str, count: int) -> None:
    async with looked_at(tmp_path) as (_, browser):
        assert len((await data(browser, f"/console/decisions?{query}"))["rows"]) == count
        status, page, _ = await browser.get(f"/console/decisions?{query}")
        assert status == 200 and ("No call fits the filter" in page) == (count == 0)


async def test_a_filter_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    async with looked_at(tmp_path) as (_, browser):
        for query, told in (
            ("since=yesterday", "since: a time such as"),
            ("before=1", "before: this is not the place"),
        ):
            status, page, _ = await browser.get(f"/console/decisions?{query}")
            assert status == 400 and told in page


async def test_older_calls_are_on_the_next_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.admin.console.pages.decisions.CALLS", 4)
    async with looked_at(tmp_path) as (_, browser):
        first = await data(browser, "/console/decisions")
        second = await data(browser, f"/console/decisions?before={first['next']}")
        assert [len(first["rows"]), len(second["rows"]), second["next"]] == [4, 2, None]
        assert not {row["id"] for row in first["rows"]} & {row["id"] for row in second["rows"]}
        _, page, _ = await browser.get("/console/decisions")
        assert f'href="/console/decisions?before={first["next"]}"' in page


async def test_a_call_is_seen_by_all_who_look_within_a_second(tmp_path: Path) -> None:
    async with looked_at(tmp_path) as (world, browser), asyncio.timeout(PATIENCE_S):
        page = (await browser.get("/console/decisions"))[1]
        connects = re.search(r'sse-connect="(/console/decisions/live[^"]*)"', page)
        assert connects
        address = connects[1].replace("&amp;", "&")
        missed = (await world.call("delete_repo"))[1]["error"]["data"]["decision_id"]  # between the page and the stream
        everything, denials = events(browser, address), events(browser, f"{address}&object=search_code")
        name, rows = await anext(everything)
        assert name == "calls" and missed in rows
        await world.call("search_code", {"repo": "acme/new"})
        await world.call("delete_repo")
        assert "search_code" in (await anext(everything))[1]
        only = (await anext(denials))[1]
        assert "search_code" in only and "delete_repo" not in only and "acme/new" not in only


async def test_of_more_calls_than_can_be_shown_the_newest_are_and_the_page_says_so(tmp_path: Path) -> None:
    async with looked_at(tmp_path) as (world, browser), asyncio.timeout(PATIENCE_S):
        stream = events(browser, "/console/decisions/live?object=delete_repo")
        path = world.app.settings.audit_path
        waiting = asyncio.ensure_future(anext(stream))
        line = next(line for line in path.read_bytes().splitlines(keepends=True) if b"delete_repo" in line)
        many = [line.replace(b'"seq":', b'"seq":9%d' % number) for number in range(3 * MAX_RECORDS)]
        while not waiting.done():  # the stream may not have begun to look
            with path.open("ab") as file:
                file.write(b"".join(many))
            await asyncio.wait([waiting], timeout=2.0)
        name, rows = await waiting
        assert name == "calls" and rows.count("<tr") == MAX_ROWS
        name, told = await anext(stream)
        assert name == "full" and re.search(r"about 1[0-9]{2} were left out", told)


async def test_a_denial_is_explained_with_the_nearest_rule_and_a_row_to_copy(tmp_path: Path) -> None:
    async with looked_at(tmp_path) as (_, browser):
        rows = {row["reason"]: row for row in (await data(browser, "/console/decisions"))["rows"]}
        missing = f"/console/decisions/{rows['no-matching-rule']['id']}"
        found = await data(browser, missing)
        (link,) = found["explanation"]["links"]
        assert link["nearest"][0]["id"] in ("planner-searches", "planner-reads")
        assert link["missing"]["text"] == "p, nhi:planner, tool:github/delete_repo, tools/call, -, -, -, allow"
        _, page, _ = await browser.get(missing)
        assert link["missing"]["text"] in page and "agent_to_tool.csv:" in page

        false = await data(browser, f"/console/decisions/{rows['condition-false']['id']}")
        (link,) = false["explanation"]["links"]
        assert [(ran["text"], ran["outcome"]) for ran in link["conditions"]] == [
            ("args.repo.startsWith('acme/')", "false")
        ]
        assert "secret-repo" not in str(false) and false["explanation"]["record"]["same_revision"]


async def test_an_allowed_call_shows_its_limits_stages_and_records(tmp_path: Path) -> None:
    async with looked_at(tmp_path) as (world, browser):
        rows = (await data(browser, "/console/decisions?object=get_file"))["rows"]
        found = await data(browser, f"/console/decisions/{rows[1]['id']}")
        assert [one["record"]["event"] for one in found["records"]] == ["decision", "outcome"]
        assert found["record"]["limits"][0]["limit"] == 2 and found["record"]["limits"][0]["charged"] == 1
        assert {"policy", "upstream"} <= {stage["name"] for stage in found["stages"]}
        _, page, _ = await browser.get(f"/console/decisions/{rows[1]['id']}")
        assert found["record"]["limits"][0]["name"] in page and "Where the time went" in page
        (tmp_path / "policies" / "agent_to_tool.csv").write_text(RULES.replace("get_file", "put_file"))
        await world.app.reload("test")
        _, page, _ = await browser.get(f"/console/decisions/{rows[1]['id']}")
        assert "The policy has changed since. On record: allowed" in page and "no-matching-rule" in page


async def test_a_chain_with_an_approval_is_explained_link_by_link(tmp_path: Path) -> None:
    async with looked_at(tmp_path) as (world, browser):
        recording = understood(world.app.audit)
        recording.approval = {"id": "0a1b-1", "by": ["user:olga", "user:oskar"]}
        await recording.decided()
        under_way = await data(browser, "/console/decisions?principal=user:corp/alice")
        assert [row["outcome"] for row in under_way["rows"]] == ["under way"]
        await recording.outcome(http_status=200, bytes_out=512)
        (row,) = (await data(browser, "/console/decisions?principal=user:corp/alice"))["rows"]
        assert (row["outcome"], row["would_deny"]) == ("allowed", ["shadow-rule"])
        assert row["chain"] == ["user:corp/alice", "nhi:corp/researcher"]
        found = await data(browser, f"/console/decisions/{row['id']}")
        assert [link["action"] for link in found["explanation"]["links"]] == ["delegate", "tools/call"]
        _, page, _ = await browser.get(f"/console/decisions/{row['id']}")
        assert 'href="/console/approvals/0a1b-1"' in page and "user:olga" in page and "user:oskar" in page


async def test_a_decision_that_nobody_took_is_not_found(tmp_path: Path) -> None:
    async with looked_at(tmp_path) as (_, browser):
        for name in ("019a0000-0000-7000-8000-000000000000", HOSTILE, "%00", "live/more"):
            status, page, _ = await browser.get(f"/console/decisions/{name}")
            assert status in (400, 404) and "<img" not in page


async def test_what_callers_name_stays_text(tmp_path: Path) -> None:
    async with looked_at(tmp_path) as (world, browser):
        await world.call(HOSTILE, headers={"X-Run-Id": HOSTILE, "X-Thread-Id": HOSTILE})
        await world.ask(HOSTILE)
        await world.call("search_code", {"repo": HOSTILE}, headers={"X-Run-Id": HOSTILE})
        for path in ("/console/decisions", f"/console/decisions?principal={HOSTILE}&object={HOSTILE}&since=1h"):
            status, page, _ = await browser.get(path)
            assert status == 200 and "<img/" not in page
        for row in (await data(browser, "/console/decisions"))["rows"]:
            status, page, _ = await browser.get(f"/console/decisions/{row['id']}")
            assert status == 200 and "<img/" not in page


async def test_a_log_without_a_file_is_kept_while_somebody_looks(tmp_path: Path) -> None:
    async def receive(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(content_type="application/x-protobuf")

    async with listening(receive) as url:
        settings = f'{SETTINGS}audit: {{sink: otlp, otlp: {{url: "{url}/v1/logs"}}}}\n'
        async with looked_at(tmp_path, settings=settings) as (world, browser), asyncio.timeout(PATIENCE_S):
            found = await data(browser, "/console/decisions")
            assert found["rows"] == [] and not found["source"]["in_files"]
            assert f"The log goes to {url}/v1/logs" in (await browser.get("/console/decisions"))[1]
            stream = events(browser, "/console/decisions/live")
            waiting = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0.1)
            await world.call("delete_repo")
            assert "delete_repo" in (await waiting)[1]
            (row,) = (await data(browser, "/console/decisions"))["rows"]
            explained = await data(browser, f"/console/decisions/{row['id']}")
            assert explained["explanation"]["links"][0]["missing"]
