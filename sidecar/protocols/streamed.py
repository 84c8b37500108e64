"""Reads the messages of an upstream's event stream.

An awaited answer that is not valid JSON-RPC is refused. Any other message that is not valid is dropped, and so is an
answer that no request awaits. Data that is not JSON is refused, because it may have been the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

from sidecar.errors import Refusal
from sidecar.protocols import jsonrpc
from sidecar.protocols.jsonrpc import Id, Message, Response

Dropped = Callable[[str], None]
"""Called with the reason why a message was dropped."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """Reads the messages of one stream. `expected` are the ids that may be answered on it; `own` is the id of the
    request that opened it, None for a stream that no request opened."""

    expected: Container[Id]
    own: Id | None
    dropped: Dropped

    def read(self, raw: bytes) -> Message | None:
        """One message; None for one that is dropped, with the reason passed to `dropped`. Raises
        Refusal(MALFORMED_CALL) for bytes that are not JSON or are beyond the bounds of an answer, and for an awaited
        answer that is not valid."""
        value = jsonrpc.parse_answer(raw)
        try:
            message = addressed(jsonrpc.message_from(value), self.own)
        except Refusal as refusal:
            if self._may_answer(value):
                raise
            self.dropped(refusal.detail)
            return None
        if isinstance(message, Response) and (message.id is None or message.id not in self.expected):
            self.dropped("it answers no request that waits on this stream")
            return None
        return message

    def _may_answer(self, value: Any) -> bool:
        """Whether a JSON value that is not a valid message may be the answer to a request that awaits one here."""
        if isinstance(value, list):
            return any(isinstance(one, dict) and self._may_answer(one) for one in value)
        if not isinstance(value, dict) or "method" in value:
            return False
        given = value.get("id")
        if given is None:
            return self.own is not None and "error" in value
        return type(given) in (int, str) and given in self.expected


def addressed(message: Message, own: Id | None) -> Message:
    """The message. An error without an id gets the id of the `own` request, the only one that it can answer."""
    if isinstance(message, Response) and message.id is None and message.error is not None and own is not None:
        return message._replace(id=own)
    return message
