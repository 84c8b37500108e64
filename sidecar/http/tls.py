"""Loads certificates and builds TLS contexts.

A listener's context is built from its files when they are read. A reload reads them again, and the next handshake uses
the new context (`follows`). If client certificates are requested, only TLS 1.3 without resumption is used: a resumed
session would admit a caller whose authority is no longer trusted.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

from sidecar.errors import Fault, SettingsError, fault_in
from sidecar.settings.reading import read_bounded
from sidecar.settings.secrets import MAX_BYTES, check_private
from sidecar.settings.server import TlsFiles

MAX_CA_BYTES: Final = 4 * 2**20
CODE: Final = "S124"
HINT: Final = "a PEM file with the certificates of the authorities"
_HASHED: Final = re.compile(r"[0-9a-f]{8}\.[0-9]+")  # the name of a certificate in a folder of authorities


class TlsContexts(ssl.SSLContext):
    """The context of a handshake. `trust` is a digest of the authorities of client certificates; "" requests none.
    `pair` holds key and certificate (PEM), for a listener outside Python's ssl."""

    trust: str = ""
    pair: tuple[bytes, bytes] = (b"", b"")


class ShownCertificate(NamedTuple):
    """The certificate (DER) shown in a handshake, b"" for none, and the `trust` that it was verified against."""

    certificate: bytes = b""
    trust: str = ""


NOTHING: Final = ShownCertificate()


def tls_from(files: TlsFiles) -> TlsContexts:
    """Builds a listener's context. Raises SettingsError for files that are unusable or do not match each other, and for
    a key that other users can read."""
    check_private(files.key_path)
    context = TlsContexts(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.pair = read_bounded(files.key_path, MAX_BYTES), read_bounded(files.cert_path, MAX_CA_BYTES)
        context.load_cert_chain(files.cert_path, files.key_path, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        hint = "a PEM file with the certificate and its chain, and the unencrypted key that belongs to it"
        raise SettingsError([_fault(files.cert_path, f"no usable certificate and key: {_why(error)}", hint)]) from None
    if files.client_ca_path is not None:
        _ask_for_certificates(context, files.client_ca_path, required=files.client_certificate == "required")
    return context


def read_authorities(path: Path) -> str:
    """Returns the authorities in a PEM file, with a line end after the last. Raises SettingsError."""
    try:
        text = read_bounded(path, MAX_CA_BYTES).decode("ascii")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (OSError, ValueError) as error:
        raise SettingsError([_fault(path, f"no usable authorities: {_why(error)}", HINT)]) from None
    return text if text.endswith("\n") else f"{text}\n"


@lru_cache(maxsize=8)
def trusted_pem(beside: str = "") -> str:
    """Returns the authorities of `client_tls` for clients outside Python's ssl: those of the system's file, those of
    its folders if it has no file or `SSL_CERT_DIR` names them, and those `beside`. Raises SettingsError."""
    paths = ssl.get_default_verify_paths()
    file = "" if paths.cafile is None else read_authorities(Path(paths.cafile))
    folders = os.environ.get(paths.openssl_capath_env, "" if file else paths.openssl_capath)
    return "".join((file, *_authorities_in(folders), beside))


@lru_cache(maxsize=8)
def client_tls(beside: str = "", instead: str = "") -> ssl.SSLContext:
    """Returns the context of outgoing connections. It trusts the authorities `instead` (PEM), or those of the system,
    which OpenSSL takes from `SSL_CERT_FILE` and `SSL_CERT_DIR`, and those `beside` them in addition."""
    context = ssl.create_default_context(cadata=instead or None)
    if beside and not instead:
        context.load_verify_locations(cadata=beside)
    return context


def follows(context: TlsContexts, current: Callable[[], TlsContexts | None]) -> TlsContexts:
    """Returns `context`, whose handshakes from then on use the one that `current` returns, if any."""

    def turn_to(connection: Any, _name: str | None, _asked: ssl.SSLContext) -> None:
        connection.context = current() or context

    context.sni_callback = turn_to
    return context


def shown_on(transport: asyncio.BaseTransport | None) -> ShownCertificate:
    """Returns the certificate shown on this connection; NOTHING if there is none, or none was requested."""
    connection = transport.get_extra_info("ssl_object") if transport is not None else None
    if connection is None or not isinstance(connection.context, TlsContexts) or not connection.context.trust:
        return NOTHING
    certificate = connection.getpeercert(binary_form=True)
    return ShownCertificate(certificate, connection.context.trust) if certificate else NOTHING


def _authorities_in(folders: str) -> Iterator[str]:
    """Yields the authorities of folders as OpenSSL reads them: by the names that are hashes. Other files, and those
    that are unusable, are skipped. Raises SettingsError if there are too many."""
    size = 0
    for folder in filter(None, folders.split(os.pathsep)):
        for path in filter(lambda path: _HASHED.fullmatch(path.name), sorted(Path(folder).glob("*.*"))):
            with suppress(SettingsError):
                text = read_authorities(path)
                size += len(text)
                if size <= MAX_CA_BYTES:
                    yield text
    if size > MAX_CA_BYTES:
        raise SettingsError([_fault(Path(folders), f"its authorities are larger than {MAX_CA_BYTES} bytes", HINT)])


def _ask_for_certificates(context: TlsContexts, path: Path, *, required: bool) -> None:
    pem = read_authorities(path)
    context.load_verify_locations(cadata=pem)
    if not context.get_ca_certs():
        raise SettingsError([_fault(path, "no certificate in it is an authority's", HINT)])
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    # A certificate that is shown must be valid in either mode; otherwise the handshake fails.
    context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    context.trust = sha256(pem.encode()).hexdigest()


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return str(error.reason or "malformed").lower().replace("_", " ")
    return (error.strerror or "unreadable").lower() if isinstance(error, OSError) else str(error)


def _fault(path: Path, message: str, hint: str) -> Fault:
    return fault_in(path, message, code=CODE, hint=hint)
