"""Normalizes resource URIs, for policy decisions and for upstreams.

`fault_in_uri` finds fault with URIs that some reader could take for another resource. All others have a normal form
(RFC 3986, section 6). Rules match it, so that a deny rule matches all spellings, and upstreams receive it.

    part         normal form
    scheme       lower case
    authority    lower case; no empty port, no leading zeros, no default port; none for `file:` where it is localhost
    path         `file:/a` and `file://localhost/a` become `file:///a`, repeated slashes of `file:` become one
    everywhere   needless encoding is removed, `%3a` becomes `%3A`; invalid characters and `*` are encoded
    at the end   no empty query, no empty fragment

Text in braces is an expression of a URI template (RFC 6570), and `*` in a rule stands for any run of characters.
Neither is changed.
"""

import re
from collections.abc import Callable, Mapping
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final
from urllib.parse import unquote

MAX_URI_CHARS: Final = 2_000
_URI = re.compile(rf"[A-Za-z][A-Za-z0-9+.\-]{{0,63}}:[\x21-\x7e]{{1,{MAX_URI_CHARS}}}\Z")
_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
# The beginning of an overlong UTF-8 sequence: lenient readers decode `%c0%ae` as a dot.
_OVERLONG = re.compile(r"%(?:c[01]|e0%[89]|f0%8)", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_MAX_READINGS = 3  # as written, decoded, and decoded twice

_PARTS = re.compile(r"([^:/?#]*):(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?\Z")
_EXPRESSION = re.compile(r"\{[^{}]*\}")
_PATTERN_PIECE = re.compile(r"\{[^{}]*\}|\*")
_SCHEME_KNOWN = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:|[\ue000-\uf8ff]://")
_SCHEME_BEGUN = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*(?=[\ue000-\uf8ff])")
_HELD = re.compile(r"[\ue000-\uf8ff]")  # the private-use characters that stand for pieces
_FIRST_HELD = 0xE000

_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_SUB_DELIMITERS = frozenset("!$&'()+,;=")  # `*` is the wildcard of rules, and always encoded
# The characters that mean the same bare and encoded, by part of the URI.
_IN_AUTHORITY = _UNRESERVED | _SUB_DELIMITERS
_IN_PATH = _UNRESERVED | _SUB_DELIMITERS | frozenset(":@")
_IN_QUERY = _UNRESERVED | frozenset("!$'(),:@?")  # bare `&`, `=`, `+` and `;` are separators; encoded ones are not
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}|[\"<>^`|*]")
_CAPITALS = re.compile(r"%[0-9A-F]{2}|[A-Z]+")
_SLASHES = re.compile(r"/{2,}")
_PORT = re.compile(r"(.*):([0-9]*)\Z", re.DOTALL)

# Schemes whose authority is always a network host (the special schemes of the URL standard).
_NETWORK: Final = frozenset({"http", "https", "ws", "wss", "ftp"})
_DEFAULT_PORTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("http", "ws"), "80"),
    **dict.fromkeys(("https", "wss"), "443"),
    **dict.fromkeys(("sftp", "ssh"), "22"),
    **dict.fromkeys(("postgres", "postgresql"), "5432"),
    **dict.fromkeys(("redis", "rediss"), "6379"),
    "ftp": "21",
    "git": "9418",
    "ldap": "389",
    "ldaps": "636",
    "mysql": "3306",
    "mongodb": "27017",
    "amqp": "5672",
    "amqps": "5671",
}
_NUMERIC_HOST = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)\Z")


def fault_in_uri(uri: str) -> str:
    """Why a resource URI or URI template is malformed, or "". Policy sees only well-formed ones."""
    if not _URI.match(uri):
        return f"must be an absolute URI of at most {MAX_URI_CHARS:,} printable ASCII characters"
    if "\\" in uri or _STRAY_PERCENT.search(uri):
        return "must not contain backslashes or invalid percent-encoding"
    if (hierarchy := _hierarchy(uri)).startswith("//") and "@" in hierarchy[2:].partition("/")[0]:
        return "must not contain user information"
    written = uri
    for _ in range(_MAX_READINGS):
        decoded = unquote(written)
        fault = _fault_in_reading(written, decoded)
        if fault or decoded == written:
            return fault or _fault_in_form(uri)
        written = decoded
    return "must not be encoded more than twice over"


def _fault_in_reading(uri: str, decoded: str) -> str:
    # Readers that ignore queries take all of it as the path; servlet containers read `..;x` as a dot segment.
    segments = [*_hierarchy(uri).split("/"), *uri.partition(":")[2].split("/")]
    if any(segment.partition(";")[0] in (".", "..") for segment in segments):
        return "must not contain dot segments"
    if _OVERLONG.search(uri) or any(decoded.count(sign) > uri.count(sign) for sign in "./\\"):
        return "must not contain encoded dots, slashes or backslashes"
    return "must not contain encoded control characters" if _CONTROL.search(decoded) else ""


def _hierarchy(uri: str) -> str:
    """Authority and path: the part between the scheme and the query or fragment."""
    return re.split(r"[?#]", uri.partition(":")[2], maxsplit=1)[0]


def _fault_in_form(uri: str) -> str:
    """Why a URI has no normal form, or ""."""
    form = normal_uri(uri)
    scheme, _, rest = form.partition(":")
    if not rest:
        return "must name something after its scheme"
    if len(rest) > MAX_URI_CHARS + 2:  # "//", which normalization adds to `file:/a`
        return f"must have at most {MAX_URI_CHARS:,} characters, including percent-encoding"
    if scheme == "file" and not rest.startswith(("/", "{")):
        return "must begin with file:/"
    if scheme in _NETWORK and not _is_plain_host(rest[2:] if rest.startswith("//") else ""):
        return "must name its host in the usual form: a name or a.b.c.d, without a trailing dot or percent-encoding"
    return ""


