"""Sends operations to agents over HTTP.

The request is built from the decided operation: the sidecar's headers and credential, and the parameters in the agent's
form. Responses are parsed as strictly as requests.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Final, NamedTuple

import orjson

from sidecar.errors import Reason, Refusal
from sidecar.http.client import ClientResponse, Deadline, EgressError, RequestForm, Share
from sidecar.protocols import jsonrpc, sse
from sidecar.protocols.a2a import http
from sidecar.protocols.a2a.errors import BY_CODE, BY_REASON, ERROR_INFO, AgentError
from sidecar.protocols.a2a.forms import FORMS, WireForm
from sidecar.protocols.a2a.operations import Operation, Version
from sidecar.protocols.a2a.schema import UnreadableMessage
from sidecar.upstreams.agents.transport import AgentEvents, Declined, OutgoingOperation, Result, unreadable, unsaid
from sidecar.upstreams.http_address import HttpAddress, body_of, hold, refusal_from
from sidecar.upstreams.mcp.transport import EVENT_STREAM, JSON, MAX_ERROR_BYTES
from sidecar.upstreams.statuses import LIMITED, in_words_of, passes_on, refusal_of

_new = tuple.__new__  # see `jsonrpc.py`
A2A_JSON: Final = "application/a2a+json"
MAX_FORMS: Final = 16


class _Request(NamedTuple):
    """An operation as the agent receives it. `number` is its JSON-RPC id, None in HTTP+JSON. `is_common` if others have
    the same address, because it contains no id and no query."""

    operation: Operation
    form: WireForm
    verb: str
    path: str
    body: bytes | None
    number: int | None = None
    is_common: bool = True

    def take(self, raw: bytes, status: int) -> Any | AgentError:
        """Returns the result or the agent's error in one message. Raises Refusal(RESPONSE_REFUSED)."""
        try:
            said = jsonrpc.parse_answer(raw)
        except Refusal as refusal:
            raise _refused(refusal.detail) from None
        if self.number is not None:
            return _rpc_result(self.number, said)
        error = _error_in(said, status)
        return said if error is None else error

    def read(self, raw: bytes, status: int) -> Result | AgentError:
        """Like `take`, with a result in the canonical form."""
        said = self.take(raw, status)
        try:
            return said if isinstance(said, AgentError) else self.form.read_result(self.operation, said)
        except UnreadableMessage as error:
            raise unreadable(error) from None

    def is_answer(self, data: bytes) -> bool:
        """Whether the data of an event of another type than `message` is a JSON-RPC response to this request."""
        try:
            said = jsonrpc.parse_answer(data) if self.number is not None else None
        except Refusal:
            return False
        return isinstance(said, dict) and "jsonrpc" in said and str(said.get("id")) == str(self.number)


