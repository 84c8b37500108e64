"""The formats of MCP clients' configurations: one table, and the configuration with which each client reaches the
sidecar."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import orjson
import yaml

from sidecar.settings.addresses import ListenAddress
from sidecar.settings.sidecar_file import Settings

KEY_VARIABLE: Final = "SIDECAR_API_KEY"
KEY_FILE: Final = "/path/to/the/api-key"
NO_ADDRESS: Final = "has no address that a client could write: add a local listener such as 127.0.0.1:8070"


@dataclass(frozen=True, slots=True)
class ClientFormat:
    """Where a client stores its servers, and how it writes an address and a variable. `kind` is the `type` of an entry
    with an address; `folder` is a part of the paths of its files, if they are read and edited here. `programs_only` is
    true if it reads no address from its file, or no header with a variable."""

    file: str
    container: str
    url_key: str = "url"
    kind: str = ""
    variable: str = "${%s}"
    folder: str = ""
    programs_only: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)
    headers_key: str = "headers"
    form: Literal["json", "toml", "yaml"] = "json"


_ENV: Final = "${env:%s}"
CLIENTS: Final[Mapping[str, ClientFormat]] = {
    "claude": ClientFormat(".mcp.json", "mcpServers", kind="http"),
    "claude-desktop": ClientFormat("claude_desktop_config.json", "mcpServers", programs_only=True),
    "vscode": ClientFormat(".vscode/mcp.json", "servers", kind="http", variable=_ENV, folder=".vscode"),
    "cursor": ClientFormat(".cursor/mcp.json", "mcpServers", variable=_ENV, folder=".cursor"),
    "windsurf": ClientFormat(
        "~/.codeium/windsurf/mcp_config.json", "mcpServers", "serverUrl", variable=_ENV, folder="windsurf"
    ),
    "gemini": ClientFormat("~/.gemini/settings.json", "mcpServers", "httpUrl", folder=".gemini"),
    "cline": ClientFormat("cline_mcp_settings.json", "mcpServers", kind="streamableHttp", variable=_ENV),
    "roo": ClientFormat(".roo/mcp.json", "mcpServers", kind="streamable-http", variable=_ENV, folder=".roo"),
    "codex": ClientFormat(
        "~/.codex/config.toml", "mcp_servers", variable="%s", headers_key="env_http_headers", form="toml"
    ),
    "zed": ClientFormat("~/.config/zed/settings.json", "context_servers", programs_only=True),
    "opencode": ClientFormat("opencode.json", "mcp", kind="remote", variable="{env:%s}", more={"enabled": True}),
    "goose": ClientFormat(
        "~/.config/goose/config.yaml", "extensions", "uri", "streamable_http", more={"enabled": True}, form="yaml"
    ),
}
_NAMES: Final[Mapping[str, str]] = {
    "claude_desktop_config.json": "claude-desktop",
    "cline_mcp_settings.json": "cline",
    "mcp_settings.json": "roo",
}


def client_of(path: Path, url_keys: Iterable[str], root: object) -> ClientFormat:
    """Identifies a file's client by file name, the spelling of its entries, folder, or format."""
    if named := _NAMES.get(path.name):
        return CLIENTS[named]
    own = {one.url_key: one for one in CLIENTS.values() if one.url_key not in ("url", "uri")}
    folders = {one.folder: one for one in CLIENTS.values() if one.folder}
    spelt = [own[key] for key in url_keys if key in own]
    placed = [folders[part] for part in path.absolute().parts if part in folders]
    formed = [CLIENTS["vscode"]] if isinstance(root, dict) and "servers" in root else []
    return next(iter([*spelt, *placed, *formed]), CLIENTS["claude"])


@dataclass(frozen=True, slots=True)
class ClientAddress:
    base: str
    needs_key: bool


def entrance_of(settings: Settings) -> ClientAddress | None:
    """The first local address, otherwise the data listener's; None if a client can use neither."""
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


def headers_for(entrance: ClientAddress, client: ClientFormat) -> dict[str, str]:
    return {"X-API-Key": client.variable % KEY_VARIABLE} if entrance.needs_key else {}


def snippet(client: ClientFormat, entrance: ClientAddress, names: Iterable[str]) -> dict[str, Any]:
    return {client.container: {name: _entry(client, entrance, name) for name in names}}


def _entry(client: ClientFormat, entrance: ClientAddress, name: str) -> dict[str, Any]:
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
    key = ["--api-key-path", KEY_FILE] if needs_key else []
    return {"command": "sidecar", "args": ["connect", address, *key]}


def written(client: ClientFormat, said: Mapping[str, Any]) -> str:
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
    """A string or a table of strings as TOML; a JSON string is a valid TOML string."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml(key)} = {_toml(one)}" for key, one in value.items()) + " }"
    return orjson.dumps(value).decode()
