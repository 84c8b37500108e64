"""Reads times and durations from the command line."""

import click

from sidecar.audit.record_filter import moment_from, seconds_in


class Moment(click.ParamType[str]):
    """A time, or a span back from now, in the records' format: RFC 3339 in UTC, so that text order is time order."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return moment_from(str(value))
        except ValueError:
            self.fail("write a time like 2026-11-27T12:00:00Z, or a span like 15m, 2h, 7d", param, ctx)


class Duration(click.ParamType[float]):
    """A duration in seconds, greater than 0."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        return seconds_in(str(value)) or self.fail("write 30s, 15m, 1h or 90d", param, ctx)


class Instant(click.ParamType[float]):
    """A time with a zone, in seconds since the epoch, in the form of rows."""

    name = "TIME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from sidecar.policy.grammar import Wrong, expires_at

        try:
            at_s = expires_at(str(value))
        except Wrong:
            at_s = None
        if at_s is None:
            what = f'"{value}" is not an RFC 3339 time: write a time with a zone, such as 2026-11-27T12:00:00Z'
            self.fail(what, param, ctx)
        return at_s
