"""Resolves the configured listeners and the host names each one answers to."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from sidecar.errors import SettingsError, fault_in
from sidecar.gateway.routing import Entrance, hosts_for
from sidecar.http.server.listeners import Listener, open_listener
from sidecar.settings import Settings
from sidecar.settings.addresses import ListenAddress, UnixAddress


def take(address: ListenAddress | UnixAddress, undo: AsyncExitStack, config: Path) -> Listener:
    """Bind an address; `undo` releases it if the start fails. Raises SettingsError, naming `config`, if it cannot be
    bound."""
    try:
        listener = open_listener(address)
    except OSError as error:
        message = f"{address} cannot be listened on: {error.strerror or error}"
        hint = "choose a data folder with a shorter path" if isinstance(address, UnixAddress) else ""
        raise SettingsError([fault_in(config, message, code="S133", hint=hint)]) from None
    undo.push_async_callback(listener.close, 0.0)
    return listener


def base_url_of(settings: Settings, data: Listener) -> str:
    """The URL under which callers reach this sidecar, without a trailing slash."""
    if settings.server.public_url is not None:
        return str(settings.server.public_url).rstrip("/")
    if isinstance(data.address, UnixAddress):
        return "http://localhost"
    scheme = "http" if settings.server.tls is None else "https"
    return f"{scheme}://{replace(data.address, port=data.port)}"


def data_entrance(settings: Settings, listener: Listener) -> Entrance:
    """The entrance of the data listener."""
    server = settings.server
    hosts = _hosts(listener, str(server.public_url or ""), server.allowed_hosts)
    # Pages under this sidecar's own host names are same-origin. `hosts` lists the accepted names, which rules out DNS
    # rebinding.
    own = {f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts if host.endswith(f":{listener.port}")}
    if server.public_url:
        own.add(str(server.public_url).lower().rstrip("/"))
    shared = frozenset(origin.lower() for origin in server.allowed_origins)
    prefix = urlsplit(str(server.public_url or "")).path.rstrip("/")
    return Entrance(hosts, shared | own, shared, prefix=prefix, unix=isinstance(listener.address, UnixAddress))


def local_entrance(listener: Listener, principal: str = "") -> Entrance:
    """The entrance of a listener that no web page may call: a local one of `principal`, or the admin one."""
    return Entrance(hosts=_hosts(listener), principal=principal)


def _hosts(listener: Listener, public_url: str = "", allowed: Sequence[str] = ()) -> frozenset[str]:
    if isinstance(listener.address, UnixAddress):
        return hosts_for("localhost", 80, public_url, allowed)
    return hosts_for(listener.address.host, listener.port, public_url, allowed)
