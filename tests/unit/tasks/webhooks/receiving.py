"""An outbox with a real guard, real sockets and a real store, and what a receiver of callbacks does with them."""

import asyncio
import base64
import hmac
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from sidecar.errors import Reason, Refusal
from sidecar.http.client import GuardedClient, parse_origin
from sidecar.settings.callbacks import CallbackSettings
from sidecar.storage import SqliteFile
from sidecar.storage.deliveries import DeliveryOutcome, DeliveryStore, Kind, OnBehalfOf
from sidecar.tasks.webhooks.outbox import Outbox
from sidecar.tasks.webhooks.signature import CallbackKey
from sidecar.vocabulary import Caller, Credential, Principal
from tests.flow.world import PATIENCE_S
from tests.unit.http.client.hostile import Conversation, Script

KEY = CallbackKey(b"k" * 32)
HERE: dict[str, Any] = {
    "allow": ["*:*"], "schemes": ["http"], "networks": ["127.0.0.0/8"], "timeout_s": 2.0,
}  # fmt: skip


@dataclass
class Seen:
    """What an outbox tells: to its listener and to the operator."""

    told: list[DeliveryOutcome] = field(default_factory=list)
    attempts: list[tuple[str, str]] = field(default_factory=list)
    waiting: int = 0
    disabled: set[str] = field(default_factory=set)
    is_recorded: bool = True
    witnessed: list[dict[str, object]] = field(default_factory=list)

    def objection(self, kind: Kind, behalf: OnBehalfOf) -> Reason | None:
        return Reason.PRINCIPAL_DISABLED if behalf.caller.last.name in self.disabled else None

    async def witness(self, what: str, by: str, **facts: object) -> None:
        if not self.is_recorded:
            raise Refusal(Reason.AUDIT_UNAVAILABLE)
        self.witnessed.append({"what": what, **facts})

    def callback_attempted(self, kind: str, result: str, duration_s: float) -> None:
        assert duration_s >= 0.0
        self.attempts.append((kind, result))

    def callbacks_wait(self, count: int) -> None:
        self.waiting = count

    def results(self, id_: str) -> list[str]:
        return [each.result for each in self.told if each.id == id_]

    async def until(self, number: int) -> None:
        """Until so many attempts were told."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.told) < number:
                await asyncio.sleep(0.002)


def for_(name: str, server: str = "planner") -> OnBehalfOf:
    """On behalf of a user of this name."""
    return OnBehalfOf(Caller((Principal(f"user:{name}", "local"),), (Credential("local"),)), server)


async def nobody(host: str, port: int) -> Sequence[str]:
    raise OSError("no names here")


def outbox(store: DeliveryStore, seen: Seen, ids: str = "msg", **rules: Any) -> Outbox:
    settings = CallbackSettings.model_validate({**HERE, **rules})
    numbers = count()
    made = Outbox(
        store=store,
        post=GuardedClient(lambda: settings, nobody).post,
        objection=seen.objection,
        witness=seen.witness,
        key=lambda: KEY,
        counts=seen,
        clock=time.time,
        chance=random.Random(1).random,
        new_id=lambda: f"{ids}_{next(numbers)}",
    )
    made.listen("push", seen.told.append)
    return made


@asynccontextmanager
async def running(store: DeliveryStore | None = None, **rules: Any) -> AsyncIterator[tuple[Outbox, Seen]]:
    seen = Seen()
    one = outbox(store or DeliveryStore(SqliteFile(None)), seen, **rules)
    task = asyncio.create_task(one.run())
    try:
        yield one, seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def in_turn(*answers: bytes) -> Script:
    """Each request gets the next answer, whatever connection it comes on; the last one again and again."""
    left = list(answers)

    async def script(conversation: Conversation) -> None:
        await conversation.request()
        await conversation.send(left.pop(0) if len(left) > 1 else left[0])
        await conversation.hung_up()

    return script


def header(request: bytes, name: str) -> str:
    """Of a request as it came, the one header of this name."""
    lines = request.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    [value] = [line.partition(": ")[2] for line in lines if line.lower().startswith(f"{name.lower()}: ")]
    return value


def verified(request: bytes, url: str, *, secret: str = "") -> bytes:
    """The body of a callback, as the documentation tells a receiver to check it. Raises AssertionError."""
    body = request.partition(b"\r\n\r\n")[2]
    key = base64.b64decode((secret or KEY.told_to(parse_origin(url))).removeprefix("whsec_"))
    signed = f"{header(request, 'webhook-id')}.{header(request, 'webhook-timestamp')}.".encode() + body
    expected = "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
    assert hmac.compare_digest(header(request, "webhook-signature"), expected)
    assert abs(time.time() - int(header(request, "webhook-timestamp"))) < 300
    return body
