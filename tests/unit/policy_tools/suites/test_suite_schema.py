"""What may stand in a file of policy tests, and what is refused at its place?"""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from sidecar.cli.config import schema_of
from sidecar.errors import PolicyError
from sidecar.policy_tools.suites import read_suites
from sidecar.settings.yaml_document import read_document
from tests.unit.policy_tools.suites.rig import HEAD, REPOSITORY, faults

SHIPPED = REPOSITORY / "policies" / "tests" / "shipped.yaml"
CALL = "as: nhi:a, calls: tool:x/y, expect: allow"

# A test, the text where it is wrong, the code of the fault, and words of it.
WRONG = [
    ("as: nhi:a, cals: tool:x/y, expect: allow", "cals", "Y101", 'did you mean "calls"'),
    ("as: nhi:a, expect: allow", "{name", "T107", "either calls or lists"),
    ("as: nhi:a, calls: tool:x/y, lists: x, expect: allow", "{name", "T107", "either calls or lists"),
    ("calls: tool:x/y, expect: allow", "{name", "Y102", '"as" is missing'),
    ("as: nhi:a, calls: tool:x/y", "{name", "Y102", '"expect" is missing'),
    ("as: [], calls: tool:x/y, expect: allow", "as:", "Y104", "at least 1"),
    ("as: role:team, calls: tool:x/y, expect: allow", "role:team", "T102", "a role never calls"),
    ("as: alice, calls: tool:x/y, expect: allow", "alice", "T102", "is not user:"),
    ('as: "user:*", calls: tool:x/y, expect: allow', '"user:*', "T102", "wildcard"),
    ('as: "user:a,b", calls: tool:x/y, expect: allow', '"user:a,b', "T102", "no name"),
    ("as: [user:a, nhi:b, user:a], calls: tool:x/y, expect: allow", "as:", "T102", "twice"),
    ("as: [anonymous, nhi:b], calls: tool:x/y, expect: allow", "as:", "T102", "anonymous"),
    (f"roles: {{nhi:b: [role:r]}}, {CALL}", "nhi:b", "T102", "not in the chain"),
    (f"roles: {{nhi:a: [r]}}, {CALL}", "r]", "T102", "role:"),
    (f"scopes: {{nhi:a: [a b]}}, {CALL}", "a b", "Y104", "scope"),
    ("as: nhi:a, calls: tool:x/y, action: tool/call, expect: allow", "tool/call", "T103", 'did you mean "tools/call"'),
    ("as: nhi:a, calls: tool:x/y, action: use, expect: allow", "use", "T103", "stands for several"),
    (
        "as: nhi:a, calls: tool:x/y, action: prompts/get, expect: allow",
        "prompts/get",
        "T103",
        "it is asked as tools/call",
    ),
    ("as: nhi:a, calls: nhi:b, expect: allow", "{name", "Y102", '"action" is missing'),
    ("as: nhi:a, calls: nhi:b, action: tools/call, expect: allow", "tools/call", "T103", "not asked of an nhi"),
    ("as: nhi:a, calls: x/y, expect: allow", "x/y", "T104", "no object"),
    ('as: nhi:a, calls: "tool:x/*", expect: allow', '"tool:x', "T104", "more than one object"),
    ("as: nhi:a, calls: set:some, expect: allow", "set:some", "T104", "more than one object"),
    ('as: nhi:a, calls: "tool:x/ä", expect: allow', '"tool:x', "T104", "U+00E4"),
    ("as: nhi:a, calls: 'resource:x/file:///a/../b', expect: allow", "'resource", "T104", "dot segments"),
    ("as: nhi:a, calls: 'resource:X/file:///a', expect: allow", "'resource", "T104", "names no server"),
    ("as: nhi:a, calls: 'resource:x/file:///a', args: {a: 1}, expect: allow", "args", "T107", "without arguments"),
    ("as: nhi:a, calls: prompt:x/p, args: {a: 1}, expect: allow", "args", "T104", "object of strings"),
    ("as: nhi:a, calls: nhi:x, action: ping, args: {a: 1}, expect: allow", "args", "T107", "no rule reads args"),
    (f"now: 2027-01-01, {CALL}", "2027-01-01", "T106", "RFC 3339"),
    (f'now: "-", {CALL}', '"-"', "T106", "at some time"),
    ("as: nhi:a, calls: tool:x/y, expect: alow", "alow", "Y104", 'did you mean "allow"'),
    ("as: nhi:a, calls: tool:x/y, expect: {reason: expired}", "expect", "Y102", '"decision" is missing'),
    (
        "as: nhi:a, calls: tool:x/y, expect: {decision: deny, reason: expird}",
        "expird",
        "T105",
        'did you mean "expired"',
    ),
    (
        "as: nhi:a, calls: tool:x/y, expect: {decision: deny, reason: internal}",
        "internal",
        "T105",
        "no test of a policy sees",
    ),
    ("as: nhi:a, calls: tool:x/y, expect: {decision: allow, reason: expired}", "reason", "T107", "belongs to a denial"),
    (
        "as: nhi:a, calls: tool:x/y, expect: {decision: deny, reason: quota-spent}",
        "quota-spent",
        "T107",
        "one call alone",
    ),
    ("as: nhi:a, calls: tool:x/y, expect: {decision: deny, at: 2}", "at:", "T107", "there is none"),
    ("as: nhi:a, calls: tool:x/y, expect: [a]", "expect", "T107", "shows no names"),
    ("as: nhi:a, lists: x, expect: allow", "allow", "T107", "what does the list show"),
    ("as: nhi:a, lists: x, action: tools/list, expect: [a]", "action", "T107", "belongs to a call"),
    ("as: nhi:a, lists: X, expect: [a]", "X", "Y104", "no name"),
    ('as: nhi:a, lists: x, expect: ["a b"]', '"a b"', "T104", "no tool can be called"),
    ("as: nhi:a, lists: x, of: tool, expect: [a]", "tool", "Y104", 'did you mean "tools"'),
    (f"repeat: {{times: 0}}, {CALL}", "0", "Y104", "at least 1"),
    (f"repeat: {{times: 2, every: soon}}, {CALL}", "soon", "Y103", "no duration"),
    ("repeat: {times: 2}, as: nhi:a, calls: tool:x/y, expect: {decision: deny, at: 3}", "3", "T107", "only 2 calls"),
    ("repeat: {times: 2}, as: nhi:a, lists: x, expect: [a]", "repeat", "T107", "no limit of the policy"),
    (f"skip: true, {CALL}", "true", "Y103", "expected a string"),
]


