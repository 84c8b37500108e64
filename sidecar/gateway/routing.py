"""Routes requests by address and checks their envelope.

Checks framing, Host, Origin, path and verb before the caller is authenticated, and the media type and size of a body
when it is read. The path is matched on its raw bytes against a strict grammar, never on decoded text. Every header is
read line by line, because two parsers may resolve repeated lines differently.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

from aiohttp import HttpVersion, HttpVersion10, HttpVersion11, StreamReader, web

from sidecar.errors import Reason, Refusal
from sidecar.http.server.framing import TooManyChunks
from sidecar.http.server.listeners import GaveWay, ServerConnection
from sidecar.http.server.repeated_head import ArrivedBody, RepeatedHead
from sidecar.http.tls import NOTHING, ShownCertificate, shown_on
from sidecar.identity import UNIX, Presented
from sidecar.protocols.jsonrpc import malformed
from sidecar.protocols.mcp.eras import Headers as Headers
from sidecar.settings.agent_endpoints import BEARER_HEADER, KEY_HEADER, MAX_BASE_PATH

Body = TypeVar("Body", bytes, bytearray)
Aliases = Mapping[str, str]
"""The agent names of agents' own paths."""
NO_ALIASES: Aliases = MappingProxyType({})

METADATA_PATH = "/.well-known/oauth-protected-resource"
MCP, METADATA, KEYS = "mcp", "metadata", "keys"
ISSUER = "issuer"  # the address at which clients of MCP 2025-03-26 look for it
ISSUER_PATH = "/.well-known/oauth-authorization-server"
AGENT, CARD, SEED_CARD, AGENT_METADATA = "agent", "card", "seed card", "agent metadata"
PUSH = "push"  # receives agents' pushes; the name in the path is a handle
TASKS, TASK, TASK_CANCEL, TASKS_METADATA = "tasks", "task", "cancel a task", "tasks metadata"  # of the task API
TASK_API = "a2a/tasks"  # the folder of its addresses
AGENTS = "agents"  # the folder of agents' addresses, as `mcp` is that of servers
EVERY = ""  # in place of a server's name: all that the caller may see
SSE, MESSAGES = "sse", "messages"  # the two addresses of the HTTP+SSE transport of MCP 2024-11-05
TOOLS, TOOL = "tools", "tool"  # plain calls: the list, and one tool
APPROVAL = "approval"  # of a plain call, for its caller to poll
_TASK = "([A-Za-z0-9-]{1,64})"
_SERVER = "([a-z0-9]+(?:-[a-z0-9]+)*)"
_STEP = r"[A-Za-z0-9_\-][A-Za-z0-9_.\-]*"  # a leading dot is ambiguous in a path
_NAME = rf"((?=.{{1,128}}\Z){_STEP}(?:/{_STEP})*)"
# Every address of the data listener: kind, pattern of the raw path, verbs. The first group is the name of a server or
# an agent, or a push's handle; it is empty at the aggregate address and at addresses without a name. The second is a
# tool, a task, an approval, or the rest of the path after an agent's name.
ROUTES: Sequence[tuple[str, re.Pattern[str], tuple[str, ...]]] = (
    (MCP, re.compile(rf"/mcp/{_SERVER}/?\Z"), ("POST", "GET", "DELETE")),
    (SSE, re.compile(rf"/mcp/{_SERVER}/sse\Z"), ("GET",)),
    (MESSAGES, re.compile(rf"/mcp/{_SERVER}/messages\Z"), ("POST",)),
    (TOOLS, re.compile(rf"/mcp/{_SERVER}/tools\Z"), ("GET",)),
    (TOOL, re.compile(rf"/mcp/{_SERVER}/tools/{_NAME}\Z"), ("POST",)),
    (APPROVAL, re.compile(rf"/mcp/{_SERVER}/approvals/([0-9a-f]{{32}}-[0-9A-Za-z-]{{1,16}})\Z"), ("GET",)),
    (MCP, re.compile(r"/mcp()/?\Z"), ("POST", "GET", "DELETE")),
    (METADATA, re.compile(rf"/\.well-known/oauth-protected-resource/mcp/{_SERVER}/?\Z"), ("GET",)),
    (METADATA, re.compile(r"/\.well-known/oauth-protected-resource/mcp()/?\Z"), ("GET",)),
    (ISSUER, re.compile(r"/\.well-known/oauth-authorization-server()\Z"), ("GET",)),
    (KEYS, re.compile(r"/\.well-known/jwks\.json()\Z"), ("GET",)),
    (PUSH, re.compile(r"/a2a/push/([A-Za-z0-9_\-]{43})\Z"), ("POST",)),
    (CARD, re.compile(rf"/agents/{_SERVER}/\.well-known/agent-card\.json\Z"), ("GET",)),
    (AGENT, re.compile(rf"/agents/{_SERVER}((?:/[^/]+)*/?)\Z"), ("GET", "POST", "DELETE")),
    (SEED_CARD, re.compile(rf"/\.well-known/agents/{_SERVER}\Z"), ("GET",)),
    (SEED_CARD, re.compile(rf"/api/nhi/a2a/agent-card/{_SERVER}\Z"), ("GET",)),
    (TASKS, re.compile(r"(?:/api/nhi)?/a2a/tasks()\Z"), ("GET", "POST")),
    (TASK, re.compile(rf"(?:/api/nhi)?/a2a/tasks()/{_TASK}\Z"), ("GET",)),
    (TASK_CANCEL, re.compile(rf"(?:/api/nhi)?/a2a/tasks()/{_TASK}/cancel\Z"), ("POST",)),
    (TASKS_METADATA, re.compile(r"/\.well-known/oauth-protected-resource/a2a/tasks()\Z"), ("GET",)),
    (AGENT_METADATA, re.compile(rf"/\.well-known/oauth-protected-resource/agents/{_SERVER}\Z"), ("GET",)),
)

