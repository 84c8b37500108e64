"""The page Limits of the console: what it shows, filters and pages, that it is live, and who may reset."""

import asyncio
import re
from pathlib import Path
from typing import Any

from tests.flow.test_console import JSON, VIEWER, Browser, browsed
from tests.flow.test_limits_shown import GOOD, LIMITS, RULES

HOSTILE = "nhi:<img/src=x/onerror=alert(1)>"


async def data(browser: Browser, query: str = "") -> Any:
    async with browser.http.get(f"{browser.base}/console/limits{query}", headers=JSON) as response:
        return await response.json()


async def test_limits_are_shown_the_fullest_first_with_their_rule(tmp_path: Path) -> None:
    async with browsed(tmp_path, rules=RULES, files=LIMITS) as (running, browser):
        await browser.log_in()
        for _ in range(4):
            assert (await running.call("search_code", GOOD))[0] == 200
        told = await data(browser)
        assert told["rows"][0]["limit"] == "budgets:nhi:*:usd:day" and told["rows"][0]["share"] == 0.4
        by_name = {row["limit"]: row for row in told["rows"]}
        assert by_name["rule:search"]["file"].endswith("agent_to_tool.csv") and by_name["rule:search"]["line"] == 3
        assert by_name["principals:nhi:*:hour"]["file"] == "budgets.yaml"
        _, page, _ = await browser.get("/console/limits")
        assert "4 of 120" in page and "0.000004 of 0.00001 usd" in page
        assert "/console/policy/file?name=budgets.yaml" in page and "line=3" in page


async def test_limits_are_filtered_by_parts_of_names_and_paged(tmp_path: Path) -> None:
    async with browsed(tmp_path, rules=RULES, files=LIMITS) as (running, browser):
        await browser.log_in()
        await running.call("search_code", GOOD)
        assert {row["counted_for"] for row in (await data(browser, "?principal=plann"))["rows"]} == {"nhi:planner"}
        unused = (await data(browser, "?principal=user:new"))["rows"]
        assert [row["used"] for row in unused if row["counted_for"]] == [0]
        assert {row["limit"] for row in (await data(browser, "?limit=month&kind=month"))["rows"]} == {
            "principals:nhi:*:month",
            "budgets:tool:files/*:usd:month",
        }
        assert "tools:tool:files/*:day" in {row["limit"] for row in (await data(browser, "?object=files/read"))["rows"]}
        one, two = await data(browser, "?rows=1"), await data(browser, "?rows=1&page=2")
        assert one["paging"]["pages"] == one["paging"]["total"] > 2 and one["rows"] != two["rows"]
        _, page, _ = await browser.get("/console/limits?rows=1&limit=m")
        assert "/console/limits?rows=1&amp;limit=m&amp;page=2" in page
        _, page, _ = await browser.get("/console/limits?principal=nobody")
        assert "No limit fits the filter" in page
        wrong = await data(browser, "?object=%20tool:%20x")
        assert wrong["rows"] == [] and "object" in wrong["fault"]


async def test_names_of_callers_stay_text(tmp_path: Path) -> None:
    rules = "p, *, tool:github/*, use, -, 50, -, allow\n"
    async with browsed(tmp_path, rules=rules, principal=HOSTILE) as (running, browser):
        await browser.log_in()
        assert (await running.call("search_code", GOOD))[0] == 200
        _, page, _ = await browser.get("/console/limits")
        assert "<img/src" not in page and "nhi:&lt;img/src=x/onerror=alert(1)&gt;" in page
        _, page, _ = await browser.get("/console/limits?reset=nhi:<img/src=x>&done=<img/src=x>&limit=<img/src=x>")
        assert "<img/src" not in page


async def test_an_operator_resets_a_limit_and_a_viewer_cannot(tmp_path: Path) -> None:
    async with browsed(tmp_path, rules=RULES, files=LIMITS) as (running, browser):
        await browser.log_in()
        await running.call("search_code", GOOD)
        _, page, _ = await browser.get("/console/limits?reset=nhi:planner&reset_limit=rule:search")
        assert "Reset this limit" in page
        order = {"csrf": await browser.csrf(), "principal": "nhi:planner", "limit": "rule:search"}
        assert (await browser.post("/console/limits/reset", order | {"csrf": "x"}))[0] == 403
        status, _, headers = await browser.post("/console/limits/reset", order)
        assert (status, headers["Location"]) == (303, "/console/limits?principal=nhi%3Aplanner&done=rule%3Asearch")
        _, page, _ = await browser.get(headers["Location"])
        assert "Reset: rule:search" in page
        assert {row["limit"]: row["used"] for row in (await data(browser))["rows"]}.get("rule:search", 0) == 0
        told = [record["control"] for record in running.records() if record["event"] == "control"]
        assert [(one["what"], one["by"]) for one in told if one["what"] == "limits-reset"] == [
            ("limits-reset", "admin:olga")
        ]
        status, page, _ = await browser.post("/console/limits/reset", order | {"principal": "alice"})
        assert status == 400 and "principal" in page
        viewer = Browser(running)
        await viewer.log_in(VIEWER)
        _, page, _ = await viewer.get("/console/limits?reset=nhi:planner")
        assert "Reset" not in page
        assert (await viewer.post("/console/limits/reset", order | {"csrf": await viewer.csrf()}))[0] == 403
        await viewer.http.close()


async def test_the_table_follows_calls(tmp_path: Path) -> None:
    async with browsed(tmp_path, rules=RULES, files=LIMITS) as (running, browser):
        await browser.log_in()
        await running.call("search_code", GOOD)
        stream = await browser.http.get(f"{browser.base}/console/limits/live?limit=rule:search&rows=1")
        async with asyncio.timeout(10):
            assert "1 of 120" in await event(stream)
            await running.call("search_code", GOOD)
            heard = await event(stream)
        assert "2 of 120" in heard and "/console/limits?limit=rule%3Asearch" in heard
        stream.close()


async def event(stream: Any) -> str:
    """The next event of a stream."""
    lines: list[str] = []
    while True:
        line = (await stream.content.readline()).decode()
        if line == "\n" and any(re.match("data:", one) for one in lines):
            return "".join(lines)
        lines.append(line)
