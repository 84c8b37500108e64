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
from typing import Final

import click

from sidecar.cli.command import DIFFERENT, USAGE, CommandFailed, check_known, config_and_json, print_json, settings_in
from sidecar.cli.mcp.test import reached
from sidecar.errors import Reason, Refusal, SettingsError, fault_in
from sidecar.protocols.hidden_characters import shown
from sidecar.protocols.mcp.messages import LeftOut, unnamed_in
from sidecar.settings.sidecar_file import Settings
from sidecar.settings.timestamps import rfc3339
from sidecar.settings.writing import UnwrittenError, write_all
from sidecar.upstreams.mcp.listing import OwnConversation
from sidecar.upstreams.mcp.pin_review import CHANGED, GONE, PINNED, ReviewedTool, approved, member_lines, reviewed
from sidecar.upstreams.mcp.pins import MEMBERS, Pin
from sidecar.upstreams.mcp.pins_file import PINS_FILE, file_with, load_pins
from sidecar.upstreams.mcp.tools import tools_from

CONTEXT_LINES: Final = 2
MAX_SHOWN_LINES: Final = 400  # per tool; the file contains the rest


@dataclass(frozen=True, slots=True)
class PinsBook:
    """One server: its pins, None if it has none yet, their file, every row, and the tools that no call can name."""

    file: Path
    server: str
    pins: Mapping[str, Pin] | None
    rows: list[ReviewedTool]
    left_out: tuple[LeftOut, ...]


@click.command()
@click.argument("server")
@click.argument("names", nargs=-1, metavar="[TOOL]...")
@click.option(
    "--pin", is_flag=True, help="Approve the tools as they are now, after showing the differences and asking."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@config_and_json
def tools(server: str, names: tuple[str, ...], pin: bool, yes: bool, config: Path, as_json: bool) -> None:
    """List the tools of SERVER, all or those named, and compare them with their pins.

    Exits with 6 if something differs from the pins of the server, unless --pin approved it."""
    if as_json and pin and not yes:
        raise click.UsageError("--json cannot ask: add --yes")
    if pin and not yes and not sys.stdin.isatty():  # approval requires a person
        raise click.UsageError("--pin asks, and there is no terminal to answer: add --yes")
    try:
        book = _looked_up(config, server, pinning=pin)
    except Refusal as refusal:
        raise CommandFailed(f"{server} cannot be queried: {refusal.reason.value}: {shown(refusal.detail)}")
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
    """Returns the pins of a server, and its current list. Raises ConfigError, Refusal."""
    settings = settings_in(config, check_files=True)
    check_known(server, settings.upstreams, "server", config)
    file = settings.policy.path / PINS_FILE
    if settings.policy.is_fetched and pinning:
        hint = "pin in the repository of the policy, and publish it: the next policy replaces this copy"
        raise SettingsError([fault_in(config, "the policy comes from a source", code="S160", hint=hint)])
    pins = load_pins(file).servers.get(server)
    entries = asyncio.run(_entries(settings, server))
    listed = tools_from(entries, {}, refuse_hidden=settings.upstreams[server].hidden_text == "refuse")
    return PinsBook(file, server, pins, reviewed(listed, pins or {}), unnamed_in("tools", entries))


async def _entries(settings: Settings, server: str) -> list[object]:
    """Returns the current list of the server. Raises Refusal."""
    async with reached(settings, server) as upstream:
        enquiry = OwnConversation(upstream)
        try:
            async with asyncio.timeout(upstream.timeout_s):
                return (await enquiry.list_tools()).entries
        except TimeoutError:
            raise Refusal(Reason.UPSTREAM_TIMEOUT, "its list of tools did not arrive in time") from None
        finally:
            await enquiry.close()


def _show(rows: list[ReviewedTool], left_out: Collection[LeftOut], *, in_full: bool) -> None:
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
        click.echo("this server has no pins: --pin approves its tools as they are now")


def _remarks(row: ReviewedTool) -> str:
    if row.tool is None:
        return ""
    remarks = [f"quarantined: {row.tool.quarantine_reason}"] if row.tool.schema is None else []
    remarks += [f"hidden text in {where}" for where in row.tool.hidden]
    return "".join(f"  [{shown(remark)}]" for remark in remarks)


def _difference(row: ReviewedTool) -> Iterator[str]:
    if row.status in (PINNED, GONE) or not row.definition:
        return
    lines = [line for member in MEMBERS for line in _member_lines(row, member)]
    yield from lines[:MAX_SHOWN_LINES]
    if len(lines) > MAX_SHOWN_LINES:
        yield f"… and {len(lines) - MAX_SHOWN_LINES} lines more"


def _member_lines(row: ReviewedTool, member: str) -> Iterator[str]:
    if row.status == CHANGED and member not in row.changed:
        return
    old = member_lines(row.pin.definition if row.pin else {}, member)
    new = member_lines(row.definition, member)
    if old or new:
        yield f"{member}:"
        for line in list(unified_diff(old, new, lineterm="", n=CONTEXT_LINES))[2:]:
            if not line.startswith("@@"):
                yield f"  {line[:1]} {shown(line[1:])}"


def _pin(book: PinsBook, chosen: list[ReviewedTool], *, ask: bool, quiet: bool) -> None:
    """Approves the chosen rows after confirmation. A tool that is not listed any more loses its pin."""
    pins, unfit = approved(book.pins or {}, chosen, at=rfc3339(time.time()), by=_who())
    for name, why in unfit.items():
        click.echo(f"{name} cannot be pinned: {why}", err=True)
    if pins == book.pins:
        if not quiet:
            click.echo("nothing to pin: the tools match their pins")
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


def _who() -> str:
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a user id without a name
        name = str(os.getuid())
    return re.sub(r"[^\x21-\x7e]", "?", name)[:64] or "?"
