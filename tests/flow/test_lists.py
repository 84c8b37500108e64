"""Does anybody ever see what they may not use?

Lists of every kind, in both eras, as bodies and as streams, well-formed and not (BL-021).
"""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.flow.scripts import stream
from tests.flow.streams import Emitter, event, streamed
from tests.flow.talk import ERAS, Era, Talk, reason_of, talking
from tests.flow.world import TOOLS, Respond, Upstream, World, until, world
from tests.tables import tables

PERMITTED, HIDDEN = ["search_code", "get_file"], "delete_repo"
MINE = {"cursor": "mine"}  # a list that a test asks for, and not the sidecar itself
ALL: dict[str, Any] = {"tools": TOOLS, "nextCursor": "page-2", "ttlMs": 5, "cacheScope": "public"}
NOTE = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "working"}}


def answering(respond: Callable[[dict[str, Any]], Any], media: str = "application/json") -> Respond:
    """Answer a test's own list: bytes as they are, lists of bytes one after the other, anything else as JSON."""

    async def script(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if message.get("params", {}).get("cursor") != MINE["cursor"]:
            return Upstream().answer(message)
        said = respond(message)
        if not isinstance(said, bytes | list):
            return web.json_response(said)
        stream = web.StreamResponse(headers={"Content-Type": media})
        await stream.prepare(request)
        for piece in [said] if isinstance(said, bytes) else said:
            await stream.write(piece)
            await asyncio.sleep(0)
        return stream

    return script


def result(message: dict[str, Any], result: Any = ALL) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


async def text_of(talk: Talk, method: str = "tools/list") -> tuple[str, list[Any]]:
    """Every byte of the answer, and the messages in it."""
    async with talk.hearing(method, MINE) as ear:
        text = (await ear.response.read()).decode()
    found = [text] if text.startswith("{") else re.findall(r"^data: (.+)$", text, re.MULTILINE)
    return text, [json.loads(one) for one in found]


def names_in(messages: list[Any], member: str = "tools") -> list[str]:
    [listed] = [one["result"] for one in messages if "result" in one]
    return [entry.get("name") or entry.get("uri") or entry.get("uriTemplate") for entry in listed[member]]


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def lines(data: bytes, end: bytes) -> bytes:
    return data.replace(b"\n", end)


def in_lines(message: Any) -> bytes:
    """JSON over many data lines."""
    return b"".join(b"data: " + line + b"\n" for line in json.dumps(message, indent=1).encode().split(b"\n")) + b"\n"


Body = Callable[[dict[str, Any]], Any]
GOOD: dict[str, Body] = {
    "one event": lambda m: event(result(m)),
    "after a notification and a comment": lambda m: b": hi\n\n" + event(NOTE) + b":\n" + event(result(m)),
    "carriage returns": lambda m: lines(event(NOTE) + event(result(m)), b"\r"),
    "both ends": lambda m: lines(event(NOTE) + event(result(m)), b"\r\n"),
    "mixed ends": lambda m: lines(event(NOTE), b"\r") + lines(event(NOTE), b"\r\n") + event(result(m)),
    "many data lines": lambda m: in_lines(NOTE) + in_lines(result(m)),
    "many data lines, returns": lambda m: lines(in_lines(result(m)), b"\r"),
    "a byte order mark": lambda m: b"\xef\xbb\xbf" + event(result(m)),
    "no space": lambda m: event(result(m)).replace(b"data: ", b"data:"),
    "behind another event type": lambda m: event(NOTE).replace(b"event: message", b"event: list") + event(result(m)),
    "unknown fields": lambda m: b"tools: 1\nfoo\n" + event(result(m)),
    "primed": lambda m: b"id: 0\nretry: 5\ndata:\n\n" + event(result(m), id="1"),
    "byte by byte": lambda m: cut(event(NOTE) + event(result(m)), 1),
    "in threes": lambda m: cut(lines(event(NOTE) + event(result(m)), b"\r\n"), 3),
    "unknown notifications": lambda m: event({"jsonrpc": "2.0", "method": "x/tools", "params": ALL}) + event(result(m)),
    "the list twice": lambda m: event(result(m)) + event(result(m)),
    "garbage afterwards": lambda m: event(result(m)) + b"data: {{{{\n\n" + json.dumps(result(m)).encode(),
    "a key twice": lambda m: (
        b'data: {"jsonrpc":"2.0","id":%s,"result":{"tools":[],"nextCursor":"page-2","tools":%s}}\n\n'
        % (json.dumps(m["id"]).encode(), json.dumps(TOOLS).encode())
    ),
}
BAD: dict[str, Body] = {
    "garbage before": lambda m: b"data: {oops\n\n" + event(result(m)),
    "garbage around a note": lambda m: event(NOTE) + b"data: hello\n\n" + event(result(m)),
    "not UTF-8": lambda m: b"data: \xff\xfe\n\n" + event(result(m)),
    "an id of another type": lambda m: event({**result(m), "id": str(m["id"])}),
    "an id as a float": lambda m: event({**result(m), "id": 1.0}),
    "an id as a boolean": lambda m: event({**result(m), "id": True}),
    "no id": lambda m: event({"jsonrpc": "2.0", "result": ALL}),
    "a null id": lambda m: event({**result(m), "id": None}),
    "another request's": lambda m: event({**result(m), "id": 2}),
    "a batch": lambda m: event([result(m)]),
    "a batch of notes and the list": lambda m: event([NOTE, result(m)]),
    "another version": lambda m: event({**result(m), "jsonrpc": "1.0"}),
    "no version": lambda m: event({"id": m["id"], "result": ALL}),
    "a result and an error": lambda m: event({**result(m), "error": {"code": 1, "message": "x"}}),
    "a result and a method": lambda m: event({**result(m), "method": "notifications/message"}),
    "members unknown to JSON-RPC": lambda m: event({**result(m), "tools": TOOLS}),
    "Result": lambda m: event({"jsonrpc": "2.0", "id": m["id"], "Result": ALL}),
    "Tools": lambda m: event(result(m, {"tools": [], "Tools": TOOLS})),
    "TOOLS alone": lambda m: event(result(m, {"TOOLS": TOOLS})),
    "tools with a long s": lambda m: event(result(m, {"tool\u017f": TOOLS})),
    "tools as an object": lambda m: event(result(m, {"tools": {"0": TOOLS[1]}})),
    "tools as a string": lambda m: event(result(m, {"tools": json.dumps(TOOLS)})),
    "tools as null": lambda m: event(result(m, {"tools": None})),
    "a list as the result": lambda m: event(result(m, TOOLS)),
    "a string as the result": lambda m: event(result(m, json.dumps(ALL))),
    "too deep": lambda m: event(result(m, {**ALL, "_meta": {"a": json.loads("[" * 120 + "]" * 120)}})),
    "an unfinished event": lambda m: event(result(m)).rstrip(b"\n"),
    "no event at all": lambda m: json.dumps(result(m)).encode(),
    "a null byte": lambda m: event(result(m)).replace(b'"tools"', b'"tools\0"'),
}
ONLY_STREAMS = ("an unfinished", "no event", "garbage", "not UTF-8")


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("case", GOOD)
async def test_a_list_in_a_stream_shows_what_may_be_used_in_its_order(planner: World, case: str, era: Era) -> None:
    """BL-021."""
    planner.upstream.script["tools/list"] = answering(GOOD[case], "text/event-stream")
    text, messages = await text_of(Talk(planner, era))
    assert names_in(messages) == PERMITTED and HIDDEN not in text
    [listed] = [one["result"] for one in messages if "result" in one]
    assert listed["nextCursor"] == "page-2" and listed.get("cacheScope") in ("private", None)
    assert [record["status"] for record in planner.ends()][-1] == "success"


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("case", BAD)
async def test_a_list_that_cannot_be_read_is_an_error_and_shows_nothing(planner: World, case: str, era: Era) -> None:
    """BL-021."""
    planner.upstream.script["tools/list"] = answering(BAD[case], "text/event-stream")
    text, messages = await text_of(Talk(planner, era))
    assert HIDDEN not in text and "search_code" not in text
    assert messages[-1]["error"]["data"]["reason"] in ("response-refused", "upstream-failed")
    assert messages[-1]["id"] == 1 and len(planner.ends()) == (1 if era == "stateless" else 2)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("case", [case for case in BAD if not case.startswith(ONLY_STREAMS)])
async def test_the_same_as_one_body_is_refused_whole(planner: World, case: str, era: Era) -> None:
    def body(message: dict[str, Any]) -> bytes:
        data: bytes = BAD[case](message).split(b"data: ")[-1].strip()
        return data

    planner.upstream.script["tools/list"] = answering(body)
    text, messages = await text_of(Talk(planner, era))
    assert HIDDEN not in text and messages[0]["error"]["data"]["reason"] == "response-refused"


ENTRIES: list[Any] = [
    None, 7, "delete_repo", ["delete_repo"], {}, {"name": None}, {"name": ["search_code"]}, {"name": "delete_repo"},
    {"name": "search_code\n"}, {"name": "search_code\u200b"}, {"name": "s" * 129}, {"name": ""}, {"title": HIDDEN},
    {"Name": "delete_repo", "name": "search_code"}, {"NAME": "delete_repo"}, {"name": "search code"},
    {"name": "unheard_of"},
]  # fmt: skip


@pytest.mark.parametrize("era", ERAS)
async def test_entries_that_no_call_could_name_are_left_out(planner: World, era: Era) -> None:
    listed = [*ENTRIES, TOOLS[0], *ENTRIES, TOOLS[2]]
    planner.upstream.script["tools/list"] = answering(lambda m: result(m, {"tools": listed, "nextCursor": "n"}))
    text, messages = await text_of(Talk(planner, era))
    assert messages[0]["result"]["tools"] == [TOOLS[0], TOOLS[2]] and messages[0]["result"]["nextCursor"] == "n"
    assert HIDDEN not in text


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("method", ["prompts/list", "resources/list", "resources/templates/list", "ping"])
async def test_tools_are_filtered_wherever_they_come(planner: World, method: str, era: Era) -> None:
    if method == "ping" and era == "stateless":
        return
    planner.upstream.script[method] = answering(lambda m: result(m, {"prompts": [], "tools": TOOLS}))
    talk = Talk(planner, era)
    await talk.ask("tools/list")  # before that, nothing is known to be callable, and nothing is shown
    text, messages = await text_of(talk, method)
    assert names_in(messages) == PERMITTED and HIDDEN not in text


RULES = """\
p, nhi:planner, tool:github/search_code, use, -, -, -, allow
p, nhi:planner, prompt:github/review, prompts/get, -, -, -, allow
p, nhi:planner, resource:github/file:///docs/*, resources/read, -, -, -, allow
p, *, resource:github/*secret*, resources/read, -, -, -, deny
"""
OTHERS = tables("flow/lists")["others"]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("media", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("method", OTHERS)
async def test_prompts_and_resources_are_filtered_alike(tmp_path: Path, method: str, media: str, era: Era) -> None:
    member, key, offered, expected = OTHERS[method]

    def body(message: dict[str, Any]) -> Any:
        said = result(message, {member: [{key: one} for one in offered], "cacheScope": "public", "nextCursor": "c"})
        return event(said) if media == "text/event-stream" else said

    upstream = Upstream(script={method: answering(body, media)})
    async with world(tmp_path, rules=RULES, upstream=upstream) as running:
        _, messages = await text_of(Talk(running, era), method)
    assert names_in(messages, member) == expected
    assert (messages[-1]["result"]["cacheScope"], messages[-1]["result"]["nextCursor"]) == ("private", "c")


async def test_a_list_on_a_resumed_stream_is_filtered_too(planner: World) -> None:
    async def primed(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if message["params"] != MINE:
            return Upstream().answer(message)
        return await streamed(request, b"id: 0\ndata:\n\n")

    rest = stream(event(result({"id": 1}), id="1"), b"data: nonsense\n\n", event(result({"id": 1})))
    planner.upstream.script |= {"tools/list": primed, "GET": rest}
    talk = Talk(planner, "session")
    text, _ = await text_of(talk)
    sealed = text.partition("\n")[0].removeprefix("id: ")
    status, body, _ = await talk.verb("GET", {"Accept": "text/event-stream", "Last-Event-ID": sealed})
    assert status == 200 and body.count(b"search_code") == 1 and HIDDEN.encode() not in body


async def test_a_page_of_nothing_permitted_still_leads_to_the_next(tmp_path: Path) -> None:
    pages = {"mine": ([TOOLS[1]], "p2"), "p2": ([TOOLS[0], TOOLS[1]], "p3"), "p3": ([TOOLS[2]], None)}

    async def paged(_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        cursor = message["params"].get("cursor")
        if cursor not in pages:
            return Upstream().answer(message)
        tools, following = pages[cursor]
        return web.json_response(result(message, {"tools": tools, **({"nextCursor": following} if following else {})}))

    async with world(tmp_path, upstream=Upstream(script={"tools/list": paged})) as running:
        found, cursor = [], "mine"
        for _ in range(3):
            _, body, _ = await Talk(running, "stateless").ask("tools/list", {"cursor": cursor})
            found.append([tool["name"] for tool in body["result"]["tools"]])
            cursor = body["result"].get("nextCursor", "")
        assert (found, cursor) == ([[], ["search_code"], ["get_file"]], "")


@pytest.mark.parametrize("era", ERAS)
async def test_an_update_of_what_may_not_be_read_is_not_told(tmp_path: Path, era: Era) -> None:
    feed = Emitter()
    upstream = Upstream(script={"GET": feed.listen, "subscriptions/listen": feed.listen})
    uris = ["file:///etc/passwd", "file:///docs/secret", "file:///docs/../etc/passwd", None, 7, "file:///docs/a"]
    async with talking(world(tmp_path, rules=RULES, upstream=upstream), era) as talk:
        if era == "session":
            await talk.open()
        wanted = {"notifications": {"resourceSubscriptions": ["file:///docs/a"]}}
        async with talk.hearing("" if era == "session" else "subscriptions/listen", wanted) as ear:
            await until(lambda: feed.count == 1)
            for uri in uris:
                said = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}}
                await feed.emit(next(iter(feed.open)), event(said))
            assert (await ear.message())["params"]["uri"] == "file:///docs/a"


async def test_to_subscribe_to_what_may_not_be_read_is_denied(tmp_path: Path) -> None:
    async with world(tmp_path, rules=RULES) as running:
        for uris in (["file:///etc/passwd"], ["file:///docs/a", "file:///docs/secret"]):
            wanted = {"notifications": {"resourceSubscriptions": uris}}
            answer = await Talk(running, "stateless").ask("subscriptions/listen", wanted)
            assert answer[0] == 403
        for method in ("resources/subscribe", "resources/unsubscribe", "resources/read"):
            answer = await Talk(running, "session").ask(method, {"uri": "file:///docs/secret"})
            assert reason_of(answer) == "denied-by-rule"
        assert "initialize" in running.upstream.methods() and len(set(running.upstream.methods())) == 1


# --- what is left out is told -----------------------------------------------------------------------------------------

NAMELESS = "its name is not 1 to 128 characters of A-Z a-z 0-9 _ . - /"
NO_URI = "its {} must be an absolute URI of at most 2,000 printable ASCII characters"
NAMES = {"a b": "a b", "x:y": "x:y", "n" * 129: "n" * 128 + "…", "\u202eok": "\\u202eok"}
BAD_TOOL = {"name": "bad", "inputSchema": {"type": "object", "$ref": "http://elsewhere.example/"}}


def told_of(kind: str, name: str, reason: str) -> dict[str, str]:
    return {"kind": kind, "name": name, "reason": reason}


ODD: dict[str, tuple[str, list[Any], list[dict[str, str]]]] = {
    "tools/list": (
        "tools",
        [*({"name": name, "inputSchema": {"type": "object"}} for name in NAMES), BAD_TOOL, 7],
        [
            *(told_of("tool", name, NAMELESS) for name in NAMES.values()),
            told_of("tool", "bad", "/$ref leads out of the schema: 'http://elsewhere.example/'"),
            told_of("tool", "", "it is not an object, or has too many members"),
        ],
    ),
    "prompts/list": (
        "prompts",
        [{"name": "a b"}, {"title": "no name"}],
        [told_of("prompt", "a b", NAMELESS), told_of("prompt", "", "its name is not a string")],
    ),
    "resources/list": (
        "resources",
        [{"uri": uri, "name": "n"} for uri in ("note://x y", "nouri")],
        [told_of("resource", uri, NO_URI.format("uri")) for uri in ("note://x y", "nouri")],
    ),
    "resources/templates/list": (
        "resourceTemplates",
        [{"uriTemplate": "/search/{query}", "name": "n"}],
        [told_of("resource template", "/search/{query}", NO_URI.format("uriTemplate"))],
    ),
}
GOOD_ENTRY = {"name": "good", "uri": "note://good", "uriTemplate": "note://{x}", "inputSchema": {"type": "object"}}


class Odd(Upstream):
    """A server with entries that no call can name, beside one that a call can."""

    def answer(self, message: dict[str, Any]) -> web.Response:
        method = message.get("method", "")
        if method in ODD:
            member, entries, _ = ODD[method]
            stateless_era = "_meta" in message.get("params", {})
            more = {"resultType": "complete", "ttlMs": 1000} if stateless_era else {}
            lying = {"sidecar/left_out": [{"name": "a lie"}], "own": 1}
            return web.json_response(result(message, {member: [GOOD_ENTRY, *entries], "_meta": lying, **more}))
        if method in ("server/discover", "initialize"):
            named = {"tools": {}, "prompts": {}, "resources": {}}
            told = json.loads(super().answer(message).body)
            return web.json_response(result(message, {**told["result"], "capabilities": named}))
        return super().answer(message)


EVERYTHING = "p, nhi:planner, *, use, -, -, -, allow\n"
DENIED = "p, nhi:planner, tool:github/*, use, -, -, -, allow\np, *, tool:github/a*, tools/call, -, -, -, deny\n"


@pytest.mark.parametrize("era", ERAS)
async def test_what_no_call_can_name_is_told_with_the_reason(
    tmp_path: Path, era: Era, caplog: pytest.LogCaptureFixture
) -> None:
    """By who could use it, in `_meta` of the list; by operators, in the log (once) and in /api/upstreams."""
    async with talking(world(tmp_path, rules=EVERYTHING, upstream=Odd()), era) as talk:
        for method, (member, _, left_out) in ODD.items():
            told = (await talk.ask(method))[1]["result"]
            assert [entry["name"] for entry in told[member]] == ["good"]
            assert told["_meta"] == {"own": 1, "sidecar/left_out": left_out}
        catalogue = talk.world.app.live.current.services["github"].catalogue
        await catalogue.explore()
        expected = [one for _, _, left_out in ODD.values() for one in left_out]
        assert sorted(talk.world.app.upstreams()["github"]["left_out"], key=str) == sorted(expected, key=str)
        await catalogue.explore()
        logged = [record for record in caplog.records if record.getMessage() == "a server's entry is left out"]
        entries = [(record.__dict__["kind"], record.__dict__["entry"]) for record in logged]
        assert sorted(entries) == sorted((one["kind"], one["name"]) for one in expected)


async def test_what_is_left_out_is_told_to_who_could_use_it_alone(tmp_path: Path) -> None:
    async with talking(world(tmp_path, rules=DENIED, upstream=Odd()), "stateless") as talk:
        names = [one["name"] for one in (await talk.ask("tools/list"))[1]["result"]["_meta"]["sidecar/left_out"]]
        assert "x:y" in names and "a b" not in names
        assert (await talk.ask("resources/list"))[1]["result"]["_meta"] == {"own": 1}
