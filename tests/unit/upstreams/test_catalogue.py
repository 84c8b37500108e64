"""What does the catalogue know, when does it ask, and what does it say when nobody answers?"""

from __future__ import annotations

import asyncio
import json

import pytest

from sidecar.errors import Reason, Refusal
from sidecar.upstreams import ToolCatalogue
from sidecar.upstreams.mcp.listing import MAX_PAGES, MAX_TOOLS
from sidecar.upstreams.mcp.pins import digest_of
from tests.unit.http.client.hostile import response
from tests.unit.upstreams.lines import refuses
from tests.unit.upstreams.peer import ANY, SESSION, STATELESS, Clock, Peer, learning, tool


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def reason_of(catalogue: ToolCatalogue, name: str, deadline_s: float = 5.0) -> Reason | None:
    """Why the tool is refused; None where it is not."""
    try:
        await catalogue.tool(name, deadline_s)
    except Refusal as refusal:
        return refusal.reason
    return None


@pytest.mark.parametrize("sse", [False, True], ids=["json", "sse"])
@pytest.mark.parametrize("era", [STATELESS, SESSION])
async def test_tools_are_learned_in_either_era_and_framing(era: str, sse: bool, clock: Clock) -> None:
    peer = Peer(era=era, sse=sse, pages=[[tool("a")], [tool("b")], [tool("c")]])
    async with learning(peer, clock) as catalogue:
        for name in "abc":
            assert (await catalogue.tool(name, 5)).name == name
        assert (peer.lists, catalogue.summary()["protocol_version"]) == (3, era)
        assert peer.headers["authorization"] == "Bearer upstream-secret"
    assert peer.sessions == set()  # ours is ended


async def test_a_known_tool_is_there_without_waiting(clock: Clock) -> None:
    async with learning(Peer(), clock) as catalogue:
        assert catalogue.known("search") is None
        learned = await catalogue.tool("search", 5)
        assert catalogue.known("search") is learned


async def test_a_hundred_callers_wait_for_one_list(clock: Clock) -> None:
    peer = Peer(pause_s=0.02)
    async with learning(peer, clock) as catalogue:
        await asyncio.gather(*(catalogue.tool("search", 5) for _ in range(100)))
        assert peer.lists == 1


async def test_a_caller_who_leaves_does_not_take_the_list_with_him(clock: Clock) -> None:
    peer = Peer(pause_s=0.05)
    async with learning(peer, clock) as catalogue:
        first, second = (asyncio.create_task(catalogue.tool("search", 5)) for _ in range(2))
        await asyncio.sleep(0.01)
        first.cancel()
        assert (await second).name == "search"
        assert peer.lists == 1


async def test_one_bad_schema_quarantines_its_tool_alone(clock: Clock) -> None:
    """Report BL-010."""
    good = [tool(f"good_{number}") for number in range(10)]
    async with learning(
        Peer(pages=[[*good, tool("bad", {"type": "object", "$ref": "http://x/"})]]), clock
    ) as catalogue:
        assert [await reason_of(catalogue, f"good_{number}") for number in range(10)] == [None] * 10
        assert await reason_of(catalogue, "bad") is Reason.SCHEMA_UNAVAILABLE
        assert (catalogue.usable("good_1"), catalogue.usable("bad")) == (True, False)
        assert list(catalogue.summary()["quarantined"]) == ["bad"]


async def test_a_tool_that_is_listed_twice_is_unidentified(clock: Clock) -> None:
    other = {"type": "object", "properties": {"path": {"type": "string"}}}
    async with learning(Peer(pages=[[tool("a")], [tool("a", other), tool("b")]]), clock) as catalogue:
        assert await reason_of(catalogue, "a") is Reason.SCHEMA_UNAVAILABLE
        assert await reason_of(catalogue, "b") is None


