"""Does a terminal obey what others named?"""

import os
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from sidecar.cli import main
from sidecar.errors import Fault, visible, visible_lines
from tests.tables import tables

_OTHERS = [b"a\rb.csv", b"\xffx.csv", b"roles.\xe2\x80\xae.csv"]
NAMES = [b"agent_to_tool.\x1b]0;owned\x07.csv", b"user_to_nhi.\xc2\x9b31m.csv", *_OTHERS]
OBEYED = ("\x1b", "\x07", "\x9b", "\r", "\udcff", "\u202e")


@pytest.mark.parametrize(("text", "shown"), [*tables("errors")["shown"], (os.fsdecode(b"\xff"), r"\udcff")])
def test_what_a_terminal_would_obey_is_an_escape(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible_lines(f"{text}\nb") == f"{visible_lines(text)}\nb"


def test_a_fault_is_lines_of_its_own_making_and_its_mark_stands_where_it_is() -> None:
    fault = Fault("a\x1b[2J.csv", 3, 4, "P104", "no\nline", "a\x1bhint", "p, \x1btool", 1)
    assert str(fault).split("\n") == [
        r"a\x1b[2J.csv:3:4: error[P104]: no\nline",
        r"    3 | p, \x1btool",
        r"      |    ^^^^",
        r"   hint: a\x1bhint",
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a policy of files whose names a terminal would obey."""
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, ["init"]).exit_code == 0
    for name in NAMES:
        Path(os.fsdecode(b"policies/" + name)).touch()
    Path("policies/tests").mkdir(exist_ok=True)
    Path("policies/tests/\x1b[2J.yaml").touch()
    return tmp_path


COMMANDS = (
    *("check", "check --json", "policy test", "policy test --json", "policy convert policies"),
    *(f"policy check --format {form}" for form in ("text", "json", "sarif", "github")),
    *("policy explain --as user:alice --calls tool:demo/add --action tools/call", "policy export --casbin out"),
    *("policy check \x1b[31m", "policy replay \x1b[31m", "check -c \x1b[31m.yaml", "audit verify \x1b[31m"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_name_reaches_a_terminal_as_it_is(folder: Path, command: str) -> None:
    result = CliRunner().invoke(main, command.split(" "))
    assert result.exit_code != 0 and not isinstance(result.exception, Exception), result.exception
    assert result.output and not [one for one in OBEYED if one in result.output]


def test_a_file_whose_name_cannot_be_shown_is_no_file_of_a_policy(folder: Path) -> None:
    told = orjson.loads(CliRunner().invoke(main, ["check", "--json"]).stdout)["faults"]
    assert [one["code"] for one in told] == ["P002"] * len(NAMES)
