"""Checks and records the ownership of tasks in MCP messages, in both directions.

Before a call is sent, each task that it names must be its caller's, and the question that created it must still be
allowed. Before an upstream's message is filtered, its tasks that belong to the reader are determined.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sidecar.errors import Refusal
from sidecar.protocols.jsonrpc import Message, Response
from sidecar.protocols.mcp import task_messages
from sidecar.storage.task_owners import OwnerRecord, TaskOwners
from sidecar.vocabulary import Call, Caller, Question

Owned = Mapping[str, OwnerRecord]
NOTHING: Owned = MappingProxyType({})


async def created_by(tasks: TaskOwners, caller: Caller, call: Call) -> tuple[Question, ...]:
    """Returns the questions that created the call's tasks, each once. Raises Refusal: TASK_UNKNOWN, UNAUTHENTICATED for
    a call that would create a task without an owner, STORE_UNAVAILABLE."""
    if call.wants_task:
        await tasks.may_create(caller)
    if not call.tasks:
        return ()
    owned = await tasks.all_owned(caller, call.upstream, call.tasks)
    first = {(record.object, record.action): record.question for record in reversed(owned)}
    return tuple(first[record] for record in dict.fromkeys((record.object, record.action) for record in owned))


async def owned_in(tasks: TaskOwners, caller: Caller, call: Call, message: Message) -> Owned:
    """Returns the caller's tasks in an upstream's message during a call, by id, and records their states. Raises
    Refusal(STORE_UNAVAILABLE) for a response; in any other message, no task is the caller's then."""
    named = task_messages.named_by_upstream(message)
    if isinstance(message, Response):
        named += call.tasks  # whether or not the message names them
    if not named or len(named) > task_messages.MAX_NAMED:
        return NOTHING
    try:
        mine = await tasks.mine(caller, call.upstream, named)
        for seen in task_messages.states_in(message):
            if seen.id in mine:
                await tasks.saw(mine[seen.id], seen.state, seen.ttl_s)
    except Refusal:
        if isinstance(message, Response):
            raise
        return NOTHING  # fail closed: a task that cannot be looked up has no owner; the stream continues
    return mine
