"""What does the catalogue know, when does it ask, and what does it say when nobody answers?"""

import asyncio
import json
from collections.abc import Callable

import pytest

from sidecar.errors import Reason, Refusal
from sidecar.protocols.jsonrpc import Request, Response
from sidecar.upstreams.mcp.catalogue import Spellings, ToolCatalogue
from sidecar.upstreams.mcp.listing import MAX_PAGES, MAX_TOOLS, OwnConversation
from sidecar.upstreams.mcp.pins import digest_of
from sidecar.upstreams.mcp.transport import SESSION_ID, BuiltUpstream, McpTransport, Outbound
from tests.tables import tables
from tests.unit.http.client.hostile import response
from tests.unit.upstreams.lines import INITIALIZED, refuses
from tests.unit.upstreams.peer import ANY, SESSION, STATELESS, Peer, learning, tool

both_eras = pytest.mark.parametrize("era", [STATELESS, SESSION])
UNHEALTHY = "500 Oops"


async def reason_of(catalogue: ToolCatalogue, name: str = "search", deadline_s: float = 5.0) -> Reason | None:
    """Why the tool is refused; None where it is not."""
    try:
        await catalogue.tool(name, deadline_s)
    except Refusal as refusal:
        return refusal.reason
    return None


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("sse", [False, True], ids=["json", "sse"])
@both_eras
async def test_tools_are_learned_in_either_era_and_framing(era: str, sse: bool) -> None:
    peer = Peer(era=era, sse=sse, pages=[[tool("a")], [tool("b")], [tool("c")]])
    async with learning(peer) as catalogue:
        assert catalogue.known("a") is None
        for name in "abc":
            learned = await catalogue.tool(name, 5)
            assert learned.name == name and catalogue.known(name) is learned
        assert (peer.lists, catalogue.summary()["protocol_version"]) == (3, era)
        assert peer.headers["authorization"] == "Bearer upstream-secret"
        await asyncio.sleep(0.02)
        assert "GET" not in peer.heard, "where nothing is announced nobody listens"
    assert peer.sessions == set()  # ours is ended


async def test_a_hundred_callers_wait_for_one_list_and_who_leaves_does_not_take_it_along() -> None:
    peer = Peer(pause_s=0.05)
    async with learning(peer) as catalogue:
        first, *others = (asyncio.create_task(catalogue.tool("search", 5)) for _ in range(100))
        await asyncio.sleep(0.01)
        first.cancel()
        assert {one.name for one in await asyncio.gather(*others)} == {"search"}
        assert peer.lists == 1


async def test_one_bad_schema_quarantines_its_tool_alone() -> None:
    """BL-010."""
    good = [tool(f"good_{number}") for number in range(10)]
    bad = tool("bad", {"type": "object", "$ref": "http://x/"})
    async with learning(Peer(pages=[[*good, bad]])) as catalogue:
        assert [await reason_of(catalogue, f"good_{number}") for number in range(10)] == [None] * 10
        assert await reason_of(catalogue, "bad") is Reason.SCHEMA_UNAVAILABLE
        assert (catalogue.usable("good_1"), catalogue.usable("bad")) == (True, False)
        assert list(catalogue.summary()["quarantined"]) == ["bad"]


FIFTY = {"type": "object", "properties": {f"p{n}": {"pattern": "^[a-z]{1,9}$"} for n in range(50)}}
OTHER = {"type": "object", "properties": {"path": {"type": "string"}}}


@pytest.mark.parametrize(
    ("pages", "bad", "good"),
    [
        ([[tool("a")], [tool("a", OTHER), tool("b")]], "a", "b"),
        ([[tool(f"t{n}", FIFTY) for n in range(25)]], "t20", "t19"),
    ],
    ids=["a tool that is listed twice", "patterns of all tools together"],
)
async def test_what_has_no_schema_of_its_own_is_unavailable(pages: list[object], bad: str, good: str) -> None:
    async with learning(Peer(pages=pages)) as catalogue:
        assert (await reason_of(catalogue, bad), await reason_of(catalogue, good)) == (Reason.SCHEMA_UNAVAILABLE, None)


