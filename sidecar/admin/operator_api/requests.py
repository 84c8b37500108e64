"""Reads operators' requests about runs.

Bodies and queries with unknown members are refused, so that a misspelt choice is never ignored, and no program,
argument or variable is set by an unexpected name (BL-029).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from sidecar.admin.operator_api.models import CONTEXT, NAME, PLAIN, PRINCIPAL, WHY
from sidecar.protocols import jsonrpc
from sidecar.protocols.a2a import http
from sidecar.protocols.a2a.schema import UnreadableMessage
from sidecar.protocols.jsonrpc import malformed
from sidecar.settings.schedules import ScheduleSettings
from sidecar.settings.validation_errors import findings_of
from sidecar.settings.yaml_nodes import Loc
from sidecar.tasks.programs.run_record import Execution
from sidecar.tasks.programs.run_states import RunState, RunStatus
from sidecar.tasks.schedules.fit_checks import told

OPERATOR: Final = "nhi:operator"
TASK_TYPE: Final = "operator"
DEFAULT_LIMIT: Final = 20
MAX_LIMIT: Final = 200
MAX_OFFSET: Final = 1_000_000
_WORDS: Final = frozenset({"agent", "active", "state", "status", "schedule", "owner", "limit", "offset"})
_SAID: Final = ("prompt", "parameters", "environment", "working_directory")
_DEFINED: Final = ("name", "title", *(key for key in ScheduleSettings.model_fields if key not in ("id", "name")))
_SLUG: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_PRINCIPAL: Final = re.compile(PRINCIPAL["pattern"].removeprefix("^").removesuffix("$"))
_PLAIN: Final = re.compile(PLAIN["pattern"].removeprefix("^").removesuffix("$"))


class WantedRuns(NamedTuple):
    """A query for runs; "", None and False select all. `owner` is a principal anywhere in the run's chain, and `active`
    selects runs that are not over."""

    agent: str = ""
    state: RunState | None = None
    status: RunStatus | None = None
    schedule: str = ""
    owner: str = ""
    limit: int = DEFAULT_LIMIT
    offset: int = 0
    active: bool = False

    @property
    def standing(self) -> str | None:
        """The state or status by which a store selects runs."""
        return self.status or self.state

    @property
    def is_narrow(self) -> bool:
        """Whether the query has filters that stores do not support."""
        return bool(self.schedule or self.owner or (self.status and self.state))

    def means(self, run: Execution) -> bool:
        """Whether a run passes the filters that stores do not support."""
        return (
            not (self.active and run.is_done)
            and (self.state is None or run.state is self.state)
            and (self.status is None or run.status is self.status)
            and self.schedule in ("", run.schedule)
            and (not self.owner or any(principal.name == self.owner for principal in run.caller.chain))
        )


class RunOrdering(NamedTuple):
    """An order of a run. `input` is the agent's input as in the task API; `principal` is the caller."""

    input: Mapping[str, Any]
    principal: str
    context: str
    task_type: str


class RunAnswering(NamedTuple):
    """An answer to a run that waits for input, as in `RunOrdering`. A `task_type` of "" keeps the earlier one."""

    input: Mapping[str, Any]
    task_type: str


def wanted_in(raw_query: str, agent: str = "") -> WantedRuns:
    """The runs that a query selects, limited to `agent` if the path names one. Raises Refusal(MALFORMED_CALL)."""
    words = _WORDS - {"agent"} if agent else _WORDS
    query = _query(raw_query, words)
    return WantedRuns(
        _slug(query.get("agent"), "agent") or agent,
        _state(query.get("state")),
        _status(query.get("status")),
        _slug(query.get("schedule"), "schedule"),
        _principal(query.get("owner"), "owner"),
        _number(query.get("limit"), "limit", 1, MAX_LIMIT, DEFAULT_LIMIT),
        _number(query.get("offset"), "offset", 0, MAX_OFFSET, 0),
        _truth(query, "active"),
    )


def answered_in(raw: bytes) -> RunAnswering:
    """The answer in a body. Raises Refusal(MALFORMED_CALL)."""
    body = _object(raw, (*_SAID, "task_type"))
    return RunAnswering(_input(body), _line(body["task_type"], "task_type", NAME) if "task_type" in body else "")


def follows_in(raw_query: str) -> bool:
    """Whether the output is wanted as an event stream. Raises Refusal(MALFORMED_CALL)."""
    return _truth(_query(raw_query, frozenset({"follow"})), "follow")


def check_no_query(raw_query: str) -> None:
    """Raises Refusal(MALFORMED_CALL) for a query on a path that has no parameters."""
    _query(raw_query, frozenset())


def ordered_in(raw: bytes) -> RunOrdering:
    """The run that a body orders. Raises Refusal(MALFORMED_CALL)."""
    body = _object(raw, (*_SAID, "context", "task_type", "principal"))
    return RunOrdering(
        _input(body),
        _principal(body.get("principal", OPERATOR), "principal"),
        _line(body.get("context", ""), "context", CONTEXT),
        _line(body.get("task_type", TASK_TYPE), "task_type", NAME),
    )


