"""Lists an upstream's tools in a conversation of the sidecar's own, of any revision, that no caller shares."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

from sidecar.errors import Reason, Refusal
from sidecar.http.client import Deadline
from sidecar.protocols.jsonrpc import METHOD_NOT_FOUND, Message, Notification, Request
from sidecar.protocols.mcp.eras import (
    META_CAPABILITIES,
    META_CLIENT,
    META_SERVER,
    META_VERSION,
    SESSION_VERSIONS,
    STATELESS_VERSIONS,
)
from sidecar.upstreams.mcp.streams import StreamPlace, events, whole_answer
from sidecar.upstreams.mcp.transport import (
    EVENT_STREAM,
    OURSELVES,
    SESSION_ID,
    McpTransport,
    Outbound,
    UpstreamAnswer,
    unknown_method,
)
from sidecar.upstreams.statuses import refusal_of

Kind = Literal["tools", "prompts", "resources", "resourceTemplates"]

MAX_PAGES: Final = 100
MAX_TOOLS: Final = 2_000
MAX_CAPABILITIES: Final = 64
MAX_GREETING_BYTES: Final = 256 * 1024  # a server's description of itself, including its instructions; it is stored
MAX_WORD_CHARS: Final = 256
MAX_LIST_BYTES: Final = 10 * 2**20
MAX_CURSOR_CHARS: Final = 4096
DEFAULT_TTL_S: Final = 60.0
# A TTL of 0 would double every call's cost; an infinite one would hide every change.
MIN_TTL_S: Final = 1.0
MAX_TTL_S: Final = 3600.0
LISTEN_S: Final = 3600.0  # a stream that died silently is noticed at the latest when it is reopened
_FAREWELL_S: Final = 2.0
_METHODS: Final[Mapping[Kind, str]] = {
    "tools": "tools/list",
    "prompts": "prompts/list",
    "resources": "resources/list",
    "resourceTemplates": "resources/templates/list",
}
_CAPABILITIES: Final[Mapping[Kind, str]] = {
    "prompts": "prompts",
    "resources": "resources",
    "resourceTemplates": "resources",
}
_FORGOTTEN: Final = frozenset({400, 404, 405})

CHANGED: Final = "notifications/tools/list_changed"
# Servers list some tools only to clients that can answer those tools' requests: the list must contain all tools that
# any caller may see. Nothing is called here, so a request that a server sends nevertheless (usually for its client's
# roots) is declined.
ABILITIES: Final[Mapping[str, Any]] = {"sampling": {}, "elicitation": {"form": {}, "url": {}}, "roots": {}}


class ToolListing(NamedTuple):
    """Every entry of every page, unchecked, and how long the upstream allows caching."""

    entries: list[object]
    ttl_s: float


class Greeting(NamedTuple):
    """The agreed revision, the server's name ("" if it gives none), its capabilities, and the duration of the
    handshake."""

    version: str
    server: str
    capabilities: tuple[str, ...]
    took_s: float


class _Reply(NamedTuple):
    """The response to one request. Without `result` and `error`, only the HTTP status is known."""

    status: int
    headers: Mapping[str, str]
    result: Mapping[str, Any] | None
    error: Mapping[str, Any] | None

    @property
    def method_unknown(self) -> bool:
        return self.error is not None and self.error.get("code") == METHOD_NOT_FOUND

    @property
    def forgotten(self) -> bool:
        """Whether the server may have been restarted, or replaced by another version."""
        return self.status in _FORGOTTEN and not self.method_unknown


@dataclass(slots=True)
class OwnConversation:
    """The sidecar's own conversation with one upstream. `version` is the agreed revision, "" before there is one;
    `greeting` is the last handshake, `capabilities` are those that the server declared in it. Requests are sent one at
    a time."""

    upstream: McpTransport
    clock_mono: Callable[[], float] = time.monotonic
    version: str = ""
    greeting: Greeting | None = None
    capabilities: Mapping[str, Any] | None = None
    _session_id: str | None = None
    _last_id: int = 0
    _left_bytes: int = MAX_LIST_BYTES
    _mute: bool = False
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def stateless(self) -> bool:
        return self.version in STATELESS_VERSIONS

    @property
    def announces(self) -> bool:
        """Whether the server declares that it announces changes of its tools."""
        tools = self.capabilities.get("tools") if self.capabilities else None
        return isinstance(tools, dict) and tools.get("listChanged") is True

    async def list_tools(self) -> ToolListing:
        """Returns every page of `tools/list`. Raises Refusal."""
        return await self._list("tools")

    async def offers(self) -> AsyncIterator[tuple[Kind, list[object]]]:
        """Yields every declared list except tools, its entries unchecked. A list that fails is skipped."""
        for kind, capability in _CAPABILITIES.items():
            if self.greeting is not None and capability in self.greeting.capabilities:
                with suppress(Refusal):
                    yield kind, await self.entries(kind)

    async def entries(self, kind: Kind) -> list[object]:
        return (await self._list(kind)).entries

    async def probe(self, within_s: float) -> None:
        """Checks that the upstream answers, even with an error; a lost conversation is begun again. Raises Refusal."""
        async with self._turn:
            self._left_bytes = MAX_LIST_BYTES
            if not self.version:
                await self._open(within_s)
                return
            # A server that did not answer a ping may not know the method.
            method = "server/discover" if self.stateless else "tools/list" if self._mute else "ping"
            try:
                reply = await self._call(method, {}, within_s)
            except Refusal as refusal:
                self._mute = self._mute or refusal.reason is Reason.UPSTREAM_TIMEOUT
                raise
            if reply.forgotten:
                await self._open(within_s)
            elif reply.result is None and reply.error is None:
                raise refusal_of(reply)

    async def _list(self, kind: Kind) -> ToolListing:
        async with self._turn:
            self._left_bytes = MAX_LIST_BYTES
            opened = not self.version
            if opened:
                await self._open()
            first = await self._call(_METHODS[kind], {})
            if first.forgotten and not opened:
                await self._open()
                first = await self._call(_METHODS[kind], {})
            return await self._pages(kind, first)

    async def changes(self) -> AsyncIterator[None]:
        """Yields once for each announced change of the list, while the stream lasts, LISTEN_S at most. Raises
        Refusal."""
        if not self.version:
            raise _failed("no conversation with it has begun")
        if self.stateless:
            wanted = self._request("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
            opened, place = self._send(wanted, endless=True), StreamPlace(self.upstream, wanted.id)
        else:
            asked = Outbound("GET", None, self.version, self.upstream.timeout_s, self._session_id)
            opened, place = self.upstream.exchange(asked), StreamPlace(self.upstream)
        with await opened as answer:
            if answer.status != 200 or answer.media_type != EVENT_STREAM:
                raise _failed("it offers no stream")
            async with aclosing(events(answer, place, Deadline.within(LISTEN_S))) as messages:
                async for message in messages:
                    if isinstance(message, Notification) and message.method == CHANGED:
                        yield
                    elif isinstance(message, Request) and self._session_id is not None:
                        # Without a session the request may be for a caller.
                        with await self._send(unknown_method(message.id)):
                            pass  # the answer does not matter

    async def close(self) -> None:
        """Ends the conversation, and its session at the upstream."""
        session_id, version = self._session_id, self.version
        self.version, self._session_id = "", None
        if session_id is not None:
            await self.upstream.end_session(session_id, version, _FAREWELL_S)

    async def _open(self, within_s: float | None = None) -> None:
        """Begins the conversation. Raises Refusal if it does not succeed; there is no conversation then."""
        begun_at = self.clock_mono()
        self.version, self._session_id = "", None
        self._left_bytes = MAX_GREETING_BYTES
        try:
            result = await self._discover(within_s) or await self._initialize(within_s)
        except BaseException:
            await self.close()
            raise
        self._left_bytes = MAX_LIST_BYTES
        self.capabilities = _dict(result.get("capabilities"))
        named = tuple(sorted(map(_line, islice(self.capabilities, MAX_CAPABILITIES))))
        self.greeting = Greeting(self.version, _server(result), named, self.clock_mono() - begun_at)

    async def _discover(self, within_s: float | None) -> Mapping[str, Any] | None:
        """Returns the result of `server/discover`; None if the server supports no stateless revision. Raises
        Refusal."""
        self.version = STATELESS_VERSIONS[-1]
        reply = await self._call("server/discover", {}, within_s)
        offered = reply.result.get("supportedVersions") if reply.result else None
        common = [version for version in STATELESS_VERSIONS if isinstance(offered, list) and version in offered]
        self.version = common[-1] if common else ""
        if not common and reply.status in (401, 403):  # another revision would not help
            raise refusal_of(reply)
        return reply.result if common else None

    async def _initialize(self, within_s: float | None) -> Mapping[str, Any]:
        params = {"protocolVersion": SESSION_VERSIONS[-1], "capabilities": ABILITIES, "clientInfo": OURSELVES}
        reply = await self._call("initialize", params, within_s)
        if reply.result is None:
            raise refusal_of(reply)
        version = reply.result.get("protocolVersion")
        if version not in SESSION_VERSIONS:
            raise _failed("it agreed on an unsupported revision")
        self.version, self._session_id = version, reply.headers.get(SESSION_ID)
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
            cursor = result.get("nextCursor")
            if cursor is None or cursor == "":
                return ToolListing(entries, min(ttls))
            if not isinstance(cursor, str) or len(cursor) > MAX_CURSOR_CHARS:
                raise _failed("its cursor is not a string, or is too long")
            if cursor in cursors or len(cursors) + 1 >= MAX_PAGES or len(entries) > MAX_TOOLS:
                raise _failed(f"its list of {kind} is too long, or repeats a cursor")
            cursors.add(cursor)
            page = await self._call(_METHODS[kind], {"cursor": cursor})

    async def _call(self, method: str, params: dict[str, Any], within_s: float | None = None) -> _Reply:
        request = self._request(method, params)
        with await self._send(request, within_s) as answer:
            # It may be as large as an answer to a caller, but not larger: a parser blocks all other tasks.
            within_s = within_s or self.upstream.timeout_s
            body, response = await whole_answer(answer, request.id, self.upstream, within_s)
        self._left_bytes -= len(body)
        if self._left_bytes < 0:
            raise _failed("its list is too large")
        if response is None or response.id not in (request.id, None):
            return _Reply(answer.status, answer.headers, None, None)
        result = response.result if isinstance(response.result, dict) and answer.status == 200 else None
        return _Reply(answer.status, answer.headers, result, response.error)

    def _request(self, method: str, params: dict[str, Any]) -> Request:
        self._last_id += 1
        if self.stateless:
            meta = {META_VERSION: self.version, META_CAPABILITIES: ABILITIES, META_CLIENT: OURSELVES}
            params = {**params, "_meta": meta}
        return Request(self._last_id, method, params)

    async def _send(self, message: Message, within_s: float | None = None, *, endless: bool = False) -> UpstreamAnswer:
        timeout_s = within_s or self.upstream.timeout_s
        sent = Outbound("POST", message, self.version, timeout_s, self._session_id, endless=endless)
        return await self.upstream.exchange(sent)


def _server(result: Mapping[str, Any]) -> str:
    """Returns the server's name and version on one line, from the members of any revision."""
    info = _dict(result.get("serverInfo") or _dict(result.get("_meta")).get(META_SERVER))
    return " ".join(_line(word) for word in (info.get("name"), info.get("version")) if isinstance(word, str))


def _line(word: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in word[:MAX_WORD_CHARS])


def _entries(kind: str, result: Mapping[str, Any]) -> list[object]:
    entries = result.get(kind)
    if not isinstance(entries, list) or len(entries) > MAX_TOOLS:
        raise _failed(f"its list of {kind} is not a list, or is too long")
    return entries


def _ttl_s(result: Mapping[str, Any]) -> float:
    ttl_ms = result.get("ttlMs")
    if isinstance(ttl_ms, bool) or not isinstance(ttl_ms, int | float):
        return DEFAULT_TTL_S
    return min(max(ttl_ms / 1000, MIN_TTL_S), MAX_TTL_S)


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _failed(detail: str) -> Refusal:
    return Refusal(Reason.UPSTREAM_FAILED, detail)
