"""The page Try of the console: what it answers about a question, what it keeps to itself, and who may ask."""

import re
from pathlib import Path
from typing import Any

from sidecar.settings.timestamps import rfc3339
from tests.flow.test_console import JSON, VIEWER, Browser, browsed
from tests.flow.test_pins import ALL, OTHER, READ, SEARCH, offering, pins

RULES = """\
#: id=searches
p, nhi:planner, tool:github/search_code, use, 2099-01-01T00:00:00Z, 2, args.repo.startsWith('acme/'), allow
#: id=reads owner=platform@acme.example
p, role:readers, tool:github/get_file, use, -, -, -, allow
"""
LINKS = {"policies/roles.csv": "g, nhi:reader, role:readers\n"}
GOOD = '{"repo": "acme/site", "query": "x"}'


async def told(browser: Browser, query: str) -> Any:
    async with browser.http.get(f"{browser.base}/console/try?{query}", headers=JSON) as response:
        return await response.json()


async def asked(browser: Browser, **form: str) -> str:
    sent = {"csrf": await browser.csrf(), **form}
    status, page, _ = await browser.post("/console/try", sent, **{"HX-Request": "true"})
    assert status == 200, page
    return page


def checks(answer: Any) -> dict[str, Any]:
    return {check["name"]: check["passes"] for check in answer["checks"]}


async def test_a_question_in_the_address_is_answered_link_by_link(tmp_path: Path) -> None:
    async with browsed(tmp_path, rules=RULES, files=LINKS) as (_, browser):
        await browser.log_in(VIEWER)
        found = await told(browser, "as=user:alice,nhi:reader&calls=tool:github/get_file")
        answer = found["answer"]
        assert (answer["outcome"], answer["reason"]) == ("deny", "no-matching-rule")
        first, last = answer["explanation"]["links"]
        assert (first["action"], first["allowed"]) == ("delegate", False)
        row = "p, user:alice, nhi:reader, delegate, -, -, -, allow"
        assert first["missing"] == {"file": "user_to_nhi.csv", "text": row}
        assert (last["allowed"], last["rules"][0]["roles"]) == (True, ["role:readers"])
        status, page, _ = await browser.get("/console/try?as=user:alice,nhi:reader&calls=tool:github/get_file")
        assert status == 200 and row in page and "nhi:reader → role:readers" in page
        assert "/console/policy/file?name=" in page


async def test_every_check_of_a_call_is_told_and_nothing_happens(tmp_path: Path) -> None:
    async with browsed(tmp_path, rules=RULES) as (running, browser):
        await browser.log_in(VIEWER)
        records, calls = len(running.records()), len(running.upstream.calls())
        question = {"as": "nhi:planner", "calls": "tool:github/search_code"}
        page = await asked(browser, **question, arguments=GOOD)
        assert "Allowed" in page and "they fit the tool" in page and "2 of 2" in page and "<html" not in page
        assert "Allowed" in await asked(browser, **question, arguments=GOOD)
        page = await asked(browser, **question, arguments='{"repo": "evil/site", "query": "x"}')
        assert "condition-false" in page and "args.repo" in page and "evil/site" in page
        page = await asked(browser, **question, arguments='{"repo": "acme/site", "limit": 99}')
        assert "bad-arguments" in page and "/arguments/limit does not satisfy maximum" in page
        assert (len(running.records()), len(running.upstream.calls())) == (records, calls)


async def test_limits_and_switches_are_told_as_they_stand(tmp_path: Path) -> None:
    async with browsed(tmp_path, rules=RULES) as (running, browser):
        await browser.log_in()
        question = {"as": "nhi:planner", "calls": "tool:github/search_code", "arguments": GOOD}
        for _ in range(2):
            assert (await running.call("search_code", {"repo": "acme/site", "query": "x"}))[0] == 200
        page = await asked(browser, **question)
        assert "Denied" in page and "no room in rule:searches" in page and "0 of 2" in page
        switch = {"reason": "an <img src=x onerror=alert(1)> incident", "until": None, "by": "olga"}
        await running.app.switch_off("github", "search_code", **switch)  # type: ignore[arg-type]
        await running.app.disable("nhi:planner", **switch)  # type: ignore[arg-type]
        page = await asked(browser, **question)
        assert "tool-disabled" in page and "principal-disabled" in page
        assert "an &lt;img src=x onerror=alert(1)&gt; incident" in page and "<img src=x" not in page
        answer = (await told(browser, "as=nhi:planner&calls=tool:github/search_code"))["answer"]
        assert answer["outcome"] == "deny"
        assert checks(answer)["principals"] is checks(answer)["switch"] is False


