"""Can an upstream crash us, lie to a caller, or harm another one?

Tables of what no server should say, each said to one caller while another one works on (threats H10-H12, L1, S5). Each
call has one answer and one terminal record, whatever happens.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.flow.hostile_upstream import (
    FINE,
    HEAD,
    OUR_HEADERS,
    RUDE,
    Attack,
    before,
    body,
    done,
    events,
    polite,
    reason_in_stream,
    say,
)
from tests.flow.streams import event
from tests.flow.talk import Talk, reason_of
from tests.flow.world import RULES, World, until
from tests.unit.egress.hostile import chunked

ANSWER = json.dumps(done({"id": 1})).encode()
LENGTH = b"Content-Length: %d\r\n" % len(ANSWER)

FRAMING: dict[str, bytes] = {
    "a length and chunks": HEAD + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(ANSWER),
    "two lengths": HEAD + LENGTH + b"Content-Length: 7\r\n\r\n" + ANSWER,
    "the length twice": HEAD + LENGTH + LENGTH + b"\r\n" + ANSWER,
    "a negative length": HEAD + b"Content-Length: -1\r\n\r\n" + ANSWER,
    "a length with a plus": HEAD + b"Content-Length: +5\r\n\r\n" + ANSWER,
    "a length in hex": HEAD + b"Content-Length: 0x10\r\n\r\n" + ANSWER,
    "a list of lengths": HEAD + b"Content-Length: 5, 5\r\n\r\n" + ANSWER,
    "an empty length": HEAD + b"Content-Length: \r\n\r\n" + ANSWER,
    "a length too large": HEAD + b"Content-Length: 99999999999999999999\r\n\r\n" + ANSWER,
    "a length too short": HEAD + b"Content-Length: 10\r\n\r\n" + ANSWER,
    "chunks that end early": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"ff\r\n" + ANSWER,
    "chunks of a bad size": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + ANSWER,
    "a chunk that is negative": HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + ANSWER,
    "a chunk without an end": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{}{}{}{}",
    "a coding after chunks": HEAD + b"Transfer-Encoding: chunked, gzip\r\n\r\n" + chunked(ANSWER),
    "an unknown coding": HEAD + b"Transfer-Encoding: identity\r\n\r\n" + ANSWER,
    "chunks twice": HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(ANSWER),
    "no version": b"200 OK\r\n\r\n" + ANSWER,
    "another protocol": b"ICY 200 OK\r\n\r\n" + ANSWER,
    "HTTP/2": HEAD.replace(b"1.1", b"2.0") + LENGTH + b"\r\n" + ANSWER,
    "nothing but a body": ANSWER,
    "noise": bytes(range(256)) * 8,
    "status 999": HEAD.replace(b"200", b"999") + LENGTH + b"\r\n" + ANSWER,
    "status 20": HEAD.replace(b"200", b"20") + LENGTH + b"\r\n" + ANSWER,
    "an upgrade": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    "interim without end": b"HTTP/1.1 103 Early Hints\r\n\r\n" * 5000,
    "a folded header": HEAD + b"X-A: 1\r\n folded\r\n" + LENGTH + b"\r\n" + ANSWER,
    "a header without a colon": HEAD + b"nonsense\r\n" + LENGTH + b"\r\n" + ANSWER,
    "a blank before the colon": HEAD + b"Content-Length : 5\r\n\r\n" + ANSWER,
    "a NUL in a header": HEAD + b"X-A: \0\r\n" + LENGTH + b"\r\n" + ANSWER,
    "a thousand headers": HEAD + b"X-A: 1\r\n" * 1000 + LENGTH + b"\r\n" + ANSWER,
    "a header of a megabyte": HEAD + b"X-A: " + b"a" * 2**20 + b"\r\n" + LENGTH + b"\r\n" + ANSWER,
    "a head without end": b"HTTP/1.1 200 OK\r\n" + b"X-A: 1\r\n" * 10_000,
    "a media type twice": HEAD + b"Content-Type: text/event-stream\r\n" + LENGTH + b"\r\n" + ANSWER,
    "nothing": b"",
}
ZIPPED = gzip.compress(ANSWER)
COOKIES = ("Set-Cookie: a=b; Path=/", "Set-Cookie2: c", "Mcp-Session-Id: leaked", "X-Powered-By: evil", "Via: evil",
           "WWW-Authenticate: Bearer realm=evil", "Location: http://evil.example/", "Link: <http://evil.example/>",
           "Access-Control-Allow-Origin: *", "Connection: keep-alive, X-Powered-By", "Trailer: X-Evil")  # fmt: skip
ASKS = {"jsonrpc": "2.0", "id": 9, "method": "sampling/createMessage", "params": {"messages": []}}


def asking(*methods: Any, **more: Any) -> Any:
    """A result that asks the client for these."""
    asked = {str(number): {"method": method, "params": {}} for number, method in enumerate(methods)}
    return lambda m: done(m, result={"resultType": "input_required", "inputRequests": asked, **more})


HTTP: dict[str, tuple[Attack, int, str]] = {
    "cookies and other gifts": (body(done, *COOKIES), 200, ""),
    "gifts in an error": (body(done, *COOKIES, status="401 Unauthorized"), 502, "upstream-failed"),
    **{
        f"a redirect {code}": (body(done, *COOKIES, status=f"{code} Moved"), 502, "upstream-failed")
        for code in (300, 301, 302, 303, 304, 307, 308)
    },
    **{
        f"status {code}": (body(done, "Retry-After: 9999", status=f"{code} X"), 502, "upstream-failed")
        for code in (201, 202, 206, 400, 402, 403, 404, 405, 407, 409, 410, 421, 429, 500, 503, 504, 511, 599)
    },
    "204": (say(b"HTTP/1.1 204 No Content\r\n\r\n"), 502, "upstream-failed"),
    "no media type": (body(done, media=""), 502, "response-refused"),
    "a page": (body(lambda m: b"<html>", media="text/html"), 502, "response-refused"),
    "JSON as text": (body(done, media="text/plain"), 502, "response-refused"),
    "two media types": (body(done, media="application/json, text/event-stream"), 502, "response-refused"),
    "problem+json": (body(done, media="application/problem+json"), 502, "response-refused"),
    "JSON as a stream": (body(done, media="text/event-stream"), 200, "upstream-failed"),
    "a stream as JSON": (body(lambda m: event(done(m))), 502, "response-refused"),
    "parameters": (body(done, media="Application/JSON ; charset=utf-8"), 200, ""),
    "gzip": (body(lambda m: ZIPPED, "Content-Encoding: gzip"), 502, "response-refused"),
    "gzip untold": (body(lambda m: ZIPPED), 502, "response-refused"),
    "no length": (say(HEAD + b"\r\n" + ANSWER, then_close=True), 200, ""),
    "empty": (body(lambda m: b""), 502, "response-refused"),
    "a JSON-RPC error": (body(lambda m: error(m)), 200, ""),
    "a JSON-RPC error with 404": (body(lambda m: error(m), status="404 Not Found"), 404, ""),
    "another's error with 400": (body(lambda m: error({"id": 2}), status="400 Bad"), 400, ""),
    "an error to nobody with 400": (body(lambda m: error({"id": None}), status="400 Bad"), 400, ""),
    "a large error with 400": (
        body(lambda m: error(m, "x" * 70_000), status="400 Bad"), 502, "response-refused"
    ),
}  # fmt: skip


def error(message: dict[str, Any], text: str = FINE) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32000, "message": text}}


JSON: dict[str, Any] = {
    "another id": lambda m: done(m, id=2),
    "the id as a string": lambda m: done(m, id="1"),
    "the id as a float": lambda m: done(m, id=1.0),
    "the id as a boolean": lambda m: done(m, id=True),
    "no id": lambda m: {"jsonrpc": "2.0", "result": {}},
    "a null id": lambda m: done(m, id=None),
    "an id of another kind": lambda m: done(m, id=[1]),
    "a batch": lambda m: [done(m)],
    "an empty batch": lambda m: [],
    "a notification": lambda m: {"jsonrpc": "2.0", "method": "notifications/message", "params": {}},
    "a request": lambda m: ASKS,
    "the request itself": lambda m: m,
    "a string": lambda m: "fine",
    "null": lambda m: None,
    "neither result nor error": lambda m: {"jsonrpc": "2.0", "id": 1},
    "both": lambda m: done(m, error={"code": 1, "message": "x"}),
    "an error of strings": lambda m: {"jsonrpc": "2.0", "id": 1, "error": "no"},
    "an error without a code": lambda m: {"jsonrpc": "2.0", "id": 1, "error": {"message": "x"}},
    "a result that is a list": lambda m: done(m, result=[]),
    "a result that is null": lambda m: done(m, result=None),
    "two answers": lambda m: ANSWER + ANSWER,
    "an answer and a line": lambda m: ANSWER + b"\n{}",
    "half an answer": lambda m: ANSWER[:-9],
    "NaN": lambda m: ANSWER.replace(b"false", b"NaN"),
    "Infinity": lambda m: ANSWER.replace(b"false", b"-Infinity"),
    "a lone surrogate": lambda m: ANSWER.replace(b"fine", b"\\ud800"),
    "UTF-16": lambda m: ANSWER.decode().encode("utf-16"),
    "Latin-1": lambda m: ANSWER.replace(b"fine", b"f\xefne"),
    "a byte order mark": lambda m: b"\xef\xbb\xbf" + ANSWER,
    "a NUL at the end": lambda m: ANSWER + b"\0",
    "too deep": lambda m: b'{"jsonrpc":"2.0","id":1,"result":{"a":' + b"[" * 5000 + b"]" * 5000 + b"}}",
    "too deep to write": lambda m: b'{"jsonrpc":"2.0","id":1,"result":{"a":' + b'{"a":' * 300 + b"1" + b"}" * 302,
    "a million values": lambda m: b'{"jsonrpc":"2.0","id":1,"result":{"a":[' + b"{}," * 10**6 + b"1]}}",
    "unknown members": lambda m: done(m, extra=1),
    "ResultType": lambda m: done(m, result={"ResultType": "input_required"}),
    "a task": lambda m: done(m, result={"resultType": "task", "taskId": "t"}),
    "an unknown kind of result": lambda m: done(m, result={"resultType": "later"}),
    "a kind of result that is a list": lambda m: done(m, result={"resultType": ["complete"]}),
    "input of an unknown method": asking("tools/call"),
    "input of a known and an unknown method": asking("roots/list", "system/exec"),
    "input of no method": asking(None),
    "input of a method that is a list": asking(["roots/list"]),
    "input requests that are a list": lambda m: done(m, result={"resultType": "input_required", "inputRequests": [1]}),
    "input requests without the word": lambda m: done(m, result={"inputRequests": {"a": {"method": "tools/call"}}}),
}
PASSES: dict[str, Any] = {
    "64-bit numbers": lambda m: ANSWER.replace(b"false", b"[18446744073709551615,-9223372036854775808]"),
    "a key twice": lambda m: ANSWER.replace(b'"isError"', b'"a":1,"a":2,"isError"'),
    "blanks": lambda m: b" \n\t" + ANSWER + b"\r\n ",
}
STREAMS: dict[str, tuple[Attack, str]] = {
    "a server that asks": (events(event(ASKS), event(done({"id": 1}))), "response-refused"),
    "a ping": (events(event({**ASKS, "method": "ping"}), event(done({"id": 1}))), "response-refused"),
    "no answer": (events(b": hi\n\n", b"id: 1\nretry: 1\ndata:\n\n"), "upstream-failed"),
    "no bytes": (events(), "upstream-failed"),
    "garbage": (events(b"data: {\n\n"), "response-refused"),
    "another's answer": (events(event(done({"id": 2})), event(done({"id": 1}))), "response-refused"),
    "an answer and much more": (events(event(done({"id": 1})), *[event(done({"id": 1}))] * 50, b"x" * 99999), ""),
    "half an event": (events(event(done({"id": 1}))[:-1]), "upstream-failed"),
    "injected lines": (
        events(b"id: 1\rdata: {\r\ndata: }\n\nevent: message\nid: a\0b\ndata:\n\n", event(done({"id": 1}))),
        "response-refused",
    ),
    "an event id of a kilobyte": (events(event(done({"id": 1}), id="x" * 2000)), ""),
    "an event id in another alphabet": (events(event(done({"id": 1}), id="ключ")), ""),
    "ten thousand comments": (events(b":\n" * 10_000, event(done({"id": 1}))), ""),
    "fifty thousand empty events": (events(b"data:\n\n" * 50_000, event(done({"id": 1}))), ""),
}


async def attacked(running: World) -> tuple[int, Any, Any]:
    """One rude call, with polite ones before, beside and after it."""
    await polite(running)
    ends = len(running.ends())
    answer, _ = await asyncio.gather(running.call("search_code", RUDE), polite(running, 2))
    await polite(running)
    await until(lambda: len(running.ends()) == ends + 4)
    assert len({record["decision_id"] for record in running.ends()}) == len(running.ends())
    assert all(record["reason"] != "internal" for record in running.ends())
    status, body_, headers = answer
    assert set(headers) <= OUR_HEADERS and "Mcp-Session-Id" not in headers
    told = str(body_)
    assert not any(word in told for word in ("leaked", "evil", "127.0.0.1", "Traceback", "sidecar/"))
    return status, body_, headers


@pytest.mark.parametrize("case", FRAMING)
async def test_what_is_not_http_is_a_failed_upstream(tmp_path: Path, case: str) -> None:
    async with before(tmp_path, say(FRAMING[case], then_close=True)) as (running, hostile):
        answer = await attacked(running)
        assert (answer[0], answer[1]["id"]) == (502, 1)
        assert reason_of(answer) in ("upstream-failed", "response-refused")
        assert len(hostile.asked) == 1, "and nothing is tried twice"


@pytest.mark.parametrize("case", HTTP)
async def test_an_upstreams_http_stays_between_it_and_us(tmp_path: Path, case: str) -> None:
    attack, status, reason = HTTP[case]
    async with before(tmp_path, attack) as (running, hostile):
        answer = await attacked(running)
        assert (answer[0], reason_of(answer) if isinstance(answer[1], dict) else reason_in_stream(answer[1])) == (
            status,
            reason,
        )
        assert len(hostile.asked) == 1
        if not reason:
            assert FINE in str(answer[1]) and answer[1]["id"] == 1


@pytest.mark.parametrize("case", JSON)
async def test_an_answer_that_is_none_is_refused(tmp_path: Path, case: str) -> None:
    async with before(tmp_path, body(JSON[case])) as (running, _):
        answer = await attacked(running)
        assert (answer[0], reason_of(answer)) == (502, "response-refused")
        assert FINE not in str(answer[1])


@pytest.mark.parametrize("case", PASSES)
async def test_an_answer_that_is_odd_passes_as_we_write_it(tmp_path: Path, case: str) -> None:
    async with before(tmp_path, body(PASSES[case])) as (running, _):
        status, said, _ = await attacked(running)
        assert status == 200 and said["result"]["content"][0]["text"] == FINE
        if case == "64-bit numbers":
            assert said["result"]["isError"] == [2**64 - 1, -(2**63)]


@pytest.mark.parametrize("case", STREAMS)
async def test_a_stream_is_judged_event_by_event(tmp_path: Path, case: str) -> None:
    attack, reason = STREAMS[case]
    async with before(tmp_path, attack) as (running, _):
        status, raw, _ = await attacked(running)
        assert (status, reason_in_stream(raw)) == (200, reason)
        assert raw.count(b": keep-alive") < 100, "of comments in a row one is enough"
        answers = [line for line in raw.split(b"\n") if b'"id":1' in line]
        assert len(answers) == 1 and (FINE.encode() in answers[0]) is (not reason)


async def test_what_a_result_asks_of_the_client_needs_a_row(tmp_path: Path) -> None:
    rules = RULES + "p, nhi:planner, nhi:github, roots/list, -, -, -, allow\n"
    for methods, reason in ((["roots/list"], ""), (["roots/list", "sampling/createMessage"], "no-matching-rule")):
        async with before(tmp_path / str(len(methods)), body(asking(*methods, requestState="s")), rules=rules) as (
            running,
            _,
        ):
            answer = await attacked(running)
            assert (answer[0], reason_of(answer)) == (403 if reason else 200, reason)
            asked = [record["action"] for record in running.records() if record["event"] == "decision"]
            assert [action for action in asked if action != "tools/call"] == methods


# --- sessions ---------------------------------------------------------------------------------------------------------


async def test_an_upstreams_session_id_never_reaches_a_caller(tmp_path: Path) -> None:
    async with before(tmp_path, body(done, *COOKIES)) as (running, _):
        talk = Talk(running, "session")
        _, said, headers = await talk.open()
        assert headers["Mcp-Session-Id"] == talk.session and "upstream-1" not in str(headers) + str(said)
        assert said["result"]["capabilities"] == {"tools": {"listChanged": True}, "tasks": {}}
        status, said, headers = await talk.call("search_code", RUDE)
        assert status == 200 and FINE in str(said) and set(headers) <= OUR_HEADERS - {"Mcp-Session-Id"}


NO_STREAM: dict[str, tuple[Attack, int]] = {
    "405": (body(lambda m: b"", *COOKIES, status="405 No"), 405),
    "404": (body(lambda m: b"", *COOKIES, status="404 No"), 404),
    "302": (body(lambda m: b"", *COOKIES, status="302 Found"), 502),
    "500": (body(lambda m: b"", *COOKIES, status="500 Error"), 502),
    "JSON": (body(lambda m: b"{}", *COOKIES), 502),
    "no media type": (body(lambda m: b"{}", *COOKIES, media=""), 502),
    "gzip": (body(lambda m: ZIPPED, "Content-Encoding: gzip", media="text/event-stream"), 502),
    "noise": (say(bytes(range(256)), then_close=True), 502),
}


@pytest.mark.parametrize("case", NO_STREAM)
async def test_a_session_stream_that_is_none_is_told_in_plain_http(tmp_path: Path, case: str) -> None:
    attack, expected = NO_STREAM[case]
    async with before(tmp_path, attack) as (running, _):
        talk = Talk(running, "session")
        await talk.open()
        status, told, headers = await talk.verb("GET", {"Accept": "text/event-stream"})
        assert (status, headers["Content-Type"]) == (expected, "application/problem+json")
        assert set(headers) <= OUR_HEADERS | {"Allow"} and b"evil" not in told
        await polite(running)
        assert len(running.ends()) == 3