MAX_NAMES, MAX_NAME_BYTES = 1024, 64
_ABSOLUTE = re.compile(r"https?://([A-Za-z0-9.:\[\]_-]{1,300})((?:[/?].*)?)", re.IGNORECASE)
_TOOL = re.compile(rf"{_NAME}\Z")
WHOLE = frozenset({"", "/", "/v1", "/v1/"})
"""The rest of a path that names a whole upstream. Callers of the original data models use /agents/{id}/v1."""
_A2A = ("/agents/", "/.well-known/agents/", "/a2a/", "/api/nhi/")
_PLAIN = re.compile(rf"/mcp/{_SERVER}/(?:tools|approvals)(?:[/?]|\Z)")
_SESSION = re.compile(r"session_id=([A-Za-z0-9_\-]{1,128})\Z")
_PATH = re.compile(r"/\Z|(?:/\.well-known)?(?:/[A-Za-z0-9_~\-][A-Za-z0-9._~\-]*)+\Z")
_JSON = re.compile(r'application/json[ \t]*(?:;[ \t]*charset=(?:utf-8|"utf-8")[ \t]*)?\Z', re.IGNORECASE | re.ASCII)
_ONLY_JSON = ("application/json",)
_A2A_JSON = re.compile(_JSON.pattern.replace("application/json", r"application/(?:a2a\+)?json"), _JSON.flags)
_REFUSED_MEDIA = re.compile(r";[ \t]*q=0(?:\.0{0,3})?[ \t]*(?:;|\Z)", re.IGNORECASE)  # RFC 9110 12.4.2: not acceptable
_TRACE_PARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}\Z")
_TRACE_STATE = re.compile(r"[\x21-\x7e ]{1,512}\Z")
_CORRELATION = re.compile(r"[A-Za-z0-9._:\-]{1,128}\Z")
# Headers that proxies or browsers add, which a private listener never receives directly.
_PROXY_TRACES = ("origin", "forwarded", "via")
_ACCEPTED_BY = {
    "application/json": ("application/json", "application/*", "*/*"),
    "text/event-stream": ("text/event-stream", "text/*", "*/*"),
}


@dataclass(frozen=True, slots=True)
class Entrance:
    """One listener: the caller of a local one (`principal`), the lower-case names that it answers to, with and without
    port (None: any), the web origins that may call it and those that may read its answers (`shared`), and the path
    under which callers see it (`prefix`). `certificate` is that of the caller where an enforcement point received the
    request, as an element of `X-Forwarded-Client-Cert` ("" for none); the caller's own such header is then ignored."""

    hosts: frozenset[str] | None
    origins: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    principal: str = ""
    prefix: str = ""
    unix: bool = False
    grpc: bool = False
    certificate: str | None = None


