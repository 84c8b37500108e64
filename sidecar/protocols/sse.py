"""Parses and writes server-sent events.

The incremental parser of `text/event-stream` (WHATWG HTML, 9.2.6) returns whole events, including those without data:
MCP 2025-11-25 begins a stream with an event that has an id and empty data, and announces polling by an event with
`retry` alone. Lines and events are bounded, because the input comes from an upstream.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sidecar.errors import Reason, Refusal

MAX_LINE_BYTES = 10 * 1024 * 1024  # one line carries one message, so it may be as large as a whole answer
MAX_RETRY_MS = 3_600_000
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event. `data` is None without a data line, `id` and `retry_ms` are None if they are not given; `comment`
    stands for a comment line, such as a keep-alive, whose text is dropped."""

    data: str | None = None
    id: str | None = None
    event: str = ""
    retry_ms: int | None = None
    comment: bool = False

    @property
    def message(self) -> str:
        """The data of an event whose type is `message` or not given; "" for any other event, such as a `ping` or
        `heartbeat` with data, which is not a message."""
        return self.data or "" if self.event in ("", "message") else ""


COMMENT = SseEvent(comment=True)
_NOTHING = SseEvent()


@dataclass(slots=True)
class SseParser:
    """Parses a stream in chunks, which may be split anywhere. `max_event_bytes` bounds each line, and the values of one
    event together. Each comment line becomes `COMMENT`; unknown fields are dropped."""

    max_event_bytes: int = MAX_LINE_BYTES
    _rest: bytearray = field(default_factory=bytearray)  # of an incomplete line
    _after_return: bool = False  # the last chunk ended in CR, so an LF at the beginning of the next one belongs to it
    _begun: bool = False
    _event_bytes: int = 0
    _data: bytearray | None = None
    _id: str | None = None
    _event: str = ""
    _retry_ms: int | None = None

    @property
    def held_bytes(self) -> int:
        """The number of bytes that are held of the incomplete event and its incomplete line."""
        return self._event_bytes + len(self._rest)

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Returns the events that this chunk completes. Raises Refusal(RESPONSE_REFUSED) for a line or an event beyond
        the bound, and for a field that is not UTF-8."""
        if not chunk:
            return []
        if self._after_return:
            chunk = chunk.removeprefix(b"\n")
        self._after_return = chunk.endswith(b"\r")
        events: list[SseEvent] = []
        # Only the new chunk is searched for line ends: a line in a million pieces costs no more than one in one piece.
        for piece in chunk.splitlines(keepends=True):
            line = piece.rstrip(b"\r\n")
            ended = len(line) < len(piece)
            if self._rest or not ended:
                self._rest += line
                self._bound(len(self._rest))
                if not ended:
                    break  # the last one is incomplete
                line = bytes(self._rest)
                self._rest.clear()
            self._take(line, events)
        return events

    def _take(self, line: bytes, events: list[SseEvent]) -> None:
        self._bound(len(line))
        if not self._begun:
            self._begun, line = True, line.removeprefix(_BYTE_ORDER_MARK)
        if line == b"":
            self._finish(events)
        elif line.startswith(b":"):
            events.append(COMMENT)
        else:
            name, _, value = line.partition(b":")
            self._keep(name, value.removeprefix(b" "))

    def _keep(self, name: bytes, value: bytes) -> None:
        if name not in (b"data", b"event", b"id", b"retry"):
            return
        self._event_bytes += len(value) + 1
        self._bound(self._event_bytes)
        if name == b"data":
            self._append(value)
        elif name == b"event":
            self._event = _text(value)
        elif name == b"id" and b"\0" not in value:
            self._id = _text(value)
        elif name == b"retry" and value.isdigit() and len(value) <= 9:
            self._retry_ms = min(int(value), MAX_RETRY_MS)

    def _append(self, value: bytes) -> None:
        if self._data is None:
            self._data = bytearray()
        else:
            self._data += b"\n"
        self._data += value

    def _finish(self, events: list[SseEvent]) -> None:
        if not self._event_bytes:
            return
        data = None if self._data is None else _text(self._data)
        event = SseEvent(data, self._id, self._event, self._retry_ms)
        if event != _NOTHING:
            events.append(event)
        self._event_bytes, self._data, self._id, self._event, self._retry_ms = 0, None, None, "", None

    def _bound(self, size: int) -> None:
        if size > self.max_event_bytes:
            raise Refusal(Reason.RESPONSE_REFUSED, "the upstream sent an event beyond the size bound")


def _text(raw: bytes | bytearray) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise Refusal(Reason.RESPONSE_REFUSED, "the upstream's stream is not UTF-8") from None


def encode_event(data: bytes, *, id: str | None = None) -> bytes:
    """One message as an event. `data` must have no line break: it is JSON that the sidecar wrote."""
    head = b"" if id is None else b"id: " + id.encode() + b"\n"
    return head + b"event: message\ndata: " + data + b"\n\n"


def encode_endpoint(address: str) -> bytes:
    """The first event of an HTTP+SSE stream (MCP 2024-11-05). `address` is where the client POSTs, on one line."""
    return f"event: endpoint\ndata: {address}\n\n".encode()


def encode_hint(*, id: str | None, retry_ms: int | None, data: bool) -> bytes:
    """An event without a message: a resumption point (`id`), a polling interval, or both; with `data`, an empty data
    line."""
    lines = ("" if id is None else f"id: {id}\n", "" if retry_ms is None else f"retry: {retry_ms}\n")
    return ("".join(lines) + ("data: \n\n" if data else "\n")).encode()


KEEP_ALIVE = b": keep-alive\n\n"


def encode_farewell(why: str) -> bytes:
    """The end of a stream without a final message: a comment, which every reader skips. `why` must be one line."""
    return f": closed, {why}\n\n".encode()
