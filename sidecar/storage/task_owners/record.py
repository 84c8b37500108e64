"""The record of one task's owner.

Who may ask for it, and what policy is asked when they do. Nothing of its arguments, its progress or its result.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from sidecar.vocabulary import Question

Namespace = Literal["mcp", "a2a", "a2a-context"]
MAX_ID_CHARS: Final = 1024  # it must fit the header that mirrors it (MCP 2026-07-28), in base64 of UTF-8
TERMINAL: Final = frozenset({"completed", "failed", "cancelled", "canceled", "rejected"})  # MCP's words and A2A's


class OwnerRecord(NamedTuple):
    """One task. `task_id` is the upstream's, unique at its `server`; `owner` is `Caller.binding`, never empty.

    `object` and `action` are the question that created it, `method` the word on the wire. Times are seconds since the
    epoch. `state` is how it ended, "" as long as nobody saw it end.
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
        """What created it, to be asked again; its arguments were not kept."""
        return Question(self.object, self.action, self.server, self.object.partition("/")[2])

    def is_same_as(self, other: OwnerRecord) -> bool:
        """Whether both say whose task this is, and what made it, in the same words."""
        return self[:7] == other[:7]
