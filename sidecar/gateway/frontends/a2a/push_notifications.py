"""Registers push configurations and forwards agents' push notifications.

What a caller registers at an agent (address, token, credentials) is kept here, and the agent is told an address of ours
with a secret of ours instead. So it never dials what a caller wrote, and never holds what proves it to the receiver.
What it pushes comes here, is read like every answer of an agent, belongs to the owner of its task, and leaves by the
outbox in the version of A2A that the owner speaks:

    caller ── register ──▶ we keep url, token, credentials ── our address, our secret ──▶ agent
    receiver ◀── outbox, signed ── pushed: matched, read, written anew ◀── our address, our secret ── agent

A send may bring a configuration before its task has a name: it is bound to the first task that the agent's answer, or
its first push, is about, and to no other from then on.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import orjson

from sidecar.errors import Reason, Refusal
from sidecar.protocols import jsonrpc
from sidecar.protocols.a2a import v03
from sidecar.protocols.a2a.messages import V10
from sidecar.protocols.a2a.operations import GET, STREAM, Version
from sidecar.protocols.a2a.schema import UnreadableMessage
from sidecar.settings.callbacks import CallbackSettings
from sidecar.storage.webhooks.delivery import Headers, Kind, OnBehalfOf
from sidecar.storage.webhooks.push_config import PushRecord
from sidecar.storage.webhooks.store import DeliveryStore, DeliveryStoreOut

PATH: Final = "/a2a/push/"
MAX_SECRET_CHARS: Final = 4096
HANDLE_CHARS: Final = 43  # 256 bits in base64url
_OURS = re.compile(rf"https?://[^?#]*{PATH}([A-Za-z0-9_-]{{{HANDLE_CHARS}}})")
_HANDLE = re.compile(rf"[A-Za-z0-9_-]{{{HANDLE_CHARS}}}")
_VALUE = re.compile(r"[!-~](?:[ !-~]*[!-~])?")  # what a header can carry
_SCHEME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_MEMBERS: Final = ("task", "statusUpdate", "artifactUpdate", "message")
_CONTENT_TYPES: Final[Mapping[Version, str]] = {"0.3": "application/json", "1.0": "application/a2a+json"}


IsAnothers = Callable[[str, str, str], Awaitable[bool]]
"""Whether a task at an agent is somebody's who is not this owner. Raises Refusal."""

Shows = Callable[[str, str, dict[str, Any]], dict[str, Any]]
"""What an agent says, as this owner is shown it."""


class Outbox(Protocol):
    """Where notifications leave for their receivers."""

    @property
    def objection(self) -> Callable[[Kind, OnBehalfOf], Reason | None]:
        """Why nothing is sent on this behalf any more; None if it may be."""

    async def put(self, kind: Kind, ref: str, behalf: OnBehalfOf, url: str, headers: Headers, body: bytes) -> str:
        """Store one delivery; its id. Raises Refusal."""

    async def drop(self, kind: Kind, ref: str) -> None:
        """Forget the deliveries of `ref` that wait."""


