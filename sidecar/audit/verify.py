"""What does this file of evidence prove, and what does it not?

    changed      a line's seal does not fit its bytes, or the next line was sealed upon another
    unreadable   a line that is no record
    removed      sequences that are nowhere
    reordered    a line that stands elsewhere than its sequence says
    inserted     a sequence that is there twice
    cut-end      the anchor knows lines that the file does not have
    no-anchor    there is none, so that a cut end would not show
    forged       the anchor is none, or the given key did not make it
    at-start     a start of the sidecar found the evidence broken, and said so in a control record

and of the results that are kept beside it, where their files are given:

    evidence-changed   not the record that its outcome names
    evidence-missing   an outcome names a record that is nowhere
    evidence-doubled   a record that is there twice

Files are given oldest first. Every file but the last is anchored by the one after it, the last by its `.head`; with
`part` both ends may be elsewhere. A file that is being written may be verified: the anchor is read before the file and
again after it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from sidecar.audit.chain import GENESIS, HEAD_BYTES, HEAD_SUFFIX, MAX_LINE_BYTES, Head, Sealed, parse_head, unseal
from sidecar.audit.digest import AuditKey
from sidecar.audit.evidence import Named, named_in, read_evidence
from sidecar.audit.file import HARMLESS
from sidecar.audit.recorder import RECOVERED

MAX_PROBLEMS = 100  # shown; all are counted
MAX_GAPS = 10_000  # remembered, so as to tell a moved line from a lost one
MAX_UNFINISHED = 1_000_000


@dataclass(frozen=True, slots=True)
class Problem:
    """One contradiction. `line` counts from 1; 0 is the file as a whole."""

    path: str
    line: int
    kind: str
    message: str

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}" if self.line else self.path
        return f"{where}: {self.kind}: {self.message}"


@dataclass(slots=True)
class Report:
    """What a verification found. `ok`: nothing contradicts the evidence; `unproved` says what that leaves open.

    `unfinished` are decisions without an outcome: calls that a crash cut off, or that are still under way.
    """

    records: int = 0
    first_seq: int = 0
    last_seq: int = 0
    events: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0
    proved: list[str] = field(default_factory=list)
    unproved: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unfinished: set[str] = field(default_factory=set)

    @property
    def ok(self) -> bool:
        return self.problem_count == 0

    def add(self, path: Path, line: int, kind: str, message: str) -> None:
        """Count a problem, and keep it while there is room."""
        self.problem_count += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(str(path), line, kind, message))


def verify(
    paths: Sequence[Path], *, key: AuditKey | None = None, part: bool = False, evidence: Sequence[Path] = ()
) -> Report:
    """Read the files of one log, oldest first, and of the `evidence` that it names. Raises OSError when one cannot be
    read."""
    report = Report()
    anchor = Path(f"{paths[-1]}{HEAD_SUFFIX}")
    before = _read_anchor(anchor)
    walk = _Walk(report, part=part, anchor=before.head)
    for path in paths:
        walk.read(path)
    walk.close_gaps()
    if evidence:
        _check_evidence(report, evidence, walk.named)
    _check_end(walk, anchor, before, _read_anchor(anchor), key)
    _sum_up(walk, before.head, key)
    return report


def lies_beside(key_path: Path, path: Path) -> bool:
    """Whether key and log share a folder: against whoever can write both, nothing is proved."""
    return key_path.resolve().parent == path.resolve().parent


@dataclass(slots=True)
class _Gap:
    """Sequences first..last that were not where they belong, seen at the given line."""

    path: Path
    line: int
    first: int
    last: int
    moved: set[int] = field(default_factory=set)


class _Walk:
    """The chain, line after line. After a contradiction it goes on from what the line itself says."""

    def __init__(self, report: Report, *, part: bool, anchor: Head | None) -> None:
        self.report = report
        self.part = part
        self.torn_bytes = 0
        self.named: dict[str, Named] = {}
        # The hashes of the lines that the anchor names, once they came.
        self.anchored = dict.fromkeys((anchor.end.seq, anchor.next.seq), "") | {0: GENESIS} if anchor else {}
        self._path, self._line = Path(), 0
        self._expected: int | None = None if part else 1
        self._previous = GENESIS
        self._unreadable = 0  # lines just passed over; each may have been the expected one, or none
        self._gaps: list[_Gap] = []

    def read(self, path: Path) -> None:
        """One file, from its first line on."""
        self._path, self._line, self.torn_bytes = path, 0, 0
        with path.open("rb") as file:
            for raw in _lines(file):
                self._line += 1
                if raw.endswith(b"\n"):
                    self._take(unseal(raw[:-1]))
                elif len(raw) > MAX_LINE_BYTES:
                    self._add(
                        "unreadable", f"more than {MAX_LINE_BYTES} bytes without a newline; the rest was not read"
                    )
                    return
                else:
                    self.torn_bytes = len(raw)

    def close_gaps(self) -> None:
        """What was missed and never came is gone."""
        for gap in self._gaps:
            lost = gap.last - gap.first + 1 - len(gap.moved)
            if lost:
                which = f"record {gap.first}" if gap.first == gap.last else f"records {gap.first} to {gap.last}"
                rest = f" ({lost} of them are nowhere)" if gap.moved else ""
                self.report.add(gap.path, gap.line, "removed", f"{which} should stand before this line{rest}")

    def _take(self, sealed: Sealed | None) -> None:
        if sealed is None:
            self._unreadable += 1
            self._add("unreadable", "this is no audit record")
            return
        if not sealed.intact:
            self._add("changed", f"the hash of record {sealed.seq} does not fit its bytes")
        self._place(sealed)
        self._count(sealed)

    def _place(self, sealed: Sealed) -> None:
        seq, expected = sealed.seq, self._expected
        if expected is not None and seq < expected:
            self._misplaced(seq)
            return
        if expected is not None and seq > expected + self._unreadable and len(self._gaps) < MAX_GAPS:
            self._gaps.append(_Gap(self._path, self._line, expected, seq - 1))
        if seq == expected and sealed.prev_hash != self._previous:
            self._add("changed", f"record {seq} was sealed upon another line than the one before it")
        self._expected, self._previous, self._unreadable = seq + 1, sealed.hash, 0

    def _misplaced(self, seq: int) -> None:
        index = bisect_right(self._gaps, seq, key=lambda gap: gap.first) - 1
        gap = self._gaps[index] if index >= 0 and seq <= self._gaps[index].last else None
        if gap is None or seq in gap.moved:
            self._add("inserted", f"record {seq} is there already")
        else:
            gap.moved.add(seq)
            self._add("reordered", f"record {seq} belongs before {gap.path}:{gap.line}")

    def _count(self, sealed: Sealed) -> None:
        report, fields = self.report, sealed.fields
        report.records += 1
        report.first_seq = report.first_seq or sealed.seq
        report.last_seq = max(report.last_seq, sealed.seq)
        if sealed.seq in self.anchored:
            self.anchored[sealed.seq] = sealed.hash
        event = fields.get("event")
        report.events[str(event)] += 1
        if event == "decision" and len(report.unfinished) < MAX_UNFINISHED:
            report.unfinished.add(str(fields.get("decision_id")))
        elif event == "outcome":
            report.unfinished.discard(str(fields.get("decision_id")))
            self.named.update((named.id, named) for named in named_in(fields))
        elif event == "control":
            self._hear(fields.get("control"))

    def _hear(self, control: object) -> None:
        """What a start of the sidecar found, it said."""
        if not isinstance(control, Mapping) or control.get("what") != RECOVERED:
            return
        given = control.get("found")
        found = [str(word) for word in given] if isinstance(given, list) else []
        broken = [word for word in found if word not in HARMLESS]
        if broken:
            self._add("at-start", f"a start of the sidecar found: {', '.join(broken)}")
        here = f"{self._path}:{self._line}"
        self.report.notes += [f"{here}: {_NOTES[word]}" for word in found if word in _NOTES]
        if "key-changed" in found:
            self.report.unproved.append(f"that nothing was cut off before {here}: the anchor was made with another key")

    def _add(self, kind: str, message: str) -> None:
        self.report.add(self._path, self._line, kind, message)


def _check_evidence(report: Report, paths: Sequence[Path], named: Mapping[str, Named]) -> None:
    seen: set[str] = set()
    unnamed = changed = 0
    for path in paths:
        for kept in read_evidence(path):
            if kept.id not in named:
                unnamed += 1
                continue
            if kept.id in seen:
                report.add(path, kept.line, "evidence-doubled", f"the result {kept.id} is there already")
            elif kept.sha256 != named[kept.id].sha256:
                changed += 1
                report.add(path, kept.line, "evidence-changed", f"the result {kept.id} is not the one that was kept")
            seen.add(kept.id)
    for lost in named.keys() - seen:
        report.add(paths[-1], 0, "evidence-missing", f"the result {lost} is nowhere")
    if unnamed:
        report.notes.append(f"{unnamed} lines of evidence are named by no outcome: cut off by a crash, or under way")
    if len(seen) > changed:
        report.proved.append(f"{len(seen) - changed} kept results are those that the log names")


_NOTES = {
    "torn-tail": "the run before ended in the middle of an append that nobody was told had succeeded",
    "cut-short": "the run before was killed in the middle of an append that nobody was told had succeeded",
    "continued": "the file before this one had been moved away",
}


@dataclass(frozen=True, slots=True)
class _Anchor:
    """`head` is None when there is no file (`there` false), or when it is no anchor."""

    there: bool
    head: Head | None


def _read_anchor(path: Path) -> _Anchor:
    try:
        with path.open("rb") as file:
            return _Anchor(True, parse_head(file.read(HEAD_BYTES + 1)))
    except FileNotFoundError:
        return _Anchor(False, None)


def _check_end(walk: _Walk, path: Path, before: _Anchor, after: _Anchor, key: AuditKey | None) -> None:
    report = walk.report
    last_seq = report.last_seq
    head = before.head
    if head is None:
        if before.there:
            report.add(path, 0, "forged", "this is no anchor")
        elif not walk.part:
            report.add(path, 0, "no-anchor", "there is none, so that nobody can say where the log ended")
        return
    if key is not None and not head.made_with(key):
        report.add(path, 0, "forged", f"the key {key.id} did not make this anchor (it names {head.key_id})")
    elif head.end.seq > last_seq:
        report.add(path, 0, "cut-end", f"the anchor knows {head.end.seq} records, the log ends with {last_seq}")
    elif head.end.hash != walk.anchored[head.end.seq]:
        report.add(path, 0, "changed", f"record {head.end.seq} is not the one that the anchor knows")
    elif last_seq >= head.next.seq and head.next.hash != walk.anchored[head.next.seq]:
        report.add(path, 0, "changed", f"record {head.next.seq} is not the one that the anchor announces")
    elif last_seq > head.next.seq and not _went_on(after, last_seq, key):
        report.add(path, 0, "inserted", f"the anchor knows {head.next.seq} records, the log has {last_seq}")
    elif head.end != head.next and after.head == head:
        report.notes.append(
            f"an append that would have ended with record {head.next.seq} was cut short by a kill: nobody was told "
            "that it had succeeded, and a cut in it does not show"
        )


def _went_on(after: _Anchor, last_seq: int, key: AuditKey | None) -> bool:
    """Whether the log was being written meanwhile, so that the anchor has caught up with what was read."""
    head = after.head
    return head is not None and head.next.seq >= last_seq and (key is None or head.made_with(key))


def _sum_up(walk: _Walk, head: Head | None, key: AuditKey | None) -> None:
    report = walk.report
    if walk.torn_bytes:
        report.notes.append(
            f"{walk.torn_bytes} bytes of an unfinished append at the end; the next start takes them away"
        )
    if report.ok and report.records:
        which = f"records {report.first_seq} to {report.last_seq}"
        report.proved.append(f"{which}: none was changed, removed, moved or put in after it was sealed")
        if key is not None and head is not None:
            report.proved.append(
                f"the anchor was made with the key {key.id}, so that the log ends where the sidecar ended"
            )
    if key is None:
        report.unproved.append("who made the anchor: without a key, whoever rewrites the whole log can rewrite it too")
    if walk.part:
        report.unproved.append("what was before the first line and after the last: these files are a part")
    report.unproved.append("that nobody who once copied log and anchor has put both back as they were")


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines with their newline. A line of a running sidecar may be half there at the first look."""
    while raw := file.readline(MAX_LINE_BYTES + 1):
        if not raw.endswith(b"\n") and len(raw) <= MAX_LINE_BYTES:
            raw += file.readline(MAX_LINE_BYTES + 1 - len(raw))
        yield raw
        if not raw.endswith(b"\n"):
            return
