"""Formats the results of policy tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sidecar.policy import Engine, PolicySource
from sidecar.policy_tools.nearest_rules import Misfit, NearestRule, Sought, nearest
from sidecar.policy_tools.suites import CoveredRules, SuiteReport, TestResult
from sidecar.policy_tools.suites.execution import TestOutcome
from sidecar.policy_tools.suites.suite import answer_in_words
from sidecar.policy_tools.suites.suite_schema import Expect
from sidecar.vocabulary import Decision, Link, RuleRef

MAX_TOLD = 100  # failures that are shown in full: more than this usually have one cause
MAX_EXPLAINED = 20  # failures for which the nearest rules are searched, in all rules
MOST_NEAR = 3
MAX_MISSING = 200  # rules that no test exercises, one per line
_MARKS = {"passed": "PASS", "failed": "FAIL", "skipped": "SKIP"}


@dataclass(frozen=True, slots=True)
class Telling:
    """A report, and the policy that its failures are explained by."""

    engine: Engine
    source: PolicySource
    report: SuiteReport
    took_s: float

    def text(self, *, verbose: bool = False) -> Iterator[str]:
        """Yield the report line by line: failures and skipped tests, then the figures. `verbose`: every test."""
        near = self._near()
        told = 0
        for result in self.report.results:
            if result.outcome == "passed" and not verbose:
                continue
            yield _headline(result)
            if result.outcome == "failed":
                told += 1
                yield from _failure(result, near) if told <= MAX_TOLD else ()
        if self.report.coverage is not None:
            yield from _coverage_lines(self.report.coverage)
        yield self.summary()

    def summary(self) -> str:
        """Return `12 passed, 1 failed, 2 skipped in 0.03 s`."""
        report = self.report
        counts = [f"{report.count('passed')} passed", f"{report.count('failed')} failed"]
        if skipped := report.count("skipped"):
            counts.append(f"{skipped} skipped")
        return f"{', '.join(counts)} in {self.took_s:.2f} s"

    def data(self) -> dict[str, Any]:
        """Return the report as plain values."""
        report = self.report
        counts = {outcome: report.count(outcome) for outcome in ("passed", "failed", "skipped")}
        return {
            "revision": self.engine.revision,
            "ok": not report.failures,
            "counts": {"suites": len(report.suites), "tests": len(report.results), **counts},
            "took_s": round(self.took_s, 6),
            "tests": [_result_data(result) for result in report.results],
            "coverage": _coverage_data(report.coverage) if report.coverage else None,
        }

    def _near(self) -> Mapping[int, list[NearestRule]]:
        """Return the nearest rules of the denied links of failed tests, by the identity of the link."""
        failed = [result for result in self.report.failures if result.got and not result.got.decision.allowed]
        links = [(result, link) for result in failed[:MAX_EXPLAINED] for link in _denied(result)]
        if not links:
            return {}
        texts = {condition.digest: text for text, condition in self.source.conditions.items()}
        sought = [self._sought(result, link, texts) for result, link in links]
        found = nearest(sought, self.source.rules, self.source.sets, MOST_NEAR)
        return {id(link): near for (_, link), near in zip(links, found, strict=True)}

    def _sought(self, result: TestResult, link: Link, texts: Mapping[str, str]) -> Sought:
        test, got = result.test, result.got
        assert got is not None
        principal = next(principal for principal in test.chain if principal.name == link.subject)
        server = test.listing.server if test.listing else ""
        if test.session and test.question:
            server = test.question.server
        return Sought(
            kind=link.kind,
            subject=link.subject,
            roles=self.engine.roles_of(principal),
            object=link.object,
            sets=self.source.sets.closure((link.object,)),
            action=link.action,
            now_s=got.now_s,
            outcomes={texts[fact.condition]: fact.outcome for fact in link.facts if fact.condition in texts},
            server=server if link.object == f"nhi:{server}" else "",
        )


def _denied(result: TestResult) -> Iterator[Link]:
    assert result.got is not None
    return (link for link in result.got.decision.links if not link.allowed and not link.rules)


def _failure(result: TestResult, near: Mapping[int, list[NearestRule]]) -> Iterator[str]:
    for problem in result.problems:
        yield f"     {problem}"
    assert result.got is not None
    for link in result.got.decision.links:
        yield f"     {link_in_words(link)}"
        for each in near.get(id(link), ()):
            wrong = "; ".join(map(_misfit_in_words, each.misfits))
            yield f"       near: {_rule_in_words(each.rule)}: {wrong}"
    if result.hint:
        yield f"     hint: {result.hint}"


def _misfit_in_words(misfit: Misfit) -> str:
    adds = misfit.hint and misfit.said not in misfit.hint  # else it repeats the rule's text
    return f"{misfit.part} {misfit.said}" + (f" ({misfit.hint})" if adds else "")


def link_in_words(link: Link) -> str:
    """Return `user_to_nhi: user:alice → nhi:bot, message/send: allow by oncall (policies/user_to_nhi.csv:4)`."""
    answer = "allow" if link.allowed else f"deny, {link.reason}"
    rules = ", ".join(_rule_in_words(rule) for rule in link.rules)
    by = f" by {rules}" if rules else ""
    return f"{link.kind.value}: {link.subject} → {link.object}, {link.action}: {answer}{by}"


def rests_on(decision: Decision) -> Sequence[RuleRef]:
    """Return the rules of the decision's links, each once."""
    found = {(rule.file, rule.line, rule.id): rule for link in decision.links for rule in link.rules}
    return tuple(found.values())


