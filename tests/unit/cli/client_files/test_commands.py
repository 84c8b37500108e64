"""Do `wrap`, `unwrap` and `client-config` say what they do, and never lose what people wrote?"""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidecar.cli.client_files.configuration import read_client_file
from sidecar.cli.client_files.jsonc import parse_jsonc
from tests.tables import tables
from tests.unit.cli.client_files.test_folder import run

TABLES = tables("cli/client_files/commands")

FILE = f"""\
{{
  // ours
  "mcpServers": {{
    "My Files": {{"command": "{sys.executable}", "args": ["-c", "1"]}},
    "web": {{"url": "http://127.0.0.1:1/mcp"}}
  }}
}}
"""
BASE = "http://127.0.0.1:8070/mcp"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / ".mcp.json"
    path.write_text(FILE)
    path.chmod(0o640)
    return path


def test_it_leads_here_and_back(path: Path) -> None:
    result = run("wrap", path, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["wrapped"] == {"My Files": f"{BASE}/my-files", "web": f"{BASE}/web"}
    backup = Path(told["backup"])
    assert (backup.read_text(), backup.stat().st_mode & 0o777) == (FILE, 0o640)
    assert path.stat().st_mode & 0o777 == 0o640
    wrapped = path.read_bytes()
    again = run("wrap", path)
    assert (again.exit_code, path.read_bytes(), "nothing was changed" in again.stdout) == (0, wrapped, True)
    back = run("unwrap", path)
    assert (back.exit_code, path.read_text()) == (0, FILE)
    assert "byte for byte" in back.stdout
    assert [found.name for found in path.parent.iterdir()] == [".mcp.json"]


def test_nobody_is_led_to_where_nothing_is(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    assert run("init", folder).exit_code == 0
    result = run("wrap", path, "-c", folder / "sidecar.yaml")
    assert (result.exit_code, path.read_text()) == (1, FILE)
    assert "no upstream for My Files (my-files), web (web)" in result.stderr


def test_a_backup_is_never_overwritten_and_what_came_since_is_wrapped_after_unwrap(path: Path) -> None:
    backup = path.with_name(".mcp.json.before-sidecar")
    backup.write_text("mine")
    result = run("wrap", path)
    assert (result.exit_code, path.read_text(), backup.read_text()) == (1, FILE, "mine")
    backup.unlink()
    assert run("wrap", path).exit_code == 0
    newer = '"new": {"command": "python3"}, "web":'
    path.write_text(path.read_text().replace('"web":', newer))
    for url in (BASE, "http://127.0.0.1:9999"):
        result = run("wrap", path, "--url", url)
        assert (result.exit_code, "unwrap" in result.stderr) == (1, True)
    assert run("unwrap", path).exit_code == 0
    assert path.read_text() == FILE.replace('"web":', newer)
    assert run("wrap", path).exit_code == 0


@pytest.mark.parametrize(
    "url", ["nowhere", "http://[::1", "http://h:99999", "http://h/?a=b", "http://a@h", "http://h#b"]
)
def test_only_a_base_address_is_taken(path: Path, url: str) -> None:
    result = run("wrap", path, "--url", url)
    assert (result.exit_code, path.read_text()) == (2, FILE)
    assert "--url is a base address" in result.stderr


def test_what_is_not_understood_is_not_touched_and_without_a_backup_nothing_goes_back(path: Path) -> None:
    path.write_text('{"mcpServers": {"a": {}}}')
    assert (run("wrap", path).exit_code, run("unwrap", path).exit_code) == (3, 1)
    assert [found.name for found in path.parent.iterdir()] == [".mcp.json"]


def test_a_client_of_programs_alone_gets_our_bridge(tmp_path: Path) -> None:
    path = tmp_path / "claude_desktop_config.json"
    path.write_text(FILE)
    assert run("wrap", path).exit_code == 0
    entries = read_client_file(parse_jsonc(path.read_bytes(), path)).servers
    assert {(one.command, *one.args) for one in entries} == {("sidecar", "connect", one.address) for one in entries}
    assert all(one.address.startswith(f"{BASE}/") for one in entries)
    assert "nothing was changed" in run("wrap", path).stdout
    assert run("unwrap", path).exit_code == 0
    assert path.read_text() == FILE


def test_what_is_switched_off_is_not_led_to_where_nothing_is(path: Path, tmp_path: Path) -> None:
    path.write_text('{"mcpServers": {"on": {"command": "a"}, "off": {"command": "b", "disabled": true}}}')
    assert run("init", "--from", path, tmp_path / "s").exit_code == 0
    result = run("wrap", path, "-c", tmp_path / "s" / "sidecar.yaml")
    assert "off is switched off and stays as it is" in result.stderr
    servers = json.loads(path.read_text())["mcpServers"]
    assert servers == {"on": {"type": "http", "url": f"{BASE}/on"}, "off": {"command": "b", "disabled": True}}


@pytest.mark.parametrize(("name", "text", "code"), TABLES["unread"])
def test_a_client_whose_file_is_not_read_is_told_what_to_write(tmp_path: Path, name: str, text: str, code: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    for arguments in (("wrap", path), ("init", "--from", path, tmp_path / "s")):
        result = run(*arguments)
        assert result.exit_code == 3 and code in result.stderr, result.output
        assert "sidecar client-config --for codex` (or goose, opencode, zed)" in result.stderr
    assert path.read_text() == text


def test_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(path)
    assert run("wrap", link).exit_code == 0
    assert link.is_symlink()
    assert "8070" in path.read_text()


SETTINGS = """\
version: 1
local: [{listen: "127.0.0.1:8070", principal: nhi:planner}]
upstreams: {a: {mcp: {url: "http://x/mcp"}}, b: {mcp: {url: "http://y/mcp"}}}
"""


CONTAINERS = {"vscode": "servers", "opencode": "mcp", "zed": "context_servers"}


@pytest.mark.parametrize(("client", "own_path", "entry"), TABLES["entries"])
def test_each_client_is_told_and_wrapped_in_its_spelling(
    tmp_path: Path, client: str, own_path: str, entry: dict[str, Any]
) -> None:
    path, container = tmp_path / "sidecar.yaml", CONTAINERS.get(client, "mcpServers")
    path.write_text(SETTINGS)
    result = run("client-config", "--for", client, "-c", path)
    wanted = {name: json.loads(json.dumps(entry).replace('"U"', f'"{BASE}/{name}"')) for name in ("a", "b")}
    assert json.loads(result.stdout) == {container: wanted}
    alone = run("client-config", "--for", client, "--server", "b", "-c", path)
    assert list(json.loads(alone.stdout)[container]) == ["b"]
    if own_path:
        own = tmp_path / own_path
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(json.dumps({container: {"a": {"command": "x"}, "b": {"command": "y"}}}))
        assert run("wrap", own, "-c", path).exit_code == 0
        assert json.loads(own.read_text()) == {container: wanted}


def test_without_a_local_address_a_key_is_asked_and_clients_that_keep_no_json_are_told_in_their_form(
    tmp_path: Path,
) -> None:
    path = tmp_path / "sidecar.yaml"
    path.write_text("\n".join(line for line in SETTINGS.splitlines() if not line.startswith("local")))
    headers = {"headers": {"X-API-Key": "${SIDECAR_API_KEY}"}}
    claude = json.loads(run("client-config", "--for", "claude", "-c", path).stdout)["mcpServers"]
    assert claude["a"] == {"type": "http", "url": "http://127.0.0.1:8080/mcp/a", **headers}
    codex = tomllib.loads(run("client-config", "--for", "codex", "-c", path).stdout)["mcp_servers"]
    assert codex["b"] == {"url": "http://127.0.0.1:8080/mcp/b", "env_http_headers": {"X-API-Key": "SIDECAR_API_KEY"}}
    goose = yaml.safe_load(run("client-config", "--for", "goose", "-c", path).stdout)["extensions"]
    there = {"type": "streamable_http", "name": "a", "uri": "http://127.0.0.1:8080/mcp/a", "enabled": True}
    assert goose["a"] == there | headers
    desktop = json.loads(run("client-config", "--for", "claude-desktop", "-c", path).stdout)["mcpServers"]["a"]
    assert desktop["args"][2:] == ["--api-key-path", "/path/to/the/api-key"]


@pytest.mark.parametrize(("arguments", "code"), [(["--for", "claude", "--server", "x"], 1), (["--for", "x"], 2)])
def test_what_cannot_be_told_is_said(tmp_path: Path, arguments: list[str], code: int) -> None:
    (tmp_path / "sidecar.yaml").write_text(SETTINGS)
    assert run("client-config", *arguments, "-c", tmp_path / "sidecar.yaml").exit_code == code
