"""What a folder may say, from sidecar.yaml to the error's place."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.app.loader import check_files
from sidecar.errors import PolicyError
from tests.flow.world import write_folder

SCOPES = 'policy: {scopes: [{files: "teams/payments/**", subjects: ["nhi:payer"], objects: ["tool:payments/*"]}]}\n'
INSIDE = "p, nhi:payer, tool:payments/refund, use, -, -, -, allow\n"
OUTSIDE = "p, nhi:payer, tool:github/delete_repo, use, -, -, -, allow\n"


def folder(path: Path, rows: str) -> Path:
    files = {"policies/teams/payments/agent_to_tool.csv": rows}
    write_folder(path, "http://127.0.0.1:9/mcp", settings=SCOPES, files=files)
    return path / "sidecar.yaml"


def test_a_row_inside_its_scope_is_accepted_and_an_unknown_upstream_is_told(tmp_path: Path) -> None:
    engine, _ = check_files(folder(tmp_path, INSIDE), {})
    assert [fault.code for fault in engine.warnings] == ["P121"]


def test_a_row_outside_is_an_error_at_its_place(tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as error:
        check_files(folder(tmp_path, INSIDE + OUTSIDE), {})
    (fault,) = error.value.faults
    assert fault.file.endswith("teams/payments/agent_to_tool.csv") and fault.line == 2
