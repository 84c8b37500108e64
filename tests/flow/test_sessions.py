"""Whose session is it?

Everything that somebody else, or somebody at another time, can do with an `Mcp-Session-Id` or an event id (BL-060,
BL-066, BL-097).
"""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.flow import scripts
from tests.flow.guests import (
    ALICE,
    BOB,
    GOOD,
    IDP,
    NOTIFICATION,
    emitter,
    gateway,
    get,
    gone,
    opened,
    post,
    result_of,
    stream,
)
from tests.flow.idp import bearer
from tests.flow.streams import Ear, Emitter, event, streamed
from tests.flow.talk import Talk, reason_of
from tests.flow.world import Upstream, World, request, until
from tests.tables import tables

CALL = {"name": "search_code", "arguments": GOOD}
Act = Callable[[Talk], Awaitable[tuple[int, Any, Any]]]
ACTS: dict[str, Act] = {
    "call": lambda talk: talk.call("search_code", GOOD),
    "ping": lambda talk: talk.ask("ping"),
    "notify": lambda talk: post(talk, NOTIFICATION),
    "answer": lambda talk: post(talk, {"jsonrpc": "2.0", "id": "asked-1", "result": {}}),
    "listen": get,
    "resume": lambda talk: get(talk, **{"Last-Event-ID": "17"}),
    "leave": lambda talk: talk.verb("DELETE"),
}
# What the owner of a live session hears: an answer to a question that nobody asked is an error in it, and an event id
# that nobody gave out opens a fresh stream.
OWNER = {"call": 200, "ping": 200, "notify": 202, "answer": 200, "listen": 200, "resume": 200, "leave": 204}


async def test_a_session_is_its_owners_alone(house: World) -> None:
    alice = await opened(house)
    bob, nobody = (Talk(house, "session", dict(who), session=alice.session) for who in (BOB, {}))
    for name, act in ACTS.items():
        heard = len(house.upstream.verbs)
        stolen = await act(bob)
        unknown = await act(Talk(house, "session", dict(BOB), session="A" * 43))
        assert (stolen[0], (await act(nobody))[0]) == (404, 401), name
        assert without_ids(stolen[1]) == without_ids(unknown[1]), "another's session looks like none"
        assert len(house.upstream.verbs) == heard, "nothing of it reached the upstream"
        assert (await act(alice))[0] == OWNER[name], "and the owner goes on"


def without_ids(body: Any) -> str:
    """A refusal without what is different each time."""
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "…", body.decode() if isinstance(body, bytes) else str(body))


@pytest.mark.parametrize("end", ["deleted", "evicted", "idle", "lost", "lost with 400"])
async def test_a_session_that_is_over_is_no_session(tmp_path: Path, end: str) -> None:
    upstream = Upstream(script={"GET": Emitter().listen, "DELETE": gone})
    async with gateway(tmp_path, upstream=upstream, sessions="max_per_principal: 2, idle_s: 600") as running:
        alice = await opened(running)
        if end == "deleted":
            assert (await alice.verb("DELETE"))[0] == 204
        elif end == "evicted":
            await opened(running), await opened(running)
        elif end == "idle":
            running.app.sessions.clock_mono = lambda: time.monotonic() + 601
        else:
            upstream.script |= dict.fromkeys(("ping", "tools/call"), scripts.status(400 if "400" in end else 404))
            assert (await alice.call("search_code", GOOD))[0] == 404
            del upstream.script["ping"], upstream.script["tools/call"]
        assert [(await act(alice))[0] for act in ACTS.values()] == [404] * len(ACTS)
        assert (await (await opened(running)).call("search_code", GOOD))[0] == 200, "and a new one can begin"


async def test_an_id_that_the_client_chose_is_ignored(house: World) -> None:
    alice = await opened(house)
    for chosen in ("mine", alice.session, "A" * 43):
        bob = Talk(house, "session", {**BOB, "Mcp-Session-Id": chosen})
        await bob.open()
        assert bob.session not in ("", chosen)
    begun = [heads for heads, message in house.upstream.seen if message.get("method") == "initialize"]
    assert all("mcp-session-id" not in {name.lower() for name in heads} for heads in begun)
    assert (await alice.ask("ping"))[0] == 200


