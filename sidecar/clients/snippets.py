"""What does a client write in its configuration to reach our upstreams?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sidecar.settings.addresses import Address
from sidecar.settings.root import Settings

KEY_VARIABLE: Final = "SIDECAR_API_KEY"


@dataclass(frozen=True, slots=True)
class Client:
    """Where a client keeps its servers, and how it writes an address and a variable. `programs_only`: it reads no
    address from its file."""

    file: str
    container: str
    url_key: str = "url"
    typed: bool = False
    variable: str = "${%s}"
    programs_only: bool = False


CLIENTS: Final[Mapping[str, Client]] = {
    "claude": Client(".mcp.json", "mcpServers", typed=True),
    "claude-desktop": Client("claude_desktop_config.json", "mcpServers", programs_only=True),
    "vscode": Client(".vscode/mcp.json", "servers", typed=True, variable="${env:%s}"),
    "cursor": Client(".cursor/mcp.json", "mcpServers", variable="${env:%s}"),
    "windsurf": Client("~/.codeium/windsurf/mcp_config.json", "mcpServers", "serverUrl", variable="${env:%s}"),
    "gemini": Client("~/.gemini/settings.json", "mcpServers", "httpUrl"),
}


@dataclass(frozen=True, slots=True)
class Entrance:
    """A base address, and whether callers there must show who they are."""

    base: str
    needs_key: bool


def entrance_of(settings: Settings) -> Entrance | None:
    """Where callers of this machine come in: the first local address, else the data listener. None where neither has
    an address that a client could write."""
    for local in settings.local:
        if isinstance(local.listen, Address) and local.listen.port:
            return Entrance(f"http://{local.listen}", False)
    if settings.server.public_url:
        return Entrance(settings.server.public_url, True)
    listen = settings.server.listen
    if isinstance(listen, Address) and listen.port:
        scheme = "http" if settings.server.tls in (None, "external") else "https"
        return Entrance(f"{scheme}://{listen}", True)
    return None


def headers_for(entrance: Entrance, client: Client) -> dict[str, str]:
    """A placeholder for the API key, where one is needed: the key itself stays in the environment."""
    return {"X-API-Key": client.variable % KEY_VARIABLE} if entrance.needs_key else {}


def snippet(client: Client, entrance: Entrance, names: Iterable[str]) -> dict[str, Any]:
    """The part of the client's file that names these upstreams."""
    return {client.container: {name: _entry(client, entrance, name) for name in names}}


def _entry(client: Client, entrance: Entrance, name: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "http"} if client.typed else {}
    entry[client.url_key] = f"{entrance.base}/mcp/{name}"
    if headers := headers_for(entrance, client):
        entry["headers"] = headers
    return entry