async def test_patterns_of_all_tools_together_are_bounded(clock: Clock) -> None:
    fifty = {"type": "object", "properties": {f"p{n}": {"pattern": "^[a-z]{1,9}$"} for n in range(50)}}
    async with learning(Peer(pages=[[tool(f"t{n}", fifty) for n in range(25)]]), clock) as catalogue:
        assert await reason_of(catalogue, "t19") is None
        assert await reason_of(catalogue, "t20") is Reason.SCHEMA_UNAVAILABLE


@pytest.mark.parametrize("entry", [None, 1, "a", [], {}, {"name": 1}, {"name": "a b"}, {"name": "а"}, {"name": ""}])
async def test_entries_that_nobody_could_call_are_left_out(entry: object, clock: Clock) -> None:
    async with learning(Peer(pages=[[entry, tool("b")]]), clock) as catalogue:
        assert await reason_of(catalogue, "b") is None
        assert catalogue.summary()["tools"] == 1


async def test_an_unknown_tool_is_looked_for_once(clock: Clock) -> None:
    peer = Peer()
    async with learning(peer, clock) as catalogue:
        await catalogue.tool("search", 5)
        peer.pages = [[tool("search"), tool("new")]]
        clock.now += 2
        assert await reason_of(catalogue, "new") is None
        assert peer.lists == 2


async def test_unknown_names_cannot_keep_the_upstream_busy(clock: Clock) -> None:
    peer = Peer()
    async with learning(peer, clock) as catalogue:
        await catalogue.tool("search", 5)
        clock.now += 2
        for number in range(50):
            assert await reason_of(catalogue, f"unknown_{number}") is Reason.TOOL_UNKNOWN
        assert peer.lists == 2
        clock.now += 2
        assert await reason_of(catalogue, "unknown") is Reason.TOOL_UNKNOWN
        assert peer.lists == 3


async def test_an_old_list_serves_while_a_new_one_is_fetched(clock: Clock) -> None:
    peer = Peer(ttl_ms=30_000)
    async with learning(peer, clock) as catalogue:
        await catalogue.tool("search", 5)
        clock.now += 29
        assert catalogue.known("search") is not None
        await asyncio.sleep(0.02)
        assert peer.lists == 1
        clock.now += 2
        peer.pages = [[tool("other")]]
        assert catalogue.known("search") is not None
        await asyncio.sleep(0.05)
        assert peer.lists == 2
        assert (catalogue.known("search"), catalogue.known("other") is None) == (None, False)


@pytest.mark.parametrize(("ttl_ms", "fresh_s"), [(0, 1), (-5, 1), (10**12, 3600), ("x", 60), (True, 60), (None, 60)])
async def test_how_long_a_list_is_fresh_has_bounds(ttl_ms: object, fresh_s: float, clock: Clock) -> None:
    peer = Peer(ttl_ms=ttl_ms)
    async with learning(peer, clock) as catalogue:
        await catalogue.tool("search", 5)
        for elapsed, lists in ((fresh_s - 0.5, 1), (fresh_s + 0.5, 2)):
            clock.now = 1000 + elapsed
            catalogue.known("search")
            await asyncio.sleep(0.03)
            assert peer.lists == lists


async def test_after_a_change_no_call_sees_the_old_list(clock: Clock) -> None:
    peer = Peer()
    async with learning(peer, clock) as catalogue:
        await catalogue.tool("search", 5)
        peer.pages = [[tool("search", {"type": "object", "required": ["q"]})]]
        catalogue.stale()
        assert catalogue.known("search") is None
        schema = (await catalogue.tool("search", 5)).schema
        assert schema.violation({}) is not None


async def test_a_list_begun_before_a_change_does_not_count_as_news(clock: Clock) -> None:
    peer = Peer(pause_s=0.03)
    async with learning(peer, clock) as catalogue:
        early = asyncio.create_task(catalogue.tool("search", 5))
        await asyncio.sleep(0.015)
        catalogue.stale()
        await catalogue.tool("search", 5)
        await early
        assert peer.lists == 2


