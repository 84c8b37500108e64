"""Merges the streams of many servers into one.

Each server's stream is read, filtered and translated as if it were alone, and written into one pipe. The caller's end
of the pipe is a stream like any other, with the same reasons to end (`gateway/response_stream.py`). A server's stream
that breaks is reopened, with growing delays if it breaks at once; it does not end the merged stream.

Session revisions: the streams of the member sessions, each from its opening. Stateless revisions: one subscription at
each server, and one acknowledgement for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from sidecar.errors import ANSWERS, Reason, Refusal
from sidecar.gateway.frontends.aggregate import fan_out
from sidecar.gateway.frontends.aggregate.fan_out import (
    UNAVAILABLE,
    AggregateCall,
    FanOut,
    UnavailableServer,
    note,
    patience_of,
)
from sidecar.gateway.frontends.aggregate.names import AggregateNames, wrapped
from sidecar.gateway.reauthorization import end_of
from sidecar.gateway.request import UpstreamExchange
from sidecar.gateway.snapshot import Live, Service, Snapshot
from sidecar.http.server.event_stream import EventSink
from sidecar.protocols import jsonrpc, sse
from sidecar.protocols.jsonrpc import Notification, Request
from sidecar.protocols.mcp import messages
from sidecar.upstreams.mcp.streams import ReopenPauses
from sidecar.upstreams.mcp.transport import EVENT_STREAM, AnswerPipe, BuiltUpstream, UpstreamAnswer
from sidecar.upstreams.statuses import refusal_of

ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"
LOOK_EVERY_S: Final = 5.0  # how often the streams of added servers are opened, and those of removed servers closed
MIN_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0  # between the openings of one server's stream, see ReopenPauses
_CHANGES = {"toolsListChanged": "tools", "promptsListChanged": "prompts", "resourcesListChanged": "resources"}


@dataclass(slots=True)
class PipedEvents(EventSink):
    pipe: AnswerPipe

    async def write(self, data: bytes) -> None:
        self.pipe.write(data)


@dataclass(slots=True, eq=False)
class StreamMerge:
    """Merges the servers' streams into one. `see` returns the servers visible to the caller under a snapshot."""

    call: AggregateCall
    gathering: FanOut
    see: Callable[[Snapshot], Sequence[Service]]
    pipe: AnswerPipe = field(default_factory=AnswerPipe)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _accepted: dict[str, list[Any]] = field(default_factory=dict)
    _failed: dict[str, UnavailableServer] = field(default_factory=dict)
    _settled: asyncio.Condition = field(default_factory=asyncio.Condition)
    _acknowledged: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[BuiltUpstream]:
        """Merges until it is left; the value is the merged stream, as an upstream's answer."""
        keeper = self._begun(self._keep(self.call.servers))
        try:
            yield BuiltUpstream(200, media_type=EVENT_STREAM, pipe=self.pipe, given_up=lambda: None)
        finally:
            tasks = [keeper, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            self.pipe.end()
            for bug in ends:
                if isinstance(bug, Exception):
                    raise bug

    @property
    def _live(self) -> Live:
        return self.gathering.forwarder.live

    def hear(self, name: str, last_event_id: str | None = None) -> None:
        """Opens one more server's stream, unless it is open already."""
        task = self._tasks.get(name)
        if task is None or task.done():
            self._tasks[name] = self._begun(self._hear(name, last_event_id))

    def _begun(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        """Ends the merged stream if one of its streams fails because of a bug, so that the bug is noticed."""
        if not task.cancelled() and task.exception() is not None:
            self.pipe.end(Refusal(Reason.INTERNAL))

    async def _keep(self, servers: Sequence[Service]) -> None:
        """Opens the streams of these servers, and follows changes of the servers that the caller sees. Runs as long as
        the merged stream."""
        seen, names = self._rules(), [service.name for service in servers]
        self._start(names, self.call.intent.resumed)
        if self._subscribes:
            await self._acknowledge(servers)
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            now = self._rules()
            if all(one is other for one, other in zip(now, seen, strict=True)):
                continue
            seen, found = now, [service.name for service in self.see(self._live.current)]
            if found != names:
                for gone in set(names).difference(found) & self._tasks.keys():
                    self._tasks.pop(gone).cancel()
                names = found
                self._start(names)
                for wanted, what in _CHANGES.items():
                    if not self._subscribes or self._wanted.get(wanted) is True:
                        self._say(f"notifications/{what}/list_changed", {})

    def _rules(self) -> tuple[object, ...]:
        """Returns the objects that determine which servers the caller sees. A changed rule is a different object."""
        switch = self.gathering.forwarder.switch
        return self._live.current, switch.ledger.disabled, switch.ledger.switched_off

    def _start(self, names: Sequence[str], resumed: tuple[str, str] | None = None) -> None:
        session = self.call.intent.session
        for name in names:
            if session is None or name in session.parts:
                self.hear(name, resumed[1] if resumed is not None and name == resumed[0] else None)

    @property
    def _subscribes(self) -> bool:
        return self.call.intent.message is not None

    def _say(self, method: str, params: dict[str, Any], meta: dict[str, Any] | None = None) -> None:
        if isinstance(self.call.intent.message, Request):
            meta = {SUBSCRIPTION: self.call.intent.message.id, **(meta or {})}
        if meta:
            params = {**params, "_meta": meta}
        self.pipe.write(sse.encode_event(jsonrpc.encode_notification(Notification(method, params))))

    @property
    def _wanted(self) -> dict[str, Any]:
        message = self.call.intent.message
        wanted: dict[str, Any] = message.params.get("notifications", {}) if message is not None else {}
        return wanted

    async def _acknowledge(self, servers: Sequence[Service]) -> None:
        """Sends the acknowledgement when every server has answered or the longest of their deadlines has passed."""
        patience_s = max(map(patience_of, servers), default=0.0)
        try:
            async with asyncio.timeout(patience_s), self._settled:
                await self._settled.wait_for(lambda: len(self._accepted.keys() | self._failed.keys()) >= len(servers))
        except TimeoutError:
            late = Refusal(Reason.UPSTREAM_TIMEOUT)
            for service in servers:
                if service.name not in self._accepted:
                    self._failed.setdefault(service.name, UnavailableServer(service.name, late))
        missing = [self.gathering.missed(*self._failed[name]) for name in sorted(self._failed)]
        note(self.call.request, servers, missing)
        meta = {UNAVAILABLE: [one.told for one in missing]} if missing else {}
        self._say(ACKNOWLEDGED, {"notifications": self._honored()}, meta)
        self._acknowledged.set()

    def _honored(self) -> dict[str, Any]:
        """Returns the union of what the servers accepted, and all list changes, because servers may be added."""
        honored: dict[str, Any] = {wanted: True for wanted in _CHANGES if self._wanted.get(wanted) is True}
        uris = [
            wrapped(name, uri)
            for name in sorted(self._accepted)
            for uri in self._spelled(name)
            if uri in self._accepted[name]
        ]
        return {**honored, "resourceSubscriptions": uris} if self.call.intent.also else honored

    def _spelled(self, name: str) -> list[str]:
        """Returns the subscribed URIs at one server, in the server's own spelling."""
        service = self._live.current.services.get(name)
        uris = [question.name for question in self.call.intent.also if question.server == name]
        return [service.catalogue.spellings.spelled(uri) for uri in uris] if service else []

    async def _settle(self, name: str, accepted: list[Any] | None, failure: Refusal | None) -> None:
        async with self._settled:
            if accepted is not None:
                self._accepted.setdefault(name, accepted)
                self._failed.pop(name, None)
            elif failure is not None and name not in self._accepted and not self._acknowledged.is_set():
                self._failed[name] = UnavailableServer(name, failure)
            self._settled.notify_all()

    async def _hear(self, name: str, last_event_id: str | None) -> None:
        loop, pauses = asyncio.get_running_loop(), ReopenPauses(MIN_PAUSE_S, MAX_PAUSE_S)
        while (service := self._live.current.services.get(name)) is not None:
            begun = loop.time()
            failure = await self._listen(service, last_event_id)
            await self._settle(name, None, failure or Refusal(Reason.UPSTREAM_FAILED, "it ended the subscription"))
            if failure is not None and _is_final(failure):
                return
            last_event_id = None
            await asyncio.sleep(pauses.after(loop.time() - begun))

    async def _listen(self, service: Service, last_event_id: str | None) -> Refusal | None:
        """Passes on one server's messages until its stream ends. Returns the reason; None if the server ended it."""
        exchange = self._exchange(service)
        try:
            self._judge(exchange)
            with await self._opened(exchange, last_event_id) as answer:
                if answer.status == 405:
                    raise Refusal(Reason.VERB_NOT_ALLOWED, "this server offers no stream")
                if exchange.session is not None:
                    self.gathering.forwarder.check_alive(exchange.session, answer)
                if answer.status != 200 or answer.media_type != EVENT_STREAM:
                    raise refusal_of(answer)
                with exchange.streaming(answer):
                    await self._pass_on(exchange, answer)
        except Refusal as refusal:
            return refusal if exchange.cut is None else Refusal(exchange.cut)
        return None

    def _exchange(self, service: Service) -> UpstreamExchange:
        request, caller, spread = self.call.request, self.call.caller, self.call.intent
        part = spread.session.parts.get(service.name) if spread.session is not None else None
        own = (question for question in spread.also if question.server == service.name)
        call = spread.call._replace(
            upstream=service.name,
            questions=(messages.server_question(service.name, spread.call.question.action), *own),
            protocol_version=part.version if part is not None else spread.call.protocol_version,
        )
        forwarder, timeout_s = self.gathering.forwarder, service.timeout_s
        exchange = fan_out.opened_exchange(service, request, caller, call, part, forwarder, timeout_s)
        exchange.outward = AggregateNames(service.name)
        exchange.has_no_end()
        return exchange

    def _judge(self, exchange: UpstreamExchange) -> None:
        """Checks the grant on one server, and sets when it ends, because the server's stream must end with it. Raises
        Refusal if it has ended."""
        now_s, rules = self._live.clock(), exchange.judged_by
        decision = rules.decide(self.call.caller.chain, exchange.call, now_s)
        if not rules.shadows(now_s):
            decision.or_refuse()
        exchange.until = end_of(self.call.caller, decision, rules)

    async def _opened(self, exchange: UpstreamExchange, last_event_id: str | None) -> UpstreamAnswer:
        message = self.call.intent.message
        if not isinstance(message, Request):
            if exchange.session is None:  # the session was dropped; the next call begins a new one
                raise Refusal(Reason.SESSION_UNKNOWN)
            return await exchange.listen(last_event_id)
        uris = self._spelled(exchange.service.name)
        notifications = {**self._wanted, **({"resourceSubscriptions": uris} if uris else {})}
        params = {**messages.forwarded_params(message, "", tasks=False), "notifications": notifications}
        return await exchange.post(message._replace(params=params))

    async def _pass_on(self, exchange: UpstreamExchange, answer: UpstreamAnswer) -> None:
        session, name = exchange.session, exchange.service.name
        relay = self.gathering.forwarder.relay(exchange, session.sent if session is not None else ())
        sent, told = PipedEvents(self.pipe), not self._subscribes
        async with aclosing(relay.read(answer)) as events:
            async for event in events:
                if not told and event.message:
                    accepted = _accepted(event.message)
                    if accepted is None:
                        raise Refusal(Reason.RESPONSE_REFUSED, "its first message is not an acknowledgement")
                    told = True
                    await self._settle(name, accepted, None)
                    await self._acknowledged.wait()
                else:
                    await relay.event(event, sent, until_answer=False)


def _accepted(data: str) -> list[Any] | None:
    """Returns the URIs that an acknowledgement accepts; None for any other message."""
    try:
        message = jsonrpc.message_from(jsonrpc.parse_answer(data.encode()))
    except Refusal:
        return None
    if not isinstance(message, Notification) or message.method != ACKNOWLEDGED:
        return None
    accepted = message.params.get("notifications")
    uris = accepted.get("resourceSubscriptions") if isinstance(accepted, dict) else None
    return uris if isinstance(uris, list) else []


def _is_final(failure: Refusal) -> bool:
    """Reports whether a retry would fail too: there is no stream, no session, or no permission."""
    return (
        failure.reason in (Reason.VERB_NOT_ALLOWED, Reason.SESSION_UNKNOWN)
        or ANSWERS[failure.reason].status == "permission_denied"
    )
