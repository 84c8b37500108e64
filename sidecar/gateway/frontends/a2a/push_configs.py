"""Rewrites push configurations in A2A requests and answers.

The agent receives an address of sidecar, and its pushes arrive there (`push_notifications.py`). Each owner sees only
its own configurations, as it wrote them. The receiver is checked when it is named and each time something is sent to
it, whether it came in a call of its own or inside a send (threats N1, N2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.errors import Reason, Refusal
from sidecar.gateway.frontends.a2a.push_notifications import PushConfigs
from sidecar.gateway.frontends.a2a.request_reader import AgentOperation, push_in
from sidecar.protocols.a2a.operations import PUSH_DELETE, PUSH_GET, PUSH_LIST, PUSH_SET
from sidecar.storage.deliveries import OnBehalfOf
from sidecar.vocabulary import Caller


@dataclass(slots=True)
class PushRewriter:
    """The push configuration that an operation may bring. `handle` identifies the rewritten one, "" for none."""

    pushes: PushConfigs
    caller: Caller
    intent: AgentOperation
    handle: str = ""

    async def rewritten(self) -> dict[str, Any]:
        """Returns the parameters for the agent. Raises Refusal; MALFORMED_CALL for a receiver that is not allowed."""
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
        return bool(self.intent.params.get("message", {}).get("taskId"))

    async def _registered(self, task: str, config: Mapping[str, Any]) -> dict[str, Any]:
        call = self.intent.call
        behalf = OnBehalfOf(self.caller, call.upstream, call.questions[-1].name)
        made = await self.pushes.register(behalf, task, config, self.intent.version)
        self.handle = made.handle
        return made.config

    async def settle(self, result: Mapping[str, Any]) -> None:
        """Binds the configuration to the task in the agent's answer. Raises Refusal(STORE_UNAVAILABLE)."""
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
        """Drops the configuration, because the agent accepted nothing."""
        if self.handle:
            try:
                await self.pushes.abandon(self.handle)
            except Refusal:
                return  # it expires by itself, and its secret was not sent
            finally:
                self.handle = ""

    async def shown(self, result: dict[str, Any]) -> dict[str, Any]:
        """Returns a result as its owner wrote it, and forgets a configuration that the agent deleted."""
        operation, call = self.intent.operation, self.intent.call
        owner = self.caller.binding
        if operation in (PUSH_SET, PUSH_GET):
            original = await self.pushes.original(owner, call.upstream, result)
            if original is None and self._is_set:
                raise Refusal(Reason.RESPONSE_REFUSED, "its answer is not the configuration that it was given")
            if original is None:
                raise Refusal(Reason.TASK_UNKNOWN)  # a configuration that was not registered here has no owner
            return original
        if operation is PUSH_LIST:
            found = [await self.pushes.original(owner, call.upstream, one) for one in result.get("configs", [])]
            return {**result, "configs": [one for one in found if one is not None]}
        if operation is PUSH_DELETE:
            params = self.intent.params
            await self.pushes.forget(owner, call.upstream, params["taskId"], params.get("id", ""))
        return result


def _task_in(result: Mapping[str, Any]) -> str:
    for member in ("task", "statusUpdate", "artifactUpdate", "message"):
        if member in result:
            return str(result[member].get("id" if member == "task" else "taskId", ""))
    return str(result.get("taskId", ""))
