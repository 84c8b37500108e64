"""Formats the results of policy tests: as text, as plain values, and as JUnit XML for CI systems."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any
from xml.etree import ElementTree

from sidecar.policy_tools.rule_text import cut, place
from sidecar.policy_tools.suites.execution import CoveredRules, TestOutcome
from sidecar.policy_tools.suites.suite import SuiteReport, TestResult, answer_in_words
from sidecar.vocabulary import Link

MAX_TOLD = 100  # failures that are shown in full; more than this usually have one cause
MAX_MISSING = 200  # rules that no test exercises, one per line
_MARKS = {"passed": "PASS", "failed": "FAIL", "skipped": "SKIP"}


def text(report: SuiteReport, took_s: float, *, verbose: bool = False) -> Iterator[str]:
    """Yields the report line by line: failures and skipped tests (if `verbose`, every test), coverage, and the
    figures."""
    told = 0
    for result in report.results:
        if result.outcome == "passed" and not verbose:
            continue
        span, reason = result.test.place.span, f" ({result.test.skip})" if result.outcome == "skipped" else ""
        where = f"{span.file}:{span.line}:{span.column}"
        yield f"{_MARKS[result.outcome]} {where}: {result.test.suite}: {result.test.name}{reason}"
        if result.outcome == "failed":
            told += 1
            yield from _failure(result) if told <= MAX_TOLD else ()
    if (coverage := report.coverage) is not None:
        figures = f"{coverage.exercised} of {coverage.rules} rules, {coverage.percent:.1f} %"
        yield f"coverage: {figures}" + (", no test exercises:" if coverage.missing else "")
        missing = [f"{place(rule)}: {rule.id} ({rule.kind.value})" for rule in coverage.missing]
        yield from (f"  {line}" for line in cut(missing, MAX_MISSING, "and {} more, all of them in --json"))
    skipped = f", {count} skipped" if (count := report.count("skipped")) else ""
    yield f"{report.count('passed')} passed, {report.count('failed')} failed{skipped} in {took_s:.2f} s"


def data(report: SuiteReport, revision: str, took_s: float) -> dict[str, Any]:
    counts = {outcome: report.count(outcome) for outcome in ("passed", "failed", "skipped")}
    return {
        "revision": revision,
        "ok": not report.failures,
        "counts": {"suites": len(report.suites), "tests": len(report.results), **counts},
        "took_s": round(took_s, 6),
        "tests": [_result_data(result) for result in report.results],
        "coverage": _coverage_data(report.coverage) if report.coverage else None,
    }


def _failure(result: TestResult) -> Iterator[str]:
    assert result.got is not None
    for line in (*result.problems, *map(link_in_words, result.got.decision.links)):
        yield f"     {line}"
    if result.hint:
        yield f"     hint: {result.hint}"


def link_in_words(link: Link) -> str:
    """Returns `user_to_nhi: user:alice → nhi:bot, message/send: allow by oncall (policies/user_to_nhi.csv:4)`."""
    answer = "allow" if link.allowed else f"deny, {link.reason}"
    rules = ", ".join(f"{rule.id} ({place(rule)})" for rule in link.rules)
    by = f" by {rules}" if rules else ""
    return f"{link.kind.value}: {link.subject} → {link.object}, {link.action}: {answer}{by}"


def _coverage_data(coverage: CoveredRules) -> dict[str, Any]:
    missing = [{"id": r.id, "kind": r.kind.value, "file": r.file, "line": r.line} for r in coverage.missing]
    figures = {"rules": coverage.rules, "exercised": coverage.exercised, "percent": round(coverage.percent, 3)}
    return {**figures, "missing": missing}


def _result_data(result: TestResult) -> dict[str, Any]:
    test, span = result.test, result.test.place.span
    data: dict[str, Any] = {
        "suite": test.suite,
        "name": test.name,
        **{name: getattr(span, name) for name in ("file", "line", "column")},
        "outcome": result.outcome,
    }
    if result.got is None:
        return {**data, "skip": test.skip}
    expected = {"decision": "allow", **test.expect.model_dump(mode="json", exclude_none=True)}
    if test.approvers:
        expected["approved_by"] = [approver.name for approver in test.approvers]
    data |= {"expected": expected, "got": _got_data(result.got)}
    if result.problems:
        data |= {"problems": list(result.problems), "hint": result.hint or None}
    return data


def _got_data(got: TestOutcome) -> dict[str, Any]:
    rules = dict.fromkeys((rule.file, rule.line, rule.id) for link in got.decision.links for rule in link.rules)
    return {
        "decision": got.answer,
        "reason": got.reason,
        "waits": got.waits or None,
        "at": got.at or None,
        "limits": list(got.limits),
        "shows": None if got.shows is None else list(got.shows),
        "rules": [{"id": name, "file": file, "line": line} for file, line, name in rules],
        "approvals": [
            {"rule": rule.id, **rule.approval._asdict()} for rule in got.decision.approvals if rule.approval is not None
        ],
        "links": [
            {
                **{name: getattr(link, name) for name in ("kind", "subject", "object", "action", "reason")},
                "decision": "allow" if link.allowed else "deny",
            }
            for link in got.decision.links
        ],
    }


def junit(report: SuiteReport, took_s: float) -> bytes:
    """Returns the XML document. It has one test suite for each file with a selected test."""
    root = ElementTree.Element("testsuites", {"name": "sidecar policy test", **_counts(report.results, took_s)})
    for file, together in groupby(report.results, key=lambda result: result.test.place.span.file):
        results = tuple(together)
        name = results[0].test.suite
        suite = ElementTree.SubElement(root, "testsuite", {"name": name, "file": file, **_counts(results, 0.0)})
        for result in results:
            _add_case(suite, result)
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _add_case(suite: ElementTree.Element, result: TestResult) -> None:
    test, span = result.test, result.test.place.span
    where = {"classname": test.suite, "file": span.file, "line": str(span.line)}
    case = ElementTree.SubElement(suite, "testcase", {"name": test.name, **where, "time": "0.000"})
    if result.outcome == "skipped":
        ElementTree.SubElement(case, "skipped", {"message": test.skip})
    elif result.outcome == "failed":
        assert result.got is not None
        failure = ElementTree.SubElement(case, "failure", {"message": result.problems[0], "type": "T201"})
        links = map(link_in_words, result.got.decision.links)
        lines = [*result.problems, f"got: {answer_in_words(result.got)}", *links]
        failure.text = "\n".join([*lines, f"hint: {result.hint}"] if result.hint else lines)


def _counts(results: tuple[TestResult, ...], took_s: float) -> dict[str, str]:
    outcomes = [result.outcome for result in results]
    return {
        "tests": str(len(outcomes)),
        "failures": str(outcomes.count("failed")),
        "errors": "0",
        "skipped": str(outcomes.count("skipped")),
        "time": f"{took_s:.3f}",
    }
