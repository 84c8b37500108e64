"""Sends operations to agents over HTTP.

In JSON-RPC every operation is a POST to one address; in HTTP+JSON each operation has its own. The request is built from
what was decided: the sidecar's headers and credential, and the parameters rewritten in the form that the agent speaks.
Responses are parsed as strictly as requests.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from sidecar.errors import Reason, Refusal
from sidecar.http.client import (
    ANSWERS,
    ClientResponse,
    Deadline,
    EgressError,
    HttpClient,
    InvalidRequest,
    RequestForm,
    parse_origin,
)
from sidecar.protocols import jsonrpc, sse
from sidecar.protocols.a2a import http
from sidecar.protocols.a2a.errors import BY_CODE, BY_REASON, ERROR_INFO, AgentError
from sidecar.protocols.a2a.forms import WireForm, form_of
from sidecar.protocols.a2a.operations import Operation, Version
from sidecar.protocols.a2a.schema import UnreadableMessage
from sidecar.upstreams.agents.transport import AgentEvents, AgentTransport, Declined, OutgoingOperation, Result, unsaid
from sidecar.upstreams.credentials import CredentialSource, same, shown_within
from sidecar.upstreams.mcp.streamable_http import MAX_STREAMS, hold, media_type_of, refusal_from
from sidecar.upstreams.mcp.transport import EVENT_STREAM, JSON, MAX_ERROR_BYTES
from sidecar.upstreams.statuses import LIMITED, in_words_of, passes_on, refusal_of

A2A_JSON: Final = "application/a2a+json"
_ENDED = "its stream ended without an answer"
VersionOf = Callable[[], Version]
"""The version that the agent speaks, as far as is known now."""


class AgentLine:
    """The connections to one agent, and what every request to it has in common."""

    def __init__(
        self,
        url: str,
        *,
        credential: CredentialSource | None,
        headers: Sequence[tuple[str, str]],
        connect_timeout_s: float,
        max_connections: int,
        max_response_bytes: int,
    ) -> None:
        """Raises ValueError for an invalid URL."""
        self.max_response_bytes = max_response_bytes
        self.credential = credential
        self._origin = parse_origin(url)
        self.base = self._origin.path.rstrip("/")
        self.path = self._origin.path
        self._headers = tuple(headers)
        self._calls = HttpClient(self._origin, connect_timeout_s=connect_timeout_s, max_connections=max_connections)
        self._streams = HttpClient(
            self._origin, connect_timeout_s=connect_timeout_s, max_idle=0, max_connections=MAX_STREAMS
        )

    async def send(
        self, verb: str, path: str, body: bytes | None, outgoing: OutgoingOperation, version: Version, media_type: str
    ) -> ClientResponse:
        """Send one request; returns when the head of the response is here. Raises Refusal."""
        streams = outgoing.operation.streams
        headers = [("Accept", EVENT_STREAM if streams else f"{media_type}, {JSON}"), ("A2A-Version", version)]
        if body is not None:
            headers.append(("Content-Type", media_type))
        if outgoing.extensions:
            name = "A2A-Extensions" if version == "1.0" else "X-A2A-Extensions"
            headers.append((name, ", ".join(outgoing.extensions)))
        headers += [*self._headers, *outgoing.extra]
        deadline_s, shown = outgoing.deadline_s, None
        if self.credential is not None:
            shown, deadline_s = await shown_within(self.credential, outgoing.caller, deadline_s)
            if shown is not None:
                headers.append(shown)
        client = self._streams if streams else self._calls
        try:
            form = RequestForm(verb, path, self._origin.host_header, headers)
            response = await client.send(form.message((), body), deadline_s=deadline_s)
        except InvalidRequest as failure:
            raise Refusal(Reason.MALFORMED_CALL, "a value cannot be sent in an address or a header") from failure
        except EgressError as failure:
            raise refusal_from(failure) from failure
        if response.status == 401 and shown is not None and self.credential is not None:
            self.credential.refused(outgoing.caller, shown)
        return response

    async def read(self, response: ClientResponse, max_bytes: int) -> bytes:
        """Read a whole body. Raises Refusal."""
        try:
            return await response.read(max_bytes)
        except EgressError as failure:
            raise refusal_from(failure) from failure

    async def failed(self, response: ClientResponse, take: Callable[[Any], Any | AgentError]) -> Refusal:
        """The refusal of a response that carries only its status. If that status is passed on, the refusal has the text
        of the error that `take` finds in the body.
        """
        refusal = _no_a2a(response)
        if not passes_on(refusal) or media_type_of(response) not in (JSON, A2A_JSON):
            return refusal
        try:
            said = take(_parsed(await self.read(response, MAX_ERROR_BYTES)))
        except Refusal:
            return refusal
        if not isinstance(said, AgentError) or not said.message:
            return refusal
        return in_words_of(refusal, {"code": said.code, "message": said.message})

    async def close(self) -> None:
        """Close every connection."""
        await self._calls.close()
        await self._streams.close()
        if self.credential is not None:
            await self.credential.close()


class JsonRpcAgent:
    """An agent that speaks JSON-RPC."""

    def __init__(self, line: AgentLine, version: VersionOf) -> None:
        self._line = line
        self._version = version
        self._numbers = itertools.count(1)

    async def ask(self, outgoing: OutgoingOperation) -> Result | AgentError:
        version, number = self._version(), next(self._numbers)
        with await self._sent(outgoing, version, number) as response:
            return await self._whole(response, outgoing.operation, version, number)

    async def listen(self, outgoing: OutgoingOperation) -> AgentEvents | AgentError:
        version, number = self._version(), next(self._numbers)
        response = await self._sent(outgoing, version, number)
        if response.status == 200 and media_type_of(response) == EVENT_STREAM:
            read = _reader(form_of(version, "jsonrpc"), outgoing.operation, partial(_rpc_event, number))
            return HttpStream(response, read, self._line.max_response_bytes, partial(_is_to, number))
        with response:
            answer = await self._whole(response, outgoing.operation, version, number)
        if isinstance(answer, AgentError):
            return answer
        raise _refused("it answers whole where a stream was asked for")

    async def _sent(self, outgoing: OutgoingOperation, version: Version, number: int) -> ClientResponse:
        operation = outgoing.operation
        params = _written(form_of(version, "jsonrpc"), outgoing)
        message = {"jsonrpc": "2.0", "id": number, "method": operation.rpc(version), "params": params}
        return await self._line.send("POST", self._line.path, orjson.dumps(message), outgoing, version, JSON)

    async def _whole(
        self, response: ClientResponse, operation: Operation, version: Version, number: int
    ) -> Result | AgentError:
        if response.status >= 500 or response.status == LIMITED or media_type_of(response) != JSON:
            raise await self._line.failed(response, partial(_rpc_event, number))
        raw = await self._line.read(response, self._line.max_response_bytes)
        return _reader(form_of(version, "jsonrpc"), operation, partial(_rpc_event, number))(raw)

    def shows_the_same_as(self, other: AgentTransport) -> bool:
        return isinstance(other, JsonRpcAgent) and same(self._line.credential, other._line.credential)

    async def close(self) -> None:
        await self._line.close()


class HttpJsonAgent:
    """An agent that speaks HTTP+JSON."""

    def __init__(self, line: AgentLine, version: VersionOf) -> None:
        self._line = line
        self._version = version

    async def ask(self, outgoing: OutgoingOperation) -> Result | AgentError:
        version = self._version()
        with await self._sent(outgoing, version) as response:
            if response.status != 200:
                return await self._error(response)
            if not outgoing.operation.response:
                return {}
            raw = await self._line.read(response, self._line.max_response_bytes)
            return _reader(form_of(version, "http_json"), outgoing.operation, _bare_event)(raw)

    async def listen(self, outgoing: OutgoingOperation) -> AgentEvents | AgentError:
        version = self._version()
        response = await self._sent(outgoing, version)
        if response.status == 200 and media_type_of(response) == EVENT_STREAM:
            read = _reader(form_of(version, "http_json"), outgoing.operation, _bare_event)
            return HttpStream(response, read, self._line.max_response_bytes)
        with response:
            if response.status != 200:
                return await self._error(response)
        raise _refused("it answers whole where a stream was asked for")

    async def _sent(self, outgoing: OutgoingOperation, version: Version) -> ClientResponse:
        operation, params = outgoing.operation, dict(outgoing.params)
        route = operation.http(version)[0]
        tenant = str(params.pop("tenant", "")) if version == "1.0" else ""
        ids, rest = _apart(operation, params)
        try:
            path = self._line.base + http.path_to(route, ids, tenant)
        except UnreadableMessage as error:
            raise unsaid(error) from None
        written = _written(form_of(version, "http_json"), outgoing)
        if not route.has_body:
            query = http.query_from((name, written[name]) for name in rest if name in written)
            return await self._line.send(route.verb, path + query, None, outgoing, version, _media_type(version))
        body = orjson.dumps(written)
        return await self._line.send(route.verb, path, body, outgoing, version, _media_type(version))

    async def _error(self, response: ClientResponse) -> AgentError:
        """The agent's error in a response with an error status. Raises Refusal if the error does not come from the
        agent.
        """
        if response.status == LIMITED or (response.status >= 500 and response.status not in (500, 501)):
            raise await self._line.failed(response, partial(_error_in, status=response.status))
        if media_type_of(response) not in (JSON, A2A_JSON):
            if response.status in (404, 405):  # the agent has no such address: not every agent has every operation
                return AgentError(-32601, "")
            raise _no_a2a(response)
        raw = await self._line.read(response, MAX_ERROR_BYTES)
        if response.status == 500:  # either the agent's own error, or a failing server in front of it
            if (error := _own_error_in(raw)) is None:
                raise _no_a2a(response)
            return error
        return _error_in(_parsed(raw), response.status) or AgentError(_CODE_OF_STATUS.get(response.status, -32603), "")

    def shows_the_same_as(self, other: AgentTransport) -> bool:
        return isinstance(other, HttpJsonAgent) and same(self._line.credential, other._line.credential)

    async def close(self) -> None:
        await self._line.close()


class HttpStream:
    """A stream of events over a connection. An event of another type than `message` is skipped unless `is_answer`
    accepts its data: some agents send an error in an event named `error`.
    """

    def __init__(
        self,
        response: ClientResponse,
        read: Callable[[bytes], Result | AgentError],
        max_event_bytes: int,
        is_answer: Callable[[bytes], bool] = lambda data: False,
    ) -> None:
        self._response = response
        self._is_answer = is_answer
        self._read = read
        self._max_event_bytes = max_event_bytes

    async def events(self, deadline: Deadline, idle_s: float) -> AsyncGenerator[Result | AgentError | None, None]:
        parser, share = sse.SseParser(self._max_event_bytes), ANSWERS.share()
        try:
            async with aclosing(self._response.chunks(idle_s=idle_s, deadline=deadline)) as chunks:
                async for chunk in chunks:
                    await hold(share, parser.held_bytes + len(chunk), deadline)
                    for event in parser.feed(chunk):
                        data = (event.data or "").encode()
                        if not event.message and not (data and self._is_answer(data)):
                            yield None
                            continue
                        said = self._read(data)
                        yield said
                        if isinstance(said, AgentError):
                            return
        except EgressError as failure:
            raise refusal_from(failure) from failure
        finally:
            share.close()

    def close(self) -> None:
        self._response.close()


def line_from(url: str, **how: Any) -> AgentLine:
    """An `AgentLine` to the address of an interface."""
    return AgentLine(url, **how)


def is_address(url: str) -> bool:
    """Whether the URL is an HTTP address."""
    return urlsplit(url).scheme in ("http", "https")


# --- responses --------------------------------------------------------------------------------------------------------

_CODE_OF_STATUS: Final[Mapping[int, int]] = {
    404: -32001,
    400: -32602,
    405: -32601,
    409: -32002,
    415: -32005,
    501: -32004,
}


def _reader(
    form: WireForm, operation: Operation, take: Callable[[Any], Any | AgentError]
) -> Callable[[bytes], Result | AgentError]:
    """Reads one message: an error, or a result in the canonical form. Raises Refusal(RESPONSE_REFUSED)."""

    def read(raw: bytes) -> Result | AgentError:
        said = take(_parsed(raw))
        if isinstance(said, AgentError):
            return said
        try:
            return form.read_result(operation, said)
        except UnreadableMessage as error:
            raise _refused(f"its result cannot be read: {error.pointer or '/'} {error.problem}") from None

    return read


def _parsed(raw: bytes) -> Any:
    try:
        return jsonrpc.parse_answer(raw)
    except Refusal as refusal:
        raise _refused(refusal.detail) from None


def _rpc_event(number: int, said: Any) -> Any | AgentError:
    """The result or error in a response to request `number`. An error about an unreadable request has no id."""
    if isinstance(said, dict) and said.get("result") is not None and said.get("error", said) is None:
        said = {name: value for name, value in said.items() if name != "error"}  # some libraries write both
    if not isinstance(said, dict) or ("result" in said and "error" in said):
        raise _refused("its answer is no JSON-RPC response")
    if said.get("id") is not None and str(said["id"]) != str(number):
        raise _refused("its answer is to another request")
    if "error" not in said:
        return said.get("result")  # the official 0.3 SDK omits a result that is null
    error = said["error"]
    if not isinstance(error, dict) or type(error.get("code")) is not int:  # a bool is one to isinstance
        raise _refused("its error is no JSON-RPC error")
    return AgentError(error["code"], _text(error.get("message")), tuple(_details(error.get("data"))))


def _is_to(number: int, data: bytes) -> bool:
    """Whether this is a JSON-RPC response to our request of this number."""
    try:
        said = jsonrpc.parse_answer(data)
    except Refusal:
        return False
    return isinstance(said, dict) and "jsonrpc" in said and str(said.get("id")) == str(number)


def _bare_event(said: Any) -> Any | AgentError:
    error = _error_in(said, 200)
    return said if error is None else error


def _error_in(said: Any, status: int) -> AgentError | None:
    """The error in a body of HTTP+JSON, of either version; None if there is none. In 0.3 only the status gives the
    kind.
    """
    if not isinstance(said, dict):
        return None
    error = said.get("error")
    if isinstance(error, dict):
        details = tuple(_details(error.get("details")))
        reasons = [one.get("reason", "") for one in details if one.get("@type") == ERROR_INFO]
        kind = next((BY_REASON[reason] for reason in reasons if reason in BY_REASON), None)
        code = error.get("code")
        known = _CODE_OF_STATUS.get(code, -32603) if isinstance(code, int) else -32603
        return AgentError(known if kind is None else kind.code, _text(error.get("message")), details)
    if isinstance(said.get("message"), str) and said.keys() <= {"message", "code", "data", "type"}:
        code = said.get("code")
        if not isinstance(code, int) or code not in BY_CODE:
            code = _CODE_OF_STATUS.get(status, -32603)
        return AgentError(code, _text(said["message"]))
    return None


def _own_error_in(raw: bytes) -> AgentError | None:
    """The error in a body, if it is one of A2A's: any web framework writes JSON when it fails."""
    try:
        said = jsonrpc.parse_answer(raw)
    except Refusal:
        return None
    error = _error_in(said, 500)
    if error is None:
        return None
    words = [one.get("reason") for one in error.data if one.get("@type") == ERROR_INFO]
    code = said.get("code")
    return error if any(word in BY_REASON for word in words) or (isinstance(code, int) and code in BY_CODE) else None


