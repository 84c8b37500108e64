"""Exchanges policy revisions between replicas and reports differences.

A replica that sees another revision checks its own policy source at once: revisions are exchanged, never policies.
Nothing depends on it; while the store is out, each replica checks its source at its usual interval.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from sidecar.storage.redis_script import Run, script_text

EVERY_S: Final = 1.0
COUNTS_S: Final = 10.0  # a replica not heard from for this long is gone
MOST: Final = 1_000
KEY: Final = "replicas"
SCRIPT: Final = script_text("peers")
VERSION: Final = 1

log = logging.getLogger("sidecar.storage.peers")


class ServedRevision(NamedTuple):
    """What one replica serves: the policy's revision, and the version its source gave it (0 if none)."""

    revision: str
    version: int


class RevisionSkew(NamedTuple):
    """How many other replicas serve the same revision, and how many serve another."""

    same: int
    other: int


@dataclass(slots=True)
class Peers:
    """Exchanges revisions. `news` is called when another replica serves something newly loaded that this one does not.
    `skew` is None while the others cannot be heard."""

    me: str
    run_script: Run
    serving: Callable[[], ServedRevision]
    news: Callable[[], None]
    skew: RevisionSkew | None = None
    _heard: dict[str, ServedRevision] = field(default_factory=dict)

    async def run(self) -> None:
        while True:
            await self.sync()
            await asyncio.sleep(EVERY_S)

    async def sync(self) -> None:
        mine = self.serving()
        said = orjson.dumps({"v": VERSION, **mine._asdict()}).decode()
        try:
            told = await self.run_script(SCRIPT, KEY, [self.me, said, str(int(COUNTS_S * 1000)), str(MOST)])
        except ConnectionError:
            self.skew = None
            return
        if told is None:  # the store is not shared
            return
        now = _understood(told if isinstance(told, list) else [])
        same = sum(one.revision == mine.revision for one in now.values())
        self.skew = RevisionSkew(same, len(now) - same)
        news = [name for name, one in now.items() if one != mine and self._heard.get(name) != one]
        self._heard = now
        if news:
            log.info("another replica serves another policy", extra={"replicas": len(news)})
            self.news()


def _understood(told: list[Any]) -> dict[str, ServedRevision]:
    """Parses the other replicas' entries; those that cannot be parsed are not counted."""
    found = {}
    for name, said in zip(told[::2], told[1::2], strict=False):
        with suppress(ValueError, KeyError, TypeError, AttributeError, OverflowError):
            plain = orjson.loads(said)
            if plain["v"] == VERSION:
                found[name.decode("ascii", "replace")] = ServedRevision(str(plain["revision"]), int(plain["version"]))
    return found
