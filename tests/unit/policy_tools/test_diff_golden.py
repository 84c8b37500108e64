"""What does a reviewer read? The whole text, as it stands on the screen, in the pull request, and in JSON.

`UPDATE_GOLDEN=1 pytest tests/unit/policy_tools/test_diff_golden.py` writes them anew; the difference is then to be
read.
"""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from sidecar.cli.policy.diff import diff

GOLDEN = Path(__file__).parents[2] / "golden" / "diff"


@pytest.mark.parametrize(("name", "option"), [("text.txt", ""), ("markdown.md", "--markdown"), ("data.json", "--json")])
def test_a_difference_is_told_as_agreed(name: str, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    result = CliRunner().invoke(diff, ["old", "new", *filter(None, [option])])
    assert result.exit_code == 6
    told = result.stdout
    if option == "--json":
        told = json.dumps(json.loads(told), indent=2, ensure_ascii=False) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        (GOLDEN / name).write_text(told, encoding="utf-8")
    assert told == (GOLDEN / name).read_text(encoding="utf-8")
