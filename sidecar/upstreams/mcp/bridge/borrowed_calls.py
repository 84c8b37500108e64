"""Reads the answer of one stateless caller's call at a session-based server.

A call may outlive the request that began it: when the server asks its client for input, the caller's answer ends with
that request, the call is held, and the caller's retry continues to read. Messages wait in a short queue, for back
pressure. `requestState` names a held call: it cannot be guessed, is valid once, for its owner and for the same call.

    a held call        becomes
    retried            input is posted to the server, and its answer is read on
    retried by others  -32602, nothing reaches the server, the call stays held
    not retried        cancelled when it expires, or when its owner holds too many
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sidecar.errors import Reason, Refusal
from sidecar.http.client import Deadline
from sidecar.protocols.jsonrpc import Id, Message, Request, Response
from sidecar.upstreams.mcp.streams import StreamMark, StreamPlace, events
from sidecar.upstreams.mcp.transport import EVENT_STREAM, BuiltUpstream, McpTransport, Outbound, UpstreamAnswer, until

if TYPE_CHECKING:
    from sidecar.upstreams.mcp.bridge.borrowed_sessions import BorrowedSession

MAX_WAITING: Final = 64  # messages that were read but not passed on yet
MAX_WAITING_BYTES: Final = 2**20  # total, except for the last one: one message may be larger
MAX_RESUMPTIONS: Final = 64
MAX_HELD: Final = 256
MAX_HELD_OF_ONE: Final = 16
STATE_BYTES: Final = 32


Arrival = Message | StreamMark | BuiltUpstream | Refusal


@dataclass(slots=True, eq=False)
class BorrowedCall:
    """One call at the server, in the session `lent`. `upstream_id` is its id there, `request_id` the caller's, which
    may change with each retry, like `level` and the progress token (`token_now`; the server knows `token`). `expired`:
    it was stopped because the server was late. `is_patient`: its caller waited as long as a call may take."""

    upstream: McpTransport
    lent: BorrowedSession
    outbound: Outbound
    upstream_id: int
    method: str
    fingerprint: bytes
    request_id: Id
    level: str | None
    token: Id | None
    token_now: Id | None
    is_patient: bool
    opened: bool = False
    held: bool = False
    over: bool = False
    expired: bool = False
    _arrived: asyncio.Queue[tuple[Arrival, int]] = field(default_factory=lambda: asyncio.Queue(MAX_WAITING))
    _waiting_bytes: int = 0
    _room: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"{self.method} at {self.upstream.name}")

    async def next(self, deadline: Deadline) -> Arrival:
        """Returns the next item. Raises the Refusal that ended the server's answer, or UPSTREAM_TIMEOUT at the
        deadline."""
        if not self._arrived.empty():
            return self._taken(self._arrived.get_nowait())
        if self.over:
            raise Refusal(Reason.UPSTREAM_FAILED, "the exchange was given up")
        return self._taken(await until(deadline, self._arrived.get))

    def stop(self, why: str = "the exchange was given up") -> None:
        """Ends the call: the server's stream closes, and a waiting reader gets a refusal."""
        self.over = True
        self.offer(Refusal(Reason.UPSTREAM_FAILED, why))
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            with await self.upstream.exchange(self.outbound._replace(expired=lambda: self.expired)) as answer:
                if answer.status != 200 or answer.media_type != EVENT_STREAM:
                    content = await answer.read(self.upstream.max_response_bytes)
                    await self._put(answer.with_body(content))
                    return
                await self._put(StreamMark.OPENED)
                place = StreamPlace(self.upstream, self.upstream_id)
                async with aclosing(self._messages(answer, place)) as messages:
                    async for arrival in messages:
                        await self._put(arrival, place.event_bytes)
                        if isinstance(arrival, Response):
                            return
            raise Refusal(Reason.UPSTREAM_FAILED, "its stream ended without an answer")
        except Refusal as refusal:
            await self._put(refusal)

    async def _put(self, arrival: Arrival, size: int = 0) -> None:
        while self._waiting_bytes > MAX_WAITING_BYTES:
            self._room.clear()
            await self._room.wait()
        self._waiting_bytes += size
        await self._arrived.put((arrival, size))

    def offer(self, arrival: Arrival) -> bool:
        """Queues a message about this call that arrived on another stream; False if the queue is full."""
        try:
            self._arrived.put_nowait((arrival, 0))
        except asyncio.QueueFull:
            return False
        return True

    def _taken(self, entry: tuple[Arrival, int]) -> Arrival:
        arrival, size = entry
        self._waiting_bytes -= size
        self._room.set()
        if isinstance(arrival, Refusal):
            raise Refusal(arrival.reason, arrival.detail)
        return arrival

    async def _messages(self, answer: UpstreamAnswer, place: StreamPlace) -> AsyncGenerator[Arrival, None]:
        """Yields every message of the answer, also if the server requires its client to fetch the rest by GET."""
        async with aclosing(events(answer, place)) as first:
            async for arrival in first:
                yield arrival
        for _ in range(MAX_RESUMPTIONS):
            if place.last_event_id is None:
                return
            await asyncio.sleep(place.pause_s)
            asked = self.outbound._replace(verb="GET", message=None, last_event_id=place.last_event_id)
            with await self.upstream.exchange(asked) as rest:
                if rest.status != 200 or rest.media_type != EVENT_STREAM:
                    return
                async with aclosing(events(rest, place)) as more:
                    async for arrival in more:
                        yield arrival


