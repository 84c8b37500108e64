"""Which regions does a change of policy have, in whose words, and when is it loud that it does not know?"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidecar.policy.conditions import Condition, ConditionContext, Language
from sidecar.policy_tools import glob_algebra
from sidecar.policy_tools.diff import Difference, difference, load, regions
from sidecar.policy_tools.diff.access_changes import Effort
from sidecar.policy_tools.diff.condition_parts import conjuncts, implies, roles_asked
from sidecar.policy_tools.diff.describe import described, exceptions_text, guard_text
from sidecar.policy_tools.git_revisions import Revision
from sidecar.policy_tools.policy_location import in_folder
from sidecar.settings.shipped_files import shipped
from sidecar.vocabulary import Principal, Question
from tests.tables import tables

TABLES = tables("policy_tools/diff")

Files = Mapping[str, str]
BASE = "#: id=base\np, nhi:base, tool:base/base, use, -, -, -, allow\n"


def compared(folder: Path, old: Files | str, new: Files | str) -> Difference:
    """The difference of two policies; a text is rows of agent_to_tool beside one that both have."""
    policies = []
    for name, files in (("old", old), ("new", new)):
        texts = {"agent_to_tool.csv": BASE + files} if isinstance(files, str) else {"agent_to_tool.csv": BASE, **files}
        for file, text in texts.items():
            path = folder / name / "policies" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        policies.append(load(Revision(name, in_folder(folder / name))))
    return difference(*policies)


def lines(found: Difference) -> list[str]:
    """Every region in one line."""
    return [
        " | ".join([region.change, described(region), *exceptions_text(region, 5), *filter(None, [guard_text(region)])])
        for region in found.regions
    ]


def row(text: str, rule_id: str = "r") -> str:
    return f"#: id={rule_id}\np, {text}\n"


GOLDEN = Path(__file__).parents[2] / "golden" / "diff"
CHANGES = yaml.load((GOLDEN / "regions.yaml").read_text("utf-8"), yaml.CSafeLoader)


@pytest.mark.parametrize("case", CHANGES, ids=lambda case: "; ".join(case["regions"]) or "none")
def test_a_change_has_these_regions(tmp_path: Path, case: dict[str, Any]) -> None:
    rows = {side: BASE + case.get("both", "") + case.get(side, "") for side in ("old", "new")}
    files = ({"agent_to_tool.csv": text, "roles.csv": case.get(f"{side} roles", "")} for side, text in rows.items())
    found = compared(tmp_path, *files)
    assert lines(found) == case["regions"]
    assert bool(found.roles) is (case.get("old roles") != case.get("new roles"))


@pytest.mark.parametrize(("allowed", "link", "more", "told"), TABLES["members"])
def test_a_change_of_a_role_or_a_set_is_told_by_its_members(
    tmp_path: Path, allowed: str, link: str, more: str, told: str
) -> None:
    files = {"agent_to_tool.csv": BASE + row(f"{allowed}, use, -, -, -, allow")}
    found = compared(tmp_path, {**files, "roles.csv": link}, {**files, "roles.csv": f"{link}\n{more}"})
    assert lines(found) == [f"wider | {told} × use"]
    assert found.regions[0].witness.object in told


def test_a_guardrail_is_told_as_what_it_leaves_alone(tmp_path: Path) -> None:
    rail = {"guardrails.csv": row("user:*, tool:*/delete_*, tools/call, -, -, -, deny")}
    assert lines(compared(tmp_path / "a", {}, rail)) == ["narrower | user:* × tool:*/delete_* × tools/call"]
    assert lines(compared(tmp_path / "b", rail, {})) == ["wider | user:* × tool:*/delete_* × tools/call"]


def test_many_rows_under_one_deny_are_one_region(tmp_path: Path) -> None:
    grants = "".join(row(f"nhi:n{n}, tool:s{n}/*, use, -, -, -, allow", f"n{n}") for n in range(20))
    denied = grants + row("*, tool:*/delete_*, tools/call, -, -, -, deny")
    found = compared(tmp_path, denied, grants)
    assert lines(found)[0].startswith("wider | * × tool:*/delete_* × tools/call | ") and len(found.regions) == 1
    assert "only where nhi:n0 × tool:s0/* × use (n0); or " in exceptions_text(found.regions[0], 3)[0]


def test_the_order_and_place_of_rows_is_no_difference(tmp_path: Path) -> None:
    one, two = row("nhi:a, tool:s/t, use, -, -, -, allow", "a"), row("nhi:b, tool:s/t, use, -, -, -, allow", "b")
    found = compared(tmp_path, one + two, {"agent_to_tool.csv": two + BASE, "agent_to_tool.more.csv": "\n\n" + one})
    assert not found.anything


def test_what_decides_nothing_is_told_as_what_it_is(tmp_path: Path) -> None:
    old = "#: id=r owner=a@acme.example\np, nhi:a, tool:s/t, use, -, 10, -, allow\n"
    new = '#: id=r owner=b@acme.example per=rule reason="Why not"\np, nhi:a, tool:s/t, use, -, 20, -, allow\n'
    found = compared(tmp_path, old, new)
    assert not found.regions
    assert found.may_be_wider
    told = {edit.field: (edit.old, edit.new, edit.change) for edit in found.rules.changed[0].edits}
    assert told == {
        "max_calls_per_hour": (10, 20, "wider"),
        "per": ("subject", "rule", "unknown"),
        "owner": ("a@acme.example", "b@acme.example", None),
        "reason": (None, "Why not", None),
    }


SAID = "costs: [{object: 'tool:s/*', unit: usd, per_call: 0.1, from_result: _meta.cost, max_per_call: 0.5}]\n"
COST = "costs: [{object: 'tool:s/*', unit: usd, per_call: 0.1}]\n"


@pytest.mark.parametrize(("old", "new", "change"), TABLES["limits"])
def test_a_budget_is_wider_when_it_allows_more(tmp_path: Path, old: str, new: str, change: str | None) -> None:
    both = ({"budgets.yaml": f"version: 1\n{text}\n"} for text in (old, new))
    found = compared(tmp_path, *both)
    assert [edit.change for edit in found.budgets] == ([change] if change else ["wider", "narrower"])
    assert found.may_be_wider is (change != "narrower")


def test_costs_are_told_with_their_amounts(tmp_path: Path) -> None:
    old, new = ({"budgets.yaml": f"version: 1\n{text}"} for text in (COST, SAID))
    assert [edit[:] for edit in compared(tmp_path, old, new).budgets] == [
        ("costs tool:s/* usd", "max_per_call", 0.1, 0.5, "narrower"),
        ("costs tool:s/* usd", "from_result", None, "/_meta/cost", "unknown"),
    ]


# --- loud -------------------------------------------------------------------------------------------------------------


def test_who_leaves_a_role_with_a_budget_may_have_more(tmp_path: Path) -> None:
    files = {"budgets.yaml": "version: 1\nprincipals: {role:slow: {per_hour: 5}}\n"}
    old, new = ({**files, "roles.csv": links} for links in ("g, nhi:base, role:slow", ""))
    found = compared(tmp_path, old, new)
    assert [edit[:] for edit in found.budgets] == [("principals role:slow", "members", 1, 0, "unknown")]
    assert found.may_be_wider
    assert not compared(tmp_path / "same", old, old).may_be_wider


SHIPPED = {path.name: path.read_text() for path in shipped("models").iterdir()}


def test_another_model_makes_its_kind_unknown(tmp_path: Path) -> None:
    models = dict(SHIPPED)
    stricter = models["agent_to_tool.conf"].replace("(glob(r.obj, p.obj) || g2(r.obj, p.obj))", "glob(r.obj, p.obj)")
    assert stricter != models["agent_to_tool.conf"]
    models["agent_to_tool.conf"] = stricter
    found = compared(tmp_path, {}, {f"../models/{name}": text for name, text in models.items()})
    assert [(region.change, region.undecided, region.witness) for region in found.regions] == [("unknown", True, None)]
    assert [(change.kind.value, change.field) for change in found.models] == [("agent_to_tool", "matcher")]
    assert "the model changed" in found.notes[0]
    assert found.may_be_wider


def test_with_domains_every_kind_is_unknown_when_anything_changes(tmp_path: Path) -> None:
    """Each caller is asked with the roles of its own domain, in the shipped models too."""
    files = {f"../models/{name}": text for name, text in SHIPPED.items()}
    own = SHIPPED["agent_to_tool.conf"]
    for old, new in (
        ("r = sub, obj", "r = sub, dom, obj"),
        ("g = _, _\n", "g = _, _, _\n"),
        ("p.sub)", "p.sub, r.dom)"),
    ):
        own = own.replace(old, new)
    files["../models/agent_to_tool.conf"] = own
    files["user_to_nhi.csv"] = "p, role:r, nhi:q, use, -, -, -, allow\n"
    old, new = ({**files, "roles.csv": f"g, user:x/a, role:r, {domain}\n"} for domain in ("x", "y"))
    found = compared(tmp_path, old, new)
    assert {(one.kind, one.change) for one in found.regions} == {
        (kind, "unknown") for kind in ("agent_to_tool", "user_to_nhi")
    }
    assert [link[:2] for link in found.roles] == [("removed", "user:x/a"), ("added", "user:x/a")]
    assert not compared(tmp_path / "same", old, old).anything


OUT = "not worked out"
PATTERNS = "".join(row(f"nhi:a, tool:s/*{n}*, use, -, -, -, allow", f"r{n}") for n in range(10, 40))


@pytest.mark.parametrize(
    ("where", "bound", "low", "old", "added", "noted"),
    [
        (regions, "MAX_DRAFTS", 0, "", "nhi:a, tool:*, use, -, -, -, allow", OUT),
        (regions, "Effort", lambda: Effort(100), PATTERNS, "nhi:*, tool:s/*, use, -, -, args.x == 1, allow", OUT),
        (glob_algebra, "MAX_STATES", 3, "", "nhi:a, tool:*q*z*, use, -, -, -, allow", "too many patterns meet"),
    ],
)
def test_a_change_beyond_a_bound_is_unknown_and_not_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any, bound: str, low: Any, old: str, added: str, noted: str
) -> None:
    new = old + row(added, "new")
    assert [region.undecided for region in compared(tmp_path / "far", old, new).regions] == [False]
    monkeypatch.setattr(where, bound, low)
    found = compared(tmp_path / "near", old, new)
    assert [(region.change, region.undecided) for region in found.regions] == [("unknown", True)]
    assert noted in found.notes[0] and found.may_be_wider


CONDITIONS = yaml.load((GOLDEN / "conditions.yaml").read_text("utf-8"), yaml.CSafeLoader)
IMPLIED = [(*pair, True) for pair in CONDITIONS["implies"]] + [(*pair, False) for pair in CONDITIONS["does not imply"]]


@pytest.mark.parametrize("case", CONDITIONS["parts"], ids=lambda case: case["condition"])
def test_a_condition_is_taken_apart_only_where_that_is_certain(case: dict[str, Any]) -> None:
    assert conjuncts(case["condition"]) == {*case["parts"]}


@pytest.mark.parametrize(("one", "other", "expected"), IMPLIED)
def test_a_part_implies_another_only_where_that_is_certain(one: str, other: str, expected: bool) -> None:
    assert implies(one, other) is expected


@pytest.mark.parametrize("case", CONDITIONS["roles asked"], ids=lambda case: case["condition"])
def test_a_condition_asks_of_the_roles_that_it_names_and_else_of_any(case: dict[str, Any]) -> None:
    Language().compile(case["condition"])
    assert roles_asked(case["condition"]) == (None if case["roles"] is None else frozenset(case["roles"]))


WIDE = row("nhi:a, tool:s/*, use, -, -, -, allow", "wide")
TEN = "nhi:a, tool:s/t, use, -, 10, -, allow"


@pytest.mark.parametrize(
    ("old", "new", "lifted"),
    [
        *TABLES["statements"],
        (WIDE + row(TEN), WIDE + row(TEN.replace("-, allow", "args.x == 1, allow")), ["r"]),
        (WIDE + row(TEN), WIDE + "#: id=r shadow=true\np, " + TEN + "\n", ["r"]),
    ],
)
def test_a_limit_that_is_lifted_is_told_where_the_call_is_still_allowed(
    tmp_path: Path, old: str, new: str, lifted: list[str]
) -> None:
    found = compared(tmp_path, old, new)
    assert [rule.id for rule in found.lifted] == lifted
    assert found.may_be_wider or not lifted


def test_who_leaves_a_limited_role_has_no_limit(tmp_path: Path) -> None:
    rows = BASE + WIDE + row("role:slow, tool:s/*, use, -, 10, -, allow")
    old, new = ({"agent_to_tool.csv": rows, "roles.csv": links} for links in ("g, nhi:a, role:slow", ""))
    found = compared(tmp_path, old, new)
    assert (found.regions, [rule.id for rule in found.lifted], found.may_be_wider) == ((), ["r"], True)


def test_a_raised_amount_is_wider_and_not_unknown(tmp_path: Path) -> None:
    old, new = (row(f"nhi:a, tool:s/t, use, -, -, args.n > 0 && args.n <= {most}, allow") for most in (50, 100))
    found = compared(tmp_path, old, new)
    assert lines(found) == ["wider | nhi:a × tool:s/t × use | when args.n <= 100 && args.n > 0, unless args.n <= 50"]
    assert [edit.change for edit in found.rules.changed[0].edits] == ["wider"]


PARTS = [
    *(f"args.v {compare} {number}" for compare in ("<=", "<", ">=", ">", "==") for number in (-1, 5, 6)),
    *(f"args.v == '{text}'" for text in ("a", "ab", "")),
    *(f"args.v.startsWith('{text}')" for text in ("a", "ab", "")),
    *(f"args.v in {texts}" for texts in (["a"], ["a", "ab"], ["b", ""])),
]
VALUES: list[object] = [5, 6, -1, 0, 5.0, 5.5, -1.5, 1e300, "a", "ab", "abc", "b", "", "5", True, None, ["a"], {"a": 1}]


def test_what_implies_what_is_so_for_the_runtime_too() -> None:
    """A deny row matches on an error too: so an error of the one must be an error of the other, or true."""
    language = Language()
    programs = {text: language.compile(text) for text in PARTS}
    calls = [{"v": value} for value in VALUES] + [{}]
    outcomes = {text: [ran(program, arguments) for arguments in calls] for text, program in programs.items()}
    pairs = [(one, other) for one in PARTS for other in PARTS if one != other and implies(one, other)]
    assert len(pairs) > 40
    for one, other in pairs:
        for mine, theirs, arguments in zip(outcomes[one], outcomes[other], calls, strict=True):
            assert mine != "true" or theirs == "true", (one, other, arguments)
            assert mine == "false" or theirs != "false", (one, other, arguments)


def ran(program: Condition, arguments: dict[str, object]) -> str:
    question = Question("tool:s/t", "tools/call", "s", "t", arguments)
    scene = ConditionContext((Principal("nhi:a"),), 0, question, arguments, 1.8e9, lambda _: frozenset())
    return program.run(scene)[0]


ASKS = "p, nhi:a, tool:s/t, use, -, -, \"args.n <= 5 && has_role(origin, 'role:x')\", allow\n"
ONE, BOTH = "g, user:a, role:x\n", "g, user:a, role:x\ng, user:b, role:x\n"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (ONE, BOTH, "wider | {} | when args.n <= 5 && {} [its members now]"),
        (BOTH, ONE, "narrower | {} | when args.n <= 5 && {} [its members then]"),
        (ONE, "g, user:b, role:x\n", "unknown"),
    ],
)
def test_a_condition_that_asks_a_role_is_another_one_when_the_role_holds_others(
    tmp_path: Path, before: str, after: str, expected: str
) -> None:
    files = {"agent_to_tool.more.csv": ASKS}
    found = compared(tmp_path, {**files, "roles.csv": before}, {**files, "roles.csv": after})
    (line,) = lines(found)
    assert line.startswith(expected.format("nhi:a × tool:s/t × use", "has_role(origin, 'role:x')"))
    assert not compared(tmp_path / "unasked", files, {**files, "roles.csv": "g, user:a, role:y\n"}).regions
