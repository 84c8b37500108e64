"""What is remembered of the sidecar itself, and who hears of it?

The audit as a running sidecar holds it: opened before all else, closed after all else. What is done to the sidecar is
put on record here, and where the log ended is told to whoever the operator named.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from sidecar.audit import Audit, load_key, load_or_make_key, time_ordered_ids
from sidecar.audit.checkpoints import load_or_make_attesting_key
from sidecar.audit.herald import EVERY_S, Herald, Place, to_descriptor, to_store
from sidecar.audit.sinks import open_sink, place_of
from sidecar.audit.trail import Attester, Rotation
from sidecar.errors import Refusal, SettingsError, fault_in
from sidecar.limits import Store, StoreUnavailable
from sidecar.metrics import Metrics
from sidecar.settings import Settings

STDOUT = 1

log = logging.getLogger("sidecar.evidence")


@dataclass(slots=True)
class Evidence:
    """The audit, and its herald once there is a store to publish at."""

    settings: Settings
    audit: Audit
    herald: Herald = field(default_factory=lambda: Herald({}))

    @classmethod
    def open(cls, settings: Settings, metrics: Metrics) -> Self:
        """Ready to be written. Raises SettingsError."""
        evidence = cls(settings, _audit_from(settings, metrics))
        evidence.audit.writer.start()
        return evidence

    def publish_at(self, store: Store) -> None:
        """From now on checkpoints are published, to `store` too where that was chosen."""
        self.herald = Herald(_places(self.settings, store))

    async def witness(self, what: str, by: str, **facts: object) -> None:
        """Put on record what was done to the sidecar itself. Raises SettingsError if it cannot be."""
        try:
            await self.audit.control(what, by, **facts)
        except Refusal:
            log.error("the audit cannot be written", extra={"control": what})
            hint = "is its disk full, or read-only? Is who takes it awake?"
            place = place_of(self.settings)
            raise SettingsError([fault_in(place, "the audit cannot be written", code="A111", hint=hint)]) from None

    async def witness_jump(self, seconds: float) -> None:
        """What was recorded before and after it has times that cannot be compared."""
        with suppress(Refusal):  # logged where it happened, and the audit says itself that it cannot write
            await self.audit.control("clock-jump", "sidecar", seconds=round(seconds, 3))

    async def run(self) -> None:
        """Checkpoints and new files that are due by time, and the checkpoints to where they are published."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.audit.look()
            await self.herald.tell(self.audit.trail.newest)

    async def seal(self) -> None:
        """The last checkpoint, and whoever is to hear it."""
        try:
            await self.audit.seal()
        except OSError as error:
            log.error("the end of the evidence cannot be attested", extra={"error": str(error)})
        await self.herald.tell(self.audit.trail.newest)


def _audit_from(settings: Settings, metrics: Metrics) -> Audit:
    attesting, rotate = settings.audit.checkpoints, settings.audit.rotate
    attesting_key = load_or_make_attesting_key(settings.checkpoint_key_path)
    older = [load_key(path) for path in settings.previous_audit_key_paths if path.exists()]
    key = load_or_make_key(settings.audit_key_path)
    instance = f"{platform.node()}-{os.getpid()}-{secrets.token_hex(4)}"
    opened = open_sink(settings, key, instance, older)
    try:
        audit = Audit(
            opened.sink,
            opened.found,
            key=key,
            durability=settings.audit.durability,
            instance=instance,
            clock=time,
            new_id=time_ordered_ids(time),
            metrics=metrics,
            evidence_path=settings.evidence_path,
            attester=Attester(attesting_key, attesting.every_records, attesting.every_s),
            rotation=Rotation(rotate.max_bytes, rotate.every_s, rotate.keep),
        )
    except OSError as error:
        opened.sink.close()
        message = f"the audit cannot be written: {error}"
        raise SettingsError([fault_in(opened.place, message, code="A111")]) from None
    if audit.found:
        log.warning("the audit was not in order", extra={"found": audit.found})
    return audit


def _places(settings: Settings, store: Store) -> Mapping[str, Place]:
    """Where checkpoints are published."""

    async def run(script: str, key: str, arguments: Sequence[str]) -> Any:
        try:
            return await store.run(script, key, arguments)
        except StoreUnavailable as error:
            raise OSError(str(error)) from None

    known = {"stdout": to_descriptor(STDOUT), "store": to_store(run)}
    return {name: known[name] for name in settings.audit.checkpoints.to}
