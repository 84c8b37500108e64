"""Stores counters in Redis, shared by replicas.

One round trip per reservation: `admit.lua` checks and charges in one step, using Redis' own clock. Nothing is retried,
because a lost reply may belong to a charged call. Instead, an unconfirmed operation is recorded as a debt and settled
when the store is available again: `settle.lua` may arrive twice, late, or before the charge that it undoes.

A store may come back with older data. `guard.lua` charges nothing in a store that this instance does not recognize; the
store first receives the counters that this instance saw (`counter_memory.py`):

    same epoch, current tide           nothing is missing
    same epoch, an earlier tide        rolled back: later charges are repeated, by their decision ids
    another epoch, or none             emptied or replaced: counters are raised to known values (`restore.lua`); for one
                                       more second nothing is charged, so that other instances can do the same
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha1
from pathlib import Path
from time import monotonic
from typing import Any, Final, Literal, NamedTuple

from redis.exceptions import NoScriptError, ResponseError

from sidecar.limits.counter_memory import CounterMemory
from sidecar.limits.counters import SECOND_US, CounterState
from sidecar.limits.plan import lasting
from sidecar.limits.redis_pipeline import PipelineLate, PipelineLost, RedisPipeline, pack
from sidecar.limits.refusal_tracker import RefusalTracker, counts_no_more, passes, printable
from sidecar.limits.store import (
    LEASE_S,
    REMEMBER_S,
    UNSEEN,
    Charges,
    CounterUnreadable,
    StoreObserver,
    StoreUnavailable,
    Verdict,
)
from sidecar.limits.store_connection import LeaveError, StoreConnection
from sidecar.limits.topology import PREFIX, Finder, finder_of
from sidecar.settings.store import DEADLINE_S, StoreSettings

MAX_OWED = 10_000
COMPLAIN_EVERY_S = 10.0
LOOK_EVERY_S = 60.0
SAFE_POLICY = "noeviction"
AT_ONCE = 100
"""Debts settled in one batch: 3 ms of server time, so that later calls are still in time with a store 60 ms away."""
AT_THE_END = 500
"""The batch size when no more calls arrive."""
LAST_WORDS_S = 0.8
"""The time limit for remaining debts at shutdown: `CounterStore.close` promises to finish within a second."""
_INTEGERS: Final = {int}
CHARGE = "charge"
"""The operation name of a reservation, in addition to the verbs of settling."""
LOOK = "look"
"""Placeholder for a decision id; never a valid one."""
ID_HERE, NUMBER_HERE = "(id)", -1
"""Placeholders in packed commands."""
CALL = PREFIX + "call:"
CALL_KEY = CALL.encode()
MAX_PACKED = 1024  # about 1 KB each
EPOCH, TIDE = PREFIX + "epoch", PREFIX + "tide:"
EPOCH_MS = 62 * 86_400_000  # twice the longest window, a month
HOLD_S = 1.0
"""Two heartbeats of every other instance: after this, all have restored an emptied store."""
PAGE = 100
"""Counters restored by one script: less than 1 ms of server time."""
WHATEVER = 4 * 10**15
"""The limit for charges of calls that are already admitted: larger than any limit, exact in Lua."""

_new = tuple.__new__  # its own constructor costs three times as much
log = logging.getLogger("sidecar.store")


class CounterScript(NamedTuple):
    """A Lua script and its SHA-1 name in Redis."""

    text: str
    sha: str

    @classmethod
    def of(cls, text: str) -> CounterScript:
        return cls(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


class CounterScripts(NamedTuple):
    """The scripts that run in the store."""

    admit: CounterScript
    settle: CounterScript
    restore: CounterScript
    epoch: CounterScript


def shipped(name: str) -> str:
    """Reads a script that is shipped next to this file."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def scripts_from(read: Callable[[str], str] = shipped) -> CounterScripts:
    """Assembles the scripts. Those that read counters begin with whole.lua, and admit.lua is inside guard.lua."""
    admit = read("guard.lua").replace("-- admit.lua is inserted here", read("admit.lua"))
    counting = (f"{read('whole.lua')}\n{text}" for text in (admit, read("settle.lua"), read("restore.lua")))
    return CounterScripts(*map(CounterScript.of, [*counting, read("epoch.lua")]))