async def test_no_id_no_session_though_there_is_only_one(house: World) -> None:
    alice = await opened(house)
    plain = list({**ALICE, "Content-Type": "application/json"}.items())
    for lines, expected in (
        *(([], 400), ([""], 400), (["{id}", "{id}"], 400), (["{id}, {id}"], 404)),
        *((["{id} "], 200), (["{ID}"], 404)),  # blanks around it are not of it
    ):
        sent = [("Mcp-Session-Id", line.format(id=alice.session, ID=alice.session.swapcase())) for line in lines]
        ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
        async with house.http.post(f"{house.url}/mcp/github", data=ping, headers=plain + sent) as response:
            assert response.status == expected, lines
        assert (await alice.ask("ping"))[0] == 200


async def test_a_refreshed_token_goes_on_and_another_subject_does_not(house: World) -> None:
    """BL-097."""
    audience = f"{house.url}/mcp/github"
    talk = await opened(house, bearer(IDP.token("user:alice", audience)))
    talk.headers = bearer(IDP.token("user:alice", audience, claims={"jti": "refreshed"}))
    assert (await talk.call("search_code", GOOD))[0] == 200
    for other in (IDP.token("user:bob", audience), IDP.token("nhi:alice", audience)):
        talk.headers = bearer(other)
        assert (await talk.call("search_code", GOOD))[0] == 404
    talk.headers = dict(ALICE)  # the same name, vouched for by somebody else
    assert (await talk.call("search_code", GOOD))[0] == 404


