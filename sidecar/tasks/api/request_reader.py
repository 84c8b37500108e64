"""Reads requests to the task API. Each becomes a canonical operation of A2A, whose rules, limits and audit apply.

POST /a2a/tasks               create      message/send on its target
GET  /a2a/tasks               list        tasks/list on every agent, or on the one that it names
GET  /a2a/tasks/{id}          show        tasks/get on the task's target
POST /a2a/tasks/{id}/cancel   cancel      tasks/cancel on it
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from sidecar.gateway.frontends.a2a.request_reader import AgentOperation, canonical
from sidecar.gateway.snapshot import Snapshot
from sidecar.protocols import jsonrpc
from sidecar.protocols.a2a import http
from sidecar.protocols.a2a.operations import CANCEL, GET, LIST, RESUBSCRIBE, SEND
from sidecar.protocols.a2a.schema import UnreadableMessage
from sidecar.protocols.jsonrpc import malformed, refuse_variants, spellings
from sidecar.tasks.api.models import MAX_NAME_CHARS, MAX_URL_CHARS, id_of
from sidecar.tasks.api.task_record import Task, TaskState
from sidecar.vocabulary import SKILL, Call, Caller, Question

MAX_LIMIT: Final = 100  # per page, from the original data models
DEFAULT_LIMIT: Final = 20
MAX_OFFSET: Final = 1_000_000
_MEMBERS: Final = ("target_agent_id", "task_type", "input", "callback_url", "source_agent_id")
_QUERY: Final = frozenset({"state", "target_agent_id", "limit", "offset"})
_SPELLINGS: Final = spellings(_MEMBERS)


class NewTask(NamedTuple):
    """A new task. `context` is the conversation that it continues, `answers` is the agent's task that requested it."""

    target: str
    task_type: str
    input: Mapping[str, Any]
    callback_url: str = ""
    context: str = ""
    answers: str = ""


class TaskQuery(NamedTuple):
    """Which tasks to list; `target` "" means those of all agents."""

    target: str
    state: TaskState | None
    limit: int
    offset: int

    @property
    def call(self) -> Call:
        filters = {} if self.state is None else {"state": self.state.value}
        question = Question(f"nhi:{self.target or '*'}", LIST.action, "", arguments=filters)
        return Call("a2a", "1.0", self.target, LIST.action, (question,))


class TaskRequest(NamedTuple):
    """A new task's `order`, a `query`, or the `record` of a task to show or, unless `here`, to cancel. Policy decides
    on `call`."""

    call: Call
    intent: AgentOperation | None = None
    task_id: str = ""
    record: Task | None = None
    order: NewTask | None = None
    query: TaskQuery | None = None
    here: bool = True


def name_of(now: Snapshot, given: str) -> str:
    """Returns an agent's name for its name or UUID. An unknown one is returned unchanged, so that the answer discloses
    nothing."""
    if given in now.agents:
        return given
    try:
        wanted = UUID(given)
    except ValueError:
        return given
    return next((agent.name for agent in now.agents.values() if agent.agent_id == wanted), given)


def order_in(now: Snapshot, caller: Caller, raw: bytes) -> NewTask:
    """Parses the body of a POST. Raises Refusal(MALFORMED_CALL)."""
    body = jsonrpc.parse_json(raw)
    if not isinstance(body, dict):
        raise malformed("the body must be an object")
    if not body.keys() <= set(_MEMBERS):
        refuse_variants(body, _SPELLINGS, "the body")
        raise malformed(f"the body has a member besides {', '.join(_MEMBERS)}")
    payload = body.get("input")
    if not isinstance(payload, dict):
        raise malformed("input must be an object")
    _check_source(now, caller, body.get("source_agent_id"))
    return NewTask(
        name_of(now, _agent(body.get("target_agent_id"))),
        _name(body.get("task_type"), "task_type"),
        payload,
        _url(body.get("callback_url")),
    )


def _agent(value: object) -> str:
    name = _name(value, "target_agent_id")
    if not all(character.isascii() and (character.isalnum() or character == "-") for character in name):
        raise malformed("target_agent_id must be an agent's name, or its UUID")
    return name


def _name(value: object, member: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_CHARS or not value.isprintable():
        raise malformed(f"{member} must be a printable string of 1 to {MAX_NAME_CHARS} characters")
    return value


def _url(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_URL_CHARS:
        raise malformed(f"callback_url must be a string of 1 to {MAX_URL_CHARS} characters")
    return value


def _check_source(now: Snapshot, caller: Caller, value: object) -> None:
    if value is None:
        return
    last = caller.last
    own = (last.name, last.id, id_of(now, last.id)) if last.kind == "nhi" else (last.name,)
    if value not in own:  # a tuple: `value` may be unhashable
        raise malformed("source_agent_id must be who calls")


def sends(
    task_id: str, target: str, task_type: str, payload: Mapping[str, Any], context: str = "", answers: str = ""
) -> AgentOperation:
    """Returns the message of a task; the same task always gives the same message. Raises Refusal(MALFORMED_CALL)."""
    part = {"data": dict(payload), "mediaType": "application/json"}
    goes_on = {"contextId": context, "taskId": answers}
    about = {"messageId": task_id, "role": "ROLE_USER", **{name: one for name, one in goes_on.items() if one}}
    params = {
        "message": {**about, "parts": [part]},
        "configuration": {"returnImmediately": True},
        "metadata": {SKILL: task_type},
    }
    return canonical(target, SEND, params)


def gets(record: Task) -> AgentOperation:
    return canonical(record.target, GET, {"id": record.a2a_task or record.id})


def hears(record: Task) -> AgentOperation:
    return canonical(record.target, RESUBSCRIBE, {"id": record.a2a_task})


def cancels(record: Task) -> AgentOperation:
    return canonical(record.target, CANCEL, {"id": record.a2a_task or record.id})


def wanted_in(now: Snapshot, raw_query: str) -> TaskQuery:
    """Parses a list's query string. Raises Refusal(MALFORMED_CALL)."""
    try:
        query = http.query_of(raw_query)
    except UnreadableMessage as error:
        raise malformed(str(error)) from None
    if not query.keys() <= _QUERY:
        raise malformed(f"the query has a parameter besides {', '.join(sorted(_QUERY))}")
    state = query.get("state")
    if state is not None and state not in list(TaskState):
        raise malformed(f"state must be one of {', '.join(TaskState)}")
    target = query.get("target_agent_id")
    return TaskQuery(
        "" if target is None else name_of(now, _agent(target)),
        None if state is None else TaskState(state),
        _number(query.get("limit"), "limit", 1, MAX_LIMIT, DEFAULT_LIMIT),
        _number(query.get("offset"), "offset", 0, MAX_OFFSET, 0),
    )


def _number(text: str | None, name: str, least: int, most: int, default: int) -> int:
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 8 or not least <= int(text) <= most:
        raise malformed(f"{name} must be a whole number from {least} to {most}")
    return int(text)
