"""How does the client behave when the server does its worst?"""

import asyncio
import gc
import random
import ssl
from contextlib import aclosing
from pathlib import Path

import pytest

from sidecar.http.client import (
    ClientResponse,
    ClientTimeout,
    ConnectFailed,
    ConnectionBroken,
    Deadline,
    EgressError,
    HttpClient,
    InvalidRequest,
    ResponseTooLarge,
    UnacceptableResponse,
    fetch,
    parse_origin,
)
from sidecar.http.client.fetch import fetch_newer
from sidecar.http.client.http1 import ResponseReader
from tests.tables import tables
from tests.unit.http.client.certificate import self_signed
from tests.unit.http.client.hostile import OK, Conversation, Script, chunked, meeting, response, say, serving, silent

BODY = b'{"jsonrpc":"2.0"}'


async def post(client: HttpClient, *, deadline_s: float = 5.0) -> ClientResponse:
    return await client.request("POST", client.origin.path, [("X-A", "1")], BODY, deadline_s=deadline_s)


async def test_one_request_and_its_answer_travel_whole() -> None:
    async with meeting(say(response(b'{"a":1}', "Content-Type: application/json"))) as (server, client):
        with await post(client) as answer:
            assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
            assert await answer.read(100) == b'{"a":1}'
        head = (
            f"POST /mcp HTTP/1.1\nHost: 127.0.0.1:{server.port}\nAccept-Encoding: identity\nX-A: 1\nContent-Length: 17"
        )
        assert server.requests == [head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + BODY]


@pytest.mark.parametrize(
    ("first", "connections"),
    [
        (OK, 1),
        (response(chunked(b"{}"), framing="Transfer-Encoding: chunked"), 1),
        (response(b"{}", "Keep-Alive: timeout=60"), 1),
        (response(b"{}", "Keep-Alive: timeout=1, max=100"), 2),  # it would hang up before our next request is there
        (response(b"{}", "Connection: close"), 2),
        (OK + b"HTTP/1.1 200 OK\r\n", 2),
        (OK + b"\r\n", 2),
        (OK + OK, 2),
    ],
)
async def test_a_connection_is_used_again_only_when_nothing_is_left_on_it(first: bytes, connections: int) -> None:
    async with meeting(say(first, OK)) as (server, client):
        for _ in range(2):
            with await post(client) as answer:
                assert await answer.read(10) == b"{}"
        assert server.connections == connections


async def early(conversation: Conversation) -> None:
    await conversation.request()
    await conversation.send(OK)
    await asyncio.sleep(0.01)
    await conversation.send(response(b"poison"))
    await conversation.request()
    await conversation.send(OK)


@pytest.mark.parametrize("script", [early, say(OK, then_close=True)], ids=["bytes", "an end"])
async def test_what_comes_while_a_connection_is_idle_is_never_anyones_answer_and_costs_no_request(
    script: Script,
) -> None:
    async with meeting(script) as (server, client):
        for _ in range(3):
            with await post(client) as answer:
                assert await answer.read(10) == b"{}"
            await asyncio.sleep(0.03)
        assert server.connections == 3


async def test_early_bytes_that_the_loop_has_not_read_yet_are_seen_too() -> None:
    async with meeting(say(OK)) as (server, client):
        (await post(client)).close()
        await asyncio.sleep(0)
        [connection] = client._idle
        assert connection.is_usable(0.0)
        transport = connection._transport
        assert transport is not None
        transport.pause_reading()  # as if the loop had been busy elsewhere
        server.writers[0].write(b"poison")
        await asyncio.sleep(0.02)
        assert not connection.is_usable(0.0)


async def test_few_connections_are_kept_the_warmest_is_used_first_and_idle_ones_close() -> None:
    async with meeting(say(OK), max_idle=2, max_idle_s=0.5) as (server, client):
        answers = await asyncio.gather(*(post(client) for _ in range(5)))
        for answer in answers:
            await answer.read(10)
        assert (client.open_connections, server.connections) == (2, 5)
        for _ in range(3):
            await (await post(client)).read(10)
        assert server.connections == 5
        await server.all_gone(within_s=30)
        assert client.open_connections == 0


