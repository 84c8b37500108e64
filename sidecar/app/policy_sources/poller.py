"""Polls a policy source and adopts what it finds.

At the start, before anything serves; then every so often, and at once when another replica has loaded something new. A
source that is out or lies changes nothing: what was taken last serves on, which operators see, and it is looked at
again, less and less often, each replica at its own time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from sidecar.app.policy_sources.git import GitOrigin
from sidecar.app.policy_sources.https import BundleOrigin
from sidecar.app.policy_sources.stored_revisions import SourceError, StoredRevisions
from sidecar.errors import ConfigError, Fault, SettingsError, fault_in
from sidecar.observability.metrics import Metrics
from sidecar.settings import Settings
from sidecar.settings.stored_policy import StoredPolicy, kept_for, placed, shelf_of
from sidecar.settings.timestamps import rfc3339
from sidecar.upstreams.processes import Processes

BY_SOURCE: Final = "policy source"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
IDLE_S: Final = 3600.0  # where there is no source: to wait for is nothing
SPREAD: Final = 0.2  # of a pause: replicas that were started together do not come together
NOTHING_TAKEN: Final = "S161"

log = logging.getLogger("sidecar.app.policy_sources")


class PolicyOrigin(Protocol):
    """Where policies come from."""

    async def look(self, settings: Settings) -> StoredPolicy | None:
        """What is there now, checked, unpacked and named on the shelf; None if that was taken already. Raises
        SourceError, SettingsError."""

    def refuse(self, why: str) -> None:
        """What `look` gave last is not to be given again."""

    def forget(self) -> None:
        """What was refused may be given again."""


class AdoptPolicy(Protocol):
    """Has a policy serve that a source gave. `keep` is called when it is proven and on record. Raises ConfigError;
    then the old one serves on."""

    async def __call__(self, taken: StoredPolicy, by: str, keep: Callable[[], Awaitable[None]]) -> None: ...


def origin_of(settings: Settings, processes: Processes, clock: Callable[[], float]) -> PolicyOrigin | None:
    """The source that the settings name, if any."""
    source = settings.policy.source
    if source is None:
        return None
    return BundleOrigin(clock) if source.bundle is not None else GitOrigin(clock, processes)


@dataclass(slots=True)
class SourcePoller:
    """Follows the source. `random` gives numbers from 0 to 1; `trouble` says why what is there now does not serve,
    `faults` counts by code what is wrong in it, `good_at` is when it was last heard of and well (seconds since the
    epoch)."""

    processes: Processes
    clock: Callable[[], float]
    random: Callable[[], float]
    metrics: Metrics
    trouble: tuple[str, ...] = ()
    faults: Mapping[str, int] = field(default_factory=dict)
    good_at: float | None = None
    _served: StoredPolicy | None = None
    _origin: PolicyOrigin | None = None
    _kind: str = ""
    _failures: int = 0
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def begin(self, settings: Settings, prove: Callable[[Settings], object]) -> None:
        """Take what is there before anything serves, if `prove` does not raise ConfigError of it; else begin with what
        was taken last. Raises ConfigError if nothing was."""

        async def adopt(taken: StoredPolicy, by: str, keep: Callable[[], Awaitable[None]]) -> None:
            await asyncio.to_thread(prove, placed(settings, taken))
            await keep()

        failed = await self._look(settings, adopt, BY_SOURCE)
        if failed is not None and kept_for(settings) is None:
            if isinstance(failed, ConfigError):
                raise failed
            hint = "a start without any policy waits for its source; the next one needs it no more"
            fault = fault_in(shelf_of(settings), f"no policy: {failed}", code=NOTHING_TAKEN, hint=hint)
            raise SettingsError([fault])

    async def look(self, settings: Settings, adopt: AdoptPolicy, by: str = BY_SOURCE) -> None:
        """Look now. Whatever goes wrong is told, and nothing changes."""
        await self._look(settings, adopt, by)

    async def run(self, settings: Callable[[], Settings], adopt: AdoptPolicy) -> None:
        """Look every so often; `settings` are those in force. Runs as long as the process."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s(settings())):
                    await self._wake.wait()
            self._wake.clear()
            await self.look(settings(), adopt)

    def status(self, settings: Settings) -> Mapping[str, Any] | None:
        """What the source gave, and how it is, for operators; None where there is none."""
        if settings.policy.source is None:
            return None
        kept = kept_for(settings)
        said: dict[str, Any] = {"kind": settings.policy.source.kind, "up": not self.trouble}
        said["good_at"] = None if self.good_at is None else rfc3339(self.good_at)
        if kept is not None and kept.name == settings.policy.path.parent.name:  # else it is just about to serve
            said |= {"name": kept.name, "version": kept.version, "signer": kept.signer}
            said |= {"created_at": rfc3339(kept.created_at), "taken_at": rfc3339(kept.taken_at)}
        return said

    def version(self, settings: Settings) -> int:
        """Which version serves; 0 where no source gave it."""
        served = self._served
        if settings.policy.source is None:
            return 0
        name = settings.policy.path.parent.name
        if served is None or served.name != name:
            served = self._served = kept_for(settings)
        return served.version if served is not None and served.name == name else 0

    def hint(self) -> None:
        """There may be something new."""
        self._wake.set()

    def reconsider(self) -> None:
        """What was refused may fit the settings that serve since now."""
        if self.trouble and self._origin is not None:
            self._origin.forget()
            self._wake.set()

    async def _look(self, settings: Settings, adopt: AdoptPolicy, by: str) -> Exception | None:
        async with self._one_at_a_time:
            origin = self._origin_for(settings)
            if origin is None:
                self.trouble, self.faults, self.good_at = (), {}, None
                return None
            try:
                new = await origin.look(settings)
                if new is not None:
                    await self._adopted(origin, settings, new, adopt, by)
            except (SourceError, ConfigError) as error:
                self._fail(settings, str(error), error.faults if isinstance(error, ConfigError) else ())
                return error
            except Exception as error:  # a bug of ours, or an odd machine, must not end the looking
                log.exception("the policy's source could not be looked at")
                self._fail(settings, type(error).__name__)
                return error
            self._good(settings)
            return None

    async def _adopted(
        self, origin: PolicyOrigin, settings: Settings, new: StoredPolicy, adopt: AdoptPolicy, by: str
    ) -> None:
        before = kept_for(settings)

        async def keep() -> None:
            try:
                await asyncio.to_thread(StoredRevisions(settings).put_in_force, new, before)
            except OSError as error:
                place = shelf_of(settings)
                raise SettingsError([fault_in(place, f"it cannot be kept: {error}", code="S163")]) from None

        try:
            await adopt(new, by, keep)
        except ConfigError as error:
            folder = str(shelf_of(settings) / new.name)
            if any(fault.file.startswith(folder) for fault in error.faults):
                origin.refuse(str(error))  # of its own making: looked at again when it is another
            else:
                origin.forget()
            raise
        except BaseException:
            origin.forget()  # else it would pass for taken
            raise
        log.info("a policy was taken from its source", extra={"kind": new.kind, "version": new.version})

    def _origin_for(self, settings: Settings) -> PolicyOrigin | None:
        kind = settings.policy.source.kind if settings.policy.source else ""
        if kind != self._kind:
            self._origin, self._kind = origin_of(settings, self.processes, self.clock), kind
        return self._origin

    def _good(self, settings: Settings) -> None:
        if self.trouble:
            log.info("the policy's source is well again")
        self.trouble, self.faults, self._failures, self.good_at = (), {}, 0, self.clock()
        kept = kept_for(settings)
        self.metrics.policy_source(True, self.good_at, kept.version if kept is not None else 0)

    def _fail(self, settings: Settings, why: str, faults: Sequence[Fault] = ()) -> None:
        self._failures += 1
        self.faults = Counter(fault.code for fault in faults)
        told = ("what the policy's source has now does not serve, what was taken last does", why)
        if told != self.trouble:
            log.error("the policy's source: %s", why)
        self.trouble = told
        self.metrics.policy_source(False, self.good_at, None)

    def _pause_s(self, settings: Settings) -> float:
        """Until the next look: as often as it is wanted, and after failures sooner, then ever later."""
        source = settings.policy.source
        if source is None:
            return IDLE_S
        every_s = source.chosen.every
        if self._failures:
            every_s = min(FIRST_PAUSE_S * 2.0 ** min(self._failures - 1, 16), max(every_s, LONGEST_PAUSE_S))
        return every_s * (1 - SPREAD / 2 + SPREAD * self.random())
