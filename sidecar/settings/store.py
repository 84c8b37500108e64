"""Settings of the store of counters and shared state. Its URL is one of these:

memory://                                          in this process
redis://[user:password@]host[:6379][/db]           one Redis or Valkey; rediss:// with TLS
unix:///path/to.sock[?db=0]                        the same, at a socket of this machine
redis+sentinel://host[:26379],host,…/service[/db]  the node that the Sentinels call primary; rediss+sentinel://
redis+cluster://host[:6379],host,…                 the Cluster node that owns the slot; rediss+cluster://
"""

import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import AfterValidator, Field

from sidecar.settings.addresses import is_host_name
from sidecar.settings.field_types import Count, PathField, Seconds, Section
from sidecar.settings.secrets import read_secret
from sidecar.settings.validation_errors import Finding, reject

StoreKind = Literal["memory", "redis", "unix", "sentinel", "cluster"]

MAX_NODES = 16
DEADLINE_S = 0.08
"""For one request to the store: while it is unavailable, callers are refused within 100 ms."""
_SHAPES: dict[StoreKind, str] = {
    "memory": "memory://",
    "redis": "redis://host:6379/0",
    "unix": "unix:///path/to.sock",
    "sentinel": "redis+sentinel://host:26379,host:26379/service/0",
    "cluster": "redis+cluster://host:6379,host:6379",
}
_SCHEMES: dict[str, StoreKind] = {
    "memory": "memory",
    "unix": "unix",
    "redis": "redis",
    "redis+sentinel": "sentinel",
    "redis+cluster": "cluster",
}
_NODE = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:]+))(?::(?P<port>[0-9]{1,5}))?")
_SERVICE = re.compile(r"[A-Za-z0-9._\-]{1,128}")
_DATABASE = re.compile(r"[0-9]{1,4}")


@dataclass(frozen=True, slots=True)
class StorePlace:
    """The parts of a store's URL. `nodes` are the hosts and ports of the server, of the Sentinels, or of some nodes of
    the Cluster; `path` is that of a socket, `service` the name that Sentinels know."""

    kind: StoreKind
    tls: bool = False
    nodes: tuple[tuple[str, int], ...] = ()
    path: str = ""
    service: str = ""
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)


def parse_store_url(text: str) -> StorePlace:
    """Parses a store URL. Rejects all other texts, and never repeats them in errors."""
    scheme, _, rest = text.partition("://")
    tls, kind = scheme.startswith("rediss"), _SCHEMES.get(scheme.replace("rediss", "redis", 1))
    if kind is None:
        reject("this is not the URL of a store", hint=", ".join(_SHAPES.values()))
    if kind == "memory":
        if rest:
            reject("the in-process store takes no address", hint="write memory://")
        return StorePlace("memory")
    if not text.isascii() or any(character <= " " for character in text) or "#" in text:
        reject("this is not a URL", hint="percent-encode characters other than plain ASCII")
    authority, _, path = rest.partition("/")
    user_info, at, hosts = authority.rpartition("@")
    username, colon, password = user_info.partition(":")
    who = (unquote(username) or None if at else None), (unquote(password) if colon else None)
    if kind == "unix":
        return _socket(path, *who)
    if "?" in rest:
        reject("this URL cannot have a query", hint="use the settings next to store.url instead")
    nodes = _nodes(hosts, 26379 if kind == "sentinel" else 6379, _shape(kind, tls))
    if kind == "redis" and len(nodes) > 1:
        reject("redis:// names one node", hint=f"{_SHAPES['sentinel']}, {_SHAPES['cluster']}")
    service, database = _service_and_database(kind, path, _shape(kind, tls))
    return StorePlace(kind, tls, nodes, "", service, database, *who)


def _shape(kind: StoreKind, tls: bool) -> str:
    return "write " + (_SHAPES[kind].replace("redis", "rediss", 1) if tls else _SHAPES[kind])


def _socket(path: str, username: str | None, password: str | None) -> StorePlace:
    parts = urlsplit(f"//x/{path}")
    query = parse_qs(parts.query, keep_blank_values=True)
    database = query.pop("db", ["0"])
    if query or len(database) != 1 or not _DATABASE.fullmatch(database[0]):
        reject("this query is unknown", hint="the only query is ?db=<number>")
    if not parts.path.strip("/"):
        reject("the path is missing", hint="write unix:///path/to.sock")
    return StorePlace("unix", False, (), unquote(parts.path), "", int(database[0]), username, password)


def _nodes(hosts: str, default_port: int, hint: str) -> tuple[tuple[str, int], ...]:
    nodes = []
    for host in hosts.split(","):
        found = _NODE.fullmatch(host)
        if not host or (found is None and host.startswith(":")):
            reject("the host is missing", hint=hint)
        if found is None or not (found["v6"] or is_host_name(found["name"])):
            reject("this is not a host", hint=hint)
        port = int(found["port"] or default_port)
        if not 0 < port < 65536:
            reject("this is not a port", hint=hint)
        nodes.append((found["v6"] or found["name"], port))
    if len(nodes) > MAX_NODES:
        reject(f"more than {MAX_NODES} nodes", hint="name some of them; these report the others")
    return tuple(nodes)


