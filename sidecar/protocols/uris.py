"""Has this resource URI one meaning, to everyone who may read it?

Policy compares a URI as it is written. So it must not mean another place to an upstream that resolves dots, decodes
what is encoded, or decodes it twice, as careless readers do.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]{0,63}:[\x21-\x7e]{1,2000}\Z")
_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
# What begins a UTF-8 sequence longer than need be: lenient readers take `%c0%ae` for a dot.
_OVERLONG = re.compile(r"%(?:c[01]|e0%[89]|f0%8)", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_MAX_READINGS = 3  # as written, decoded, and decoded twice


def fault_in_uri(uri: str) -> str:
    """Why a resource URI, or a template of URIs, is malformed, or "" (CONTRACT 1.2: before policy sees it)."""
    if not _URI.match(uri):
        return "must be an absolute URI of at most 2,000 printable ASCII characters"
    if "\\" in uri or _STRAY_PERCENT.search(uri):
        return "must not hold backslashes, or percent signs that encode nothing"
    if _bears_user(uri):
        return "must not hold user information"
    for _ in range(_MAX_READINGS):
        decoded = unquote(uri)
        fault = _fault_in_reading(uri, decoded)
        if fault or decoded == uri:
            return fault
        uri = decoded
    return "must not be encoded more than twice over"


def _bears_user(uri: str) -> bool:
    hierarchy = _hierarchy(uri)
    return hierarchy.startswith("//") and "@" in hierarchy[2:].partition("/")[0]


def _fault_in_reading(uri: str, decoded: str) -> str:
    # `..;x` is a dot segment to servlet containers.
    if any(segment.partition(";")[0] in (".", "..") for segment in _hierarchy(uri).split("/")):
        return "must not hold dot segments"
    if _OVERLONG.search(uri) or any(decoded.count(sign) > uri.count(sign) for sign in "./\\"):
        return "must not hold encoded dots, slashes or backslashes"
    return "must not hold encoded control characters" if _CONTROL.search(decoded) else ""


def _hierarchy(uri: str) -> str:
    """Authority and path: what stands between the scheme and the query or fragment."""
    return re.split(r"[?#]", uri.partition(":")[2], maxsplit=1)[0]
