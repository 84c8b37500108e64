"""Reads requests at the aggregate address and finds their servers.

A request that names a server becomes the same intent as at the server's own address. A request that names none becomes
a `SpreadIntent`.
"""

from __future__ import annotations

from typing import Any

from sidecar.errors import Reason, Refusal
from sidecar.gateway.frontends import mcp_requests
from sidecar.gateway.frontends.aggregate.names import split, untagged, unwrapped
from sidecar.gateway.frontends.mcp_requests import STREAM, Intent, ListenIntent, SpreadIntent, stream_call
from sidecar.gateway.routing import EVERY
from sidecar.protocols.jsonrpc import INVALID_PARAMS, Id, Notification, Request, malformed
from sidecar.protocols.mcp import messages
from sidecar.protocols.mcp.eras import Era
from sidecar.upstreams.mcp.sessions import Session
from sidecar.vocabulary import Call, Question

_NAMED = frozenset({"tools/call", "prompts/get"})
EACH = frozenset({"tools/list", "prompts/list", "resources/list", "resources/templates/list", "subscriptions/listen"})
"""Methods that are sent to each server, so that a request counts as that many calls."""
# A task id does not identify its server, so task methods do not exist at this address.
_ASKED = EACH | {"initialize", "server/discover", "ping", "logging/setLevel", "completion/complete"}
ALL_SERVERS = Question("nhi:*", action="", server=EVERY)


class AggregateReader(mcp_requests.RequestReader):
    """Turns requests at the aggregate address into intents."""

    __slots__ = ()

    def _of(
        self, server: str, message: Request | Notification, era: Era, version: str, session: Session | None
    ) -> Intent:
        if isinstance(message, Notification):
            return self._tell(message, era, version, session)
        server, own = _inward(message)
        if server != EVERY:
            return mcp_requests.AskIntent(messages.call_from(own, era, version, server), own, era, session)
        also: tuple[Question, ...] = ()
        if message.method not in _ASKED:
            raise Refusal(Reason.METHOD_UNKNOWN)
        if message.method == "subscriptions/listen":
            message, also = _subscription(message)
        return SpreadIntent(_to_all(message, era, version), era, message, session, also)

    def _leave(self, session: Session) -> SpreadIntent:
        return SpreadIntent(_stream_call(mcp_requests.END, session.version), Era.SESSION, session=session)

    def _listen(self, session: Session, event_id: str = "") -> ListenIntent | SpreadIntent:
        """Opens or resumes a stream. An event id of the merged stream is sealed by the session and holds the event id
        of one server's stream, which is resumed. An invalid event id is ignored."""
        stream = SpreadIntent(_stream_call(STREAM, session.version), Era.SESSION, session=session)
        if merged := _resumption(session, session.opened_event_id(event_id) or ""):
            return stream._replace(resumed=(merged[0].server, merged[1]))
        if (alone := _resumption(session, event_id)) is None:
            return stream
        part, own = alone
        return ListenIntent(stream_call(part.server, STREAM, part.version), part, own)

    def _tell(
        self, message: Notification, era: Era, version: str, session: Session | None
    ) -> mcp_requests.NotifyIntent | SpreadIntent:
        call = _to_all(message, era, version)
        assert session is not None, "every notification that `call_from` knows belongs to a session"
        if message.method != "notifications/progress":
            return SpreadIntent(call, era, message, session)
        if (found := _at_member(session, message.params.get("progressToken"))) is None:
            raise malformed("no open request of a server has this token", INVALID_PARAMS)
        part, token = found
        own = Notification(message.method, {**message.params, "progressToken": token})
        return mcp_requests.NotifyIntent(messages.call_from(own, era, part.version, part.server), own, part)

    def _asked(self, session: Session, request_id: Id) -> tuple[Session, Id] | None:
        return _at_member(session, request_id)


