"""Do conditions say no whenever they cannot say yes, however large, deep or odd the arguments are?"""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sidecar.policy.conditions import ConditionContext, Language
from sidecar.policy.grammar import Wrong
from sidecar.vocabulary import Chain, Principal, Question
from tests.drawn import containers
from tests.tables import tables
from tests.unit.policy.world import NOW, at, chain, engine, tool

TABLES = tables("policy/conditions")

LANGUAGE = Language()
CHAIN = (
    Principal("user:alice", roles=frozenset({"role:oncall"}), scopes=frozenset({"read"})),
    Principal("nhi:planner"),
)


def run(text: str, args: Any = None, *, who: Chain = CHAIN, meta: dict[str, Any] | None = None) -> str:
    question = Question("tool:s/t", "tools/call", "s", "t", args or {}, meta or {})
    scene = ConditionContext(who, len(who) - 1, question, question.arguments, NOW, lambda principal: principal.roles)
    return LANGUAGE.compile(text).run(scene)[0]


@pytest.mark.parametrize(
    ("text", "args", "outcome"),
    [
        *TABLES["outcomes"],
        ("args.n > 1", {"n": 2**63}, "true"),
        ("args.n > 1", {"n": 2**64}, "error"),
        ("args.n > 1", {"n": -(2**70)}, "error"),
        ("args.n > 1", {"n": float("nan")}, "false"),
        ("size(args.l) == 2", {"l": [1, {"a": [2**80]}]}, "error"),
        ("args.n + args.n > 0", {"n": 2**62}, "error"),  # overflow
        ("args.s + 'x' == 'x'", {"s": "\ud800"}, "error"),  # a lone surrogate
        ("args.a.b.c == 1", {"a": {"b": {"c": 1, "d": object()}}}, "true"),  # what is not read is not converted
        ("args.a == 1", {"a": object()}, "error"),
        ("args.s.matches('^(a+)+$')", {"s": "a" * 40 + "b"}, "false"),
    ],
)
def test_only_boolean_true_is_true(text: str, args: dict[str, Any], outcome: str) -> None:
    assert run(text, args) == outcome


NUMBERS = list(range(1000))


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("args.l.all(a, args.l.all(b, args.l.all(c, a + b + c >= 0)))", {"l": NUMBERS}),
        ("args.l.all(a, args.l.all(b, a + b >= 0))", {"l": NUMBERS}),
        ("args.l.all(a, a >= 0)", {"l": list(range(20_000))}),  # the runtime's own budget
        ("args.l.all(a, args.m != args.l)", {"l": NUMBERS, "m": [*NUMBERS, 0]}),
        ("args.l.all(a, args.s + args.s != args.s)", {"l": NUMBERS, "s": "a" * 100_000}),
        ("args.l.all(a, args.s.matches('^(a?){500}(b+b+)+$') || true)", {"l": NUMBERS, "s": "a" * 60_000}),
        ("args.s.matches('^(a?){500}(b+b+)+$') || true", {"s": "a" * 2_000_000}),
        ("args.l.map(x, args.l.map(y, args.l)).size() > 0", {"l": list(range(300))}),
        ("args.l == args.l", {"l": list(range(200_000))}),
        ("args.s.contains(args.t) || true", {"s": "a" * 20_000, "t": "a" * 10_000 + "b"}),  # 108 s at 4 MB, measured
        ("args.s.matches(args.t) || true", {"s": "a" * 20_000, "t": "(a?){500}b"}),
    ],
)
def test_what_would_take_too_long_is_an_error(text: str, args: dict[str, Any]) -> None:
    assert run(text, args) == "error"


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("args.l.all(a, a >= 0)", {"l": list(range(9_000))}),
        ("args.l.all(a, a != args.x)", {"l": list(range(9_000)), "x": -1}),
        ("args.l.all(a, a in args.m)", {"l": NUMBERS[:300], "m": NUMBERS}),
        ("args.s.contains('needle')", {"s": "x" * 1_000_000 + "needle"}),
        ("args.s.matches('^x*needle$')", {"s": "x" * 50_000 + "needle"}),
    ],
)
def test_honest_large_arguments_fit_the_budget(text: str, args: dict[str, Any]) -> None:
    assert run(text, args) == "true"


