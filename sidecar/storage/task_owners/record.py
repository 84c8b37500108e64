"""The record of one task's owner.

It holds who may use the task and the question that policy is asked then; nothing of the task's arguments, progress or
result.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from sidecar.vocabulary import Question

Namespace = Literal["mcp", "a2a", "a2a-context"]
MAX_ID_CHARS: Final = 1024  # must fit the header that mirrors it (MCP 2026-07-28), in base64 of UTF-8
TERMINAL: Final = frozenset({"completed", "failed", "cancelled", "canceled", "rejected"})  # of MCP and of A2A


class OwnerRecord(NamedTuple):
    """The owner of one task. `task_id` is the upstream's, unique at its `server`; `owner` is `Caller.binding`, never
    empty.

    `object` and `action` are the question that created it, and `method` the method on the wire. Times are seconds since
    the epoch. `state` is how the task ended, "" until its end is seen.
    """

    namespace: Namespace
    server: str
    task_id: str
    owner: str
    object: str
    action: str
    method: str
    created_at: float
    expires_at: float
    state: str = ""

    @property
    def question(self) -> Question:
        """Returns the question that created the task, without its arguments, which are not stored."""
        return Question(self.object, self.action, self.server, self.object.partition("/")[2])

    def is_same_as(self, other: OwnerRecord) -> bool:
        """Whether both records have the same task, owner and question."""
        return self[:7] == other[:7]
