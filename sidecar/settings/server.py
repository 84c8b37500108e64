"""Settings of listeners, TLS, sessions, streams, tasks, responses and refusals."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from sidecar.settings.addresses import UnixAddress
from sidecar.settings.console import ConsoleSettings
from sidecar.settings.field_types import (
    Bytes,
    Count,
    GrpcUrl,
    HeaderName,
    Host,
    Listen,
    Many,
    NhiName,
    Origin,
    PathField,
    PublicUrl,
    Seconds,
    Section,
    Slug,
    UserName,
)
from sidecar.settings.validation_errors import Finding

MAX_WORKERS = 64


class TlsFiles(Section):
    """The listener's own certificate."""

    cert_path: PathField
    """PEM file with the certificate and its chain."""
    key_path: PathField
    """PEM file with its private key."""
    client_ca_path: PathField | None = None
    """PEM file with the authorities of client certificates; TLS is 1.3 then. Who they are: `identity.certificates`."""
    client_certificate: Literal["optional", "required"] = "optional"
    """Whether a certificate is required; one that no authority signed is always refused. gRPC asks for none."""

    def _faults(self) -> Iterator[Finding]:
        if self.client_certificate == "required" and self.client_ca_path is None:
            hint = "write client_ca_path: the authorities that sign client certificates"
            yield Finding("no certificate could be good enough", "S124", hint, ("client_certificate",))


Tls = Annotated[
    Annotated[TlsFiles, Tag("<files>")] | Annotated[Literal["external"], Tag("<external>")],
    Discriminator(lambda value: "<external>" if isinstance(value, str) else "<files>"),
]