def _headline(result: TestResult) -> str:
    span = result.test.place.span
    where = f"{span.file}:{span.line}:{span.column}"
    reason = f" ({result.test.skip})" if result.outcome == "skipped" else ""
    return f"{_MARKS[result.outcome]} {where}: {result.test.suite}: {result.test.name}{reason}"


def _rule_in_words(rule: RuleRef) -> str:
    return f"{rule.id} ({rule.file}:{rule.line})"


def _coverage_lines(coverage: CoveredRules) -> Iterator[str]:
    figures = f"{coverage.exercised} of {coverage.rules} rules, {coverage.percent:.1f} %"
    yield f"coverage: {figures}" + (", no test exercises:" if coverage.missing else "")
    for rule in coverage.missing[:MAX_MISSING]:
        yield f"  {rule.file}:{rule.line}: {rule.id} ({rule.kind.value})"
    if len(coverage.missing) > MAX_MISSING:
        yield f"  and {len(coverage.missing) - MAX_MISSING} more, all of them in --json"


def _coverage_data(coverage: CoveredRules) -> dict[str, Any]:
    missing = [{"id": r.id, "kind": r.kind.value, "file": r.file, "line": r.line} for r in coverage.missing]
    return {
        "rules": coverage.rules,
        "exercised": coverage.exercised,
        "percent": round(coverage.percent, 3),
        "missing": missing,
    }


def _result_data(result: TestResult) -> dict[str, Any]:
    test, span = result.test, result.test.place.span
    data: dict[str, Any] = {
        "suite": test.suite,
        "name": test.name,
        "file": span.file,
        "line": span.line,
        "column": span.column,
        "outcome": result.outcome,
    }
    if result.got is None:
        return {**data, "skip": test.skip}
    data |= {"expected": _expected_data(test.expect), "got": _got_data(result.got)}
    if result.problems:
        data |= {"problems": list(result.problems), "hint": result.hint or None}
    return data


def _expected_data(expect: Expect) -> dict[str, Any]:
    written = {"decision": "allow", **expect.model_dump(exclude_none=True)}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in written.items()}


def _got_data(got: TestOutcome) -> dict[str, Any]:
    return {
        "decision": "allow" if got.allowed else "deny",
        "reason": got.reason,
        "at": got.at or None,
        "limits": list(got.limits),
        "shows": None if got.shows is None else list(got.shows),
        "rules": [{"id": r.id, "file": r.file, "line": r.line} for r in rests_on(got.decision)],
        "links": [
            {
                "kind": link.kind.value,
                "subject": link.subject,
                "object": link.object,
                "action": link.action,
                "decision": "allow" if link.allowed else "deny",
                "reason": link.reason,
            }
            for link in got.decision.links
        ],
    }


def failure_text(result: TestResult) -> str:
    """Return a failure in a few lines, for reports with limited space."""
    assert result.got is not None
    lines = [*result.problems, f"got: {answer_in_words(result.got)}", *map(link_in_words, result.got.decision.links)]
    return "\n".join([*lines, f"hint: {result.hint}"] if result.hint else lines)
