"""A process with an outbox, which is killed in the middle: `python -m tests.unit.tasks.webhooks.killed STATE FILE
URL`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from sidecar.storage import SqliteFile
from sidecar.storage.deliveries import DeliveryOutcome, DeliveryStore
from tests.unit.tasks.webhooks.receiving import Seen, for_, outbox


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DiesWhenDelivered(DeliveryStore):
    async def ended(self, ids: Sequence[str]) -> None:
        die()


async def main(state: str, path: Path, url: str) -> None:
    store = (DiesWhenDelivered if state == "delivered" else DeliveryStore)(SqliteFile(path))
    one = outbox(store, Seen(), state, first_retry_s=0.1)
    await one.put("push", "ref", for_("alice"), url, (("Content-Type", "application/json"),), b'{"n":1}')
    if state == "put":
        die()
    if state == "waiting":
        told: list[DeliveryOutcome] = []
        one.listen("push", lambda each: told.append(each) or die())  # type: ignore[func-returns-value]
    await one.run()  # "sending": whoever is called back kills us


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
