"""Runs a policy's own tests, on the engine and the limiter that serve.

suite_schema    what a test file may contain
loading         reads the tests
execution       runs one test; the rules that an answer rests on, and so the rules that no test exercises
suite           all of them: read_suites, run_suites; self_test for a reload
report          their results as text, JSON and JUnit XML
"""

from sidecar.policy_tools.suites.execution import CoveredRules
from sidecar.policy_tools.suites.loading import PolicySuite, PolicyTest, read_suites
from sidecar.policy_tools.suites.suite import FOLDER, SuiteReport, TestResult, fault_of, run_suites, self_test

__all__ = [
    "FOLDER",
    "CoveredRules",
    "PolicySuite",
    "PolicyTest",
    "SuiteReport",
    "TestResult",
    "fault_of",
    "read_suites",
    "run_suites",
    "self_test",
]
