"""Runs a Lua script on one key that replicas share.

One key of the store of limits (`limits/redis_store.py`), worked on by one script, each verb in one step. What a single
sidecar keeps in a file is `sqlite_file.py`'s.
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
"""What a script answers that works on one key of all replicas. Raises ConnectionError where it is not heard in time."""


log = logging.getLogger("sidecar.store")


def script_text(name: str) -> str:
    """The Lua source of one script of `storage/scripts/`."""
    return (SCRIPTS / f"{name}.lua").read_text(encoding="utf-8")


class RedisScript:
    """The key, and the Lua file whose verbs work on it. Where nobody answers, `out` is raised, and `up` is False."""

    def __init__(self, run: Run, key: str, script: str, out: type[Exception]) -> None:
        self.up = True
        self._run = run
        self._key = key
        self._script = script
        self._out = out
        self._outage = Outage(log, key)

    async def ask(self, *words: object) -> Any:
        """What the script answers: a verb and its arguments."""
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
        """Take away what is over, some at a time; how many they were."""
        swept = 0
        while some := await self.ask("sweep", now_s, SWEPT_AT_ONCE):
            swept += some
        return swept
