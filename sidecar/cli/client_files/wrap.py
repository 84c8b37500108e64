"""Rewrites a client's configuration to use the sidecar, and restores it from the one backup next to it.

The text is edited in place. If wrapping the backup again, with the addresses that the file has now, gives the current
file, unwrapping restores the backup byte for byte; otherwise only the sidecar's entries are reverted.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sidecar.cli.client_files.configuration import (
    HOW_TO_REACH,
    URL_KEYS,
    ClientFile,
    ClientServer,
    read_client_file,
    slugs,
)
from sidecar.cli.client_files.formats import ClientFormat, program
from sidecar.cli.client_files.jsonc import JsonMember, JsonText, parse_jsonc
from sidecar.settings.yaml_nodes import Loc

_OURS = re.compile(r"https?://[^/\s]+(?:/[^\s?#]*)?/mcp/[a-z0-9]+(?:-[a-z0-9]+)*")


@dataclass(frozen=True)
class Wrapped:
    """The text that uses the sidecar, and the changed servers: place → address."""

    text: str
    changed: Mapping[Loc, str]


def leads_here(server: ClientServer, base: str) -> bool:
    return server.address.startswith(f"{base}/mcp/")


def wrap_at(file: ClientFile, addresses: Mapping[Loc, str], headers: Mapping[str, str] | None = None) -> Wrapped:
    client = file.client
    changed: dict[Loc, str] = {}
    edits: list[tuple[int, int, str]] = []
    for server in file.servers:
        address = addresses.get(server.loc)
        if address is None or server.address == address:
            continue
        edits += _edits(file.text, server, address, client, headers or {})
        changed[server.loc] = address
    return Wrapped(_edited(file.text.text, edits), changed)


def names_of(file: ClientFile, base: str) -> dict[Loc, str]:
    """Returns upstream names for the servers that do not use `base` yet."""
    ours = frozenset(server.address.rpartition("/")[2] for server in file.servers if leads_here(server, base))
    return slugs(tuple(server for server in file.servers if not leads_here(server, base)), ours)


def _edits(
    text: JsonText, server: ClientServer, address: str, client: ClientFormat, headers: Mapping[str, str]
) -> list[tuple[int, int, str]]:
    """Removes every key that defines how the server was reached, and writes the address in place of the first of
    them."""
    node = text.document.nearest(server.loc)
    assert isinstance(node.value, dict)
    members = [(key, text.members[(*server.loc, key)]) for key in node.value]
    going = [member for key, member in members if key in HOW_TO_REACH]
    staying = [member for key, member in members if key not in HOW_TO_REACH]
    first, others = going[0], going[1:]
    lines = _said(address, client, server, headers)
    before = _before(text.text, first.start)
    joint = ",\n" + before if not before.strip() and "\n" in text.text[: first.start] else ", "
    edits = [(first.start, first.end, joint.join(lines))]
    edits += [_removal(text.text, member) for member in others]
    last = max([first, *staying], key=lambda member: member.start)
    if members[-1][1].comma < 0 and last.comma >= 0:  # the new last entry must have no comma either
        edits.append((last.comma, last.comma + 1, ""))
    return edits


def _said(address: str, client: ClientFormat, server: ClientServer, headers: Mapping[str, str]) -> list[str]:
    if client.programs_only:
        bridge = program(address, needs_key=bool(headers))
        return [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in bridge.items()]
    kept = client.kind and server.url is not None and server.url_key in URL_KEYS
    lines = [f'"type": {json.dumps(client.kind)}'] if client.kind else []
    lines.append(f'"{server.url_key if kept else client.url_key}": {json.dumps(address)}')
    if headers:
        lines.append(f'"headers": {json.dumps(dict(headers))}')
    return lines


def _before(text: str, at: int) -> str:
    return text[text.rfind("\n", 0, at) + 1 : at]


def _removal(text: str, member: JsonMember) -> tuple[int, int, str]:
    """Returns the edit that removes a member with its comma, and its line if nothing else is on it."""
    start = member.start
    end = member.comma + 1 if member.comma >= 0 else member.end
    rest = re.compile(r"[ \t\r]*").match(text, end)
    assert rest is not None
    behind = rest.end()
    before = _before(text, start)
    if not before.strip() and text[behind : behind + 1] == "\n" and "\n" in text[:start]:
        return (start - len(before), behind + 1, "")
    if text[end:behind] and text[behind : behind + 1] != "\n":
        return (start, behind, "")
    return (start, end, "")


def _edited(text: str, edits: list[tuple[int, int, str]]) -> str:
    for start, end, instead in sorted(edits, reverse=True):
        text = text[:start] + instead + text[end:]
    return text


@dataclass(frozen=True)
class Unwrapped:
    """The restored file and entries, those that still use a sidecar, and whether it is the backup byte for byte."""

    raw: bytes
    restored: tuple[str, ...]
    left: tuple[str, ...] = ()
    exactly: bool = False


def unwrap(now: bytes, before: bytes, path: Path) -> Unwrapped:
    """Returns the text of `now` before it was wrapped, from its backup. Raises SettingsError if a file cannot be
    read."""
    current, original = (read_client_file(parse_jsonc(raw, path)) for raw in (now, before))
    old = {server.loc: server for server in original.servers}
    leading = [server for server in current.servers if _OURS.fullmatch(server.address)]
    ours = [server for server in leading if server.loc in old and server.address != old[server.loc].address]
    addresses = {server.loc: server.address for server in ours}
    names = tuple(server.name for server in ours)
    identifying: Mapping[str, str] = ours[0].headers if ours else {}
    if ours and "--api-key-path" in ours[0].args:  # of a bridge, only whether it has a credential is compared
        identifying = {"X-API-Key": ""}
    if wrap_at(original, addresses, identifying).text.encode() == now:
        return Unwrapped(before, names, exactly=True)
    members = current.text.members
    edits = [(members[loc].value, members[loc].end, original.text.piece(loc)) for loc in addresses]
    left = tuple(server.name for server in leading if server.loc not in old)
    return Unwrapped(_edited(current.text.text, edits).encode(), names, left)


def backup_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.before-sidecar")


def keep_backup(path: Path, raw: bytes) -> Path:
    """Copies the file to a backup next to it, with its mode. Overwrites nothing. Raises OSError."""
    mode, backup = path.stat().st_mode & 0o777, backup_of(path)
    descriptor = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(raw)
        file.flush()
        os.fsync(descriptor)
    return backup
