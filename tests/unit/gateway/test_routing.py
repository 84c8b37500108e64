"""Is an address, a host, a header or a body taken only where it has one reading? (BL-049)"""

import asyncio
import encodings.aliases
import itertools
import re
import time
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.streams import StreamReader
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict
from pydantic import TypeAdapter, ValidationError

from sidecar.errors import Reason, Refusal
from sidecar.gateway.routing import (
    _NAMES,
    EVERY,
    MAX_NAME_BYTES,
    MAX_NAMES,
    MCP,
    METADATA,
    ROUTES,
    TOOL,
    TOOLS,
    BodyBounds,
    Entrance,
    Headers,
    Route,
    check_accept,
    check_envelope,
    check_target,
    correlation_of,
    headers_of,
    hosts_for,
    is_tool,
    lone_token,
    origin_form,
    presented_by,
    protocol_of,
    read_body,
    route_of,
    trace_headers,
    trace_id_of,
)
from sidecar.http.server.body_admission import BodyAdmission, BodyRoom
from sidecar.identity import Presented
from sidecar.settings.agent_endpoints import OURS, BasePath
from tests import wire
from tests.tables import tables

TABLES = tables("gateway/routing")

PATHS = wire.table("paths")
CONTENT_TYPES = wire.table("content_types")
HEADERS = wire.table("headers")


def reason_of(work: Any, *arguments: object) -> Reason | None:
    try:
        work(*arguments)
    except Refusal as refusal:
        return refusal.reason
    return None


# --- addresses ------------------------------------------------------------------------------------------------------


def test_of_two_hundred_spellings_one_is_served_with_and_without_a_slash() -> None:
    """BL-049."""
    assert sum(map(len, PATHS.values())) > 200
    assert PATHS["served"] == ["/mcp/github", "/mcp/github/"]
    for path in PATHS["served"]:
        route = route_of(path, "POST")
        assert (route.kind, route.server) == (MCP, "github")


@pytest.mark.parametrize("path", PATHS["elsewhere"] + PATHS["refused"], ids=ascii)
def test_another_path_is_nowhere_and_one_that_is_not_plain_is_malformed(path: str) -> None:
    reason = Reason.ROUTE_UNKNOWN if path in PATHS["elsewhere"] else Reason.MALFORMED_CALL
    assert {reason_of(route_of, path, verb) for verb in ("POST", "GET", "HEAD")} == {reason}


def test_no_byte_in_or_around_a_path_is_overlooked() -> None:
    for byte in map(chr, range(256)):
        for path in (byte + "/mcp/github", "/mcp" + byte + "/github", "/mcp/" + byte + "github", "/mcp/github" + byte):
            if path.partition("?")[0] in ("/mcp", "/mcp/", "/mcp/github", "/mcp/github/"):
                continue
            assert reason_of(route_of, path, "POST") in (Reason.MALFORMED_CALL, Reason.ROUTE_UNKNOWN) or (
                byte.isascii() and byte.isalnum() and route_of(path, "POST").server == path.removeprefix("/mcp/")
            )


def test_a_query_changes_no_address_and_that_of_all_servers_names_none() -> None:
    for query in ("?", "?x=1", "?/../..", "?%00", "?a?b", "?#", "?\\"):
        assert route_of("/mcp/github" + query, "POST") == route_of("/mcp/github", "POST")
    for path in ("/mcp", "/mcp/", "/mcp?", "/mcp?/github"):
        assert route_of(path, "POST") == Route(MCP, EVERY)
    for slash in ("", "/"):
        assert route_of(f"/.well-known/oauth-protected-resource/mcp{slash}", "GET") == Route(METADATA, EVERY)


def test_an_absolute_target_is_read_for_its_path_and_its_host_is_that_of_host() -> None:
    read = {
        "http://gw.example/mcp/github?x=1": "/mcp/github?x=1",
        "HTTPS://GW.example:8443/mcp/github": "/mcp/github",
        "http://[::1]:80/mcp": "/mcp",
        "http://gw.example": "/",
        "http://gw.example?x": "/?x",
    }
    other = (
        "http://a@gw.example/mcp/github ftp://gw.example/mcp/github http:///mcp/github /http://gw.example/mcp/github"
    )
    for target, path in (*read.items(), *((target, target) for target in other.split())):
        assert origin_form(target) == path
    for target, hosts, taken in TABLES["targets"]:
        assert (reason_of(check_target, target, {"host": hosts.split()}) is None) is taken, (target, hosts)