async def test_changes_without_end_do_not_starve_a_call(clock: Clock) -> None:
    peer = Peer(pause_s=0.005)
    async with learning(peer, clock) as catalogue:

        async def change() -> None:
            while True:
                catalogue.stale()
                await asyncio.sleep(0.001)

        changing = asyncio.create_task(change())
        assert await reason_of(catalogue, "search", 2) is None
        changing.cancel()
        assert peer.lists <= 3


async def test_what_did_not_change_is_not_compiled_again(clock: Clock) -> None:
    one, true = {"type": "object", "const": {"a": 1}}, {"type": "object", "const": {"a": True}}
    peer = Peer(pages=[[tool("a", one), tool("b", one)]])
    async with learning(peer, clock) as catalogue:
        before = [await catalogue.tool(name, 5) for name in "ab"]
        peer.pages = [[tool("a", one), tool("b", true)]]  # to Python these are equal
        catalogue.stale()
        after = [await catalogue.tool(name, 5) for name in "ab"]
        assert [old.schema is new.schema for old, new in zip(before, after, strict=True)] == [True, False]


async def test_a_tool_that_was_shown_otherwise_is_not_usable_and_is_looked_for(clock: Clock) -> None:
    """Threat L6: what passes a list must be what a call would be checked against."""
    peer = Peer()
    async with learning(peer, clock) as catalogue:
        before = await catalogue.tool("search", 5)
        peer.pages = [[{**tool("search"), "description": "Other."}]]
        clock.now += 2
        other = digest_of(peer.pages[0][0])
        assert [catalogue.usable("search", digest) for digest in (before.definition.digest, other)] == [True, False]
        await asyncio.sleep(0)
        clock.now += 2
        await catalogue.learn(5)
        while catalogue.lists < 2:
            await asyncio.sleep(0.001)
        assert [catalogue.usable("search", digest) for digest in (before.definition.digest, other)] == [False, True]
        assert catalogue.tools["search"].schema is before.schema, "the same schema is not compiled again"


async def test_a_lost_session_is_opened_anew(clock: Clock) -> None:
    peer = Peer(era=SESSION)
    async with learning(peer, clock) as catalogue:
        await catalogue.tool("search", 5)
        peer.sessions.clear()  # the upstream restarted
        catalogue.stale()
        await catalogue.tool("search", 5)
        assert peer.heard["initialize"] == 2


async def test_an_upstream_that_changes_its_era_is_followed(clock: Clock) -> None:
    peer = Peer(era=SESSION)
    async with learning(peer, clock) as catalogue:
        for era in (SESSION, STATELESS, SESSION):
            peer.era = era
            catalogue.stale()
            await catalogue.tool("search", 5)
            assert catalogue.summary()["protocol_version"] == era


def rpc(member: str, value: object, *, request_id: object = 2) -> bytes:
    body = json.dumps({"jsonrpc": "2.0", "id": request_id, member: value}).encode()
    return response(body, "Content-Type: application/json")


