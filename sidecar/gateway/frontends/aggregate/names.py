"""Maps names and URIs between servers and the aggregate address.

    tool, prompt        server__name                    split at the first `__`: server names contain none
    resource            sidecar://server/<uri>          percent-encoded as a whole
    page of MCP Apps    ui://server/<uri>               the same for `ui://…`: hosts look for that scheme
    resource template   sidecar://server/<template>     its text percent-encoded, its expressions unchanged
    ids and tokens      server__<JSON>                  of a server's requests to its client

The caller expands a template, so an expression's value arrives encoded by RFC 6570 and is decoded with the rest: its
reserved characters are then unencoded. Policy decides on them, and the server receives them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote, unquote

import orjson

from sidecar.protocols.jsonrpc import MAX_ID_CHARS, Id, Notification, Request
from sidecar.protocols.mcp import messages
from sidecar.protocols.mcp.messages import LeftOut
from sidecar.settings.uris import fault_in_uri

SEPARATOR: Final = "__"
SCHEME: Final = "sidecar://"
UI_SCHEME: Final = "ui://"  # of MCP Apps (SEP-1865); unchanged so that hosts recognize pages
MAX_NAME_CHARS: Final = 128  # of the whole name
SERVER_META: Final = "sidecar/server"
_SERVER = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*\Z")
_EXPRESSION = re.compile(r"(\{[^{}]*\})")
_NO_URI = re.compile(r"[^\x21-\x7e]")  # characters that a URI contains only percent-encoded
_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")


def joined(server: str, name: str) -> str:
    """Returns the name of a tool or prompt at the aggregate address."""
    return f"{server}{SEPARATOR}{name}"


def split(name: object) -> tuple[str, str] | None:
    """Returns the server and its own name for the object; None for a name without a server, and for one that is too
    long."""
    if not isinstance(name, str) or len(name) > MAX_NAME_CHARS:
        return None
    server, mark, own = name.partition(SEPARATOR)
    return (server, own) if mark and _SERVER.match(server) else None


def wrapped(server: str, uri: str) -> str:
    """Returns the URI of a resource, or a URI template, at the aggregate address."""
    encoded = "".join(part if part[:1] == "{" else quote(part, safe="") for part in _EXPRESSION.split(uri))
    return f"{UI_SCHEME if uri.startswith(UI_SCHEME) else SCHEME}{server}/{encoded}"


def unwrapped(uri: object) -> tuple[str, str] | None:
    """Returns the server and its own URI; None for a URI without a server."""
    if not isinstance(uri, str) or not uri.lower().startswith((SCHEME, UI_SCHEME)) or _STRAY_PERCENT.search(uri):
        return None
    server, slash, encoded = uri.partition("://")[2].partition("/")
    server = server.lower()  # it takes the place of a host, which is case-insensitive
    if not slash or not _SERVER.match(server):
        return None
    try:
        own = unquote(encoded, errors="strict")
    except UnicodeDecodeError:
        return None
    if uri.lower().startswith(UI_SCHEME) and not own.lower().startswith(UI_SCHEME):
        return None
    return server, _NO_URI.sub(lambda found: quote(found[0], safe=""), own)


def tagged(server: str, value: Id) -> str | None:
    """Returns an id that is unique across servers; None for one that is too long."""
    tag = joined(server, orjson.dumps(value).decode())
    return tag if len(tag) <= MAX_ID_CHARS else None


def untagged(tag: object) -> tuple[str, Id] | None:
    """Returns the server and its own id; None for an id that was not made by `tagged`."""
    if not isinstance(tag, str):
        return None
    server, _, written = tag.partition(SEPARATOR)
    try:
        value = orjson.loads(written)
    except orjson.JSONDecodeError:
        return None
    ours = _SERVER.match(server) and type(value) in (str, int) and tagged(server, value) == tag
    return (server, value) if ours else None


class AggregateNames:
    """Rewrites the names in one server's messages for the aggregate address. `left_out` holds the tools and prompts
    whose names would be too long."""

    __slots__ = ("left_out", "server")

    def __init__(self, server: str) -> None:
        self.server = server
        self.left_out: list[LeftOut] = []

    def result(self, result: dict[str, Any]) -> dict[str, Any]:
        """Rewrites a filtered result, at every place where MCP defines names, whatever the method."""
        changed = self._described({**result, **self._held(result)})
        for member in messages.LISTS:
            if member in result:
                entries = map(self._entry_of(member), result[member])
                changed[member] = [entry for entry in entries if entry is not None]
        if isinstance(requests := result.get("inputRequests"), dict):
            changed["inputRequests"] = {key: self._asking(request) for key, request in requests.items()}
        return changed

    def notification(self, notification: Notification) -> Notification:
        """Rewrites a server's notification."""
        method, params = notification
        match method:
            case "notifications/resources/updated":
                params = self._located(params)
            case "notifications/cancelled" if (tag := self._tag(params.get("requestId"))) is not None:
                params = {**params, "requestId": tag}
            case "notifications/message":
                meta = params.get("_meta")
                params = {**params, "_meta": {**(meta if isinstance(meta, dict) else {}), SERVER_META: self.server}}
        return Notification(method, params)

    def request(self, request: Request) -> Request | None:
        """Rewrites a server's request to its client; None if its ids are too long."""
        tag = self._tag(request.id)
        params = {**request.params, **self._held(request.params)}
        meta = params.get("_meta")
        if isinstance(meta, dict) and "progressToken" in meta:
            token = self._tag(meta["progressToken"])
            if token is None:
                return None
            params["_meta"] = {**meta, "progressToken": token}
        return None if tag is None else Request(tag, request.method, params)

    def event_id(self, sealed: str) -> str:
        """Returns an event id of this server's stream. The separator is a full stop, which neither base64 nor server
        names contain."""
        return f"{self.server}.{sealed}"

    def _tag(self, value: object) -> str | None:
        return tagged(self.server, value) if isinstance(value, str | int) and not isinstance(value, bool) else None

    def _entry_of(self, member: str) -> Callable[[dict[str, Any]], dict[str, Any] | None]:
        if member in ("tools", "prompts"):
            return partial(self._named, messages.KINDS[member])
        return partial(self._located, key="uriTemplate") if member == "resourceTemplates" else self._located

    def _named(self, kind: str, entry: dict[str, Any]) -> dict[str, Any] | None:
        name = joined(self.server, entry["name"])
        if len(name) > MAX_NAME_CHARS:
            reason = f"with its server's name it is longer than {MAX_NAME_CHARS} characters"
            self.left_out.append(LeftOut(kind, entry["name"], reason))
            return None
        return self._described({**entry, "name": name})

    def _located(self, holder: dict[str, Any], key: str = "uri") -> dict[str, Any]:
        uri = holder.get(key)
        named = {**holder, key: wrapped(self.server, uri)} if isinstance(uri, str) else holder
        return self._described(named)

    def _described(self, holder: dict[str, Any]) -> dict[str, Any]:
        """Rewrites the pages that `_meta` names at any depth: `ui.resourceUri`, and older vendors' keys."""
        return {**holder, "_meta": self._paged(holder["_meta"])} if "_meta" in holder else holder

    def _paged(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._paged(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._paged(item) for item in value]
        page = isinstance(value, str) and value.startswith(UI_SCHEME) and not fault_in_uri(value)
        return wrapped(self.server, value) if page else value

    def _held(self, holder: Mapping[str, Any]) -> dict[str, Any]:
        """Rewrites resource contents, content blocks, and messages with content blocks."""
        readers: dict[str, Callable[[dict[str, Any]], Any]]
        readers = {"contents": self._located, "content": self._block, "messages": self._message}
        return {member: _each(holder[member], read) for member, read in readers.items() if member in holder}

    def _asking(self, request: Any) -> Any:
        params = request.get("params") if isinstance(request, dict) else None
        return {**request, "params": {**params, **self._held(params)}} if isinstance(params, dict) else request

    def _message(self, message: dict[str, Any]) -> dict[str, Any]:
        content = message.get("content")
        if isinstance(content, dict):  # a single block, where other results have a list
            return {**message, "content": self._block(content)}
        return {**message, "content": _each(content, self._block)} if content is not None else message

    def _block(self, block: dict[str, Any]) -> dict[str, Any]:
        """Rewrites a resource link, an embedded resource, or the content of a tool result."""
        kind, inside = block.get("type"), block.get("resource")
        if kind == "resource_link":
            return self._located(block)
        if kind == "resource" and isinstance(inside, dict):
            return self._described({**block, "resource": self._located(inside)})
        if kind == "tool_result":
            return {**block, "content": _each(block.get("content"), self._block)}
        return self._described(block)


def _each(holders: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    if not isinstance(holders, list):
        return holders
    return [change(holder) if isinstance(holder, dict) else holder for holder in holders]
