"""Orders changes of the kill switch, so that replicas agree on the newest.

Clocks are not used, because replicas' clocks differ. The number of a change is one more than the highest that its
replica knew (a Lamport counter). Of two changes with the same number the safer one takes effect: disabled before
enabled, then the one that lasts longer.
"""

from __future__ import annotations

from typing import NamedTuple

import orjson

from sidecar.gateway.kill_switch.entries import SwitchEntry, is_object, is_reason
from sidecar.settings.field_types import is_caller

MAX_NUMBER = 10**15 - 1
FORGOTTEN_AFTER_S = 30 * 86_400.0
"""How long a change is stored after its effect has ended, for replicas that were disconnected."""
BY_HAND = "switch"

_FOREVER = 99_999_999_999_999


class SwitchVersion(NamedTuple):
    """A change of a principal, tool or server at `at` (seconds since the epoch), by an operator."""

    principal: str
    disabled: bool
    number: int
    reason: str
    until: float | None
    by: str
    at: float

    @property
    def rank(self) -> str:
        """Digits of fixed length: the greater text is the newer change, here and in kill_switch.lua."""
        until_s = _FOREVER if self.until is None else min(int(self.until), _FOREVER)
        return f"{self.number:016d}{self.disabled:d}{until_s:014d}"

    def newer_than(self, other: SwitchVersion) -> bool:
        """Reports whether this is the newer of two changes of one principal."""
        return self is not other and self != other and self.rank > other.rank

    @property
    def entry(self) -> SwitchEntry:
        """Returns the entry that the change makes."""
        return SwitchEntry(self.principal, BY_HAND, self.reason, self.until, self.by, self.at)

    def forgotten(self, now_s: float) -> bool:
        """Reports whether the change has no effect any more, also for replicas that may reconnect."""
        ended = self.at if not self.disabled else self.until
        return ended is not None and now_s - max(ended, self.at) > FORGOTTEN_AFTER_S


def encode(flip: SwitchVersion) -> str:
    """Returns the stored form of the change: its rank, then its content."""
    return flip.rank + orjson.dumps(flip._asdict()).decode()


def decode(raw: str) -> SwitchVersion:
    """Reads the output of `encode`. Raises ValueError for any other text."""
    _, brace, rest = raw.partition("{")
    return flip_from(orjson.loads(brace + rest))


def flip_from(plain: object) -> SwitchVersion:
    """Reads a change, including one with members of a newer version. Raises ValueError: an unreadable change must not
    mean "enabled"."""
    if not isinstance(plain, dict) or not plain.keys() >= {*SwitchVersion._fields}:
        raise ValueError("an entry with other fields")
    flip = SwitchVersion(**{name: plain[name] for name in SwitchVersion._fields})
    named = _typed(flip) and (is_caller(flip.principal) or is_object(flip.principal))
    if not named or not is_reason(flip.reason) or not is_reason(flip.by):
        raise ValueError("an entry that says nothing valid")
    return flip


def _typed(flip: SwitchVersion) -> bool:
    numbered = type(flip.number) is int and 0 < flip.number <= MAX_NUMBER and type(flip.disabled) is bool
    times = (flip.at,) if flip.until is None else (flip.at, flip.until)
    timed = all(type(time) in (int, float) and 0 <= time < _FOREVER for time in times)
    return numbered and timed and all(type(text) is str for text in (flip.principal, flip.reason, flip.by))
