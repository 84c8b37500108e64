"""Checks and records who owns tasks and contexts at agents.

Before a call goes out, every task that it names must belong to its caller, and its context belongs to the caller or is
claimed for it, under an id that no other owner has (`context_ids.py`). Before an answer reaches the caller, every task
in it must belong to the caller, and the owner of a new one is recorded. A task of another owner and an unknown task are
answered alike (threats G1-G3).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sidecar.errors import Reason, Refusal
from sidecar.gateway.frontends.a2a.context_ids import ContextIds
from sidecar.gateway.frontends.a2a.request_reader import AgentOperation, push_in
from sidecar.protocols.a2a.operations import LIST, PUSH_LIST, SEND, STREAM
from sidecar.storage.task_owners import MAX_ID_CHARS, Namespace, OwnerRecord, TaskOwners
from sidecar.vocabulary import Caller

TASKS: Final[Namespace] = "a2a"
CONTEXTS: Final[Namespace] = "a2a-context"
# A context never ends. Its record is marked as ended from the beginning, so that the oldest contexts are evicted as
# ended tasks are; otherwise a caller with many contexts would lose each task as soon as it ends.
ENDLESS: Final = "endless"
TERMINAL: Final[Mapping[str, str]] = {
    "TASK_STATE_COMPLETED": "completed",
    "TASK_STATE_FAILED": "failed",
    "TASK_STATE_CANCELED": "canceled",
    "TASK_STATE_REJECTED": "rejected",
}
_ABOUT_TASKS: Final = frozenset({"Task", "SendMessageResponse", "StreamResponse"})


@dataclass(slots=True)
class TaskOwnership:
    """The tasks of one caller at one agent, for one operation. `known` is what became the caller's by this operation,
    `context` the context's id at the agent.

    An id has one owner at the agent, whatever tenant it was named under, and is refused under any other tenant: an
    agent may number tasks for each tenant separately, and the same id would be another owner's task there.

    Tasks of `anonymous` are answered in the call that begins them and have no owner: no record is kept, so no other
    anonymous caller can query or continue them (threats G2).
    """

    tasks: TaskOwners
    caller: Caller
    intent: AgentOperation
    known: dict[tuple[Namespace, str], OwnerRecord | None] = field(default_factory=dict)
    context: str = field(init=False)

    def __post_init__(self) -> None:
        self.context = self.intent.context

    async def check(self) -> None:
        """Checks an operation before it is sent. Raises Refusal: TASK_UNKNOWN, UNAUTHENTICATED if the operation would
        create a task without an owner, STORE_UNAVAILABLE."""
        operation = self.intent.operation
        if operation in (SEND, STREAM) and self.caller.is_anonymous:
            if self.intent.tasks or self.intent.context:
                raise Refusal(Reason.TASK_UNKNOWN)
            if push_in(self.intent.params):
                raise Refusal(Reason.UNAUTHENTICATED, "push notifications need an authenticated caller")
        elif operation in (SEND, STREAM):
            await self.tasks.may_create(self.caller)
        if len(self._tenant) > MAX_ID_CHARS:
            raise Refusal(Reason.TASK_UNKNOWN)
        mine = await self._mine(self.intent.tasks, TASKS)
        if any(task not in mine for task in self.intent.tasks):
            raise Refusal(Reason.TASK_UNKNOWN)
        if operation in (SEND, STREAM):
            for record in mine.values():
                await self.tasks.used(record)
        if self.intent.context and operation is not LIST:
            await self._check_context()

    @property
    def task(self) -> str:
        """The task of the operation: the one that it names, or that its answer began; "" for none."""
        params, operation = self.intent.params, self.intent.operation
        if operation not in (SEND, STREAM):
            return "".join(self.intent.tasks[:1])
        begun = (name for namespace, name in self.known if namespace == TASKS)
        return str(params["message"].get("taskId", "")) or next(begun, "")

    async def can_find(self) -> bool:
        """Reports whether a list can have results. A list for another owner's context, or an unknown one, is empty
        without asking the agent, whose pages would tell the two apart."""
        if self.intent.operation is not LIST or not self.intent.context:
            return True
        if len(self.intent.context) > MAX_ID_CHARS:
            return False
        return any(record.method == self._method for record in await self._conversations())

    async def own(self, entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        mine = await self._mine([entry["id"] for entry in entries if entry.get("id")], TASKS)
        return [self._contexts.shown(entry) for entry in entries if entry.get("id") in mine]

    def outward(self, params: dict[str, Any]) -> dict[str, Any]:
        if self.context == self.intent.context:
            return params
        if self.intent.operation is LIST:
            return {**params, "contextId": self.context}
        return {**params, "message": {**params["message"], "contextId": self.context}}

    @property
    def _tenant(self) -> str:
        return str(self.intent.params.get("tenant", ""))

    @property
    def _method(self) -> str:
        """The method that is recorded as the task's creator, with its tenant."""
        return f"{SEND.action} {self._tenant}" if self._tenant else SEND.action

    async def _mine(self, names: Collection[str], namespace: Namespace) -> Mapping[str, OwnerRecord]:
        found = await self.tasks.mine(self.caller, self.intent.call.upstream, names, namespace=namespace)
        return {name: record for name, record in found.items() if record.method == self._method}

    @property
    def _contexts(self) -> ContextIds:
        return ContextIds(self.tasks.secret, self.caller.binding, self.intent.call.upstream)

    async def _conversations(self) -> Collection[OwnerRecord]:
        """Returns the caller's contexts of this id, plain or prefixed, which determines the one meant."""
        contexts, chosen = self._contexts, self.intent.context
        own = contexts.own(chosen)
        keys = contexts.key(chosen), contexts.key(own)
        mine = await self.tasks.mine(self.caller, contexts.agent, keys, namespace=CONTEXTS)
        self.context = own if keys[1] in mine else chosen
        return mine.values()

    async def _check_context(self) -> None:
        if len(self.intent.context) > MAX_ID_CHARS:  # checked before anything is derived from it
            raise Refusal(Reason.TASK_UNKNOWN)
        mine = await self._conversations()
        too_long = len(self._contexts.own(self.intent.context)) > MAX_ID_CHARS  # the prefixed form must fit too
        if any(record.method != self._method for record in mine) or (not mine and too_long):
            raise Refusal(Reason.TASK_UNKNOWN)

    async def begin(self) -> None:
        """Claims a context that the caller does not have yet, once nothing else can refuse the call. Of concurrent
        claims one succeeds. Raises Refusal: TASK_UNKNOWN, STORE_UNAVAILABLE."""
        chosen = self.intent.context
        if not chosen or self.intent.operation not in (SEND, STREAM):
            return
        try:
            await self._claim(CONTEXTS, self._contexts.key(self.context), Reason.TASK_UNKNOWN)
        except Refusal as refusal:
            if refusal.reason is not Reason.TASK_UNKNOWN or self.context != chosen:
                raise
            self.context = self._contexts.own(chosen)
            await self._claim(CONTEXTS, self._contexts.key(self.context), Reason.TASK_UNKNOWN)

    async def _claim(self, namespace: Namespace, name: str, otherwise: Reason, state: str = "") -> None:
        if (namespace, name) in self.known:
            return
        call = self.intent.call
        if self.caller.is_anonymous:
            if await self.tasks.is_anothers("", call.upstream, name, namespace=namespace):
                raise Refusal(otherwise)
            self.known[namespace, name] = None
            return
        try:
            record = await self.tasks.created(
                self.caller,
                call.upstream,
                name,
                by=call.question.without_arguments._replace(action=SEND.action, name=""),
                method=self._method,
                ttl_s=None,
                namespace=namespace,
                state=ENDLESS if namespace == CONTEXTS else state,
            )
        except Refusal as refusal:
            if refusal.reason is Reason.RESPONSE_REFUSED:
                raise Refusal(otherwise) from None
            raise
        self.known[namespace, name] = record

    async def admit(self, result: dict[str, Any]) -> dict[str, Any]:
        """Returns a result, or one event, about the caller's tasks, as the caller may see it; new tasks in it are
        recorded. Lists are read by `task_pages.py`. Raises Refusal."""
        operation = self.intent.operation
        if operation is PUSH_LIST:
            return result
        named = list(_named(operation.response, result))
        about = any(task for task, _ in named) or "message" in result  # a message alone belongs to no task
        if operation.response in _ABOUT_TASKS and not about:
            raise Refusal(Reason.RESPONSE_REFUSED, "it says of no task what it is about")
        ended = dict(_ends(operation.response, result))
        may_begin = operation in (SEND, STREAM)
        for task, context in named:
            if task and task not in self.intent.tasks:
                if not may_begin:
                    raise Refusal(Reason.RESPONSE_REFUSED, "it answers with another task")
                await self._begin(TASKS, task, ended.get(task, ""))
            if len(context) > MAX_ID_CHARS:
                raise Refusal(Reason.RESPONSE_REFUSED, f"its context id is of more than {MAX_ID_CHARS} characters")
            if context and context != self.context and may_begin:
                await self._begin(CONTEXTS, self._contexts.key(context))
        for task, state in ended.items():
            record = self.known.get((TASKS, task)) or (await self._mine((task,), TASKS)).get(task)
            if record is not None:
                await self.tasks.saw(record, state, None)
        shown: dict[str, Any] = self._contexts.shown(result)
        return shown

    async def _begin(self, namespace: Namespace, name: str, state: str = "") -> None:
        """Records a new task or context. One message begins one task in one context (A2A 1.0, 3.1.2); otherwise an
        agent could name ever more tasks and evict the oldest ones of the caller."""
        others = self.known.keys() - {(CONTEXTS, self._contexts.key(self.context)), (namespace, name)}
        if (namespace, name) not in self.known and any(known == namespace for known, _ in others):
            raise Refusal(Reason.RESPONSE_REFUSED, "it begins more than one task, or conversation, for one message")
        await self._claim(namespace, name, Reason.RESPONSE_REFUSED, state)


def _named(message: str, result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if message == "Task":
        yield str(result.get("id", "")), str(result.get("contextId", ""))
    elif message in ("SendMessageResponse", "StreamResponse"):
        for member in ("task", "message", "statusUpdate", "artifactUpdate"):
            if member in result:
                said = result[member]
                yield str(said.get("id" if member == "task" else "taskId", "")), str(said.get("contextId", ""))
    elif message == "TaskPushNotificationConfig":
        yield str(result.get("taskId", "")), ""


def _ends(message: str, result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the tasks that a result reports as ended, with their states."""
    task = result if message == "Task" else result.get("task", {})
    update = result.get("statusUpdate", {})
    for name, said in ((task.get("id", ""), task), (update.get("taskId", ""), update)):
        ended = TERMINAL.get(said.get("status", {}).get("state", ""))
        if name and ended is not None:
            yield name, ended
