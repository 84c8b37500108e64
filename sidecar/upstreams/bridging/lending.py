"""A stateless caller before a server that knows sessions only: whose session does its call go in?

In one that we keep for its owner (the caller's whole chain) and the set of capabilities that the caller declares:
opened with the first call, shared by that owner's further ones and by nobody else's, ended when nobody has used it for
a while. What the server asks its client becomes the answer of the call, `input_required`. The `requestState` in it
names the held call, is good once, for its owner and for the same call; to anybody else it says nothing.

    a held call        becomes
    retried            answers are posted to the server, and its answer is read on
    retried by others  -32602, nothing reaches the server, the call stays held
    not retried        cancelled when its time is over, or when its owner holds too many
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, Final, Protocol

import orjson

from sidecar import __version__
from sidecar.egress import ENDLESS, Deadline
from sidecar.errors import Reason, Refusal
from sidecar.protocols import sse
from sidecar.protocols.eras import SESSION_VERSIONS, SESSION_VERSIONS_SET
from sidecar.protocols.jsonrpc import (
    INVALID_PARAMS,
    Id,
    Message,
    Notification,
    Request,
    Response,
    encode_notification,
    encode_response,
)
from sidecar.upstreams.bridging import words
from sidecar.upstreams.bridging.chores import Chores
from sidecar.upstreams.bridging.courses import Body, Course, Mark, progress_token
from sidecar.upstreams.bridging.eras import whole_answer
from sidecar.upstreams.bridging.hearing import LIST_FLAGS, UPDATED, Hearing, Subscription
from sidecar.upstreams.sessions import upstream_id_from
from sidecar.upstreams.transport import EVENT_STREAM, JSON, SESSION_ID, Answer, Made, Outbound, Upstream

MAX_LENT: Final = 1_000
MAX_LENT_OF_ONE: Final = 8  # sets of capabilities of one owner
MAX_HELD: Final = 256
MAX_HELD_OF_ONE: Final = 16
MAX_SUBSCRIPTIONS: Final = 64  # of one session
SWEEP_EVERY_S: Final = 1.0
STATE_BYTES: Final = 32
_FAREWELL_S: Final = 5.0
_METHOD_NOT_FOUND: Final = {"code": words.METHOD_NOT_FOUND, "message": "Method not found"}
_NO_ONE_CALL: Final = {"code": -32603, "message": "There is not exactly one call that this could belong to"}
_STATE_UNKNOWN: Final = {"code": INVALID_PARAMS, "message": "requestState does not name a call that waits for this"}
_BAD_RESPONSES: Final = {"code": INVALID_PARAMS, "message": "inputResponses must be an object of objects"}


class Doubt(Protocol):
    """Called when the server does not behave like one of its era."""

    def __call__(self, *, at_once: bool = False) -> None: ...


@dataclass(slots=True, eq=False)
class Lent:
    """One session that we keep. `server` is what `initialize` answered; `level` what was set last; `uris` counts who
    subscribed to what."""

    key: tuple[str, bytes]
    outbound: Outbound
    server: Mapping[str, Any]
    capabilities: Mapping[str, Any]
    used_s: float
    courses: dict[int, Course] = field(default_factory=dict)
    subscriptions: set[Subscription] = field(default_factory=set)
    uris: dict[str, int] = field(default_factory=dict)
    level: str | None = None
    hearing: Hearing | None = None
    lost: bool = False
    _last_id: int = 0

    @property
    def session_id(self) -> str | None:
        return self.outbound.session_id

    @property
    def busy(self) -> bool:
        return bool(self.courses or self.subscriptions)

    @property
    def may_ask(self) -> bool:
        """Whether the client declared anything that the server may ask for."""
        return any(name in self.capabilities for name in words.CAPABILITY_OF.values())

    def offers(self, capability: str, feature: str = "") -> bool:
        """What the server declared."""
        offered = self.server.get("capabilities", {}).get(capability)
        return isinstance(offered, dict) and (not feature or offered.get(feature) is True)

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def only_course(self) -> Course | None:
        """The call that something unasked belongs to: the one there is that does not wait for its caller."""
        running = [course for course in self.courses.values() if not course.held]
        return running[0] if len(running) == 1 else None


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A call that waits for its caller. `asked` maps keys of `inputRequests` to ids of the server's requests. Without
    a course the server itself said "come back later", and the retry is a new call there."""

    owner: str
    fingerprint: bytes
    questions: Mapping[str, Any]
    asked: Mapping[str, Id]
    lent: Lent | None
    course: Course | None
    lapse: asyncio.TimerHandle


