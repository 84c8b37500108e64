"""Connects commands to a running sidecar: through the Unix socket in its data folder, which only the folder's owner can
open, or at its admin listener with the secret of a credential."""

import http.client
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from urllib.parse import quote

import orjson

from sidecar.cli.command import NO, USAGE, CommandFailed, print_json, settings_in
from sidecar.errors import Reason, Refusal
from sidecar.http.client.origin import TargetOrigin, parse_origin
from sidecar.protocols.hidden_characters import shown
from sidecar.protocols.sse import SseParser

# The longest wait for a connection, and for each part of a response:
LOOK_S = 3.0  # to a question
ORDER_S = 30.0  # to an order, which is written to disk, to the audit log and to a store that may be slow
SILENT_S = 60.0  # of a stream, which sends a keep-alive every few seconds
MAX_ANSWER_BYTES = 32 * 2**20  # all principals that can be disabled, with their reasons
NOT_RUNNING = "is it running?"


class AdminListener(NamedTuple):
    """An admin listener, and the secret of one of its credentials."""

    origin: TargetOrigin
    secret: str


Place = Path | AdminListener
"""The address of a sidecar: its control socket, or its admin listener."""


def admin_listener(url: str, secret: str) -> AdminListener:
    """Raises ValueError for an invalid URL of a listener."""
    origin = parse_origin(url)
    if origin.path != "/":
        raise ValueError("write the scheme, the host and the port of the admin listener, and nothing more")
    return AdminListener(origin, secret)


def path_of(*parts: str) -> str:
    """The path of these parts, each percent-encoded."""
    return "/".join(["/api", *(quote(part, safe="") for part in parts)])


def ask_control(
    place: Place, target: str, *, verb: str = "GET", order: object = None, deadline_s: float = LOOK_S
) -> tuple[int, bytes]:
    """Returns the status and body of the response; `order` is sent as JSON. Raises OSError if there is no response."""
    with _asked(place, target, verb, order, deadline_s) as response:
        return response.status, response.read(MAX_ANSWER_BYTES)


def ask(
    config: Path,
    target: str,
    as_json: bool,
    order: object = None,
    *,
    verb: str = "",
    hint: str = NOT_RUNNING,
    hints: Mapping[str, str] = {},
) -> Any:
    """Returns the running sidecar's response, and prints it with `as_json`. `hints` are suggestions by refusal
    reason."""
    status, answer = exchange(settings_in(config).control_path, target, order, verb=verb, hint=hint)
    if as_json:
        print_json(answer)
    if status >= 300:
        refused(status, answer, quiet=as_json, hints=hints)
    return answer


def exchange(
    place: Place, target: str, order: object = None, *, verb: str = "", hint: str = NOT_RUNNING
) -> tuple[int, Any]:
    """Returns the status and the parsed body of the response. Ends the command if there is none."""
    deadline_s = LOOK_S if order is None and not verb else ORDER_S
    verb = verb or ("GET" if order is None else "POST")
    with reaching(hint):
        status, body = ask_control(place, target, verb=verb, order=order, deadline_s=deadline_s)
        return status, answer_in(status, body)


def answer_in(status: int, body: bytes) -> Any:
    """Parses a response body; an error that is not the API's becomes a message. Raises OSError if it is not JSON."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        answer = None
    if status >= 300 and not (isinstance(answer, dict) and "error" in answer):
        return {"error": f"the sidecar answered HTTP {status}, without a reason"}
    if answer is None:
        raise OSError("the answer is not JSON")
    return answer


def refused(status: int, answer: Mapping[str, Any], *, quiet: bool = False, hints: Mapping[str, str] = {}) -> NoReturn:
    is_usage = status == 400 and answer.get("reason") != Reason.BAD_ARGUMENTS
    code = USAGE if is_usage else NO
    if quiet:
        raise SystemExit(code)
    raise CommandFailed(shown(answer["error"]), code, hint=hints.get(answer.get("reason", ""), ""))


@contextmanager
def reaching(hint: str = NOT_RUNNING) -> Iterator[None]:
    """Ends the command with a message if there is no response."""
    try:
        yield
    except OSError as error:
        raise CommandFailed(f"no sidecar answers here: {error.strerror or error}", hint=hint)


def events(control: Path, target: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields a stream's events, with their names, as they arrive. Raises OSError if the sidecar does not respond, or
    the connection breaks; ends the command if the sidecar refuses."""
    with _asked(control, target, "GET", None, SILENT_S) as response:
        if response.status != 200:
            refused(response.status, answer_in(response.status, response.read(MAX_ANSWER_BYTES)))
        parser = SseParser()
        try:
            while chunk := response.read1(64 * 1024):
                for event in parser.feed(chunk):
                    if event.data is not None:
                        yield event.event, orjson.loads(event.data)
        except (OSError, ValueError, http.client.HTTPException, Refusal):
            raise OSError("the stream broke off") from None


@contextmanager
def _asked(
    place: Place, target: str, verb: str, order: object, deadline_s: float
) -> Iterator[http.client.HTTPResponse]:
    connection = _connection(place, deadline_s)
    headers = {"Authorization": f"Bearer {place.secret}"} if isinstance(place, AdminListener) else {}
    try:
        with suppress(BrokenPipeError, ConnectionResetError):  # a server that stops reading still sends its reason
            connection.request(verb, target, None if order is None else orjson.dumps(order), headers)
        yield connection.getresponse()
    except http.client.HTTPException as error:  # the response was truncated, or did not come from a sidecar
        raise OSError(f"no whole answer: {type(error).__name__}") from None
    finally:
        connection.close()


def _connection(place: Place, deadline_s: float) -> http.client.HTTPConnection:
    """Connects to the control socket; a connection to an admin listener is made with its first request."""
    if isinstance(place, AdminListener):
        origin = place.origin
        if origin.secure:
            tls = ssl.create_default_context()
            return http.client.HTTPSConnection(origin.host, origin.port, timeout=deadline_s, context=tls)
        return http.client.HTTPConnection(origin.host, origin.port, timeout=deadline_s)
    connection = http.client.HTTPConnection("localhost", timeout=deadline_s)
    line = connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.settimeout(deadline_s)
        line.connect(str(place))
    except OSError:
        line.close()
        raise
    return connection
