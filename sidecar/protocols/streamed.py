"""Reads the messages of an upstream's event stream.

The awaited answer is parsed strictly. Another message that is not valid JSON-RPC is dropped, and so is an answer that
no request awaits. Data that is not JSON is refused, because it may have been the answer.
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
    """Reads one stream. `expected` are the ids that may be answered on it, `own` that of the request it answers."""

    expected: Container[Id]
    own: Id | None
    dropped: Dropped

    def read(self, raw: bytes) -> Message | None:
        """One message; None for one that is dropped. Raises Refusal(MALFORMED_CALL)."""
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
        """Whether a JSON value that is not a valid message was intended as an awaited answer."""
        if isinstance(value, list):
            return any(isinstance(one, dict) and self._may_answer(one) for one in value)
        if not isinstance(value, dict) or "method" in value:
            return False
        given = value.get("id")
        if given is None:
            return self.own is not None and "error" in value
        return type(given) in (int, str) and given in self.expected


def addressed(message: Message, own: Id | None) -> Message:
    """The message; an error without an id is the answer to the `own` request, the only possible one."""
    if isinstance(message, Response) and message.id is None and message.error is not None and own is not None:
        return message._replace(id=own)
    return message
