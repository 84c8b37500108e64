"""Policy tests of calls that wait for a person's approval."""

from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from sidecar.cli.config import schema_of
from sidecar.policy_tools.suites.report import data, junit, text
from tests.unit.policy_tools.suites.rig import HEAD, faults, one, run

ROWS = """
#: id=deletes approval=role:oncall within=1h valid=2h reason=required
p, nhi:a, tool:x/delete, tools/call, -, 2, -, allow
#: id=reads
p, nhi:a, tool:x/get, tools/call, -, -, -, allow
"""
USERS = "#: id=lends approval=role:lead\np, user:u, nhi:a, delegate, -, -, -, allow\n"
ROLES = "g, user:dmitri, role:oncall\ng, user:u, role:oncall\ng, nhi:b, role:oncall\ng, role:lead, role:oncall\n"
FILES = {"agent_to_tool.csv": ROWS, "user_to_nhi.csv": USERS, "roles.csv": ROLES}
DELETE = "as: nhi:a, calls: tool:x/delete"
LENT = "as: [user:u, nhi:a], calls: tool:x/delete"


@pytest.mark.parametrize(
    ("test", "problem"),
    [
        (f"{DELETE}, expect: approval", ""),
        (f"{DELETE}, expect: {{decision: approval, rule: deletes}}", ""),
        (
            f"{DELETE}, expect: allow",
            "expected allow, got approval (deletes demands the approval of role:oncall, within 1h, valid for 2h,"
            " with a reason)",
        ),
        (f"{DELETE}, expect: deny", "expected deny, got approval (deletes demands"),
        (f"{DELETE}, approved_by: user:dmitri, expect: allow", ""),
        (f"{DELETE}, approved_by: user:dmitri, expect: approval", "expected approval, got allow"),
        (
            f"{DELETE}, approved_by: user:ida, expect: allow",
            "expected allow, got approval (user:ida does not have role:oncall)",
        ),
        (f"{DELETE}, approved_by: user:ida, expect: approval", ""),
        (f"{DELETE}, approved_by: user:ida, roles: {{user:ida: [role:oncall]}}, expect: allow", ""),
        (f"{LENT}, expect: approval", ""),
        (f"{LENT}, approved_by: user:u, expect: allow", "expected allow, got approval (user:u is in the chain)"),
        (
            f"{LENT}, approved_by: user:dmitri, expect: allow",
            "expected allow, got approval (no one with role:lead has approved it)",
        ),
        (
            f"{LENT}, approved_by: [user:dmitri, user:ida], roles: {{user:ida: [role:boss]}}, expect: allow",
            "expected allow, got approval (user:ida does not have role:lead or role:oncall)",
        ),
        (f"{LENT}, approved_by: [user:dmitri, user:lea], roles: {{user:lea: [role:lead]}}, expect: allow", ""),
        (f"{LENT}, approved_by: user:eve, roles: {{user:eve: [role:lead]}}, expect: allow", ""),
        (
            "as: nhi:a, calls: tool:x/get, approved_by: user:dmitri, expect: allow",
            "expected user:dmitri to approve it, but no rule requires an approval",
        ),
        ("as: nhi:a, calls: tool:x/get, expect: approval", "expected approval, got allow"),
        ("as: nhi:c, calls: tool:x/get, expect: approval", "expected approval, got deny (no-matching-rule)"),
        ("as: nhi:c, calls: tool:x/get, approved_by: user:dmitri, expect: deny", ""),
        (
            f"{DELETE}, approved_by: user:dmitri, repeat: {{times: 3}},"
            " expect: {decision: deny, at: 3, reason: rate-limited}",
            "",
        ),
        (f"{DELETE}, repeat: {{times: 3}}, expect: approval", ""),
        ("as: nhi:a, lists: x, expect: [delete, get]", ""),
    ],
)
def test_a_call_waits_until_a_person_who_may_has_approved_it(tmp_path: Path, test: str, problem: str) -> None:
    problems = one(tmp_path, test, files=FILES)
    assert problems[0].startswith(problem) if problem else not problems, problems


def test_only_a_user_approves(tmp_path: Path) -> None:
    found = faults(tmp_path, f"{HEAD}- {{name: t, {DELETE}, approved_by: nhi:b, expect: allow}}\n")
    assert [(fault.code, fault.message) for fault in found] == [("T102", '"nhi:b" is not a person')]


@pytest.mark.parametrize(
    ("test", "message"),
    [
        (f"{DELETE}, expect: {{decision: approval, limits: []}}", "limits are charged after the approval"),
        (f"{DELETE}, expect: {{decision: approval, reason: expired}}", "reason applies only to a denial"),
        ("as: nhi:a, lists: x, expect: approval", "the names that the list shows are missing"),
        ("as: nhi:a, lists: x, expect: {decision: approval, shows: []}", "a list never waits for an approval"),
        ("as: nhi:a, lists: x, approved_by: user:u, expect: []", "approved_by applies only to a call"),
        ("as: nhi:a, calls: nhi:x, action: tools/list, expect: approval", "tools/list never waits for an approval"),
        (f"{DELETE}, roles: {{user:u: [role:oncall]}}, expect: allow", "user:u is not in the chain"),
    ],
)
def test_what_waits_for_no_approval_is_refused(tmp_path: Path, test: str, message: str) -> None:
    found = faults(tmp_path, f"{HEAD}- {{name: t, {test}}}\n")
    assert message in [fault.message for fault in found], found


def test_a_row_that_waits_is_covered_and_every_report_says_so(tmp_path: Path) -> None:
    tests = f"- {{name: waits, {DELETE}, expect: approval}}\n- {{name: forgot, {DELETE}, expect: allow}}\n"
    report = run(tmp_path, tests, files=FILES, coverage=True)
    assert report.coverage is not None
    assert [rule.id for rule in report.coverage.missing] == ["reads", "lends"]
    waits, forgot = data(report, "r", 0.0)["tests"]
    assert waits["expected"] == {"decision": "approval"}
    assert (waits["got"]["decision"], waits["got"]["reason"]) == ("approval", None)
    terms = {"role": "role:oncall", "within_s": 3600.0, "valid_s": 7200.0, "reason": True}
    assert forgot["got"]["approvals"] == [{"rule": "deletes", **terms}]
    assert "approved_by: user:…" in forgot["hint"]
    told = "\n".join(text(report, 0.0))
    assert "expected allow, got approval (deletes demands the approval of role:oncall" in told
    (failure,) = ElementTree.fromstring(junit(report, 0.0)).iter("failure")
    assert failure.get("message", "").startswith("expected allow, got approval")


def test_the_schema_has_both_keys() -> None:
    schema = schema_of("test")
    test = {"name": "t", "as": "nhi:a", "calls": "tool:x/y", "expect": "approval", "approved_by": "user:u"}
    jsonschema.validate({"suite": "s", "tests": [test]}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"suite": "s", "tests": [test | {"expect": "approved"}]}, schema)
