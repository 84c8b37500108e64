"""Reads the canonical operation from a request at an agent's address.

    POST /agents/{agent}/                       JSON-RPC, 0.3 and 1.0 by `A2A-Version`
    …    /agents/{agent}/v1/…                   HTTP+JSON of 0.3
    …    /agents/{agent}/[{tenant}/]…           HTTP+JSON of 1.0

Each yields one `AgentOperation` with canonical parameters. Only the `ResponseWriter` depends on the binding after that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from sidecar.errors import Reason, Refusal
from sidecar.gateway.frontends.a2a.response_writers import HttpJsonWriter, JsonRpcWriter, ResponseWriter
from sidecar.gateway.routing import Headers
from sidecar.http.server.event_stream import EventStream
from sidecar.protocols import jsonrpc
from sidecar.protocols.a2a import http, operations
from sidecar.protocols.a2a.forms import FORMS
from sidecar.protocols.a2a.messages import PROTO03, V10
from sidecar.protocols.a2a.operations import CARD, LIST, SEND, STREAM, Operation, OperationRoute, Version
from sidecar.protocols.a2a.schema import UnreadableMessage
from sidecar.protocols.a2a.v03 import request_name
from sidecar.protocols.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, Request, malformed
from sidecar.vocabulary import SKILL, Call, Question, skill_in

MAX_EXTENSIONS: Final = 16
MAX_NAMED: Final = 100
_EXTENSION = re.compile(r"[!-+\--~]{1,512}\Z")  # a URI, without blanks and commas
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_CREDENTIALS: Final = ("token", "authentication")
_SAID_10: Final = ("1.0",)
_new = tuple.__new__  # as in `jsonrpc.py`
_OF_TASK: Final = frozenset({"push/set", "push/get", "push/list", "push/delete"})


class CalledName:
    """A request that already names its operation, with its parameters and the stream of its answer."""

    operation: Operation
    dialect: ResponseWriter
    body: bytes

    def params(self) -> dict[str, Any]:
        """Returns the canonical parameters. Raises Refusal."""
        raise NotImplementedError

    def outlet(self) -> EventStream:
        """Returns the stream that takes the events of the answer."""
        raise NotImplementedError


class AgentOperation(NamedTuple):
    """One operation on one agent. `tasks` are the tasks that it names, which must belong to the caller; `context` is
    the context that it continues or begins. `sends`: it sends a message, which may begin a task. `pushes`: it names
    push configurations, which are rewritten."""

    call: Call
    operation: Operation
    params: dict[str, Any]
    version: Version
    tasks: tuple[str, ...] = ()
    context: str = ""
    extensions: tuple[str, ...] = ()
    sends: bool = False
    pushes: bool = False


def version_of(headers: Headers, query: Mapping[str, str]) -> Version:
    """Returns the version that header or query states; 0.3 if neither does. Raises Refusal: MALFORMED_CALL,
    VERSION_UNSUPPORTED."""
    said = headers.get("a2a-version", ())
    if len(said) > 1 or (said and "A2A-Version" in query and query["A2A-Version"] != said[0]):
        raise malformed("A2A-Version must be there once")
    version = operations.version_meant(said[0].strip() if said else query.get("A2A-Version", ""))
    if version is None:
        raise Refusal(Reason.VERSION_UNSUPPORTED, "A2A 0.3 and 1.0 are spoken here", data={"supported": ["0.3", "1.0"]})
    return version


def version_said(headers: Headers) -> Version | None:
    """Returns the version in the header, unchecked; None for an unknown one."""
    said = headers.get("a2a-version", ())
    if said == _SAID_10:
        return "1.0"
    return operations.version_meant(said[0].strip()) if len(said) == 1 else None


def extensions_of(headers: Headers) -> tuple[str, ...]:
    """Returns the extensions that a caller requests, in the header of either version. Raises Refusal."""
    if "a2a-extensions" not in headers and "x-a2a-extensions" not in headers:
        return ()
    lines = (*headers.get("a2a-extensions", ()), *headers.get("x-a2a-extensions", ()))
    found = tuple(dict.fromkeys(part.strip() for line in lines for part in line.split(",") if part.strip()))
    if len(found) > MAX_EXTENSIONS or not all(map(_EXTENSION.match, found)):
        raise malformed("A2A-Extensions must be a short list of URIs")
    return found


def read_rpc(
    agent: str, dialect: JsonRpcWriter, message: jsonrpc.Message, extensions: tuple[str, ...]
) -> AgentOperation:
    """Reads a JSON-RPC request. Raises Refusal(MALFORMED_CALL)."""
    if isinstance(message, jsonrpc.Response):
        raise malformed("A2A has requests only")
    operation = operations.BY_RPC[dialect.version].get(message.method)
    if operation is None:
        raise malformed("the method is none of this version of A2A", METHOD_NOT_FOUND)
    dialect.streams = operation.streams
    wanted = _operate(agent, operation, _read(dialect, operation, message.params), dialect.version, extensions)
    if not isinstance(message, Request):
        raise malformed("A2A has requests only, and a request has an id")
    return wanted


def read_http(
    agent: str,
    dialect: HttpJsonWriter,
    address: http.RestAddress,
    query: Mapping[str, str],
    body: object,
    extensions: tuple[str, ...],
) -> AgentOperation:
    """Reads an HTTP+JSON request; `body` is None where the address takes none. Raises Refusal."""
    operation, route = address.operation, address.route
    assert operation is not None and route is not None
    try:
        given = _given(operation, route, address, query, body, dialect.version)
    except UnreadableMessage as error:
        raise malformed(str(error), INVALID_PARAMS) from None
    return _operate(agent, operation, _read(dialect, operation, given), dialect.version, extensions)


def read_call(agent: str, called: CalledName, extensions: tuple[str, ...]) -> AgentOperation:
    """Reads a request that already names its operation. Raises Refusal."""
    return _operate(agent, called.operation, called.params(), called.dialect.version, extensions)


def canonical(agent: str, operation: Operation, params: dict[str, Any]) -> AgentOperation:
    """Returns an operation with 1.0 parameters made by the sidecar. Raises Refusal for invalid ones."""
    return _operate(agent, operation, _read(JsonRpcWriter("1.0"), operation, params), "1.0", ())


def stored(
    agent: str, operation: Operation, params: dict[str, Any], version: Version, extensions: tuple[str, ...]
) -> AgentOperation:
    """Returns an operation that was read before, built from its canonical parameters."""
    return _operate(agent, operation, params, version, extensions)


def _given(
    operation: Operation,
    route: OperationRoute,
    address: http.RestAddress,
    query: Mapping[str, str],
    body: object,
    version: Version,
) -> dict[str, Any]:
    """Returns the parameters of body or query with those of the path. The two must not contradict each other."""
    if route.has_body and not isinstance(body, dict):
        raise UnreadableMessage("", "must be an object")
    schema, message = V10 if version == "1.0" else PROTO03, request_name(operation, version)
    given = dict(body) if isinstance(body, dict) else http.typed(schema, message, query)
    for name, value in _named_in(address, operation, version):
        spelled = schema.messages[message].spelled[name]
        for spelling in (spelled.name, spelled.json):
            if given.pop(spelling, None) not in (None, "", value):
                raise UnreadableMessage(f"/{spelling}", "is another one than the address names")
        given[name] = value
    return given


def _named_in(address: http.RestAddress, operation: Operation, version: Version) -> Iterator[tuple[str, str]]:
    """Yields the parameters in the path. In 0.3 they are a resource's name."""
    task, config, of_task = address.ids.get("task"), address.ids.get("config"), operation.action in _OF_TASK
    if version == "1.0":
        named = (("taskId" if of_task else "id", task), ("id", config), ("tenant", address.tenant))
        yield from ((name, value) for name, value in named if value)
    elif config is not None:
        yield "name", f"tasks/{task}/pushNotificationConfigs/{config}"
    elif task is not None:
        yield ("parent" if of_task else "name"), f"tasks/{task}"