JSON = "Content-Type: application/json"
NO_LISTS = {
    "HTTP 500": response(b"", status="500 Oops"),
    "HTTP 401": response(b"", status="401 Unauthorized"),
    "a redirect": response(b"", "Location: http://127.0.0.1:1/", status="307 Temporary"),
    "accepted, no answer": response(b"", status="202 Accepted"),
    "no JSON": response(b"<html>", JSON),
    "no media type": response(b"{}"),
    "another media type": response(b"{}", "Content-Type: text/html"),
    "an array": response(b"[]", JSON),
    "an answer to another request": rpc("result", {"tools": []}, request_id=99),
    "an id of another type": rpc("result", {"tools": []}, request_id=2.0),
    "a true id": rpc("result", {"tools": []}, request_id=True),
    "an error": rpc("error", {"code": -32603, "message": "x"}),
    "a result that is none": rpc("result", []),
    "no tools": rpc("result", {}),
    "tools that are no list": rpc("result", {"tools": {}}),
    "too many tools": rpc("result", {"tools": [None] * (MAX_TOOLS + 1)}),
    "a cursor of another type": rpc("result", {"tools": [], "nextCursor": 1}),
    "an endless cursor": rpc("result", {"tools": [], "nextCursor": "x" * 5000}),
    "broken off": response(b"{", JSON, framing="Content-Length: 99"),
    "gzip": response(b"{}", JSON, "Content-Encoding: gzip"),
    "a stream without the answer": response(b"data: {}\n\n", "Content-Type: text/event-stream"),
    "a stream of another encoding": response(b"data: \xff\xfe\n\n", "Content-Type: text/event-stream"),
    "too many bytes": response(b"", JSON, framing="Content-Length: 99999999"),
}


@pytest.mark.parametrize("raw", NO_LISTS.values(), ids=NO_LISTS.keys())
async def test_a_list_that_cannot_be_had_is_the_upstreams_failure(raw: bytes, clock: Clock) -> None:
    peer = Peer(raw=raw)
    async with learning(peer, clock) as catalogue:
        if b"99\r\n\r\n{" in raw:
            asyncio.get_running_loop().call_later(0.1, peer.hang_up)
        assert await reason_of(catalogue, "search") is Reason.UPSTREAM_FAILED
        assert catalogue.known("search") is None


async def test_an_upstream_without_tools_has_none(clock: Clock) -> None:
    async with learning(Peer(raw=rpc("error", {"code": -32601, "message": "x"})), clock) as catalogue:
        assert await reason_of(catalogue, "search") is Reason.TOOL_UNKNOWN


async def test_pages_without_end_are_given_up(clock: Clock) -> None:
    peer = Peer(pages=[[tool(f"t{number}")] for number in range(MAX_PAGES + 5)])
    async with learning(peer, clock) as catalogue:
        assert await reason_of(catalogue, "t0") is Reason.UPSTREAM_FAILED
        assert peer.lists == MAX_PAGES


async def test_pages_that_go_round_in_circles_are_given_up(clock: Clock) -> None:
    peer = Peer(raw=None)

    def circle(message: dict[str, object]) -> bytes:
        return peer.result(message, {"tools": [], "nextCursor": "again"})

    peer.page = circle  # type: ignore[method-assign]  # this peer's mood
    async with learning(peer, clock) as catalogue:
        assert await reason_of(catalogue, "search") is Reason.UPSTREAM_FAILED
        assert peer.lists == 2


async def test_a_call_waits_no_longer_than_its_own_deadline(clock: Clock) -> None:
    peer = Peer(pause_s=0.2)
    async with learning(peer, clock) as catalogue:
        assert await reason_of(catalogue, "search", 0.03) is Reason.UPSTREAM_TIMEOUT
        assert await reason_of(catalogue, "search", 2) is None
        assert peer.lists == 1


async def test_a_silent_upstream_is_a_time_out(clock: Clock) -> None:
    async with learning(Peer(pause_s=5), clock, timeout_s=0.1) as catalogue:
        assert await reason_of(catalogue, "search") is Reason.UPSTREAM_TIMEOUT


async def test_after_a_failure_the_next_try_is_not_at_once(clock: Clock) -> None:
    peer = Peer(status="500 Oops")
    async with learning(peer, clock) as catalogue:
        for _ in range(20):
            assert await reason_of(catalogue, "search") is Reason.UPSTREAM_FAILED
        assert peer.lists == 1
        peer.status = ""
        clock.now += 2
        assert await reason_of(catalogue, "search") is None


