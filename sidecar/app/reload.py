"""Reloads changed files: the old snapshot serves until the new one is valid and recorded."""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from sidecar.app.file_watcher import FileWatcher
from sidecar.errors import ConfigError, Fault, SettingsError, fault_in
from sidecar.gateway.snapshot import Live, Snapshot
from sidecar.observability.metrics import Metrics
from sidecar.policy import Engine
from sidecar.settings.stored_policy import StoredPolicy
from sidecar.vocabulary import Witness

RETIRE_LOOK_S = 0.1
UNRECORDED, UNFORESEEN = "A111", "R101"
MAX_TOLD = 50

log = logging.getLogger("sidecar.app.reload")

BuildSnapshot = Callable[[Snapshot, bool, StoredPolicy | None], Awaitable[Snapshot]]
"""Builds the snapshot after this one, see `loader.next_snapshot`. Raises ConfigError."""


@dataclass(slots=True)
class Reloader:
    """Reloads, one at a time. `serves` is called with each new snapshot in force. `trouble` is the reason why the
    current files are not in force; `faults` counts their faults by code, and `refused` are the first of them."""

    live: Live
    build: BuildSnapshot
    watcher: FileWatcher
    metrics: Metrics
    witness: Witness
    serves: Callable[[], Awaitable[None]]
    loaded_at: float = field(default_factory=time.time)
    trouble: tuple[str, ...] = ()
    faults: Mapping[str, int] = field(default_factory=dict)
    refused: tuple[Fault, ...] = ()
    retiring: set[asyncio.Task[None]] = field(default_factory=set)
    _failed: tuple[str, ...] = ()
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def reload(self, by: str, *, only_if_changed: bool = False) -> str:
        """Reloads all files. Returns the revision then in force. Raises ConfigError and changes nothing."""
        async with self._one_at_a_time:
            old = self.live.current
            try:
                self.watcher.seen = await self.watcher.look()  # before reading, so that later writes count as changes
                new = await self._next(old, by, only_if_changed)
            except ConfigError as error:
                await self._fail(error, by, anew=not only_if_changed)
                raise
            except Exception as error:  # neither serving nor watching ends because of it; it is reported and retried
                why = str(error) if isinstance(error, OSError) else type(error).__name__
                message, hint = f"the files could not be loaded: {why}", "the sidecar tries again; see the log"
                unforeseen = SettingsError([fault_in(self.watcher.config, message, code=UNFORESEEN, hint=hint)])
                await self._fail(unforeseen, by, anew=not only_if_changed, cause=error)
                raise unforeseen from error
            if new is old:
                if self._failed:  # the files match the snapshot in force, after they were wrong
                    log.info("the files are valid again, and are those in force")
                    self._well(old)
                log.debug("files were rewritten with the same content")
            else:
                await self._serve(new, old, by)
            return new.engine.revision

    async def adopt(self, taken: StoredPolicy, by: str, keep: Callable[[], Awaitable[None]]) -> None:
        """Puts a source's policy in force; `keep` stores it for the next start. Raises ConfigError, changing
        nothing."""
        async with self._one_at_a_time:
            old = self.live.current
            try:
                new = await self._next(old, by, only_if_changed=False, taken=taken, keep=keep)
            except ConfigError as error:
                await self._refuse(by, policy_version=taken.version, policy_source=taken.kind)
                told = "\n".join(_told(error))
                log.error("the policy from its source is refused, the last policy stays in force\n%s", told)
                raise
            await self._serve(new, old, by)

    async def files_changed(self) -> bool:
        """Reloads if the files changed. Returns whether the change is settled, by success or by a fault of the
        files."""
        try:
            await self.reload("file change", only_if_changed=True)
        except ConfigError as error:  # reported, recorded and counted; the old policy stays in force
            # Failures not caused by the files are retried.
            return all(fault.code not in (UNRECORDED, UNFORESEEN) for fault in error.faults)
        return True

    async def close(self) -> None:
        """Stops waiting for calls that began under older snapshots."""
        retiring = list(self.retiring)
        for task in retiring:
            task.cancel()
        await asyncio.gather(*retiring, return_exceptions=True)

    async def _next(
        self,
        old: Snapshot,
        by: str,
        only_if_changed: bool,
        taken: StoredPolicy | None = None,
        keep: Callable[[], Awaitable[None]] | None = None,
    ) -> Snapshot:
        """Builds the next snapshot, and records the change before it serves: each decision needs an audit record."""
        new = await self.build(old, only_if_changed, taken)
        if new is old:
            return old
        facts = {} if taken is None else {"policy_version": taken.version, "policy_name": taken.name}
        try:
            revisions = {"old_revision": old.engine.revision, "new_revision": new.engine.revision}
            await self.witness("reload", by, **revisions, **policy_facts(new.engine), **facts)
            if new.pins != old.pins:
                pinned, unpinned = new.pins.changes(old.pins)
                await self.witness("pins", by, pinned=pinned, unpinned=unpinned)
            if keep is not None:
                await keep()
        except SettingsError:
            await self._retire(new, old)
            raise
        return new

    async def _serve(self, new: Snapshot, old: Snapshot, by: str) -> None:
        self.live.serve(new)
        self.loaded_at = time.time()
        self._well(new)
        await self.serves()
        self.metrics.policy_reloaded("ok")
        log.info("reloaded", extra={"by": by, "old": old.engine.revision, "new": new.engine.revision})
        retiring = asyncio.create_task(self._retire(old, new))
        self.retiring.add(retiring)
        retiring.add_done_callback(self.retiring.discard)

    async def _fail(self, error: ConfigError, by: str, *, anew: bool, cause: Exception | None = None) -> None:
        told = _told(error)
        self.trouble = ("the newest files are not in force, the old policy serves", *told)
        self.faults, self.refused = Counter(fault.code for fault in error.faults), tuple(error.faults[:MAX_TOLD])
        if told == self._failed and not anew:
            return
        self._failed = told
        log.error(
            "reload failed; the old policy continues to serve\n%s", "\n".join(told), extra={"by": by}, exc_info=cause
        )
        await self._refuse(by)

    async def _refuse(self, by: str, **facts: object) -> None:
        self.metrics.policy_reloaded("failed")
        with suppress(SettingsError):
            await self.witness("reload-failed", by, policy_revision=self.live.current.engine.revision, **facts)

    def _well(self, now: Snapshot) -> None:
        """The files are in force, except for changes that need a restart."""
        waiting = (f"{name} changed in the configuration and needs a restart" for name in now.waiting)
        self._failed, self.faults, self.refused, self.trouble = (), {}, (), tuple(waiting)

    async def _retire(self, old: Snapshot, new: Snapshot) -> None:
        """Closes the upstreams that the new snapshot dropped, once the calls that began under the old one have
        ended."""
        gone = [one for name, one in old.upstreams.items() if new.upstreams.get(name) is not one]
        patience_s = max((one.timeout_s for one in old.upstreams.values()), default=0.0) + old.settings.approvals.hold
        try:
            # Calls longer than the longest timeout, after being held, are streams, whose readers reconnect.
            for _ in range(math.ceil(patience_s / RETIRE_LOOK_S)):
                if not self.live.is_read(old):
                    break
                await asyncio.sleep(RETIRE_LOOK_S)
        finally:
            await old.identity.close()
            for service in gone:
                await service.close()


def policy_facts(engine: Engine) -> Mapping[str, object]:
    """Returns the members of control records about a policy except its revision: the decider, unless it is compiled
    rules, and the kinds that allow everything that no row denies."""
    engines = [f"{kind.value}={name}" for kind, name in engine.engines.items() if name != "compiled"]
    allowing = [kind.value for kind in engine.allowing]
    facts = {"policy_engines": engines, "policy_allows_by_default": allowing}
    return {name: kinds for name, kinds in facts.items() if kinds}


def _told(error: ConfigError) -> tuple[str, ...]:
    told = tuple(map(str, error.faults))
    more = (f"and {len(told) - MAX_TOLD} more: sidecar check lists all",) if len(told) > MAX_TOLD else ()
    return (*told[:MAX_TOLD], *more)
