"""OpenAPI paths of the task API.

The paths are those of `gateway.routing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sidecar.admin.openapi.components import CORRELATION, PRIVATE, bad, good, header, query, taken, whole
from sidecar.errors import Reason
from sidecar.tasks.api.models import AGENT, A2aTask, A2aTasks, A2aWords, TaskCancelled, TaskCreated, TaskOrder
from sidecar.tasks.api.request_reader import DEFAULT_LIMIT, MAX_LIMIT, MAX_OFFSET
from sidecar.tasks.api.task_record import TaskState

# Reasons about the caller, its permissions, and the sidecar itself.
ALWAYS: Final = frozenset(
    {
        Reason.UNAUTHENTICATED,
        Reason.BAD_CREDENTIAL,
        Reason.CREDENTIAL_CONFLICT,
        Reason.CLIENT_UNKNOWN,
        Reason.INSUFFICIENT_SCOPE,
        Reason.ORIGIN_REFUSED,
        Reason.ROUTE_UNKNOWN,
        Reason.MALFORMED_CALL,
        Reason.DENIED_BY_RULE,
        Reason.EXPIRED,
        Reason.CONDITION_FALSE,
        Reason.NO_MATCHING_RULE,
        Reason.PRINCIPAL_DISABLED,
        Reason.UPSTREAM_UNKNOWN,
        Reason.RATE_LIMITED,
        Reason.QUOTA_SPENT,
        Reason.BUDGET_SPENT,
        Reason.TOO_MANY_CONCURRENT,
        Reason.TOO_MANY_REFUSALS,
        Reason.STORE_UNAVAILABLE,
        Reason.AUDIT_UNAVAILABLE,
        Reason.OVERLOADED,
        Reason.DRAINING,
        Reason.INTERNAL,
    }
)
_OF_BODIES: Final = frozenset({Reason.TOO_LARGE, Reason.UNSUPPORTED_MEDIA_TYPE})
_OF_AGENTS: Final = frozenset(
    {Reason.UPSTREAM_TIMEOUT, Reason.UPSTREAM_FAILED, Reason.UPSTREAM_LIMITED, Reason.RESPONSE_REFUSED}
)
CREATING: Final = ALWAYS | _OF_BODIES | {Reason.UPSTREAM_OPEN}
SHOWING: Final = ALWAYS | {Reason.TASK_UNKNOWN}
CANCELLING: Final = SHOWING | _OF_BODIES | _OF_AGENTS | {Reason.UPSTREAM_OPEN, Reason.NOT_CANCELABLE}
MODELS: Final = (TaskOrder, TaskCreated, A2aWords, A2aTask, A2aTasks, TaskCancelled)


def paths() -> dict[str, Any]:
    """The paths of the task API. The same paths exist under `/api/nhi`."""
    return {
        "/a2a/tasks": {**_AT, "post": _creating(), "get": _listing()},
        "/a2a/tasks/{id}": {**_AT, "parameters": [_ID, *CORRELATION], "get": _showing()},
        "/a2a/tasks/{id}/cancel": {**_AT, "parameters": [_ID, *CORRELATION], "post": _cancelling()},
    }


def _creating() -> dict[str, Any]:
    place = header("where the task is to be seen", "Location", required=True)
    return {
        "operationId": "createTask",
        "summary": "Hand work to an agent; it is carried out whoever is gone by then",
        "requestBody": taken(TaskOrder),
        "responses": {"201": good("it is on disk", TaskCreated, {**place, **_OWN}), **bad(CREATING)},
    }


def _listing() -> dict[str, Any]:
    return {
        "operationId": "listTasks",
        "summary": "The caller's own tasks, newest first",
        "parameters": [
            query("state", "only those in this state", {"enum": [state.value for state in TaskState]}),
            query("target_agent_id", "only those of this agent, by its name or UUID", {"type": "string", **AGENT}),
            query("limit", "how many at most", whole(1, MAX_LIMIT, DEFAULT_LIMIT)),
            query("offset", "how many are passed over", whole(0, MAX_OFFSET, 0)),
        ],
        "responses": {"200": good("one page", A2aTasks, _OWN), **bad(ALWAYS)},
    }


def _showing() -> dict[str, Any]:
    return {
        "operationId": "getTask",
        "summary": "One task of the caller",
        "responses": {"200": good("as it stands", A2aTask, _OWN), **bad(SHOWING)},
    }


def _cancelling() -> dict[str, Any]:
    return {
        "operationId": "cancelTask",
        "summary": "End a task here and at its agent",
        "responses": {"200": good("it is cancelled", TaskCancelled, _OWN), **bad(CANCELLING)},
    }


_OWN: Final = header(PRIVATE, "Cache-Control", required=True)
_AT: Final[Mapping[str, Any]] = {
    "servers": [{"url": "http://127.0.0.1:8080"}, {"url": "http://127.0.0.1:8080/api/nhi"}],
    "parameters": [*CORRELATION],
}
_ID: Final[Mapping[str, Any]] = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "a task, by the `task_id` that creating it told",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9-]{1,64}$"},
}
