"""Which agents run by the clock?

The seed's ScheduledTask. What it changes by itself (its last and next run, paused) is kept in the store of tasks.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, available_timezones

from pydantic import AfterValidator, Field

from sidecar.settings.fields import NhiName, Seconds, Section, Slug
from sidecar.settings.findings import Finding, did_you_mean, reject


def _zone(name: str) -> str:
    if name not in available_timezones():
        hint = did_you_mean(name, available_timezones()) or "such as Europe/Berlin, or UTC"
        reject(Finding(f"there is no time zone {name}", "S175", hint))
    return name


class Schedule(Section):
    """An agent that runs by the clock, as an NHI of its own."""

    id: Annotated[str | None, Field(min_length=1, max_length=128)] = None
    """Its identifier; by default its key here."""
    name: Annotated[str | None, Field(min_length=1, max_length=200)] = None
    """Its name for people, unlike every other one's; by default its key here."""
    agent: Slug
    """Whom to call: an agent of `agents`, or an A2A agent of `upstreams`."""
    cron: Annotated[str, Field(min_length=1, max_length=256)]
    """When: minute, hour, day of month, month, day of week, as cron has them, or `@hourly`, `@daily`, `@midnight`,
    `@weekly`, `@monthly`, `@yearly`, `@annually`."""
    timezone: Annotated[str, AfterValidator(_zone)] = "UTC"
    """The time zone of `cron`, as the IANA database names it."""
    enabled: bool = True
    """Whether it runs at all."""
    principal: NhiName | None = None
    """Who it acts as; by default `nhi:<its key>`. Rules and budgets are asked as of anybody."""
    input_parameters: dict[str, Any] = Field(default_factory=dict)
    """What the agent is told: `prompt`, and what else its definition lets a call choose."""
    task_type: Annotated[str, Field(min_length=1, max_length=128)] = "scheduled"
    """What its task is called; rules read it as `call.tool`."""
    missed: Literal["once", "skip"] = "once"
    """What becomes of runs that were due while nobody was there: one run for all of them, or none."""
    missed_within: Seconds = 3600.0
    """How late a run may begin; one that was due longer ago is not made up for."""
    overlap: Literal["skip", "allow"] = "skip"
    """What becomes of a run that is due while the one before goes on: it is left out, or runs beside it."""

    @property
    def zone(self) -> ZoneInfo:
        """The time zone of `cron`."""
        return ZoneInfo(self.timezone)
