"""Determines how connections leave: directly or through a proxy, and which authorities they trust."""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

from sidecar.errors import SettingsError, fault_in
from sidecar.http.client.origin import TargetOrigin, parse_origin
from sidecar.http.tls import client_tls, read_authorities
from sidecar.settings.egress import CODE, DirectHosts, EgressSettings, NamedProxy, proxies_in
from sidecar.settings.secrets import read_secret


@dataclass(frozen=True, slots=True)
class ProxyServer:
    """A proxy. `credentials` are `user:password`, or ""; `url` contains none."""

    url: str
    origin: TargetOrigin
    credentials: str = field(default="", repr=False)

    @property
    def place(self) -> str:
        """Its host and port."""
        return f"{self.origin.host}:{self.origin.port}"

    @property
    def login(self) -> str:
        """The value of `Proxy-Authorization`; "" for none."""
        return f"Basic {b64encode(self.credentials.encode()).decode()}" if self.credentials else ""

    @property
    def url_with_login(self) -> str:
        """The URL with the credentials, for clients that read them from the URL."""
        if not self.credentials:
            return self.url
        user, _, password = self.credentials.partition(":")
        scheme, _, place = self.url.partition("://")
        return f"{scheme}://{quote(user, safe='')}:{quote(password, safe='')}@{place}"


@dataclass(frozen=True, slots=True)
class Egress:
    """How connections leave. `proxies` are by the scheme of the destination, `direct` the hosts that need none, and
    `authorities` (PEM) are trusted in addition to those of the system. `resolves_callbacks`: the proxy resolves the
    names of callbacks' receivers."""

    proxies: Mapping[str, ProxyServer] = field(default_factory=dict)
    direct: tuple[DirectHosts, ...] = ()
    authorities: str = field(default="", repr=False)
    resolves_callbacks: bool = False

    def proxy_for(self, origin: TargetOrigin) -> ProxyServer | None:
        """Returns the proxy of a destination, None to connect directly. Loopback has none, because at a proxy it would
        be another machine."""
        proxy = self.proxies.get(origin.scheme)
        if proxy is None or origin.loopback or any(one.holds(origin.host, origin.port) for one in self.direct):
            return None
        return proxy

    def tls(self, *, beside: str = "", instead: str = "") -> ssl.SSLContext:
        """Returns the context of its connections, which trusts the authorities of one destination (PEM) `beside` the
        others, or `instead` of them. Contexts are cached; each is slow to make."""
        return client_tls(self.authorities + beside, instead)


DIRECT: Final = Egress()
"""No proxy, and the authorities of the system."""


def egress_from(settings: EgressSettings, environ: Mapping[str, str]) -> Egress:
    """Reads the settings, their files, and the variables that name proxies. Raises SettingsError."""
    _check_system_trust(environ)
    authorities = "" if settings.ca_path is None else read_authorities(settings.ca_path)
    chosen = settings.proxy
    if chosen is not None:
        login = "" if chosen.credentials_path is None else read_secret(chosen.credentials_path, "theirs")
        if login and ":" not in login:
            hint = "write user:password, and nothing else"
            raise SettingsError([fault_in(str(chosen.credentials_path), "there is no colon", code=CODE, hint=hint)])
        server = _server(NamedProxy(chosen.url, login))
        proxies = dict.fromkeys(("http", "https"), server)
        return Egress(proxies, chosen.no_proxy, authorities, chosen.resolves_callbacks)
    named, direct = proxies_in(environ) if settings.environment else ({}, ())
    return Egress({scheme: _server(one) for scheme, one in named.items()}, direct, authorities)


def _server(named: NamedProxy) -> ProxyServer:
    return ProxyServer(named.url, parse_origin(named.url), named.credentials)


def _check_system_trust(environ: Mapping[str, str]) -> None:
    """Refuses a file of authorities that does not exist: OpenSSL would silently trust none."""
    named = environ.get("SSL_CERT_FILE", "")
    if named and not Path(named).is_file():
        hint = "correct the path, or unset it"
        raise SettingsError([fault_in("env SSL_CERT_FILE", f"{named} is not a file", code=CODE, hint=hint)])
