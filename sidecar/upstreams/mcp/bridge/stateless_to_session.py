"""Serves stateless callers from a session-based server, in sessions that the bridge holds (`borrowed_sessions.py`).

A request of the server to its client becomes the answer of the call, `input_required`, and the call is held
(`borrowed_calls.py`) until its caller retries it with the input.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Any, Final

from sidecar.errors import Reason, Refusal
from sidecar.http.client import ENDLESS, Deadline
from sidecar.protocols import sse
from sidecar.protocols.jsonrpc import INVALID_PARAMS, Id, Message, Notification, Request, Response
from sidecar.protocols.mcp.eras import META_LEVEL
from sidecar.upstreams.mcp.bridge import translation
from sidecar.upstreams.mcp.bridge.borrowed_calls import BorrowedCall, HeldCall, HeldCalls, progress_token
from sidecar.upstreams.mcp.bridge.borrowed_sessions import BorrowedSession, BorrowedSessions
from sidecar.upstreams.mcp.bridge.server_eras import ServerEras
from sidecar.upstreams.mcp.streams import StreamMark, received
from sidecar.upstreams.mcp.transport import (
    EVENT_STREAM,
    FULL_PATIENCE,
    JSON,
    LIST_FLAGS,
    UPDATED,
    BuiltUpstream,
    McpTransport,
    Outbound,
    UpstreamAnswer,
    event_of,
    unknown_method,
)
from sidecar.upstreams.statuses import passes_on, refusal_of

_NO_ONE_CALL: Final = {"code": -32603, "message": "There is not exactly one call that this could belong to"}
_STATE_UNKNOWN: Final = {"code": INVALID_PARAMS, "message": "requestState does not name a call that waits for this"}
_BAD_RESPONSES: Final = {"code": INVALID_PARAMS, "message": "inputResponses must be an object of objects"}


class StatelessToSession:
    """Carries stateless calls to one server, in borrowed sessions."""

    def __init__(self, inner: McpTransport, question_s: float, idle_s: float, eras: ServerEras) -> None:
        self._inner = inner
        self._question_s = question_s
        self.held = HeldCalls(question_s, self._dropped)
        self._sessions = BorrowedSessions(inner, idle_s, eras, self._heard, self.held.drop_all_in)

    async def exchange(self, outbound: Outbound) -> UpstreamAnswer:
        """Returns the answer to one message of a stateless revision. Raises Refusal."""
        request = outbound.message
        if not isinstance(request, Request):  # stateless revisions have no other messages over HTTP
            raise Refusal(Reason.METHOD_UNKNOWN)
        deadline = Deadline.within(outbound.deadline_s)
        if request.method in translation.RESUMED_BY_RETRY and "requestState" in request.params:
            return await self._resume(outbound, request, deadline)
        lent = await self._sessions.of(outbound, request)
        if request.method == "server/discover":
            return BuiltUpstream.of_response(Response(request.id, translation.discovered(lent.server)))
        if request.method == "subscriptions/listen":
            return await self._sessions.subscribe(lent, request)
        return await self._call(lent, outbound, request, deadline)

    async def close(self) -> None:
        self._sessions.close()
        await self._sessions.background.close()

    async def _call(
        self, lent: BorrowedSession, outbound: Outbound, request: Request, deadline: Deadline
    ) -> UpstreamAnswer:
        answer = await self._call_once(lent, outbound, request, deadline)
        if answer is None:
            # The server lost the session, so it did not execute the call: the call is sent once more in a new one.
            self._sessions.lose(lent)
            lent = await self._sessions.of(outbound, request)
            answer = await self._call_once(lent, outbound, request, deadline)
        if answer is None:
            self._sessions.lose(lent)
            raise Refusal(Reason.UPSTREAM_FAILED, "it loses its sessions")
        return answer

    async def _call_once(
        self, lent: BorrowedSession, outbound: Outbound, request: Request, deadline: Deadline
    ) -> UpstreamAnswer | None:
        """Sends the call; returns its answer, None if the session is lost. Raises Refusal."""
        level = _level_of(request)
        await self._set_level(lent, level)
        if lent.may_ask:
            await lent.listens()
        token, upstream_id = progress_token(request), next(lent.ids)
        asked = lent.outbound._replace(
            verb="POST",
            # The sidecar chooses the token, because two calls in one session may use the same.
            message=Request(upstream_id, request.method, translation.lent_params(request.params, upstream_id)),
            # A call that may be held has a connection of its own, so that held calls do not block others.
            deadline_s=outbound.deadline_s + (self._question_s if lent.may_ask else 0),
            endless=lent.may_ask,
            caller=outbound.caller,
            extra=translation.without_parameters(outbound).extra,
            own=False,
        )
        course = BorrowedCall(
            self._inner,
            lent,
            asked,
            upstream_id,
            request.method,
            translation.fingerprint(request),
            request.id,
            level,
            None if token is None else upstream_id,
            token,
            is_patient=outbound.deadline_s >= self._inner.timeout_s * FULL_PATIENCE,
        )
        lent.courses[upstream_id] = course
        course.begin()
        return await self._answer(course, deadline)

    async def _set_level(self, lent: BorrowedSession, level: str | None) -> None:
        """Sets the session's level to that of its most verbose call. Each call receives the messages of its own
        level."""
        if level is None or not translation.offers(lent.server, "logging"):
            return
        if lent.level is None or not translation.at_least(level, lent.level):
            lent.level = level
            await self._sessions.ask(lent, "logging/setLevel", {"level": level})

    async def _answer(self, course: BorrowedCall, deadline: Deadline) -> UpstreamAnswer | None:
        """Returns the head of a call's answer, as soon as it arrives; None if the session is lost. Raises Refusal."""
        try:
            while not course.opened:
                arrival = await course.next(deadline)
                if isinstance(arrival, BuiltUpstream):
                    return self._whole_body(course, arrival)
                if arrival is StreamMark.OPENED:
                    course.opened = True
                elif isinstance(arrival, Request | Response):  # on the session's stream, before the call's own
                    told, state = self.told(course, arrival)
                    if isinstance(told, Response):
                        return self._body(told, state)
            return AnswerCrossing(self, course)
        except BaseException as error:
            self.give_up(course, late=_is_late(error))
            raise

    def _whole_body(self, course: BorrowedCall, whole: BuiltUpstream) -> UpstreamAnswer | None:
        self._finished(course)
        if whole.status == 404 and course.lent.outbound.session_id is not None:
            return None
        if whole.media_type != JSON or (whole.status != 200 and passes_on(refusal_of(whole))):
            return whole  # the caller of this reads the body by its status
        message = received(whole.body)
        if whole.status != 200:
            if not isinstance(message, Response) or message.error is None:
                return whole
            # The id of the error does not matter: the exchange has one request.
            error = Response(course.request_id, error=translation.lent_error(message.error))
            return BuiltUpstream.of_response(error, whole.status, headers=whole.headers)
        if not isinstance(message, Response):
            raise Refusal(Reason.RESPONSE_REFUSED, "its body is not an answer")
        return self._body(*self._final(course, message))

    def _body(self, final: Response, state: str) -> BuiltUpstream:
        status = 200 if final.error is None else translation.lent_status(final.error)
        return BuiltUpstream.of_response(final, status, withheld=partial(self.held.drop, state))

    def told(self, course: BorrowedCall, message: Message) -> tuple[Notification | Response | None, str]:
        """Returns a message in the caller's form, None if the caller does not receive it, and the `requestState` of a
        call that is held from then on, otherwise "". A response is the last message. Raises Refusal."""
        if isinstance(message, Response):
            return self._final(course, message)
        if isinstance(message, Notification):
            return self._said(course, message), ""
        lent = course.lent
        if message.method == "ping":
            self._sessions.reply(lent, Response(message.id, {}))
            return None, ""
        may = translation.may_be_asked(lent.capabilities, message.method, message.params)
        if not may or course.method not in translation.RESUMED_BY_RETRY:
            self._sessions.reply(lent, unknown_method(message.id))
            return None, ""
        questions = {"question": translation.question(message.method, message.params)}
        return self._hold(course, questions, {"question": message.id}, live=True)

    def _final(self, course: BorrowedCall, response: Response) -> tuple[Response, str]:
        self._finished(course)
        if response.id != course.upstream_id:
            raise Refusal(Reason.RESPONSE_REFUSED, "it answers another request")
        if response.error is None:
            if not isinstance(response.result, dict):
                raise Refusal(Reason.RESPONSE_REFUSED, "its result is not an object")
            return Response(course.request_id, translation.lent_result(course.method, response.result)), ""
        questions = translation.urls_asked(response.error)
        if questions is None or course.method not in translation.RESUMED_BY_RETRY:
            return Response(course.request_id, error=translation.lent_error(response.error)), ""
        if not translation.may_be_asked(course.lent.capabilities, "elicitation/create", {"mode": "url"}):
            return Response(course.request_id, error=translation.url_capability_missing()), ""
        return self._hold(course, questions, {}, live=False)

    def _said(self, course: BorrowedCall, notification: Notification) -> Notification | None:
        if notification.method == "notifications/message":
            wanted = translation.at_least(notification.params.get("level"), course.level)
            # Anonymous callers share a session: the request cannot be assigned to one of them.
            return notification if wanted and not course.outbound.is_anonymous else None
        if notification.method == "notifications/progress":
            if course.token is None or notification.params.get("progressToken") != course.token:
                return None
            params = {**notification.params, "progressToken": course.token_now}
            return None if course.token_now is None else Notification(notification.method, params)
        if notification.method in LIST_FLAGS or notification.method == UPDATED:
            self._sessions.publish(course.lent, notification)
        return None  # stateless answers have no place for other messages

    def give_up(self, course: BorrowedCall, *, late: bool = False) -> None:
        """The caller disconnected, or the server was `late`: cancels the call at the server."""
        if course.over:
            return
        course.expired = late and course.is_patient
        self._finished(course)
        gone = Notification("notifications/cancelled", {"requestId": course.upstream_id, "reason": "the caller left"})
        self._sessions.background.add(self._sessions.tell(course.lent, gone))

    def _finished(self, course: BorrowedCall) -> None:
        course.stop()
        course.lent.courses.pop(course.upstream_id, None)
        course.lent.used()

    def _hold(
        self, course: BorrowedCall, questions: Mapping[str, Any], asked: Mapping[str, Id], *, live: bool
    ) -> tuple[Response, str]:
        """Ends the caller's answer with the server's input request. A call that is not `live` has ended at the
        server."""
        if not self.held.has_room(course.outbound.owner):
            if live:
                self.give_up(course)
            raise Refusal(Reason.TOO_MANY_CONCURRENT, "too many calls wait for their callers")
        course.held = live
        state = self.held.hold(course, questions, asked)
        return Response(course.request_id, translation.input_required(questions, state)), state

    def _dropped(self, held: HeldCall) -> None:
        if held.course.held:
            held.course.held = False
            self.give_up(held.course)

    async def _resume(self, outbound: Outbound, request: Request, deadline: Deadline) -> UpstreamAnswer:
        """Resumes a held call. An unknown state and a state of another caller or call give the same error."""
        state, responses = request.params.get("requestState"), request.params.get("inputResponses", {})
        held = self.held.find(state, outbound.owner, translation.fingerprint(request))
        if held is None:
            return BuiltUpstream.of_response(Response(request.id, error=dict(_STATE_UNKNOWN)))
        if not isinstance(responses, dict) or not all(isinstance(one, dict) for one in responses.values()):
            return BuiltUpstream.of_response(Response(request.id, error=dict(_BAD_RESPONSES)))
        if not held.questions.keys() <= responses.keys():  # input is still missing
            again = translation.input_required(held.questions, str(state))
            return BuiltUpstream.of_response(Response(request.id, again))
        self.held.take(str(state))
        course, lent = held.course, held.course.lent
        if not course.held:
            return await self._call(await self._sessions.of(outbound, request), outbound, request, deadline)
        self._sessions.speak_for(lent, outbound)
        course.held, course.request_id, course.token_now = False, request.id, progress_token(request)
        course.level = _level_of(request)
        try:
            for key, asked_id in held.asked.items():
                await self._sessions.tell(lent, Response(asked_id, responses[key]))
        except BaseException:
            self.give_up(course)
            raise
        answer = await self._answer(course, deadline)
        if answer is None:
            self._sessions.lose(lent)
            raise Refusal(Reason.UPSTREAM_FAILED, "it lost the session")
        return answer

    def _heard(self, lent: BorrowedSession, message: Message | StreamMark) -> None:
        if isinstance(message, Request):
            course = lent.only_course(asked=True)
            if message.method == "ping":
                self._sessions.reply(lent, Response(message.id, {}))
            elif course is None or not course.offer(message):
                self._sessions.reply(lent, Response(message.id, error=dict(_NO_ONE_CALL)))
        elif isinstance(message, Notification):
            self._heard_notification(lent, message)

    def _heard_notification(self, lent: BorrowedSession, notification: Notification) -> None:
        if notification.method in LIST_FLAGS or notification.method == UPDATED:
            self._sessions.publish(lent, notification)
        elif notification.method == "notifications/progress":
            token = notification.params.get("progressToken")
            for course in lent.courses.values():
                if course.token is not None and course.token == token:
                    course.offer(notification)
        elif notification.method == "notifications/message":
            belongs_to = lent.only_course()
            if belongs_to is not None:
                belongs_to.offer(notification)


