"""Seals the cursors of merged lists.

A merged cursor holds the cursors of all servers that have more entries, and the caller keeps it; no state is stored
here. It is sealed to the caller's chain and the list, because a server's cursor is returned to it unread. The key
belongs to the process: after a restart, and at another replica, a client begins the list again.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

import orjson

from sidecar.protocols import base64url
from sidecar.protocols.jsonrpc import INVALID_PARAMS, malformed

MAX_CURSOR_CHARS: Final = 4096  # of one server's cursor; an answer with a longer one is refused
_MAC_BYTES: Final = 16

Cursors = Mapping[str, str]
"""The next cursor of each server that has more entries, by name."""


class Seal:
    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, binding: str, method: str, cursors: Cursors) -> str:
        """Returns a cursor that only this chain can use, and only for this list."""
        body = orjson.dumps(dict(cursors))
        return base64url.encode(self._mac(binding, method, body) + body)

    def open(self, binding: str, method: str, cursor: str) -> Cursors:
        """Returns the cursors sealed. Raises Refusal(MALFORMED_CALL) for a cursor of another caller or another list."""
        try:
            raw = base64url.decode(cursor)
        except ValueError:
            raw = b""
        mac, body = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(binding, method, body)):
            raise malformed("params.cursor is not one of this list", INVALID_PARAMS)
        found: Cursors = orjson.loads(body)
        return found

    def _mac(self, binding: str, method: str, body: bytes) -> bytes:
        said = b"\0".join((binding.encode(), method.encode(), body))
        return hmac.digest(self._key, said, hashlib.sha256)[:_MAC_BYTES]