class Route(NamedTuple):
    """A parsed address. `server` is the upstream in it (EVERY: all), `rest` a tool's name or the path after an agent's,
    `alias` the agent's own path if the request used it."""

    kind: str
    server: str
    rest: str = ""
    alias: str = ""


class _Names(dict[bytes, str]):
    """Names of headers in lower case by their bytes as callers write them. The first ones seen are cached."""

    def __missing__(self, raw: bytes) -> str:
        name = raw.decode("ascii", "replace").lower()
        if len(self) < MAX_NAMES and len(raw) <= MAX_NAME_BYTES:
            self[raw] = name
        return name


_NAMES = _Names()


def headers_of(request: web.BaseRequest) -> Headers:
    """Returns header lines as text. Bytes that are not ASCII become replacement characters, which match nothing."""
    headers: dict[str, tuple[str, ...]] = {}
    for raw_name, value in request.raw_headers:
        name, line = _NAMES[raw_name], value.decode("ascii", "replace")
        headers[name] = (*headers[name], line) if name in headers else (line,)
    return headers


def known_headers(request: web.BaseRequest) -> Headers:
    """Returns `headers_of` a request. Requests of one connection with the same head share the result."""
    head: RepeatedHead | None = getattr(request, "head", None)
    if head is None:
        return headers_of(request)
    if head.lines is None:
        head.lines = headers_of(request)
    return head.lines


def check_envelope(request: web.BaseRequest, headers: Headers, entrance: Entrance) -> None:
    """Checks everything before the address. Raises Refusal: MALFORMED_CALL; ORIGIN_REFUSED for a foreign Host or
    Origin, so that a browser page cannot call, and for the headers of a proxy at a local listener."""
    if request.version is not HttpVersion11 or "transfer-encoding" in headers:
        check_framing(request.version, headers)
    if request.raw_path[:1] != "/":
        check_target(request.raw_path, headers)
    hosts = headers.get("host", ())
    if entrance.hosts is not None and (len(hosts) != 1 or hosts[0].lower() not in entrance.hosts):
        raise Refusal(Reason.ORIGIN_REFUSED, "Host is not one that this listener serves")
    if entrance.principal and any(name in _PROXY_TRACES or name.startswith("x-forwarded-") for name in headers):
        raise Refusal(Reason.ORIGIN_REFUSED, "a local listener takes no Origin, Forwarded, Via or X-Forwarded header")
    if "origin" in headers and not all(origin.lower() in entrance.origins for origin in headers["origin"]):
        raise Refusal(Reason.ORIGIN_REFUSED, "Origin is not allowed")


def check_framing(version: HttpVersion, headers: Headers) -> None:
    """Raises Refusal(MALFORMED_CALL) for framing that the parser accepts and a proxy in front may read differently:
    other versions, other codings, and codings in a version that has none."""
    if version not in (HttpVersion10, HttpVersion11):
        raise malformed("only HTTP/1.1 and HTTP/1.0 are served")
    codings = headers.get("transfer-encoding")
    if codings and (version == HttpVersion10 or [coding.lower() for coding in codings] != ["chunked"]):
        raise malformed("the only Transfer-Encoding is chunked")


def origin_form(target: str) -> str:
    """Returns path and query of a request target in origin or absolute form (RFC 9112, 3.2.1 and 3.2.2). A target in
    another form is returned unchanged."""
    if target[:1] == "/":
        return target
    match = _ABSOLUTE.fullmatch(target)
    return target if match is None else match[2] if match[2].startswith("/") else "/" + match[2]


def check_target(target: str, headers: Headers) -> None:
    """Raises Refusal(MALFORMED_CALL) for an absolute target whose host differs from Host: RFC 9112, 3.2.2, prefers the
    target, but a proxy in front may have used the other."""
    match = None if target.startswith("/") else _ABSOLUTE.fullmatch(target)
    if match is not None and [match[1].lower()] != [host.lower() for host in headers.get("host", ())]:
        raise malformed("Host is not the host of the request target")


