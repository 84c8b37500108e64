"""Reads client certificates from X-Forwarded-Client-Cert.

The format is Envoy's: one element per hop, the nearest last, each of `Key=value` pairs separated by `;`. A value with
`,`, `;` or `=` is quoted, and a quote in it is escaped with a backslash. That a trusted proxy sent the header is
checked before it is parsed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from sidecar.identity.certificate_names import CertificateError, ClientCertificate, names_of, read_certificate
from sidecar.protocols import base64url

MAX_PAIRS: Final = 256
_MANY: Final = frozenset({"by", "uri", "dns"})

Element = Mapping[str, list[str]]


def read_forwarded(line: str, *, first: bool) -> ClientCertificate:
    """The certificate of the last element, or of the first. Raises CertificateError."""
    element = list(_elements(line))[0 if first else -1]
    told = _hash(element)
    if pem := _one(element, "cert"):
        try:
            read = x509.load_pem_x509_certificate(unquote_to_bytes(pem))
        except (ValueError, x509.InvalidVersion):
            raise CertificateError("the forwarded certificate cannot be read") from None
        whole = read_certificate(read.public_bytes(Encoding.DER))
        if told and told != whole.thumbprint:
            raise CertificateError("the forwarded certificate is not the one whose hash is told")
        return whole
    names = names_of(element.get("uri", ()), element.get("dns", ()), _one(element, "subject"))
    return ClientCertificate(names, told)


def _hash(element: Element) -> str:
    """The hash in RFC 8705's encoding; Envoy writes it in hexadecimal."""
    told = _one(element, "hash")
    try:
        raw = bytes.fromhex(told)
    except ValueError:
        raw = b"?"
    if told and len(raw) != 32:
        raise CertificateError("the forwarded certificate's hash is malformed")
    return base64url.encode(raw)


def _one(element: Element, key: str) -> str:
    return element.get(key, [""])[0]


def _elements(line: str) -> Iterator[Element]:
    element: dict[str, list[str]] = {}
    for key, value, end in _pairs(line):
        if key in element and key not in _MANY:
            raise CertificateError("the forwarded certificate says one thing twice")
        element.setdefault(key, []).append(value)
        if end != ";":
            yield element
            element = {}


def _pairs(line: str) -> Iterator[tuple[str, str, str]]:
    """Returns (key in lower case, value, the following delimiter: `;`, `,` or nothing)."""
    place = 0
    for _ in range(MAX_PAIRS):
        equals = line.find("=", place)
        key = line[place:equals].strip(" ").lower()
        if equals < 0 or not key.isalnum() or not line.isascii():
            raise CertificateError("the forwarded certificate is malformed")
        value, place = _quoted(line, equals + 2) if line[equals + 1 : equals + 2] == '"' else _plain(line, equals + 1)
        end = line[place : place + 1]
        if end not in ("", ";", ","):
            raise CertificateError("the forwarded certificate is malformed")
        yield key, value, end
        if not end:
            return
        place += 1
    raise CertificateError("the forwarded certificate has too many parts")


def _plain(line: str, place: int) -> tuple[str, int]:
    ends = [found for sign in ';,"=' if (found := line.find(sign, place)) >= 0]
    end = min(ends, default=len(line))
    return line[place:end].strip(" "), end


def _quoted(line: str, place: int) -> tuple[str, int]:
    value: list[str] = []
    while place < len(line):
        sign = line[place]
        if sign == '"':
            return "".join(value), place + 1
        if sign == "\\":
            place += 1
            sign = line[place : place + 1]
        value.append(sign)
        place += 1
    raise CertificateError("the forwarded certificate is malformed")