def _service_and_database(kind: StoreKind, path: str, hint: str) -> tuple[str, int]:
    service, database = "", path
    if kind == "sentinel":
        service, _, database = path.partition("/")
        if not _SERVICE.fullmatch(service):
            reject("the service's name is missing", hint=hint)
    if kind == "cluster" and path not in ("", "0"):
        reject("a Cluster has one database, 0", hint=hint)
    if database and not _DATABASE.fullmatch(database):
        reject("this is not the number of a database", hint=hint)
    return service, int(database or 0)


class StoreTls(Section):
    """Verification of the store's certificate, and the sidecar's own certificate."""

    ca_path: PathField | None = None
    """PEM file with the authorities that sign the store's certificate, in addition to those of the system. Default:
    `egress.ca_path`."""
    cert_path: PathField | None = None
    """PEM file with the sidecar's certificate, if the store requires one."""
    key_path: PathField | None = None
    """PEM file with the private key of the certificate."""

    def _faults(self) -> Iterator[Finding]:
        if (self.cert_path is None) is not (self.key_path is None):
            yield Finding("a certificate and its key must be set together", hint="write cert_path and key_path")


class SentinelLogin(Section):
    """The sidecar's login at the Sentinels."""

    username: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """User in the ACL of the Sentinels. Default: `default`."""
    password_path: PathField
    """File with the password. It is read for each connection, so you can change it while the sidecar runs."""


class StoreSettings(Section):
    """The store of counters and shared state."""

    url: Annotated[str, Field(max_length=2048), AfterValidator(lambda text: parse_store_url(text) and text)] = Field(
        default="memory://", repr=False
    )
    """`memory://` counts in this process. `redis://`, `rediss://`, `unix://`, `redis+sentinel://host,host/service` and
    `redis+cluster://host,host` count for all replicas."""
    username: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """User in the ACL of the store. Default: the user in the URL, otherwise `default`."""
    password_path: PathField | None = None
    """File with the password. It is read for each connection, so you can change it while the sidecar runs."""
    sentinel: SentinelLogin | None = None
    """Login at the Sentinels. Without it, the sidecar does not log in to them."""
    tls: StoreTls | None = None
    """Authorities and certificate for `rediss://`, `rediss+sentinel://` and `rediss+cluster://`."""
    timeout: Annotated[Seconds, Field(ge=0.01, le=10.0)] = DEADLINE_S
    """Maximum time for the store to answer. After that, calls with limits are refused. Raise it for a distant store."""
    on_failure: Literal["deny", "degraded"] = "deny"
    """What happens to calls with limits while the store is unavailable: `deny` refuses them, `degraded` admits up to
    `degraded_calls`. Calls with a budget are always refused."""
    degraded_calls: Count | None = None
    """Maximum number of calls that each instance admits for each limit and period while the store is unavailable."""

    @property
    def place(self) -> StorePlace:
        return parse_store_url(self.url)

    @property
    def is_memory(self) -> bool:
        return self.url == "memory://"

    def _faults(self) -> Iterator[Finding]:
        place = self.place
        if self.on_failure == "degraded" and self.degraded_calls is None:
            hint = "write degraded_calls: the number of calls that each instance may admit for each limit and period"
            yield Finding('the key "degraded_calls" is missing', "S136", hint, ("on_failure",))
        if self.degraded_calls is not None and self.on_failure != "degraded":
            yield Finding("this needs on_failure: degraded", "S136", "", ("degraded_calls",))
        if self.on_failure == "degraded" and self.is_memory:
            yield Finding("the in-process store is always available", "S136", "remove it", ("on_failure",))
        if self.tls is not None and not place.tls:
            yield Finding("the store's URL does not use TLS", "S136", "write rediss://, rediss+sentinel://…", ("tls",))
        if self.sentinel is not None and place.kind != "sentinel":
            yield Finding("there are no Sentinels in this store's URL", "S136", "remove it", ("sentinel",))
        if self.username is not None and place.username is not None:
            yield Finding("the URL also names a user", "S136", "name it once", ("username",))
        if self.password_path is not None and place.password is not None:
            yield Finding("the URL also contains a password", "S136", "remove it from the URL", ("password_path",))
        if self.username is not None and self.password_path is None and place.password is None:
            yield Finding("a user needs a password", "S136", "write password_path", ("username",))
        if place.kind == "memory" and (self.username or self.password_path):
            yield Finding("the in-process store has no users", "S136", "remove it", ("username",))

    def trusting(self, ca_path: Path) -> Self:
        """These settings, with these authorities if the store uses TLS and names none."""
        if not self.place.tls or (self.tls is not None and self.tls.ca_path is not None):
            return self
        tls = (self.tls or StoreTls()).model_copy(update={"ca_path": ca_path})
        return self.model_copy(update={"tls": tls})

    def login(self) -> dict[str, Any]:
        """User, password and database, as arguments of redis-py connections. Reads the password file each time. Raises
        SettingsError."""
        place = self.place
        password = place.password if self.password_path is None else read_secret(self.password_path, "theirs")
        return {"username": self.username or place.username, "password": password, "db": place.database}

    def certificates(self) -> dict[str, Any]:
        """The authorities and the certificate, as arguments of redis-py connections over TLS."""
        files = {"ssl_min_version": ssl.TLSVersion.TLSv1_2}
        if self.tls is None:
            return files
        named = {"ssl_ca_certs": self.tls.ca_path, "ssl_certfile": self.tls.cert_path, "ssl_keyfile": self.tls.key_path}
        return files | {name: str(path) for name, path in named.items() if path is not None}
