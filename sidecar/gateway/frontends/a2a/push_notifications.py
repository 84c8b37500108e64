"""Registers push configurations and forwards agents' push notifications.

A caller's configuration (address, token, credentials) is stored here, and the agent receives an address and a secret of
the sidecar instead. So the agent never dials an address that a caller wrote, and never holds the caller's credentials
for the receiver. A push arrives here, is read like any answer of an agent, belongs to the owner of its task, and is
delivered through the outbox in the owner's A2A version:

    caller ── register ──▶ url, token, credentials stored ── own address, own secret ──▶ agent
    receiver ◀── outbox, signed ── pushed: matched, read, rewritten ◀── own address, own secret ── agent

A send may bring a configuration before its task has an id. It is bound to the first task in the agent's answer, or in
its first push, and to no other afterwards.
"""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import orjson

from sidecar.errors import Reason, Refusal
from sidecar.gateway.frontends.a2a.request_reader import AgentOperation, push_in
from sidecar.protocols import jsonrpc
from sidecar.protocols.a2a.messages import V10
from sidecar.protocols.a2a.operations import GET, PUSH_DELETE, PUSH_GET, PUSH_LIST, PUSH_SET, STREAM, Version
from sidecar.protocols.a2a.schema import UnreadableMessage
from sidecar.protocols.a2a.v03 import JSON_FORM
from sidecar.storage import AddedRecord, RecordBounds, RecordPage, RecordStore, RecordStoreOut, UnreadableRecord
from sidecar.storage.deliveries import Headers, Kind, OnBehalfOf
from sidecar.storage.push_configs import PushRecord
from sidecar.vocabulary import Caller

PATH: Final = "/a2a/push/"
BOUNDS = RecordBounds(per_owner=1_000, total=100_000)
MAX_SECRET_CHARS: Final = 4096
HANDLE_CHARS: Final = 43  # 256 bits in base64url
CHANGED_TIMES: Final = 20  # attempts, while other calls change the same configuration
_OURS = re.compile(rf"https?://[^?#]*{PATH}([A-Za-z0-9_-]{{{HANDLE_CHARS}}})")
_HANDLE = re.compile(rf"[A-Za-z0-9_-]{{{HANDLE_CHARS}}}")
_VALUE = re.compile(r"[!-~](?:[ !-~]*[!-~])?")  # valid in a header
_SCHEME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_MEMBERS: Final = ("task", "statusUpdate", "artifactUpdate", "message")
_CONTENT_TYPES: Final[Mapping[Version, str]] = {"0.3": "application/json", "1.0": "application/a2a+json"}

log = logging.getLogger("sidecar.gateway.push_notifications")

IsAnothers = Callable[[str, str, str], Awaitable[bool]]
"""Reports whether a task at an agent belongs to another owner. Raises Refusal."""

