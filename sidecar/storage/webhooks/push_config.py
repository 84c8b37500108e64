"""The record of one push configuration."""

from __future__ import annotations

from typing import Any, NamedTuple

from sidecar.protocols.a2a.operations import Version
from sidecar.storage.webhooks.delivery import OnBehalfOf
from sidecar.vocabulary import Caller


class PushRecord(NamedTuple):
    """Who wants to hear of which task, where, and in which version of A2A; and the address of ours that the agent was
    told instead. `secret` is what the agent proves itself with; `token`, `scheme` and `credentials` are the caller's,
    for the receiver. So a record is never printed. `task_id` is "" until the agent said which task it made. `caller` is
    who registered it, beside a send for `skill` ("" for none), to be asked about each time that something is pushed;
    `owner` its binding."""

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
        """On whose behalf the agent pushes."""
        return OnBehalfOf(self.caller, self.server, self.skill)

    def config(self) -> dict[str, Any]:
        """The caller's own configuration, in its canonical form."""
        config = {"taskId": self.task_id, "id": self.config_id, "url": self.url, "token": self.token}
        told: dict[str, Any] = {name: value for name, value in config.items() if value}
        if self.scheme:
            credentials = {"credentials": self.credentials} if self.credentials else {}
            told["authentication"] = {"scheme": self.scheme, **credentials}
        return told