def _read(dialect: ResponseWriter, operation: Operation, given: object) -> dict[str, Any]:
    try:
        return FORMS[dialect.version, dialect.binding].read_params(operation, given)
    except UnreadableMessage as error:
        raise malformed(str(error), INVALID_PARAMS) from None


def _operate(
    agent: str, operation: Operation, params: dict[str, Any], version: Version, extensions: tuple[str, ...]
) -> AgentOperation:
    for name in ("tenant", "id", "taskId"):
        if params.get(name) in (".", ".."):  # in the path of an agent's address it would name another resource
            raise malformed(f"params.{name} is not a name", INVALID_PARAMS)
    message, metadata, push = params.get("message", _NOTHING), params.get("metadata", _NOTHING), push_in(params)
    inside, skill = message.get("metadata", _NOTHING), ""
    if metadata or inside:
        if SKILL in metadata and SKILL in inside and metadata[SKILL] != inside[SKILL]:
            # rules would read one value, and the agent perhaps the other
            raise malformed(f"/message/metadata/{SKILL} is another one than /metadata/{SKILL}", INVALID_PARAMS)
        skill = skill_in(params)  # the audit record names it
    asked = (f"nhi:{agent}", operation.action, "", skill, _asked(params, push), metadata)
    questions: tuple[Question, ...] = (_new(Question, asked),)
    if push:  # a configuration inside a send is authorized like a call of its own
        questions += (questions[0]._replace(action=operations.PUSH_SET.action),)
    sends = operation is SEND or operation is STREAM
    tasks = _tasks_of_message(message, push) if sends else _tasks_in(operation, params)
    context = str((message if sends else params).get("contextId", "")) if sends or operation is LIST else ""
    pushes = bool(push) or operation.action in _OF_TASK
    call = Call("a2a", version, agent, operation.action, questions)
    return _new(AgentOperation, (call, operation, params, version, tasks, context, extensions, sends, pushes))


