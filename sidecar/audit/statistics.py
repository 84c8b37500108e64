"""Counts and times the requests in an audit log, in bounded memory: names beyond MAX_NAMES are counted together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import exp, log
from typing import Any, Final

MAX_NAMES: Final = 10_000
OTHERS: Final = "(others)"
_STEP: Final = log(1.02)  # durations are counted in classes of two per cent
_PERCENTILES: Final = (50, 90, 99, 99.9)
# By what records are counted, and the field that says it; all but `event` only where a request ends.
_FIELDS: Final = {"principal": "agent_id"} | {
    name: name for name in ["event", "status", "reason", "upstream", "object"]
}


class Statistics:
    """Counts records by event, and ended requests by status, reason, upstream, principal and object."""

    def __init__(self) -> None:
        self.by: dict[str, Counter[str]] = {name: Counter() for name in _FIELDS}
        self._records, self._first, self._last = 0, "", ""
        self._classes: Counter[int] = Counter()
        self._max_ms = 0.0

    def add(self, record: Mapping[str, Any]) -> None:
        timestamp, ended = str(record.get("timestamp")), record.get("event") in ("outcome", "refusal")
        self._records += 1
        self._first, self._last = min(self._first or timestamp, timestamp), max(self._last, timestamp)
        for name, field in _FIELDS.items():
            if (value := record.get(field)) is not None and (ended or name == "event"):
                counts, word = self.by[name], str(value)
                counts[word if word in counts or len(counts) < MAX_NAMES else OTHERS] += 1
        ms = record.get("duration_ms")
        if ended and isinstance(ms, int | float) and not isinstance(ms, bool) and 0 <= ms < 1e12:
            self._classes[int(log(max(ms, 0.001) * 1000) / _STEP)] += 1
            self._max_ms = max(self._max_ms, ms)

    def as_data(self) -> dict[str, Any]:
        percentiles = {f"p{percent:g}": round(self._percentile_ms(percent), 3) for percent in _PERCENTILES}
        return {
            "records": self._records,
            "first": self._first or None,
            "last": self._last or None,
            **{f"by_{name}": dict(counts.most_common()) for name, counts in self.by.items()},
            "duration_ms": {**percentiles, "max": self._max_ms},
        }

    def _percentile_ms(self, percent: float) -> float:
        left = self._classes.total() * percent / 100
        for each in sorted(self._classes):
            left -= self._classes[each]
            if left <= 1e-9:
                return min(exp((each + 1) * _STEP) / 1000, self._max_ms)
        return self._max_ms