class HeldCall(NamedTuple):
    """A call that waits for its caller; `asked`: key of `inputRequests` → the server's id. If `course` is not `held`,
    it has ended at the server, and a retry sends it again."""

    course: BorrowedCall
    questions: Mapping[str, Any]
    asked: Mapping[str, Id]
    lapse: asyncio.TimerHandle


@dataclass(slots=True, eq=False)
class HeldCalls:
    """The held calls of one server, each for `question_s` seconds. `dropped` is called with each that ends without a
    retry."""

    question_s: float
    dropped: Callable[[HeldCall], None]
    _held: OrderedDict[str, HeldCall] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._held)

    def has_room(self, owner: str) -> bool:
        """Whether the owner may hold one more call; if it holds too many, its oldest one is dropped."""
        mine = [state for state, held in self._held.items() if held.course.outbound.owner == owner]
        if len(mine) >= MAX_HELD_OF_ONE:
            self.drop(mine[0])
        return len(self._held) < MAX_HELD

    def hold(self, course: BorrowedCall, questions: Mapping[str, Any], asked: Mapping[str, Id]) -> str:
        state = secrets.token_urlsafe(STATE_BYTES)
        lapse = asyncio.get_running_loop().call_later(self.question_s, self.drop, state)
        self._held[state] = HeldCall(course, questions, asked, lapse)
        return state

    def find(self, state: object, owner: str, fingerprint: bytes) -> HeldCall | None:
        """Returns the call that this caller holds under this state; None for an unknown state and for that of another
        caller or call."""
        held = self._held.get(state) if isinstance(state, str) else None
        mine = held is not None and (held.course.outbound.owner, held.course.fingerprint) == (owner, fingerprint)
        return held if mine else None

    def take(self, state: str) -> None:
        self._held.pop(state).lapse.cancel()

    def drop(self, state: str) -> None:
        """Drops a call whose caller did not return. An unknown state is ignored."""
        held = self._held.pop(state, None)
        if held is not None:
            held.lapse.cancel()
            self.dropped(held)

    def drop_all_in(self, lent: BorrowedSession) -> None:
        for state in [state for state, held in self._held.items() if held.course.held and held.course.lent is lent]:
            self.drop(state)


def progress_token(request: Request) -> Id | None:
    token = request.params.get("_meta", {}).get("progressToken")
    return token if isinstance(token, str) or type(token) is int else None
