"""`sidecar wrap`, `unwrap` and `client-config`: leads an MCP client's configuration through a sidecar."""

from pathlib import Path

import click

from sidecar.cli.client_files.configuration import open_client_file
from sidecar.cli.client_files.formats import (
    CLIENTS,
    KEY_FILE,
    KEY_VARIABLE,
    NO_ADDRESS,
    ClientAddress,
    entrance_of,
    headers_for,
    snippet,
    written,
)
from sidecar.cli.client_files.jsonc import MAX_BYTES, read_jsonc
from sidecar.cli.client_files.wrap import backup_of, keep_backup, leads_here, names_of, unwrap as unwrapped, wrap_at
from sidecar.cli.command import CommandFailed, config_and_json, json_option, print_json, settings_in
from sidecar.errors import visible
from sidecar.http.client import parse_origin
from sidecar.settings.reading import read_bounded
from sidecar.settings.sidecar_file import Settings
from sidecar.settings.writing import write_whole

LOCAL = "http://127.0.0.1:8070"
"""The local address that `sidecar init` writes."""

_file = click.argument("path", metavar="FILE", type=click.Path(path_type=Path))


@click.command()
@_file
@click.option("-c", "--config", type=click.Path(path_type=Path), help="The configuration of the sidecar.")
@click.option("--url", metavar="URL", help=f"The sidecar's base address, instead of --config.  [default: {LOCAL}]")
@json_option
def wrap(path: Path, config: Path | None, url: str | None, as_json: bool) -> None:
    """Point an MCP client's configuration at a sidecar. `unwrap` undoes it.

    Each server in FILE gets its address at the sidecar. The original file is saved as FILE.before-sidecar."""
    file, raw = open_client_file(path)
    settings = settings_in(config) if config and config.exists() else None
    if config and settings is None:
        raise CommandFailed(f"{config} is not there: `sidecar init --from {path}` writes one")
    entrance = _entrance(url, settings)
    wanted, notes = names_of(file, entrance.base), list[str]()
    if file.elsewhere:
        notes.append(f'{file.elsewhere} servers under "projects" stay as they are: they do not lead here')
    known = frozenset(settings.upstreams) if settings else frozenset[str]()
    if settings is not None and config is not None:
        missing = [server for server in file.servers if server.loc in wanted and wanted[server.loc] not in known]
        if any(not server.disabled for server in missing):  # disabled ones are omitted below
            listed = ", ".join(f"{server.name} ({wanted[server.loc]})" for server in missing)
            raise CommandFailed(f"{config} has no upstream for {listed}: add them there")
    for server in file.servers:
        if server.disabled and server.loc in wanted and wanted[server.loc] not in known:
            del wanted[server.loc]
            notes.append(f"{server.name} is switched off and stays as it is: wrap it when it is switched on")
    if wanted and backup_of(path).exists():
        raise CommandFailed(f"{path} was wrapped before: run `sidecar unwrap {path}` first")
    client = file.client
    headers = headers_for(entrance, client)
    addresses = {loc: f"{entrance.base}/mcp/{name}" for loc, name in wanted.items()}
    wrapped = wrap_at(file, addresses, headers)
    backup = _written(path, raw, wrapped.text) if wrapped.changed else None
    if as_json:
        told = {
            "file": str(path),
            "backup": str(backup) if backup else None,
            "wrapped": {str(loc[-1]): address for loc, address in wrapped.changed.items()},
            "already": [server.name for server in file.servers if leads_here(server, entrance.base)],
            "notes": notes,
        }
        print_json(told)
        return
    for loc, address in wrapped.changed.items():
        click.echo(visible(f"{loc[-1]} → {address}"))
    if headers:
        bridged = client.programs_only
        where = f"replace {KEY_FILE} by its path" if bridged else f"set {KEY_VARIABLE} for the client"
        notes.append(f"callers there need an API key: {where}")
    for note in notes:
        click.echo(visible(f"note: {note}"), err=True)
    done = f"wrote {path}; the original is {backup}"
    click.echo(done if backup else f"{path} leads here already: nothing was changed")


@click.command()
@_file
@json_option
def unwrap(path: Path, as_json: bool) -> None:
    """Undo `wrap` in an MCP client's configuration.

    A file that has not been edited since is restored byte for byte; otherwise only the sidecar's entries are reverted.
    """
    _, raw = read_jsonc(path)
    backup = backup_of(path)
    if not backup.exists():
        raise CommandFailed(f"{path} has no backup {backup.name}: nothing to restore")
    done = unwrapped(raw, read_bounded(backup, MAX_BYTES), path)
    _put_if_unchanged(path, raw, done.raw)
    if not done.left:
        backup.unlink()
    if as_json:
        print_json({"file": str(path), "exactly": done.exactly, "restored": done.restored, "left": done.left})
        return
    if done.exactly:
        click.echo(f"{path} is restored, byte for byte")
    else:
        restored = visible(", ".join(done.restored)) or "nothing"
        kept = f"; {backup.name} remains" if done.left else ""
        click.echo(f"{path} was edited since: restored {restored}, the rest is unchanged{kept}")
    for name in map(visible, done.left):
        click.echo(f"note: {name} leads to a sidecar, and no backup has its old address: left as it is", err=True)


@click.command("client-config")
@click.option("--for", "client", type=click.Choice(sorted(CLIENTS)), required=True, help="The client.")
@click.option("--server", metavar="NAME", help="Only this upstream.")
@config_and_json
def client_config(client: str, server: str | None, config: Path, as_json: bool) -> None:
    """Print the configuration with which an MCP client reaches the upstreams of a sidecar."""
    settings, kind = settings_in(config), CLIENTS[client]
    if server is not None and server not in settings.upstreams:
        there = ", ".join(settings.upstreams) or "none"
        raise CommandFailed(f"{config} has no upstream {server}: it has {there}")
    entrance = entrance_of(settings)
    if entrance is None:
        raise CommandFailed(f"{config} {NO_ADDRESS}")
    said = snippet(kind, entrance, [server] if server else settings.upstreams)
    if as_json:
        print_json(said)
        return
    click.echo(f"# {kind.file}", err=True)
    if entrance.needs_key:
        where = f"in {KEY_FILE}" if kind.programs_only else f"as {KEY_VARIABLE} in its environment"
        click.echo(f"# with an API key (sidecar token api-key) {where}", err=True)
    click.echo(written(kind, said))


def _entrance(url: str | None, settings: Settings | None) -> ClientAddress:
    if url is not None:
        try:
            parse_origin(url)
            is_base = "?" not in url
        except ValueError:
            is_base = False
        if not is_base:
            raise click.UsageError("--url is a base address such as http://127.0.0.1:8070")
        return ClientAddress(url.rstrip("/").removesuffix("/mcp"), False)
    if settings is None:
        return ClientAddress(LOCAL, False)
    found = entrance_of(settings)
    if found is None:
        raise CommandFailed(f"sidecar.yaml {NO_ADDRESS}")
    return found


def _written(path: Path, raw: bytes, text: str) -> Path:
    backup = keep_backup(path, raw)
    try:
        _put_if_unchanged(path, raw, text.encode())
    except BaseException:
        backup.unlink()
        raise
    return backup


def _put_if_unchanged(path: Path, raw: bytes, wanted: bytes) -> None:
    """Replaces the file only if it is unchanged, because a running client may write to it too."""
    if read_bounded(path, MAX_BYTES) != raw:
        raise CommandFailed(f"{path} was changed meanwhile: nothing was written, try again")
    write_whole(path, wanted)