class WantedSchedule(NamedTuple):
    """A schedule to be stored, and its key."""

    key: str
    schedule: ScheduleSettings


def schedule_in(raw: bytes) -> WantedSchedule:
    """The schedule that a body defines. Members are those of sidecar.yaml, with the key as `name` and the display name
    as `title`. Raises Refusal(MALFORMED_CALL)."""
    body = _object(raw, _DEFINED)
    key = body.pop("name", None)
    if not isinstance(key, str) or not (len(key) <= 64 and _SLUG.fullmatch(key)):
        raise malformed("name must be lower-case letters and digits, parts joined by single hyphens, at most 64")
    if "title" in body:
        body["name"] = body.pop("title")
    try:
        return WantedSchedule(key, ScheduleSettings.model_validate(body))
    except ValidationError as error:
        found = next(findings_of(error, ScheduleSettings))
        raise malformed(told(replace(found, at=("schedules", key, *_as_told(found.at))))) from None


def _as_told(at: Loc) -> Loc:
    return ("title", *at[1:]) if at[:1] == ("name",) else at


def reason_in(raw: bytes) -> str:
    """The reason for cancelling a run. Raises Refusal(MALFORMED_CALL)."""
    return _line(_object(raw, ("reason",)).get("reason", ""), "reason", WHY)


def nothing_in(raw: bytes) -> None:
    """Raises Refusal(MALFORMED_CALL) for a body with members where none are defined."""
    _object(raw, ())


# --- members ----------------------------------------------------------------------------------------------------------


def _object(raw: bytes, members: Collection[str]) -> dict[str, Any]:
    """A JSON object. A missing body is an empty object."""
    body = jsonrpc.parse_json(raw) if raw.strip() else {}
    if not isinstance(body, dict):
        raise malformed("the body must be an object")
    if not body.keys() <= set(members):
        known = f"a member besides {', '.join(members)}" if members else "a member, and nothing is to be chosen here"
        raise malformed(f"the body has {known}")
    if None in body.values():
        raise malformed("a member of the body says nothing: leave it out")
    return body


def _input(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The agent's input, as in the task API."""
    checked = {
        "prompt": _text(body.get("prompt"), "prompt"),
        "parameters": _texts(body.get("parameters"), "parameters"),
        "environment": _texts(body.get("environment"), "environment"),
        "working_directory": _text(body.get("working_directory"), "working_directory"),
    }
    return {"prompt": "", **{name: value for name, value in checked.items() if value is not None}}


def _text(value: object, member: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise malformed(f"{member} must be a string")


def _line(value: object, member: str, bounds: Mapping[str, Any]) -> str:
    least, most = bounds.get("minLength", 0), bounds["maxLength"]
    if not isinstance(value, str) or not least <= len(value) <= most or not _PLAIN.fullmatch(value):
        raise malformed(f"{member} must be a line of {least} to {most} characters")
    return value


def _texts(value: object, member: str) -> Mapping[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(entry, str) for entry in value.values()):
        raise malformed(f"{member} must be an object of strings")
    return value


def _principal(value: object, member: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or not _PRINCIPAL.fullmatch(value):
        raise malformed(f"{member} must be user:<id> or nhi:<id>")
    return value


def _query(raw_query: str, words: frozenset[str]) -> Mapping[str, str]:
    try:
        query = http.query_of(raw_query)
    except UnreadableMessage as error:
        raise malformed(str(error)) from None
    if not query.keys() <= words:
        known = f"a parameter besides {', '.join(sorted(words))}" if words else "a parameter, and there is none"
        raise malformed(f"the query has {known}")
    return query


def _slug(value: str | None, word: str) -> str:
    if value is not None and not (len(value) <= 64 and _SLUG.fullmatch(value)):
        raise malformed(f"{word} must be a name")
    return value or ""


def _state(value: str | None) -> RunState | None:
    if value is not None and value not in list(RunState):
        raise malformed(f"state must be one of {', '.join(RunState)}")
    return None if value is None else RunState(value)


def _status(value: str | None) -> RunStatus | None:
    if value is not None and value not in list(RunStatus):
        raise malformed(f"status must be one of {', '.join(RunStatus)}")
    return None if value is None else RunStatus(value)


def _truth(query: Mapping[str, str], word: str) -> bool:
    said = query.get(word, "false")
    if said not in ("true", "false"):
        raise malformed(f"{word} must be true or false")
    return said == "true"


def _number(value: str | None, word: str, least: int, most: int, default: int) -> int:
    if value is None:
        return default
    if not value.isascii() or not value.isdigit() or len(value) > 8 or not least <= int(value) <= most:
        raise malformed(f"{word} must be a whole number from {least} to {most}")
    return int(value)
