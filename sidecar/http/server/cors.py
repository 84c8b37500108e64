"""CORS for web pages of the origins that the operator allowed (https://fetch.spec.whatwg.org/#http-cors-protocol).

A page of such an origin may send the headers of MCP and A2A clients, and read the response headers that they need.
Cookies are not used, so no answer allows credentials.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

Lines = tuple[tuple[str, str], ...]
"""Names and values of headers."""
EXPOSED: Final = "Mcp-Session-Id, WWW-Authenticate, MCP-Protocol-Version, Retry-After"
MAX_AGE_S: Final = 600
_SENT: Final = frozenset(
    {
        "a2a-extensions", "a2a-version", "accept", "authorization", "content-type", "dpop", "last-event-id",
        "mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id", "traceparent", "tracestate", "x-api-key",
        "x-run-id", "x-thread-id",
    }
)  # fmt: skip
_PARAMETER: Final = re.compile(r"mcp-param-[a-z0-9!#$%&'*+.^_`|~-]{1,128}")  # a token (RFC 9110, 5.6.2)


def shared_with(headers: Mapping[str, Sequence[str]], origins: Collection[str]) -> Lines:
    """Returns the headers of an answer to a page of one of these origins (lower case); none for any other."""
    lines = headers.get("origin", ())
    if len(lines) != 1 or lines[0].lower() not in origins:
        return ()
    allow, expose = ("Access-Control-Allow-Origin", lines[0]), ("Access-Control-Expose-Headers", EXPOSED)
    return allow, expose, ("Vary", "Origin")


def wanted_verb(verb: str, headers: Mapping[str, Sequence[str]]) -> str:
    """Returns the verb that a preflight asks about; "" if the request is not a preflight."""
    lines = headers.get("access-control-request-method", ())
    return lines[0] if verb == "OPTIONS" and len(lines) == 1 else ""


def allowed(verb: str, headers: Mapping[str, Sequence[str]]) -> Mapping[str, str]:
    """Returns the headers of a preflight's answer, in addition to `shared_with`: the verb, and those requested headers
    that are read here."""
    lines = headers.get("access-control-request-headers", ())
    asked = {name.strip().lower() for line in lines for name in line.split(",")}
    names = sorted(name for name in asked if name in _SENT or _PARAMETER.fullmatch(name))
    told = {"Access-Control-Allow-Methods": verb, "Access-Control-Max-Age": str(MAX_AGE_S)}
    return {**told, "Access-Control-Allow-Headers": ", ".join(names)} if names else told
