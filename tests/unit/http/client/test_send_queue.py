"""What happens to calls when every connection is in use?"""

import asyncio

import pytest

from sidecar.http.client import ClientTimeout, ConnectFailed, HttpClient, QueueFull, parse_origin
from sidecar.http.client.send_queue import SendQueue
from tests.unit.http.client.hostile import OK, Conversation, Hostile, meeting, response

NEVER_S = 1e9


class Tap:
    """A server that answers one request for each time it is opened, with the request's own body."""

    def __init__(self) -> None:
        self.open = asyncio.Semaphore(0)

    async def script(self, conversation: Conversation) -> None:
        while True:
            body = (await conversation.request()).partition(b"\r\n\r\n")[2]
            await self.open.acquire()
            await conversation.send(response(body))


async def call(client: HttpClient, body: bytes = b"{}", *, deadline_s: float = 5.0) -> bytes:
    with await client.request("POST", "/", [], body, deadline_s=deadline_s) as answer:
        return await answer.read(100)


async def busy(server: Hostile, requests: int) -> None:
    """Wait until so many requests have arrived."""
    async with asyncio.timeout(5):
        while len(server.requests) < requests:
            await asyncio.sleep(0.001)


async def test_calls_beyond_the_connections_wait_and_all_have_their_own_answers() -> None:
    tap = Tap()
    async with meeting(tap.script, max_connections=4) as (server, client):
        calls = [asyncio.create_task(call(client, b"%d" % number)) for number in range(12)]
        await busy(server, 4)
        assert client.open_connections == server.live == 4
        for _ in calls:
            tap.open.release()
        assert await asyncio.gather(*calls) == [b"%d" % number for number in range(12)]
        assert (server.connections, client.open_connections) == (4, 4)


async def test_who_came_first_goes_first_and_nobody_slips_in_between() -> None:
    tap, done = Tap(), list[bytes]()

    async def note(body: bytes) -> None:
        done.append(await call(client, body))

    async with meeting(tap.script, max_connections=1) as (_, client), asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(note(b"%d" % number))
            await asyncio.sleep(0)
        for number in range(6, 12):  # each comes when a place is about to come free
            tap.open.release()
            await asyncio.sleep(0.002)
            group.create_task(note(b"%d" % number))
        for _ in range(6):
            tap.open.release()
    assert done == [b"%d" % number for number in range(12)]


async def test_a_connection_that_closes_or_fails_makes_room_as_one_that_comes_free() -> None:
    async def once(conversation: Conversation) -> None:
        await conversation.request()
        await conversation.send(response(b"{}", "Connection: close"))

    async with meeting(once, max_connections=2) as (server, client):
        assert await asyncio.gather(*(call(client) for _ in range(10))) == [b"{}"] * 10
        assert (server.connections, client.open_connections) == (10, 0)
    client = HttpClient(parse_origin("http://127.0.0.1:1/"), max_connections=2)
    failures = await asyncio.gather(*(call(client) for _ in range(10)), return_exceptions=True)
    assert [type(failure) for failure in failures] == [ConnectFailed] * 10
    assert client.open_connections == 0


async def test_who_is_cancelled_in_the_instant_of_their_turn_hands_it_on() -> None:
    line = SendQueue(1, max_waiting=10)
    assert line.step_in()
    unlucky, next_one = (asyncio.create_task(line.wait(NEVER_S)) for _ in range(2))
    await asyncio.sleep(0)
    line.step_out()
    unlucky.cancel()
    with pytest.raises(asyncio.CancelledError):
        await unlucky
    await asyncio.wait_for(next_one, 1)
    line.step_out()
    assert (line.step_in(), line.step_in(), len(line)) == (True, False, 0)


async def test_the_deadline_of_a_call_holds_in_the_line_and_one_that_is_too_long_turns_away() -> None:
    tap = Tap()
    async with meeting(tap.script, max_connections=1, max_waiting=2) as (server, client):
        first = asyncio.create_task(call(client))
        await busy(server, 1)
        with pytest.raises(ClientTimeout):
            await call(client, deadline_s=0.05)
        assert len(server.requests) == 1
        calls = [first, *(asyncio.create_task(call(client)) for _ in range(2))]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await call(client)
        for _ in calls:
            tap.open.release()
        assert await asyncio.gather(*calls) == [b"{}"] * 3


async def test_closing_sends_everybody_home() -> None:
    tap = Tap()
    async with meeting(tap.script, max_connections=2) as (server, client):
        calls = [asyncio.create_task(call(client)) for _ in range(6)]
        await busy(server, 2)
        await client.close()
        ends = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 1)
        assert not any(isinstance(end, bytes) for end in ends)
        assert [type(end) for end in ends[2:]] == [ConnectFailed] * 4
        with pytest.raises(ConnectFailed):
            await call(client)
        for _ in range(2):  # the server comes to look at its connections
            tap.open.release()
        await server.all_gone()
        assert (client.open_connections, len(server.requests)) == (0, 2)


async def test_closing_while_a_connection_is_being_made_sends_nothing_over_it() -> None:
    async with meeting(Tap().script) as (server, client):
        calling = asyncio.create_task(call(client))
        await asyncio.sleep(0)
        await client.close()
        await asyncio.wait({calling})
        assert calling.exception() is not None
        await server.all_gone()
        assert (client.open_connections, server.requests) == (0, [])


async def test_places_are_neither_lost_nor_made_whatever_calls_do() -> None:
    async def script(conversation: Conversation) -> None:
        for number in range(1_000_000):
            await conversation.request()
            if number % 7 == 6:
                return
            await conversation.send(OK)

    async with meeting(script, max_connections=3) as (server, client):
        for step in range(30):
            tasks = [asyncio.create_task(call(client)) for _ in range(12)]
            for _ in range(step % 5):
                await asyncio.sleep(0)
            for task in tasks[:: 1 + step % 4]:
                task.cancel()
            await asyncio.wait(tasks)
            assert client.open_connections <= 3
        assert not len(client._line)
        assert client._line._left == 3
        assert server.live <= 3
