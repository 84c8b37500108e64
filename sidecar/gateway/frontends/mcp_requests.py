"""Reads the intent of an MCP request.

There are six kinds of intent, the same in all MCP revisions, and one more for requests to all servers. Each has the
`Call` that policy decides on; opening a stream and ending a session are calls like any other. Sessions are looked up
here, because a request is read relative to its session.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sidecar.errors import Reason, Refusal
from sidecar.gateway.request import RequestContext
from sidecar.gateway.routing import check_accept
from sidecar.protocols import jsonrpc
from sidecar.protocols.jsonrpc import Id, Notification, Request, Response, malformed
from sidecar.protocols.mcp import eras, messages, task_messages
from sidecar.protocols.mcp.eras import SESSION, SESSION_VERSIONS, STATELESS, VERSION_HEADER, Era
from sidecar.upstreams.mcp.sessions import Session, Sessions
from sidecar.vocabulary import Call, Caller, Question

_new = tuple.__new__
JSON, EVENT_STREAM = "application/json", "text/event-stream"
_BOTH = (f"{JSON}, {EVENT_STREAM}",)  # the line that nearly every client sends
STREAM, END = "session/stream", "session/end"  # the methods of a GET and a DELETE, for which MCP defines no name


class AskIntent(NamedTuple):
    """A request that waits for its answer. `session` is None in stateless revisions and for `initialize`, except over
    HTTP+SSE, where the session exists before it."""

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
    """The stream of a new session of the HTTP+SSE transport."""

    call: Call
    session: None = None


class ListenIntent(NamedTuple):
    """The session's own stream, or the rest of one that broke (`last_event_id`, the upstream's)."""

    call: Call
    session: Session
    last_event_id: str | None


class LeaveIntent(NamedTuple):
    """The end of a session, by its client's DELETE."""

    call: Call
    session: Session


class SpreadIntent(NamedTuple):
    """A request at the aggregate address that names no server. `call` is the question about all servers; the questions
    in `also` must be allowed too. For a resumed stream, `resumed` is the server and its own event id."""

    call: Call
    era: Era
    message: Request | Notification | None = None
    session: Session | None = None
    also: tuple[Question, ...] = ()
    resumed: tuple[str, str] | None = None


OtherIntent = NotifyIntent | ReplyIntent | PairIntent | ListenIntent | LeaveIntent
ServerIntent = AskIntent | OtherIntent
Intent = ServerIntent | SpreadIntent