def _at_member(session: Session, tag: object) -> tuple[Session, Id] | None:
    """Returns the member session, and the server's own id, of an id that was made unique across servers."""
    found = untagged(tag)
    part = session.parts.get(found[0]) if found else None
    return (part, found[1]) if found and part else None


def _inward(message: Request) -> tuple[str, Request]:
    """Returns the server of a request (EVERY for none), and the request as that server reads it. Raises Refusal."""
    method, params = message.method, message.params
    if method in _NAMED:
        server, own = _split(params.get("name"), "name")
        return server, message._replace(params={**params, "name": own})
    if method in messages.LOCATED:
        server, own = _unwrapped(params.get("uri"), "uri")
        return server, message._replace(params={**params, "uri": own})
    if method == "completion/complete" and isinstance(ref := params.get("ref"), dict):
        key, read = ("name", _split) if ref.get("type") == "ref/prompt" else ("uri", _unwrapped)
        server, own = read(ref.get(key), f"ref.{key}")
        return server, message._replace(params={**params, "ref": {**ref, key: own}})
    return EVERY, message


def _to_all(message: Request | Notification, era: Era, version: str) -> Call:
    """Returns the call of a message that names no server and no task. Raises Refusal."""
    call = messages.call_from(message, era, version, EVERY)
    if call.tasks:  # task ownership is not checked at this address
        raise Refusal(Reason.TASK_UNKNOWN)
    return call._replace(questions=(ALL_SERVERS._replace(action=message.method),))


def _subscription(message: Request) -> tuple[Request, tuple[Question, ...]]:
    """Returns a subscription without its URIs, and the questions about them."""
    wanted = message.params.get("notifications")
    uris = wanted.get("resourceSubscriptions", []) if isinstance(wanted, dict) else []
    if not isinstance(wanted, dict) or not isinstance(uris, list):
        return message, ()  # `call_from` reports the error
    if "taskIds" in wanted:
        raise Refusal(Reason.METHOD_UNKNOWN, "an id does not say which server's task it names")
    if len(uris) > messages.MAX_SUBSCRIBED_URIS:
        raise malformed(f"at most {messages.MAX_SUBSCRIBED_URIS} resourceSubscriptions", INVALID_PARAMS)
    where, meta = "notifications.resourceSubscriptions", message.params.get("_meta", {})
    also = tuple(messages.resource_question(*_unwrapped(uri, where), where, meta) for uri in uris)
    bare = {key: value for key, value in wanted.items() if key != "resourceSubscriptions"}
    return message._replace(params={**message.params, "notifications": bare}), also


def _stream_call(method: str, version: str) -> Call:
    return stream_call(EVERY, method, version)._replace(questions=(ALL_SERVERS._replace(action="ping"),))


def _split(name: object, where: str) -> tuple[str, str]:
    found = split(name)
    if found is None:
        raise malformed(f"params.{where} must be <server>__<name>, of at most 128 characters", INVALID_PARAMS)
    return found


def _unwrapped(uri: object, where: str) -> tuple[str, str]:
    found = unwrapped(uri)
    if found is None:
        raise malformed(
            f"params.{where} must be sidecar://<server>/<percent-encoded URI>, or ui:// likewise", INVALID_PARAMS
        )
    return found


def _resumption(session: Session, event_id: str) -> tuple[Session, str] | None:
    """Returns the member session of an event and the event's id there; None if there is none."""
    server, _, sealed = event_id.partition(".")
    part = session.parts.get(server)
    own = part.opened_event_id(sealed) if part is not None else None
    return None if part is None or own is None else (part, own)


def params_without_cursor(message: Request) -> dict[str, Any]:
    """Returns a list's parameters for each server, without the caller's cursor and token, which would be used at many
    servers."""
    forwarded = messages.forwarded_params(message, "", tasks=False)
    params = {key: value for key, value in forwarded.items() if key != "cursor"}
    if "progressToken" in params.get("_meta", {}):
        params["_meta"] = {key: value for key, value in params["_meta"].items() if key != "progressToken"}
    return params
