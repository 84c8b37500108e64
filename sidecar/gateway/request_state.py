"""Seals `requestState` to its chain, server, method and name.

A stateless server returns its state to one caller and takes it back from any later one (MCP 2026-07-28, multi
round-trip requests). The server should bind the state to a user, but sees only sidecar. So the state is bound here: it
is sealed to the chain, the server, the method and the name called, and opened again before a call is forwarded.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sidecar.errors import Refusal
from sidecar.protocols import base64url
from sidecar.protocols.jsonrpc import INVALID_PARAMS, malformed
from sidecar.vocabulary import Call, Caller

LASTS_S: Final = 24 * 3600  # a person may answer the next day
MAX_STATE_BYTES: Final = 64 * 1024  # of a server's state; a longer one is refused
PURPOSE: Final = b"sidecar/state/1"
_MAC_BYTES, _TIME_BYTES = 32, 8


@dataclass(frozen=True, slots=True)
class RequestStates:
    """Seals and opens states. Replicas that share the `secret` accept each other's. `now_s` is in seconds since the
    epoch."""

    secret: bytes = field(repr=False)
    now_s: Callable[[], float]

    def seal(self, caller: Caller, call: Call, state: str) -> str:
        """Returns a state that only this chain can use, and only for this call."""
        ends = int(self.now_s() + LASTS_S).to_bytes(_TIME_BYTES, "big")
        said = ends + state.encode()
        return base64url.encode(self._mac(caller, call, said) + said)

    def open(self, caller: Caller, call: Call, sealed: object) -> str:
        """Returns the server's state. Raises Refusal(MALFORMED_CALL), the same for states that are forged, altered,
        expired, or sealed for another caller or call."""
        try:
            raw = base64url.decode(sealed) if isinstance(sealed, str) else b""
        except ValueError:
            raw = b""
        mac, said = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        genuine = hmac.compare_digest(mac, self._mac(caller, call, said))
        if not genuine or int.from_bytes(said[:_TIME_BYTES], "big") < self.now_s():
            raise unknown()
        return said[_TIME_BYTES:].decode()

    def _mac(self, caller: Caller, call: Call, said: bytes) -> bytes:
        parts = (PURPOSE, caller.binding, call.upstream, call.method, call.question.object, said)
        message = bytearray()
        for part in parts:
            raw = part.encode() if isinstance(part, str) else part
            message += len(raw).to_bytes(4, "big") + raw
        return hmac.digest(self.secret, message, hashlib.sha256)


def unknown() -> Refusal:
    """Returns the refusal of a state that is invalid for this caller and call."""
    return malformed("params.requestState is not one that this call was given", INVALID_PARAMS)
