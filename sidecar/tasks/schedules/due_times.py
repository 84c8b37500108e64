"""Computes which due times of a schedule are owed.

Of all times at which it was due since the last that is settled, the last alone is made up for, and that only if it is
not too long ago; the others were missed. A clock that is set back owes nothing twice. One that was more than three
hours ahead was wrong, as cron sees it: from then on the new time holds.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sidecar.settings.cron import CronSchedule

WRONG_S: Final = 3 * 3600.0  # cron(8): a change of less is no correction
MOST_COUNTED: Final = 1_000


class OwedTime(NamedTuple):
    """The last time at which it was due, whether a run for it may still begin, and how many times before were missed,
    counted up to a bound."""

    due_s: float
    in_time: bool
    missed: int


def owed(calendar: CronSchedule, settled_s: float, now_s: float, late_s: float) -> OwedTime | None:
    """What is due and not settled: `settled_s` is the last time that is. None where there is nothing."""
    due_s = calendar.last_within(settled_s, now_s)
    if due_s is None:
        return None
    missed = calendar.count_within(settled_s, due_s, MOST_COUNTED + 1) - 1
    return OwedTime(due_s, now_s - due_s <= late_s, missed)


def was_wrong(settled_s: float, now_s: float) -> bool:
    """Whether the clock by which it was settled was so far ahead that the one of now holds."""
    return settled_s - now_s > WRONG_S
