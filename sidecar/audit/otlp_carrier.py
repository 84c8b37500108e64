"""Sends audit records to an OpenTelemetry receiver and awaits its acceptance.

Each append is one POST (OTLP/HTTP, Protocol Buffers):

    2xx, all accepted        delivered
    2xx, some rejected       unknown which: not repeated (OTLP forbids it), and reported as failed to waiting callers
    2xx, unreadable          the server is not an OTLP receiver; treated as rejected
    429, 502, 503, 504       repeated after `Retry-After` or a pause
    no response, or partial  repeated: duplicates have the same `sidecar.instance` and `sidecar.seq`
    any other status         not delivered
"""

import asyncio
import email.utils
import errno
import gzip
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from sidecar.audit.carrier import AppendLines, UnsureError, pauses
from sidecar.audit.chain import UnfitHead
from sidecar.errors import SettingsError
from sidecar.http.client import DIRECT, ConnectFailed, Egress, EgressError, HttpClient, InvalidRequest, TargetOrigin

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
    """One receiver. `headers` are read for each request, so credentials can be rotated. `authorities` (PEM) are trusted
    instead of those of `egress`. `over` ends all waits. The delivering thread runs its own event loop."""

    def __init__(
        self,
        origin: TargetOrigin,
        resource: Mapping[str, str],
        *,
        headers: Callable[[], Mapping[str, str]] = dict,
        egress: Egress = DIRECT,
        authorities: str = "",
        attempt_s: float = ATTEMPT_S,
        over: threading.Event | None = None,
    ) -> None:
        self._origin, self._resource, self._headers = origin, resource, headers
        self._egress, self._authorities = egress, authorities
        self._attempt_s = attempt_s
        self._over = over or threading.Event()
        self._loop: asyncio.Runner | None = None
        self._client: HttpClient | None = None

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
                unsure = unsure or not isinstance(error, ConnectFailed | SettingsError)
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
        closing = threading.Thread(target=self._disconnect, name="audit-close")  # the caller's may run another loop
        closing.start()
        closing.join()

    def _judge(self, said: OtlpReply, count: int, *, unsure: bool) -> None:
        if not 200 <= said.status < 300:
            self._disconnect()  # reconnect with the current credential
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
        if self._loop is None:
            self._loop = asyncio.Runner()
        return self._loop.run(self._exchange(body))

    async def _exchange(self, body: bytes) -> OtlpReply:
        headers = [("Content-Type", "application/x-protobuf"), *self._headers().items(), ("Content-Encoding", "gzip")]
        if self._client is None:
            connect_s = min(CONNECT_S, self._attempt_s / 2)
            tls = self._egress.tls(instead=self._authorities) if self._origin.secure else None
            self._client = HttpClient(self._origin, egress=self._egress, connect_timeout_s=connect_s, tls=tls)
        path, deadline_s = self._origin.path, self._attempt_s
        with await self._client.request("POST", path, headers, body, deadline_s=deadline_s) as response:
            answer = await response.read(MAX_ANSWER_BYTES)
            return OtlpReply(response.status, response.media_type, response.headers.get("retry-after", ""), answer)

    def _disconnect(self) -> None:
        loop, self._loop = self._loop, None
        client, self._client = self._client, None
        if loop is not None:
            with loop:
                if client is not None:
                    loop.run(client.close())


def _pause_s(retry_after: str, otherwise_s: float) -> float:
    """The pause in seconds; `Retry-After` holds seconds or a date (RFC 9110, 10.2.3)."""
    if retry_after.isascii() and retry_after.isdigit():
        return min(max(float(retry_after[:9]), otherwise_s), MAX_PAUSE_S)
    try:
        at = email.utils.parsedate_to_datetime(retry_after)
    except (ValueError, OverflowError):
        return otherwise_s
    return min(max(at.timestamp() - time.time(), otherwise_s), MAX_PAUSE_S)
