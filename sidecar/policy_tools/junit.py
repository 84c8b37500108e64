"""Writes test results as JUnit XML.

Uses the form that Jenkins, GitLab and GitHub's actions support: suites, cases, failures, skipped.
"""

from __future__ import annotations

from itertools import groupby
from xml.etree import ElementTree

from sidecar.policy_tools.suite_report import failure_text
from sidecar.policy_tools.suites import SuiteReport, TestResult


def junit(report: SuiteReport, took_s: float) -> bytes:
    """Return the document. It has one test suite for each file with a test to run."""
    root = ElementTree.Element("testsuites", {"name": "sidecar policy test", **_counts(report.results, took_s)})
    for file, results in groupby(report.results, key=lambda result: result.test.place.span.file):
        _add_suite(root, file, tuple(results))
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _add_suite(root: ElementTree.Element, file: str, results: tuple[TestResult, ...]) -> None:
    name = results[0].test.suite
    suite = ElementTree.SubElement(root, "testsuite", {"name": name, "file": file, **_counts(results, 0.0)})
    for result in results:
        line = str(result.test.place.span.line)
        attributes = {"name": result.test.name, "classname": name, "file": file, "line": line, "time": "0.000"}
        case = ElementTree.SubElement(suite, "testcase", attributes)
        if result.outcome == "skipped":
            ElementTree.SubElement(case, "skipped", {"message": result.test.skip})
        elif result.outcome == "failed":
            failure = ElementTree.SubElement(case, "failure", {"message": result.problems[0], "type": "T201"})
            failure.text = failure_text(result)


def _counts(results: tuple[TestResult, ...], took_s: float) -> dict[str, str]:
    outcomes = [result.outcome for result in results]
    return {
        "tests": str(len(outcomes)),
        "failures": str(outcomes.count("failed")),
        "errors": "0",
        "skipped": str(outcomes.count("skipped")),
        "time": f"{took_s:.3f}",
    }