@pytest.mark.parametrize(("test", "at", "code", "words"), WRONG, ids=[f"{code} {test}" for test, _, code, _ in WRONG])
def test_what_cannot_be_meant_is_refused_at_its_place(
    tmp_path: Path, test: str, at: str, code: str, words: str
) -> None:
    found = faults(tmp_path, f"{HEAD}- {{name: t, {test}}}\n")
    told = "\n".join(map(str, found))
    assert [(fault.line, fault.code) for fault in found] == [(4, code)], told
    assert found[0].source[found[0].column - 1 :].startswith(at), told
    assert words in told


WHOLE = [
    ("", 0, "Y102", "empty"),
    ("suite: s\ntests: []\n", 2, "Y104", "at least 1"),
    ("suit: s\ntests: [{name: t, as: nhi:a, calls: tool:x/y, expect: allow}]", 1, "Y101", 'did you mean "suite"'),
    (f"{HEAD}- {{name: t, {CALL}}}\n- {{name: t, {CALL}}}\n", 5, "T101", "same name"),
    (f"catalogue: {{x: [one]}}\n{HEAD}- {{name: t, as: nhi:a, lists: x, expect: [onne]}}\n", 5, "T104", '"one"'),
    (f"catalogue: {{x: ['a b']}}\n{HEAD}- {{name: t, {CALL}}}\n", 1, "T104", "no tool can be called"),
    (f"version: 2\n{HEAD}- {{name: t, {CALL}}}\n", 1, "Y104", "known values"),
    (f'{HEAD}- {{name: "a\\nb", {CALL}}}\n', 4, "Y104", "one line"),
]


