"""The table of how each method crosses between eras.

`docs/mcp.md` shows it and `tests/flow/test_crossings.py` walks it. `down` is a stateless caller in front of a server
with sessions only, `up` the caller of a session in front of a stateless server.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from sidecar.errors import Reason


class BridgeDirection(StrEnum):
    """How the bridge handles a message."""

    PASSES = "passes"
    BECOMES = "becomes"
    HERE = "answered here"
    SWALLOWED = "taken, and goes no further"
    DROPPED = "dropped"
    NOT_IN_ERA = "not in the caller's era"
    CANNOT = "cannot cross"


class MethodCrossing(NamedTuple):
    """`becomes` is what reaches the other side instead, `reason` how it is refused, `note` further detail."""

    way: BridgeDirection
    becomes: str = ""
    note: str = ""
    reason: Reason | None = None


class MethodRow(NamedTuple):
    """One message; `of_server` if the server sends it."""

    name: str
    down: MethodCrossing
    up: MethodCrossing
    of_server: bool = False


_PASSES: Final = MethodCrossing(BridgeDirection.PASSES)
_UNKNOWN: Final = MethodCrossing(BridgeDirection.NOT_IN_ERA, reason=Reason.METHOD_UNKNOWN)
_LISTED: Final = MethodCrossing(BridgeDirection.PASSES, note="`ttlMs: 0`, `cacheScope: private` are added")
_UNLISTED: Final = MethodCrossing(BridgeDirection.PASSES, note="`ttlMs` and `cacheScope` are taken out")
_TASK: Final = MethodCrossing(
    BridgeDirection.CANNOT, note="the two eras' tasks are different things", reason=Reason.TASK_UNKNOWN
)
_TASKS: Final = _TASK._replace(reason=Reason.METHOD_UNKNOWN)
_CALL_DOWN: Final = MethodCrossing(
    BridgeDirection.PASSES, note="a retry goes on with the held call, and is not sent again"
)
_CALL_UP: Final = MethodCrossing(BridgeDirection.PASSES, note="sent again with the answers, at most ten times")
_HELD: Final = MethodCrossing(
    BridgeDirection.BECOMES, "input_required", "the call is held until its retry or `question_timeout_s`"
)
_PUT: Final = MethodCrossing(
    BridgeDirection.BECOMES, "request", "on the stream of the call; the caller POSTs its answer"
)
_NEVER: Final = MethodCrossing(BridgeDirection.NOT_IN_ERA, note="no stateless server sends it")
_HEARD: Final = MethodCrossing(BridgeDirection.PASSES, note="to who subscribed, with its `subscriptionId`")
_UNMARKED: Final = MethodCrossing(BridgeDirection.PASSES, note="on the session's stream")

CROSSINGS: Final = (
    MethodRow(
        "initialize",
        _UNKNOWN,
        MethodCrossing(
            BridgeDirection.BECOMES,
            "server/discover",
            "the caller's revision if known, else 2025-11-25; the id is ours",
        ),
    ),
    MethodRow(
        "server/discover",
        MethodCrossing(BridgeDirection.BECOMES, "initialize", "made from its result, once per session"),
        _UNKNOWN,
    ),
    MethodRow("ping", _UNKNOWN, MethodCrossing(BridgeDirection.HERE)),
    MethodRow("tools/list", _LISTED, _UNLISTED),
    MethodRow("tools/call", _CALL_DOWN, _CALL_UP),
    MethodRow("resources/list", _LISTED, _UNLISTED),
    MethodRow("resources/templates/list", _LISTED, _UNLISTED),
    MethodRow("resources/read", _CALL_DOWN, _CALL_UP),
    MethodRow(
        "resources/subscribe",
        _UNKNOWN,
        MethodCrossing(BridgeDirection.HERE, note="the session's stream listens anew, with this URI; at most 100"),
    ),
    MethodRow(
        "resources/unsubscribe",
        _UNKNOWN,
        MethodCrossing(BridgeDirection.HERE, note="the session's stream listens anew"),
    ),
    MethodRow(
        "subscriptions/listen",
        MethodCrossing(
            BridgeDirection.BECOMES, "resources/subscribe", "and a GET; acknowledged is what the server announces"
        ),
        _UNKNOWN,
    ),
    MethodRow("prompts/list", _LISTED, _UNLISTED),
    MethodRow("prompts/get", _CALL_DOWN, _CALL_UP),
    MethodRow("completion/complete", _PASSES, _PASSES),
    MethodRow(
        "logging/setLevel",
        _UNKNOWN,
        MethodCrossing(BridgeDirection.HERE, note="goes as `logLevel` with each later request"),
    ),
    MethodRow("tasks/get", _TASK, _TASK),
    MethodRow("tasks/result", _UNKNOWN, _TASK),
    MethodRow("tasks/list", _UNKNOWN, _TASKS),
    MethodRow("tasks/cancel", _TASK, _TASK),
    MethodRow("tasks/update", _TASK, _UNKNOWN),
    MethodRow("notifications/initialized", _UNKNOWN, MethodCrossing(BridgeDirection.SWALLOWED)),
    MethodRow(
        "notifications/cancelled",
        MethodCrossing(
            BridgeDirection.NOT_IN_ERA, note="closing the stream is sent as one", reason=Reason.METHOD_UNKNOWN
        ),
        MethodCrossing(BridgeDirection.SWALLOWED, note="the exchange with the server is closed"),
    ),
    MethodRow("notifications/progress", _UNKNOWN, MethodCrossing(BridgeDirection.SWALLOWED)),
    MethodRow("notifications/roots/list_changed", _UNKNOWN, MethodCrossing(BridgeDirection.SWALLOWED)),
    MethodRow("sampling/createMessage", _HELD, _PUT, of_server=True),
    MethodRow("elicitation/create", _HELD, _PUT, of_server=True),
    MethodRow("roots/list", _HELD, _PUT, of_server=True),
    MethodRow("ping", MethodCrossing(BridgeDirection.HERE), _NEVER, of_server=True),
    MethodRow(
        "notifications/message",
        MethodCrossing(
            BridgeDirection.PASSES, note="if the call asked for its level (`logLevel` becomes `logging/setLevel`)"
        ),
        _PASSES,
        of_server=True,
    ),
    MethodRow("notifications/progress", _PASSES, _PASSES, of_server=True),
    MethodRow("notifications/cancelled", MethodCrossing(BridgeDirection.DROPPED), _NEVER, of_server=True),
    MethodRow("notifications/tools/list_changed", _HEARD, _UNMARKED, of_server=True),
    MethodRow("notifications/prompts/list_changed", _HEARD, _UNMARKED, of_server=True),
    MethodRow("notifications/resources/list_changed", _HEARD, _UNMARKED, of_server=True),
    MethodRow("notifications/resources/updated", _HEARD, _UNMARKED, of_server=True),
    MethodRow(
        "notifications/elicitation/complete",
        MethodCrossing(BridgeDirection.DROPPED, note="the caller retries"),
        _NEVER,
        of_server=True,
    ),
    MethodRow("notifications/tasks/status", MethodCrossing(BridgeDirection.DROPPED), _NEVER, of_server=True),
    MethodRow("notifications/tasks", _NEVER, MethodCrossing(BridgeDirection.DROPPED), of_server=True),
    MethodRow(
        "notifications/subscriptions/acknowledged",
        MethodCrossing(BridgeDirection.NOT_IN_ERA, note="made here"),
        MethodCrossing(BridgeDirection.DROPPED),
        of_server=True,
    ),
)
