"""`sidecar policy import` takes a Casbin program's policy into a working folder, beside our own models."""

from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from tests.unit.policy.stock.setups import SETUPS, Setup
from tests.unit.policy.stock.working_folder import write_program

ROLES = SETUPS["roles"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert run("init", tmp_path / "made").exit_code == 0
    (tmp_path / "made/policies/agent_to_tool.csv").unlink()
    return tmp_path / "made"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def imported(folder: Path, setup: Setup, *more: object) -> Result:
    program = folder.parent / "program"
    files = (program / "program.conf", program / "rows.csv") if program.exists() else write_program(setup, program)
    return run("policy", "import", folder, "--casbin", *files, *more)


def with_settings(folder: Path, printed: str) -> None:
    """What an operator does with the printed keys."""
    settings = folder / "sidecar.yaml"
    before, policy, after = settings.read_text().partition("policy:\n")
    each = (f"  data{number}: {{mcp: {{url: http://127.0.0.1:9/mcp}}}}\n" for number in (1, 2, 3))
    upstreams = f"upstreams:\n{''.join(each)}"
    settings.write_text(before + policy + after.partition("upstreams:")[0] + printed.removeprefix(policy) + upstreams)


def test_one_kind_is_casbins_and_the_others_stay_ours(folder: Path) -> None:
    (folder / "policies/user_to_nhi.csv").write_text("p, user:bob, nhi:planner, delegate, -, -, -, allow\n")
    result = imported(folder, ROLES)
    assert result.exit_code == 0, result.output
    assert (folder / "models/agent_to_tool.conf").read_text() == ROLES.model
    assert (folder / "policies/agent_to_tool.csv").read_text() == ROLES.policy
    with_settings(folder, result.stdout)
    checked = run("check", "-c", folder / "sidecar.yaml")
    assert "1 user_to_nhi, 4 agent_to_tool rules" in checked.output, checked.output
    exported = folder.parent / "exported"
    told = run("policy", "export", "-c", folder / "sidecar.yaml", "--casbin", exported)
    assert told.stdout.startswith("5 rules of revision ")
    assert told.stdout.endswith("enforce.py nhi:planner tool:data1/read tools/call\n")
    assert (exported / "model.conf").read_text() == ROLES.model
    assert (exported / "policy.csv").read_text() == ROLES.policy
    asked = ("policy", "explain", "-c", folder / "sidecar.yaml", "--as", "user:bob,nhi:planner")
    assert run(*asked, "--calls", "tool:data1/read").exit_code == 0
    assert run(*asked, "--calls", "tool:data1/write").exit_code == 1


def test_all_kinds_need_the_place_of_our_models(folder: Path) -> None:
    refused = imported(folder, ROLES, "--kind", "all", "--force")
    assert refused.exit_code == 1
    assert "models/agent_to_tool.conf, models/nhi_to_nhi.conf, models/user_to_nhi.conf" in refused.output
    for path in (folder / "models").iterdir():
        path.unlink()
    found = orjson.loads(imported(folder, ROLES, "--kind", "all", "--json").stdout)
    assert found["files"] == ["models/model.conf", "policies/policy.csv"]
    assert found["settings"].startswith("policy:\n  names:")


def test_nothing_is_overwritten_unless_forced(folder: Path) -> None:
    rows = folder / "policies/agent_to_tool.csv"
    rows.write_text("p, nhi:planner, tool:example/x, use, -, -, -, allow\n")
    refused = imported(folder, ROLES)
    assert (refused.exit_code, rows.read_text()[:5]) == (1, "p, nh")
    assert "nothing was written" in refused.output
    assert imported(folder, ROLES, "--force").exit_code == 0
    assert rows.read_text() == ROLES.policy


def test_a_program_with_faults_changes_nothing(folder: Path) -> None:
    before = (folder / "models/agent_to_tool.conf").read_text()
    result = imported(folder, Setup(ROLES.model, "p, alice\n"))
    assert (result.exit_code, "rows.csv:1:1: error[P102]" in result.output) == (3, True)
    assert (folder / "models/agent_to_tool.conf").read_text() == before


def test_a_second_definition_is_left_to_the_settings(folder: Path) -> None:
    (folder.parent / "map.yaml").write_text("use: 2\n")
    result = imported(folder, SETUPS["a second definition"], "--map", folder.parent / "map.yaml")
    assert result.exit_code == 1
    assert "only policy.models chooses a second definition" in result.output, result.exception


def test_a_folder_without_settings_is_for_init(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    result = imported(tmp_path / "made", ROLES)
    assert (result.exit_code, "written by sidecar init --casbin" in result.output) == (1, True)
