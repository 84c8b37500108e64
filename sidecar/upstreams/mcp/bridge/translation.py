"""Translates messages between session and stateless revisions.

No I/O. `lent_…` functions translate for a stateless caller of a server with sessions only (`borrowed_sessions.py`);
`played_…` functions translate for the caller of a session at a stateless server (`session_to_stateless.py`).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

import orjson

from sidecar.errors import Reason, Refusal
from sidecar.protocols.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, Request
from sidecar.protocols.mcp import messages
from sidecar.protocols.mcp.eras import (
    META_CAPABILITIES,
    META_CLIENT,
    META_LEVEL,
    META_SERVER,
    META_VERSION,
    SESSION_VERSIONS,
    STATELESS_VERSIONS,
)
from sidecar.upstreams.mcp.transport import Outbound

META_OF_ERA: Final = frozenset({META_VERSION, META_CAPABILITIES, META_CLIENT, META_LEVEL})
LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
RESUMED_BY_RETRY: Final = frozenset({"tools/call", "prompts/get", "resources/read"})
CACHED: Final = frozenset(
    {"tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read", "server/discover"}
)
PARAMETER_PREFIX: Final = "mcp-param-"
RESOURCE_NOT_FOUND: Final = -32002
URL_ELICITATION_REQUIRED: Final = -32042
MISSING_CAPABILITY: Final = -32021
MAX_QUESTIONS: Final = 16
_OF_STATELESS: Final = frozenset({-32020, MISSING_CAPABILITY, -32022})
_STATUS: Final[Mapping[object, int]] = {METHOD_NOT_FOUND: 404, MISSING_CAPABILITY: 400}
_NEWEST: Final = SESSION_VERSIONS[-1]
# The capability that lets the server send its client each request.
CAPABILITY_OF: Final[Mapping[str, str]] = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}
_LEFT_OUT: Final = frozenset({"_meta", "inputResponses", "requestState", "task"})
_CLIENT_CAPABILITIES: Final = ("sampling", "elicitation", "roots", "experimental")


def without_parameters(outbound: Outbound) -> Outbound:
    """Returns the message without mirrored arguments: a server with sessions only does not use them."""
    extra = [header for header in outbound.extra if not header[0].lower().startswith(PARAMETER_PREFIX)]
    return outbound._replace(extra=extra) if len(extra) < len(outbound.extra) else outbound


def offers(server: Mapping[str, Any], capability: str, feature: str = "") -> bool:
    """Whether the result of `initialize` or `server/discover` declares a capability, or a feature of it."""
    offered = _dict(server.get("capabilities")).get(capability)
    return isinstance(offered, dict) and (not feature or offered.get(feature) is True)


def announces(server: Mapping[str, Any], flag: str) -> bool:
    """Whether the server announces changes of the list that this flag subscribes to."""
    return offers(server, flag.removesuffix("ListChanged"), "listChanged")


def fingerprint(request: Request) -> bytes:
    """Returns a digest of a call's method, its name or URI, and its arguments. A retry must have the same digest."""
    params = request.params
    named = [request.method, params.get("name"), params.get("uri"), params.get("arguments", {})]
    return sha256(orjson.dumps(named, option=orjson.OPT_SORT_KEYS)).digest()


def at_least(level: object, threshold: str | None) -> bool:
    """Whether a log message of this level passes the threshold; none passes None or an unknown one."""
    return threshold in LEVELS and level in LEVELS and LEVELS.index(str(level)) >= LEVELS.index(str(threshold))


def lent_params(params: Mapping[str, Any], token: int) -> dict[str, Any]:
    """Returns parameters without the members of stateless revisions. A call that requests progress receives this
    `token`."""
    kept = {key: value for key, value in params.items() if key not in _LEFT_OUT}
    meta = {key: value for key, value in params.get("_meta", {}).items() if key not in META_OF_ERA}
    if "progressToken" in meta:
        meta["progressToken"] = token
    if meta:
        kept["_meta"] = meta
    return kept


