"""Leases that let one run at a time write, across replicas.

The store that replicas share gives a lease in order of arrival (`write_leases.lua`); heartbeats extend it. While the
store is unavailable, no lease is given and nothing begins. A holder that cannot renew stops before another may begin:

    0 ─── heartbeats ───▶ 1/2 ended ──▶ 6/10 its warden asks it to end ─▶ 7/10 and kills it ──▶ 1 another may begin

The warden is a process of its own that reads the same clock, so it ends the program even if this process is stopped. If
both are stopped, the program is killed only when they continue. A store whose failover loses the last second may have
lost a lease of that second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sidecar.storage.redis_script import Run, script_text
from sidecar.tasks.programs.attempt import TimeLimit
from sidecar.upstreams.processes.launcher import WaitLimit

KEY: Final = "agent-turns"
SCRIPT: Final = script_text("write_leases")
LEASE_S: Final = 20.0
ASKED_TIMES, KEPT_TIMES = 40, 8  # per lease time
OURS, ASKS, KILLS = 0.5, 0.6, 0.7  # parts of a lease: until when it is surely held, and when the warden asks and kills
UNHEARD: Final = "the store that replicas share did not say in time that it is still its turn"
STOOD_STILL: Final = "the sidecar was suspended, and another process may have taken over"
ANOTHERS: Final = "its turn is another's"


@dataclass(frozen=True, slots=True)
class WriteLeases:
    """The leases of one process, named `me`; `run` runs scripts in the store."""

    run: Run
    me: str
    lease_s: float = LEASE_S
    clock_mono: Callable[[], float] = time.monotonic

    async def greet(self) -> None:
        """Asks once before anything runs: a store without data gives no lease until `lease_s` after the first request.
        Raises ConnectionError."""
        await self._ask("greet")

    def of(self, agent: str, execution_id: str) -> WriteLease:
        return WriteLease(self, agent, f"{self.me}/{execution_id}")

    async def _ask(self, verb: str, *words: str) -> Any:
        return await self.run(SCRIPT, KEY, [verb, str(int(self.lease_s * 1000)), *words])


@dataclass(slots=True)
class WriteLease:
    """One run's exclusive right to write. `term` bounds its program; `why` is the reason for its end, once it has
    ended."""

    leases: WriteLeases
    agent: str
    who: str
    term: TimeLimit = field(default_factory=TimeLimit)
    why: str = STOOD_STILL
    _good_until_mono_s: float = 0.0

    async def come(self) -> None:
        try:
            while not await self._comes():  # noqa: ASYNC110 - no notice comes when another replica is done
                await asyncio.sleep(self.leases.lease_s / ASKED_TIMES)
        except BaseException:
            await self.leave()
            raise

    @property
    def is_over(self) -> bool:
        return self.leases.clock_mono() >= self._good_until_mono_s

    async def keep(self) -> None:
        """Renews the lease as long as possible; returns when it is lost, with the reason in `why`."""
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
        """Releases the lease for the next run. If the store is unavailable, it expires there."""
        try:
            await self._ask("leave")
        except ConnectionError:
            pass

    async def _comes(self) -> bool:
        asked_s = self.leases.clock_mono()
        try:
            answer = await self._ask("come")
        except ConnectionError:
            return False  # fail closed: another replica may be at work
        if answer is None:  # the store is not shared
            self._good_until_mono_s = float("inf")
            return True
        if answer:
            self._had(asked_s)
        return bool(answer)

    def _had(self, asked_s: float) -> None:
        """Counts from the request, and only half of the lease: the other half is for ending the program."""
        lease_s, self.why = self.leases.lease_s, STOOD_STILL
        self._good_until_mono_s = asked_s + OURS * lease_s
        self.term.renew(WaitLimit(asked_s + ASKS * lease_s, asked_s + KILLS * lease_s))

    async def _ask(self, verb: str) -> Any:
        return await self.leases._ask(verb, self.agent, self.who)
