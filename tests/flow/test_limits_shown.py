"""Who used what, and how much is left: do operators see it, without moving it?"""

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from sidecar.cli import main
from sidecar.limits.memory_store import MemoryCounters
from sidecar.limits.plan import BudgetRule, Budgets, LimitCap
from sidecar.limits.usage_report import MAX_KNOWN, MAX_SHOWN, UsageQuery, UsageReport
from sidecar.vocabulary import Principal
from tests.flow.causes import budgets
from tests.flow.test_admin import SECRET, SETTINGS, VIEW, files, get
from tests.flow.world import World, world
from tests.tables import tables
from tests.unit.limits.test_plan import plan, principals

TABLES = tables("flow/limits_shown")

RULES = TABLES["rules"]
LIMITS = budgets(TABLES["limits"])
GOOD = {"repo": "acme/x"}


async def shown(running: World, query: str = "", secret: str = VIEW) -> Any:
    status, body = await get(running, f"/api/limits{query}", secret)
    return json.loads(body) if status == 200 else status


async def command(running: World, verb: str, *line: str, code: int = 0) -> str:
    """What `sidecar limits` says."""
    arguments = ["limits", verb, "-c", str(running.folder / "sidecar.yaml"), *line]
    result = await asyncio.to_thread(CliRunner().invoke, main, arguments)
    assert result.exit_code == code, result.output
    return result.output


def names(told: Any) -> list[tuple[str, str | None]]:
    return [(one["limit"], one["counted_for"]) for one in told["limits"]]


async def test_an_operator_sees_who_used_what_and_looking_moves_nothing(tmp_path: Path) -> None:
    async with world(tmp_path, rules=RULES, files={**LIMITS, **files()}, settings=SETTINGS) as running:
        for _ in range(4):
            assert (await running.call("search_code", GOOD))[0] == 200
        before = await shown(running)
        again = (await shown(running))["limits"]
        uses = [[one["used"] for one in limits if one["kind"] != "rate"] for limits in (before["limits"], again)]
        assert uses[0] == uses[1]
        told = {one["limit"]: one for one in before["limits"]}
        assert before["store"] == "memory" and before["more"] is False
        assert before["limits"][0]["limit"] == "budgets:nhi:*:usd:day"  # the fullest first
        budget = told["budgets:nhi:*:usd:day"]
        assert budget.pop("reset_at").endswith("T00:00:00Z")
        about = {"limit": "budgets:nhi:*:usd:day", "kind": "day", "counted_for": "nhi:planner", "unit": "usd"}
        assert budget == about | {"most": 0.00001, "used": 0.000004, "remaining": 0.000006}
        for name, counted_for in (("rule:search", "nhi:planner"), ("rule:together", None)):
            assert (told[name]["used"], told[name]["counted_for"]) == (4, counted_for)
        assert told["principals:nhi:*:month"]["reset_at"].endswith("-01T00:00:00Z")
        assert (told["tools:tool:files/*:day"]["used"], told["tools:tool:files/*:day"]["reset_at"]) == (0, None)
        assert "principals:user:*:day" not in told


async def test_it_can_be_asked_for_one_principal_one_tool_or_one_limit(tmp_path: Path) -> None:
    async with world(tmp_path, rules=RULES, files={**LIMITS, **files()}, settings=SETTINGS) as running:
        await running.call("search_code", GOOD)
        mine = names(await shown(running, "?principal=nhi:other"))
        own = {"principals:nhi:*:hour", "principals:nhi:*:month", "budgets:nhi:*:usd:day", "rule:others"}
        assert {one for one in mine if one[1]} == {(name, "nhi:other") for name in own}
        of_files = {name for name, _ in names(await shown(running, "?object=tool:files/read"))}
        assert of_files == {"tools:tool:files/*:day", "principals:nhi:*:hour", "principals:nhi:*:month"}
        assert names(await shown(running, "?limit=budgets:nhi:*")) == [("budgets:nhi:*:usd:day", "nhi:planner")]
        for wrong in ("who=nhi:a", "principal=alice", "object=github", "limit=", "limit=a&limit=b", "principal=%ff"):
            assert await shown(running, f"?{wrong}") == 400, wrong
        assert await shown(running, secret="") == 401


async def test_the_command_prints_lines_for_people_and_json_for_programs(tmp_path: Path) -> None:
    async with world(tmp_path, rules=RULES, files=LIMITS) as running:
        await running.call("search_code", GOOD)
        shown_ = partial(command, running, "show")
        lines = (await shown_("--limit", "budgets:*", "--principal", "nhi:planner")).splitlines()
        budget = ["budgets:nhi:*:usd:day", "nhi:planner", "0.000001", "of", "0.00001", "usd"]
        assert lines[1].split()[:6] == budget
        told = json.loads(await shown_("--tool", "files/read", "--json"))
        assert ("tools:tool:files/*:day", None) in names(told)
        assert "no limit of the name nothing is used:" in await shown_("--limit", "nothing")
        nobody = await shown_("--principal", "user:x", "--limit", "other")
        assert nobody == "no limit of the name other counts user:x\n"
        await shown_("--principal", "alice", code=2)