async def test_users_who_share_an_upstream_credential_do_not_share_its_session(tmp_path: Path) -> None:
    """BL-066."""
    counted: Counter[str] = Counter()

    async def count(asked: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        session = asked.headers["Mcp-Session-Id"]
        assert asked.headers["Authorization"] == "Bearer shared-upstream-key"
        counted[session] += 1
        content = [{"type": "text", "text": str(counted[session])}]
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": {"content": content}})

    (tmp_path / "shared.key").write_text("shared-upstream-key")
    upstream = Upstream(script={"tools/call": count})
    shared = "credential: {bearer_path: shared.key}"
    async with gateway(tmp_path, upstream=upstream, upstream_settings=shared) as running:
        talks = [await opened(running, who) for who in (ALICE, BOB, ALICE)]
        for turn in range(1, 4):
            for talk in talks:
                _, body, _ = await talk.call("search_code", GOOD)
                assert body["result"]["content"][0]["text"] == str(turn)
    assert sorted(counted.values()) == [3, 3, 3]


async def test_what_a_server_sends_reaches_only_its_own_client(tmp_path: Path) -> None:
    """BL-060: 200 sessions at once, a canary for each on both kinds of stream."""
    number_of = 200
    upstream = Upstream(script={"GET": Emitter().listen, "tools/call": progress})
    room = {"sessions": f"max_per_principal: {number_of}", "mcp_settings": f"max_connections: {number_of}"}
    async with (
        gateway(tmp_path, upstream=upstream, **room) as running,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
        AsyncExitStack() as ears,
    ):
        running.http, old = http, running.http
        talks = [await opened(running, (ALICE, BOB)[number % 2]) for number in range(number_of)]
        theirs = {session.id: session.upstream_id or "" for session in running.app.sessions}
        heard = [await ears.enter_async_context(stream(talk, http=http)) for talk in talks]
        await until(lambda: emitter(running).count == number_of)
        names = [theirs[talk.session] for talk in talks]
        for name in reversed(names):
            note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": name}}
            ask = {"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": {"messages": [name]}}
            await emitter(running).emit(name, event(note) + event(ask))

        async def hear(ear: Ear, talk: Talk, name: str) -> None:
            first, second = await ear.message(), await ear.message()
            assert (first["params"]["data"], second["params"]["messages"]) == (name, [name])
            async with talk.hearing("tools/call", CALL, http=http) as answer:
                said = await answer.rest()
            assert [one.get("params", one.get("result"))["data"] for one in said] == [name, name]
            reply = {"jsonrpc": "2.0", "id": 1, "result": {"to": name}}
            assert (await post(talk, reply))[0] == 202

        await asyncio.gather(*map(hear, heard, talks, names))
        said = [(headers.get("Mcp-Session-Id"), message) for headers, message in upstream.seen]
        replies = [(name, message["result"]["to"]) for name, message in said if "method" not in message]
        assert sorted(replies) == sorted((name, name) for name in names)
        running.http = old


async def test_what_is_no_message_on_a_sessions_stream_is_dropped_and_counted_and_the_stream_goes_on(
    house: World,
) -> None:
    alice = await opened(house)
    (session,) = house.app.sessions
    note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
    passed_over = b"event: ping\ndata: {}\n\nevent: error\ndata: oh\n\n"
    changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": None}
    dropped = [{**note, "extra": 1}, [note], {**note, "params": 7}, result_of({"id": 99}, {}), {"id": 1}]
    async with stream(alice) as ear:
        await until(lambda: emitter(house).count == 1)
        await emitter(house).emit(
            session.upstream_id or "", passed_over + b"".join(map(event, [*dropped, changed, note]))
        )
        assert [(await ear.message())["method"] for _ in range(2)] == [changed["method"], note["method"]]
    assert house.app.live.current.services["github"].account.plain()["messages_dropped"] == len(dropped)
    assert f'sidecar_upstream_messages_dropped_total{{upstream="github"}} {len(dropped)}.0' in await house.metrics()


async def progress(asked: web.Request, message: dict[str, Any]) -> web.StreamResponse:
    name = asked.headers["Mcp-Session-Id"]
    note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": name}}
    return await streamed(asked, event(note), event({"jsonrpc": "2.0", "id": message["id"], "result": {"data": name}}))


async def test_an_answer_is_taken_once_and_only_to_a_question_of_this_session(house: World) -> None:
    alice, bob = await opened(house), await opened(house, BOB)
    theirs = {session.id: session.upstream_id or "" for session in house.app.sessions}
    async with stream(alice) as ear:
        await until(lambda: emitter(house).count == 1)
        ask = {"jsonrpc": "2.0", "id": "q-1", "method": "sampling/createMessage", "params": {"messages": []}}
        await emitter(house).emit(theirs[alice.session], event(ask))
        assert (await ear.message())["id"] == "q-1"
        reply = {"jsonrpc": "2.0", "id": "q-1", "result": {"role": "assistant"}}
        assert reason_of(await post(bob, reply)) == "malformed-call"
        assert reason_of(await post(alice, {**reply, "id": "q-2"})) == "malformed-call"
        assert (await post(alice, reply))[0] == 202
        assert reason_of(await post(alice, reply)) == "malformed-call"
    answers = [
        (headers.get("Mcp-Session-Id"), message) for headers, message in house.upstream.seen if "result" in message
    ]
    assert answers == [(theirs[alice.session], reply)]


async def test_a_stream_is_resumed_where_its_own_session_left_it_and_nowhere_else(house: World) -> None:
    alice, bob = await opened(house), await opened(house, BOB)
    theirs = {session.id: session.upstream_id or "" for session in house.app.sessions}
    note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}}
    async with stream(alice) as ear:
        await until(lambda: emitter(house).count == 1)
        await emitter(house).emit(theirs[alice.session], event(note, id="stream-7_41"))
        block = await ear.block()
    sealed = block.partition(b"\n")[0].removeprefix(b"id: ").decode()
    assert "stream-7" not in sealed
    await until(lambda: emitter(house).count == 0)
    asked = len(emitter(house).asked)
    for thief, guess in ((bob, sealed), (alice, "stream-7_41"), (alice, "stream-7_42"), (alice, sealed[:-1] + "x")):
        async with stream(thief, last=guess) as ear:
            await until(lambda: emitter(house).count == 1)
            assert ear.status == 200 and "Last-Event-ID" not in emitter(house).asked[-1], "a fresh stream of its own"
            assert emitter(house).asked[-1]["Mcp-Session-Id"] == theirs[thief.session]
        await until(lambda: emitter(house).count == 0)
    asked += 4
    twofold = [*{**ALICE, **alice.in_session, "Accept": "text/event-stream"}.items(), *[("Last-Event-ID", sealed)] * 2]
    async with house.http.get(f"{house.url}/mcp/github", headers=twofold) as twice:
        assert twice.status == 400
    assert len(emitter(house).asked) == asked
    async with stream(alice, last=sealed) as ear:
        assert ear.status == 200
        assert emitter(house).asked[-1]["Last-Event-ID"] == "stream-7_41"


