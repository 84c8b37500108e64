"""Runs a policy's own tests, on the engine and the limiter that serve.

suite_schema    what a test file may contain (value_types: its kinds of values)
loading         reads the tests
execution       runs one test
deciding_rules  the rules that an answer rests on, and so the rules that no test exercises
suite           all of them: read_suites, run_suites; self_test for a reload
"""

from sidecar.policy_tools.suites.deciding_rules import CoveredRules
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
