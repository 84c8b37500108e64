"""Reads bodies of requests to the admin listener, and writes its responses. Errors are problem documents (RFC 9457)."""

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

import orjson
from aiohttp import web

from sidecar.errors import Reason, Refusal
from sidecar.gateway.error_responses import (
    JSON,
    PROBLEM_JSON,
    REFUSAL_URN,
    DenyManner,
    facts_of,
    headers_of,
    message_of,
    plain_status,
)
from sidecar.gateway.routing import Headers
from sidecar.protocols.jsonrpc import malformed

HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Server": "sidecar",  # instead of the library and its version
}
REQUEST_ID: Final = "X-Request-ID"
MAX_ORDER_BYTES: Final = 16 * 1024
BODY_S: Final = 5.0
_REQUEST_ID = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,254}[\x21-\x7e])?")


async def body_of(request: web.BaseRequest, max_bytes: int) -> bytes:
    """The whole body. Raises Refusal: TOO_LARGE; MALFORMED_CALL if it does not arrive within BODY_S, or is not well
    framed."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > max_bytes:
                    raise Refusal(Reason.TOO_LARGE, f"the body is too large: at most {max_bytes} bytes")
    except TimeoutError:
        raise malformed("the body did not come in time") from None
    except web.RequestPayloadError:
        raise malformed("the body is not well framed") from None
    return bytes(body)


def request_id_in(headers: Headers) -> str | None:
    """The caller's id of a request, which is echoed and recorded; None without one. Raises Refusal(MALFORMED_CALL) for
    an id that cannot be echoed."""
    lines = headers.get(REQUEST_ID.lower(), ())
    if len(lines) > 1 or (lines and _REQUEST_ID.fullmatch(lines[0]) is None):
        raise malformed(f"{REQUEST_ID} must be there once at most, with 1 to 256 printable ASCII characters")
    return lines[0] if lines else None


def echo_of(headers: Headers) -> Mapping[str, str]:
    """The header that echoes the caller's id of a request; empty without one, or if it cannot be echoed."""
    with suppress(Refusal):
        if (request_id := request_id_in(headers)) is not None:
            return {REQUEST_ID: request_id}
    return {}


def answered(value: Any, status: int = 200, headers: Mapping[str, str] = {}) -> web.Response:
    return _json(value, status, JSON, headers)


def problem(error: str, status: int, headers: Mapping[str, str] = {}, **more: Any) -> web.Response:
    told = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "error": error}
    return _json({**told, **more}, status, PROBLEM_JSON, headers)


def refused(refusal: Refusal) -> web.Response:
    """The problem document of a refusal. Unlike callers, operators see all of it, whatever `answers.disclosure` is."""
    facts = dict(facts_of(refusal, "", DenyManner()))
    del facts["decision_id"]
    told = {
        "type": f"{REFUSAL_URN}{refusal.reason.value}",
        "title": refusal.answer.message,
        "status": plain_status(refusal.answer),
        "error": message_of(refusal, facts),
        **facts,
    }
    return _json(told, plain_status(refusal.answer), PROBLEM_JSON, headers_of(refusal, facts, ""))


def _json(value: Any, status: int, media_type: str, headers: Mapping[str, str]) -> web.Response:
    body = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    return web.Response(body=body, status=status, headers={**HEADERS, "Content-Type": media_type, **headers})