async def test_tasks_that_share_connections_each_get_their_own_answer_also_when_others_give_up() -> None:
    chance = random.Random(7)  # seeded

    async def echo(conversation: Conversation) -> None:
        while True:
            body = (await conversation.request()).partition(b"\r\n\r\n")[2]
            await conversation.send(response(body))

    async with meeting(echo) as (_, client):
        right = 0

        async def worker(name: int) -> None:
            nonlocal right
            for number in range(40):
                body = b"%d/%d" % (name, number)
                call = client.request("POST", "/", [], body, deadline_s=5)
                if chance.random() < 0.2:
                    impatient = asyncio.create_task(call)
                    for _ in range(chance.randrange(6)):
                        await asyncio.sleep(0)
                    impatient.cancel()
                    await asyncio.wait({impatient})
                else:
                    assert await (await call).read(100) == body
                    right += 1

        async with asyncio.timeout(20):
            await asyncio.gather(*(worker(name) for name in range(16)))
        assert right > 400


async def before_the_request(conversation: Conversation) -> None:
    await conversation.send(b"HTTP/1.1 200 OK\nbroken")
    await conversation.hung_up()


async def close_at_once(conversation: Conversation) -> None:
    await conversation.request()


async def reset_at_once(conversation: Conversation) -> None:
    await conversation.request()
    conversation.reset()


@pytest.mark.parametrize("script", [before_the_request, close_at_once, reset_at_once])
async def test_a_server_that_breaks_the_exchange_is_heard_as_broken_and_nothing_is_sent_twice(script: Script) -> None:
    async with meeting(script) as (server, client):
        for number in range(1, 4):
            with pytest.raises(ConnectionBroken):
                await post(client)
            assert len(server.requests) == number or script is before_the_request
        await server.all_gone()
        assert client.open_connections == 0


@pytest.mark.parametrize(
    "answer", [response(b"hello"), response(chunked(b"hel", b"lo"), framing="Transfer-Encoding: chunked")]
)
@pytest.mark.parametrize("ending", ["close", "reset"])
async def test_a_server_that_leaves_after_any_byte_is_heard_as_broken(answer: bytes, ending: str) -> None:
    lengths = iter(range(len(answer)))

    async def script(conversation: Conversation) -> None:
        await conversation.request()
        await conversation.send(answer[: next(lengths)])
        if ending == "reset":
            conversation.reset()

    async with meeting(script) as (server, client):
        for _ in range(len(answer)):
            with pytest.raises(ConnectionBroken), await post(client) as response_:
                await response_.read(100)
        await server.all_gone()
        assert client.open_connections == 0


@pytest.mark.parametrize("begins", [b"HTTP/1.1 200 OK\r\nX: ", response(b"", framing="Content-Length: 1000")])
async def test_a_slow_head_or_body_does_not_outlive_the_deadline_of_its_request(begins: bytes) -> None:
    async def script(conversation: Conversation) -> None:
        await conversation.request()
        await conversation.send(begins)
        await conversation.drip(b"x" * 1000, every_s=0.01)

    async with meeting(script) as (server, client):
        with pytest.raises(ClientTimeout):
            await (await post(client, deadline_s=0.15)).read(1000)
        await server.all_gone()


async def test_what_cannot_be_sent_is_told_and_nothing_is_sent() -> None:
    async with meeting(say(OK)) as (server, client):
        with pytest.raises(ClientTimeout):
            await post(client, deadline_s=0)
        with pytest.raises(InvalidRequest):
            await client.request("GET", "/", [("X", "a\r\nY: b")], None, deadline_s=1)
        assert (server.requests, server.connections) == ([], 0)
    nowhere = HttpClient(parse_origin("http://127.0.0.1:1/"))
    with pytest.raises(ConnectFailed):
        await post(nowhere)
    assert nowhere.open_connections == 0


async def stream(conversation: Conversation) -> None:
    await conversation.request()
    await conversation.send(response(b"", "Content-Type: text/event-stream", framing=""))
    for number in range(3):
        await conversation.send(b"data: %d\n\n" % number)
        await asyncio.sleep(0.03)
    await conversation.hung_up()


