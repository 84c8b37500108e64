"""Does the official client, with the file that `wrap` wrote, reach through us the server that the file named before?"""

import json
import os
import re
from pathlib import Path

from sidecar.cli.free_ports import free_ports
from tests.flow.forks import python
from tests.flow.world import started
from tests.peers.ears import client, text_of
from tests.peers.stage import ROOT
from tests.unit.cli.client_files.test_folder import run


async def test_a_wrapped_file_leads_the_official_client_to_the_same_server(tmp_path: Path) -> None:
    file, folder = tmp_path / ".mcp.json", tmp_path / "s"
    config, rules = folder / "sidecar.yaml", folder / "policies" / "agent_to_tool.the-counter.csv"
    entry = {"command": python(), "args": ["-m", "tests.peers.stdio_server"], "cwd": str(ROOT)}
    before = json.dumps({"mcpServers": {"The Counter": entry}}, indent=2)
    file.write_text(before)
    assert run("init", "--from", file, folder).exit_code == 0
    ports = iter(free_ports(3))  # those of a first folder may be taken here
    config.write_text(
        re.sub(r"(listen: 127\.0\.0\.1:)\d+", lambda found: f"{found[1]}{next(ports)}", config.read_text())
    )
    rules.write_text(rules.read_text().replace("put-a-tool-here", "count"))
    assert run("wrap", file, "-c", config).exit_code == 0
    app = await started(folder, {"PATH": os.environ["PATH"]})
    try:
        url = json.loads(file.read_text())["mcpServers"]["The Counter"]["url"]
        async with client(url, "legacy") as peer:
            assert [tool.name for tool in (await peer.list_tools()).tools] == ["count"]
            assert text_of(await peer.call_tool("count", {})).startswith("1 ")
    finally:
        await app.stop()
    assert run("unwrap", file).exit_code == 0 and file.read_text() == before
