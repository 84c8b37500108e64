"""Do the lints see what is wrong, and are they still where nothing is?

What each of them says stands in tests/golden/policy/catalogue/. Here: what they must not say, what they must see in
other shapes, and that a rule they call pointless can be taken away without changing an answer (the engine judges).
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings, strategies as st

from sidecar.errors import Fault
from sidecar.policy import Engine, load_policy
from sidecar.policy.grammar import ACTIONS
from sidecar.policy.patterns import covers
from sidecar.policy_tools.check import MAX_TOLD, CheckReport, check, suspicious
from sidecar.policy_tools.check.linted_policy import Granting, LintedPolicy, possible_actions
from sidecar.policy_tools.check.overlaps import PatternCover
from sidecar.policy_tools.check.source_positions import RuleSources
from sidecar.policy_tools.policy_location import PolicyLocation
from sidecar.vocabulary import ApprovalTerms, PermissionKind, Principal, Question
from tests.unit.policy_tools.traffic import counted_calls

REPOSITORY = Path(__file__).parents[3]
MODELS = REPOSITORY / "models"
NOW_S = 1_800_000_000.0  # 2027-01-15T08:00:00Z
SOMETHING = "p, nhi:other, tool:files/read, tools/call, -, -, -, allow\n"


def row(subject: str, obj: str, actions: str = "tools/call", *more: str, when: str = "-", effect: str = "allow") -> str:
    """A row; `more` are its expiry and its limit."""
    expires, limit = (*more, "-", "-")[:2]
    return f"p, {subject}, {obj}, {actions}, {expires}, {limit}, {when}, {effect}\n"


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


LINTS = yaml.load((REPOSITORY / "tests/golden/policy/lints.yaml").read_text("utf-8"), yaml.CSafeLoader)
CASES = {case["name"]: case for case in LINTS}


@pytest.mark.parametrize("name", CASES)
def test_what_is_told_of(name: str, tmp_path: Path) -> None:
    given_ = CASES[name].get("given", {})
    read = {key: frozenset(value) for key, value in given_.items() if key != "granting"}
    granting = [Granting(*issuer) for issuer in given_["granting"]] if "granting" in given_ else None
    assert told(tmp_path, CASES[name]["files"], granting=granting, **read) == CASES[name].get("told", [])


def test_nothing_is_told_of_the_shipped_example() -> None:
    assert not check(PolicyLocation(MODELS, REPOSITORY / "policies"), now_s=NOW_S).faults


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


@settings(max_examples=50)
@given(st.lists(PATTERNS, max_size=40), PATTERNS)
def test_the_patterns_that_cover_a_name_are_those_that_one_finds_by_trying_each(patterns: list[str], text: str) -> None:
    expected = {pattern for pattern in patterns if covers(pattern, text)}
    found = PatternCover(patterns).covering(text)
    assert set(found) == expected and len(found) == len(expected)


# --- the engine judges ------------------------------------------------------------------------------------------------

SUBJECTS = ["user:a", "user:b", "user:*", "nhi:n", "nhi:*", "*", "role:r", "role:s", "anonymous"]
OBJECTS = ["tool:x/a", "tool:x/*", "tool:*", "prompt:x/p", "resource:x/u", "set:s", "set:t", "*", "nhi:x"]
ACTS = ["use", "tools/call", "prompts/get", "tools/*", "*", "tools/call|resources/read"]
CONTRADICTION = "args.a == 'x' && args.a == 'y'"
WHENS = ["-", "-", "-", CONTRADICTION, "principal.kind == 'user'", "1 == 2", "principal.kind == 'job'"]
ENDS = ["-", "-", "2027-06-01T00:00:00Z", "2028-01-01T00:00:00Z", "2026-01-01T00:00:00Z"]
ROLES = """g, user:a, role:r
g, role:r, role:s
g, nhi:n, role:s
g2, tool:x/a, set:s
g2, set:s, set:t
g2, prompt:x/p, set:t
"""
TERMS = ["", "", "", "role:o", "role:o within=1h", "role:o valid=1h"]
ROWS = st.tuples(
    *map(st.sampled_from, (SUBJECTS, OBJECTS, ACTS, ENDS, ["-", "5", "9"], WHENS, ["allow", "allow", "deny"], TERMS))
)
FEW = (["user:a", "role:r"], ["tool:x/a", "tool:x/*"], ["use", "tools/call"], ["-"], ["-", "5"], ["-"], ["allow"])
ALIKE = st.tuples(*map(st.sampled_from, (*FEW, TERMS)))
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
    subject, obj, act, ends, limit, when, effect, terms = parts
    if effect == "deny":
        limit = terms = "-"
    row = f"p, {subject}, {obj}, {act}, {ends}, {limit}, {when}, {effect}"
    return f"#: approval={terms}\n{row}" if terms.startswith("role:") else f"\n{row}"


def row_of(parts: tuple[str, ...]) -> tuple[str, ...]:
    """What a rule's id is made of, which holds no terms of approvals."""
    return parts[:7]


def answers(folder: Path, lines: list[str]) -> list[object]:
    (folder / "agent_to_tool.csv").write_text("\n".join([*lines, SOMETHING]), "utf-8")
    engine = Engine(load_policy(MODELS, folder))
    decisions = [engine.decide(chain, question, NOW_S) for chain in CHAINS for question in QUESTIONS]
    return [(one.allowed, strictest(rule.approval for rule in one.approvals)) for one in decisions]


def strictest(terms: Iterable[ApprovalTerms | None]) -> object:
    """What several demands for one role come to."""
    found = [one for one in terms if one is not None]
    return found and (min(one.within_s for one in found), min(one.valid_s or 0 for one in found))


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.sampled_from([ROWS, ALIKE]).flatmap(lambda rows: st.lists(rows, min_size=2, max_size=7, unique_by=row_of)))
def test_a_rule_that_is_called_pointless_can_be_taken_away(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, ...]]
) -> None:
    folder = tmp_path_factory.mktemp("judged")
    (folder / "roles.csv").write_text(ROLES, "utf-8")
    lines = [line_of(parts) for parts in rows]
    before = answers(folder, lines)
    found = check(PolicyLocation(MODELS, folder), now_s=NOW_S).faults
    # Each rule has two lines, the upper one for its terms.
    pointless = {fault.line // 2 for fault in found if is_pointless(fault) and fault.line <= 2 * len(lines)}
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


def test_the_work_grows_with_the_number_of_rules_and_not_with_its_square(tmp_path: Path) -> None:
    policies = [many(tmp_path / str(count), count) for count in (200, 200 * 12)]
    small, large = (counted_calls(lambda policy=policy: suspicious(policy))[1] for policy in policies)
    assert large < 3 * 12 * small  # the square would be 144 times as much
