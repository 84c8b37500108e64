"""Builds the OpenAPI 3.1 document of plain tool calls, the task API, the operators' API of agents, and AuthZEN.

It is generated from the table of routes, the models and the table of refusals, so that it follows the code.
"""

import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from aiohttp import web

from sidecar import __version__
from sidecar.admin import models
from sidecar.admin.authzen import WELL_KNOWN
from sidecar.admin.requests import REQUEST_ID
from sidecar.admin.routes import ROUTES, TEXT, OperatorRoute
from sidecar.admin.schemas import Schema, ref, schema_of, whole_number
from sidecar.errors import ANSWERS, Reason
from sidecar.gateway.error_responses import JSON, PROBLEM_JSON, McpError, plain_status
from sidecar.gateway.frontends.rest import ERROR_STATUS, McpApproval, McpCall, McpCallResult, McpTool, McpTools
from sidecar.settings.field_types import SLUG
from sidecar.tasks.api.models import (
    AGENT,
    A2aTask,
    A2aTasks,
    A2aWords,
    AwaitedApproval,
    TaskCancelled,
    TaskCreated,
    TaskOrder,
)
from sidecar.tasks.api.request_reader import DEFAULT_LIMIT, MAX_LIMIT, MAX_OFFSET
from sidecar.tasks.api.task_record import TaskState


def _reasons(words: str) -> frozenset[Reason]:
    return frozenset(map(Reason, words.split()))


# Reasons by subject. Those in ELSEWHERE never occur in plain HTTP.
ELSEWHERE: Final = _reasons(
    "verb-not-allowed not-acceptable version-unsupported header-mismatch method-unknown session-unknown caller-gone"
)
_BODY: Final = _reasons("too-large unsupported-media-type")
_CHARGED: Final = _reasons("condition-false quota-spent budget-spent too-many-concurrent")
_TASK: Final = _reasons("task-unknown not-cancelable")
_APPROVAL: Final = _reasons("approval-pending approval-refused approval-expired")
_TOOL: Final = _reasons("tool-unknown tool-disabled pin-mismatch bad-arguments schema-unavailable")
_UPSTREAM: Final = _reasons("upstream-open upstream-timeout upstream-failed upstream-limited response-refused")
_COMMON: Final = frozenset(Reason) - ELSEWHERE - _BODY - _CHARGED - _TASK - _APPROVAL - _TOOL - _UPSTREAM
_TASKS: Final = _COMMON | _CHARGED

# The errors of operators' routes, by status.
ERRORS: Final[Mapping[int, str]] = {
    400: "The query or the body is malformed (unknown parameters and members are refused), or the agent refuses the "
    "input.",
    401: "A credential is required.",
    403: "The role does not permit the request, the `Host` or `Origin` is not accepted, or policy denies the call.",
    404: "No agent, run, schedule or request for approval has this name.",
    409: "The run or the request for approval has ended, the name is in use or belongs to `sidecar.yaml`, or the "
    "maximum number of schedules is reached.",
    413: "The body is too large.",
    429: "A limit of the caller is reached, or the queue of the agent is full.",
    500: "An internal error occurred.",
    502: "The agent failed before it accepted the request.",
    503: "The store or the audit log is unavailable, the circuit breaker of the agent is open, or the sidecar is "
    "shutting down.",
    504: "The agent did not respond in time.",
}
_EVENTS: Final = (
    "The stored output, or events. `status`: the state of the A2A task, a `message`, and `progress` and `total` if the "
    "program reports them. `output`: `text` of an `artifact`; with `anew`, it replaces the earlier text of the "
    "artifact. `artifact`: `parts` of the artifact other than text. `end`, the last event: the run in full. "
    "Comments keep the connection alive."
)
_CORRELATION: Final = tuple(
    {
        "name": name,
        "in": "header",
        "description": "Id for audit records. It is ignored unless it has 1 to 128 characters `A-Z a-z 0-9 . _ : -`. "
        "It does not influence decisions.",
        "schema": {"type": "string"},
    }
    for name in ("X-Run-Id", "X-Thread-Id")
)
_ID: Final[Schema] = {"type": "string", "pattern": "^[A-Za-z0-9-]{1,64}$"}
# Parameters of paths, by the segment before them.
_PLACES: Final[Mapping[str, Schema]] = {
    "mcp": {"description": "Name of a server under `upstreams`.", "type": "string", "pattern": f"^{SLUG}$"},
    "tools": {
        "description": "Name of a tool. A name with `/` is written as it is and becomes several segments of the path, "
        "none of which may begin with a dot. OpenAPI cannot express that.",
        "type": "string",
        "pattern": r"^[A-Za-z0-9_\-][A-Za-z0-9_.\-]*$",
        "maxLength": 128,
    },
    "tasks": {"description": "Id of a task: the `task_id` that was returned when it was created.", **_ID},
    "approvals": {
        "description": "Id of a request for approval.",
        "type": "string",
        "pattern": "^[0-9a-f]{32}-[0-9A-Za-z-]{1,16}$",
    },
    "agents": {"description": "Key of an agent under `agents`.", **_ID},
    "runs": {"description": "Id of a run.", **_ID},
    "schedules": {"description": "Name of a schedule.", **_ID},
}


