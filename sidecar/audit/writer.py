"""How does a line get onto the file whole, or not at all?

One writer for each file (a lock says so), one `write` for each line, handed to the operating system before `append`
returns: no crash of ours loses it. A line that was written in part is taken back. After each line the anchor beside the
file is written over; a kill between the two leaves it one line behind, and that is the only way it may be behind.

What `open` finds is never mended in silence:

    torn-tail        bytes after the last newline: an append that was never acknowledged; taken away
    anchor-behind    by the one line that a kill may leave behind
    continued        no lines, but an anchor: the file was moved away; the chain goes on
    key-changed      the anchor was made with another key, so that nothing can be said about it
    anchor-missing   lines, but no anchor                    \\
    anchor-forged    an anchor that our key did not make      |  none of these happens by itself:
    anchor-differs   an anchor of some other history          |  `verify` calls the evidence broken
    records-lost     the anchor knows lines that are gone     |
    line-changed     the last line's seal does not fit it    /
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from sidecar.audit.chain import (
    GENESIS,
    HEAD_BYTES,
    HEAD_SUFFIX,
    MAX_LINE_BYTES,
    Head,
    Sealed,
    head_line,
    parse_head,
    seal,
    unseal,
)
from sidecar.audit.digest import AuditKey
from sidecar.errors import SettingsError, fault_in

HARMLESS = frozenset({"torn-tail", "anchor-behind", "continued", "key-changed"})
_OURS = b'{"v":'


@dataclass(frozen=True, slots=True)
class Found:
    """What the last run left. `facts` is what the control record says about it; empty when all is in order."""

    seq: int
    hash: str
    size: int
    what: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


class AuditFile:
    """One file of evidence and its anchor. Not for threads: one event loop appends."""

    def __init__(self, key: AuditKey, descriptor: int, head_descriptor: int, found: Found) -> None:
        self.found = found
        self._key = key
        self._file = descriptor
        self._head = head_descriptor
        self._seq, self._hash, self._size = found.seq, found.hash, found.size
        self._unsettled = False

    @classmethod
    def open(cls, path: Path, key: AuditKey) -> AuditFile:
        """Lock the file, see what the last run left, take a torn tail away. Raises SettingsError."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _opened(path, os.O_APPEND) as descriptor:
                _lock(path, descriptor)
                with _opened(path.with_name(path.name + HEAD_SUFFIX)) as head_descriptor:
                    found = _inspect(path, descriptor, head_descriptor, key)
                    os.ftruncate(descriptor, found.size)
                    if found.seq == 0:
                        os.pwrite(head_descriptor, head_line(key, 0, GENESIS), 0)
                    return cls(key, os.dup(descriptor), os.dup(head_descriptor), found)
        except OSError as error:
            raise _unusable(path, f"cannot be written: {error.strerror}", code="A111") from None

    @property
    def seq(self) -> int:
        """The sequence of the last line; 0 before the first."""
        return self._seq

    def append(self, record: dict[str, Any]) -> None:
        """Give the record its place in the chain and write it. Raises OSError; the file is then as it was before."""
        if self._unsettled:
            self._take_back()
        record["seq"] = seq = self._seq + 1
        record["prev_hash"] = self._hash
        line, digest = seal(record)
        if len(line) > MAX_LINE_BYTES:
            raise OSError("the record is too long")  # its bounds make it impossible; no reader could check it
        head = head_line(self._key, seq, digest)
        self._unsettled = True
        try:
            _write_all(self._file, line)
            os.pwrite(self._head, head, 0)
        except OSError:
            self._take_back()
            raise
        self._unsettled = False
        self._seq, self._hash, self._size = seq, digest, self._size + len(line)

    def close(self) -> None:
        """Let the file go; what is appended afterwards fails."""
        for descriptor in {self._file, self._head} - {-1}:
            os.close(descriptor)
        self._file = self._head = -1

    def _take_back(self) -> None:
        """Back to the last whole line. `_unsettled` stays set when even that fails, and the next append tries again."""
        if os.fstat(self._file).st_size > self._size:
            os.ftruncate(self._file, self._size)
        self._unsettled = False


def _inspect(path: Path, descriptor: int, head_descriptor: int, key: AuditKey) -> Found:
    raw_head = os.pread(head_descriptor, HEAD_BYTES + 1, 0)
    size = os.fstat(descriptor).st_size
    tail = os.pread(descriptor, 2 * MAX_LINE_BYTES, max(0, size - 2 * MAX_LINE_BYTES))
    whole, newline, torn = tail.rpartition(b"\n")
    if not newline and torn and not torn.startswith(_OURS[: len(torn)]) and torn.strip(b"\0"):
        raise _foreign(path)
    last = None
    if newline:
        last = unseal(whole.rpartition(b"\n")[2])
        if last is None:
            raise _foreign(path)
    head = parse_head(raw_head)
    what = _findings(last, raw_head, head, key)
    trusted = head if head is not None and head.made_with(key) else None
    seq = max(last.seq if last else 0, trusted.seq if trusted else 0)
    digest = last.hash if last else trusted.hash if trusted else GENESIS
    facts: dict[str, Any] = {"last_seq": last.seq if last else 0, "anchor_seq": head.seq if head else None}
    if torn:
        what = ("torn-tail", *what)
        facts |= {"torn_bytes": len(torn), "torn_sha256": sha256(torn).hexdigest()}
    return Found(seq, digest, size - len(torn), what, {"found": list(what), **facts} if what else {})


def _findings(last: Sealed | None, raw_head: bytes, head: Head | None, key: AuditKey) -> tuple[str, ...]:
    changed = ("line-changed",) if last is not None and not last.intact else ()
    return (*changed, *_anchor_findings(last, raw_head, head, key))


def _anchor_findings(last: Sealed | None, raw_head: bytes, head: Head | None, key: AuditKey) -> tuple[str, ...]:
    if not raw_head:
        return ("anchor-missing",) if last else ()
    if head is None:
        return ("anchor-forged",)
    if head.key_id != key.id:
        return ("key-changed",)
    if not head.made_with(key):
        return ("anchor-forged",)
    if last is None:
        return ("continued",) if head.seq else ()
    if head.seq > last.seq:
        return ("records-lost",)
    if (head.seq, head.hash) == (last.seq, last.hash):
        return ()
    if (head.seq, head.hash) == (last.seq - 1, last.prev_hash):
        return ("anchor-behind",)
    return ("anchor-differs",)


@contextmanager
def _opened(path: Path, flags: int = 0) -> Iterator[int]:
    """A descriptor for the length of `open`; who keeps it takes a copy (locks go with the copy)."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _unusable(path, "is not a regular file", code="A112")
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(path: Path, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        hint = "give each sidecar a data folder of its own"
        raise _unusable(path, "is being written by another sidecar", code="A113", hint=hint) from None


def _write_all(descriptor: int, data: bytes) -> None:
    written = os.write(descriptor, data)
    while written < len(data):  # a disk that fills up takes a part, and says why only at the next try
        written += os.write(descriptor, data[written:])


def _foreign(path: Path) -> SettingsError:
    return _unusable(path, "ends in a line that is no audit record", code="A114", hint="move the file away")


def _unusable(path: Path, message: str, *, code: str, hint: str = "") -> SettingsError:
    return SettingsError([fault_in(path, f"the audit file {message}", code=code, hint=hint)])
