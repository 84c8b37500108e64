"""Maps HTTP+JSON addresses to operations, and back.

    GET  /tasks/{task}?historyLength=5          1.0; with a tenant /{tenant}/tasks/{task}
    POST /v1/tasks/{task}:cancel                0.3

A path is split before it is decoded, and decoded once, segment by segment: `%2F` is part of an id, and never a
separator. A verb follows a colon, which may be percent-encoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from sidecar.protocols.a2a.operations import OPERATIONS, Operation, OperationRoute, Version
from sidecar.protocols.a2a.schema import Schema, UnreadableMessage

MAX_ID_CHARS: Final = 1024
_SEGMENT = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@\-]|%[0-9A-Fa-f]{2})+\Z")
_VERBS: Final = frozenset({"send", "stream", "cancel", "subscribe"})
_PLACES: Final[Mapping[str, str]] = {"{task}": "task", "{config}": "config"}
_SLASH = re.compile(r"[/\\]")
_WORD_NUMBER = re.compile(r"[0-9]{1,4}\Z")
_QUERY = re.compile(r"(?:[A-Za-z0-9._~!$'()*,;:@/?\-]|%[0-9A-Fa-f]{2}|\+|&|=)*\Z")


class RestAddress(NamedTuple):
    """The target of a path: the operation, its route, the tenant, and the ids `task` and `config`. If the path does not
    have the HTTP method, operation and route are None, and `allowed` are the methods that it has."""

    operation: Operation | None
    route: OperationRoute | None
    tenant: str
    ids: Mapping[str, str]
    allowed: tuple[str, ...] = ()


def address_of(verb: str, path: str, version: Version) -> RestAddress | None:
    """The target of a raw path; None if no operation has it. `verb` is the HTTP method. Raises UnreadableMessage for a
    segment that is empty, `.` or `..`, not in UTF-8, not printable, or longer than MAX_ID_CHARS."""
    if path == "" or path[0] != "/":
        return None
    segments = [_decoded(segment) for segment in path[1:].split("/")]
    found = list(_matches(segments, version))
    for operation, route, tenant, ids in found:
        if route.verb == verb:
            return RestAddress(operation, route, tenant, ids)
    if found:
        return RestAddress(None, None, "", {}, tuple(dict.fromkeys(route.verb for _, route, _, _ in found)))
    return None


def _decoded(segment: str) -> str:
    if not _SEGMENT.match(segment):
        raise UnreadableMessage("", "has a path that is not plain")
    try:
        text = unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise UnreadableMessage("", "has a path that is not UTF-8") from None
    if text in (".", "..") or not text.isprintable() or len(text) > MAX_ID_CHARS:
        raise UnreadableMessage("", "has a path that is not plain")
    return text


def _matches(
    segments: list[str], version: Version
) -> Iterator[tuple[Operation, OperationRoute, str, Mapping[str, str]]]:
    for operation in OPERATIONS:
        for route in operation.http(version):
            wanted = route.path[1:].split("/")
            tenants = [("", segments)]
            if version == "1.0" and len(segments) == len(wanted) + 1:
                tenants = [(segments[0], segments[1:])]
            for tenant, rest in tenants:
                ids = _fits(wanted, rest)
                if ids is not None:
                    yield operation, route, tenant, ids


def _fits(wanted: list[str], segments: list[str]) -> Mapping[str, str] | None:
    """The ids in a path of the given shape; None if it has another shape."""
    if len(wanted) != len(segments):
        return None
    ids: dict[str, str] = {}
    for want, segment in zip(wanted, segments, strict=True):
        place, _, verb = want.partition(":")
        name, found = segment, ""
        head, colon, tail = segment.rpartition(":")
        if colon and tail in _VERBS:
            name, found = head, tail
        if found != verb or not name:
            return None
        if place in _PLACES:
            ids[_PLACES[place]] = name
        elif place != name:
            return None
    return ids


def query_of(text: str) -> Mapping[str, str]:
    """The parameters of a raw query, decoded. Raises UnreadableMessage for a parameter that is repeated, for a
    character that a query must not contain, for NUL, and for text that is not UTF-8."""
    found: dict[str, str] = {}
    if not _QUERY.match(text):
        raise UnreadableMessage("", "has a query that is not plain")
    for pair in filter(None, text.split("&")):
        name, _, value = pair.partition("=")
        try:
            key, said = (unquote_to_bytes(part.replace("+", " ")).decode() for part in (name, value))
        except UnicodeDecodeError:
            raise UnreadableMessage("", "has a query that is not UTF-8") from None
        if "\0" in key or "\0" in said:
            raise UnreadableMessage("", "has a query that is not plain")
        if key in found:
            raise UnreadableMessage(f"/{key}", "is there more than once")
        found[key] = said
    return found


def typed(schema: Schema, message: str, query: Mapping[str, str]) -> dict[str, Any]:
    """A query's parameters as values that the schema reads. Unknown parameters are dropped like unknown fields. Raises
    UnreadableMessage for a value of a bool other than `true` and `false`."""
    spelled, values = schema.messages[message].spelled, dict[str, Any]()
    for name, text in query.items():
        one = spelled.get(name)
        if one is None:
            continue
        if one.type == "bool":
            if text not in ("true", "false"):
                raise UnreadableMessage(f"/{name}", "must be true or false")
            values[name] = text == "true"
        elif one.type in schema.enums and _WORD_NUMBER.match(text):
            values[name] = int(text)
        else:
            values[name] = text
    return values


def path_to(route: OperationRoute, ids: Mapping[str, str], tenant: str = "") -> str:
    """The path of an operation, each id encoded as one segment. Raises UnreadableMessage for an id or tenant that has
    `.` or `..` as a part between slashes: servers take `..` as the parent, and many decode a slash too early."""
    path = route.path
    for place, name in _PLACES.items():
        if place in path:
            path = path.replace(place, _segment(ids[name]))
    return (f"/{_segment(tenant)}" if tenant else "") + path


def _segment(name: str) -> str:
    if not {".", ".."}.isdisjoint(_SLASH.split(name)):
        raise UnreadableMessage("", "has a name that cannot be part of a path")
    return quote(name, safe="")


def query_from(values: Iterable[tuple[str, Any]]) -> str:
    """Names and values as a query, including the `?`; "" if there are none."""
    pairs = [f"{quote(name, safe='')}={quote(_plain(value), safe='')}" for name, value in values]
    return "?" + "&".join(pairs) if pairs else ""


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
