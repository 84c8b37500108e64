"""What may stand in a file of policy tests, and what is refused at its place?"""

from pathlib import Path

import jsonschema
import pytest
import yaml

from sidecar.cli.config import schema_of
from sidecar.errors import PolicyError
from sidecar.policy_tools.suites.loading import read_suites
from sidecar.settings.yaml_document import read_document
from tests.tables import tables
from tests.unit.policy_tools.suites.rig import HEAD, REPOSITORY, faults

TABLES = tables("policy_tools/suites/suite_schema")

SHIPPED = REPOSITORY / "policies" / "tests" / "shipped.yaml"
CALL = "as: nhi:a, calls: tool:x/y, expect: allow"

WRONG = yaml.load((REPOSITORY / "tests/golden/policy/suite_faults.yaml").read_text("utf-8"), yaml.CSafeLoader)


@pytest.mark.parametrize("case", WRONG, ids=lambda case: f"{case['code']} {case['test']}")
def test_what_cannot_be_meant_is_refused_at_its_place(tmp_path: Path, case: dict[str, str]) -> None:
    found = faults(tmp_path, f"{HEAD}- {{name: t, {case['test']}}}\n")
    told = "\n".join(map(str, found))
    assert [(fault.line, fault.code) for fault in found] == [(4, case["code"])], told
    assert found[0].source[found[0].column - 1 :].startswith(case["at"]), told
    assert case["told"] in told


@pytest.mark.parametrize(("text", "line", "code", "words"), TABLES["whole"])
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
    jsonschema.Draft202012Validator(schema_of("test")).validate(read_document(SHIPPED).data)


def test_every_key_of_the_schema_is_described() -> None:
    document = schema_of("test")
    for name, node in {"the file": document, **document["$defs"]}.items():
        for key, value in node["properties"].items():
            assert value.get("description"), f"{name}.{key}"


@pytest.mark.parametrize("test", TABLES["known"])
def test_the_schema_refuses_what_an_editor_can_know(test: dict[str, object]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema_of("test")).validate({"suite": "s", "tests": [{"name": "t", **test}]})
