"""OpenAPI paths of the operator API.

The paths are those of `admin`. Errors are described by status, like all refusals there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sidecar.admin.openapi.components import PRIVATE, good, header, query, ref, taken, whole
from sidecar.admin.operator_api.models import (
    PRINCIPAL,
    Agent,
    AgentInFull,
    Agents,
    CancelOrder,
    NewSchedule,
    Nothing,
    Problem,
    Run,
    RunAnswer,
    RunError,
    RunInFull,
    RunOrder,
    RunOrdered,
    Runs,
    RunTransition,
    RunTry,
    RunUsage,
    Schedule,
    ScheduleOrdered,
    Schedules,
)
from sidecar.admin.operator_api.requests import DEFAULT_LIMIT, MAX_LIMIT, MAX_OFFSET
from sidecar.gateway.error_responses import PROBLEM_JSON
from sidecar.tasks.programs.run_states import RunState, RunStatus

MODELS: Final = (
    RunError,
    RunUsage,
    RunTry,
    RunTransition,
    Run,
    RunInFull,
    Runs,
    Agent,
    AgentInFull,
    Agents,
    RunOrder,
    RunAnswer,
    RunOrdered,
    CancelOrder,
    Nothing,
    Schedule,
    Schedules,
    NewSchedule,
    ScheduleOrdered,
    Problem,
)
# The possible errors, by status. The paths list which of these they return.
TOLD: Final[Mapping[int, str]] = {
    400: "the query or the body is not one of these (a member or parameter that is unknown is refused), or the agent "
    "does not take the order",
    401: "a credential is needed",
    403: "the role does not reach so far, the Host or Origin is not served, or policy says no to the caller",
    404: "no agent, run or schedule has this name",
    409: "the run is over, the name is taken or in sidecar.yaml, or there are too many",
    413: "the body is too large",
    429: "a limit of the caller's is reached, or the agent's queue is full",
    500: "a bug of ours",
    502: "the agent failed before it had taken the order",
    503: "the store or the evidence is out, the agent is given a rest, or the sidecar is stopping",
    504: "the agent did not answer in time",
}
SEEN: Final = (400, 401, 403, 404, 500, 503)
DONE: Final = (*SEEN, 413)
ORDERED: Final = (*DONE, 429, 502, 504)


def paths() -> dict[str, Any]:
    """The paths of the operator API."""
    name, run = _place("name", "an agent, by its key under `agents`"), _place("id", "a run")
    schedule = _place("name", "a schedule, by its name")
    filters = [*_FILTERS, *_PAGE]
    events: dict[str, Any] = {"text/event-stream": {}}
    text = {"text/plain; charset=utf-8": {"schema": {"type": "string"}}}
    follow = query("follow", "as events, while it comes", {"type": "boolean", "default": False})
    return {
        "/api/agents": _at((), get=_seen("listAgents", "Agents that are programs", Agents)),
        "/api/agents/{name}": _at((name,), get=_seen("showAgent", "One of them, with its definition", AgentInFull)),
        "/api/agents/{name}/runs": _at(
            (name,),
            get=_seen("listRunsOfAgent", "Its runs, newest first", Runs, filters),
            post=_done("runAgent", "Run it, as a caller under policy, limits and evidence", RunOrder, RunOrdered, 201),
        ),
        "/api/runs": _at((), get=_seen("listRuns", "Runs of all agents, newest first", Runs, [_AGENT, *filters])),
        "/api/runs/{id}": _at((run,), get=_seen("showRun", "One run", RunInFull)),
        "/api/runs/{id}/output": _at(
            (run,),
            get={
                **_seen("hearRun", "What it says", Runs, [follow]),
                "responses": {
                    "200": {
                        "description": _EVENTS,
                        "content": {**text, **events},
                        "headers": _OWN,
                    },
                    **_wrong(SEEN),
                },
            },
        ),
        "/api/runs/{id}/answer": _at(
            (run,), post=_done("answerRun", "Tell one that asked what it asked for", RunAnswer, RunOrdered, 201)
        ),
        "/api/runs/{id}/cancel": _at(
            (run,), post=_done("cancelRun", "Give it up, wherever it is", CancelOrder, Run, 200, (*DONE, 409))
        ),
        "/api/schedules": _at(
            (),
            get=_seen("listSchedules", "All schedules", Schedules),
            post=_done("addSchedule", "Keep one in the store", NewSchedule, Schedule, 201, (*DONE, 409), bare=False),
        ),
        "/api/schedules/{name}": _at((schedule,), delete=_removed()),
        "/api/schedules/{name}/run": _at(
            (schedule,), post=_done("runSchedule", "Run it now, out of turn", Nothing, ScheduleOrdered, 201)
        ),
        "/api/schedules/{name}/pause": _at(
            (schedule,), post=_done("pauseSchedule", "Let it order nothing more", Nothing, Schedule, 200, DONE)
        ),
        "/api/schedules/{name}/resume": _at(
            (schedule,), post=_done("resumeSchedule", "Take that back", Nothing, Schedule, 200, DONE)
        ),
    }


def _at(parameters: tuple[Mapping[str, Any], ...], **verbs: Any) -> dict[str, Any]:
    return {"servers": [_SERVER], "parameters": list(parameters), **verbs}


def _seen(name: str, told: str, model: type, parameters: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    responses = {"200": good("as it stands", model, _OWN), **_wrong(SEEN)}
    return {**_named(name, told, parameters), "responses": responses}


def _done(
    name: str,
    told: str,
    order: type,
    model: type,
    status: int,
    wrong: tuple[int, ...] = ORDERED,
    *,
    bare: bool = True,
) -> dict[str, Any]:
    responses = {str(status): good("it is done, and on record", model, _OWN), **_wrong(wrong)}
    return {**_named(name, told, ()), "requestBody": {**taken(order), "required": not bare}, "responses": responses}


def _removed() -> dict[str, Any]:
    told = "Take away one that was added; what it ordered and goes on ends"
    responses = {"200": good("it is done, and on record", Schedule, _OWN), **_wrong((*DONE, 409))}
    return {**_named("removeSchedule", told, ()), "responses": responses}


def _named(name: str, told: str, parameters: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    operation = {"operationId": name, "summary": told, "security": [{"bearer": []}]}
    return {**operation, "parameters": [*parameters]} if parameters else operation


def _wrong(statuses: tuple[int, ...]) -> dict[str, Any]:
    return {
        str(status): {
            "description": TOLD[status],
            "content": {PROBLEM_JSON: {"schema": {"allOf": [ref(Problem), _narrowed(status)]}}},
        }
        for status in sorted(statuses)
    }


def _narrowed(status: int) -> dict[str, Any]:
    return {"properties": {"status": {"const": status}}}


def _place(name: str, told: str) -> Mapping[str, Any]:
    schema = {"type": "string", "pattern": "^[A-Za-z0-9-]{1,64}$"}
    return {"name": name, "in": "path", "required": True, "description": told, "schema": schema}


_EVENTS: Final = (
    "What is kept of it, or events. `status`: the task's state in A2A's words, a `message`, and `progress` and `total` "
    "where the program says. "
    "`output`: `text` of an `artifact`; with `anew`, what was told of it before does not count. `artifact`: `parts` of "
    "it that are no text. `end`: the run in full, and nothing after it. A comment is a sign of life."
)
_OWN: Final = header(PRIVATE, "Cache-Control", required=True)
_SERVER: Final = {"url": "http://127.0.0.1:9090", "description": "the admin listener"}
_AGENT: Final = query("agent", "only those of this one", {"type": "string"})
_FILTERS: Final = (
    query("active", "only those that are not over", {"type": "boolean"}),
    query("state", "only those in this state", {"enum": [state.value for state in RunState]}),
    query("status", "only those that came to this", {"enum": [status.value for status in RunStatus]}),
    query("schedule", "only those that this one ordered", {"type": "string"}),
    query("owner", "only those on behalf of this principal", {"type": "string", **PRINCIPAL}),
)
_PAGE: Final = (
    query("limit", "how many at most", whole(1, MAX_LIMIT, DEFAULT_LIMIT)),
    query("offset", "where to begin; `next_offset` of the page before", whole(0, MAX_OFFSET, 0)),
)
