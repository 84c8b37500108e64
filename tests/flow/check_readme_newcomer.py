"""A newcomer with the README alone: from nothing to a governed call in front of their own server.

The README's commands run as they stand, in a fresh virtual environment. The server is the newcomer's: a program on
pipes, written with the official SDK. `pip install .` fetches the dependencies as it does for anyone.
"""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, MCPError

from sidecar.cli.free_ports import free_ports
from tests.pages import ROOT, Block, blocks_of

PROMISED_S = 300.0
SERVER = '''\
from mcp.server import MCPServer

server = MCPServer("notes", log_level="ERROR")


@server.tool()
def search_notes(repo: str) -> str:
    """Notes about a repository."""
    return f"a note about {repo}"


@server.tool()
def delete_note(repo: str, index: int) -> str:
    """Delete a note."""
    raise AssertionError("it was called")


server.run("stdio")
'''
PORTS = ("8070", "8080", "9090")  # of `sidecar init`


def section(title: str) -> list[Block]:
    """The blocks of one section of the README."""
    text = (ROOT / "README.md").read_text("utf-8")
    _, _, rest = text.partition(f"## {title}\n")
    assert rest, title
    return list(blocks_of(rest.partition("\n## ")[0]))


def typed(block: Block) -> list[str]:
    """The commands of a block, without prompts."""
    lines = [line.removeprefix("$ ") for line in block.text.splitlines()]
    return [line for line in lines if "demo_server" not in line and not line.startswith("sidecar serve")]


def script(place: Path) -> str:
    """What the newcomer types and writes, up to the start of the sidecar."""
    ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
    other_ports = ";".join(f"s/:{old}$/:{new}/;s/:{old} /:{new} /" for old, new in ports.items())
    lines = ["set -eu", f"cd {ROOT}"]
    for block in section("Put it in front of your own server"):
        if block.file:  # .mcp.json is the newcomer's own, and `init` wrote sidecar.yaml
            continue
        for line in typed(block) if block.runs or block.language == "console" else []:
            lines.append(line.replace("~", str(place)))
            if line.startswith("pip install"):
                lines.append(f"cd {place}")
            if line.startswith("sidecar init"):
                lines.append(f"sed -i '{other_ports}' gateway/sidecar.yaml")
    for block in section("One rule, one test"):
        if block.file:
            lines.append(f"mkdir -p $(dirname {block.file})\ncat > {block.file} <<'@@ END'\n{block.text}@@ END")
        elif block.runs:
            lines += typed(block)
    return "\n".join(lines) + "\n"


@contextmanager
def serving(place: Path) -> Iterator[None]:
    """`sidecar serve` in the newcomer's folder, ready to be called."""
    with (place / "sidecar.log").open("wb") as log:
        command = [place / "sidecar" / "bin" / "sidecar", "serve"]
        with subprocess.Popen(command, cwd=place / "gateway", stderr=log) as process:
            try:
                settings = (place / "gateway" / "sidecar.yaml").read_text("utf-8")
                admin = re.search(r"^admin:\n +listen: (\S+)", settings, re.MULTILINE)
                assert admin is not None
                wait_until_ready(f"http://{admin[1]}/readyz", process)
                yield
            finally:
                process.send_signal(signal.SIGTERM)


def wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(url, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"{url} is not ready")


async def test_a_newcomer_has_a_governed_call_within_five_minutes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "server.py").write_text(SERVER, "utf-8")
    entry: dict[str, Any] = {"command": sys.executable, "args": ["server.py"]}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"notes": entry}}), "utf-8")
    began = time.monotonic()
    done = subprocess.run(["bash", "-c", script(tmp_path)], capture_output=True, text=True, timeout=PROMISED_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed, 0 failed" in done.stdout
    installed_s = time.monotonic() - began
    with serving(tmp_path):
        url = json.loads((tmp_path / ".mcp.json").read_text("utf-8"))["mcpServers"]["notes"]["url"]
        async with Client(url) as client:
            listed = await client.list_tools()
            answer = await client.call_tool("search_notes", {"repo": "acme/site"})
            with pytest.raises(MCPError, match="A rule denies this call"):
                await client.call_tool("delete_note", {"repo": "acme/site", "index": 0})
    spent_s = time.monotonic() - began
    assert [tool.name for tool in listed.tools] == ["search_notes"]
    assert "a note about acme/site" in answer.model_dump_json()
    audit = [str(tmp_path / "sidecar" / "bin" / "sidecar"), "audit", "verify"]
    assert subprocess.run(audit, cwd=tmp_path / "gateway", capture_output=True, check=False).returncode == 0
    with capsys.disabled():
        print(f"\nfrom nothing to a governed call: {spent_s:.0f} s, {installed_s:.0f} s of them to install and check")
    assert spent_s < PROMISED_S
