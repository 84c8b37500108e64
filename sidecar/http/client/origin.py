"""Parses the URL of an outgoing request: one in the settings or, more strictly, one in content.

A URL in content is untrusted, so nothing of it is repaired, decoded or guessed. Any part that two parsers could read
differently (user-info, backslashes, `127.1`, `0x7f.1`, `localhost.`, letters beyond ASCII, encoded dot segments) is
refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import urlsplit

from sidecar.settings.addresses import is_destination, is_target

OWN_PORTS: Final = {"http": 80, "https": 443}
MAX_URL_CHARS: Final = 2048  # in content
_TARGET: Final = r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/{more}]|%[0-9A-Fa-f]{{2}})*"
_URL = re.compile(
    r"(?P<scheme>[Hh][Tt][Tt][Pp][Ss]?)://"
    r"(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9.-]{1,253})"
    r"(?::(?P<port>[1-9][0-9]{0,4}))?"
    rf"(?P<path>/{_TARGET.format(more='')})?"
    rf"(?P<query>\?{_TARGET.format(more='?')})?"
)
_LABEL: Final = r"(?!-)[a-z0-9-]{1,63}(?<!-)"
# The last label of a name must not be a number, which some parsers read as an address (WHATWG URL, "ends in a number").
_NAME = re.compile(rf"(?:{_LABEL}\.)*(?=[a-z]){_LABEL}")
_ENCODED_DOT = re.compile("%2e", re.IGNORECASE)
_BAD_PORT: Final = "the URL's port is not a number from 1 to 65535"


@dataclass(frozen=True, slots=True)
class TargetOrigin:
    """A destination of connections. `path` is the URL's path with its query; `host_header` the value of `Host`."""

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


def _origin(scheme: str, host: str, port: int | None, path: str, query: str) -> TargetOrigin:
    shown, own = f"[{host}]" if ":" in host else host, OWN_PORTS[scheme]
    header = shown if port in (None, own) else f"{shown}:{port}"
    return TargetOrigin(scheme, host, port or own, header, (path or "/") + query)


def parse_origin(url: str) -> TargetOrigin:
    """Parses an absolute http(s) URL of the settings. Raises ValueError with a sentence for the operator."""
    if not url.isascii() or any(character <= " " or character == "\x7f" for character in url):
        raise ValueError("the URL must be plain ASCII without blanks; write other characters percent-encoded")
    parts = urlsplit(url)
    if parts.scheme not in OWN_PORTS:
        raise ValueError("the URL must begin with http:// or https://")
    if "@" in parts.netloc:
        raise ValueError("the URL must not contain a user or password; use a credential entry")
    if "#" in url:
        raise ValueError("the URL must not have a fragment")
    host = parts.hostname or ""
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError(_BAD_PORT)
    if not is_destination(host):
        raise ValueError("the URL's host is neither a name nor an IP address")
    if not is_target(parts.path, parts.query):
        raise ValueError("the URL's path has characters or segments that are not allowed")
    host = str(ip_address(host)) if ":" in host else host
    return _origin(parts.scheme, host, port, parts.path, f"?{parts.query}" if parts.query else "")


def parse_strictly(url: str) -> TargetOrigin:
    """Returns the origin of a URL in content. Raises ValueError with a sentence for its author."""
    if len(url) > MAX_URL_CHARS:
        raise ValueError(f"the URL is longer than {MAX_URL_CHARS} characters")
    found = _URL.fullmatch(url)
    if found is None:
        raise ValueError("the URL is not a plain http(s)://host[:port]/path")
    host, port = _host(found["host"].lower()), int(found["port"]) if found["port"] else None
    if port is not None and port > 65535:
        raise ValueError(_BAD_PORT)
    if any(segment in (".", "..") for segment in _ENCODED_DOT.sub(".", found["path"] or "").split("/")):
        raise ValueError("the URL's path has dot segments")
    return _origin(found["scheme"].lower(), host, port, found["path"], found["query"] or "")


def _host(text: str) -> str:
    try:
        if text.startswith("["):
            return str(IPv6Address(text[1:-1]))
        if text.replace(".", "").isdigit():
            return str(IPv4Address(text))
    except AddressValueError:
        raise ValueError("the URL's host is not an IP address in its usual form") from None
    if not _NAME.fullmatch(text):
        raise ValueError("the URL's host is neither a name nor an IP address")
    return text
