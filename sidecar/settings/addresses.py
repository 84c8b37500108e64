"""Parses listener addresses: `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080`, `unix:/run/sidecar/planner.sock`."""

import re
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import ClassVar

from sidecar.settings.validation_errors import reject

MAX_SOCKET_PATH_BYTES = 107  # sun_path holds 108 bytes on Linux, with the final NUL
_HOST_AND_PORT = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^:\[\]/@]*)):(?P<port>[0-9]{1,5})")
_DESTINATION = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]{0,251}[a-z0-9_.])?")
_LIKE_NUMBER = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)")
# The characters of RFC 3986 paths and queries; all others must be percent-encoded in the configuration.
_TARGET = re.compile(r"/[A-Za-z0-9\-._~!$&'()*+,;=:@%/]*(?:\?[A-Za-z0-9\-._~!$&'()*+,;=:@%/?]*)?")
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(?:\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*")


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A TCP address. With port 0 the system chooses a free port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback_host(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UnixAddress:
    path: Path
    is_loopback: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"unix:{self.path}"


def parse_address(text: str, folder: Path | None = None) -> ListenAddress | UnixAddress:
    """Parses an address. A relative socket path starts at `folder`. Rejects all other texts."""
    if text.startswith("unix:"):
        return _unix_address(text.removeprefix("unix:"), folder)
    found = _HOST_AND_PORT.fullmatch(text)
    if not found:
        reject("this is not an address", hint='write host:port such as 127.0.0.1:8080, or "unix:/path/to.sock"')
    host = found["v6"] or found["host"]
    if not host:
        reject("the host is missing", hint=f"write 127.0.0.1{text}, or 0.0.0.0{text} for every interface")
    if int(found["port"]) > 65535:
        reject("a port is at most 65535")
    if not _is_host(host, v6=found["v6"] is not None):
        reject(f'"{host}" is not a host')
    return ListenAddress(host, int(found["port"]))


def is_loopback_host(host: str) -> bool:
    """Whether the host is `localhost`, in 127.0.0.0/8, or ::1. Resolves no names."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_host_name(text: str) -> bool:
    """Whether the text has the syntax of an IPv4 address or a DNS name."""
    return len(text) <= 253 and _HOST_NAME.fullmatch(text) is not None


def is_destination(host: str) -> bool:
    """Whether it is an IP address or a name. Numbers that some resolvers read as addresses (127.1, 0x7f.1) are
    neither."""
    try:
        ip_address(host)
    except ValueError:
        last = host.rstrip(".").rpartition(".")[2]
        return _DESTINATION.fullmatch(host) is not None and not _LIKE_NUMBER.fullmatch(last)
    return True


def is_target(path: str, query: str) -> bool:
    """Whether path and query of a URL can be sent unchanged, and the path has no dot segments."""
    whole = (path or "/") + (f"?{query}" if query else "")
    return _TARGET.fullmatch(whole) is not None and not {".", ".."} & {*path.split("/")}


def _is_host(host: str, *, v6: bool) -> bool:
    if not v6 and not host.replace(".", "").isdigit():
        return is_host_name(host)
    try:
        return (ip_address(host).version == 6) is v6
    except ValueError:
        return False


def _unix_address(path: str, folder: Path | None) -> UnixAddress:
    if not path:
        reject("the path is missing", hint='write "unix:/path/to.sock"')
    whole = (folder or Path()) / path
    if len(str(whole).encode()) > MAX_SOCKET_PATH_BYTES:
        reject(f"a socket path holds at most {MAX_SOCKET_PATH_BYTES} bytes", hint="choose a shorter folder")
    return UnixAddress(whole)
