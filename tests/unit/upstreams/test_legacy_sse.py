"""Is a server of the HTTP+SSE transport spoken with as it wants, and believed no more than it must be?"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from sidecar.errors import Reason, Refusal
from sidecar.upstreams.credentials.source import UpstreamCredentialValue
from sidecar.upstreams.http_address import HttpAddress
from sidecar.upstreams.mcp import transport_detection
from sidecar.upstreams.mcp.legacy_sse import SseUpstream
from sidecar.upstreams.mcp.transport import SESSION_ID, BuiltUpstream, Outbound, UpstreamAnswer
from sidecar.upstreams.mcp.transport_detection import DetectingUpstream
from tests.flow.misbehaviours import STREAM, telling
from tests.tables import tables
from tests.unit.http.client.hostile import response
from tests.unit.upstreams.lines import STATELESS, call, get, initialize, post, refuses
from tests.unit.upstreams.old import ACCEPTED, Old, running, upstream_of


async def begun(upstream: SseUpstream | DetectingUpstream, who: str = "a") -> str:
    """A session of one caller."""
    with await upstream.exchange(post(initialize(), who=who, version="")) as answer:
        return answer.headers[SESSION_ID]


async def status_of(upstream: SseUpstream, outbound: Outbound) -> int:
    """What it is answered with, once the loss of its line is known."""
    async with asyncio.timeout(2):
        while True:
            with suppress(Refusal):
                return (await upstream.exchange(outbound)).status
            await asyncio.sleep(0.01)


async def said(answer: UpstreamAnswer) -> dict[str, Any]:
    with answer:
        body: dict[str, Any] = json.loads(await answer.read(10_000))
        return body


async def test_each_session_has_a_stream_of_its_own_and_both_ways_show_our_credential() -> None:
    async with (
        running(Old()) as server,
        upstream_of(server, credential=UpstreamCredentialValue("X-Api-Key", "ours")) as upstream,
    ):
        first, second = await begun(upstream, "a"), await begun(upstream, "b")
        assert first != second and len(server.streams) == 2
        assert (await said(await upstream.exchange(post(call(id="x"), second, who="b"))))["id"] == "x"
        assert (await upstream.exchange(post(call(), first, who="b"))).status == 404
        heads = [request.partition(b"\r\n\r\n")[0].decode().split("\r\n") for request in server.server.requests]
        assert {(head[0], *head[3:]) for head in heads if head[0].startswith("GET")} == {
            ("GET /mcp HTTP/1.1", "Accept: text/event-stream", "X-Api-Key: ours")
        }
        posts = [head[0] for head in heads if head[0].startswith("POST")]
        assert posts == [f"POST /messages?s={number} HTTP/1.1" for number in (0, 1, 1)]
        assert all("X-Api-Key: ours" in head for head in heads)
        await upstream.end_session(first, "", 1.0)
        assert (await upstream.exchange(post(call(), first, who="a"))).status == 404


async def test_an_endpoint_of_the_same_origin_is_taken() -> None:
    async with running(Old()) as server, upstream_of(server) as upstream:
        for endpoint, target in tables("upstreams/legacy_sse")["endpoints"].items():
            server.opening, before = telling(endpoint.format(port=server.server.port)), len(server.server.requests)
            await begun(upstream)
            assert server.server.requests[before + 1].startswith(f"POST {target} HTTP/1.1".encode()), endpoint


async def test_an_endpoint_that_never_comes_is_a_time_out_and_leaves_nothing() -> None:
    async with running(Old(opening=STREAM)) as server, upstream_of(server, timeout_s=0.1) as upstream:
        for deadline_s in (0.05, 5.0):
            with refuses(Reason.UPSTREAM_TIMEOUT):
                await upstream.exchange(post(initialize(), who="a", deadline_s=deadline_s))
        await server.server.all_gone()


async def test_an_endpoint_is_told_once() -> None:
    async with running(Old()) as server, upstream_of(server) as upstream:
        session = await begun(upstream)
        for again in ("http://evil.example/m", "/other"):
            await server.streams[0].send(f"event: endpoint\ndata: {again}\n\n".encode())
            await said(await upstream.exchange(post(call(), session, who="a")))
        assert {request.split(b" ")[1] for request in server.server.requests[1:]} == {b"/messages?s=0"}


TAKEN_BADLY = [
    response(b"", status="500 Internal Server Error"),
    response(b"", "Location: http://evil.example/", status="307 Temporary Redirect"),
    response(b"", status="401 Unauthorized"),
    response(b"x" * 100_000, status="202 Accepted"),
    b"garbage\r\n\r\n",
]


async def test_a_message_that_is_not_taken_fails_its_call_alone() -> None:
    async with running(Old()) as server, upstream_of(server) as upstream:
        session = await begun(upstream)
        for taking in TAKEN_BADLY:
            server.taking, server.answers = taking, False
            with pytest.raises(Refusal) as refused:
                await upstream.exchange(post(call(), session, who="a"))
            assert refused.value.reason in (Reason.UPSTREAM_FAILED, Reason.RESPONSE_REFUSED)
            server.taking, server.answers = ACCEPTED, True
            assert "result" in await said(await upstream.exchange(post(call(), session, who="a")))


async def test_a_forgotten_session_is_over() -> None:
    async with running(Old()) as server, upstream_of(server) as upstream:
        session = await begun(upstream)
        server.taking, server.answers = response(b"", status="404 Not Found"), False
        with pytest.raises(Refusal):
            await upstream.exchange(post(call(), session, who="a"))
        assert await status_of(upstream, post(call(), session, who="a")) == 404


@pytest.mark.parametrize("how", ["closes", "resets", "floods", "says much at once"])
async def test_a_stream_that_dies_ends_its_calls_at_once_and_nobody_elses(how: str) -> None:
    async with running(Old()) as server, upstream_of(server, max_message_bytes=10_000) as upstream:
        mine, other = await begun(upstream, "a"), await begun(upstream, "b")
        server.answers = False
        calls = [asyncio.create_task(upstream.exchange(post(call(), mine, who="a"))) for _ in range(3)]
        await server.until_posted(5)
        stream = server.streams[0]
        if how == "closes":
            stream.writer.close()
        elif how == "resets":
            stream.reset()
        elif how == "floods":
            await stream.send(b"data: " + b"x" * 20_000)
        else:
            await stream.send(b"data: nonsense\n\n" * 1_001)
        ends = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 2)
        expected = Reason.UPSTREAM_FAILED if how in ("closes", "resets") else Reason.RESPONSE_REFUSED
        assert [end.reason for end in ends] == [expected] * 3
        assert (await upstream.exchange(post(call(), mine, who="a"))).status == 404
        server.answers = True
        assert "result" in await said(await upstream.exchange(post(call(), other, who="b")))


async def test_what_it_says_unasked_comes_on_the_sessions_stream_and_two_calls_do_not_meet() -> None:
    async with running(Old()) as server, upstream_of(server) as upstream:
        session = await begun(upstream)
        await server.say({"method": "notifications/tools/list_changed"})
        with await upstream.exchange(get(session, "a")) as stream:
            async for chunk in stream.chunks():
                assert b"list_changed" in chunk
                break
        server.answers = False
        calls = [asyncio.create_task(upstream.exchange(post(call(id=1), session, who="a"))) for _ in range(2)]
        await server.until_posted(3)
        ours = [message["id"] for message in server.posted[-2:]]
        assert len(set(ours)) == 2
        for number in reversed(ours):
            await server.say({"id": number, "result": {"number": number}})
        answers = [await said(answer) for answer in await asyncio.gather(*calls)]
        assert [answer["result"]["number"] for answer in answers] == ours and {a["id"] for a in answers} == {1}


# --- which of the two -------------------------------------------------------------------------------------------------

NO_POST = response(b"Method Not Allowed", "Content-Type: text/plain", status="405 Method Not Allowed")
ERROR = b'{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"no session"}}'
DISCOVER = call()._replace(method="server/discover", params={})


class Either(Old):
    """At its address, a POST is answered with `there`; its messages are POSTed elsewhere."""

    there: bytes = NO_POST

    async def converse(self, conversation: Any) -> None:
        send = conversation.send

        async def answer(data: bytes) -> None:
            at_its_address = self.server.requests[-1].startswith(b"POST /mcp ")
            await send(self.there if at_its_address and data == self.taking else data)

        conversation.send = answer
        await super().converse(conversation)


@asynccontextmanager
async def detecting_of(server: Old) -> AsyncIterator[DetectingUpstream]:
    async with upstream_of(server) as legacy:
        upstream = DetectingUpstream("old", HttpAddress(server.server.url), legacy, timeout_s=2.0)
        try:
            yield upstream
        finally:
            await upstream.close()


def gets(server: Old) -> int:
    return sum(request.startswith(b"GET") for request in server.server.requests)


REFUSED_POSTS = {
    "405": NO_POST,
    "404": response(b"", status="404 Not Found"),
    "400": response(b"what?", status="400 Bad Request"),
    "json": response(b'{"error":"nope"}', "Content-Type: application/json", status="404 Not Found"),
}


@pytest.mark.parametrize("there", REFUSED_POSTS.values(), ids=REFUSED_POSTS)
async def test_a_refused_post_and_an_endpoint_are_http_sse(there: bytes) -> None:
    server = Either()
    server.there = there
    async with running(server), detecting_of(server) as upstream:
        answer = await said(await upstream.exchange(post(DISCOVER, version=STATELESS)))
        assert answer["error"]["code"] == -32601  # the session era only; so an enquiry goes on to initialize
        session = await begun(upstream)
        assert "result" in await said(await upstream.exchange(post(call(), session, who="a")))
        assert sum(request.startswith(b"POST /mcp ") for request in server.server.requests) == 1


def told(status: str) -> bytes:
    return response(ERROR, "Content-Type: application/json", status=status)


NOT_OLD = {
    "json-rpc 400": (told("400 Bad Request"), STREAM, 0),
    "json-rpc 404": (told("404 Not Found"), STREAM, 0),
    "200": (told("200 OK"), STREAM, 0),
    "401": (response(b"", status="401 Unauthorized"), STREAM, 0),
    "500": (response(b"", status="500 Internal Server Error"), STREAM, 0),
    "404 twice": (REFUSED_POSTS["404"], REFUSED_POSTS["404"], 1),
    "a lie": (NO_POST, telling("http://evil.example/"), 1),
    "silence": (NO_POST, STREAM, 1),
}


@pytest.mark.parametrize(("there", "opening", "asked"), NOT_OLD.values(), ids=NOT_OLD)
async def test_everything_else_is_streamable_http_and_is_not_asked_twice(
    there: bytes, opening: bytes, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_detection, "PROBE_S", 1.0)  # of which only silence takes all
    server = Either(opening=opening)
    server.there = there
    async with running(server), detecting_of(server) as upstream:
        statuses = []
        for _ in range(3):
            with await upstream.exchange(post(initialize(), version="")) as answer:
                statuses.append(answer.status)
        assert statuses == [int(there.split(b" ")[1])] * 3
        assert gets(server) == asked
        in_a_session = Outbound("POST", call(), "2025-11-25", 1.0, "theirs")
        (await upstream.exchange(in_a_session)).close()
        assert gets(server) == asked


async def test_callers_who_come_at_once_find_out_together() -> None:
    server = Either()
    async with running(server), detecting_of(server) as upstream:
        sessions = await asyncio.gather(*(begun(upstream, who) for who in "abcde"))
        assert len(set(sessions)) == 5 and gets(server) == 6  # one of them found out


async def test_a_server_that_was_replaced_is_looked_at_again() -> None:
    server = Either()
    async with running(server), detecting_of(server) as upstream:
        session = await begun(upstream)
        server.streams[-1].reset()
        server.opening = response(b"", status="405 Method Not Allowed")
        server.there = response(b'{"jsonrpc":"2.0","id":0,"result":{}}', "Content-Type: application/json")
        with pytest.raises(Refusal):
            await begun(upstream)
        assert "result" in await said(await upstream.exchange(post(initialize(), version="")))
        with await upstream.exchange(post(call(), session, who="a")) as answer:
            assert answer.status == 200  # the new one's word, whatever it makes of the old one's session


async def test_what_detection_takes_is_taken_from_the_calls_own_time() -> None:
    left_s: list[float] = []

    class Legacy:
        async def is_there(self, caller: object, within_s: float) -> bool:
            await asyncio.sleep(0.05)
            return True

        async def exchange(self, outbound: Outbound) -> BuiltUpstream:
            left_s.append(until_s - asyncio.get_running_loop().time() - outbound.deadline_s)
            return BuiltUpstream(202)

    address = HttpAddress("http://127.0.0.1:1/")
    upstream = DetectingUpstream("old", address, Legacy(), timeout_s=2.0)
    until_s = asyncio.get_running_loop().time() + 2.0
    await upstream.refused(post(initialize()), BuiltUpstream(404), until_s)
    assert abs(left_s[0]) < 0.04
    await address.close()
