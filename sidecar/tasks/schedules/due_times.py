"""Computes which due times of a schedule are owed.

Of all due times since the last settled one, only the latest is made up for, and only if it is not too long ago; the
others were missed. A clock that is set back owes nothing twice. If it is set back by more than three hours, the earlier
time was wrong, as in cron, and the new time holds.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sidecar.settings.cron import CronSchedule

WRONG_S: Final = 3 * 3600.0  # cron(8): a smaller change is not a correction
MOST_COUNTED: Final = 1_000


class OwedTime(NamedTuple):
    """The latest due time, whether a run for it may still begin, and how many earlier ones were missed, counted up to a
    bound."""

    due_s: float
    in_time: bool
    missed: int


def owed(calendar: CronSchedule, settled_s: float, now_s: float, late_s: float) -> OwedTime | None:
    """Returns what is due since `settled_s`, the last settled time, or None."""
    due_s = calendar.last_within(settled_s, now_s)
    if due_s is None:
        return None
    missed = calendar.count_within(settled_s, due_s, MOST_COUNTED + 1) - 1
    return OwedTime(due_s, now_s - due_s <= late_s, missed)


def was_wrong(settled_s: float, now_s: float) -> bool:
    """Whether the settled time is so far ahead of now that the clock must have been wrong."""
    return settled_s - now_s > WRONG_S