class RewrittenConfig(NamedTuple):
    """What the agent is told instead of the caller's configuration, in its canonical form; `handle` is ours for it."""

    handle: str
    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PushConfigs:
    """Every push configuration that passed here. `check` is the guard's; `is_anothers` knows whose tasks are, and
    `shows` what their owner is shown; `new_secret` gives 43 characters of base64url that nobody can guess; nothing is
    kept longer than `keep_s` seconds."""

    store: DeliveryStore
    outbox: Outbox
    check: Callable[[str, str], Awaitable[None]]
    is_anothers: IsAnothers
    shows: Shows
    base_url: Callable[[], str]
    rules: Callable[[], CallbackSettings]
    clock: Callable[[], float]
    new_secret: Callable[[], str]
    keep_s: Callable[[], float]

    async def register(
        self, behalf: OnBehalfOf, task_id: str, config: Mapping[str, Any], version: Version
    ) -> RewrittenConfig:
        """Keep a caller's configuration, canonical and read; what the agent is to be told. `task_id` is "" inside a
        send that begins a task. Raises Refusal: MALFORMED_CALL for an address or a header that is not sent,
        TOO_MANY_CONCURRENT, STORE_UNAVAILABLE."""
        authentication = config.get("authentication", {})
        token, scheme = config.get("token", ""), authentication.get("scheme", "")
        credentials = authentication.get("credentials", "")
        _check_headers(token, scheme, credentials)
        await self.check(config.get("url", ""), behalf.caller.binding)
        (caller, server, skill), now_s, rules = behalf, self.clock(), self.rules()
        record = PushRecord(
            self.new_secret(), caller.binding, server, task_id, config.get("id", ""), version, config["url"], token,
            scheme, credentials, self.new_secret(), now_s, now_s + self.keep_s(), skill, caller,
        )  # fmt: skip
        try:
            kept = await self.store.keep_push(record, rules.max_configs_per_principal, rules.max_configs)
        except DeliveryStoreOut:
            raise _unavailable() from None
        if not kept:
            raise Refusal(Reason.TOO_MANY_CONCURRENT, "too many push configurations")
        told = {name: value for name, value in config.items() if name in ("tenant", "id", "taskId")}
        ours = {"url": f"{self.base_url()}{PATH}{record.handle}", "token": record.secret}
        return RewrittenConfig(
            record.handle,
            {**told, **ours, "authentication": {"scheme": "Bearer", "credentials": record.secret}},
        )

    async def accepted(self, handle: str, task_id: str, config_id: str = "") -> None:
        """The agent took it: for this task, under this name. An older one of the same name is replaced by it. Raises
        Refusal(STORE_UNAVAILABLE)."""
        try:
            replaced = await self.store.name_push(handle, task_id, config_id)
        except DeliveryStoreOut:
            raise _unavailable() from None
        for older in replaced:
            await self.outbox.drop("push", older)

    async def abandon(self, handle: str) -> None:
        """The agent did not take it. Raises Refusal(STORE_UNAVAILABLE)."""
        await self._forget([handle])

    async def original(self, owner: str, server: str, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """A configuration as its owner gave it, from what the agent says of it; None for one that is not theirs, or not
        ours: such a one is shown to nobody. Raises Refusal(STORE_UNAVAILABLE)."""
        found = _OURS.fullmatch(config.get("url", ""))
        record = await self._record(found[1]) if found else None
        if record is None or (record.owner, record.server) != (owner, server):
            return None
        if record.task_id and config.get("taskId", record.task_id) != record.task_id:
            return None
        said = {name: config[name] for name in ("tenant", "id", "taskId") if config.get(name)}
        return {**record.config(), **said}

    async def forget(self, owner: str, server: str, task_id: str, config_id: str) -> None:
        """The agent deleted it: what still waits for its receiver is not sent. Raises Refusal(STORE_UNAVAILABLE)."""
        try:
            mine = await self.store.pushes_of(owner, server, task_id, self.clock())
        except DeliveryStoreOut:
            raise _unavailable() from None
        # A config without a name is called like its task by the official agents.
        names = (config_id, "") if config_id == task_id else (config_id,)
        await self._forget([record.handle for record in mine if record.config_id in names])

    async def knocked(self, handle: str, token: str, authorization: str) -> PushRecord:
        """Who an agent that is at an address of ours pushes for, asked before its body is read. `token` is its
        `X-A2A-Notification-Token`, `authorization` its header of that name; one of them must hold our secret. Raises
        Refusal: ROUTE_UNKNOWN, and why its owner may not have it any more."""
        record = await self._record(handle) if _HANDLE.fullmatch(handle) else None
        if record is None or not _proves(record.secret, token, authorization):
            raise Refusal(Reason.ROUTE_UNKNOWN)  # whoever guesses learns nothing
        if (reason := self.outbox.objection("push", record.behalf)) is not None:
            raise Refusal(reason)
        return record

    async def pushed(self, record: PushRecord, body: bytes) -> None:
        """What the agent says. When this returns, no crash loses it. Raises Refusal: MALFORMED_CALL, and what
        `Outbox.put` raises."""
        event = _event(body)
        task_id = _task_of(event)
        if not task_id or task_id != (record.task_id or await self._bound(record, task_id)):
            raise Refusal(Reason.MALFORMED_CALL, "this address is for another task")
        said = _said(self.shows(record.owner, record.server, event), record.version)
        if said is None:
            return
        headers = [("Content-Type", _CONTENT_TYPES[record.version])]
        if record.token:
            headers.append(("X-A2A-Notification-Token", record.token))
        if record.scheme and record.credentials:
            headers.append(("Authorization", f"{record.scheme} {record.credentials}"))
        await self.outbox.put("push", record.handle, record.behalf, record.url, tuple(headers), said)

    async def _bound(self, record: PushRecord, task_id: str) -> str:
        """What came inside a send is for the first task that is pushed there, however many are at once; never for
        another's."""
        if await self.is_anothers(record.owner, record.server, task_id):
            return ""
        try:
            return await self.store.bind_push(record.handle, task_id)
        except DeliveryStoreOut:
            raise _unavailable() from None

    async def _record(self, handle: str) -> PushRecord | None:
        try:
            return await self.store.push(handle, self.clock())
        except DeliveryStoreOut:
            raise _unavailable() from None

    async def _forget(self, handles: list[str]) -> None:
        try:
            await self.store.forget_pushes(handles)
        except DeliveryStoreOut:
            raise _unavailable() from None
        for handle in handles:
            await self.outbox.drop("push", handle)


def _check_headers(token: str, scheme: str, credentials: str) -> None:
    """Refuse at once what could not be sent later."""
    for name, value in (("token", token), ("authentication.credentials", credentials)):
        if value and (len(value) > MAX_SECRET_CHARS or not _VALUE.fullmatch(value)):
            raise jsonrpc.malformed(f"{name} is not one line of printable ASCII", jsonrpc.INVALID_PARAMS)
    if scheme and not _SCHEME.fullmatch(scheme):
        raise jsonrpc.malformed("authentication.scheme is no HTTP authentication scheme", jsonrpc.INVALID_PARAMS)


def _proves(secret: str, token: str, authorization: str) -> bool:
    """Agents of 0.3 send the token only, those of 1.0 both."""
    scheme, _, credentials = authorization.partition(" ")
    shown = credentials.strip() if scheme.lower() == "bearer" else ""
    return any(hmac.compare_digest(secret.encode(), each.encode("utf-8", "replace")) for each in (token, shown) if each)


def _event(body: bytes) -> dict[str, Any]:
    """What an agent pushed, as a canonical `StreamResponse`: 1.0 pushes these, 0.3 a task."""
    given = jsonrpc.parse_json(body)
    try:
        if isinstance(given, dict) and any(
            member in given for member in ("status_update", "artifact_update", *_MEMBERS)
        ):
            return V10.read("StreamResponse", given, defaults=True)
        return v03.result_from_03(STREAM, given, streamed=True)
    except UnreadableMessage as error:
        raise Refusal(Reason.MALFORMED_CALL, f"this is no push notification of A2A: {error}") from None


def _task_of(event: Mapping[str, Any]) -> str:
    for member in _MEMBERS:
        if member in event:
            return str(event[member].get("id" if member == "task" else "taskId", ""))
    return ""


def _said(event: Mapping[str, Any], version: Version) -> bytes | None:
    """The body for the receiver. To 0.3 every notification is a task, with as much of it as is known: of a status the
    task with that status, of an artifact nothing, because a task without a status is none."""
    if version == "1.0":
        return orjson.dumps(event)
    if "task" in event:
        task = event["task"]
    elif "statusUpdate" in event:
        update = event["statusUpdate"]
        task = {"id": update["taskId"], "contextId": update.get("contextId", ""), "status": update.get("status", {})}
    else:
        return None
    try:
        return orjson.dumps(v03.result_to_03(GET, task, streamed=False))
    except UnreadableMessage as error:
        raise Refusal(Reason.MALFORMED_CALL, f"A2A 0.3 cannot say this: {error}") from None


def _unavailable() -> Refusal:
    # Fail closed: without its record nobody knows whom an agent pushes to.
    return Refusal(Reason.STORE_UNAVAILABLE)
