"""Writes answers and refusals in the caller's version and binding.

Each binding has one `ResponseWriter`. Results and an agent's errors come in canonical form; refusals are mapped by the
table below. JSON-RPC carries errors that A2A and JSON-RPC define in HTTP 200, as the official SDK does; errors that
only HTTP defines have their own status.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import orjson

from sidecar.errors import Reason, Refusal
from sidecar.gateway.error_responses import JSON, DenyManner, ErrorResponse, facts_of, headers_of, message_of
from sidecar.gateway.frontends.mcp_requests import EVENT_STREAM
from sidecar.protocols.a2a.errors import BY_REASON, DOMAIN, ERROR_INFO, KINDS, OF_03, AgentError, AgentErrorKind
from sidecar.protocols.a2a.forms import FORMS
from sidecar.protocols.a2a.operations import Binding, Operation, Version
from sidecar.protocols.a2a.schema import UnreadableMessage
from sidecar.protocols.jsonrpc import Id

A2A_JSON: Final = "application/a2a+json"
OUR_DOMAIN: Final = "sidecar"
# Reasons for which A2A defines an error. All others have the HTTP status as their code.
WORDS: Final[Mapping[Reason, str]] = {
    Reason.TASK_UNKNOWN: "TASK_NOT_FOUND",
    Reason.METHOD_UNKNOWN: "METHOD_NOT_FOUND",
    Reason.VERSION_UNSUPPORTED: "VERSION_NOT_SUPPORTED",
    Reason.BAD_ARGUMENTS: "INVALID_PARAMS",
    Reason.UNSUPPORTED_MEDIA_TYPE: "CONTENT_TYPE_NOT_SUPPORTED",
}
_STATUS_OF: Final[Mapping[int, str]] = {
    **dict.fromkeys((400, 413, 415), "INVALID_ARGUMENT"), 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED",
    404: "NOT_FOUND", 405: "UNIMPLEMENTED", 429: "RESOURCE_EXHAUSTED", 500: "INTERNAL",
    **dict.fromkeys((502, 503), "UNAVAILABLE"), 504: "DEADLINE_EXCEEDED",
}  # fmt: skip
_CODE_WORDS: Final[Mapping[int, str]] = {kind.code: kind.reason for kind in KINDS if -32700 <= kind.code <= -32600}


class TaskWaits(Refusal):
    """A message waits for approval. `task` is the answer to it, in the form that its `operation` requires."""

    def __init__(self, operation: Operation, task: dict[str, Any], data: Mapping[str, Any]) -> None:
        super().__init__(Reason.APPROVAL_PENDING, "its task goes on when it is approved", data=data)
        self.operation, self.task = operation, task


def word_for(refusal: Refusal) -> AgentErrorKind | None:
    word = WORDS.get(refusal.reason)
    if refusal.reason is Reason.MALFORMED_CALL:
        word = _CODE_WORDS.get(refusal.code, "INVALID_REQUEST")
    return None if word is None else BY_REASON[word]


def sentence_for(refusal: Refusal, facts: Mapping[str, Any]) -> str:
    """Returns the sentence of a refusal. For an unknown task it is the sentence that agents use, because clients of 0.3
    match it, and because a task of another owner must look like an unknown one."""
    if refusal.reason is Reason.TASK_UNKNOWN:
        return BY_REASON["TASK_NOT_FOUND"].message
    return message_of(refusal, facts)


def written(writer: ResponseWriter, operation: Operation, result: dict[str, Any]) -> Any:
    """Returns an agent's result, or one event, in the caller's form. Raises Refusal(RESPONSE_REFUSED)."""
    if writer.version == "1.0":
        return result  # the canonical form
    try:
        return FORMS[writer.version, writer.binding].write_result(operation, result)
    except UnreadableMessage as error:
        raise unsayable(error) from None


def unsayable(error: UnreadableMessage) -> Refusal:
    return Refusal(Reason.RESPONSE_REFUSED, f"its result cannot be represented in this protocol version: {error}")


def grpc_status(refusal: Refusal) -> str:
    word = word_for(refusal)
    return word.grpc if word is not None else _STATUS_OF.get(refusal.answer.http, "UNKNOWN")


@dataclass(slots=True)
class ResponseWriter(ABC):
    """Writes one version in one binding."""

    version: Version

    binding: ClassVar[Binding]

    @abstractmethod
    def result(self, operation: Operation, result: dict[str, Any]) -> ErrorResponse:
        """Returns a complete answer."""

    @abstractmethod
    def event(self, operation: Operation, event: dict[str, Any]) -> bytes:
        """Returns one event of a stream."""

    @abstractmethod
    def error(self, error: AgentError) -> ErrorResponse:
        """Returns an agent's error as a complete answer."""

    @abstractmethod
    def error_event(self, error: AgentError) -> bytes:
        """Returns an agent's error as the last event of a stream."""

    def tell(self, refusal: Refusal, decision_id: str, manner: DenyManner, resource_metadata: str) -> ErrorResponse:
        """Returns a refusal as a complete answer."""
        if not isinstance(refusal, TaskWaits):
            return self.refusal(refusal, decision_id, manner, resource_metadata)
        answer = {"task": refusal.task}
        if refusal.operation.streams:
            return ErrorResponse(200, self.event(refusal.operation, answer), EVENT_STREAM)
        return self.result(refusal.operation, answer)

    @abstractmethod
    def refusal(self, refusal: Refusal, decision_id: str, manner: DenyManner, resource_metadata: str) -> ErrorResponse:
        """Returns a refusal as an error."""

    @abstractmethod
    def refusal_event(self, refusal: Refusal, decision_id: str, manner: DenyManner) -> bytes:
        """Returns a refusal as the last event of a stream."""


