"""Do people, programs, code scanning and pull requests get what they understand?"""

import json
import re
from pathlib import Path
from urllib.parse import unquote

import jsonschema
import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.errors import Fault
from sidecar.policy_tools.check import CheckReport
from sidecar.policy_tools.check.formats import CODES, FORMATS
from tests.tables import tables

TABLES = tables("policy_tools/check_formats")

REPOSITORY = Path(__file__).parents[3]
GOOD = (
    "#: id=search owner=platform@acme.example\np, nhi:researcher, tool:github/search_code, tools/call, -, -, -, allow\n"
)
WIDE = "#: id=all owner=platform@acme.example\np, *, tool:github/get_file, tools/call, -, -, -, allow\n"
NOTED = GOOD + "#: id=anybody\np, anonymous, tool:github/get_file, tools/call, -, -, args.n < 3, allow\n"
WRONG = "p, nhi:researcher, tool:github/search, tool/call, -, -, -, allow\n"

TRICKY = Fault(
    "teams/100% à b,c/agent_to_tool.csv", 3, 5, "P651", 'what: a,b\r\n50% of "it"', "one\ntwo", "p, *", 2, "warning"
)
WHOLE = Fault("policies", 0, 0, "P004", "no rule in any file")
UNKNOWN = Fault("sidecar.yaml", 2, 1, "S108", "of another file", "", "x: y", 1)

# What SARIF 2.1.0 (OASIS, sarif-schema-2.1.0.json) asks of the parts that we write: names, types and bounds as there.
SARIF = json.loads((REPOSITORY / "tests/golden/policy/sarif-2.1.0.json").read_text())


def told(form: str, *faults: Fault, root: Path = Path()) -> str:
    return FORMATS[form](CheckReport(faults), "policies", root)


def write(folder: Path, rows: str, **files: str) -> Path:
    (folder / "policies").mkdir(exist_ok=True)
    (folder / "policies" / "agent_to_tool.csv").write_text(rows, "utf-8")
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text, "utf-8")
    return folder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["policy", "check", *words])


def run_of(rows: str, *words: str) -> Result:
    write(Path(), rows)
    return run(*words)


# --- SARIF ------------------------------------------------------------------------------------------------------------


