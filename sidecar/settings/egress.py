"""Settings of outgoing connections: the proxy that they go through, and the authorities that they trust."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Annotated, Final, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

from sidecar.errors import Fault, SettingsError, fault_in
from sidecar.settings.addresses import is_host_name
from sidecar.settings.field_types import Many, PathField, Section, split_url
from sidecar.settings.validation_errors import Finding, reject

CODE: Final = "S137"
ANY: Final = "*"
_HOST_AND_PORT: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>[1-9][0-9]{0,4}))?")
_HINT: Final = "write a host such as acme.example (and every name below it), a network such as 10.0.0.0/8, or *"


class DirectHosts(NamedTuple):
    """Hosts that are reached without the proxy: a name and every name below it, a network, or all (`*`). `port` is 0
    for any."""

    name: str
    network: IPv4Network | IPv6Network | None = None
    port: int = 0

    def holds(self, host: str, port: int) -> bool:
        """Whether it matches a host, in lower case, and its port. A network matches addresses, never names."""
        if self.port not in (0, port):
            return False
        if self.network is not None:
            try:
                return ip_address(host) in self.network
            except ValueError:
                return False
        return self.name == ANY or host == self.name or host.endswith(f".{self.name}")

    def __str__(self) -> str:
        text = self.name
        if self.network is not None:
            text = str(self.network.network_address) if self.network.num_addresses == 1 else str(self.network)
        if not self.port:
            return text
        return f"[{text}]:{self.port}" if ":" in text else f"{text}:{self.port}"


def direct_hosts_from(value: object) -> DirectHosts:
    """Parses an entry of `no_proxy`: `*`, or a name, an address or a network, each with or without a port. A name may
    begin with `.` or `*.`, which changes nothing. Rejects all other values."""
    if isinstance(value, DirectHosts):
        return value
    text = value.strip().lower() if isinstance(value, str) else ""
    if (network := _network(text.strip("[]"))) is not None:
        return DirectHosts("", network)
    found = _HOST_AND_PORT.fullmatch(text)
    if found is None:
        reject("this is not a host", CODE, _HINT)
    host, port = found["v6"] or found["host"], int(found["port"] or 0)
    if port > 65535:
        reject("a port is at most 65535", CODE)
    if (network := _network(host)) is not None:
        return DirectHosts("", network, port)
    name = host.removeprefix("*.").removeprefix(".").rstrip(".")
    if host != ANY and (found["v6"] or not is_host_name(name) or name.replace(".", "").isdigit()):
        reject("this is not a host", CODE, _HINT)
    return DirectHosts(ANY if host == ANY else name, None, port)


def _network(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def _proxy_url(text: str) -> str:
    parts = split_url(text, "http", "https")
    if parts.path not in ("", "/") or parts.query:
        reject("a proxy URL consists of a scheme, a host and a port", CODE, "write http://proxy.acme.example:3128")
    if parts.port is None:
        reject("the proxy's port is missing", CODE, f"write {parts.scheme}://{parts.netloc}:3128")
    return text.rstrip("/")


DirectHostsField = Annotated[
    DirectHosts,
    BeforeValidator(direct_hosts_from),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": ["acme.example", "10.0.0.0/8", "*"]}),
]


class ProxySettings(Section):
    """The proxy for outgoing connections."""

    url: Annotated[str, AfterValidator(_proxy_url)]
    """URL of the proxy: `http://host:port`, or `https://host:port` if the proxy itself uses TLS."""
    credentials_path: PathField | None = None
    """File with `user:password` for the proxy (Basic)."""
    no_proxy: Many[DirectHostsField] = ()
    """Hosts that are reached without the proxy: `acme.example` (and all names below it), `10.0.0.0/8`, `host:8443`,
    `*`. Networks match addresses, not names. Loopback never goes through the proxy."""
    resolves_callbacks: bool = False
    """Whether the proxy resolves the names of callbacks. Only the proxy can then check their addresses
    (`callbacks.networks`, `callbacks.blocked`). By default, the sidecar resolves them, and refuses names that it cannot
    resolve."""


class EgressSettings(Section):
    """Outgoing connections: to upstreams, issuers, token endpoints, policy sources, audit receivers and callbacks."""

    proxy: ProxySettings | None = None
    """Proxy for outgoing connections, in place of `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, which apply
    by default."""
    environment: bool = True
    """Whether to use the proxy that these environment variables name."""
    ca_path: PathField | None = None
    """PEM file with authorities to trust, in addition to those of the system (or of `SSL_CERT_FILE`)."""


class NamedProxy(NamedTuple):
    """A proxy's address, and `user:password`."""

    url: str
    credentials: str = ""


def proxies_in(environ: Mapping[str, str]) -> tuple[Mapping[str, NamedProxy], tuple[DirectHosts, ...]]:
    """The proxies that variables name, by the scheme of the destination, and the hosts that are reached directly.
    Lower-case names take precedence. `HTTP_PROXY` is ignored in a CGI program, where a request header sets it. Raises
    SettingsError."""
    faults: list[Fault] = []
    proxies = {}
    for scheme in ("http", "https"):
        name = _first(environ, f"{scheme}_proxy", "all_proxy")
        if name and not (name == "HTTP_PROXY" and "REQUEST_METHOD" in environ):
            with _told_of(name, faults):
                proxies[scheme] = _named_proxy(environ[name].strip())
    direct: list[DirectHosts] = []
    listed = _first(environ, "no_proxy")
    for entry in filter(None, re.split(r"[,\s]+", environ[listed])) if proxies and listed else ():
        with _told_of(listed, faults):
            direct.append(direct_hosts_from(entry))
    if faults:
        raise SettingsError(faults)
    return proxies, tuple(direct)


def _first(environ: Mapping[str, str], *names: str) -> str:
    """The first of these variables that is not empty, each in lower case and in upper case."""
    spelled = (spelling for name in names for spelling in (name, name.upper()))
    return next((name for name in spelled if environ.get(name, "").strip()), "")


def _named_proxy(text: str) -> NamedProxy:
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
    except ValueError:
        reject("this is not a URL", CODE)
    login, at, place = parts.netloc.rpartition("@")
    url = _proxy_url(urlunsplit((parts.scheme, place, parts.path, parts.query, parts.fragment)))
    return NamedProxy(url, unquote(login) if at else "")


@contextmanager
def _told_of(name: str, faults: list[Fault]) -> Iterator[None]:
    """Collects the faults that are found inside as faults of a variable."""
    try:
        yield
    except PydanticCustomError as error:
        found: tuple[Finding, ...] = (error.context or {})["findings"]
        faults += (fault_in(f"env {name}", one.message, code=CODE, hint=one.hint) for one in found)