async def post(running: World, path: str, secret: str, body: bytes) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {secret}"}
    async with running.http.post(running.admin_url + path, data=body, headers=headers) as response:
        return response.status, await response.text()


async def test_an_operator_sets_a_principals_limits_back_and_it_is_on_record(tmp_path: Path) -> None:
    rules = RULES.replace("120", "2")
    async with world(tmp_path, rules=rules, files={**LIMITS, **files()}, settings=SETTINGS) as running:
        calls = [(await running.call("search_code", GOOD))[0] for _ in range(3)]
        assert calls == [200, 200, 429]
        one = await command(running, "reset", "--principal", "nhi:planner", "--limit", "rule:search")
        assert one == "rule:search is unused\n"
        assert (await running.call("search_code", GOOD))[0] == 200
        used = {each["limit"]: each["used"] for each in (await shown(running, "?principal=nhi:planner"))["limits"]}
        assert (used["rule:search"], used["rule:together"], used["principals:nhi:*:hour"]) == (1, 3, 3)
        order = json.dumps({"principal": "nhi:planner"}).encode()
        status, body = await post(running, "/api/limits/reset", SECRET, order)
        names_ = ["budgets:nhi:*:usd:day", "principals:nhi:*:hour", "principals:nhi:*:month", "rule:search"]
        assert (status, json.loads(body)) == (200, {"principal": "nhi:planner", "known": True, "reset": names_})
        used = {each["limit"]: each["used"] for each in (await shown(running, "?principal=nhi:planner"))["limits"]}
        assert {used[name] for name in names_} == {0} and used["rule:together"] == 3, "that is not its own"
        assert (await post(running, "/api/limits/reset", VIEW, order))[0] == 403
        for wrong in (b"{}", b'{"principal": "alice"}', b'{"principal": "nhi:a", "limit": ""}', b'{"who": "nhi:a"}'):
            assert (await post(running, "/api/limits/reset", SECRET, wrong))[0] == 400, wrong
        acts = [each["control"] for each in running.records() if each["event"] == "control"]
        acts = [(act["principal"], act["limits"], act["by"]) for act in acts if act["what"] == "limits-reset"]
        assert [act[:2] for act in acts] == [("nhi:planner", ["rule:search"]), ("nhi:planner", names_)]
        assert acts[0][2].startswith("local:uid=") and acts[1][2] == "admin:operator"


async def test_a_name_or_limit_that_is_unknown_is_not_reset(tmp_path: Path) -> None:
    async with world(tmp_path, rules=RULES, files=LIMITS) as running:
        reset = partial(command, running, "reset", "--principal")
        slip = await reset("nhi:plannner", code=1)
        assert all(said in slip for said in ("no limit is reset", 'did you mean "nhi:planner"?', "--force"))
        assert "rule:" not in await reset("nhi:plannner", "--force")
        assert await reset("user:nobody", "--limit", "*:hour", code=1)
        no = await reset("nhi:planner", "--limit", "rule:serch", code=1)
        assert "no limit of this name counts nhi:planner alone" in no and "rule:search" in no
        acts = [each["control"] for each in running.records()]
        assert [act["principal"] for act in acts if "limits" in (act or {})] == ["nhi:plannner"]


async def test_after_a_reload_who_was_charged_before_is_still_shown(tmp_path: Path) -> None:
    async with world(tmp_path, rules=RULES, files=LIMITS) as running:
        await running.call("search_code", GOOD)
        await running.app.reload("test")
        told = await running.app.limits(UsageQuery(limit="principals:nhi:*:hour"))
        assert [(one["counted_for"], one["used"]) for one in told["limits"]] == [("nhi:planner", 1)]


async def test_a_store_that_is_out_is_said_to_be_out(tmp_path: Path) -> None:
    settings = SETTINGS + 'store: {url: "unix:///nonexistent/valkey.sock"}\n'
    async with world(tmp_path, rules=RULES, files={**LIMITS, **files()}, settings=settings) as running:
        assert await shown(running) == 503
        assert await shown(running, "?limit=nothing") == 503, "that nothing is used is not known"
        order = b'{"principal": "nhi:planner"}'
        assert (await post(running, "/api/limits/reset", SECRET, order))[0] == 503


async def test_what_is_known_and_what_is_shown_have_bounds() -> None:
    store = MemoryCounters(lambda: 0.0)
    entries = principals(BudgetRule("principals", "user:*", True, (LimitCap("hour", 5), LimitCap("day", 5))))
    showing = UsageReport(store)
    showing.take(entries)
    for number in range(MAX_KNOWN + 500):
        await store.reserve(plan(entries, Principal(f"user:{number}")).charges, str(number))
    told, more = await showing.show(UsageQuery(), (), lambda _: frozenset())
    assert len(showing.known) == MAX_KNOWN
    assert (len(told), more) == (MAX_SHOWN, True)
    last = {f"user:{MAX_KNOWN + 499 - number}" for number in range(MAX_SHOWN // 2)}
    assert {one["counted_for"] for one in told} == last  # each with both of its limits
    showing.take(Budgets())
    assert len(showing.known) == MAX_KNOWN
