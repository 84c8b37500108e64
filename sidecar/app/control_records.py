"""Owns the audit, which is open for the life of the sidecar: control records of its own changes, and published
checkpoints."""

import asyncio
import logging
import os
import platform
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self

from sidecar.audit.chain import ChainEnd
from sidecar.audit.checkpoint_publisher import EVERY_S, CheckpointPublisher, to_descriptor, to_store, told_to_store
from sidecar.audit.checkpoints import Checkpoint, load_or_make_attesting_key, read_checkpoints
from sidecar.audit.digest import load_key, load_or_make_key
from sidecar.audit.record import RECOVERED
from sidecar.audit.record_ids import time_ordered_ids
from sidecar.audit.recorder import Audit
from sidecar.audit.rollback import ROLLED_BACK, hash_in, newest_of, rolled_back
from sidecar.audit.rotation import Attester
from sidecar.audit.sinks import open_sink, place_of
from sidecar.errors import Refusal, SettingsError, fault_in
from sidecar.http.client import Egress, egress_from
from sidecar.http.signing_keys import SigningKey
from sidecar.limits import CounterStore
from sidecar.observability.metrics import Metrics
from sidecar.settings.audit import GOES_ON
from sidecar.settings.sidecar_file import Settings

STDOUT = 1
CHECKPOINT_RECORDS = 10_000  # the maximum number of records between checkpoints
KNOWN_BYTES = 8 * 2**20  # read from the end of a file of published checkpoints: about 25,000 of them

log = logging.getLogger("sidecar.app.control_records")


