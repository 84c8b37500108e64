"""Receives a server's unsolicited messages (GET stream, or `subscriptions/listen`), and passes them to subscribers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from sidecar.errors import Refusal
from sidecar.protocols.jsonrpc import Id, Message, Notification, Request, Response
from sidecar.protocols.mcp.eras import META_SUBSCRIPTION
from sidecar.upstreams.mcp.streams import ReopenPauses, StreamMark, StreamPlace, events
from sidecar.upstreams.mcp.transport import (
    EVENT_STREAM,
    LIST_FLAGS,
    UPDATED,
    AnswerPipe,
    McpTransport,
    Outbound,
    event_of,
)

MIN_PAUSE_S, MAX_PAUSE_S = 0.05, 30.0
MAX_UNREAD_BYTES: Final = 2**20
MAX_EARLY: Final = 64
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"


@dataclass(slots=True, eq=False)
class UnsolicitedStream:
    """A stream of unsolicited messages, reopened whenever it ends. `outbound` gives the request that opens it, with the
    current credential. `heard` is called with every message and keep-alive. `refused` is called with the status of an
    answer that is not a stream, and returns whether to try again."""

    upstream: McpTransport
    outbound: Callable[[], Outbound]
    heard: Callable[[Message | StreamMark], object]
    refused: Callable[[int], bool]
    _place: StreamPlace = field(init=False)
    _ready: asyncio.Future[bool] | None = None
    _task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._place = StreamPlace(self.upstream)

    async def open(self, within_s: float) -> bool:
        """Whether the server has such a stream: it is open, or still opening after `within_s`."""
        if self._ready is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run(), name=f"unsolicited messages of {self.upstream.name}")
        done, _ = await asyncio.wait({self._ready}, timeout=within_s)
        return self._ready.result() if done else True

    def close(self) -> None:
        self._tell(False)
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        loop, pauses = asyncio.get_running_loop(), ReopenPauses(MIN_PAUSE_S, MAX_PAUSE_S)
        while True:
            began_s = loop.time()
            try:
                status = await self._listen()
            except Refusal:
                status = 0
            if status not in (0, 200) and not self.refused(status):
                self._tell(False)
                return
            await asyncio.sleep(max(pauses.after(loop.time() - began_s), self._place.pause_s))

    async def _listen(self) -> int:
        """Reads one stream to its end; returns the answer's status, 405 for a 200 that is not a stream."""
        asked, place = self.outbound(), self._place
        if isinstance(asked.message, Request):
            place.answers = asked.message.id
        else:
            asked = asked._replace(last_event_id=place.last_event_id)
        with await self.upstream.exchange(asked) as answer:
            if answer.status != 200 or answer.media_type != EVENT_STREAM:
                return answer.status if answer.status != 200 else 405
            if place.answers is None:
                self._tell(True)
            async with aclosing(events(answer, place)) as items:
                async for item in items:
                    if isinstance(item, Response):
                        break  # it ends the subscription
                    if isinstance(item, Notification) and item.method == ACKNOWLEDGED:
                        self._tell(True)
                    self.heard(item)
        return 200

    def _tell(self, ready: bool) -> None:
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(ready)


@dataclass(slots=True, eq=False)
class Subscription:
    """One `subscriptions/listen` and the messages for its caller. Nothing is sent before the acknowledgement."""

    request_id: Id
    flags: frozenset[str] = frozenset()
    uris: frozenset[str] = frozenset()
    pipe: AnswerPipe = field(default_factory=lambda: AnswerPipe(MAX_UNREAD_BYTES))
    _acknowledged: bool = False
    _early: list[Notification] = field(default_factory=list)

    def acknowledge(self) -> None:
        """Begins the stream with the part of the subscription that can be served."""
        honoured: dict[str, Any] = dict.fromkeys(sorted(self.flags), True)
        if self.uris:
            honoured["resourceSubscriptions"] = sorted(self.uris)
        self._acknowledged = True
        self._write(Notification(ACKNOWLEDGED, {"notifications": honoured}))
        for notification in self._early:
            self.hear(notification)

    def hear(self, notification: Notification) -> None:
        """Sends a notification to the caller if the subscription includes it."""
        uri = notification.params.get("uri")
        updated = notification.method == UPDATED and isinstance(uri, str) and uri in self.uris
        if not updated and LIST_FLAGS.get(notification.method) not in self.flags:
            return
        if self._acknowledged:
            self._write(notification)
        elif len(self._early) < MAX_EARLY:
            self._early.append(notification)

    def end(self) -> None:
        """Ends the stream without a fault."""
        result = {"resultType": "complete", "_meta": {META_SUBSCRIPTION: self.request_id}}
        self.pipe.write(event_of(Response(self.request_id, result)))
        self.pipe.end()

    def _write(self, notification: Notification) -> None:
        meta = {**notification.params.get("_meta", {}), META_SUBSCRIPTION: self.request_id}
        marked = Notification(notification.method, {**notification.params, "_meta": meta})
        self.pipe.write(event_of(marked))
