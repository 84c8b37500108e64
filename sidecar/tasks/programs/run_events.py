"""Turns a run's progress into A2A tasks and events; its output is one artifact per turn: `output`, `output-2` …"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import NAMESPACE_OID, uuid5

from sidecar.tasks.programs.attempt import (
    CANCELED,
    FAILED,
    AttemptEnd,
    Event,
    OutputArtifact,
    OutputChunk,
    ProgressNote,
    Started,
)
from sidecar.tasks.programs.run_record import MAX_TRANSITIONS, Category, Execution, Failure, RunState, Transition
from sidecar.vocabulary import ERROR_CODE, SKILL

Task = Mapping[str, Any]
StreamResponse = Mapping[str, Any]
Told = tuple[Task, tuple[StreamResponse, ...]]
OVER: Final = frozenset(
    {"TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED"}
)  # A2A 1.0, 4.1.3: these are final
WAITS: Final = frozenset({"TASK_STATE_INPUT_REQUIRED", "TASK_STATE_AUTH_REQUIRED"})
OUTPUT: Final = "output"
_TIMED_OUT: Final = {"metadata": {ERROR_CODE: "Timeout"}}


def begun(execution_id: str, context: str, message: Mapping[str, Any], now_s: float) -> Task:
    said = _placed(message, execution_id, context)
    return {
        "id": execution_id,
        "contextId": context,
        "status": {"state": "TASK_STATE_SUBMITTED", "timestamp": _moment(now_s)},
        "history": [said],
    }


def message_of(task: Task) -> Mapping[str, Any]:
    said = [message for message in task.get("history", ()) if message.get("role") == "ROLE_USER"]
    return said[-1] if said else {}


def skill_of(task: Task) -> str:
    return str((message_of(task).get("metadata") or {}).get(SKILL, ""))


def went_on(task: Task, message: Mapping[str, Any], now_s: float) -> Told:
    asked = task["status"].get("message")
    said = _placed(message, task["id"], task["contextId"])
    history = [*task.get("history", ()), *([asked] if asked else []), said]
    return _in_state({**task, "history": history}, "TASK_STATE_SUBMITTED", None, now_s)


def after(task: Task, event: Event, now_s: float) -> Told:
    match event:
        case Started():
            return _in_state(task, "TASK_STATE_WORKING", None, now_s)
        case OutputChunk(text):
            return _with_artifact(task, {"artifactId": output_of(task), "parts": [{"text": text}]}, append=True)
        case OutputArtifact(update):
            last = {"lastChunk": True} if update.get("lastChunk") else {}
            if "artifactId" not in update["artifact"]:
                return _with_artifact(task, update["artifact"] | {"artifactId": output_of(task)}, append=True, **last)
            return _with_artifact(task, update["artifact"], append=bool(update.get("append")), **last)
        case ProgressNote():
            known = (("progress", event.done), ("total", event.total))  # MCP's names
            figures = {name: value for name, value in known if value is not None}
            said = _message(task, [{"text": event.message}], now_s) | ({"metadata": figures} if figures else {})
            if event.stays:
                task = {**task, "history": [*task.get("history", ()), said]}
            return _in_state(task, "TASK_STATE_WORKING", said, now_s)
        case AttemptEnd():
            whole = _with(task, artifacts=[_joined(one) for one in task.get("artifacts", ())])
            if event.failure is not None:
                return stood(whole, FAILED, event.failure.message, now_s, timed_out=event.timed_out)
            said = _message(whole, event.message, now_s, alone=event.alone) if event.message else {}
            return _in_state(whole, event.state, said, now_s)


def stood(task: Task, state: str, text: str, now_s: float, *, timed_out: bool = False) -> Told:
    """Moves the task to a state, with a sentence if there is one; `timed_out` adds the error code `Timeout` of the
    original data models."""
    message = _message(task, [{"text": text}], now_s) | (_TIMED_OUT if timed_out else {}) if text else None
    return _in_state(task, state, message, now_s)


def anew(task: Task, text: str, now_s: float) -> Told:
    """Prepares the task for another attempt: the last attempt's output is dropped, and the next chunk replaces it."""
    mine = output_of(task)
    kept = [one for one in task.get("artifacts", ()) if one["artifactId"] != mine]
    return stood(_with(task, artifacts=kept), "TASK_STATE_WORKING", text, now_s)


def output_of(task: Task) -> str:
    """Returns the id of the artifact for this turn's output."""
    turn = sum(one.get("role") == "ROLE_USER" for one in task.get("history", ()))
    return OUTPUT if turn < 2 else f"{OUTPUT}-{turn}"


def is_over(task: Task) -> bool:
    return task["status"]["state"] in OVER


def answer_alone(task: Task) -> Mapping[str, Any] | None:
    """Returns the message with which a program answered instead of a task, or None for a task."""
    said: Mapping[str, Any] | None = task["status"].get("message")
    return said if said is not None and "taskId" not in said else None


