"""Can an upstream keep us waiting, break off, or be too much for us?

Slow ones, endless ones, large ones and those that hang up anywhere, while other callers work on (threats D5, I11;
reports BL-018, BL-019, BL-036, BL-038, BL-086).
"""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.flow.hostile_upstream import (
    FINE,
    HEAD,
    RUDE,
    Attack,
    before,
    done,
    grows_at_most,
    polite,
    reason_in_stream,
)
from tests.flow.streams import EVENT_STREAM, event, hearing
from tests.flow.talk import reason_of
from tests.flow.world import RULES, STATELESS, World, stateless, until, world
from tests.unit.egress.hostile import Conversation, chunked, response

ANSWER = json.dumps(done({"id": 1})).encode()
LENGTH = b"Content-Length: %d\r\n" % len(ANSWER)


# --- time -------------------------------------------------------------------------------------------------------------


async def silence(conversation: Conversation, message: dict[str, Any]) -> None:
    await conversation.hung_up()


async def drip_head(conversation: Conversation, message: dict[str, Any]) -> None:
    await conversation.drip(HEAD + b"X-A: " + b"a" * 1000, every_s=0.01)


async def drip_body(conversation: Conversation, message: dict[str, Any]) -> None:
    await conversation.send(HEAD + b"Content-Length: 100000\r\n\r\n")
    await conversation.drip(b" " * 1000, every_s=0.01)


async def drip_interim(conversation: Conversation, message: dict[str, Any]) -> None:
    for _ in range(7):
        await conversation.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        await asyncio.sleep(0.01)
    await conversation.hung_up()


def endless(piece: bytes, every_s: float = 0.0) -> Attack:
    """The same, again and again, as an event stream."""

    async def attack(conversation: Conversation, message: dict[str, Any]) -> None:
        await conversation.send(response(b"", "Content-Type: text/event-stream", framing="X: y"))
        while True:
            await conversation.send(piece)
            await asyncio.sleep(every_s)

    return attack


SLOW: dict[str, Attack] = {
    "silence": silence,
    "a head in drips": drip_head,
    "a body in drips": drip_body,
    "interim answers in drips": drip_interim,
    "comments without end": endless(b": still here\n\n", 0.005),
    "events without end": endless(event({"jsonrpc": "2.0", "method": "notifications/progress", "params": {}}), 0.005),
    "a flood of comments": endless(b":\n" * 8192),
    "a flood of blank lines": endless(b"\n\r\r\n" * 8192),
    "a flood of empty events": endless(b"data\n\n" * 4096),
    "a flood of unknown fields": endless(b"x: y\n" * 4096),
    "a flood of notes": endless(event({"jsonrpc": "2.0", "method": "notifications/progress"}) * 512),
    "a flood of unknown notes": endless(event({"jsonrpc": "2.0", "method": "x/y"}) * 512),
    "one line in drips": endless(b"data: x", 0.005),
}


@pytest.mark.parametrize("case", SLOW)
async def test_an_answer_has_a_deadline_and_others_have_their_turn_meanwhile(tmp_path: Path, case: str) -> None:
    async with before(tmp_path, SLOW[case], mcp_settings="timeout_s: 0.7") as (running, hostile):
        await polite(running)
        started = asyncio.get_running_loop().time()
        call = asyncio.create_task(running.call("search_code", RUDE))
        while not call.done():
            await polite(running)
        status, said, _ = await call
        assert asyncio.get_running_loop().time() - started < 5
        reason = reason_in_stream(said) if isinstance(said, bytes) else said["error"]["data"]["reason"]
        assert reason == "upstream-timeout" and status == (200 if isinstance(said, bytes) else 504)
        assert hostile.server is not None
        await until(lambda: running.upstream_connections <= 1)
        assert running.ends()[-1]["event"] == "outcome"


