"""Rewrites push configurations in A2A requests and answers.

The agent is told an address of ours, and what it pushes comes to us (`push_notifications.py`); its owner sees what they
wrote, and nobody sees anybody else's. So the receiver is judged when it is named and each time that something leaves,
whether it came by a call of its own or inside a send (threats N1, N2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.errors import Reason, Refusal
from sidecar.gateway.frontends.a2a.push_notifications import PushConfigs
from sidecar.gateway.frontends.a2a.request_reader import AgentOperation, push_in
from sidecar.protocols.a2a.operations import PUSH_DELETE, PUSH_GET, PUSH_LIST, PUSH_SET
from sidecar.storage.webhooks.delivery import OnBehalfOf
from sidecar.vocabulary import Caller


@dataclass(slots=True)
class PushRewriter:
    """The push configuration that one operation brings, if it does. `handle` is ours for it, "" for none."""

    pushes: PushConfigs
    caller: Caller
    intent: AgentOperation
    handle: str = ""

    async def rewritten(self) -> dict[str, Any]:
        """The parameters as the agent is to have them. Raises Refusal: MALFORMED_CALL for where nothing is sent to,
        TOO_MANY_CONCURRENT, STORE_UNAVAILABLE."""
        params = self.intent.params
        if self.intent.operation is PUSH_SET:
            return await self._registered(params["taskId"], params)
        config = push_in(params)
        if not config:
            return params
        ours = await self._registered(self.intent.tasks[0] if self._goes_on else "", config)
        return {**params, "configuration": {**params["configuration"], "taskPushNotificationConfig": ours}}

    @property
    def _goes_on(self) -> bool:
        """Whether a message is one into a task that there is already."""
        return bool(self.intent.params.get("message", {}).get("taskId"))

    async def _registered(self, task: str, config: Mapping[str, Any]) -> dict[str, Any]:
        call = self.intent.call
        behalf = OnBehalfOf(self.caller, call.upstream, call.questions[-1].name)
        made = await self.pushes.register(behalf, task, config, self.intent.version)
        self.handle = made.handle
        return made.config

    async def settle(self, result: Mapping[str, Any]) -> None:
        """The agent answered: what it was told is for this task from now on. Raises Refusal(STORE_UNAVAILABLE)."""
        if not self.handle:
            return
        task = _task_in(result)
        if task:
            named = result if self._is_set else push_in(self.intent.params)
            await self.pushes.accepted(self.handle, task, str(named.get("id", "")))
            self.handle = ""

    @property
    def _is_set(self) -> bool:
        return self.intent.operation is PUSH_SET

    async def undo(self) -> None:
        """The agent took nothing."""
        if self.handle:
            try:
                await self.pushes.abandon(self.handle)
            except Refusal:
                return  # it ends by its time; nobody was told its secret
            finally:
                self.handle = ""

    async def shown(self, result: dict[str, Any]) -> dict[str, Any]:
        """A result as its owner wrote it. What a deletion took away is forgotten. Raises Refusal."""
        operation, call = self.intent.operation, self.intent.call
        owner = self.caller.binding
        if operation in (PUSH_SET, PUSH_GET):
            original = await self.pushes.original(owner, call.upstream, result)
            if original is None and self._is_set:
                raise Refusal(Reason.RESPONSE_REFUSED, "its answer is not the configuration that it was given")
            if original is None:
                raise Refusal(Reason.TASK_UNKNOWN)  # one that never passed here is nobody's
            return original
        if operation is PUSH_LIST:
            found = [await self.pushes.original(owner, call.upstream, one) for one in result.get("configs", [])]
            return {**result, "configs": [one for one in found if one is not None]}
        if operation is PUSH_DELETE:
            params = self.intent.params
            await self.pushes.forget(owner, call.upstream, params["taskId"], params.get("id", ""))
        return result


def _task_in(result: Mapping[str, Any]) -> str:
    """The task that an answer, or the first event of one, is about."""
    for member in ("task", "statusUpdate", "artifactUpdate", "message"):
        if member in result:
            return str(result[member].get("id" if member == "task" else "taskId", ""))
    return str(result.get("taskId", ""))
