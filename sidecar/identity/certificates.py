"""Maps client certificates to principals.

The operator configures SPIFFE trust domains and a table of names. Whether a trusted authority signed the certificate is
checked in the TLS handshake, by this process, a configured proxy or an enforcement point.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

from sidecar.errors import CredentialFault
from sidecar.identity.certificate_names import CertificateError, ClientCertificate, read_certificate
from sidecar.identity.credentials import UNIX, Presented, Workload, bad_credential
from sidecar.identity.names import NamingRule
from sidecar.identity.spiffe import SpiffeNames
from sidecar.identity.xfcc import read_forwarded
from sidecar.vocabulary import Credential, Principal

ISSUER: Final = "certificate"

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class TrustedProxyRule:
    """A proxy that may forward client certificates. All configured conditions must hold: its address (`unix`: a Unix
    socket) and a name in its own certificate. `first` selects the first element of the header instead of the last."""

    network: Network | None = None
    unix: bool = False
    certificate: str = ""
    first: bool = False

    def is_from(self, peer: str) -> bool:
        if self.unix:
            return peer == UNIX
        return self.network is None or _address_in(peer, self.network)


@dataclass(frozen=True, slots=True)
class Certificates:
    """Maps certificates to principals. `spiffe` are the trust domains, each with the names it may give; `table` is name
    → principal. With `refuse_others`, a certificate without a principal is an invalid credential; otherwise it is
    ignored. `trust` is a digest of the current authorities."""

    spiffe: tuple[tuple[SpiffeNames, NamingRule], ...] = ()
    table: Mapping[str, str] = field(default_factory=dict)
    refuse_others: bool = True
    proxies: tuple[TrustedProxyRule, ...] = ()
    trust: str = ""

    @property
    def matters(self) -> bool:
        """Whether certificates are configured, so that one can be a credential."""
        return bool(self.spiffe or self.table or not self.refuse_others)

    def proxy_of(self, presented: Presented) -> TrustedProxyRule | None:
        """Returns the configured proxy that sent this request; None if there is none. Raises Refusal if its certificate
        is invalid."""
        own: tuple[str, ...] | None = None
        for proxy in self.proxies:
            if not proxy.is_from(presented.peer):
                continue
            if not proxy.certificate:
                return proxy
            if own is None:
                shown = self._own(presented)
                own = () if shown is None else shown.names
            if proxy.certificate in own:
                return proxy
        return None

    def shown_in(self, presented: Presented) -> ClientCertificate | None:
        """Returns the caller's certificate: that of the connection, or the one that a proxy forwards; None without one.
        Raises Refusal for an invalid one."""
        if not presented.proxy:
            return self._own(presented)
        # A proxy's own certificate identifies the proxy, never its callers.
        if not presented.forwarded:
            return None
        if len(presented.forwarded) > 1:
            raise bad_credential("a credential header is there more than once", CredentialFault.MALFORMED)
        try:
            told = read_forwarded(presented.forwarded[0], first=presented.proxy == "first")
        except CertificateError as error:
            raise bad_credential(str(error), CredentialFault.MALFORMED) from None
        return replace(told, vouched_by=self._proxies_are)

    def _own(self, presented: Presented) -> ClientCertificate | None:
        if not presented.certificate:
            return None
        if presented.trust != self.trust:
            what = "the authorities of certificates have changed since this connection was opened"
            raise bad_credential(what, CredentialFault.REVOKED)
        try:
            return replace(read_certificate(presented.certificate), vouched_by=self.trust)
        except CertificateError as error:
            raise bad_credential(str(error), CredentialFault.MALFORMED) from None

    def workload(self, shown: ClientCertificate, now: float, *, held: bool = False) -> Workload | None:
        """Returns the workload of a certificate; None if it is ignored. Raises Refusal for a certificate that has
        expired or names several principals and, with `refuse_others`, for one that names none; one that is `held` as
        the key of a token need not name any."""
        if shown.ends_at is not None and now >= shown.ends_at:
            raise bad_credential("the certificate has expired", CredentialFault.EXPIRED)
        found = {principal: name for name in shown.names if (principal := self._principal_of(name))}
        if len(found) > 1:
            raise bad_credential("the certificate names several principals", CredentialFault.SUBJECT)
        if not found:
            if self.refuse_others and not held:
                raise bad_credential("the certificate names no principal that is known here", CredentialFault.SUBJECT)
            return None
        ((principal, name),) = found.items()
        credential = Credential(ISSUER, name, shown.thumbprint, shown.vouched_by)
        return Workload(Principal(principal, ISSUER), credential, shown.ends_at)

    def knows(self, credential: Credential, principal: str) -> bool:
        """Whether this credential is still trusted and still names this principal."""
        if credential.trust not in (self.trust, self._proxies_are):
            return False
        return not credential.issuer or self._principal_of(credential.issuer) == principal

    @property
    def _proxies_are(self) -> str:
        return repr(self.proxies)

    def _principal_of(self, name: str) -> str:
        if name in self.table:
            return self.table[name]
        for names, naming in self.spiffe:
            if found := names.name(name, naming):
                return found
        return ""


def _address_in(peer: str, network: Network) -> bool:
    try:
        address = ip_address(peer.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address in network
