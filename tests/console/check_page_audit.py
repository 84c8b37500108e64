"""The page Audit: records found by what they say, one in full, and whether the log holds."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.console.check_page_decisions import HOSTILE, RULES, data, events
from tests.flow.test_console import OPERATOR, SETTINGS, VIEWER, Browser, browsed
from tests.flow.world import PATIENCE_S, World

CLEAR = f"{SETTINGS}audit: {{clear_arguments: {{tool:github/search_code: [/repo]}}}}\n"


@asynccontextmanager
async def searched(folder: Path, key: str = VIEWER, **more: Any) -> AsyncIterator[tuple[World, Browser]]:
    """A sidecar with calls of two runs on record, looked at by a viewer."""
    async with browsed(folder, rules=RULES, **more) as (world, browser):
        for number in range(6):
            await world.call("get_file", headers={"X-Run-Id": f"run-{number % 2}"})
        await world.call("search_code", {"repo": "acme/in-clear"}, headers={"X-Run-Id": "run-0"})
        await browser.log_in(key)
        yield world, browser


@pytest.mark.parametrize(
    ("query", "events_found"),
    [
        ("run_id=run-0&event=outcome", ["outcome", "outcome"]),
        ("run_id=run-1", ["refusal", "refusal", "outcome", "decision"]),
        ("event=control&what=start", ["control"]),
        ("event=control&by=sidecar", ["control"]),
        ("reason=rate-limited&principal=planner", ["refusal"] * 4),
        ("status=success&object=tool:github/search*", ["outcome"]),
        ("decision_id=none", []),
        ("until=2020-01-01T00:00:00Z", []),
    ],
)
async def test_records_are_found_by_what_they_say(tmp_path: Path, query: str, events_found: list[str]) -> None:
    async with searched(tmp_path) as (_, browser):
        found = await data(browser, f"/console/audit?{query}")
        assert [row["event"] for row in found["rows"]] == events_found and found["next"] is None
        status, page, _ = await browser.get(f"/console/audit?{query}")
        assert status == 200 and page.count('<tr id="record-0-') == len(events_found)
        assert ("No record fits the filter" in page) == (not events_found)


async def test_who_did_what_is_listed_with_its_particulars(tmp_path: Path) -> None:
    async with searched(tmp_path) as (_, browser):
        (login, start) = (await data(browser, "/console/audit?event=control"))["rows"]
        assert (login["what"], login["by"], login["particulars"]["role"]) == ("console-login", "admin:viewer", "viewer")
        assert (start["what"], start["by"]) == ("start", "sidecar")
        _, page, _ = await browser.get("/console/audit?event=control")
        assert "console-login" in page and 'name="by"' in page


async def test_pages_go_on_where_the_one_before_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.admin.console.pages.audit.RECORDS", 5)
    async with searched(tmp_path) as (world, browser):
        seen, before = list[int](), ""
        while before is not None:
            found = await data(browser, f"/console/audit?before={before}")
            seen += [row["seq"] for row in found["rows"]]
            before = found["next"]
        assert seen == [record["seq"] for record in reversed(world.records())]


async def test_a_search_that_has_no_more_time_offers_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.admin.console.audit_view.SEARCH_S", 0.0)
    for name in ("audit", "decisions"):
        async with searched(tmp_path / name) as (_, browser):
            _, page, _ = await browser.get(f"/console/{name}?principal=user:nobody")
            assert "Nothing was found back to" in page
            further = re.search(rf'rel="next" href="(/console/{name}[^"]*search=further[^"]*)"', page)
            assert further
            _, page, _ = await browser.get(further[1].replace("&amp;", "&"))
            assert "fits the filter" in page and 'rel="next"' not in page


async def test_a_record_is_shown_in_full_with_those_of_its_run_and_without_arguments(tmp_path: Path) -> None:
    async with searched(tmp_path, settings=CLEAR) as (world, browser):
        last = next(one for one in world.records() if one["event"] == "outcome" and one["tool"] == "search_code")
        assert last["clear_arguments"] == {"/repo": {"value": "acme/in-clear"}}
        found = await data(browser, f"/console/audit/0/{last['seq']}")
        assert found["record"]["hash"] == last["hash"] and found["record"]["clear_arguments"] == ["/repo"]
        assert found["related"] == {"run_id": "run-0"} and found["after"] == []
        of_run = [one["seq"] for one in world.records() if one["run_id"] == "run-0" and one["seq"] < last["seq"]]
        assert [row["seq"] for row in found["before"]] == of_run[-5:]
        middle = of_run[2]
        around = await data(browser, f"/console/audit/0/{middle}")
        assert [row["seq"] for row in around["before"]] == of_run[:2]
        assert [row["seq"] for row in around["after"]] == [*of_run[3:], last["seq"]][:5]
        for path in (f"/console/audit/0/{last['seq']}", f"/console/decisions/{last['decision_id']}"):
            status, page, _ = await browser.get(path)
            assert status == 200 and last["hash"] in page + last["hash"] and "in-clear" not in page
        assert "in-clear" not in str(await data(browser, f"/console/decisions/{last['decision_id']}"))


@pytest.mark.parametrize("place", ["0/999999", "7/1", "x/1", "0/-1", "0/99999999999999999999"])
async def test_a_record_that_is_not_there_is_not_found(tmp_path: Path, place: str) -> None:
    async with searched(tmp_path) as (_, browser):
        assert (await browser.get(f"/console/audit/{place}"))[0] == 404


async def test_an_operator_has_the_log_verified_and_sees_how_far_it_is(tmp_path: Path) -> None:
    async with searched(tmp_path, OPERATOR) as (world, browser), asyncio.timeout(PATIENCE_S):
        _, page, _ = await browser.get("/console/audit/log")
        assert "has not been verified here yet" in page and "Verify now" in page
        stream = events(browser, "/console/audit/log/verification/live?seen=another")
        assert "has not been verified" in (await anext(stream))[1]
        csrf = await browser.csrf()
        status, _, headers = await browser.post("/console/audit/verify", {"csrf": csrf})
        assert (status, headers["Location"]) == (303, "/console/audit/log")
        async for _, told in stream:
            if "holds" in told:
                break
        found = await data(browser, "/console/audit/log")
        report = found["last"]["logs"][0]["report"]
        assert found["last"]["holds"] and found["last"]["by"] == "admin:olga" and report["records"] >= 13
        assert any("the anchor was made with the key" in proved for proved in report["proved"])
        done = [one["control"] for one in world.records() if one["event"] == "control"]
        begun, ended = [one for one in done if one["what"].startswith("audit-verif")]
        assert (begun["what"], begun["by"]) == ("audit-verification", "admin:olga")
        assert (ended["what"], ended["holds"], ended["problems"]) == ("audit-verified", True, 0)


async def test_a_log_that_was_changed_does_not_hold(tmp_path: Path) -> None:
    async with searched(tmp_path, OPERATOR) as (world, browser), asyncio.timeout(PATIENCE_S):
        path = world.app.settings.audit_path
        raw = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(raw.index(b'"run_id":"run-1"'))
            file.write(b'"run_id":"run-9"')
        await browser.post("/console/audit/verify", {"csrf": await browser.csrf()})
        while (found := await data(browser, "/console/audit/log"))["last"] is None:
            await asyncio.sleep(0.05)
        assert not found["last"]["holds"] and found["last"]["logs"][0]["report"]["problems"][0]["kind"] == "changed"
        _, page, _ = await browser.get("/console/audit/log")
        assert "does not hold" in page and "hash of record" in page


async def test_a_viewer_does_not_verify(tmp_path: Path) -> None:
    async with searched(tmp_path) as (_, browser):
        assert "Verify now" not in (await browser.get("/console/audit/log"))[1]
        status, page, _ = await browser.post("/console/audit/verify", {"csrf": await browser.csrf()})
        assert status == 403 and "operator" in page
        assert (await data(browser, "/console/audit/log"))["last"] is None


async def test_files_keys_and_checkpoints_are_named(tmp_path: Path) -> None:
    async with searched(tmp_path) as (world, browser):
        await world.app.audit.seal()
        found = await data(browser, "/console/audit/log")
        assert [file["name"] for file in found["logs"][0]["files"]] == ["audit.jsonl"]
        assert [key["use"] for key in found["keys"]] == ["hashes and anchors", "checkpoints"]
        assert found["keys"][0]["id"] == world.app.audit.key.id
        assert [row["what"] for row in found["checkpoints"]] == ["checkpoint"] and found["evidence"]["up"]
        done = (await data(browser, "/console/audit?event=control"))["rows"]
        assert [row["what"] for row in done] == ["console-login", "start"]
        secret = world.app.settings.audit_key_path.read_text().strip()
        _, page, _ = await browser.get("/console/audit/log")
        assert "audit.jsonl" in page and found["keys"][1]["id"] in page and secret not in page + str(found)


async def test_what_callers_write_into_records_stays_text(tmp_path: Path) -> None:
    async with searched(tmp_path) as (world, browser):
        await world.call("get_file", headers={"X-Run-Id": HOSTILE, "X-Thread-Id": HOSTILE}, id=HOSTILE)
        await world.call(HOSTILE)
        for record in world.records()[-3:]:
            status, page, _ = await browser.get(f"/console/audit/0/{record['seq']}")
            assert status == 200 and "<img/" not in page
        for query in (f"run_id={HOSTILE}", f"principal={HOSTILE}", f"what={HOSTILE}&event=control&by={HOSTILE}"):
            status, page, _ = await browser.get(f"/console/audit?{query}")
            assert status == 200 and "<img/" not in page
        assert orjson.loads(world.app.settings.audit_path.read_bytes().splitlines()[-1])["seq"] > 1