SHIPPED: Final = scripts_from()
RESET = CounterScript.of("return redis.call('DEL', unpack(KEYS))")
Verb = Literal["charge", "give_back", "release", "extend"]


class Settlement:
    """A pending operation on one call. After `until_s` (monotonic time) it has settled automatically by expiry. Once
    sent, it waits for its reply like a future, and the store handles the reply."""

    __slots__ = ("_is_done", "_store", "charges", "decision_id", "until_s", "verb")

    def __init__(self, store: RedisCounters, verb: Verb, charges: Charges, decision_id: str, until_s: float) -> None:
        self._store, self._is_done = store, False
        self.verb, self.charges, self.decision_id, self.until_s = verb, charges, decision_id, until_s

    def again(self) -> Settlement:
        """Returns a copy, to be sent once more."""
        return Settlement(self._store, self.verb, self.charges, self.decision_id, self.until_s)

    def done(self) -> bool:
        return self._is_done

    def set_result(self, result: object, /) -> None:
        if self._is_done:
            raise asyncio.InvalidStateError
        self._is_done = True
        store = self._store
        if store._refusing.current:
            store._refusing.done(self.verb, self.charges)
        if self.verb == "release":
            store._recall.released(self.charges, self.decision_id)

    def set_exception(self, exception: Exception, /) -> None:
        if self._is_done:
            raise asyncio.InvalidStateError
        self._is_done = True
        self._store.unsettled(self, exception)


class PackedCommand:
    """A script with its arguments for some `charges`, packed for the wire. The decision id is between the parts, at the
    end of its record's key and separately; a charge's number follows. The parts depend on the length of the id, which
    rarely changes."""

    __slots__ = ("_packed", "_parts", "_size", "charges")

    def __init__(self, charges: Charges, script: CounterScript, arguments: Sequence[str | int]) -> None:
        """`arguments` are those for the decision ID_HERE, with the number NUMBER_HERE at their end."""
        packed = pack(("EVALSHA", script.sha, *arguments)).removesuffix(_bulk(str(NUMBER_HERE)))
        before_key, _, packed = packed.partition(_bulk(CALL + ID_HERE))
        self.charges, self._size, self._packed = charges, -1, (before_key, *packed.split(_bulk(ID_HERE), 1))

    def filled(self, decision_id: str, number: int | None = None) -> bytes:
        """Returns the command for one call."""
        written = decision_id.encode()
        if (size := len(written)) != self._size:
            before_key, before_id, rest = self._packed
            head = b"%b$%d\r\n%b" % (before_key, len(CALL) + size, CALL_KEY)
            self._size, self._parts = size, (head, b"\r\n%b$%d\r\n" % (before_id, size), b"\r\n" + rest)
        head, between, rest = self._parts
        if number is None:
            return b"".join((head, written, between, written, rest))
        digits = b"%d" % number
        return b"".join((head, written, between, written, rest, b"$%d\r\n%b\r\n" % (len(digits), digits)))


def _bulk(word: str) -> bytes:
    return pack((word,)).partition(b"\r\n")[2]


