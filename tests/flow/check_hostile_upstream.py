"""Hostile words on pipes and on streams of 2024 reach no caller, and a flood holds up nothing but its own call."""

import asyncio
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.flow import misbehaviours as scripts
from tests.flow.bystanders import callbacks, nothing_left, unharmed
from tests.flow.hostile_upstream import JSON_WORDS, grows_at_most, in_turn
from tests.flow.misbehaviours import bytes_of
from tests.flow.streams import hearing
from tests.flow.talk import Talk
from tests.flow.test_hostile_upstream import ID, LAG_S, before_lines, before_old, callers, calm, rude_call, words
from tests.flow.world import request

# A stream that is not UTF-8 is of no use any more, and a stream may end without an answer.
ON_A_2024_STREAM = {"UTF-16": scripts.REFUSED, "Latin-1": scripts.REFUSED}


def over_lines() -> dict[str, str]:
    """What is heard where answers are found by their ids."""
    found = {name: scripts.TIMEOUT if name in scripts.NOBODYS else scripts.REFUSED for name in scripts.WORDS}
    return found | dict.fromkeys(scripts.PASSES, "")


FLOODS = ["flood_notes", "flood_progress", "flood_changes", "flood_pings", "flood_questions", "flood_answers"]


async def reason_of_flood(talk: Talk, how: str) -> str:
    """Why the call ended; what came before is read and not kept."""
    call, end = request("tools/call", {"name": "misbehave", "arguments": {"how": how}}), b""
    async with hearing(talk.world.http, f"{talk.world.url}/mcp/github", talk.in_session, call) as ear:
        while chunk := await ear.response.content.read(65_536):
            end = (end + chunk)[-4096:]
    return re.findall(rb'"reason":"([a-z-]+)"', end)[-1].decode()


async def test_a_flood_on_a_line_ends_its_call_in_time_and_others_have_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is that never stops, though every line of it is well-formed; and it goes on until its session
    ends."""
    async with before_lines(tmp_path) as running:
        same = partial(Talk(running, "session").call, "count")

        async def play(how: str) -> str:
            talk = Talk(running, "session")
            await talk.call("count")
            reason = await reason_of_flood(talk, how)
            await asyncio.sleep(0.1)
            await talk.verb("DELETE")
            return reason

        with grows_at_most(100), callbacks(monkeypatch) as longest:
            async with nothing_left(running, sessions=10), unharmed(**calm(running), same=same):
                came_to = await in_turn(FLOODS, play, 3)
        assert came_to == dict.fromkeys(FLOODS, scripts.TIMEOUT)
        assert max(longest.values(), default=0.0) < LAG_S, longest


async def test_words_on_pipes(tmp_path: Path) -> None:
    def say_it(talk: Talk, name: str) -> Any:
        file = tmp_path / name
        file.write_bytes(bytes_of(JSON_WORDS[name]({"jsonrpc": "2.0", "id": ID, "method": "tools/call", "params": {}})))
        return talk.call("say", {"file": str(file)})

    async with before_lines(tmp_path) as running:
        same = partial(Talk(running, "session").call, "count")
        async with nothing_left(running, sessions=10), unharmed(**calm(running), same=same):
            came_to = await words(running, "session", say_it, at_once=7, polite=["count"])
        assert came_to == over_lines()


async def test_words_on_the_stream_of_a_2024_server(tmp_path: Path) -> None:
    async with before_old(tmp_path, 1) as (_, running):
        others = {name: call for name, call in callers(running).items() if name != "same stateless"}
        async with nothing_left(running, sessions=10), unharmed(**others):
            came_to = await words(running, "session", rude_call, at_once=10)
        assert came_to == over_lines() | ON_A_2024_STREAM
