"""Is what runs by the clock due when its operator reads that it is, also where the clock changes?"""

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings, strategies as st

from sidecar.settings.cron import WORDS, CronError, CronSchedule, calendar_from
from tests.tables import tables

TABLES = tables("settings/cron")

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"
MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86_400.0
# The days of 2026 on which clocks go forward and back: Lord Howe's by half an hour.
FORWARD = {BERLIN: (3, 29), NEW_YORK: (3, 8), LORD_HOWE: (10, 4)}
BACK = {BERLIN: (10, 25), NEW_YORK: (11, 1), LORD_HOWE: (4, 5)}


def at(zone: str, month: int, day: int, hour: int = 0, minute: int = 0, *, fold: int = 0, year: int = 2026) -> float:
    return datetime(year, month, day, hour, minute, fold=fold, tzinfo=ZoneInfo(zone)).timestamp()


def due_on(expression: str, zone: str, month: int, day: int, until: str) -> str:
    """What is due from midnight on until that time by the clock, each as the clock shows it then."""
    calendar, begin_s = calendar_from(expression, zone), at(zone, month, day)
    shown = []
    for due_s in calendar.after(begin_s - 1):
        found = datetime.fromtimestamp(due_s, ZoneInfo(zone))
        if not found.fold and (found.day != day or f"{found:%H:%M}" >= until):
            return " ".join(shown)
        shown.append(f"{found:%H:%M}" + "'" * found.fold)
    raise AssertionError("it is due for ever")


@pytest.mark.parametrize(("expression", "zone", "forward", "back"), TABLES["test_where_a_clock_changes"])  # fmt: skip
def test_where_a_clock_changes(expression: str, zone: str, forward: str, back: str) -> None:
    """A fixed time that is left out is due right after it, one that is repeated the first time alone. All others go by
    the time that passes; ' marks the second time that the clock shows it."""
    assert due_on(expression, zone, *FORWARD[zone], "04:00") == forward
    assert due_on(expression, zone, *BACK[zone], "04:00") == back


@pytest.mark.parametrize("zone", FORWARD)
def test_a_year_of_fixed_times_is_one_each_day(zone: str) -> None:
    begin_s = at(zone, 1, 1)
    for expression in ("30 2 * * *", "45 1 * * *", "0 0 * * *"):
        found = list(islice(calendar_from(expression, zone).after(begin_s - 1), 365))
        days = {datetime.fromtimestamp(due_s, ZoneInfo(zone)).date() for due_s in found}
        assert len(days) == 365, expression
        assert calendar_from(expression, zone).count_within(begin_s - 1, at(zone, 1, 1, year=2027) - 1, 999) == 365


@pytest.mark.parametrize("zone", FORWARD)
def test_half_hours_are_one_each_half_hour_that_passes(zone: str) -> None:
    for month, day in (FORWARD[zone], BACK[zone]):
        begin_s = at(zone, month, day) - DAY_S
        found = list(islice(calendar_from("*/30 * * * *", zone).after(begin_s), 4 * 48))
        assert found == [begin_s + n * HOUR_S / 2 for n in range(1, 4 * 48 + 1)]


@pytest.mark.parametrize("zone", BACK)
def test_in_the_second_half_of_a_repeated_hour_nothing_of_the_first_is_due(zone: str) -> None:
    month, day = BACK[zone]
    begin_s = at(zone, month, day)
    for expression in ("40 1,2 * * *", "*/20 * * * *", "40 */1 * * *"):
        calendar = calendar_from(expression, zone)
        for minute in range(0, 240, 7):
            now_s = begin_s + minute * MINUTE_S
            assert (calendar.next_after(now_s) or 0) > now_s, expression


def test_words_are_what_cron_makes_of_them() -> None:
    begin_s = datetime(2026, 1, 1, 0, 30, tzinfo=UTC).timestamp()
    due = {word: datetime.fromtimestamp(calendar_from(word).next_after(begin_s), UTC) for word in WORDS}
    years = dict.fromkeys(["@yearly", "@annually"], "01-01 00:00")
    days = dict.fromkeys(["@daily", "@midnight"], "01-02 00:00")
    rest = {"@hourly": "01-01 01:00", "@weekly": "01-04 00:00", "@monthly": "02-01 00:00"}
    assert {word: f"{at:%m-%d %H:%M}" for word, at in due.items()} == {**years, **days, **rest}


@pytest.mark.parametrize(
    ("expression", "fault", "hint"), TABLES["test_what_is_none_says_which_field_and_what_would_be"]
)
def test_what_is_none_says_which_field_and_what_would_be(expression: str, fault: str, hint: str) -> None:
    with pytest.raises(CronError, match=fault.replace("*", r"\*")) as raised:
        calendar_from(expression)
    assert hint in raised.value.hint


@given(st.text(alphabet="0123456789*/,-#LWMONJAN @", max_size=24))
def test_whatever_is_written_is_a_calendar_or_a_fault(expression: str) -> None:
    try:
        calendar = calendar_from(expression)
    except CronError as error:
        assert str(error) and error.hint
    else:
        assert calendar.next_after(0.0) is not None


def test_the_last_that_was_due_is_found_however_long_ago() -> None:
    june = at("UTC", 6, 15, 12, 0)
    for expression, last_s, count in (
        ("* * * * *", june, 999),
        ("30 2 * * *", at("UTC", 6, 15, 2, 30), 365),
        ("* * * 1 *", at("UTC", 1, 31, 23, 59), 999),
        ("0 0 29 2 *", None, 0),
    ):
        calendar = calendar_from(expression)
        assert calendar.last_within(june - 365 * DAY_S, june) == last_s, expression
        assert calendar.count_within(june - 365 * DAY_S, june, 999) == count
    assert calendar_from("* * * * *").last_within(june, june) is None
    assert calendar_from("* * * * *").last_within(june + 1, june) is None


PARTS = st.sampled_from(["*", "*/7", "0", "30", "0,20,40", "5-9"])
HOURS = st.sampled_from(["*", "*/2", "1", "2", "3", "1,2,3", "0"])
DAYS = st.sampled_from(["* * *", "*/2 * *", "1 * *", "* * 0", "L * *"])


@settings(max_examples=40)
@given(
    PARTS, HOURS, DAYS, st.sampled_from([*FORWARD, "UTC", "Africa/Cairo", "America/Santiago"]), st.integers(0, 10**6)
)
def test_what_is_due_next_is_the_same_wherever_one_looks_from(
    minutes: str, hours: str, days: str, zone: str, offset: int
) -> None:
    calendar = CronSchedule(f"{minutes} {hours} {days}", zone)
    begin_s = at("UTC", 1, 1) + offset * 30.0
    found = list(islice(calendar.after(begin_s), 12))
    assert found == sorted(set(found)) and all(due_s > begin_s for due_s in found)
    for before_s, due_s in zip([begin_s, *found], found, strict=False):
        for look_s in {before_s, (before_s + due_s) // 2, due_s - 1}:
            assert calendar.next_after(look_s) == due_s
        assert calendar.last_within(begin_s, due_s) == due_s
    assert timedelta(seconds=found[-1] - begin_s) < timedelta(days=800)
