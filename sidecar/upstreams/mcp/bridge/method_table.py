"""The table of how each method crosses between eras.

`docs/mcp.md` shows it and `tests/flow/test_crossings.py` walks it. `down` is a stateless caller in front of a server
with sessions only, `up` the caller of a session in front of a stateless server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
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


def _crossing(way: BridgeDirection) -> Callable[..., MethodCrossing]:
    return lambda note="", reason=None: MethodCrossing(way, note=note, reason=reason)


_passes = _crossing(BridgeDirection.PASSES)
_here = _crossing(BridgeDirection.HERE)
_swallowed = _crossing(BridgeDirection.SWALLOWED)
_dropped = _crossing(BridgeDirection.DROPPED)
_not_in_era = _crossing(BridgeDirection.NOT_IN_ERA)
_becomes = partial(MethodCrossing, BridgeDirection.BECOMES)

_UNKNOWN: Final = _not_in_era(reason=Reason.METHOD_UNKNOWN)
_NEVER: Final = _not_in_era("no stateless server sends it")
_TASK: Final = MethodCrossing(
    BridgeDirection.CANNOT, note="the two eras' tasks are different things", reason=Reason.TASK_UNKNOWN
)
_LISTED: Final = (
    _passes("`ttlMs: 0`, `cacheScope: private` are added"),
    _passes("`ttlMs` and `cacheScope` are taken out"),
)
_CALL: Final = (
    _passes("a retry goes on with the held call, and is not sent again"),
    _passes("sent again with the answers, at most ten times"),
)
_QUESTION: Final = (
    _becomes("input_required", "the call is held until its retry or `question_timeout_s`"),
    _becomes("request", "on the stream of the call; the caller POSTs its answer"),
)
_CHANGE: Final = _passes("to who subscribed, with its `subscriptionId`"), _passes("on the session's stream")
_OPENED: Final = _becomes("server/discover", "the caller's revision if known, else 2025-11-25; the id is ours")
_SUBSCRIBED: Final = _here("the session's stream listens anew, with this URI; at most 100")
_LISTENED: Final = _becomes("resources/subscribe", "and a GET; acknowledged is what the server announces")
_CLOSED: Final = _not_in_era("closing the stream is sent as one", Reason.METHOD_UNKNOWN)

_OF_CLIENT: Final[Mapping[str, tuple[MethodCrossing, MethodCrossing]]] = {
    "initialize": (_UNKNOWN, _OPENED),
    "server/discover": (_becomes("initialize", "made from its result, once per session"), _UNKNOWN),
    "ping": (_UNKNOWN, _here()),
    "tools/list": _LISTED,
    "tools/call": _CALL,
    "resources/list": _LISTED,
    "resources/templates/list": _LISTED,
    "resources/read": _CALL,
    "resources/subscribe": (_UNKNOWN, _SUBSCRIBED),
    "resources/unsubscribe": (_UNKNOWN, _here("the session's stream listens anew")),
    "subscriptions/listen": (_LISTENED, _UNKNOWN),
    "prompts/list": _LISTED,
    "prompts/get": _CALL,
    "completion/complete": (_passes(), _passes()),
    "logging/setLevel": (_UNKNOWN, _here("goes as `logLevel` with each later request")),
    "tasks/get": (_TASK, _TASK),
    "tasks/result": (_UNKNOWN, _TASK),
    "tasks/list": (_UNKNOWN, _TASK._replace(reason=Reason.METHOD_UNKNOWN)),
    "tasks/cancel": (_TASK, _TASK),
    "tasks/update": (_TASK, _UNKNOWN),
    "notifications/initialized": (_UNKNOWN, _swallowed()),
    "notifications/cancelled": (_CLOSED, _swallowed("the exchange with the server is closed")),
    "notifications/progress": (_UNKNOWN, _swallowed()),
    "notifications/roots/list_changed": (_UNKNOWN, _swallowed()),
}
_OF_SERVER: Final[Mapping[str, tuple[MethodCrossing, MethodCrossing]]] = {
    "sampling/createMessage": _QUESTION,
    "elicitation/create": _QUESTION,
    "roots/list": _QUESTION,
    "ping": (_here(), _NEVER),
    "notifications/message": (
        _passes("if the call asked for its level (`logLevel` becomes `logging/setLevel`)"),
        _passes(),
    ),
    "notifications/progress": (_passes(), _passes()),
    "notifications/cancelled": (_dropped(), _NEVER),
    "notifications/tools/list_changed": _CHANGE,
    "notifications/prompts/list_changed": _CHANGE,
    "notifications/resources/list_changed": _CHANGE,
    "notifications/resources/updated": _CHANGE,
    "notifications/elicitation/complete": (_dropped("the caller retries"), _NEVER),
    "notifications/tasks/status": (_dropped(), _NEVER),
    "notifications/tasks": (_NEVER, _dropped()),
    "notifications/subscriptions/acknowledged": (_not_in_era("made here"), _dropped()),
}
CROSSINGS: Final = (
    *(MethodRow(name, *ways) for name, ways in _OF_CLIENT.items()),
    *(MethodRow(name, *ways, of_server=True) for name, ways in _OF_SERVER.items()),
)
