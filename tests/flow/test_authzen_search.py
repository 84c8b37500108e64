"""AuthZEN's searches list what evaluations permit."""

from pathlib import Path
from typing import Any

import pytest

from sidecar.gateway.decisions import authzen_search
from tests.flow.authzen import ALICE, BOB, FILES, PLANNER, RULES, Answered, ask, authzen_world, question
from tests.flow.authzen_policies import compare
from tests.flow.enforcement import decisions
from tests.flow.world import World

READ = {"name": "read"}
RECORDS = {"subject": ALICE, "action": READ, "resource": {"type": "record"}}


async def search(running: World, searched: str, **asked: Any) -> Answered:
    found = await ask(running, f"search/{searched}", asked)
    assert found.status == 200, found.body
    return found


def ids(found: Answered) -> list[str]:
    return [one.get("id") or one["name"] for one in found.body["results"]]


async def test_searches_agree_with_the_evaluation_of_every_name(tmp_path: Path) -> None:
    counts = await compare(tmp_path, range(40))
    assert counts["found"] > 50 and 60 < counts["complete"] < 120


async def test_resources_subjects_and_actions_are_found(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        found = await search(running, "resource", **RECORDS)
        assert found.body == {
            "page": {"next_token": "", "count": 2},
            "context": {"complete": True},
            "results": [{"type": "record", "id": "101"}, {"type": "record", "id": "102"}],
        }
        record = {"type": "record", "id": "101"}
        found = await search(running, "subject", subject={"type": "user"}, action=READ, resource=record)
        assert found.body["results"] == [{"type": "user", "id": "alice"}, {"type": "user", "id": "bob"}]
        found = await search(running, "action", subject=ALICE, resource={**record, "properties": {"status": "active"}})
        assert found.body["results"] == [{"name": "read"}, {"name": "write"}]
        assert [one["method"] for one in decisions(running)] == ["search/resource", "search/subject", "search/action"]
        first = decisions(running)[0]
        assert (first["event"], first["chain"], first["http_status"], first["reason"]) == (
            "decision",
            ["user:alice"],
            200,
            None,
        )


async def test_what_a_pattern_permits_beyond_the_rows_makes_a_search_incomplete(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        found = await search(running, "resource", **{**RECORDS, "subject": BOB})
        assert ids(found) == ["101", "102"] and found.body["context"] == {"complete": False}
        assert (await ask(running, "evaluation", question(BOB, "read", "record:7"))).body["decision"] is True


async def test_a_role_that_tokens_grant_makes_a_search_of_subjects_incomplete(tmp_path: Path) -> None:
    asked = {"subject": {"type": "user"}, "action": READ, "resource": {"type": "record", "id": "101"}}
    async with authzen_world(tmp_path) as running:
        assert (await search(running, "subject", **asked)).body["context"] == {"complete": True}
        file = running.folder / "sidecar.yaml"
        roles = "roles_from: {claim: groups, namespace: corp}"
        file.write_text(file.read_text().replace("actor_from", f"{roles}\n      actor_from"))
        await running.app.reload(by="test")
        assert (await search(running, "subject", **asked)).body["context"] == {"complete": False}


async def test_the_tools_that_a_server_lists_are_found(tmp_path: Path) -> None:
    rules = (
        RULES
        + "p, nhi:planner, tool:github/*, use, -, -, -, allow\np, nhi:planner, tool:github/gone, use, -, -, -, allow\n"
    )
    async with authzen_world(tmp_path, rules=rules) as running:
        asked = {"subject": PLANNER, "action": {"name": "tools/call"}, "resource": {"type": "tool"}}
        found = await ask(running, "/github/access/v1/search/resource", asked)
        assert ids(found) == ["delete_repo", "get_file", "search_code"] and found.body["context"] == {"complete": True}
        assert running.upstream.calls() == []
        found = await search(running, "resource", **asked)
        assert ids(found) == [f"github/{name}" for name in ("delete_repo", "get_file", "search_code")]
        found = await search(
            running, "resource", **{**asked, "resource": {"type": "mcp_server"}, "action": {"name": "tools/list"}}
        )
        assert ids(found) == ["github"]
        found = await search(running, "action", subject=PLANNER, resource={"type": "tool", "id": "github/get_file"})
        assert ids(found) == ["can_call", "tools/call"]


async def test_what_waits_for_an_approval_is_not_found(tmp_path: Path) -> None:
    waiting = "#: id=asks approval=role:oncall\np, user:alice, tool:records/read/*, use, -, -, -, allow\n"
    row = "#: id=alone approval=role:oncall\np, user:erin, tool:records/read/101, use, -, -, -, allow\n"
    async with authzen_world(tmp_path, rules=RULES + waiting + row) as running:
        assert ids(await search(running, "resource", **RECORDS)) == []
        asked = {"subject": {"type": "user"}, "action": READ, "resource": {"type": "record", "id": "101"}}
        assert ids(await search(running, "subject", **asked)) == ["bob"]
        asked = {"subject": {"type": "user", "id": "erin"}, "resource": {"type": "record", "id": "101"}}
        assert ids(await search(running, "action", **asked)) == []
        assert ids(await search(running, "resource", **{**RECORDS, "subject": BOB})) == ["101", "102"]


async def test_pages_follow_one_another(tmp_path: Path) -> None:
    rows = "".join(f"p, user:alice, tool:records/read/{number}, use, -, -, -, allow\n" for number in range(200, 425))
    async with authzen_world(tmp_path, rules=RULES + rows) as running:
        whole, token, pages = list[str](), "", 0
        while pages == 0 or token:
            page = {"limit": 10, **({"token": token} if token else {})}
            found = await search(running, "resource", **RECORDS, page=page)
            whole, token, pages = whole + ids(found), found.body["page"]["next_token"], pages + 1
        assert whole == sorted(["101", "102", *(str(number) for number in range(200, 425))]) and pages == 23
        first = await search(running, "resource", **RECORDS)
        assert first.body["page"]["count"] == 100
        rest = await search(running, "resource", **RECORDS, page={"token": first.body["page"]["next_token"]})
        assert ids(rest) == whole[100:200]
        assert len(ids(await search(running, "resource", **RECORDS, page={"limit": 10**9}))) == 227
        none = await search(running, "resource", **RECORDS, page={"limit": 0})
        assert ids(none) == [] and none.body["page"]["next_token"]


async def test_a_page_looks_at_so_many_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authzen_search, "MAX_CANDIDATES", 3)
    rows = "".join(f"p, user:carol, tool:records/read/{number}, use, -, -, -, allow\n" for number in range(200, 210))
    rows += "p, user:dora, tool:records/read/2*8, use, -, -, -, allow\n"
    async with authzen_world(tmp_path, rules=RULES + rows) as running:
        asked, token, counts = {**RECORDS, "subject": {"type": "user", "id": "dora"}}, "", list[int]()
        while not counts or token:
            page = (await search(running, "resource", **asked, page={"token": token} if token else {})).body["page"]
            counts, token = [*counts, page["count"]], page["next_token"]
        assert counts == [0, 0, 0, 0, 1]  # patterns are looked at too


async def test_a_token_of_another_search_is_an_error(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        token = (await search(running, "resource", **RECORDS, page={"limit": 1})).body["page"]["next_token"]
        again = {**RECORDS, "page": {"token": token}}
        assert ids(await search(running, "resource", **again)) == ["102"]
        for changed in (
            {**again, "subject": BOB},
            {**again, "context": {"agent": "planner"}},
            {**again, "action": {"name": "write"}},
            {**again, "page": {"token": token, "limit": 2}},
            {**again, "page": {"token": f"{token}A"}},
            {**again, "page": {"token": "é"}},
            {**again, "page": {"token": "bnVsbA"}},
        ):
            assert (await ask(running, "search/resource", changed)).status == 400, changed
        (running.folder / "policies" / "agent_to_tool.csv").write_text(RULES.replace("102", "103"))
        await running.app.reload(by="test")
        status, body, _ = await ask(running, "search/resource", again)
        assert status == 400 and "begin again" in body["error"]


@pytest.mark.parametrize(
    ("searched", "asked"),
    [
        ("resource", {**RECORDS, "resource": {"type": "letter"}}),
        ("resource", {**RECORDS, "subject": {"type": "robot", "id": "r2"}}),
        ("resource", {**RECORDS, "action": {"name": "fly"}}),
        ("subject", {"subject": {"type": "robot"}, "action": READ, "resource": {"type": "record", "id": "101"}}),
        ("subject", {"subject": {"type": "user"}, "action": READ, "resource": {"type": "letter", "id": "101"}}),
        ("action", {"subject": ALICE, "resource": {"type": "letter", "id": "101"}}),
        ("action", {"subject": ALICE, "resource": {"type": "record", "id": "no blanks"}}),
    ],
)
async def test_what_is_unknown_gives_no_results(tmp_path: Path, searched: str, asked: Any) -> None:
    async with authzen_world(tmp_path) as running:
        found = await search(running, searched, **asked)
        assert found.body["results"] == [] and found.body["context"] == {"complete": True}


async def test_keys_and_settings_name_candidates_too(tmp_path: Path) -> None:
    rules = RULES + "p, *, tool:records/read/open, use, -, -, -, allow\n"
    async with authzen_world(tmp_path, rules=rules, files={**FILES, "policies/disabled.yaml": DISABLED}) as running:
        asked = {"subject": {"type": "nhi"}, "action": READ, "resource": {"type": "record", "id": "open"}}
        found = await search(running, "subject", **asked)
        assert ids(found) == ["github", "planner"] and found.body["context"] == {"complete": False}


DISABLED = "version: 1\ndisabled: [nhi:gone]\n"
