"""Pages through an agent's tasks, keeping only those of the caller.

An agent may list the tasks of all owners, and the number of other owners' tasks must not be disclosed. So the agent's
pages are read until one page for the caller is full, MAX_READ at most. The agent's page tokens may contain the id of
another owner's task (the official SDK's do), so they are sealed: only this chain can use one, at this agent and tenant,
and no caller can read it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import orjson

from sidecar.errors import Reason, Refusal
from sidecar.gateway.frontends.a2a.task_ownership import TaskOwnership
from sidecar.protocols import base64url
from sidecar.protocols.a2a.errors import AgentError
from sidecar.protocols.jsonrpc import INVALID_PARAMS, malformed
from sidecar.storage.sealing import AesSeal

MOST_LISTED: Final = 100  # of one page (A2A 1.0)
DEFAULT_LISTED: Final = 50
MAX_READ: Final = 10  # of the agent's pages for one answered page
MAX_TOKEN_CHARS: Final = 4096  # of an agent's token
_PURPOSE: Final = b"sidecar/page/1"

Ask = Callable[[dict[str, Any]], Awaitable[dict[str, Any] | AgentError]]
"""Requests one page from the agent. Raises Refusal."""


class TaskPages:
    """Reads lists. Replicas that share the `secret` accept each other's tokens."""

    __slots__ = ("_seal",)

    def __init__(self, secret: bytes) -> None:
        self._seal = AesSeal(secret, _PURPOSE)

    async def page(self, owning: TaskOwnership, ask: Ask) -> dict[str, Any] | AgentError:
        """Returns the page requested, or the agent's error. Raises Refusal: MALFORMED_CALL for an invalid page size or
        a token of another list, RESPONSE_REFUSED for a token of the agent that is too long."""
        params = owning.intent.params
        size = int(params.get("pageSize", DEFAULT_LISTED))
        if not 1 <= size <= MOST_LISTED:
            raise malformed(f"params.pageSize must be from 1 to {MOST_LISTED}", INVALID_PARAMS)
        token, skip = self._open(owning, str(params.get("pageToken", "")))
        shown: list[dict[str, Any]] = []
        if not await owning.can_find():
            return _page(shown, size, "")
        for _ in range(MAX_READ):
            wanted = {name: value for name, value in owning.outward(params).items() if name != "pageToken"}
            answer = await ask(
                {**wanted, "pageSize": max(size, DEFAULT_LISTED)} | ({"pageToken": token} if token else {})
            )
            if isinstance(answer, AgentError):
                return answer
            own = (await owning.own(answer.get("tasks", [])[:MOST_LISTED]))[skip:]
            room = size - len(shown)
            shown += own[:room]
            if len(own) > room:
                return _page(shown, size, self._sealed(owning, token, skip + room))
            token, skip = str(answer.get("nextPageToken", "")), 0
            if not token or len(shown) == size:
                break
        return _page(shown, size, self._sealed(owning, token, 0) if token else "")

    def _sealed(self, owning: TaskOwnership, token: str, skip: int) -> str:
        if len(token) > MAX_TOKEN_CHARS:
            raise Refusal(Reason.RESPONSE_REFUSED, f"its page token is longer than {MAX_TOKEN_CHARS} characters")
        return base64url.encode(self._seal.sealed(orjson.dumps([token, skip]), _whose(owning)))

    def _open(self, owning: TaskOwnership, sealed: str) -> tuple[str, int]:
        if not sealed:
            return "", 0
        try:
            said = self._seal.opened(base64url.decode(sealed), _whose(owning))
        except ValueError:
            raise malformed("params.pageToken is not one of this list", INVALID_PARAMS) from None
        token, skip = orjson.loads(said)
        return token, skip


def _page(tasks: list[dict[str, Any]], size: int, token: str) -> dict[str, Any]:
    return {"tasks": tasks, "nextPageToken": token, "pageSize": size, "totalSize": len(tasks)}


def _whose(owning: TaskOwnership) -> bytes:
    intent: Mapping[str, Any] = owning.intent.params
    return orjson.dumps([owning.caller.binding, owning.intent.call.upstream, intent.get("tenant", "")])
