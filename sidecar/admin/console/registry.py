"""Registers the pages, actions and event streams of the console, and finds them by path."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import unquote

if TYPE_CHECKING:
    from sidecar.admin.console.request import ConsoleRequest, Fragment
    from sidecar.admin.routes import Role

NAVIGATION: Final = (
    ("Watch", ("now", "decisions", "limits", "audit")),
    ("Policy", ("access", "try", "policy", "tools", "switches")),
    ("Work", ("approvals", "agents")),
)
"""The paths of the pages in the navigation, in groups. A path without a page is left out."""
VIEWERS: Final[tuple[Role, ...]] = ("viewer", "operator")
MAX_FORM_BYTES: Final = 16 * 1024

PageFunction = Callable[["ConsoleRequest"], Awaitable[Mapping[str, Any]]]
ActionFunction = Callable[["ConsoleRequest"], Awaitable["str | Fragment"]]
StreamFunction = Callable[["ConsoleRequest"], AsyncGenerator["StreamEvent | None"]]


class StreamEvent(NamedTuple):
    """One event of a stream: `data` as JSON, or rendered with `template`, a file in templates/. An event with a `key`
    is rendered once for all streams that send it, so its template must not depend on the viewer."""

    event: str
    data: Mapping[str, Any]
    template: str = ""
    key: Hashable = None


class ConsolePage(NamedTuple):
    """A page. Its function returns data that JSON can represent, and the template shows it."""

    path: str
    title: str
    template: str
    handler: PageFunction
    roles: tuple[Role, ...]


class ConsoleAction(NamedTuple):
    """The target of a form. Its function returns the path below `/console/` of the next page, or a fragment.
    `max_bytes` is the maximum size of the form."""

    path: str
    handler: ActionFunction
    roles: tuple[Role, ...]
    max_bytes: int


class ConsoleStream(NamedTuple):
    """A stream of server-sent events. Its function yields them, and None while there is no news."""

    path: str
    handler: StreamFunction
    roles: tuple[Role, ...]


Registered = TypeVar("Registered", ConsolePage, ConsoleAction, ConsoleStream)
_PARAMETER = re.compile(r"\{(\w+)(:path)?\}")


@dataclass(slots=True)
class PathTable(Generic[Registered]):
    """Maps paths to registered objects. `{name}` matches one segment, `{name:path}` one or more."""

    rows: list[tuple[re.Pattern[str], Registered]]

    def add(self, one: Registered) -> None:
        if any(known.path == one.path for _, known in self.rows):
            raise ValueError(f"{one.path} is registered twice")
        self.rows.append((_pattern_of(one.path), one))
        self.rows.sort(key=lambda row: row[1].path.count("{"))  # literal paths first

    def find(self, path: str) -> tuple[Registered, Mapping[str, str]] | None:
        """The object for a path as it was sent, and the decoded parts of the path by name; None if there is none."""
        for pattern, one in self.rows:
            if match := pattern.fullmatch(path):
                return one, {name: unquote(part) for name, part in match.groupdict().items()}
        return None


def _pattern_of(path: str) -> re.Pattern[str]:
    pattern, end = "", 0
    for found in _PARAMETER.finditer(path):
        one = "[^?#]{1,2048}" if found[2] else "[^/?#]{1,1024}"
        pattern += f"{re.escape(path[end : found.start()])}(?P<{found[1]}>{one})"
        end = found.end()
    return re.compile(pattern + re.escape(path[end:]))


PAGES: Final = PathTable[ConsolePage]([])
ACTIONS: Final = PathTable[ConsoleAction]([])
STREAMS: Final = PathTable[ConsoleStream]([])


def page(path: str, *, title: str, template: str, role: Role = "viewer") -> Callable[[PageFunction], PageFunction]:
    """Registers a page at `/console/<path>`. A request that accepts JSON and no HTML gets the data."""

    def add(handler: PageFunction) -> PageFunction:
        PAGES.add(ConsolePage(path, title, template, handler, _roles(role)))
        return handler

    return add


def action(
    path: str, *, role: Role = "operator", max_bytes: int = MAX_FORM_BYTES
) -> Callable[[ActionFunction], ActionFunction]:
    """Registers the target of a form at `/console/<path>`. Session, role and CSRF token are checked before it runs."""

    def add(handler: ActionFunction) -> ActionFunction:
        ACTIONS.add(ConsoleAction(path, handler, _roles(role), max_bytes))
        return handler

    return add


def stream(path: str, *, role: Role = "viewer") -> Callable[[StreamFunction], StreamFunction]:
    """Registers an event stream at `/console/<path>`. It ends with the session, and when the sidecar drains."""

    def add(handler: StreamFunction) -> StreamFunction:
        STREAMS.add(ConsoleStream(path, handler, _roles(role)))
        return handler

    return add


def _roles(least: Role) -> tuple[Role, ...]:
    return VIEWERS if least == "viewer" else (least,)


def navigation() -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """The groups of the navigation with the names and titles of their pages."""
    titles = {one.path: one.title for _, one in PAGES.rows}
    groups = ((title, tuple((name, titles[name]) for name in names if name in titles)) for title, names in NAVIGATION)
    return tuple(group for group in groups if group[1])
