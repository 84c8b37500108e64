"""Does the policy say what its owners meant? Their own tests, on the engine and the limiter that serve.

suite_file   what may stand in a file of tests (words: its kinds of values)
reading      which tests are there
running      what comes out of one
grounds      which rules an answer rests on, and so which rules no test exercises
suite        all of them: read_suites, run_suites; self_test for a reload
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
