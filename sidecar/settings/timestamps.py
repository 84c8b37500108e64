"""Reads and writes RFC 3339 timestamps; in code, a moment is seconds since the epoch."""

import re
from datetime import UTC, datetime
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from sidecar.settings.validation_errors import reject

HINT = "write a time with its zone, such as 2027-03-31T00:00:00Z"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)", re.ASCII)


def seconds_of(text: str) -> float:
    """Seconds since the epoch of an RFC 3339 time. Raises ValueError for other texts."""
    if not _TIME.fullmatch(text):
        raise ValueError(HINT)
    try:
        return datetime.fromisoformat(text).astimezone(UTC).timestamp()  # its year must also be valid in UTC
    except OverflowError as error:
        raise ValueError(HINT) from error


def rfc3339(epoch_s: float) -> str:
    """Formats seconds since the epoch as RFC 3339, in UTC, without fractions of a second."""
    return datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _moment(value: object) -> float:
    try:
        return seconds_of(value if isinstance(value, str) else "")
    except ValueError:
        reject("this is not an RFC 3339 time with a zone", "Y103", HINT)


Moment = Annotated[
    float,
    BeforeValidator(_moment),
    PlainSerializer(rfc3339, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""Seconds since the epoch; in files `2027-03-31T00:00:00Z`."""