class JsonWriter(ResponseWriter):
    """Writes JSON. Events of errors are named `error_event_name`, if they have a name."""

    __slots__ = ()

    error_event_name: ClassVar[bytes] = b""

    def event(self, operation: Operation, event: dict[str, Any]) -> bytes:
        return _event(self._result(written(self, operation, event)))

    def error(self, error: AgentError) -> ErrorResponse:
        status, body = self._error(error)
        return self._told(status, body, {})

    def error_event(self, error: AgentError) -> bytes:
        return _event(self._error(error)[1], self.error_event_name)

    def refusal(self, refusal: Refusal, decision_id: str, manner: DenyManner, resource_metadata: str) -> ErrorResponse:
        facts = facts_of(refusal, decision_id, manner)
        status, body = self._refusal(refusal, facts, manner)
        return self._told(status, body, headers_of(refusal, facts, resource_metadata))

    def refusal_event(self, refusal: Refusal, decision_id: str, manner: DenyManner) -> bytes:
        _, body = self._refusal(refusal, facts_of(refusal, decision_id, manner), manner)
        return _event(body, self.error_event_name)

    def _told(self, status: int, body: bytes, headers: Mapping[str, str]) -> ErrorResponse:
        return ErrorResponse(status, body, JSON, headers)

    @abstractmethod
    def _result(self, said: Any) -> bytes: ...

    @abstractmethod
    def _error(self, error: AgentError) -> tuple[int, bytes]: ...

    @abstractmethod
    def _refusal(self, refusal: Refusal, facts: Mapping[str, Any], manner: DenyManner) -> tuple[int, bytes]: ...


@dataclass(slots=True)
class JsonRpcWriter(JsonWriter):
    """Writes JSON-RPC. `request_id`, and whether the operation `streams`, are known once the message is read."""

    request_id: Id | None = None
    streams: bool = False

    binding = "jsonrpc"

    def result(self, operation: Operation, result: dict[str, Any]) -> ErrorResponse:
        said = written(self, operation, result) if operation.response else None
        return ErrorResponse(200, self._result(said), JSON)

    def _result(self, said: Any) -> bytes:
        return orjson.dumps({"jsonrpc": "2.0", "id": self.request_id, "result": said})

    def _told(self, status: int, body: bytes, headers: Mapping[str, str]) -> ErrorResponse:
        """Returns an error. To a streaming request, the official client of 0.3 requires a stream of one event."""
        if self.version == "0.3" and self.streams:
            return ErrorResponse(status, _event(body), EVENT_STREAM, headers)
        return ErrorResponse(status, body, JSON, headers)

    def _refusal(self, refusal: Refusal, facts: Mapping[str, Any], manner: DenyManner) -> tuple[int, bytes]:
        word = word_for(refusal)
        code = refusal.answer.http if word is None else word.code
        data: Any = dict(facts) if self.version == "0.3" else [info_of(word, facts)]
        error = {"code": code, "message": sentence_for(refusal, facts), "data": data}
        return _rpc_status(refusal, word, manner), self._response({"error": error})

    def _error(self, error: AgentError) -> tuple[int, bytes]:
        said: dict[str, Any] = {"code": error.code, "message": error.message}
        if self.version == "0.3":
            if error.kind.reason not in OF_03:
                said["code"] = BY_REASON["INTERNAL_ERROR"].code
        elif details := details_of(error):
            said["data"] = details
        return 200, self._response({"error": said})

    def _response(self, said: Mapping[str, Any]) -> bytes:
        return orjson.dumps({"jsonrpc": "2.0", "id": self.request_id, **said})


