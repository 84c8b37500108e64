"""The page Who may what of the console: the matrix, both lists, roles and sets, and what it says of their limits."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.flow.test_casbin_models import NAMES, files as casbin_files
from tests.flow.test_console import JSON, SETTINGS, VIEWER, Browser, browsed

HOSTILE = "nhi:<img/src=x/onerror=alert(1)>"
RULES = """\
#: id=searches
p, nhi:planner, tool:github/search_code, use, 2099-01-01T00:00:00Z, 20, args.repo.startsWith('acme/'), allow
#: id=reads
p, role:readers, set:files, use, -, -, -, allow
#: id=asks approval=role:boss
p, nhi:planner, tool:github/delete_repo, use, -, -, -, allow
p, <img/src=x/onerror=alert(1)>, tool:github/get_file, use, -, -, -, allow
""".replace("p, <img", "p, nhi:<img")
FILES = {
    "policies/roles.csv": "g, user:alice, role:readers\ng, role:leads, role:readers\ng, user:zoe, role:leads\n"
    "g2, tool:github/get_file, set:files\n",
    "policies/user_to_nhi.csv": "#: id=lends\np, user:alice, nhi:planner, delegate, -, -, -, allow\n",
    "policies/guardrails.csv": '#: id=not-zoe reason="On leave"\n'
    "p, user:zoe, tool:github/*, tools/call, -, -, -, deny\n",
}


async def told(browser: Browser, query: str = "", path: str = "access") -> Any:
    async with browser.http.get(f"{browser.base}/console/{path}?{query}", headers=JSON) as response:
        return await response.json()


def states(view: Any) -> dict[tuple[str, str], str]:
    rows = view["rows"] if view["view"] != "matrix" else [cell for row in view["rows"] for cell in row["cells"]]
    return {(cell["principal"], cell["object"]): cell["state"] for cell in rows}


async def listed(running: Any) -> None:
    """The server has listed its tools."""
    await running.app.live.current.services["github"].catalogue.learn(5.0)


async def test_the_matrix_has_every_known_name_and_each_answer(tmp_path: Path) -> None:
    async with browsed(tmp_path, rules=RULES, files=FILES) as (running, browser):
        await browser.log_in(VIEWER)
        await listed(running)
        view = await told(browser)
        assert [column["object"] for column in view["columns"]][:3] == [
            "tool:github/delete_repo",
            "tool:github/get_file",
            "tool:github/search_code",
        ]
        assert [row["principal"] for row in view["rows"]] == ["user:alice", "user:zoe", HOSTILE, "nhi:planner"]
        found = states(view)
        assert found["nhi:planner", "tool:github/search_code"] == "conditional"
        assert found["nhi:planner", "tool:github/delete_repo"] == "approval"
        assert found["user:alice", "tool:github/get_file"] == "allow"
        assert found["user:zoe", "tool:github/get_file"] == "deny"  # a guardrail
        assert found["user:alice", "nhi:planner"] == "allow" and found["nhi:planner", "nhi:planner"] == "deny"
        _, page, _ = await browser.get("/console/access")
        assert "&lt;img/src=x/onerror=alert(1)&gt;" in page and "<img/src" not in page
        assert "/console/try?as=nhi%3Aplanner&amp;calls=tool%3Agithub%2Fsearch_code" in page


async def test_one_principal_is_listed_with_rules_expiry_limits_and_roles(tmp_path: Path) -> None:
    async with browsed(tmp_path, rules=RULES, files=FILES) as (running, browser):
        await browser.log_in(VIEWER)
        await listed(running)
        view = await told(browser, "who=nhi:planner")
        assert view["view"] == "objects" and view["known"] and view["disabled"] is None
        by_object = {row["object"]: row for row in view["rows"]}
        assert by_object.keys() == {"tool:github/search_code", "tool:github/delete_repo"}
        search = by_object["tool:github/search_code"]
        rule = search["rules"][0]
        assert (rule["id"], rule["max_calls_per_hour"], search["until"]) == ("searches", 20, "2099-01-01T00:00:00Z")
        assert rule["when"] == "args.repo.startsWith('acme/')" and rule["line"] == 2
        assert by_object["tool:github/delete_repo"]["rules"][0]["approval"]["role"] == "role:boss"
        assert (await told(browser, "who=user:zoe"))["groups"] == ["role:leads", "role:readers"]
        denied = await told(browser, "who=user:zoe&show=deny&what_kind=tool")
        assert {row["object"]: row["reason"] for row in denied["rows"]}["tool:github/get_file"] == "denied-by-rule"
        assert [one["id"] for one in denied["rows"][1]["rules"]] == ["not-zoe"]
        await running.app.disable("user:alice", reason="<b>lost</b>", until=None, by="olga")
        _, page, _ = await browser.get("/console/access?who=user:alice")
        assert "&lt;b&gt;lost&lt;/b&gt;" in page and "disabled" in page


async def test_one_object_is_listed_with_who_may_use_it(tmp_path: Path) -> None:
    async with browsed(tmp_path, rules=RULES, files=FILES) as (running, browser):
        await browser.log_in(VIEWER)
        await listed(running)
        view = await told(browser, "what=tool:github/get_file")
        assert view["view"] == "principals" and [row["principal"] for row in view["rows"]] == ["user:alice", HOSTILE]
        assert (view["groups"], view["known"], view["open"]) == (["set:files"], True, [])
        await running.app.switch_off("github", "get_file", reason="", until=None, by="olga")
        assert (await told(browser, "what=tool:github/get_file"))["off"] is True
        everybody = await told(browser, "what=tool:github/get_file&show=all")
        assert len(everybody["rows"]) == 4
        assert (await told(browser, "what=tool:github/unheard_of"))["known"] is False


async def test_a_chain_is_asked_as_a_whole(tmp_path: Path) -> None:
    async with browsed(tmp_path, rules=RULES, files=FILES) as (_, browser):
        await browser.log_in(VIEWER)
        view = await told(browser, "who=user:alice&via=nhi:planner")
        assert {row["object"] for row in view["rows"]} == {"tool:github/search_code", "tool:github/delete_repo"}
        denied = await told(browser, "who=user:pia&via=nhi:planner&show=all&what=tool:github/search_code")
        assert denied["rows"][0]["denied_link"] == {
            "kind": "user_to_nhi", "subject": "user:pia", "object": "nhi:planner", "action": "delegate"
        }  # fmt: skip
        view = await told(browser, "what=tool:github/search_code&via=nhi:planner")
        assert [row["principal"] for row in view["rows"]] == ["user:alice"]
        _, page, _ = await browser.get("/console/access?who=user:alice&via=nhi:planner")
        assert "as=user%3Aalice%2Cnhi%3Aplanner" in page
        status, page, _ = await browser.get("/console/access?via=user:alice")
        assert status == 400 and "Through: at most" in page


async def test_names_are_filtered_and_paged_both_ways(tmp_path: Path) -> None:
    rules = "".join(f"p, nhi:bot{n:03}, tool:github/t{n % 45:02}, use, -, -, -, allow\n" for n in range(90))
    async with browsed(tmp_path, rules=rules) as (_, browser):
        await browser.log_in(VIEWER)
        view = await told(browser, "what_kind=tool&page=2&across=2&who=bot")
        assert (view["paging"]["total"], view["across"]["total"]) == (90, 45)
        assert (view["rows"][0]["principal"], view["columns"][0]["object"]) == ("nhi:bot025", "tool:github/t20")
        assert (await told(browser, "who=nhi:bot0*"))["paging"]["total"] == 90
        assert (await told(browser, "who=nhi:*9"))["paging"]["total"] == 9
        assert (await told(browser, "who_kind=user"))["paging"]["total"] == 0
        _, page, _ = await browser.get("/console/access?who=nothing-like-it")
        assert "No known principal fits" in page
        _, page, _ = await browser.get("/console/access?what_kind=tool&page=2")
        links = [link for link in re.findall(r'href="([^"]*)"', page) if "across=2" in link]
        assert links and "page=2" in links[0] and "what_kind=tool" in links[0]


async def test_it_says_where_it_is_not_complete(tmp_path: Path) -> None:
    rules = (
        "p, nhi:planner, prompt:github/*, use, -, -, -, allow\np, user:*, tool:github/get_file, use, -, -, -, allow\n"
    )
    async with browsed(tmp_path, rules=rules) as (running, browser):
        await browser.log_in(VIEWER)
        await listed(running)
        assert (await told(browser, "who=nhi:planner"))["open"] == ["prompt:github/*"]
        view = await told(browser, "what=tool:github/get_file")
        assert view["open"] == ["user:*"]
        _, page, _ = await browser.get("/console/access?what=tool:github/get_file")
        assert "Not complete" in page and "<code>user:*</code>" in page
        stranger = await told(browser, "who=nhi:plannr")
        assert (stranger["known"], stranger["nearest"]) == (False, "nhi:planner")
        _, page, _ = await browser.get("/console/access?who=nhi:plannr")
        assert "is <a" in page and "nhi:planner" in page


async def test_anonymous_callers_are_a_kind_of_their_own(tmp_path: Path) -> None:
    rules = RULES + "p, anonymous, tool:github/search_code, use, -, -, -, allow\n"
    async with browsed(tmp_path, rules=rules, files=FILES) as (_, browser):
        await browser.log_in(VIEWER)
        view = await told(browser, "who_kind=anonymous&what_kind=tool")
        assert states(view)["anonymous", "tool:github/search_code"] == "allow"
        assert [row["object"] for row in (await told(browser, "who=anonymous"))["rows"]] == ["tool:github/search_code"]
        users = await told(browser, "what=tool:github/search_code&show=allow")
        assert [row["principal"] for row in users["rows"]] == ["anonymous"]


async def test_roles_and_sets_open(tmp_path: Path) -> None:
    async with browsed(tmp_path, rules=RULES, files=FILES) as (_, browser):
        await browser.log_in(VIEWER)
        role = await told(browser, "name=role:readers", "access/group")
        assert [(row["name"], row["is_direct"]) for row in role["rows"]] == [
            ("role:leads", True),
            ("user:alice", True),
            ("user:zoe", False),
        ]
        assert [rule["id"] for rule in role["rules"]] == ["reads"]
        assert (await told(browser, "name=role:leads", "access/group"))["containers"] == ["role:readers"]
        granted = await told(browser, "who=role:leads")
        assert [(row["object"], row["state"]) for row in granted["rows"]] == [("tool:github/get_file", "allow")]
        assert granted["known"] is False and granted["groups"] == ["role:leads", "role:readers"]
        _, page, _ = await browser.get("/console/access?who=role:readers")
        assert "try?as=user%3A~&amp;roles=role%3Areaders&amp;calls=" in page
        inside = await told(browser, "name=set:files", "access/group")
        assert [row["name"] for row in inside["rows"]] == ["tool:github/get_file"]
        for name, status in (("role:nobody", 404), ("user:alice", 400)):
            assert (await browser.get(f"/console/access/group?name={name}"))[0] == status


async def test_a_long_list_is_looked_at_window_by_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.admin.access.MAX_ANSWERS", 20)
    rules = "".join(f"p, nhi:bot{n:03}, tool:github/t, use, -, -, -, allow\n" for n in range(45))
    async with browsed(tmp_path, rules=rules) as (_, browser):
        await browser.log_in(VIEWER)
        found: list[str] = []
        for first in (0, 20, 40):
            view = await told(browser, f"what=tool:github/t&from={first}")
            assert view["window"] == {"first": first, "size": min(20, 45 - first), "step": 20, "total": 45}
            found += [row["principal"] for row in view["rows"]]
        assert found == [f"nhi:bot{n:03}" for n in range(45)]
        _, page, _ = await browser.get("/console/access?what=tool:github/t&from=20")
        assert "Look at those before" in page and "from=40" in page
        assert (await told(browser, "what=tool:github/t&from=999"))["window"]["first"] == 40


async def test_rows_of_a_casbin_model_are_asked_as_they_are(tmp_path: Path) -> None:
    more = SETTINGS + NAMES
    async with browsed(tmp_path, files=casbin_files(), settings=more) as (running, browser):
        await browser.log_in(VIEWER)
        await listed(running)
        found = states(await told(browser, "what_kind=tool&who=nhi:planner&show=all"))
        assert found["nhi:planner", "tool:github/search_code"] == "allow"
        assert found["nhi:planner", "tool:github/delete_repo"] == "deny"
        answer = await told(browser, "as=nhi:planner&calls=tool:github/search_code", "try")
        assert answer["answer"]["explanation"]["links"][0]["casbin"]["model"].endswith("agent_to_tool.conf")
        assert (await browser.get("/console/try?as=nhi:planner&calls=tool:github/delete_repo"))[0] == 200
        assert (await browser.get("/console/access"))[0] == 200


async def test_names_of_roles_and_of_what_servers_list_stay_text(tmp_path: Path) -> None:
    role, uri = "role:<img/src=x/onerror=alert(1)>", "x:<img%20src=x>"
    rules = f"p, {role}, resource:github/{uri}, use, -, -, -, allow\n"
    async with browsed(tmp_path, rules=rules, files={"policies/roles.csv": f"g, {HOSTILE}, {role}\n"}) as (_, browser):
        await browser.log_in(VIEWER)
        for path in ("access", f"access?who={quote(HOSTILE)}", f"access/group?name={quote(role)}"):
            status, page, _ = await browser.get(f"/console/{path}")
            assert status == 200 and "<img/" not in page and "<img%" not in page, path
            assert "&lt;img" in page, path
