"""Routes unsolicited messages of a session-based server to its subscribers.

Each borrowed session has one GET stream, opened with the first subscription, or if the server may send its client
requests: some servers send those on that stream and not on the call's. It is reopened whenever it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from sidecar.errors import Refusal
from sidecar.protocols import sse
from sidecar.protocols.jsonrpc import Id, Message, Notification, Response, encode_notification, encode_response
from sidecar.upstreams.mcp.bridge.borrowed_calls import CallPlace, events
from sidecar.upstreams.mcp.bridge.translation import META_SUBSCRIPTION
from sidecar.upstreams.mcp.transport import EVENT_STREAM, AnswerPipe, McpTransport, Outbound

READY_WITHIN_S: Final = 2.0  # the longest wait for the stream's head
MIN_PAUSE_S, MAX_PAUSE_S = 0.05, 30.0
MAX_UNREAD_BYTES: Final = 2**20
MAX_EARLY: Final = 64
LIST_FLAGS: Final[Mapping[str, str]] = {
    "notifications/tools/list_changed": "toolsListChanged",
    "notifications/prompts/list_changed": "promptsListChanged",
    "notifications/resources/list_changed": "resourcesListChanged",
}
UPDATED: Final = "notifications/resources/updated"
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"


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
        """Begin the stream with the part of the subscription that can be served."""
        honoured: dict[str, Any] = dict.fromkeys(sorted(self.flags), True)
        if self.uris:
            honoured["resourceSubscriptions"] = sorted(self.uris)
        self._acknowledged = True
        self._write(Notification(ACKNOWLEDGED, {"notifications": honoured}))
        for notification in self._early:
            self.hear(notification)

    def hear(self, notification: Notification) -> None:
        """Send a notification to the caller if the subscription includes it."""
        flag = LIST_FLAGS.get(notification.method)
        uri = notification.params.get("uri")
        updated = notification.method == UPDATED and isinstance(uri, str) and uri in self.uris
        if not updated and flag not in self.flags:
            return
        if self._acknowledged:
            self._write(notification)
        elif len(self._early) < MAX_EARLY:
            self._early.append(notification)

    def end(self) -> None:
        """End the stream without a fault."""
        result = {"resultType": "complete", "_meta": {META_SUBSCRIPTION: self.request_id}}
        self.pipe.write(sse.encode_event(encode_response(Response(self.request_id, result))))
        self.pipe.end()

    def _write(self, notification: Notification) -> None:
        meta = {**notification.params.get("_meta", {}), META_SUBSCRIPTION: self.request_id}
        marked = Notification(notification.method, {**notification.params, "_meta": meta})
        self.pipe.write(sse.encode_event(encode_notification(marked)))


class ServerMessages:
    """The GET stream of one session. `outbound` gives the request that opens it, which may show another credential than
    the last time; `heard` is called with every message; `lost` when the session is gone.
    """

    def __init__(
        self,
        upstream: McpTransport,
        outbound: Callable[[], Outbound],
        heard: Callable[[Message], None],
        lost: Callable[[], None],
    ) -> None:
        self._upstream = upstream
        self._outbound = outbound
        self._heard = heard
        self._lost = lost
        self._ready: asyncio.Future[bool] | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> bool:
        """Whether the server has such a stream; it is open, or still opening after a short wait."""
        if self._ready is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run(self._ready), name=f"stream of {self._upstream.name}")
        done, _ = await asyncio.wait({self._ready}, timeout=READY_WITHIN_S)
        return self._ready.result() if done else True

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(False)

    async def _run(self, ready: asyncio.Future[bool]) -> None:
        loop, place, pause_s = asyncio.get_running_loop(), CallPlace(self._upstream), MIN_PAUSE_S
        while True:
            began_s = loop.time()
            try:
                status = await self._listen(ready, place)
            except Refusal:
                status = 0
            if status in (404, 405):
                _tell(ready, False)
                if status == 404:
                    self._lost()
                return
            lasted = loop.time() - began_s > MAX_PAUSE_S
            pause_s = MIN_PAUSE_S if lasted else min(pause_s * 2, MAX_PAUSE_S)  # grows while the stream ends at once
            await asyncio.sleep(max(pause_s, place.pause_s))

    async def _listen(self, ready: asyncio.Future[bool], place: CallPlace) -> int:
        asked = self._outbound()._replace(last_event_id=place.last_event_id)
        with await self._upstream.exchange(asked) as answer:
            if answer.status != 200 or answer.media_type != EVENT_STREAM:
                return answer.status if answer.status != 200 else 405
            _tell(ready, True)
            async with aclosing(events(answer, place, self._upstream.max_response_bytes)) as messages:
                async for message in messages:
                    if isinstance(message, tuple):  # no keep-alive
                        self._heard(message)
        return 200


def _tell(ready: asyncio.Future[bool], answer: bool) -> None:
    if not ready.done():
        ready.set_result(answer)
