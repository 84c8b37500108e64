"""Envoy's external authorization over gRPC: `envoy.service.auth.v3.Authorization/Check`.

Served at the gRPC listener (`server.grpc`). The enforcement point shows its secret in the metadata of each check, as
`x-pdp-key` or as `authorization: Bearer`. A check that cannot be read is an error of gRPC, to which Envoy answers with
a denial unless `failure_mode_allow` is set.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final, NamedTuple

import grpc
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
from sidecar.protocols.a2a.schema import UnreadableMessage
from sidecar.protocols.a2a.status import CODES
from sidecar.protocols.ext_authz import CHECK, OVERWRITE, WIRE
from sidecar.protocols.jsonrpc import malformed

ROOM_BYTES: Final = 256 * 1024  # of a check beside the body: headers, and the caller's certificate
MAX_VALUES: Final = 10_000
MAX_DEPTH: Final = 16
_BEARER: Final = "Bearer "


class Check(NamedTuple):
    """A check that was read: the request asked about, and whether to charge it."""

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
        except (UnreadableMessage, ValueError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        decision = await decision_on(self.point, check.asked, name, charge=check.charge)
        with suppress(Refusal, aio.InternalError):  # the enforcement point left: the decision is recorded
            await send(context, WIRE.encode("CheckResponse", response_of(decision)))


def _secret_in(context: Any) -> str:
    """Returns the secret that a call shows, "" for none, and for more than one."""
    shown = [
        str(value).removeprefix(_BEARER) if name == "authorization" else str(value)
        for name, value in context.invocation_metadata() or ()
        if name == SECRET_HEADER or (name == "authorization" and str(value).startswith(_BEARER))
    ]
    return shown[0] if len(shown) == 1 else ""


def read_check(point: DecisionPoint, message: bytes) -> Check:
    """Reads a CheckRequest. Raises UnreadableMessage, and ValueError for contradictory `context_extensions`."""
    attributes = WIRE.decode("CheckRequest", message, MAX_DEPTH, MAX_VALUES)["attributes"]
    http, source = attributes["request"]["http"], attributes.get("source", {})
    extensions = attributes.get("contextExtensions", {})
    lines = _lines(http)
    fault = partial_fault(value.decode("latin-1") for name, value in lines if name.lower() == PARTIAL.encode())
    if http.get("body"):
        # Envoy replaces bytes that are not UTF-8 there, so that the upstream may receive another body.
        fault = malformed("the enforcement point must send the body as bytes: set pack_as_bytes")
    asked = AskedRequest(
        http["method"],
        target_in(point, http["path"], extensions),
        callers_lines(lines),
        base64.b64decode(http.get("rawBody", "")),
        _address(source.get("address", {}).get("socketAddress", {}).get("address", "")),
        shown_by(source),
        fault,
    )
    return Check(asked, extensions.get("charge") == "true")


def _lines(http: Mapping[str, Any]) -> list[Line]:
    """Returns the header lines of a request: those of `header_map`, else of `headers`, without pseudo-headers."""
    if "headerMap" in http:
        lines = [_line(one) for one in http["headerMap"].get("headers", ())]
    else:
        lines = asked_headers(http.get("headers", {}).items())
    lines = [line for line in lines if not line[0].startswith(b":")]
    if "host" in http and not any(name.lower() == b"host" for name, _ in lines):
        lines += asked_headers([("host", http["host"])])
    return lines


def _line(one: Mapping[str, Any]) -> Line:
    if "rawValue" in one:
        return one.get("key", "").encode("latin-1", "replace"), base64.b64decode(one["rawValue"])
    return asked_headers([(one.get("key", ""), one.get("value", ""))])[0]


def _address(text: str) -> str:
    """Returns an IP address in its normal form, "" for anything else."""
    try:
        return str(ip_address(text))
    except ValueError:
        return ""


def shown_by(source: Mapping[str, Any]) -> str:
    """Returns the certificate that the caller showed to Envoy, as an element of X-Forwarded-Client-Cert: the whole with
    `include_peer_certificate`, else its name, which Envoy takes from it in this order: URI, DNS name, subject."""
    if certificate := source.get("certificate", ""):
        return f"Cert={_quoted(certificate)}"
    if name := source.get("principal", ""):
        kind = "URI" if "://" in name else "Subject" if "=" in name else "DNS"
        return f"{kind}={_quoted(name)}"
    return ""


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def response_of(decision: ExtAuthzDecision) -> dict[str, Any]:
    """Returns the CheckResponse in its JSON form."""
    metadata = {"decision_id": decision.decision_id, "principal": decision.principal}
    headers = [_option(name, value) for name, value in decision.headers]
    if decision.allowed:
        told = [_option(DECISION_ID, decision.decision_id)]
        ok = {"headers": headers, "headersToRemove": list(decision.removed), "responseHeadersToAdd": told}
        return {"status": {"code": CODES["OK"]}, "okResponse": ok, "dynamicMetadata": metadata}
    reason = "" if decision.reason is None else decision.reason.value
    code = CODES["UNAUTHENTICATED" if decision.status == 401 else "PERMISSION_DENIED"]
    denied = {"status": {"code": decision.status}, "headers": headers, "body": decision.body.decode()}
    return {
        "status": {"code": code, "message": reason},
        "deniedResponse": denied,
        "dynamicMetadata": {**metadata, "reason": reason},
    }


def _option(name: str, value: str) -> dict[str, Any]:
    return {"header": {"key": name, "value": value}, "appendAction": OVERWRITE}