async def test_entries_that_nobody_could_call_are_left_out() -> None:
    entries = [None, 1, "a", [], {}, {"name": 1}, {"name": "a b"}, {"name": "а"}, {"name": ""}]
    async with learning(Peer(pages=[[*entries, tool("b")]])) as catalogue:
        assert await reason_of(catalogue, "b") is None
        assert catalogue.summary()["tools"] == 1


async def test_an_unknown_tool_is_looked_for_once_and_keeps_the_upstream_busy_no_longer() -> None:
    peer = Peer()
    async with learning(peer) as catalogue:
        await catalogue.tool("search", 5)
        peer.pages = [[tool("search"), tool("new")]]
        peer.clock.now += 2
        assert await reason_of(catalogue, "new") is None
        for number in range(50):
            assert await reason_of(catalogue, f"unknown_{number}") is Reason.TOOL_UNKNOWN
        assert peer.lists == 2
        peer.clock.now += 2
        assert await reason_of(catalogue, "unknown") is Reason.TOOL_UNKNOWN
        assert peer.lists == 3


@pytest.mark.parametrize(
    ("ttl_ms", "fresh_s"), [(0, 1), (-5, 1), (30_000, 30), (10**12, 3600), ("x", 60), (True, 60), (None, 60)]
)
async def test_an_old_list_serves_while_a_new_one_is_fetched_and_how_long_it_is_fresh_has_bounds(
    ttl_ms: object, fresh_s: float
) -> None:
    peer = Peer(ttl_ms=ttl_ms)
    async with learning(peer) as catalogue:
        await catalogue.tool("search", 5)
        peer.pages = [[tool("other")]]
        peer.clock.now = 1000 + fresh_s - 0.5
        assert catalogue.known("search") is not None
        await asyncio.sleep(0.02)
        assert peer.lists == 1
        peer.clock.now += 1
        assert catalogue.known("search") is not None
        await until(lambda: "other" in catalogue.tools)
        assert (peer.lists, catalogue.known("search"), catalogue.known("other") is None) == (2, None, False)


async def test_after_a_change_no_call_sees_the_old_list() -> None:
    peer = Peer()
    async with learning(peer) as catalogue:
        await catalogue.tool("search", 5)
        peer.pages = [[tool("search", {"type": "object", "required": ["q"]})]]
        catalogue.stale()
        assert catalogue.known("search") is None
        assert (await catalogue.tool("search", 5)).schema.violation({}) is not None


async def test_a_list_begun_before_a_change_does_not_count_as_news() -> None:
    peer = Peer(pause_s=0.03)
    async with learning(peer) as catalogue:
        early = asyncio.create_task(catalogue.tool("search", 5))
        await until(lambda: peer.lists)
        catalogue.stale()
        await catalogue.tool("search", 5)
        await early
        assert peer.lists == 2


async def test_changes_without_end_do_not_starve_a_call() -> None:
    peer = Peer(pause_s=0.005)
    async with learning(peer) as catalogue:

        async def change() -> None:
            while True:
                catalogue.stale()
                await asyncio.sleep(0.001)

        changing = asyncio.create_task(change())
        assert await reason_of(catalogue) is None
        changing.cancel()
        assert peer.lists <= 3


async def test_what_did_not_change_is_not_compiled_again() -> None:
    one, true = {"type": "object", "const": {"a": 1}}, {"type": "object", "const": {"a": True}}
    peer = Peer(pages=[[tool("a", one), tool("b", one)]])
    async with learning(peer) as catalogue:
        before = [await catalogue.tool(name, 5) for name in "ab"]
        peer.pages = [[tool("a", one), tool("b", true)]]  # to Python these are equal
        catalogue.stale()
        after = [await catalogue.tool(name, 5) for name in "ab"]
        assert [old.schema is new.schema for old, new in zip(before, after, strict=True)] == [True, False]