class ServerSettings(Section):
    """The data listener."""

    listen: Listen = Field(default="127.0.0.1:8080", validate_default=True)
    """The address at which callers reach it."""
    public_url: PublicUrl | None = None
    """The address that callers see; needed beyond loopback. Default audience: <public_url>/mcp/<server>."""
    tls: Tls | None = None
    """Certificate and key, or `external` when something in front ends TLS."""
    allowed_hosts: Many[Host] = ()
    """Further values of the Host header that are served, in addition to those of `listen` and `public_url`."""
    allowed_origins: Many[Origin] = ()
    """Origins of web pages that may call the sidecar and read its responses (CORS). By default none:
    agents are not browsers."""
    grpc: Listen | None = None
    """Address of the A2A gRPC listener, with the certificate of `tls`. A call is for the agent of its tenant (1.0),
    then of `grpc_authority_header`, then for the only one. Agents can have ports of their own (`a2a.grpc_port`)."""
    grpc_url: GrpcUrl | None = None
    """That address in cards, where a proxy is in front: `https://gw.acme.example`, or `host:port`; `{agent}` as the
    first label is the agent's name. By default the host of `public_url` and the port of `grpc`."""
    grpc_authority_header: HeaderName | None = None
    """The header in which a proxy passes on the `:authority` of a gRPC call: its first label names the agent."""
    max_body_bytes: Bytes = 2**20
    """Largest request body."""
    max_response_bytes: Bytes = 10 * 2**20
    """Largest answer of an upstream, and largest single event of a stream."""
    header_timeout_s: Seconds = 10.0
    """How long a caller may take to send a request's head."""
    body_timeout_s: Seconds = 30.0
    """How long a caller may take to send a request's body."""
    keepalive_timeout_s: Seconds = 75.0
    """How long an idle connection stays open."""
    max_connections: Count = 1024
    """Open connections at once. When all are taken, a new one replaces an idle one of the address with most."""
    max_connections_per_peer: Count | None = None
    """Open connections of one address, or of one /64 of IPv6. By default three quarters of `max_connections` for a
    listener beyond loopback, and unbounded with `tls: external`, where all come from the proxy."""
    workers: Literal["auto"] | Annotated[int, Field(ge=1, le=MAX_WORKERS)] = 1
    """Processes that serve this address together; `auto` is one for each CPU that this process may use. More than one
    share limits, sessions, tasks and the kill switch through Redis or Valkey (`store.url`)."""
    worker: Annotated[int, Field(ge=0, le=MAX_WORKERS)] = 0
    """The number of this process among them; set for each worker by the process that starts it, and not in the file."""
    worker_timeout_s: Seconds = 30.0
    """How long a worker's event loop may be blocked before the worker is ended and replaced."""
    max_lag_s: Seconds = 0.25
    """How late the event loop may be, for one second without a break, before a share of new calls is
    refused as `overloaded`."""
    drain_delay_s: Seconds | None = None
    """How long calls are still served after SIGTERM while `/readyz` already answers 503, so that load balancers stop
    sending them here. In Kubernetes, at least the readiness probe's period times its failure threshold. Default: 0."""
    shutdown_grace_s: Seconds = 30.0
    """How long calls in flight may take to finish after SIGTERM and `drain_delay_s`."""

    @property
    def connections_per_peer(self) -> int:
        """The limit for one address; 0 if there is none."""
        if self.max_connections_per_peer is not None:
            return self.max_connections_per_peer
        shared = self.listen.is_loopback or self.tls == "external"
        return 0 if shared else max(1, self.max_connections * 3 // 4)

    def _faults(self) -> Iterator[Finding]:
        if self.workers != "auto" and self.worker > 0 and self.worker > self.workers:
            hint = "remove it: it is set for each worker when it is started"
            yield Finding(f"there is no worker {self.worker} among {self.workers}", "S195", hint, at=("worker",))
        if self.grpc is not None and isinstance(self.tls, TlsFiles) and self.tls.client_certificate == "required":
            hint = "leave grpc out, or let client_certificate be optional"
            yield Finding("the gRPC listener asks for no client certificate", "S124", hint, at=("grpc",))
        if isinstance(self.grpc, UnixAddress):
            yield Finding("a gRPC address is a host and a port", "S127", "write 127.0.0.1:8081", at=("grpc",))
        for key in ("grpc_url", "grpc_authority_header"):
            if self.grpc is None and getattr(self, key) is not None:
                yield Finding(f"{key} is for a gRPC listener, and there is none", "S127", "write grpc", at=(key,))
        for name, address in (("listen", self.listen), ("grpc", self.grpc)):
            if address is None or address.is_loopback:
                continue
            # Otherwise tokens would cross the network in clear, and audiences would be taken from the Host header.
            if self.public_url is None:
                hint = "write public_url: https://<the name callers use>"
                yield Finding("a listener beyond loopback needs public_url", "S101", hint, at=(name,))
            if self.tls is None:
                hint = "write tls: {cert_path: ..., key_path: ...}, or tls: external when a proxy in front ends TLS"
                yield Finding("a listener beyond loopback needs tls", "S102", hint, at=(name,))


class LocalListener(Section):
    """A listener whose callers are one NHI: every process that reaches it is that NHI."""

    listen: Listen
    """A Unix socket (made with mode 0600), or exactly loopback."""
    principal: NhiName
    """The principal of its callers."""

    def _faults(self) -> Iterator[Finding]:
        if not self.listen.is_loopback:
            hint = "write unix:/path/to.sock or 127.0.0.1:<port>"
            yield Finding("a local listener must not leave this machine", "S103", hint, at=("listen",))


class AdminCredential(Section):
    """Who may use the admin listener."""

    role: Literal["viewer", "operator", "pdp"]
    """What the bearer of this secret may do. `pdp` asks for decisions."""
    secret_path: PathField
    """File with the secret: at least 32 random characters."""
    name: Slug | None = None
    """The name of the holder in audit records. By default the role."""
    principal: UserName | None = None
    """The person who has it. It answers calls that wait for an approval by a role of this person."""


class AdminSettings(Section):
    """The admin listener: health, metrics, status, API."""

    listen: Listen = Field(default="127.0.0.1:9090", validate_default=True)
    """The address at which operators reach it."""
    credentials: Many[AdminCredential] = ()
    """Without one, only /livez, /readyz and /metrics are answered."""
    console: ConsoleSettings = Field(default_factory=ConsoleSettings)

    def _faults(self) -> Iterator[Finding]:
        if not self.listen.is_loopback and not self.credentials:
            hint = "write credentials: [{role: viewer, secret_path: ...}]"
            yield Finding("an admin listener beyond loopback needs credentials", "S104", hint, at=("listen",))
        if not self.console.enabled:
            return
        if self.console.oidc is None and all(one.role == "pdp" for one in self.credentials):
            hint = "write credentials: [{role: operator, secret_path: ...}], or console: {oidc: ...}"
            yield Finding("no one could log in to the console", "S104", hint, at=("console", "enabled"))
        if not self.listen.is_loopback and self.console.url is None:
            hint = "write console: {url: https://<the name that browsers use>}"
            yield Finding("a console beyond loopback needs its url", "S196", hint, at=("console", "enabled"))


class TopTools(Section):
    """The most called tools."""

    top: Annotated[int, Field(ge=1, le=500)]
    """How many tools have a value of their own; the rest is `_other`."""


ToolLabel = Annotated[
    Annotated[TopTools, Tag("<top>")] | Annotated[Literal[False], Tag("<off>")],
    Discriminator(lambda value: "<off>" if value is False else "<top>"),
]


class MetricsSettings(Section):
    """A second address for /metrics, /livez and /readyz only, and what is counted."""

    listen: Listen | None = None
    """Where scrapers reach it; may be beyond loopback. Without one there is the admin listener."""
    tool_label: ToolLabel = False
    """`{top: 20}` gives `sidecar_requests_total` a label `tool`, for the most called tools that their servers list."""


class LogSettings(Section):
    """The operator's log on standard error. Its format is `sidecar serve --log-format`."""

    requests: bool = False
    """Whether each answered request has a line: upstream, method, tool, principal, status, reason, duration and ids;
    never arguments."""


class SessionSettings(Section):
    """Bounds on the number of MCP sessions and their calls."""

    store: Literal["memory", "redis"] = "memory"
    """`redis` (`store.url`): sessions continue at every replica, if the server supports it. While the store is
    unavailable, they get 503."""
    session_calls_per_minute: Count = 600
    """Calls of one principal that need no rule of their own: initialize, ping, lists, notifications."""
    idle_s: Seconds = 1800.0
    """Idle time after which a session ends."""
    question_timeout_s: Seconds = 300.0
    """How long a call waits for its caller to answer what the server asks (sampling, elicitation, roots)."""
    max_per_principal: Count = 64
    """Sessions of one chain at once; the oldest gives way."""
    max: Count = 10_000
    """Sessions in total."""


class AnswerSettings(Section):
    """How much a refusal discloses."""

    deny_style: Literal["auto", "http", "jsonrpc", "tool_result"] = "auto"
    """`auto` answers as the protocol revision requires. `jsonrpc` and `tool_result` hold for A2A's JSON-RPC too."""
    disclosure: Literal["reason", "kind", "hide"] = "reason"
    """How much a caller learns; never the rule."""


class StreamSettings(Section):
    """Streams that stay open, and calls that are under way."""

    max_per_principal: Count = 256
    """Streams without an end that one chain holds at once. Further ones are refused (429)."""
    max: Count = 10_000
    """Such streams in total; `server.max_connections` bounds them too."""
    keep_alive_s: Seconds = 15.0
    """How long such a stream may be silent before its reader is sent a comment."""
    revoked_calls: Literal["finish", "cancel"] = "finish"
    """What happens to a running call when its permission ends. The kill switch always cancels it."""


class TaskSettings(Section):
    """Owners of MCP and A2A tasks, the tasks of the task API, and the runs of agents that are programs."""

    store: Literal["file", "memory", "redis"] = "file"
    """`file` is `records.sqlite` in the data folder. `memory` is lost at a restart: then no caller owns its tasks.
    `redis` (`store.url`) is shared by replicas, which take over the tasks of one that dies."""
    keep_s: Seconds = 7 * 86_400.0
    """How long an owner is remembered at most; a task that says that it lasts shorter is forgotten with its end."""
    max_per_principal: Count = 1_000
    """Tasks of one chain; the oldest is forgotten, one that ended first."""
    max: Count = 100_000
    """Tasks in all. Beyond, an ended one of the chain with most is forgotten; if none ended, no new one is created."""
    follow_s: Seconds = 86_400.0
    """How long a task of the task API may take at most; then it is cancelled at its agent, and has failed."""
    ask_every_s: Seconds = 10.0
    """How often to ask an agent for the state of such a task, when there was no news for a while."""


class RefusalSettings(Section):
    """Bounds on refusals. Refusals by a limit and by an unavailable dependency do not count."""

    per_peer_per_minute: Count = 600
    """Refusals of callers without an identity, for each address (IPv6: each /64); beyond, connections are closed, and
    counted. Behind a proxy all strangers share one address: set it to what they need together."""
    per_principal_per_minute: Count = 600
    """Refusals of one chain. Then all its calls are `too-many-refusals` (429) for the rest of that minute."""
    recorded_per_principal_per_minute: Count = 100
    """Refusals of one chain by limits or outages with a record each; those beyond are counted once a minute in one."""
