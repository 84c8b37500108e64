"""Seals `requestState` to its chain, server, method and name.

A stateless server gives its state to whoever called and takes it back from whoever calls next (MCP 2026-07-28, multi
round-trip requests). It should bind it to a user, but all that it sees is us. So we bind it: what a caller gets is
sealed to its chain, the server, the method and what was called, and is opened again before anything goes out.
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

LASTS_S: Final = 24 * 3600  # a person may answer tomorrow
MAX_STATE_BYTES: Final = 64 * 1024  # of a server's own; a longer one is no state
PURPOSE: Final = b"sidecar/state/1"
_MAC_BYTES, _TIME_BYTES = 32, 8


@dataclass(frozen=True, slots=True)
class RequestStates:
    """Seals and opens states. Replicas that share the `secret` take each other's. `now_s` is since the epoch."""

    secret: bytes = field(repr=False)
    now_s: Callable[[], float]

    def seal(self, caller: Caller, call: Call, state: str) -> str:
        """A state that only this chain can use, for this very call."""
        ends = int(self.now_s() + LASTS_S).to_bytes(_TIME_BYTES, "big")
        said = ends + state.encode()
        return base64url.encode(self._mac(caller, call, said) + said)

    def open(self, caller: Caller, call: Call, sealed: object) -> str:
        """What was sealed. Raises Refusal(MALFORMED_CALL): another's, of another call, altered, too old and invented
        are the same."""
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
    """Of no use to this caller, for this call."""
    return malformed("params.requestState is not one that this call was given", INVALID_PARAMS)