@pytest.mark.parametrize("path", ["/mcp/github", "/mcp", "/agents/researcher", "/a2a/tasks"])
def test_below_a_path_metadata_is_where_rfc_9728_puts_it(path: str) -> None:
    usual = route_of(WELL_KNOWN + path, "GET")
    assert route_of(f"{WELL_KNOWN}/gateway{path}", "GET", prefix="/gateway") == usual
    assert route_of(WELL_KNOWN + path, "GET", prefix="/gateway") == usual
    for other in (f"{WELL_KNOWN}/gateways{path}", f"{WELL_KNOWN}/gateway/gateway{path}", f"/gateway{path}"):
        assert reason_of(partial(route_of, prefix="/gateway"), other, "GET") is Reason.ROUTE_UNKNOWN


ALIASES = {"/find": "researcher", "/tools/sum.up": "summariser"}
WELL_KNOWN = "/.well-known/oauth-protected-resource"
SERVERS = ("a", "0", "github", "a-b", "a-b-c1", "1-2", "x" * 200)
ADDRESSES: dict[str, Route] = {
    **{f"{WELL_KNOWN}/mcp/{server}": Route(METADATA, server) for server in SERVERS},
    "/agents/researcher": Route("agent", "researcher"),
    "/agents/researcher/": Route("agent", "researcher", "/"),
    "/agents/researcher/v1/message:send": Route("agent", "researcher", "/v1/message:send"),
    "/agents/researcher/.well-known/agent-card.json": Route("card", "researcher"),
    "/.well-known/agents/researcher": Route("seed card", "researcher"),
    "/api/nhi/a2a/agent-card/researcher": Route("seed card", "researcher"),
    f"{WELL_KNOWN}/agents/researcher": Route("agent metadata", "researcher"),
    # An agent's own path is its address in every way.
    "/find": Route("agent", "researcher", "", "/find"),
    "/find?a=/tools/sum.up": Route("agent", "researcher", "", "/find"),
    "/find/": Route("agent", "researcher", "/", "/find"),
    "/find/tools/sum.up": Route("agent", "researcher", "/tools/sum.up", "/find"),
    "/tools/sum.up/v1/message:send": Route("agent", "summariser", "/v1/message:send", "/tools/sum.up"),
    "/tools/sum.up/.well-known/agent-card.json": Route("card", "summariser", "", "/tools/sum.up"),
    f"{WELL_KNOWN}/find": Route("agent metadata", "researcher", "", "/find"),
}


def test_an_address_names_its_server_or_agent_whole() -> None:
    for path, found in ADDRESSES.items():
        assert route_of(path, "GET", ALIASES) == found, path
        if found.alias and "metadata" not in found.kind:
            assert protocol_of(path, ALIASES) == "a2a", path
        if not found.alias:
            assert route_of(path, "GET") == found, path
    assert [route_of(f"/mcp/{server}", "POST").server for server in SERVERS] == [*SERVERS]


def test_near_an_agents_own_path_all_is_as_it_was() -> None:
    near = ("/finder", "/fin", "/tools", "/tools/sum", "/tools/sum.upx", "/Find", "/mcp/find", "//find", "/%66ind")
    for path in near:
        assert reason_of(route_of, path, "GET", ALIASES) is reason_of(route_of, path, "GET")
        assert protocol_of(path, ALIASES) == protocol_of(path)
    assert reason_of(route_of, "/find", "PUT", ALIASES) is Reason.VERB_NOT_ALLOWED
    assert reason_of(route_of, "/find" + "/x" * 4000, "GET", ALIASES) is None
    assert reason_of(route_of, "/x" * 4000, "GET", ALIASES) is Reason.ROUTE_UNKNOWN


def test_no_agent_can_have_a_path_that_is_ours() -> None:
    firsts = {re.sub(r"\\Z|\W", "", pattern.pattern.split("/")[1]).lower() for _, pattern, _ in ROUTES}
    assert firsts - {"wellknown"} <= OURS, "and nothing that begins with a dot"
    no = ("/mcp", "/MCP/x", "/agents/a", "/api", "/a2a/x", "/livez", "/.well-known/x", "/x/../mcp", "/", "x", "/x/")
    for path in no:
        assert not is_own_path(path), path
    assert is_own_path("/x/mcp") and is_own_path("/mcps")


def is_own_path(path: str) -> bool:
    try:
        return bool(TypeAdapter(BasePath).validate_python(path))
    except ValidationError:
        return False