async def test_a_tool_that_was_shown_otherwise_is_not_usable_and_is_looked_for() -> None:
    """What passes a list must be what a call would be checked against."""
    peer = Peer()
    async with learning(peer) as catalogue:
        before = await catalogue.tool("search", 5)
        peer.pages = [[{**tool("search"), "description": "Other."}]]
        peer.clock.now += 2
        digests = before.definition.digest, digest_of(peer.pages[0][0])
        assert [catalogue.usable("search", digest) for digest in digests] == [True, False]
        await asyncio.sleep(0)
        peer.clock.now += 2
        await catalogue.learn(5)
        await until(lambda: catalogue.lists >= 2)
        assert [catalogue.usable("search", digest) for digest in digests] == [False, True]
        assert catalogue.tools["search"].schema is before.schema, "the same schema is not compiled again"


async def test_an_upstream_that_lost_our_session_or_changes_its_era_is_followed() -> None:
    peer = Peer(era=SESSION)
    async with learning(peer) as catalogue:
        for era in (SESSION, SESSION, STATELESS, SESSION):
            peer.era = era
            peer.sessions.clear()  # it restarted
            catalogue.stale()
            await catalogue.tool("search", 5)
            assert catalogue.summary()["protocol_version"] == era
        assert peer.heard["initialize"] == 3


def rpc(member: str, value: object, *, request_id: object = 2) -> bytes:
    body = json.dumps({"jsonrpc": "2.0", "id": request_id, member: value}).encode()
    return response(body, JSON)


JSON = "Content-Type: application/json"
NO_LISTS = {
    **{name: raw.encode("latin-1") for name, raw in tables("upstreams/catalogue")["no_lists"].items()},
    "too many tools": rpc("result", {"tools": [None] * (MAX_TOOLS + 1)}),
    "an endless cursor": rpc("result", {"tools": [], "nextCursor": "x" * 5000}),
}


@pytest.mark.parametrize("raw", NO_LISTS.values(), ids=NO_LISTS.keys())
async def test_a_list_that_cannot_be_had_is_the_upstreams_failure(raw: bytes) -> None:
    peer = Peer(raw=raw)
    async with learning(peer) as catalogue:
        if b"99\r\n\r\n{" in raw:
            asyncio.get_running_loop().call_later(0.1, peer.hang_up)
        assert await reason_of(catalogue) is Reason.UPSTREAM_FAILED
        assert catalogue.known("search") is None and peer.lists <= 2


async def test_an_upstream_without_tools_has_none() -> None:
    async with learning(Peer(raw=rpc("error", {"code": -32601, "message": "x"}))) as catalogue:
        assert await reason_of(catalogue) is Reason.TOOL_UNKNOWN


async def test_pages_without_end_are_given_up() -> None:
    peer = Peer(pages=[[tool(f"t{number}")] for number in range(MAX_PAGES + 5)])
    async with learning(peer) as catalogue:
        assert await reason_of(catalogue, "t0") is Reason.UPSTREAM_FAILED
        assert peer.lists == MAX_PAGES


async def test_a_call_waits_no_longer_than_its_own_deadline_and_a_list_no_longer_than_the_upstreams() -> None:
    peer = Peer(pause_s=0.2)
    async with learning(peer) as catalogue:
        assert await reason_of(catalogue, deadline_s=0.03) is Reason.UPSTREAM_TIMEOUT
        assert await reason_of(catalogue) is None
        assert peer.lists == 1
    async with learning(Peer(pause_s=5), timeout_s=0.1) as catalogue:
        assert await reason_of(catalogue) is Reason.UPSTREAM_TIMEOUT


async def test_after_a_failure_the_next_try_is_not_at_once() -> None:
    peer = Peer(status=UNHEALTHY)
    async with learning(peer) as catalogue:
        for _ in range(20):
            assert await reason_of(catalogue) is Reason.UPSTREAM_FAILED
        assert peer.lists == 1
        peer.status = ""
        peer.clock.now += 2
        assert await reason_of(catalogue) is None


