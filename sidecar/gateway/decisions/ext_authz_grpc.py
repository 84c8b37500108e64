"""Envoy's external authorization over gRPC: `envoy.service.auth.v3.Authorization/Check`.

Served at the gRPC listener (`server.grpc`). The enforcement point shows its secret in the metadata of each check, as
`x-pdp-key` or as `authorization: Bearer`. A check that cannot be read is an error of gRPC, to which Envoy answers with
a denial unless `failure_mode_allow` is set.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from sidecar.errors import Refusal
from sidecar.gateway.decisions.checked import DECISION_ID, asked_headers
from sidecar.gateway.decisions.ext_authz import (
    PARTIAL,
    ExtAuthzDecision,
    Line,
    callers_lines,
    decision_on,
    partial_fault,
    target_in,
)
from sidecar.gateway.decisions.point import SECRET_HEADER, AskedRequest, DecisionPoint
from sidecar.gateway.frontends.grpc_listener import GrpcService, send
from sidecar.protocols.a2a.status import CODES
from sidecar.protocols.ext_authz import CHECK, OVERWRITE, CheckRequest, CheckResponse
from sidecar.protocols.jsonrpc import malformed

ROOM_BYTES: Final = 256 * 1024  # of a check in addition to the body: headers, and the caller's certificate
MAX_HEADERS: Final = 1000
_BEARER: Final = "Bearer "


class Check(NamedTuple):
    """A check as it was read: the request in question, and whether to charge it."""

    asked: AskedRequest
    charge: bool


@dataclass(slots=True, kw_only=True, eq=False)
class AuthorizationService(GrpcService):
    """Answers checks. `name_of` returns the name of the enforcement point that has a secret, "" for none."""

    point: DecisionPoint
    name_of: Callable[[str], str]

    def service(self, details: Any) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """Returns the handler of a method (grpc's interface)."""
        return self.handler(self._answer) if details.method == CHECK else None

    async def _answer(self, messages: AsyncIterator[bytes], context: Any) -> None:
        name = self.name_of(_secret_in(context))
        if not name:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a credential of the role pdp is needed in x-pdp-key")
        try:
            check = read_check(self.point, await self.message(messages))
        except Refusal as refusal:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, refusal.detail)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        decision = await decision_on(self.point, check.asked, name, charge=check.charge)
        with suppress(Refusal, aio.InternalError):  # the enforcement point left: the decision is recorded
            await send(context, response_of(decision))


def _secret_in(context: Any) -> str:
    """Returns the secret in a call's metadata; "" for none and for more than one."""
    shown = [
        str(value).removeprefix(_BEARER) if name == "authorization" else str(value)
        for name, value in context.invocation_metadata() or ()
        if name == SECRET_HEADER or (name == "authorization" and str(value).startswith(_BEARER))
    ]
    return shown[0] if len(shown) == 1 else ""


def read_check(point: DecisionPoint, message: bytes) -> Check:
    """Reads a CheckRequest. Raises ValueError for any other message and for contradictory `context_extensions`."""
    try:
        attributes = CheckRequest.FromString(message).attributes
    except DecodeError:
        raise ValueError("the message is not a CheckRequest") from None
    http, source, extensions = attributes.request.http, attributes.source, attributes.context_extensions
    if not http.method or not http.path:
        raise ValueError("attributes.request.http has no method or no path")
    lines = _lines(http)
    fault = partial_fault(value.decode("latin-1") for name, value in lines if name.lower() == PARTIAL.encode())
    if http.body:
        # Envoy replaces bytes that are not UTF-8 in this field, so the upstream could receive a different body.
        fault = malformed("the enforcement point must send the body as bytes: set pack_as_bytes")
    asked = AskedRequest(
        http.method,
        target_in(point, http.path, extensions),
        callers_lines(lines),
        http.raw_body,
        _address(source.address.socket_address.address),
        shown_by(source.principal, source.certificate),
        fault,
    )
    return Check(asked, extensions.get("charge") == "true")


def _lines(http: Any) -> list[Line]:
    """Returns the header lines of a request: those of `header_map`, otherwise of `headers`, without pseudo-headers.
    Raises ValueError for too many."""
    raw = http.header_map.headers
    if len(raw) + len(http.headers) > MAX_HEADERS:
        raise ValueError(f"the request has more than {MAX_HEADERS} headers")
    lines = asked_headers((one.key, one.value) for one in raw if not one.raw_value)
    lines += [(one.key.encode("latin-1", "replace"), one.raw_value) for one in raw if one.raw_value]
    if not raw:
        lines = asked_headers(http.headers.items())
    lines = [line for line in lines if not line[0].startswith(b":")]
    if http.host and not any(name.lower() == b"host" for name, _ in lines):
        lines += asked_headers([("host", http.host)])
    return lines


def _address(text: str) -> str:
    """Returns an IP address in its normal form, "" for anything else."""
    try:
        return str(ip_address(text))
    except ValueError:
        return ""


def shown_by(principal: str, certificate: str) -> str:
    """Returns the certificate that the caller showed to Envoy, as an element of X-Forwarded-Client-Cert: the whole
    certificate with `include_peer_certificate`, otherwise its name, which Envoy takes from it in this order: URI, DNS
    name, subject."""
    if certificate:
        return f"Cert={_quoted(certificate)}"
    if principal:
        kind = "URI" if "://" in principal else "Subject" if "=" in principal else "DNS"
        return f"{kind}={_quoted(principal)}"
    return ""


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def response_of(decision: ExtAuthzDecision) -> bytes:
    """Returns the CheckResponse."""
    response = CheckResponse(dynamic_metadata={"decision_id": decision.decision_id, "principal": decision.principal})
    if decision.allowed:
        response.status.code, ok = CODES["OK"], response.ok_response
        ok.headers_to_remove.extend(decision.removed)
        _add(ok.response_headers_to_add, [(DECISION_ID, decision.decision_id)])
        _add(ok.headers, decision.headers)
        return bytes(response.SerializeToString())
    reason, denied = "" if decision.reason is None else decision.reason.value, response.denied_response
    response.status.code = CODES["UNAUTHENTICATED" if decision.status == 401 else "PERMISSION_DENIED"]
    response.status.message = response.dynamic_metadata["reason"] = reason
    denied.status.code, denied.body = decision.status, decision.body.decode()
    _add(denied.headers, decision.headers)
    return bytes(response.SerializeToString())


def _add(options: Any, headers: Iterable[tuple[str, str]]) -> None:
    for name, value in headers:
        options.add(header={"key": name, "value": value}, append_action=OVERWRITE)