def test_sarif_has_the_standards_shape_and_each_result_leads_to_its_rule_and_its_place() -> None:
    document = json.loads(told("sarif", TRICKY, WHOLE, UNKNOWN))
    jsonschema.Draft7Validator(SARIF).validate(document)
    (one,) = document["runs"]
    rules = one["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["P004", "P651", "S108"]
    for result in one["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    tricky, whole, _ = one["results"]
    place = tricky["locations"][0]["physicalLocation"]
    assert place["region"] == {"startLine": 3, "startColumn": 5, "endLine": 3, "endColumn": 7}
    assert unquote(place["artifactLocation"]["uri"]) == TRICKY.file
    uri, base = place["artifactLocation"]["uri"], place["artifactLocation"]["uriBaseId"]
    assert "%25" in uri and " " not in uri and base == "%SRCROOT%"
    assert "region" not in whole["locations"][0]["physicalLocation"]
    assert [result["level"] for result in one["results"]] == ["warning", "error", "error"]


def test_paths_are_those_of_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "gateway").mkdir()
    monkeypatch.chdir(tmp_path / "gateway")
    found = run_of(WIDE, ".", "--format", "sarif")
    place = json.loads(found.output)["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "gateway/policies/agent_to_tool.csv"
    shown = run(".", "--format", "github").output
    assert shown.startswith("::warning file=gateway/policies/agent_to_tool.csv,line=2,endLine=2,col=4,endColumn=5,")


def test_a_file_outside_of_the_repository_keeps_its_whole_path(tmp_path: Path) -> None:
    fault = Fault(str(tmp_path / "a b.csv"), 1, 1, "P651", "x")
    document = json.loads(told("sarif", fault, root=tmp_path / "repository"))
    uri = document["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "file://" + str(tmp_path / "a%20b.csv")


# --- GitHub -----------------------------------------------------------------------------------------------------------


def read_command(line: str) -> tuple[str, dict[str, str], str]:
    """A workflow command as the runner reads it (actions/runner, ActionCommand.cs)."""
    match = re.fullmatch(r"::(\w+) (.*?)::(.*)", line)
    assert match is not None, line
    pairs = dict(pair.split("=", 1) for pair in match[2].split(","))
    return match[1], {key: unescaped(value, "%3A:", "%2C,") for key, value in pairs.items()}, unescaped(match[3])


def unescaped(text: str, *more: str) -> str:
    for code in ("%0D\r", "%0A\n", *more, "%25%"):
        text = text.replace(code[:3], code[3:])
    return text


def test_github_reads_back_what_was_meant() -> None:
    first, second, last = told("github", TRICKY, WHOLE).split("\n")
    command, properties, message = read_command(first)
    assert (command, message) == ("warning", f"{TRICKY.message}\n{TRICKY.hint}")
    place = {"file": TRICKY.file, "line": "3", "col": "5", "endColumn": "7"}
    assert properties.items() >= (place | {"title": f"P651 {CODES['P651'].about}"}).items()
    assert read_command(second)[:2] == ("error", {"file": "policies", "title": f"P004 {CODES['P004'].about}"})
    assert last.startswith("policies is not valid: 1 error, 1 warning; ")


def test_a_note_is_a_notice_of_github_and_a_note_of_sarif() -> None:
    assert run_of(NOTED, ".", "--format", "github").output.startswith("::notice file=")
    document = json.loads(run(".", "--format", "sarif").output)
    assert [result["level"] for result in document["runs"][0]["results"]] == ["note"]


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "words", "code", "last"),
    [
        (GOOD, (), 0, "is valid: 1 agent_to_tool rules, no warnings, revision "),
        (WIDE, (), 0, "is valid: 1 agent_to_tool rules, 1 warning, revision "),
        (WIDE, ("--strict",), 3, "is valid: 1 agent_to_tool rules, 1 warning, revision "),
        (NOTED, (), 0, "is valid: 2 agent_to_tool rules, 1 note, revision "),
        (NOTED, ("--strict",), 3, "2 notes, revision "),
        (WRONG, (), 3, "is not valid: 1 error"),
        (WRONG + WRONG, (), 3, "is not valid: 2 errors"),
        ("", (), 3, "is not valid: 1 error"),
    ],
)
def test_the_exit_code_says_whether_it_may_serve(rows: str, words: tuple[str, ...], code: int, last: str) -> None:
    found = run_of(rows, ".", *words)
    assert found.exit_code == code and last in found.output.rstrip("\n").split("\n")[-1]


def test_json_is_one_object_with_everything() -> None:
    found = run_of(WIDE, ".", "--json")
    document = json.loads(found.output)
    assert set(document) == {"valid", "faults", "revision", "rules", "summary"}
    assert document["valid"] is True and document["rules"] == {"agent_to_tool": 1}
    (fault,) = document["faults"]
    place = {"file": "policies/agent_to_tool.csv", "line": 2, "column": 4, "end_column": 5}
    assert fault.items() >= {**place, "code": "P651", "severity": "warning"}.items()
    assert fault["message"] and fault["hint"]
    assert document["summary"]["warnings"] == 1
    wrong = json.loads(run_of(WRONG, ".", "--json").output)
    assert wrong["valid"] is False and wrong["revision"] is None and wrong["summary"]["errors"] == 1


CONFIG = TABLES["config"]


def test_sidecar_yaml_says_which_upstreams_there_are_and_which_roles_tokens_grant(tmp_path: Path) -> None:
    rows = GOOD + "".join(
        f"#: id=r{n}\np, {role}, tool:{server}/get_file, tools/call, -, -, -, allow\n"
        for n, (role, server) in enumerate([("role:corp/engineers", "github"), ("role:corp/sales", "githud")])
    )
    write(tmp_path, rows, sidecar=CONFIG)
    (tmp_path / "models").symlink_to(REPOSITORY / "models")
    there = run().output
    assert re.findall(r"csv:(\d+):\d+: warning\[(\w+)\]", there) == [("6", "P604"), ("6", "P121")]
    beside = run(".").output
    assert "P121" not in beside and "P604" not in beside
    both = run("policies", "-c", "sidecar.yaml").output
    assert "P121" in both and "P604" in both


def test_the_moment_and_what_is_soon_can_be_said(tmp_path: Path) -> None:
    write(tmp_path, GOOD.replace("tools/call, -", "tools/call, 2027-03-31T00:00:00Z"))
    at = ("--now", "2027-03-01T00:00:00Z")
    assert "no warnings" in run(".", *at).output
    assert "P622" in run(".", *at, "--soon", "31").output
    assert "P621" in run(".", "--now", "2027-03-31T00:00:00Z").output


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("nowhere",), 3, "this folder does not exist"),
        (("-c", "nowhere.yaml"), 3, "nowhere.yaml"),
        (("--format", "xml"), 2, "is not one of"),
        (("--now", "tomorrow"), 2, "is not an RFC 3339 time"),
        (("--soon", "-1"), 2, "-1"),
        *((("nowhere", "--format", form), 3, "P001") for form in FORMATS),
    ],
)
def test_what_is_not_there_is_a_fault_and_what_makes_no_sense_is_wrong_usage(
    words: tuple[str, ...], code: int, part: str
) -> None:
    found = run(*words)
    assert found.exit_code == code and part in found.output