# The errors of enforcement points' requests, by status.
AUTHZEN_ERRORS: Final[Mapping[int, str]] = {
    400: "The request is malformed. `error` names the place.",
    401: "A credential of the role `pdp` is required.",
    413: "The body is too large.",
    500: "An internal error occurred, and nothing is decided.",
    503: "The sidecar cannot decide, or cannot record decisions, at the moment.",
}
_REQUEST_ID: Final = {
    "name": REQUEST_ID,
    "in": "header",
    "description": "Id of the request. It is returned, and recorded in audit records.",
    "schema": {"type": "string", "pattern": "^[!-~]([ -~]{0,254}[!-~])?$"},
}


class CallerOperation(NamedTuple):
    """An operation of the data listener. `refusals` are its possible reasons, and `told` describes its success."""

    name: str
    method: str
    path: str
    refusals: frozenset[Reason]
    response: type
    told: str
    request: type | None = None
    status: int = 200
    query: Mapping[str, Schema] = {}


TASK_QUERY: Final[Mapping[str, Schema]] = {
    "state": {"description": "Only tasks in this state.", "enum": [state.value for state in TaskState]},
    "target_agent_id": {"description": "Only tasks of this agent, by its name or UUID.", "type": "string", **AGENT},
    "limit": {"description": "Maximum number of tasks.", **whole_number(1, MAX_LIMIT, DEFAULT_LIMIT)},
    "offset": {"description": "Number of tasks to skip.", **whole_number(0, MAX_OFFSET, 0)},
}
_CALLING: Final = frozenset(Reason) - ELSEWHERE - _TASK - {Reason.APPROVAL_PENDING}  # answered 202
_POLLING: Final = _COMMON | {Reason.ROUTE_UNKNOWN} - _reasons("upstream-unknown")
_CREATING: Final = _TASKS | _BODY | {Reason.UPSTREAM_OPEN}
_CANCELLING: Final = _TASKS | _TASK | _BODY | _UPSTREAM
_AT_TASK: Final = "/a2a/tasks/{id}"
CALLER_OPERATIONS: Final = (
    CallerOperation("listTools", "get", "/mcp/{server}/tools", _COMMON | _UPSTREAM, McpTools, "The tools."),
    CallerOperation(
        "callTool", "post", "/mcp/{server}/tools/{tool}", _CALLING, McpCallResult, "The result of the call.", McpCall
    ),
    CallerOperation(
        "showApproval",
        "get",
        "/mcp/{server}/approvals/{id}",
        _POLLING,
        McpApproval,
        "The request for approval. Poll it.",
    ),
    CallerOperation("createTask", "post", "/a2a/tasks", _CREATING, TaskCreated, "The task is stored.", TaskOrder, 201),
    CallerOperation("listTasks", "get", "/a2a/tasks", _TASKS, A2aTasks, "A page of tasks.", query=TASK_QUERY),
    CallerOperation("getTask", "get", _AT_TASK, _TASKS | {Reason.TASK_UNKNOWN}, A2aTask, "The task."),
    CallerOperation("cancelTask", "post", f"{_AT_TASK}/cancel", _CANCELLING, TaskCancelled, "The task is cancelled."),
)
_SUMMARIES: Final = {
    "listTools": "List the tools of a server that the caller may use",
    "callTool": "Call a tool and wait for its complete result",
    "showApproval": "Show the approval that a call of the caller waits for",
    "createTask": "Create a task for an agent, which continues if the caller disconnects",
    "listTasks": "List the caller's own tasks, newest first",
    "getTask": "Show a task of the caller",
    "cancelTask": "Cancel a task, also at its agent",
}
MODELS: Final = (
    *(McpTool, McpTools, McpCall, McpCallResult, McpError),
    *(TaskOrder, TaskCreated, A2aWords, AwaitedApproval, A2aTask, A2aTasks, TaskCancelled),
    *(models.RunError, models.RunUsage, models.RunTry, models.RunTransition, models.Run, models.RunInFull, models.Runs),
    *(models.Agent, models.AgentInFull, models.Agents, models.RunOrder, models.RunAnswer, models.RunOrdered),
    *(models.CancelOrder, models.Schedule, models.Schedules, models.NewSchedule, models.ScheduleOrdered),
    *(models.ApprovalVerdict, models.ApprovalRequest, models.ApprovalRequests, models.ApprovalQuestion),
    *(models.ApprovalInFull, models.ApprovalAnswer, McpApproval),
    *(models.OrderedTask, models.OrderedTasks, models.Nothing, models.Problem),
)
# Receivers of these models ignore unknown members.
AUTHZEN_MODELS: Final = (
    *(models.AuthzenEntity, models.AuthzenKind, models.AuthzenAction, models.AuthzenContext, models.AuthzenEvaluation),
    *(models.AuthzenOptions, models.AuthzenEvaluations, models.AuthzenPage, models.AuthzenSubjectSearch),
    *(models.AuthzenResourceSearch, models.AuthzenActionSearch, models.AuthzenDecision, models.AuthzenDecisions),
    *(models.AuthzenResultPage, models.AuthzenResultContext, models.AuthzenResults, models.AuthzenMetadata),
)


