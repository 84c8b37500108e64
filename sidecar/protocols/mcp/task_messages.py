"""Reads task ids and states in MCP messages.

There are two forms of tasks: in 2025-11-25 the caller requests one (`params.task`) and gets `{"task": {"taskId": …}}`;
in the extension of 2026-07-28 the server decides and answers `{"resultType": "task", "taskId": …}`. Both forms are read
in every message, because a result is checked by its content, not by the request.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sidecar.errors import Reason, Refusal
from sidecar.protocols.jsonrpc import INVALID_PARAMS, Message, Notification, Request, Response, malformed, spellings
from sidecar.protocols.mcp.eras import META_CAPABILITIES, TASKS_EXTENSION

RELATED_TASK = "io.modelcontextprotocol/related-task"
VERSIONS = frozenset({"2025-11-25"})  # session revisions whose core has tasks
NOTIFICATIONS = frozenset({"notifications/tasks/status", "notifications/tasks"})
CANCEL = "tasks/cancel"
ENDING_OR_LISTING = frozenset({CANCEL, "tasks/list"})
MISSING_CAPABILITY = -32021
MAX_SUBSCRIBED = 100
MAX_NAMED = 10_000  # tasks in one message of an upstream: a page of a list
NOBODYS = ""  # in place of an id that is not a string, which has no owner
_METHODS_PREFIX = "tasks/"
_SPELLINGS = spellings(("taskId",))


class SeenTasks(NamedTuple):
    """A task's state as the upstream reports it, "" if it does not. `ttl_s` is its lifetime in seconds from its
    creation: infinite for no end, None if unknown."""

    id: str
    state: str
    ttl_s: float | None


def named_by_caller(method: str, params: Mapping[str, Any]) -> tuple[str, ...]:
    """The ids of the tasks that a caller's message names. Raises Refusal(MALFORMED_CALL) if an id is missing or is not
    a string, or there are more than MAX_SUBSCRIBED."""
    if method != "subscriptions/listen" and not method.startswith(_METHODS_PREFIX):
        return related_by_caller(params)
    named = []
    if method.startswith(_METHODS_PREFIX) and method != "tasks/list":
        named.append(_id_in(params, "params"))
    wanted = params.get("notifications")
    if method == "subscriptions/listen" and isinstance(wanted, dict) and "taskIds" in wanted:
        ids = wanted["taskIds"]
        if not isinstance(ids, list) or len(ids) > MAX_SUBSCRIBED or not all(isinstance(one, str) for one in ids):
            raise malformed(f"taskIds must be a list of at most {MAX_SUBSCRIBED} strings", INVALID_PARAMS)
        named += ids
    return (*named, *related_by_caller(params))


def related_by_caller(holder: Mapping[str, Any]) -> tuple[str, ...]:
    """The id of the task that `_meta` relates a caller's message or answer to; () for none. Raises
    Refusal(MALFORMED_CALL) if it is not valid."""
    meta = holder.get("_meta")
    if not isinstance(meta, dict) or RELATED_TASK not in meta:
        return ()
    related = meta[RELATED_TASK]
    if not isinstance(related, dict):
        raise malformed(f"_meta must hold an object as {RELATED_TASK}", INVALID_PARAMS)
    return (_id_in(related, f"_meta.{RELATED_TASK}"),)


def check_task_wish(params: Mapping[str, Any]) -> None:
    """Checks `params.task` of MCP 2025-11-25. Raises Refusal(MALFORMED_CALL) if it is not an object with a number as
    its `ttl`, if any."""
    task = params["task"]
    ttl = task.get("ttl") if isinstance(task, dict) else None
    if not isinstance(task, dict) or (ttl is not None and (isinstance(ttl, bool) or not isinstance(ttl, int | float))):
        raise malformed("params.task must be an object, and its ttl a number", INVALID_PARAMS)


def check_declared(params: Mapping[str, Any]) -> None:
    """Raises Refusal(MALFORMED_CALL), with MCP's own code, if the client did not declare the extension for tasks."""
    if not declares(params.get("_meta", {}).get(META_CAPABILITIES)):
        raise Refusal(
            Reason.MALFORMED_CALL,
            f"the client must declare {TASKS_EXTENSION}",
            code=MISSING_CAPABILITY,
            data={"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}},
        )


def declares(capabilities: object) -> bool:
    """Whether capabilities name the extension for tasks."""
    extensions = capabilities.get("extensions") if isinstance(capabilities, dict) else None
    return isinstance(extensions, dict) and TASKS_EXTENSION in extensions


def may_become_task(method: str, params: Mapping[str, Any]) -> bool:
    """Whether a call, in its forwarded form, may be answered with a task."""
    return method == "tools/call" and ("task" in params or declares(params.get("_meta", {}).get(META_CAPABILITIES)))


def _id_in(holder: Mapping[str, Any], where: str) -> str:
    if any(_SPELLINGS.get(key.casefold(), key) != key for key in holder):
        raise malformed(f"{where} has a key that differs from taskId only in case")
    task_id = holder.get("taskId")
    if not isinstance(task_id, str):
        raise malformed(f"{where}.taskId must be a string", INVALID_PARAMS)
    return task_id


def created_in(result: Mapping[str, Any]) -> SeenTasks | None:
    """The task that a result creates, in the form of either revision; None if it creates none."""
    if result.get("resultType") == "task":
        return _seen(result)
    task = result.get("task")
    return _seen(task) if isinstance(task, dict) and _has_id(task) else None


def named_by_upstream(message: Message) -> list[str]:
    """The ids of the tasks that an upstream's message is about, except one that it creates; NOBODYS for an invalid
    id."""
    named = [_id_of(task) for task in _tasks_in(message)]
    holder = message.result if isinstance(message, Response) else message.params
    meta = holder.get("_meta") if isinstance(holder, dict) else None
    if isinstance(meta, dict) and RELATED_TASK in meta:
        related = meta[RELATED_TASK]
        named.append(_id_of(related) if isinstance(related, dict) else NOBODYS)
    return named


def states_in(message: Message) -> list[SeenTasks]:
    """The states of the tasks that an upstream's message reports."""
    return [_seen(task) for task in _tasks_in(message)]


def result_in(message: Message, *, whole: bool) -> dict[str, Any] | None:
    """The result of the call that created a task: the `whole` answer (`tasks/result`), otherwise the `result` inside
    the task; None if there is none."""
    match message:
        case Response(result=dict() as result):
            inside = result if whole else result.get("result")
        case Notification(method=method, params=params) if method in NOTIFICATIONS:
            inside = params.get("result")
        case _:
            inside = None
    return inside if isinstance(inside, dict) else None


def acknowledged(notification: Notification, wanted: Sequence[str]) -> Notification:
    """A subscription's acknowledgement, without ids of tasks that are not among the `wanted` ones."""
    accepted = notification.params.get("notifications")
    if not isinstance(accepted, dict) or "taskIds" not in accepted:
        return notification
    ids = accepted["taskIds"] if isinstance(accepted["taskIds"], list) else []
    kept = {**accepted, "taskIds": [one for one in ids if isinstance(one, str) and one in wanted]}
    return notification._replace(params={**notification.params, "notifications": kept})


def listed_id(entry: object) -> str:
    """The id of an entry of `tasks/list`; NOBODYS for one that has none."""
    return _id_of(entry) if isinstance(entry, dict) else NOBODYS


def _tasks_in(message: Message) -> Iterator[Mapping[str, Any]]:
    match message:
        case Response(result=dict() as result) if result.get("resultType") != "task":
            if _has_id(result):
                yield result
            listed = result.get("tasks")  # a longer list is refused
            entries = listed[: MAX_NAMED + 1] if isinstance(listed, list) else ()
            yield from (entry for entry in entries if isinstance(entry, dict))
        case Notification(method=method, params=params) if method in NOTIFICATIONS:
            yield params
        case Request(method=method, params=params) if method.startswith(_METHODS_PREFIX):
            yield params
        case _:
            return


def _has_id(holder: Mapping[str, Any]) -> bool:
    return any(key.casefold() == "taskid" for key in holder)


def _id_of(holder: Mapping[str, Any]) -> str:
    # A client that ignores case must read the same id as the sidecar.
    named = [key for key in holder if key.casefold() == "taskid"]
    task_id = holder.get("taskId")
    return task_id if named == ["taskId"] and isinstance(task_id, str) else NOBODYS


def _seen(task: Mapping[str, Any]) -> SeenTasks:
    status = task.get("status")
    return SeenTasks(_id_of(task), status if isinstance(status, str) else "", _ttl_s(task))


def _ttl_s(task: Mapping[str, Any]) -> float | None:
    given = [task[key] for key in ("ttl", "ttlMs") if key in task]
    if not given or isinstance(given[0], bool) or not isinstance(given[0], int | float | None):
        return None
    return math.inf if given[0] is None else given[0] / 1000
