"""Writes refusals in the form of each protocol and MCP revision.

A refusal is written in the protocol of its request: a JSON-RPC error with the HTTP status of its revision, a tool
result where the model should correct the arguments, or `application/problem+json` outside any protocol. The table is
`errors.ANSWERS`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple

import orjson

from sidecar.errors import Answer, ErrorCode, Reason, Refusal
from sidecar.http.server.response import NO_HEADERS
from sidecar.protocols.jsonrpc import Id

JSON = "application/json"
PROBLEM_JSON = "application/problem+json"
UNEXPLAINED = "This call is not permitted"
_EXPLANATION = re.compile(r', error_description="[^"]*"')
RETRY_WITHOUT_HINT_S = 1  # in Retry-After, which each 429 and 503 has, if no delay is known

REFUSAL_URN = "urn:sidecar:refusal:"

DenyStyle = Literal["auto", "http", "jsonrpc", "tool_result"]
Disclosure = Literal["reason", "kind", "hide"]


class AnswerShape(StrEnum):
    """The form in which a refused request is answered: that of an MCP revision, or none."""

    STATELESS = "stateless"
    SESSION = "session"
    LIVE = "live session"  # in a session revision; the session exists
    PLAIN = "plain"  # `application/problem+json`


class ErrorResponse(NamedTuple):
    """An answer made by the sidecar, independent of the HTTP server."""

    status: int
    body: bytes
    content_type: str
    headers: Mapping[str, str] = NO_HEADERS


@dataclass(frozen=True, slots=True)
class McpError:
    """An error, which is also a problem document (RFC 9457). Members without a value are omitted."""

    type: Annotated[str, "Type of the error: `urn:sidecar:…`, or `about:blank` if it is not disclosed."]
    title: Annotated[str, "Summary of the type, from a fixed set."]
    status: Annotated[int, "HTTP status."]
    message: Annotated[str, "Title and detail in one text."]
    decision_id: Annotated[str, "Id of the request in audit records."]
    error_code: Annotated[ErrorCode | None, "Error code. It is missing only with `answers.disclosure: hide`."] = None
    reason: Annotated[str | None, "Reason of a refusal."] = None
    detail: Annotated[str | None, "Exact place of the fault. It never contains a value."] = None
    details: Annotated[
        Mapping[str, Any] | None, "Further details, such as the place of an argument or the error of a tool."
    ] = None
    retry_after_s: Annotated[int | None, "Seconds after which to try again."] = None
    limit: Annotated[str | None, "Name of the limit that refused the call, with `answers.disclosure: reason`."] = None
    most: Annotated[float | None, "Amount of this limit."] = None
    remaining: Annotated[float | None, "Amount that is left of this limit."] = None
    unit: Annotated[str | None, "Unit of both amounts, such as `usd`, unless the limit counts calls."] = None
    reset_at: Annotated[str | None, "Time at which the limit is reset."] = None

    def encoded(self) -> bytes:
        return orjson.dumps(members_of(self))


@dataclass(frozen=True, slots=True)
class DenyManner:
    """How refusals are presented (`answers:` in sidecar.yaml)."""

    deny_style: DenyStyle = "auto"
    disclosure: Disclosure = "reason"


class InputRequired(Refusal):
    """An MCP call without a session that waits for a person. `result` is its answer."""

    def __init__(self, result: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        super().__init__(Reason.APPROVAL_PENDING, "call again to find the answer", data=data)
        self.result = result


def tell(
    refusal: Refusal,
    shape: AnswerShape,
    *,
    decision_id: str,
    request_id: Id | None = None,
    method: str = "",
    manner: DenyManner = DenyManner(),
    resource_metadata: str = "",
) -> ErrorResponse:
    """Returns the answer to a refused request, in its `shape` and with as much explanation as `manner` allows.
    `resource_metadata` is the URL for `WWW-Authenticate`, "" for none."""
    facts = facts_of(refusal, decision_id, manner)
    headers = headers_of(refusal, facts, resource_metadata)
    if shape is AnswerShape.PLAIN:
        return _problem(refusal, facts, headers)
    if isinstance(refusal, InputRequired) and _reason_told(refusal, facts):
        result = {**refusal.result, "_meta": {"sidecar/refusal": _data(refusal, facts)}}
        return ErrorResponse(200, orjson.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}), JSON, headers)
    answer = refusal.answer
    carried = answer.http != answer.session_http
    as_result = carried and method == "tools/call" and manner.deny_style == "tool_result"
    if as_result or refusal.reason is Reason.BAD_ARGUMENTS:
        return ErrorResponse(200, _tool_result(refusal, shape, request_id, facts), JSON, headers)
    return ErrorResponse(_status(answer, shape, manner), error_body(refusal, request_id, facts), JSON, headers)


def error_body(refusal: Refusal, request_id: Id | None, facts: Mapping[str, Any]) -> bytes:
    """Returns a JSON-RPC error with the facts of `facts_of`."""
    error = {"code": refusal.code, "message": message_of(refusal, facts), "data": _data(refusal, facts)}
    return orjson.dumps({"jsonrpc": "2.0", "id": request_id, "error": error})


def facts_of(refusal: Refusal, decision_id: str, manner: DenyManner) -> Mapping[str, Any]:
    """Returns the machine-readable members of a refusal, as far as `manner` discloses them."""
    answer, disclosure = refusal.answer, manner.disclosure
    facts: dict[str, Any] = {"decision_id": decision_id}
    if disclosure == "hide" and answer.status == "permission_denied":
        return facts
    kind_only = disclosure == "kind" and answer.status == "permission_denied"
    facts = {"reason": "denied" if kind_only else refusal.reason.value, "error_code": answer.seed, **facts}
    if refusal.retry_after_s is not None:
        facts["retry_after_s"] = _whole_seconds(refusal.retry_after_s)
    if refusal.limit is not None:
        if disclosure == "reason":
            facts["limit"] = refusal.limit.told
        facts["most"], facts["remaining"] = refusal.limit.limit, refusal.limit.remaining
        if refusal.limit.unit:
            facts["unit"] = refusal.limit.unit
        if refusal.limit.reset_at is not None:
            facts["reset_at"] = datetime.fromtimestamp(refusal.limit.reset_at, UTC).isoformat(timespec="seconds")
    return facts


def headers_of(refusal: Refusal, facts: Mapping[str, Any], resource_metadata: str) -> dict[str, str]:
    """Returns the HTTP headers of a refusal, which are the same in every protocol."""
    answer, headers = refusal.answer, dict[str, str]()
    if answer.http == 401 or refusal.reason is Reason.INSUFFICIENT_SCOPE:
        parts = [f'resource_metadata="{resource_metadata}"'] if resource_metadata else []
        if refusal.challenge:
            told = _reason_told(refusal, facts)
            parts.append(refusal.challenge if told else _EXPLANATION.sub("", refusal.challenge))
        headers["WWW-Authenticate"] = f"{refusal.scheme} {', '.join(parts)}" if parts else refusal.scheme
    if refusal.allow:  # required with every 405 (RFC 9110 15.5.6)
        headers["Allow"] = ", ".join(refusal.allow)
    if answer.http == 429 or answer.http == 503:
        headers["Retry-After"] = str(_whole_seconds(refusal.retry_after_s or RETRY_WITHOUT_HINT_S))
    if refusal.limit is not None:
        # draft-ietf-httpapi-ratelimit-headers-11: the policy's name is a quoted string, seconds are integers.
        limit = refusal.limit
        name = '"limit"'
        window = f";w={max(1, round(limit.window_s))}" if limit.window_s else ""  # concurrency has none
        # The draft's numbers are integers, so costs are given in millionths, and the unit says so.
        scale, unit = (1_000_000, f';qu="micro-{limit.unit}"') if limit.unit else (1, "")
        headers["RateLimit-Policy"] = f"{name};q={round(limit.limit * scale)}{unit}{window}"
        left, wait_s = round(limit.remaining * scale), _whole_seconds(refusal.retry_after_s or 0)
        headers["RateLimit"] = f"{name};r={left};t={wait_s}"
    return headers


def _whole_seconds(seconds: float) -> int:
    return max(0, math.ceil(seconds))


def message_of(refusal: Refusal, facts: Mapping[str, Any]) -> str:
    """Returns the refusal as a sentence, with as much explanation as the settings allow."""
    if not _reason_told(refusal, facts):
        return UNEXPLAINED
    if refusal.words:
        return refusal.words
    return f"{refusal.answer.message}: {refusal.detail}" if refusal.detail else refusal.answer.message


def _data(refusal: Refusal, facts: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**refusal.data, **facts} if _reason_told(refusal, facts) else facts


def _reason_told(refusal: Refusal, facts: Mapping[str, Any]) -> bool:
    # The sentence must not disclose facts that the settings withhold.
    return facts.get("reason") == refusal.reason.value


def _status(answer: Answer, shape: AnswerShape, manner: DenyManner) -> int:
    carried = answer.http != answer.session_http
    if carried and manner.deny_style == "http" and not (shape is not AnswerShape.STATELESS and answer.http == 404):
        return answer.http  # in a session, 404 means only that the session has ended
    if carried and manner.deny_style in ("jsonrpc", "tool_result"):
        return answer.session_http
    if shape is AnswerShape.LIVE:
        return answer.in_session
    return answer.http if shape is AnswerShape.STATELESS else answer.session_http


def _tool_result(refusal: Refusal, shape: AnswerShape, request_id: Id | None, facts: Mapping[str, Any]) -> bytes:
    result: dict[str, Any] = {
        "content": [{"type": "text", "text": message_of(refusal, facts)}],
        "isError": True,
        "_meta": {"sidecar/refusal": _data(refusal, facts)},
    }
    if shape is AnswerShape.STATELESS:
        result["resultType"] = "complete"
    return orjson.dumps({"jsonrpc": "2.0", "id": request_id, "result": result})


def members_of(model: Any, *always: str) -> dict[str, Any]:
    """Returns the members of a data class, omitting those that are None, except `always`."""
    members = ((each.name, getattr(model, each.name)) for each in fields(model))
    return {name: value for name, value in members if value is not None or name in always}


def plain_status(answer: Answer) -> int:
    """The HTTP status outside of any protocol. A tool's error is an error of the caller there too."""
    return answer.http if answer.http >= 400 else 400


def _problem(refusal: Refusal, facts: Mapping[str, Any], headers: Mapping[str, str]) -> ErrorResponse:
    answer, told = refusal.answer, _reason_told(refusal, facts)
    problem = McpError(
        type=f"{REFUSAL_URN}{refusal.reason.value}" if told else "about:blank",
        title=answer.message if told else UNEXPLAINED,
        status=plain_status(answer),
        message=message_of(refusal, facts),
        detail=(refusal.detail or None) if told else None,
        details=(refusal.data or None) if told else None,
        **facts,
    )
    return ErrorResponse(problem.status, problem.encoded(), PROBLEM_JSON, headers)
