"""Settings of webhooks: allowed addresses, attempts and bounds."""

import re
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from sidecar.settings.addresses import is_host_name
from sidecar.settings.field_types import Many, PathField, Seconds, Section
from sidecar.settings.validation_errors import reject

Network = IPv4Network | IPv6Network

ANY: Final = "*"
_PLACE = re.compile(r"(?P<host>\*|(?:\*\.)?[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[1-9][0-9]{0,4}|\*))?")
_HINT = "write a host such as hooks.acme.example, *.acme.example, hooks.acme.example:8443, [2001:db8::1] or *"


class CallbackPlace(NamedTuple):
    """A host, all names below one (`*.acme.example`) or every host (`*`), with a port. `port` is 0 for the scheme's
    default and -1 for any."""

    host: str
    port: int

    def holds(self, host: str, port: int, own_port: int) -> bool:
        """Whether it matches a host, in lower case, and a port. `own_port` is the default port of the scheme."""
        if self.port != -1 and port != (self.port or own_port):
            return False
        return self.host in (ANY, host) or (self.host.startswith("*.") and host.endswith(self.host[1:]))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if not self.port else f"{host}:{'*' if self.port == -1 else self.port}"


def _place_from(value: object) -> object:
    if isinstance(value, CallbackPlace):
        return value
    found = _PLACE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        reject("this is not a host that can receive callbacks", hint=_HINT)
    host, port = found["host"].lower(), found["port"]
    if port not in (None, "*") and int(port) > 65535:
        reject("a port is at most 65535")
    return CallbackPlace(_host(host), -1 if port == "*" else int(port or 0))


def _host(host: str) -> str:
    if host == ANY:
        return host
    name = host.removeprefix("*.")
    if name.startswith("[") or name.replace(".", "").isdigit():
        try:
            return str(ip_address(host.strip("[]")))
        except ValueError:
            reject(f'"{host}" is not an address', hint=_HINT)
    if not is_host_name(name):
        reject(f'"{host}" is not a host', hint=_HINT)
    return host


def _network_from(value: object) -> object:
    if isinstance(value, IPv4Network | IPv6Network):
        return value
    try:
        return ip_network(value if isinstance(value, str) else "")
    except ValueError:
        reject("this is not a network", hint="write 10.20.0.0/16 or fd00:1::/32, with no bits beyond its length")


PlaceField = Annotated[
    CallbackPlace,
    BeforeValidator(_place_from),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": ["hooks.acme.example", "*.acme.example:8443"]}),
]
NetworkField = Annotated[
    Network,
    BeforeValidator(_network_from),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": ["10.20.0.0/16", "fd00:1::/32"]}),
]


class CallbackSettings(Section):
    """Callbacks and push notifications to addresses that callers choose. They wait in `records.sqlite`, or in memory
    with `tasks.store: memory`. With `tasks.store: redis`, replicas share the registrations."""

    allow: Many[PlaceField] = ()
    """Hosts that may be called back: `hooks.acme.example`, `*.acme.example` (all names below it), or `*` for every
    host. Append `:8443` for another port than the scheme's own, or `:*` for any. By default, no host may be called
    back."""
    schemes: Annotated[Many[Literal["https", "http"]], Field(min_length=1)] = ("https",)
    """Allowed URL schemes. With `http`, the network in between can read what is sent."""
    networks: Many[NetworkField] = ()
    """Networks that are not public (loopback, private, …) but may be reached at hosts of `allow`."""
    blocked: Many[NetworkField] = Field(default=("168.63.129.16/32",), validate_default=True)
    """Public addresses that are never reached. The default is an address that machines in Azure trust."""
    key_path: PathField | None = None
    """File with the key that signs callbacks, the same at all replicas. Default: a key that is created in the data
    folder."""
    ca_path: PathField | None = None
    """PEM file with authorities to trust for receivers, in addition to those of the system."""
    timeout_s: Seconds = 5.0
    """Maximum duration of one attempt, from the lookup of the name to the status of the response."""
