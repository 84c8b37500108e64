"""Filters a session's stream for subscribed stateless callers."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from sidecar.errors import Reason, Refusal
from sidecar.protocols.jsonrpc import Notification, Request
from sidecar.upstreams.mcp.bridge.borrowed_sessions import BorrowedSession, BorrowedSessions
from sidecar.upstreams.mcp.bridge.translation import announces, offers
from sidecar.upstreams.mcp.bridge.unsolicited import Subscription
from sidecar.upstreams.mcp.transport import EVENT_STREAM, LIST_FLAGS, BuiltUpstream, UpstreamAnswer

MAX_SUBSCRIPTIONS: Final = 64  # of one session


class Subscriptions:
    """The `subscriptions/listen` of all borrowed sessions of one server."""

    def __init__(self, sessions: BorrowedSessions) -> None:
        self._sessions = sessions

    def publish(self, lent: BorrowedSession, notification: Notification) -> None:
        """Send a notification about the server's lists or resources to the session's subscribers."""
        for subscription in list(lent.subscriptions):
            subscription.hear(notification)
            if subscription.pipe.closed:  # its caller did not read
                self._unsubscribe(lent, subscription, sorted(subscription.uris))

    async def subscribe(self, lent: BorrowedSession, request: Request) -> UpstreamAnswer:
        """The stream of one `subscriptions/listen`: an acknowledgement, then what the server sends. Raises Refusal."""
        wanted = request.params.get("notifications", {})
        if len(lent.subscriptions) >= MAX_SUBSCRIPTIONS:
            raise Refusal(Reason.TOO_MANY_CONCURRENT, "too many subscriptions")
        flags, uris = set[str](), set[str]()
        if await lent.listens():
            flags = {flag for flag in LIST_FLAGS.values() if wanted.get(flag) is True and announces(lent.server, flag)}
            if offers(lent.server, "resources", "subscribe"):
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
        lent.uris[uri] = lent.uris.get(uri, 0) + 1
        done = lent.uris[uri] > 1
        try:
            done = done or await self._sessions.ask(lent, "resources/subscribe", {"uri": uri})
        finally:
            if not done:
                self._release(lent, uri)
        return done

    def _release(self, lent: BorrowedSession, uri: str) -> bool:
        """Remove one subscriber; returns whether it was the last."""
        left = lent.uris.get(uri, 0) - 1
        if left > 0:
            lent.uris[uri] = left
            return False
        return lent.uris.pop(uri, None) is not None

    def _unsubscribe(self, lent: BorrowedSession, subscription: Subscription, uris: list[str]) -> None:
        lent.subscriptions.discard(subscription)
        lent.used_s = asyncio.get_running_loop().time()
        for uri in uris:
            if self._release(lent, uri) and not lent.lost:
                self._sessions.background.add(self._sessions.ask(lent, "resources/unsubscribe", {"uri": uri}))