def _tasks_of_message(message: Mapping[str, Any], push: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the tasks that a message names. Raises Refusal if there is no valid message."""
    tasks: tuple[str, ...] = ()
    if push or "taskId" in message or "referenceTaskIds" in message:
        named = (message.get("taskId", ""), *message.get("referenceTaskIds", ()), push.get("taskId", ""))
        tasks = tuple(dict.fromkeys(filter(None, named)))
        if len(tasks) > MAX_NAMED:  # each requires a lookup
            raise malformed(f"params.message names more than {MAX_NAMED} tasks", INVALID_PARAMS)
    if not message.get("parts") or not message.get("messageId"):
        raise malformed("params.message must have a messageId and parts", INVALID_PARAMS)
    return tasks


def _tasks_in(operation: Operation, params: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the task that an operation names. Raises Refusal if it must name one and does not."""
    if operation is LIST or operation is CARD:
        return ()
    name = "taskId" if operation.action in _OF_TASK else "id"
    task = params.get(name, "")
    if not task:
        raise malformed(f"params.{name} must name a task", INVALID_PARAMS)
    return (task,)


def push_in(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the push configuration inside a send; empty for none."""
    found: Mapping[str, Any] = params.get("configuration", _NOTHING).get("taskPushNotificationConfig", _NOTHING)
    return found


def _asked(params: Mapping[str, Any], push: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters as conditions and audit records see them. Equal calls have equal parameters, so the
    message's own id and the credentials of push configurations are removed. The tenant stays: an agent may act
    differently for each."""
    shown = {**params}
    if "message" in shown:
        shown["message"] = message = {**shown["message"]}
        message.pop("messageId", None)
    for name in _CREDENTIALS:
        shown.pop(name, None)
    if push:
        config = {name: value for name, value in push.items() if name not in _CREDENTIALS}
        shown["configuration"] = {**shown["configuration"], "taskPushNotificationConfig": config}
    return shown
