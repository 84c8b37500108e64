"""Rates and quotas, in units that every counter store supports."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from sidecar.settings.validation_errors import Finding

MAX_PER_SECOND = 10_000  # above it, rounding to whole microseconds is off by more than 1 %
MAX_REFILL_S = 86_400  # a burst that takes longer to refill is a quota; also keeps Lua's numbers exact

PerSecond = Annotated[float, Field(gt=0, le=MAX_PER_SECOND, allow_inf_nan=False)]
Quota = Annotated[int, Field(ge=0, le=1_000_000_000)]
"""Calls per day; 0 means unlimited, as in the seed."""


def interval_us(per_second: float) -> int:
    """The time between two calls in whole microseconds, rounded up so that the rate is never exceeded."""
    return math.ceil(1_000_000 / per_second)


def burst_of(per_second: float, burst: int | None) -> int:
    """The burst; by default one second's worth."""
    return burst or max(1, math.ceil(per_second))


def rate_faults(per_second: float | None, burst: int | None) -> Iterator[Finding]:
    if per_second is None:
        if burst is not None:
            yield Finding("a burst needs requests_per_second", "Y102", at=("burst",), on_key=True)
    elif burst_of(per_second, burst) * interval_us(per_second) > MAX_REFILL_S * 1_000_000:
        yield Finding("this burst would take more than a day to come back", hint="use daily_quota")
