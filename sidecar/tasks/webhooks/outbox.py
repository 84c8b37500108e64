"""Sends webhooks at least once: each is stored before its first attempt and deleted at its end. Deliveries are a kind
of job of the worker."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from sidecar.errors import Reason, Refusal, SettingsError
from sidecar.http.client import Accepted, EgressError, InvalidRequest, NotAllowed
from sidecar.http.client.origin import parse_strictly
from sidecar.observability.metrics import Metrics
from sidecar.storage import RecordStoreOut
from sidecar.storage.deliveries import (
    GONE,
    Delivery,
    DeliveryBounds,
    DeliveryOutcome,
    DeliveryState,
    DeliveryStore,
    Happening,
    Headers,
    Kind,
    OnBehalfOf,
    PendingDelivery,
    Result,
)
from sidecar.tasks.webhooks.delivery_order import DeliveryOrder
from sidecar.tasks.webhooks.signature import CallbackKey
from sidecar.tasks.worker import STORE_REST_S, Worker, backoff_s, no_sweep
from sidecar.vocabulary import Witness

LOOK_AGAIN_S: Final = 30.0  # for deliveries left by another process, and for changes to the clock
BOUNDS: Final = DeliveryBounds(per_owner=1_000, total=10_000, total_bytes=256 * 2**20)  # of waiting deliveries
PER_TARGET_PER_MINUTE: Final = 600  # attempts at one host and port, for all callers together
MAX_BODY_BYTES: Final = 2**20
MAX_ATTEMPTS: Final = 12
MAX_AGE_S: Final = 86_400.0
FIRST_RETRY_S, MAX_RETRY_S = 5.0, 3_600.0  # the delay doubles with each attempt
SPREAD: Final = (0.5, 1.0)  # of a delay before a retry
KNOWN_AT_ONCE: Final = 500
MAX_RETRY_AFTER_S: Final = 86_400
RESULTS: Final[dict[DeliveryState, Result]] = {
    DeliveryState.DELIVERED: "delivered",
    DeliveryState.WAITING: "failed",
    DeliveryState.REFUSED: "refused",
    DeliveryState.WITHHELD: "withheld",
    DeliveryState.GIVEN_UP: "given_up",
}

Post = Callable[[str, Headers, bytes], Awaitable[Accepted]]
Listener = Callable[[DeliveryOutcome], None]
Objection = Callable[[Kind, OnBehalfOf], Reason | None]
"""Returns why a delivery may not be sent any more; None if it may."""

log = logging.getLogger("sidecar.tasks.webhooks")


class _Held(Exception):
    """The delivery is withheld, but this cannot be recorded now."""


@dataclass(slots=True)
class Outbox:
    """Sends deliveries. `key` may create the key on first use; `chance` returns numbers from 0 to 1."""

    store: DeliveryStore
    post: Post
    objection: Objection
    witness: Witness
    key: Callable[[], CallbackKey]
    counts: Metrics
    clock: Callable[[], float]
    chance: Callable[[], float]
    new_id: Callable[[], str]
    _order: DeliveryOrder = field(default_factory=DeliveryOrder)
    _listeners: dict[Kind, Listener] = field(default_factory=dict)
    _over: dict[str, DeliveryState] = field(default_factory=dict)  # ended, but not yet deleted from the store
    _worker: Worker[PendingDelivery] = field(init=False)
    _look_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._worker = Worker("callbacks", self._look, no_sweep, self._pause_s)
        self._worker.ended = self._worker.wake
        self._look_at = self.clock()

    def listen(self, kind: Kind, told: Listener) -> None:
        """Registers the listener for results of deliveries of this kind, including those of an earlier process."""
        self._listeners[kind] = told

    async def put(
        self, kind: Kind, ref: str, behalf: OnBehalfOf, url: str, headers: Headers, body: bytes, id_: str = ""
    ) -> str:
        """Queues a delivery; returns its id, which is new unless `id_` is given. Queuing twice under one id gives one
        delivery. Raises Refusal: TOO_LARGE, TOO_MANY_CONCURRENT, STORE_UNAVAILABLE."""
        now_s = self.clock()
        if len(body) > MAX_BODY_BYTES:
            raise Refusal(Reason.TOO_LARGE, "the callback is too large")
        callback = Delivery(id_ or self.new_id(), kind, ref, behalf.caller.binding, url, now_s, headers, body, behalf)
        if not await self.store.put(callback, now_s, BOUNDS):
            raise Refusal(Reason.TOO_MANY_CONCURRENT, "too many callbacks wait")
        self._known(PendingDelivery(*callback[:6], 0, now_s))
        self._worker.wake()
        return callback.id

    async def drop(self, kind: Kind, ref: str) -> None:
        """Drops all deliveries with this ref. An attempt in progress is not interrupted, but not repeated. Raises
        Refusal(STORE_UNAVAILABLE); they are dropped nevertheless."""
        dropped = [waiting.id for waiting in self._order.about(kind, ref)]
        for id_ in dropped:
            self._order.move(id_, Happening.DROPPED)
        try:
            await self.store.ended(dropped)
        except RecordStoreOut:
            self._over |= dict.fromkeys(dropped, DeliveryState.FORGOTTEN)
            raise
        finally:
            self._count()

    def clock_was_set(self, by_s: float) -> None:
        self._order.shift(by_s)
        self._worker.wake()

    async def run(self) -> None:
        """Sends due deliveries until cancelled. Attempts that are then in progress are repeated after the next
        start."""
        try:
            await self._worker.run()
        finally:
            await self._worker.cancel()

    async def _look(self) -> None:
        now_s = self.clock()
        try:
            if not self._look_at - LOOK_AGAIN_S <= now_s < self._look_at:
                self._look_at = now_s + STORE_REST_S
                await self._read()
                self._look_at = now_s + LOOK_AGAIN_S
        finally:
            while (waiting := self._order.take(now_s, PER_TARGET_PER_MINUTE)) is not None:
                self._worker.begin(waiting.id, waiting, partial(self._attempt, waiting))

    def _pause_s(self) -> float:
        return min(self._order.wake_at() or self._look_at, self._look_at) - self.clock()

    async def _read(self) -> None:
        if self._over:
            ended = [*self._over]
            await self.store.ended(ended)
            for id_ in ended:
                self._over.pop(id_, None)
        for number, waiting in enumerate(await self.store.waiting()):
            self._known(waiting)
            if number % KNOWN_AT_ONCE == KNOWN_AT_ONCE - 1:
                await asyncio.sleep(0)  # yields to other tasks: after a long outage there are many

    def _known(self, waiting: PendingDelivery) -> None:
        if waiting.id not in self._over and waiting.id not in self._order:
            self._order.add(waiting, _receiver(waiting.url))
            self._count()

    async def _attempt(self, waiting: PendingDelivery) -> None:
        """Makes one attempt and records its result. Errors don't affect other deliveries."""
        started_s = self.clock()
        try:
            happening, why, rest_s = await self._sent(waiting)
        except BaseException as error:  # if it was cancelled, it may have arrived; the receiver recognizes it by its id
            if waiting.id in self._order:
                self._order.move(waiting.id, Happening.POSTPONED, self.clock() + STORE_REST_S)
            if not isinstance(error, RecordStoreOut | _Held):  # the next look reports an outage
                raise
        else:
            await self._settle(waiting, happening, why, rest_s, self.clock() - started_s)

    async def _sent(self, waiting: PendingDelivery) -> tuple[Happening, str, float | None]:
        """Sends it; returns the event, the reason, and the delay in seconds that the receiver requests, or None."""
        now_s = self.clock()
        failed = Happening.EXHAUSTED if waiting.attempts + 1 >= MAX_ATTEMPTS else Happening.FAILED
        if now_s - waiting.created_at > MAX_AGE_S:
            return Happening.EXHAUSTED, "it has become too old", None
        try:
            callback = await self.store.get(waiting.id)
            if callback is None:  # another process had it
                return Happening.DROPPED, "", None
            if (reason := self.objection(callback.kind, callback.behalf)) is not None:
                return await self._withheld(callback, reason)
            signed = self.key().sign(parse_strictly(callback.url), callback.id, now_s, callback.body)
            answer = await self.post(callback.url, (*callback.headers, *signed), callback.body)
        except (NotAllowed, InvalidRequest, ValueError) as refused:
            return Happening.REFUSED, refused.why if isinstance(refused, NotAllowed) else str(refused), None
        except SettingsError:
            return failed, "the key of callbacks cannot be used", None
        except EgressError as failure:
            return failed, str(failure), None
        why = f"status {answer.status}"
        if 200 <= answer.status < 300:
            return Happening.ACCEPTED, why, None
        if answer.status == GONE:
            return Happening.UNWANTED, why, None
        return failed, why, _seconds(answer.retry_after)

    async def _withheld(self, callback: Delivery, reason: Reason) -> tuple[Happening, str, float | None]:
        """Records that it is withheld; until that succeeds, it waits and is not sent."""
        facts = {
            "kind": callback.kind,
            "principal": callback.behalf.caller.last.name,
            "upstream": callback.behalf.server,
        }
        try:
            await self.witness("callback-withheld", "sidecar", **facts, callback=callback.id, reason=reason.value)
        except Refusal:
            raise _Held from None
        return Happening.WITHHELD, reason.value, None

    async def _settle(
        self, waiting: PendingDelivery, happening: Happening, why: str, rest_s: float | None, duration_s: float
    ) -> None:
        if waiting.id not in self._order:  # dropped in the meantime
            return
        pause_s = backoff_s(FIRST_RETRY_S, MAX_RETRY_S, waiting.attempts + 1, SPREAD, self.chance())
        due_at = self.clock() + max(pause_s, rest_s or 0.0)
        state = self._order.move(waiting.id, happening, due_at)
        attempts = waiting.attempts + 1
        try:
            if state is DeliveryState.WAITING:
                await self.store.again(waiting.id, attempts, due_at)
            else:
                await self.store.ended([waiting.id])
        except RecordStoreOut:
            if state is not DeliveryState.WAITING:
                self._over[waiting.id] = state
        self._count()
        if state is not DeliveryState.FORGOTTEN:
            told = DeliveryOutcome(waiting.id, waiting.kind, waiting.ref, RESULTS[state], attempts, why)
            self._tell(told, waiting, duration_s)

    def _tell(self, told: DeliveryOutcome, waiting: PendingDelivery, duration_s: float) -> None:
        self.counts.callback_attempted(told.kind, told.result, duration_s)
        if told.result != "delivered":  # only the receiver's host: a path may be a secret
            about = {"id": told.id, "receiver": _receiver(waiting.url), "attempts": told.attempts, "why": told.why}
            level = logging.INFO if told.result == "failed" else logging.WARNING
            log.log(level, f"a callback is {told.result.replace('_', ' ')}", extra=about)
        if (listener := self._listeners.get(told.kind)) is not None:
            asyncio.get_running_loop().call_soon(listener, told)  # its errors don't affect the outbox

    def _count(self) -> None:
        self.counts.callbacks_wait(len(self._order))


def _receiver(url: str) -> str:
    """Returns host and port; URLs that cannot be parsed share one value."""
    try:
        origin = parse_strictly(url)
    except ValueError:
        return ""
    return f"{origin.host}:{origin.port}"


def _seconds(retry_after: str) -> float | None:
    """Parses Retry-After in seconds (RFC 9110, 10.2.3); a date counts as absent."""
    text = retry_after.strip()
    return float(min(int(text), MAX_RETRY_AFTER_S)) if text.isascii() and text.isdigit() and len(text) < 10 else None
