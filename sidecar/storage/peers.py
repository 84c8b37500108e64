"""Exchanges policy revisions, and digests of keys, between replicas and reports differences.

A replica that sees another revision checks its own policy source at once: revisions are exchanged, never policies.
Nothing depends on the exchange; while the store is unavailable, each replica checks its source at its usual interval.
Keys that replicas must share are compared by digests, which disclose nothing about the keys.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from sidecar.storage.redis_script import Run, script_text

EVERY_S: Final = 1.0
COUNTS_S: Final = 10.0  # a replica that was silent for this long is not counted
MOST: Final = 1_000
KEY: Final = "replicas"
SCRIPT: Final = script_text("peers")
VERSION: Final = 1

log = logging.getLogger("sidecar.storage.peers")


class ServedRevision(NamedTuple):
    """The state that one replica serves: the policy's revision, and the version from its source (0 if none)."""

    revision: str
    version: int


class RevisionSkew(NamedTuple):
    """The number of other replicas that serve the same revision, and of those that serve another."""

    same: int
    other: int


class PeerEntry(NamedTuple):
    """The data from another replica: the state that it serves, and the digests of its keys by setting."""

    served: ServedRevision
    keys: Mapping[str, str]


@dataclass(slots=True)
class Peers:
    """Exchanges revisions. `news` is called when another replica appears with a revision, or changes to one, that this
    one does not serve. `keys` returns the digests of this replica's keys by setting. `skew` is None before the first
    exchange, while the store is unavailable, and if it is not shared. `different_keys` are the settings whose keys
    differ from those of another replica."""

    me: str
    run_script: Run
    serving: Callable[[], ServedRevision]
    news: Callable[[], None]
    keys: Callable[[], Mapping[str, str]] = dict
    skew: RevisionSkew | None = None
    different_keys: tuple[str, ...] = ()
    _heard: dict[str, ServedRevision] = field(default_factory=dict)

    @property
    def revisions(self) -> Mapping[str, int]:
        """How many of the other replicas serve each revision; empty while `skew` is None."""
        return {} if self.skew is None else Counter(one.revision for one in self._heard.values())

    async def run(self) -> None:
        """Exchanges every second, until cancelled."""
        while True:
            await self.sync()
            await asyncio.sleep(EVERY_S)

    async def sync(self) -> None:
        """Exchanges once. An outage of the store raises nothing."""
        mine, keys = self.serving(), self.keys()
        said = orjson.dumps({"v": VERSION, **mine._asdict(), "keys": keys}).decode()
        try:
            told = await self.run_script(SCRIPT, KEY, [self.me, said, str(int(COUNTS_S * 1000)), str(MOST)])
        except ConnectionError:
            self.skew = None
            return
        if told is None:  # the store is not shared
            return
        entries = _understood(told if isinstance(told, list) else [])
        self._compare(keys, entries.values())
        now = {name: one.served for name, one in entries.items()}
        same = sum(one.revision == mine.revision for one in now.values())
        self.skew = RevisionSkew(same, len(now) - same)
        news = [name for name, one in now.items() if one != mine and self._heard.get(name) != one]
        self._heard = now
        if news:
            log.info("another replica serves another policy", extra={"replicas": len(news)})
            self.news()

    def _compare(self, mine: Mapping[str, str], others: Iterable[PeerEntry]) -> None:
        differing = {name for one in others for name, digest in one.keys.items() if mine.get(name, digest) != digest}
        found = tuple(sorted(differing))
        if found and found != self.different_keys:
            log.error("replicas on this store have different keys", extra={"settings": ", ".join(found)})
        self.different_keys = found


def _understood(told: list[Any]) -> dict[str, PeerEntry]:
    """Parses the other replicas' entries; those that cannot be parsed are not counted."""
    found = {}
    for name, said in zip(told[::2], told[1::2], strict=False):
        with suppress(ValueError, KeyError, TypeError, AttributeError, OverflowError):
            plain = orjson.loads(said)
            if plain["v"] == VERSION:
                served = ServedRevision(str(plain["revision"]), int(plain["version"]))
                keys = {str(key): str(digest) for key, digest in dict(plain.get("keys", {})).items()}
                found[name.decode("ascii", "replace")] = PeerEntry(served, keys)
    return found
