"""Which messages of a stream are read, dropped, or refused?"""

import json
from typing import Any

import pytest

from sidecar.errors import Refusal
from sidecar.protocols.jsonrpc import Id, Notification, Request, Response
from sidecar.protocols.sse import SseParser
from sidecar.protocols.streamed import Streamed

NOTE = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info"}}
DONE = {"jsonrpc": "2.0", "id": 1, "result": {}}
NO = {"code": -32000, "message": "no"}


def read(value: Any, own: Id | None = 1, expected: tuple[Id, ...] = (1,)) -> Any:
    """What becomes of one message: itself, `dropped`, or `refused`."""
    dropped: list[str] = []
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    try:
        message = Streamed(expected, own, dropped.append).read(raw)
    except Refusal:
        return "refused"
    assert (message is None) == bool(dropped)
    return "dropped" if message is None else message


@pytest.mark.parametrize(
    ("value", "becomes"),
    [
        (NOTE, Notification("notifications/message", {"level": "info"})),
        ({**NOTE, "params": None}, Notification("notifications/message", {})),
        ({**NOTE, "id": 5, "params": None}, Request(5, "notifications/message", {})),
        (DONE, Response(1, {})),
        ({**DONE, "error": None}, Response(1, {})),
        ({"jsonrpc": "2.0", "id": 1, "result": None, "error": NO}, Response(1, error=NO)),
        ({"jsonrpc": "2.0", "id": None, "error": NO}, Response(1, error=NO)),
        ({"jsonrpc": "2.0", "error": NO}, Response(1, error=NO)),
        *(({**NOTE, **more}, "dropped") for more in ({"extra": 1}, {"params": [1]}, {"jsonrpc": "1.0"}, {"id": []})),
        *(({**DONE, "id": other}, "dropped") for other in (2, "1", True, [1])),
        ({"jsonrpc": "2.0", "id": 2, "error": NO}, "dropped"),
        *((value, "dropped") for value in ([NOTE], [], "text", None)),
        ([DONE], "refused"),
        ({**DONE, "extra": 1}, "refused"),
        ({**DONE, "error": NO}, "refused"),
        ({"jsonrpc": "2.0", "id": 1}, "refused"),
        ({"jsonrpc": "2.0", "id": 1, "error": "no"}, "refused"),
        ({"jsonrpc": "2.0", "id": None, "error": "no"}, "refused"),
        (b"{", "refused"),
        (b"2026-11-29", "refused"),
    ],
)
def test_on_the_stream_of_an_answer(value: Any, becomes: Any) -> None:
    assert read(value) == becomes


def test_on_a_stream_that_answers_none_an_error_to_nobody_is_dropped() -> None:
    assert read({"jsonrpc": "2.0", "id": None, "error": NO}, own=None) == "dropped"
    assert read({"jsonrpc": "2.0", "id": 2, "error": NO}, own=None, expected=(2, 3)) == Response(2, error=NO)


@pytest.mark.parametrize("named", ["", "message", "ping", "heartbeat", "error", "Message"])
def test_only_an_event_of_type_message_or_of_none_bears_one(named: str) -> None:
    (event,) = SseParser().feed(f"event: {named}\ndata: x\nid: 7\n\n".encode())
    assert (event.message, event.id) == ("x" if named in ("", "message") else "", "7")
