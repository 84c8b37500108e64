"""Where does one server-sent event end and the next begin?

An incremental reader of `text/event-stream` (WHATWG HTML, 9.2.6) that hands over whole events, and a writer. Every
event is delivered, those without data too: MCP 2025-11-25 primes streams with an id and empty data, and announces
polling by `retry` alone. Lines and events are bounded, because what arrives is the upstream's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sidecar.errors import Reason, Refusal

MAX_LINE_BYTES = 10 * 1024 * 1024  # one line carries one message, so it may be as large as a whole answer
MAX_RETRY_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event. `data` is None where no data line came; `comment` marks a keep-alive line, which has nothing else."""

    data: str | None = None
    id: str | None = None
    event: str = ""
    retry_ms: int | None = None
    comment: bool = False


COMMENT = SseEvent(comment=True)


@dataclass(slots=True)
class SseParser:
    """Feed it chunks as they come; it returns the events that each chunk completed."""

    max_event_bytes: int = MAX_LINE_BYTES
    _buffer: bytearray = field(default_factory=bytearray)
    _scanned: int = 0
    _fields: list[tuple[str, str]] = field(default_factory=list)
    _event_bytes: int = 0
    _started: bool = False

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Raises Refusal(RESPONSE_REFUSED) for an event beyond the bound or bytes that are not UTF-8."""
        self._buffer += chunk
        events: list[SseEvent] = []
        while (line := self._next_line()) is not None:
            self._take(line, events)
        if len(self._buffer) + self._event_bytes > self.max_event_bytes:
            raise Refusal(Reason.RESPONSE_REFUSED, "the upstream sent an event beyond the size bound")
        return events

    def _next_line(self) -> str | None:
        buffer = self._buffer
        newline, carriage = buffer.find(b"\n", self._scanned), buffer.find(b"\r", self._scanned)
        end = min(position for position in (newline, carriage, len(buffer)) if position >= 0)
        if end == len(buffer) or (buffer[end] == 0x0D and end + 1 == len(buffer)):
            # No end yet; and a CR at the very end may be the first half of a CRLF.
            self._scanned = end
            return None
        step = 2 if buffer[end : end + 2] == b"\r\n" else 1
        raw = bytes(buffer[:end])
        del buffer[: end + step]
        self._scanned = 0
        if not self._started:
            self._started, raw = True, raw.removeprefix(b"\xef\xbb\xbf")
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise Refusal(Reason.RESPONSE_REFUSED, "the upstream's stream is not UTF-8") from None

    def _take(self, line: str, events: list[SseEvent]) -> None:
        if line == "":
            if self._fields:
                events.append(_event_from(self._fields))
            self._fields, self._event_bytes = [], 0
        elif line.startswith(":"):
            events.append(COMMENT)
        else:
            name, _, value = line.partition(":")
            self._fields.append((name, value.removeprefix(" ")))
            self._event_bytes += len(line)


def encode_event(data: bytes, *, id: str | None = None) -> bytes:
    """One message as an event. `data` holds no line break: it is JSON of our own writing."""
    head = b"" if id is None else b"id: " + id.encode() + b"\n"
    return head + b"event: message\ndata: " + data + b"\n\n"


def encode_hint(*, id: str | None, retry_ms: int | None, data: bool) -> bytes:
    """An event that carries no message: a resumption point, a polling interval, or both."""
    lines = []
    if id is not None:
        lines.append(f"id: {id}")
    if retry_ms is not None:
        lines.append(f"retry: {retry_ms}")
    if data:
        lines.append("data: ")
    return ("\n".join(lines) + "\n\n").encode()


KEEP_ALIVE = b": keep-alive\n\n"


def _event_from(fields: list[tuple[str, str]]) -> SseEvent:
    data: list[str] = []
    event, identity, retry = "", None, None
    for name, value in fields:
        if name == "data":
            data.append(value)
        elif name == "event":
            event = value
        elif name == "id" and "\0" not in value:
            identity = value
        elif name == "retry" and value.isascii() and value.isdigit() and len(value) <= 9:
            retry = min(int(value), MAX_RETRY_MS)
    return SseEvent("\n".join(data) if data else None, identity, event, retry)
