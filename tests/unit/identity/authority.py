"""Who signs certificates in the tests? An authority with a key of its own, and certificates of every shape."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier


@dataclass(frozen=True)
class Issued:
    """One certificate, and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """`<name>.pem` and `<name>.key`."""
        pem, key = folder / f"{name}.pem", folder / f"{name}.key"
        pem.write_text(self.pem)
        key.write_bytes(
            self.key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return pem, key

    def client(self, folder: Path, trusts: Authority, name: str = "client") -> ssl.SSLContext:
        """What a caller connects with who shows this certificate."""
        context = ssl.create_default_context(cadata=trusts.own.pem)
        context.load_cert_chain(*self.write(folder, name))
        return context


@dataclass(frozen=True)
class Authority:
    """Signs what it is asked to."""

    name: str
    own: Issued

    def issue(
        self,
        *,
        uris: Iterable[str] = (),
        dns: Iterable[str] = (),
        address: str = "",
        common_name: str = "",
        ca: bool = False,
        signs: bool = False,
        usage: ObjectIdentifier | None = None,
        ends_s: float = 86_400,
        names: bool = True,
    ) -> Issued:
        """A certificate that says this."""
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
        subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Acme")] if common_name else []
        subject += [x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else []
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name(subject))
            .issuer_name(self.own.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(now + timedelta(seconds=ends_s))
            .add_extension(_authority_of(self.own.key), critical=False)
        )
        alternative: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
        alternative += [x509.DNSName(host) for host in dns]
        alternative += [x509.IPAddress(ipaddress.ip_address(address))] if address else []
        if alternative and names:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternative), critical=not subject)
        if ca:
            builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        if signs:
            builder = builder.add_extension(_key_usage(signs=True), critical=True)
        if usage is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        return Issued(builder.sign(self.own.key, hashes.SHA256()), key)


@cache
def authority(name: str = "acme") -> Authority:
    """The same authority for the same name."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority {name}")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(own)
        .issuer_name(own)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=3))
        .not_valid_after(now + timedelta(days=3))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_key_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_authority_of(key), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(name, Issued(certificate, key))


SERVER_ONLY = ExtendedKeyUsageOID.SERVER_AUTH


def _authority_of(key: ec.EllipticCurvePrivateKey) -> x509.AuthorityKeyIdentifier:
    """Whose key signs: Python 3.13 refuses certificates that do not say so."""
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
