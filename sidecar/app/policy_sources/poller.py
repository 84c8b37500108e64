"""Polls a policy source and adopts new policies.

The source is polled before anything serves, at an interval, and when another replica has loaded a new revision. While
the source is unavailable or sends invalid policies, the last valid one serves, operators are informed, and polling
backs off with jitter.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from sidecar.app.policy_sources.stored_revisions import SourceError, StoredRevisions
from sidecar.errors import ConfigError, Fault, SettingsError, fault_in
from sidecar.observability.metrics import Metrics
from sidecar.settings.sidecar_file import Settings
from sidecar.settings.stored_policy import NOTHING_YET, StoredPolicy, kept_for, placed, shelf_of, stored_name
from sidecar.settings.timestamps import rfc3339
from sidecar.upstreams.processes.launcher import Processes

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
LONGEST_ADAPTER_PAUSE_S: Final = 10.0  # its reader is on this machine, and a database recovers sooner than a repository
IDLE_S: Final = 3600.0  # without a source there are no changes to wait for
MAX_REFUSED: Final = 50
SPREAD: Final = 0.2  # share of the interval, so that replicas started together poll at different times

log = logging.getLogger("sidecar.app.policy_sources")


class PolicyOrigin(Protocol):
    rest_s: float
    """The minimum pause before the next poll, in seconds."""

    async def look(self, settings: Settings) -> StoredPolicy | None:
        """The source's policy, checked and stored; None if it was already accepted. Raises SourceError,
        SettingsError."""

    def refuse(self, why: str) -> None:
        """Notes why the policy that `look` returned last is invalid. Until the source has another one, `look` raises
        this as a SourceError."""

    def forget(self) -> None:
        """Lets `look` return policies again that it returned or refused before."""

    async def close(self) -> None:
        """Ends its running work."""


AdoptPolicy = Callable[[StoredPolicy, str, Callable[[], Awaitable[None]]], Awaitable[None]]
"""Puts a policy from the source in force, on behalf of the second argument. The last argument is called once the policy
is valid and recorded. Raises ConfigError; the old policy then remains in force."""


@dataclass(slots=True)
class SourcePoller:
    """Polls the source. `random` returns numbers from 0 to 1. `trouble` is the reason why the source's policy does not
    serve, `faults` counts its faults by code, `refused` are the first of them, `good_at` is the time of the last
    successful poll."""

    processes: Processes
    clock: Callable[[], float]
    random: Callable[[], float]
    metrics: Metrics
    trouble: tuple[str, ...] = ()
    faults: Mapping[str, int] = field(default_factory=dict)
    refused: tuple[Fault, ...] = ()
    good_at: float | None = None
    _served: StoredPolicy | None = None
    _origin: PolicyOrigin | None = None
    _kind: str = ""
    _failures: int = 0
    _longest_pause_s: float = LONGEST_PAUSE_S
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def begin(self, settings: Settings, prove: Callable[[Settings], object]) -> None:
        """Takes the source's policy if it passes `prove`, which raises ConfigError; otherwise the last stored one
        serves. Raises ConfigError if there is none."""

        async def adopt(taken: StoredPolicy, by: str, keep: Callable[[], Awaitable[None]]) -> None:
            await asyncio.to_thread(prove, placed(settings, taken))
            await keep()

        failed = await self.look(settings, adopt)
        if failed is not None and stored_name(placed(settings)) == NOTHING_YET:
            if isinstance(failed, ConfigError):
                raise failed
            hint = "without a stored policy, the sidecar starts only when the source is available"
            fault = fault_in(shelf_of(settings), f"no policy: {failed}", code="S161", hint=hint)
            raise SettingsError([fault])

    async def run(self, settings: Callable[[], Settings], adopt: AdoptPolicy) -> None:
        """Polls at the configured interval. `settings` returns those in force. Runs as long as the process."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s(settings())):
                    await self._wake.wait()
            self._wake.clear()
            await self.look(settings(), adopt)

    def status(self, settings: Settings) -> Mapping[str, Any] | None:
        """The state of the source, for operators; None without a source."""
        if settings.policy.source is None:
            return None
        kept = kept_for(settings)
        said: dict[str, Any] = {"kind": settings.policy.source.kind, "up": not self.trouble}
        said["why"] = self.trouble[-1] if self.trouble else None
        said["good_at"] = None if self.good_at is None else rfc3339(self.good_at)
        if kept is not None and kept.name == stored_name(settings):  # otherwise it is about to serve
            said |= {"name": kept.name, "version": kept.version, "signer": kept.signer}
            said |= {"created_at": rfc3339(kept.created_at), "taken_at": rfc3339(kept.taken_at)}
        return said

    def version(self, settings: Settings) -> int:
        """The version in force; 0 if it came from no source."""
        served = self._served
        if settings.policy.source is None:
            return 0
        name = stored_name(settings)
        if served is None or served.name != name:
            served = self._served = kept_for(settings)
        return served.version if served is not None and served.name == name else 0

    def hint(self) -> None:
        """Polls soon, because the source may have a new version."""
        self._wake.set()

    def reconsider(self) -> None:
        """Checks refused policies again under the new settings."""
        if self.trouble and self._origin is not None:
            self._origin.forget()
            self._wake.set()

    async def look(self, settings: Settings, adopt: AdoptPolicy, by: str = "policy source") -> Exception | None:
        """Polls now. Errors are returned and reported, and change nothing."""
        async with self._one_at_a_time:
            kind = settings.policy.source.kind if settings.policy.source else ""
            if kind != self._kind:
                if self._origin is not None:
                    await self._origin.close()
                self._origin, self._kind = self._made(kind), kind
            if (origin := self._origin) is None:
                self.trouble, self.faults, self.refused, self.good_at = (), {}, (), None
                return None
            try:
                new = await origin.look(settings)
                if new is not None:
                    await self._adopted(origin, settings, new, adopt, by)
            except (SourceError, ConfigError) as error:
                longest_s = LONGEST_PAUSE_S
                if kind == "adapter" and isinstance(error, SourceError):  # it was read even if its rows were refused
                    longest_s = 0.0 if error.refused else LONGEST_ADAPTER_PAUSE_S
                self._fail(str(error), error.faults if isinstance(error, ConfigError) else (), longest_s)
                return error
            except Exception as error:  # an unexpected error must not end polling
                log.exception("the policy source could not be checked")
                self._fail(type(error).__name__)
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
                raise SettingsError([fault_in(place, f"it cannot be stored: {error}", code="S163")]) from None

        try:
            await adopt(new, by, keep)
        except ConfigError as error:
            folders = tuple(map(str, (shelf_of(settings) / new.name, *settings.policy.folders)))
            if any(fault.file.startswith(folders) for fault in error.faults):
                origin.refuse(str(error))  # the policy itself is invalid: check it again only when it changes
            else:
                origin.forget()
            raise
        except BaseException:
            origin.forget()  # so that it is not treated as accepted
            raise
        log.info("a policy was loaded from its source", extra={"kind": new.kind, "version": new.version})

    def _made(self, kind: str) -> PolicyOrigin | None:
        match kind:
            case "bundle":
                from sidecar.app.policy_sources.https import BundleOrigin

                return BundleOrigin(self.clock, self.processes.environ)
            case "git":
                from sidecar.app.policy_sources.git import GitOrigin

                return GitOrigin(self.clock, self.processes)
            case "adapter":
                from sidecar.app.policy_sources.adapter import AdapterOrigin

                return AdapterOrigin(self.clock, self.processes, self.hint)
        return None

    def _good(self, settings: Settings) -> None:
        if self.trouble:
            log.info("the policy source works again")
        self.trouble, self.faults, self.refused, self._failures, self.good_at = (), {}, (), 0, self.clock()
        kept = kept_for(settings)
        self.metrics.policy_source(True, self.good_at, kept.version if kept is not None else 0)

    def _fail(self, why: str, faults: Sequence[Fault] = (), longest_s: float = LONGEST_PAUSE_S) -> None:
        """Reports a failure. Pauses grow up to `longest_s`; 0 means that they do not grow."""
        self._failures, self._longest_pause_s = self._failures + 1 if longest_s else 0, longest_s
        self.faults, self.refused = Counter(fault.code for fault in faults), tuple(faults[:MAX_REFUSED])
        told = ("what the policy's source has now does not serve, what was taken last does", why)
        if told != self.trouble:
            log.error("the policy source failed, the last policy stays in force: %s", why)
        self.trouble = told
        self.metrics.policy_source(False, self.good_at, None)

    def _pause_s(self, settings: Settings) -> float:
        """Seconds until the next poll: the interval, or after failures a pause that is short at first and grows."""
        source = settings.policy.source
        if source is None:
            return IDLE_S
        every_s = max(source.chosen.every, 0.0 if self._origin is None else self._origin.rest_s)
        if self._failures:
            every_s = min(FIRST_PAUSE_S * 2.0 ** min(self._failures - 1, 16), max(every_s, self._longest_pause_s))
        return every_s * (1 - SPREAD / 2 + SPREAD * self.random())