def route_of(raw_path: str, verb: str, aliases: Aliases = NO_ALIASES, prefix: str = "") -> Route:
    """Returns the route of a request target. `prefix` is the path under which callers see the sidecar; RFC 9728 (3.1)
    puts it behind the well-known part. Raises Refusal: MALFORMED_CALL, ROUTE_UNKNOWN or VERB_NOT_ALLOWED."""
    path = raw_path.partition("?")[0]
    if not (prefix or aliases):
        return _route_of(path, verb)
    if prefix and path.startswith(f"{METADATA_PATH}{prefix}/"):
        path = METADATA_PATH + path[len(METADATA_PATH) + len(prefix) :]
    of_resource = path.removeprefix(METADATA_PATH)
    if alias := alias_in(of_resource, aliases):  # paths below it are paths below the agent's usual address
        usual = f"/{AGENTS}/{aliases[alias]}{of_resource[len(alias) :]}"
        before = path[: len(path) - len(of_resource)]
        return _route_of(before + usual, verb)._replace(alias=alias)
    return _route_of(path, verb)


@lru_cache(maxsize=256)  # refusals are not cached
def _route_of(path: str, verb: str) -> Route:
    for kind, pattern, verbs in ROUTES:
        if match := pattern.match(path):
            if verb not in verbs:
                raise Refusal(Reason.VERB_NOT_ALLOWED, allow=verbs)
            return Route(kind, *match.groups(""))
    if not _PATH.match(path):
        raise malformed("the path is not plain")
    raise Refusal(Reason.ROUTE_UNKNOWN)


def alias_in(path: str, aliases: Aliases) -> str:
    """Returns the agent's own path that this path begins with, by whole segments; "" for none."""
    if not aliases:
        return ""
    end = path.find("/", 1)
    while 0 < end <= MAX_BASE_PATH:
        if path[:end] in aliases:
            return path[:end]
        end = path.find("/", end + 1)
    return path if path in aliases else ""


def protocol_of(raw_path: str, aliases: Aliases = NO_ALIASES) -> str:
    """Returns the protocol of an address, as in audit records and metrics: `http` for plain calls."""
    if aliases and alias_in(raw_path.partition("?")[0], aliases):
        return "a2a"
    return _protocol_of(raw_path)


@lru_cache(maxsize=256)
def _protocol_of(raw_path: str) -> str:
    if raw_path.startswith(_A2A):
        return "a2a"
    return "http" if _PLAIN.match(raw_path) else "mcp"


def place_of(server: str, folder: str = MCP) -> str:
    """Returns the path of an upstream's address, without a leading slash; EVERY is the aggregate address."""
    return f"{folder}/{server}" if server else folder


def is_tool(name: str) -> bool:
    """Reports whether a tool of this name can be called by its path."""
    return _TOOL.match(name) is not None


def check_no_query(raw_path: str) -> None:
    """Raises Refusal(MALFORMED_CALL) for a query at an address that reads none, rather than ignore it."""
    if "?" in raw_path:
        raise malformed("this address takes no query")


def session_in(raw_path: str) -> str:
    """Returns the session that a POST of the HTTP+SSE transport names. Raises Refusal(MALFORMED_CALL)."""
    if match := _SESSION.match(raw_path.partition("?")[2]):
        return match[1]
    raise malformed("session_id must be there, once, and alone")


def lone_token(headers: Headers, entrance: Entrance, shown: ShownCertificate = NOTHING) -> str:
    """Returns the line of `Authorization` of a request without other credentials; "" for any other request."""
    lines = headers.get("authorization", ())
    is_alone = not ("x-api-key" in headers or "dpop" in headers or entrance.principal or shown is not NOTHING)
    return lines[0] if len(lines) == 1 and is_alone else ""


def presented_by(
    request: web.BaseRequest, headers: Headers, entrance: Entrance, base_url: str, own: str, *, proxied: bool
) -> Presented:
    """Returns the credentials of one request. `base_url` is the data listener's URL for callers, `own` the header of a
    token that only this address accepts; `proxied` says that proxies may forward certificates."""
    lines_of, shown = headers.get, shown_on(request.transport)
    presented = Presented(
        tuple(lines_of("authorization", ())),
        tuple(lines_of("x-api-key", ())),
        entrance.principal,
        shown.certificate,
        shown.trust,
        own=tuple(lines_of(own, ())) if own and own not in (BEARER_HEADER, KEY_HEADER) else (),
    )
    if entrance.certificate is not None:
        shows = (entrance.certificate,) if entrance.certificate else ()
        presented = presented._replace(forwarded=shows, proxy="last" if shows else "")
    elif proxied:
        peer = UNIX if entrance.unix else request.remote or ""
        presented = presented._replace(forwarded=tuple(lines_of("x-forwarded-client-cert", ())), peer=peer)
    if "dpop" in headers:
        urls = _urls(origin_form(request.raw_path), headers, entrance, base_url)
        presented = presented._replace(proofs=tuple(headers["dpop"]), method=request.method, urls=urls)
    return presented


