"""Formats the operator's log as JSON lines or as text, and writes request lines from a separate thread.

Fields may come from callers: characters that would end a line or control a terminal are escaped.
"""

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from queue import SimpleQueue
from typing import Final, Literal

import orjson

from sidecar.errors import visible_lines
from sidecar.protocols.hidden_characters import revealed

LogFormat = Literal["json", "text"]
MAX_WAITING: Final = 10_000  # lines of requests, about 1 KB each
TOGETHER_S: Final = 0.05  # for which the thread waits once the queue is empty
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
_INDENT: Final = "\n    "

log = logging.getLogger("sidecar.log")
REQUESTS: Final = logging.getLogger("sidecar.request")


def begin_logging(format_: LogFormat, worker: str = "") -> None:
    """Writes the log of this process to standard error, including warnings and uncaught exceptions of threads. Each
    line has the field `worker`, the worker's number, unless it is ""."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if format_ == "json" else TextLines())
    if worker:
        handler.addFilter(partial(_mark, worker))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    threading.excepthook = _thread_failed
    sys.unraisablehook = _unraisable


def _mark(worker: str, record: logging.LogRecord) -> bool:
    record.worker = worker
    return True


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_value is not None:
        log.error("an exception ended a thread", exc_info=failed.exc_value)


def _unraisable(failed: "sys.UnraisableHookArgs") -> None:
    log.error("an exception could not be raised", exc_info=failed.exc_value, extra={"at": repr(failed.object)})


class JsonLines(logging.Formatter):
    """Formats one JSON object per line: time, level, logger, event, and the fields of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _json(line)


class TextLines(logging.Formatter):
    """Formats a record for people: time, level, event, and the fields that are not None. Further lines of an event and
    of an exception are indented."""

    def format(self, record: logging.LogRecord) -> str:
        event = visible_lines(record.getMessage())
        fields = "".join(f"  {name}={_word(value)}" for name, value in _fields(record).items() if value is not None)
        lines = [f"{_time(record)} {record.levelname.lower():<7} {event}{fields}"]
        if record.exc_info:
            lines.append(visible_lines(self.formatException(record.exc_info)))
        return "\n".join(lines).replace("\n", _INDENT)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _OWN}


def _word(value: object) -> str:
    """The value as JSON; a string of printable ASCII without blanks, quotes and `=` is written without quotes."""
    if isinstance(value, str) and value.isascii() and value.isprintable() and value and not set(value) & {*' "='}:
        return value
    return _json(value)


def _json(value: object) -> str:
    try:
        return revealed(orjson.dumps(value, default=str).decode())
    except TypeError:  # a text with a lone surrogate
        return json.dumps(value, default=str)


class RequestLines:
    """Writes one line for each request, from a separate thread, so that no request waits if standard error is not read.
    Lines are written together, because waking the thread costs more than a line. Beyond MAX_WAITING they are dropped
    and counted. `write` is called in that thread."""

    def __init__(self, write: Callable[[logging.LogRecord], object] = REQUESTS.handle) -> None:
        self._write = write
        self._waiting: SimpleQueue[tuple[float, Mapping[str, object]] | None] = SimpleQueue()
        self._dropped, self._closing = 0, threading.Event()
        self._thread = threading.Thread(target=self._run, name="lines of requests", daemon=True)
        self._thread.start()

    def put(self, fields: Mapping[str, object]) -> None:
        """Queues a line with these fields, or drops it if MAX_WAITING lines wait. Never blocks."""
        if self._waiting.qsize() < MAX_WAITING:
            self._waiting.put((time.time(), fields))
        else:
            self._dropped += 1

    def close(self, within_s: float) -> None:
        """Writes the waiting lines and ends the thread. Blocks for at most `within_s` seconds."""
        self._closing.set()
        self._waiting.put(None)
        self._thread.join(within_s)

    def _run(self) -> None:
        while (told := self._waiting.get()) is not None:
            self._write(_line(*told))
            if self._waiting.empty():
                self._closing.wait(TOGETHER_S)
            if self._dropped:
                count, self._dropped = self._dropped, 0
                log.warning("lines of requests were dropped: standard error is read too slowly", extra={"count": count})


def _line(at: float, fields: Mapping[str, object]) -> logging.LogRecord:
    line = logging.LogRecord(REQUESTS.name, logging.INFO, "", 0, "request", None, None)
    vars(line).update(fields, created=at)
    return line