class AuthzenOperation(NamedTuple):
    """An endpoint of enforcement points."""

    name: str
    path: str
    request: type | None
    response: type
    summary: str


AUTHZEN_OPERATIONS: Final = (
    AuthzenOperation(
        "evaluate", "/access/v1/evaluation", models.AuthzenEvaluation, models.AuthzenDecision, "Decide one question"
    ),
    AuthzenOperation(
        "evaluateAll",
        "/access/v1/evaluations",
        models.AuthzenEvaluations,
        models.AuthzenDecisions,
        "Decide several questions",
    ),
    AuthzenOperation(
        "searchSubjects",
        "/access/v1/search/subject",
        models.AuthzenSubjectSearch,
        models.AuthzenResults,
        "Search for the subjects that may perform an action on a resource",
    ),
    AuthzenOperation(
        "searchResources",
        "/access/v1/search/resource",
        models.AuthzenResourceSearch,
        models.AuthzenResults,
        "Search for the resources on which a subject may perform an action",
    ),
    AuthzenOperation(
        "searchActions",
        "/access/v1/search/action",
        models.AuthzenActionSearch,
        models.AuthzenResults,
        "Search for the actions that a subject may perform on a resource",
    ),
    AuthzenOperation(
        "authzenMetadata",
        WELL_KNOWN,
        None,
        models.AuthzenMetadata,
        "List the endpoints of the decision API, without a credential",
    ),
)


def document() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for path, verb, item, operation in [*_of_callers(), *_of_operators(), *_of_enforcement_points()]:
        paths.setdefault(path, item)[verb] = operation
    schemas = {model.__name__: schema_of(model, MODELS) for model in MODELS}
    schemas |= {model.__name__: schema_of(model, AUTHZEN_MODELS) for model in AUTHZEN_MODELS}
    for model in (McpError, *AUTHZEN_MODELS):  # `allOf` narrows the former by status
        del schemas[model.__name__]["additionalProperties"]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sidecar: plain HTTP",
            "version": __version__,
            "description": "Tools of MCP servers and tasks of A2A agents for scripts, under the same policy, limits "
            "and audit as MCP and A2A. At the admin listener: CLI agents, approvals and schedules for "
            "operators, and decisions for other enforcement points (AuthZEN 1.0), which `pdp.listen` serves too. "
            "Percent-encoded characters in paths are refused. Times are RFC 3339, in UTC.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:8080", "description": "The data listener."}],
        "security": [{"bearer": []}, {"apiKey": []}, {}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "A token, or an API key of the sidecar."},
                "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "pdpKey": {"type": "apiKey", "in": "header", "name": "X-PDP-Key"},
            },
        },
    }


