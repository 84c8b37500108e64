"""Checks and records who owns tasks and contexts at agents.

Before a call is sent, every task that it names must belong to its caller. Its context must belong to the caller, or is
claimed for the caller under an id that no other owner has (`context_ids.py`). Before an answer reaches the caller,
every task in it must belong to the caller, and the owner of a new one is recorded. A task of another owner and an
unknown task are answered alike.

A task whose first message waited for approval has an id of the sidecar (`approval_wait.py`), which does not change.
Operations are sent with the agent's id, and answers show the sidecar's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final

from sidecar.errors import Reason, Refusal
from sidecar.gateway.frontends.a2a.context_ids import ContextIds
from sidecar.gateway.frontends.a2a.request_reader import AgentOperation, push_in
from sidecar.protocols.a2a.operations import LIST, PUSH_LIST, SEND
from sidecar.storage.task_owners import MAX_ID_CHARS, Namespace, OwnerRecord, TaskClaim, TaskOwners
from sidecar.vocabulary import Caller, Question

TASKS: Final[Namespace] = "a2a"
CONTEXTS: Final[Namespace] = "a2a-context"
# A context never ends. Its record is marked as ended from the beginning, so that the oldest contexts are evicted like
# ended tasks; otherwise a caller with many contexts would lose each task as soon as it ends.
ENDLESS: Final = "endless"
TERMINAL: Final[Mapping[str, str]] = {
    "TASK_STATE_COMPLETED": "completed",
    "TASK_STATE_FAILED": "failed",
    "TASK_STATE_CANCELED": "canceled",
    "TASK_STATE_REJECTED": "rejected",
}
_ABOUT_TASKS: Final = frozenset({"Task", "SendMessageResponse", "StreamResponse"})
# The members of a result that are about a task, and the place of the task's id in each; "" is the result itself.
_WHOLE: Final = {"": "id"}
_MEMBERS: Final = {"task": "id", "message": "taskId", "statusUpdate": "taskId", "artifactUpdate": "taskId"}
# The members of parameters and results that are ids of tasks, or hold some. A push configuration without an id of its
# own has that of its task.
_HOLD_TASKS: Final = frozenset(
    {"id", "taskId", "referenceTaskIds", "task", "tasks", "status", "history", "message"}
    | {"statusUpdate", "artifactUpdate", "configuration", "taskPushNotificationConfig", "configs"}
)
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})
_FIRST: Final = itemgetter(0)


class TaskOwnership:
    """The tasks of one caller at one agent, for one operation. `mine` are those that it names, `known` those that
    became the caller's by this operation, `context` is the context's id at the agent. `task` is the task that the
    operation names, or that its answer began; "" for none. `began` is the record of the sidecar's task that began with
    this message. `ours` maps ids of the agent to those that its caller knows.

    An id has one owner at the agent and is refused under any tenant other than its first: an agent may number tasks for
    each tenant separately, and the same id would be another owner's task there.

    Tasks of `anonymous` are answered in the call that begins them and have no owner: no record is stored, so no other
    anonymous caller can query or continue them.
    """

    mine: Mapping[str, OwnerRecord] = _NONE
    task = ""
    began: OwnerRecord | None = None
    ours: Mapping[str, str] = _NONE

    def __init__(self, tasks: TaskOwners, caller: Caller, intent: AgentOperation) -> None:
        self.tasks, self.caller, self.intent, self.context = tasks, caller, intent, intent.context
        self.known: dict[tuple[Namespace, str], OwnerRecord | None] = {}
        if intent.tasks:
            self.task = str(intent.params["message"].get("taskId", "")) if intent.sends else intent.tasks[0]

    async def check(self) -> None:
        """Checks an operation before it is sent. Raises Refusal: TASK_UNKNOWN, UNAUTHENTICATED if the operation would
        create a task without an owner, STORE_UNAVAILABLE."""
        intent = self.intent
        if intent.sends and self.caller.is_anonymous:
            if intent.tasks or intent.context:
                raise Refusal(Reason.TASK_UNKNOWN)
            if push_in(intent.params):
                raise Refusal(Reason.UNAUTHENTICATED, "push notifications need an authenticated caller")
        elif intent.sends:
            await self.tasks.may_create(self.caller)
        if len(str(intent.params.get("tenant", ""))) > MAX_ID_CHARS:
            raise Refusal(Reason.TASK_UNKNOWN)
        if intent.tasks:
            self.mine = await self._mine(intent.tasks, TASKS)
            if any(task not in self.mine for task in intent.tasks):
                raise Refusal(Reason.TASK_UNKNOWN)
            if any(record.is_unsent and name != self.task for name, record in self.mine.items()):
                raise Refusal(Reason.TASK_UNKNOWN)  # it is not at the agent yet
            self.ours = {record.at_agent: name for name, record in self.mine.items() if record.at_agent}
            if intent.sends:
                for record in self.mine.values():
                    await self.tasks.used(record)
        if intent.context and intent.operation is not LIST:
            await self._check_context()

    async def can_find(self) -> bool:
        """Reports whether a list can have results. A list for another owner's context, or an unknown one, is empty
        without a request to the agent, whose pages would distinguish the two."""
        if self.intent.operation is not LIST or not self.intent.context:
            return True
        if len(self.intent.context) > MAX_ID_CHARS:
            return False
        return any(record.method == self._method for record in await self._conversations())

    async def own(self, entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns those tasks of an agent's list that are the caller's, in the caller's view. Raises Refusal."""
        mine = await self._mine([entry["id"] for entry in entries if entry.get("id")], TASKS)
        contexts = self._contexts
        ours = {name: record.shown_as for name, record in mine.items() if record.shown_as}
        return [contexts.shown(renamed(entry, ours)) for entry in entries if entry.get("id") in mine]

    async def begin_here(self, task: str) -> None:
        """Records a task of the sidecar as the caller's, before the caller receives it. Raises Refusal."""
        await self._claim([TaskClaim(TASKS, task, here=True)], Reason.TASK_UNKNOWN)
        del self.known[TASKS, task]  # the agent did not begin it

    async def starts(self, task: str, context: str) -> None:
        """Makes the operation's message the first one of a task that the sidecar began. Raises Refusal."""
        self.began, self.task = (await self._mine((task,), TASKS)).get(task), task
        if self.began is None:
            raise Refusal(Reason.TASK_UNKNOWN)
        self.context = self.context or context

    @property
    def unsent(self) -> OwnerRecord | None:
        """The task that the operation is about, if the agent does not have it yet."""
        record = self.mine.get(self.task)
        return record if record is not None and record.is_unsent else None

    @property
    def is_plain(self) -> bool:
        """Whether the agent uses the ids that the caller named."""
        return not self.ours and not self.context

    def outward(self, params: dict[str, Any]) -> dict[str, Any]:
        """Returns parameters with the ids of tasks and context that the agent has."""
        if self.ours:
            params = renamed(params, {ours: name for name, ours in self.ours.items()})
        if self.context == self.intent.context:
            return params
        if self.intent.operation is LIST:
            return {**params, "contextId": self.context}
        return {**params, "message": {**params["message"], "contextId": self.context}}

    @property
    def _method(self) -> str:
        """The method that is recorded as the task's creator, with its tenant."""
        tenant = self.intent.params.get("tenant")
        return f"{SEND.action} {tenant}" if tenant else SEND.action

    async def _mine(self, names: Collection[str], namespace: Namespace) -> Mapping[str, OwnerRecord]:
        found = await self.tasks.mine(self.caller, self.intent.call.upstream, names, namespace=namespace)
        return {name: record for name, record in found.items() if record.method == self._method}

    @property
    def _contexts(self) -> ContextIds:
        return ContextIds(self.tasks.secret, self.caller.binding, self.intent.call.upstream)

    async def _conversations(self) -> Collection[OwnerRecord]:
        """Returns the caller's contexts of this id, plain or prefixed, to determine which one the id means."""
        contexts, chosen = self._contexts, self.intent.context
        own = contexts.own(chosen)
        keys = contexts.key(chosen), contexts.key(own)
        mine = await self.tasks.mine(self.caller, contexts.agent, keys, namespace=CONTEXTS)
        self.context = own if keys[1] in mine else chosen
        return mine.values()

    async def _check_context(self) -> None:
        if len(self.intent.context) > MAX_ID_CHARS:  # checked before an id is derived from it
            raise Refusal(Reason.TASK_UNKNOWN)
        mine = await self._conversations()
        too_long = len(self._contexts.own(self.intent.context)) > MAX_ID_CHARS  # the prefixed form must fit too
        if any(record.method != self._method for record in mine) or (not mine and too_long):
            raise Refusal(Reason.TASK_UNKNOWN)

    async def begin(self) -> None:
        """Claims a context that the caller does not have yet, once nothing else can refuse the call. Of concurrent
        claims one succeeds. Raises Refusal: TASK_UNKNOWN, STORE_UNAVAILABLE."""
        chosen = self.intent.context or self.context
        if not chosen or not self.intent.sends:
            return
        try:
            await self._claim([TaskClaim(CONTEXTS, self._contexts.key(self.context), ENDLESS)], Reason.TASK_UNKNOWN)
        except Refusal as refusal:
            if refusal.reason is not Reason.TASK_UNKNOWN or self.context != chosen:
                raise
            self.context = self._contexts.own(chosen)
            await self._claim([TaskClaim(CONTEXTS, self._contexts.key(self.context), ENDLESS)], Reason.TASK_UNKNOWN)

    async def _claim(self, claims: Sequence[TaskClaim], otherwise: Reason) -> None:
        """Records tasks and contexts as the caller's; for an anonymous caller, only checks that they have no owner.
        Raises Refusal; `otherwise` for one of another owner."""
        call = self.intent.call
        if self.caller.is_anonymous:
            for claim in claims:
                namespace, name = claim[:2]
                if await self.tasks.is_anothers("", call.upstream, name, namespace=namespace):
                    raise Refusal(otherwise)
                self.known[namespace, name] = None
                self.task = self.task or (name if namespace == TASKS else "")
            return
        by = Question(call.question.object, SEND.action, "")
        try:
            records = await self.tasks.claimed(self.caller, call.upstream, claims, by=by, method=self._method)
        except Refusal as refusal:
            if refusal.reason is Reason.RESPONSE_REFUSED:
                raise Refusal(otherwise) from None
            raise
        for record in records:
            namespace, name = record.namespace, record.task_id
            self.known[namespace, name] = record
            self.task = self.task or (name if namespace == TASKS else "")

    async def admit(self, result: dict[str, Any]) -> dict[str, Any]:
        """Returns a result, or one event, about the caller's tasks, in the caller's view; new tasks in it are recorded.
        `task_pages.py` reads lists. Raises Refusal."""
        intent, response = self.intent, self.intent.operation.response
        if self.ours:
            result = renamed(result, self.ours)
        if intent.operation is PUSH_LIST:
            return result
        named = _named(response, result)
        if response in _ABOUT_TASKS and "message" not in result and not any(map(_FIRST, named)):
            # a message alone belongs to no task
            raise Refusal(Reason.RESPONSE_REFUSED, "it says of no task what it is about")
        contexts, claims = self._contexts, list[TaskClaim]()
        for task, context, ended in named:
            if task and task not in intent.tasks:
                if not intent.sends:
                    raise Refusal(Reason.RESPONSE_REFUSED, "it answers with another task")
                self._begin(claims, TaskClaim(TASKS, task, ended, shown_as=self.began.task_id if self.began else ""))
            if len(context) > MAX_ID_CHARS:
                raise Refusal(Reason.RESPONSE_REFUSED, f"its context id is of more than {MAX_ID_CHARS} characters")
            if context and context != self.context and intent.sends:
                self._begin(claims, TaskClaim(CONTEXTS, contexts.key(context), ENDLESS))
        if claims:
            await self._claim(claims, Reason.RESPONSE_REFUSED)
            if self.began is not None and not self.ours and (begun := [one for one in claims if one.shown_as]):
                self.began = self.known[TASKS, self.began.task_id] = await self.tasks.sent(self.began, begun[0].task_id)
                self.ours = {begun[0].task_id: self.began.task_id}
                result = renamed(result, self.ours)
                named = _named(response, result)
        for task, _, ended in named:
            if task and ended and not ((record := self.known.get((TASKS, task))) and record.state):
                await self._ended(task, ended)
        shown: dict[str, Any] = contexts.shown(result)
        return shown

    def _begin(self, claims: list[TaskClaim], claim: TaskClaim) -> None:
        """Adds a claim of a new task or context. One message begins one task in one context (A2A 1.0, 3.1.2); otherwise
        an agent could evict the caller's oldest tasks by naming new ones."""
        namespace, name = claim[:2]
        if (namespace, name) in self.known or claim in claims:
            return
        begun = list(map(_FIRST, claims))
        if self.known:
            chosen = self._contexts.key(self.context) if namespace == CONTEXTS and self.context else ""
            begun += [one for one, called in self.known if called != chosen]
        if namespace in begun:
            raise Refusal(Reason.RESPONSE_REFUSED, "it begins more than one task, or conversation, for one message")
        claims.append(claim)

    async def _ended(self, task: str, state: str) -> None:
        if (TASKS, task) in self.known:
            record = self.known[TASKS, task]
        else:
            record = self.mine.get(task) or (await self._mine((task,), TASKS)).get(task)
        if record is not None:
            await self.tasks.saw(record, state, None)


