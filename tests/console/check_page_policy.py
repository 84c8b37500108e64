"""The page Policy of the console: what serves, what was refused, and the lines of files."""

import asyncio
from pathlib import Path
from typing import Any

from tests.flow.test_console import JSON, SETTINGS, VIEWER, Browser, browsed
from tests.flow.test_sources import shop
from tests.flow.world import RULES, until

TESTS = """\
suite: planner
tests:
  - {name: searches, as: nhi:planner, calls: tool:github/get_file, action: tools/call, expect: allow}
"""
HOSTILE = "<img src=x onerror=alert(1)>"


async def data(browser: Browser, path: str) -> Any:
    async with browser.http.get(f"{browser.base}/console/{path}", headers=JSON) as response:
        return await response.json()


async def test_the_policy_is_shown_as_it_serves(tmp_path: Path) -> None:
    async with browsed(tmp_path, files={"policies/tests/planner.yaml": TESTS}) as (running, browser):
        await browser.log_in()
        told = await data(browser, "policy")
        assert told["policy"]["revision"] == running.app.live.current.engine.revision
        names = [row["name"] for row in told["rows"]]
        assert {"models/agent_to_tool.conf", "policies/agent_to_tool.csv", "policies/tests/planner.yaml"} <= set(names)
        _, page, _ = await browser.get("/console/policy?file=planner")
        assert "policies/tests/planner.yaml" in page and "agent_to_tool.csv" not in page
        assert "No other replica can be heard" in page and "Files of this machine" in page
        _, page, _ = await browser.get("/console/policy?file=nothing")
        assert "No file has this in its name." in page


async def test_a_deep_link_leads_to_a_line_of_a_file(tmp_path: Path) -> None:
    many = "".join(f"#: id=r{number}\np, nhi:a{number}, tool:github/x, use, -, -, -, allow\n" for number in range(250))
    async with browsed(tmp_path, rules=RULES + many) as (running, browser):
        await browser.log_in()
        rule = next(one for one in running.app.live.current.engine.source.rules if one.id == "r200")
        told = await data(browser, f"policy/file?name={rule.file}&line={rule.line}")
        assert told["paging"]["number"] == 3 and told["paging"]["total"] == 504
        row = next(one for one in told["rows"] if one["line"] == rule.line)
        assert "".join(text for text, _ in row["pieces"]) == "p, nhi:a200, tool:github/x, use, -, -, -, allow"
        assert row["pieces"][-1] == [" allow", "allow"]
        _, page, _ = await browser.get(f"/console/policy/file?name=policies/agent_to_tool.csv&line={rule.line}")
        assert f'<tr id="L{rule.line}" class="at" aria-current="true">' in page
        assert (await data(browser, "policy/file?name=agent_to_tool.csv&page=9"))["paging"]["number"] == 3


async def test_no_other_file_is_shown(tmp_path: Path) -> None:
    async with browsed(tmp_path, files={"policies/.x": "secret"}) as (_, browser):
        away = tmp_path / "policies" / "away.csv"
        away.symlink_to(tmp_path / "op.key")
        await browser.log_in()
        names = ["../sidecar.yaml", "policies/../op.key", "/etc/passwd", "policies/away.csv", str(away), ".x", ""]
        for name in names:
            status, page, _ = await browser.get(f"/console/policy/file?name={name}")
            assert status == 404 and "lists its files" in page, name


async def test_refused_files_are_shown_with_their_places_within_a_second(tmp_path: Path) -> None:
    async with browsed(tmp_path) as (running, browser):
        await browser.log_in()
        file = tmp_path / "policies" / "agent_to_tool.csv"
        file.write_text(RULES + f"# {HOSTILE}\u202e\np, nhi:a, tool:github/{HOSTILE}, use, -, -, -, allow\n")
        await until(lambda: running.app.reloader.refused != ())
        _, page, _ = await browser.get("/console/policy")
        assert "The newest files are refused" in page and "agent_to_tool.csv:6" in page and HOSTILE not in page
        told = await data(browser, "policy/file?name=agent_to_tool.csv")
        assert told["is_newer"] and told["rows"][5]["faults"][0]["code"].startswith("P")
        assert told["rows"][4]["pieces"] == [[f"# {HOSTILE}", "comment"], ["\\u202e", "hidden"]]
        _, page, _ = await browser.get("/console/policy/file?name=agent_to_tool.csv")
        assert HOSTILE not in page and "&lt;img src=x onerror=alert(1)&gt;" in page
        assert "written after the policy in force was loaded" in page
        stream = await browser.http.get(f"{browser.base}/console/policy/live")
        file.write_text(RULES)
        async with asyncio.timeout(10):
            while (line := (await stream.content.readline()).decode()) and "Files of this machine" not in line:
                pass
            while "refused" in (await next_event(stream)):
                pass
        stream.close()


