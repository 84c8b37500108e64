"""Requires approvals of calls, and takes people's answers.

A call that policy allows only with an approval passes here after its arguments are checked. The first such call makes a
request for approval. That call and every later call alike waits, is refused, or uses the approval. People answer by the
admin API of any replica; the answers are in the store, which each replica polls for its held calls.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, Literal, NamedTuple

import orjson

from sidecar.errors import Reason, Refusal
from sidecar.gateway.approvals.approval_record import (
    EXPIRED,
    GIVEN,
    REFUSED,
    SHOWN,
    TARGET,
    WITHDRAWN,
    ApprovalRecord,
    ApprovalState,
    Approver,
    AskedQuestion,
    Demand,
    PersonAnswer,
)
from sidecar.gateway.kill_switch import KillSwitch
from sidecar.gateway.request import ApprovalWait, CallContext
from sidecar.gateway.snapshot import Live
from sidecar.observability.metrics import Metrics
from sidecar.storage import AddedRecord, RecordBounds, RecordPage, RecordStore, RecordStoreOut, UnreadableRecord
from sidecar.vocabulary import Call, Caller, Decision, Principal, Witness

PURPOSE: Final = b"sidecar/approval/1"
KEY_CHARS: Final = 32
SERIAL_CHARS: Final = 8
MAX_ARGUMENTS_BYTES: Final = 256 * 1024  # of a call that waits: people read them
MAX_REASON_CHARS: Final = 500
MAX_SHOWN: Final = 100  # people whom one request names as having seen it
CHANGED_TIMES: Final = 10  # attempts, while others change the same record
TICK_S: Final = 5.0  # between progress notifications to a caller that waits
COUNT_EVERY_S: Final = 2.0
SWEEP_EVERY_S: Final = 60.0  # for requests that another process left
LOOK_EVERY_S: Final = 0.5  # for answers given at another replica, and for late requests
PAGE: Final = 100
MAX_DUE: Final = 10_000  # requests that expire on time; others expire with the next sweep
_SWEPT: Final = (ApprovalState.WAITING, ApprovalState.APPROVED, ApprovalState.REFUSED)

Outcome = Literal["approve", "refuse"]
Listeners = defaultdict[str, set[asyncio.Event]]
Notify = Callable[[ApprovalRecord], Awaitable[None]]

log = logging.getLogger("sidecar.gateway.approvals")


class ApprovalError(Exception):
    """A person's request cannot be carried out. `status` is HTTP's."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class WaitingApprovals(NamedTuple):
    """How many requests wait, and when the oldest was made."""

    number: int = 0
    oldest_s: float | None = None