def _urls(raw_path: str, headers: Headers, entrance: Entrance, base_url: str) -> tuple[str, ...]:
    """Returns the URLs by which the caller may have called this address: by public URL and by Host."""
    path, hosts = raw_path.partition("?")[0], headers.get("host", ())
    scheme = "http" if entrance.principal else base_url.partition(":")[0]
    public = () if entrance.principal else (f"{base_url}{path}",)
    # Without the prefix, the same host may be another service.
    known = entrance.hosts is not None and len(hosts) == 1 and not entrance.prefix
    return (*public, f"{scheme}://{hosts[0]}{path}") if known else public


def check_accept(headers: Headers, *needed: str) -> None:
    """Raises Refusal(NOT_ACCEPTABLE) unless the caller accepts every media type in which the answer may be sent."""
    lines = headers.get("accept")
    if lines and not _accepts(tuple(lines), needed):
        raise Refusal(Reason.NOT_ACCEPTABLE)


@lru_cache(maxsize=64)  # a client sends the same line with every call
def _accepts(lines: tuple[str, ...], needed: tuple[str, ...]) -> bool:
    ranges = [part for line in lines for part in line.split(",") if not _REFUSED_MEDIA.search(part)]
    offered = {part.partition(";")[0].strip().lower() for part in ranges}
    return not any(offered.isdisjoint(_ACCEPTED_BY[media]) for media in needed)


BODY_PATIENCE_S = 5.0  # before the minimum rate of a body applies
BODY_RATE_BYTES_S = 512


@dataclass(frozen=True, slots=True)
class BodyBounds:
    max_body_bytes: int = 2**20
    body_timeout_s: float = 30.0
    max_response_bytes: int = 10 * 2**20


def arrived_body(request: web.BaseRequest, headers: Headers, bounds: BodyBounds, *, a2a: bool = False) -> bytes | None:
    """Returns a body that has arrived completely; None if more is to come. Raises Refusal as `read_body` does."""
    types = headers.get("content-type", ())
    if types != _ONLY_JSON and (len(types) != 1 or not (_A2A_JSON if a2a else _JSON).match(types[0])):
        raise Refusal(Reason.UNSUPPORTED_MEDIA_TYPE)
    if "content-encoding" in headers:
        raise Refusal(Reason.UNSUPPORTED_MEDIA_TYPE)
    content = request.content
    if type(content) is ArrivedBody and len(content.data) <= bounds.max_body_bytes:
        whole, content.data = content.data, b""
        return whole
    fault = None
    if content.is_eof() and (fault := content.exception()) is None:
        return _bounded(content.read_nowait(-1), bounds)
    if (request.content_length or 0) > bounds.max_body_bytes:
        raise Refusal(Reason.TOO_LARGE, f"at most {bounds.max_body_bytes} bytes")
    if fault is not None:
        raise _refusal_of_body(fault)
    return None


async def read_body(
    request: web.BaseRequest,
    headers: Headers,
    bounds: BodyBounds,
    grow: Callable[[int], None],
    who: str = "",
    *,
    a2a: bool = False,
) -> bytes:
    """Returns the whole body, which must have the media type of JSON or, with `a2a`, that of A2A. `who` is the caller,
    whose waiting bodies are bounded together. `grow` receives the size so far in bytes, and may refuse it. Raises
    Refusal: UNSUPPORTED_MEDIA_TYPE, TOO_LARGE, MALFORMED_CALL, CALLER_GONE, OVERLOADED if its connection is needed for
    others."""
    if (whole := arrived_body(request, headers, bounds, a2a=a2a)) is not None:
        grow(len(whole))
        return whole
    return await received_body(request, bounds, grow, who)


