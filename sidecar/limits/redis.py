"""How do several sidecars share their counters, and what happens while Redis is away?

One round trip per reservation: `admit.lua` asks and charges in one step, with Redis' own clock. Nothing is ever tried
twice (a lost reply may mean a charged call); instead, what could not be confirmed is owed, and undone as soon as the
store is back: `settle.lua` may arrive twice, late, or before the charge it undoes.

    connected   calls go out at once; a reply later than the deadline ends the connection
    mending     the first attempt to connect again runs; calls wait for it, within the deadline
    down        that attempt failed, others follow once a second; calls are refused at once and cost nothing
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha1
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Literal

from redis.asyncio.connection import Connection as TcpConnection
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError

from sidecar.errors import SettingsError, fault_in
from sidecar.limits.counters import SECOND_US, Standing
from sidecar.limits.store import LEASE_S, REMEMBER_S, Charges, StoreUnavailable, Verdict
from sidecar.limits.wire import Connection, Wire, WireLost

DEADLINE_S = 0.08
"""CONTRACT 9 promises an answer within 100 ms of an outage."""
CONNECT_S = 1.0
PAUSES_S = (0.0, 0.1, 0.25, 0.5)
LONGEST_PAUSE_S = 1.0
MAX_OWED = 10_000
LOOK = "look"
"""Stands where a decision id would, and is none."""
PREFIX = "{sidecar}:"
"""One hash tag: a Lua call may touch one slot of a cluster only, so all limits of a deployment live in one."""


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script and the name that Redis keeps it under."""

    text: str
    sha: str

    @classmethod
    def of(cls, text: str) -> Script:
        return cls(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


def shipped(name: str) -> Script:
    """A script that lies beside this file."""
    return Script.of(Path(__file__).with_name(name).read_text(encoding="utf-8"))


Verb = Literal["give_back", "release", "extend"]


@dataclass(frozen=True, slots=True)
class Settlement:
    """What is still to be said about one call. `until_s` (loop time) is when it has settled itself by expiry."""

    verb: Verb
    charges: Charges
    decision_id: str
    until_s: float


class RedisStore:
    """A Store in Redis or Valkey. `connect` makes a connection object that is not yet connected."""

    kind = "redis"

    def __init__(
        self,
        connect: Callable[[], Connection],
        *,
        lease_s: float = LEASE_S,
        deadline_s: float = DEADLINE_S,
        admit: Script | None = None,
        settle: Script | None = None,
    ) -> None:
        self._connect = connect
        self._lease_s = lease_s
        self._deadline_s = deadline_s
        self._admit = admit or shipped("admit.lua")
        self._settle = settle or shipped("settle.lua")
        self._wire: Wire | None = None
        self._mending: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()
        self._trouble = ""
        self._closed = False
        self._owed: deque[Settlement] = deque(maxlen=MAX_OWED)

    @classmethod
    def at(cls, url: str, *, lease_s: float = LEASE_S, deadline_s: float = DEADLINE_S) -> RedisStore:
        """The store at a `redis://`, `rediss://` or `unix://` URL. Raises SettingsError, which never shows the URL."""
        try:
            options: dict[str, Any] = dict(parse_url(url))
            kind = options.pop("connection_class", TcpConnection)
            bounds = {"socket_connect_timeout": CONNECT_S, "socket_timeout": None, "health_check_interval": 0}
            connect = partial(kind, **options | bounds, protocol=3, retry=Retry(NoBackoff(), 0), driver_info=None)
            connect()
        except (TypeError, ValueError, RedisError):
            raise SettingsError([fault_in("store.url", "is no URL that redis-py understands", code="S202")]) from None
        return cls(connect, lease_s=lease_s, deadline_s=deadline_s)

    @property
    def up(self) -> bool:
        return self._wire is not None

    async def reserve(self, charges: Charges, decision_id: str) -> Verdict:
        wire = await self._ready()
        try:
            reply = await self._run(wire, self._admit, self._arguments(charges, decision_id))
            return _verdict(reply, charges, decision_id)
        except (WireLost, _ForeignReplyError, asyncio.CancelledError) as error:
            self.give_back(charges, decision_id)  # it may have been charged, and nobody will forward this call
            if isinstance(error, asyncio.CancelledError):
                raise
            wire.condemn(str(error))
            raise StoreUnavailable(str(error)) from error
        except ResponseError as error:
            if isinstance(error, ReadOnlyError):
                wire.condemn("a replica")  # after a failover: look for the new primary
            raise StoreUnavailable(type(error).__name__) from error

    def give_back(self, charges: Charges, decision_id: str) -> None:
        self._say(Settlement("give_back", charges, decision_id, self._now_s() + REMEMBER_S))

    def release(self, charges: Charges, decision_id: str) -> None:
        if charges:
            until_s = self._now_s() + max(self._lease_s, REMEMBER_S)
            self._say(Settlement("release", charges, decision_id, until_s))

    def extend(self, charges: Charges, decision_id: str) -> None:
        if self._wire:
            self._say(Settlement("extend", charges, decision_id, self._now_s()))

    async def look(self, charges: Charges) -> tuple[Standing, ...]:
        wire = await self._ready()
        try:
            reply = await self._run(wire, self._admit, self._arguments(charges, LOOK, record_ms=0))
            return _verdict(reply, charges, LOOK).standings
        except (WireLost, ResponseError, _ForeignReplyError) as error:
            raise StoreUnavailable(type(error).__name__) from error

    async def run(self, script: str, key: str, arguments: Sequence[str]) -> Any:
        wire = await self._ready()
        try:
            return await self._run(wire, Script.of(script), [1, PREFIX + key, *arguments])
        except (WireLost, ResponseError) as error:
            raise StoreUnavailable(type(error).__name__) from error

    async def ping(self) -> None:
        wire = await self._ready()
        try:
            await wire.ask("PING")
        except (WireLost, ResponseError) as error:
            raise StoreUnavailable(type(error).__name__) from error

    async def close(self) -> None:
        self._closed = True
        if self._mending:
            self._mending.cancel()
            await asyncio.wait([self._mending])
        if wire := self._wire:
            # Replies come in order: once this one is here, everything said before has been done.
            await asyncio.gather(wire.ask("PING"), return_exceptions=True)
            await wire.close()

    # Asking

    async def _run(self, wire: Wire, script: Script, arguments: list[str | int]) -> Any:
        try:
            return await wire.ask("EVALSHA", script.sha, *arguments)
        except NoScriptError:  # a restart or SCRIPT FLUSH; it was not run, so this is no second try
            return await wire.ask("EVAL", script.text, *arguments)

    def _arguments(
        self, charges: Charges, decision_id: str, verb: Verb | None = None, record_ms: int = REMEMBER_S * 1000
    ) -> list[str | int]:
        arguments: list[str | int] = [len(charges) + 1, f"{PREFIX}call:{decision_id}"]
        arguments += [PREFIX + charge.key for charge in charges]
        arguments += [verb] if verb else []
        arguments += [decision_id, record_ms, int(self._lease_s * SECOND_US)]
        for charge in charges:
            arguments += (charge.kind, charge.amount, charge.most, charge.interval_us)
        return arguments

    # Settling

    def _say(self, settlement: Settlement) -> None:
        if self._wire is None:
            self._owe(settlement)
            return
        arguments = self._arguments(settlement.charges, settlement.decision_id, settlement.verb)
        said = self._wire.ask("EVALSHA", self._settle.sha, *arguments)
        said.add_done_callback(partial(self._heard, settlement, arguments))

    def _heard(self, settlement: Settlement, arguments: list[str | int], reply: asyncio.Future[Any]) -> None:
        error = reply.exception()
        if isinstance(error, NoScriptError) and self._wire:
            again = self._wire.ask("EVAL", self._settle.text, *arguments)
            again.add_done_callback(partial(self._heard, settlement, arguments))
        elif isinstance(error, WireLost | NoScriptError | ReadOnlyError):
            self._owe(settlement)
        # Any other error means a counter that is not ours to understand: its next reservation is refused.

    def _owe(self, settlement: Settlement) -> None:
        if settlement.verb != "extend":  # the next beat extends again
            self._owed.append(settlement)

    # Connecting

    async def _ready(self) -> Wire:
        if self._wire is None:
            self._mend_soon()
            await self._first_attempt()
        if self._wire is None:
            raise StoreUnavailable(self._trouble)
        return self._wire

    async def _first_attempt(self) -> None:
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._tried.wait()
        except TimeoutError:
            self._failed("no connection in time")

    def _failed(self, why: str) -> None:
        self._trouble = why
        self._tried.set()

    def _lost(self, wire: Wire) -> None:
        if wire is self._wire:
            self._wire = None
            self._tried.clear()
            self._mend_soon()

    def _mend_soon(self) -> None:
        if not self._closed and (self._mending is None or self._mending.done()):
            self._mending = asyncio.create_task(self._mend())

    async def _mend(self) -> None:
        for pause_s in chain(PAUSES_S, repeat(LONGEST_PAUSE_S)):
            await asyncio.sleep(pause_s)
            try:
                wire = await self._connected()
            except (RedisError, OSError, WireLost) as error:
                self._failed(f"{type(error).__name__}: {error}")
                continue
            if wire.ended:
                continue
            self._wire = wire
            self._tried.set()
            self._settle_debts()
            return

    async def _connected(self) -> Wire:
        connection = self._connect()
        try:
            async with asyncio.timeout(CONNECT_S):
                await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        wire = Wire(connection, self._deadline_s, self._lost)
        try:
            # Loading is also the probe: who accepts connections but answers late would cost every call its deadline.
            await asyncio.gather(*(wire.ask("SCRIPT", "LOAD", script.text) for script in (self._admit, self._settle)))
        except BaseException:
            await wire.close()
            raise
        return wire

    def _settle_debts(self) -> None:
        owed = list(self._owed)
        self._owed.clear()
        for settlement in owed:
            if settlement.until_s > self._now_s():
                self._say(settlement)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


class _ForeignReplyError(Exception):
    """A reply that cannot be the one to our question."""


def _verdict(reply: Any, charges: Charges, decision_id: str) -> Verdict:
    """admit.lua's reply, read strictly: it begins with our own decision id, and the rest are whole numbers."""
    if not isinstance(reply, list) or len(reply) != 3 + 3 * len(charges) or reply[0] != decision_id.encode():
        raise _ForeignReplyError("a foreign reply")
    numbers = reply[1:]
    if set(map(type, numbers)) != {int} or min(numbers) < 0:
        raise _ForeignReplyError("a foreign reply")
    if numbers[0] == 2:
        raise StoreUnavailable("this call was given up before its charge arrived")
    return Verdict(numbers[0] == 1, numbers[1], tuple(numbers[2:]))
