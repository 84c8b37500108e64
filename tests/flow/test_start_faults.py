"""Does whoever starts it hear all that is wrong at once, with its place, and the same from `check` and `serve`?"""

import os
import subprocess
from pathlib import Path

import pytest

from sidecar.app.loader import check_files
from sidecar.errors import ConfigError, Fault
from tests.closed_to_root import closed_to_root
from tests.flow.forks import sidecar
from tests.flow.world import write_folder
from tests.tables import tables

GOOD = "p, nhi:planner, tool:github/*, use, -, -, -, allow\n"
BAD_FILES = tables("flow/start_faults")["bad_files"]


def faults(folder: Path) -> dict[str, Fault]:
    """What a check finds, by file."""
    with pytest.raises(ConfigError) as refused:
        check_files(folder / "sidecar.yaml", {})
    return {str(Path(fault.file).relative_to(folder)): fault for fault in refused.value.faults}


def folder_with(folder: Path, files: dict[str, str], program: str = "") -> Path:
    write_folder(folder, "http://127.0.0.1:9/mcp", GOOD, files, program=program)
    if (key := folder / "data/keys/audit.key").exists():
        key.chmod(0o600)
    return folder


def test_all_files_that_are_wrong_are_told_at_once_and_a_missing_program_hides_none(tmp_path: Path) -> None:
    found = faults(folder_with(tmp_path, BAD_FILES, program="command: no-such-program"))
    assert found.keys() == BAD_FILES.keys() | {"sidecar.yaml"}
    assert (found["sidecar.yaml"].code, found["sidecar.yaml"].line > 0) == ("S117", True)
    assert all(fault.hint for fault in found.values())


def test_a_start_tells_what_a_check_tells(tmp_path: Path) -> None:
    folder_with(tmp_path, BAD_FILES, program="command: no-such-program")
    command = (sidecar(),)
    said = [
        subprocess.run([*command, *verb], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
        for verb in (["check"], ["serve", "--log-format", "text"])
    ]
    assert [done.returncode for done in said] == [3, 3]
    assert said[0].stderr == said[1].stderr != ""


@pytest.mark.parametrize("place", ["data", "data/audit/audit.jsonl", "data/records.sqlite", "data/keys/audit.key"])
def test_what_stands_in_the_way_of_what_is_kept_is_told(tmp_path: Path, place: str) -> None:
    folder_with(tmp_path, {})
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    if place == "data":
        (tmp_path / place).write_text("a file where a folder should be")
        assert faults(tmp_path)["sidecar.yaml"].code == "S116"
    else:
        (tmp_path / place).mkdir()
        assert faults(tmp_path)[place].code in ("S116", "D102", "A101")


def test_a_folder_of_somebody_else_is_a_doubt_of_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_with(tmp_path, {})
    (tmp_path / "data").mkdir()
    if os.geteuid() == 0:  # nothing is closed to root: what the system says to others
        monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("data"))
    else:
        (tmp_path / "data").chmod(0)
    _, doubts = check_files(tmp_path / "sidecar.yaml", {})
    (doubt,) = (each for each in doubts if each.code == "S129")
    assert doubt.severity == "warning" and "cannot be written by user" in doubt.message


BESIDE = [f"policies/{name}.yaml" for name in ("budgets", "disabled", "pins")]


@pytest.mark.parametrize(
    ("place", "mode", "files"),
    [
        (".", 0o600, ["sidecar.yaml"]),
        ("above", 0o600, ["sidecar.yaml"]),  # which names above/policies
        ("policies", 0o000, ["policies", *BESIDE]),
        ("policies", 0o600, ["policies", *BESIDE]),
        ("policies/teams", 0o600, ["policies/teams"]),
        ("policies/budgets.yaml", 0o000, ["policies/budgets.yaml"]),
        ("models", 0o600, ["models"]),
    ],
)
def test_what_is_closed_is_told_with_what_to_do(tmp_path: Path, place: str, mode: int, files: list[str]) -> None:
    teams = {"policies/teams/roles.csv": "g, nhi:a, role:b\n", "policies/budgets.yaml": "version: 1\n"}
    folder_with(tmp_path, teams)
    (tmp_path / "policies/teams/roles.linked.csv").symlink_to("roles.csv")
    if place == "above":
        (tmp_path / place).mkdir()
        (tmp_path / "policies").rename(tmp_path / "above/policies")
        with (tmp_path / "sidecar.yaml").open("a") as settings:
            settings.write("policy: {path: above/policies}\n")
    (tmp_path / place).chmod(mode)
    try:
        with closed_to_root():
            found = faults(tmp_path)
    finally:
        (tmp_path / place).chmod(0o700)
    assert sorted(found) == sorted(files)
    for fault in found.values():
        assert "cannot be read: permission denied" in fault.message.lower()
        assert fault.hint == f"let user {os.geteuid()} read it, and search the folders above it"


SCOPES = 'policy: {scopes: [{files: "teams/payments/**", subjects: ["nhi:payer"], objects: ["tool:payments/*"]}]}\n'
ROW = "p, nhi:payer, tool:{}, use, -, -, -, allow\n"


def test_a_row_outside_of_its_scope_is_told_at_its_place(tmp_path: Path) -> None:
    for name, rows in (("in", [ROW.format("payments/refund")]), ("out", [ROW.format("payments/a"), GOOD])):
        rules = {"policies/teams/payments/agent_to_tool.csv": "".join(rows)}
        write_folder(tmp_path / name, "http://127.0.0.1:9/mcp", settings=SCOPES, files=rules)
    assert [one.code for one in check_files(tmp_path / "in" / "sidecar.yaml", {})[0].warnings] == ["P121"]
    ((file, fault),) = faults(tmp_path / "out").items()
    assert file.endswith("teams/payments/agent_to_tool.csv") and fault.line == 2
