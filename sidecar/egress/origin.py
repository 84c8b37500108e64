"""Where does an outgoing request go?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]{0,251}[a-z0-9_.])?")
# RFC 3986 path and query characters; everything else must arrive percent-encoded from the configuration.
_TARGET = re.compile(r"/[A-Za-z0-9\-._~!$&'()*+,;=:@%/]*(?:\?[A-Za-z0-9\-._~!$&'()*+,;=:@%/?]*)?")


@dataclass(frozen=True, slots=True)
class Origin:
    """One place to connect to. `path` is the configured path with its query; `host_header` what `Host` says there."""

    scheme: str
    host: str
    port: int
    host_header: str
    path: str

    @property
    def secure(self) -> bool:
        return self.scheme == "https"

    @property
    def loopback(self) -> bool:
        """Whether the connection cannot leave this machine, judged by the text alone: nothing is resolved."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_origin(url: str) -> Origin:
    """Read an absolute http(s) URL from the configuration. Raises ValueError with a sentence for the operator."""
    if not url.isascii() or any(character <= " " or character == "\x7f" for character in url):
        raise ValueError("the URL must be plain ASCII without blanks; write other characters percent-encoded")
    parts = urlsplit(url)
    if parts.scheme not in _PORTS:
        raise ValueError("the URL must begin with http:// or https://")
    if "@" in parts.netloc:
        raise ValueError("the URL must not contain a user or password; use a credential entry")
    if "#" in url:
        raise ValueError("the URL must not have a fragment")
    host, port = _host(parts.hostname or ""), _port(parts)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not _TARGET.fullmatch(path) or any(segment in {".", ".."} for segment in parts.path.split("/")):
        raise ValueError("the URL's path has characters or segments that are not allowed")
    shown = f"[{host}]" if ":" in host else host
    return Origin(parts.scheme, host, port, shown if port == _PORTS[parts.scheme] else f"{shown}:{port}", path)


def _port(parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError("the URL's port is not a number from 1 to 65535")
    return port or _PORTS[parts.scheme]


def _host(name: str) -> str:
    try:
        return str(ip_address(name))
    except ValueError:
        pass
    # What looks like an address but is none (127.1, 0x7f.1) is a different host to every resolver.
    if not _NAME.fullmatch(name) or re.fullmatch(r"(?:0x[0-9a-f]*|[0-9]+)", name.rstrip(".").rpartition(".")[2]):
        raise ValueError("the URL's host is neither a name nor an IP address")
    return name
