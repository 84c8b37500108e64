"""Seals values that a caller stores and returns: `requestState`, and the cursors of merged lists.

A stateless server should bind its state to a user, but sees only the sidecar (MCP 2026-07-28). So the state is sealed
here to the chain, the server, the method and the object called, and opened before a call is forwarded. It is valid for
LASTS_S. The sealed state includes the approval that the call used, so its next round needs no other one. A call that
waits for an approval receives a state without a server's.

The cursor of a merged list holds the cursors of all servers with more entries. It is sealed to the chain and the list,
because a server's cursor is returned to the server unread.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sidecar.protocols import base64url
from sidecar.protocols.jsonrpc import INVALID_PARAMS, malformed
from sidecar.vocabulary import Call, Caller

LASTS_S: Final = 24 * 3600  # a person may answer the next day
MAX_STATE_BYTES: Final = 64 * 1024  # of a server's state; a longer one is refused
PURPOSE: Final = b"sidecar/state/1"
_MAC_BYTES, _TIME_BYTES = 32, 8
_NO_STATE = b"\xff"  # in place of a server's state, which is UTF-8


@dataclass(frozen=True, slots=True)
class Seal:
    """Seals bytes under a context, such as a chain and a method, with HMAC-SHA-256. Their holder can read them, but can
    neither change them nor use them under another context."""

    key: bytes = field(repr=False)

    def seal(self, said: bytes, *about: str) -> str:
        """Returns a text that can be opened with the same `about` only."""
        return base64url.encode(self._mac(said, about) + said)

    def open(self, sealed: object, *about: str) -> bytes | None:
        """Returns the sealed bytes; None for a value that was not sealed with this key for this `about`."""
        try:
            raw = base64url.decode(sealed) if isinstance(sealed, str) else b""
        except ValueError:
            return None
        mac, said = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        return said if hmac.compare_digest(mac, self._mac(said, about)) else None

    def _mac(self, said: bytes, about: tuple[str, ...]) -> bytes:
        parts = (PURPOSE, *(text.encode() for text in about), said)
        message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(self.key, message, hashlib.sha256)


class RequestState(NamedTuple):
    """A server's state, None if the call has not reached it, and the approval that the call waits for or used."""

    state: str | None
    approval: str = ""


@dataclass(frozen=True, slots=True)
class RequestStates:
    """Seals and opens `requestState`. Replicas share the key. `now_s` is in seconds since the epoch."""

    sealed: Seal
    now_s: Callable[[], float]

    def seal(self, caller: Caller, call: Call, state: str | None, approval: str = "") -> str:
        """Returns the state that the caller receives for its next round of this call."""
        ends = int(self.now_s() + LASTS_S).to_bytes(_TIME_BYTES, "big")
        said = approval.encode() + b"\0" + (_NO_STATE if state is None else state.encode())
        return self.sealed.seal(ends + said, *_about(caller, call))

    def open(self, caller: Caller, call: Call, sealed: object) -> RequestState:
        """Opens a state. Raises Refusal(MALFORMED_CALL), the same for an expired state and for every value that was not
        sealed for this call."""
        said = self.sealed.open(sealed, *_about(caller, call))
        if said is None or int.from_bytes(said[:_TIME_BYTES], "big") < self.now_s():
            raise malformed("params.requestState is not one that this call was given", INVALID_PARAMS)
        approval, _, state = said[_TIME_BYTES:].partition(b"\0")
        return RequestState(None if state == _NO_STATE else state.decode(), approval.decode())


def _about(caller: Caller, call: Call) -> tuple[str, ...]:
    return caller.binding, call.upstream, call.method, call.question.object
