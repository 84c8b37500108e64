"""Do the official SDKs' clients of the HTTP+SSE transport work through us as they do over Streamable HTTP?

The 1.x client plays the very parts that it plays there (`test_sdk1.py`), to the same end.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import MCPError
from mcp.client.sse import sse_client

from tests.flow.forks import MCP1, python
from tests.flow.world import until
from tests.peers.ears import Ears, check_questions, client, text_of
from tests.peers.stage import ALL, LITTLE, Stage, stage
from tests.peers.test_sdk1 import ALLOWED, CLIENT, DENIED

old_sdk = pytest.mark.skipif(not MCP1.exists(), reason="no interpreter with mcp 1.x: make builds .venv-mcp1")


async def play(on: Stage, part: str) -> dict[str, Any]:
    """What the 1.x client saw."""
    command = (python(MCP1), "-m", CLIENT, f"{on.url}/sse", on.upstream, part)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), 120)
    seen: dict[str, Any] = json.loads(out)
    return seen


@old_sdk
@pytest.mark.parametrize(("part", "rules", "expected"), [("open", ALL, ALLOWED), ("shut", LITTLE, DENIED)])
async def test_the_1_x_client_sees_what_it_sees_over_streamable_http(
    tmp_path: Path, everything: str, part: str, rules: str, expected: dict[str, Any]
) -> None:
    """HTTP+SSE on both sides of us."""
    async with stage(tmp_path, everything, rules, path="/sse") as on:
        seen = await play(on, part)
        assert {step: seen.get(step, seen.get("broken")) for step in expected} == expected
        await until(lambda: len(on.world.app.sessions) == 0)


# How the caller speaks, and how the server.
BOTH_SIDES = pytest.mark.parametrize(("near", "far"), [("/sse", "/mcp"), ("", "/sse"), ("/sse", "/sse")])


@asynccontextmanager
async def connected(
    folder: Path, upstream: str, rules: str, near: str, far: str, ears: Ears | None = None, mode: str = "legacy"
) -> AsyncIterator[tuple[Stage, Any]]:
    async with stage(folder, upstream, rules, path=far) as on:
        transport = sse_client(f"{on.url}/sse") if near else on.url
        async with client(transport, mode, ears) as peer:
            yield on, peer


@BOTH_SIDES
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_2_x_client_finds_the_era_calls_and_is_asked_told_and_obeyed(
    tmp_path: Path, everything: str, near: str, far: str, mode: str
) -> None:
    ears, tag = Ears(), f"paired{near}{far}".replace("/", "-")
    async with connected(tmp_path, everything, ALL, near, far, ears, mode) as (on, peer):
        # Where the caller's own transport has both eras, it stays in the newer one, whatever the server speaks.
        assert peer.protocol_version == ("2026-07-28" if mode == "auto" and not near else "2025-11-25")
        assert "echo" in {tool.name for tool in (await peer.list_tools()).tools}
        assert text_of(await peer.call_tool("echo", {"text": "hällo"})) == "hällo"
        assert far != "/sse" or len(await on.verbs("GET")) == 3, (
            "it was found out, our own enquiry, the client's session"
        )
        if mode == "legacy":
            await on.until_verb("GET", 1 if far == "/mcp" else 2)
            await check_questions(peer, ears)
            await on.check_progress(peer, ears, tag)
            await peer.call_tool("shout", {"text": "one"})
            await until(lambda: ("error", "one") in ears.logs)
            await peer.call_tool("grow", {"name": f"grown-{tag}"})
            await until(lambda: ears.count(types.ToolListChangedNotification) > 0)
            await on.check_cancelling(peer, tag)
    await until(lambda: len(on.world.app.sessions) == 0)


@pytest.mark.parametrize(("near", "far"), [("", "/sse"), ("/sse", "/sse")])
async def test_the_2_x_client_hears_a_denial_and_goes_on(tmp_path: Path, everything: str, near: str, far: str) -> None:
    async with connected(tmp_path, everything, LITTLE, near, far) as (on, peer):
        listed = [tool.name for tool in (await peer.list_tools()).tools]
        assert listed == ["echo", "touch", "greet", "think", "places"]
        with pytest.raises(MCPError) as denied:
            await peer.call_tool("weather", {"city": "Oslo"})
        assert (denied.value.error.code, denied.value.error.data["reason"]) == (403, "no-matching-rule")
        assert text_of(await peer.call_tool("echo", {"text": "on we go"})) == "on we go"
        assert [call["params"]["name"] for call in await on.messages("tools/call")] == ["echo"]
