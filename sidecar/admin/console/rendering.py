"""Renders the console's templates, and serves its static files at addresses that change with their content."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from sidecar.admin.console.addresses import BASE, STATIC
from sidecar.admin.console.registry import NAVIGATION, PAGES
from sidecar.errors import visible, visible_lines
from sidecar.settings.timestamps import rfc3339, seconds_of
from sidecar.tasks.programs.run_record import standing_of

FOLDER: Final = Path(__file__).parent
MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
TURN_S: Final = 0.0003
REST_S: Final = 0.001
NONE: Final = "–"
_SPANS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB")


class StaticFile(NamedTuple):
    content: bytes
    media_type: str


@dataclass(frozen=True)
class Templates:
    """The environment of the templates, which escape all that they are given. `static` are the files by address."""

    @cached_property
    def static(self) -> Mapping[str, StaticFile]:
        folder = FOLDER / "static"
        files = [path for path in sorted(folder.rglob("*")) if path.suffix in MEDIA_TYPES]
        found = {}
        for path in files:
            content = path.read_bytes()
            address = f"{STATIC}{sha256(content).hexdigest()[:16]}/{path.relative_to(folder).as_posix()}"
            found[address] = StaticFile(content, MEDIA_TYPES[path.suffix])
        return found

    @cached_property
    def _addresses(self) -> Mapping[str, str]:
        return {address.removeprefix(STATIC).partition("/")[2]: address for address in self.static}

    @cached_property
    def environment(self) -> Environment:
        environment = Environment(
            loader=FileSystemLoader(FOLDER / "templates"),
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
        environment.globals |= {"static": lambda name: self._addresses[name], "base": BASE, "navigation": _navigation()}
        return environment

    def compile_all(self) -> None:
        """Compile every template and read every static file, in a thread, before the first page is rendered."""
        for name in self.environment.list_templates():
            self.environment.get_template(name)
        assert self.static

    async def render_in_turns(self, template: str, data: Mapping[str, Any], is_busy: Callable[[], bool]) -> bytes:
        """Render a page in turns, as a large table takes many milliseconds. While calls are in progress (`is_busy`),
        each turn is followed by a rest, so that a call meets one turn at most."""
        pieces, turn_s = [], time.perf_counter()
        for piece in self.environment.get_template(template).generate(data):
            pieces.append(piece)
            if time.perf_counter() - turn_s > TURN_S:
                await asyncio.sleep(REST_S if is_busy() else 0)
                turn_s = time.perf_counter()
        await asyncio.sleep(REST_S if is_busy() else 0)
        return "".join(pieces).encode("utf-8", "replace")

    def render(self, template: str, data: Mapping[str, Any]) -> bytes:
        return self.environment.get_template(template).render(data).encode("utf-8", "replace")


TEMPLATES: Final = Templates()
"""Those of this process: they are compiled once."""


def _legible(value: object) -> object:
    """A text with control and bidirectional characters made visible, as callers and upstreams may write any."""
    return visible_lines(value) if type(value) is str else value  # a subclass is markup of our own


def _navigation() -> list[tuple[str, list[tuple[str, str]]]]:
    """The groups of the navigation with the names and titles of their pages."""
    titles = {one.path: one.title for _, one in PAGES.rows}
    groups = [(title, [(name, titles[name]) for name in names if name in titles]) for title, names in NAVIGATION]
    return [group for group in groups if group[1]]


def _seconds_in(value: object) -> float | None:
    if isinstance(value, int | float):
        return float(value)
    return seconds_of(value) if isinstance(value, str) and value else None


def moment(value: object) -> str:
    """A time, given as RFC 3339 or in seconds, as `2026-11-30 09:41:05` in UTC; `–` for none."""
    at_s = _seconds_in(value)
    return NONE if at_s is None else f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S}"


def ago(value: object) -> str:
    """How long ago a time was, or how far it is ahead: `3 min ago`, `in 2 h`; `–` for none."""
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
    """A value as JSON in several lines, all of it."""
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
    """`–` in place of nothing."""
    return NONE if value in (None, "", []) else value


def clipped(value: object, characters: int = 200) -> str:
    """A text of others in one line: the beginning of one that is long, with hidden characters written out."""
    text = str(value)
    return visible(text[:characters]) + ("…" if len(text) > characters else "")


def brief(value: object) -> str:
    """The end of an id, which tells it from its neighbours: ids of ours begin with the time."""
    return str(value)[-8:]


def machine_time(value: object) -> str:
    """A time for the `datetime` attribute."""
    at_s = _seconds_in(value)
    return "" if at_s is None else rfc3339(at_s)