def test_a_tool_is_named_in_the_path_as_it_stands_and_one_that_could_be_read_in_two_ways_is_none() -> None:
    for tool in ("a", "search_code", "A-1.b_c", "files/read", "a/b/c.d", "-", "_", "x" * 128):
        assert route_of(f"/mcp/github/tools/{tool}", "POST") == Route(TOOL, "github", tool)
        assert is_tool(tool) and protocol_of(f"/mcp/github/tools/{tool}") == "http"
    for tool in ("", ".", "..", ".hidden", "a/../b", "a/.b", "a//b", "/a", "a/", "a%2Fb", "a b", "é", "a\\b"):
        assert reason_of(route_of, f"/mcp/github/tools/{tool}", "POST") is Reason.MALFORMED_CALL
        assert not is_tool(tool)


def test_plain_calls_have_addresses_and_verbs_of_their_own() -> None:
    assert route_of("/mcp/github/tools", "GET") == Route(TOOLS, "github")
    assert reason_of(route_of, "/mcp/github/tools", "POST") is Reason.VERB_NOT_ALLOWED
    assert reason_of(route_of, "/mcp/github/tools/a", "GET") is Reason.VERB_NOT_ALLOWED
    assert reason_of(route_of, "/mcp/github/tools/" + "x" * 129, "POST") is Reason.ROUTE_UNKNOWN
    assert {*map(protocol_of, ("/mcp/github", "/mcp/tools", "/mcp/github/toolset", "/mcp", "/"))} == {"mcp"}
    assert {protocol_of(f"/mcp/github/tools{rest}") for rest in ("", "?a", "/a", "/%")} == {"http"}


VERBS = ("GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH", "TRACE", "CONNECT", "post", "Get", "PROPFIND", "")


@pytest.mark.parametrize(("path", "allowed"), TABLES["verbs"])
def test_a_verb_is_on_the_table_of_its_address_or_not_allowed(path: str, allowed: list[str]) -> None:
    assert [reason_of(route_of, path, verb) for verb in allowed] == [None] * len(allowed)
    for verb in {*VERBS} - {*allowed}:
        with pytest.raises(Refusal) as caught:
            route_of(path, verb)
        assert (caught.value.reason, caught.value.allow) == (Reason.VERB_NOT_ALLOWED, tuple(allowed))