class AnswerCrossing(UpstreamAnswer):
    """A call's stream, up to its response or the next input request."""

    def __init__(self, calls: StatelessToSession, course: BorrowedCall) -> None:
        super().__init__(200, EVENT_STREAM)
        self._calls, self._course = calls, course
        self._done = False
        self._state = ""

    async def chunks(self, *, deadline: Deadline = ENDLESS) -> AsyncGenerator[bytes, None]:
        try:
            while not self._done:
                arrival = await self._course.next(deadline)
                if isinstance(arrival, StreamMark):
                    yield sse.KEEP_ALIVE
                elif isinstance(arrival, Request | Notification | Response):
                    told, self._state = self._calls.told(self._course, arrival)
                    self._done = isinstance(told, Response)
                    if told is not None:
                        yield event_of(told)
        except Refusal as refusal:
            self._leave(late=_is_late(refusal))
            raise
        finally:
            self.close()

    def close(self) -> None:
        self._leave(late=False)

    def _leave(self, *, late: bool) -> None:
        if not self._done:
            self._done = True
            self._calls.give_up(self._course, late=late)

    def withhold(self) -> None:
        self._calls.held.drop(self._state)


def _is_late(error: BaseException) -> bool:
    """Whether a call ended because the server did not answer in time."""
    return isinstance(error, Refusal) and error.reason is Reason.UPSTREAM_TIMEOUT


def _level_of(request: Request) -> str | None:
    level = request.params.get("_meta", {}).get(META_LEVEL)
    return level if level in translation.LEVELS else None