def _is_plain_host(rest: str) -> bool:
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if (found := _PORT.match(host)) is not None and not host.endswith("]"):
        host = found[1]
    if host.startswith("["):
        return _is_address(IPv6Address, host[1:-1]) and host.endswith("]") and "%" not in host
    if _NUMERIC_HOST.match(host):
        return _is_address(IPv4Address, host)
    return bool(host) and "%" not in host and not host.endswith(".")


def _is_address(kind: Callable[[str], object], text: str) -> bool:
    try:
        return str(kind(text)) == text
    except AddressValueError:
        return False


def normal_uri(uri: str) -> str:
    """The normal form of a URI or URI template that passed `fault_in_uri`."""
    text, held = _hold(_EXPRESSION, uri) if "{" in uri else (uri, [])
    return _restore(_normal(text), held)


def normal_pattern(pattern: str) -> str:
    """A rule's pattern in normal form, so that it matches the normal forms of the URIs that it matches as written."""
    if _HELD.search(pattern):
        return pattern  # it matches no URI: these characters are never in one
    text, held = _hold(_PATTERN_PIECE, pattern)
    if _SCHEME_KNOWN.match(text):
        return _restore(_normal(text), held)
    scheme = _SCHEME_BEGUN.match(text)  # `FILE*`: the boundaries of the other parts are unknown
    at = scheme.end() if scheme else 0
    return _restore(text[:at].lower() + _encoded(text[at:], _UNRESERVED), held)


def normal_object(text: str) -> str:
    """An object or object pattern, with the URI of a resource in its normal form, as in calls."""
    server, slash, uri = text.partition("/")
    return f"{server}/{normal_pattern(uri)}" if slash and text.startswith("resource:") else text


def named_object(text: str) -> str:
    """An object as a call would name it. Objects that no call can name are returned unchanged."""
    server, slash, uri = text.partition("/")
    if not slash or not text.startswith("resource:") or fault_in_uri(uri):
        return text
    return f"{server}/{normal_uri(uri)}"


def fault_in_object(text: str) -> str:
    """Why no call can name this object, or why its pattern matches less than it seems to; or ""."""
    _, slash, uri = text.partition("/")
    if not slash or not text.startswith("resource:"):
        return ""
    if "*" not in uri:
        return fault_in_uri(uri)
    text, _ = _hold(_PATTERN_PIECE, uri)
    if _SCHEME_KNOWN.match(text) or not any(character.isupper() for character in text):
        return ""
    return "has capital letters that match no host: calls are decided with hosts in lower case"


def _normal(text: str) -> str:
    """Normalizes case and encoding (RFC 3986, 6.2.2), ports, empty paths, and the authority of `file:` (6.2.3)."""
    found = _PARTS.match(text)
    if found is None:
        return text
    scheme, authority, path, query, fragment = found.groups()
    scheme, path = scheme.lower(), _encoded(path, _IN_PATH)
    if authority is not None:
        authority = _without_port(scheme, _lowered(_encoded(authority, _IN_AUTHORITY)))
        if scheme in _NETWORK:
            authority = _short_address(authority)
    if scheme == "file":
        path = _SLASHES.sub("/", path)
        if authority == "localhost" or (authority is None and path.startswith("/")):
            authority = ""
    if (scheme in _NETWORK or scheme == "file") and authority is not None and not path and not _HELD.search(authority):
        path = "/"
    written = f"{scheme}:{path}" if authority is None else f"{scheme}://{authority}{path}"
    ends = (f"{sign}{_encoded(part, _IN_QUERY)}" for sign, part in (("?", query), ("#", fragment)) if part)
    return written + "".join(ends)


def _without_port(scheme: str, authority: str) -> str:
    """Removes an empty or default port, and leading zeros."""
    found = _PORT.match(authority)
    if found is None:
        return authority
    host, port = found[1], found[2].lstrip("0")
    if not found[2] or port == _DEFAULT_PORTS.get(scheme):
        return host
    return f"{host}:{port or '0'}"


def _short_address(authority: str) -> str:
    host, bracket, port = authority.partition("]")
    if not host.startswith("[") or not bracket:
        return authority
    try:
        return f"[{IPv6Address(host[1:]).compressed}]{port}"
    except AddressValueError:
        return authority


def _encoded(text: str, bare: frozenset[str]) -> str:
    """Decodes characters that mean the same without encoding (`bare`), and encodes those that URIs cannot contain."""

    def form(found: re.Match[str]) -> str:
        if len(found[0]) == 1:
            return f"%{ord(found[0]):02X}"
        character = chr(int(found[0][1:], 16))
        return character if character in bare else found[0].upper()

    return _ENCODED.sub(form, text)


def _lowered(text: str) -> str:
    return _CAPITALS.sub(lambda found: found[0] if found[0][0] == "%" else found[0].lower(), text)


def _hold(pieces: re.Pattern[str], text: str) -> tuple[str, list[str]]:
    """The text with each matching piece replaced by one private-use character, and the pieces."""
    held: list[str] = []

    def hold(found: re.Match[str]) -> str:
        held.append(found[0])
        return chr(_FIRST_HELD + len(held) - 1)

    return pieces.sub(hold, text), held


def _restore(text: str, held: list[str]) -> str:
    return _HELD.sub(lambda found: held[ord(found[0]) - _FIRST_HELD], text) if held else text