async def shown_to(tasks: TaskOwners, owner: str, agent: str, event: dict[str, Any]) -> dict[str, Any]:
    """Returns an event that an agent pushed, with the ids that the owner of its task knows. Raises Refusal."""
    named = [task for task, _, _ in _named("StreamResponse", event) if task]
    ours = await tasks.shown_as(owner, agent, named, namespace=TASKS)
    shown: dict[str, Any] = ContextIds(tasks.secret, owner, agent).shown(renamed(event, ours))
    return shown


def renamed(said: Any, names: Mapping[str, str]) -> Any:
    """Returns canonical parameters, a result or an event with other ids of tasks; texts and data are not read."""
    if type(said) is list:
        return [renamed(one, names) for one in said]
    if type(said) is str:
        return names.get(said, said)
    if type(said) is not dict:
        return said
    changed = {name: renamed(said[name], names) for name in _HOLD_TASKS & said.keys()}
    return {**said, **changed}


def _named(message: str, result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Returns the tasks that a result is about, each with its context, and how it ended ("" if it did not)."""
    if message == "TaskPushNotificationConfig":
        return [(result.get("taskId", ""), "", "")]
    found = []
    members = _WHOLE if message == "Task" else _MEMBERS if message in _ABOUT_TASKS else {}
    for member, name in members.items():
        said = result.get(member) if member else result
        if said is not None:
            state = said.get("status", _NONE).get("state", "")
            found.append((said.get(name, ""), said.get("contextId", ""), TERMINAL.get(state, "")))
    return found