def of_client(declared: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a client of any revision may declare, without changes of its roots, which no caller here can
    announce."""
    kept = {key: declared[key] for key in _CLIENT_CAPABILITIES if isinstance(declared.get(key), dict)}
    return {**kept, "roots": {}} if "roots" in kept else kept


def discovered(server: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the result of `server/discover`, made from that of `initialize`."""
    result: dict[str, Any] = {
        "supportedVersions": list(STATELESS_VERSIONS),
        "capabilities": messages.without_tasks(_dict(server.get("capabilities"))),
    }
    if isinstance(server.get("instructions"), str):
        result["instructions"] = server["instructions"]
    if isinstance(server.get("serverInfo"), dict):
        result["_meta"] = {META_SERVER: server["serverInfo"]}
    return lent_result("server/discover", result)


def lent_result(method: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a result in the form of stateless revisions. That of a method in CACHED is marked as not cacheable, and
    as the caller's alone."""
    full = {**result, "resultType": "complete"}
    if method in CACHED:
        full |= {"ttlMs": 0, "cacheScope": "private"}
    return full


def lent_error(error: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an error without the codes that stateless revisions withdrew."""
    return {**error, "code": INVALID_PARAMS} if error.get("code") == RESOURCE_NOT_FOUND else dict(error)


def lent_status(error: Mapping[str, Any]) -> int:
    """Returns the HTTP status of an error (MCP 2026-07-28, transports): two of the translated codes have their own."""
    return _STATUS.get(error.get("code"), 200)


def urls_asked(error: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the input requests inside an error that asks the client to open a URL first; None for any other error."""
    if error.get("code") != URL_ELICITATION_REQUIRED:
        return None
    elicitations = _dict(error.get("data")).get("elicitations")
    if not isinstance(elicitations, list) or not 0 < len(elicitations) <= MAX_QUESTIONS:
        return None
    questions = {}
    for number, one in enumerate(elicitations):
        if not isinstance(one, dict):
            return None
        questions[f"url-{number}"] = question("elicitation/create", {"mode": "url", **one})
    return questions


def url_capability_missing() -> dict[str, Any]:
    """Returns the error for a caller that cannot be asked to open a URL."""
    needed: dict[str, Any] = {"requiredCapabilities": {"elicitation": {"url": {}}}}
    return {"code": MISSING_CAPABILITY, "message": "An address must be opened first", "data": needed}


def question(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a server's request as an entry of `inputRequests`."""
    asked = {key: value for key, value in params.items() if key not in ("elicitationId", "task", "_meta")}
    return {"method": method, "params": asked}


def input_required(questions: Mapping[str, Any], state: str) -> dict[str, Any]:
    """Returns the result that asks the caller for input."""
    return {"resultType": "input_required", "inputRequests": dict(questions), "requestState": state}


def may_be_asked(capabilities: Mapping[str, Any], method: str, params: Mapping[str, Any]) -> bool:
    """Whether the client declared that it can answer this request."""
    declared = capabilities.get(CAPABILITY_OF.get(method, ""))
    if not isinstance(declared, dict):
        return False
    return params.get("mode") != "url" or "url" in declared


def played_capabilities(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the capabilities of `initialize`, in the form in which each stateless request repeats them."""
    kept = of_client(capabilities)
    if kept.get("elicitation") == {}:
        kept["elicitation"] = {"form": {}}  # the meaning of an empty object before there were two modes
    return kept


def initialized(server: Mapping[str, Any], version: str, name: str) -> dict[str, Any]:
    """Returns the result of `initialize`, made from that of `server/discover`."""
    told = _dict(_dict(server.get("_meta")).get(META_SERVER))
    info = told if isinstance(told.get("name"), str) and isinstance(told.get("version"), str) else None
    capabilities = messages.without_tasks(_dict(server.get("capabilities")))
    capabilities.pop("extensions", None)
    result: dict[str, Any] = {
        "protocolVersion": version,
        "capabilities": capabilities,
        "serverInfo": info or {"name": name, "version": ""},
    }
    if isinstance(server.get("instructions"), str):
        result["instructions"] = server["instructions"]
    return result


def agreed(requested: object) -> str:
    """Returns the revision of an emulated session: the requested one if it is known, otherwise the newest."""
    return str(requested) if requested in SESSION_VERSIONS else _NEWEST


def played_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a result in the form of session revisions."""
    kept = {key: value for key, value in result.items() if key not in ("resultType", "ttlMs", "cacheScope")}
    if isinstance(kept.get("_meta"), dict):
        kept["_meta"] = {key: value for key, value in kept["_meta"].items() if key != META_SERVER}
        if not kept["_meta"]:
            del kept["_meta"]
    return kept


def played_error(error: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Returns an error with the codes of session revisions."""
    code = error.get("code")
    if method == "resources/read" and code == INVALID_PARAMS and "uri" in _dict(error.get("data")):
        return {**error, "code": RESOURCE_NOT_FOUND}  # the URI in its data distinguishes it
    return {**error, "code": INVALID_PARAMS} if code in _OF_STATELESS else dict(error)


def played_question(asked: Mapping[str, Any], version: str) -> tuple[str, dict[str, Any]]:
    """Returns an entry of `inputRequests` as a request of a server in a session: its method and parameters."""
    method, params = str(asked["method"]), dict(_dict(asked.get("params")))
    if method == "elicitation/create":
        if params.get("mode") == "url":
            params["elicitationId"] = secrets.token_urlsafe(16)
        elif version < _NEWEST:
            params.pop("mode", None)  # the only mode that existed had no name
    return method, params


def questions_in(result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `inputRequests`, checked. Raises Refusal(RESPONSE_REFUSED)."""
    asked = result.get("inputRequests", {})
    messages.asked_of_client(result)
    if len(asked) > MAX_QUESTIONS:
        raise Refusal(Reason.RESPONSE_REFUSED, "it sent too many input requests at once")
    state = result.get("requestState")
    if not (state is None or isinstance(state, str)) or (not asked and state is None):
        raise Refusal(Reason.RESPONSE_REFUSED, "it requires input, but sent neither inputRequests nor requestState")
    return dict(asked)


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
