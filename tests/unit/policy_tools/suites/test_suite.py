"""Does a test pass exactly when the policy answers as it expects?"""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings, strategies as st

from sidecar.limits import Budgets, load_budgets
from sidecar.policy import Engine
from sidecar.policy_tools.suites.loading import read_suites
from sidecar.policy_tools.suites.suite import run_suites
from tests.tables import tables
from tests.unit.policy_tools.suites.rig import HEAD, NOW, REPOSITORY, one, policy, run, self_tested, write

GET = "as: nhi:a, calls: tool:x/get_it"
PUT = "as: nhi:a, calls: tool:x/put"
BUDGETS = """
version: 1
tools:
  "tool:x/*": {requests_per_second: 1, burst: 2, concurrency: 2}
principals:
  user:u: {per_day: 2}
"""

CASES = yaml.load((REPOSITORY / "tests/golden/policy/suite_cases.yaml").read_text("utf-8"), yaml.CSafeLoader)


@pytest.mark.parametrize("case", CASES["answers"] + CASES["repeats"], ids=lambda case: case["test"])
def test_it_passes_exactly_if_the_answer_and_the_limits_are_as_expected(tmp_path: Path, case: dict[str, str]) -> None:
    files = {"budgets.yaml": BUDGETS} if case in CASES["repeats"] else {}
    problems = one(tmp_path, case["test"], files=files)
    assert problems[0].startswith(case["problem"]) if "problem" in case else not problems, problems


PAID = """
version: 1
costs: [{object: "tool:x/*", unit: usd, per_call: 0.02, from_result: _meta.cost, max_per_call: 0.50}]
budgets: [{principal: "nhi:*", unit: usd, per_day: 1.00}]
"""


@pytest.mark.parametrize("expect", tables("policy_tools/suites/suite")["budgets"])
def test_a_repeat_spends_budgets(tmp_path: Path, expect: str) -> None:
    assert not one(tmp_path, f"{PUT}, args: {{repo: ours}}, {expect}", files={"budgets.yaml": PAID})