async def test_an_outage_of_the_list_alone_stops_no_calls_until_the_list_is_too_old() -> None:
    peer = Peer()
    async with learning(peer) as catalogue:
        await catalogue.tool("search", 5)
        peer.status = UNHEALTHY
        peer.clock.now += 600
        assert catalogue.known("search") is not None
        await until(lambda: catalogue.summary()["failure"] == "upstream-failed")
        peer.clock.now += 61
        assert catalogue.known("search") is None
        assert await reason_of(catalogue) is Reason.UPSTREAM_FAILED


async def test_mirrored_parameters_are_found_where_mcp_allows_them() -> None:
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
    async with learning(Peer(pages=[entries])) as catalogue:
        assert (await catalogue.tool("good", 5)).param_headers == {"Region": ("region",), "Zone": ("at", "zone")}
        assert set(catalogue.summary()["quarantined"]) == set(bad)


CHANGED = "notifications/tools/list_changed"
HARMLESS = ("{}", json.dumps({"method": "notifications/message", "params": CHANGED}))


@both_eras
async def test_an_announced_change_is_heard_on_a_stream_of_our_own(era: str) -> None:
    peer = Peer(era=era, announces=True)
    async with learning(peer) as catalogue:
        await catalogue.tool("search", 5)
        await until(lambda: peer.listeners)
        for harmless in (*HARMLESS, "no json") if era == SESSION else HARMLESS:
            await peer.tell(harmless)
        await asyncio.sleep(0.02)
        assert catalogue.known("search") is not None
        await peer.tell(json.dumps({"jsonrpc": "2.0", "method": CHANGED}))
        await until(lambda: catalogue.known("search") is None)
        await catalogue.tool("search", 5)
        assert peer.lists == 2 and catalogue.known("search") is not None
    assert peer.server.live == 0


async def test_a_stream_that_ends_leaves_the_list_due_for_a_look() -> None:
    peer = Peer(announces=True)
    async with learning(peer) as catalogue:
        await catalogue.tool("search", 5)
        await until(lambda: peer.listeners)
        peer.listeners[0].reset()
        await until(lambda: catalogue.known("search") is not None and peer.lists > 1)


async def test_closing_ends_an_enquiry_that_is_under_way() -> None:
    peer = Peer(pause_s=5)
    async with learning(peer) as catalogue:
        waiting = asyncio.create_task(catalogue.tool("search", 5))
        await until(lambda: peer.lists)
        await catalogue.close()
        with refuses(Reason.UPSTREAM_TIMEOUT):
            await waiting
        assert catalogue.summary()["tools"] == 0


@pytest.mark.parametrize("listed", [("docs://a/x", "docs://A/x"), ("docs://A/x", "docs://a/x")])
def test_a_listed_normal_form_is_used_in_whatever_order_the_list_is(listed: tuple[str, str]) -> None:
    spellings = Spellings()
    spellings.learn_all(listed)
    assert spellings.spelled("docs://a/x") == "docs://a/x"


class HalfOpen(McpTransport):
    """A server whose session begins, but which refuses the rest of the handshake."""

    def __init__(self) -> None:
        super().__init__("x", 5.0, 2**20)
        self.ended: list[str] = []

    async def exchange(self, outbound: Outbound) -> BuiltUpstream:
        if not isinstance(outbound.message, Request):
            return BuiltUpstream(500)
        if outbound.message.method != "initialize":
            return BuiltUpstream(404)
        return BuiltUpstream.of_response(Response(outbound.message.id, INITIALIZED), headers={SESSION_ID: "begun"})

    async def end_session(self, session_id: str, version: str, deadline_s: float) -> None:
        self.ended.append(session_id)

    async def close(self) -> None: ...


async def test_a_session_whose_handshake_fails_is_ended() -> None:
    upstream = HalfOpen()
    with refuses(Reason.UPSTREAM_FAILED):
        await OwnConversation(upstream).probe(1.0)
    assert upstream.ended == ["begun"]
