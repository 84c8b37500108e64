"""Stores chosen results next to the log, each named by its outcome record.

For configured tools, the result for the caller is stored before it is sent, without redacted parts and protocol-only
members, as one line of JSON. The `outcome` of the call names it:

    evidence.jsonl     {"data":{...},"id":"<uuid>","mcp_invocation_id":"<decision_id>",...}
    audit.jsonl        {"event":"outcome",...,"evidence":[{"id":"<uuid>","sha256":"<of the line's bytes>"}],...}

Each line has a `salt` that is not in the log, without which a reader of the log could guess the SHA-256 of a short
result. The line is written first. A line that no outcome names belongs to a call that was cut off or is still running.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from sidecar.audit.chain import json_object
from sidecar.audit.file_sink import is_at, write_all
from sidecar.audit.segments import aside, last_seq_of, parts_of
from sidecar.errors import Reason, Refusal

VERSION: Final = 1
MAX_LINE_BYTES: Final = 4 * 2**20


class NamedResult(NamedTuple):
    """An outcome's reference to a stored result."""

    id: str
    sha256: str

    @classmethod
    def of(cls, record_id: str, line: bytes) -> NamedResult:
        """The reference to a line of the file, given without its newline."""
        return cls(record_id, sha256(line).hexdigest())


def evidence_record(
    *,
    server: str,
    tool: str,
    invocation: str,
    run_id: str | None,
    args_hash: str | None,
    redacted: bool,
    data: Mapping[str, Any],
    said: object = None,
) -> dict[str, Any]:
    """Evidence of the original data models, without `id`, `timestamp` and `salt`. `said` is the evidence that the tool
    itself states."""
    return {
        "v": VERSION,
        "source_type": "mcp",
        "mcp_tool_name": server,
        "mcp_method": tool,
        "mcp_invocation_id": invocation,
        "run_id": run_id,
        "metadata": {"redacted": redacted, "cache_key": f"{server}:{tool}:{args_hash}"},
        **_kept_of(said),
        "data": data,
    }


def _kept_of(said: object) -> dict[str, Any]:
    """The tool's values for its fields, if present and of the right type."""
    given: Mapping[str, Any] = said if isinstance(said, Mapping) else {}
    tags, confidence = given.get("tags"), given.get("confidence")
    is_number = isinstance(confidence, int | float) and not isinstance(confidence, bool)
    texts = {name: text if isinstance(text := given.get(name), str) else None for name in ("type", "description")}
    return {
        **texts,
        "confidence": confidence if is_number else None,
        "tags": [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else [],
    }


def evidence_line(record: Mapping[str, Any]) -> bytes:
    """One line without its newline. Raises Refusal(RESPONSE_REFUSED) for a result that is too large to store."""
    line = orjson.dumps(record, option=orjson.OPT_SORT_KEYS)
    if len(line) > MAX_LINE_BYTES:
        raise Refusal(Reason.RESPONSE_REFUSED, f"it is to be stored, and is larger than {MAX_LINE_BYTES} bytes")
    return line


class ResultFile:
    """The result file of one sidecar, opened at the first line. Not thread-safe: one thread at a time uses it."""

    def __init__(self, path: Path | None, *, to_disk: bool = False) -> None:
        self._path, self._to_disk = path, to_disk
        self._file, self._size = -1, 0

    def append(self, line: bytes) -> int:
        """Writes one line whole or not at all. Returns how many bytes of a torn line from an earlier run were removed.
        Raises OSError."""
        if self._file >= 0 and not self._is_ours():
            self._let_go()
        torn_bytes = self._open() if self._file < 0 else 0
        data = line + b"\n"
        try:
            write_all(self._file, data)
            if self._to_disk:
                os.fdatasync(self._file)
        except OSError:
            self._take_back()
            raise
        self._size += len(data)
        return torn_bytes

    @property
    def size(self) -> int:
        if self._file >= 0:
            return self._size
        try:
            return 0 if self._path is None else self._path.stat().st_size
        except OSError:
            return 0

    def turn_over(self, at_s: float, seq: int) -> None:
        if self._path is None:
            return
        part = aside(self._path, at_s, seq)
        if os.path.lexists(part):
            raise FileExistsError(errno.EEXIST, "the part is there")
        if self._file < 0:
            self._open()  # takes the lock
        self._path.rename(part)
        self._let_go()

    def let_go(self, seq: int) -> None:
        """Deletes the parts that were rotated before the log reached record `seq`. Raises OSError."""
        for part in parts_of(self._path) if self._path is not None else ():
            if last_seq_of(part) < seq:
                part.unlink()

    def close(self) -> None:
        self._let_go()
        self._path = None

    def _open(self) -> int:
        if self._path is None:
            raise OSError("there is no file for evidence")
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise OSError("the file for evidence is not a regular file")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = os.fstat(self._file).st_size
            self._size = _whole_bytes(self._file, size)
            os.ftruncate(self._file, self._size)
        except OSError:
            self._let_go()
            raise
        return size - self._size

    def _is_ours(self) -> bool:
        """Whether the file is as this process left it. If not, `verify` reports the missing results; new ones are still
        stored."""
        status = os.fstat(self._file)
        return self._path is not None and is_at(self._path, status) and status.st_size == self._size

    def _take_back(self) -> None:
        """Truncates to the last whole line. If that fails, the next `append` reopens the file and finds it torn."""
        try:
            os.ftruncate(self._file, self._size)
        except OSError:
            self._let_go()

    def _let_go(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def _whole_bytes(descriptor: int, size: int) -> int:
    """The size of the whole lines in the file. Raises OSError for a file of another origin, which is not truncated."""
    reach = min(size, MAX_LINE_BYTES + 1)
    tail = os.pread(descriptor, reach, size - reach)
    newline = tail.rfind(b"\n")
    if newline < 0 and (reach < size or not tail.startswith(b"{"[: len(tail)])):
        raise OSError("the file for evidence ends with a line that is not a record")
    return size - len(tail) + newline + 1


class StoredResult(NamedTuple):
    line: int
    id: str
    sha256: str
    record: Mapping[str, Any]


def read_evidence(path: Path) -> Iterator[StoredResult]:
    """Every line of a result file. Raises OSError."""
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(MAX_LINE_BYTES + 2):
            number += 1
            line = raw.removesuffix(b"\n")
            record = json_object(line)
            given = record.get("id")
            yield StoredResult(number, given if isinstance(given, str) else "", sha256(line).hexdigest(), record)


def named_in(record: Mapping[str, Any]) -> Iterator[NamedResult]:
    """The results that an audit record names. Older logs name none."""
    listed = record.get("evidence")
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("id"), str) and isinstance(entry.get("sha256"), str):
            yield NamedResult(entry["id"], entry["sha256"])
