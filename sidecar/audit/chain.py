"""Has a line been changed, and is the last one still there?

Each line ends with its own seal, and holds the seal of the line before it:

    {"v":1,"event":...,"prev_hash":"<64 hex>","hash":"<64 hex>"}
    \\____________ the body, byte for byte ___________/

    hash = SHA-256(body)          prev_hash = hash of the line before, 64 zeros in the first

Anyone can check a line, without a key:
`sed 's/,"hash":"[0-9a-f]*"}$//' | tr -d '\\n' | sha256sum`.

A chain shows what happened inside it; where it ends it cannot show. That is the anchor's part: `<file>.head`, one line
of fixed length, holds the last sequence and hash under a MAC, and is written over with every append.

Pure: bytes in, values out. Files are the writer's and the verifier's.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import orjson

from sidecar.audit.digest import KEY_ID_CHARS, AuditKey, frame

GENESIS = "0" * 64
MAX_LINE_BYTES = 2 * 1024 * 1024  # what `record` bounds stays below (usually at 2 kB); a longer line is no record
HEAD_SUFFIX = ".head"
_SEAL = b',"hash":"'
_SEALED = re.compile(rb',"hash":"([0-9a-f]{64})"\}\Z')
_SEAL_BYTES = len(_SEAL) + 64 + len(b'"}')
_HEAD = re.compile(rb"sidecar-audit-head 1 (\d{20}) ([0-9a-f]{64}) ([0-9a-f]{%d}) ([0-9a-f]{64})\n\Z" % KEY_ID_CHARS)
HEAD_BYTES = len("sidecar-audit-head 1 ") + 20 + 1 + 64 + 1 + KEY_ID_CHARS + 1 + 64 + 1


@dataclass(frozen=True, slots=True)
class Sealed:
    """One line as read: what it says of itself, and whether its seal fits its bytes. `fields` are all its members."""

    seq: int
    prev_hash: str
    hash: str
    intact: bool
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Head:
    """Where the chain ended, as the anchor says it."""

    seq: int
    hash: str
    key_id: str
    mac: str

    def made_with(self, key: AuditKey) -> bool:
        """Whether this very key wrote it."""
        return self.key_id == key.id and hmac.compare_digest(self.mac, _mac(key, self.seq, self.hash))


def seal(record: Mapping[str, Any]) -> tuple[bytes, str]:
    """A record that ends in `prev_hash` as one line with its newline, and the line's hash."""
    body = ascii_json(record)[:-1]
    digest = sha256(body).hexdigest()
    return b'%b,"hash":"%b"}\n' % (body, digest.encode()), digest


def unseal(line: bytes) -> Sealed | None:
    """A line without its newline; None if it is no record at all."""
    match = _SEALED.search(line, max(0, len(line) - _SEAL_BYTES))
    if match is None:
        return None
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    seq, prev_hash = fields.get("seq"), fields.get("prev_hash")
    if type(seq) is not int or not isinstance(prev_hash, str):
        return None
    digest = match[1].decode()
    return Sealed(seq, prev_hash, digest, sha256(line[: match.start()]).hexdigest() == digest, fields)


def head_line(key: AuditKey, seq: int, digest: str) -> bytes:
    """The anchor's whole file: HEAD_BYTES bytes, so that one write replaces it."""
    return b"sidecar-audit-head 1 %020d %b %b %b\n" % (
        seq,
        digest.encode(),
        key.id.encode(),
        _mac(key, seq, digest).encode(),
    )


def parse_head(raw: bytes) -> Head | None:
    """An anchor as read; None if it is none."""
    match = _HEAD.match(raw)
    if match is None:
        return None
    seq, digest, key_id, mac = match.groups()
    return Head(int(seq), digest.decode(), key_id.decode(), mac.decode())


def ascii_json(record: Mapping[str, Any]) -> bytes:
    """One line of JSON in ASCII without control characters: nothing a terminal or reader obeys (threats O1)."""
    line = orjson.dumps(record)
    return line if line.isascii() and b"\x7f" not in line else _NOT_PLAIN.sub(_escape, line.decode()).encode()


_NOT_PLAIN = re.compile("[\x7f-\U0010ffff]")


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def _mac(key: AuditKey, seq: int, digest: str) -> str:
    return key.anchor(frame(b"%d" % seq) + frame(digest.encode()))
