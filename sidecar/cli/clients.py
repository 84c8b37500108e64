"""`sidecar wrap`, `unwrap` and `client-config`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import click
import orjson

from sidecar.cli.client_files.configuration import ClientFile, open_client_file
from sidecar.cli.client_files.jsonc import read_jsonc
from sidecar.cli.client_files.snippets import (
    CLIENTS,
    KEY_FILE,
    KEY_VARIABLE,
    ClientAddress,
    client_of,
    entrance_of,
    headers_for,
    snippet,
    written,
)
from sidecar.cli.client_files.wrap import (
    backups_of,
    keep_backup,
    leads_here,
    names_of,
    unwrap_all,
    wrap_at,
    wrapped_before,
)
from sidecar.errors import ConfigError, visible, visible_lines
from sidecar.settings import Settings, load_settings
from sidecar.settings.writing import write_whole
from sidecar.settings.yaml_nodes import Loc

NO, INVALID = 1, 3
LOCAL = "http://127.0.0.1:8070"
"""The local address that `sidecar init` writes."""

_file = click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command()
@_file
@click.option("-c", "--config", "config", type=click.Path(path_type=Path), help="The sidecar that it shall lead to.")
@click.option("--url", metavar="URL", help=f"Or its base address.  [default: {LOCAL}]")
@click.option("--into", type=click.Path(file_okay=False, path_type=Path), help="Add its servers to this folder.")
@_as_json
def wrap(path: Path, config: Path | None, url: str | None, into: Path | None, as_json: bool) -> None:
    """Let an MCP client's configuration lead through a sidecar. `unwrap` takes it back.

    Each server in FILE gets the address that the sidecar has for it. The file as it was stays beside it as
    FILE.before-sidecar.
    """
    try:
        file, raw = open_client_file(path)
        config = into / "sidecar.yaml" if into and config is None else config
        settings = load_settings(config, os.environ, check_files=False) if config and config.exists() else None
        if config and settings is None and not into:
            _end(f"{config} is not there: `sidecar init --from {path}` writes one", NO)
        entrance = _entrance(url, settings)
        known = frozenset(settings.upstreams) if settings else frozenset[str]()
        if astray := wrapped_before(file, entrance.base):
            _end(f"{', '.join(astray)}: wrapped already, to another address; run `sidecar unwrap {path}` first", NO)
        names, notes = names_of(file, entrance.base), list[str]()
        if into and names:
            names, notes = _joined(file, into, entrance.base)
        if file.elsewhere and not into:
            notes.append(f'{file.elsewhere} servers under "projects" stay as they are: they do not lead here')
        if settings is not None and not into:
            _refuse_unknown(file, names, known, config)
        off = [s for s in file.servers if s.disabled and s.loc in names and names[s.loc] not in known]
        for server in off:
            del names[server.loc]
            notes.append(f"{server.name} is switched off and stays as it is: wrap it when it is switched on")
        client = client_of(file)
        headers = headers_for(entrance, client)
        wrapped = wrap_at(file, entrance.base, names, headers)
        backup = _written(path, raw, wrapped.text) if wrapped.changed else None
    except ConfigError as error:
        _end(str(error), INVALID)
    except OSError as error:
        _end(f"cannot write: {(error.strerror or str(error)).lower()}: {error.filename or path}", NO)
    already = [server.name for server in file.servers if leads_here(server, entrance.base)]
    _tell_wrapped(path, wrapped.changed, already, backup, notes, headers, as_json, bridged=client.programs_only)


@click.command()
@_file
@_as_json
def unwrap(path: Path, as_json: bool) -> None:
    """Put back what `wrap` changed in an MCP client's configuration.

    A file that nobody edited since is again what it was, byte for byte; in one that was, our entries alone go back.
    """
    try:
        _, raw = read_jsonc(path)
        backups = backups_of(path)
        if not backups:
            _end(f"{path} has no backup {path.name}.before-sidecar: nothing to put back", NO)
        done = unwrap_all(raw, [backup.read_bytes() for backup in backups], path)
        _put_if_unchanged(path, raw, done.raw)
        if done.left:
            kept = f"; {backups[0].name} was kept"
        else:
            kept = ""
            for backup in backups:
                backup.unlink()
    except ConfigError as error:
        _end(str(error), INVALID)
    except OSError as error:
        _end(f"cannot write: {(error.strerror or str(error)).lower()}: {error.filename or path}", NO)
    if as_json:
        told = {"file": str(path), "exactly": done.exactly, "restored": done.restored, "left": done.left}
        click.echo(orjson.dumps(told, option=orjson.OPT_INDENT_2))
        return
    if done.exactly:
        click.echo(f"{path} is again what it was, byte for byte")
    else:
        restored = visible(", ".join(done.restored)) or "nothing"
        click.echo(f"{path} was edited since: put back {restored}, all else stays{kept}")
    for name in map(visible, done.left):
        click.echo(f"note: {name} leads to a sidecar, and no backup says where it led before: left as it is", err=True)


@click.command("client-config")
@click.option("--for", "client", type=click.Choice(sorted(CLIENTS)), required=True, help="Whose configuration.")
@click.option("--server", "server", metavar="NAME", help="One upstream alone.")
@click.option("-c", "--config", "path", type=click.Path(path_type=Path), default="sidecar.yaml", show_default=True)
@_as_json
def client_config(client: str, server: str | None, path: Path, as_json: bool) -> None:
    """Print what an MCP client writes in its configuration to reach the upstreams of a sidecar."""
    try:
        settings = load_settings(path, os.environ, check_files=False)
    except ConfigError as error:
        _end(str(error), INVALID)
    if server is not None and server not in settings.upstreams:
        _end(f"{path} has no upstream {server}: it has {', '.join(settings.upstreams) or 'none'}", NO)
    entrance = entrance_of(settings)
    if entrance is None:
        _end(f"{path} has no address that a client could write: add a local listener such as 127.0.0.1:8070", NO)
    said = snippet(CLIENTS[client], entrance, [server] if server else settings.upstreams)
    if not as_json:
        click.echo(f"# {CLIENTS[client].file}", err=True)
        if entrance.needs_key:
            where = f"in {KEY_FILE}" if CLIENTS[client].programs_only else f"as {KEY_VARIABLE} in its environment"
            click.echo(f"# with an API key (sidecar token api-key) {where}", err=True)
    click.echo(orjson.dumps(said, option=orjson.OPT_INDENT_2) if as_json else written(CLIENTS[client], said))


def _entrance(url: str | None, settings: Settings | None) -> ClientAddress:
    if url is not None:
        from urllib.parse import urlsplit

        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or "@" in url:
            raise click.UsageError("--url is a base address such as http://127.0.0.1:8070")
        return ClientAddress(url.rstrip("/").removesuffix("/mcp"), False)
    if settings is None:
        return ClientAddress(LOCAL, False)
    found = entrance_of(settings)
    if found is None:
        _end("sidecar.yaml has no address that a client could write: add a local listener such as 127.0.0.1:8070", NO)
    return found


def _joined(file: ClientFile, into: Path, base: str) -> tuple[dict[Loc, str], list[str]]:
    from sidecar.cli.init import join

    ours = frozenset(server.address.rpartition("/")[2] for server in file.servers if leads_here(server, base))
    left = tuple(server for server in file.servers if not leads_here(server, base))
    return join(replace(file, servers=left), into, os.environ, ours)


def _refuse_unknown(file: ClientFile, names: Mapping[Loc, str], known: frozenset[str], config: Path | None) -> None:
    """Refuse servers that no upstream is configured for."""
    missing = [f"{s.name} ({names[s.loc]})" for s in file.servers if s.loc in names and names[s.loc] not in known]
    enabled = [s for s in file.servers if not s.disabled and s.loc in names and names[s.loc] not in known]
    if enabled:
        folder = config.parent if config else "DIR"
        _end(f"{config} has no upstream for {', '.join(missing)}: --into {folder} adds them", NO)


def _written(path: Path, raw: bytes, text: str) -> Path:
    backup = keep_backup(path, raw)
    try:
        _put_if_unchanged(path, raw, text.encode())
    except BaseException:
        backup.unlink()
        raise
    return backup


def _put_if_unchanged(path: Path, raw: bytes, wanted: bytes) -> None:
    """Replace the file only if it is unchanged: a running client may write its file too, and its changes must not
    be lost.
    """
    if path.read_bytes() != raw:
        _end(f"{path} was changed meanwhile: nothing was written, try again", NO)
    write_whole(path, wanted)


def _tell_wrapped(
    path: Path,
    changed: Mapping[Loc, str],
    already: list[str],
    backup: Path | None,
    notes: list[str],
    headers: Mapping[str, str],
    as_json: bool,
    *,
    bridged: bool,
) -> None:
    if as_json:
        told = {
            "file": str(path),
            "backup": str(backup) if backup else None,
            "wrapped": {str(loc[-1]): address for loc, address in changed.items()},
            "already": already,
            "notes": notes,
        }
        click.echo(orjson.dumps(told, option=orjson.OPT_INDENT_2))
        return
    for loc, address in changed.items():
        click.echo(visible(f"{loc[-1]} → {address}"))
    for note in notes:
        click.echo(visible(f"note: {note}"), err=True)
    if headers:
        where = f"put its path where {KEY_FILE} stands" if bridged else f"set {KEY_VARIABLE} for the client"
        click.echo(f"note: callers there need an API key: {where}", err=True)
    if backup is None:
        click.echo(f"{path} leads here already: nothing was changed")
    else:
        click.echo(f"wrote {path}; as it was: {backup}")


def _end(message: str, code: int) -> NoReturn:
    click.echo(visible_lines(message), err=True)
    raise SystemExit(code)
