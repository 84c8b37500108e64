"""The record of one push configuration."""

from __future__ import annotations

from typing import Any, NamedTuple

from sidecar.protocols.a2a.operations import Version
from sidecar.storage.webhooks.delivery import OnBehalfOf
from sidecar.vocabulary import Caller


class PushRecord(NamedTuple):
    """A caller's push configuration: the task, the receiver's address and the A2A version; and the handle of the
    sidecar's own address that the agent was given instead. The agent authenticates with `secret`; `token`, `scheme` and
    `credentials` are the caller's, for its receiver, so a record is never printed. `task_id` is "" until the agent
    reports the task it created. `caller` registered the configuration with a send for `skill` ("" for none), and is
    checked again for each push; `owner` is its binding."""

    handle: str
    owner: str
    server: str
    task_id: str
    config_id: str
    version: Version
    url: str
    token: str
    scheme: str
    credentials: str
    secret: str
    created_at: float
    expires_at: float
    skill: str
    caller: Caller

    def __repr__(self) -> str:
        return f"PushRecord({self.server!r})"

    @property
    def behalf(self) -> OnBehalfOf:
        """Returns on whose behalf the agent pushes."""
        return OnBehalfOf(self.caller, self.server, self.skill)

    def config(self) -> dict[str, Any]:
        """Returns the caller's own configuration in canonical form."""
        config = {"taskId": self.task_id, "id": self.config_id, "url": self.url, "token": self.token}
        told: dict[str, Any] = {name: value for name, value in config.items() if value}
        if self.scheme:
            credentials = {"credentials": self.credentials} if self.credentials else {}
            told["authentication"] = {"scheme": self.scheme, **credentials}
        return told
