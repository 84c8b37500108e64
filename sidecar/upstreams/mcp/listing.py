"""Lists an upstream's tools in a conversation of our own.

It uses the sidecar's own credential and, in the session era, a session that no caller shares (threat S4). The era is
found by trying: `server/discover` first, then `initialize` (MCP 2026-07-28, versioning). Responses are untrusted:
pages, tools and bytes are bounded, and an invalid response ends the listing as `upstream-failed`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Literal

import orjson

from sidecar import __version__
from sidecar.errors import Reason, Refusal
from sidecar.http.client import Deadline
from sidecar.protocols import jsonrpc
from sidecar.protocols.jsonrpc import Id, Notification, Request, Response
from sidecar.protocols.mcp.eras import (
    META_CAPABILITIES,
    META_CLIENT,
    META_SERVER,
    META_VERSION,
    SESSION_VERSIONS,
    STATELESS_VERSIONS,
)
from sidecar.protocols.sse import SseParser
from sidecar.upstreams.mcp.transport import EVENT_STREAM, JSON, SESSION_ID, McpTransport, Outbound, UpstreamAnswer
from sidecar.upstreams.statuses import refusal_of

Kind = Literal["tools", "prompts", "resources", "resourceTemplates"]

MAX_PAGES: Final = 100
MAX_TOOLS: Final = 2_000
MAX_CAPABILITIES: Final = 64
MAX_GREETING_BYTES: Final = 256 * 1024  # a server's description of itself, its instructions included; it is kept
MAX_WORD_CHARS: Final = 256
MAX_LIST_BYTES: Final = 10 * 2**20
MAX_CURSOR_CHARS: Final = 4096
DEFAULT_TTL_S: Final = 60.0
# A TTL of 0 would double every call's cost; an endless one would hide every change.
MIN_TTL_S: Final = 1.0
MAX_TTL_S: Final = 3600.0
MAX_NOTICE_BYTES: Final = 64 * 1024
LISTEN_S: Final = 3600.0  # a stream that died silently is noticed at the latest when it is reopened
_FAREWELL_S: Final = 2.0
_OFFERED: Final[Mapping[Kind, str]] = {
    "prompts": "prompts",
    "resources": "resources",
    "resourceTemplates": "resources",
}
_METHODS: Final[Mapping[Kind, str]] = {
    "tools": "tools/list",
    "prompts": "prompts/list",
    "resources": "resources/list",
    "resourceTemplates": "resources/templates/list",
}
_METHOD_NOT_FOUND: Final = -32601
_FORGOTTEN: Final = frozenset({400, 404, 405})

CHANGED: Final = "notifications/tools/list_changed"
OURSELVES: Final = {"name": "sidecar", "version": __version__}
# Servers list some tools only to clients that can answer those tools' requests: the list must hold all that any caller
# may see. Nothing is called here, so a request that a server sends anyway (mostly for its client's roots) is declined.
ABILITIES: Final[Mapping[str, Any]] = {"sampling": {}, "elicitation": {"form": {}, "url": {}}, "roots": {}}
_DECLINED: Final = {"code": _METHOD_NOT_FOUND, "message": "Method not found"}


@dataclass(frozen=True, slots=True)
class ToolListing:
    """Every entry of every page, unchecked, and how long the upstream allows it to be cached."""

    entries: list[object]
    ttl_s: float


@dataclass(frozen=True, slots=True)
class Greeting:
    """The handshake of a conversation: the revision agreed on, the server's name for itself ("" if it gives none), the
    capabilities that it declares, and the seconds from the first request to the agreement.
    """

    version: str
    server: str
    capabilities: tuple[str, ...]
    took_s: float


@dataclass(frozen=True, slots=True)
class _Reply:
    """The response to one request. Without `result` and `error`, only the HTTP status is known."""

    status: int
    headers: Mapping[str, str]
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    session_id: str | None = None

    @property
    def method_unknown(self) -> bool:
        return self.error is not None and self.error.get("code") == _METHOD_NOT_FOUND


@dataclass(slots=True)
class OwnConversation:
    """The sidecar's own conversation with one upstream. `version` is the revision agreed on, "" before the first
    answer; `announces` whether the upstream declares that it announces changes of its list; `greeting` the last
    handshake, and `capabilities` all that the server declared then, None before. Requests are sent one at a time.
    """

    upstream: McpTransport
    clock_mono: Callable[[], float] = time.monotonic
    version: str = ""
    announces: bool = False
    greeting: Greeting | None = None
    capabilities: Mapping[str, Any] | None = None
    _session_id: str | None = None
    _last_id: int = 0
    _left_bytes: int = field(default=MAX_LIST_BYTES)
    _mute: bool = False
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def stateless(self) -> bool:
        return self.version in STATELESS_VERSIONS

    async def list_tools(self) -> ToolListing:
        """Every page of `tools/list`. Raises Refusal: UPSTREAM_FAILED, UPSTREAM_TIMEOUT, UPSTREAM_OPEN."""
        return await self._list("tools")

    async def offers(self) -> AsyncIterator[tuple[Kind, list[object]]]:
        """Every list beside tools that the server declares, with its entries unchecked. A list that fails is skipped: a
        server with resources need not have templates.
        """
        named = self.greeting.capabilities if self.greeting else ()
        for kind, capability in _OFFERED.items():
            if capability in named:
                with suppress(Refusal):
                    yield kind, await self.entries(kind)

    async def entries(self, kind: Kind) -> list[object]:
        """Every entry of one list, unchecked. Raises Refusal as `list_tools`."""
        return (await self._list(kind)).entries

    async def probe(self, within_s: float) -> None:
        """Check that the upstream answers, at most `within_s` for each message. Any response of the protocol is a
        success, also the error that `ping` is unknown; a lost conversation is begun anew. Raises Refusal.
        """
        async with self._turn:
            self._left_bytes = MAX_LIST_BYTES
            if not self.version:
                await self._open(within_s)
                return
            try:
                reply = await self._call(self._sign_of_life, {}, within_s)
            except Refusal as refusal:
                self._mute = self._mute or refusal.reason is Reason.UPSTREAM_TIMEOUT
                raise
            if reply.status in _FORGOTTEN and not reply.method_unknown:
                await self._open(within_s)
            elif reply.result is None and reply.error is None:
                raise refusal_of(reply)

    @property
    def _sign_of_life(self) -> str:
        """The method to probe with. A server that did not answer a ping may not know the method."""
        if self.stateless:
            return "server/discover"
        return "tools/list" if self._mute else "ping"

    async def _list(self, kind: Kind) -> ToolListing:
        async with self._turn:
            self._left_bytes = MAX_LIST_BYTES
            opened = not self.version
            if opened:
                await self._open()
            first = await self._call(_METHODS[kind], {})
            if first.status in _FORGOTTEN and not (
                opened or first.method_unknown
            ):  # restarted, or replaced by another version of itself
                await self._open()
                first = await self._call(_METHODS[kind], {})
            return await self._pages(kind, first)

    async def changes(self) -> AsyncIterator[None]:
        """One item for each announced change of the list, while the stream lasts. Raises Refusal."""
        if not self.version:
            raise _failed("there is no conversation to listen in")
        with await self._subscribe() as answer:
            if answer.status != 200 or answer.media_type != EVENT_STREAM:
                raise _failed("it offers no stream")
            parser = SseParser(max_event_bytes=MAX_NOTICE_BYTES)
            async for chunk in answer.chunks(deadline=Deadline.within(LISTEN_S)):
                for event in parser.feed(chunk):
                    if _tells_of_change(event.message):
                        yield
                    elif self._session_id is not None and (asked := _question(event.message)) is not None:
                        await self._decline(asked)  # without a session the request may be meant for a caller

    async def close(self) -> None:
        """End our session, if there is one."""
        session_id, version = self._session_id, self.version
        self.version, self._session_id = "", None
        if session_id is not None:
            await self.upstream.end_session(session_id, version, _FAREWELL_S)

    async def _open(self, within_s: float | None = None) -> None:
        """Begin the conversation. Raises Refusal, and then there is none."""
        begun_at = self.clock_mono()
        self.version, self._session_id = "", None
        self._left_bytes = MAX_GREETING_BYTES
        try:
            result = await self._discover(within_s) or await self._initialize(within_s)
        except BaseException:
            self.version, self._session_id = "", None
            raise
        self.announces = _announces(result)
        self._left_bytes = MAX_LIST_BYTES
        said = result.get("capabilities")
        self.capabilities = said if isinstance(said, dict) else {}
        self.greeting = Greeting(self.version, _server(result), _capabilities(result), self.clock_mono() - begun_at)

    async def _discover(self, within_s: float | None) -> Mapping[str, Any] | None:
        """The result of `server/discover`; None if the server has no stateless era."""
        self.version = STATELESS_VERSIONS[-1]
        reply = await self._call("server/discover", {}, within_s)
        offered = reply.result.get("supportedVersions") if reply.result else None
        if isinstance(offered, list):
            for version in reversed(STATELESS_VERSIONS):
                if version in offered:
                    self.version = version
                    return reply.result
        self.version = ""
        if reply.status in (401, 403):  # our credential is rejected; another era would not help
            raise refusal_of(reply)
        return None

    async def _initialize(self, within_s: float | None) -> Mapping[str, Any]:
        params = {
            "protocolVersion": SESSION_VERSIONS[-1],
            "capabilities": ABILITIES,
            "clientInfo": OURSELVES,
        }
        reply = await self._call("initialize", params, within_s)
        version = reply.result.get("protocolVersion") if reply.result else None
        if reply.result is None or version not in SESSION_VERSIONS:
            raise refusal_of(reply) if reply.result is None else _failed("its revision is not known here")
        self.version, self._session_id = version, reply.session_id
        with await self._send(Notification("notifications/initialized", {}), within_s) as answer:
            if not 200 <= answer.status < 300:
                raise refusal_of(answer)
        return reply.result

    async def _pages(self, kind: Kind, page: _Reply) -> ToolListing:
        entries: list[object] = []
        ttls: list[float] = []
        cursors: set[str] = set()
        while True:
            if page.method_unknown and not cursors:
                return ToolListing([], DEFAULT_TTL_S)  # a server without tools
            result = page.result
            if result is None:
                raise _failed(f"it has no list of {kind}") if page.error else refusal_of(page)
            entries += _entries(kind, result)
            ttls.append(_ttl_s(result))
            cursor = _cursor(result)
            if cursor is None:
                return ToolListing(entries, min(ttls))
            if cursor in cursors or len(cursors) + 1 >= MAX_PAGES or len(entries) > MAX_TOOLS:
                raise _failed(f"its list of {kind} is too long, or goes round in circles")
            cursors.add(cursor)
            page = await self._call(_METHODS[kind], {"cursor": cursor})

    async def _call(self, method: str, params: dict[str, Any], within_s: float | None = None) -> _Reply:
        request = self._request(method, params)
        with await self._send(request, within_s) as answer:
            message = await self._message(answer, request.id, within_s)
            session_id = answer.headers.get(SESSION_ID) if method == "initialize" else None
            result, error = message.get("result"), message.get("error")
            return _Reply(
                answer.status,
                answer.headers,
                result if isinstance(result, dict) and answer.status == 200 else None,
                error if isinstance(error, dict) else None,
                session_id,
            )

    async def _subscribe(self) -> UpstreamAnswer:
        if self.stateless:
            wanted = {"notifications": {"toolsListChanged": True}}
            return await self._send(self._request("subscriptions/listen", wanted), endless=True)
        timeout_s = self.upstream.timeout_s
        return await self.upstream.exchange(Outbound("GET", None, self.version, timeout_s, self._session_id))

    def _request(self, method: str, params: dict[str, Any]) -> Request:
        self._last_id += 1
        if self.stateless:
            meta = {META_VERSION: self.version, META_CAPABILITIES: ABILITIES, META_CLIENT: OURSELVES}
            params = {**params, "_meta": meta}
        return Request(self._last_id, method, params)

    async def _decline(self, question: Id) -> None:
        with await self._send(Response(question, error=dict(_DECLINED))):
            pass  # the answer does not matter

    async def _send(
        self, message: Request | Notification | Response, within_s: float | None = None, *, endless: bool = False
    ) -> UpstreamAnswer:
        timeout_s = within_s or self.upstream.timeout_s
        return await self.upstream.exchange(
            Outbound("POST", message, self.version, timeout_s, self._session_id, endless=endless)
        )

    async def _message(self, answer: UpstreamAnswer, request_id: Id, within_s: float | None) -> Mapping[str, Any]:
        """The response to our request, from a body or a stream; empty if there is none."""
        if answer.media_type == JSON:
            body = await answer.read(self._left_bytes)
            self._spend(len(body))
            return _parsed(body, request_id)
        if answer.media_type == EVENT_STREAM:
            return await self._event(answer, request_id, within_s or self.upstream.timeout_s)
        return {}

    async def _event(self, answer: UpstreamAnswer, request_id: Id, within_s: float) -> Mapping[str, Any]:
        parser = SseParser()
        async for chunk in answer.chunks(deadline=Deadline.within(within_s)):
            self._spend(len(chunk))
            for event in parser.feed(chunk):
                message = _parsed(event.message.encode(), request_id)
                if message:
                    return message
        return {}

    def _spend(self, count: int) -> None:
        self._left_bytes -= count
        if self._left_bytes < 0:
            raise _failed("its list is too large")


def _parsed(raw: bytes, request_id: Id) -> Mapping[str, Any]:
    """The response to `request_id`, else an empty mapping: an upstream may interleave other messages. It may be as
    large as an answer to a caller, no larger: a parser blocks every other task, on whatever thread (threats I11).
    """
    if not raw:
        return {}
    try:
        message = jsonrpc.parse_answer(raw)
    except Refusal as refusal:
        raise _failed(f"its answer cannot be read: {refusal.detail}") from None
    if not isinstance(message, dict) or "method" in message:
        return {}
    unnamed = message.get("id") is None and message.get("error") is not None  # it can only be about our one request
    return message if unnamed or (type(message.get("id")) is int and message["id"] == request_id) else {}


def _announces(result: Mapping[str, Any] | None) -> bool:
    """Whether the server's capabilities say `tools: {listChanged: true}`."""
    capabilities = result.get("capabilities") if result else None
    tools = capabilities.get("tools") if isinstance(capabilities, dict) else None
    return isinstance(tools, dict) and tools.get("listChanged") is True


