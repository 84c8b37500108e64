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
    """The certificate of a listener."""

    cert_path: PathField
    """PEM file with the certificate and its chain."""
    key_path: PathField
    """PEM file with the private key of the certificate."""
    client_ca_path: PathField | None = None
    """PEM file with the authorities that sign client certificates. The listener then requires TLS 1.3.
    `identity.certificates` maps certificates to principals."""
    client_certificate: Literal["optional", "required"] = "optional"
    """Whether callers must present a certificate. A certificate that no authority signed is always refused. The gRPC
    listener requests none."""

    def _faults(self) -> Iterator[Finding]:
        if self.client_certificate == "required" and self.client_ca_path is None:
            hint = "write client_ca_path: the authorities that sign client certificates"
            yield Finding("client_certificate needs client_ca_path", "S124", hint, ("client_certificate",))


Tls = Annotated[
    Annotated[TlsFiles, Tag("<files>")] | Annotated[Literal["external"], Tag("<external>")],
    Discriminator(lambda value: "<external>" if isinstance(value, str) else "<files>"),
]


class ServerSettings(Section):
    """The data listener."""

    listen: Listen = Field(default="127.0.0.1:8080", validate_default=True)
    """Address at which callers reach the sidecar."""
    public_url: PublicUrl | None = None
    """URL under which callers reach the sidecar. Required beyond loopback. The default audience of tokens is
    `<public_url>/mcp/<server>`."""
    tls: Tls | None = None
    """Certificate and key, or `external` if a proxy in front terminates TLS."""
    allowed_hosts: Many[Host] = ()
    """Accepted values of the `Host` header, in addition to those of `listen` and `public_url`."""
    allowed_origins: Many[Origin] = ()
    """Origins of web pages that may call the sidecar and read its responses (CORS). By default none, because agents are
    not browsers."""
    grpc: Listen | None = None
    """Address of the A2A gRPC listener, which uses the certificate of `tls`. The tenant of a call (1.0) selects the
    agent, then `grpc_authority_header`; a single agent needs neither. Agents can have their own port
    (`a2a.grpc_port`)."""
    grpc_url: GrpcUrl | None = None
    """gRPC address in agent cards if a proxy is in front: `https://gw.acme.example` or `host:port`. `{agent}` as the
    first label is the agent's name. Default: the host of `public_url` and the port of `grpc`."""
    grpc_authority_header: HeaderName | None = None
    """Header in which a proxy passes the `:authority` of a gRPC call. Its first label names the agent."""
    max_body_bytes: Bytes = 2**20
    """Maximum size of a request body."""
    max_response_bytes: Bytes = 10 * 2**20
    """Maximum size of an upstream's response, and of a single event in a stream."""
    header_timeout_s: Seconds = 10.0
    """Maximum time for a caller to send the headers of a request."""
    body_timeout_s: Seconds = 30.0
    """Maximum time for a caller to send the body of a request."""
    keepalive_timeout_s: Seconds = 75.0
    """Idle time after which a connection is closed."""
    max_connections: Count = 1024
    """Maximum number of open connections. Beyond it, a new connection replaces an idle one of the address with the most
    connections."""
    max_connections_per_peer: Count | None = None
    """Maximum number of open connections from one address (IPv6: one /64). Default: three quarters of
    `max_connections`. Default on loopback, and with `tls: external`, where all connections come from the proxy:
    unlimited."""
    workers: Literal["auto"] | Annotated[int, Field(ge=1, le=MAX_WORKERS)] = 1
    """Number of processes that serve this address; `auto` starts one for each CPU that the sidecar may use. Workers
    share limits, sessions, tasks and the kill switch through Redis or Valkey (`store.url`)."""
    worker: Annotated[int, Field(ge=0, le=MAX_WORKERS)] = 0
    """Number of this worker. The process that starts the workers sets it; do not set it in the file."""
    worker_timeout_s: Seconds = 30.0
    """Maximum time that the event loop of a worker may be blocked. After that, the worker is killed and replaced."""
    max_lag_s: Seconds = 0.25
    """Maximum delay of the event loop. If the delay is longer for one second without a break, a share of new calls is
    refused as `overloaded`."""
    drain_delay_s: Seconds | None = None
    """How long calls are served after SIGTERM while `/readyz` already returns 503, so that load balancers stop sending
    calls. In Kubernetes, use at least the readiness probe's period times its failure threshold. Default: 0."""
    shutdown_grace_s: Seconds = 30.0
    """Maximum time for calls in flight to finish after SIGTERM and `drain_delay_s`."""

    @property
    def connections_per_peer(self) -> int:
        """The maximum number of connections from one address; 0 means unlimited."""
        if self.max_connections_per_peer is not None:
            return self.max_connections_per_peer
        shared = self.listen.is_loopback or self.tls == "external"
        return 0 if shared else max(1, self.max_connections * 3 // 4)

    def _faults(self) -> Iterator[Finding]:
        if self.workers != "auto" and self.worker > 0 and self.worker > self.workers:
            hint = "remove it: the supervisor sets it for each worker"
            yield Finding(f"there is no worker {self.worker} among {self.workers}", "S195", hint, at=("worker",))
        if self.grpc is not None and isinstance(self.tls, TlsFiles) and self.tls.client_certificate == "required":
            hint = "remove grpc, or write client_certificate: optional"
            yield Finding("the gRPC listener does not request client certificates", "S124", hint, at=("grpc",))
        if isinstance(self.grpc, UnixAddress):
            yield Finding("a gRPC address is a host and a port", "S127", "write 127.0.0.1:8081", at=("grpc",))
        for key in ("grpc_url", "grpc_authority_header"):
            if self.grpc is None and getattr(self, key) is not None:
                yield Finding(f"{key} needs a gRPC listener", "S127", "write grpc", at=(key,))
        for name, address in (("listen", self.listen), ("grpc", self.grpc)):
            if address is None or address.is_loopback:
                continue
            # Otherwise tokens would cross the network in clear, and their audiences would depend on the Host header.
            if self.public_url is None:
                hint = "write public_url: https://<the name that callers use>"
                yield Finding("a listener beyond loopback needs public_url", "S101", hint, at=(name,))
            if self.tls is None:
                hint = "write tls: {cert_path: ..., key_path: ...}, or tls: external when a proxy in front ends TLS"
                yield Finding("a listener beyond loopback needs tls", "S102", hint, at=(name,))


class LocalListener(Section):
    """A local listener. Every process that connects to it acts as one NHI, without a credential."""

    listen: Listen
    """Unix socket (created with mode 0600), or a loopback address."""
    principal: NhiName
    """NHI that callers of this listener act as."""

    def _faults(self) -> Iterator[Finding]:
        if not self.listen.is_loopback:
            hint = "write unix:/path/to.sock or 127.0.0.1:<port>"
            yield Finding("a local listener must be a loopback address or a Unix socket", "S103", hint, at=("listen",))


class AdminCredential(Section):
    """A credential for the admin listener."""

    role: Literal["viewer", "operator", "pdp"]
    """Role that the credential grants. `pdp` permits requests for decisions."""
    secret_path: PathField
    """File with the secret, at least 32 random characters."""
    name: Slug | None = None
    """Name of the holder in audit records. Default: the role."""
    principal: UserName | None = None
    """User who holds the credential. The credential can answer approvals that require a role of this user."""


class AdminSettings(Section):
    """The admin listener: health, metrics, status and the admin API."""

    listen: Listen = Field(default="127.0.0.1:9090", validate_default=True)
    """Address at which operators reach the sidecar."""
    credentials: Many[AdminCredential] = ()
    """Credentials of operators, viewers and enforcement points. Without any, only `/livez`, `/readyz`, `/metrics` and a
    console with `oidc` are served."""
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
    """The tools that have their own value of the label `tool`."""

    top: Annotated[int, Field(ge=1, le=500)]
    """Number of the most called tools that have their own value. All other tools share `_other`."""


ToolLabel = Annotated[
    Annotated[TopTools, Tag("<top>")] | Annotated[Literal[False], Tag("<off>")],
    Discriminator(lambda value: "<off>" if value is False else "<top>"),
]


class MetricsSettings(Section):
    """A separate listener for `/metrics`, `/livez` and `/readyz` only, and the labels of metrics."""

    listen: Listen | None = None
    """Address at which scrapers reach the metrics. It may be beyond loopback. Without it, scrapers use the admin
    listener."""
    tool_label: ToolLabel = False
    """`{top: 20}` adds the label `tool` to `sidecar_requests_total`, for the most called tools among those that their
    servers list."""


class LogSettings(Section):
    """The operational log on standard error. `sidecar serve --log-format` sets its format."""

    requests: bool = False
    """Whether to log each answered request: upstream, method, tool, principal, status, reason, duration and ids.
    Arguments are never logged."""


class SessionSettings(Section):
    """Storage and limits of MCP sessions."""

    store: Literal["memory", "redis"] = "memory"
    """Where sessions are stored. With `redis` (`store.url`), sessions continue at every replica if the server supports
    it, and get 503 while the store is unavailable."""
    session_calls_per_minute: Count = 600
    """Maximum session calls of one principal per minute: `initialize`, `ping`, lists and notifications. These calls
    need no rule of their own."""
    idle_s: Seconds = 1800.0
    """Idle time after which a session ends."""
    question_timeout_s: Seconds = 300.0
    """Maximum time that a call waits for its caller to answer a question from the server (sampling, elicitation,
    roots)."""
    max_per_principal: Count = 64
    """Maximum number of concurrent sessions of one chain. A further session closes the oldest one."""
    max: Count = 10_000
    """Maximum number of sessions in total."""


class AnswerSettings(Section):
    """The form of refusals, and how much they disclose."""

    deny_style: Literal["auto", "http", "jsonrpc", "tool_result"] = "auto"
    """Form of a refusal. `auto` uses the form that the protocol revision requires. `jsonrpc` and `tool_result` also
    apply to A2A over JSON-RPC."""
    disclosure: Literal["reason", "kind", "hide"] = "reason"
    """How much a refusal discloses to the caller. No value discloses the rule."""


class StreamSettings(Section):
    """Open-ended streams and running calls."""

    max_per_principal: Count = 256
    """Maximum number of concurrent open-ended streams of one chain. Further ones are refused (429)."""
    max: Count = 10_000
    """Maximum number of open-ended streams in total. `server.max_connections` bounds them too."""
    keep_alive_s: Seconds = 15.0
    """Maximum silence on a stream. After that, the sidecar sends a comment to the reader."""
    revoked_calls: Literal["finish", "cancel"] = "finish"
    """What happens to a running call when its permission ends: `finish` gives it 10 seconds, `cancel` ends it at once.
    The kill switch always ends it at once."""


class TaskSettings(Section):
    """Owners of MCP and A2A tasks, tasks of the task API, and runs of CLI agents."""

    store: Literal["file", "memory", "redis"] = "file"
    """Where tasks are stored. `file`: `records.sqlite` in the data folder. `memory`: lost at a restart, after which no
    caller owns its tasks. `redis` (`store.url`): shared by replicas, which take over the tasks of one that dies."""
    keep_s: Seconds = 7 * 86_400.0
    """Maximum time for which the owner of a task is stored. If the task states a shorter lifetime, its owner is deleted
    when that ends."""
    max_per_principal: Count = 1_000
    """Maximum number of tasks of one chain. Beyond it, the oldest task is deleted, ended tasks first."""
    max: Count = 100_000
    """Maximum number of tasks in total. Beyond it, the oldest ended task of the chain with the most is deleted. If no
    task has ended, no new one is created."""
    follow_s: Seconds = 86_400.0
    """Maximum duration of a task of the task API. After that, the sidecar cancels the task at its agent, and the task
    has failed."""
    ask_every_s: Seconds = 10.0
    """Maximum interval at which the sidecar asks an agent for the state of a task of the task API."""


class RefusalSettings(Section):
    """Bounds on refusals. Refusals by a limit and by an unavailable dependency do not count."""

    per_peer_per_minute: Count = 600
    """Maximum refusals per minute of unauthenticated callers at one address (IPv6: one /64). Beyond it, their
    connections are closed and counted. Callers behind a proxy share one address: set the number that they need
    together."""
    per_principal_per_minute: Count = 600
    """Maximum refusals of one chain per minute. Beyond it, all its calls are refused as `too-many-refusals` (429) until
    the minute ends."""
    recorded_per_principal_per_minute: Count = 100
    """Maximum refusals of one chain by limits or outages per minute that have an audit record each. Further ones are
    counted once a minute in one record."""
