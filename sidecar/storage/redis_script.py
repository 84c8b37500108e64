"""Runs a Lua script on one key that replicas share.

The key lies in the store that limits use (`limits/redis_store.py`). One script works on it, and each verb is one atomic
step. A single sidecar uses a file instead (`sqlite_file.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from sidecar.observability.outage_log import Outage

SCRIPTS: Final = Path(__file__).with_name("scripts")
SWEPT_AT_ONCE: Final = 1000
Run = Callable[[str, str, Sequence[str]], Awaitable[Any]]
"""Runs a script on one key that replicas share, and returns its reply. Raises ConnectionError if none comes in time."""


log = logging.getLogger("sidecar.store")


def script_text(name: str) -> str:
    """Returns the Lua source of one script in `storage/scripts/`."""
    return (SCRIPTS / f"{name}.lua").read_text(encoding="utf-8")


class RedisScript:
    """A key and the Lua script that works on it. If the store does not answer, raises `out` and sets `up` to False."""

    def __init__(self, run: Run, key: str, script: str, out: type[Exception]) -> None:
        self.up = True
        self._run = run
        self._key = key
        self._script = script
        self._out = out
        self._outage = Outage(log, key)

    async def ask(self, *words: object) -> Any:
        """Runs the script with a verb and its arguments, and returns its reply."""
        try:
            answer = await self._run(self._script, self._key, [str(word) for word in words])
        except ConnectionError as error:
            self.up = False
            self._outage.fell(error)
            raise self._out(str(error)) from None
        self.up = True
        self._outage.rose()
        return answer

    async def sweep(self, now_s: float) -> int:
        """Deletes expired entries in batches, and returns how many."""
        swept = 0
        while some := await self.ask("sweep", now_s, SWEPT_AT_ONCE):
            swept += some
        return swept