@dataclass(frozen=True, slots=True)
class RequestReader:
    """Turns requests at one server's address into intents."""

    sessions: Sessions

    def of_message(
        self, request: RequestContext, caller: Caller, message: jsonrpc.Message, paired: Session | None = None
    ) -> Intent:
        """Returns the intent of a POST; `paired` is the session of HTTP+SSE, if it belongs to one. Raises Refusal, such
        as MALFORMED_CALL, METHOD_UNKNOWN, HEADER_MISMATCH, NOT_ACCEPTABLE, SESSION_UNKNOWN."""
        if isinstance(message, Response):
            return self._reply(request, caller, message, paired)
        if paired is not None:
            return self._of_pair(request, message, paired)
        headers, session = request.headers, None
        era, version = eras.version_of(headers, message)
        if era is SESSION and message.method != "initialize":
            session = self.session(request, caller)
            version = session.version
        if headers.get("accept") != _BOTH and isinstance(message, Request):
            check_accept(headers, JSON, EVENT_STREAM)
        if era is STATELESS:
            eras.check_routing(headers, message)
        return self._of(request.server, message, era, version, session)

    def _of(
        self, server: str, message: Request | Notification, era: Era, version: str, session: Session | None
    ) -> Intent:
        call = messages.call_from(message, era, version, server)
        if isinstance(message, Request):
            return _new(AskIntent, (call, message, era, session))
        assert session is not None, "every notification that `call_from` knows belongs to a session"
        return NotifyIntent(call, message, session)

    def _of_pair(self, request: RequestContext, message: Request | Notification, session: Session) -> Intent:
        """Reads a message of HTTP+SSE, which belongs to a session revision and to a session that exists before
        `initialize`."""
        request.in_session()
        if eras.names_stateless(request.headers, message):
            raise malformed("this transport serves the session revisions of MCP only")
        if (message.method == "initialize") is bool(session.version):
            raise malformed("initialize comes first, and once")
        return self._of(request.server, message, SESSION, session.version, session)

    def of_stream(self, request: RequestContext) -> PairIntent:
        """Returns the intent of a GET at the HTTP+SSE transport's address. Raises Refusal(NOT_ACCEPTABLE)."""
        check_accept(request.headers, EVENT_STREAM)
        return PairIntent(stream_call(request.server, STREAM, SESSION_VERSIONS[0]))

    def of_verb(self, request: RequestContext, caller: Caller) -> Intent:
        """Returns the intent of a GET or a DELETE, which exist only in session revisions. Raises Refusal:
        VERB_NOT_ALLOWED, MALFORMED_CALL, SESSION_UNKNOWN, NOT_ACCEPTABLE."""
        if not eras.STATELESS_SET.isdisjoint(request.headers.get(VERSION_HEADER, ())):
            raise Refusal(Reason.VERB_NOT_ALLOWED, allow=("POST",))
        session = self.session(request, caller)
        if request.verb == "DELETE":
            return self._leave(session)
        check_accept(request.headers, EVENT_STREAM)
        event_ids = request.headers.get("last-event-id", ())
        if len(event_ids) > 1:
            raise malformed("Last-Event-ID is there more than once")
        return self._listen(session, *event_ids)

    def _leave(self, session: Session) -> Intent:
        return LeaveIntent(stream_call(session.server, END, session.version), session)

    def _listen(self, session: Session, event_id: str = "") -> Intent:
        """Opens the session's stream, or resumes one after an event. An event id of another session is ignored."""
        call = stream_call(session.server, STREAM, session.version)
        return ListenIntent(call, session, session.opened_event_id(event_id) if event_id else None)

    def _reply(self, request: RequestContext, caller: Caller, message: Response, paired: Session | None) -> ReplyIntent:
        found = None
        if message.id is not None:
            found = self._asked(self.session(request, caller, paired), message.id)
        asked = found[0].awaited.pop(found[1], None) if found is not None else None
        if found is None or asked is None:
            raise malformed("no open request of the server has this id")
        session, own_id = found
        question = messages.server_question(session.server, asked)
        named = task_messages.related_by_caller(message.result) if isinstance(message.result, dict) else ()
        call = Call("mcp", session.version, session.server, asked, (question,), session=asked == "ping", tasks=named)
        return ReplyIntent(call, message._replace(id=own_id), session)

    def _asked(self, session: Session, request_id: Id) -> tuple[Session, Id] | None:
        return session, request_id

    def session(self, request: RequestContext, caller: Caller, session: Session | None = None) -> Session:
        """Returns the session that the request names, or the given `session`. Raises Refusal: MALFORMED_CALL,
        VERSION_UNSUPPORTED, SESSION_UNKNOWN."""
        if session is None:
            lines, versions = (request.headers.get(name, ()) for name in ("mcp-session-id", VERSION_HEADER))
            if len(lines) != 1 or not lines[0]:
                raise malformed("Mcp-Session-Id must be there, once")
            session = self.sessions.find(lines[0], caller, request.server)
            if len(versions) > 1:
                raise malformed("MCP-Protocol-Version is there more than once")
            if not eras.SESSION_VERSIONS_SET.issuperset(versions):
                raise eras.unsupported(versions[0])
        request.in_session()
        return session


def stream_call(server: str, method: str, version: str) -> Call:
    """Returns the call that opens a stream or ends a session. It requires the same permission as `ping`."""
    return Call("mcp", version, server, method, (messages.server_question(server, "ping"),), session=True)