@dataclass(slots=True)
class ControlRecords:
    """The audit, and the checkpoint publisher once a store is available."""

    settings: Settings
    audit: Audit
    attesting_key: SigningKey
    began: ChainEnd
    herald: CheckpointPublisher = field(default_factory=lambda: CheckpointPublisher({}))
    _store: CounterStore | None = None
    _unasked: bool = False

    @classmethod
    def open(cls, settings: Settings, metrics: Metrics, environ: Mapping[str, str] = MappingProxyType({})) -> Self:
        """Opens the audit for writing; `environ` may name a proxy for its receiver. Raises SettingsError."""
        key = load_or_make_attesting_key(settings.checkpoint_key_path)
        if settings.server.worker == 1:  # it starts first; each worker publishes the public keys of all
            for path in settings.checkpoint_key_paths[1:]:
                load_or_make_attesting_key(path)
        audit = _audit_from(settings, metrics, key, egress_from(settings.egress, environ))
        evidence = cls(settings, audit, key, audit.trail.end)
        audit.writer.start()
        return evidence

    def publish_at(self, store: CounterStore) -> None:
        """Lets `run` publish checkpoints at the configured places, one of which may be `store`."""
        known = {"stdout": to_descriptor(STDOUT), "store": to_store(store.run)}
        self.herald = CheckpointPublisher({name: known[name] for name in self.settings.audit.checkpoints.to})
        self._store = store

    async def look_back(self) -> None:
        """Compares the log with the newest published checkpoint, and records a rollback if the log is behind it. Runs
        before anything is published to the store, and again when a store is available again after an outage. Raises
        SettingsError."""
        if self.settings.audit.sink not in GOES_ON:
            return
        found, chosen = await asyncio.to_thread(self._given), self.settings.audit
        self._unasked = False
        try:
            # Under a configured key, other logs may publish too.
            if self._store is not None and "store" in chosen.checkpoints.to and chosen.checkpoint_key_path is None:
                found += await told_to_store(self._store.run, self.attesting_key.kid)
        except OSError as error:
            self._unasked = self._store is not None and not self._store.up
            log.warning("published checkpoints cannot be read from the store", extra={"error": str(error)[:200]})
        known = await asyncio.to_thread(newest_of, found, self.attesting_key)
        if known.passed_over:
            skipped = {"count": known.passed_over}
            log.warning("published checkpoints were skipped: the key of this sidecar did not sign them", extra=skipped)
        if known.newest is not None:
            await self._compare(known.newest)

    async def _compare(self, newest: Checkpoint) -> None:
        in_file = self.settings.audit.sink == "file"
        hash_at = hash_in(self.settings.audit_path) if in_file else lambda seq: None
        try:
            facts = await asyncio.to_thread(rolled_back, newest, self.began, hash_at)
        except OSError as error:  # `verify` reads the whole log and reports the unreadable part
            log.warning("the audit log cannot be compared with the published checkpoints", extra={"error": str(error)})
            return
        if not facts or ROLLED_BACK in self.audit.found:
            return
        log.error("the audit log is behind a published checkpoint: it was rolled back", extra=dict(facts))
        self.audit.found += (ROLLED_BACK,)
        await self.witness(RECOVERED, "sidecar", **facts)
        with suppress(OSError):  # the new checkpoint is newer, and the next start compares with it
            await self.audit.seal()

    def _given(self) -> list[Checkpoint]:
        path = self.settings.audit.checkpoints.known_path
        if path is None:
            return []
        try:
            if not path.is_file():  # opening a pipe blocks until it has a writer
                raise OSError(f"{path} is not a file")
            return list(read_checkpoints(path, tail_bytes=KNOWN_BYTES))
        except OSError as error:
            log.warning("published checkpoints cannot be read", extra={"error": str(error)})
            return []

    async def witness(self, what: str, by: str, **facts: object) -> None:
        """Records a change to the sidecar itself. Raises SettingsError if it cannot be recorded."""
        try:
            await self.audit.control(what, by, **facts)
        except Refusal:
            log.error("the audit cannot be written", extra={"control": what})
            hint = "check that its disk is not full or read-only, and that its receiver answers"
            place = place_of(self.settings)
            raise SettingsError([fault_in(place, "the audit cannot be written", code="A111", hint=hint)]) from None

    async def witness_jump(self, seconds: float) -> None:
        """Records that the clock jumped: times before and after it cannot be compared."""
        with suppress(Refusal):  # logged by the clock monitor; the audit reports its own write failures
            await self.audit.control("clock-jump", "sidecar", seconds=round(seconds, 3))

    async def run(self) -> None:
        """Writes checkpoints and rotates files when they are due by time, and publishes new checkpoints."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.audit.look()
            await self._tell()

    async def seal(self) -> None:
        """Writes the last checkpoint and publishes it."""
        try:
            await self.audit.seal()
        except OSError as error:
            log.error("the last checkpoint of the audit log cannot be written", extra={"error": str(error)})
        await self._tell()

    async def _tell(self) -> None:
        """Publishes the newest checkpoint. The store is omitted until its older checkpoints have been read."""
        if self._unasked and self._store is not None and self._store.up:
            with suppress(SettingsError):  # logged; the audit reports its own write failures
                await self.look_back()
        await self.herald.tell(self.audit.trail.newest, but=("store",) if self._unasked else ())


def _audit_from(settings: Settings, metrics: Metrics, attesting_key: SigningKey, egress: Egress) -> Audit:
    older = [load_key(path) for path in settings.previous_audit_key_paths if path.exists()]
    key = load_or_make_key(settings.audit_key_path)
    instance = f"{platform.node()}-{os.getpid()}-{secrets.token_hex(4)}"
    sink, found = open_sink(settings, key, instance, older, egress)
    try:
        audit = Audit(
            sink,
            found,
            key=key,
            durability=settings.audit.durability,
            instance=instance,
            clock=time,
            new_id=time_ordered_ids(time),
            metrics=metrics,
            evidence_path=settings.evidence_path,
            attester=Attester(attesting_key, CHECKPOINT_RECORDS, settings.audit.checkpoints.every_s),
            clear_arguments=settings.audit.clear_arguments,
            rotation=settings.audit.rotate,
        )
    except OSError as error:
        sink.close()
        message = f"the audit cannot be written: {error}"
        raise SettingsError([fault_in(place_of(settings), message, code="A111")]) from None
    if audit.found:
        log.warning("the audit log was not in order at the start", extra={"found": audit.found})
    return audit
