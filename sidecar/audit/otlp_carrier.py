"""Sends audit records to an OpenTelemetry receiver and awaits its acceptance.

Each append is one POST (OTLP/HTTP, Protocol Buffers):

    2xx, all accepted        delivered
    2xx, some rejected       unknown which: not repeated (OTLP forbids it), and reported as failed to waiting callers
    2xx, unreadable          the server is not an OTLP receiver; treated as rejected
    429, 502, 503, 504       repeated after `Retry-After` or a pause
    no response, or partial  repeated: duplicates have the same `sidecar.instance` and `sidecar.seq`
    any other status         not delivered
"""

import email.utils
import errno
import gzip
import logging
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from sidecar.audit.carrier import AppendLines, UnsureError, pauses
from sidecar.audit.chain import UnfitHead
from sidecar.errors import SettingsError
from sidecar.http.client.failures import EgressError, InvalidRequest
from sidecar.http.client.http1 import RequestForm, ResponseReader
from sidecar.http.client.origin import TargetOrigin

ATTEMPT_S: Final = 5.0
CONNECT_S: Final = 2.0
MAX_ANSWER_BYTES: Final = 64 * 1024
MAX_PAUSE_S: Final = 60.0  # a limit on `Retry-After`
RETRYABLE: Final = frozenset({429, 502, 503, 504})  # OTLP 1.x, "Retryable Response Codes"
TOO_LARGE: Final = 413

log = logging.getLogger("sidecar.audit")


class OtlpReply(NamedTuple):
    status: int
    media_type: str
    retry_after: str
    body: bytes


class OtlpCarrier:
    """One receiver. `headers` are read for each connection, so credentials can be rotated. `over` ends all waits."""

    def __init__(
        self,
        origin: TargetOrigin,
        resource: Mapping[str, str],
        *,
        headers: Callable[[], Mapping[str, str]] = dict,
        ca_path: Path | None = None,
        attempt_s: float = ATTEMPT_S,
        over: threading.Event | None = None,
    ) -> None:
        self._origin, self._resource, self._headers, self._ca_path = origin, resource, headers, ca_path
        self._attempt_s = attempt_s
        self._over = over or threading.Event()
        self._socket: socket.socket | None = None
        self._form: RequestForm | None = None

    def carry(self, append: AppendLines) -> None:
        from sidecar.audit.otlp_messages import export_request  # slow to import, so only when used

        body = gzip.compress(export_request(append.lines, self._resource), compresslevel=1, mtime=0)
        unsure, waits_s, told = False, pauses(), ""
        while True:
            pause_s, why = next(waits_s), "no answer"
            try:
                said = self._post(body)
            except InvalidRequest as error:
                raise OSError(errno.EINVAL, str(error)) from None
            except (OSError, EgressError, SettingsError) as error:
                unsure = unsure or self._socket is not None
                why = f"{type(error).__name__}: {error}"
                self._disconnect()
            else:
                if said.status not in RETRYABLE:
                    self._judge(said, len(append.lines), unsure=unsure)
                    return
                pause_s, why = _pause_s(said.retry_after, pause_s), f"status {said.status}"
                unsure = unsure or said.status in (502, 504)  # a gateway does not know whether the receiver accepted
            if why != told:
                log.warning("the receiver did not accept the audit records; trying again", extra={"why": why[:200]})
                told = why
            if self._over.wait(pause_s):
                raise UnsureError(why, again=False) if unsure else OSError(errno.EAGAIN, why)

    def give_up(self) -> None:
        self._over.set()

    def close(self) -> None:
        self._over.set()
        self._disconnect()

    def _judge(self, said: OtlpReply, count: int, *, unsure: bool) -> None:
        if not 200 <= said.status < 300:
            self._disconnect()  # reconnect with the then current credential
            why = f"the receiver answered {said.status}"
            if unsure:
                raise UnsureError(why, again=False)
            raise UnfitHead(errno.EMSGSIZE, why) if said.status == TOO_LARGE else OSError(errno.EPROTO, why)
        from sidecar.audit.otlp_messages import rejected

        try:
            no = rejected(said.media_type, said.body)
        except ValueError as error:
            raise UnsureError(str(error), again=False) from None
        if (lost := no.rejected_log_records) > 0:
            why = no.error_message[:500]
            log.error("the receiver rejected audit records", extra={"of": count, "rejected": lost, "why": why})
            raise UnsureError(f"{lost} of {count} records were rejected", again=False)
        if no.error_message:
            log.warning("the receiver accepted the audit records, and warns", extra={"what": no.error_message[:500]})

    def _post(self, body: bytes) -> OtlpReply:
        until = time.monotonic() + self._attempt_s
        if self._socket is not None and select.select([self._socket], [], [], 0)[0]:
            self._disconnect()  # the peer closed or sent data while idle: a request sent there may be lost
        if self._socket is None or self._form is None:
            self._socket, self._form = self._connected(until)
        self._wait_until(until)
        self._socket.sendall(self._form.message([("Content-Encoding", "gzip")], body))
        reader, whole = ResponseReader(), b""
        while not reader.complete:
            self._wait_until(until)
            piece = self._socket.recv(16 * 1024)
            if piece:
                reader.feed(piece)
            else:
                reader.end()
            whole += reader.take()
            if len(whole) > MAX_ANSWER_BYTES:
                raise OSError(errno.EMSGSIZE, "the answer is too long")
        if not reader.reusable:
            self._disconnect()
        head = reader.head
        return OtlpReply(head.status, head.media_type, head.headers.get("retry-after", ""), whole)

    def _wait_until(self, until: float) -> None:
        left_s = until - time.monotonic()
        if left_s <= 0 or self._socket is None:
            raise TimeoutError("the receiver took too long")
        self._socket.settimeout(left_s)

    def _connected(self, until: float) -> tuple[socket.socket, RequestForm]:
        origin = self._origin
        headers = [("Content-Type", "application/x-protobuf"), *self._headers().items()]
        form = RequestForm("POST", origin.path, origin.host_header, headers)
        limit_s = min(CONNECT_S, until - time.monotonic())
        plain = socket.create_connection((origin.host, origin.port), timeout=limit_s)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not origin.secure:
                return plain, form
            context = ssl.create_default_context(cafile=self._ca_path)
            return context.wrap_socket(plain, server_hostname=origin.host), form
        except BaseException:
            plain.close()
            raise

    def _disconnect(self) -> None:
        taken, self._socket = self._socket, None
        if taken is not None:
            taken.close()


def _pause_s(retry_after: str, otherwise_s: float) -> float:
    """The pause in seconds; `Retry-After` holds seconds or a date (RFC 9110, 10.2.3)."""
    if retry_after.isascii() and retry_after.isdigit():
        return min(max(float(retry_after[:9]), otherwise_s), MAX_PAUSE_S)
    try:
        at = email.utils.parsedate_to_datetime(retry_after)
    except (ValueError, OverflowError):
        return otherwise_s
    return min(max(at.timestamp() - time.time(), otherwise_s), MAX_PAUSE_S)
