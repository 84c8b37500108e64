"""Seals audit lines in a hash chain and anchors the chain's end.

Each line ends with its own seal and contains the seal of the line before it:

    {"v":1,"event":...,"prev_hash":"<64 hex>","hash":"<64 hex>"}
    \\____________ the body, byte for byte ___________/

    hash = SHA-256(body)          prev_hash = hash of the line before, 64 zeros in the first

A line can be checked without a key: `sed 's/,"hash":"[0-9a-f]*"}$//' | tr -d '\\n' | sha256sum`.

The anchor proves the end of the chain: `<file>.head`, one line of fixed length under a MAC, is rewritten before each
append with the current and the intended end, and with the reached end when no append follows. So lines cannot be
removed from the end or added unnoticed, and the remains of a killed append are distinguishable from tampering.
"""

import errno
import hmac
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

import orjson

from sidecar.audit.digest import KEY_ID_CHARS, AuditKey

GENESIS = "0" * 64
MAX_LINE_BYTES = 2 * 1024 * 1024  # `record` keeps lines below this (usually at 2 kB); a longer line is not a record
MAX_APPEND_BYTES = 2 * MAX_LINE_BYTES  # of lines in one append
MAX_SEQ = 2**63  # out of reach for a real log; a line with a higher sequence is not a record
HEAD_SUFFIX = ".head"
_SEAL = b',"hash":"'
_SEALED = re.compile(rb',"hash":"([0-9a-f]{64})"\}\Z')
_SEAL_BYTES = len(_SEAL) + 64 + len(b'"}')
_END_BYTES = _SEAL_BYTES + 1  # with the newline
_END = rb"(\d{20}) ([0-9a-f]{64})"
_HEAD = re.compile(rb"sidecar-audit-head 1 %b %b ([0-9a-f]{%d}) ([0-9a-f]{64})\n\Z" % (_END, _END, KEY_ID_CHARS))
HEAD_BYTES = len("sidecar-audit-head 1 ") + 2 * (20 + 1 + 64 + 1) + KEY_ID_CHARS + 1 + 64 + 1


@dataclass(frozen=True, slots=True)
class SealedRecord:
    """One parsed line: its sequence, and whether its seal matches its bytes. `fields` are all its members."""

    seq: int
    prev_hash: str
    hash: str
    intact: bool
    fields: Mapping[str, Any]


class ChainEnd(NamedTuple):
    seq: int
    hash: str


BEGINNING = ChainEnd(0, GENESIS)
_new = tuple.__new__  # of a named tuple, whose constructor takes twice as long


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The content of an anchor: the chain's end, and its end after the append in progress, if there is one."""

    end: ChainEnd
    next: ChainEnd
    key_id: str
    mac: str

    def made_with(self, key: AuditKey) -> bool:
        ours = head_line(key, self.end, self.next)
        return self.key_id == key.id and hmac.compare_digest(self.mac, ours[-65:-1].decode())

    def made_with_any(self, keys: Iterable[AuditKey]) -> bool:
        return any(map(self.made_with, keys))


class UnfitHead(OSError):
    """The records can never be appended in this form. Of several, some may fit."""


class Unsealed:
    """A record without its position in the chain: its text up to the sequence, and the members after it."""

    def __init__(self, start: str, rest: str) -> None:
        self.start, self.rest = start, rest


Append = Callable[[Sequence[Unsealed]], int]
"""Appends the first records to a chain; returns how many."""


def seal(records: Sequence[Unsealed], end: ChainEnd) -> tuple[list[bytes], ChainEnd]:
    """The lines, with their newlines, of as many records as fit into one append after `end`, and the end after them.
    Raises UnfitHead if the first does not fit."""
    lines: list[bytes] = []
    size, (seq, digest) = 0, end
    for record in records:
        body = f'{record.start}{seq + 1},{record.rest},"prev_hash":"{digest}"'
        size += len(body) + _END_BYTES
        if size > MAX_LINE_BYTES and (len(body) + _END_BYTES > MAX_LINE_BYTES or size > MAX_APPEND_BYTES):
            if not lines:  # readers could not check such a long line; records are bounded, so this is an internal error
                raise UnfitHead(errno.EINVAL, "the record is too long")
            break  # the previous ones fit
        seq, digest = seq + 1, sha256(body.encode("ascii")).hexdigest()
        lines.append(f'{body},"hash":"{digest}"}}\n'.encode("ascii"))
    return lines, _new(ChainEnd, (seq, digest))


def unseal(line: bytes) -> SealedRecord | None:
    """Parses a line without its newline; None if it is not a record."""
    match = _SEALED.search(line, max(0, len(line) - _SEAL_BYTES))
    if match is None:
        return None
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    seq, prev_hash = fields.get("seq"), fields.get("prev_hash")
    if type(seq) is not int or not 0 < seq < MAX_SEQ or not isinstance(prev_hash, str):
        return None
    digest = match[1].decode()
    return SealedRecord(seq, prev_hash, digest, sha256(line[: match.start()]).hexdigest() == digest, fields)


def json_object(raw: bytes) -> Mapping[str, Any]:
    """Parses one JSON object; empty if it is not one."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


AnchoredEnd = tuple[str, str]
"""An end in the form of anchors: its text, and its part of the message under the MAC."""


def anchored(end: ChainEnd) -> AnchoredEnd:
    number, digest = end
    seq = str(number)
    return f"{seq.zfill(20)} {digest}", f"\0\0\0{chr(len(seq))}{seq}\0\0\0@{digest}"  # framed as `digest.frame` does


def anchor_line(key: AuditKey, end: AnchoredEnd, ahead: AnchoredEnd) -> bytes:
    """The whole content of the anchor file: HEAD_BYTES bytes, so that one write replaces it."""
    (end_text, end_part), (text, part) = end, ahead
    mac = key.anchor(f"{end_part}{part}".encode("ascii"))
    return f"sidecar-audit-head 1 {end_text} {text} {key.id} {mac}\n".encode("ascii")


def head_line(key: AuditKey, end: ChainEnd, next_end: ChainEnd | None = None) -> bytes:
    return anchor_line(key, anchored(end), anchored(next_end or end))


def parse_head(raw: bytes) -> ChainHead | None:
    """Parses an anchor; None if it is malformed."""
    match = _HEAD.match(raw)
    if match is None:
        return None
    seq, digest, next_seq, next_digest, key_id, mac = match.groups()
    ends = ChainEnd(int(seq), digest.decode()), ChainEnd(int(next_seq), next_digest.decode())
    return ChainHead(*ends, key_id.decode(), mac.decode())


def ascii_json(record: Mapping[str, Any]) -> bytes:
    """One line of JSON in ASCII without control characters, safe for terminals and readers."""
    line = orjson.dumps(record)
    return line if line.isascii() and b"\x7f" not in line else _NOT_PLAIN.sub(_escape, line.decode()).encode()


_NOT_PLAIN = re.compile("[\x7f-\U0010ffff]")


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
