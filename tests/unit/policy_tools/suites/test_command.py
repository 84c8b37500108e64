"""What does `sidecar policy test` say, and with which exit code?"""

import itertools
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.cli.policy import test as command_file
from sidecar.cli.policy.test import changes_in, run_again, test as command
from tests.tables import tables
from tests.unit.policy_tools.suites.rig import HEAD, write

GET = "as: nhi:a, calls: tool:x/get_it"
GOOD = f"{HEAD}- {{name: good, {GET}, expect: allow}}\n"
MIXED = f"""{GOOD}- {{name: "bad <&> one", {GET}, expect: deny}}
- {{name: later, {GET}, expect: deny, skip: the move comes first}}
- {{name: worse, as: nhi:a, calls: tool:z/get_it, expect: allow}}
"""


def invoke(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(command, ["-c", str(folder / "sidecar.yaml"), *arguments])


def test_another_policy_is_held_to_tests(tmp_path: Path) -> None:
    """To the present one's, or to its own."""
    write(tmp_path / "here", {"tests/s.yaml": GOOD})
    other = write(tmp_path / "other", {"agent_to_tool.csv": "p, nhi:b, tool:x/*, use, -, -, -, allow\n"})
    tests = str(tmp_path / "here" / "policies" / "tests")
    assert invoke(tmp_path / "here").exit_code == 0
    assert invoke(tmp_path / "here", tests, "--policy", str(other)).exit_code == 4
    assert invoke(tmp_path / "nowhere", tests, "--policy", str(tmp_path / "here")).exit_code == 0
    assert invoke(tmp_path / "nowhere", "--policy", str(tmp_path / "here")).output.startswith("1 passed")


def test_what_passes_is_said_in_one_line(tmp_path: Path) -> None:
    result = invoke(write(tmp_path, {"tests/s.yaml": GOOD}))
    assert result.exit_code == 0 and re.fullmatch(r"1 passed, 0 failed in [^\n]*\n", result.output)


def test_a_failure_is_told_with_its_links_and_rules(tmp_path: Path) -> None:
    result = invoke(write(tmp_path, {"tests/s.yaml": MIXED}))
    assert result.exit_code == 4
    policies = tmp_path / "policies"
    for line in (
        f"FAIL {policies}/tests/s.yaml:5:10: s: bad <&> one",
        "     expected deny, got allow",
        f"     agent_to_tool: nhi:a → tool:x/get_it, tools/call: allow by reads ({policies}/agent_to_tool.csv:3)",
        f"SKIP {policies}/tests/s.yaml:6:10: s: later (the move comes first)",
        "     expected allow, got deny (no-matching-rule)",
        "     agent_to_tool: nhi:a → tool:z/get_it, tools/call: deny, no-matching-rule",
    ):
        assert line in result.output.splitlines(), result.output
    assert "1 passed, 2 failed, 1 skipped in " in result.output


NEAR = tables("policy_tools/suites/command")["near"]


@pytest.mark.parametrize(("test", "rule", "words"), NEAR, ids=[test for test, _, _ in NEAR])
def test_the_nearest_rule_says_what_did_not_fit(tmp_path: Path, test: str, rule: str, words: str) -> None:
    asked = ["explain", "--policy", str(write(tmp_path, {})), "--now", "2027-06-01T00:00:00Z", *test.split()]
    _, _, near = CliRunner().invoke(main, ["policy", *asked]).output.partition("  nearest rules\n")
    assert near.startswith(f"    {rule}  ") and words in near


def test_json_says_the_same_to_programs(tmp_path: Path) -> None:
    result = invoke(write(tmp_path, {"tests/s.yaml": MIXED}), "--json", "--coverage")
    data = json.loads(result.stdout)
    assert (result.exit_code, data["ok"]) == (4, False)
    assert data["counts"] == {"suites": 1, "tests": 4, "passed": 1, "failed": 2, "skipped": 1}
    assert [test["outcome"] for test in data["tests"]] == ["passed", "failed", "skipped", "failed"]
    bad = data["tests"][1]
    assert (bad["line"], bad["problems"]) == (5, ["expected deny, got allow"])
    assert (bad["expected"], bad["got"]["decision"]) == ({"decision": "deny"}, "allow")
    assert [rule["id"] for rule in bad["got"]["rules"]] == ["reads"]
    assert (data["coverage"]["rules"], data["coverage"]["exercised"]) == (7, 1)
    missing = {rule["id"]: (rule["kind"], rule["line"]) for rule in data["coverage"]["missing"]}
    assert missing["never"] == ("agent_to_tool", 9)
    assert "reads" not in missing


def test_coverage_names_each_rule_that_nothing_rests_on_and_too_little_fails_if_that_was_asked(tmp_path: Path) -> None:
    result = invoke(write(tmp_path, {"tests/s.yaml": GOOD}), "--coverage")
    assert result.exit_code == 0
    assert "coverage: 1 of 7 rules, 14.3 %, no test exercises:" in result.output
    assert f"  {tmp_path}/policies/agent_to_tool.csv:5: ours (agent_to_tool)" in result.output.splitlines()
    for percent, code in (("14", 0), ("15", 4)):
        result = invoke(tmp_path, "--fail-under", percent)
        assert (result.exit_code, "below 15 %" in result.stderr) == (code, code == 4)


def test_a_long_list_of_rules_is_cut_for_people_and_not_for_programs(tmp_path: Path) -> None:
    rows = "".join(f"p, nhi:b, tool:x/n{number}, use, -, -, -, allow\n" for number in range(250))
    write(tmp_path, {"tests/s.yaml": GOOD, "agent_to_tool.more.csv": rows})
    assert "  and 56 more, all of them in --json" in invoke(tmp_path, "--coverage").output.splitlines()
    assert len(json.loads(invoke(tmp_path, "--coverage", "--json").stdout)["coverage"]["missing"]) == 256


FILTERS = tables("policy_tools/suites/command")["filters"]


def test_a_filter_chooses_by_suite_and_name(tmp_path: Path) -> None:
    write(tmp_path, {"tests/s.yaml": MIXED})
    for pattern, names in FILTERS.items():
        chosen = json.loads(invoke(tmp_path, "--filter", pattern, "--json").stdout)["tests"]
        assert [test["name"] for test in chosen] == names


def test_a_filter_that_is_no_expression_is_wrong_usage_and_an_unwritten_report_is_told(tmp_path: Path) -> None:
    assert invoke(write(tmp_path, {"tests/s.yaml": GOOD}), "--filter", "/(/").exit_code == 2
    report, config = str(tmp_path / "no" / "report.xml"), str(tmp_path / "sidecar.yaml")
    told = CliRunner().invoke(main, ["policy", "test", "-c", config, "--junit", report])
    assert (told.exit_code, "report.xml: No such file" in told.stderr) == (1, True)


def test_a_path_may_be_a_file_or_a_folder_anywhere(tmp_path: Path) -> None:
    write(tmp_path, {"tests/s.yaml": MIXED})
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "one.yaml").write_text(GOOD, "utf-8")
    for path, code in (("more", 0), ("more/one.yaml", 0), ("nowhere", 2)):
        assert invoke(tmp_path, str(tmp_path / path)).exit_code == code


