"""The newcomer's three commands: `init --casbin`, `check`, `serve`. Each is a process; the calls are real ones."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import aiohttp

from sidecar.cli.free_ports import free_ports
from tests.flow.process import Served
from tests.flow.world import ACCEPT, STATELESS, Upstream, listening, stateless
from tests.unit.policy.stock.setups import BY_ROLE, ROLES, conf

ROWS = """\
p, reader, github, search_code
p, reader, github, get_file
p, editor, github, delete_repo
g, alice, reader
g, bob, editor
"""
PORTS = ("8070", "8080", "9090")


def sidecar(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "sidecar", *arguments]
    done = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout + done.stderr


async def called(http: aiohttp.ClientSession, url: str, name: str) -> int:
    body: dict[str, Any] = stateless("tools/call", {"name": name, "arguments": {"repo": "a"}})
    headers = {"Mcp-Method": "tools/call", "Mcp-Name": name, "MCP-Protocol-Version": STATELESS, "Accept": ACCEPT}
    async with http.post(url, json=body, headers=headers) as answer:
        return answer.status


async def test_three_commands_serve_a_casbin_program() -> None:
    upstream = Upstream()
    with tempfile.TemporaryDirectory(prefix="sidecar") as name:  # a socket's path holds 107 bytes: not tmp_path
        folder = Path(name)
        (folder / "model.conf").write_text(conf(BY_ROLE, roles=ROLES))
        (folder / "policy.csv").write_text(ROWS)
        async with listening(upstream.handle) as base, aiohttp.ClientSession() as http:
            (folder / "map.yaml").write_text(f"upstreams: {{github: {base}/mcp}}\n")
            made = folder / "gateway"
            told = sidecar(folder, "init", "--casbin", "model.conf", "policy.csv", "--map", "map.yaml", "gateway")
            assert "nhi:planner, the caller at the local listener, is alice in this policy" in told
            settings, ports = (made / "sidecar.yaml").read_text(), free_ports(len(PORTS))
            for port, free in zip(PORTS, ports, strict=True):
                settings = settings.replace(f"127.0.0.1:{port}", f"127.0.0.1:{free}")
            (made / "sidecar.yaml").write_text(settings)
            assert "sidecar.yaml is valid: 3 user_to_nhi, 3 nhi_to_nhi, 3 agent_to_tool rules" in sidecar(made, "check")
            running = Served(made)
            await running.start()
            try:
                url = f"http://127.0.0.1:{ports[0]}/mcp/github"
                answers = [await called(http, url, tool) for tool in ("search_code", "get_file", "delete_repo")]
                assert answers == [200, 200, 403]
                assert [call["params"]["name"] for call in upstream.calls()] == ["search_code", "get_file"]
                ends = [record for record in running.records() if record["event"] in ("outcome", "refusal")]
                assert [end["reason"] for end in ends] == [None, None, "no-matching-rule"]
            finally:
                assert running.process is not None
                os.kill(running.process.pid, signal.SIGTERM)
                async with asyncio.timeout(30):
                    await running.process.wait()
