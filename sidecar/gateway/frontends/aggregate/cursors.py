"""Seals the cursors of merged lists.

A cursor of ours holds those of the servers that have more, and the caller keeps it: nothing is remembered here. It is
sealed to the caller's chain and the list, because a server's cursor goes back to it unread. The key is the process's
own: after a restart, and at another replica, a client starts the list anew.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

import orjson

from sidecar.protocols import base64url
from sidecar.protocols.jsonrpc import INVALID_PARAMS, malformed

MAX_CURSOR_CHARS: Final = 4096  # of one server's own; a longer one is no answer
_MAC_BYTES: Final = 16

Cursors = Mapping[str, str]
"""Where each server that has more goes on, by name."""


class Seal:
    """Writes and reads cursors."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, binding: str, method: str, cursors: Cursors) -> str:
        """A cursor that only this chain can use, and only for this list."""
        body = orjson.dumps(dict(cursors))
        return base64url.encode(self._mac(binding, method, body) + body)

    def open(self, binding: str, method: str, cursor: str) -> Cursors:
        """What was sealed. Raises Refusal(MALFORMED_CALL) for a cursor of anybody else's, or of another list."""
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