class Lender:
    """All lent sessions of one server, and the calls that wait for their callers."""

    def __init__(self, inner: Upstream, question_s: float, idle_s: float, doubt: Doubt) -> None:
        self._inner = inner
        self._question_s = question_s
        self._idle_s = idle_s
        self._doubt = doubt
        self._chores = Chores()
        self._lent: OrderedDict[tuple[str, bytes], Lent] = OrderedDict()
        self._opening: dict[tuple[str, bytes], asyncio.Task[Lent]] = {}
        self._held: OrderedDict[str, Held] = OrderedDict()
        self._sweeper: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._lent)

    @property
    def held(self) -> int:
        """How many calls wait for their callers."""
        return len(self._held)

    async def exchange(self, outbound: Outbound) -> Answer:
        """The answer to one message of the stateless era. Raises Refusal."""
        request = outbound.message
        if not isinstance(request, Request):  # the era has no other messages over HTTP, and arrival lets none pass
            raise Refusal(Reason.METHOD_UNKNOWN)
        deadline = Deadline.within(outbound.deadline_s)
        if request.method in words.RESUMED_BY_RETRY and "requestState" in request.params:
            return await self._resume(outbound, request, deadline)
        lent = await self._session_for(outbound, request)
        if request.method == "server/discover":
            return _whole(request.id, words.discovered(lent.server))
        if request.method == "subscriptions/listen":
            return await self._subscribe(lent, outbound, request)
        return await self._call(lent, outbound, request, deadline)

    async def close(self) -> None:
        """End every session."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for task in list(self._opening.values()):
            task.cancel()
        for lent in list(self._lent.values()):
            self._end(lent)
        await self._chores.close()

    # --- sessions ---------------------------------------------------------------------------------------------------

    async def _session_for(self, outbound: Outbound, request: Request) -> Lent:
        """The owner's session with these capabilities; whoever comes first opens it, and the others wait for it."""
        meta = request.params.get("_meta", {})
        capabilities = words.lent_capabilities(meta)
        key = (outbound.owner, orjson.dumps(capabilities, option=orjson.OPT_SORT_KEYS))
        lent = self._lent.get(key)
        if lent is None:
            task = self._opening.get(key)
            if task is None:
                client = meta.get(words.META_CLIENT)
                task = asyncio.create_task(self._open(key, outbound, capabilities, client))
                self._opening[key] = task
                task.add_done_callback(lambda done: self._opened(key, done))
            done, _ = await asyncio.wait({task}, timeout=outbound.deadline_s)
            if not done or task.cancelled():
                raise Refusal(Reason.UPSTREAM_TIMEOUT)
            lent = task.result()
        lent.outbound = lent.outbound._replace(caller=outbound.caller)  # what it shows is as fresh as its newest call
        lent.used_s = asyncio.get_running_loop().time()
        if lent.key in self._lent:
            self._lent.move_to_end(lent.key)
        return lent

    def _opened(self, key: tuple[str, bytes], task: asyncio.Task[Lent]) -> None:
        self._opening.pop(key, None)
        if not task.cancelled():
            task.exception()  # whoever waited has it; if nobody did any more, it is nobody's

    async def _open(
        self, key: tuple[str, bytes], outbound: Outbound, capabilities: dict[str, Any], client: object
    ) -> Lent:
        self._make_room(key[0])
        name = client if isinstance(client, dict) else {"name": "sidecar", "version": __version__}
        params = {"protocolVersion": SESSION_VERSIONS[-1], "capabilities": capabilities, "clientInfo": name}
        hello = Request(0, "initialize", params)
        timeout_s = self._inner.timeout_s
        asked = Outbound("POST", hello, "", timeout_s, caller=outbound.caller)
        with await self._inner.exchange(asked) as answer:
            _, response = await whole_answer(answer, 0, self._inner.max_response_bytes, timeout_s)
            result = response.result if response is not None and answer.status == 200 else None
            version = result.get("protocolVersion") if isinstance(result, dict) else None
            if not isinstance(result, dict) or version not in SESSION_VERSIONS_SET:
                self._doubt(at_once=True)
                raise Refusal(Reason.UPSTREAM_FAILED, f"it opened no session: HTTP {answer.status}")
            session_id = upstream_id_from(answer.headers.get(SESSION_ID))
        within = Outbound("GET", None, str(version), timeout_s, session_id, outbound.caller, endless=True)
        lent = Lent(key, within, result, capabilities, asyncio.get_running_loop().time())
        lent.hearing = Hearing(self._inner, within, partial(self._heard, lent), partial(self._lose, lent))
        try:
            await self._tell(lent, Notification("notifications/initialized", {}))
        except BaseException:
            self._part(lent)
            raise
        self._lent[key] = lent
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.create_task(self._sweep(), name=f"lent sessions of {self._inner.name}")
        return lent

    def _make_room(self, owner: str) -> None:
        """Raises Refusal(TOO_MANY_CONCURRENT) where every session is in use."""
        mine = [lent for key, lent in self._lent.items() if key[0] == owner]
        opening = [key for key in self._opening if key[0] == owner]
        if len(mine) + len(opening) > MAX_LENT_OF_ONE:
            self._end_one_of(mine)
        if len(self._lent) + len(self._opening) > MAX_LENT:
            self._end_one_of(list(self._lent.values()))

    def _end_one_of(self, candidates: list[Lent]) -> None:
        idle = next((lent for lent in candidates if not lent.busy), None)
        if idle is None:
            raise Refusal(Reason.TOO_MANY_CONCURRENT, "too many sessions at this server are in use")
        self._end(idle)

    async def _sweep(self) -> None:
        """End what nobody uses, as long as there is anything."""
        while self._lent:
            await asyncio.sleep(min(SWEEP_EVERY_S, self._idle_s))
            now_s = asyncio.get_running_loop().time()
            for lent in list(self._lent.values()):
                if lent.busy:
                    lent.used_s = now_s
                elif now_s - lent.used_s > self._idle_s:
                    self._end(lent)

    def _end(self, lent: Lent) -> None:
        """End a session of ours, and tell the server."""
        self._lose(lent)
        self._part(lent)

    def _part(self, lent: Lent) -> None:
        if lent.session_id is not None:
            self._chores.add(self._inner.end_session(lent.session_id, lent.outbound.version, _FAREWELL_S))

    def _lose(self, lent: Lent) -> None:
        """The session is over. Twice is no fault."""
        lent.lost = True
        if self._lent.get(lent.key) is lent:
            del self._lent[lent.key]
        if lent.hearing is not None:
            lent.hearing.close()
        for subscription in list(lent.subscriptions):
            subscription.end()
        lent.subscriptions.clear()
        for state in [state for state, held in self._held.items() if held.lent is lent]:
            self.drop(state)
        for course in list(lent.courses.values()):
            course.offer(Response(course.upstream_id, error={"code": -32603, "message": "The session is over"}))
            course.stop()
        lent.courses.clear()

    async def _tell(self, lent: Lent, message: Notification | Response) -> None:
        asked = lent.outbound._replace(verb="POST", message=message, endless=False)
        with await self._inner.exchange(asked) as answer:
            if not 200 <= answer.status < 300:
                raise Refusal(Reason.UPSTREAM_FAILED, f"it answered HTTP {answer.status}")

    async def _ask(self, lent: Lent, method: str, params: dict[str, Any]) -> bool:
        """A request of our own in the session; whether the server did it."""
        request = Request(lent.next_id(), method, params)
        asked = lent.outbound._replace(verb="POST", message=request, endless=False)
        with await self._inner.exchange(asked) as answer:
            within_s = asked.deadline_s
            _, response = await whole_answer(answer, request.id, self._inner.max_response_bytes, within_s)
            return answer.status == 200 and response is not None and response.error is None

    # --- calls ------------------------------------------------------------------------------------------------------

    async def _call(self, lent: Lent, outbound: Outbound, request: Request, deadline: Deadline) -> Answer:
        answer = await self._call_once(lent, outbound, request, deadline)
        if answer is None:
            # The server forgot the session, so it did not look at the call: in a new one it may have it once more.
            self._lose(lent)
            lent = await self._session_for(outbound, request)
            answer = await self._call_once(lent, outbound, request, deadline)
        if answer is None:
            self._lose(lent)
            raise Refusal(Reason.UPSTREAM_FAILED, "it forgets its sessions")
        return answer

    async def _call_once(self, lent: Lent, outbound: Outbound, request: Request, deadline: Deadline) -> Answer | None:
        """None where the session is not there any more."""
        level = request.params.get("_meta", {}).get(words.META_LEVEL)
        await self._set_level(lent, level)
        if lent.may_ask and lent.hearing is not None:
            await lent.hearing.open()
        token, upstream_id = progress_token(request), lent.next_id()
        sent = Request(upstream_id, request.method, words.lent_params(request.params))
        # A call that may be held has a connection of its own: however many wait, none keeps another's call waiting.
        patience_s = outbound.deadline_s + (self._question_s if lent.may_ask else 0)
        extra = [header for header in outbound.extra if not header[0].lower().startswith("mcp-param-")]
        asked = lent.outbound._replace(
            verb="POST",
            message=sent,
            deadline_s=patience_s,
            caller=outbound.caller,
            extra=extra,
            endless=lent.may_ask,
        )
        course = Course(
            self._inner,
            asked,
            upstream_id,
            request.method,
            words.fingerprint(request),
            request.id,
            level if level in words.LEVELS else None,
            token,
            token,
        )
        lent.courses[upstream_id] = course
        course.begin()
        return await self._answer(lent, course, deadline)

    async def _set_level(self, lent: Lent, level: object) -> None:
        """The session's level is that of its most talkative call; each call hears what it asked for."""
        if level not in words.LEVELS or not lent.offers("logging"):
            return
        if lent.level is None or not words.at_least(level, lent.level):
            lent.level = str(level)
            await self._ask(lent, "logging/setLevel", {"level": lent.level})

    async def _answer(self, lent: Lent, course: Course, deadline: Deadline) -> Answer | None:
        """The head of a call's answer, as soon as there is one. None where the session is not there any more."""
        try:
            while not course.opened:
                arrival = await course.next(deadline)
                if isinstance(arrival, Body):
                    return self._whole_body(lent, course, arrival)
                if arrival is Mark.OPENED:
                    course.opened = True
                elif isinstance(arrival, Request | Response):  # on the session's stream, before the call's own began
                    told = self.told(lent, course, arrival)
                    if told.final is not None:
                        return self._body(told)
            return Crossing(self, lent, course)
        except BaseException:
            self.give_up(lent, course)
            raise

    def _whole_body(self, lent: Lent, course: Course, body: Body) -> Answer | None:
        self._finished(lent, course)
        if body.status == 404 and lent.session_id is not None:
            return None
        if body.media_type != JSON:
            return Made(body.status, body.content, media_type=body.media_type)
        message = words.received(body.content)
        if isinstance(message, Response) and message.error is not None and body.status != 200:
            error = words.lent_error(message.error)  # whose error it is the exchange says, whatever id it bears
            return Made(body.status, encode_response(Response(course.request_id, error=error)))
        if body.status != 200:
            return Made(body.status, body.content)
        if not isinstance(message, Response):
            raise Refusal(Reason.RESPONSE_REFUSED, "its body is not an answer")
        return self._body(self._final(lent, course, message))

    def _body(self, told: Told) -> Made:
        assert told.final is not None
        status = 200 if told.final.error is None else words.lent_status(told.final.error)
        return Asking(status, encode_response(told.final), withheld=partial(self.drop, told.state))

    def told(self, lent: Lent, course: Course, message: Message) -> Told:
        """What the caller hears of one message. Raises Refusal(RESPONSE_REFUSED)."""
        if isinstance(message, Response):
            return self._final(lent, course, message)
        if isinstance(message, Request):
            return self._asked(lent, course, message)
        return Told(self._said(lent, course, message))

    def _final(self, lent: Lent, course: Course, response: Response) -> Told:
        self._finished(lent, course)
        if response.id != course.upstream_id:
            raise Refusal(Reason.RESPONSE_REFUSED, "it answers another request")
        if response.error is None:
            if not isinstance(response.result, dict):
                raise Refusal(Reason.RESPONSE_REFUSED, "its result is not an object")
            return Told(final=Response(course.request_id, words.lent_result(course.method, response.result)))
        questions = words.urls_asked(response.error)
        if questions is None or course.method not in words.RESUMED_BY_RETRY:
            return Told(final=Response(course.request_id, error=words.lent_error(response.error)))
        if not words.may_be_asked(lent.capabilities, "elicitation/create", {"mode": "url"}):
            needed: dict[str, Any] = {"requiredCapabilities": {"elicitation": {"url": {}}}}
            error = {"code": words.MISSING_CAPABILITY, "message": "An address must be opened first", "data": needed}
            return Told(final=Response(course.request_id, error=error))
        return self._hold(course, questions, {}, None)

    def _asked(self, lent: Lent, course: Course, request: Request) -> Told:
        if request.method == "ping":
            self._chores.add(self._tell(lent, Response(request.id, {})))
            return Told()
        may = words.may_be_asked(lent.capabilities, request.method, request.params)
        if not may or course.method not in words.RESUMED_BY_RETRY:
            self._chores.add(self._tell(lent, Response(request.id, error=dict(_METHOD_NOT_FOUND))))
            return Told()
        questions = {"question": words.question(request.method, request.params)}
        return self._hold(course, questions, {"question": request.id}, lent)

    def _said(self, lent: Lent, course: Course, notification: Notification) -> Notification | None:
        if notification.method == "notifications/message":
            return notification if words.at_least(notification.params.get("level"), course.level) else None
        if notification.method == "notifications/progress":
            if course.token is None or notification.params.get("progressToken") != course.token:
                return None
            params = {**notification.params, "progressToken": course.token_now}
            return None if course.token_now is None else Notification(notification.method, params)
        if notification.method in LIST_FLAGS or notification.method == UPDATED:
            self._publish(lent, notification)
        return None  # the rest has no place in a stateless answer

    def give_up(self, lent: Lent, course: Course) -> None:
        """The caller left: the server hears that its work is not wanted any more."""
        if course.over:
            return
        self._finished(lent, course)
        gone = Notification("notifications/cancelled", {"requestId": course.upstream_id, "reason": "the caller left"})
        self._chores.add(self._tell(lent, gone))

    def _finished(self, lent: Lent, course: Course) -> None:
        course.stop()
        lent.courses.pop(course.upstream_id, None)
        lent.used_s = asyncio.get_running_loop().time()

    # --- held calls -------------------------------------------------------------------------------------------------

    def _hold(self, course: Course, questions: Mapping[str, Any], asked: Mapping[str, Id], lent: Lent | None) -> Told:
        """The caller's answer ends here, with the server's question; `lent` is None where the call itself is over."""
        owner = course.outbound.owner
        mine = [state for state, held in self._held.items() if held.owner == owner]
        if len(mine) >= MAX_HELD_OF_ONE:
            self.drop(mine[0])
        if len(self._held) >= MAX_HELD:
            if lent is not None:
                self.give_up(lent, course)
            raise Refusal(Reason.TOO_MANY_CONCURRENT, "too many calls wait for their callers")
        state = secrets.token_urlsafe(STATE_BYTES)
        lapse = asyncio.get_running_loop().call_later(self._question_s, self.drop, state)
        held = Held(owner, course.fingerprint, questions, asked, lent, None if lent is None else course, lapse)
        self._held[state] = held
        course.held = lent is not None
        return Told(final=Response(course.request_id, words.input_required(questions, state)), state=state)

    def drop(self, state: str) -> None:
        """Nobody came back for this call."""
        held = self._held.pop(state, None)
        if held is None:
            return
        held.lapse.cancel()
        if held.course is not None and held.lent is not None:
            held.course.held = False
            self.give_up(held.lent, held.course)

    async def _resume(self, outbound: Outbound, request: Request, deadline: Deadline) -> Answer:
        """The caller is back. Another's state, another call's and none are the same error."""
        state, responses = request.params.get("requestState"), request.params.get("inputResponses", {})
        held = self._held.get(state) if isinstance(state, str) else None
        if held is None or held.owner != outbound.owner or held.fingerprint != words.fingerprint(request):
            return _failed(request.id, _STATE_UNKNOWN)
        if not isinstance(responses, dict) or not all(isinstance(one, dict) for one in responses.values()):
            return _failed(request.id, _BAD_RESPONSES)
        if not held.questions.keys() <= responses.keys():  # it still has to be asked
            return _whole(request.id, words.input_required(held.questions, str(state)))
        del self._held[str(state)]
        held.lapse.cancel()
        lent, course = held.lent, held.course
        if lent is None or course is None:
            lent = await self._session_for(outbound, request)
            return await self._call(lent, outbound, request, deadline)
        course.held, course.request_id, course.token_now = False, request.id, progress_token(request)
        level = request.params.get("_meta", {}).get(words.META_LEVEL)
        course.level = level if level in words.LEVELS else None
        try:
            for key, asked_id in held.asked.items():
                await self._tell(lent, Response(asked_id, responses[key]))
        except BaseException:
            self.give_up(lent, course)
            raise
        answer = await self._answer(lent, course, deadline)
        if answer is None:
            self._lose(lent)
            raise Refusal(Reason.UPSTREAM_FAILED, "it forgot the session")
        return answer

    # --- what comes unasked -----------------------------------------------------------------------------------------

    def _heard(self, lent: Lent, message: Message) -> None:
        """Something on the session's own stream."""
        if isinstance(message, Notification):
            self._heard_notification(lent, message)
        elif isinstance(message, Request):
            if message.method == "ping":
                self._chores.add(self._tell(lent, Response(message.id, {})))
                return
            course = lent.only_course()
            if course is None or not course.offer(message):
                self._chores.add(self._tell(lent, Response(message.id, error=dict(_NO_ONE_CALL))))

    def _heard_notification(self, lent: Lent, notification: Notification) -> None:
        if notification.method in LIST_FLAGS or notification.method == UPDATED:
            self._publish(lent, notification)
        elif notification.method == "notifications/progress":
            token = notification.params.get("progressToken")
            for course in lent.courses.values():
                if course.token is not None and course.token == token:
                    course.offer(notification)
        elif notification.method == "notifications/message":
            belongs_to = lent.only_course()
            if belongs_to is not None:
                belongs_to.offer(notification)

    def _publish(self, lent: Lent, notification: Notification) -> None:
        for subscription in list(lent.subscriptions):
            subscription.hear(notification)
            if subscription.pipe.closed:  # its caller did not read
                self._unsubscribe(lent, subscription, sorted(subscription.uris))

    async def _subscribe(self, lent: Lent, outbound: Outbound, request: Request) -> Answer:
        wanted = request.params.get("notifications", {})
        if len(lent.subscriptions) >= MAX_SUBSCRIPTIONS:
            raise Refusal(Reason.TOO_MANY_CONCURRENT, "too many subscriptions")
        hears = lent.hearing is not None and await lent.hearing.open()
        flags, uris = set[str](), set[str]()
        if hears:
            flags = {flag for flag in LIST_FLAGS.values() if wanted.get(flag) is True and _announced(lent, flag)}
            if lent.offers("resources", "subscribe"):
                uris = set(wanted.get("resourceSubscriptions", []))
        subscription = Subscription(request.id, frozenset(flags), frozenset(uris))
        lent.subscriptions.add(subscription)
        honoured: list[str] = []
        try:
            for uri in sorted(uris):
                taken = await self._subscribe_to(lent, uri)
                honoured += [uri] if taken else []
        except BaseException:
            self._unsubscribe(lent, subscription, honoured)
            raise
        subscription.uris = frozenset(honoured)
        if lent.lost:
            raise Refusal(Reason.UPSTREAM_FAILED, "it forgot the session")
        subscription.acknowledge()
        return Made(
            200,
            media_type=EVENT_STREAM,
            pipe=subscription.pipe,
            given_up=partial(self._unsubscribe, lent, subscription, honoured),
        )

    async def _subscribe_to(self, lent: Lent, uri: str) -> bool:
        lent.uris[uri] = lent.uris.get(uri, 0) + 1
        done = lent.uris[uri] > 1
        try:
            done = done or await self._ask(lent, "resources/subscribe", {"uri": uri})
        finally:
            if not done:
                self._release(lent, uri)
        return done

    def _release(self, lent: Lent, uri: str) -> bool:
        """One subscriber less; whether it was the last."""
        left = lent.uris.get(uri, 0) - 1
        if left > 0:
            lent.uris[uri] = left
            return False
        return lent.uris.pop(uri, None) is not None

    def _unsubscribe(self, lent: Lent, subscription: Subscription, uris: list[str]) -> None:
        lent.subscriptions.discard(subscription)
        lent.used_s = asyncio.get_running_loop().time()
        for uri in uris:
            if self._release(lent, uri) and not lent.lost:
                self._chores.add(self._ask(lent, "resources/unsubscribe", {"uri": uri}))


