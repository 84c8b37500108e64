"""Rotates the audit file and writes checkpoints when they are due.

It runs in the writing thread between two appends. A checkpoint covers the record before it, and a rotated part ends
with one. Failures here are logged and retried; records continue to be written to the current file.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from math import inf
from pathlib import Path
from typing import Any, Final, Protocol

from sidecar.audit import record as shape
from sidecar.audit.chain import BEGINNING, Append, ChainEnd, Unsealed
from sidecar.audit.checkpoints import Checkpoint, attest
from sidecar.audit.file_sink import AuditFile
from sidecar.audit.record_ids import Clock, timestamp
from sidecar.audit.result_store import ResultFile
from sidecar.audit.segments import aside, first_line, last_end, last_seq_of, parts_of
from sidecar.audit.writer import RecordSink
from sidecar.errors import SettingsError
from sidecar.http.signing_keys import SigningKey
from sidecar.settings.audit import RotationSettings

RETRY_S: Final = 60.0  # after a failed rotation

log = logging.getLogger("sidecar.audit")


class Stamp(Protocol):
    """Makes control records with id, time, instance and key id. Not thread-safe."""

    def control(self, what: str, by: str, facts: Mapping[str, object]) -> Unsealed:
        """A record of an action of an operator or of the sidecar."""


class ChainSink(RecordSink, Protocol):
    @property
    def end(self) -> ChainEnd:
        """The end of the chain."""

    @property
    def file(self) -> AuditFile | None:
        """The file that can be rotated, if the sink is one."""


@dataclass(frozen=True, slots=True)
class Attester:
    """The signing key of checkpoints, and their interval: in records or seconds, if there are new records."""

    key: SigningKey
    every_records: int
    every_s: float


class RotatingSink:
    """One chain of records with its checkpoints, in a file that may rotate or in another sink that does not."""

    def __init__(
        self,
        sink: ChainSink,
        stamp: Stamp,
        clock: Clock,
        attester: Attester | None,
        rotation: RotationSettings,
        evidence: ResultFile,
    ) -> None:
        self.sink, self._file, self._evidence = sink, sink.file, evidence
        self.settle, self.abandon, self.close = sink.settle, sink.abandon, sink.close
        self._quick_append = sink.quick_append(1)
        self._stamp, self._clock = stamp, clock
        self._attester, self._rotation, self._max_bytes = attester, rotation, rotation.max_bytes
        self._attested = BEGINNING  # the end of the chain at the last checkpoint
        self._due_seq = inf if attester is None else attester.every_records  # of the record that makes the next one due
        self._attested_mono_s = clock.monotonic()
        self._begun_at_s: float | None = None  # when the first record of this file was written
        self._not_before_mono_s = 0.0
        self.newest: Checkpoint | None = None
        """The newest checkpoint, for publication."""

    @property
    def end(self) -> ChainEnd:
        return self.sink.end

    def append(self, records: Sequence[Unsealed]) -> int:
        if self._max_bytes is not None and self._is_full():
            self._turn_over()
        count = self.sink.append(records)
        if self.sink.end.seq >= self._due_seq:
            self._tried(self.seal)
        return count

    def quick_append(self, count: int) -> Append | None:
        """The `append` of the sink, if this number of records needs no new file and no checkpoint."""
        if self.sink.end.seq + count >= self._due_seq or (self._max_bytes is not None and self._is_full()):
            return None
        return self._quick_append

    def is_due(self) -> bool:
        """Whether `look` has something to do; an estimate that other threads may make."""
        is_unread = self._rotation.every_s is not None and self._begun_at_s is None and self._can_turn_over()
        return is_unread or self._is_old() or self._is_unattested()

    def look(self) -> None:
        if self._is_old():
            self._turn_over()
        if self._is_unattested():
            self._tried(self.seal)

    def seal(self) -> None:
        """Writes a checkpoint of the chain's end. Raises OSError."""
        if self._attester is None:
            return
        self.sink.settle()
        if self.end.seq == 0 or self.end == self._attested:
            return
        checkpoint = attest(self._attester.key, self.end, timestamp(self._clock.time()))
        self._say(shape.CHECKPOINT, checkpoint._asdict())
        self._attested, self._attested_mono_s, self.newest = self.end, self._clock.monotonic(), checkpoint
        self._due_seq = self.end.seq + self._attester.every_records

    def _is_unattested(self) -> bool:
        attester = self._attester
        if attester is None or self.end.seq == 0 or self.end == self._attested:
            return False
        return self._clock.monotonic() - self._attested_mono_s >= attester.every_s

    def _is_full(self) -> bool:
        file, most = self._file, self._max_bytes
        if file is None or most is None:
            return False
        return (file.size >= most or self._evidence.size >= most) and self._can_turn_over()

    def _is_old(self) -> bool:
        every_s = self._rotation.every_s
        return every_s is not None and self._can_turn_over() and self._clock.time() - self._begun_s() >= every_s

    def _can_turn_over(self) -> bool:
        return bool(self._file and self._file.size) and self._clock.monotonic() >= self._not_before_mono_s

    def _begun_s(self) -> float:
        now_s = self._clock.time()
        if self._begun_at_s is None:
            self._begun_at_s = now_s
            with suppress(OSError, ValueError, AttributeError, KeyError, TypeError):
                first = None if self._file is None else first_line(self._file.path)
                self._begun_at_s = datetime.fromisoformat(first.fields["timestamp"]).timestamp() if first else now_s
        self._begun_at_s = min(self._begun_at_s, now_s)  # not in the future: the clock may have been set back
        return self._begun_at_s

    def _turn_over(self) -> None:
        """Rotates the file, ended by a checkpoint, then deletes parts beyond the number to keep."""
        self._not_before_mono_s = self._clock.monotonic() + RETRY_S
        if self._tried(self.seal) and self._tried(self._set_aside):
            self._begun_at_s, self._not_before_mono_s = None, 0.0
            self._tried(self._set_evidence_aside)  # on failure, it is rotated with the next part
            self._tried(self._delete_parts)

    def _set_aside(self) -> None:
        assert self._file is not None
        self._file.turn_over(aside(self._file.path, self._clock.time(), self.end.seq))

    def _set_evidence_aside(self) -> None:
        if self._evidence.size:
            self._evidence.turn_over(self._clock.time(), self.end.seq)

    def _delete_parts(self) -> None:
        """Deletes the oldest parts, each after recording its description. Only if checkpoints cover them."""
        keep, file = self._rotation.keep, self._file
        if keep is None or file is None or self._attester is None:
            return
        removed = -1
        for part, first_seq, end in reversed(self._parts(file.path)[keep:]):
            facts = {"file": part.name, "first_seq": first_seq, "last_seq": end.seq, "last_hash": end.hash}
            self._say(shape.REMOVED, facts)
            part.unlink()
            removed = end.seq
        self._evidence.let_go(removed)  # results stored before the end of a part may be named in the next part

    def _parts(self, path: Path) -> list[tuple[Path, int, ChainEnd]]:
        """The parts of this log, newest first, with their first sequence and their end. Files that only have a part's
        name are not counted and not deleted."""
        found, before_seq = [], self.end.seq + 1
        for part in reversed(parts_of(path)):
            first, end = first_line(part), last_end(part)
            if first is None or end is None or not first.seq <= end.seq == last_seq_of(part) < before_seq:
                log.error("a file has the name of a part of the audit log and is none", extra={"file": part.name})
                continue
            found.append((part, first.seq, end))
            before_seq = first.seq
        return found

    def _say(self, what: str, facts: dict[str, Any]) -> None:
        self.sink.append([self._stamp.control(what, "sidecar", facts)])

    def _tried(self, act: Callable[[], object]) -> bool:
        try:
            act()
        except (OSError, SettingsError) as error:
            log.error(
                "rotating or sealing the audit log failed; records go to the current file and it is tried again",
                extra={"failed": act.__name__, "error": str(error)},
            )
            return False
        return True