class RedisCounters:
    """A CounterStore in Redis or Valkey."""

    degraded = False

    def __init__(
        self,
        finder: Finder,
        *,
        lease_s: float = LEASE_S,
        deadline_s: float = DEADLINE_S,
        hold_s: float = HOLD_S,
        observer: StoreObserver = UNSEEN,
        kind: str = "redis",
        scripts: CounterScripts = SHIPPED,
    ) -> None:
        self.kind = kind
        self._finder = finder
        self._lease_s = lease_s
        self._hold_s = hold_s
        self._observer, self._answered = observer, observer.answered
        self._scripts = scripts
        self._tide = TIDE + secrets.token_hex(8)  # one for each process that shares the store
        self._link = StoreConnection(finder, deadline_s, greet=self._greet, beat=self._beat, ready=self._settle_debts)
        self._recall = CounterMemory()
        self._packed: dict[tuple[Verb, int], PackedCommand] = {}
        self._epoch = ""
        self._number = 0
        self._held_until_s = 0.0
        self._complained_s = self._told_untold_s = -COMPLAIN_EVERY_S
        self._looked_s = -LOOK_EVERY_S
        self._owed: deque[Settlement] = deque()
        self._untold: Counter[str] = Counter()
        self._refusing = RefusalTracker()
        self.warning = ""

    @classmethod
    def at(cls, url: str, *, lease_s: float = LEASE_S, deadline_s: float = DEADLINE_S) -> RedisCounters:
        """Returns the store at a URL, with default settings."""
        return cls(finder_of(StoreSettings(url=url)), lease_s=lease_s, deadline_s=deadline_s)

    @property
    def up(self) -> bool:
        return self._link.wire is not None and not (self._refusing.current and self._refusing.why(monotonic(), CHARGE))

    @property
    def trouble(self) -> str:
        return self._link.trouble if self._link.wire is None else self._refusing.why(monotonic())

    def charge_now(self, charges: Charges, decision_id: str) -> None:
        """Charges nothing: the server's reply takes a while."""

    async def reserve(self, charges: Charges, decision_id: str) -> Verdict:
        began_s = monotonic()
        try:
            wire = self._link.wire or await self._link.ready()
            self._number = number = self._number + 1
            reply: asyncio.Future[Any] = wire.loop.create_future()
            packed = self._packed.get(("charge", id(charges))) or self._pack("charge", charges)
            wire.send(packed.filled(decision_id, number), reply)
            try:
                try:
                    said = await reply
                except NoScriptError:  # after a restart or SCRIPT FLUSH; it did not run, so this is not a retry
                    arguments = self._guarded(charges, decision_id, number)
                    said = await wire.ask("EVAL", self._scripts.admit.text, *arguments)
                verdict = _verdict(said, charges, decision_id)
            except (PipelineLost, _ForeignReplyError, asyncio.CancelledError) as error:
                self.give_back(charges, decision_id)  # it may have been charged, and the call will not be forwarded
                if isinstance(error, asyncio.CancelledError):
                    raise
                if not isinstance(error, PipelineLate):
                    wire.condemn(str(error))
                raise StoreUnavailable(str(error)) from error
            except ResponseError as error:
                self._refusing.refused(CHARGE, error, charges, monotonic())
                self._refused(error, wire)
                raise _unavailable(error) from error
        finally:
            self._answered(monotonic() - began_s)
        if verdict.admitted:
            self._recall.admitted(charges, verdict, decision_id, number, began_s)
            if self._refusing.current:
                self._refusing.done(CHARGE, charges)
        return verdict

    def give_back(self, charges: Charges, decision_id: str) -> None:
        self._recall.given_back(charges, decision_id)
        self._say(Settlement(self, "give_back", charges, decision_id, monotonic() + REMEMBER_S))

    def release(self, charges: Charges, decision_id: str) -> None:
        if charges:
            until_s = monotonic() + max(self._lease_s, REMEMBER_S)
            self._say(Settlement(self, "release", charges, decision_id, until_s))

    def extend(self, charges: Charges, decision_id: str) -> None:
        if self._link.wire:
            self._say(Settlement(self, "extend", charges, decision_id, monotonic()))

    def charge_later(self, charges: Charges, decision_id: str, within_s: float) -> None:
        """Charges an operation that was admitted without the store, whatever the limit: now, or when the store is
        available again within that time."""
        if charges:
            self._say(Settlement(self, "charge", charges, decision_id, monotonic() + within_s))

    async def look(self, charges: Charges) -> tuple[CounterState, ...]:
        await self._link.ready()  # the arguments name its epoch
        reply = await self._asked(self._scripts.admit, self._guarded(charges, LOOK, 0, record_ms=0))
        try:
            return _verdict(reply, charges, LOOK).standings
        except _ForeignReplyError as error:
            raise StoreUnavailable(str(error)) from error

    async def reset(self, charges: Charges) -> None:
        keys = [charge.key for charge in lasting(charges)]
        for first in range(0, len(keys), PAGE):
            page = keys[first : first + PAGE]
            await self._asked(RESET, [len(page), *(PREFIX + key for key in page)])
        self._recall.reset(keys)

    async def run(self, script: str, key: str, arguments: Sequence[str]) -> Any:
        return await self._asked(CounterScript.of(script), [1, PREFIX + key, *arguments])

    async def _asked(self, script: CounterScript, arguments: list[str | int]) -> Any:
        """Runs a script outside a reservation. Raises StoreUnavailable."""
        wire = await self._link.ready()
        try:
            return await self._run(wire, script, arguments)
        except ResponseError as error:
            self._refused(error, wire)
            raise _unavailable(error) from error
        except PipelineLost as error:
            raise StoreUnavailable(type(error).__name__) from error

    async def ping(self) -> None:
        wire = await self._link.ready()
        try:
            await wire.ask("PING")
        except (PipelineLost, ResponseError) as error:
            raise StoreUnavailable(type(error).__name__) from error

    async def close(self) -> None:
        await self._link.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._say_last_words()
        if wire := self._link.wire:
            await wire.close()
        await self._finder.close()
        self._untold.update(settlement.verb for settlement in self._owed)
        self._tell_untold()

    # Asking

    async def _run(self, wire: RedisPipeline, script: CounterScript, arguments: list[str | int]) -> Any:
        try:
            return await wire.ask("EVALSHA", script.sha, *arguments)
        except NoScriptError:  # see `reserve`
            return await wire.ask("EVAL", script.text, *arguments)

    def _refused(self, error: ResponseError, wire: RedisPipeline) -> None:
        """Records an error reply, and leaves a server that does not (or no longer) own the counters."""
        if counts_no_more(error):
            self._link.heard(error, wire)
        elif monotonic() - self._complained_s > COMPLAIN_EVERY_S:  # a missing permission, full memory, a foreign key
            self._complained_s = monotonic()
            log.error("the store refuses a command", extra={"error": printable(error)})

    def _guarded(
        self, charges: Charges, decision_id: str, number: int, record_ms: int = REMEMBER_S * 1000
    ) -> list[str | int]:
        """Returns the arguments of guard.lua: those of admit.lua, then the expected store."""
        arguments = self._arguments(charges, decision_id, record_ms=record_ms)
        count = len(charges) + 1
        arguments[0] = count + 2
        arguments[count + 1 : count + 1] = EPOCH, self._tide
        arguments += self._epoch, number
        return arguments

    def _arguments(
        self, charges: Charges, decision_id: str, verb: Verb | None = None, record_ms: int = REMEMBER_S * 1000
    ) -> list[str | int]:
        arguments: list[str | int] = [len(charges) + 1, CALL + decision_id]
        arguments += [PREFIX + charge.key for charge in charges]
        arguments += [verb] if verb else []
        arguments += [decision_id, record_ms, int(self._lease_s * SECOND_US)]
        for charge in charges:
            arguments += (charge.kind, charge.amount, charge.most, charge.interval_us)
        return arguments

    def _pack(self, verb: Verb, charges: Charges) -> PackedCommand:
        if len(self._packed) >= MAX_PACKED:
            self._packed.clear()
        packed = self._packed[verb, id(charges)] = PackedCommand(charges, *self._command(verb, charges))
        return packed

    def _command(
        self, verb: Verb, charges: Charges, decision_id: str = ID_HERE, number: int = NUMBER_HERE
    ) -> tuple[CounterScript, list[str | int]]:
        if verb == "charge":
            return self._scripts.admit, self._guarded(charges, decision_id, number)
        return self._scripts.settle, self._arguments(charges, decision_id, verb)

    # Settling

    def _say(self, settlement: Settlement) -> None:
        wire = self._link.wire
        if wire is None:
            self._owe(settlement)
            return
        verb, charges, decision_id = settlement.verb, settlement.charges, settlement.decision_id
        if verb == "charge":
            self._number += 1
            arguments = self._guarded(_whatever(charges), decision_id, self._number)
            wire.send(pack(("EVALSHA", self._scripts.admit.sha, *arguments)), settlement)
        else:
            packed = self._packed.get((verb, id(charges))) or self._pack(verb, charges)
            wire.send(packed.filled(decision_id), settlement)

    def unsettled(self, settlement: Settlement, error: Exception) -> None:
        """The store did not execute the operation, or did not confirm it."""
        verb, charges, wire = settlement.verb, settlement.charges, self._link.wire
        if isinstance(error, NoScriptError) and wire:
            self._number += verb == "charge"
            due = _whatever(charges) if verb == "charge" else charges
            script, arguments = self._command(verb, due, settlement.decision_id, self._number)
            wire.send(pack(("EVAL", script.text, *arguments)), settlement.again())
        elif isinstance(error, PipelineLost):
            self._owe(settlement.again())
        elif isinstance(error, ResponseError) and passes(error):
            self._refusing.refused(verb, error, charges, monotonic())
            self._owe(settlement.again())
        else:  # the counter has another format: its next reservation is refused
            self._over(settlement)

    def _over(self, settlement: Settlement) -> None:
        """Finishes an operation. Only now may a lost charge of the call be repeated without its slots."""
        if settlement.verb == "release":
            self._recall.released(settlement.charges, settlement.decision_id)

    def _owe(self, settlement: Settlement) -> None:
        if settlement.verb == "extend":  # the next heartbeat extends again
            return
        if len(self._owed) == MAX_OWED:
            self._drop(self._owed.popleft())
        self._owed.append(settlement)

    def _drop(self, settlement: Settlement) -> None:
        """Abandons an operation, because too many are pending or it is too late. Losing a slot that has expired is
        harmless."""
        if settlement.until_s > monotonic() or any(charge.kind != "concurrency" for charge in settlement.charges):
            self._untold[settlement.verb] += 1
        self._over(settlement)
        if monotonic() - self._told_untold_s > COMPLAIN_EVERY_S:
            self._tell_untold()

    def _tell_untold(self) -> None:
        if self._untold:
            self._told_untold_s = monotonic()
            counts, self._untold = self._untold, Counter()
            self._observer.untold(counts)

    def _settle_debts(self) -> None:
        """Settles all debts in batches, so that current calls are not delayed; one batch if the store refuses."""
        self._settle_next(AT_ONCE if self._refusing.current else len(self._owed))

    def _settle_next(self, left: int, before: asyncio.Future[Any] | None = None) -> None:
        if before is not None and before.exception():
            return  # the connection has ended: the rest remains pending
        self._settle_some(AT_ONCE)
        if left > AT_ONCE and (wire := self._link.wire):
            wire.ask("PING").add_done_callback(partial(self._settle_next, left - AT_ONCE))

    def _settle_some(self, most: int) -> None:
        for _ in range(min(most, len(self._owed))):
            settlement = self._owed.popleft()
            if settlement.until_s > monotonic():
                self._say(settlement)
            else:
                self._drop(settlement)

    async def _say_last_words(self) -> None:
        """Settles at shutdown until no debt is left or the store stops answering."""
        if wire := self._link.wire:
            await _done(wire)
        before = MAX_OWED + 1
        while 0 < len(self._owed) < before and (wire := await self._link.last()):
            before = len(self._owed)
            for _ in range(0, before, AT_THE_END):
                self._settle_some(AT_THE_END)
                await _done(wire)

    # Knowing the store

    async def _greet(self, wire: RedisPipeline) -> None:
        """Identifies the store before it is used, and restores what it lacks."""
        # Loading also probes the store: a server that accepts connections but answers late would cost each call its
        # deadline.
        await asyncio.gather(*(wire.ask("SCRIPT", "LOAD", script.text) for script in self._scripts))
        epoch, tide = await self._whose(wire)
        self._packed.clear()  # they name the epoch
        if not self._epoch:
            self._epoch = epoch
        elif epoch == self._epoch:
            await self._charge_again(wire, tide)
        else:
            raised = await self._restore(wire)
            self._recall.forget_charged()  # they are included in `seen`
            self._epoch = epoch
            self._packed.clear()
            for decision_id, charges in self._recall.held:  # running calls take their slots in this store too
                await self._force(wire, decision_id, tuple(one for one in charges if one.kind == "concurrency"))
            self._held_until_s = monotonic() + self._hold_s
            await self._observer.forgot("emptied", raised)
        if (left_s := self._held_until_s - monotonic()) > 0:
            await asyncio.sleep(left_s)
            await self._beat(wire)

    async def _beat(self, wire: RedisPipeline) -> None:
        epoch, _ = await self._whose(wire)
        if epoch != self._epoch:
            raise LeaveError("this is another store, or it was emptied")
        if self._owed:
            self._settle_debts()
        if monotonic() - self._told_untold_s > COMPLAIN_EVERY_S:
            self._tell_untold()
        if monotonic() - self._looked_s > LOOK_EVERY_S:
            self._looked_s = monotonic()
            self.warning = ""
            with suppress(ResponseError):  # the user may lack permission for INFO
                self.warning = eviction_warning(await wire.ask("INFO", "memory"))

    async def _whose(self, wire: RedisPipeline) -> tuple[str, int]:
        """Returns the epoch of the store, and this instance's tide in it; -1 without one. Raises LeaveError."""
        asked: list[str | int] = [2, EPOCH, self._tide, secrets.token_hex(8), EPOCH_MS]
        reply = await self._run(wire, self._scripts.epoch, asked)
        match reply:
            case [bytes(epoch), int(tide)] if not isinstance(tide, bool):
                return epoch.decode("latin-1"), tide
        raise LeaveError("a foreign reply")

    async def _charge_again(self, wire: RedisPipeline, tide: int) -> None:
        """Repeats the charges after a tide, which a promoted replica did not receive, or which a restored backup
        lacks."""
        lost = self._recall.after(tide, monotonic())
        for first in range(0, len(lost), PAGE):
            await asyncio.gather(*(self._force(wire, *call) for call in lost[first : first + PAGE]))
        if lost:
            await self._observer.forgot("rolled_back", len(lost))

    async def _force(self, wire: RedisPipeline, decision_id: str, charges: Charges) -> None:
        """Charges operations that were already admitted, whatever the limit."""
        self._number = number = self._number + 1
        whatever = _whatever(charges)
        try:
            reply = await wire.ask("EVALSHA", self._scripts.admit.sha, *self._guarded(whatever, decision_id, number))
            verdict = _verdict(reply, whatever, decision_id)
        except StoreUnavailable:
            return  # it was returned in the meantime
        except ResponseError as error:
            if passes(error):
                raise
            return  # the counter has another format: its next reservation is refused
        self._recall.admitted(whatever, verdict, decision_id, number, monotonic())

    async def _restore(self, wire: RedisPipeline) -> int:
        """Raises every counter to the value that this instance saw. Returns how many were lower."""
        raised = 0
        for page in self._recall.pages(PAGE):
            arguments: list[str | int] = [len(page), *(PREFIX + seen.key for seen in page)]
            for seen in page:
                arguments += (seen.kind, seen.at_us, seen.used, seen.full_us)
            reply = await wire.ask("EVALSHA", self._scripts.restore.sha, *arguments)
            if type(reply) is not int:
                raise LeaveError("a foreign reply")
            raised += reply
        return raised


