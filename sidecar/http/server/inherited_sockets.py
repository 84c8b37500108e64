"""Takes the listening sockets that a service manager or supervisor passes to the process, by their address.

They are descriptors from 3 on. `LISTEN_FDS` is their number, `LISTEN_PID` is the intended process, and `LISTEN_FDNAMES`
are their names, which appear in messages only (sd_listen_fds of systemd). Connections that arrive while no process
serves wait in the socket, so that a restart loses none.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Mapping
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from sidecar.errors import SettingsError, fault_in
from sidecar.settings.addresses import ListenAddress, UnixAddress

FIRST_FD: Final = 3
MAX_FDS: Final = 64


class InheritedSockets:
    """The sockets that no listener has taken yet, by address."""

    def __init__(self, environ: Mapping[str, str], pid: int, first_fd: int = FIRST_FD) -> None:
        """Without `LISTEN_PID` the sockets are for any process. Raises OSError if a descriptor is not a socket, or for
        more than MAX_FDS."""
        self._sockets: dict[str, tuple[str, socket.socket]] = {}
        count, recipient = environ.get("LISTEN_FDS", ""), environ.get("LISTEN_PID", str(pid))
        if not count.isdecimal() or recipient != str(pid):
            return
        if int(count) > MAX_FDS:
            raise OSError(f"LISTEN_FDS names {count} sockets, and at most {MAX_FDS} are supported")
        names = environ.get("LISTEN_FDNAMES", "").split(":")
        for number, fd in enumerate(range(first_fd, first_fd + int(count))):
            try:
                sock = socket.socket(fileno=fd)
            except OSError as error:
                raise OSError(
                    f"LISTEN_FDS names {count} sockets, and descriptor {fd} is not a socket: {error}"
                ) from None
            sock.set_inheritable(False)
            self._sockets[_address_of(sock)] = (names[number] if number < len(names) else "", sock)

    def take(self, address: ListenAddress | UnixAddress) -> socket.socket | None:
        """Returns the socket that is bound to an address, once; None if there is none. Raises PermissionError if it is
        a file that every user may open: a listener on a Unix socket trusts those who can open it."""
        key = f"unix:{os.path.realpath(address.path)}" if isinstance(address, UnixAddress) else _key(address)
        if key not in self._sockets:
            return None
        if isinstance(address, UnixAddress) and stat.S_IMODE(address.path.stat().st_mode) & stat.S_IRWXO:
            raise PermissionError("every user may open this socket: write SocketMode=0660, or less, in its unit")
        _, sock = self._sockets.pop(key)
        sock.setblocking(False)
        return sock

    def check_all_taken(self, config: Path) -> None:
        """Closes the sockets that no listener of the settings file `config` has taken. Raises SettingsError if there
        are any."""
        if unused := self.close():
            message = f"no listener has the address of a socket that was passed: {', '.join(unused)}"
            hint = "write the same address in the socket unit and here; the gRPC listener binds its own"
            raise SettingsError([fault_in(config, message, code="S135", hint=hint)])

    def close(self) -> tuple[str, ...]:
        """Closes the sockets that no listener has taken. Returns their addresses, with the names of their units."""
        left = tuple(f"{address} ({name})" if name else address for address, (name, _) in self._sockets.items())
        for _, sock in self._sockets.values():
            sock.close()
        self._sockets.clear()
        return left


def _key(address: ListenAddress) -> str:
    """Returns the address in the socket's form: numeric, and IPv6 in its shortest form."""
    host = "127.0.0.1" if address.host.lower() == "localhost" else address.host
    try:
        return str(ListenAddress(str(ip_address(host)), address.port))
    except ValueError:
        return str(address)  # a name, to which no socket can be bound


def _address_of(sock: socket.socket) -> str:
    if sock.type != socket.SOCK_STREAM or sock.family not in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
        return f"descriptor {sock.fileno()}, which is not a stream socket"
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return (
            f"unix:{os.path.realpath(name)}" if isinstance(name, str) else f"unix:@{name[1:].decode(errors='replace')}"
        )
    return str(ListenAddress(*name[:2]))


@cache
def inherited() -> InheritedSockets:
    """Returns the sockets of this process. Raises OSError."""
    return InheritedSockets(os.environ, os.getpid())
