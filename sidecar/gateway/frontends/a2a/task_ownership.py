"""Checks and records who owns tasks and conversations at agents.

Everything that A2A asks of the one ownership (`tasks/`) stands here. Before a call goes out, every task that it names
must be its caller's, and its conversation is theirs or becomes theirs, by a name that nobody else has
(`context_ids.py`); before an answer reaches the caller, every task in it must be theirs, and one that is new is on
record. Another's and none look alike (threats G1-G3).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sidecar.errors import Reason, Refusal
from sidecar.gateway.frontends.a2a.context_ids import ContextIds
from sidecar.gateway.frontends.a2a.request_reader import AgentOperation, pushes
from sidecar.protocols.a2a.operations import LIST, PUSH_LIST, SEND, STREAM
from sidecar.storage.task_owners import MAX_ID_CHARS, Namespace, OwnerRecord, TaskOwners
from sidecar.vocabulary import Caller

TASKS: Final[Namespace] = "a2a"
CONTEXTS: Final[Namespace] = "a2a-context"
# A conversation never ends. Its record says so from the beginning, so that the oldest of them gives way as what has
# ended does: else who had many would lose each task with its end.
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
    """The tasks of one caller at one agent, for one operation. `known` is what has become theirs by this operation,
    `context` what its conversation is called at the agent.

    An id is one owner's at the agent, whatever tenant it was named below; and it is of no use below another, because
    an agent may count for each tenant of its own, and the same id would be another's task there.

    What `anonymous` begins is told where it was begun, and is nobody's: no record of it is kept, so none of the many
    who are called so can ask for it, or go on with it (threats G2)."""

    tasks: TaskOwners
    caller: Caller
    intent: AgentOperation
    known: dict[tuple[Namespace, str], OwnerRecord | None] = field(default_factory=dict)
    context: str = field(init=False)

    def __post_init__(self) -> None:
        self.context = self.intent.context

    async def check(self) -> None:
        """Before it goes out. Raises Refusal: TASK_UNKNOWN, UNAUTHENTICATED where nobody could own what comes of it,
        STORE_UNAVAILABLE."""
        operation = self.intent.operation
        if operation in (SEND, STREAM) and self.caller.is_anonymous:
            self._check_nobodys()
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

    def _check_nobodys(self) -> None:
        if self.intent.tasks or self.intent.context:
            raise Refusal(Reason.TASK_UNKNOWN)
        if pushes(self.intent.params):
            raise Refusal(Reason.UNAUTHENTICATED, "what is pushed is pushed to somebody, and nobody said who")

    @property
    def task(self) -> str:
        """The task that the operation is about: the one that it names, or that its answer began; "" for none."""
        params, operation = self.intent.params, self.intent.operation
        if operation not in (SEND, STREAM):
            return "".join(self.intent.tasks[:1])
        begun = (name for namespace, name in self.known if namespace == TASKS)
        return str(params["message"].get("taskId", "")) or next(begun, "")

    async def can_find(self) -> bool:
        """Whether there may be anything that is asked for. A list of another's conversation, and of one that there is
        not, is empty, and the agent is not asked: its pages would tell the two apart."""
        if self.intent.operation is not LIST or not self.intent.context:
            return True
        if len(self.intent.context) > MAX_ID_CHARS:
            return False
        return any(record.method == self._method for record in await self._conversations())

    async def own(self, entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Of what an agent lists, the caller's own. Raises Refusal(STORE_UNAVAILABLE)."""
        mine = await self._mine([entry["id"] for entry in entries if entry.get("id")], TASKS)
        return [self._contexts.shown(entry) for entry in entries if entry.get("id") in mine]

    def outward(self, params: dict[str, Any]) -> dict[str, Any]:
        """Parameters with what the conversation is called at the agent."""
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
        """What is on record as having made it: below which tenant, too."""
        return f"{SEND.action} {self._tenant}" if self._tenant else SEND.action

    async def _mine(self, names: Collection[str], namespace: Namespace) -> Mapping[str, OwnerRecord]:
        found = await self.tasks.mine(self.caller, self.intent.call.upstream, names, namespace=namespace)
        return {name: record for name, record in found.items() if record.method == self._method}

    @property
    def _contexts(self) -> ContextIds:
        return ContextIds(self.tasks.secret, self.caller.binding, self.intent.call.upstream)

    async def _conversations(self) -> Collection[OwnerRecord]:
        """What the caller has that is called so, by itself or because the words were another's. Which of them is meant
        is known then."""
        contexts, chosen = self._contexts, self.intent.context
        own = contexts.own(chosen)
        keys = contexts.key(chosen), contexts.key(own)
        mine = await self.tasks.mine(self.caller, contexts.agent, keys, namespace=CONTEXTS)
        self.context = own if keys[1] in mine else chosen
        return mine.values()

    async def _check_context(self) -> None:
        if len(self.intent.context) > MAX_ID_CHARS:  # before anything is made of it
            raise Refusal(Reason.TASK_UNKNOWN)
        mine = await self._conversations()
        too_long = len(self._contexts.own(self.intent.context)) > MAX_ID_CHARS  # whoever may have begun it
        if any(record.method != self._method for record in mine) or (not mine and too_long):
            raise Refusal(Reason.TASK_UNKNOWN)

    async def begin(self) -> None:
        """Nothing is left to refuse it: a conversation that the caller does not have is begun with its first message.
        The race for its name has one winner. Raises Refusal: TASK_UNKNOWN, STORE_UNAVAILABLE."""
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
        """A result, or one event, that is about what is its caller's, as they are shown it; what is new in it is on
        record. Lists are read by `task_pages.py`. Raises Refusal."""
        operation = self.intent.operation
        if operation is PUSH_LIST:
            return result
        named = list(_named(operation.response, result))
        about = any(task for task, _ in named) or "message" in result  # a message alone is of none
        if operation.response in _ABOUT_TASKS and not about:
            raise Refusal(Reason.RESPONSE_REFUSED, "it says of no task what it is about")
        ended = dict(_ends(operation.response, result))
        for task, context in named:
            await self._admit(task, context, ended.get(task, ""))
        for task, state in ended.items():
            await self._saw(task, state)
        shown: dict[str, Any] = self._contexts.shown(result)
        return shown

    async def _admit(self, task: str, context: str, state: str) -> None:
        if task and task not in self.intent.tasks:
            if self.intent.operation not in (SEND, STREAM):
                raise Refusal(Reason.RESPONSE_REFUSED, "it answers with another task")
            await self._begin(TASKS, task, state)
        if len(context) > MAX_ID_CHARS:
            raise Refusal(Reason.RESPONSE_REFUSED, f"its context id is of more than {MAX_ID_CHARS} characters")
        if context and context != self.context and self.intent.operation in (SEND, STREAM):
            await self._begin(CONTEXTS, self._contexts.key(context))

    async def _begin(self, namespace: Namespace, name: str, state: str = "") -> None:
        """One message begins one task, in one conversation (A2A 1.0, 3.1.2): an agent that tells of ever more would
        have its caller lose the oldest of theirs, wherever that is."""
        if (namespace, name) not in self.known and any(
            known == namespace for known, _ in self.known.keys() - self._named
        ):
            raise Refusal(Reason.RESPONSE_REFUSED, "it begins more than one task, or conversation, for one message")
        await self._claim(namespace, name, Reason.RESPONSE_REFUSED, state)

    @property
    def _named(self) -> set[tuple[Namespace, str]]:
        return {(CONTEXTS, self._contexts.key(self.context))}

    async def _saw(self, task: str, state: str) -> None:
        record = self.known.get((TASKS, task)) or (await self._mine((task,), TASKS)).get(task)
        if record is not None:
            await self.tasks.saw(record, state, None)


def _named(message: str, result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each task and conversation that a result is about."""
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
    """The tasks that a result says ended, and how."""
    task = result if message == "Task" else result.get("task", {})
    update = result.get("statusUpdate", {})
    for name, said in ((task.get("id", ""), task), (update.get("taskId", ""), update)):
        ended = TERMINAL.get(said.get("status", {}).get("state", ""))
        if name and ended is not None:
            yield name, ended
