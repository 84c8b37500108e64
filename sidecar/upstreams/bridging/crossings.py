"""How does each method and each notification of MCP cross from one era to the other?

The table that `docs/mcp.md` shows and that `tests/flow/test_crossings.py` walks. `down` is a stateless caller before a
server that knows sessions only, `up` the caller of a session before a server that is stateless only.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from sidecar.errors import Reason


class Way(StrEnum):
    """What becomes of a message at the bridge."""

    PASSES = "passes"
    BECOMES = "becomes"
    HERE = "answered here"
    SWALLOWED = "taken, and goes no further"
    DROPPED = "dropped"
    NOT_IN_ERA = "not in the caller's era"
    CANNOT = "cannot cross"


class Crossing(NamedTuple):
    """`becomes` is what reaches the other side instead, `reason` how it is refused, `note` what else to know."""

    way: Way
    becomes: str = ""
    note: str = ""
    reason: Reason | None = None


class Row(NamedTuple):
    """One message; `of_server` where it is the server that sends it."""

    name: str
    down: Crossing
    up: Crossing
    of_server: bool = False


_PASSES: Final = Crossing(Way.PASSES)
_UNKNOWN: Final = Crossing(Way.NOT_IN_ERA, reason=Reason.METHOD_UNKNOWN)
_LISTED: Final = Crossing(Way.PASSES, note="`ttlMs: 0`, `cacheScope: private` are added")
_UNLISTED: Final = Crossing(Way.PASSES, note="`ttlMs` and `cacheScope` are taken out")
_TASK: Final = Crossing(Way.CANNOT, note="the two eras' tasks are different things", reason=Reason.TASK_UNKNOWN)
_TASKS: Final = _TASK._replace(reason=Reason.METHOD_UNKNOWN)
_CALL_DOWN: Final = Crossing(Way.PASSES, note="a retry goes on with the held call, and is not sent again")
_CALL_UP: Final = Crossing(Way.PASSES, note="sent again with the answers, at most ten times")
_HELD: Final = Crossing(Way.BECOMES, "input_required", "the call is held until its retry or `question_timeout_s`")
_PUT: Final = Crossing(Way.BECOMES, "request", "on the stream of the call; the caller POSTs its answer")
_NEVER: Final = Crossing(Way.NOT_IN_ERA, note="no stateless server sends it")
_HEARD: Final = Crossing(Way.PASSES, note="to who subscribed, with its `subscriptionId`")
_UNMARKED: Final = Crossing(Way.PASSES, note="on the session's stream")

CROSSINGS: Final = (
    Row(
        "initialize",
        _UNKNOWN,
        Crossing(Way.BECOMES, "server/discover", "the caller's revision if known, else 2025-11-25; the id is ours"),
    ),
    Row("server/discover", Crossing(Way.BECOMES, "initialize", "made from its result, once per session"), _UNKNOWN),
    Row("ping", _UNKNOWN, Crossing(Way.HERE)),
    Row("tools/list", _LISTED, _UNLISTED),
    Row("tools/call", _CALL_DOWN, _CALL_UP),
    Row("resources/list", _LISTED, _UNLISTED),
    Row("resources/templates/list", _LISTED, _UNLISTED),
    Row("resources/read", _CALL_DOWN, _CALL_UP),
    Row(
        "resources/subscribe",
        _UNKNOWN,
        Crossing(Way.HERE, note="the session's stream listens anew, with this URI; at most 100"),
    ),
    Row("resources/unsubscribe", _UNKNOWN, Crossing(Way.HERE, note="the session's stream listens anew")),
    Row(
        "subscriptions/listen",
        Crossing(Way.BECOMES, "resources/subscribe", "and a GET; acknowledged is what the server announces"),
        _UNKNOWN,
    ),
    Row("prompts/list", _LISTED, _UNLISTED),
    Row("prompts/get", _CALL_DOWN, _CALL_UP),
    Row("completion/complete", _PASSES, _PASSES),
    Row("logging/setLevel", _UNKNOWN, Crossing(Way.HERE, note="goes as `logLevel` with each later request")),
    Row("tasks/get", _TASK, _TASK),
    Row("tasks/result", _UNKNOWN, _TASK),
    Row("tasks/list", _UNKNOWN, _TASKS),
    Row("tasks/cancel", _TASK, _TASK),
    Row("tasks/update", _TASK, _UNKNOWN),
    Row("notifications/initialized", _UNKNOWN, Crossing(Way.SWALLOWED)),
    Row(
        "notifications/cancelled",
        Crossing(Way.NOT_IN_ERA, note="closing the stream is sent as one", reason=Reason.METHOD_UNKNOWN),
        Crossing(Way.SWALLOWED, note="the exchange with the server is closed"),
    ),
    Row("notifications/progress", _UNKNOWN, Crossing(Way.SWALLOWED)),
    Row("notifications/roots/list_changed", _UNKNOWN, Crossing(Way.SWALLOWED)),
    Row("sampling/createMessage", _HELD, _PUT, of_server=True),
    Row("elicitation/create", _HELD, _PUT, of_server=True),
    Row("roots/list", _HELD, _PUT, of_server=True),
    Row("ping", Crossing(Way.HERE), _NEVER, of_server=True),
    Row(
        "notifications/message",
        Crossing(Way.PASSES, note="if the call asked for its level (`logLevel` becomes `logging/setLevel`)"),
        _PASSES,
        of_server=True,
    ),
    Row("notifications/progress", _PASSES, _PASSES, of_server=True),
    Row("notifications/cancelled", Crossing(Way.DROPPED), _NEVER, of_server=True),
    Row("notifications/tools/list_changed", _HEARD, _UNMARKED, of_server=True),
    Row("notifications/prompts/list_changed", _HEARD, _UNMARKED, of_server=True),
    Row("notifications/resources/list_changed", _HEARD, _UNMARKED, of_server=True),
    Row("notifications/resources/updated", _HEARD, _UNMARKED, of_server=True),
    Row("notifications/elicitation/complete", Crossing(Way.DROPPED, note="the caller retries"), _NEVER, of_server=True),
    Row("notifications/tasks/status", Crossing(Way.DROPPED), _NEVER, of_server=True),
    Row("notifications/tasks", _NEVER, Crossing(Way.DROPPED), of_server=True),
    Row(
        "notifications/subscriptions/acknowledged",
        Crossing(Way.NOT_IN_ERA, note="made here"),
        Crossing(Way.DROPPED),
        of_server=True,
    ),
)
