"""Sends requests to one HTTP address of an upstream, with its credential.

No header of the caller's request is copied, and its credential only if the operator configured that. Every failure
becomes a refusal. None is retried, because the upstream may have executed an unanswered request.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Final

from sidecar.errors import Reason, Refusal
from sidecar.http.client import (
    DIRECT,
    ClientResponse,
    ClientTimeout,
    ConnectFailed,
    ConnectionBroken,
    Deadline,
    Egress,
    EgressError,
    HttpClient,
    InvalidRequest,
    NoRoom,
    QueueFull,
    RequestForm,
    ResponseTooLarge,
    Share,
    UnacceptableResponse,
    parse_origin,
)
from sidecar.upstreams.credentials.source import NO_CREDENTIAL, CredentialSource, Header
from sidecar.vocabulary import Caller

# Streams that stay open have connections of their own: callers that listen never delay another caller's call.
# `settings.streams` bounds them at their opening; this is a last bound.
MAX_STREAMS: Final = 65_536
CONNECT_S: Final = 5.0  # the maximum time to open a connection


class HttpAddress:
    """The address, its connections, and the common parts of every request to it: `headers` and the credential. Raises
    ValueError for an invalid URL."""

    def __init__(
        self,
        url: str,
        *,
        credential: CredentialSource = NO_CREDENTIAL,
        headers: Sequence[Header] = (),
        max_connections: int = 100,
        egress: Egress = DIRECT,
    ) -> None:
        self.url = url
        self.origin = parse_origin(url)
        self.credential = credential
        self._headers = headers
        client = partial(HttpClient, self.origin, egress=egress, connect_timeout_s=CONNECT_S)
        self._calls = client(max_connections=max_connections)
        self._streams = client(max_idle=0, max_connections=MAX_STREAMS)

    @property
    def open_connections(self) -> int:
        return self._calls.open_connections + self._streams.open_connections

    def form(self, verb: str, path: str, first: Sequence[Header]) -> RequestForm:
        """Returns the common part of similar requests. Raises Refusal(MALFORMED_CALL)."""
        fixed = self.credential.fixed
        try:
            return RequestForm(
                verb, path, self.origin.host_header, [*first, *self._headers], () if fixed is None else (fixed,)
            )
        except InvalidRequest as failure:
            raise refusal_from(failure) from failure

    async def send(
        self,
        form: RequestForm,
        headers: Sequence[Header],
        body: bytes | None,
        caller: Caller | None,
        deadline_s: float,
        *,
        streams: bool = False,
    ) -> ClientResponse:
        """Sends a request; returns when the head of the response arrives. Raises Refusal; Unsent without a
        credential."""
        try:
            return await self.exchange(form, headers, body, caller, deadline_s, streams)
        except EgressError as failure:
            raise refusal_from(failure) from failure

    def exchange(
        self,
        form: RequestForm,
        headers: Sequence[Header],
        body: bytes | None,
        caller: Caller | None,
        deadline_s: float,
        streams: bool,
    ) -> Coroutine[Any, Any, ClientResponse]:
        """Like `send`, but raises EgressError for a failure of the upstream, from which `refusal_from` makes a
        refusal."""
        client = self._streams if streams else self._calls
        if self.credential.varies:
            shown = self.credential.at_hand(caller)
            if shown is None:
                return self._with_credential(client, form, headers, body, caller, deadline_s)
            headers = [*headers, shown]
        return client.send(form.message(headers, body), deadline_s=deadline_s)

    async def _with_credential(
        self,
        client: HttpClient,
        form: RequestForm,
        headers: Sequence[Header],
        body: bytes | None,
        caller: Caller | None,
        deadline_s: float,
    ) -> ClientResponse:
        shown, deadline_s = await self.credential.header_within(caller, deadline_s)
        if shown is not None:
            headers = [*headers, shown]
        response = await client.send(form.message(headers, body), deadline_s=deadline_s)
        if response.head.status == 401 and shown is not None:
            self.credential.refused(caller, shown)
        return response

    async def close(self) -> None:
        await self._calls.close()
        await self._streams.close()
        await self.credential.close()


async def body_of(response: ClientResponse, max_bytes: int) -> bytes:
    """Returns the whole body. Raises Refusal."""
    try:
        return await response.read(max_bytes)
    except EgressError as failure:
        raise refusal_from(failure) from failure


async def hold(share: Share, size: int, deadline: Deadline) -> None:
    """Waits for buffer space for this number of bytes of an answer. Raises Refusal(RESPONSE_REFUSED) at the
    deadline."""
    try:
        await share.hold(size, deadline.at)
    except TimeoutError:
        raise refusal_from(NoRoom()) from None


_REFUSALS: Final[Sequence[tuple[type[EgressError], Reason, str]]] = (
    (ClientTimeout, Reason.UPSTREAM_TIMEOUT, ""),
    (ResponseTooLarge, Reason.RESPONSE_REFUSED, "it is larger than allowed"),
    (NoRoom, Reason.RESPONSE_REFUSED, "too many large answers at once"),
    (UnacceptableResponse, Reason.RESPONSE_REFUSED, "it came in a form that was not asked for"),
    (ConnectFailed, Reason.UPSTREAM_FAILED, "it cannot be reached"),
    (QueueFull, Reason.UPSTREAM_FAILED, "too many calls wait for it"),
    (InvalidRequest, Reason.MALFORMED_CALL, "a value cannot be sent in an address or a header"),
    (ConnectionBroken, Reason.UPSTREAM_FAILED, "its answer broke off or is not HTTP"),
    (EgressError, Reason.UPSTREAM_FAILED, ""),
)


def refusal_from(failure: EgressError) -> Refusal:
    """Returns the caller's refusal for a failure of the upstream: only its kind, never addresses or bytes."""
    return next(Refusal(reason, detail) for kind, reason, detail in _REFUSALS if isinstance(failure, kind))
