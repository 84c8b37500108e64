"""Does `sidecar mcp test` say how a server is, without a sidecar that runs?"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from tests.flow.scripts import hang, status
from tests.flow.world import SESSION, STATELESS, TOOLS, Upstream, listening, write_folder

BAD = {"name": "bad", "inputSchema": {"$ref": "http://elsewhere.example/"}}


async def look(folder: Path, *words: str, server: str = "github") -> Result:
    command = ["mcp", "test", server, "-c", str(folder / "sidecar.yaml"), *words]
    return await asyncio.to_thread(CliRunner().invoke, main, command)


async def report(folder: Path, upstream: Upstream) -> tuple[int, dict[str, Any]]:
    async with listening(upstream.handle) as base:
        write_folder(folder, f"{base}/mcp", mcp_settings="timeout_s: 0.3")
        result = await look(folder, "--json")
    told = json.loads(result.output)
    assert told.pop("handshake_latency_ms") >= 0 and told.pop("timestamp").endswith("Z")
    return result.exit_code, told


@pytest.mark.parametrize("era", [STATELESS, SESSION])
async def test_a_healthy_server_is_told_with_all_that_it_says_of_itself(era: str, tmp_path: Path) -> None:
    upstream = Upstream(script={} if era == STATELESS else {"server/discover": status(400)})
    healthy = {"tool_name": "github", "status": "healthy", "handshake_success": True, "error_message": None, "tools": 3}
    healthy |= {"protocol_version": era, "left_out": [], "stderr": []}
    if era == STATELESS:
        healthy |= {"server_capabilities": ["tools"], "server": None}
    else:
        healthy |= {"server_capabilities": ["tasks", "tools"], "server": "stub 1"}
    assert await report(tmp_path, upstream) == (0, healthy)
    assert "tools/call" not in upstream.methods()
    assert [verb for verb, _ in upstream.verbs].count("DELETE") == (era == SESSION)


async def test_a_tool_that_cannot_be_called_degrades_it_and_is_named(tmp_path: Path) -> None:
    code, told = await report(tmp_path, Upstream(tools=[*TOOLS, BAD]))
    assert (code, told["status"], told["tools"]) == (0, "degraded", 4) and "bad" in told["error_message"]
    (one,) = told["left_out"]
    assert (one["kind"], one["name"]) == ("tool", "bad") and "type: object" in one["reason"]


async def test_what_no_call_can_name_is_named_with_its_reason(tmp_path: Path) -> None:
    async with listening(Upstream(tools=[*TOOLS, {"name": "a b", "inputSchema": {"type": "object"}}]).handle) as base:
        write_folder(tmp_path, f"{base}/mcp")
        result = await look(tmp_path)
        tools = ["mcp", "tools", "github", "-c", str(tmp_path / "sidecar.yaml")]
        listed = await asyncio.to_thread(CliRunner().invoke, main, tools)
    reason = "its name is not 1 to 128 characters of A-Z a-z 0-9 _ . - /"
    assert result.exit_code == 0 and f"    tool 'a b': {reason}" in result.output.splitlines()
    assert f"left out: 'a b'  [{reason}]" in listed.output.splitlines()


NO_HANDSHAKES = [
    (status(401), "HTTP 401"),
    (status(503), "HTTP 503"),
    (status(307, location="/mcp/"), "HTTP 307, a redirect to /mcp/,"),
    (hang, "did not answer in time"),
]


@pytest.mark.parametrize(("way", "why"), NO_HANDSHAKES)
async def test_without_a_handshake_it_is_unhealthy_and_says_why(way: Any, why: str, tmp_path: Path) -> None:
    """Also a redirect, which is named with its target."""
    code, told = await report(tmp_path, Upstream(script={"server/discover": way, "initialize": way}))
    assert (code, told["status"], told["handshake_success"]) == (1, "unhealthy", False)
    assert why in told["error_message"]


async def test_for_people_it_is_a_few_lines(tmp_path: Path) -> None:
    async with listening(Upstream().handle) as base:
        write_folder(tmp_path, f"{base}/mcp")
        lines = (await look(tmp_path)).output.splitlines()
        assert lines[0] == "github  healthy" and any(line.split() == ["tools", "3"] for line in lines)
        assert (await look(tmp_path, server="gitlab")).exit_code == 2
    gone = await look(tmp_path)
    assert gone.exit_code == 1 and "cannot be reached" in gone.output


async def test_of_a_program_the_last_words_are_shown(tmp_path: Path) -> None:
    write_folder(tmp_path, "http://127.0.0.1:9/mcp")
    settings = tmp_path / "sidecar.yaml"
    program = 'command: /bin/sh, args: ["-c", "echo no database >&2; exit 3"], timeout_s: 2'
    settings.write_text(settings.read_text().replace('url: "http://127.0.0.1:9/mcp"', program))
    result = await look(tmp_path, "--json")
    told = json.loads(result.output)
    assert (result.exit_code, told["status"], told["stderr"]) == (1, "unhealthy", ["no database"])
    assert "    no database" in (await look(tmp_path)).output.splitlines()
