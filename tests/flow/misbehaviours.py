"""What can a hostile server say, and what must its caller hear of it?

Every script has a name, which a call bears, and a reason: why the caller gets a no, "" where it gets the answer. They
are bytes on a connection (`FRAMING`, `HTTP`, `STREAMS`, `SLOW`, `LARGE`), words of JSON-RPC that can be said over any
transport and by servers of either era (`WORDS`), lists that name what the caller may not see (`LISTS`), and endpoints
(`LIES`). Whoever wants a server that misbehaves takes it from here.
"""

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from tests.flow.streams import event
from tests.tables import tables
from tests.unit.http.client.hostile import Conversation, chunked, response

Attack = Callable[[Conversation, dict[str, Any]], Awaitable[None]]
"""What is done on a connection that just asked this message."""
Make = Callable[[dict[str, Any]], Any]
"""What is answered to this message: bytes, or what JSON makes of it."""
FINE = "fine"
CANARY = "canary"
"""Stands in whatever of a list its reader may not see."""
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
REFUSED, FAILED, TIMEOUT, LIMITED = "response-refused", "upstream-failed", "upstream-timeout", "upstream-limited"


class Misbehaviour(NamedTuple):
    """What is done, and the reason that its caller hears; "" where it is answered all the same."""

    attack: Attack
    reason: str
    status: int = 0


def rows(table: Mapping[str, tuple[Any, ...]]) -> dict[str, Misbehaviour]:
    return {name: Misbehaviour(*row) for name, row in table.items()}


def say(data: bytes, *, then_close: bool = False) -> Attack:
    """These bytes and nothing else."""

    async def attack(conversation: Conversation, message: dict[str, Any]) -> None:
        await conversation.send(data)
        if then_close:
            conversation.writer.close()

    return attack


def bytes_of(made: Any) -> bytes:
    return made if isinstance(made, bytes) else json.dumps(made).encode()


def body(make: Make, *headers: str, media: str = "application/json", status: str = "200 OK") -> Attack:
    """A well-framed response with this body, made for the message that asked."""

    async def attack(conversation: Conversation, message: dict[str, Any]) -> None:
        lines = [f"Content-Type: {media}", *headers] if media else headers
        await conversation.send(response(bytes_of(make(message)), *lines, status=status))

    return attack


def events(*pieces: bytes, pause_s: float = 0.0) -> Attack:
    """A stream of these bytes, cut where they are cut, and its end."""

    async def attack(conversation: Conversation, message: dict[str, Any]) -> None:
        await conversation.send(response(b"", "Content-Type: text/event-stream", framing="Connection: close"))
        for piece in pieces:
            await conversation.send(piece)
            await asyncio.sleep(pause_s)
        conversation.writer.close()

    return attack


def messages(*said: Any) -> Attack:
    """A stream of these messages."""
    return events(*map(event, said))


def note(method: str, params: Any, **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params, **more}


def endless(piece: bytes, every_s: float = 0.0) -> Attack:
    """The same, again and again, as an event stream."""

    async def attack(conversation: Conversation, message: dict[str, Any]) -> None:
        await conversation.send(response(b"", "Content-Type: text/event-stream", framing="X: y"))
        while True:
            await conversation.send(piece)
            await asyncio.sleep(every_s)

    return attack