_Described = tuple[str, str, dict[str, Any], dict[str, Any]]
"""A path, a method, the common parts of all operations of the path, and the operation."""


def _of_callers() -> Iterator[_Described]:
    for one in CALLER_OPERATIONS:
        item: dict[str, Any] = {"parameters": [*_places(one.path), *_CORRELATION]}
        headers = header("Address of the task.", "Location", required=True) if one.status == 201 else {}
        also = {}
        if one.path.startswith("/a2a/"):
            item["servers"] = [{"url": "http://127.0.0.1:8080"}, {"url": "http://127.0.0.1:8080/api/nhi"}]
            headers |= _PRIVATE
        elif one.response is not McpApproval:
            also = {
                ERROR_STATUS: "Without a reason: the tool or its server answered with an error, contained in `details`."
            }
            headers |= header(_NO_STORE, "Cache-Control") if one.method == "get" else {}
        good = {"description": one.told, **_content(one.response), **({"headers": headers} if headers else {})}
        operation = _operation(one.name, _SUMMARIES[one.name], one.query)
        if one.request is not None:
            operation["requestBody"] = {"required": True, **_content(one.request)}
        responses = {str(one.status): good, **bad(one.refusals, also)}
        if one.request is McpCall:
            responses["202"] = _WAITS
        yield one.path, one.method, item, {**operation, "responses": responses}


def _of_operators() -> Iterator[_Described]:
    for route in ROUTES:
        if route.response is not Any:
            item = {
                "servers": [{"url": "http://127.0.0.1:9090", "description": "The admin listener."}],
                "parameters": _places(route.path),
            }
            yield route.path, route.method.lower(), item, _of_route(route)


def _of_enforcement_points() -> Iterator[_Described]:
    admin = {"url": "http://127.0.0.1:9090", "description": "The admin listener."}
    there = "The same endpoints for the tools, prompts and resources of one server."
    tenant = {
        "url": f"{admin['url']}/{{server}}",
        "description": there,
        "variables": {"server": {"default": "github", "description": "Name of a server under `upstreams`."}},
    }
    echoed = header("Id of the request.", REQUEST_ID)
    for one in AUTHZEN_OPERATIONS:
        operation = _operation(one.name, one.summary, {})
        good = {"description": "The answer.", **_content(one.response), "headers": echoed}
        if one.request is None:
            operation["security"] = [{}]
            yield one.path, "get", {"servers": [admin]}, {**operation, "responses": {"200": good, **_problems(400)}}
            continue
        operation |= {"security": [{"bearer": []}, {"pdpKey": []}], "parameters": [_REQUEST_ID]}
        operation["requestBody"] = {"required": True, **_content(one.request)}
        wrong = _problems(400, 401, 413, 500, 503)
        yield one.path, "post", {"servers": [admin, tenant]}, {**operation, "responses": {"200": good, **wrong}}


def _problems(*statuses: int) -> dict[str, Any]:
    return {
        str(status): {
            "description": AUTHZEN_ERRORS[status],
            "content": {PROBLEM_JSON: {"schema": {"allOf": [ref(models.Problem), _only(status=status)]}}},
        }
        for status in statuses
    }


