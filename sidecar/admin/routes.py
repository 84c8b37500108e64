"""The table of admin routes.

A handler returns the body or a whole response. Its docstring is the summary of the operation in the OpenAPI document.
"""

import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar, get_type_hints
from urllib.parse import unquote

import orjson
from aiohttp import web

from sidecar.admin import models
from sidecar.admin.models import CALLER, LIMIT, OBJECT, PRINCIPAL, SLUG, Nothing
from sidecar.admin.operator_api import DEFAULT_LIMIT, MAX_LIMIT, MAX_OFFSET, OperatorApi, RunQuery
from sidecar.admin.requests import HEADERS, MAX_ORDER_BYTES, answered, body_of, problem, refused
from sidecar.admin.run_stream import RunNews
from sidecar.admin.schemas import Schema, order_in, query_in, whole_number
from sidecar.admin.views import approval_in_full, approval_of, schedule_of
from sidecar.audit.log_blocks import RecentLines
from sidecar.errors import ConfigError, Refusal
from sidecar.gateway.approvals import ApprovalError, Approvals, ApprovalState, Approver, Outcome
from sidecar.gateway.kill_switch import SwitchEntry, SwitchError
from sidecar.gateway.stages import Stages
from sidecar.http.server.event_stream import open_stream
from sidecar.limits import StoreUnavailable
from sidecar.limits.usage_report import NoSuchLimit, UsageQuery
from sidecar.policy.patterns import glob
from sidecar.protocols.jsonrpc import malformed
from sidecar.protocols.sse import KEEP_ALIVE
from sidecar.settings.field_types import is_caller
from sidecar.settings.timestamps import rfc3339, seconds_of
from sidecar.settings.uris import named_object
from sidecar.tasks.api.task_record import TaskState
from sidecar.tasks.programs.run_record import RunState, RunStatus
from sidecar.tasks.schedules.scheduler import Conflict
from sidecar.vocabulary import Principal

Role = Literal["viewer", "operator", "pdp"]
NO_UPSTREAM: Final = "no upstream has this name"
TEXT: Final = "text/plain; charset=utf-8"
# The statuses of a route's possible errors. `openapi.ERRORS` describes each.
SEEN: Final = (400, 401, 403, 404, 500, 503)
DONE: Final = (*SEEN, 413)
CONFLICTING: Final = (*DONE, 409)
ORDERED: Final = (*DONE, 429, 502, 504)

T = TypeVar("T")


class OperatorAction(Protocol):
    """The operations of the running sidecar that the admin API calls: `app.application.Application` describes them."""

    @property
    def desk(self) -> OperatorApi: ...
    @property
    def stages(self) -> Stages: ...
    @property
    def approvals(self) -> Approvals: ...
    def readiness(self) -> tuple[bool, Mapping[str, Any]]: ...
    def measure(self) -> None: ...
    async def carried_out(self, order: Coroutine[Any, Any, T]) -> T: ...
    def status(self) -> Mapping[str, Any]: ...
    def traffic(self) -> Mapping[str, Any]: ...
    async def reload(self, by: str) -> str: ...
    def examined(self, what: Literal["check", "test"]) -> Mapping[str, Any]: ...
    def upstreams(self) -> Mapping[str, Mapping[str, Any]]: ...
    def is_server(self, name: str) -> bool: ...
    def discovered(self, name: str) -> Mapping[str, Any]: ...
    async def switch_off(self, server: str, tool: str, *, reason: str, until: float | None, by: str) -> SwitchEntry: ...
    async def switch_on(self, server: str, tool: str, *, by: str) -> bool: ...
    async def limits(self, wanted: UsageQuery) -> Mapping[str, Any]: ...
    async def reset_limits(self, principal: str, limit: str, *, by: str) -> Sequence[str]: ...
    def disabled_principals(self) -> Sequence[SwitchEntry]: ...
    def switched_off(self) -> Sequence[SwitchEntry]: ...
    def known_principal(self, name: str) -> tuple[bool, str]: ...
    async def disable(self, principal: str, *, reason: str, until: float | None, by: str) -> SwitchEntry: ...
    async def enable(self, principal: str, *, by: str) -> bool: ...
    async def hear_of_switches(self) -> None: ...
    def recent_records(self) -> RecentLines | None: ...


