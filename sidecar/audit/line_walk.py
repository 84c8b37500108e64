"""Walks the lines of a log one by one and as a chain.

It takes the files of one log, oldest first. After a contradiction the walk continues from the line's own values.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from sidecar.audit import record as shape
from sidecar.audit.chain import BEGINNING, GENESIS, MAX_LINE_BYTES, ChainEnd, SealedRecord, parse_head, unseal
from sidecar.audit.checkpoints import Checkpoint, Keys, checkpoint_in
from sidecar.audit.digest import AuditKey
from sidecar.audit.file_sink import HARMLESS
from sidecar.audit.result_store import NamedResult, named_in
from sidecar.audit.segments import last_seq_of
from sidecar.audit.verification_report import VerificationReport

MAX_GAPS: Final = 10_000  # remembered to distinguish moved lines from lost ones
TELL_EVERY_BYTES: Final = 1 << 20
MAX_UNFINISHED: Final = 1_000_000
MAX_KIDS: Final = 100
MAX_INSTANCES: Final = 1000
OTHER: Final = "other"  # an event that this version does not know

Progress = Callable[[int], object]
"""Receives the number of bytes read so far."""


@dataclass(slots=True)
class _Gap:
    path: Path
    line: int
    first: int
    last: int
    moved: set[int] = field(default_factory=set)


class RemovedLines(NamedTuple):
    """The record of a part that was deleted by configuration, and the line of that record."""

    last_seq: int
    last_hash: str
    here: str


class LineWalk:
    """The chain from its first line on. The first line must follow the end `after`, or any end with `part`. `hashes`
    are those of the `wanted` sequences seen so far; `named` are the results that outcomes name. The sequences are those
    of the last stop, the last checkpoint, and the last checkpoint that one of `public_keys` signed."""

    def __init__(
        self,
        report: VerificationReport,
        *,
        part: bool,
        after: ChainEnd = BEGINNING,
        wanted: Collection[int] = (),
        with_evidence: bool = False,
        keys: Sequence[AuditKey] = (),
        public_keys: Keys | None = None,
        progress: Progress = lambda count: None,
    ) -> None:
        self.report, self.part = report, part
        report.last_seq = after.seq
        self.instances: dict[str, None] = {}
        self.named: dict[str, NamedResult] = {}
        self.hashes: dict[int, str] = {after.seq: after.hash}
        self.unknown_kids: set[str] = set()
        self.signed_count = 0
        self.stopped_seq = self.attested_seq = self.signed_seq = 0
        self.newest_signed: Checkpoint | None = None
        self._wanted = frozenset(wanted)
        self._with_evidence, self._progress = with_evidence, progress
        self._keys, self._public_keys = keys, public_keys or {}
        self._path, self._line = Path(), 0
        self._read_bytes = self._next_told_bytes = 0
        self._expected: int | None = None if part else after.seq + 1
        self._previous = after.hash
        self._first_prev = GENESIS
        self._unreadable = 0  # consecutive unreadable lines; each may have been the expected record
        self._gaps: list[_Gap] = []
        self._removed: list[RemovedLines] = []

    def read(self, path: Path) -> None:
        self._path, self._line = path, 0
        with path.open("rb") as file:
            for raw in _lines(file):
                if not self._take_raw(raw):
                    return
                if self._read_bytes >= self._next_told_bytes:
                    self._progress(self._read_bytes)
                    self._next_told_bytes = self._read_bytes + TELL_EVERY_BYTES
                self._read_bytes += len(raw)

    def close_gaps(self) -> None:
        """Reports gaps that were never filled as removed lines."""
        for gap in self._gaps:
            lost = gap.last - gap.first + 1 - len(gap.moved)
            if lost and not self._was_let_go(gap):
                which = f"record {gap.first}" if gap.first == gap.last else f"records {gap.first} to {gap.last}"
                rest = f" ({lost} of them are nowhere)" if gap.moved else ""
                self.report.add(gap.path, gap.line, "removed", f"{which} should be before this line{rest}")

    def _was_let_go(self, gap: _Gap) -> bool:
        """Whether the sidecar deleted the missing beginning and recorded this."""
        said = [one for one in self._removed if (one.last_seq, one.last_hash) == (gap.last, self._first_prev)]
        if gap.first != 1 or gap.moved or not said:
            return False
        self.report.notes.append(f"records 1 to {gap.last} were deleted as configured (keep), as {said[0].here} says")
        self.report.unproved.append(f"what records 1 to {gap.last} were: they are deleted")
        return True

    def _take_raw(self, raw: bytes) -> bool:
        """Returns False at an unterminated line, after which nothing can be read."""
        self._line += 1
        if raw.endswith(b"\n"):
            self._take(unseal(raw[:-1]))
            return True
        if len(raw) > MAX_LINE_BYTES:
            self._add("unreadable", f"more than {MAX_LINE_BYTES} bytes without a newline; the rest was not read")
        elif last_seq_of(self._path) >= 0:
            self._add("unreadable", f"{len(raw)} bytes without a newline, in a file that was set aside whole")
        else:
            self.report.notes.append(
                f"{self._path}: {len(raw)} bytes of an unfinished append at the end, no record; a start takes them away"
            )
        return False

    def _take(self, sealed: SealedRecord | None) -> None:
        if sealed is None:
            self._unreadable += 1
            self._add("unreadable", "this is not an audit record")
            return
        if not sealed.intact:
            self._add("changed", f"the hash of record {sealed.seq} does not fit its bytes")
        if self.report.first_seq == 0:
            self.report.first_seq, self._first_prev = sealed.seq, sealed.prev_hash
        self._place(sealed)
        self._count(sealed)

    def _place(self, sealed: SealedRecord) -> None:
        seq, expected = sealed.seq, self._expected
        if expected is not None and seq < expected:
            self._misplaced(seq)
            return
        if expected is not None and seq > expected + self._unreadable and len(self._gaps) < MAX_GAPS:
            self._gaps.append(_Gap(self._path, self._line, expected, seq - 1))
        if seq == expected and sealed.prev_hash != self._previous:
            self._add("changed", f"record {seq} was sealed after another line than the one before it")
        self._expected, self._previous, self._unreadable = seq + 1, sealed.hash, 0

    def _misplaced(self, seq: int) -> None:
        index = bisect_right(self._gaps, seq, key=lambda gap: gap.first) - 1
        gap = self._gaps[index] if index >= 0 and seq <= self._gaps[index].last else None
        if gap is None or seq in gap.moved:
            self._add("inserted", f"record {seq} is there already")
        else:
            gap.moved.add(seq)
            self._add("reordered", f"record {seq} belongs before {gap.path}:{gap.line}")

    def _count(self, sealed: SealedRecord) -> None:
        report, fields = self.report, sealed.fields
        report.records += 1
        report.last_seq = max(report.last_seq, sealed.seq)
        if sealed.seq in self._wanted:
            self.hashes[sealed.seq] = sealed.hash
        event = fields.get("event")
        report.events[event if event in shape.EVENTS else OTHER] += 1
        decision_id = str(fields.get("decision_id"))
        if event == "decision" and fields.get("http_status") is None and len(report.unfinished) < MAX_UNFINISHED:
            report.unfinished.add(decision_id)
        elif event == "outcome":
            report.unfinished.discard(decision_id)
        self._hear(sealed)

    def _hear(self, sealed: SealedRecord) -> None:
        fields = sealed.fields
        if self._with_evidence and fields.get("event") == "outcome":
            self.named.update((named.id, named) for named in named_in(fields))
        control = fields.get("control")
        if fields.get("event") != "control" or not isinstance(control, Mapping):
            return
        if len(self.instances) < MAX_INSTANCES:
            self.instances[str(fields.get("instance"))[: shape.ID_CHARS]] = None
        here = f"{self._path}:{self._line}"
        match control.get("what"):
            case shape.RECOVERED:
                self._hear_start(sealed, control)
            case shape.STOP:
                self.stopped_seq = sealed.seq
            case shape.CHECKPOINT:
                self._hear_checkpoint(sealed, control)
            case shape.REMOVED:
                seq, digest = control.get("last_seq"), control.get("last_hash")
                if isinstance(seq, int) and isinstance(digest, str):
                    self._removed.append(RemovedLines(seq, digest, here))

    def _hear_start(self, sealed: SealedRecord, control: Mapping[str, Any]) -> None:
        here = f"{self._path}:{self._line}"
        given = control.get("found")
        found = [str(word) for word in given] if isinstance(given, list) else []
        broken = [word for word in found if word not in HARMLESS]
        if broken:
            self._add("at-start", f"a start of the sidecar found: {', '.join(broken)}")
        self.report.notes += [f"{here}: {_NOTES[word]}" for word in found if word in _NOTES]
        if "key-changed" not in found:
            return
        if control.get("anchor_checked") is True or self._made_anchor(control.get("anchor"), sealed):
            self.report.notes.append(f"{here}: the key was changed; the anchor of the previous key was checked")
        else:
            self._add(
                "at-start",
                "a start of the sidecar found an anchor of a key that it did not have: earlier lines may have been "
                "rewritten; give the previous key (--key) to check them",
            )

    def _made_anchor(self, text: object, sealed: SealedRecord) -> bool:
        """Whether an anchor that a start could not check was made with one of the given keys and ends before its
        record."""
        head = parse_head(f"{text}\n".encode())
        before = ChainEnd(sealed.seq - 1, sealed.prev_hash)
        return head is not None and before in (head.end, head.next) and head.made_with_any(self._keys)

    def _hear_checkpoint(self, sealed: SealedRecord, control: Mapping[str, Any]) -> None:
        checkpoint = checkpoint_in(control)
        if checkpoint is None or (checkpoint.seq, checkpoint.hash) != (sealed.seq - 1, sealed.prev_hash):
            self._add("checkpoint-differs", "the checkpoint is not about the record before it")
            return
        self.attested_seq = sealed.seq
        self.report.checkpoints += 1
        signed = checkpoint.signed_by(self._public_keys)
        if signed is False:
            self._add("forged", f"the key {checkpoint.kid[:64]} did not sign this checkpoint")
        elif signed:
            self.signed_count += 1
            self.signed_seq, self.newest_signed = sealed.seq, checkpoint
        elif len(self.unknown_kids) < MAX_KIDS:
            self.unknown_kids.add(checkpoint.kid[:64])

    def _add(self, kind: str, message: str) -> None:
        self.report.add(self._path, self._line, kind, message)


_NOTES = {
    "torn-tail": "the run before ended in the middle of an append that was never acknowledged",
    "cut-short": "the run before was killed before the anchor had followed its last append",
    "continued": "the file before this one had been moved away",
}


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines with their newline. The last line of a running sidecar may be incomplete at the first read."""
    while raw := file.readline(MAX_LINE_BYTES + 1):
        if not raw.endswith(b"\n") and len(raw) <= MAX_LINE_BYTES:
            raw += file.readline(MAX_LINE_BYTES + 1 - len(raw))
        yield raw
        if not raw.endswith(b"\n"):
            return
