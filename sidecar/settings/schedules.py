"""Settings of schedules: ScheduledTask of the original data models. Their state is in the task store."""

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Final, Literal
from zoneinfo import available_timezones

from pydantic import AfterValidator, Field

from sidecar.settings.cron import CronError, CronSchedule, calendar_from
from sidecar.settings.field_types import NhiName, Seconds, Section, Slug
from sidecar.settings.validation_errors import Finding, did_you_mean, reject
from sidecar.settings.yaml_nodes import Loc

MOST: Final = 1_000
ON_TIME_S: Final = 60.0


@cache
def _zones() -> Collection[str]:
    """The names of all time zones, cached: to list them takes some ten milliseconds, and there may be 1,000
    schedules."""
    return frozenset(available_timezones())


def _zone(name: str) -> str:
    if name not in _zones():
        _zones.cache_clear()  # it may have been installed since
    if name not in _zones():
        hint = did_you_mean(name, _zones()) or "write, for example, Europe/Berlin or UTC"
        reject(f"there is no time zone {name}", "S175", hint)
    return name


def _cron(expression: str) -> str:
    try:
        calendar_from(expression)
    except CronError as error:
        reject(str(error), "S176", error.hint)
    return expression


class ScheduleSettings(Section):
    """A schedule that calls an agent as an NHI of its own."""

    id: Annotated[str | None, Field(min_length=1, max_length=128)] = None
    """Identifier. Default: the key of this entry."""
    name: Annotated[str | None, Field(min_length=1, max_length=200)] = None
    """Display name. It must be unique. Default: the key of this entry."""
    agent: Slug
    """The agent to call: one of `agents`, or an A2A agent of `upstreams`."""
    cron: Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_cron)]
    """When to call, as a cron expression (minute, hour, day of month, month, day of week) or a nickname such as
    `@daily`."""
    timezone: Annotated[str, AfterValidator(_zone)] = "UTC"
    """Time zone of `cron`, by its name in the IANA database."""
    enabled: bool = True
    """Whether the schedule is active."""
    principal: NhiName | None = None
    """The principal that it acts as. Default: `nhi:<its key>`. Rules and limits apply to it as to every caller."""
    input_parameters: dict[str, Any] = Field(default_factory=dict)
    """Input of the agent: `prompt`, and the choices that the agent's definition offers to a call."""
    task_type: Annotated[str, Field(min_length=1, max_length=128)] = "scheduled"
    """Type of the task. Rules read it as `call.tool`."""
    missed: Literal["once", "skip"] = "once"
    """What happens to runs that were due while no sidecar ran: `once` starts one run for all of them, `skip` none."""
    missed_within: Seconds = 3600.0
    """Maximum delay of a run. A later run is skipped. With `missed: skip`, the maximum is one minute."""
    overlap: Literal["skip", "allow"] = "skip"
    """What happens to a run that is due while the previous one is unfinished: `skip` skips it, `allow` runs both in
    parallel."""

    @property
    def calendar(self) -> CronSchedule:
        return CronSchedule(self.cron, self.timezone)

    @property
    def calendar_words(self) -> str:
        """The cron expression and the time zone as one text, to see whether either has changed."""
        return f"{self.cron} {self.timezone}"

    @property
    def late_s(self) -> float:
        """The longest delay of a run in seconds. With `missed: skip` at most a minute, which is cron's resolution."""
        return self.missed_within if self.missed == "once" else min(self.missed_within, ON_TIME_S)


def acts_as(key: str, schedule: ScheduleSettings) -> str:
    """The principal that a schedule acts as."""
    return schedule.principal or f"nhi:{key}"


def schedule_faults(
    schedules: Mapping[str, ScheduleSettings], agents: Collection[str], names: Collection[str]
) -> Iterator[Finding]:
    """Conflicts of schedules with each other and with other settings. `agents` are those that can be called, `names`
    all upstreams and agents."""
    seen: dict[tuple[str, str], str] = {}
    for key, schedule in schedules.items():
        if schedule.agent not in agents:
            what = f"there is no agent {schedule.agent} that is enabled"
            hint = did_you_mean(schedule.agent, agents) or "name one of agents, or an A2A agent of upstreams"
            yield Finding(what, "S177", hint, ("schedules", key, "agent"))
        who = acts_as(key, schedule)
        if who.removeprefix("nhi:") in names:
            own: Loc = () if schedule.principal is None else ("principal",)
            hint = "give it a name of its own" if own else "write another principal: nhi:…"
            what = f"{who} is the name of an upstream or agent of this sidecar"
            yield Finding(what, "S179", hint, ("schedules", key, *own), on_key=not own)
        for field, value in (("id", schedule.id or key), ("name", schedule.name or key)):
            other = seen.setdefault((field, value), key)
            if other != key:
                at = ("schedules", key) if getattr(schedule, field) is None else ("schedules", key, field)
                yield Finding(f"{value} is also the {field} of schedule {other}", "S178", at=at, on_key=len(at) == 2)
