"""Settings of breakers and probes."""

from __future__ import annotations

from sidecar.settings.field_types import Count, Seconds, Section


class BreakerSettings(Section):
    """When calls of a faulty upstream are refused at once. Faults are what its callers did not cause: it cannot be
    reached, does not answer in time, breaks off, ends, or answers HTTP 5xx."""

    failures: Count = 5
    """Faults in a row that open the breaker."""
    open_s: Seconds = 30.0
    """How long it stays open before one call, or one probe of ours, may try again."""


class ProbeSettings(Section):
    """How an upstream is asked whether it is well: `ping` in a session of our own, or `server/discover`; an A2A agent
    for its card; and of a program it is looked whether it is there."""

    enabled: bool = True
    """Whether it is asked at all; without probes only calls show how it is."""
    every_s: Seconds = 30.0
    """How often, give or take a fifth."""
