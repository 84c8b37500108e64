"""The record of one push configuration: the receiver that a caller named, and the data needed to reach it."""

from typing import Any, Final, NamedTuple

from sidecar.protocols.a2a.operations import Version
from sidecar.storage.deliveries import OnBehalfOf
from sidecar.storage.record_kind import RecordKind, record_codec
from sidecar.vocabulary import Caller


class PushRecord(NamedTuple):
    """A caller's push configuration, and the `handle` in the address that the agent received instead. The agent
    authenticates with `secret`; `token`, `scheme` and `credentials` are for the caller's receiver, so a record is never
    printed. `task_id` is "" until the agent reports it. Of two with the same `config_id`, the one with the later
    `named_at` applies."""

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
    named_at: float = 0.0
    revision: int = 0

    def __repr__(self) -> str:
        return f"PushRecord({self.server!r})"

    @property
    def id(self) -> str:
        return self.handle

    @property
    def target(self) -> str:
        return self.server

    @property
    def standing(self) -> str:
        return ""

    @property
    def is_done(self) -> bool:
        """Returns False, so that no configuration is evicted for another one."""
        return False

    @property
    def behalf(self) -> OnBehalfOf:
        return OnBehalfOf(self.caller, self.server, self.skill)

    def config(self) -> dict[str, Any]:
        """Returns the caller's own configuration in canonical form (A2A 1.0), without empty members."""
        config = {"taskId": self.task_id, "id": self.config_id, "url": self.url, "token": self.token}
        told: dict[str, Any] = {name: value for name, value in config.items() if value}
        if self.scheme:
            credentials = {"credentials": self.credentials} if self.credentials else {}
            told["authentication"] = {"scheme": self.scheme, **credentials}
        return told


PUSHES: Final = RecordKind("a push configuration", record_codec(PushRecord), key="push-configs", is_work=False)