# --- breaking off -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("media", ["json", "stream", "chunks"])
async def test_an_answer_that_breaks_off_anywhere_is_a_failed_upstream(tmp_path: Path, media: str, reset: bool) -> None:
    whole = {
        "json": HEAD + LENGTH + b"\r\n" + ANSWER,
        "stream": response(b"", "Content-Type: text/event-stream", framing="X: y") + event(done({"id": 1})),
        "chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(ANSWER[:20], ANSWER[20:]),
    }[media]
    places = iter(range(0, len(whole) - 1, max(1, len(whole) // 25)))

    async def attack(conversation: Conversation, message: dict[str, Any]) -> None:
        await conversation.send(whole[: next(places)])
        await asyncio.sleep(0.002)
        conversation.reset() if reset else conversation.writer.close()

    async with before(tmp_path, attack) as (running, hostile):
        for number in range(24):
            status, said, _ = await running.call("search_code", RUDE, id=number + 1)
            reason = reason_in_stream(said) if isinstance(said, bytes) else said["error"]["data"]["reason"]
            assert reason in ("upstream-failed", "response-refused") and status in (502, 200)
            assert FINE not in str(said)
        await polite(running, 2)
        assert len(running.ends()) == 26 and len(hostile.asked) == 24


async def test_a_restarted_upstream_is_called_again_at_once(tmp_path: Path) -> None:
    """BL-086: it hung up on every idle connection."""
    async with before(tmp_path, silence) as (running, hostile):
        assert hostile.server is not None
        for _ in range(5):
            await polite(running, 2)
            for writer in hostile.server.writers:
                writer.close()


# --- size -------------------------------------------------------------------------------------------------------------

PIECE = b"x" * 2**20


async def a_large_length(conversation: Conversation, message: dict[str, Any]) -> None:
    await conversation.send(HEAD + b"Content-Length: 104857600\r\n\r\n")
    for _ in range(100):
        await conversation.send(PIECE)


async def many_chunks(conversation: Conversation, message: dict[str, Any]) -> None:
    await conversation.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    for _ in range(100):
        await conversation.send(b"100000\r\n" + PIECE + b"\r\n")


async def until_close(conversation: Conversation, message: dict[str, Any]) -> None:
    await conversation.send(HEAD + b"\r\n")
    for _ in range(100):
        await conversation.send(PIECE)


LARGE: dict[str, Attack] = {
    "a length of 100 MB": a_large_length,
    "100 MB in chunks": many_chunks,
    "100 MB until close": until_close,
    "a line of 100 MB": endless(b"data: " + PIECE),
    "an event of 100 MB": endless((b"data: " + b"x" * 100 + b"\n") * 9000),
    "a field of 100 MB": endless(b"y" * 2**20),
}


@pytest.mark.parametrize("case", LARGE)
async def test_an_answer_without_end_is_refused_and_not_held(tmp_path: Path, case: str) -> None:
    async with before(tmp_path, LARGE[case]) as (running, _):
        await polite(running)
        with grows_at_most(80) as look:
            for _ in range(2):
                _, said, _ = await running.call("search_code", RUDE)
                look()
        reason = reason_in_stream(said) if isinstance(said, bytes) else said["error"]["data"]["reason"]
        assert reason == "response-refused"
        await polite(running)


# --- others -----------------------------------------------------------------------------------------------------------


async def test_progress_is_passed_on_at_once(planner: World) -> None:
    """BL-038."""
    heard = asyncio.Event()

    async def slow(asked: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        stream = web.StreamResponse(headers=EVENT_STREAM)
        await stream.prepare(asked)
        await stream.write(event({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1}}))
        await heard.wait()
        await stream.write(event(done(message)))
        return stream

    planner.upstream.script["tools/call"] = slow
    routing = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": "tools/call", "Mcp-Name": "search_code"}
    call = stateless("tools/call", {"name": "search_code", "arguments": RUDE})
    async with hearing(planner.http, f"{planner.url}/mcp/github", routing, call) as ear:
        assert (await ear.message())["method"] == "notifications/progress"
        heard.set()
        assert (await ear.message())["result"]["content"][0]["text"] == FINE


async def test_an_upstream_that_is_not_there_harms_no_other(tmp_path: Path) -> None:
    """BL-036."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/mcp"
        gone = f"anonymous: false}}\n  gone: {{mcp: {{url: '{url}'}}"
        rules = RULES + "p, nhi:planner, tool:gone/*, use, -, -, -, allow\n"
        async with world(tmp_path, rules=rules, upstream_settings=gone) as running:
            answers = await asyncio.gather(*(running.call("any", server="gone") for _ in range(5)), polite(running, 3))
            assert [reason_of(answer) for answer in answers[:5]] == ["upstream-failed"] * 5
            assert "127.0.0.1" not in str(answers)


async def test_health_is_told_at_once_while_every_upstream_hangs(tmp_path: Path) -> None:
    """BL-018."""
    async with before(tmp_path, silence, mcp_settings="timeout_s: 2") as (running, hostile):
        await polite(running)
        calls = [asyncio.create_task(running.call("search_code", RUDE, id=number)) for number in range(20)]
        await until(lambda: len(hostile.asked) == 20)
        for path in ("/livez", "/readyz", "/metrics"):
            started = asyncio.get_running_loop().time()
            async with running.http.get(running.admin_url + path) as response:
                assert response.status == 200
            assert asyncio.get_running_loop().time() - started < 1
        assert not any(call.done() for call in calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
