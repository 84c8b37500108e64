"""Renders the templates of the console, and serves static files at addresses that change with their content."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from sidecar.admin.console.addresses import BASE, STATIC
from sidecar.admin.console.form_fields import FormFields
from sidecar.errors import visible, visible_lines
from sidecar.settings.timestamps import rfc3339, seconds_of
from sidecar.tasks.programs.run_record import standing_of

FOLDER: Final = Path(__file__).parent
FOLDERS: Final = [FOLDER / "templates"]
"""Where templates are found."""
MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
NONE: Final = "–"
_SPANS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB")


class StaticFile(NamedTuple):
    content: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class Location:
    """What every template has in addition to the data of its page: the path below `/console/`, the parts of the path by
    name, the title of the page ("" for a fragment), and the query."""

    path: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)
    title: str = ""
    query: FormFields = field(default_factory=lambda: FormFields(()))

    def address(self, **changes: object) -> str:
        """The address of this view, with changed fields in its query."""
        return f"{BASE}{quote(self.path)}?{self.query.with_changes(changes)}".rstrip("?")


def rendered(folders: Sequence[Path], template: str, location: Location, data: Mapping[str, Any]) -> bytes:
    """A template of one of the folders, rendered with its data. Blocks for milliseconds."""
    context = {"location": location, "query": location.query, "here": location.address, **data}
    return _environment(tuple(folders)).get_template(template).render(context).encode("utf-8", "replace")


@lru_cache(maxsize=1)
def static_files() -> Mapping[str, StaticFile]:
    """The files in static/, by address."""
    folder = FOLDER / "static"
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in MEDIA_TYPES]
    found = {}
    for path in files:
        content = path.read_bytes()
        address = f"{STATIC}{sha256(content).hexdigest()[:16]}/{path.relative_to(folder).as_posix()}"
        found[address] = StaticFile(content, MEDIA_TYPES[path.suffix])
    return found


@lru_cache(maxsize=4)
def _environment(folders: tuple[Path, ...]) -> Environment:
    """The environment of the templates, which escape all data."""
    environment = Environment(
        loader=FileSystemLoader(folders),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_legible,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "moment": moment,
        "ago": ago,
        "duration": duration,
        "count": count,
        "amount": amount,
        "json": json_text,
        "size": size,
        "short": short,
        "or_none": or_none,
        "machine_time": machine_time,
        "clipped": clipped,
        "brief": brief,
        "standing": standing_of,
        "pretty": pretty,
    }
    addresses = {address.removeprefix(STATIC).partition("/")[2]: address for address in static_files()}
    environment.globals |= {"static": addresses.__getitem__, "base": BASE}
    return environment


def _legible(value: object) -> object:
    """A text with visible escapes for characters that are not printable, because it may be of callers and upstreams."""
    return visible_lines(value) if type(value) is str else value  # a subclass is markup of a template


def _seconds_in(value: object) -> float | None:
    if isinstance(value, int | float):
        return float(value)
    return seconds_of(value) if isinstance(value, str) and value else None


def moment(value: object) -> str:
    """A time, given as RFC 3339 or in seconds, as `2026-11-30 09:41:05` in UTC; `–` for none."""
    at_s = _seconds_in(value)
    return NONE if at_s is None else f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S}"


def ago(value: object) -> str:
    """The distance of a time from now: `3 min ago`, `in 2 h`; `–` for none."""
    at_s = _seconds_in(value)
    if at_s is None:
        return NONE
    away_s = time.time() - at_s
    if abs(away_s) < 1:
        return "now"
    return f"{duration(away_s)} ago" if away_s > 0 else f"in {duration(-away_s)}"


def duration(value: object) -> str:
    """A time span in seconds in its two largest units, such as `1 h 5 min`; below a second in ms; `–` for none."""
    if not isinstance(value, int | float):
        return NONE
    if 0 < value < 1:
        return f"{value * 1000:.0f} ms" if value >= 0.001 else "under 1 ms"
    left, parts = int(value), list[str]()
    for unit, seconds in _SPANS:
        if left >= seconds or (parts and left):
            many, left = divmod(left, seconds)
            if many:
                parts.append(f"{many} {unit}")
            if len(parts) == 2:
                break
    return " ".join(parts) or "0 s"


def count(value: object) -> str:
    """A number with commas between thousands; `–` for none."""
    if not isinstance(value, int | float):
        return NONE
    return f"{value:,}"


def amount(value: object) -> str:
    """A number as `count` shows it, or an amount of money with up to six decimal places; `–` for none."""
    if isinstance(value, float):
        return f"{value:,.6f}".rstrip("0").rstrip(".")
    return count(value)


def json_text(value: object, characters: int = 300) -> str:
    """The beginning of a value as JSON."""
    text = orjson.dumps(value, default=str).decode()
    return text if len(text) <= characters else f"{text[:characters]}…"


def pretty(value: object) -> str:
    """A whole value as JSON, in several lines."""
    return orjson.dumps(value, default=str, option=orjson.OPT_INDENT_2).decode()


def size(value: object) -> str:
    """A number of bytes in the largest unit that fits; `–` for none."""
    if not isinstance(value, int | float):
        return NONE
    amount = float(value)
    for unit in _SIZES:
        if amount < 1024 or unit == _SIZES[-1]:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return NONE


def short(value: object, characters: int = 12) -> str:
    """The beginning of a digest; `–` for none."""
    return str(value)[:characters] if value else NONE


def or_none(value: object) -> object:
    """The value, or `–` if it is None or empty."""
    return NONE if value in (None, "", []) else value


def clipped(value: object, characters: int = 200) -> str:
    """The beginning of a text in one line, with escapes for characters that are not printable."""
    text = str(value)
    return visible(text[:characters]) + ("…" if len(text) > characters else "")


def brief(value: object) -> str:
    """The end of an id, by which ids of the same time differ: the sidecar's ids begin with the time."""
    return str(value)[-8:]


def machine_time(value: object) -> str:
    """A time for the `datetime` attribute."""
    at_s = _seconds_in(value)
    return "" if at_s is None else rfc3339(at_s)