class HttpAgent(ABC):
    """An agent over HTTP. `version` gives the version that it speaks, as far as is known."""

    def __init__(self, address: HttpAddress, version: Callable[[], Version], max_response_bytes: int) -> None:
        self._address = address
        self.secrets = address.credential
        self._version = version
        self._max_bytes = max_response_bytes
        self._forms: dict[tuple[str, str, bool, bool, Version], RequestForm] = {}

    @abstractmethod
    def _request(self, outgoing: OutgoingOperation, version: Version) -> _Request:
        """Raises UnreadableMessage for parameters that this version cannot express."""

    @abstractmethod
    async def _whole(self, asked: _Request, response: ClientResponse) -> Result | AgentError: ...

    async def ask(self, outgoing: OutgoingOperation) -> Result | AgentError:
        try:
            asked, sending = self._send(outgoing)
            response = await sending
            try:
                return await self._whole(asked, response)
            finally:
                response.close()
        except EgressError as failure:
            raise refusal_from(failure) from failure

    async def listen(self, outgoing: OutgoingOperation) -> AgentEvents | AgentError:
        try:
            asked, sending = self._send(outgoing)
            response = await sending
            if response.status == 200 and response.media_type == EVENT_STREAM:
                return HttpStream(asked, response, self._max_bytes)
            with response:
                answer = await self._whole(asked, response)
        except EgressError as failure:
            raise refusal_from(failure) from failure
        if isinstance(answer, AgentError):
            return answer
        raise _refused("it answered in one body where a stream was requested")

    def _send(self, outgoing: OutgoingOperation) -> tuple[_Request, Awaitable[ClientResponse]]:
        """Returns the request and its exchange, to be awaited at once, which gives the head of the response. Both raise
        Refusal, EgressError."""
        version, streams = self._version(), outgoing.operation.streams
        try:
            asked = self._request(outgoing, version)
        except UnreadableMessage as error:
            raise unsaid(error) from None
        _, _, verb, path, body, _, is_common = asked
        what = (verb, path, body is not None, streams, version)
        is_common = is_common and not outgoing.extensions
        form = self._forms.get(what) if is_common else None
        if form is None:
            form = self._form(asked, outgoing, version)
            if is_common:
                while len(self._forms) >= MAX_FORMS:  # callers choose tenants
                    del self._forms[next(iter(self._forms))]
                self._forms[what] = form
        caller, deadline_s = outgoing.caller, outgoing.deadline_s
        return asked, self._address.exchange(form, outgoing.extra, body, caller, deadline_s, streams)

    def _form(self, asked: _Request, outgoing: OutgoingOperation, version: Version) -> RequestForm:
        media_type = A2A_JSON if asked.number is None and version == "1.0" else JSON
        accepted = EVENT_STREAM if outgoing.operation.streams else f"{media_type}, {JSON}"
        headers = [("Accept", accepted), ("A2A-Version", version)]
        if asked.body is not None:
            headers.append(("Content-Type", media_type))
        if outgoing.extensions:
            name = "A2A-Extensions" if version == "1.0" else "X-A2A-Extensions"
            headers.append((name, ", ".join(outgoing.extensions)))
        return self._address.form(asked.verb, asked.path, headers)

    async def _failed(self, asked: _Request, response: ClientResponse) -> Refusal:
        """Returns the refusal of a response that carries only its status; with the error's code and text if the status
        is passed on."""
        refusal = _no_a2a(response)
        if not passes_on(refusal) or response.media_type not in (JSON, A2A_JSON):
            return refusal
        try:
            said = asked.take(await body_of(response, MAX_ERROR_BYTES), response.status)
        except Refusal:
            return refusal
        if not isinstance(said, AgentError) or not said.message:
            return refusal
        return in_words_of(refusal, {"code": said.code, "message": said.message})

    async def close(self) -> None:
        await self._address.close()


class JsonRpcAgent(HttpAgent):
    """An agent over JSON-RPC: every operation is a POST to one address."""

    def __init__(self, address: HttpAddress, version: Callable[[], Version], max_response_bytes: int) -> None:
        super().__init__(address, version, max_response_bytes)
        self._numbers = itertools.count(1)

    def _request(self, outgoing: OutgoingOperation, version: Version) -> _Request:
        operation, form, number = outgoing.operation, FORMS[version, "jsonrpc"], next(self._numbers)
        params = form.write_params(operation, outgoing.params)
        message = {"jsonrpc": "2.0", "id": number, "method": operation.rpc(version), "params": params}
        return _new(_Request, (operation, form, "POST", self._address.origin.path, orjson.dumps(message), number, True))

    async def _whole(self, asked: _Request, response: ClientResponse) -> Result | AgentError:
        head = response.head
        status = head.status
        if status >= 500 or status == LIMITED or head.media_type != JSON:
            raise await self._failed(asked, response)
        return asked.read(await response.read(self._max_bytes), status)


class HttpJsonAgent(HttpAgent):
    """An agent over HTTP+JSON: each operation has an address of its own."""

    def _request(self, outgoing: OutgoingOperation, version: Version) -> _Request:
        operation, form, params = outgoing.operation, FORMS[version, "http_json"], dict(outgoing.params)
        route = operation.http(version)[0]
        tenant = str(params.pop("tenant", "")) if version == "1.0" else ""
        ids, rest = _apart(operation, params)
        path = self._address.origin.path.rstrip("/") + http.path_to(route, ids, tenant)
        told, body, query = form.write_params(operation, outgoing.params), None, ""
        if route.has_body:
            body = orjson.dumps(told)
        else:
            query = http.query_from((name, told[name]) for name in rest if name in told)
        return _Request(operation, form, route.verb, path + query, body, is_common=not ids and not query)

    async def _whole(self, asked: _Request, response: ClientResponse) -> Result | AgentError:
        if response.status != 200:
            return await self._error(asked, response)
        if not asked.operation.response:
            return {}
        return asked.read(await response.read(self._max_bytes), 200)

    async def _error(self, asked: _Request, response: ClientResponse) -> AgentError:
        """Returns the agent's error. Raises Refusal if the error does not come from the agent."""
        status = response.status
        if status == LIMITED or (status >= 500 and status not in (500, 501)):
            raise await self._failed(asked, response)
        if response.media_type not in (JSON, A2A_JSON):
            if status in (404, 405):  # the agent has no such address: agents need not offer every operation
                return AgentError(-32601, "")
            raise _no_a2a(response)
        raw = await response.read(MAX_ERROR_BYTES)
        if status == 500:  # either the agent's own error, or a failing server in front of it
            if (error := _own_error_in(raw)) is None:
                raise _no_a2a(response)
            return error
        said = asked.take(raw, status)
        return said if isinstance(said, AgentError) else AgentError(_CODE_OF_STATUS.get(status, -32603), "")


