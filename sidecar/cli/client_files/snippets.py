"""Writes the configuration with which clients reach the sidecar's upstreams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson
import yaml

from sidecar.cli.client_files.configuration import ClientFile
from sidecar.settings.addresses import ListenAddress
from sidecar.settings.sidecar_file import Settings

KEY_VARIABLE: Final = "SIDECAR_API_KEY"
KEY_FILE: Final = "/path/to/the/api-key"
NO_ADDRESS: Final = "has no address that a client could write: add a local listener such as 127.0.0.1:8070"


@dataclass(frozen=True, slots=True)
class ClientKind:
    """Where a client keeps its servers, and how it writes an address and a variable. `kind` is the `type` of an entry
    with an address. `programs_only` is true if it reads no address from its file, or no header with a variable.
    """

    file: str
    container: str
    url_key: str = "url"
    kind: str = ""
    variable: str = "${%s}"
    programs_only: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)
    headers_key: str = "headers"
    form: Literal["json", "toml", "yaml"] = "json"


CLIENTS: Final[Mapping[str, ClientKind]] = {
    "claude": ClientKind(".mcp.json", "mcpServers", kind="http"),
    "claude-desktop": ClientKind("claude_desktop_config.json", "mcpServers", programs_only=True),
    "vscode": ClientKind(".vscode/mcp.json", "servers", kind="http", variable="${env:%s}"),
    "cursor": ClientKind(".cursor/mcp.json", "mcpServers", variable="${env:%s}"),
    "windsurf": ClientKind("~/.codeium/windsurf/mcp_config.json", "mcpServers", "serverUrl", variable="${env:%s}"),
    "gemini": ClientKind("~/.gemini/settings.json", "mcpServers", "httpUrl"),
    "cline": ClientKind("cline_mcp_settings.json", "mcpServers", kind="streamableHttp", variable="${env:%s}"),
    "roo": ClientKind(".roo/mcp.json", "mcpServers", kind="streamable-http", variable="${env:%s}"),
    "codex": ClientKind(
        "~/.codex/config.toml", "mcp_servers", variable="%s", headers_key="env_http_headers", form="toml"
    ),
    "zed": ClientKind("~/.config/zed/settings.json", "context_servers", programs_only=True),
    "opencode": ClientKind("opencode.json", "mcp", kind="remote", variable="{env:%s}", more={"enabled": True}),
    "goose": ClientKind(
        "~/.config/goose/config.yaml", "extensions", "uri", "streamable_http", more={"enabled": True}, form="yaml"
    ),
}


_FILES: Final[Mapping[str, str]] = {
    "claude_desktop_config.json": "claude-desktop",
    "cline_mcp_settings.json": "cline",
    "mcp_settings.json": "roo",
}
_FOLDERS: Final[Mapping[str, str]] = {
    ".cursor": "cursor",
    "windsurf": "windsurf",
    ".gemini": "gemini",
    ".roo": "roo",
    ".vscode": "vscode",
}
_KEYS: Final[Mapping[str, str]] = {"serverUrl": "windsurf", "httpUrl": "gemini"}


def client_of(file: ClientFile) -> ClientKind:
    """Identify a file's client by file name, the spelling of other entries, folder, or format."""
    if named := _FILES.get(file.path.name):
        return CLIENTS[named]
    spelt = [_KEYS[server.url_key] for server in file.servers if server.url_key in _KEYS]
    placed = [_FOLDERS[part] for part in file.path.absolute().parts if part in _FOLDERS]
    root = file.text.document.root.value
    formed = ["vscode"] if isinstance(root, dict) and "servers" in root else []
    return CLIENTS[next(iter([*spelt, *placed, *formed]), "claude")]


@dataclass(frozen=True, slots=True)
class ClientAddress:
    """A base address, and whether callers must authenticate there."""

    base: str
    needs_key: bool


def entrance_of(settings: Settings) -> ClientAddress | None:
    """Return the address for callers on this machine: the first local address, else the data listener. None if neither
    has an address that a client could use.
    """
    for local in settings.local:
        if isinstance(local.listen, ListenAddress) and local.listen.port:
            return ClientAddress(f"http://{local.listen}", False)
    if settings.server.public_url:
        return ClientAddress(settings.server.public_url, True)
    listen = settings.server.listen
    if isinstance(listen, ListenAddress) and listen.port:
        scheme = "http" if settings.server.tls in (None, "external") else "https"
        return ClientAddress(f"{scheme}://{listen}", True)
    return None


def headers_for(entrance: ClientAddress, client: ClientKind) -> dict[str, str]:
    """Return a placeholder for the API key, if one is needed: the key itself stays in the environment."""
    return {"X-API-Key": client.variable % KEY_VARIABLE} if entrance.needs_key else {}


def snippet(client: ClientKind, entrance: ClientAddress, names: Iterable[str]) -> dict[str, Any]:
    """Return the part of the client's file that names these upstreams."""
    return {client.container: {name: entry(client, entrance, name) for name in names}}


def entry(client: ClientKind, entrance: ClientAddress, name: str) -> dict[str, Any]:
    """Return the entry of one upstream, in the client's format."""
    address = f"{entrance.base}/mcp/{name}"
    if client.programs_only:
        return {**client.more, **program(address, needs_key=entrance.needs_key)}
    said: dict[str, Any] = {"type": client.kind} if client.kind else {}
    if client.form == "yaml":
        said["name"] = name
    said |= {client.url_key: address, **client.more}
    if headers := headers_for(entrance, client):
        said[client.headers_key] = headers
    return said


def program(address: str, *, needs_key: bool) -> dict[str, Any]:
    """Return the bridge to an address, as a program that a client starts."""
    key = ["--api-key-path", KEY_FILE] if needs_key else []
    return {"command": "sidecar", "args": ["connect", address, *key]}


def written(client: ClientKind, said: Mapping[str, Any]) -> str:
    """Return a snippet in the format of the client's file."""
    if client.form == "yaml":
        return yaml.safe_dump(dict(said), sort_keys=False, allow_unicode=True).rstrip()
    if client.form == "json":
        return orjson.dumps(said, option=orjson.OPT_INDENT_2).decode()
    return "\n".join(
        line
        for container, entries in said.items()
        for name, values in entries.items()
        for line in (f"[{container}.{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items()), "")
    ).rstrip()


def _toml(value: Any) -> str:
    """Return a string or a table of strings as TOML; a JSON string is a valid TOML string."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml(key)} = {_toml(one)}" for key, one in value.items()) + " }"
    return orjson.dumps(value).decode()
