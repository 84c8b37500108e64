"""Leases that let one run at a time write, across replicas.

By a lease in the store that they share (`leases.lua`): asked for by the first in each replica's queue, given in the
order in which they came, kept by a heartbeat. A store that is out gives none, so nothing begins: two at once could
destroy each other's work, and one that waits destroys nothing. A lease that could not be kept is lost long enough
before it ends there that what ran under it has ended by then:

    0 ─── heartbeats ───▶ 1/2 we end it ──▶ 6/10 its keeper asks it to end ──▶ 7/10 and kills it ──▶ 1 another may begin

The keeper is a process of its own, which hears of each heartbeat (`time_limits.py`) and reads the same clock: it ends
the program also where the operating system has stopped this process, which notices nothing then.

What no lease can do: where keeper and program are stopped as well, the program is killed as soon as both go on, and not
before. A store whose failover forgets its last second may have forgotten a lease of that second; its holder hears of it
with the next heartbeat.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sidecar.storage.redis_script import Run, script_text
from sidecar.tasks.programs.time_limits import TimeLimit
from sidecar.upstreams.processes import WaitLimit

KEY: Final = "agent-turns"
SCRIPT: Final = script_text("write_leases")
LEASE_S: Final = 20.0
ASKED_TIMES, KEPT_TIMES = 40, 8  # in the time of a lease
OURS, ASKS, KILLS = 0.5, 0.6, 0.7  # of a lease: until when it is surely ours, and what its keeper does then
UNHEARD: Final = "the store that replicas share did not say in time that it is still its turn"
STOOD_STILL: Final = "the sidecar stood still, and its turn may be another's"
ANOTHERS: Final = "its turn is another's"


@dataclass(frozen=True, slots=True)
class WriteLeases:
    """The turns among replicas. `me` names this process, `run` asks the store."""

    run: Run
    me: str
    lease_s: float = LEASE_S
    clock_mono: Callable[[], float] = time.monotonic

    async def greet(self) -> None:
        """Be asked once before anybody runs: the first answer of a store that knows nothing is to wait."""
        await self._ask("greet")

    def of(self, agent: str, execution_id: str) -> WriteLease:
        """One run's, which is not asked for yet."""
        return WriteLease(self, agent, f"{self.me}/{execution_id}")

    async def _ask(self, verb: str, *words: str) -> Any:
        return await self.run(SCRIPT, KEY, [verb, str(int(self.lease_s * 1000)), *words])


@dataclass(slots=True)
class WriteLease:
    """One run's right to be the only one. `ahead` is how many wait before it, as far as is known; `term` is until when
    what it runs may live if this process can say nothing more, and `why` tells why it is over once it is."""

    leases: WriteLeases
    agent: str
    who: str
    ahead: int = 0
    term: TimeLimit = field(default_factory=TimeLimit)
    why: str = STOOD_STILL
    _good_until_mono_s: float = 0.0

    async def come(self) -> None:
        """Until it is had. Whoever is cancelled has none."""
        try:
            while not await self._comes():  # noqa: ASYNC110 - nobody here knows when another replica is done
                await asyncio.sleep(self.leases.lease_s / ASKED_TIMES)
        except BaseException:
            await self.leave()
            raise

    @property
    def is_over(self) -> bool:
        """Whether it may be another's by now."""
        return self.leases.clock_mono() >= self._good_until_mono_s

    async def keep(self) -> None:
        """For as long as it can be kept: when this returns, it is lost, and `why` says why."""
        clock, pause_s = self.leases.clock_mono, self.leases.lease_s / KEPT_TIMES
        while not self.is_over:
            slept_s = clock()
            await asyncio.sleep(min(self._good_until_mono_s - slept_s, pause_s))
            asked_s = clock()
            try:
                async with asyncio.timeout(max(0.0, self._good_until_mono_s - asked_s)):
                    kept = await self._ask("keep")
            except (ConnectionError, TimeoutError):
                self.why = STOOD_STILL if asked_s - slept_s > 2 * pause_s else UNHEARD
                continue
            if kept == 0:
                self._good_until_mono_s, self.why = float("-inf"), ANOTHERS
            elif kept is not None:
                self._had(asked_s)

    async def leave(self) -> None:
        """Let the next one. Where the store is out, it ends there by itself."""
        try:
            await self._ask("leave")
        except ConnectionError:
            pass

    async def _comes(self) -> bool:
        asked_s = self.leases.clock_mono()
        try:
            answer = await self._ask("come")
        except ConnectionError:
            return False  # fail closed: nobody can say whether another is at work
        if answer is None:  # nobody shares this store
            self._good_until_mono_s = float("inf")
            return True
        came, self.ahead = answer
        if came:
            self._had(asked_s)
        return bool(came)

    def _had(self, asked_s: float) -> None:
        """From when it was asked for, and for half of its time: the other half is for ending what runs."""
        lease_s, self.why = self.leases.lease_s, STOOD_STILL
        self._good_until_mono_s = asked_s + OURS * lease_s
        self.term.renew(WaitLimit(asked_s + ASKS * lease_s, asked_s + KILLS * lease_s))

    async def _ask(self, verb: str) -> Any:
        return await self.leases._ask(verb, self.agent, self.who)
