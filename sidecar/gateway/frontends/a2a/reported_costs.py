"""Reads the reported cost of a call from a complete answer of an agent.

A task that goes on has not cost yet what it will. One that ended has, and so has one that waits for its caller: what
it is told next is a call of its own, with a cost of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sidecar.gateway.request import RequestContext

FAILED: Final = frozenset({"TASK_STATE_FAILED", "TASK_STATE_REJECTED"})
UNDER_WAY: Final = frozenset({"TASK_STATE_UNSPECIFIED", "TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"})


@dataclass(slots=True)
class CostReader:
    """What one call's results, or events, say of that."""

    turn: RequestContext
    whole: bool = False

    def hear(self, result: Mapping[str, Any]) -> None:
        """One of them."""
        if self.turn.lease is not None:
            self.turn.lease.heard(result)
        if "message" in result:
            self.whole = True
        for part in ("task", "statusUpdate"):
            if part in result:
                state = result[part].get("status", {}).get("state", "TASK_STATE_UNSPECIFIED")
                self.whole = state not in UNDER_WAY
                if state in FAILED:
                    self.turn.tool_failed()

    def failed(self) -> None:
        """The agent answered with an error."""
        self.turn.answered()
        self.turn.tool_failed()

    def end(self) -> None:
        """There are no more of them."""
        if self.whole:
            self.turn.answered()
