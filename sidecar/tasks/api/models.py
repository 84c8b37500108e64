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
    """What a task is created from."""

    target_agent_id: Annotated[str, "an agent, by its name or the UUID that the operator gave it", AGENT]
    task_type: Annotated[str, "printable; travels as metadata, and rules read it as call.tool", NAME]
    input: Annotated[Mapping[str, Any], "what it is about; becomes the message's one data part, which rules read"]
    callback_url: NotRequired[Annotated[str | None, "where the sidecar reports the end of the task", URL]]
    source_agent_id: NotRequired[Annotated[str | None, "the caller, if it is named"]]


class TaskCreated(TypedDict):
    """A task that was taken."""

    task_id: Annotated[str, "its name here"]
    status: Annotated[TaskState, "pending, or waiting for a person's approval"]
    created_at: Annotated[str | None, "RFC 3339, UTC"]


class A2aWords(TypedDict):
    """What the agent says of a task, in A2A's words."""

    task_id: Annotated[str | None, "its name at the agent"]
    context_id: Annotated[str | None, "the conversation that it belongs to"]
    state: Annotated[str | None, "A2A 1.0's TaskState"]


class AwaitedApproval(TypedDict):
    """The approval that a task waits for."""

    id: Annotated[str, "the name of the request for approval"]
    answer_before: Annotated[str | None, "RFC 3339, UTC"]


class A2aTask(TypedDict):
    """A task."""

    id: Annotated[str, "its name here"]
    source_agent_id: Annotated[str | None, "the agent that created it; nothing if that is a person"]
    target_agent_id: Annotated[str, "the agent that it is for: its UUID, where it has one, or its name"]
    task_type: Annotated[str, "as it was ordered"]
    state: Annotated[TaskState, "the state; `waiting` is for a person's approval"]
    result: Annotated[Mapping[str, Any] | None, "artifacts and message, each part as A2A 1.0 has it"]
    error_code: Annotated[str | None, "of a task that failed"]
    error_message: Annotated[str | None, "of a task that failed: a sentence of the agent or of the sidecar"]
    created_at: Annotated[str | None, "RFC 3339, UTC"]
    started_at: Annotated[str | None, "RFC 3339, UTC"]
    completed_at: Annotated[str | None, "RFC 3339, UTC"]
    a2a: Annotated[A2aWords, "the same task over A2A"]
    approval: NotRequired[Annotated[AwaitedApproval, "of a task that is waiting"]]
    result_omitted: NotRequired[Annotated[bool, "whether the result is too large for here; see the task's address"]]


class A2aTasks(TypedDict):
    """A page of tasks."""

    tasks: Annotated[Sequence[A2aTask], "newest first"]
    total: Annotated[int, "how many there are on all pages"]
    limit: Annotated[int, "as it was asked"]
    offset: Annotated[int, "as it was asked"]


class TaskCancelled(TypedDict):
    """A task that is no more."""

    task_id: Annotated[str, "its name here"]
    state: Annotated[TaskState, "cancelled"]
    cancelled_at: Annotated[str | None, "RFC 3339, UTC"]


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
    """Returns the task of a message that waited for approval, in the form of A2A 1.0. People answer below `page`."""
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
