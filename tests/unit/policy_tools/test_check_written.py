"""Is the right place of the right line marked, in rows and in YAML?"""

from pathlib import Path
from typing import Any

import pytest

from sidecar.policy.model import COLUMNS
from sidecar.policy_tools.check.source_positions import RuleSources
from sidecar.vocabulary import PermissionKind, RuleRef
from tests.tables import tables

TABLES = tables("policy_tools/check_written")

KIND = PermissionKind.AGENT_TO_TOOL
CSV = TABLES["csv"]
YAML = TABLES["yaml"]


def written(folder: Path, name: str, text: str) -> tuple[RuleSources, str]:
    path = folder / name
    path.write_text(text, "utf-8")
    return RuleSources({KIND.value: COLUMNS}, [path]), str(path)


def marked_at(place: Any) -> tuple[int, str]:
    return place.line.number, place.line.text[place.column - 1 :][: place.width]


def rule(file: str, line: int, subject: str = "nhi:a", obj: str = "tool:x/y") -> RuleRef:
    return RuleRef("one", KIND, subject, obj, ("use",), "allow", file=file, line=line)


@pytest.mark.parametrize(("column", "part", "line", "marked"), TABLES["columns"])
def test_a_field_of_a_row(tmp_path: Path, column: str, part: str, line: int, marked: str) -> None:
    files, file = written(tmp_path, "agent_to_tool.csv", CSV)
    assert marked_at(files.rule(rule(file, 3), column, part)) == (line, marked)


@pytest.mark.parametrize(
    ("at", "column", "line", "marked"),
    [
        (rule("", 3), "sub", 5, "nhi:a"),
        (rule("", 3, subject="nhi:ab"), "sub", 5, "nhi:ab"),
        (rule("", 3), "obj", 7, "tool:x/y"),
        (rule("", 3, obj="tool:x/yz"), "obj", 8, "tool:x/yz"),
        (rule("", 3), "act", 9, "[use, tools/call]"),
        (rule("", 3), "shadow", 12, "true"),
        (rule("", 3), "expires_at", 3, "- id: one"),
        (rule("", 13, "*", "tool:*/d"), "obj", 13, "tool:*/d"),
        (rule("", 13, "*", "tool:*/d"), "sub", 13, '"*"'),
        (rule("", 13, "*", "tool:*/d"), "expires_at", 13, "2027-01-01T00:00:00Z"),
        (rule("", 13, "*", "tool:*/d"), "eft", 13, "deny"),
        (rule("", 99), "obj", 99, ""),
    ],
)
def test_a_value_of_yaml(tmp_path: Path, at: RuleRef, column: str, line: int, marked: str) -> None:
    files, file = written(tmp_path, "rules.yaml", YAML)
    assert marked_at(files.rule(at._replace(file=file), column)) == (line, marked)


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("roles.csv", CSV, {"role:r": (4, 12), "role:s": (5, 15), "set:s": (6, 15), "user:a": (4, 4)}),
        ("rules.yaml", YAML, {"role:r": (14, 9), "user:a": (14, 18), "user:ab": (14, 26)}),
    ],
)
def test_where_a_role_is_filled(tmp_path: Path, name: str, text: str, found: dict[str, tuple[int, int]]) -> None:
    files, _ = written(tmp_path, name, text)
    for role, (line, column) in found.items():
        place = files.link(role)
        assert (place.line.number, place.column, place.width) == (line, column, len(role))
    assert files.link("role:none") is None


def test_a_file_that_went_away_is_told_without_its_text(tmp_path: Path) -> None:
    files = RuleSources({KIND.value: COLUMNS}, [tmp_path / "gone.csv"])
    place = files.rule(rule(str(tmp_path / "gone.csv"), 3), "obj")
    assert (place.line.number, place.line.text, place.column, place.width) == (3, "", 1, 1)