@dataclass(slots=True)
class Approvals:
    """All requests for approval. `clock` returns seconds since the epoch; `key` derives their ids, and is shared by
    replicas. `notify` queues a notification of an event once it is recorded, at least once, and raises nothing.
    `waiting` are the requests of all replicas at the last count. `is_used`: a call needed an approval, or waits for
    one."""

    live: Live
    switch: KillSwitch
    store: RecordStore[ApprovalRecord]
    key: bytes = field(repr=False)
    witness: Witness
    metrics: Metrics
    new_id: Callable[[], str]
    clock: Callable[[], float]
    notify: Notify | None = None
    waiting: WaitingApprovals = field(default_factory=WaitingApprovals)
    is_used: bool = False
    _held: Listeners = field(default_factory=lambda: defaultdict(set))
    _stored: Listeners = field(default_factory=lambda: defaultdict(set))  # for stored tasks, whose callers do not wait
    _looked: int = 0  # the number of `_stored` at the last poll
    _recording: dict[str, asyncio.Event] = field(default_factory=dict)  # events that others wait for, by id
    _due: list[tuple[float, str]] = field(default_factory=list)
    _is_stopping: bool = False
    _is_swept: bool = False  # in all states, since the start

    # --- calls ---

    async def require(self, request: CallContext, caller: Caller, call: Call, decision: Decision) -> ApprovalRecord:
        """Returns the approval that allows the call. Makes a request if no call alike has made one. Raises Refusal:
        APPROVAL_PENDING, APPROVAL_REFUSED, APPROVAL_EXPIRED, STORE_UNAVAILABLE, AUDIT_UNAVAILABLE, TOO_LARGE,
        TOO_MANY_CONCURRENT."""
        self.is_used = True
        args_hash = await request.record.hashed()
        key = self._key(caller, call, args_hash, decision)
        if request.approval and (going_on := await self._of_round(key, request.approval)) is not None:
            return going_on
        record = await self._current(key)
        if record is None:
            record = await self._ask(key, caller, call, args_hash, decision, request.record.decision_id)
        wait = request.wait
        if record.state is ApprovalState.WAITING and wait.hold_s > 0.0:
            record = await self._held_for(record, wait)
        if record.state is ApprovalState.APPROVED:
            return record
        if record.state is ApprovalState.WAITING:
            raise await wait.pending(record, self.page_of(record))
        if record.state is ApprovalState.EXPIRED:
            await self.store.replace(record._replace(told=True, revision=record.revision + 1))
        raise ended_without(record)

    async def ask(self, request: CallContext, caller: Caller, call: Call, decision: Decision) -> ApprovalRecord:
        """Returns the request for approval of a stored call, which is carried out when it is approved. Makes one if no
        call alike has made one. Raises Refusal: see `require`, except APPROVAL_PENDING and APPROVAL_EXPIRED."""
        self.is_used = True
        args_hash = await request.record.hashed()
        key = self._key(caller, call, args_hash, decision)
        record = await self._current(key)
        if record is None or record.state is ApprovalState.EXPIRED:
            return await self._ask(key, caller, call, args_hash, decision, request.record.decision_id)
        if record.state is ApprovalState.REFUSED:
            raise ended_without(record)
        return record

    async def use(self, record: ApprovalRecord, request: CallContext) -> ApprovalRecord:
        """Uses an approval for one decision, which is recorded next; returns it as it is stored. Raises Refusal:
        APPROVAL_PENDING if a call alike used it first, STORE_UNAVAILABLE."""
        used = record
        if record.valid_s is None:
            if record.state is ApprovalState.USED:
                used = record._replace(rounds=record.rounds + 1, revision=record.revision + 1)
            else:
                used = record._replace(used_by=request.record.decision_id).moved(ApprovalState.USED)
            try:
                is_used = await self.store.replace(used)
            except (RecordStoreOut, asyncio.CancelledError):  # it may be stored nevertheless
                await self.give_back(used)
                raise
            if not is_used:
                raise Refusal(Reason.APPROVAL_PENDING, "the approval was used by another call")
            request.approval = used.next_round
        request.record.approval = used.evidence
        if not used.rounds:
            self.metrics.approval("used")
        return used

    async def give_back(self, record: ApprovalRecord) -> None:
        """Makes an approval usable again whose first decision was not recorded, so that nothing was executed. Without
        the store it stays used."""
        if record.state is not ApprovalState.USED or record.rounds:
            return
        with suppress(RecordStoreOut):
            found = await self.store.get(record.id)  # a call alike may have used it first
            if found is not None and (found.used_by, found.revision) == (record.used_by, record.revision):
                await self.store.reopen(record._replace(used_by="").moved(ApprovalState.APPROVED), "", 0.0)

    async def withdraw(self, name: str, caller: Caller) -> None:
        """Ends the caller's request for approval, for which nothing waits any more, unless it has ended. Raises
        RecordStoreOut, Refusal(AUDIT_UNAVAILABLE)."""
        for _ in range(CHANGED_TIMES):
            record = await self.state_for(caller, name)
            if record is None or record.is_done:
                return
            changed = record._replace(unrecorded=WITHDRAWN).moved(ApprovalState.WITHDRAWN)
            if await self.store.replace(changed):
                self.metrics.approval("withdrawn")
                await self._recorded(changed)
                self._wake(changed.id)
                return
        raise _contended()

    def page_of(self, record: ApprovalRecord) -> str | None:
        """Returns the address at which people answer a request, if there is one."""
        page = self.live.current.settings.approval_page
        return None if page is None else f"{page}{record.name}"

    async def state_for(self, caller: Caller, name: str) -> ApprovalRecord | None:
        """Returns the caller's own request for approval; None if there is none of this name. Raises like `find`."""
        record = await self.find(name)
        return record if record is not None and record.caller.binding == caller.binding else None

    def is_bound(self, record: ApprovalRecord, caller: Caller, call: Call, decision: Decision) -> bool:
        """Whether an approval is bound to this call under another decision on it."""
        return record.id == self._key(caller, call, record.args_hash, decision)

    def release(self) -> None:
        """Ends the wait of all held calls when the sidecar stops."""
        self._is_stopping = True
        for key in self._held:
            self._wake(key)

    async def _of_round(self, key: str, round_: str) -> ApprovalRecord | None:
        """Returns the approval that an earlier round of this call used; None if this is not the call's next round."""
        record = await self.find(round_.rpartition("-")[0])
        is_next = record is not None and record.id == key and record.next_round == round_
        return record if is_next and record is not None and record.state is ApprovalState.USED else None

    async def _current(self, key: str) -> ApprovalRecord | None:
        """Returns the request that a call with this key finds; None if the call must make a new one."""
        try:
            record = await self.store.get(key)
        except UnreadableRecord:  # another key sealed it: no one can answer it
            await self.store.remove((key,))
            return None
        if record is None:
            return None
        record = await self._up_to_date(record)
        now_s = self.clock()
        if record.state in (ApprovalState.USED, ApprovalState.WITHDRAWN):
            return None
        if record.state is ApprovalState.EXPIRED and record.told:
            return None
        if record.state is ApprovalState.REFUSED and now_s >= record.deadline_s:
            return None
        if record.state is ApprovalState.APPROVED and not all(map(self._still_may, record.given)):
            return await self._expired(record, "an approver lost the role")
        return record

    async def _ask(
        self, key: str, caller: Caller, call: Call, args_hash: str, decision: Decision, decision_id: str
    ) -> ApprovalRecord:
        demanding = [(rule, rule.approval) for rule in decision.approvals if rule.approval is not None]
        terms = [approval for _, approval in demanding]
        questions = tuple(AskedQuestion(one.object, one.action, one.arguments) for one in call.questions)
        if len(orjson.dumps([one.arguments for one in questions])) > MAX_ARGUMENTS_BYTES:
            told = f"arguments of a call that waits for approval have {MAX_ARGUMENTS_BYTES} bytes at most"
            raise Refusal(Reason.TOO_LARGE, told)
        now_s, within_s = self.clock(), min(one.within_s for one in terms)
        ends_s = now_s + within_s if decision.until is None else min(now_s + within_s, decision.until)
        lasting = [one.valid_s for one in terms]
        record = ApprovalRecord(
            key,
            self.new_id()[-SERIAL_CHARS:],
            caller,
            call.protocol,
            call.upstream,
            questions,
            args_hash,
            tuple(Demand(rule.id, approval.role, approval.reason) for rule, approval in demanding),
            decision.revision,
            None if None in lasting else min(one for one in lasting if one is not None),
            within_s,
            now_s,
            ends_s,
            decision_id,
        )
        settings = self.live.current.settings.approvals
        bounds = RecordBounds(settings.max_per_principal, settings.max)
        for _ in range(CHANGED_TIMES):
            old = await self.store.get(key)
            if old is None:
                added = await self.store.add(record, "", 0.0, bounds)
                is_kept = added is AddedRecord.KEPT
                if added is AddedRecord.FULL:
                    raise Refusal(Reason.TOO_MANY_CONCURRENT, "too many calls wait for approval")
            else:
                record = record._replace(revision=old.revision + 1)
                is_kept = old.is_done and await self.store.reopen(record, "", 0.0)
            if is_kept:
                return await self._announced(record)
            if (found := await self._current(key)) is not None:
                return found
        raise _contended()

    async def _announced(self, record: ApprovalRecord) -> ApprovalRecord:
        record = await self._recorded(record)
        self._expires_at(record.deadline_s, record)
        self.metrics.approval("asked")
        log.info("a call waits for approval", extra={"approval": record.name, "object": record.object_name})
        return record

    async def _held_for(self, record: ApprovalRecord, wait: ApprovalWait) -> ApprovalRecord:
        """Waits for an answer, at most `wait.hold_s`. Returns the record in its last state, EXPIRED if it is gone."""
        loop, answered, tick = asyncio.get_running_loop(), asyncio.Event(), wait.tick
        until_s = loop.time() + wait.hold_s
        with self.listening(record.name, answered):
            while record.state is ApprovalState.WAITING and not self._is_stopping:
                if (left_s := until_s - loop.time()) <= 0.0:
                    break
                if tick is not None:
                    await tick(record, self.page_of(record))
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, TICK_S)):
                        await answered.wait()
                answered.clear()
                found = await self.store.get(record.id)
                if found is None or found.serial != record.serial:
                    return record._replace(state=ApprovalState.EXPIRED)
                record = await self._up_to_date(found)
        return record

    @contextmanager
    def listening(self, name: str, event: asyncio.Event, *, is_stored: bool = False) -> Iterator[None]:
        """Sets `event` when the request of this name is answered, at any replica, or ends. For a stored task, an answer
        given at another replica may be found some seconds later than for a call."""
        key, listeners = name.partition("-")[0], self._stored if is_stored else self._held
        listeners[key].add(event)
        try:
            yield
        finally:
            listeners[key].discard(event)
            if not listeners[key]:
                del listeners[key]

    def _key(self, caller: Caller, call: Call, args_hash: str, decision: Decision) -> str:
        """Returns the id of the request of all calls alike, a digest of everything that the approval is bound to."""
        asked = [(one.object, one.action, self._digest(one.arguments)) for one in call.questions[1:]]
        terms = [(rule.id, *rule.approval) for rule in decision.approvals if rule.approval is not None]
        first = call.question
        bound = [caller.binding, call.upstream, call.method, first.object, first.action, args_hash, asked, terms]
        return hmac.digest(self.key, PURPOSE + orjson.dumps(bound), "sha256").hex()[:KEY_CHARS]

    def _digest(self, arguments: Mapping[str, object]) -> str:
        return hashlib.sha256(orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS)).hexdigest()

    # --- people ---

    async def page(self, state: ApprovalState | None, limit: int, offset: int) -> tuple[Sequence[ApprovalRecord], int]:
        """Returns a page of all requests in a state (None: in any), newest first, and the total. Raises RecordStoreOut,
        Refusal(AUDIT_UNAVAILABLE)."""
        found, total = await self.store.page(None, RecordPage((TARGET,), state and state.value, limit, offset))
        return [await self._up_to_date(record) for record in found], total

    async def get(self, name: str) -> ApprovalRecord:
        """Returns one request for approval. Raises ApprovalError if there is none of this name, and like `find`."""
        if (record := await self.find(name)) is None:
            raise ApprovalError(f"no request for approval is named {name}", 404)
        return record

    async def shown_to(self, name: str, approver: Approver) -> ApprovalRecord:
        """Returns a request for approval to a person who may answer it, and records that its arguments were shown.
        Raises ApprovalError, Refusal, RecordStoreOut."""
        for _ in range(CHANGED_TIMES):
            record = await self.get(name)
            if (objection := self.objection(record, approver.principal)) is not None:
                raise ApprovalError(objection, 403)
            who = approver.principal.name
            if who in record.shown or len(record.shown) >= MAX_SHOWN:
                return record
            await self.witness(SHOWN, approver.by, approval=record.name, principal=who)
            seen = record._replace(shown=(*record.shown, who), revision=record.revision + 1)
            if await self.store.replace(seen):
                return seen
        raise _contended()

    async def answer(self, name: str, approver: Approver, outcome: Outcome, reason: str = "") -> ApprovalRecord:
        """Takes a person's answer, and records it before it can be used. An approval can be revoked until it is used.
        Raises ApprovalError, Refusal, RecordStoreOut."""
        reason = reason.strip()
        if len(reason) > MAX_REASON_CHARS or not reason.isprintable():
            raise ApprovalError(f"a reason is one printable line of {MAX_REASON_CHARS} characters at most", 400)
        for _ in range(CHANGED_TIMES):
            record = await self.get(name)
            if record.is_done or (record.state is ApprovalState.APPROVED and outcome == "approve"):
                raise ApprovalError(f"it is {record.state} already", 409)
            if (objection := self.objection(record, approver.principal)) is not None:
                raise ApprovalError(objection, 403)
            if record.needs_reason and not reason:
                raise ApprovalError("a rule requires a reason", 400)
            changed = record.answered(self._verdict(record, approver, reason), approves=outcome == "approve")
            if not await self.store.replace(changed):
                continue
            changed = await self._recorded(changed)
            about = {"approval": changed.name, "state": changed.state.value, "by": approver.by}
            log.info("a person answered a request for approval", extra=about)
            if changed.state is not ApprovalState.WAITING:
                self.metrics.approval(changed.state.value, self.clock() - record.created_at)
                if changed.state is ApprovalState.APPROVED:
                    self._expires_at(changed.usable_until_s, changed)
            self._wake(changed.id)
            return changed
        raise _contended()

    def objection(self, record: ApprovalRecord, person: Principal) -> str | None:
        """Returns why a person may not answer a request, or see its arguments; None if both are allowed."""
        barred, roles = self.live.current.engine.barred, {demand.role for demand in record.demands}
        if self._is_disabled(person):
            return f"{person.name} is disabled"
        if barred_for_good := barred(person, record.caller.chain, roles):
            return barred_for_good
        if record.state is ApprovalState.WAITING and barred(person, record.caller.chain, record.open_roles):
            return f"{', '.join(record.open_roles)} must answer now"
        return None

    def _verdict(self, record: ApprovalRecord, approver: Approver, reason: str) -> PersonAnswer:
        person, by = approver
        held = self.live.current.engine.roles_of(person)
        roles = tuple(role for role in record.open_roles if role in held)
        return PersonAnswer(person.name, person.issuer, tuple(sorted(person.roles)), by, roles, self.clock(), reason)

    def _is_disabled(self, person: Principal) -> bool:
        disabled, now_s = (self.switch.ledger.disabled, self.live.current.disabled), self.clock()
        return any(one.find(person.name, now_s) is not None for one in disabled)

    def _still_may(self, verdict: PersonAnswer) -> bool:
        """Whether a person who answered still has the roles that the answer was for."""
        person = verdict.principal
        return self.live.current.engine.roles_of(person) >= set(verdict.roles) and not self._is_disabled(person)

    # --- records ---

    async def find(self, name: str) -> ApprovalRecord | None:
        """Returns a request for approval in its current state; None if there is none of this name. Raises
        RecordStoreOut, Refusal(AUDIT_UNAVAILABLE)."""
        key, _, serial = name.partition("-")
        record = await self.store.get(key) if len(key) == KEY_CHARS and serial else None
        if record is None or record.serial != serial:
            return None
        return await self._up_to_date(record)

    async def _up_to_date(self, record: ApprovalRecord) -> ApprovalRecord:
        """Returns the record with its event recorded, and expired if it is late."""
        record = await self._recorded(record)
        return await self._expired(record, "its time is over") if record.is_late(self.clock()) else record

    async def _expired(self, record: ApprovalRecord, why: str) -> ApprovalRecord:
        late = record._replace(unrecorded=EXPIRED).moved(ApprovalState.EXPIRED)
        if not await self.store.replace(late):
            return await self.store.get(record.id) or late
        log.info("an approval expired", extra={"approval": record.name, "why": why})
        self.metrics.approval("expired")
        self._wake(record.id)
        return await self._recorded(late)

    async def _recorded(self, record: ApprovalRecord) -> ApprovalRecord:
        """Records the event of the last change, unless it is already recorded. Raises Refusal(AUDIT_UNAVAILABLE)."""
        if not record.unrecorded:
            return record
        while (other := self._recording.get(record.id)) is not None:
            await other.wait()
        self._recording[record.id] = done = asyncio.Event()
        try:
            record = await self.store.get(record.id) or record  # another reader may have recorded it meanwhile
            return await self._record(record) if record.unrecorded else record
        finally:
            del self._recording[record.id]
            done.set()

    async def _record(self, record: ApprovalRecord) -> ApprovalRecord:
        by = record.given[-1].by if record.unrecorded in (GIVEN, REFUSED) else "sidecar"
        await self.witness(record.unrecorded, by, **record.facts)
        if self.notify is not None:
            await self.notify(record)
        done = record._replace(unrecorded="", revision=record.revision + 1)
        return done if await self.store.replace(done) else await self.store.get(record.id) or done

    def _wake(self, key: str) -> None:
        for listeners in (self._held, self._stored):
            for event in listeners.get(key, ()):
                event.set()

    # --- time ---

    async def run(self) -> None:
        """Wakes held calls that were answered at another replica, expires late requests, and records events that a dead
        process left unrecorded. Runs until cancelled."""
        loop = asyncio.get_running_loop()
        swept_s = counted_s = -SWEEP_EVERY_S
        while True:
            try:
                await self._look_for_answers()
                await self._expire_due()
                if loop.time() - swept_s >= SWEEP_EVERY_S:
                    swept_s = loop.time()
                    await self._sweep(ApprovalState if not self._is_swept else _SWEPT)
                    self._is_swept = True
                if loop.time() - counted_s >= COUNT_EVERY_S:
                    counted_s = loop.time()
                    await self._count_waiting()
            except RecordStoreOut:
                pass  # the store logs its outages
            except Refusal as refusal:
                log.warning("the state of approvals cannot be recorded", extra={"reason": refusal.reason.value})
            await asyncio.sleep(LOOK_EVERY_S)

    async def _count_waiting(self) -> None:
        count, oldest_s = (await self.store.counts()).get(ApprovalState.WAITING, 0), None
        if count:
            oldest, _ = await self.store.page(None, RecordPage((TARGET,), ApprovalState.WAITING, 1, count - 1))
            oldest_s = oldest[0].created_at if oldest else self.waiting.oldest_s  # one was answered meanwhile
        self.waiting = WaitingApprovals(count, oldest_s)
        self.is_used = self.is_used or count > 0
        self.metrics.approvals_wait(count, 0.0 if oldest_s is None else max(0.0, self.clock() - oldest_s))

    async def _look_for_answers(self) -> None:
        stored = list(self._stored)
        self._looked = self._looked if self._looked < len(stored) else 0
        keys = [*self._held, *stored[self._looked : self._looked + PAGE]]
        self._looked += PAGE
        for start in range(0, len(keys), PAGE):
            for record in await self.store.find(keys[start : start + PAGE]):
                if record.state is not ApprovalState.WAITING:
                    self._wake(record.id)
            await asyncio.sleep(0)

    def _expires_at(self, at_s: float, record: ApprovalRecord) -> None:
        """Notes when a request expires. Requests that were withdrawn or used remain noted, so their number is
        bounded."""
        if len(self._due) < MAX_DUE:
            heappush(self._due, (at_s, record.id))

    async def _expire_due(self) -> None:
        while self._due and self._due[0][0] <= self.clock():
            _, key = heappop(self._due)
            for record in await self.store.find((key,)):
                await self._up_to_date(record)

    async def _sweep(self, states: Iterable[ApprovalState]) -> None:
        for state in states:
            offset, total = 0, 1
            while offset < total:
                _, total = await self.page(state, PAGE, offset)
                offset += PAGE
                await asyncio.sleep(0)


def ended_without(record: ApprovalRecord) -> Refusal:
    """Returns the refusal of a call whose request for approval ended without an approval."""
    data = {"approval": record.name}
    if record.state is not ApprovalState.REFUSED:
        why = "it was withdrawn" if record.state is ApprovalState.WITHDRAWN else "call again to request a new one"
        return Refusal(Reason.APPROVAL_EXPIRED, why, data=data)
    if said := record.given[-1].reason:
        data["answer"] = said
    return Refusal(Reason.APPROVAL_REFUSED, said, data=data)


def _contended() -> RecordStoreOut:
    return RecordStoreOut("a request for approval is changed by too many calls at once")
