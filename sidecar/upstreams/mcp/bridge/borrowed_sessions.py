"""Stores the sessions that stateless callers share: one for each owner and set of declared capabilities, while in
use."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Final
from weakref import WeakValueDictionary

import orjson

from sidecar.errors import Reason, Refusal
from sidecar.protocols.jsonrpc import Message, Notification, Request, Response, compact_json
from sidecar.protocols.mcp.eras import META_CAPABILITIES, META_CLIENT, SESSION_VERSIONS, SESSION_VERSIONS_SET
from sidecar.upstreams.mcp.background import BackgroundTasks, landed
from sidecar.upstreams.mcp.bridge import translation
from sidecar.upstreams.mcp.bridge.borrowed_calls import BorrowedCall
from sidecar.upstreams.mcp.bridge.server_eras import ServerEras
from sidecar.upstreams.mcp.bridge.unsolicited import Subscription, UnsolicitedStream
from sidecar.upstreams.mcp.sessions import upstream_id_from
from sidecar.upstreams.mcp.streams import StreamMark, whole_answer
from sidecar.upstreams.mcp.transport import (
    EVENT_STREAM,
    LIST_FLAGS,
    OURSELVES,
    SESSION_ID,
    BuiltUpstream,
    McpTransport,
    Outbound,
    UpstreamAnswer,
)
from sidecar.upstreams.statuses import passes_on, refusal_of, words_of

MAX_LENT: Final = 1_000
MAX_SUBSCRIPTIONS: Final = 64  # of one session
MAX_LENT_OF_ONE: Final = 8  # sets of capabilities for one owner
SWEEP_EVERY_S: Final = 1.0
READY_WITHIN_S: Final = 2.0  # the maximum wait for the head of a session's own stream
_FAREWELL_S: Final = 5.0


@dataclass(slots=True, eq=False)
class BorrowedSession:
    """A session that the bridge holds. `server` is its `initialize` result; `outbound` opens its own stream. `uris`
    counts the subscribers of each resource that the server accepted."""

    key: tuple[str, bytes]
    outbound: Outbound
    server: Mapping[str, Any]
    capabilities: Mapping[str, Any]
    used_s: float
    courses: dict[int, BorrowedCall] = field(default_factory=dict)
    subscriptions: set[Subscription] = field(default_factory=set)
    uris: dict[str, int] = field(default_factory=dict)
    level: str | None = None
    stream: UnsolicitedStream | None = None
    lost: bool = False
    ids: Iterator[int] = field(default_factory=lambda: count(1))
    _turns: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    def turn(self, uri: str) -> asyncio.Lock:
        """The lock of requests about one resource: each begins after the answer to the one before."""
        return self._turns.setdefault(uri, asyncio.Lock())

    @property
    def busy(self) -> bool:
        return bool(self.courses or self.subscriptions)

    @property
    def may_ask(self) -> bool:
        """Whether the client declared any capability that lets the server send it requests."""
        return any(name in self.capabilities for name in translation.CAPABILITY_OF.values())

    async def listens(self) -> bool:
        """Opens its own stream; returns whether the server has one."""
        return self.stream is not None and await self.stream.open(READY_WITHIN_S)

    def used(self) -> None:
        self.used_s = asyncio.get_running_loop().time()

    def only_course(self, *, asked: bool = False) -> BorrowedCall | None:
        """Returns the call that an unsolicited message belongs to, if only one is possible: the only call that is not
        held or, if several are and the message has `asked` for input, the only one of them whose method allows that.
        None for anonymous callers, who share a session."""
        running = [course for course in self.courses.values() if not course.held]
        if asked and len(running) > 1:  # a list in progress asks nothing
            running = [course for course in running if course.method in translation.RESUMED_BY_RETRY]
        return running[0] if len(running) == 1 and not self.outbound.is_anonymous else None


@dataclass(slots=True, eq=False)
class BorrowedSessions:
    """All borrowed sessions of one server. `heard` gets the items of their own streams, `ended` each ended session."""

    inner: McpTransport
    idle_s: float
    eras: ServerEras
    heard: Callable[[BorrowedSession, Message | StreamMark], None]
    ended: Callable[[BorrowedSession], None]
    background: BackgroundTasks = field(default_factory=BackgroundTasks)
    _lent: OrderedDict[tuple[str, bytes], BorrowedSession] = field(default_factory=OrderedDict)
    _opening: dict[tuple[str, bytes], asyncio.Task[BorrowedSession]] = field(default_factory=dict)
    _sweeper: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for task in list(self._opening.values()):
            task.cancel()
        for lent in list(self._lent.values()):
            self.end(lent)

    async def of(self, outbound: Outbound, request: Request) -> BorrowedSession:
        """Returns the owner's session with these capabilities. The first call opens it, and concurrent ones wait for
        it. Raises Refusal."""
        meta = request.params.get("_meta", {})
        capabilities = translation.of_client(meta.get(META_CAPABILITIES, {}))
        key = outbound.owner, compact_json(capabilities, orjson.OPT_SORT_KEYS)
        lent = self._lent.get(key)
        if lent is None:
            task = self._opening.get(key)
            if task is None:
                opening = self._open(key, outbound, capabilities, meta.get(META_CLIENT))
                task = self._opening[key] = asyncio.create_task(opening)
                task.add_done_callback(partial(landed, self._opening, key))
            done, _ = await asyncio.wait({task}, timeout=outbound.deadline_s)
            if not done or task.cancelled():
                raise Refusal(Reason.UPSTREAM_TIMEOUT)
            lent = task.result()
        self.speak_for(lent, outbound)
        if lent.key in self._lent:
            self._lent.move_to_end(lent.key)
        return lent

    def speak_for(self, lent: BorrowedSession, outbound: Outbound) -> None:
        """Uses this call's caller, and so its current credential, for the session's own messages from then on."""
        lent.outbound = lent.outbound._replace(caller=outbound.caller)
        lent.used()

    async def _open(
        self, key: tuple[str, bytes], outbound: Outbound, capabilities: dict[str, Any], client: object
    ) -> BorrowedSession:
        self._make_room(key[0])
        name = client if isinstance(client, dict) else OURSELVES
        params = {"protocolVersion": SESSION_VERSIONS[-1], "capabilities": capabilities, "clientInfo": name}
        timeout_s = self.inner.timeout_s
        asked = Outbound("POST", Request(0, "initialize", params), "", timeout_s, caller=outbound.caller, own=True)
        with await self.inner.exchange(asked) as answer:
            _, response = await whole_answer(answer, 0, self.inner, timeout_s)
            result = response.result if response is not None and answer.status == 200 else None
            version = result.get("protocolVersion") if isinstance(result, dict) else None
            if not isinstance(result, dict) or version not in SESSION_VERSIONS_SET:
                if passes_on(refusal := refusal_of(answer)):
                    raise refusal
                self.eras.doubt(at_once=True)
                raise Refusal(Reason.UPSTREAM_FAILED, f"it opened no session: {words_of(answer)}")
            session_id = upstream_id_from(answer.headers.get(SESSION_ID))
        within = Outbound("GET", None, str(version), timeout_s, session_id, outbound.caller, endless=True, own=True)
        lent = BorrowedSession(key, within, result, capabilities, asyncio.get_running_loop().time())
        lent.stream = UnsolicitedStream(
            self.inner, lambda: lent.outbound, partial(self.heard, lent), partial(self._has_no_stream, lent)
        )
        try:
            await self.tell(lent, Notification("notifications/initialized", {}))
        except BaseException:
            self._part(lent)
            raise
        self._lent[key] = lent
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.create_task(self._sweep(), name=f"lent sessions of {self.inner.name}")
        return lent

    def _has_no_stream(self, lent: BorrowedSession, status: int) -> bool:
        if status == 404:
            self.lose(lent)
        return status not in (404, 405)

    def _make_room(self, owner: str) -> None:
        """Raises Refusal(TOO_MANY_CONCURRENT) if every session is in use."""
        mine = [lent for key, lent in self._lent.items() if key[0] == owner]
        if len(mine) + sum(key[0] == owner for key in self._opening) > MAX_LENT_OF_ONE:
            self._end_one_of(mine)
        if len(self._lent) + len(self._opening) > MAX_LENT:
            self._end_one_of(list(self._lent.values()))

    def _end_one_of(self, candidates: list[BorrowedSession]) -> None:
        idle = next((lent for lent in candidates if not lent.busy), None)
        if idle is None:
            raise Refusal(Reason.TOO_MANY_CONCURRENT, "too many sessions at this server are in use")
        self.end(idle)

    async def _sweep(self) -> None:
        while self._lent:
            await asyncio.sleep(min(SWEEP_EVERY_S, self.idle_s))
            now_s = asyncio.get_running_loop().time()
            for lent in list(self._lent.values()):
                if lent.busy:
                    lent.used_s = now_s
                elif now_s - lent.used_s > self.idle_s:
                    self.end(lent)

    def end(self, lent: BorrowedSession) -> None:
        """Ends a session and every call in it, and notifies the server."""
        self.lose(lent)
        self.ended(lent)
        for course in list(lent.courses.values()):
            course.stop("its session was ended")
        lent.courses.clear()
        self._part(lent)

    def _part(self, lent: BorrowedSession) -> None:
        session_id, version = lent.outbound.session_id, lent.outbound.version
        if session_id is not None:
            self.background.add(self.inner.end_session(session_id, version, _FAREWELL_S))

    def lose(self, lent: BorrowedSession) -> None:
        """Forgets a session that the server lost: no further call uses it. Calling it twice is allowed."""
        lent.lost = True
        if self._lent.get(lent.key) is lent:
            del self._lent[lent.key]
        if lent.stream is not None:
            lent.stream.close()
        for subscription in list(lent.subscriptions):
            subscription.end()
        lent.subscriptions.clear()

    def reply(self, lent: BorrowedSession, response: Response) -> None:
        self.background.add(self.tell(lent, response))

    async def tell(self, lent: BorrowedSession, message: Notification | Response) -> None:
        """Sends a message that has no answer. Raises Refusal."""
        asked = lent.outbound._replace(verb="POST", message=message, endless=False)
        with await self.inner.exchange(asked) as answer:
            if not 200 <= answer.status < 300:
                raise refusal_of(answer)

    async def ask(self, lent: BorrowedSession, method: str, params: dict[str, Any]) -> bool:
        """Sends a request of the sidecar's in the session; returns whether it succeeded."""
        request = Request(next(lent.ids), method, params)
        asked = lent.outbound._replace(verb="POST", message=request, endless=False)
        with await self.inner.exchange(asked) as answer:
            _, response = await whole_answer(answer, request.id, self.inner, asked.deadline_s)
            return answer.status == 200 and response is not None and response.error is None

    def publish(self, lent: BorrowedSession, notification: Notification) -> None:
        """Sends a notification about the server's lists or resources to the session's subscribers."""
        for subscription in list(lent.subscriptions):
            subscription.hear(notification)
            if subscription.pipe.closed:  # its caller did not read
                self._unsubscribe(lent, subscription, sorted(subscription.uris))

    async def subscribe(self, lent: BorrowedSession, request: Request) -> UpstreamAnswer:
        """Returns the stream of one `subscriptions/listen`: an acknowledgement, then the server's messages. Raises
        Refusal."""
        wanted = request.params.get("notifications", {})
        if len(lent.subscriptions) >= MAX_SUBSCRIPTIONS:
            raise Refusal(Reason.TOO_MANY_CONCURRENT, "too many subscriptions")
        flags, uris = set[str](), set[str]()
        if await lent.listens():
            asked = (flag for flag in LIST_FLAGS.values() if wanted.get(flag) is True)
            flags = {flag for flag in asked if translation.announces(lent.server, flag)}
            if translation.offers(lent.server, "resources", "subscribe"):
                uris = set(wanted.get("resourceSubscriptions", []))
        subscription = Subscription(request.id, frozenset(flags), frozenset(uris))
        lent.subscriptions.add(subscription)
        honoured: list[str] = []
        try:
            for uri in sorted(uris):
                honoured += [uri] if await self._subscribe_to(lent, uri) else []
        except BaseException:
            self._unsubscribe(lent, subscription, honoured)
            raise
        subscription.uris = frozenset(honoured)
        if lent.lost:
            raise Refusal(Reason.UPSTREAM_FAILED, "it lost the session")
        subscription.acknowledge()
        given_up = partial(self._unsubscribe, lent, subscription, honoured)
        return BuiltUpstream(200, media_type=EVENT_STREAM, pipe=subscription.pipe, given_up=given_up)

    async def _subscribe_to(self, lent: BorrowedSession, uri: str) -> bool:
        """Adds a subscriber; returns False if the server does not accept the first one. Raises Refusal."""
        try:
            async with asyncio.timeout(lent.outbound.deadline_s), lent.turn(uri):
                if uri not in lent.uris and not await self.ask(lent, "resources/subscribe", {"uri": uri}):
                    return False
                lent.uris[uri] = lent.uris.get(uri, 0) + 1
                return True
        except TimeoutError:
            raise Refusal(Reason.UPSTREAM_TIMEOUT) from None

    def _release(self, lent: BorrowedSession, uri: str) -> bool:
        """Removes one subscriber; returns whether it was the last."""
        left = lent.uris.get(uri, 0) - 1
        if left > 0:
            lent.uris[uri] = left
            return False
        return lent.uris.pop(uri, None) is not None

    def _unsubscribe(self, lent: BorrowedSession, subscription: Subscription, uris: list[str]) -> None:
        lent.subscriptions.discard(subscription)
        lent.used()
        for uri in uris:
            if self._release(lent, uri) and not lent.lost:
                self.background.add(self._unsubscribe_from(lent, uri))

    async def _unsubscribe_from(self, lent: BorrowedSession, uri: str) -> None:
        """Tells the server that a resource has no subscriber, unless it has one again."""
        async with lent.turn(uri):
            if uri not in lent.uris:
                await self.ask(lent, "resources/unsubscribe", {"uri": uri})
