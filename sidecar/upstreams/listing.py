"""How do we ask an upstream for its own tools, in whichever era it speaks?

With our own credential and, in the session era, a session of our own that no caller shares (threat S4). The era is
found by asking: `server/discover` first, then `initialize` (MCP 2026-07-28, versioning). What comes back is untrusted:
pages, tools and bytes are bounded, and whatever is out of shape ends the enquiry as `upstream-failed`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from sidecar import __version__
from sidecar.egress import Deadline
from sidecar.errors import Reason, Refusal
from sidecar.protocols.eras import META_CAPABILITIES, META_CLIENT, META_VERSION, SESSION_VERSIONS, STATELESS_VERSIONS
from sidecar.protocols.jsonrpc import Id, Notification, Request
from sidecar.protocols.sse import SseParser
from sidecar.upstreams.transport import EVENT_STREAM, JSON, SESSION_ID, Answer, Outbound, Upstream

MAX_PAGES: Final = 100
MAX_TOOLS: Final = 2_000
MAX_LIST_BYTES: Final = 10 * 2**20
MAX_CURSOR_CHARS: Final = 4096
DEFAULT_TTL_S: Final = 60.0
# An upstream that says "0, ask every time" would double every call's cost; one that says "for ever" would never change.
MIN_TTL_S: Final = 1.0
MAX_TTL_S: Final = 3600.0
MAX_NOTICE_BYTES: Final = 64 * 1024
LISTEN_S: Final = 3600.0  # a stream that died without a word is noticed at the latest when it is opened anew
_FAREWELL_S: Final = 2.0
_LARGE_BYTES: Final = 64 * 1024
_METHOD_NOT_FOUND: Final = -32601
_FORGOTTEN: Final = frozenset({400, 404, 405})

CHANGED: Final = "notifications/tools/list_changed"
OURSELVES: Final = {"name": "sidecar", "version": __version__}


@dataclass(frozen=True, slots=True)
class Listing:
    """Every entry of every page, unchecked, and for how long the upstream lets it stand."""

    entries: list[object]
    ttl_s: float


@dataclass(frozen=True, slots=True)
class _Reply:
    """What one request came to. Without `result` and `error` the HTTP status is all there is."""

    status: int
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    session_id: str | None = None


@dataclass(slots=True)
class Enquiry:
    """Our own conversation with one upstream. `version` is the revision agreed on, "" before the first answer;
    `announces` whether the upstream says that it tells of changes of its list."""

    upstream: Upstream
    version: str = ""
    announces: bool = False
    _session_id: str | None = None
    _last_id: int = 0
    _left_bytes: int = field(default=MAX_LIST_BYTES)

    @property
    def stateless(self) -> bool:
        return self.version in STATELESS_VERSIONS

    async def list_tools(self) -> Listing:
        """Every page of `tools/list`. Raises Refusal: UPSTREAM_FAILED, UPSTREAM_TIMEOUT."""
        self._left_bytes = MAX_LIST_BYTES
        opened = not self.version
        if opened:
            await self._open()
        first = await self._call("tools/list", {})
        if first.status in _FORGOTTEN and not opened:  # restarted, or replaced by another version of itself
            self.version, self._session_id = "", None
            await self._open()
            first = await self._call("tools/list", {})
        return await self._pages(first)

    async def changes(self) -> AsyncIterator[None]:
        """One item for each change of the list that the upstream tells of, while its stream lasts. Raises Refusal."""
        if not self.version:
            raise _failed("there is no conversation to listen in")
        with await self._subscribe() as answer:
            if answer.status != 200 or answer.media_type != EVENT_STREAM:
                raise _failed("it offers no stream")
            parser = SseParser(max_event_bytes=MAX_NOTICE_BYTES)
            async for chunk in answer.chunks(deadline=Deadline.within(LISTEN_S)):
                for event in parser.feed(chunk):
                    if event.data and _tells_of_change(event.data):
                        yield

    async def close(self) -> None:
        """End our session, if there is one."""
        session_id, version = self._session_id, self.version
        self.version, self._session_id = "", None
        if session_id is not None:
            await self.upstream.end_session(session_id, version, _FAREWELL_S)

    async def _open(self) -> None:
        self.version = STATELESS_VERSIONS[-1]
        reply = await self._call("server/discover", {})
        offered = reply.result.get("supportedVersions") if reply.result else None
        if isinstance(offered, list):
            for version in reversed(STATELESS_VERSIONS):
                if version in offered:
                    self.version, self.announces = version, _announces(reply.result)
                    return
        self.version = ""
        if reply.status in (401, 403):  # our credential; asking in another era would not mend it
            raise _failed(f"it answered HTTP {reply.status}")
        await self._initialize()

    async def _initialize(self) -> None:
        params = {
            "protocolVersion": SESSION_VERSIONS[-1],
            "capabilities": {},
            "clientInfo": OURSELVES,
        }
        reply = await self._call("initialize", params)
        version = reply.result.get("protocolVersion") if reply.result else None
        if version not in SESSION_VERSIONS:
            raise _failed(
                f"it answered HTTP {reply.status}" if reply.result is None else "its revision is not known here"
            )
        self.version, self._session_id, self.announces = version, reply.session_id, _announces(reply.result)
        with await self._send(Notification("notifications/initialized", {})) as answer:
            if not 200 <= answer.status < 300:
                self.version, self._session_id = "", None
                raise _failed(f"it answered HTTP {answer.status}")

    async def _pages(self, page: _Reply) -> Listing:
        entries: list[object] = []
        ttls: list[float] = []
        cursors: set[str] = set()
        while True:
            if page.error is not None and page.error.get("code") == _METHOD_NOT_FOUND and not cursors:
                return Listing([], DEFAULT_TTL_S)  # a server without tools
            result = page.result
            if result is None:
                raise _failed("it has no list of tools" if page.error else f"it answered HTTP {page.status}")
            entries += _tools(result)
            ttls.append(_ttl_s(result))
            cursor = _cursor(result)
            if cursor is None:
                return Listing(entries, min(ttls))
            if cursor in cursors or len(cursors) + 1 >= MAX_PAGES or len(entries) > MAX_TOOLS:
                raise _failed("its list of tools is too long, or goes round in circles")
            cursors.add(cursor)
            page = await self._call("tools/list", {"cursor": cursor})

    async def _call(self, method: str, params: dict[str, Any]) -> _Reply:
        request = self._request(method, params)
        with await self._send(request) as answer:
            message = await self._message(answer, request.id)
            session_id = answer.headers.get(SESSION_ID) if method == "initialize" else None
            result, error = message.get("result"), message.get("error")
            return _Reply(
                answer.status,
                result if isinstance(result, dict) and answer.status == 200 else None,
                error if isinstance(error, dict) else None,
                session_id,
            )

    async def _subscribe(self) -> Answer:
        if self.stateless:
            wanted = {"notifications": {"toolsListChanged": True}}
            return await self._send(self._request("subscriptions/listen", wanted), endless=True)
        timeout_s = self.upstream.timeout_s
        return await self.upstream.exchange(Outbound("GET", None, self.version, timeout_s, self._session_id))

    def _request(self, method: str, params: dict[str, Any]) -> Request:
        self._last_id += 1
        if self.stateless:
            params = {**params, "_meta": {META_VERSION: self.version, META_CAPABILITIES: {}, META_CLIENT: OURSELVES}}
        return Request(self._last_id, method, params)

    async def _send(self, message: Request | Notification, *, endless: bool = False) -> Answer:
        timeout_s = self.upstream.timeout_s
        return await self.upstream.exchange(
            Outbound("POST", message, self.version, timeout_s, self._session_id, endless=endless)
        )

    async def _message(self, answer: Answer, request_id: Id) -> Mapping[str, Any]:
        """The message that answers our request, whichever way it came; empty where there is none."""
        if answer.media_type == JSON:
            body = await answer.read(self._left_bytes)
            self._spend(len(body))
            return await _parsed(body, request_id)
        if answer.media_type == EVENT_STREAM:
            return await self._event(answer, request_id)
        return {}

    async def _event(self, answer: Answer, request_id: Id) -> Mapping[str, Any]:
        parser = SseParser()
        async for chunk in answer.chunks(deadline=Deadline.within(self.upstream.timeout_s)):
            self._spend(len(chunk))
            for event in parser.feed(chunk):
                message = await _parsed((event.data or "").encode(), request_id)
                if message:
                    return message
        return {}

    def _spend(self, count: int) -> None:
        self._left_bytes -= count
        if self._left_bytes < 0:
            raise _failed("its list of tools is too large")


async def _parsed(raw: bytes, request_id: Id) -> Mapping[str, Any]:
    """The response to `request_id`, else nothing: an upstream may interleave what it likes."""
    if not raw:
        return {}
    try:
        # Off the loop where it is large: callers of other upstreams do not wait for this one's list.
        message = orjson.loads(raw) if len(raw) < _LARGE_BYTES else await asyncio.to_thread(orjson.loads, raw)
    except orjson.JSONDecodeError:
        raise _failed("its answer is not JSON") from None
    answers = isinstance(message, dict) and type(message.get("id")) is int and message["id"] == request_id
    return message if answers and "method" not in message else {}


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


def _tools(result: Mapping[str, Any]) -> list[object]:
    tools = result.get("tools")
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise _failed("its list of tools is no list, or too long")
    return tools


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