class HttpJsonWriter(JsonWriter):
    """Writes HTTP+JSON."""

    __slots__ = ()

    binding = "http_json"
    error_event_name = b"error"

    def result(self, operation: Operation, result: dict[str, Any]) -> ErrorResponse:
        said = written(self, operation, result) if operation.response else {}
        # The media type of a result. Errors are JSON, as in the official SDK.
        return ErrorResponse(200, self._result(said), A2A_JSON if self.version == "1.0" else JSON)

    def _result(self, said: Any) -> bytes:
        return orjson.dumps(said)

    def _refusal(self, refusal: Refusal, facts: Mapping[str, Any], manner: DenyManner) -> tuple[int, bytes]:
        word, status, message = word_for(refusal), refusal.answer.http, sentence_for(refusal, facts)
        if word is not None and status not in (405, 415):
            status = word.http
        if self.version == "0.3":
            said = {"message": message, "code": status if word is None else word.code, "data": dict(facts)}
            return status, orjson.dumps(said)
        name = _STATUS_OF.get(status, "UNKNOWN") if word is None else word.grpc
        info = info_of(word, facts)
        return status, orjson.dumps({"error": {"code": status, "status": name, "message": message, "details": [info]}})

    def _error(self, error: AgentError) -> tuple[int, bytes]:
        kind = error.kind
        if self.version == "0.3":
            return kind.http, orjson.dumps({"message": error.message, "code": kind.code})
        said = {"code": kind.http, "status": kind.grpc, "message": error.message, "details": details_of(error)}
        return kind.http, orjson.dumps({"error": said})


def info_of(word: AgentErrorKind | None, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the `google.rpc.ErrorInfo` of a refusal, in which every value is text."""
    told = str(facts.get("reason", "denied")).replace("-", "_").upper()
    return {
        "@type": ERROR_INFO,
        "reason": told if word is None else word.reason,
        "domain": OUR_DOMAIN if word is None else DOMAIN,
        "metadata": {name: str(value) for name, value in facts.items()},
    }


def details_of(error: AgentError) -> list[dict[str, Any]]:
    """Returns the agent's error details, without those under the sidecar's name, or the detail that A2A 1.0
    requires."""
    theirs = [dict(one) for one in error.data if one.get("domain") != OUR_DOMAIN]
    if theirs:
        return theirs
    return [{"@type": ERROR_INFO, "reason": error.kind.reason, "domain": DOMAIN, "metadata": {}}]


def _rpc_status(refusal: Refusal, word: AgentErrorKind | None, manner: DenyManner) -> int:
    """Returns the HTTP status of a refusal in JSON-RPC. Errors that A2A defines have status 200; denials, limits and
    failures have their own status unless `deny_style` excludes it."""
    answer = refusal.answer
    if answer.http < 300 or refusal.reason is Reason.METHOD_UNKNOWN or (word is not None and answer.http in (400, 404)):
        return 200
    return answer.session_http if manner.deny_style in ("jsonrpc", "tool_result") else answer.http


def _event(data: bytes, name: bytes = b"") -> bytes:
    """Returns one event. `data` is JSON written here, and therefore one line."""
    head = b"event: " + name + b"\n" if name else b""
    return head + b"data: " + data + b"\n\n"