class HttpStream:
    """Events over a connection. One of another type than `message` is read only if it is an answer."""

    def __init__(self, asked: _Request, response: ClientResponse, max_event_bytes: int) -> None:
        self._asked, self._response, self._max_event_bytes = asked, response, max_event_bytes

    async def events(self, deadline: Deadline, idle_s: float) -> AsyncGenerator[Result | AgentError | None, None]:
        parser, share = sse.SseParser(self._max_event_bytes), Share()
        try:
            async with aclosing(self._response.chunks(idle_s=idle_s, deadline=deadline)) as chunks:
                async for chunk in chunks:
                    await hold(share, parser.held_bytes + len(chunk), deadline)
                    for event in parser.feed(chunk):
                        data = (event.data or "").encode()
                        if not event.message and not (data and self._asked.is_answer(data)):
                            yield None
                            continue
                        said = self._asked.read(data, self._response.status)
                        yield said
                        if isinstance(said, AgentError):
                            return
        except EgressError as failure:
            raise refusal_from(failure) from failure
        finally:
            share.close()

    def close(self) -> None:
        self._response.close()


_CODE_OF_STATUS: Final = {404: -32001, 400: -32602, 405: -32601, 409: -32002, 415: -32005, 501: -32004}


def _rpc_result(number: int, said: Any) -> Any | AgentError:
    """Returns the result or error in a response to request `number`. An error about an unreadable request has no id.
    Raises Refusal(RESPONSE_REFUSED)."""
    if isinstance(said, dict) and "error" in said and said["error"] is None and said.get("result") is not None:
        said = {name: value for name, value in said.items() if name != "error"}  # some libraries write both
    if not isinstance(said, dict) or ("result" in said and "error" in said):
        raise _refused("its answer is not a JSON-RPC response")
    if said.get("id") is not None and str(said["id"]) != str(number):
        raise _refused("its answer has the id of another request")
    if "error" not in said:
        return said.get("result")  # the official 0.3 SDK omits a result that is null
    error = said["error"]
    if not isinstance(error, dict) or type(error.get("code")) is not int:  # to isinstance, a bool is an int
        raise _refused("its error is not a JSON-RPC error")
    return AgentError(error["code"], _text(error.get("message")), tuple(_details(error.get("data"))))


def _error_in(said: Any, status: int) -> AgentError | None:
    """Returns the error in a body of HTTP+JSON of either version, if any. In 0.3, the kind is in the status, or in a
    code of A2A."""
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
    """Returns the error in a body, if it is one of A2A's; any web framework may write JSON when it fails."""
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
    """Whether it has a type and, for an `ErrorInfo`, members that are strings and a map of strings."""
    if one.get("@type") != ERROR_INFO:
        return isinstance(one.get("@type"), str)
    metadata = one.get("metadata", {})
    texts = [one.get("reason", ""), one.get("domain", "")]
    return isinstance(metadata, dict) and all(isinstance(text, str) for text in (*texts, *metadata.values()))


def _text(said: Any) -> str:
    return said[:1024] if isinstance(said, str) else ""


def _apart(operation: Operation, params: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
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
    """Returns the refusal of a response that carries only its status. A success that is not A2A is a fault."""
    refusal = refusal_of(response)
    if 300 <= response.status < 500 and not passes_on(refusal):
        return Declined(refusal.detail)
    return refusal


def _refused(detail: str) -> Refusal:
    return Refusal(Reason.RESPONSE_REFUSED, detail)
