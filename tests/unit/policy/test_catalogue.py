"""Has every code a golden message with its position and its hint, and a line in the documentation?

`UPDATE_GOLDEN=1 pytest tests/unit/policy/test_catalogue.py` writes the answers anew; the diff is then to be read.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.errors import Fault
from sidecar.policy_tools.check.formats import CODES
from tests.unit.policy.catalogue import (
    FOLDER,
    REPOSITORY,
    Example,
    codes_with_examples,
    errors_page,
    examples_of,
    inside,
    told_by,
    written,
)

PAGE = REPOSITORY / "docs" / "reference" / "policy-errors.md"
_CODE = re.compile(r"[\"'](P\d{3})[\"']")
_MEANT = re.compile(r'did you mean "([^"]+)"\?')
EXAMPLES = [one for code in codes_with_examples() for one in examples_of(code)]
NAMED = [pytest.param(one, id=f"{one.code} {one.title}") for one in EXAMPLES]


def codes_in(*folders: str) -> set[str]:
    """The codes that the source names, without the table of their meanings."""
    paths = [path for folder in folders for path in (REPOSITORY / "sidecar" / folder).rglob("*.py")]
    return {code for path in paths if path.name != "codes.py" for code in _CODE.findall(path.read_text("utf-8"))}


def test_every_code_that_check_can_tell_has_an_example() -> None:
    told = codes_in("policy", "workbench/check")
    tests = REPOSITORY / "tests" / "unit" / "policy"
    others = "".join((tests / name).read_text("utf-8") for name in ("test_yaml_rows.py", "test_worker_process.py"))
    assert {code for code in told - set(codes_with_examples()) if code not in others} == set()


def test_exactly_the_codes_that_can_be_told_have_a_meaning() -> None:
    assert codes_in("") == set(CODES)


@pytest.mark.parametrize("code", codes_with_examples())
def test_what_is_told_is_as_agreed(code: str, tmp_path: Path) -> None:
    examples = examples_of(code)
    told = [replace(one, told=told_by(one.run(tmp_path / str(number)))) for number, one in enumerate(examples)]
    if os.environ.get("UPDATE_GOLDEN"):
        (FOLDER / f"{code}.txt").write_text(written(told), "utf-8")
    for before, now in zip(examples, told, strict=True):
        assert now.told == before.told, before.title


@pytest.mark.parametrize("example", NAMED)
def test_an_example_shows_its_code_and_nothing_that_distracts(example: Example) -> None:
    codes = re.findall(r"(?:error|warning)\[(\w+)\]", example.told)
    assert example.code in codes
    assert set(codes) == {example.code, *example.given.get("also", ())}


@pytest.mark.parametrize(
    "example", [param for param, one in zip(NAMED, EXAMPLES, strict=True) if "mistyped" in one.title]
)
def test_what_is_mistyped_is_told_with_what_was_meant(example: Example) -> None:
    assert _MEANT.search(example.told) or "hint: write" in example.told


def mended(example: Example, fault: Fault) -> dict[str, str]:
    """The file with what was meant, where the fault stands."""
    found = _MEANT.search(fault.hint)
    assert found is not None
    lines = example.files[fault.file].split("\n")
    line = lines[fault.line - 1]
    start = fault.column - 1
    lines[fault.line - 1] = line[:start] + found[1] + line[start + fault.width :]
    return {fault.file: "\n".join(lines)}


def whole_words(example: Example, folder: Path) -> Iterator[Fault]:
    """The faults that mark the whole of what is to be replaced."""
    for fault in example.run(folder).faults:
        found = _MEANT.search(fault.hint)
        if found is not None and fault.line and abs(fault.width - len(found[1])) <= 2:
            yield fault


def test_what_was_meant_mends_it(tmp_path: Path) -> None:
    tried = set()
    for number, example in enumerate(EXAMPLES):
        for fault in whole_words(example, tmp_path / f"{number}"):
            left = example.run(tmp_path / f"{number}-mended", replaced=mended(example, fault)).faults
            assert fault.code not in {other.code for other in left}, example.title
            tried.add(example.code)
    assert {"P101", "P104", "P105", "P109", "P305", "P604"} <= tried


def test_a_changed_policy_is_told_otherwise(tmp_path: Path) -> None:
    (example,) = examples_of("P106")
    text = example.files["policies/agent_to_tool.csv"].replace("2027-03-31", "2027-04-31")
    told = told_by(example.run(tmp_path, replaced={"policies/agent_to_tool.csv": text}))
    assert told != example.told and "2027-04-31" in told


def test_the_page_holds_the_table() -> None:
    with inside(REPOSITORY):
        block = re.search(
            r"<!-- generated: policy-errors -->\n(.*?)<!-- end: policy-errors -->", PAGE.read_text("utf-8"), re.DOTALL
        )
    assert block is not None
    assert block[1] == errors_page() + "\n", "run: python -m docs.make"


@pytest.mark.parametrize("code", sorted(CODES))
def test_the_page_has_a_heading_for_each_code(code: str) -> None:
    assert re.search(rf"^### {code}\b", PAGE.read_text("utf-8"), re.MULTILINE)
