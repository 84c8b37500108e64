"""A process with an outbox, to be killed: `python -m tests.unit.tasks.webhooks.killed STATE FILE URL`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from sidecar.storage import SqliteFile
from sidecar.storage.deliveries import DeliveryStore
from tests.unit.tasks.webhooks.receiving import Seen, for_, outbox


async def main(state: str, path: Path, url: str) -> None:
    one = outbox(DeliveryStore(SqliteFile(path)), Seen(), state, first_retry_s=60, max_retry_s=60)
    await one.put("push", "ref", for_("alice"), url, (("Content-Type", "application/json"),), b'{"n":1}')
    print("put", flush=True)
    await (asyncio.sleep(600) if state == "put" else one.run())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
