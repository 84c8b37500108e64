"""Connects commands to the running sidecar, through the Unix socket in its data folder, which only its owner can
open.
"""

from __future__ import annotations

import http.client
import os
import queue
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import click
import orjson

from sidecar.errors import ConfigError, Reason, Refusal
from sidecar.protocols.hidden_characters import revealed, shown
from sidecar.protocols.sse import SseParser

NO, USAGE, INVALID = 1, 2, 3
NO_HINTS: Mapping[str, str] = {}
DEADLINE_S = 3.0
SILENT_S = 60.0  # for a stream, which sends a keep-alive every few seconds
TICK_S = 0.5
MAX_ANSWER_BYTES = 32 * 2**20  # all principals that can be disabled, with their reasons


def control_socket(config: Path) -> Path:
    """Return the socket's path. Raises ConfigError if the configuration cannot be read."""
    from sidecar.settings import load_settings

    return load_settings(config, os.environ, check_files=False).control_path


def ask_control(
    control: Path, target: str, *, verb: str = "GET", order: object = None, deadline_s: float = DEADLINE_S
) -> tuple[int, bytes]:
    """Return the status and body of the response; `order` is sent as JSON. Raises OSError if there is no response."""
    with _asked(control, target, verb, order, deadline_s) as (response, _):
        return response.status, response.read(MAX_ANSWER_BYTES)


def told(
    path: Path,
    target: str,
    as_json: bool,
    order: object = None,
    *,
    hint: str = "is it running?",
    hints: Mapping[str, str] = NO_HINTS,
    deadline_s: float = DEADLINE_S,
    verb: str = "",
) -> Any:
    """Return the running sidecar's response; with `as_json`, print it. Ends the command if the sidecar refuses; `hints`
    are suggestions by refusal reason.
    """
    verb = verb or ("GET" if order is None else "POST")
    with ended_well(hint):
        status, body = ask_control(control_socket(path), target, verb=verb, order=order, deadline_s=deadline_s)
        answer = answer_in(status, body)
    if as_json:
        print_json(answer)
    if status >= 300:
        refused(status, answer, quiet=as_json, hints=hints)
    return answer


def answer_in(status: int, body: bytes) -> Any:
    """Parse a response body. A body that is not from the sidecar's API, such as an HTTP error, becomes a message.
    Raises OSError for one that cannot be parsed.
    """
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        answer = None
    if status >= 300 and not (isinstance(answer, dict) and "error" in answer):
        return {"error": f"the sidecar answered HTTP {status}, without a reason"}
    if answer is None:
        raise OSError("the answer is not JSON")
    return answer


def print_json(value: object) -> None:
    """Print the response as JSON, with terminal control characters as equivalent JSON escapes."""
    click.echo(revealed(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()))


def refused(
    status: int, answer: Mapping[str, Any], *, quiet: bool = False, hints: Mapping[str, str] = NO_HINTS
) -> NoReturn:
    """Print the refusal and end the command. `hints` as in `told`."""
    if not quiet:
        click.echo(shown(answer["error"]), err=True)
        if hint := hints.get(answer.get("reason", "")):
            click.echo(f"   hint: {hint}", err=True)
    is_understood = answer.get("reason") == Reason.BAD_ARGUMENTS
    raise SystemExit(USAGE if status == 400 and not is_understood else NO)


@contextmanager
def ended_well(hint: str = "is it running?") -> Iterator[None]:
    """End the command with a message if there is no configuration or no response."""
    try:
        yield
    except ConfigError as error:
        click.echo("\n".join(str(fault) for fault in error.faults), err=True)
        raise SystemExit(INVALID) from None
    except OSError as error:
        click.echo(f"no sidecar answers here: {error.strerror or error}", err=True)
        click.echo(f"   hint: {hint}", err=True)
        raise SystemExit(NO) from None


class SocketEvent(NamedTuple):
    """One event of a stream."""

    name: str
    data: Mapping[str, Any]


def events(control: Path, target: str) -> Iterator[SocketEvent | None]:
    """Yield the events of a stream as they arrive, and None twice a second in between. Ends with the stream. Raises
    SidecarUnreachable if the sidecar does not respond or the connection breaks; ends the command if the sidecar
    refuses.

    A thread reads, so that the caller can be interrupted and has a clock. A run's output is bounded by its definition,
    so the queue is bounded too.
    """
    read: _Read = queue.SimpleQueue()
    with _unheard(), _asked(control, target, "GET", None, SILENT_S) as (response, line):
        if response.status != 200:
            refused(response.status, answer_in(response.status, response.read(MAX_ANSWER_BYTES)))
        reader = threading.Thread(target=_read, args=(response, read), name="reads events", daemon=True)
        reader.start()
        try:
            yield from _taken(read)
        finally:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            reader.join(TICK_S)


class SidecarUnreachable(Exception):
    """The sidecar does not respond, or the connection broke."""


@contextmanager
def _unheard() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SidecarUnreachable(error.strerror or str(error)) from None


_Read = queue.SimpleQueue[SocketEvent | SidecarUnreachable | None]


def _taken(read: _Read) -> Iterator[SocketEvent | None]:
    while True:
        try:
            event = read.get(timeout=TICK_S)
        except queue.Empty:
            yield None
            continue
        if event is None:
            return
        if isinstance(event, SidecarUnreachable):
            raise event
        yield event


def _read(response: http.client.HTTPResponse, into: _Read) -> None:
    parser = SseParser()
    try:
        while chunk := response.read1(64 * 1024):
            for event in parser.feed(chunk):
                if event.data is not None:
                    into.put(SocketEvent(event.event, orjson.loads(event.data)))
        into.put(None)
    except (OSError, ValueError, http.client.HTTPException, Refusal):
        into.put(SidecarUnreachable("the stream broke off"))


@contextmanager
def _asked(
    control: Path, target: str, verb: str, order: object, deadline_s: float
) -> Iterator[tuple[http.client.HTTPResponse, socket.socket]]:
    connection = http.client.HTTPConnection("localhost", timeout=deadline_s)
    line = connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.settimeout(deadline_s)
        line.connect(str(control))
        with suppress(BrokenPipeError, ConnectionResetError):  # a server that stops reading still sends its reason
            connection.request(verb, target, None if order is None else orjson.dumps(order))
        yield connection.getresponse(), line
    except http.client.HTTPException as error:  # the response was truncated, or did not come from a sidecar
        raise OSError(f"no whole answer: {type(error).__name__}") from None
    finally:
        connection.close()