async def test_an_outage_of_the_list_alone_stops_no_calls_until_the_list_is_too_old(clock: Clock) -> None:
    peer = Peer()
    async with learning(peer, clock) as catalogue:
        await catalogue.tool("search", 5)
        peer.status = "500 Oops"
        clock.now += 600
        assert catalogue.known("search") is not None
        await asyncio.sleep(0.05)
        assert catalogue.summary()["failure"] == "upstream-failed"
        clock.now += 61
        assert catalogue.known("search") is None
        assert await reason_of(catalogue, "search") is Reason.UPSTREAM_FAILED


async def test_mirrored_parameters_are_found_where_mcp_allows_them(clock: Clock) -> None:
    region = {"type": "string", "x-mcp-header": "Region"}
    nested = {"type": "object", "properties": {"zone": {"type": "integer", "x-mcp-header": "Zone"}}}
    bad = {
        "twice": {"a": region, "b": {"type": "string", "x-mcp-header": "region"}},
        "on_a_list": {"a": {"type": "array", "x-mcp-header": "A"}},
        "on_two_types": {"a": {"type": ["string"], "x-mcp-header": "A"}},
        "no_token": {"a": {"type": "string", "x-mcp-header": "A\r\nB"}},
        "no_string": {"a": {"type": "string", "x-mcp-header": 1}},
        "in_items": {"a": {"type": "array", "items": region}},
        "in_a_branch": {"a": {"anyOf": [region, {"type": "null"}]}},
    }
    entries = [tool("good", {**ANY, "properties": {"region": region, "at": nested}})]
    entries += [tool(name, {**ANY, "properties": properties}) for name, properties in bad.items()]
    async with learning(Peer(pages=[entries]), clock) as catalogue:
        good = await catalogue.tool("good", 5)
        assert good.param_headers == {"Region": ("region",), "Zone": ("at", "zone")}
        assert set(catalogue.summary()["quarantined"]) == set(bad)


@pytest.mark.parametrize("era", [STATELESS, SESSION])
async def test_an_announced_change_is_heard_on_a_stream_of_our_own(era: str, clock: Clock) -> None:
    peer = Peer(era=era, announces=True)
    async with learning(peer, clock) as catalogue:
        await catalogue.tool("search", 5)
        async with asyncio.timeout(2):
            while not peer.listeners:
                await asyncio.sleep(0.002)
            for harmless in (
                "{}",
                "no json",
                '{"method":"notifications/message","params":"notifications/tools/list_changed"}',
            ):
                await peer.tell(harmless)
            await asyncio.sleep(0.02)
            assert catalogue.known("search") is not None
            await peer.tell('{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')
            while catalogue.known("search") is not None:
                await asyncio.sleep(0.002)
        await catalogue.tool("search", 5)
        assert peer.lists == 2
        assert catalogue.known("search") is not None
    assert peer.server.live == 0


async def test_nobody_listens_where_nothing_is_announced(clock: Clock) -> None:
    peer = Peer(era=SESSION)
    async with learning(peer, clock) as catalogue:
        await catalogue.tool("search", 5)
        await asyncio.sleep(0.02)
        assert "GET" not in peer.heard


async def test_a_stream_that_ends_leaves_the_list_due_for_a_look(clock: Clock) -> None:
    peer = Peer(announces=True)
    async with learning(peer, clock) as catalogue:
        await catalogue.tool("search", 5)
        async with asyncio.timeout(2):
            while not peer.listeners:
                await asyncio.sleep(0.002)
            peer.listeners[0].reset()
            while peer.lists == 1:
                assert catalogue.known("search") is not None
                await asyncio.sleep(0.005)


async def test_closing_ends_an_enquiry_that_is_under_way(clock: Clock) -> None:
    peer = Peer(pause_s=5)
    async with learning(peer, clock) as catalogue:
        waiting = asyncio.create_task(catalogue.tool("search", 5))
        while not peer.lists:
            await asyncio.sleep(0.002)
        await catalogue.close()
        with refuses(Reason.UPSTREAM_TIMEOUT):
            await waiting
        assert catalogue.summary()["tools"] == 0