async def received_body(request: web.BaseRequest, bounds: BodyBounds, grow: Callable[[int], None], who: str) -> bytes:
    """Returns the whole body, of any media type. Raises Refusal as `read_body` does, except UNSUPPORTED_MEDIA_TYPE."""
    content = request.content
    if content.is_eof() and content.exception() is None:
        whole = _bounded(content.read_nowait(-1), bounds)
        grow(len(whole))
        return whole
    try:
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")  # a client that sent `Expect` waits for it
            request.writer.output_size = 0
        connection = request.protocol
        with connection.waiting_for_body(who) if isinstance(connection, ServerConnection) else nullcontext():
            return await _rest(request.content, bounds, grow)
    except (TimeoutError, GaveWay, web.RequestPayloadError, ConnectionError) as fault:
        raise _refusal_of_body(fault) from None


def _refusal_of_body(fault: BaseException) -> Refusal:
    match fault:
        case ConnectionError():
            return Refusal(Reason.CALLER_GONE)
        case GaveWay():
            return Refusal(Reason.OVERLOADED, "its body came too slowly for now", retry_after_s=1.0)
        case TooManyChunks():
            return malformed("the body comes in too small chunks: send larger ones, or a Content-Length")
        case TimeoutError():
            return malformed("the body did not arrive in time")
        case _:
            return malformed("the body is not well framed")


async def _rest(content: StreamReader, bounds: BodyBounds, grow: Callable[[int], None]) -> bytes:
    body, begun_s = bytearray(), asyncio.get_running_loop().time()
    end_s = begun_s + bounds.body_timeout_s
    async with asyncio.timeout_at(end_s) as deadline:
        while True:
            # bytes received so far extend the deadline for the rest
            deadline.reschedule(min(end_s, begun_s + BODY_PATIENCE_S + len(body) / BODY_RATE_BYTES_S))
            if not (chunk := await content.readany()):
                return bytes(body)
            body += chunk
            _bounded(body, bounds)
            grow(len(body))


def _bounded(body: Body, bounds: BodyBounds) -> Body:
    if len(body) > bounds.max_body_bytes:
        raise Refusal(Reason.TOO_LARGE, f"at most {bounds.max_body_bytes} bytes")
    return body


def correlation_of(headers: Headers, name: str) -> str:
    """Returns the run or thread id in a header of the caller; "" for none, several or a malformed one. It is recorded,
    but never used for decisions."""
    lines = headers.get(name, ())
    return correlation_in(lines[0]) if len(lines) == 1 else ""


def correlation_in(value: object) -> str:
    return value if isinstance(value, str) and _CORRELATION.match(value) else ""


def trace_headers(headers: Headers) -> list[tuple[str, str]]:
    """Returns well-formed W3C trace context headers, to be passed on."""
    parent, state = headers.get("traceparent", ()), headers.get("tracestate", ())
    return trace_context(parent[0] if len(parent) == 1 else "", state[0] if len(state) == 1 else "")


def trace_context(parent: object, state: object) -> list[tuple[str, str]]:
    """Returns the well-formed members of a W3C trace context; nothing without its parent."""
    if not isinstance(parent, str) or not trace_id_in(parent):
        return []
    passed = [("traceparent", parent)]
    if isinstance(state, str) and _TRACE_STATE.match(state):
        passed.append(("tracestate", state))
    return passed


def trace_id_of(headers: Headers) -> str:
    lines = headers.get("traceparent", ())
    return trace_id_in(lines[0]) if len(lines) == 1 else ""


def trace_id_in(value: object) -> str:
    match = _TRACE_PARENT.match(value) if isinstance(value, str) else None
    return match[1] if match else ""


def hosts_for(host: str, port: int, public_url: str, allowed: Sequence[str]) -> frozenset[str]:
    """Returns the Host values that a TCP listener answers to."""
    names = {host, "localhost", "127.0.0.1", "[::1]"} if host in ("127.0.0.1", "::1", "localhost") else {host}
    names.update(allowed)
    if public_url:
        names.add(urlsplit(public_url).netloc)
    # Host writes an IPv6 address in brackets (RFC 3986 3.2.2); only such an address has more than one colon.
    lower = {name.lower() for name in names}
    bare = {f"[{name}]" if name.count(":") > 1 and not name.startswith("[") else name for name in lower}
    return frozenset(bare | {f"{name}:{port}" for name in bare if re.search(r":\d+\Z", name) is None})