def _of_route(route: OperatorRoute) -> dict[str, Any]:
    first, *others = route.handler.__name__.split("_")
    summary = (inspect.getdoc(route.handler) or "").removesuffix(".")
    operation = _operation("".join([first, *map(str.title, others)]), summary, route.query)
    operation["security"] = [{"bearer": []}]
    if route.method == "POST" and route.request is not None:
        needed = bool(schema_of(route.request)["required"])
        operation["requestBody"] = {"required": needed, **_content(route.request)}
    good = {
        "description": "The operation is performed and recorded." if route.request else "The current state.",
        "headers": _PRIVATE,
    }
    if route.response is web.StreamResponse:
        good["description"] = _EVENTS
        good["content"] = {TEXT: {"schema": {"type": "string"}}, "text/event-stream": {}}
    else:
        good |= _content(route.response)
    wrong = {
        str(status): {
            "description": ERRORS[status],
            "content": {PROBLEM_JSON: {"schema": {"allOf": [ref(models.Problem), _only(status=status)]}}},
        }
        for status in sorted(route.errors)
    }
    return {**operation, "responses": {str(route.status): good, **wrong}}


def _operation(name: str, summary: str, query: Mapping[str, Schema]) -> dict[str, Any]:
    operation: dict[str, Any] = {"operationId": name, "summary": summary}
    if query:
        operation["parameters"] = [{"name": word, "in": "query", **_split(schema)} for word, schema in query.items()]
    return operation


def _places(path: str) -> list[dict[str, Any]]:
    found = re.findall(r"(\w+)/\{(\w+)\}", path)
    return [{"name": name, "in": "path", "required": True, **_split(_PLACES[before])} for before, name in found]


def _split(schema: Schema) -> dict[str, Any]:
    return {
        "description": schema["description"],
        "schema": {key: value for key, value in schema.items() if key != "description"},
    }


def _content(model: type) -> dict[str, Any]:
    return {"content": {JSON: {"schema": ref(model)}}}


def _only(**values: Any) -> dict[str, Any]:
    """A schema that narrows each member to one value, or to the values of a list."""
    return {"properties": {name: {"enum" if isinstance(v, list) else "const": v} for name, v in values.items()}}


def bad(reasons: Collection[Reason], also: Mapping[int, str]) -> dict[str, Any]:
    """The responses for refusals by status, in order. `also` maps a status to a further sentence of its description."""
    by_status: dict[int, list[Reason]] = {}
    for reason in Reason:
        if reason in reasons:
            by_status.setdefault(plain_status(ANSWERS[reason]), []).append(reason)
    return {str(status): _refused(status, by_status[status], also.get(status)) for status in sorted(by_status)}


def _refused(status: int, reasons: list[Reason], also: str | None) -> dict[str, Any]:
    words = [reason.value for reason in reasons]
    if any(ANSWERS[reason].status == "permission_denied" for reason in reasons):
        words.append("denied")  # with `answers.disclosure: kind`
    told = [f"`{reason}`: {ANSWERS[reason].message}." for reason in reasons]
    if also:
        told.append(also)
    codes = list(dict.fromkeys(ANSWERS[reason].seed for reason in reasons))
    schema = {"allOf": [ref(McpError), _only(status=status, error_code=codes, reason=words)]}
    answer = {"description": " ".join(told), "content": {PROBLEM_JSON: {"schema": schema}}}
    headers = _headers(status)
    return {**answer, "headers": headers} if headers else answer


def _headers(status: int) -> dict[str, Any]:
    if status in (401, 403):
        return header("How to authenticate, or the required scope.", "WWW-Authenticate", required=status == 401)
    if status not in (429, 503):
        return {}
    seconds = {"type": "string", "pattern": "^[0-9]+$"}
    headers = header("Seconds after which to try again.", "Retry-After", required=True, schema=seconds)
    if status == 429:
        headers |= header("State of the limit.", "RateLimit", "RateLimit-Policy")
    return headers


def header(told: str, *names: str, required: bool = False, schema: Schema | None = None) -> dict[str, Any]:
    described = {"description": told, "required": required, "schema": dict(schema or {"type": "string"})}
    return dict.fromkeys(names, described)


_WAITS: Final[Mapping[str, Any]] = {
    "description": "A person must approve the call (`approval-pending`). Send the same call again to get the result.",
    "headers": header("Address of the approval, for polling.", "Location", required=True),
    "content": {PROBLEM_JSON: {"schema": ref(McpError)}},
}
_NO_STORE: Final = "`no-store`, because the response is for this caller only."
_PRIVATE: Final = header(_NO_STORE, "Cache-Control", required=True)