def test_no_tests_are_a_failure_only_where_some_were_asked_for(tmp_path: Path) -> None:
    write(tmp_path, {})
    (tmp_path / "empty").mkdir()
    assert invoke(tmp_path).exit_code == 0
    assert "no tests in" in invoke(tmp_path).stderr
    assert invoke(tmp_path, str(tmp_path / "empty")).exit_code == 4
    assert invoke(tmp_path, "--fail-under", "1").exit_code == 4
    write(tmp_path, {"tests/s.yaml": GOOD})
    result = invoke(tmp_path, "--filter", "nothing like it")
    assert (result.exit_code, "no test fits the filter" in result.stderr) == (4, True)


@pytest.mark.parametrize("file", ["tests/s.yaml", "agent_to_tool.csv", "budgets.yaml"])
def test_what_is_invalid_is_told_with_its_place(tmp_path: Path, file: str) -> None:
    result = invoke(write(tmp_path, {"tests/s.yaml": GOOD, file: "what: ever\n"}))
    assert result.exit_code == 3 and f"{tmp_path}/policies/{file}" in result.stderr and "error[" in result.stderr


# --- JUnit ------------------------------------------------------------------------------------------------------------


def test_the_junit_report_has_the_form_that_ci_systems_read(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    invoke(write(tmp_path, {"tests/s.yaml": MIXED, "tests/t.yaml": GOOD}), "--junit", str(report))
    root = ElementTree.parse(report).getroot()
    assert (root.tag, root.attrib["tests"], root.attrib["failures"]) == ("testsuites", "5", "2")
    assert [suite.attrib["tests"] for suite in root] == ["4", "1"]
    for suite in root:
        assert suite.tag == "testsuite"
        assert {"name", "tests", "failures", "errors", "skipped", "time"} <= suite.attrib.keys()
        assert int(suite.attrib["failures"]) == len(suite.findall("testcase/failure"))
        assert int(suite.attrib["skipped"]) == len(suite.findall("testcase/skipped"))
        assert all({"name", "classname", "time"} <= case.attrib.keys() for case in suite)
    (failure, _) = root.iter("failure")
    assert failure.attrib["message"] == "expected deny, got allow"
    assert [case.attrib["name"] for case in root.iter("testcase")][1] == "bad <&> one"


# --- again and again --------------------------------------------------------------------------------------------------


def test_each_change_runs_once_more_and_the_last_run_decides() -> None:
    codes = iter([4, 0])
    assert run_again(lambda: next(codes), [object(), object()], 3) == 0
    assert next(codes, None) is None
    assert run_again(lambda: 0, [], 4) == 4


def test_ctrl_c_ends_the_watching() -> None:
    def changes() -> Iterator[object]:
        yield object()
        raise KeyboardInterrupt

    assert run_again(lambda: 4, changes(), 0) == 4


def test_watching_reads_everything_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"tests/s.yaml": MIXED})

    def changes(paths: Any) -> Iterator[object]:
        assert tmp_path / "policies" in paths
        write(tmp_path, {"tests/s.yaml": "suite: s\n"})
        yield object()
        write(tmp_path, {"tests/s.yaml": GOOD})
        yield object()

    monkeypatch.setattr(command_file, "changes_in", changes)
    result = invoke(tmp_path, "--watch")
    assert result.exit_code == 0
    assert [word in result.output for word in ("2 failed", "error[Y102]", "1 passed, 0 failed")] == [True] * 3


def test_a_change_of_a_file_is_noticed(tmp_path: Path) -> None:
    pytest.importorskip("watchfiles")
    write(tmp_path, {"tests/s.yaml": GOOD})
    changes = changes_in([tmp_path / "policies"])
    over = threading.Event()

    def writes() -> None:
        """Again and again: when it is watched for the first time is not known."""
        for text in itertools.cycle((MIXED, GOOD)):
            if over.wait(0.1):
                return
            write(tmp_path, {"tests/s.yaml": text})

    writer = threading.Thread(target=writes)
    writer.start()
    try:
        assert next(iter(changes))
    finally:
        over.set()
        writer.join()
        getattr(changes, "close", lambda: None)()
