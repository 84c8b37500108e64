"""Do `wrap`, `unwrap` and `client-config` say what they do, and never lose what people wrote?"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.unit.clients.test_folder import run

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


def test_its_servers_join_a_folder_once(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    assert run("wrap", path, "--into", folder).exit_code == 0
    assert run("check", "-c", folder / "sidecar.yaml").exit_code == 0
    before = (folder / "sidecar.yaml").read_text()
    path.write_text(path.read_text().replace('"web":', '"my files": {"command": "python3"}, "web":'))
    result = run("wrap", path, "--into", folder)
    assert result.exit_code == 0, result.output
    after = (folder / "sidecar.yaml").read_text()
    assert run("check", "-c", folder / "sidecar.yaml").exit_code == 0
    lines = after.splitlines()
    assert [line for line in before.splitlines() if line not in lines] == []
    assert "  my-files-2:" in lines
    assert f"{BASE}/my-files-2" in path.read_text()
    assert run("unwrap", path).exit_code == 0
    assert path.read_text() == FILE.replace('"web":', '"my files": {"command": "python3"}, "web":')


def test_a_server_that_is_there_already_is_there_once(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    assert run("wrap", path, "--into", folder).exit_code == 0
    before, wrapped = (folder / "sidecar.yaml").read_text(), path.read_text()
    assert run("unwrap", path).exit_code == 0
    result = run("wrap", path, "--into", folder)
    assert result.exit_code == 0, result.output
    assert ((folder / "sidecar.yaml").read_text(), path.read_text()) == (before, wrapped)


def test_nobody_is_led_to_where_nothing_is(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    assert run("init", folder).exit_code == 0
    result = run("wrap", path, "-c", folder / "sidecar.yaml")
    assert (result.exit_code, path.read_text()) == (1, FILE)
    assert "no upstream for My Files (my-files), web (web)" in result.stderr


def test_what_is_wrapped_is_not_wrapped_again_elsewhere(path: Path) -> None:
    assert run("wrap", path).exit_code == 0
    result = run("wrap", path, "--url", "http://127.0.0.1:9999")
    assert (result.exit_code, "unwrap" in result.stderr) == (1, True)


def test_the_backup_is_never_overwritten(path: Path) -> None:
    backup = path.with_name(".mcp.json.before-sidecar")
    backup.write_text("mine")
    result = run("wrap", path)
    assert (result.exit_code, path.read_text(), backup.read_text()) == (3, FILE, "mine")


def test_what_is_not_understood_is_not_touched(path: Path) -> None:
    path.write_text('{"mcpServers": {"a": {}}}')
    assert run("wrap", path).exit_code == 3
    assert [found.name for found in path.parent.iterdir()] == [".mcp.json"]


def test_a_client_of_programs_alone_is_told(tmp_path: Path) -> None:
    path = tmp_path / "claude_desktop_config.json"
    path.write_text(FILE)
    result = run("wrap", path)
    assert (result.exit_code, path.read_text()) == (1, FILE)
    assert "starts programs" in result.stderr


def test_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(path)
    assert run("wrap", link).exit_code == 0
    assert link.is_symlink()
    assert "8070" in path.read_text()


def test_without_a_backup_nothing_goes_back(path: Path) -> None:
    assert run("unwrap", path).exit_code == 1


SETTINGS = """\
version: 1
local: [{listen: "127.0.0.1:8070", principal: nhi:planner}]
upstreams: {a: {mcp: {url: "http://x/mcp"}}, b: {mcp: {url: "http://y/mcp"}}}
"""


@pytest.mark.parametrize(
    ("client", "container", "entry"),
    [
        ("claude", "mcpServers", {"type": "http", "url": "U"}),
        ("vscode", "servers", {"type": "http", "url": "U"}),
        ("cursor", "mcpServers", {"url": "U"}),
        ("windsurf", "mcpServers", {"serverUrl": "U"}),
        ("gemini", "mcpServers", {"httpUrl": "U"}),
    ],
)
def test_each_client_is_told_in_its_spelling(
    tmp_path: Path, client: str, container: str, entry: dict[str, str]
) -> None:
    path = tmp_path / "sidecar.yaml"
    path.write_text(SETTINGS)
    result = run("client-config", "--for", client, "-c", path)
    wanted = {name: {k: f"{BASE}/{name}" if v == "U" else v for k, v in entry.items()} for name in ("a", "b")}
    assert json.loads(result.stdout) == {container: wanted}
    alone = run("client-config", "--for", client, "--server", "b", "-c", path)
    assert list(json.loads(alone.stdout)[container]) == ["b"]


def test_without_a_local_address_a_key_is_asked_of_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "sidecar.yaml"
    path.write_text("\n".join(line for line in SETTINGS.splitlines() if not line.startswith("local")))
    entry = json.loads(run("client-config", "--for", "claude", "-c", path).stdout)["mcpServers"]["a"]
    assert entry == {
        "type": "http",
        "url": "http://127.0.0.1:8080/mcp/a",
        "headers": {"X-API-Key": "${SIDECAR_API_KEY}"},
    }


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--for", "claude-desktop"], 1), (["--for", "claude", "--server", "x"], 1), (["--for", "x"], 2)],
)
def test_what_cannot_be_told_is_said(tmp_path: Path, arguments: list[str], code: int) -> None:
    (tmp_path / "sidecar.yaml").write_text(SETTINGS)
    assert run("client-config", *arguments, "-c", tmp_path / "sidecar.yaml").exit_code == code