class _ForeignReplyError(LeaveError):
    """A reply that cannot belong to this request."""


def eviction_warning(info: Any) -> str:
    """Returns what operators should know about the server's reply to `INFO memory`; "" if there is no problem or no
    information. Every counter has a time to live, so with a memory bound any policy but `noeviction` may evict it,
    which restarts its limit unnoticed."""
    if not isinstance(info, bytes):
        return ""
    said = dict(line.partition(":")[::2] for line in info.decode("latin-1").split("\r\n"))
    policy, most = said.get("maxmemory_policy", SAFE_POLICY), said.get("maxmemory", "0")
    if policy == SAFE_POLICY or most == "0" or not policy.replace("-", "").isalpha():
        return ""
    when = f"once its memory is full (maxmemory-policy {policy[:40]})"
    return f"it may evict counters {when}: a limit would start again from zero"


async def _done(wire: RedisPipeline) -> None:
    """Waits until everything sent so far has been executed, because replies arrive in order. A command that was sent
    again because its script was missing is after the first wait, so it waits twice."""
    for _ in range(2):
        await asyncio.gather(wire.ask("PING"), return_exceptions=True)


def _unavailable(error: ResponseError) -> StoreUnavailable:
    return (StoreUnavailable if passes(error) else CounterUnreadable)(type(error).__name__)


def _whatever(charges: Charges) -> Charges:
    return tuple([replace(charge, most=WHATEVER) for charge in charges])


def _verdict(reply: Any, charges: Charges, decision_id: str) -> Verdict:
    """Parses admit.lua's reply strictly: it begins with the call's decision id, and the rest are integers. Raises
    _ForeignReplyError, and CounterUnreadable for a call that was returned before its charge."""
    if not isinstance(reply, list) or len(reply) != 3 + 3 * len(charges) or reply[0] != decision_id.encode():
        raise _ForeignReplyError("a foreign reply")
    numbers = reply[1:]
    if set(map(type, numbers)) != _INTEGERS or min(numbers) < 0:
        raise _ForeignReplyError("a foreign reply")
    if numbers[0] == 2:
        raise CounterUnreadable("this call was given up before its charge arrived")
    return _new(Verdict, (numbers[0] == 1, numbers[1], tuple(numbers[2:]), False))