async def test_a_question_without_arguments_is_about_all_calls(tmp_path: Path) -> None:
    async with browsed(tmp_path, rules=RULES, files=LINKS) as (_, browser):
        await browser.log_in(VIEWER)
        answer = (await told(browser, "as=nhi:planner&calls=tool:github/search_code"))["answer"]
        assert (answer["outcome"], answer["reason"]) == ("conditional", None)
        assert checks(answer)["policy"] is checks(answer)["arguments"] is None
        assert (await told(browser, "as=nhi:reader&calls=tool:github/get_file"))["answer"]["outcome"] == "allow"
        _, page, _ = await browser.get("/console/try?as=nhi:planner&calls=tool:github/search_code")
        assert "Depends on arguments" in page and "/console/access?who=nhi%3Aplanner" in page
        page = await asked(browser, **{"as": "nhi:planner"}, calls="tool:github/search_code", arguments="{}")
        assert "condition-false" in page and "bad-arguments" in page


async def test_time_and_token_are_part_of_the_question(tmp_path: Path) -> None:
    async with browsed(tmp_path, rules=RULES) as (_, browser):
        await browser.log_in(VIEWER)
        late = rfc3339(4_102_444_800.0)
        page = await asked(browser, **{"as": "nhi:planner"}, calls="tool:github/search_code", arguments=GOOD, at=late)
        assert "expired" in page
        found = await told(browser, "as=user:carol&calls=tool:github/get_file&roles=role:readers")
        assert found["answer"]["explanation"]["links"][0]["rules"][0]["from_token"]
        assert "roles=role%3Areaders" in found["address"]
        hostile = (await told(browser, "as=user:a&calls=resource:github/x:y;$(reboot)"))["command"]
        assert hostile == "sidecar policy explain --as user:a --calls 'resource:github/x:y;$(reboot)'"


async def test_what_cannot_be_asked_is_told_with_its_remedy(tmp_path: Path) -> None:
    async with browsed(tmp_path) as (_, browser):
        await browser.log_in(VIEWER)
        for query, word in (
            ("as=alice&calls=tool:github/x", "write user:"),
            ("as=user:a&calls=github/x", "write tool:"),
            ("as=user:a&calls=tool:github/*", "without *"),
            ("as=user:a&calls=tool:github/x&action=tool/call", 'did you mean "tools/call"'),
            ("as=user:a&calls=tool:github/x&at=noon", "Time:"),
            ("as=user:a&calls=tool:github/x&roles=readers", "write role:"),
            ("calls=tool:github/x", "Caller:"),
        ):
            found = await told(browser, query)
            assert found["answer"] is None and word in found["fault"], found
        for arguments in ("[1]", "{", "x" * 300_000):
            page = await asked(browser, **{"as": "user:a"}, calls="tool:github/x", arguments=arguments)
            assert "Arguments:" in page


async def test_arguments_stand_in_no_address_and_names_stay_text(tmp_path: Path) -> None:
    async with browsed(tmp_path, rules=RULES) as (_, browser):
        await browser.log_in(VIEWER)
        hostile = "nhi:<img/src=x/onerror=alert(1)>"
        page = await asked(
            browser, **{"as": hostile}, calls="tool:github/<img>\u202e", arguments='{"repo": "<script>\u202e"}'
        )
        assert "&lt;img/src=x/onerror=alert(1)&gt;" in page
        assert "<img/src" not in page and "<script>" not in page and "\u202e" not in page and r"\u202e" in page
        assert all("script" not in link for link in re.findall(r'href="([^"]*)"', page))
        status, page, _ = await browser.post(
            "/console/try", {"csrf": await browser.csrf(), "as": "nhi:planner", "calls": "tool:github/x"}
        )
        assert status == 200 and "<html" in page and "no-matching-rule" in page  # without htmx: a whole page
        status, _, _ = await browser.post("/console/try", {"as": "nhi:planner", "calls": "tool:github/x"})
        assert status == 403