@pytest.mark.parametrize(("idle_s", "whole_s"), [(0.1, None), (None, 0.2), (1, None)])
async def test_a_stream_arrives_as_it_is_sent_and_ends_by_its_own_bounds(
    idle_s: float | None, whole_s: float | None
) -> None:
    async with meeting(stream) as (server, client):
        got = b""
        with pytest.raises(ClientTimeout), await post(client, deadline_s=0.05) as answer:
            async for chunk in answer.chunks(idle_s=idle_s, deadline=Deadline.within(whole_s)):
                got += chunk
                if idle_s == 1 and got.endswith(b"2\n\n"):
                    raise ClientTimeout("its reader has enough")
        assert got == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
        await server.all_gone()


@pytest.mark.parametrize("script", [silent, stream])
async def test_giving_up_closes_the_socket_at_once(script: Script) -> None:
    async def consume(client: HttpClient) -> None:
        async for _ in (await post(client)).chunks(idle_s=None):
            pass

    async with meeting(script) as (server, client):
        task = asyncio.create_task(consume(client))
        while not server.requests:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.all_gone()
        if script is stream:
            answer = await post(client)
            answer.close()
            await server.all_gone()
            with pytest.raises(ConnectionBroken):
                await answer.read(1000)


async def test_a_reader_who_does_not_read_stops_the_sender() -> None:
    sent = 0

    async def script(conversation: Conversation) -> None:
        nonlocal sent
        await conversation.request()
        await conversation.send(response(b"", framing="Content-Length: 50000000"))
        for _ in range(500):
            await conversation.send(b"x" * 100_000)
            sent += 100_000
        await asyncio.Event().wait()  # to end here would throw away what is still to be written

    async with meeting(script) as (_, client):
        with await post(client, deadline_s=20) as answer:
            await asyncio.sleep(0.2)
            held = answer.buffered
            assert held < 600 * 1024
            assert sent < 25_000_000  # what the kernel's buffers hold
            size = 0
            async for chunk in answer.chunks(idle_s=5):
                size += len(chunk)
            assert size == 50_000_000


@pytest.mark.parametrize(
    "answer",
    [
        response(b"x" * 101),
        response(chunked(b"x" * 60, b"x" * 60), framing="Transfer-Encoding: chunked"),
        response(b"x" * 101, framing=""),
        response(b"", framing="Content-Length: 999999999"),
    ],
)
async def test_a_body_beyond_its_bound_is_not_read(answer: bytes) -> None:
    async with meeting(say(answer, then_close=True)) as (_, client):
        with pytest.raises(ResponseTooLarge), await post(client) as response_:
            await response_.read(100)


async def test_redirects_are_answers_like_others_and_cookies_go_no_further() -> None:
    codes = (301, 302, 303, 307, 308)
    async with serving(say(OK)) as canary:
        head = f"Location: {canary.url}", "Set-Cookie: a=1", "Set-Cookie: b=2"
        async with meeting(say(*(response(b"", *head, status=f"{code} Go") for code in codes))) as (server, client):
            for code in codes:
                with await post(client) as answer:
                    assert (answer.status, "set-cookie" in answer.headers) == (code, False)
            assert (len(server.requests), canary.connections) == (len(codes), 0)
            assert not any(b"cookie" in request.lower() for request in server.requests)


async def test_two_hundred_broken_streams_leave_nothing_behind() -> None:
    """BL-019, from the upstream's side: a reset at a random byte of a streamed answer."""
    chance = random.Random(19)  # seeded
    events = b"".join(b"data: %d\n\n" % number for number in range(50))

    async def script(conversation: Conversation) -> None:
        await conversation.request()
        head = response(b"", framing="Transfer-Encoding: chunked")
        await conversation.send(head + (b"%x\r\n" % len(events) + events)[: chance.randrange(len(events))])
        conversation.reset()

    async with meeting(script) as (server, client):
        before = len(asyncio.all_tasks())
        for _ in range(200):
            with pytest.raises(ConnectionBroken), await post(client) as answer:
                async for _ in answer.chunks(idle_s=1):
                    pass
        await server.all_gone()
        assert (client.open_connections, len(asyncio.all_tasks())) == (0, before)


