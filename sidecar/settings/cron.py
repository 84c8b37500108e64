"""Computes when cron schedules are due.

Schedules are five cron fields, or a nickname such as `@daily`, in a time zone. cronsim parses them. Changes of the UTC
offset (daylight saving time) are handled as in Debian's cron:

    fixed times      neither minute nor hour begins with `*`. Times that a change skips are due at the first moment
                     after it; times that it repeats are due once, the first time
    all others       follow elapsed time, `*/30` and `0 */2` alike: a skipped hour is never due, and a repeated hour
                     is due twice
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import cached_property
from itertools import islice, takewhile
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

WORDS: Final[Mapping[str, str]] = {
    "@hourly": "0 * * * *",
    **dict.fromkeys(("@daily", "@midnight"), "0 0 * * *"),
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    **dict.fromkeys(("@yearly", "@annually"), "0 0 1 1 *"),
}
FIELDS: Final[Mapping[str, str]] = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31, L for the last one, or LW for the last one from Monday to Friday",
    "month": "1 to 12, or JAN to DEC",
    "day-of-week": "0 to 7, where both ends are Sunday, or SUN to SAT; 5#2 is the second Friday, 5L the last",
}
MINUTE_S: Final = 60
_SOME_DAY: Final = datetime(2024, 1, 1, tzinfo=UTC)
_MAX_CHARS: Final = 256
_UNREAD: Final = (CronSimError, AssertionError, TypeError, ValueError)  # the last three for input it does not handle


class CronError(Exception):
    """The cron expression is invalid. `hint` says what to write."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class CronSchedule:
    """The moments of a cron expression in a time zone."""

    expression: str
    zone: str = "UTC"

    def next_after(self, moment_s: float) -> float | None:
        """The first moment after this one, both in seconds since the epoch; None if there is none within fifty
        years."""
        return next(self.after(moment_s), None)

    def after(self, moment_s: float) -> Iterator[float]:
        """The moments after this one, in order. They end if there is none within fifty years."""
        last_s = moment_s
        minute, hour, *_ = self._fields.split()
        due: Iterator[float] = self._passing(int(moment_s) + 1)
        if not minute.startswith("*") and not hour.startswith("*"):
            fixed = CronSim(self._fields, datetime.fromtimestamp(moment_s, self._zone))
            due = (moment.timestamp() for moment in fixed)
        for due_s in due:
            # All times that a clock change skips map to one moment, and in the second half of a repeated hour cronsim
            # goes back to the first: moments that were due already are dropped.
            if due_s > last_s:
                last_s = due_s
                yield due_s

    def _passing(self, begin_s: int) -> Iterator[float]:
        """Moments of all other schedules from this second on, one period of constant UTC offset after the other.
        cronsim runs without offset changes, because with them it drops the moments after a change of half an hour."""
        while True:
            offset_s, last_s = self._offset_s(begin_s), begin_s
            for due in CronSim(self._fields, datetime.fromtimestamp(begin_s + offset_s - 1, UTC)):
                due_s = int(due.timestamp()) - offset_s
                if self._offset_s(due_s) != offset_s:
                    begin_s = self._change_between(last_s, due_s)
                    break
                last_s = due_s
                yield float(due_s)
            else:
                return

    def _change_between(self, before_s: int, after_s: int) -> int:
        """The first second whose offset differs from that of `before_s`."""
        offset_s = self._offset_s(before_s)
        while after_s - before_s > 1:
            middle_s = (before_s + after_s) // 2
            same = self._offset_s(middle_s) == offset_s
            before_s, after_s = (middle_s, after_s) if same else (before_s, middle_s)
        return after_s

    def _offset_s(self, moment_s: int) -> int:
        offset = datetime.fromtimestamp(moment_s, self._zone).utcoffset()
        return int(offset.total_seconds()) if offset else 0

    def last_within(self, after_s: float, until_s: float) -> float | None:
        """The last moment after `after_s` and not after `until_s`; None if there is none."""
        if after_s >= until_s or not self._is_due_within(after_s, until_s):
            return None
        # Binary search for the last start from which a moment is still due before the end.
        low, high = after_s, until_s
        while high - low > MINUTE_S / 2:
            middle = (low + high) / 2
            low, high = (middle, high) if self._is_due_within(middle, until_s) else (low, middle)
        return self.next_after(low)

    def count_within(self, after_s: float, until_s: float, most: int) -> int:
        """The number of moments after `after_s` and not after `until_s`, counted up to `most`."""
        return sum(1 for _ in takewhile(lambda due_s: due_s <= until_s, islice(self.after(after_s), most)))

    def _is_due_within(self, after_s: float, until_s: float) -> bool:
        due_s = self.next_after(after_s)
        return due_s is not None and due_s <= until_s

    @cached_property
    def _fields(self) -> str:
        return WORDS.get(self.expression, self.expression)

    @cached_property
    def _zone(self) -> tzinfo:
        return UTC if self.zone == "UTC" else ZoneInfo(self.zone)


def calendar_from(expression: str, zone: str = "UTC") -> CronSchedule:
    """Parses an operator's cron expression. `zone` must exist. Raises CronError."""
    fields = _fields_of(expression)
    try:
        due = next(CronSim(" ".join(fields), _SOME_DAY), None)
    except _UNREAD as error:
        raise _misfit(fields) from error
    if due is None:
        raise CronError("there is no such day within fifty years", "see day of month, month and day of week")
    return CronSchedule(expression, zone)


def _fields_of(expression: str) -> list[str]:
    if expression.startswith("@"):
        if expression not in WORDS:
            raise CronError(f"{expression} is not a nickname of cron", f"known here: {', '.join(WORDS)}")
        return WORDS[expression].split()
    fields = expression.split()
    if len(expression) > _MAX_CHARS or not expression.isascii():
        raise CronError("this is not a cron expression", 'write, for example, "30 2 * * *": every day at half past two')
    if len(fields) == 6:
        hint = "minute, hour, day of month, month, day of week; there is no field for seconds"
        raise CronError("it has six fields, and cron has five", hint)
    if len(fields) != len(FIELDS):
        hint = 'minute, hour, day of month, month, day of week, such as "30 2 * * *", or a name such as @hourly'
        raise CronError(f"it has {len(fields)} field{'s' * (len(fields) != 1)}, and cron has five", hint)
    return fields


def _misfit(fields: list[str]) -> CronError:
    """The error for the first field that is invalid on its own, or for their combination."""
    for place, (name, hint) in enumerate(FIELDS.items()):
        try:
            CronSim(" ".join([*["*"] * place, fields[place], *["*"] * (len(fields) - place - 1)]), _SOME_DAY)
        except _UNREAD:
            return CronError(f"{fields[place]} is not a valid {name.replace('-', ' ')}", hint)
    return CronError("there is no such day", "none of these months has so many days")
