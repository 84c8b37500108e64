"""`sidecar mcp tools`: asks a server for its tools, compares them with their pins, and pins them.

Hidden characters and escape sequences are made visible: the operator who approves sees what a model would read.
"""

import asyncio
import getpass
import os
import re
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any, Final

import click

from sidecar.cli.command import DIFFERENT, USAGE, CommandFailed, check_known, config_and_json, print_json, settings_in
from sidecar.cli.mcp.test import reached
from sidecar.errors import Reason, Refusal, SettingsError, fault_in
from sidecar.protocols.hidden_characters import shown
from sidecar.protocols.mcp.messages import LeftOut, unnamed_in
from sidecar.settings import Settings
from sidecar.settings.timestamps import rfc3339
from sidecar.settings.writing import UnwrittenError, write_all
from sidecar.upstreams.mcp.listing import OwnConversation
from sidecar.upstreams.mcp.pins import MEMBERS, Pin, differing, pin_of, pinned_part
from sidecar.upstreams.mcp.pins_file import PINS_FILE, file_with, load_pins, readable
from sidecar.upstreams.mcp.tools import Tool, tools_from

PINNED, NEW, CHANGED, GONE = "pinned", "new", "changed", "gone"
CONTEXT_LINES: Final = 2
MAX_SHOWN_LINES: Final = 400  # per tool; the file contains the rest


@dataclass(frozen=True, slots=True)
class ToolRow:
    name: str
    status: str
    tool: Tool | None
    entry: Mapping[str, Any]
    pin: Pin | None

    @property
    def changed(self) -> tuple[str, ...]:
        """The members that differ, in the order of a definition."""
        if self.status != CHANGED or self.pin is None or self.tool is None:
            return ()
        return differing(self.pin.members, self.tool.definition.members)

    def plain(self) -> dict[str, Any]:
        tool, pin = self.tool, self.pin
        return {
            "name": self.name,
            "status": self.status,
            "digest": tool and (tool.definition.digest or None),
            "pinned_digest": pin and pin.digest,
            "pinned_at": pin and pin.pinned_at,
            "pinned_by": pin and pin.pinned_by,
            "changed": list(self.changed),
            "quarantined": tool and (tool.quarantine_reason or None),
            "hidden_text": list(tool.hidden) if tool else [],
            "definition": pinned_part(self.entry),
            "pinned_definition": pin and pin.definition,
        }


@dataclass(frozen=True, slots=True)
class PinsBook:
    """One server: its pins, None if it has none yet, their file, every row, and the tools that no call can name."""

    file: Path
    server: str
    pins: Mapping[str, Pin] | None
    rows: list[ToolRow]
    left_out: tuple[LeftOut, ...]


