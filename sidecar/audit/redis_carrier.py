"""Appends audit lines to a Redis stream exactly once.

One script appends the lines and stores the chain's new end next to the stream, both or neither. It first checks the
chain's current end, so an append whose reply was lost can be repeated: existing lines are not added twice, and a
command that arrives late finds another end and does nothing.

    <stream>          one entry for each line: `XRANGE <stream> - +`, field `line`
    {<stream>}:head   `head`: the anchor, as next to a file (`chain.py`); `turn`: the current writer

A stream has one writer: a starting process takes over, and the previous writer can no longer write. A store that was
emptied or rolled back has lost confirmed lines. The chain continues after them, so that `verify` reports which lines
are missing, and the log reports when.
"""

import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, Connection as TcpConnection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.retry import Retry

from sidecar.audit.carrier import AppendLines, UnsureError, pauses
from sidecar.audit.chain import head_line, unseal
from sidecar.audit.digest import AuditKey
from sidecar.audit.file_sink import FoundEnd, read_anchor
from sidecar.errors import SettingsError, fault_in
from sidecar.settings.store import StoreSettings
from sidecar.storage.redis_script import script_text

log = logging.getLogger("sidecar.audit")

CONNECT_S: Final = 1.0
ANSWER_S: Final = 1.5  # below the writer's deadline, so that a lost reply is requested again within it
PAGE: Final = 200  # lines per read, about 400 KB
DONE, TAKEN, ELSEWHERE = b"done", b"taken", b"elsewhere"


class RedisCarrier:
    """One stream, and its writer. Connecting and replies have deadlines of their own; `over` ends all waits."""

    def __init__(
        self,
        connect: Callable[[], Any],
        stream: str,
        key: AuditKey,
        *,
        older: Sequence[AuditKey] = (),
        max_length: int | None = None,
        over: threading.Event | None = None,
    ) -> None:
        self._connect, self._key, self._older = connect, key, older
        self._keys = (stream, f"{stream}:head" if "{" in stream else f"{{{stream}}}:head")
        self._anew = False  # the stored end is not that of this chain: the next append is unconditional
        self._most = "" if max_length is None else str(max_length)
        self._over = over or threading.Event()
        self._connection: Any = None  # redis-py does not type its connections
        self._turn = ""

    def take(self) -> FoundEnd:
        """Becomes the writer, and inspects the state that the last run left. Raises SettingsError."""
        token = secrets.token_hex(8)
        try:
            turn, raw_head, line = self._ask("EVAL", script_text("audit_take"), 2, *self._keys, token)
            self._turn = f"{turn} {token}"
            found = _found(bytes(raw_head), bytes(line), self._key, self._older)
            if found.what:
                self._anew = True  # the anchor is replaced together with the record of the findings
            else:
                self._append(AppendLines((), found.end, found.end), anyway=True)  # also tests writing
        except (OSError, RedisError, TypeError, ValueError) as error:
            message = f"the audit stream cannot be written: {_why(error)}"
            raise SettingsError([fault_in("audit.redis", message, code="A120")]) from None
        return found

    def lines(self) -> Iterator[bytes]:
        """Every line in the stream. Raises OSError, RedisError."""
        after = b"-"
        while entries := self._ask("XRANGE", self._keys[0], after, "+", "COUNT", PAGE):
            for _, (_, line, *_) in entries:
                yield bytes(line)
            after = b"(" + entries[-1][0]

    def head(self) -> bytes:
        """The anchor's line without its newline; empty if there is none. Raises OSError, RedisError."""
        return bytes(self._ask("HGET", self._keys[1], "head") or b"")

    def carry(self, append: AppendLines) -> None:
        unsure, anyway = False, self._anew
        waits_s = pauses()
        while True:
            try:
                reply = self._append(append, anyway=anyway)
            except (ResponseError, AuthenticationError) as error:
                self._disconnect()  # a replica, or not yet ready: another server may answer next time
                raise _failed(_why(error), unsure=unsure) from None
            except (RedisError, OSError) as error:
                unsure = unsure or self._connection is not None  # without one, nothing was sent
                self._disconnect()
                if self._over.wait(next(waits_s)):
                    raise _failed(_why(error), unsure=unsure) from None
                continue
            if reply == DONE:
                self._anew = False
                return
            if reply == TAKEN:
                raise _failed("another sidecar writes this stream now", unsure=unsure)
            log.error("the stream does not end where it did: it lost audit records", extra={"seq": append.before.seq})
            anyway = True

    def give_up(self) -> None:
        self._over.set()

    def close(self) -> None:
        self._over.set()
        self._disconnect()

    def _append(self, append: AppendLines, *, anyway: bool) -> bytes:
        before, after = (head_line(self._key, end).rstrip() for end in (append.before, append.after))
        lines = [line.rstrip(b"\n") for line in append.lines]
        arguments = (self._turn, before, after, self._most, "anyway" if anyway else "", *lines)
        reply = self._ask("EVAL", script_text("audit_append"), 2, *self._keys, *arguments)
        if reply not in (DONE, TAKEN, ELSEWHERE):
            raise ConnectionError("a foreign reply")
        return bytes(reply)

    def _ask(self, *command: Any) -> Any:
        """Sends a command and returns its reply. Raises OSError, RedisError."""
        try:
            if self._connection is None:
                connection = self._connect()
                connection.connect()  # closes it again if the login fails
                self._connection = connection
            self._connection.send_command(*command)
            return self._connection.read_response(disable_decoding=True)
        except (OSError, RedisError):
            raise
        except Exception as error:  # redis-py's parser may raise anything on a malformed reply
            raise ConnectionError(f"a foreign reply ({type(error).__name__})") from None

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()


def _found(raw_head: bytes, line: bytes, key: AuditKey, older: Sequence[AuditKey]) -> FoundEnd:
    last = unseal(line) if line else None
    if line and last is None:
        raise ValueError("its last entry is not an audit record")
    read = read_anchor(raw_head + b"\n" if raw_head else b"", last, line, key, older)
    facts = read.facts | {"last_seq": last.seq if last else 0}
    return FoundEnd(read.end, 0, read.what, {"found": list(read.what), **facts} if read.what else {})


def _failed(why: str, *, unsure: bool) -> OSError:
    return UnsureError(why, again=True) if unsure else OSError(why)


def _why(error: Exception) -> str:
    """The error for operators: its kind and the server's text; never a URL."""
    return f"{type(error).__name__}: {error}"[:200]


def connector_to(chosen: StoreSettings) -> Callable[[], AbstractConnection]:
    """Returns a function that makes an unconnected connection to a single server. The connection raises ConnectionError
    if its secret cannot be read."""
    return partial(_connection, chosen)


def _connection(chosen: StoreSettings) -> AbstractConnection:
    place = chosen.place
    try:
        options = chosen.login() | {"socket_connect_timeout": CONNECT_S, "socket_timeout": ANSWER_S}
    except SettingsError as unreadable:  # raised at connection time: the file may change during operation
        raise ConnectionError(str(unreadable)) from None
    options |= {"retry": Retry(NoBackoff(), 0), "health_check_interval": 0}
    made: type[Any] = TcpConnection
    if place.kind == "unix":
        made, options = UnixDomainSocketConnection, options | {"path": place.path}
    else:
        options["host"], options["port"] = place.nodes[0]
    if place.tls:
        made, options = SSLConnection, options | chosen.certificates()
    connection: AbstractConnection = made(**options)
    return connection