def test_no_test_feels_the_calls_of_another(tmp_path: Path) -> None:
    twice = "".join(f"- {{name: t{number}, {GET}, repeat: {{times: 3}}, expect: allow}}\n" for number in range(3))
    assert not run(tmp_path, twice).failures


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(times=st.integers(1, 200), every_s=st.integers(1, 4000), per_hour=st.integers(1, 60), start=st.integers(0, 3599))
def test_the_first_refused_call_is_the_one_that_counting_minutes_finds(
    tmp_path: Path, times: int, every_s: int, per_hour: int, start: int
) -> None:
    minutes = [(int(NOW) + start + every_s * index) // 60 for index in range(times)]
    refused = next((i for i in range(times) if sum(m >= minutes[i] - 60 for m in minutes[:i]) >= per_hour), None)
    expected = "allow" if refused is None else f"{{decision: deny, at: {refused + 1}, reason: rate-limited}}"
    now = f"2027-01-15T08:{start // 60:02}:{start % 60:02}Z"
    repeat = f"repeat: {{times: {times}, every: {every_s}s}}"
    budgets = f"version: 1\nprincipals: {{nhi:a: {{per_hour: {per_hour}}}}}\n"
    test = f"now: {now}, {PUT}, args: {{repo: ours}}, {repeat}, expect: {expected}"
    assert not one(tmp_path, test, files={"budgets.yaml": budgets})


def test_a_catalogue_says_what_there_is_to_be_shown(tmp_path: Path) -> None:
    text = (
        "suite: s\ncatalogue: {x: {tools: [get_a, get_b, get_secret, other], prompts: [p]}}\ntests:\n"
        "- {name: tools, as: nhi:a, lists: x, expect: [get_b, get_a]}\n"
        "- {name: prompts, as: nhi:a, lists: x, of: prompts, expect: []}\n"
    )
    assert [result.problems for result in run(tmp_path, text).results] == [(), ()]


def test_what_another_suite_names_changes_no_list(tmp_path: Path) -> None:
    more = f"{HEAD}- {{name: t, as: nhi:a, calls: tool:x/get_more, expect: allow}}\n"
    report = run(tmp_path, "- {name: t, as: nhi:a, lists: x, expect: [put]}\n", files={"tests/more.yaml": more})
    assert (report.count("passed"), report.count("failed")) == (2, 0)


def test_a_skipped_test_is_reported_and_not_run(tmp_path: Path) -> None:
    report = run(tmp_path, f"- {{name: t, {GET}, expect: deny, skip: until the move}}\n", coverage=True)
    assert (report.results[0].outcome, report.count("skipped"), report.failures) == ("skipped", 1, ())
    assert report.coverage.exercised == 0


def test_a_rule_that_does_not_exist_is_said_with_the_nearest(tmp_path: Path) -> None:
    (result,) = run(tmp_path, f"- {{name: t, {GET}, expect: {{decision: allow, rule: raeds}}}}\n").results
    assert result.hint == 'no rule has the id raeds: did you mean "reads"?'


def test_tests_without_a_time_are_asked_at_the_time_of_the_run(tmp_path: Path) -> None:
    text = "suite: s\ntests: [{name: t, as: nhi:a, calls: tool:x/old, expect: {decision: deny, reason: expired}}]\n"
    assert not run(tmp_path, text).failures
    engine, source = policy(tmp_path)
    earlier = run_suites(engine, source, read_suites([tmp_path / "policies" / "tests"]), Budgets(), now_s=1e9)
    assert earlier.failures


# --- coverage ---------------------------------------------------------------------------------------------------------

ALL = {"reads", "ours", "ended", "never", "team", "shadowed", "lends"}


@pytest.mark.parametrize("case", CASES["exercised"], ids=lambda case: case["test"])
def test_a_rule_is_exercised_if_an_answer_rests_on_it(tmp_path: Path, case: dict[str, Any]) -> None:
    coverage = run(tmp_path, f"- {{name: t, {case['test']}}}\n", coverage=True).coverage
    assert {rule.id for rule in coverage.missing} == ALL - {*case["exercised"]}
    assert (coverage.rules, coverage.exercised) == (len(ALL), len(case["exercised"]))


_ROW = st.tuples(
    st.sampled_from(["nhi:a", "nhi:*", "role:r", "nhi:b"]),
    st.sampled_from(["tool:x/t", "tool:x/*", "tool:y/*", "set:s"]),
    st.sampled_from(["use", "tools/*", "prompts/get"]),
    st.sampled_from(["-", "2020-01-01T00:00:00Z", "2040-01-01T00:00:00Z"]),
    st.sampled_from(["-", "args.a == 1"]),
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(rows=st.lists(_ROW, min_size=1, max_size=6, unique=True))
def test_without_the_rules_of_a_denial_it_has_another_reason(tmp_path: Path, rows: list[tuple[str, ...]]) -> None:
    """The judge: a denial rests on exactly the rules without which, and only without which, its reason goes away."""

    def engine_of(some: list[int]) -> Engine:
        lines = [f"#: id=r{i}\np, {s}, {o}, {a}, {e}, -, {w}, allow\n" for i in some for s, o, a, e, w in [rows[i]]]
        keeps = "#: id=keeps\np, nhi:z, tool:z/z, use, -, -, -, allow\n"
        files = {"agent_to_tool.csv": keeps + "".join(lines), "roles.csv": "g, nhi:a, role:r\ng2, tool:x/t, set:s\n"}
        return policy(write(tmp_path, files))[0]

    def reason_of(some: list[int]) -> str | None:
        (test,) = suites[0].tests
        return engine_of(some).decide(test.chain, test.question, NOW).reason

    everything = list(range(len(rows)))
    text = f"{HEAD}- {{name: t, as: nhi:a, calls: tool:x/t, expect: {{decision: deny, rule: none}}}}\n"
    write(tmp_path, {"tests/s.yaml": text})
    suites = read_suites([tmp_path / "policies" / "tests"])
    engine = engine_of(everything)
    _, source = policy(tmp_path)
    (result,) = run_suites(engine, source, suites, Budgets(), now_s=NOW).results
    if result.got.allowed:
        return
    reason, grounds = reason_of(everything), {int(rule[1:]) for rule in result.got.rests_on}
    assert reason_of([i for i in everything if i not in grounds]) != reason or not grounds
    for index in everything:  # each alone is enough for the reason, or is not among the grounds
        alone = reason_of([index])
        assert (alone == reason and alone != "no-matching-rule") <= (index in grounds)
        if index in grounds:
            assert alone == reason


# --- the self-test of a reload ----------------------------------------------------------------------------------------


def test_a_failing_test_is_a_fault_where_its_expectation_stands(tmp_path: Path) -> None:
    assert self_tested(write(tmp_path, {})) == [], "without tests"
    tests = f"{HEAD}- {{name: good, {GET}, expect: allow}}\n- {{name: bad, {GET}, expect: deny}}\n"
    (fault,) = self_tested(write(tmp_path, {"tests/deep/s.yaml": tests}))
    assert (fault.code, fault.line, fault.source[fault.column - 1 :]) == ("T201", 5, "deny}")
    assert fault.message == 'the test "bad" fails: expected deny, got allow'
    assert fault.file.endswith("tests/deep/s.yaml")


def test_a_file_that_cannot_be_read_fails_the_self_test(tmp_path: Path) -> None:
    assert [fault.code for fault in self_tested(write(tmp_path, {"tests/s.yaml": "suite: s\n"}))] == ["Y102"]


def test_the_shipped_tests_cover_the_shipped_policy() -> None:
    engine, source = policy(REPOSITORY)
    suites = read_suites([REPOSITORY / "policies" / "tests"])
    budgets = load_budgets(REPOSITORY / "policies" / "budgets.yaml")
    report = run_suites(engine, source, suites, budgets, now_s=NOW, coverage=True)
    assert (report.failures, report.coverage.missing) == ((), ())
