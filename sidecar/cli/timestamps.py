"""Reads points in time from the command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import click

_SPAN = re.compile(r"(\d{1,5})([smhd])\Z")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Moment(click.ParamType[str]):
    """A time, or a span back from now, in the records' format: RFC 3339 in UTC, so that text order is time order."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        span = _SPAN.match(text)
        try:
            if span is not None:
                moment = datetime.now(UTC) - timedelta(**{_UNITS[span[2]]: int(span[1])})
            else:
                moment = datetime.fromisoformat(text)
        except (ValueError, OverflowError):
            self.fail("write a time like 2026-11-27T12:00:00Z, or a span like 15m, 2h, 7d", param, ctx)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"