@pytest.mark.parametrize(("text", "line", "code", "words"), WHOLE)
def test_a_file_that_does_not_hold_together_is_refused(
    tmp_path: Path, text: str, line: int, code: str, words: str
) -> None:
    found = faults(tmp_path, text)
    told = "\n".join(map(str, found))
    assert (line, code) in [(fault.line, fault.code) for fault in found], told
    assert words in told


def test_all_faults_of_all_files_are_told_at_once(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(f"{HEAD}- {{name: t, as: bob, cals: x, expect: allow}}\n", "utf-8")
    with pytest.raises(PolicyError) as refused:
        read_suites([tmp_path])
    assert [(Path(fault.file).name, fault.code) for fault in refused.value.faults] == [
        ("a.yaml", "T102"),
        ("a.yaml", "Y101"),
        ("b.yaml", "T102"),
        ("b.yaml", "Y101"),
    ]


def test_tests_are_found_at_any_depth_and_hidden_names_are_not_tests(tmp_path: Path) -> None:
    text = f"{HEAD}- {{name: t, {CALL}}}\n"
    for name in ("a.yaml", "b/c/d.yml", "..data/a.yaml", ".hidden.yaml"):
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    (tmp_path / "tests" / "b" / "up").symlink_to(tmp_path / "tests")
    found = read_suites([tmp_path / "tests", tmp_path / "tests" / "a.yaml"])
    assert [Path(suite.file).name for suite in found] == ["a.yaml", "d.yml"]


@pytest.mark.parametrize(("name", "code"), [("refunds.yml~", "T002"), ("README.md", "T002"), ("gone.yaml", "T001")])
def test_a_file_that_is_no_test_is_a_fault(tmp_path: Path, name: str, code: str) -> None:
    if code == "T001":
        (tmp_path / name).symlink_to(tmp_path / "nowhere")
    else:
        (tmp_path / name).write_text("", "utf-8")
    with pytest.raises(PolicyError) as refused:
        read_suites([tmp_path])
    assert [fault.code for fault in refused.value.faults] == [code]


def test_work_without_end_is_refused(tmp_path: Path) -> None:
    repeat = "repeat: {times: 100000}"
    tests = "".join(f"- {{name: t{number}, {repeat}, {CALL}}}\n" for number in range(11))
    (fault,) = faults(tmp_path, HEAD + tests)
    assert (fault.code, "1000000 calls" in fault.message) == ("T003", True)


# --- the schema for editors -------------------------------------------------------------------------------------------


def test_the_schema_takes_what_the_reader_takes() -> None:
    assert read_suites([SHIPPED])
    jsonschema.Draft202012Validator.check_schema(schema_of("test"))
    jsonschema.validate(read_document(SHIPPED).data, schema_of("test"))


def test_every_key_of_the_schema_is_described() -> None:
    document = schema_of("test")
    for name, node in {"the file": document, **document["$defs"]}.items():
        for key, value in node["properties"].items():
            assert value.get("description"), f"{name}.{key}"


@pytest.mark.parametrize(
    "test",
    [
        {"as": "nhi:a", "cals": "tool:x/y", "expect": "allow"},
        {"as": "nhi:a", "calls": "tool:x/y", "expect": "alow"},
        {"as": "nhi:a", "calls": "tool:x/y", "action": "tool/call", "expect": "allow"},
        {"as": "nhi:a", "calls": "tool:x/y", "expect": {"decision": "deny", "reason": "expird"}},
        {"calls": "tool:x/y", "expect": "allow"},
    ],
)
def test_the_schema_refuses_what_an_editor_can_know(test: dict[str, object]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"suite": "s", "tests": [{"name": "t", **test}]}, schema_of("test"))