def _in_state(task: Task, state: str, message: Mapping[str, Any] | None, now_s: float) -> Told:
    status = {"state": state, **({"message": message} if message else {}), "timestamp": _moment(now_s)}
    update = {"taskId": task["id"], "contextId": task["contextId"], "status": status}
    return {**task, "status": status}, ({"statusUpdate": update},)


def _message(task: Task, parts: Sequence[Mapping[str, Any]], now_s: float, *, alone: bool = False) -> dict[str, Any]:
    """Returns an agent's message. The same text at the same time has the same id, so that replicas agree."""
    named = uuid5(NAMESPACE_OID, f"{task['id']} {now_s!r} {parts!r}")
    about = {} if alone else {"taskId": task["id"]}
    said = {"messageId": str(named), "contextId": task["contextId"], **about, "role": "ROLE_AGENT"}
    return {**said, "parts": list(parts)}


def _placed(message: Mapping[str, Any], task: str, context: str) -> Mapping[str, Any]:
    return {**message, "contextId": context, "taskId": task}


def _with_artifact(task: Task, given: Mapping[str, Any], *, append: bool, **more: Any) -> Told:
    """Adds an artifact, replaces it, or appends to it. The first chunk cannot append."""
    known = list(task.get("artifacts", ()))
    at = next((index for index, one in enumerate(known) if one["artifactId"] == given["artifactId"]), None)
    appends = append and at is not None
    if at is None:
        known.append(given)
    else:
        known[at] = _appended(known[at], given) if appends else given
    update = {"taskId": task["id"], "contextId": task["contextId"], "artifact": given}
    return _with(task, artifacts=known), ({"artifactUpdate": update | ({"append": True} if appends else {}) | more},)


def _appended(known: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Appends to an artifact. Texts are joined once the new one is as long as the previous one, so that single letters
    cause few copies."""
    parts = list(known.get("parts", ()))
    for part in given.get("parts", ()):
        parts.append(part)
        while len(parts) > 1 and _is_text(parts[-1], parts[-2]) and len(parts[-1]["text"]) >= len(parts[-2]["text"]):
            parts[-2:] = [{"text": parts[-2]["text"] + parts[-1]["text"]}]
    return {**known, **{name: value for name, value in given.items() if name != "parts"}, "parts": parts}


def _joined(artifact: Mapping[str, Any]) -> Mapping[str, Any]:
    runs: list[tuple[Mapping[str, Any], list[str]]] = []
    for part in artifact.get("parts", ()):
        if runs and _is_text(part, runs[-1][0]):
            runs[-1][1].append(part["text"])
        else:
            runs.append((part, [part["text"]] if _is_text(part) else []))
    parts = [{"text": "".join(texts)} if texts else part for part, texts in runs]
    return {**artifact, "parts": parts} if parts else artifact


def _is_text(*parts: Mapping[str, Any]) -> bool:
    return all(part.keys() == {"text"} for part in parts)


def _with(task: Task, *, artifacts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    rest = {name: value for name, value in task.items() if name != "artifacts"}
    return {**rest, "artifacts": list(artifacts)} if artifacts else rest


def _moment(epoch_s: float) -> str:
    """Formats a time in canonical form: UTC, with milliseconds unless they are zero."""
    text = datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00")
    return text.removesuffix(".000") + "Z"


# Runs whose sidecar has ended. Their programs have ended too, because each warden ends its program with the sidecar. A
# run without an attempt waits for its turn at another sidecar; the store records an attempt before it begins. The
# effects of an attempt are unknown, so a run that had begun has failed and does not run again. A stored end remains.

_WHEN: Final = {
    RunState.IDLE: "before it could run",
    RunState.STARTING: "while it began",
    RunState.RUNNING: "while it ran",
    RunState.FAILED: "before its next try",
}


def has_begun(record: Execution) -> bool:
    """Whether an attempt may have begun since the run was ordered, or since its caller answered."""
    return record.state is not RunState.IDLE


def taken_up(record: Execution, now_s: float) -> Execution:
    """Returns the run waiting at another process, as its next revision, so that only one process takes it."""
    taken = Transition(RunState.IDLE, now_s, "another process took it up")
    return record._replace(transitions=(*record.transitions[-MAX_TRANSITIONS:], taken), revision=record.revision + 1)


def left_behind(record: Execution, why: str, now_s: float, keep_s: float) -> Execution:
    """Returns the run at its end, by transitions of the state table, as its next revision."""
    if record.state in _WHEN:
        told = f"{why} {_WHEN[record.state]}"
        if record.cancel_requested:
            task, _ = stood(record.task, CANCELED, told, now_s)
            record = record.moved(RunState.CANCELLED, now_s, told, task=task)
        else:
            task, _ = stood(record.task, FAILED, told, now_s)
            state = RunState.CLEANUP if record.state is RunState.FAILED else RunState.FAILED
            record = record.moved(state, now_s, told, task=task, failure=Failure(Category.SYSTEM, told))
    if record.state is not RunState.CLEANUP:
        record = record.moved(RunState.CLEANUP, now_s)
    return record.moved(RunState.IDLE, now_s, why, expires_at=now_s + keep_s)._replace(revision=record.revision + 1)
