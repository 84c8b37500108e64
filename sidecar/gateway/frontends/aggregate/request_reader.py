"""Reads requests at the aggregate address and finds their servers.

A request that names a server becomes the same intent as at the server's own address. A request that names none becomes
a `SpreadIntent`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from sidecar.errors import Reason, Refusal
from sidecar.gateway.frontends.aggregate.names import split, untagged, unwrapped
from sidecar.gateway.frontends.mcp_requests import (
    END,
    EVENT_STREAM,
    JSON,
    STREAM,
    AskIntent,
    Intent,
    ListenIntent,
    NotifyIntent,
    ReplyIntent,
    session_of,
)
from sidecar.gateway.routing import EVERY, Headers, check_accept
from sidecar.protocols import jsonrpc
from sidecar.protocols.jsonrpc import INVALID_PARAMS, Notification, Request, Response, malformed
from sidecar.protocols.mcp import eras, messages, task_messages
from sidecar.protocols.mcp.eras import Era, EraHeaders
from sidecar.upstreams.mcp.sessions import Session, Sessions
from sidecar.vocabulary import Call, Caller, Question

_NAMED = frozenset({"tools/call", "prompts/get"})
_EACH = frozenset({"tools/list", "prompts/list", "resources/list", "resources/templates/list", "subscriptions/listen"})
# A task id does not identify its server, so task methods do not exist at this address.
_ASKED = _EACH | {"initialize", "server/discover", "ping", "logging/setLevel", "completion/complete"}
ALL_SERVERS = Question("nhi:*", action="", server=EVERY)


class SpreadIntent(NamedTuple):
    """A request that names no server. `call` is the call, with a question about all servers; `also` are questions about
    single objects that must all be allowed, and `wanted` their URIs, by server.

    `resumed` is where a stream resumes: the server, and its own event id.
    """

    call: Call
    era: Era
    message: Request | Notification | None = None
    session: Session | None = None
    also: tuple[Question, ...] = ()
    resumed: tuple[str, str] | None = None

    @property
    def asks_each(self) -> bool:
        """Whether the request is sent to each server, so that it counts as that many calls."""
        return self.call.method in _EACH

    def wanted(self, server: str) -> list[str]:
        """Returns the URIs at one server that a subscription names."""
        return [question.name for question in self.also if question.server == server]


@dataclass(slots=True)
class AggregateReader:
    """Turns messages into intents for one caller at the aggregate address. `found` is called once the session that a
    message names is found."""

    sessions: Sessions
    caller: Caller
    headers: Headers
    head: EraHeaders
    found: Callable[[], None]

    def of_message(self, message: jsonrpc.Message) -> Intent | SpreadIntent:
        """Returns the intent of a POST. Raises Refusal: malformed, unsupported, mismatched, or no session of this
        caller."""
        if isinstance(message, Response):
            return self._reply(message)
        era, version = eras.version_of(self.head, message)
        session = None
        if era is Era.SESSION and message.method != "initialize":
            session = self.session()
            version = session.version
        if isinstance(message, Request):
            check_accept(self.headers, JSON, EVENT_STREAM)
        if era is Era.STATELESS:
            eras.check_routing(self.head, message)
        if isinstance(message, Notification):
            return self._tell(message, era, version, session)
        server, own = _inward(message)
        if server == EVERY:
            return _spread(message, era, version, session)
        return AskIntent(messages.call_from(own, era, version, server), own, era, session)

    def of_verb(self, verb: str) -> Intent | SpreadIntent:
        """Returns the intent of a GET or a DELETE, which exist only in the session era."""
        if any(version in eras.STATELESS_VERSIONS for version in self.head.protocol_version):
            raise Refusal(Reason.VERB_NOT_ALLOWED, allow=("POST",))
        session = self.session()
        if verb == "DELETE":
            return SpreadIntent(_call(END, session.version), Era.SESSION, session=session)
        check_accept(self.headers, EVENT_STREAM)
        stream = SpreadIntent(_call(STREAM, session.version), Era.SESSION, session=session)
        lines = self.head.last_event_id
        if len(lines) > 1:
            raise malformed("Last-Event-ID is there more than once")
        return self._resumed(stream, session, lines[0]) if lines else stream

    def _resumed(self, stream: SpreadIntent, session: Session, event_id: str) -> Intent | SpreadIntent:
        """Resumes a stream. An event id of the merged stream is sealed by the session and holds the event id of one
        server's stream. An invalid one begins a fresh stream."""
        if merged := _resumption(session, session.opened_event_id(event_id) or ""):
            return stream._replace(resumed=(merged[0].server, merged[1]))
        alone = _resumption(session, event_id)
        if alone is None:
            return stream
        part, own = alone
        question = messages.server_question(part.server, "ping")
        return ListenIntent(Call("mcp", part.version, part.server, STREAM, (question,), session=True), part, own)

    def _tell(
        self, message: Notification, era: Era, version: str, session: Session | None
    ) -> NotifyIntent | SpreadIntent:
        call = _named_nobody(message, era, version)
        if session is None:  # METHODS_UNKNOWN was raised above: not in the stateless era
            raise malformed("initialize is a request")
        if message.method != "notifications/progress":
            return SpreadIntent(call, era, message, session)
        found = untagged(message.params.get("progressToken"))
        part = session.parts.get(found[0]) if found else None
        if found is None or part is None:
            raise malformed("no open request of a server has this token", INVALID_PARAMS)
        own = Notification(message.method, {**message.params, "progressToken": found[1]})
        return NotifyIntent(messages.call_from(own, era, part.version, part.server), own, part)

    def _reply(self, message: Response) -> ReplyIntent:
        session = self.session()
        found = untagged(message.id)
        part = session.parts.get(found[0]) if found else None
        asked = part.awaited.pop(found[1], None) if found and part else None
        if found is None or part is None or asked is None:
            raise malformed("no open request of a server has this id")
        question = messages.server_question(part.server, asked)
        named = task_messages.related_by_caller(message.result) if isinstance(message.result, dict) else ()
        call = Call("mcp", part.version, part.server, asked, (question,), session=asked == "ping", tasks=named)
        return ReplyIntent(call, message._replace(id=found[1]), part)

    def session(self) -> Session:
        """Returns the session that the request names. Raises Refusal: MALFORMED_CALL, or SESSION_UNKNOWN."""
        session = session_of(self.sessions, self.caller, EVERY, self.head)
        self.found()
        return session