@pytest.mark.parametrize("prefix", ["", "/mcp/", "/.well-known/", "/.well-known/oauth-protected-resource/mcp/"])
def test_a_long_hostile_path_is_judged_at_once(prefix: str) -> None:
    parts = ("/a", "/a-", "/-", "/.well-known/a", "/~", "a-", "/mcp/a", "-a", ".", "/..", "%2f")
    for part, suffix in itertools.product(parts, ("", "!", "/", "-", "\n")):
        path = prefix + part * (20_000 // len(part)) + suffix
        started = time.process_time()
        reason_of(route_of, path, "POST")
        assert time.process_time() - started < 1, (part, suffix)


# --- entrances ------------------------------------------------------------------------------------------------------

LOOPBACK = hosts_for("127.0.0.1", 8080, "", [])


@pytest.mark.parametrize(("listener", "served", "foreign"), HEADERS["hosts"])
def test_a_listener_answers_to_its_own_names_only(listener: list[Any], served: list[str], foreign: list[str]) -> None:
    entrance = Entrance(hosts_for(*listener))
    for hosts, reason in ((served, None), (foreign, Reason.ORIGIN_REFUSED)):
        assert {reason_of(check_envelope, REQUEST, {"host": [host]}, entrance) for host in hosts} == {reason}


def test_host_is_there_once_and_where_any_is_served_any_is() -> None:
    for lines in ([], ["localhost", "localhost"], ["localhost", "evil"], ["evil", "localhost"]):
        headers: Headers = {"host": lines} if lines else {}
        assert reason_of(check_envelope, REQUEST, headers, Entrance(LOOPBACK)) is Reason.ORIGIN_REFUSED
    assert reason_of(check_envelope, REQUEST, {"host": ["evil.example"]}, Entrance(None)) is None


ORIGINS = frozenset({"https://console.acme.example", "http://localhost:3000"})


@pytest.mark.parametrize(
    ("origins", "taken"),
    [
        ([], True),
        *(([origin], True) for origin in HEADERS["listed origins"]),
        *(([origin], False) for origin in HEADERS["foreign origins"]),
        (["https://console.acme.example", "https://evil.example"], False),
        (["https://evil.example", "https://console.acme.example"], False),
    ],
)
def test_a_web_origin_is_on_the_list_or_refused(origins: list[str], taken: bool) -> None:
    headers: Headers = {"host": ["localhost"]} | ({"origin": origins} if origins else {})
    assert (reason_of(check_envelope, REQUEST, headers, Entrance(LOOPBACK, ORIGINS)) is None) == taken
    nobody = reason_of(check_envelope, REQUEST, headers, Entrance(LOOPBACK))
    assert (nobody is None) == (not origins)


def test_a_local_listener_takes_nothing_that_came_through_a_browser_or_proxy() -> None:
    local = Entrance(LOOPBACK, ORIGINS, principal="nhi:planner")
    assert reason_of(check_envelope, REQUEST, {"host": ["localhost"]}, local) is None
    forwarded = (f"x-forwarded-{rest}" for rest in ("for", "host", "user", "", "secret-word"))
    for name in ("origin", "forwarded", "via", *forwarded):
        headers: Headers = {"host": ["localhost"], name: ["https://console.acme.example"]}
        with pytest.raises(Refusal) as caught:
            check_envelope(REQUEST, headers, local)
        assert caught.value.reason is Reason.ORIGIN_REFUSED
        assert "secret-word" not in caught.value.detail, "it repeats no name that the caller chose"
        assert reason_of(check_envelope, REQUEST, headers, Entrance(LOOPBACK, ORIGINS)) is None


# --- headers --------------------------------------------------------------------------------------------------------


def request_with(*lines: tuple[str, str], body: StreamReader | None = None) -> web.Request:
    return make_mocked_request("POST", "/mcp/github", headers=CIMultiDict(lines), payload=body)


def test_every_line_of_a_header_is_kept_in_order_by_its_lower_case_name() -> None:
    lines = (("Mcp-Name", "a"), ("X", "1"), ("MCP-NAME", "b"), ("mcp-name", ""), ("mcp_name", "c"))
    assert headers_of(request_with(*lines)) == {"mcp-name": ("a", "b", ""), "x": ("1",), "mcp_name": ("c",)}
    headers = headers_of(request_with(("Host", "localhösT"), ("Nam\u017f", "\u212a")))
    assert headers == {"host": ("localh\ufffd\ufffdsT",), "nam\ufffd\ufffd": ("\ufffd\ufffd\ufffd",)}


def test_of_header_names_a_bounded_number_is_remembered_and_all_are_read() -> None:
    lines = [(f"X-{number}", "1") for number in range(2 * MAX_NAMES)] + [("X" * (MAX_NAME_BYTES + 1), "1")]
    for _ in range(2):
        headers = headers_of(request_with(*lines))
        assert list(headers) == [name.lower() for name, _ in lines]
    assert len(_NAMES) <= MAX_NAMES and max(map(len, _NAMES)) <= MAX_NAME_BYTES


BASE = "https://gw.acme.example"
REQUEST = make_mocked_request("POST", "/mcp/github")
ANY = Entrance(None)


def test_every_credential_line_is_presented_and_no_other_header_is() -> None:
    bearers, keys = ["Bearer a", "Bearer b"], ["k", "l"]
    headers: Headers = {"authorization": bearers, "x-api-key": keys, "x-forwarded-user": ["root"]}
    assert shown_by(headers) == Presented((*bearers,), (*keys,))
    own: Headers = {**headers, "x-agent-token": ["a", "b"]}
    assert shown_by(own).own == shown_by(own, own="x-api-key").own == ()
    assert shown_by(own, own="x-agent-token").own == ("a", "b")
    assert shown_by({}, Entrance(None, principal="nhi:planner")) == Presented(local="nhi:planner")
    forwarded: Headers = {"x-forwarded-client-cert": ["URI=a", "URI=b"]}
    behind = Entrance(None, unix=True)
    assert shown_by(forwarded, behind) == Presented(), "no proxy may forward certificates"
    assert shown_by(forwarded, behind, proxied=True) == Presented(forwarded=("URI=a", "URI=b"), peer="unix")


def test_a_token_is_alone_beside_what_is_no_credential_here() -> None:
    alone: Headers = {"authorization": ["Bearer a"], "x-forwarded-client-cert": ["URI=a"], "x-agent-token": ["t"]}
    assert lone_token(alone, ANY) == "Bearer a"
    others: tuple[Headers, ...] = ({"x-api-key": ["k"]}, {"dpop": ["p"]}, {"authorization": ["Bearer a", "Bearer b"]})
    assert {lone_token({**alone, **more}, ANY) for more in (*others, {"authorization": ()})} == {""}
    assert lone_token(alone, Entrance(None, principal="nhi:planner")) == lone_token({}, ANY) == ""


def shown_by(headers: Headers, entrance: Entrance = ANY, *, own: str = "", proxied: bool = False) -> Presented:
    return presented_by(REQUEST, headers, entrance, BASE, own, proxied=proxied)


def test_a_proof_may_be_for_the_address_as_callers_know_it() -> None:
    """Behind whatever ends TLS, that is the public one, and another name only where no path of its own is in front."""
    headers: Headers = {"dpop": ["a", "b"], "host": ["gw.local:8080"]}
    asked = make_mocked_request("GET", "/mcp/github?x=1")

    def urls(entrance: Entrance, base: str = BASE) -> tuple[str, ...]:
        found = presented_by(asked, headers, entrance, base, "", proxied=False)
        assert (found.proofs, found.method) == (("a", "b"), "GET")
        return found.urls

    public, local = "https://gw.acme.example/mcp/github", "https://gw.local:8080/mcp/github"
    ours = frozenset({"gw.local:8080"})
    assert urls(Entrance(ours)) == (public, local)
    assert urls(Entrance(None)) == (public,), "whose name a caller may choose"
    assert urls(Entrance(ours, prefix="/x"), f"{BASE}/x") == ("https://gw.acme.example/x/mcp/github",)
    assert urls(Entrance(ours, principal="nhi:a")) == ("http://gw.local:8080/mcp/github",)
    del headers["host"]  # type: ignore[attr-defined]
    assert urls(Entrance(ours)) == (public,)


JSON, EVENTS = "application/json", "text/event-stream"


def test_the_caller_takes_every_media_type_that_is_needed_or_is_told() -> None:
    for lines in (*([line] for line in HEADERS["accepted"]), [JSON, EVENTS], []):
        assert reason_of(check_accept, {"accept": lines} if lines else {}, JSON, EVENTS) is None, lines
    for line in HEADERS["not accepted"]:
        assert reason_of(check_accept, {"accept": [line]}, JSON, EVENTS) is Reason.NOT_ACCEPTABLE, line
    assert reason_of(check_accept, {"accept": [EVENTS]}, EVENTS) is None
    assert reason_of(check_accept, {"accept": [JSON]}, EVENTS) is Reason.NOT_ACCEPTABLE


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    "line",
    [
        *("", TRACE.upper(), TRACE + " ", " " + TRACE, TRACE + "\n", TRACE + "-00", TRACE[:-1], "01" + TRACE[2:]),
        *("ff" + TRACE[2:], TRACE.replace("-", "_"), TRACE.replace("0af7", "0ag7"), f"00-{'0' * 32}-{'1' * 16}-01"),
        f"00-{'1' * 32}-{'0' * 16}-01",
    ],
)
def test_a_trace_that_is_not_well_formed_is_none(line: str) -> None:
    assert trace_id_of({"traceparent": [line]}) == ""
    assert trace_headers({"traceparent": [line], "tracestate": ["a=b"]}) == []