class OperatorOrder(NamedTuple):
    """A request to the admin API. `target` is `path` with its query; `read_body` reads at most the given number of
    bytes."""

    method: str
    path: str
    target: str
    read_body: Callable[[int], Awaitable[bytes]]


class AdminRequest(NamedTuple):
    """One authorized request. `by` is the operator, as audit records name it, and `name` the name in the path. `person`
    is the person of the credential, if it names one. `here`: the request arrived over the control socket, which only
    the owner of the data folder can open."""

    app: OperatorAction
    request: web.BaseRequest
    by: str
    name: str
    here: bool
    query: Mapping[str, Any]
    body: Mapping[str, Any]
    person: Principal | None = None


Handler = Callable[[AdminRequest], Awaitable[Any]]


class OperatorRoute(NamedTuple):
    """One row of the table. `request` is the model of the body, None for none, and `status` that of success. A route
    whose handler returns a model is in the OpenAPI document, with the statuses of its `errors`."""

    method: str
    path: str
    handler: Handler
    request: type | None
    status: int
    errors: tuple[int, ...]
    query: Mapping[str, Schema]
    is_for_people: bool = False

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles that may use the route. Viewers can only read. `is_for_people` routes are open to viewers too,
        because there the roles of the person in policy decide."""
        return ("viewer", "operator") if self.method == "GET" or self.is_for_people else ("operator",)

    @property
    def response(self) -> Any:
        """The model of its response; Any for a route that is not in the document."""
        return get_type_hints(self.handler)["return"]


ROUTES: Final[list[OperatorRoute]] = []


def _route(
    method: str,
    path: str,
    request: type | None = None,
    status: int = 200,
    errors: tuple[int, ...] = DONE,
    query: Mapping[str, Schema] = {},
    *,
    is_for_people: bool = False,
) -> Callable[[Handler], Handler]:
    """Returns a decorator that adds a handler to the table. `{any}` in the path matches text with `/` too, because
    principals are written unencoded."""

    def add(handler: Handler) -> Handler:
        ROUTES.append(OperatorRoute(method, path, handler, request, status, errors, query, is_for_people))
        return handler

    return add


_get = partial(_route, "GET", errors=SEEN)
_post = partial(_route, "POST")
_delete = partial(_route, "DELETE")

_TEXT: Final[Schema] = {"type": "string"}
_LIMITS: Final[Mapping[str, Schema]] = {
    "principal": {**_TEXT, **CALLER},
    "object": {**_TEXT, **OBJECT},
    "limit": {**_TEXT, **LIMIT},
}
_RUNS: Final[Mapping[str, Schema]] = {
    "active": {"type": "boolean", "description": "Only runs that have not ended."},
    "state": {"enum": [state.value for state in RunState], "description": "Only runs in this state."},
    "status": {"enum": [status.value for status in RunStatus], "description": "Only runs that ended like this."},
    "schedule": {**_TEXT, **SLUG, "description": "Only runs that this schedule started."},
    "owner": {**_TEXT, **PRINCIPAL, "description": "Only runs on behalf of this principal."},
    "limit": {**whole_number(1, MAX_LIMIT, DEFAULT_LIMIT), "description": "Maximum number of runs."},
    "offset": {
        **whole_number(0, MAX_OFFSET, 0),
        "description": "Number of runs to skip: `next_offset` of the previous page.",
    },
}
_APPROVALS: Final[Mapping[str, Schema]] = {
    "state": {"enum": [state.value for state in ApprovalState], "description": "Only requests in this state."},
    "limit": {**whole_number(1, MAX_LIMIT, DEFAULT_LIMIT), "description": "Maximum number of requests."},
    "offset": {
        **whole_number(0, MAX_OFFSET, 0),
        "description": "Number of requests to skip: `next_offset` of the previous page.",
    },
}
_PERSON: Final[Schema] = {
    **_TEXT,
    **PRINCIPAL,
    "description": "The person who reads the request. Accepted at the control socket only.",
}
LOCAL_PERSON: Final = "local"  # the issuer of people who are named at the control socket
_TASKS: Final[Mapping[str, Schema]] = {
    "agent": {**_TEXT, **SLUG, "description": "Only tasks of this agent."},
    "state": {"enum": [state.value for state in TaskState], "description": "Only tasks in this state."},
    "limit": {**whole_number(1, MAX_LIMIT, DEFAULT_LIMIT), "description": "Maximum number of tasks."},
    "offset": {**whole_number(0, MAX_OFFSET, 0), "description": "Number of tasks to skip."},
}
_AGENT: Final[Schema] = {**_TEXT, **SLUG, "description": "Only runs of this agent."}
_FOLLOW: Final[Schema] = {
    "type": "boolean",
    "default": False,
    "description": "Whether to return an event stream, which ends with the run.",
}


@_get("/status")
async def status(asked: AdminRequest) -> Any:
    return asked.app.status()


@_post("/api/reload", Nothing)
async def reload(asked: AdminRequest) -> Any:
    revision = await asked.app.reload(asked.by)
    return {"revision": revision, "needs_restart": list(asked.app.desk.live.current.waiting)}


@_get("/api/limits", query=_LIMITS)
async def limits(asked: AdminRequest) -> Any:
    query = dict(asked.query)
    if "object" in query:
        query["object"] = named_object(query["object"])
    return await asked.app.limits(UsageQuery(**query))


@_post("/api/limits/reset", models.ResetOrder)
async def reset_limits(asked: AdminRequest) -> Any:
    name = asked.body["principal"]
    known, nearest = asked.app.known_principal(name)
    if asked.body.get("if_known") and not known:
        return _unknown(name, nearest, "no limit is reset")
    names = await asked.app.reset_limits(name, asked.body.get("limit") or "", by=asked.by)
    return {"principal": name, "known": known, "reset": names}


@_get("/api/principals")
async def principals(asked: AdminRequest) -> Any:
    return {"disabled": [plain_switch(entry) for entry in asked.app.disabled_principals()]}


@_post("/api/principals/{any}/disable", models.PrincipalOrder)
async def disable(asked: AdminRequest) -> Any:
    wanted = _switched(asked)
    known, nearest = asked.app.known_principal(asked.name)
    if asked.body.get("if_known") and not known and is_caller(asked.name):
        return _unknown(asked.name, nearest, "nothing is disabled")
    entry = await asked.app.disable(asked.name, **wanted)
    return {"principal": asked.name, "disabled": True, "known": known, "entry": plain_switch(entry)}


@_post("/api/principals/{any}/enable", Nothing)
async def enable(asked: AdminRequest) -> Any:
    changed = await asked.app.enable(asked.name, by=asked.by)
    still = [entry for entry in asked.app.disabled_principals() if glob(asked.name, entry.principal)]
    answer: dict[str, Any] = {"principal": asked.name, "disabled": bool(still), "changed": changed}
    if still:
        return problem(f"{still[0].source} disables it", 409, **answer, entry=plain_switch(still[0]))
    return answer


@_get("/api/upstreams")
async def upstreams(asked: AdminRequest) -> Any:
    return {"upstreams": asked.app.upstreams()}


@_get("/api/upstreams/{name}")
async def upstream(asked: AdminRequest) -> Any:
    known = asked.app.upstreams().get(asked.name)
    if known is None:
        return problem(NO_UPSTREAM, 404)
    return {"name": asked.name, **known, "discovered": asked.app.discovered(asked.name)}


@_post("/api/upstreams/{any}/disable", models.ToolOrder)
async def switch_off(asked: AdminRequest) -> Any:
    if not asked.app.is_server(asked.name):  # a mistyped name must not look like a disabled tool
        return problem(NO_UPSTREAM, 404)
    tool = asked.body.get("tool") or ""
    entry = await asked.app.switch_off(asked.name, tool, **_switched(asked))
    listed = asked.app.discovered(asked.name)["tools"]
    known = not tool or not listed or tool in listed  # without a list, any name may exist
    return {
        "upstream": asked.name,
        "tool": tool or None,
        "enabled": False,
        "known": known,
        "entry": plain_switch(entry),
    }


@_post("/api/upstreams/{any}/enable", models.ToolOrder)
async def switch_on(asked: AdminRequest) -> Any:
    tool = asked.body.get("tool") or ""
    changed = await asked.app.switch_on(asked.name, tool, by=asked.by)
    return {"upstream": asked.name, "tool": tool or None, "enabled": True, "changed": changed}


def _switched(asked: AdminRequest) -> dict[str, Any]:
    """The reason and the end in the body, and the operator, as arguments. Raises Refusal(MALFORMED_CALL)."""
    reason, until = asked.body.get("reason") or "", asked.body.get("until")
    try:
        return {"reason": reason, "until": None if until is None else seconds_of(until), "by": asked.by}
    except ValueError as error:
        raise malformed(f"until: {error}") from None


def _unknown(name: str, nearest: str, what: str) -> web.Response:
    meant = f'; did you mean "{nearest}"?' if nearest else ""
    told = f"{what}: no rule, role, key or setting names {name}, and it has not called{meant}"
    return problem(told, 404, reason="principal-unknown", nearest=nearest or None)


def plain_switch(entry: SwitchEntry) -> dict[str, Any]:
    return {
        "principal": entry.principal,
        "reason": entry.reason or None,
        "until": None if entry.until is None else rfc3339(entry.until),
        "since": None if entry.since is None else rfc3339(entry.since),
        "by": entry.by or None,
        "source": entry.source,
    }


@_get("/api/agents")
async def list_agents(asked: AdminRequest) -> models.Agents:
    """List the CLI agents."""
    return await asked.app.desk.agents()


@_get("/api/agents/{name}")
async def show_agent(asked: AdminRequest) -> models.AgentInFull:
    """Show an agent with its definition."""
    return await asked.app.desk.agent(asked.name)


@_get("/api/agents/{name}/runs", query=_RUNS)
async def list_runs_of_agent(asked: AdminRequest) -> models.Runs:
    """List the runs of one agent, newest first."""
    return await asked.app.desk.runs(RunQuery(asked.name, **asked.query))


@_post("/api/agents/{name}/runs", models.RunOrder, 201, ORDERED)
async def run_agent(asked: AdminRequest) -> models.RunOrdered:
    """Run an agent as a caller, under policy, limits and audit."""
    return await asked.app.desk.order(asked.name, asked.body, asked.by, here=asked.here)


@_get("/api/runs", query={"agent": _AGENT, **_RUNS})
async def list_runs(asked: AdminRequest) -> models.Runs:
    """List the runs of all agents, newest first."""
    return await asked.app.desk.runs(RunQuery(**asked.query))


@_get("/api/tasks", query=_TASKS)
async def list_tasks(asked: AdminRequest) -> models.OrderedTasks:
    """List the tasks of the task API, of all callers, newest first."""
    wanted = {"agent": "", "state": "", "limit": DEFAULT_LIMIT, "offset": 0, **asked.query}
    return await asked.app.desk.tasks(**wanted)


@_get("/api/runs/{id}")
async def show_run(asked: AdminRequest) -> models.RunInFull:
    """Show a run."""
    return await asked.app.desk.run(asked.name)


@_get("/api/runs/{id}/output", query={"follow": _FOLLOW})
async def follow_run(asked: AdminRequest) -> web.StreamResponse:
    """Show the output of a run so far, or follow it as an event stream."""
    if asked.query.get("follow"):
        return await _followed(asked)
    text = await asked.app.desk.output(asked.name)
    return web.Response(body=text.encode("utf-8", "replace"), headers={**HEADERS, "Content-Type": TEXT})


async def _followed(asked: AdminRequest) -> web.StreamResponse:
    async with aclosing(asked.app.desk.follow(asked.name)) as news:
        first = await anext(news, None)  # before the response begins, so that a refusal has a status
        stream = await open_stream(asked.request)
        try:
            await stream.write(_event(first))
            async for heard in news:
                if heard is None:
                    await stream.keep_alive()
                else:
                    await stream.write(_event(heard))
            await stream.end()
        except Refusal:  # the reader is gone, or the store is unavailable: the client connects again
            pass
        return stream.response


def _event(heard: RunNews | None) -> bytes:
    if heard is None:
        return KEEP_ALIVE
    return b"event: %b\ndata: %b\n\n" % (heard.event.encode(), orjson.dumps(heard.data))


@_post("/api/runs/{id}/answer", models.RunAnswer, 201, ORDERED)
async def answer_run(asked: AdminRequest) -> models.RunOrdered:
    """Answer a run that waits for input."""
    return await asked.app.desk.answer(asked.name, asked.body, asked.by, here=asked.here)


@_post("/api/runs/{id}/cancel", models.CancelOrder, errors=CONFLICTING)
async def cancel_run(asked: AdminRequest) -> models.Run:
    """Cancel a run, in any state."""
    return await asked.app.desk.cancel(asked.name, asked.body.get("reason", ""), asked.by)


@_get("/api/approvals", query=_APPROVALS)
async def list_approvals(asked: AdminRequest) -> models.ApprovalRequests:
    """List the requests for approval, newest first."""
    limit, offset = asked.query.get("limit", DEFAULT_LIMIT), asked.query.get("offset", 0)
    state = ApprovalState(asked.query["state"]) if "state" in asked.query else None
    found, total = await asked.app.approvals.page(state, limit, offset)
    after = offset + limit
    return {"approvals": list(map(approval_of, found)), "next_offset": after if after < total else None}


@_get("/api/approvals/{id}", query={"principal": _PERSON})
async def show_approval(asked: AdminRequest) -> models.ApprovalInFull:
    """Show a request for approval. If it shows the arguments, this is recorded."""
    record = await asked.app.approvals.get(asked.name)
    if (person := _person(asked, asked.query.get("principal"))) is None:
        return approval_in_full(record, "no person has this credential: it names no principal")
    if (objection := asked.app.approvals.objection(record, person)) is not None:
        return approval_in_full(record, objection)
    return approval_in_full(await asked.app.approvals.shown_to(asked.name, Approver(person, asked.by)), None)


@_post("/api/approvals/{id}/approve", models.ApprovalAnswer, errors=CONFLICTING, is_for_people=True)
async def approve(asked: AdminRequest) -> models.ApprovalRequest:
    """Approve a waiting call."""
    return await _answered(asked, "approve")


@_post("/api/approvals/{id}/refuse", models.ApprovalAnswer, errors=CONFLICTING, is_for_people=True)
async def refuse(asked: AdminRequest) -> models.ApprovalRequest:
    """Refuse a waiting call, or withdraw an unused approval."""
    return await _answered(asked, "refuse")


async def _answered(asked: AdminRequest, outcome: Outcome) -> models.ApprovalRequest:
    if (person := _person(asked, asked.body.get("principal"))) is None:
        raise ApprovalError("a person must answer, and this credential names none: set its principal", 403)
    approver, reason = Approver(person, asked.by), asked.body.get("reason") or ""
    return approval_of(await asked.app.approvals.answer(asked.name, approver, outcome, reason))


def _person(asked: AdminRequest, named: str | None) -> Principal | None:
    """The person who makes the request, or over the control socket the one that it names; None for no person. Raises
    ApprovalError."""
    if named is None:
        return asked.person
    if not asked.here:
        raise ApprovalError("only the control socket takes another principal than that of the credential", 403)
    if not named.startswith("user:"):
        raise ApprovalError("a person is user:<id>", 400)
    return Principal(named, LOCAL_PERSON)


@_get("/api/schedules")
async def list_schedules(asked: AdminRequest) -> models.Schedules:
    """List the schedules."""
    return {"schedules": [schedule_of(one) for one in await asked.app.desk.scheduler.list()]}


@_post("/api/schedules", models.NewSchedule, 201, CONFLICTING)
async def add_schedule(asked: AdminRequest) -> models.Schedule:
    """Add a schedule to the stored ones."""
    return await asked.app.desk.add_schedule(asked.body, asked.by, here=asked.here)


@_delete("/api/schedules/{name}", Nothing, errors=CONFLICTING)
async def remove_schedule(asked: AdminRequest) -> models.Schedule:
    """Remove an added schedule and cancel its runs."""
    return schedule_of(await asked.app.desk.scheduler.remove(asked.name, asked.by))


@_post("/api/schedules/{name}/run", Nothing, 201, ORDERED)
async def run_schedule(asked: AdminRequest) -> models.ScheduleOrdered:
    """Run a schedule now."""
    return await asked.app.desk.run_schedule(asked.name, asked.by)


@_post("/api/schedules/{name}/pause", Nothing)
async def pause_schedule(asked: AdminRequest) -> models.Schedule:
    """Pause a schedule until it is resumed."""
    return schedule_of(await asked.app.desk.scheduler.pause(asked.name, asked.by))


@_post("/api/schedules/{name}/resume", Nothing)
async def resume_schedule(asked: AdminRequest) -> models.Schedule:
    """Resume a paused schedule."""
    return schedule_of(await asked.app.desk.scheduler.resume(asked.name, asked.by))


_PLACE: Final = {"{any}": "([^?#]{0,4096})", "{name}": "([^/?#]{1,64})", "{id}": "([^/?#]{1,64})"}
_PATTERNS: Final = [
    (
        re.compile(re.sub(r"\{\w+\}", lambda place: _PLACE[place[0]], path)),
        {route.method: route for route in ROUTES if route.path == path},
    )
    for path in dict.fromkeys(route.path for route in ROUTES)
]


def route_of(path: str) -> tuple[Mapping[str, OperatorRoute], str]:
    """The routes of a path by method, empty if there are none, and the name in the path, decoded."""
    for pattern, verbs in _PATTERNS:
        if found := pattern.fullmatch(path):
            return verbs, unquote("".join(found.groups()))
    return {}, ""


async def answer_operator(
    app: OperatorAction,
    request: web.BaseRequest,
    path: str,
    role: Role,
    by: str,
    *,
    here: bool,
    person: Principal | None = None,
) -> web.StreamResponse:
    """The response to one request of the operator `by`."""
    order = OperatorOrder(request.method, path, request.raw_path, partial(body_of, request))
    return await carry_out(app, request, order, role, by, here=here, person=person)


async def carry_out(
    app: OperatorAction,
    request: web.BaseRequest,
    order: OperatorOrder,
    role: Role,
    by: str,
    *,
    here: bool = False,
    person: Principal | None = None,
) -> web.StreamResponse:
    """The response to an order, which is `request` itself, or one that the console makes for it."""
    verbs, name = route_of(order.path)
    if not verbs:
        return problem("no such address", 404)
    route = verbs.get(order.method)
    if route is None:
        return problem(f"{' or '.join(verbs)} only", 405, {"Allow": ", ".join(verbs)})
    if role not in route.roles:
        return problem(f"this needs one of the roles {', '.join(route.roles)}", 403)
    try:
        query = query_in(order.target, route.query)
        body: Mapping[str, Any] = {}
        if route.request is not None:
            is_large = route.request in (models.RunOrder, models.RunAnswer)
            most = app.desk.live.current.bounds.max_body_bytes if is_large else MAX_ORDER_BYTES
            raw = await order.read_body(most)
            body = order_in(raw, route.request)
        answer = await route.handler(AdminRequest(app, request, by, name, here, query, body, person))
    except (Refusal, ConfigError, SwitchError, ApprovalError, NoSuchLimit, Conflict, StoreUnavailable) as error:
        return _failed(error)
    if isinstance(answer, web.StreamResponse):
        return answer
    run_id = answer.get("run_id") if route.status == 201 else None
    return answered(answer, route.status, {"Location": f"/api/runs/{run_id}"} if run_id else {})


def _failed(error: Exception) -> web.Response:
    match error:
        case Refusal():
            return refused(error)
        case ConfigError():
            return problem("the old policy continues to serve", 409, faults=[str(fault) for fault in error.faults])
        case SwitchError() | ApprovalError():
            return problem(str(error), error.status)
        case NoSuchLimit():
            return problem(str(error), 404, reason="limit-unknown")
        case StoreUnavailable():
            return problem("the store of the limits cannot be reached", 503)
    return problem(str(error), 409)
