"""Does the official client, with the file that `wrap` wrote, reach through us the server that the file named before?"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from sidecar.cli.free_ports import free_ports
from tests.peers.ears import client, text_of
from tests.peers.stage import ROOT

WITHIN_S = 60.0


async def sidecar(*arguments: object) -> str:
    """What a command of ours prints; it must end well."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sidecar", *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(WITHIN_S):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


def free_port() -> int:
    return free_ports(1)[0]


def with_ports(config: Path) -> None:
    """The ports of a first folder may be taken here."""
    text = config.read_text()
    for port in ("8080", "8070", "9090"):
        text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{free_port()}")
    config.write_text(text)


async def test_a_wrapped_file_leads_the_official_client_to_the_same_server(tmp_path: Path) -> None:
    file, folder = tmp_path / ".mcp.json", tmp_path / "s"
    entry = {"command": sys.executable, "args": ["-m", "tests.peers.stdio_server"], "cwd": str(ROOT)}
    before = json.dumps({"mcpServers": {"The Counter": entry}}, indent=2)
    file.write_text(before)
    await sidecar("init", "--from", file, folder)
    with_ports(folder / "sidecar.yaml")
    rules = folder / "policies" / "agent_to_tool.the-counter.csv"
    rules.write_text(rules.read_text().replace("put-a-tool-here", "count"))
    await sidecar("wrap", file, "-c", folder / "sidecar.yaml")
    url = json.loads(file.read_text())["mcpServers"]["The Counter"]["url"]

    log = folder / "log"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sidecar", "serve", "-c", str(folder / "sidecar.yaml")), stderr=stderr
        )
    try:
        async with asyncio.timeout(WITHIN_S):
            while "sidecar serves" not in log.read_text():
                assert process.returncode is None, log.read_text()
                await asyncio.sleep(0.02)
        async with client(url, "legacy") as peer:
            assert [tool.name for tool in (await peer.list_tools()).tools] == ["count"]
            assert text_of(await peer.call_tool("count", {})).startswith("1 ")
    finally:
        if process.returncode is None:
            os.kill(process.pid, signal.SIGTERM)
        async with asyncio.timeout(WITHIN_S):
            await process.wait()
    await sidecar("unwrap", file)
    assert file.read_text() == before