@click.command()
@click.argument("server")
@click.argument("names", nargs=-1, metavar="[TOOL]...")
@click.option("--pin", is_flag=True, help="Approve them as they are now: shows the difference, and asks.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@config_and_json
def tools(server: str, names: tuple[str, ...], pin: bool, yes: bool, config: Path, as_json: bool) -> None:
    """The tools of SERVER, all or those named, compared with their pins.

    Exits with 6 if something differs from the pins of the server, unless --pin approved it."""
    if as_json and pin and not yes:
        raise click.UsageError("--json cannot ask: add --yes")
    if pin and not yes and not sys.stdin.isatty():  # approval requires a person
        raise click.UsageError("--pin asks, and there is no terminal to answer: add --yes")
    try:
        book = _looked_up(config, server, pinning=pin)
    except Refusal as refusal:
        raise CommandFailed(f"{server} cannot be asked: {refusal.reason.value}: {shown(refusal.detail)}")
    if unknown := sorted(set(names) - {row.name for row in book.rows}):
        raise CommandFailed(f"{server} has no tool {', '.join(map(repr, unknown))}", USAGE)
    chosen = [row for row in book.rows if not names or row.name in names]
    if as_json:
        left_out = [one._asdict() for one in book.left_out]
        print_json({"pinned": book.pins is not None, "tools": [row.plain() for row in chosen], "left_out": left_out})
    else:
        _show(chosen, book.left_out, in_full=pin or book.pins is not None)
    if pin:
        _pin(book, chosen, ask=not yes, quiet=as_json)
    elif book.pins is not None and any(row.status != PINNED for row in chosen):
        raise SystemExit(DIFFERENT)


def _looked_up(config: Path, server: str, *, pinning: bool) -> PinsBook:
    """Return what is pinned of a server, and what it lists now. Raises ConfigError, Refusal."""
    settings = settings_in(config, check_files=True)
    check_known(server, settings.upstreams, "server", config)
    file = settings.policy.path / PINS_FILE
    if settings.policy.is_fetched and pinning:
        hint = "pin where the policy is made, and publish it: its folder here is replaced by the next that is taken"
        raise SettingsError([fault_in(config, "the policy comes from a source", code="S160", hint=hint)])
    pins = load_pins(file).servers.get(server)
    entries = asyncio.run(_entries(settings, server))
    listed = tools_from(entries, {}, refuse_hidden=settings.upstreams[server].hidden_text == "refuse")
    return PinsBook(file, server, pins, _compared(entries, listed, pins or {}), unnamed_in("tools", entries))


async def _entries(settings: Settings, server: str) -> list[object]:
    """Return what the server lists now. Raises Refusal."""
    async with reached(settings, server) as upstream:
        enquiry = OwnConversation(upstream)
        try:
            async with asyncio.timeout(upstream.timeout_s):
                return (await enquiry.list_tools()).entries
        except TimeoutError:
            raise Refusal(Reason.UPSTREAM_TIMEOUT, "its list of tools did not come in time") from None
        finally:
            await enquiry.close()


def _compared(entries: list[object], listed: Mapping[str, Tool], pinned: Mapping[str, Pin]) -> list[ToolRow]:
    by_name = {str(entry["name"]): entry for entry in entries if isinstance(entry, dict) and "name" in entry}
    rows = []
    for name in sorted({*listed, *pinned}):
        tool, pin = listed.get(name), pinned.get(name)
        entry = by_name[name] if tool and tool.definition.digest else {}  # what cannot be digested is not shown
        rows.append(ToolRow(name, _status(tool, pin), tool, entry, pin))
    return rows


def _status(tool: Tool | None, pin: Pin | None) -> str:
    if tool is None:
        return GONE
    if pin is None:
        return NEW
    return PINNED if pin.digest == tool.definition.digest else CHANGED


def _show(rows: list[ToolRow], left_out: Collection[LeftOut], *, in_full: bool) -> None:
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        click.echo(f"{row.name:<{width}}  {row.status}{_remarks(row)}")
        for line in _difference(row) if in_full else ():
            click.echo(f"    {line}")
    if not rows:
        click.echo("no tools")
    for one in left_out:
        click.echo(f"left out: {one.name!r}  [{shown(one.reason)}]")
    if not in_full:
        click.echo("nothing of this server is pinned: --pin approves its tools as they are")


def _remarks(row: ToolRow) -> str:
    if row.tool is None:
        return ""
    remarks = [f"quarantined: {row.tool.quarantine_reason}"] if row.tool.schema is None else []
    remarks += [f"hidden text in {where}" for where in row.tool.hidden]
    return "".join(f"  [{shown(remark)}]" for remark in remarks)


def _difference(row: ToolRow) -> Iterator[str]:
    if row.status in (PINNED, GONE) or not row.entry:
        return
    lines = [line for member in MEMBERS for line in _member_lines(row, member)]
    yield from lines[:MAX_SHOWN_LINES]
    if len(lines) > MAX_SHOWN_LINES:
        yield f"… and {len(lines) - MAX_SHOWN_LINES} lines more"


def _member_lines(row: ToolRow, member: str) -> Iterator[str]:
    if row.status == CHANGED and member not in row.changed:
        return
    old = _spelled(row.pin.definition if row.pin else {}, member)
    new = _spelled(row.entry, member)
    if old or new:
        yield f"{member}:"
        for line in list(unified_diff(old, new, lineterm="", n=CONTEXT_LINES))[2:]:
            if not line.startswith("@@"):
                yield f"  {line[:1]} {shown(line[1:])}"


def _spelled(definition: Mapping[str, Any], member: str) -> list[str]:
    """Return one member, in any of its spellings, as lines of JSON."""
    found = {key: value for key, value in definition.items() if key.casefold() == member.casefold()}
    texts = (_lines(value) if key == member else _lines({key: value}) for key, value in sorted(found.items()))
    return [line for lines in texts for line in lines]


def _lines(value: object) -> list[str]:
    """Return a value as lines of JSON; the lines of a text are quoted each, so that none can imitate other output."""
    if isinstance(value, str):
        return [readable(line) for line in value.split("\n")]
    return readable(value).split("\n")


def _pin(book: PinsBook, chosen: list[ToolRow], *, ask: bool, quiet: bool) -> None:
    """Approve the chosen rows after confirmation. A tool that is gone loses its pin."""
    pins = _approved(book.pins or {}, chosen)
    if pins == book.pins:
        if not quiet:
            click.echo("nothing to pin: they are as pinned")
        return
    pinned = book.pins or {}
    count = sum(pins.get(name) != pinned.get(name) for name in {*pins, *pinned})
    changes = f"{count} change{'s' * (count != 1)}"
    if ask and not click.confirm(f"approve {changes} of {book.server} as shown?", err=True):
        raise CommandFailed("nothing was pinned")
    if load_pins(book.file).servers.get(book.server) != book.pins:  # another process has changed the pins meanwhile
        raise CommandFailed(f"the pins of {book.server} changed meanwhile: nothing was pinned, look again")
    try:
        write_all({book.file: file_with(book.file, book.server, pins).encode()}, force=True)
    except UnwrittenError as error:
        raise CommandFailed(str(error))
    if not quiet:
        click.echo(f"{book.file}: {len(pins)} tool{'s' * (len(pins) != 1)} of {book.server} pinned")


def _approved(pinned: Mapping[str, Pin], chosen: list[ToolRow]) -> dict[str, Pin]:
    """Return the pins of the server, with those of the chosen rows as the server lists them."""
    at, by, pins = rfc3339(time.time()), _who(), dict(pinned)
    for row in chosen:
        if row.status == PINNED:
            continue
        pins.pop(row.name, None)
        if row.tool is not None and (pin := pin_of(row.entry, at=at, by=by) if row.entry else None):
            pins[row.name] = pin
        elif row.tool is not None:
            why = row.tool.quarantine_reason or "it is no plain JSON"
            click.echo(f"{row.name} cannot be pinned: {why}", err=True)
    return pins


def _who() -> str:
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a user id without a name
        name = str(os.getuid())
    return re.sub(r"[^\x21-\x7e]", "?", name)[:64] or "?"