# --- sidecar check ----------------------------------------------------------------------------------------------------

WHOLE_CONFIG = TABLES["whole_config"]
WHOLE_ROWS = TABLES["whole_rows"]


def told_as_json(result: Result) -> list[tuple[str, str, int]]:
    return [(one["code"], Path(one["file"]).name, one["line"]) for one in json.loads(result.stdout)["faults"]]


def test_check_finds_all_that_policy_check_finds_and_more(tmp_path: Path) -> None:
    """One truth: `policy check` narrows `check`."""
    write(tmp_path, WHOLE_ROWS, sidecar=WHOLE_CONFIG)
    (tmp_path / "models").symlink_to(REPOSITORY / "models")
    (tmp_path / "policies" / "nhi_to_nhi.csv").write_text("p, nhi:clerk, nhi:echo, message/send, -, -, -, allow\n")
    (tmp_path / "tools.yaml").write_text("github: [read_file]\n")
    for more in ((), ("--catalogue", "tools.yaml")):
        narrow = told_as_json(run("--json", *more))
        checked = CliRunner().invoke(main, ["check", "--json", *more])
        assert checked.exit_code == 0, checked.output
        assert [one for one in told_as_json(checked) if one[0] != "S181"] == narrow
        assert {code for code, _, _ in narrow} == {"P612", "P621", *(("P609",) if more else ())}
    assert [(code, line) for code, _, line in told_as_json(checked) if code == "S181"] == [("S181", 7)]
    assert CliRunner().invoke(main, ["check", "--strict"]).exit_code == 3
    text = CliRunner().invoke(main, ["check"])
    assert "no rule allows nhi:nightly to send messages to echo (no-matching-rule)" in text.stderr
    assert text.stdout.startswith("sidecar.yaml is valid: ")


def test_check_tells_what_is_suspicious_beside_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = WHOLE_CONFIG + "identity: {api_keys_path: keys.yaml}\n"
    write(tmp_path, WHOLE_ROWS, sidecar=missing)
    (tmp_path / "models").symlink_to(REPOSITORY / "models")
    monkeypatch.chdir(tmp_path)
    checked = CliRunner().invoke(main, ["check", "--json"])
    assert checked.exit_code == 3
    assert {code for code, _, _ in told_as_json(checked)} == {"S116", "P612", "P621"}