def test_a_trace_goes_on_with_its_state_where_that_is_well_formed() -> None:
    for state, passed in (
        *(([], False), (["a=b"], True), (["a=b, c=d"], True)),
        *((["a=b", "c=d"], False), (["a=b\r\nx: y"], False), (["x" * 513], False)),
    ):
        headers: Headers = {"traceparent": [TRACE], "tracestate": state}
        assert trace_id_of(headers) == TRACE[3:35]
        assert trace_headers(headers) == [("traceparent", TRACE), *([("tracestate", state[0])] if passed else [])]
    assert trace_headers({"traceparent": [TRACE, TRACE]}) == []


def test_a_run_is_named_once_and_plainly_or_not_at_all() -> None:
    for name in ("run-1", "a" * 128):
        assert correlation_of({"x-run-id": [name]}, "x-run-id") == name
    for lines in ([], ["a", "a"], *([line] for line in ("a" * 129, "", "a b", "a\n", "\ufffd", "a,b"))):
        assert correlation_of({"x-run-id": lines}, "x-run-id") == ""


# --- bodies ---------------------------------------------------------------------------------------------------------


def stream(*chunks: bytes, ends: bool = True) -> StreamReader:
    loop = asyncio.get_running_loop()
    protocol = BaseProtocol(loop)
    protocol.connection_made(asyncio.Transport())
    reader = StreamReader(protocol, 2**16, loop=loop)
    for chunk in chunks:
        reader.feed_data(chunk)
    if ends:
        reader.feed_eof()
    return reader


