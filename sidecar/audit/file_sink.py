"""Appends lines to the audit file whole or not at all.

Each file has one writer, enforced by a lock, and one `write` per append of one or more lines, which the operating
system has received before `append` returns: a crash of the process loses no lines. With `to_disk`, the lines and the
anchor that announced them are on disk by then, so a power failure loses none either. Partially written lines are
removed. Before each append, the anchor next to the file states where the log ends and where it will end. The next
append, or `settle` if none follows, states that the append is done.

Rotation (`turn_over`) preserves the chain and the anchor. It is two renames; a kill between them leaves no file and an
anchor that matches the last line of the renamed file, which the next start accepts.

`open` reports every irregularity that it finds:

    torn-tail        bytes after the last newline, from an append that was never acknowledged; removed
    cut-short        the anchor announces an append that a kill interrupted, or that was not yet confirmed
    continued        no lines, but an anchor: the file was moved away; the chain continues
    key-changed      the anchor was made with another key: one of `older`, and checked, or an unknown one; then the
                     record holds the anchor, and `verify` reports the evidence as broken until it gets that key
    anchor-missing   lines, but no anchor                    \\
    anchor-forged    an anchor with an invalid MAC            |  none of these has a natural cause:
    anchor-differs   an anchor of another history             |  `verify` reports the evidence as broken
    records-lost     the anchor covers lines that are gone    |
    line-changed     the last line's seal does not match it  /
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from sidecar.audit.chain import (
    BEGINNING,
    HEAD_BYTES,
    HEAD_SUFFIX,
    MAX_APPEND_BYTES,
    MAX_LINE_BYTES,
    Append,
    ChainEnd,
    ChainHead,
    SealedRecord,
    Unsealed,
    anchor_line,
    anchored,
    head_line,
    parse_head,
    seal,
    unseal,
)
from sidecar.audit.digest import AuditKey
from sidecar.audit.segments import last_end, parts_of
from sidecar.errors import SettingsError, fault_in
from sidecar.settings.writing import sync_folder

HARMLESS = frozenset({"torn-tail", "cut-short", "continued", "key-changed"})
FRESH_SUFFIX = ".new"  # of a new file that replaces a rotated one
LOOK_S = 0.1  # between two checks that file and anchor are in their places
_OURS = b'{"v":'


@dataclass(frozen=True, slots=True)
class FoundEnd:
    """The state at start. `facts` go into the control record; empty if all is in order."""

    end: ChainEnd
    size: int
    what: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


class AuditFile:
    """One audit file and its anchor. Not thread-safe: one thread appends."""

    def __init__(
        self, path: Path, key: AuditKey, descriptor: int, head_descriptor: int, found: FoundEnd, *, to_disk: bool
    ) -> None:
        self.path, self._head_path = path, path.with_name(path.name + HEAD_SUFFIX)
        self.found, self.end, self.size = found, found.end, found.size  # `size` without the earlier parts
        self._key, self._file, self._head, self._to_disk = key, descriptor, head_descriptor, to_disk
        self._anchored, self._look_mono_s = anchored(found.end), 0.0
        self._torn = False  # an append failed and was not undone yet
        self._unconfirmed = False  # the anchor does not state yet that the last append is done

    @classmethod
    def open(cls, path: Path, key: AuditKey, *, older: Sequence[AuditKey] = (), to_disk: bool = False) -> AuditFile:
        """Locks the file, inspects it, and removes a torn tail. `older` are previous keys. Raises SettingsError."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            head_path = path.with_name(path.name + HEAD_SUFFIX)
            # Both are locked: another process may be about to rotate the file.
            with _locked(path, os.O_APPEND) as descriptor, _locked(head_path) as head_descriptor:
                found = _inspect(path, descriptor, head_descriptor, key, older)
                os.ftruncate(descriptor, found.size)
                if os.fstat(head_descriptor).st_size > HEAD_BYTES:
                    os.ftruncate(head_descriptor, HEAD_BYTES)
                if found.end == BEGINNING and not found.what:  # otherwise written with the findings
                    os.pwrite(head_descriptor, head_line(key, BEGINNING), 0)
                return cls(path, key, os.dup(descriptor), os.dup(head_descriptor), found, to_disk=to_disk)
        except OSError as error:
            raise _unusable(path, f"cannot be written: {error.strerror}", code="A111") from None

    def append(self, records: Sequence[Unsealed]) -> int:
        """Appends records (see `RecordSink.append`). Raises OSError; the file is then unchanged, or the next append
        restores it first."""
        if self._torn:
            self._take_back()
        size, now_s = os.lseek(self._file, 0, os.SEEK_END), monotonic()
        if size != self.size or now_s >= self._look_mono_s:
            self._see_that_it_is_ours(size)
            self._look_mono_s = now_s + LOOK_S
        lines, end = seal(records, self.end)
        data, after = b"".join(lines), anchored(end)
        size += (data_bytes := len(data))
        try:
            os.pwrite(self._head, anchor_line(self._key, self._anchored, after), 0)
            if self._to_disk:
                os.fdatasync(self._head)
            if (written := os.write(self._file, data)) < data_bytes:
                write_all(self._file, data[written:])
            if self._to_disk:
                os.fdatasync(self._file)
        except BaseException:
            self._torn = True
            self._take_back()
            raise
        self._unconfirmed = True
        self.end, self._anchored, self.size = end, after, size
        return len(lines)

    def quick_append(self, count: int) -> Append | None:
        return None if self._to_disk else self.append

    def settle(self) -> None:
        if self._torn:
            self._take_back()
        if self._unconfirmed:
            os.pwrite(self._head, anchor_line(self._key, self._anchored, self._anchored), 0)
            self._unconfirmed = False

    def abandon(self) -> None:
        """Does nothing: a disk write cannot be interrupted safely."""

    @property
    def file(self) -> AuditFile:
        return self

    def turn_over(self, part: Path) -> None:
        """Renames the file to `part` and continues in a new one. Raises OSError; then the file either keeps its name
        and accepts further records, or has its new name and accepts none."""
        self.settle()
        if os.path.lexists(part) or not os.path.samestat(self.path.stat(), os.fstat(self._file)):
            self._look_mono_s = 0.0
            raise OSError(errno.EEXIST, "the part is there, or the file is another")
        fresh = self.path.with_name(f"{self.path.name}{FRESH_SUFFIX}")
        fresh.unlink(missing_ok=True)  # from a start that was killed here; a link is not followed
        with _locked(fresh, os.O_APPEND | os.O_EXCL) as descriptor:
            self.path.rename(part)
            try:
                fresh.rename(self.path)
            except OSError:
                part.rename(self.path)
                raise
            replaced, self._file, self.size = self._file, os.dup(descriptor), 0
        os.close(replaced)
        if self._to_disk:
            sync_folder(self.path.parent)

    def close(self) -> None:
        """Closes the file; later appends fail."""
        if self._file != -1:
            with suppress(OSError):  # the next start then finds the append unconfirmed, or torn
                self.settle()
        for descriptor in {self._file, self._head} - {-1}:
            os.close(descriptor)
        self._file = self._head = -1

    def _see_that_it_is_ours(self, size: int) -> None:
        """Refuses to append to a file that was truncated or written by others (checked before each append), or that was
        deleted or is not where it and its anchor belong (checked every `LOOK_S`)."""
        log = os.fstat(self._file)
        if log.st_nlink == 0:
            raise OSError(errno.ESTALE, f"{self.path.name} was deleted; start the sidecar again")
        if size != self.size:
            message = f"{self.path.name} has {size} bytes and not {self.size}; start the sidecar again"
            raise OSError(errno.ESTALE, message)
        for status, path in ((log, self.path), (os.fstat(self._head), self._head_path)):
            if not is_at(path, status):
                raise OSError(errno.ESTALE, f"{path.name} was moved away; put it back, or start the sidecar again")

    def _take_back(self) -> None:
        """Truncates to the last whole append. If that fails, `_torn` remains set and the next append tries again."""
        if os.fstat(self._file).st_size > self.size:
            os.ftruncate(self._file, self.size)
        os.pwrite(self._head, head_line(self._key, self.end), 0)
        self._torn = self._unconfirmed = False


