"""Counts and times the requests in an audit log, in bounded memory: names beyond MAX_NAMES are counted together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp, log
from typing import Any, Final

MAX_NAMES: Final = 10_000
OTHERS: Final = "(others)"
_STEP: Final = log(1.02)
_PERCENTILES: Final = (50, 90, 99, 99.9)


class Durations:
    """A histogram of milliseconds, with percentiles accurate to two per cent."""

    def __init__(self) -> None:
        self._classes: Counter[int] = Counter()
        self.max_ms = 0.0

    def add(self, ms: float) -> None:
        self._classes[int(log(max(ms, 0.001) * 1000) / _STEP)] += 1
        self.max_ms = max(self.max_ms, ms)

    def percentile(self, percent: float) -> float:
        """The given percentile in milliseconds; 0 if there are no durations."""
        left = self._classes.total() * percent / 100
        for each in sorted(self._classes):
            left -= self._classes[each]
            if left <= 1e-9:
                return min(exp((each + 1) * _STEP) / 1000, self.max_ms)
        return self.max_ms


@dataclass(slots=True)
class Statistics:
    """Counts records by event, and ended requests by status, reason, upstream, principal and object."""

    records: int = 0
    first: str = ""
    last: str = ""
    by: dict[str, Counter[str]] = field(
        default_factory=lambda: {
            name: Counter() for name in ("event", "status", "reason", "upstream", "principal", "object")
        }
    )
    durations: Durations = field(default_factory=Durations)

    def add(self, record: Mapping[str, Any]) -> None:
        timestamp = str(record.get("timestamp"))
        self.records += 1
        self.first = min(self.first or timestamp, timestamp)
        self.last = max(self.last, timestamp)
        event = record.get("event")
        self._count("event", event)
        if event not in ("outcome", "refusal"):
            return
        for name in ("status", "reason", "upstream", "object"):
            self._count(name, record.get(name))
        self._count("principal", record.get("agent_id"))
        took = record.get("duration_ms")
        if isinstance(took, int | float) and not isinstance(took, bool) and 0 <= took < 1e12:
            self.durations.add(took)

    def as_data(self) -> dict[str, Any]:
        percentiles = {f"p{percent:g}": round(self.durations.percentile(percent), 3) for percent in _PERCENTILES}
        return {
            "records": self.records,
            "first": self.first or None,
            "last": self.last or None,
            **{f"by_{name}": dict(counts.most_common()) for name, counts in self.by.items()},
            "duration_ms": {**percentiles, "max": self.durations.max_ms},
        }

    def _count(self, name: str, value: object) -> None:
        if value is None:
            return
        counts, word = self.by[name], str(value)
        counts[word if word in counts or len(counts) < MAX_NAMES else OTHERS] += 1
