"""Reads the names in client certificates.

The result is the SPIFFE ID alone, or the other names. An X.509-SVID has exactly one URI, and is not an authority and
cannot sign others (X509-SVID 3, 4); the common name is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Final

from cryptography import x509

from sidecar.identity.spiffe import SCHEME, parse_spiffe_id
from sidecar.protocols import base64url

MAX_READ: Final = 512  # cached certificates; parsing one takes 0.1 ms


class CertificateError(Exception):
    """A certificate without usable names. The message contains no caller data."""


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """`names` are `spiffe://…` alone, or `uri:…`, `dns:…` and `subject:…` (RFC 4514). `thumbprint` is the SHA-256 of
    the whole in base64url (RFC 8705 3.1), "" if unknown; `ends_at` is in seconds since the epoch, None if unknown.
    `vouched_by` identifies the authorities or proxies that confirm that it is the caller's."""

    names: tuple[str, ...]
    thumbprint: str = ""
    ends_at: float | None = None
    vouched_by: str = ""


@lru_cache(maxsize=MAX_READ)
def read_certificate(der: bytes) -> ClientCertificate:
    """Reads a certificate in DER. Raises CertificateError for one that cannot be parsed, is an authority's, or violates
    the SVID rules."""
    try:
        read = x509.load_der_x509_certificate(der)
        uris: list[str] = []
        hosts: list[str] = []
        with suppress(x509.ExtensionNotFound):
            found = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            uris = found.get_values_for_type(x509.UniformResourceIdentifier)
            hosts = found.get_values_for_type(x509.DNSName)
        if _may_sign(read):
            raise CertificateError("the certificate is an authority's, not a caller's")
        names = names_of(uris, hosts, read.subject.rfc4514_string())
        ends_at = read.not_valid_after_utc.timestamp()
    except (ValueError, x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        raise CertificateError("the certificate cannot be read") from None
    return ClientCertificate(names, thumbprint_of(der), ends_at)


def names_of(uris: Iterable[str], hosts: Iterable[str], subject: str) -> tuple[str, ...]:
    """Returns the names to look up. Raises CertificateError for a SPIFFE ID that is invalid or not the only URI."""
    uris = tuple(uri for uri in uris if uri)
    if any(uri.lower().startswith(SCHEME.rstrip("/")) for uri in uris):
        if len(uris) != 1 or parse_spiffe_id(uris[0]) is None:
            raise CertificateError("the certificate's SPIFFE ID must be one, and well formed")
        return uris
    found = [f"uri:{uri}" for uri in uris] + [f"dns:{host.lower()}" for host in hosts if host]
    return (*found, f"subject:{subject}") if subject else tuple(found)


def thumbprint_of(der: bytes) -> str:
    """Returns the SHA-256 of a certificate in base64url (RFC 8705 3.1)."""
    return base64url.encode(sha256(der).digest())


def _may_sign(read: x509.Certificate) -> bool:
    values = [extension.value for extension in read.extensions]
    return any(
        (isinstance(value, x509.BasicConstraints) and value.ca)
        or (isinstance(value, x509.KeyUsage) and (value.key_cert_sign or value.crl_sign))
        for value in values
    )