def is_at(path: Path, status: os.stat_result) -> bool:
    """Whether the open file with this status is the one at `path`."""
    try:
        return os.path.samestat(path.stat(), status)
    except OSError:
        return False


def _inspect(path: Path, descriptor: int, head_descriptor: int, key: AuditKey, older: Sequence[AuditKey]) -> FoundEnd:
    foreign = _unusable(path, "ends with a line that is not an audit record", code="A114", hint="move the file away")
    raw_head = os.pread(head_descriptor, HEAD_BYTES + 1, 0)
    size = os.fstat(descriptor).st_size
    reach = MAX_APPEND_BYTES + MAX_LINE_BYTES
    tail = os.pread(descriptor, reach, max(0, size - reach))
    whole, newline, torn = tail.rpartition(b"\n")
    if not newline and torn and not torn.startswith(_OURS[: len(torn)]) and torn.strip(b"\0"):
        raise foreign
    last = unseal(whole.rpartition(b"\n")[2]) if newline else None
    if newline and last is None:
        raise foreign
    read = read_anchor(raw_head, last, whole, key, older)
    what, facts = read.what, read.facts | {"last_seq": last.seq if last else 0}
    parts = parts_of(path) if what[:1] == ("continued",) and read.head is not None else ()
    if parts and read.head is not None and last_end(parts[-1]) == read.head.end:  # rotated, then killed at an append
        what = (*(("cut-short",) if read.head.end != read.head.next else ()), *what[1:])
    if torn:
        what = ("torn-tail", *what)
        facts |= {"torn_bytes": len(torn), "torn_sha256": sha256(torn).hexdigest()}
    return FoundEnd(read.end, size - len(torn), what, {"found": list(what), **facts} if what else {})


