"""Reads what an MCP request asks for.

There are six kinds of intent, the same in all eras. Each has the `Call` that policy decides on; opening a stream and
ending a session are calls like any other. Sessions are looked up here, because a request is read relative to its
session.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from sidecar.errors import Reason, Refusal
from sidecar.gateway.routing import Headers, check_accept
from sidecar.protocols import jsonrpc
from sidecar.protocols.jsonrpc import Notification, Request, Response, malformed
from sidecar.protocols.mcp import eras, messages, task_messages
from sidecar.protocols.mcp.eras import SESSION_VERSIONS, Era, EraHeaders
from sidecar.upstreams.mcp.sessions import Session, Sessions
from sidecar.vocabulary import Call, Caller

JSON, EVENT_STREAM = "application/json", "text/event-stream"
STREAM, END = "session/stream", "session/end"  # the methods of a GET and a DELETE, for which MCP defines no name


class AskIntent(NamedTuple):
    """A request that waits for its answer. `session` is None in the stateless era, and for `initialize`."""

    call: Call
    message: Request
    era: Era
    session: Session | None


class NotifyIntent(NamedTuple):
    """A notification, which is accepted or refused but never answered."""

    call: Call
    message: Notification
    session: Session


class ReplyIntent(NamedTuple):
    """The caller's answer to a request of the server."""

    call: Call
    message: Response
    session: Session


class PairIntent(NamedTuple):
    """A session of the HTTP+SSE transport, with its stream."""

    call: Call
    session: None = None


class ListenIntent(NamedTuple):
    """The session's own stream, or the rest of one that broke (`last_event_id`, the upstream's)."""

    call: Call
    session: Session
    last_event_id: str | None


class LeaveIntent(NamedTuple):
    """The end of a session."""

    call: Call
    session: Session


Intent = AskIntent | NotifyIntent | ReplyIntent | PairIntent | ListenIntent | LeaveIntent


@dataclass(slots=True)
class RequestReader:
    """Turns messages into intents for one caller at one server. `found` is called once the session that a message names
    is found. `paired` is the session of a message of the HTTP+SSE transport."""

    sessions: Sessions
    caller: Caller
    server: str
    headers: Headers
    head: EraHeaders
    found: Callable[[], None]
    paired: Session | None = None

    def of_message(self, message: jsonrpc.Message) -> AskIntent | NotifyIntent | ReplyIntent:
        """Returns the intent of a POST. Raises Refusal: malformed, unsupported, mismatched, or no session of this
        caller."""
        if isinstance(message, Response):
            return self._reply(message)
        if self.paired is not None:
            return self._of_pair(self.paired, message)
        era, version = eras.version_of(self.head, message)
        session = None if era is Era.STATELESS or message.method == "initialize" else self.session()
        if isinstance(message, Request):
            check_accept(self.headers, JSON, EVENT_STREAM)
        if era is Era.STATELESS:
            eras.check_routing(self.head, message)
        if session is None:
            return self._ask(message, era, version, None)
        if isinstance(message, Request):
            return self._ask(message, era, session.version, session)
        return NotifyIntent(messages.call_from(message, era, session.version, self.server), message, session)

    def _of_pair(self, session: Session, message: Request | Notification) -> AskIntent | NotifyIntent:
        """Reads a message of HTTP+SSE, which belongs to the session era and whose session exists before
        `initialize`."""
        self.found()
        if eras.names_stateless(self.head, message):
            raise malformed("this transport has the session era only")
        if (message.method == "initialize") is bool(session.version):
            raise malformed("initialize comes first, and once")
        if message.method == "initialize":
            return self._ask(message, Era.SESSION, "", session)
        if isinstance(message, Request):
            return self._ask(message, Era.SESSION, session.version, session)
        return NotifyIntent(messages.call_from(message, Era.SESSION, session.version, self.server), message, session)

    def of_stream(self) -> PairIntent:
        """Returns the intent of a GET at the HTTP+SSE transport's address."""
        check_accept(self.headers, EVENT_STREAM)
        return PairIntent(self._stream_call(STREAM, SESSION_VERSIONS[0]))

    def of_verb(self, verb: str) -> ListenIntent | LeaveIntent:
        """Returns the intent of a GET or a DELETE, which exist only in the session era."""
        if any(version in eras.STATELESS_VERSIONS for version in self.head.protocol_version):
            raise Refusal(Reason.VERB_NOT_ALLOWED, allow=("POST",))
        session = self.session()
        if verb == "DELETE":
            return LeaveIntent(self._stream_call(END, session.version), session)
        check_accept(self.headers, EVENT_STREAM)
        return ListenIntent(self._stream_call(STREAM, session.version), session, self._last_event_id(session))

    def _ask(self, message: Request | Notification, era: Era, version: str, session: Session | None) -> AskIntent:
        call = messages.call_from(message, era, version, self.server)
        if not isinstance(message, Request):  # METHODS_UNKNOWN was raised above: not a notification
            raise malformed("initialize is a request")
        return AskIntent(call, message, era, session)

    def _reply(self, message: Response) -> ReplyIntent:
        session = self.session()
        asked = session.awaited.pop(message.id, None) if message.id is not None else None
        if asked is None:
            raise malformed("no open request of the server has this id")
        question = messages.server_question(self.server, asked)
        named = task_messages.related_by_caller(message.result) if isinstance(message.result, dict) else ()
        call = Call("mcp", session.version, self.server, asked, (question,), session=asked == "ping", tasks=named)
        return ReplyIntent(call, message, session)

    def session(self) -> Session:
        """Returns the session that the request names. Raises Refusal: MALFORMED_CALL, or SESSION_UNKNOWN."""
        session = self.paired
        if session is None:
            session = session_of(self.sessions, self.caller, self.server, self.head)
        self.found()
        return session

    def _stream_call(self, method: str, version: str) -> Call:
        # Opening a stream or ending a session requires as little as ping: any grant on the server.
        question = messages.server_question(self.server, "ping")
        return Call("mcp", version, self.server, method, (question,), session=True)

    def _last_event_id(self, session: Session) -> str | None:
        lines = self.head.last_event_id
        if len(lines) > 1:
            raise malformed("Last-Event-ID is there more than once")
        # an event id of another session begins a fresh stream
        return session.opened_event_id(lines[0]) if lines else None


def session_of(sessions: Sessions, caller: Caller, server: str, head: EraHeaders) -> Session:
    """Returns the session of a request. Raises Refusal: MALFORMED_CALL, or SESSION_UNKNOWN."""
    lines = head.session_id
    if len(lines) != 1 or not lines[0]:
        raise malformed("Mcp-Session-Id must be there, once")
    session = sessions.find(lines[0], caller, server)
    versions = head.protocol_version
    if len(versions) > 1:
        raise malformed("MCP-Protocol-Version is there more than once")
    if not eras.SESSION_VERSIONS_SET.issuperset(versions):
        raise eras.unsupported(versions[0])
    return session