def _tells_of_change(data: str) -> bool:
    if CHANGED not in data:
        return False
    try:
        message = orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return isinstance(message, dict) and message.get("method") == CHANGED


def _question(data: str) -> Id | None:
    """The id of a request that the server sends."""
    if '"method"' not in data:
        return None
    try:
        message = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    id = message.get("id") if isinstance(message, dict) and "method" in message else None
    return id if isinstance(id, str) or type(id) is int else None


def _server(result: Mapping[str, Any]) -> str:
    """The server's name and version on one line, from the members of either era."""
    meta = result.get("_meta")
    info = result.get("serverInfo") or (meta.get(META_SERVER) if isinstance(meta, dict) else None)
    words = [info.get("name"), info.get("version")] if isinstance(info, dict) else []
    return " ".join(_line(word) for word in words if isinstance(word, str))


def _capabilities(result: Mapping[str, Any]) -> tuple[str, ...]:
    named = result.get("capabilities")
    return tuple(sorted(map(_line, islice(named, MAX_CAPABILITIES)))) if isinstance(named, dict) else ()


def _line(word: str) -> str:
    """A text of the server's, made safe for a terminal."""
    return "".join(character if character.isprintable() else "?" for character in word[:MAX_WORD_CHARS])


def _entries(kind: str, result: Mapping[str, Any]) -> list[object]:
    entries = result.get(kind)
    if not isinstance(entries, list) or len(entries) > MAX_TOOLS:
        raise _failed(f"its list of {kind} is no list, or too long")
    return entries


def _cursor(result: Mapping[str, Any]) -> str | None:
    cursor = result.get("nextCursor")
    if cursor is None or cursor == "":
        return None
    if not isinstance(cursor, str) or len(cursor) > MAX_CURSOR_CHARS:
        raise _failed("its cursor is no string, or too long")
    return cursor


def _ttl_s(result: Mapping[str, Any]) -> float:
    ttl_ms = result.get("ttlMs")
    if isinstance(ttl_ms, bool) or not isinstance(ttl_ms, int | float):
        return DEFAULT_TTL_S
    return min(max(ttl_ms / 1000, MIN_TTL_S), MAX_TTL_S)


def _failed(detail: str) -> Refusal:
    return Refusal(Reason.UPSTREAM_FAILED, detail)