@pytest.mark.parametrize("whole", [True, False])
async def test_a_stream_is_freed_when_it_is_over_and_not_when_the_collector_comes(whole: bool) -> None:
    async def script(conversation: Conversation) -> None:
        await conversation.request()
        events = chunked(b"data: 1\n\n")
        head = response(b"", framing="Transfer-Encoding: chunked")
        await conversation.send(head + (events if whole else events.removesuffix(b"0\r\n\r\n")))
        await conversation.reader.read()

    async with meeting(script) as (_, client):
        gc.freeze()  # what is there already is not looked through
        gc.disable()
        try:
            with await post(client) as answer:
                async with aclosing(answer.chunks(idle_s=1)) as chunks:
                    assert await anext(chunks) == b"data: 1\n\n"
            del answer, chunks
            await asyncio.sleep(0)
            assert not [each for each in gc.get_objects() if isinstance(each, ResponseReader)]
        finally:
            gc.enable()
            gc.unfreeze()


async def test_tls_is_checked_against_the_trust_it_was_given(tmp_path: Path) -> None:
    serves, trusts = self_signed(tmp_path, "127.0.0.1")
    async with serving(say(OK), tls=serves) as server:
        trusting = HttpClient(parse_origin(server.url), tls=trusts)
        for _ in range(2):
            assert await (await post(trusting)).read(10) == b"{}"
        await trusting.close()
        with pytest.raises(ConnectFailed):
            await post(HttpClient(parse_origin(server.url), tls=ssl.create_default_context()))
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (response(b"", "Location: https://elsewhere/", status="302 Found"), ConnectionBroken),
        (response(b"keys", status="404 Not Found"), ConnectionBroken),
        (response(b"x" * 300), ResponseTooLarge),
        (response(b"keys", "Content-Encoding: gzip"), UnacceptableResponse),
    ],
)
async def test_fetch_takes_one_small_answer(answer: bytes, failure: type[EgressError]) -> None:
    async with serving(say(response(b"keys"), answer, then_close=True)) as server:
        assert await fetch(server.url, max_bytes=256) == b"keys"
    async with serving(say(answer)) as server:
        with pytest.raises(failure):
            await fetch(server.url, max_bytes=256)
        await server.all_gone()
        assert len(server.requests) == 1


async def test_an_etag_that_no_request_can_carry_is_not_stored() -> None:
    for etag, stored in (('"v1"', '"v1"'), ('"\xe9"', ""), (f'"{"x" * 256}"', "")):
        answer = response(b"keys", "ETag: @").replace(b"@", etag.encode("latin-1"))
        async with serving(say(answer, then_close=True)) as server:
            found = await fetch_newer(server.url, "", (), max_bytes=256, deadline_s=5.0)
            assert found is not None and found.etag == stored


async def test_fetch_ends_at_its_deadline_and_refuses_other_places_by_their_text_alone() -> None:
    urls = "http://idp.example/keys file:///etc/passwd htp://127.0.0.1/ keys.json data:,x https://a:b@idp.example/"
    for url in urls.split(" "):
        with pytest.raises(EgressError):
            await fetch(url)
    async with serving(silent) as server:
        with pytest.raises(ClientTimeout):
            await fetch(server.url, deadline_s=0.1)
        await server.all_gone()


@pytest.mark.parametrize(("url", "host_header", "path", "loopback"), tables("http/client/client")["addresses"])
def test_a_url_names_one_place(url: str, host_header: str, path: str, loopback: bool) -> None:
    origin = parse_origin(url)
    assert (origin.host_header, origin.path, origin.loopback) == (host_header, path, loopback)


def test_a_url_that_could_name_another_place_is_refused() -> None:
    urls = (
        *("ftp://a/", "//a/", "/mcp", "http://", "http://a:99999/", "http://a:b/", "http://a:0/", "http://user@a/"),
        *("http://a/#f", "http://a/ b", "http://a/\r\nX: y", "http://ä/", "http://a/../b", "http://a/./b"),
        *("http://a\\b/", "http://127.1/", "http://0x7f000001/", "http://2130706433/", "http://a/<script>"),
        "http://a,b/",
    )
    for url in urls:
        with pytest.raises(ValueError, match="URL"):
            parse_origin(url)