async def compared(browser: Browser, **form: str) -> str:
    return await asked(browser, **{"as": "nhi:planner", "calls": "tool:github/delete_repo"}, **form)


async def test_a_question_is_asked_under_the_policy_that_served_before(tmp_path: Path) -> None:
    async with browsed(tmp_path, rules=RULES) as (running, browser):
        await browser.log_in(VIEWER)
        before = running.app.live.current.engine.revision[:16]
        rows = tmp_path / "policies" / "agent_to_tool.csv"
        rows.write_text(RULES + "#: id=deletes\np, nhi:planner, tool:github/delete_repo, use, -, -, -, allow\n")
        await running.app.reload("olga")
        found = await told(browser, "as=nhi:planner&calls=tool:github/delete_repo")
        assert [one["key"] for one in found["others"]] == ["files", f"past:{before}", "file"]
        page = await compared(browser, against=f"past:{before}")
        assert "1 narrower" in page and "was allowed, would be denied" in page and "no-matching-rule" in page
        assert "another one than now" in page and f"against=past%3A{before}" in page
        rows.write_text("p, nhi:planner, tool:github/delete_repo, delete, -, -, -, allow\n")
        page = await compared(browser, against="files")
        assert "The other policy cannot be used" in page and "agent_to_tool.csv:1" in page and "P104" in page
        page = await compared(browser, against="past:0000")
        assert "no longer there" in page


async def test_a_pasted_file_is_compared_and_kept_nowhere(tmp_path: Path) -> None:
    async with browsed(tmp_path, rules=RULES) as (running, browser):
        await browser.log_in(VIEWER)
        content = "p, nhi:planner, tool:github/delete_repo, use, -, -, args.repo == '<img src=x>', allow\r\n"
        page = await compared(browser, against="file", file_name="agent_to_tool.more.csv", content=content)
        assert "Under policies/agent_to_tool.more.csv replaced" in page and "Rules added (1)" in page
        assert "condition-false" in page and "&lt;img src=x&gt;" in page and "<img src=x" not in page
        for name in ("../x.csv", "/etc/x.csv", "a/../../x.csv", "x.txt", ""):
            assert "File: write its name" in await compared(browser, against="file", file_name=name, content=content)
        assert sorted(path.name for path in (tmp_path / "policies").rglob("*more*")) == []
        assert running.app.live.past == ()


async def test_pins_approvals_and_unknown_tools_are_told(tmp_path: Path) -> None:
    rules = f"{ALL}#: id=asks approval=role:boss\np, nhi:asker, tool:github/search, use, -, -, -, allow\n"
    files = pins(SEARCH) | {"policies/roles.csv": "g, user:olga, role:boss\n"}
    async with browsed(tmp_path, rules=rules, files=files, upstream=offering(OTHER, READ)) as (_, browser):
        await browser.log_in(VIEWER)
        page = await asked(browser, **{"as": "nhi:planner"}, calls="tool:github/search", arguments="{}")
        assert "pin-mismatch" in page and "Denied" in page
        answer = (await told(browser, "as=nhi:planner&calls=tool:github/nothing"))["answer"]
        assert (answer["outcome"], answer["reason"], checks(answer)["tool"]) == ("deny", "tool-unknown", False)
        answer = (await told(browser, "as=nhi:planner&calls=tool:elsewhere/read"))["answer"]
        assert answer["reason"] == "upstream-unknown"
        page = await asked(browser, **{"as": "nhi:asker"}, calls="tool:github/search")
        assert "a person&#39;s approval" in page and "<code>user:olga</code>" in page
        found = checks((await told(browser, "as=nhi:asker&calls=tool:github/search"))["answer"])
        assert found["policy"] is None and found["pin"] is False
