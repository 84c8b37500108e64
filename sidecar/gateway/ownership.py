"""Checks and records the ownership of tasks in MCP messages, in both directions.

All that is asked of `tasks.py`'s ownership stands here, so that no method of any era has a way of its own: before a
call goes out, that each task it names is its caller's, and that what created it is still allowed; before a message of
the upstream's is judged, which of its tasks are its reader's (`response_filter.py` judges without I/O); and before an
answer that creates a task is complete, that its owner is on record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from sidecar.errors import Refusal
from sidecar.protocols.jsonrpc import Message, Response
from sidecar.protocols.mcp import task_messages
from sidecar.protocols.mcp.task_messages import SeenTasks
from sidecar.storage.task_owners import OwnerRecord, TaskOwners
from sidecar.vocabulary import Call, Caller, Decision, Question

Owned = Mapping[str, OwnerRecord]
NOTHING: Owned = MappingProxyType({})


class CreatedTasks(NamedTuple):
    """A task that an answer creates, and the question that was answered with it."""

    task: SeenTasks
    by: Question


async def created_by(tasks: TaskOwners, caller: Caller, call: Call) -> tuple[Question, ...]:
    """What created the tasks that the call names, each question once: it is asked again. Raises Refusal: TASK_UNKNOWN
    for what is not the caller's, UNAUTHENTICATED where nobody could own what the call is to create, STORE_UNAVAILABLE.
    """
    if call.wants_task:
        await tasks.may_create(caller)
    if not call.tasks:
        return ()
    owned = await tasks.all_owned(caller, call.upstream, call.tasks)
    first = {(record.object, record.action): record.question for record in reversed(owned)}
    return tuple(first[record] for record in dict.fromkeys((record.object, record.action) for record in owned))


def joined(decision: Decision, again: Decision) -> Decision:
    """Both answers as one: the first no decides, the nearest end counts."""
    ends = [end for end in (decision.until, again.until) if end is not None]
    decisive = decision if not decision.allowed or again.allowed else again
    return decision._replace(
        allowed=decisive.allowed,
        reason=decisive.reason,
        links=(*decision.links, *again.links),
        until=min(ends, default=None),
    )


@dataclass(frozen=True, slots=True)
class Ownership:
    """The tasks in what one upstream says to one caller, in answer to a call."""

    tasks: TaskOwners
    caller: Caller
    call: Call

    async def of(self, message: Message) -> Owned:
        """Those of the tasks that a message is about that are the caller's. How they stand is remembered."""
        named = task_messages.named_by_upstream(message)
        if isinstance(message, Response):
            named += self.call.tasks  # whether it says so or not
        if not named or len(named) > task_messages.MAX_NAMED:
            return NOTHING
        try:
            mine = await self.tasks.mine(self.caller, self.call.upstream, named)
            for seen in task_messages.states_in(message):
                if seen.id in mine:
                    await self.tasks.saw(mine[seen.id], seen.state, seen.ttl_s)
        except Refusal:
            if isinstance(message, Response):
                raise
            return NOTHING  # fail closed: what cannot be looked up is nobody's; but no stream need end for it
        return mine

    async def keep(self, created: CreatedTasks) -> None:
        """Put the owner on record, before anybody hears of the task. Raises Refusal."""
        task = created.task
        await self.tasks.created(
            self.caller, self.call.upstream, task.id, by=created.by, method=self.call.method, ttl_s=task.ttl_s
        )
