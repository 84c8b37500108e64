"""Has the official client all of the official server, when that is a program on pipes?"""

import json
from pathlib import Path

import mcp_types as types
import pytest

from tests.flow.forks import python
from tests.flow.world import until, world
from tests.peers.ears import Ears, check_content, check_questions, client
from tests.peers.stage import ALL, ROOT, SETTINGS

SESSION, STATELESS = "legacy", "auto"
ARGUMENTS = json.dumps(["-m", "tests.peers.stdio_server", "everything"])
EVERYTHING = f"command: {python()}, args: {ARGUMENTS}, cwd: {ROOT}"


@pytest.mark.parametrize("mode", [SESSION, STATELESS])
async def test_it_lists_calls_asks_logs_and_tells_of_changes(tmp_path: Path, mode: str) -> None:
    async with world(tmp_path, rules=ALL, settings=SETTINGS, program=EVERYTHING) as running:
        ears = Ears()
        async with client(f"{running.url}/mcp/github", mode, ears) as peer:
            assert peer.protocol_version == {SESSION: "2025-11-25", STATELESS: "2026-07-28"}[mode]
            await check_content(peer)
            await check_questions(peer, ears)
            if mode == SESSION:
                await peer.call_tool("whisper", {"text": "psst"})
                await until(lambda: ("warning", "warning psst") in ears.logs)
                await peer.call_tool("grow", {"name": "new"})
                await until(lambda: ears.count(types.ToolListChangedNotification) >= 1)
