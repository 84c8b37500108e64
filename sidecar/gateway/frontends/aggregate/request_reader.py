"""Reads requests at the aggregate address and finds their servers.

One that names a server becomes the intent that it would be at the server's own address: from there on nothing knows
the difference. One that names none is a `SpreadIntent`.
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
# Of the rest, a task's id does not say whose it is: there are none at this address.
_ASKED = _EACH | {"initialize", "server/discover", "ping", "logging/setLevel", "completion/complete"}
ALL_SERVERS = Question("nhi:*", action="", server=EVERY)


class SpreadIntent(NamedTuple):
    """A request that names no server. `call` names it, with a question about all of them; `also` are questions about
    single things that must be answered yes, and `wanted` the URIs that they are about, by server.

    `resumed` is where a stream goes on: the server, and its own event id.
    """

    call: Call
    era: Era
    message: Request | Notification | None = None
    session: Session | None = None
    also: tuple[Question, ...] = ()
    resumed: tuple[str, str] | None = None

    @property
    def asks_each(self) -> bool:
        """Whether each server is asked something, so that it is as many calls as there are servers."""
        return self.call.method in _EACH

    def wanted(self, server: str) -> list[str]:
        """The URIs at one server that a subscription names."""
        return [question.name for question in self.also if question.server == server]


@dataclass(slots=True)
class AggregateReader:
    """Turns messages into intents for one caller at the address of all servers. `found` is called once the session that
    a message names is known to be there."""

    sessions: Sessions
    caller: Caller
    headers: Headers
    head: EraHeaders
    found: Callable[[], None]

    def of_message(self, message: jsonrpc.Message) -> Intent | SpreadIntent:
        """The intent of a POST. Raises Refusal: malformed, unsupported, mismatched, or no session of this caller."""
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
        """The intent of a GET or a DELETE, which only the session era has."""
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
        """An event of the merged stream is sealed by the session around what an event of one call's stream is. One that
        is neither has a fresh stream."""
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
        if session is None:  # METHODS_UNKNOWN was raised above: the stateless era has none
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
        """The session that the request names. Raises Refusal: MALFORMED_CALL, or SESSION_UNKNOWN."""
        session = session_of(self.sessions, self.caller, EVERY, self.head)
        self.found()
        return session


def _inward(message: Request) -> tuple[str, Request]:
    """Whom a request is for, and what it is there; EVERY where it names nobody. Raises Refusal(MALFORMED_CALL)."""
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
    """The call of a message that names no server, nor a task of any. Raises Refusal."""
    call = messages.call_from(message, era, version, EVERY)
    if call.tasks:  # nobody asks whose they are on this way
        raise Refusal(Reason.TASK_UNKNOWN)
    return call._replace(questions=_all(message.method))


def _subscription(message: Request) -> tuple[Request, tuple[Question, ...]]:
    """A subscription without its URIs, which name servers, and the questions that they ask."""
    wanted = message.params.get("notifications")
    uris = wanted.get("resourceSubscriptions", []) if isinstance(wanted, dict) else []
    if not isinstance(wanted, dict) or not isinstance(uris, list):
        return message, ()  # `call_from` says what is wrong
    if "taskIds" in wanted:
        raise Refusal(Reason.METHOD_UNKNOWN, "an id does not say which server's task it names")
    if len(uris) > messages.MAX_SUBSCRIBED_URIS:
        raise malformed(f"at most {messages.MAX_SUBSCRIBED_URIS} resourceSubscriptions", INVALID_PARAMS)
    where, meta = "notifications.resourceSubscriptions", message.params.get("_meta", {})
    also = tuple(messages.resource_question(*_unwrapped(uri, where), where, meta) for uri in uris)
    bare = {key: value for key, value in wanted.items() if key != "resourceSubscriptions"}
    return message._replace(params={**message.params, "notifications": bare}), also


def _call(method: str, version: str) -> Call:
    # To listen or to leave takes as little as to ping: any grant on any server.
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
    """The part of the session that an event came from, and its own id there; None if it came from none."""
    server, _, sealed = event_id.partition(".")
    part = session.parts.get(server)
    own = part.opened_event_id(sealed) if part is not None else None
    return None if part is None or own is None else (part, own)


def params_without(message: Request, *keys: str) -> dict[str, Any]:
    """The parameters as they go to each server, without some; a token of the caller's would be used by many."""
    params = {
        key: value for key, value in messages.forwarded_params(message, "", tasks=False).items() if key not in keys
    }
    if "progressToken" in params.get("_meta", {}):
        params["_meta"] = {key: value for key, value in params["_meta"].items() if key != "progressToken"}
    return params