async def test_a_policy_from_a_source_is_shown_and_why_the_next_is_refused(tmp_path: Path) -> None:
    async with shop(tmp_path) as at:
        at.publish(RULES, 5)
        bundle = f'{{url: "{at.url}", keys_path: keys.json, every: 50ms}}'
        settings = f"{SETTINGS}policy: {{source: {{bundle: {bundle}}}}}\n"
        async with browsed(tmp_path, settings=settings) as (running, browser):
            await browser.log_in()
            told = await data(browser, "policy")
            assert told["policy"]["source"]["version"] == 5 and told["policy"]["source"]["up"]
            assert "policies/agent_to_tool.csv" in [row["name"] for row in told["rows"]]
            rule = next(iter(running.app.live.current.engine.source.rules))
            assert (await data(browser, f"policy/file?name={rule.file}&line=2"))["rows"][1]["line"] == 2
            at.publish(RULES + f"p, nhi:a, tool:github/{HOSTILE}, use, -, -, -, allow\n", 6)
            await until(lambda: running.app.follower.refused != ())
            _, page, _ = await browser.get("/console/policy")
            assert "The newest policy of the source is" in page and "agent_to_tool.csv:5" in page
            assert HOSTILE not in page and "agent_to_tool.csv&amp;line=5" not in page
            at.publish(RULES, 4)
            await until(lambda: any("older" in one for one in running.app.follower.trouble))
            _, page, _ = await browser.get("/console/policy")
            assert "does not serve" in page and "older" in page


async def test_an_operator_reads_all_files_again_and_a_viewer_cannot(tmp_path: Path) -> None:
    async with browsed(tmp_path) as (running, browser):
        await browser.log_in()
        status, _, headers = await browser.post("/console/policy/reload", {"csrf": await browser.csrf()})
        revision = running.app.live.current.engine.revision
        assert (status, headers["Location"]) == (303, f"/console/policy?reloaded={revision}")
        (tmp_path / "policies" / "agent_to_tool.csv").write_text("p, x\n")
        status, page, _ = await browser.post("/console/policy/reload", {"csrf": await browser.csrf()})
        assert status == 409 and "the old policy continues to serve" in page and "agent_to_tool.csv:1" in page
        viewer = Browser(running)
        await viewer.log_in(VIEWER)
        assert (await viewer.post("/console/policy/reload", {"csrf": await viewer.csrf()}))[0] == 403
        _, page, _ = await viewer.get("/console/policy")
        assert "Read all files again" not in page
        await viewer.http.close()


async def next_event(stream: Any) -> str:
    lines: list[str] = []
    while True:
        line = (await stream.content.readline()).decode()
        if line == "\n" and any(one.startswith("data:") for one in lines):
            return "".join(lines)
        lines.append(line)


async def report(browser: Browser, path: str) -> Any:
    """The data of a report, once it is made."""
    async with asyncio.timeout(30):
        while (told := await data(browser, path))["run"]["state"] == "running":
            await asyncio.sleep(0.05)
    return told


async def test_what_check_and_the_tests_say_is_shown_and_made_again_after_a_change(tmp_path: Path) -> None:
    wrong = TESTS.splitlines(keepends=True)[-1].replace("searches", f'"{HOSTILE}"').replace("allow", "deny")
    rules = RULES + "p, nhi:planner, set:nothing, use, -, -, -, allow\n"
    files = {"policies/tests/planner.yaml": TESTS + wrong}
    settings = f"{SETTINGS}policy: {{self_test: false}}\n"
    async with browsed(tmp_path, rules=rules, files=files, settings=settings) as (running, browser):
        await browser.log_in()
        stream = await browser.http.get(f"{browser.base}/console/policy/tests/live")
        async with asyncio.timeout(30):
            while "Coverage" not in (await next_event(stream)):
                pass
        stream.close()
        told = await report(browser, "policy/tests")
        assert told["counts"] == {"suites": 1, "tests": 2, "passed": 1, "failed": 1, "skipped": 0}
        assert told["rows"][0]["name"] == HOSTILE and told["rows"][0]["problems"]
        assert (told["coverage"]["rules"], told["coverage"]["exercised"], told["coverage"]["missing"]) == (3, 1, 2)
        missing = await report(browser, "policy/tests?show=rules&text=search")
        assert [one["id"] for one in missing["rows"]] == ["planner-searches"]
        _, page, _ = await browser.get("/console/policy/tests?outcome=failed")
        assert HOSTILE not in page and "&lt;img src=x onerror=alert(1)&gt;" in page
        found = await report(browser, "policy/check?severity=warning")
        assert found["valid"] is True and found["rows"][0]["code"] == "P305" and found["summary"]["errors"] == 0
        _, page, _ = await browser.get("/console/policy/check?severity=warning")
        assert "agent_to_tool.csv:5" in page
        seen = running.app.watcher.seen
        (tmp_path / "policies" / "agent_to_tool.csv").write_text("p, x\n")
        await until(lambda: running.app.watcher.seen is not seen)
        told = await report(browser, "policy/tests")
        assert told["run"]["state"] == "failed" and "agent_to_tool.csv:1" in told["run"]["why"]
