"""Refuses URLs that different parsers read differently.

The URL comes from untrusted content, so nothing is repaired, decoded or guessed. Any part that two parsers could read
differently (user-info, backslashes, `127.1`, `0x7f.1`, `localhost.`, letters beyond ASCII, an encoded dot) is refused.
"""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final

from sidecar.http.client.origin import TargetOrigin

MAX_URL_CHARS: Final = 2048
OWN_PORTS: Final = {"http": 80, "https": 443}
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


def parse_strictly(url: str) -> TargetOrigin:
    """Returns the origin of a URL in content. Raises ValueError with a sentence for its author."""
    if len(url) > MAX_URL_CHARS:
        raise ValueError(f"the URL is longer than {MAX_URL_CHARS} characters")
    found = _URL.fullmatch(url)
    if found is None:
        raise ValueError("the URL is not a plain http(s)://host[:port]/path")
    scheme, host = found["scheme"].lower(), _host(found["host"].lower())
    port = int(found["port"] or OWN_PORTS[scheme])
    if port > 65535:
        raise ValueError("the URL's port is not a number from 1 to 65535")
    path = found["path"] or "/"
    if any(segment in (".", "..") for segment in _ENCODED_DOT.sub(".", path).split("/")):
        raise ValueError("the URL's path has dot segments")
    shown = f"[{host}]" if ":" in host else host
    header = shown if port == OWN_PORTS[scheme] else f"{shown}:{port}"
    return TargetOrigin(scheme, host, port, header, path + (found["query"] or ""))


def _host(text: str) -> str:
    try:
        if text.startswith("["):
            return str(IPv6Address(text[1:-1]))
        if text.replace(".", "").isdigit():
            return str(IPv4Address(text))
    except AddressValueError:
        raise ValueError("the URL's host is no IP address in its usual form") from None
    if not _NAME.fullmatch(text):
        raise ValueError("the URL's host is neither a name nor an IP address")
    return text