def _details(data: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(data, list):
        yield from (one for one in data[:16] if isinstance(one, dict) and _is_detail(one))


def _is_detail(one: Mapping[str, Any]) -> bool:
    """Whether it is an object with a type, and, if it is an `ErrorInfo`, one whose members are strings and a map of
    strings.
    """
    if one.get("@type") != ERROR_INFO:
        return isinstance(one.get("@type"), str)
    metadata = one.get("metadata", {})
    texts = [one.get("reason", ""), one.get("domain", "")]
    return isinstance(metadata, dict) and all(isinstance(text, str) for text in (*texts, *metadata.values()))


def _text(said: Any) -> str:
    return said[:1024] if isinstance(said, str) else ""


def _apart(operation: Operation, params: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """The ids for the path, and the remaining parameters."""
    rest = dict(params)
    if operation.request in ("GetTaskRequest", "CancelTaskRequest", "SubscribeToTaskRequest"):
        return {"task": str(rest.pop("id", ""))}, rest
    if "taskId" in rest:
        task, config = str(rest.pop("taskId")), rest.get("id", "")
        if operation.action in ("push/get", "push/delete"):
            rest.pop("id", None)
        return {"task": task, "config": str(config)}, rest
    return {}, rest


def _no_a2a(response: ClientResponse) -> Refusal:
    """The refusal of a response that carries only its status. A success that is not A2A is a fault."""
    refusal = refusal_of(response)
    if 300 <= response.status < 500 and not passes_on(refusal):
        return Declined(refusal.detail)
    return refusal


def _media_type(version: Version) -> str:
    return A2A_JSON if version == "1.0" else JSON


def _written(form: WireForm, outgoing: OutgoingOperation) -> Result:
    """The parameters in the agent's form. Raises Unsent for what that form cannot express."""
    try:
        return form.write_params(outgoing.operation, outgoing.params)
    except UnreadableMessage as error:
        raise unsaid(error) from None


def _refused(detail: str) -> Refusal:
    return Refusal(Reason.RESPONSE_REFUSED, detail)