def _announced(lent: Lent, flag: str) -> bool:
    return lent.offers(flag.removesuffix("ListChanged"), "listChanged")


@dataclass(frozen=True, slots=True)
class Told:
    """What a caller hears of one message: in between, or at last. `state` names the call that is held now."""

    between: Notification | None = None
    final: Response | None = None
    state: str = ""


class Asking(Made):
    """A whole answer that may be a question of the server's."""

    __slots__ = ("_withheld",)

    def __init__(self, status: int, body: bytes, *, withheld: Callable[[], None]) -> None:
        super().__init__(status, body)
        self._withheld = withheld

    def withhold(self) -> None:
        """As `Waiting.withhold`."""
        self._withheld()


class Crossing:
    """A `transport.Answer`: a call's stream, as far as its caller is to have it now."""

    __slots__ = ("_course", "_done", "_lender", "_lent", "_state", "headers", "media_type", "status")

    def __init__(self, lender: Lender, lent: Lent, course: Course) -> None:
        self.status = 200
        self.headers: Mapping[str, str] = MappingProxyType({})
        self.media_type = EVENT_STREAM
        self._lender, self._lent, self._course = lender, lent, course
        self._done = False
        self._state = ""

    async def read(self, max_bytes: int) -> bytes:
        """As `Answer.read`."""
        pieces, size = [], 0
        async for piece in self.chunks():
            pieces.append(piece)
            size += len(piece)
            if size > max_bytes:
                self.close()
                raise Refusal(Reason.RESPONSE_REFUSED, "it is larger than allowed")
        return b"".join(pieces)

    async def chunks(self, *, deadline: Deadline = ENDLESS) -> AsyncGenerator[bytes, None]:
        """As `Answer.chunks`."""
        try:
            while not self._done:
                arrival = await self._course.next(deadline)
                if isinstance(arrival, Mark):
                    yield sse.KEEP_ALIVE
                elif isinstance(arrival, Request | Notification | Response):
                    told = self._lender.told(self._lent, self._course, arrival)
                    if told.between is not None:
                        yield sse.encode_event(encode_notification(told.between))
                    if told.final is not None:
                        self._done, self._state = True, told.state
                        yield sse.encode_event(encode_response(told.final))
        finally:
            self.close()

    def close(self) -> None:
        """As `Answer.close`."""
        if not self._done:
            self._done = True
            self._lender.give_up(self._lent, self._course)

    def withhold(self) -> None:
        """As `Waiting.withhold`."""
        self._lender.drop(self._state)

    def __enter__(self) -> Crossing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _whole(request_id: Id, result: dict[str, Any]) -> Made:
    return Made(200, encode_response(Response(request_id, result)))


def _failed(request_id: Id, error: Mapping[str, Any]) -> Made:
    return Made(200, encode_response(Response(request_id, error=dict(error))))
