"""Stores push configurations in Redis, shared by replicas.

An agent pushes to one address, and the load balancer may send the push to any replica, so push configurations are in
the store that replicas share: one key (`storage/redis_script.py`) and one script that works on it (`pushes.lua`).
Deliveries that wait stay in the file of the replica that accepted them.

A configuration holds the credentials with which the sidecar authenticates to the caller's receiver. It is sealed
(AES-256-GCM) under a key that replicas share and the store never sees, and bound to its handle; the fields that the
store itself reads are stored beside it in the clear.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sidecar.storage.caller_codec import caller_from, plain_caller
from sidecar.storage.redis_script import RedisScript, Run, script_text
from sidecar.storage.webhooks.delivery import Delivery, PendingDelivery
from sidecar.storage.webhooks.push_config import PushRecord
from sidecar.storage.webhooks.store import DeliveryBounds, DeliveryStore, DeliveryStoreOut

KEY: Final = "a2a-pushes"
SCRIPT: Final = script_text("pushes")
PURPOSE: Final = b"sidecar/push/1"
_NONCE_BYTES: Final = 12

log = logging.getLogger("sidecar.tasks.webhooks")


class RedisPushStore:
    """Stores push configurations in Redis or Valkey, and deliveries in `here`. `key` is called on first use."""

    def __init__(self, run: Run, here: DeliveryStore, key: Callable[[], bytes]) -> None:
        self._shared = RedisScript(run, KEY, SCRIPT, DeliveryStoreOut)
        self._here = here
        self._key = key
        self._seal: AESGCM | None = None

    @property
    def up(self) -> bool:
        return self._shared.up and self._here.up

    async def put(self, callback: Delivery, due_at: float, bounds: DeliveryBounds) -> bool:
        return await self._here.put(callback, due_at, bounds)

    async def waiting(self) -> Sequence[PendingDelivery]:
        """Returns the deliveries that wait at this replica."""
        return await self._here.waiting()

    async def get(self, id_: str) -> Delivery | None:
        return await self._here.get(id_)

    async def again(self, id_: str, attempts: int, due_at: float) -> None:
        await self._here.again(id_, attempts, due_at)

    async def ended(self, ids: Sequence[str]) -> None:
        await self._here.ended(ids)

    async def keep_push(self, record: PushRecord, per_owner: int, total: int) -> bool:
        about = record[:5]
        times = (record.created_at, record.expires_at)
        return bool(await self._shared.ask("keep", *about, *times, self._sealed(record), per_owner, total))

    async def push(self, handle: str, now_s: float) -> PushRecord | None:
        found = await self._shared.ask("push", handle, now_s)
        return None if found is None else self._opened(found)

    async def pushes_of(self, owner: str, server: str, task_id: str, now_s: float) -> Sequence[PushRecord]:
        found = await self._shared.ask("of", owner, server, task_id, now_s)
        return [record for each in found if (record := self._opened(each)) is not None]

    async def bind_push(self, handle: str, task_id: str) -> str:
        bound: bytes = await self._shared.ask("bind", handle, task_id)
        return bound.decode()

    async def name_push(self, handle: str, task_id: str, config_id: str) -> Sequence[str]:
        return [older.decode() for older in await self._shared.ask("name", handle, task_id, config_id)]

    async def forget_pushes(self, handles: Sequence[str]) -> None:
        if handles:
            await self._shared.ask("forget", *handles)

    async def sweep(self, now_s: float) -> int:
        return await self._shared.sweep(now_s)

    async def close(self) -> None:
        """Closes the local store only: the connection belongs to the limits."""
        await self._here.close()

    # --- sealing ------------------------------------------------------------------------------------------------------

    def _sealed(self, record: PushRecord) -> str:
        said = [*record[:3], *record[5:-1], plain_caller(record.caller)]
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return b64encode(nonce + self._aead().encrypt(nonce, orjson.dumps(said), record.handle.encode())).decode()

    def _opened(self, found: Sequence[bytes]) -> PushRecord | None:
        """Opens a stored record. Returns None if it was sealed with another key, by a newer version, or not by a
        sidecar."""
        handle, task_id, config_id, body = found
        try:
            raw = b64decode(body, validate=True)
            said: list[Any] = orjson.loads(self._aead().decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], handle))
            names = (task_id.decode(), config_id.decode())
            record = PushRecord._make((*said[:3], *names, *said[3:-1], caller_from(said[-1])))
        except (InvalidTag, ValueError, TypeError, LookupError):
            log.warning("a push configuration cannot be read: do all replicas have the same key for callbacks?")
            return None
        return record

    def _aead(self) -> AESGCM:
        if self._seal is None:
            self._seal = AESGCM(hmac.digest(self._key(), PURPOSE, hashlib.sha256))
        return self._seal