def done(message: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The right answer."""
    result = {"resultType": "complete", "content": [{"type": "text", "text": FINE}], "isError": False}
    return {"jsonrpc": "2.0", "id": message["id"], "result": result} | changes


def error(message: dict[str, Any], text: str = FINE) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32000, "message": text}}


# --- the connection ---------------------------------------------------------------------------------------------------

ANSWER = json.dumps(done({"id": 1})).encode()
LENGTH = b"Content-Length: %d\r\n" % len(ANSWER)
# Of what `tests/unit/http/client/test_http1.py` holds whole, one of each kind.
FRAMING: dict[str, bytes] = {
    "a length and chunks": HEAD + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(ANSWER),
    "two lengths": HEAD + LENGTH + b"Content-Length: 7\r\n\r\n" + ANSWER,
    "a negative length": HEAD + b"Content-Length: -1\r\n\r\n" + ANSWER,
    "a length too short": HEAD + b"Content-Length: 10\r\n\r\n" + ANSWER,
    "chunks that end early": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"ff\r\n" + ANSWER,
    "chunks of a bad size": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + ANSWER,
    "an unknown coding": HEAD + b"Transfer-Encoding: identity\r\n\r\n" + ANSWER,
    "no version": b"200 OK\r\n\r\n" + ANSWER,
    "nothing but a body": ANSWER,
    "noise": bytes(range(256)) * 8,
    "status 999": HEAD.replace(b"200", b"999") + LENGTH + b"\r\n" + ANSWER,
    "an upgrade": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    "interim without end": b"HTTP/1.1 103 Early Hints\r\n\r\n" * 5000,
    "a NUL in a header": HEAD + b"X-A: \0\r\n" + LENGTH + b"\r\n" + ANSWER,
    "a thousand headers": HEAD + b"X-A: 1\r\n" * 1000 + LENGTH + b"\r\n" + ANSWER,
    "a header of a megabyte": HEAD + b"X-A: " + b"a" * 2**20 + b"\r\n" + LENGTH + b"\r\n" + ANSWER,
    "a head without end": b"HTTP/1.1 200 OK\r\n" + b"X-A: 1\r\n" * 10_000,
    "a media type twice": HEAD + b"Content-Type: text/event-stream\r\n" + LENGTH + b"\r\n" + ANSWER,
    "nothing": b"",
}
HALF_READ = {"a length too short": REFUSED, "an upgrade": REFUSED}  # HTTP, and no answer
ZIPPED = gzip.compress(ANSWER)
COOKIES = ("Set-Cookie: a=b; Path=/", "Set-Cookie2: c", "Mcp-Session-Id: leaked", "X-Powered-By: evil", "Via: evil",
           "WWW-Authenticate: Bearer realm=evil", "Location: http://evil.example/", "Link: <http://evil.example/>",
           "Access-Control-Allow-Origin: *", "Connection: keep-alive, X-Powered-By", "Trailer: X-Evil")  # fmt: skip
HTTP = rows(
    {
        "cookies and other gifts": (body(done, *COOKIES), ""),
        "gifts in an error": (body(done, *COOKIES, status="401 Unauthorized"), FAILED),
        **{
            f"a redirect {code}": (body(done, *COOKIES, status=f"{code} Moved"), FAILED)
            for code in (300, 301, 302, 303, 304, 307, 308)
        },
        **{
            f"status {code}": (body(done, "Retry-After: 9999", status=f"{code} X"), FAILED)
            for code in (201, 202, 206, 400, 402, 403, 404, 405, 407, 409, 410, 421, 500, 504, 511, 599)
        },
        "status 429": (body(done, "Retry-After: 9999", status="429 X"), LIMITED, 429),
        "status 503": (body(done, "Retry-After: 9999", status="503 X"), FAILED, 503),
        "status 503 without a time": (body(done, "Retry-After: soon", status="503 X"), FAILED, 502),
        "204": (say(b"HTTP/1.1 204 No Content\r\n\r\n"), FAILED),
        "no media type": (body(done, media=""), REFUSED),
        "a page": (body(lambda m: b"<html>", media="text/html"), REFUSED),
        "JSON as text": (body(done, media="text/plain"), REFUSED),
        "two media types": (body(done, media="application/json, text/event-stream"), REFUSED),
        "problem+json": (body(done, media="application/problem+json"), REFUSED),
        "JSON as a stream": (body(done, media="text/event-stream"), FAILED, 200),
        "a stream as JSON": (body(lambda m: event(done(m))), REFUSED),
        "parameters": (body(done, media="Application/JSON ; charset=utf-8"), ""),
        "gzip": (body(lambda m: ZIPPED, "Content-Encoding: gzip"), REFUSED),
        "gzip untold": (body(lambda m: ZIPPED), REFUSED),
        "no length": (say(HEAD + b"\r\n" + ANSWER, then_close=True), ""),
        "empty": (body(lambda m: b""), REFUSED),
        "a JSON-RPC error": (body(error), ""),
        "an error to nobody with 200": (body(lambda m: error({"id": None})), ""),
        "a JSON-RPC error with 404": (body(error, status="404 Not Found"), "", 404),
        "another's error with 400": (body(lambda m: error({"id": 2}), status="400 Bad"), "", 400),
        "an error to nobody with 400": (body(lambda m: error({"id": None}), status="400 Bad"), "", 400),
        "a large error with 400": (body(lambda m: error(m, "x" * 70_000), status="400 Bad"), REFUSED),
    }
)

# --- words of JSON-RPC ------------------------------------------------------------------------------------------------

ASKS = {"jsonrpc": "2.0", "id": 9, "method": "sampling/createMessage", "params": {"messages": []}}


def answer_to(message: dict[str, Any]) -> bytes:
    return json.dumps(done(message)).encode()


def asking(*methods: Any, **more: Any) -> Make:
    """A result that asks the client for these."""
    asked = {str(number): {"method": method, "params": {}} for number, method in enumerate(methods)}
    return lambda m: done(m, result={"resultType": "input_required", "inputRequests": asked, **more})


def deep(message: dict[str, Any], opening: bytes, middle: bytes, closing: bytes, depth: int) -> bytes:
    begun = b'{"jsonrpc":"2.0","id":%d,"result":{"a":' % message["id"]
    return begun + opening * depth + middle + closing * depth + b"}}"


# Over lines what names no request that waits is nobody's, and its caller waits on; `NOBODYS` are those.
WORDS: dict[str, Make] = {
    "another id": lambda m: done(m, id=m["id"] + 1),
    "the id as a string": lambda m: done(m, id=str(m["id"])),
    "the id as a float": lambda m: done(m, id=float(m["id"])),
    "the id as a boolean": lambda m: done(m, id=True),
    "no id": lambda m: {"jsonrpc": "2.0", "result": {}},
    "a null id": lambda m: done(m, id=None),
    "an id of another kind": lambda m: done(m, id=[m["id"]]),
    "a batch": lambda m: [done(m)],
    "an empty batch": lambda m: [],
    "a notification": lambda m: {"jsonrpc": "2.0", "method": "notifications/message", "params": {}},
    "a request": lambda m: ASKS,
    "the request itself": lambda m: m,
    "a string": lambda m: "fine",
    "null": lambda m: None,
    "neither result nor error": lambda m: {"jsonrpc": "2.0", "id": m["id"]},
    "both": lambda m: done(m, error={"code": 1, "message": "x"}),
    "an error of strings": lambda m: {"jsonrpc": "2.0", "id": m["id"], "error": "no"},
    "an error without a code": lambda m: {"jsonrpc": "2.0", "id": m["id"], "error": {"message": "x"}},
    "a result that is a list": lambda m: done(m, result=[]),
    "a result that is null": lambda m: done(m, result=None),
    "two answers": lambda m: answer_to(m) + answer_to(m),
    "an answer and a line": lambda m: answer_to(m) + b" {}",
    "half an answer": lambda m: answer_to(m)[:-9],
    "NaN": lambda m: answer_to(m).replace(b"false", b"NaN"),
    "Infinity": lambda m: answer_to(m).replace(b"false", b"-Infinity"),
    "a lone surrogate": lambda m: answer_to(m).replace(b"fine", b"\\ud800"),
    "UTF-16": lambda m: answer_to(m).decode().encode("utf-16"),
    "Latin-1": lambda m: answer_to(m).replace(b"fine", b"f\xefne"),
    "a byte order mark": lambda m: b"\xef\xbb\xbf" + answer_to(m),
    "a NUL at the end": lambda m: answer_to(m) + b"\0",
    "too deep": lambda m: deep(m, b"[", b"", b"]", 5000),
    "too deep to write": lambda m: deep(m, b'{"a":', b"1", b"}", 300),
    "a million values": lambda m: deep(m, b"[", b"{}," * 10**6 + b"1", b"]", 1),
    "a number of 5,000 digits": lambda m: answer_to(m).replace(b"false", b"9" * 5000),
    "unknown members": lambda m: done(m, extra=1),
    "another version of JSON-RPC": lambda m: done(m, jsonrpc="1.0"),
    "no version of JSON-RPC": lambda m: {key: value for key, value in done(m).items() if key != "jsonrpc"},
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
PASSES: dict[str, Make] = {
    "64-bit numbers": lambda m: answer_to(m).replace(b"false", b"[18446744073709551615,-9223372036854775808]"),
    "a key twice": lambda m: answer_to(m).replace(b'"isError"', b'"a":1,"a":2,"isError"'),
    "blanks": lambda m: b" \t" + answer_to(m) + b"\r ",
    "an error that is null": lambda m: done(m, error=None),
}
NOBODYS = frozenset(
    {
        *("another id", "the id as a string", "the id as a float", "the id as a boolean", "no id", "a null id"),
        *("an id of another kind", "a batch", "an empty batch", "a notification", "a request", "the request itself"),
        *("a string", "null", "two answers", "an answer and a line", "half an answer", "NaN", "Infinity"),
        *("a lone surrogate", "UTF-16", "Latin-1", "a byte order mark", "a NUL at the end", "too deep"),
        *("too deep to write", "a million values", "a number of 5,000 digits"),
    }
)

# --- event streams ----------------------------------------------------------------------------------------------------

ONE = {"id": 1}
STREAMS = rows(
    {
        "a server that asks": (messages(ASKS, done(ONE)), REFUSED),
        "a ping": (messages({**ASKS, "method": "ping"}, done(ONE)), ""),
        "no answer": (events(b": hi\n\n", b"id: 1\nretry: 1\ndata:\n\n"), FAILED),
        "no bytes": (events(), FAILED),
        "garbage": (events(b"data: {\n\n"), REFUSED),
        "garbage before the answer": (events(b"data: {\n\n", event(done(ONE))), REFUSED),
        "another's answer": (messages(done({"id": 2}), done(ONE)), ""),
        "an error to nobody": (messages(error({"id": None})), ""),
        "an error to nobody that is malformed": (
            messages({"jsonrpc": "2.0", "id": None, "error": "no"}, done(ONE)),
            REFUSED,
        ),
        "a malformed answer before another": (messages(done(ONE, extra=1), done(ONE)), REFUSED),
        "an answer in an array before another": (messages([done(ONE)], done(ONE)), REFUSED),
        "named events with data": (
            events(
                b"event: ping\ndata: {}\n\nevent: heartbeat\ndata: 2026-11-29T12:00:00Z\n\n",
                b'event: error\ndata: {"error": "busy"}\n\nevent: message\n\n',
                event(done(ONE)),
            ),
            "",
        ),
        "malformed side messages": (
            messages(
                note("tools/list_changed", None),
                {"jsonrpc": "2.0", "id": 8, "method": "ping", "params": None},
                *(note("message", {}, extra=1), note("message", [1]), {"method": "notifications/message"}),
                *(done({"id": 77}), [note("message", {})], done(ONE)),
            ),
            "",
        ),
        "an answer and more": (events(event(done(ONE)), *[event(done(ONE))] * 50, b"x" * 99999), ""),
        "half an event": (events(event(done(ONE))[:-1]), FAILED),
        "injected lines": (
            events(b"id: 1\rdata: {\r\ndata: }\n\nevent: message\nid: a\0b\ndata:\n\n", event(done(ONE))),
            "",
        ),
        "an event id of a kilobyte": (events(event(done(ONE), id="x" * 2000)), ""),
        "an event id in another alphabet": (events(event(done(ONE), id="ключ")), ""),
        "ten thousand comments": (events(b":\n" * 10_000, event(done(ONE))), ""),
        "fifty thousand empty events": (events(b"data:\n\n" * 50_000, event(done(ONE))), ""),
        "an answer cut at each byte": (events(*(bytes([each]) for each in event(done(ONE)))), ""),
        "an event of another kind": (events(event(done(ONE)).replace(b"message\n", b"endpoint\n", 1)), FAILED),
        "carriage returns": (events(event(done(ONE)).replace(b"\n", b"\r")), ""),
        "a retry of a hundred years": (events(b"retry: 3155760000000\n", event(done(ONE))), ""),
        "a byte order mark first": (events(b"\xef\xbb\xbf" + event(done(ONE))), ""),
        "bytes that are no text": (events(b"data: \xff\xfe\n\n", event(done(ONE))), REFUSED),
    }
)

# What is right in the session era: its servers may ask, a stream may be left to be fetched again, and whoever says 404
# to a session has forgotten it; and its caller begins by himself.
IN_A_SESSION: Mapping[str, str] = {
    **dict.fromkeys(["a revision that is a list", "a revision that is none", "no greeting"], REFUSED),
    "a server that asks": "",
    "a ping": "",
    "no answer": "no message",
    "status 404": "session-unknown",
    "a JSON-RPC error with 404": "session-unknown",
    "with an error status that is the protocol's": "session-unknown",
}

# --- time and size ----------------------------------------------------------------------------------------------------


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
PIECE = b"x" * 2**20


def hundred(head: bytes, piece: bytes = PIECE) -> Attack:
    """A head, and 100 pieces."""

    async def attack(conversation: Conversation, message: dict[str, Any]) -> None:
        await conversation.send(HEAD + head + b"\r\n")
        for _ in range(100):
            await conversation.send(piece)

    return attack


LARGE: dict[str, Attack] = {
    "a length of 100 MB": hundred(b"Content-Length: 104857600\r\n"),
    "100 MB in chunks": hundred(b"Transfer-Encoding: chunked\r\n", b"100000\r\n" + PIECE + b"\r\n"),
    "100 MB until close": hundred(b""),
    "a line of 100 MB": endless(b"data: " + PIECE),
    "an event of 100 MB": endless((b"data: " + b"x" * 100 + b"\n") * 9000),
    "a field of 100 MB": endless(b"y" * 2**20),
}

# --- lists that name what nobody may see ------------------------------------------------------------------------------

SEEN = {"name": "search_code", "description": "Search.", "inputSchema": {"type": "object"}}
SECRET = {"name": f"{CANARY}_tool", "description": f"{CANARY} description", "inputSchema": {"type": "object"}}
TOLD = {"tools": [SEEN, SECRET]}
BESIDE = {
    "prompts": [{"name": CANARY}],
    "resources": [{"uri": f"note://{CANARY}", "name": CANARY}],
    "resourceTemplates": [{"uriTemplate": f"note://{CANARY}/{{a}}", "name": CANARY}],
}


def listing(result: Any = None, **more: Any) -> Attack:
    """A body with this list."""
    return body(lambda m: listed(m, result, **more))


def offering(*tools: Any, **more: Any) -> Attack:
    return listing({"tools": tools, **more})


def late(make: Callable[[], Attack]) -> Attack:
    """An attack whose data is made when it is carried out, since it is large."""

    async def attack(conversation: Conversation, message: dict[str, Any]) -> None:
        await make()(conversation, message)

    return attack


def listed(message: dict[str, Any], result: Any = None, **more: Any) -> dict[str, Any]:
    """A list with what is secret in it."""
    caching = {"resultType": "complete", "ttlMs": 1000, "cacheScope": "public"}
    return {"jsonrpc": "2.0", "id": message["id"], "result": {**caching, **(result or TOLD), **more}}


def news(message: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


def stream_of(*makes: Make, cut: int = 0, ending: bytes = b"\n", comments: bool = False) -> Attack:
    """Events of these, cut every so many bytes."""

    async def attack(conversation: Conversation, message: dict[str, Any]) -> None:
        sent = [b"data: " + bytes_of(make(message)).replace(b"\n", b"\ndata: ") + b"\n\n" for make in makes]
        whole = (b": note\n" if comments else b"").join(sent).replace(b"\n", ending)
        pieces = [whole[start : start + cut] for start in range(0, len(whole), cut)] if cut else [whole]
        await events(*pieces)(conversation, message)

    return attack


def unreadable(message: dict[str, Any]) -> bytes:
    return bytes_of(listed(message)).replace(b"Search", b"S\xffarch")


LISTS = rows(
    {
        "in a body": (listing(), ""),
        "in a stream": (stream_of(listed), ""),
        "in a stream cut in pieces": (stream_of(listed, cut=7), ""),
        "in a stream of carriage returns": (stream_of(listed, cut=11, ending=b"\r"), ""),
        "in a stream of CRLF": (stream_of(listed, cut=13, ending=b"\r\n"), ""),
        "over many data lines": (stream_of(lambda m: json.dumps(listed(m), indent=1).encode()), ""),
        "after news and comments": (stream_of(news, news, listed, comments=True), ""),
        "after garbage": (stream_of(lambda m: b"{garbage", listed), REFUSED),
        "before garbage": (stream_of(listed, lambda m: b"{garbage"), ""),
        "that cannot be read, in a body": (body(unreadable), REFUSED),
        "that cannot be read, in a stream": (stream_of(unreadable), REFUSED),
        "that cannot be read, as text": (body(listed, media="text/plain"), REFUSED),
        "as an answer to another": (body(lambda m: {**listed(m), "id": 77}), REFUSED),
        "as an answer to another, in a stream": (stream_of(lambda m: {**listed(m), "id": 77}, listed), ""),
        "twice in a stream": (stream_of(listed, listed), ""),
        "in a batch": (body(lambda m: [listed(m)]), REFUSED),
        "under a key twice": (body(lambda m: bytes_of(listed(m)).replace(b'"tools"', b'"tools":[],"tools"')), ""),
        "under a key twice, the other way": (
            body(lambda m: bytes_of(listed(m)).replace(b'"ttlMs"', b'"tools":[],"ttlMs"')),
            "",
        ),
        "in another spelling": (listing(Tools=[SECRET]), REFUSED),
        "in the long s": (listing({**TOLD, "tool\u017f": [SECRET]}), REFUSED),
        "as an object": (listing({"tools": {"0": SECRET}}), REFUSED),
        "of odd entries": (
            offering(None, [SECRET], SECRET["name"], {**SECRET, "name": None}, {**SECRET, "Name": "a"}, SEEN),
            "",
        ),
        "with a name twice": (
            body(lambda m: bytes_of(listed(m)).replace(b'"name": "canary', b'"name": "search_code", "name": "canary')),
            "",
        ),
        "beside prompts and resources": (listing(**BESIDE), ""),
        "with an error status": (body(listed, status="500 Oops"), FAILED),
        "with a redirect": (body(listed, *COOKIES, status="302 Found"), FAILED),
        "with an error status that is the protocol's": (body(listed, status="404 Not Found"), FAILED),
        "in a body without end": (
            say(HEAD + b"Content-Length: 99999\r\n\r\n" + bytes_of(listed(ONE)), then_close=True),
            FAILED,
        ),
        "in a stream without its last line": (events(b"data: " + bytes_of(listed(ONE)) + b"\n"), FAILED),
        "in a gzip": (body(lambda m: gzip.compress(bytes_of(listed(m))), "Content-Encoding: gzip"), REFUSED),
    }
)

# What is too much of it for one turn of the loop, though it fits the bound on bytes.
MANY = rows(
    {
        "thousands of tools": (
            late(lambda: offering(*[{**SECRET, "name": f"{CANARY}_{n}"} for n in range(20_000)], SEEN)),
            "",
        ),
        "a hundred thousand tools": (
            late(lambda: offering(*({**SEEN, "name": f"t{n}"} for n in range(100_000)))),
            REFUSED,
        ),
        "thousands of long tools": (offering(SEEN, *[{**SECRET, "description": CANARY * 300}] * 4500), ""),
        "a tool of nine megabytes": (late(lambda: offering({**SEEN, "description": "a\u200b" * 2**20})), ""),
        "members without end": (late(lambda: offering(SEEN, **{f"Tool{n}": 1 for n in range(90_000)})), REFUSED),
        "a tool of members without end": (
            late(lambda: offering(SEEN, {**SECRET, **{f"Name{n}": 1 for n in range(90_000)}})),
            "",
        ),
        "more members than are counted": (
            late(lambda: offering(SEEN, **{f"Tool{n}": 1 for n in range(400_000)})),
            REFUSED,
        ),
        "tasks without end": (
            late(lambda: offering(SEEN, tasks=[{"taskId": f"t{n}"} for n in range(90_000)])),
            REFUSED,
        ),
        "questions without end": (
            listing({"inputRequests": {str(n): {"method": "roots/list"} for n in range(65)}}),
            REFUSED,
        ),
        "brackets without end": (late(lambda: offering(SEEN, x=[[["x"]]] * 800_000)), REFUSED),
    }
)
LISTS |= MANY

# --- what is said to the sidecar's own enquiry ------------------------------------------------------------------------


def hello(**changes: Any) -> dict[str, Any]:
    info = {"name": "hostile", "version": "1"}
    return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info, **changes}


def greeting(**changes: Any) -> dict[str, Any]:
    return {"initialize": hello(**changes)}


def tool(**changes: Any) -> dict[str, Any]:
    return {"tools/list": {"tools": [{**SEEN, **changes}]}}


GREETINGS: dict[str, tuple[dict[str, Any], str]] = {
    **tables("flow/misbehaviours")["greetings"],
    "capabilities without end": (greeting(capabilities={f"c{n}": {} for n in range(90_000)}), FAILED),
    "instructions of megabytes": (greeting(instructions="x" * 5_000_000), FAILED),
    "a cursor of megabytes": ({"tools/list": {"tools": [], "nextCursor": "a" * 2**20}}, FAILED),
    "three thousand tools": ({"tools/list": {"tools": [SEEN] * 3_000}}, FAILED),
    "values without end": ({"tools/list": {"tools": [SEEN], "x": [{}] * 2_000_000}}, FAILED),
    "a name of a megabyte": (tool(name="t" * 2**20), "tool-unknown"),
    "a schema of megabytes": (
        tool(inputSchema={"type": "object", "properties": {"p" * 2**21: {}}}),
        "schema-unavailable",
    ),
}
"""By method what a server says, and what whoever calls its `search_code` hears."""

# --- the endpoint of HTTP+SSE -----------------------------------------------------------------------------------------

STREAM = response(b"", "Content-Type: text/event-stream; charset=utf-8", framing="")


def telling(endpoint: str) -> bytes:
    return STREAM + f"event: endpoint\ndata: {endpoint}\n\n".encode()


LIES: Mapping[str, bytes] = {name: telling(url) for name, url in tables("flow/misbehaviours")["lies"].items()} | {
    "megabytes": telling("/" + "m" * 2**20),
    "an endless prologue": STREAM + b": hello\n\n" * 10_000,
}
"""Each is refused."""
NO_STREAM: Mapping[str, bytes] = {
    "a page": response(b"<html>", "Content-Type: text/html"),
    "json": response(b"{}", "Content-Type: application/json"),
    "elsewhere": response(b"", "Location: http://evil.example/", status="307 Temporary Redirect"),
    "not there": response(b"", status="404 Not Found"),
    "not us": response(b"", status="401 Unauthorized"),
}
"""What a stream is not opened with: the upstream failed."""

BY_BYTES: Mapping[str, Misbehaviour] = {
    **{name: Misbehaviour(say(data, then_close=True), HALF_READ.get(name, FAILED)) for name, data in FRAMING.items()},
    **HTTP,
    **{name: Misbehaviour(body(make), REFUSED) for name, make in WORDS.items()},
    **{name: Misbehaviour(body(make), "") for name, make in PASSES.items()},
    **STREAMS,
}
