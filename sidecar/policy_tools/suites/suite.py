"""Runs policy test suites: `run_suites` for the command, `self_test` for a reload."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from sidecar.errors import Fault, PolicyError
from sidecar.limits import Budgets
from sidecar.policy import Engine, PolicySource
from sidecar.policy.faults import meant
from sidecar.policy_tools.casbin_calls import asked_rules, known_objects
from sidecar.policy_tools.rule_text import cut
from sidecar.policy_tools.suites import execution
from sidecar.policy_tools.suites.execution import CoveredRules, TestBench, TestOutcome
from sidecar.policy_tools.suites.loading import PolicySuite, PolicyTest, read_suites
from sidecar.vocabulary import RuleRef

FOLDER = "tests"
MAX_FAULTS = 50  # failed tests that a self-test reports, in a log and a banner
_SHOWN_NAMES = 10

Outcome = Literal["passed", "failed", "skipped"]
OnEach = Callable[[int, int], None]


class TestResult(NamedTuple):
    """The result of one test. `got` is None if it was skipped. `problems` are the differences from the expectation;
    `hint` suggests a correction, "" for none."""

    test: PolicyTest
    got: TestOutcome | None = None
    problems: tuple[str, ...] = ()
    hint: str = ""

    @property
    def outcome(self) -> Outcome:
        if self.got is None:
            return "skipped"
        return "failed" if self.problems else "passed"


@dataclass(frozen=True, slots=True)
class SuiteReport:
    """The results of a run, in the order of files, and the rules that were exercised, None without coverage."""

    suites: tuple[PolicySuite, ...]
    results: tuple[TestResult, ...] = field(repr=False)
    coverage: CoveredRules | None = None

    def count(self, outcome: Outcome) -> int:
        return sum(result.outcome == outcome for result in self.results)

    @property
    def failures(self) -> tuple[TestResult, ...]:
        return tuple(result for result in self.results if result.outcome == "failed")


def run_suites(
    engine: Engine,
    source: PolicySource,
    suites: Sequence[PolicySuite],
    budgets: Budgets,
    *,
    now_s: float,
    wanted: Callable[[PolicyTest], bool] = lambda test: True,
    coverage: bool = False,
    on_each: OnEach = lambda done, of: None,
) -> SuiteReport:
    """Runs the `wanted` tests. `now_s` is the time of those without one, in seconds since the epoch; `on_each` is
    called after each test with the number of finished ones and the total."""
    own = replace(budgets)  # a copy, so that the server does not hold plans of tests in its cache
    bench = TestBench(engine, source, own, now_s, exercised=set() if coverage else None)
    objects: frozenset[str] | None = None
    chosen = [(suite, [test for test in suite.tests if wanted(test)]) for suite in suites]
    total, results = sum(len(tests) for _, tests in chosen), []
    for suite, tests in chosen:
        if any(test.listing is not None and test.listing.names is None for test in tests):
            if objects is None:
                named = (rule.object for rule in source.own_rules)
                objects = frozenset((*named, *source.sets.parents, *known_objects(source)))
            bench.known = execution.known_names(objects | suite.named)
        for test in tests:
            results.append(_result(bench, test, source))
            on_each(len(results), total)
    found = execution.covered(asked_rules(source), frozenset(bench.exercised)) if bench.exercised is not None else None
    return SuiteReport(tuple(suites), tuple(results), found)


def self_test(
    engine: Engine, source: PolicySource, policies: Path, budgets: Budgets, *, now_s: float | None = None
) -> list[Fault]:
    """Returns the faults that prevent this policy from being used: faults in its test files, or T201 at the `expect` of
    each of the first MAX_FAULTS failed tests; [] if no test fails. Skipped tests prevent nothing. `now_s` is the time
    of tests without one, None for the present."""
    folder = policies / FOLDER
    if not folder.exists():
        return []
    try:
        suites = read_suites([folder], inside=policies)
    except PolicyError as error:
        return list(error.faults)
    report = run_suites(engine, source, suites, budgets, now_s=time.time() if now_s is None else now_s)
    return [fault_of(result) for result in report.failures[:MAX_FAULTS]]


def fault_of(result: TestResult) -> Fault:
    """Returns the fault T201 of a failed test."""
    test = result.test
    span, source = test.expects_at
    message = f'the test "{test.name}" fails: {"; ".join(result.problems)}'
    return Fault(span.file, span.line, span.column, "T201", message, result.hint, source, span.width)


def _result(bench: TestBench, test: PolicyTest, source: PolicySource) -> TestResult:
    if test.skip:
        return TestResult(test)
    got = bench.run(test)
    problems = tuple(_problems(test, got))
    return TestResult(test, got, problems, _hint(test, got, source.rules) if problems else "")


def _problems(test: PolicyTest, got: TestOutcome) -> Iterator[str]:
    expect = test.expect
    decision = expect.decision or "allow"
    if got.answer != decision:
        yield f"expected {decision}, got {answer_in_words(got)}"
        return
    if test.approvers and got.decision.allowed and not got.decision.approvals:
        names = " and ".join(approver.name for approver in test.approvers)
        yield f"expected {names} to approve it, but no rule requires an approval"
    if expect.reason is not None and got.reason != expect.reason:
        yield f"expected the reason {expect.reason}, got {got.reason}"
    if expect.at is not None and got.at != expect.at:
        yield f"expected call {expect.at} to be the first refused, got call {got.at}"
    if expect.rule is not None and expect.rule not in got.rests_on:
        found = _some(got.rests_on) or "no rule"
        yield f"expected it to rest on {expect.rule}, got {found}"
    if expect.limits is not None:
        yield from _differences("limits", expect.limits, got.limits)
    if expect.shows is not None:
        yield from _differences("names", expect.shows, got.shows or ())


def _differences(what: str, expected: Iterable[str], got: Iterable[str]) -> Iterator[str]:
    if missing := set(expected) - set(got):
        yield f"missing {what}: {_some(missing)}"
    if more := set(got) - set(expected):
        yield f"unexpected {what}: {_some(more)}"


def _some(names: Iterable[str]) -> str:
    return ", ".join(cut(sorted(names), _SHOWN_NAMES))


def answer_in_words(got: TestOutcome) -> str:
    """Returns the answer in words: `allow`, `deny (rate-limited, call 121)`, or `approval (user:bob does not have
    role:oncall)`."""
    if got.allowed:
        return "allow"
    if got.waits:
        return f"approval ({got.waits})"
    return f"deny ({got.reason}, call {got.at})" if got.at else f"deny ({got.reason})"


def _hint(test: PolicyTest, got: TestOutcome, rules: Iterable[RuleRef]) -> str:
    wanted = test.expect.rule
    if wanted is not None and wanted not in got.rests_on:
        ids = {rule.id for rule in rules}
        if wanted not in ids:
            return f"no rule has the id {wanted}" + (f": {near}" if (near := meant(wanted, ids)) else "")
    if got.waits and test.expect.decision == "allow" and not test.approvers:
        return "write expect: approval, or approved_by: user:… for the call as that person approves it"
    listing = test.listing
    if listing is not None and got.allowed and listing.names is None:
        return f"add a catalogue of {listing.server} to the suite, so that its names are known"
    if listing is not None and not got.allowed:
        return "without a grant on the server, the caller receives a denial, not an empty list: write expect: deny"
    return ""
