"""The console's pages about approvals: what waits, one request with its arguments, and people's answers."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.console.check_page_agents import EVIL, SHOWN, acted, data, heard, shown
from tests.flow.test_approvals import KEYS, PATH, ROLES, SETTINGS, TOOL, controls
from tests.flow.test_console import Browser, browsed
from tests.flow.world import Upstream, World

RULES = """\
#: id=deletes approval=role:oncall within=15m reason=required
p, *, tool:github/get_file, use, -, -, -, allow
#: id=searches approval=role:oncall valid=1h
p, *, tool:github/search_code, use, -, -, -, allow
"""
NAME = "nhi:<img/src=x/onerror=alert(1)>"
CALLER = "nhi:&lt;img/src=x/onerror=alert(1)&gt;"


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[tuple[World, Browser]]:
    settings = SETTINGS.replace("  credentials:", "  console: {enabled: true}\n  credentials:")
    files = {"policies/roles.csv": ROLES, **KEYS}
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("get_file", "search_code")]
    more = {"files": files, "rules": RULES, "principal": NAME, "upstream": Upstream(tools=tools)}
    async with browsed(tmp_path, settings=settings, **more) as (running, browser):
        yield running, browser


async def asked_for(running: World, tool: str = TOOL, arguments: Any = PATH) -> str:
    """The page of the request that a call makes."""
    answer = (await running.call(tool, arguments))[1]
    return f"approvals/{answer['result']['_meta']['sidecar/refusal']['approval']}"


async def named(browser: Browser, who: str) -> Browser:
    await browser.log_in(KEYS[who])
    return browser


async def test_a_person_sees_the_arguments_and_approves(made: tuple[World, Browser]) -> None:
    running, browser = made
    await named(browser, "dmitri")
    assert "No call waits" in await shown(browser, "approvals")
    arguments = {**PATH, "q": f"{EVIL}\n\u202egnp", "n": [1, {EVIL: None}], EVIL: ""}
    path = await asked_for(running, arguments=arguments)
    page = await shown(browser, "approvals")
    assert f'href="/console/{path}"' in page and CALLER in page and "secret-name" not in page
    page = await shown(browser, path)
    assert f">\n{SHOWN}\n\\u202egnp</pre>" in page and "\n    secret-name</pre>" not in page and CALLER in page
    assert "&#34;&lt;img src=x onerror=alert(1)&gt;&#34;: null" in page and "user:dmitri" in page
    assert (await data(browser, path))["one"]["seen_by"] == ["user:dmitri"]
    assert [(one["by"], one["principal"]) for one in controls(running, "approval-shown")] == [
        ("admin:dmitri", "user:dmitri")
    ]
    form = {"csrf": await browser.csrf()}
    status, page, _ = await browser.post(f"/console/{path}/approve", form)
    assert status == 400 and "a rule requires a reason" in page and 'action="/console/approvals/' in page
    assert await acted(browser, f"{path}/approve", reason=f"fine {EVIL}") == path
    page = await shown(browser, path)
    assert SHOWN in page and "Refuse after all" in page
    assert "content" in (await running.call(TOOL, arguments))[1]["result"]
    found = await data(browser, path)
    assert found["one"]["state"] == "used" and found["one"]["used_by"]
    assert "<form" not in (await shown(browser, path)).partition("<main")[2]
    assert [f"approvals/{row['id']}" for row in (await data(browser, "approvals?state=used"))["rows"]] == [path]
    (given,) = controls(running, "approval-given")
    assert (given["by"], given["principal"], given["reason"]) == ("admin:dmitri", "user:dmitri", f"fine {EVIL}")


async def test_what_waits_is_seen_at_once_and_a_refusal_by_another_ends_the_form(made: tuple[World, Browser]) -> None:
    running, browser = made
    await named(browser, "dmitri")
    async with heard(browser, "approvals/live") as events:
        assert "No call waits" in (await anext(events))[1]
        path = await asked_for(running)
        assert path in (await anext(events))[1]
    actions = quote("waiting None")
    async with heard(browser, f"{path}/live?actions={actions}") as events:
        event, text = await anext(events)
        assert event == "state" and "waiting" in text and "secret-name" not in text
        assert await acted(browser, f"{path}/refuse", reason=EVIL) == path
        seen = [one async for one in events]
    assert [event for event, _ in seen] == ["evidence", "state", "evidence", "actions", "end"]
    assert "Refused by" in seen[1][1] and SHOWN in seen[1][1] and "<form" not in seen[3][1]
    status, page, _ = await browser.post(f"/console/{path}/approve", {"csrf": await browser.csrf(), "reason": "late"})
    assert status == 409 and "it is refused already" in page


async def test_who_may_not_answer_sees_no_arguments_and_no_form(made: tuple[World, Browser]) -> None:
    running, browser = made
    path = await asked_for(running)
    for who, told in (("alice", "user:alice does not have role:oncall"), ("machine", "names no person")):
        await named(browser, who)
        page = await shown(browser, path)
        assert told in page and "secret-name" not in page and "<form" not in page.partition("<main")[2]
        assert (await data(browser, path))["questions"] is None
        assert "secret-name" not in await shown(browser, "approvals")
        form = {"csrf": await browser.csrf(), "reason": "because"}
        for verb in ("approve", "refuse"):
            status, page, _ = await browser.post(f"/console/{path}/{verb}", form)
            assert status == 403 and "secret-name" not in page, (who, verb)
    assert "names no person" in await shown(browser, "approvals")
    assert controls(running, "approval-shown") == [] and controls(running, "approval-given") == []


async def test_an_approval_for_a_time_is_withdrawn(made: tuple[World, Browser]) -> None:
    running, browser = made
    await named(browser, "dmitri")
    path = await asked_for(running, "search_code", {"repo": "acme/site", "q": "x"})
    assert "it may be made for 1 h" in await shown(browser, path)
    await acted(browser, f"{path}/approve")
    await acted(browser, f"{path}/refuse", reason="changed my mind")
    found = (await data(browser, path))["one"]
    assert found["state"] == "refused" and [one["reason"] for one in found["answers"]] == [None, "changed my mind"]


async def test_an_answer_after_the_login_ended_leads_back_to_its_page(made: tuple[World, Browser]) -> None:
    running, browser = made
    path = await asked_for(running)
    form = {"csrf": "of an earlier login", "reason": "because"}
    referer = {"Referer": f"{browser.base}/console/{path}"}
    status, _, headers = await browser.post(f"/console/{path}/approve", form, **referer)
    assert (status, headers["Location"]) == (303, f"/console/login?next=/console/{path}")
    status, _, headers = await browser.post(f"/console/{path}/approve", form, Referer="http://[")
    assert (status, headers["Location"]) == (303, "/console/login?next=")
    status, _, headers = await browser.log_in(KEYS["dmitri"], next_path=f"/console/{path}")
    assert (status, headers["Location"]) == (303, f"/console/{path}")
    assert (await browser.post(f"/console/{path}/approve", form, **referer))[0] == 403, "the form is of no session"
    assert (await data(browser, path))["one"]["state"] == "waiting"


async def test_requests_are_shown_in_pages_by_state(made: tuple[World, Browser]) -> None:
    running, browser = made
    await named(browser, "dmitri")
    paths = [await asked_for(running, arguments={"path": str(number)}) for number in range(3)]
    assert "2 more wait" in await shown(browser, paths[0])
    await acted(browser, f"{paths[0]}/refuse", reason="no")
    assert "2 more wait" in await shown(browser, paths[0]) and "1 more waits" in await shown(browser, paths[1])
    found = await data(browser, "approvals?rows=1&page=2")
    assert [f"approvals/{one['id']}" for one in found["rows"]] == [paths[1]] and found["paging"]["pages"] == 2
    assert {name: count for name, count in found["states"].items() if count} == {"waiting": 2, "refused": 1}
    assert len((await data(browser, "approvals?state=all"))["rows"]) == 3
    page = await shown(browser, "approvals?rows=1")
    assert (
        'href="/console/approvals?rows=1&amp;page=2"' in page
        and 'href="/console/approvals?rows=1&amp;state=refused"' in page
    )
    assert (await browser.get("/console/approvals?state=none"))[0] == 400
    assert (await browser.get("/console/approvals/0199"))[0] == 404
