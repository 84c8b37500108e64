"""The hash chain over audit lines and the anchor of its newest one.

Each line ends with its own seal, and holds the seal of the line before it:

    {"v":1,"event":...,"prev_hash":"<64 hex>","hash":"<64 hex>"}
    \\____________ the body, byte for byte ___________/

    hash = SHA-256(body)          prev_hash = hash of the line before, 64 zeros in the first

Anyone can check a line, without a key:
`sed 's/,"hash":"[0-9a-f]*"}$//' | tr -d '\\n' | sha256sum`.

A chain shows what happened inside it; where it ends it cannot show. That is the anchor's part: `<file>.head`, one line
of fixed length under a MAC, is written over twice with every append of one or more lines: before it with where the log
ends and where it is to end, after it with where it ends. So no line can be cut off, or put behind the last one; and
what a kill in the middle of an append leaves is told from what somebody did.

Pure: bytes in, values out. Files are the writer's and the verifier's.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

import orjson

from sidecar.audit.digest import KEY_ID_CHARS, AuditKey, frame

GENESIS = "0" * 64
MAX_LINE_BYTES = 2 * 1024 * 1024  # what `record` bounds stays below (usually at 2 kB); a longer line is no record
MAX_SEQ = 2**63  # no log gets there: what claims a higher place is no record
HEAD_SUFFIX = ".head"
_SEAL = b',"hash":"'
_SEALED = re.compile(rb',"hash":"([0-9a-f]{64})"\}\Z')
_SEAL_BYTES = len(_SEAL) + 64 + len(b'"}')
_END = rb"(\d{20}) ([0-9a-f]{64})"
_HEAD = re.compile(rb"sidecar-audit-head 1 %b %b ([0-9a-f]{%d}) ([0-9a-f]{64})\n\Z" % (_END, _END, KEY_ID_CHARS))
HEAD_BYTES = len("sidecar-audit-head 1 ") + 2 * (20 + 1 + 64 + 1) + KEY_ID_CHARS + 1 + 64 + 1


@dataclass(frozen=True, slots=True)
class SealedRecord:
    """One line as read: what it says of itself, and whether its seal fits its bytes. `fields` are all its members."""

    seq: int
    prev_hash: str
    hash: str
    intact: bool
    fields: Mapping[str, Any]


class ChainEnd(NamedTuple):
    """Where a chain ends: the sequence and hash of its last line."""

    seq: int
    hash: str


BEGINNING = ChainEnd(0, GENESIS)


@dataclass(frozen=True, slots=True)
class ChainHead:
    """What an anchor says: where the chain ends, and where it ends once the append that is under way is done; the same
    where none is."""

    end: ChainEnd
    next: ChainEnd
    key_id: str
    mac: str

    def made_with(self, key: AuditKey) -> bool:
        """Whether this very key wrote it."""
        return self.key_id == key.id and hmac.compare_digest(self.mac, _mac(key, self.end, self.next))


class UnfitHead(OSError):
    """What was to be put somewhere is not taken there as it is, now or later. Of several, some may be."""


def seal(record: Mapping[str, Any]) -> tuple[bytes, str]:
    """A record that ends in `prev_hash` as one line with its newline, and the line's hash."""
    body = ascii_json(record)[:-1]
    digest = sha256(body).hexdigest()
    return b'%b,"hash":"%b"}\n' % (body, digest.encode()), digest


def unseal(line: bytes) -> SealedRecord | None:
    """A line without its newline; None if it is no record at all."""
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


def head_line(key: AuditKey, end: ChainEnd, next_end: ChainEnd | None = None) -> bytes:
    """The anchor's whole file: HEAD_BYTES bytes, so that one write replaces it."""
    ahead = next_end or end
    ends = f"{end.seq:020d} {end.hash} {ahead.seq:020d} {ahead.hash}"
    return f"sidecar-audit-head 1 {ends} {key.id} {_mac(key, end, ahead)}\n".encode()


def parse_head(raw: bytes) -> ChainHead | None:
    """An anchor as read; None if it is none."""
    match = _HEAD.match(raw)
    if match is None:
        return None
    seq, digest, next_seq, next_digest, key_id, mac = match.groups()
    ends = ChainEnd(int(seq), digest.decode()), ChainEnd(int(next_seq), next_digest.decode())
    return ChainHead(*ends, key_id.decode(), mac.decode())


def ascii_json(record: Mapping[str, Any]) -> bytes:
    """One line of JSON in ASCII without control characters: nothing a terminal or reader obeys (threats O1)."""
    line = orjson.dumps(record)
    return line if line.isascii() and b"\x7f" not in line else _NOT_PLAIN.sub(_escape, line.decode()).encode()


_NOT_PLAIN = re.compile("[\x7f-\U0010ffff]")


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def _mac(key: AuditKey, *ends: ChainEnd) -> str:
    return key.anchor(b"".join(frame(b"%d" % end.seq) + frame(end.hash.encode()) for end in ends))
