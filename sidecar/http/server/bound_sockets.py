"""Binds listening sockets."""

from __future__ import annotations

import socket
from pathlib import Path

from sidecar.errors import SettingsError, fault_in
from sidecar.settings.addresses import ListenAddress, UnixAddress


def bound_socket(address: ListenAddress | UnixAddress) -> socket.socket:
    """Returns a socket that is bound to the address and does not listen yet. Raises OSError."""
    if isinstance(address, UnixAddress):
        family = socket.AF_UNIX
    else:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if isinstance(address, UnixAddress):
            address.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _remove_dead(address.path)
            sock.bind(str(address.path))
            address.path.chmod(0o600)  # before listen(), so that no client connects with wider permissions
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((address.host, address.port))
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def unbound(config: Path, address: ListenAddress | UnixAddress, error: OSError) -> SettingsError:
    """Returns the error for an address in the settings file `config` that cannot be listened on."""
    message = f"cannot listen on {address}: {error.strerror or error}"
    hint = "choose a data folder with a shorter path" if isinstance(address, UnixAddress) else ""
    return SettingsError([fault_in(config, message, code="S133", hint=hint)])


def _remove_dead(path: Path) -> None:
    """Removes a socket file without a listener, left over from a killed process; one that answers is in use."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a full backlog would hold a blocking connect forever
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        except BlockingIOError:
            pass
