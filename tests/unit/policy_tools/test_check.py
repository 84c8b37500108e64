"""Do the lints see what is wrong, and are they still where nothing is?

What each of them says stands in tests/golden/policy/catalogue/. Here: what they must not say, what they must see in
other shapes, and that a rule they call pointless can be taken away without changing an answer (the engine judges).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.errors import Fault
from sidecar.policy import Engine, load_policy
from sidecar.policy.grammar import ACTIONS
from sidecar.policy.patterns import covers, glob
from sidecar.policy_tools.check import MAX_TOLD, CheckReport, check, suspicious
from sidecar.policy_tools.check.linted_policy import Granting, LintedPolicy, possible_actions
from sidecar.policy_tools.check.overlaps import PatternCover
from sidecar.policy_tools.check.source_positions import RuleSources
from sidecar.policy_tools.policy_location import PolicyLocation
from sidecar.vocabulary import PermissionKind, Principal, Question

REPOSITORY = Path(__file__).parents[3]
MODELS = REPOSITORY / "models"
NOW_S = 1_800_000_000.0  # 2027-01-15T08:00:00Z
SOMETHING = "p, nhi:other, tool:files/read, tools/call, -, -, -, allow\n"


def row(subject: str, obj: str, actions: str = "tools/call", *more: str, when: str = "-", effect: str = "allow") -> str:
    """A row; `more` are its expiry and its limit."""
    expires, limit = (*more, "-", "-")[:2]
    return f"p, {subject}, {obj}, {actions}, {expires}, {limit}, {when}, {effect}\n"


def denied(when: str) -> str:
    """A deny row with a condition, beside something that is allowed."""
    return SOMETHING + row("*", "tool:x/y", when=when, effect="deny")


def report(folder: Path, files: Mapping[str, str], **given: Any) -> CheckReport:
    for name, text in files.items():
        path = folder / (name if "." in name else f"{name}.csv")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    place = PolicyLocation(MODELS, folder, (), given.pop("names", None), given.pop("programs", frozenset()))
    return check(place, **{"now_s": NOW_S, **given})


def told(folder: Path, files: Mapping[str, str], **given: Any) -> list[str]:
    """Code and line of everything that is told."""
    return [f"{fault.code}:{fault.line}" for fault in report(folder, files, **given).faults]


# --- nothing is wrong -------------------------------------------------------------------------------------------------


def per_hour(principal: str, most: int) -> str:
    return f'version: 1\nprincipals:\n  "{principal}": {{per_hour: {most}}}\n'


ALICE = {"roles": "g, user:alice, role:engineers\n"}
QUIET: Mapping[str, tuple[Mapping[str, str], dict[str, Any]]] = {
    "use on a tool": ({"agent_to_tool": row("nhi:a", "tool:x/y", "use")}, {}),
    "delegate beside a tool's action": ({"agent_to_tool": row("nhi:a", "tool:x/y", "tools/call|delegate")}, {}),
    "every action of an agent": ({"user_to_nhi": row("user:a", "nhi:b", "message/*|tasks/*|push/set|delegate")}, {}),
    "what a server asks back": ({"agent_to_tool": row("nhi:a", "nhi:x", "elicitation/create")}, {}),
    "a deny that closes a server": ({"agent_to_tool": SOMETHING + row("nhi:a", "nhi:x", "*", effect="deny")}, {}),
    "a role of a token, without settings": ({"agent_to_tool": row("role:corp/eng", "tool:x/y")}, {}),
    "a role that an issuer grants": (
        {"agent_to_tool": row("role:corp/eng", "tool:x/y")}, {"granting": [Granting("corp", ("e*",))]}
    ),
    "a role whose members are roles of tokens": (
        {"agent_to_tool": row("role:staff", "tool:x/y"), "roles": "g, role:corp/eng, role:staff\n"},
        {"granting": [Granting("corp")]},
    ),
    "a role used by one that it is in": (
        {"agent_to_tool": row("role:staff", "tool:x/y"), "roles": "g, user:a, role:eng\ng, role:eng, role:staff\n"}, {}
    ),
    "a role used in a condition only": (
        {"agent_to_tool": row("nhi:a", "tool:x/y", when="\"has_role(origin, 'role:engineers')\""), **ALICE}, {}
    ),
    "a role used in a budget only": (
        {"agent_to_tool": SOMETHING, "budgets.yaml": per_hour("role:engineers", 5), **ALICE},
        {},
    ),
    "a deny that covers a part": (
        {"agent_to_tool": row("nhi:a", "tool:x/*"), "guardrails": row("*", "tool:x/delete_*", effect="deny")}, {}
    ),
    "a deny with a condition": (
        {
            "agent_to_tool": row("nhi:a", "tool:x/y")
            + row("*", "tool:x/y", when="has(args.force) && args.force == true", effect="deny")
        },
        {},
    ),
    "a deny for users only": (
        {"agent_to_tool": row("*", "tool:x/y", when="args.n < 3") + row("user:*", "tool:x/y", effect="deny")}, {}
    ),
    "a deny on one member of a set": (
        {
            "agent_to_tool": row("nhi:a", "set:s") + row("*", "tool:x/a", effect="deny"),
            "roles": "g2, tool:x/a, set:s\ng2, tool:x/b, set:s\n",
        },
        {},
    ),
    "two allows that overlap": ({"agent_to_tool": row("nhi:a", "tool:x/a*") + row("nhi:a", "tool:x/*b")}, {}),
    "an allow that is covered until a time": (
        {"agent_to_tool": row("nhi:a", "tool:x/*", "use", "2027-12-01T00:00:00Z") + row("nhi:a", "tool:x/a")}, {}
    ),
    "two limits of others, of other things and of other actions": (
        {
            "agent_to_tool": row("nhi:a", "tool:x/a*", "use", "-", "9")
            + row("nhi:b", "tool:x/*", "use", "-", "9")
            + row("nhi:a", "tool:x/b*", "use", "-", "9")
            + row("nhi:a", "prompt:x/*", "use", "-", "9")
        },
        {},
    ),
    "a limited allow beside one without a limit": (
        {"agent_to_tool": row("nhi:a", "tool:x/a*", "use", "-", "10") + row("nhi:a", "tool:x/*", "use")}, {}
    ),
    "a limit above a wider budget's": (
        {
            "agent_to_tool": row("nhi:a", "tool:x/y", "use", "-", "100"),
            "budgets.yaml": 'version: 1\nprincipals:\n  "nhi:*": {per_hour: 200}\n  nhi:b: {per_hour: 5}\n',
        },
        {},
    ),
    "a limit for each origin, above a budget of each of several": (
        {
            "agent_to_tool": "#: per=origin\n" + row("nhi:*", "tool:x/y", "use", "-", "100", when="args.n < 3"),
            "budgets.yaml": per_hour("nhi:*", 50),
        },
        {},
    ),
    "it ends in a month": ({"agent_to_tool": row("nhi:a", "tool:x/y", "use", "2027-02-15T00:00:00Z")}, {}),
    "a young shadow rule": (
        {"agent_to_tool": SOMETHING + "#: shadow=true created_at=2027-01-01T00:00:00Z\n" + row("*", "tool:x/y")}, {}
    ),
    "numbered servers, tools and ids": (
        {"agent_to_tool": "".join(f"#: id=rule-{n}\n" + row(f"nhi:a{n}", f"tool:srv-{n}/t{n}") for n in range(30))}, {}
    ),
    "two servers that both exist": (
        {"agent_to_tool": "".join(row("nhi:a", f"tool:mail/t{n}") for n in range(5)) + row("nhi:a", "tool:main/t")},
        {"names": frozenset({"mail", "main"})},
    ),
    "a deny that asks with in": (
        {"agent_to_tool": denied("'force' in args && args.force == true")},
        {},
    ),
    "a deny unless a role is there": (
        {"agent_to_tool": denied("\"!has_role(origin, 'role:corp/eng')\"")},
        {},
    ),
    "a deny that asks for what is no name": (
        {"agent_to_tool": denied("'a-b' in args && args['a-b'] == 1")}, {}
    ),
    "a deny unless somebody on the way has a role": (
        {"agent_to_tool": denied("\"!chain.exists(p, has_role(p, 'role:corp/eng'))\"")}, {}
    ),
    "a deny on what contradicts itself, which an absent argument still makes match": (
        {"agent_to_tool": denied("has(args.a) && args.a == 'x' && args.a == 'y'")}, {}
    ),
    "a deny on a claim that is required": (
        {"agent_to_tool": SOMETHING + row("role:corp/temps", "tool:x/y", effect="deny")},
        {"granting": [Granting("corp", (), True)]},
    ),
    "a number in quotes that is compared, not ordered": (
        {"agent_to_tool": row("nhi:a", "tool:x/y", when="args.t != '10'")}, {}
    ),
    "two values, either of them": (
        {"agent_to_tool": row("nhi:a", "tool:x/y", when="args.a == 'x' || args.a == 'y'")}, {}
    ),
    "the shipped example": ({}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", QUIET)
def test_nothing_is_said_of(name: str, tmp_path: Path) -> None:
    files, given_ = QUIET[name]
    if not files:
        found = check(PolicyLocation(MODELS, REPOSITORY / "policies"), now_s=NOW_S).faults
        assert not found, found
        return
    assert told(tmp_path, files, **given_) == []


# --- other shapes -----------------------------------------------------------------------------------------------------

SEEN: Mapping[str, tuple[Mapping[str, str], dict[str, Any], list[str]]] = {
    "nothing is denied on a server as a whole by use": (
        {"agent_to_tool": SOMETHING + row("nhi:a", "nhi:x", "use", effect="deny")}, {}, ["P602:2"]
    ),
    "everything, by an action that no tool has": (
        {"agent_to_tool": row("nhi:a", "*", "push/set", when="call.server == 'x'")}, {}, ["P602:1"]
    ),
    "an always true condition": ({"agent_to_tool": row("nhi:a", "tool:x/y", when="1 == 1")}, {}, ["P605:1"]),
    "two numbers at once": (
        {"agent_to_tool": row("nhi:a", "tool:x/y", when="args.n == 5 && args.n == 6")}, {}, ["P605:1"]
    ),
    "false among the parts": (
        {"agent_to_tool": row("nhi:a", "tool:x/y", when="args.a == 'x' && false")}, {}, ["P605:1"]
    ),
    "a set that one pattern covers": (
        {
            "agent_to_tool": row("nhi:a", "set:s") + row("*", "tool:x/*", effect="deny"),
            "roles": "g2, tool:x/a, set:s\ng2, tool:x/b, set:s\n",
        },
        {},
        ["P611:1"],
    ),
    "a role inside a denied role": (
        {
            "user_to_nhi": row("role:a", "nhi:x", "message/send") + row("role:b", "nhi:*", "*", effect="deny"),
            "roles": "g, user:u, role:a\ng, role:a, role:b\n",
        },
        {},
        ["P611:1"],
    ),
    "everybody, where only users are asked": (
        {
            "user_to_nhi": row("role:a", "nhi:x", "use") + row("user:*", "nhi:*", "*", effect="deny"),
            "roles": "g, user:u, role:a\n",
        },
        {},
        ["P611:1"],
    ),
    "the later of two that say the same": (
        {"agent_to_tool": row("nhi:a", "tool:x/y") + row("nhi:a", "tool:x/y", "use")}, {}, ["P612:2"]
    ),
    "covered, with the same condition": (
        {"agent_to_tool": row("nhi:a", "tool:x/*", when="args.n < 3") + row("nhi:a", "tool:x/y", when="args.n < 3")},
        {},
        ["P612:2"],
    ),
    "a daily budget below an hourly limit": (
        {
            "agent_to_tool": row("user:a", "tool:x/y", "use", "-", "100"),
            "budgets.yaml": 'version: 1\nprincipals:\n  "user:*": {per_day: 40}\n',
        },
        {},
        ["P613:1"],
    ),
    "an allow that limits more": (
        {"agent_to_tool": row("nhi:a", "tool:x/*", "use", "-", "100") + row("nhi:a", "tool:x/a", "use", "-", "10")},
        {},
        ["P614:2"],
    ),
    "limits of patterns that some name fits": (
        {"agent_to_tool": row("nhi:a", "tool:x/a*", "use", "-", "9") + row("nhi:a*", "tool:x/*b", "use", "-", "9")},
        {},
        ["P614:2"],
    ),
    "a role's budget": (
        {
            "agent_to_tool": row("user:alice", "tool:x/y", "use", "-", "100"),
            "budgets.yaml": per_hour("role:engineers", 40),
            **ALICE,
        },
        {},
        ["P613:1"],
    ),
    "a slow server": (
        {
            "agent_to_tool": row("user:a", "tool:x/y", "use", "-", "5000"),
            "budgets.yaml": 'version: 1\ntools:\n  "tool:x/*": {requests_per_second: 1}\n',
        },
        {},
        ["P613:1"],
    ),
    "a rate of an agent that is not there": (
        {
            "nhi_to_nhi": row("nhi:a", "nhi:echo", "use"),
            "budgets.yaml": "version: 1\ntools:\n  nhi:echo: {daily_quota: 9}\n  nhi:ehco: {daily_quota: 9}\n",
        },
        {"names": frozenset(), "programs": frozenset({"echo"})},
        ["P608:4"],
    ),
    "a nested argument": (
        {"agent_to_tool": denied("has(args.a.b) && args.a.b == 1")},
        {},
        ["P641:2"],
    ),
    "what the caller writes beside the arguments": (
        {"agent_to_tool": denied("call.meta.trial == true")}, {}, ["P641:2"]
    ),
    "a role of a token, asked in a deny": (
        {"agent_to_tool": denied("\"has_role(origin, 'role:corp/temps')\"")},
        {},
        ["P642:2"],
    ),
    "alike but for a dash, once": (
        {"agent_to_tool": "".join(row("nhi:a-b", f"tool:x/t{n}") for n in range(3)) + row("nhi:a_b", "tool:x/z")},
        {},
        ["P634:4"],
    ),
    "a server whose name is long enough, one letter short": (
        {"agent_to_tool": "".join(row("nhi:a", f"tool:github/t{n}") for n in range(3)) + row("nhi:a", "tool:githb/z")},
        {},
        ["P634:4"],
    ),
    "anonymous beside everybody who was identified": (
        {"agent_to_tool": row("*", "tool:x/y", when="args.n < 3") + row("anonymous", "tool:x/y", when="args.n < 3")},
        {},
        ["P653:2"],
    ),
    "every prompt": ({"agent_to_tool": row("nhi:a", "prompt:*", "use")}, {}, ["P652:1"]),
    "every user": ({"user_to_nhi": row("user:*", "nhi:x", "use")}, {}, ["P651:1"]),
    "a role only members of which no issuer grants": (
        {"agent_to_tool": row("role:staff", "tool:x/y"), "roles": "g, role:corp/eng, role:staff\n"},
        {"granting": [Granting("corp", ("sales",))]},
        ["P604:1"],
    ),
    "a budget that is wrong": (
        {"agent_to_tool": SOMETHING, "budgets.yaml": per_hour("nhi:a", 3).replace("hour", "hours")}, {}, ["Y101:3"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SEEN)
def test_it_is_seen(name: str, tmp_path: Path) -> None:
    files, given_, expected = SEEN[name]
    assert told(tmp_path, files, **given_) == expected


def test_a_model_of_ones_own_is_not_held_against_what_the_shipped_ones_mean(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    for path in MODELS.iterdir():
        text = path.read_text("utf-8").replace("glob(r.obj, p.obj)", "r.obj == p.obj")
        (models / path.name).write_text(text, "utf-8")
    (tmp_path / "policies").mkdir()
    rows = row("nhi:a", "tool:x/y") + row("nhi:a", "tool:x/*", effect="deny")
    (tmp_path / "policies" / "agent_to_tool.csv").write_text(rows, "utf-8")
    own = check(PolicyLocation(models, tmp_path / "policies"), now_s=NOW_S)
    shipped = check(PolicyLocation(MODELS, tmp_path / "policies"), now_s=NOW_S)
    assert [fault.code for fault in own.faults] == []
    assert [fault.code for fault in shipped.faults] == ["P611"]


def test_of_one_code_so_many_are_told_and_the_rest_is_counted(tmp_path: Path) -> None:
    found = report(tmp_path, {"agent_to_tool": "".join(row("*", f"tool:x/t{n}") for n in range(MAX_TOLD + 30))})
    assert [fault.code for fault in found.faults] == ["P651"] * MAX_TOLD
    assert found.left_out == {"P651": 30}


@pytest.mark.parametrize("kind", list(PermissionKind))
def test_every_action_is_asked_of_something(kind: PermissionKind) -> None:
    everything = possible_actions(kind, ("tool", "prompt", "resource", "nhi"))
    other = PermissionKind.AGENT_TO_TOOL if kind is not PermissionKind.AGENT_TO_TOOL else PermissionKind.USER_TO_NHI
    assert everything | possible_actions(other, ("nhi",)) == ACTIONS


# --- patterns ---------------------------------------------------------------------------------------------------------

PATTERNS = st.text("ab*", max_size=5)


@settings(max_examples=150)
@given(st.lists(PATTERNS, max_size=40), PATTERNS)
def test_the_patterns_that_cover_a_name_are_those_that_one_finds_by_trying_each(patterns: list[str], text: str) -> None:
    expected = {pattern for pattern in patterns if covers(pattern, text)}
    found = PatternCover(patterns).covering(text)
    assert set(found) == expected and len(found) == len(expected)


@settings(max_examples=100)
@given(PATTERNS, PATTERNS, st.text("ab", max_size=6))
def test_what_fits_a_covered_pattern_fits_the_covering_one(outer: str, inner: str, text: str) -> None:
    assert not (covers(outer, inner) and glob(text, inner)) or glob(text, outer)


# --- the engine judges ------------------------------------------------------------------------------------------------

SUBJECTS = ["user:a", "user:b", "user:*", "nhi:n", "nhi:*", "*", "role:r", "role:s", "anonymous"]
OBJECTS = ["tool:x/a", "tool:x/*", "tool:*", "prompt:x/p", "resource:x/u", "set:s", "set:t", "*", "nhi:x"]
ACTS = ["use", "tools/call", "prompts/get", "tools/*", "*", "tools/call|resources/read"]
WHENS = [
    "-",
    "-",
    "-",
    "args.a == 'x' && args.a == 'y'",
    "principal.kind == 'user'",
    "1 == 2",
    "principal.kind == 'job'",
]
ENDS = ["-", "-", "2027-06-01T00:00:00Z", "2028-01-01T00:00:00Z", "2026-01-01T00:00:00Z"]
ROLES = """g, user:a, role:r
g, role:r, role:s
g, nhi:n, role:s
g2, tool:x/a, set:s
g2, set:s, set:t
g2, prompt:x/p, set:t
"""
ROWS = st.tuples(
    *map(st.sampled_from, (SUBJECTS, OBJECTS, ACTS, ENDS, ["-", "5", "9"], WHENS, ["allow", "allow", "deny"]))
)
ASKED = {
    "tools/call": ("tool:x/a", "tool:x/b", "tool:y/a"),
    "prompts/get": ("prompt:x/p", "prompt:x/q"),
    "resources/read": ("resource:x/u",),
}
QUESTIONS = [
    Question(obj, action, obj.partition(":")[2].partition("/")[0], obj.partition("/")[2])
    for action, objects in ASKED.items()
    for obj in objects
]
CHAINS = [(Principal(name),) for name in ("user:a", "user:b", "nhi:n", "nhi:m", "anonymous")]
POINTLESS = {"P602", "P605", "P611", "P612", "P621"}


def line_of(parts: tuple[str, ...]) -> str:
    subject, obj, act, ends, limit, when, effect = parts
    if effect == "deny":
        limit = "-"
    return f"p, {subject}, {obj}, {act}, {ends}, {limit}, {when}, {effect}"


def answers(folder: Path, lines: list[str]) -> list[object]:
    (folder / "agent_to_tool.csv").write_text("\n".join([*lines, SOMETHING]), "utf-8")
    engine = Engine(load_policy(MODELS, folder))
    return [engine.decide(chain, question, NOW_S).allowed for chain in CHAINS for question in QUESTIONS]


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(ROWS, min_size=2, max_size=7, unique_by=line_of))
def test_a_rule_that_is_called_pointless_can_be_taken_away(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, ...]]
) -> None:
    folder = tmp_path_factory.mktemp("judged")
    (folder / "roles.csv").write_text(ROLES, "utf-8")
    lines = [line_of(parts) for parts in rows]
    before = answers(folder, lines)
    found = check(PolicyLocation(MODELS, folder), now_s=NOW_S).faults
    pointless = {fault.line for fault in found if is_pointless(fault) and fault.line <= len(lines)}
    for taken in [pointless, *({line} for line in pointless)]:
        rest = [line for number, line in enumerate(lines, start=1) if number not in taken]
        assert answers(folder, rest) == before, f"without {sorted(taken)}:\n" + "\n".join(lines)


def is_pointless(fault: Fault) -> bool:
    return fault.code in POINTLESS and (fault.code != "P605" or "never matches" in fault.message)


# --- size -------------------------------------------------------------------------------------------------------------


def many(folder: Path, count: int) -> LintedPolicy:
    """Rules for agents and roles, wildcards among them, and denials."""
    folder.mkdir()
    subjects = [f"nhi:a{n % 997}" if n % 3 else f"role:r{n % 101}" for n in range(count)]
    rows = [row(subject, f"tool:srv{n % 31}/t{n}*", "use") for n, subject in enumerate(subjects)]
    denies = [row(f"nhi:a{n}*", f"tool:*/delete_{n}*", effect="deny") for n in range(count // 20)]
    links = [f"g, user:u{n}, role:r{n % 101}\n" for n in range(count // 10)]
    for name, lines in (("agent_to_tool", rows), ("guardrails", denies), ("roles", links)):
        (folder / f"{name}.csv").write_text("".join(lines), "utf-8")
    source = load_policy(MODELS, folder)
    return LintedPolicy(source, RuleSources({kind: model.columns for kind, model in source.models.items()}), NOW_S)


def test_the_time_grows_with_the_number_of_rules_and_not_with_its_square(tmp_path: Path) -> None:
    def spent_s(count: int) -> float:
        policy = many(tmp_path / str(count), count)
        begin = time.process_time()
        suspicious(policy)
        return time.process_time() - begin

    small, large = spent_s(600), spent_s(600 * 12)
    assert large < 5 * 12 * max(small, 0.01)  # the square would be 144 times as much