def _inward(message: Request) -> tuple[str, Request]:
    """Returns the server of a request, and the request as that server reads it; EVERY if it names none. Raises
    Refusal(MALFORMED_CALL)."""
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


def _spread(message: Request, era: Era, version: str, session: Session | None) -> SpreadIntent:
    also: tuple[Question, ...] = ()
    if message.method not in _ASKED:
        raise Refusal(Reason.METHOD_UNKNOWN)
    if message.method == "subscriptions/listen":
        message, also = _subscription(message)
    return SpreadIntent(_named_nobody(message, era, version), era, message, session, also)


def _named_nobody(message: Request | Notification, era: Era, version: str) -> Call:
    """Returns the call of a message that names no server and no task. Raises Refusal."""
    call = messages.call_from(message, era, version, EVERY)
    if call.tasks:  # task ownership is not checked at this address
        raise Refusal(Reason.TASK_UNKNOWN)
    return call._replace(questions=_all(message.method))


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


def _call(method: str, version: str) -> Call:
    # Opening a stream or ending a session requires as little as ping: any grant on any server.
    return Call("mcp", version, EVERY, method, _all("ping"), session=True)


def _all(method: str) -> tuple[Question, ...]:
    return (ALL_SERVERS._replace(action=method),)


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
    """Returns the member session that an event came from, and its own event id; None if there is none."""
    server, _, sealed = event_id.partition(".")
    part = session.parts.get(server)
    own = part.opened_event_id(sealed) if part is not None else None
    return None if part is None or own is None else (part, own)


def params_without(message: Request, *keys: str) -> dict[str, Any]:
    """Returns the parameters for each server without some; a caller's token would otherwise be used at many servers."""
    params = {
        key: value for key, value in messages.forwarded_params(message, "", tasks=False).items() if key not in keys
    }
    if "progressToken" in params.get("_meta", {}):
        params["_meta"] = {key: value for key, value in params["_meta"].items() if key != "progressToken"}
    return params