async def test_the_rest_of_an_answer_comes_on_the_resumed_stream(house: World) -> None:
    async def primed(asked: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        return await streamed(asked, b"id: 1_0\nretry: 10\ndata:\n\n")

    async def rest(asked: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        other = {"jsonrpc": "2.0", "id": 8, "result": {"text": "not asked here"}}
        mine = {"jsonrpc": "2.0", "id": 7, "result": {"content": [], "n": asked.headers["Last-Event-ID"]}}
        return await streamed(asked, event(mine, id="1_1"), event(other, id="1_2"), event(mine))

    house.upstream.script |= {"tools/call": primed, "GET": rest}
    alice = await opened(house)
    async with alice.hearing("tools/call", CALL, id=7) as ear:
        block = await ear.block()
        assert b"retry: 10" in block and await ear.rest() == []
    sealed = block.partition(b"\n")[0].removeprefix(b"id: ").decode()
    async with stream(alice, last=sealed) as ear:
        heard = await ear.rest()
        assert [message["result"].get("n") for message in heard] == ["1_0", "1_0"], "what nobody asked is dropped"


WRONG: list[tuple[str, Any, int]] = [*tables("flow/sessions")["wrong"], ("prompts/get", {"name": "x" * 129}, -32602)]


async def test_a_wrong_request_in_a_live_session_is_answered_to_its_id(house: World) -> None:
    """Clients of the session era give up on every 4xx. An id of 64 bits comes back as it was."""
    alice, id = await opened(house), 2**64 - 1
    for method, params, code in WRONG:
        answer = await alice.say({"id": id, "method": method, "params": params})
        assert (answer[0], answer[1]["id"], answer[1]["error"]["code"]) == (200, id, code), (method, params)
        lost = await post(Talk(house, "session", dict(ALICE), session="A" * 43), request(method, {}, id=7))
        assert (lost[0], lost[1]["id"]) == (404, 7)
        assert (lost[1]["error"]["code"], lost[1]["error"]["message"]) == (-32600, "Session terminated")
    assert (await alice.ask("ping"))[0] == 200


async def test_before_there_is_a_session_a_wrong_request_is_http_400(house: World) -> None:
    for message in (request("initialize", {}, id=7), {**request("ping", {}, id=7), "params": []}):
        answer = await house.post(message, headers=ALICE)
        assert (answer[0], answer[1]["id"]) == (400, 7)


async def test_a_newer_client_negotiates_by_its_body(house: World) -> None:
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "newer", "version": "1"}}
    for header in ("2099-01-01", "nonsense", "2026-07-28"):
        answer = await house.post(request("initialize", hello), headers={**ALICE, "MCP-Protocol-Version": header})
        assert (answer[0], answer[1]["result"]["protocolVersion"]) == (200, "2025-06-18"), header
    alice = await opened(house)
    for answer in (
        await alice.ask("ping", headers={"MCP-Protocol-Version": "2099-01-01"}),
        await alice.verb("GET", {"Accept": "text/event-stream", "MCP-Protocol-Version": "2099-01-01"}),
    ):
        body = answer[1] if isinstance(answer[1], dict) else json.loads(answer[1])
        told = body["error"]["data"] if "error" in body else {**body["details"], "reason": body["reason"]}
        assert (answer[0], told["reason"]) == (400, "version-unsupported")
        assert told["supported"] == ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]
