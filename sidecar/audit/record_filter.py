"""Selects records of the log by their fields. A check of the lines' bytes comes first."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Final

from sidecar.settings.field_types import seconds_from

_PLAIN: Final = re.compile(r"[A-Za-z0-9 _.:/@+~=,;-]+")  # characters that JSON does not escape
_EXACT: Final = ("event", "status", "reason", "protocol", "decision_id", "run_id", "trace_id")
_OF_CONTROL: Final = ("what", "by")


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """The criteria for records; None and "" match all. Principals, upstreams and objects may contain `*`. `what` and
    `by` are those of control records; `since` and `until` are RFC 3339 in the form of records, so that text order is
    time order."""

    principal: str = ""
    object: str = ""
    upstream: str = ""
    event: str | None = None
    status: str | None = None
    reason: str | None = None
    protocol: str = ""
    decision_id: str = ""
    run_id: str = ""
    trace_id: str = ""
    what: str = ""
    by: str = ""
    since: str = ""
    until: str = ""
    _needles: tuple[bytes, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_needles", tuple(self._literals()))

    def wants(self, record: Mapping[str, Any]) -> bool:
        timestamp, control = str(record.get("timestamp")), record.get("control")
        said = control if isinstance(control, Mapping) else {}
        return (
            all(getattr(self, name) in (None, "", record.get(name)) for name in _EXACT)
            and all(getattr(self, name) in ("", said.get(name)) for name in _OF_CONTROL)
            and self.since <= timestamp
            and (not self.until or timestamp < self.until)
            and _matches(self.object, [record.get("object")])
            and _matches(self.upstream, [record.get("upstream")])
            and _matches(self.principal, record.get("chain"))
        )

    def may_want(self, lines: bytes) -> bool:
        """Whether one of these lines can match, checked before they are parsed."""
        return all(needle in lines for needle in self._needles)

    def _literals(self) -> Iterator[bytes]:
        """Texts that occur in the line of every matching record."""
        if self.event:  # each line contains the text `control`, as a name
            yield f'"event":"{self.event}"'.encode()
        for name in (*_EXACT[1:], *_OF_CONTROL):
            value = getattr(self, name) or ""
            if _PLAIN.fullmatch(value):
                yield f'"{value}"'.encode()
        for pattern in (self.principal, self.object, self.upstream):
            longest = max(pattern.split("*"), key=len)
            if _PLAIN.fullmatch(longest):
                yield longest.encode()


def moment_from(text: str) -> str:
    """A time, in UTC unless it has a zone, or a span back from now such as `15m`, in the records' format. Raises
    ValueError."""
    back_s = seconds_in(text)
    try:
        moment = datetime.fromisoformat(text) if back_s is None else datetime.now(UTC) - timedelta(seconds=back_s)
        return _in_utc(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except OverflowError as error:
        raise ValueError(str(error)) from None


def seconds_in(text: str) -> float | None:
    """A duration such as `15m`, in seconds; None for any other text."""
    try:
        return float(str(seconds_from(text)))
    except ValueError:
        return None


def earlier(moment: str, span_s: float) -> str:
    """Returns the time `span_s` seconds earlier in the records' format; a later one for a negative span."""
    return _in_utc(datetime.fromisoformat(moment) - timedelta(seconds=span_s))


def _in_utc(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def _matches(pattern: str, names: object) -> bool:
    """Whether one of a record's names matches. `*` is the only wildcard."""
    literal = pattern.replace("[", "[[]").replace("?", "[?]")
    return not pattern or (isinstance(names, list) and any(fnmatchcase(str(name), literal) for name in names))