BOUNDS = BodyBounds(max_body_bytes=100, body_timeout_s=0.05)
GROW = BodyRoom(BodyAdmission(), "nhi:a").grow


async def body_of(
    content: StreamReader, *lines: tuple[str, str], media: str | None = JSON, bounds: BodyBounds = BOUNDS
) -> bytes | Reason:
    if media is not None:
        lines = (("Content-Type", media), *lines)
    request = request_with(*lines, body=content)
    try:
        return await read_body(request, headers_of(request), bounds, GROW)
    except Refusal as refusal:
        return refusal.reason


async def test_json_in_utf8_is_taken_and_another_media_type_refused_before_a_byte_is_read() -> None:
    """Whatever charsets Python knows."""
    assert len(CONTENT_TYPES["refused"]) + len(CONTENT_TYPES["taken"]) > 200
    names = {name for pair in encodings.aliases.aliases.items() for name in pair} - {"utf-8"}
    charsets = names | {name.replace("_", "-") for name in names} - {"utf-8"}
    content = stream(b"{}")
    request = request_with(body=content)
    for media in (*CONTENT_TYPES["refused"], *(f"application/json; charset={charset}" for charset in charsets)):
        with pytest.raises(Refusal) as caught:
            await read_body(request, {"content-type": [media]}, BOUNDS, GROW)
        assert caught.value.reason is Reason.UNSUPPORTED_MEDIA_TYPE, media
    assert await content.readany() == b"{}"
    for media in (*CONTENT_TYPES["taken"], "application/json; charset=utf-8"):
        request = request_with(body=stream(b"{}"))
        assert await read_body(request, {"content-type": [media]}, BOUNDS, GROW) == b"{}", media


async def test_content_type_is_there_once_and_no_coding_is() -> None:
    for types in ([], [JSON, JSON], [JSON, "text/plain"], ["text/plain", JSON], [JSON, ""], ["", JSON]):
        lines = [("Content-Type", media) for media in types]
        assert await body_of(stream(b"{}"), *lines, media=None) is Reason.UNSUPPORTED_MEDIA_TYPE
    for coding in ("gzip", "deflate", "br", "zstd", "identity", "gzip, gzip", "", "x"):
        assert await body_of(stream(b"{}"), ("Content-Encoding", coding)) is Reason.UNSUPPORTED_MEDIA_TYPE


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 1000])
@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_is_taken_up_to_its_bound_and_never_in_part(size: int, pieces: int, announced: bool) -> None:
    """BL-076."""
    raw = bytes(range(256)) * 4
    raw = raw[:size]
    chunks = [raw[at : at + max(1, size // pieces)] for at in range(0, size, max(1, size // pieces))]
    lines = [("Content-Length", str(size))] if announced else []
    assert await body_of(stream(*chunks), *lines) == (raw if size <= 100 else Reason.TOO_LARGE)


async def test_a_body_too_large_is_not_waited_for_nor_read_to_the_end_and_a_cancelled_one_is_cancelled() -> None:
    bounds = BodyBounds(max_body_bytes=100, body_timeout_s=3600)
    assert await body_of(stream(ends=False), ("Content-Length", "101"), bounds=bounds) is Reason.TOO_LARGE
    assert await body_of(stream(b"x" * 101, ends=False), bounds=bounds) is Reason.TOO_LARGE
    reading = asyncio.create_task(body_of(stream(ends=False), bounds=bounds))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_a_body_that_never_ends_is_malformed_in_time_and_one_that_breaks_off_is_no_bug() -> None:
    for chunks in ([], [b'{"a":'], [b"x"] * 50):
        assert await body_of(stream(*chunks, ends=False)) is Reason.MALFORMED_CALL
    for failure, reason in (
        (web.RequestPayloadError("400, message: bad chunk"), Reason.MALFORMED_CALL),
        (ConnectionResetError("Connection lost"), Reason.CALLER_GONE),
        (BrokenPipeError(), Reason.CALLER_GONE),
    ):
        content = stream(b'{"a":', ends=False)
        content.set_exception(failure)
        assert await body_of(content) is reason


async def test_a_body_that_trickles_has_one_deadline_for_all_of_it() -> None:
    content = stream(ends=False)
    reading = asyncio.create_task(body_of(content))
    while not reading.done():
        content.feed_data(b"x")
        await asyncio.sleep(0.01)
    assert await reading is Reason.MALFORMED_CALL