Shows = Callable[[str, str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Returns an agent's event as this owner may see it. Raises Refusal."""


class Outbox(Protocol):
    """Delivers notifications to their receivers."""

    @property
    def objection(self) -> Callable[[Kind, OnBehalfOf], Reason | None]:
        """Returns why nothing may be sent on this behalf; None if it may be."""

    async def put(self, kind: Kind, ref: str, behalf: OnBehalfOf, url: str, headers: Headers, body: bytes) -> str:
        """Stores one delivery and returns its id. Raises Refusal."""

    async def drop(self, kind: Kind, ref: str) -> None:
        """Drops the pending deliveries of `ref`."""


class RewrittenConfig(NamedTuple):
    """The configuration that the agent receives, in canonical form; `handle` identifies it."""

    handle: str
    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PushConfigs:
    """The push configurations of all callers. `check` checks a receiver's address; `is_anothers` knows the owners of
    tasks, and `shows` what an owner may see; `new_secret` returns 43 unguessable characters of base64url; nothing is
    stored longer than `keep_s` seconds."""

    store: RecordStore[PushRecord]
    outbox: Outbox
    check: Callable[[str, str], Awaitable[None]]
    is_anothers: IsAnothers
    shows: Shows
    base_url: Callable[[], str]
    clock: Callable[[], float]
    new_secret: Callable[[], str]
    keep_s: Callable[[], float]

    async def register(
        self, behalf: OnBehalfOf, task_id: str, config: Mapping[str, Any], version: Version
    ) -> RewrittenConfig:
        """Stores a caller's configuration, canonical and parsed, and returns the one for the agent. `task_id` is ""
        inside a send that begins a task. Raises Refusal: MALFORMED_CALL for an address or a header that cannot be used,
        TOO_MANY_CONCURRENT, STORE_UNAVAILABLE."""
        authentication = config.get("authentication", {})
        token, scheme = config.get("token", ""), authentication.get("scheme", "")
        credentials = authentication.get("credentials", "")
        _check_headers(token, scheme, credentials)
        await self.check(config.get("url", ""), behalf.caller.binding)
        (caller, server, skill), now_s = behalf, self.clock()
        record = PushRecord(
            self.new_secret(), caller.binding, server, task_id, config.get("id", ""), version, config["url"], token,
            scheme, credentials, self.new_secret(), now_s, now_s + self.keep_s(), skill, caller,
        )  # fmt: skip
        if await self.store.add(record, "", 0.0, BOUNDS) is not AddedRecord.KEPT:
            raise Refusal(Reason.TOO_MANY_CONCURRENT, "too many push configurations")
        told = {name: value for name, value in config.items() if name in ("tenant", "id", "taskId")}
        ours = {"url": f"{self.base_url()}{PATH}{record.handle}", "token": record.secret}
        return RewrittenConfig(
            record.handle, {**told, **ours, "authentication": {"scheme": "Bearer", "credentials": record.secret}}
        )

    async def accepted(self, handle: str, task_id: str, config_id: str = "") -> None:
        """Binds a configuration to this task and name once the agent accepts it. An older one of the same name is
        replaced. Raises Refusal(STORE_UNAVAILABLE)."""
        named = await self._changed(handle, task_id=task_id, config_id=config_id, named_at=self.clock())
        if named is None:
            return
        alike = [one for one in await self._of(named.owner, named.server, task_id) if one.config_id == config_id]
        last = max(alike, key=_named_last, default=None)  # concurrent calls agree on it
        await self._forget([one.handle for one in alike if one is not last])

    async def abandon(self, handle: str) -> None:
        await self._forget([handle])

    async def original(self, owner: str, server: str, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns a configuration as its owner gave it, from the agent's version of it. Returns None for one of another
        owner, or one that was not registered here. Raises Refusal(STORE_UNAVAILABLE)."""
        found = _OURS.fullmatch(config.get("url", ""))
        record = await self._record(found[1]) if found else None
        if record is None or (record.owner, record.server) != (owner, server):
            return None
        if record.task_id and config.get("taskId", record.task_id) != record.task_id:
            return None
        said = {name: config[name] for name in ("tenant", "id", "taskId") if config.get(name)}
        return {**record.config(), **said}

    async def forget(self, owner: str, server: str, task_id: str, config_id: str) -> None:
        """Drops a configuration that the agent deleted, with its deliveries. Raises Refusal(STORE_UNAVAILABLE)."""
        mine = await self._of(owner, server, task_id)
        # The official agents name a configuration without a name after its task.
        names = (config_id, "") if config_id == task_id else (config_id,)
        await self._forget([record.handle for record in mine if record.config_id in names])

    async def knocked(self, handle: str, token: str, authorization: str) -> PushRecord:
        """Authenticates an agent's push before its body is read, and returns the record of its configuration. `token`
        is its `X-A2A-Notification-Token`, `authorization` its header of that name; one of them must hold the secret.
        Raises Refusal: ROUTE_UNKNOWN, or the reason why the owner may not receive it any more."""
        record = await self._record(handle) if _HANDLE.fullmatch(handle) else None
        if record is None or not _proves(record.secret, token, authorization):
            raise Refusal(Reason.ROUTE_UNKNOWN)  # so that guesses disclose nothing
        if (reason := self.outbox.objection("push", record.behalf)) is not None:
            raise Refusal(reason)
        return record

    async def pushed(self, record: PushRecord, body: bytes) -> None:
        """Stores an agent's push for delivery. After it returns, a crash does not lose the push. Raises Refusal:
        MALFORMED_CALL, and what `Outbox.put` raises."""
        event = await self.shows(record.owner, record.server, _event(body))
        task_id = _task_in(event)
        if not task_id or task_id != (record.task_id or await self._bound(record, task_id)):
            raise Refusal(Reason.MALFORMED_CALL, "this address is for another task")
        await self._deliver(record, event)

    async def tell(
        self, behalf: OnBehalfOf, task_id: str, config: Mapping[str, Any], version: Version, event: dict[str, Any]
    ) -> None:
        """Stores an event of a task of the sidecar for delivery, by a configuration that the agent never received.
        Raises Refusal: see `register`, and what `Outbox.put` raises."""
        ours = await self.register(behalf, task_id, config, version)
        if (record := await self._record(ours.handle)) is not None:
            await self._deliver(record, event)

    async def _deliver(self, record: PushRecord, event: dict[str, Any]) -> None:
        said = _said(event, record.version)
        if said is None:
            return
        headers = [("Content-Type", _CONTENT_TYPES[record.version])]
        if record.token:
            headers.append(("X-A2A-Notification-Token", record.token))
        if record.scheme and record.credentials:
            headers.append(("Authorization", f"{record.scheme} {record.credentials}"))
        await self.outbox.put("push", record.handle, record.behalf, record.url, tuple(headers), said)

    async def _bound(self, record: PushRecord, task_id: str) -> str:
        """Binds a configuration inside a send to the first task pushed to it, also with concurrent pushes, but never to
        a task of another owner."""
        if await self.is_anothers(record.owner, record.server, task_id):
            return ""
        bound = await self._changed(record.handle, task_id=task_id, only_if_unbound=True)
        return "" if bound is None else bound.task_id

    async def _changed(self, handle: str, *, only_if_unbound: bool = False, **facts: Any) -> PushRecord | None:
        """Changes a configuration, unless it is bound to a task and must not be. Returns it as it is then, None if
        there is none. Raises RecordStoreOut."""
        for _ in range(CHANGED_TIMES):
            record = await self._record(handle)
            if record is None or (only_if_unbound and record.task_id):
                return record
            changed = record._replace(revision=record.revision + 1, **facts)
            if await self.store.replace(changed):
                return changed
        raise RecordStoreOut("a push configuration is changed by too many calls at once")

    async def _of(self, owner: str, server: str, task_id: str) -> list[PushRecord]:
        """Returns the unexpired configurations of one task."""
        mine, _ = await self.store.page(owner, RecordPage((server,), limit=BOUNDS.per_owner))
        now_s = self.clock()
        return [one for one in mine if (one.owner, one.task_id) == (owner, task_id) and one.expires_at > now_s]

    async def _record(self, handle: str) -> PushRecord | None:
        """Returns an unexpired configuration; None for one that another key sealed."""
        try:
            record = await self.store.get(handle)
        except UnreadableRecord as unreadable:
            log.warning("%s: do all replicas have the same key for callbacks?", unreadable)
            return None
        return record if record is not None and record.expires_at > self.clock() else None

    async def _forget(self, handles: list[str]) -> None:
        if handles:
            await self.store.remove(handles)
        for handle in handles:
            await self.outbox.drop("push", handle)


def _named_last(record: PushRecord) -> tuple[float, str]:
    return record.named_at, record.handle


@dataclass(slots=True)
class PushRewriter:
    """The push configuration that an operation may contain. `handle` identifies the rewritten one, "" for none."""

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
        goes_on = params.get("message", {}).get("taskId")
        ours = await self._registered(self.intent.tasks[0] if goes_on else "", config)
        return {**params, "configuration": {**params["configuration"], "taskPushNotificationConfig": ours}}

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
        if task := _task_in(result):
            named = result if self.intent.operation is PUSH_SET else push_in(self.intent.params)
            await self.pushes.accepted(self.handle, task, str(named.get("id", "")))
            self.handle = ""

    async def undo(self) -> None:
        """Drops the configuration, unless the agent's answer settled it."""
        if self.handle:
            handle, self.handle = self.handle, ""
            with suppress(Refusal):  # it expires anyway
                await self.pushes.abandon(handle)

    async def shown(self, result: dict[str, Any]) -> dict[str, Any]:
        """Returns a result with configurations as their owner wrote them, and forgets one that the agent deleted.
        Raises Refusal: RESPONSE_REFUSED, TASK_UNKNOWN, STORE_UNAVAILABLE."""
        operation, call = self.intent.operation, self.intent.call
        owner = self.caller.binding
        if operation in (PUSH_SET, PUSH_GET):
            original = await self.pushes.original(owner, call.upstream, result)
            if original is None and self.intent.operation is PUSH_SET:
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


def _check_headers(token: str, scheme: str, credentials: str) -> None:
    for name, value in (("token", token), ("authentication.credentials", credentials)):
        if value and (len(value) > MAX_SECRET_CHARS or not _VALUE.fullmatch(value)):
            raise jsonrpc.malformed(f"{name} is not one line of printable ASCII", jsonrpc.INVALID_PARAMS)
    if scheme and not _SCHEME.fullmatch(scheme):
        raise jsonrpc.malformed("authentication.scheme is not an HTTP authentication scheme", jsonrpc.INVALID_PARAMS)


def _proves(secret: str, token: str, authorization: str) -> bool:
    """Reports whether a push holds the secret. Agents of 0.3 send only the token, those of 1.0 both."""
    scheme, _, credentials = authorization.partition(" ")
    shown = credentials.strip() if scheme.lower() == "bearer" else ""
    return any(hmac.compare_digest(secret.encode(), each.encode("utf-8", "replace")) for each in (token, shown) if each)


def _event(body: bytes) -> dict[str, Any]:
    """Returns a push as a canonical `StreamResponse`: 1.0 pushes these, 0.3 pushes a task."""
    given = jsonrpc.parse_json(body)
    try:
        if isinstance(given, dict) and any(
            member in given for member in ("status_update", "artifact_update", *_MEMBERS)
        ):
            return V10.read("StreamResponse", given, defaults=True)
        return JSON_FORM.read_result(STREAM, given)
    except UnreadableMessage as error:
        raise Refusal(Reason.MALFORMED_CALL, f"this is not a push notification of A2A: {error}") from None


def _task_in(result: Mapping[str, Any]) -> str:
    """Returns the task of an answer or an event; "" for none."""
    for member in _MEMBERS:
        if member in result:
            return str(result[member].get("id" if member == "task" else "taskId", ""))
    return str(result.get("taskId", ""))


def _said(event: Mapping[str, Any], version: Version) -> bytes | None:
    """Returns the body for the receiver. 0.3 receives a task with all known data: for a status update a task with that
    status; for an artifact update nothing, because a task requires a status."""
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
        return orjson.dumps(JSON_FORM.write_result(GET, task))
    except UnreadableMessage as error:
        raise Refusal(Reason.MALFORMED_CALL, f"A2A 0.3 cannot say this: {error}") from None
