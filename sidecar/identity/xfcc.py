"""Reads client certificates from X-Forwarded-Client-Cert.

The format is Envoy's: one element per hop, the nearest last, each of `Key=value` pairs separated by `;`. A value with
`,`, `;` or `=` is quoted, and a quote in it is escaped with a backslash. That a trusted proxy sent the header is
checked before it is parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from sidecar.identity.certificate_names import CertificateError, ClientCertificate, names_of, read_certificate
from sidecar.protocols import base64url

MAX_PAIRS: Final = 256
_MANY: Final = frozenset({"by", "uri", "dns"})
_PAIR: Final = re.compile(r' *([A-Za-z0-9]+) *=(?:"((?:[^"\\]|\\.)*)"|([^;,"=]*))([;,]|\Z)', re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)

Element = Mapping[str, list[str]]


def read_forwarded(line: str, *, first: bool) -> ClientCertificate:
    """Returns the certificate of the last element, or of the first. Raises CertificateError."""
    if not line.isascii():
        raise CertificateError("the forwarded certificate is malformed")
    element = list(_elements(line))[0 if first else -1]
    told = _hash(element)
    if pem := _one(element, "cert"):
        try:
            read = x509.load_pem_x509_certificate(unquote_to_bytes(pem))
        except (ValueError, x509.InvalidVersion):
            raise CertificateError("the forwarded certificate cannot be read") from None
        whole = read_certificate(read.public_bytes(Encoding.DER))
        if told and told != whole.thumbprint:
            raise CertificateError("the forwarded certificate does not match its hash")
        return whole
    names = names_of(element.get("uri", ()), element.get("dns", ()), _one(element, "subject"))
    return ClientCertificate(names, told)


def _hash(element: Element) -> str:
    """Returns the hash in RFC 8705's encoding, "" for none; Envoy writes it in hexadecimal. Raises CertificateError."""
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
    """Yields (key in lower case, value, the following delimiter: `;`, `,` or nothing). Raises CertificateError."""
    place = 0
    for _ in range(MAX_PAIRS):
        found = _PAIR.match(line, place)
        if found is None:
            raise CertificateError("the forwarded certificate is malformed")
        key, quoted, plain, end = found.groups()
        value = plain.strip(" ") if quoted is None else _ESCAPED.sub(r"\1", quoted)
        yield key.lower(), value, end
        if not end:
            return
        place = found.end()
    raise CertificateError("the forwarded certificate has too many parts")
