"""What reaches the upstream, and what does its trouble turn into?"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sidecar.errors import Reason, Refusal
from sidecar.http.client import QueueFull
from sidecar.protocols.jsonrpc import Request, encode_message
from sidecar.upstreams.credentials.source import NO_CREDENTIAL, CredentialSource, UpstreamCredentialValue
from sidecar.upstreams.http_address import HttpAddress, refusal_from
from sidecar.upstreams.mcp.streamable_http import HttpUpstream
from sidecar.upstreams.mcp.transport import AnswerPipe, BuiltUpstream, Outbound
from tests.unit.http.client.hostile import OK, Conversation, Hostile, Script, response, say, serving, silent

PING = Request(1, "ping", {})
BODY = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{}}'


@asynccontextmanager
async def behind(
    script: Script, credential: CredentialSource = NO_CREDENTIAL, **more: Any
) -> AsyncIterator[tuple[Hostile, HttpUpstream]]:
    async with serving(script) as server:
        upstream = HttpUpstream("notes", HttpAddress(server.url, credential=credential, **more))
        try:
            yield server, upstream
        finally:
            await upstream.close()


def post(**changes: Any) -> Outbound:
    """One plain message on its way."""
    return Outbound("POST", PING, "", 2.0)._replace(**changes)


def get() -> Outbound:
    return Outbound("GET", None, "", 2.0)


async def test_the_upstream_hears_what_we_decided_and_nothing_else() -> None:
    async with behind(say(OK), UpstreamCredentialValue("X-Api-Key", "ours")) as (server, upstream):
        call = Request(1, "tools/call", {"name": "a", "arguments": {}})
        extra = [("Mcp-Param-Region", "eu"), ("traceparent", "00-1")]
        sent = post(message=call, version="2026-07-28", session_id="s1", last_event_id="7", extra=extra)
        with await upstream.exchange(sent) as answer:
            assert (answer.status, answer.media_type, await answer.read(10)) == (200, "application/json", b"{}")
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
        assert head.decode().split("\r\n") == [
            "POST /mcp HTTP/1.1",
            f"Host: 127.0.0.1:{server.port}",
            "Accept-Encoding: identity",
            "Accept: application/json, text/event-stream",
            "Content-Type: application/json",
            "MCP-Protocol-Version: 2026-07-28",
            "Mcp-Method: tools/call",
            "Mcp-Name: a",
            "Mcp-Session-Id: s1",
            "Last-Event-ID: 7",
            "Mcp-Param-Region: eu",
            "traceparent: 00-1",
            "X-Api-Key: ours",
            f"Content-Length: {len(encode_message(call))}",
        ]
        assert body == encode_message(call)


async def test_what_the_operator_adds_goes_with_every_request_and_a_session_has_no_routing_headers() -> None:
    async with behind(say(OK), headers=[("X-MCP-Toolsets", "repos,issues")]) as (server, upstream):
        for outbound in (post(version="2025-11-25"), get(), post(verb="DELETE", message=None, session_id="s")):
            (await upstream.exchange(outbound)).close()
        assert [b"\r\nX-MCP-Toolsets: repos,issues\r\n" in said for said in server.requests] == [True] * 3
        assert server.requests[0].endswith(BODY) and b"mcp-method" not in server.requests[0].lower()


async def test_a_header_that_is_not_on_the_list_is_a_bug() -> None:
    async with behind(say(OK)) as (server, upstream):
        for name in ("Authorization", "Cookie", "X-Forwarded-For", "Host", "Mcp-Session-Id", "X-Api-Key"):
            with pytest.raises(ValueError, match="not a header that goes upstream"):
                await upstream.exchange(post(extra=[(name, "a")]))
        assert server.connections == 0


async def broken(conversation: Conversation) -> None:
    await conversation.request()
    await conversation.send(b"HTTP/1.1 200 OK\r\nContent-Le")


@pytest.mark.parametrize(
    ("script", "changes", "reason"),
    [
        (say(OK), {"deadline_s": 0.0}, Reason.UPSTREAM_TIMEOUT),
        (say(response(b"x" * 101)), {}, Reason.RESPONSE_REFUSED),
        (say(OK), {"last_event_id": "a\r\nX: y"}, Reason.MALFORMED_CALL),
        (say(OK), {"extra": [("tracestate", "a\nb")]}, Reason.MALFORMED_CALL),
    ],
)
async def test_trouble_becomes_a_refusal(script: Script, changes: dict[str, Any], reason: Reason) -> None:
    async with behind(script) as (_, upstream):
        with pytest.raises(Refusal) as caught, await upstream.exchange(post(**changes)) as answer:
            await answer.read(100)
        assert caught.value.reason is reason


async def test_an_answer_in_pieces_that_grows_too_large_is_closed_there_and_then() -> None:
    for most, refused in ((30, False), (29, True)):
        pipe, given_up = AnswerPipe(), list[str]()
        for _ in range(3):
            pipe.write(b"0123456789")
        if not refused:
            pipe.end()
        answer = BuiltUpstream(200, pipe=pipe, given_up=lambda heard=given_up: heard.append("up"))  # type: ignore[misc]
        if refused:
            with pytest.raises(Refusal, match="larger"):
                await answer.read(most)
        else:
            assert len(await answer.read(most)) == 30
        assert (given_up, pipe.closed) == (["up"] if refused else [], True)


async def test_calls_wait_for_a_connection_within_their_time_and_for_nobody_elses() -> None:
    async with behind(silent, max_connections=2) as (slow, full), behind(say(OK), max_connections=2) as (_, other):
        waiting = [full.exchange(post(deadline_s=0.2)) for _ in range(6)]
        stream = full.exchange(post(deadline_s=0.2, endless=True))
        refused = asyncio.gather(*waiting, stream, return_exceptions=True)
        for _ in range(5):
            with await other.exchange(post()) as answer:
                assert answer.status == 200
        reasons = [failure.reason for failure in await refused if isinstance(failure, Refusal)]
        assert reasons == [Reason.UPSTREAM_TIMEOUT] * 7
        assert len(slow.requests) == 2 + 1  # streams have connections of their own


async def test_where_too_many_wait_the_refusal_says_so() -> None:
    refusal = refusal_from(QueueFull())
    assert (refusal.reason, refusal.detail) == (Reason.UPSTREAM_FAILED, "too many calls wait for it")


@pytest.mark.parametrize("script", [say(response(b"", status="405 No")), broken, silent])
async def test_a_farewell_never_fails(script: Script) -> None:
    async with behind(script) as (server, upstream):
        async with asyncio.timeout(2):
            await upstream.end_session("s1", "2025-11-25", 0.1)
        assert server.requests[0].startswith(b"DELETE /mcp HTTP/1.1\r\n")
