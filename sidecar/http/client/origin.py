"""The scheme, host and port of an outgoing request."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from sidecar.settings.addresses import is_destination, is_target

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class TargetOrigin:
    """A place to connect to. `path` is the configured path with its query; `host_header` the value of `Host`."""

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
        """Whether the connection cannot leave this machine, judged by the text alone without resolving it."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_origin(url: str) -> TargetOrigin:
    """Parses an absolute http(s) URL of the settings. Raises ValueError with a sentence for the operator."""
    if not url.isascii() or any(character <= " " or character == "\x7f" for character in url):
        raise ValueError("the URL must be plain ASCII without blanks; write other characters percent-encoded")
    parts = urlsplit(url)
    if parts.scheme not in _PORTS:
        raise ValueError("the URL must begin with http:// or https://")
    if "@" in parts.netloc:
        raise ValueError("the URL must not contain a user or password; use a credential entry")
    if "#" in url:
        raise ValueError("the URL must not have a fragment")
    host, port = parts.hostname or "", _port(parts)
    if not is_destination(host):
        raise ValueError("the URL's host is neither a name nor an IP address")
    if not is_target(parts.path, parts.query):
        raise ValueError("the URL's path has characters or segments that are not allowed")
    if ":" in host:
        host = str(ip_address(host))
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    shown = f"[{host}]" if ":" in host else host
    return TargetOrigin(parts.scheme, host, port, shown if port == _PORTS[parts.scheme] else f"{shown}:{port}", path)


def _port(parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError("the URL's port is not a number from 1 to 65535")
    return port or _PORTS[parts.scheme]