class AnchorRead(NamedTuple):
    head: ChainHead | None
    end: ChainEnd
    what: tuple[str, ...]
    facts: dict[str, Any]


def read_anchor(
    raw: bytes, last: SealedRecord | None, lines: bytes, key: AuditKey, older: Sequence[AuditKey] = ()
) -> AnchorRead:
    """Checks an anchor against the lines that it covers; `last` is the last of them."""
    head = parse_head(raw)
    makers = [each for each in (key, *older) if head is not None and head.made_with(each)]
    what = _anchor_findings(last, lines, raw, head, makers[0] if makers else key)
    facts: dict[str, Any] = {"anchor_seq": head.end.seq if head else None}
    if makers and makers[0] != key:
        what = (*what, "key-changed")
        facts |= {"old_key_id": makers[0].id, "anchor_checked": True}
    elif "key-changed" in what:  # the old key can still check it from the record
        facts |= {"anchor": raw.decode("ascii").rstrip()}
    if last is not None and not last.intact:
        what = ("line-changed", *what)
    trusted = head.end if head is not None and makers else BEGINNING
    end = ChainEnd(max(last.seq, trusted.seq), last.hash) if last else trusted
    return AnchorRead(head, end, what, facts)


def _anchor_findings(
    last: SealedRecord | None, lines: bytes, raw_head: bytes, head: ChainHead | None, key: AuditKey
) -> tuple[str, ...]:
    if not raw_head:
        return ("anchor-missing",) if last else ()
    if head is None:
        return ("anchor-forged",)
    if head.key_id != key.id:
        return ("key-changed",)
    if not head.made_with(key):
        return ("anchor-forged",)
    end = ChainEnd(last.seq, last.hash) if last is not None else BEGINNING
    if last is None and head.end != BEGINNING:
        return ("continued",)
    if head.end.seq > end.seq:
        return ("records-lost",)
    if end.seq > head.next.seq or (end.seq == head.next.seq and end != head.next) or not _follows(lines, head.end):
        return ("anchor-differs",)
    return ("cut-short",) if head.end != head.next else ()


def _follows(lines: bytes, end: ChainEnd) -> bool:
    """Whether `end` is in these lines or in the previous file, and each later line is sealed on the one before."""
    later: SealedRecord | None = None
    for line in reversed(lines.split(b"\n")):
        sealed = unseal(line)
        if sealed is None or (later is not None and later.prev_hash != sealed.hash):
            break
        if sealed.seq == end.seq:
            return sealed.hash == end.hash
        later = sealed
    return end == BEGINNING if later is None else (later.seq, later.prev_hash) == (end.seq + 1, end.hash)


@contextmanager
def _locked(path: Path, flags: int = 0) -> Iterator[int]:
    """Holds a locked descriptor for the duration of the block; a duplicate of it holds the lock after that. Raises
    SettingsError, OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _unusable(path, "is not a regular file", code="A112")
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    except BlockingIOError:
        hint = "give each sidecar a data folder of its own"
        raise _unusable(path, "is being written by another sidecar", code="A113", hint=hint) from None
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    written = os.write(descriptor, data)
    while written < len(data):  # a disk that fills up accepts a part, and reports the error at the next write
        written += os.write(descriptor, data[written:])


def _unusable(path: Path, message: str, *, code: str, hint: str = "") -> SettingsError:
    return SettingsError([fault_in(path, f"the audit file {message}", code=code, hint=hint)])
