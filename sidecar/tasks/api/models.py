"""Request and response models of the task API, with the names of the original data models, and the texts and bounds of
its OpenAPI document."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NotRequired, TypedDict

from sidecar.errors import Reason
from sidecar.gateway.frontends.a2a.approval_wait import APPROVAL, AUTH_REQUIRED, said_of
from sidecar.gateway.snapshot import Snapshot
from sidecar.tasks.api.task_record import Task, TaskState, moment

MAX_NAME_CHARS: Final = 128
MAX_URL_CHARS: Final = 2_048
NAME: Final[Mapping[str, Any]] = {"minLength": 1, "maxLength": MAX_NAME_CHARS}
AGENT: Final[Mapping[str, Any]] = {**NAME, "pattern": "^[A-Za-z0-9-]+$"}
URL: Final[Mapping[str, Any]] = {"minLength": 1, "maxLength": MAX_URL_CHARS}


MESSAGE_STATES: Final[Mapping[TaskState, str]] = {
    TaskState.PENDING: "TASK_STATE_SUBMITTED",
    TaskState.WAITING: AUTH_REQUIRED,
    TaskState.RUNNING: "TASK_STATE_WORKING",
    TaskState.COMPLETED: "TASK_STATE_COMPLETED",
    TaskState.FAILED: "TASK_STATE_FAILED",
    TaskState.CANCELLED: "TASK_STATE_CANCELED",
}


class TaskOrder(TypedDict):
    """A request to create a task."""

    target_agent_id: Annotated[str, "Name of an agent, or its UUID (`a2a.agent_id`).", AGENT]
    task_type: Annotated[
        str, "Type of the task, printable. It is sent as metadata, and rules read it as `call.tool`.", NAME
    ]
    input: Annotated[
        Mapping[str, Any],
        "Input of the agent. It becomes the one data part of the message, which rules read as arguments.",
    ]
    callback_url: NotRequired[Annotated[str | None, "URL to which the sidecar reports the end of the task.", URL]]
    source_agent_id: NotRequired[Annotated[str | None, "The caller. A request that names another agent is refused."]]


class TaskCreated(TypedDict):
    """An accepted task."""

    task_id: Annotated[str, "Id of the task in the task API."]
    status: Annotated[TaskState, "`pending`, or `waiting` for a person's approval."]
    created_at: Annotated[str | None, "Time at which the task was created."]


class A2aWords(TypedDict):
    """A task as the agent reports it, in terms of A2A."""

    task_id: Annotated[str | None, "Id of the task at the agent."]
    context_id: Annotated[str | None, "Id of the conversation."]
    state: Annotated[str | None, "TaskState of A2A 1.0."]


class AwaitedApproval(TypedDict):
    """The approval that a task waits for."""

    id: Annotated[str, "Id of the request for approval."]
    answer_before: Annotated[str | None, "Time at which the request expires without an answer."]


class A2aTask(TypedDict):
    """A task of the task API."""

    id: Annotated[str, "Id of the task in the task API."]
    source_agent_id: Annotated[str | None, "The agent that created the task. Null if a person created it."]
    target_agent_id: Annotated[str, "The agent that executes the task: its UUID, or its name if it has none."]
    task_type: Annotated[str, "Type of the task, as requested."]
    state: Annotated[TaskState, "State of the task. A task in the state `waiting` needs a person's approval."]
    result: Annotated[Mapping[str, Any] | None, "Artifacts and message, with parts as in A2A 1.0."]
    error_code: Annotated[str | None, "Error code of a failed task."]
    error_message: Annotated[str | None, "Error of a failed task, as a sentence of the agent or of the sidecar."]
    created_at: Annotated[str | None, "Time at which the task was created."]
    started_at: Annotated[str | None, "Time at which the agent started."]
    completed_at: Annotated[str | None, "Time at which the task ended."]
    a2a: Annotated[A2aWords, "The same task over A2A."]
    approval: NotRequired[Annotated[AwaitedApproval, "The approval that a task in the state `waiting` needs."]]
    result_omitted: NotRequired[
        Annotated[bool, "Whether the result is omitted because of its size. `GET /a2a/tasks/{id}` returns it."]
    ]


class A2aTasks(TypedDict):
    """A page of tasks."""

    tasks: Annotated[Sequence[A2aTask], "The tasks, newest first."]
    total: Annotated[int, "Number of tasks on all pages."]
    limit: Annotated[int, "Maximum number of tasks, as requested."]
    offset: Annotated[int, "Number of skipped tasks, as requested."]


class TaskCancelled(TypedDict):
    """A cancelled task."""

    task_id: Annotated[str, "Id of the task in the task API."]
    state: Annotated[TaskState, "`cancelled`."]
    cancelled_at: Annotated[str | None, "Time at which the task was cancelled."]


def id_of(now: Snapshot, name: str) -> str:
    agent = now.agents.get(name)
    return name if agent is None or agent.agent_id is None else str(agent.agent_id)


def shown(record: Task, now: Snapshot) -> A2aTask:
    """Returns the task object of the original data models, with the agent's own values added."""
    source = record.caller.last
    said: A2aTask = {
        "id": record.id,
        "source_agent_id": id_of(now, source.id) if source.kind == "nhi" else None,
        "target_agent_id": id_of(now, record.target),
        "task_type": record.task_type,
        "state": record.state,
        "result": record.result,
        "error_code": record.error_code or None,
        "error_message": record.error_message or None,
        "created_at": moment(record.created_at),
        "started_at": moment(record.started_at),
        "completed_at": moment(record.completed_at),
        "a2a": {
            "task_id": record.a2a_task or None,
            "context_id": record.a2a_context or None,
            "state": record.a2a_state or None,
        },
    }
    if record.state is TaskState.WAITING:
        said["approval"] = {"id": record.approval, "answer_before": moment(record.approve_by)}
    return said


def message_task(record: Task, page: str | None) -> dict[str, Any]:
    """Returns the task of a message that waits or waited for approval, in the form of A2A 1.0. `page` is the prefix of
    the URLs at which people answer; None if there are none."""
    state, metadata, text = MESSAGE_STATES[record.state], {}, record.error_message
    if record.state is TaskState.WAITING:
        about = {"id": record.approval, "answer_before": moment(record.approve_by)}
        text = f"A person must approve this message before {about['answer_before']} (approval {record.approval})"
        if page is not None:
            about["page"] = f"{page}{record.approval}"
            text = f"{text}: {about['page']}"
        metadata[APPROVAL] = about
    elif record.refused is not None:
        metadata[APPROVAL] = {"id": record.approval, "reason": record.refused.value}
        if record.refused is Reason.APPROVAL_REFUSED:
            state = "TASK_STATE_REJECTED"
    status: dict[str, Any] = {"state": state, "timestamp": moment(record.completed_at or record.created_at)}
    if record.result is not None:
        status["message"] = record.result["message"]
    elif text:
        status["message"] = said_of(record.id, record.a2a_context, record.state, text)
    task: dict[str, Any] = {"id": record.id, "contextId": record.a2a_context, "status": status}
    return {**task, "metadata": metadata} if metadata else task


def without_result(said: A2aTask) -> A2aTask:
    """Returns a task without its result, which is too large; it is at the task's own URL."""
    return {**said, "result": None, "result_omitted": True}


def created(record: Task) -> TaskCreated:
    return {"task_id": record.id, "status": record.state, "created_at": moment(record.created_at)}


def cancelled(record: Task) -> TaskCancelled:
    return {"task_id": record.id, "state": record.state, "cancelled_at": moment(record.completed_at)}
