"""Does a client's file become a working folder that is valid, allows little and holds no secret in clear?"""

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings, strategies as st

from sidecar.cli import main
from sidecar.cli.client_files.folder import upstreams_yaml
from sidecar.cli.client_files.secret_detection import looks_secret, may_stand_in_clear
from sidecar.policy.source import load_policy
from sidecar.settings.load import load_settings
from sidecar.settings.programs import variables_in_file
from sidecar.settings.yaml_document import read_document
from tests.tables import tables
from tests.unit.cli.client_files.test_configuration import SEED

TABLES = tables("cli/client_files/folder")

TOKEN = "ghp_canary0123456789abcdefghij"
FILE = {
    "inputs": [{"id": "jira-key", "type": "promptString", "password": True}],
    "servers": {
        "My Files": {
            "command": sys.executable,
            "args": ["-m", "files", "${workspaceFolder}", "--token", TOKEN, f"--api-key={TOKEN}"],
            "env": {"LOG_LEVEL": "debug", "API_TOKEN": TOKEN, "FROM": "${env:MINE}", "WITH": f"${{SET:-{TOKEN}}}"},
        },
        "GitHub": {
            "type": "http",
            "url": "https://x.example/mcp",
            "headers": {"Authorization": f"Bearer {TOKEN}", "X-MCP-Toolsets": "repos,issues"},
        },
        "jira": {"url": f"https://x.example/mcp?apikey={TOKEN}&v=1", "headers": {"X-Api-Key": "${input:jira-key}"}},
        "off": {"command": "x", "disabled": True},
    },
}


def run(*arguments: object, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], env=env)


def made(folder: Path, value: Any, env: dict[str, str] | None = None) -> Result:
    (folder / "mcp.json").write_text(json.dumps(value, indent=2))
    return run("init", "--from", folder / "mcp.json", folder / "made", env=env)


def test_no_secret_stands_in_clear_and_check_passes(tmp_path: Path) -> None:
    result = made(tmp_path, FILE, {"JIRA_KEY": "canary-jira"})
    assert result.exit_code == 0, result.output
    folder = tmp_path / "made"
    for path in (path for path in folder.rglob("*") if path.is_file()):
        if path.parent.name != "keys":
            assert "canary" not in path.read_text()
        elif path.name != "README.md":
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "canary" not in result.output
    env = {"MINE": "m", "SET": "s", **variables_in_file(folder / "keys" / "variables.env")}
    checked = run("check", "-c", folder / "sidecar.yaml", env=env)
    assert checked.exit_code == 0, checked.output
    loaded = load_settings(folder / "sidecar.yaml", env)
    files = loaded.upstreams["my-files"].mcp
    assert files.args == ("-m", "files", str(tmp_path), "--token", TOKEN, f"--api-key={TOKEN}")
    assert files.all_env() == {"LOG_LEVEL": "debug", "API_TOKEN": TOKEN, "FROM": "m", "WITH": "s"}
    assert (folder / "keys" / "github.token").read_text() == f"{TOKEN}\n"
    assert (folder / "keys" / "jira.header").read_text() == "canary-jira\n"
    assert loaded.upstreams["jira"].mcp.url == f"https://x.example/mcp?apikey={TOKEN}&v=1"
    assert list(loaded.upstreams) == ["my-files", "github", "jira"]
    assert loaded.upstreams["github"].mcp.headers == {"X-MCP-Toolsets": "repos,issues"}


def test_no_rule_of_it_allows_everything(tmp_path: Path) -> None:
    everything = {**SEED, "name": "all", "command": sys.executable, "capabilities": ["git.*", "*.*"]}
    result = made(tmp_path, [{**SEED, "command": sys.executable}, everything])
    assert result.exit_code == 0, result.output
    source = load_policy(tmp_path / "made" / "models", tmp_path / "made" / "policies")
    text = "".join(path.read_text() for path in (tmp_path / "made" / "policies").glob("*.csv"))
    objects = {line.split(",")[2].strip() for line in text.splitlines() if line.startswith("p,")}
    tools = ("all/put-a-tool-here", "github/read", "github/commits.list", "github/pr.list")
    assert source and objects == {f"tool:{tool}" for tool in tools}


@pytest.mark.parametrize(("entry", "said"), TABLES["texts"])
def test_what_cannot_be_taken_over_is_told_with_its_place(tmp_path: Path, entry: Any, said: str) -> None:
    result = made(tmp_path, {"mcpServers": {"a": entry}})
    assert result.exit_code == 3 and f"mcp.json{said}" in result.stderr and "canary" not in result.output
    assert not (tmp_path / "made").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    assert made(tmp_path, [SEED]).exit_code == 0
    again = made(tmp_path, [SEED])
    assert again.exit_code == 1
    assert "nothing was written" in again.stderr


ODD = ["no", "1", ".5", ".inf", "0x1f", "1:30", "~", "", "- a", "a: b", "#", "*", "null", "=", "<<"]
ODD += ["a\u2028b", "\x7f", "😀", "é"]


@settings(max_examples=30)
@given(st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(ODD))
def test_every_text_is_written_so_that_it_is_read_back(text: str) -> None:
    written = upstreams_yaml({"a": {text or "key": text, "list": [text, "b"]}})
    read = read_document(Path("sidecar.yaml"), text=f"upstreams:\n{written}").data
    assert read == {"upstreams": {"a": {text or "key": text, "list": [text, "b"]}}}


@pytest.mark.parametrize(("name", "value", "harmless"), TABLES["variables"])
def test_what_is_not_plainly_harmless_is_hidden(name: str, value: str, harmless: bool) -> None:
    assert may_stand_in_clear(name, value) is harmless


@pytest.mark.parametrize(
    "word", ["@modelcontextprotocol/server-filesystem", "--allow-everything-in-here", "/a/very-long/path-of-mine/2024"]
)
def test_what_people_name_things_is_no_secret(word: str) -> None:
    assert not looks_secret(word)


def test_a_file_of_variables_says_what_a_shell_reads(tmp_path: Path) -> None:
    path = tmp_path / "x.env"
    path.write_text("# of mine\n\nA=1\nexport B='two words' # said\nC=\"it's\"\nD=\n")
    assert variables_in_file(path) == {"A": "1", "B": "two words", "C": "it's", "D": ""}


@pytest.mark.parametrize("line", ["A=$B", "A=`x`", "A=b c", "A", "=1", 'A="', "A='x'y'", 'A="$B"', "A=1\nA=2"])
def test_a_file_of_variables_is_read_strictly(tmp_path: Path, line: str) -> None:
    (tmp_path / "x.env").write_text(line.replace("1", "canary") + "\n")
    program = f"{{mcp: {{command: {sys.executable}, env_path: x.env}}}}"
    (tmp_path / "sidecar.yaml").write_text(f"version: 1\npolicy: {{models: ., path: .}}\nupstreams: {{a: {program}}}\n")
    assert run("config", "show", "-c", tmp_path / "sidecar.yaml").exit_code == 0
    result = run("check", "-c", tmp_path / "sidecar.yaml")
    assert (result.exit_code, "S132" in result.stderr) == (3, True)
    assert "canary" not in result.output