@pytest.mark.parametrize("depth", [100, 100_000])
def test_deep_arguments_end_no_process(depth: int) -> None:
    """The runtime converts by recursion in C: 10,000 levels are a segmentation fault."""
    deep: Any = 1
    for _ in range(depth):
        deep = {"a": deep}
    assert run("args.x.a != 1", {"x": deep}) == "error"
    assert run("args.y == 1", {"x": deep, "y": 1}) == "true"
    assert run("args.l != [1]", {"l": [deep]}) == "error"


def test_a_decision_has_one_budget_for_all_its_conditions(tmp_path: Path) -> None:
    rows = "".join(
        f'p, *, tool:s/t, tools/call, -, -, "args.l.all(x, x in args.m) && args.n == {i}", allow\n' for i in range(50)
    )
    asked = engine(tmp_path, {"agent_to_tool": rows + "p, *, tool:s/t, tools/call, -, -, args.ok == true, allow\n"})
    large = {"l": NUMBERS[:300], "m": NUMBERS, "n": -1, "ok": True}
    outcomes = [fact.outcome for fact in asked.decide(chain("user:a"), tool("s/t", large), NOW).facts]
    assert outcomes.count("false") in range(1, 10)
    assert outcomes.count("error") >= 40


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    containers(st.text(max_size=3), 3),
    max_leaves=12,
)
TEXTS = st.sampled_from(TABLES["parts"])


@given(text=TEXTS, args=st.fixed_dictionaries({}, optional={"a": JSON, "b": JSON}))
def test_no_arguments_break_the_engine(text: str, args: dict[str, Any]) -> None:
    assert run(text, args) in ("true", "false", "error")


@given(args=st.fixed_dictionaries({}, optional={"a": JSON, "b": JSON, "c": JSON}))
def test_leaving_out_what_is_not_read_changes_nothing(args: dict[str, Any]) -> None:
    for text in ("args.a == 'x'", "has(args.a) && args.b.c == 1", "size(args.a) == 0"):
        whole = run(f"size(args) >= 0 && ({text})", args)
        assert whole in (run(text, args), "error")


@pytest.mark.parametrize(("text", "paths", "from_caller"), TABLES["test_what_an_expression_reads_is_known"])
def test_what_an_expression_reads_is_known(text: str, paths: list[str], from_caller: bool) -> None:
    condition = LANGUAGE.compile(text)
    assert [".".join(path) for path in condition.paths] == paths
    assert condition.from_caller is from_caller


@pytest.mark.parametrize(
    ("text", "code", "offset", "hint"),
    [*TABLES["faults"], ("x" * 5000, "P401", 0, ""), ("(" * 500 + "true" + ")" * 500, "P401", 0, "")],
)
def test_a_bad_condition_is_refused_at_its_place(text: str, code: str, offset: int, hint: str) -> None:
    with pytest.raises(Wrong) as wrong:
        LANGUAGE.compile(text)
    assert (wrong.value.code, wrong.value.offset) == (code, offset)
    assert hint in wrong.value.hint


def test_a_fact_tells_what_was_read_and_nothing_else(tmp_path: Path) -> None:
    when = "args.a.b == 1 && (!has(args.q) || now > timestamp('2020-01-01T00:00:00Z'))"
    rows = f"p, *, tool:s/t, tools/call, -, -, {when}, allow"
    asked = engine(tmp_path, {"agent_to_tool": rows})
    decision = asked.decide(chain("user:a"), tool("s/t", {"a": {"b": 1, "secret": 2}, "other": 3}), NOW)
    (fact,) = decision.facts
    assert fact.outcome == "true"
    assert fact.inputs == {"args.a.b": 1, "now": at("2027-01-15T08:00:00Z")}
