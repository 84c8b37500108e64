"""Reads the reported cost of a call from a complete answer of an agent.

The cost of a running task is not final. The cost is final when the task has ended, and when it waits for its caller:
the caller's next message is a call of its own, with its own cost.
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
    """Reads the cost from the results or events of one call."""

    request: RequestContext
    whole: bool = False

    def hear(self, result: Mapping[str, Any]) -> None:
        if self.request.lease is not None:
            self.request.lease.heard(result)
        if "message" in result:
            self.whole = True
        for part in ("task", "statusUpdate"):
            if part in result:
                state = result[part].get("status", {}).get("state", "TASK_STATE_UNSPECIFIED")
                self.whole = state not in UNDER_WAY
                if state in FAILED:
                    self.request.tool_failed()

    def failed(self) -> None:
        self.request.answered()
        self.request.tool_failed()

    def end(self) -> None:
        if self.whole:
            self.request.answered()
