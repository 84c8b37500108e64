"""The root model of sidecar.yaml."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from sidecar.settings.addresses import ListenAddress, UnixAddress
from sidecar.settings.agent_endpoints import AgentOffer, path_faults, port_faults
from sidecar.settings.agents import CliAgent
from sidecar.settings.approvals import ApprovalSettings
from sidecar.settings.audit import AuditSettings
from sidecar.settings.callbacks import CallbackSettings
from sidecar.settings.credentials import SigningSettings
from sidecar.settings.egress import EgressSettings
from sidecar.settings.field_types import SLUG, Many, PathField, Section, Slug
from sidecar.settings.identity import IdentitySettings
from sidecar.settings.pdp import DecisionSettings
from sidecar.settings.policy import PolicySettings
from sidecar.settings.schedules import MOST, ScheduleSettings, schedule_faults
from sidecar.settings.server import (
    AdminSettings,
    AnswerSettings,
    LocalListener,
    LogSettings,
    MetricsSettings,
    RefusalSettings,
    ServerSettings,
    SessionSettings,
    StreamSettings,
    TaskSettings,
    TlsFiles,
)
from sidecar.settings.store import StoreSettings
from sidecar.settings.upstreams import UpstreamSettings
from sidecar.settings.validation_errors import Finding
from sidecar.settings.yaml_nodes import Loc

WORKERS = "workers"
CONTROL_SOCKET = "control.sock"
METRICS_FILE = "metrics.json"
_NAMED: Any = Field(json_schema_extra={"propertyNames": {"pattern": f"^{SLUG}$", "maxLength": 64}})


class Settings(Section):
    """The settings in `sidecar.yaml`. Relative paths start at the folder of the file."""

    version: Literal[1]
    """Version of this file format."""
    data: PathField = Field(default="data", validate_default=True)
    """The data folder, to which the sidecar writes the audit log, the owners of tasks, the keys that it creates at the
    first start, and the control socket."""
    server: ServerSettings = Field(default_factory=ServerSettings)
    local: Many[LocalListener] = ()
    """Local listeners, whose callers act as one NHI."""
    admin: AdminSettings = Field(default_factory=AdminSettings)
    metrics: MetricsSettings = Field(default_factory=MetricsSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    pdp: DecisionSettings | None = None
    """The decision API for other enforcement points. Without this section, it is disabled."""
    identity: IdentitySettings = Field(default_factory=IdentitySettings)
    policy: PolicySettings = Field(default_factory=PolicySettings)
    store: StoreSettings = Field(default_factory=StoreSettings)
    audit: AuditSettings = Field(default_factory=AuditSettings)
    signing: SigningSettings = Field(default_factory=SigningSettings)
    upstreams: Annotated[Mapping[Slug, UpstreamSettings], _NAMED] = {}
    """MCP servers and A2A agents behind the sidecar, by name."""
    egress: EgressSettings = Field(default_factory=EgressSettings)
    sessions: SessionSettings = Field(default_factory=SessionSettings)
    streams: StreamSettings = Field(default_factory=StreamSettings)
    tasks: TaskSettings = Field(default_factory=TaskSettings)
    approvals: ApprovalSettings = Field(default_factory=ApprovalSettings)
    refusals: RefusalSettings = Field(default_factory=RefusalSettings)
    callbacks: CallbackSettings = Field(default_factory=CallbackSettings)
    answers: AnswerSettings = Field(default_factory=AnswerSettings)
    agents: Annotated[Mapping[Slug, CliAgent], _NAMED] = {}
    """CLI agents, by name."""
    schedules: Annotated[Mapping[Slug, ScheduleSettings], Field(max_length=MOST)] = {}
    """Scheduled runs of agents, by name."""

    @property
    def own(self) -> Path:
        """The folder to which only this process writes: the data folder, or for a worker its own folder in it."""
        return self.own_of(self.server.worker)

    def own_of(self, worker: int) -> Path:
        return self.data / WORKERS / str(worker) if worker else self.data

    @property
    def worker_numbers(self) -> range:
        """The numbers of the workers that serve together, including this one; empty for a process that serves alone."""
        count = self.server.workers
        return range(1, count + 1) if self.server.worker and count != "auto" else range(0)

    @property
    def parts(self) -> tuple[Path, ...]:
        """The data folder, and the existing folders of workers in it, by number."""
        folder = self.data / WORKERS
        numbers = sorted(int(one.name) for one in folder.iterdir() if one.name.isdecimal()) if folder.is_dir() else []
        return (self.data, *(self.own_of(number) for number in numbers))

    @property
    def idle_parts(self) -> tuple[Path, ...]:
        """Those of `parts` to which neither this process nor the workers that serve with it write."""
        served = {self.own, *map(self.own_of, self.worker_numbers)}
        return tuple(part for part in self.parts if part not in served)

    @property
    def audit_path(self) -> Path:
        return self._audit_path_of(self.server.worker)

    def _audit_path_of(self, worker: int) -> Path:
        if (path := self.audit.path) is not None:
            return path.parent / f"worker-{worker}" / path.name if worker else path
        return self.own_of(worker) / "audit" / "audit.jsonl"

    @property
    def audit_logs(self) -> Mapping[int, Path]:
        """The existing audit logs, by the number of the worker; 0 is the log of a process without workers."""
        path = self.audit.path
        folder, prefix = (self.data / WORKERS, "") if path is None else (path.parent, "worker-")
        names = (one.name.removeprefix(prefix) for one in folder.glob(f"{prefix}*"))
        numbers = sorted(int(name) for name in names if name.isascii() and name.isdecimal() and name != "0")
        paths = ((worker, self._audit_path_of(worker)) for worker in (0, *numbers))
        return {worker: path for worker, path in paths if path.exists()}

    @property
    def audit_paths(self) -> tuple[Path, ...]:
        return tuple(self.audit_logs.values())

    @property
    def audit_store(self) -> StoreSettings:
        own = self.audit.redis.store if self.audit.redis is not None else None
        return own or self.store

    @property
    def evidence_path(self) -> Path:
        return self.own / "evidence" / "evidence.jsonl"

    @property
    def audit_key_path(self) -> Path:
        return self.audit.key_path or self.data / "keys" / "audit.key"

    @property
    def previous_audit_key_paths(self) -> tuple[Path, ...]:
        return (*self.audit.previous_key_paths, self.data / "keys" / "audit.previous.key")

    @property
    def checkpoint_key_path(self) -> Path:
        return self.audit.checkpoint_key_path or self.own / "keys" / "checkpoints.pem"

    @property
    def checkpoint_key_paths(self) -> tuple[Path, ...]:
        """The files of the keys that sign checkpoints: the configured one, otherwise one for each of `parts`."""
        if self.audit.checkpoint_key_path is not None:
            return (self.audit.checkpoint_key_path,)
        return tuple(part / "keys" / "checkpoints.pem" for part in self.parts)

    @property
    def records_path(self) -> Path:
        """The file of all records: owners, tasks, runs, schedules, push configurations, and callbacks that wait."""
        return self.own / "records.sqlite"

    @property
    def api_keys_pepper_path(self) -> Path:
        return self.identity.api_keys_pepper_path or self.data / "keys" / "api-keys.pepper"

    @property
    def callback_key_path(self) -> Path:
        return self.callbacks.key_path or self.data / "keys" / "callbacks.key"

    @property
    def approval_page(self) -> str | None:
        """The URL of the page on which people answer a request for approval, without the id of the request; None if
        there is none."""
        console = self.admin.console
        own = f"{console.url}/console/approvals/" if console.enabled and console.url else None
        return self.approvals.page or own

    @property
    def base_url(self) -> str:
        """The URL under which callers reach the sidecar. A port 0 is replaced only once the address is bound."""
        scheme = "http" if self.server.tls is None else "https"
        return self.server.public_url or f"{scheme}://{self.server.listen}"

    @property
    def signing_key_path(self) -> Path:
        return self.signing.key_path or self.data / "keys" / "signing.pem"

    @property
    def previous_key_paths(self) -> tuple[Path, ...]:
        return (*self.signing.previous_paths, self.data / "keys" / "signing.previous.pem")

    def with_authorities(self) -> Self:
        """These settings, with `egress.ca_path` for stores over TLS that name no authorities of their own."""
        ca_path, audit = self.egress.ca_path, self.audit
        if ca_path is None:
            return self
        if audit.redis is not None and audit.redis.store is not None:
            redis = audit.redis.model_copy(update={"store": audit.redis.store.trusting(ca_path)})
            audit = audit.model_copy(update={"redis": redis})
        return self.model_copy(update={"store": self.store.trusting(ca_path), "audit": audit})

    @property
    def shared_keys(self) -> Mapping[str, Path]:
        """The files of keys in use that replicas on one store must have in common, by the settings that name them."""
        used = {"audit.key_path": self.audit_key_path}
        if self.signs:
            used["signing.key_path"] = self.signing_key_path
        if self.callbacks.allow:
            used["callbacks.key_path"] = self.callback_key_path
        if self.identity.api_keys_path is not None:
            used["identity.api_keys_pepper_path"] = self.api_keys_pepper_path
        return used

    @property
    def unshared_keys(self) -> tuple[str, ...]:
        """The settings of keys in use that are not set, so that each replica on the store would create its own key."""
        if self.store.is_memory:
            return ()
        named = {
            "audit.key_path": self.audit.key_path,
            "signing.key_path": self.signing.key_path,
            "callbacks.key_path": self.callbacks.key_path,
            "identity.api_keys_pepper_path": self.identity.api_keys_pepper_path,
        }
        return tuple(name for name in self.shared_keys if named[name] is None)

    @property
    def signs(self) -> bool:
        return any(one.signs for one in self.upstreams.values())

    @property
    def control_path(self) -> Path:
        """The socket through which commands reach the running sidecar."""
        return self.data / CONTROL_SOCKET

    def worker_socket(self, worker: int) -> Path:
        """The socket at which a worker answers the other workers."""
        return self.own_of(worker) / CONTROL_SOCKET

    def offers(self) -> Iterator[tuple[str, Loc, AgentOffer]]:
        """How each agent is offered to callers, with its place in the settings."""
        for name, upstream in self.upstreams.items():
            if upstream.a2a is not None:
                yield name, ("upstreams", name, "a2a"), upstream.a2a
        for name, agent in self.agents.items():
            if agent.enabled:
                yield name, ("agents", name, "a2a"), agent.a2a

    @property
    def agent_ids(self) -> Mapping[str, str]:
        return {str(offer.agent_id): name for name, _, offer in self.offers() if offer.agent_id is not None}

    def listeners(self) -> Iterator[tuple[Loc, ListenAddress | UnixAddress]]:
        """All listener addresses with their places in the settings, except the gRPC ports of agents."""
        yield ("server", "listen"), self.server.listen
        for index, local in enumerate(self.local):
            yield ("local", index, "listen"), local.listen
        yield ("admin", "listen"), self.admin.listen
        if self.metrics.listen is not None:
            yield ("metrics", "listen"), self.metrics.listen
        if self.pdp is not None and self.pdp.listen is not None:
            yield ("pdp", "listen"), self.pdp.listen
        if self.server.grpc is not None:
            yield ("server", "grpc"), self.server.grpc

    @model_validator(mode="before")
    @classmethod
    def _sections_with_paths(cls, given: Any) -> Any:
        """Adds an empty section `policy` if it is absent, so that its default paths start at the file's folder."""
        return {"policy": {}, **given} if isinstance(given, dict) else given

    def _faults(self) -> Iterator[Finding]:
        yield from self._certificate_faults()
        for name, section, instead in (("tasks", self.tasks, "file"), ("sessions", self.sessions, "memory")):
            if section.store == "redis" and self.store.is_memory:
                hint = f"set store.url to redis://…, or {name}.store to {instead}"
                yield Finding(f"store.url names no Redis or Valkey for {name}", "S128", hint, (name, "store"))
        yield from self._audit_faults()
        if self.server.workers != 1:
            yield from self._worker_faults()
        offers, shared = [(at, offer) for _, at, offer in self.offers()], self.server.grpc
        yield from path_faults(offers)
        yield from port_faults(offers, shared.port if isinstance(shared, ListenAddress) else None)
        callable_ones = {name for name, _, _ in self.offers()}
        yield from schedule_faults(self.schedules, callable_ones, (*self.upstreams, *self.agents))
        yield from self._agent_faults()
        if self.pdp is not None and isinstance(self.pdp.listen, ListenAddress):
            by_certificate = self.pdp.tls is not None and self.pdp.tls.client_ca_path is not None
            if not by_certificate and all(one.role != "pdp" for one in self.admin.credentials):
                hint = "write admin: {credentials: [{role: pdp, name: ..., secret_path: ...}]}"
                yield Finding("no admin credential has the role pdp", "S104", hint, ("pdp", "listen"))
        seen: dict[str, str] = {}
        for loc, address in self.listeners():
            name, where = str(address), ".".join(map(str, loc))
            if name in seen and not (isinstance(address, ListenAddress) and address.port == 0):
                yield Finding(f"{name} is already taken by {seen[name]}", "S115", "give each listener its own", loc)
            seen.setdefault(name, where)

    def _worker_faults(self) -> Iterator[Finding]:
        """Checks that several workers share the stores that callers use, and nothing that only one process can
        write."""
        at: Loc = ("server", "workers")
        needed = [("store.url", "store: {url: redis://…}", self.store.is_memory)]
        for name, store in (("sessions", self.sessions.store), ("tasks", self.tasks.store)):
            needed.append((f"{name}.store", f"{name}: {{store: redis}}", store != "redis"))
        for name, hint, is_missing in needed:
            if is_missing:
                yield Finding(f"workers need Redis or Valkey, and {name} names none", "S195", f"write {hint}", at)
        if self.audit.sink == "stdout":
            hint = "write sink: file, redis or otlp, or set server.workers to 1"
            yield Finding("workers cannot share the standard output", "S195", hint, ("audit", "sink"))
        if self.audit.checkpoints.known_path is not None:
            at = ("audit", "checkpoints", "known_path")
            hint = "write to: [store], which the sidecar also reads when it starts, or set server.workers to 1"
            yield Finding("each worker has its own log, and this file belongs to one log", "S195", hint, at)
        shared = self.server.grpc
        ports: list[tuple[Loc, int | None]] = [((*at, "grpc_port"), offer.grpc_port) for _, at, offer in self.offers()]
        for loc, port in [(("server", "grpc"), shared.port if isinstance(shared, ListenAddress) else None), *ports]:
            if port == 0:
                yield Finding("workers need a fixed port for gRPC", "S195", "write a port, such as 8081", loc)

    def _agent_faults(self) -> Iterator[Finding]:
        """Checks that each name, id and gRPC port of an agent is of that agent only."""
        named = {name: name for name in (*self.upstreams, *self.agents)}
        ports, people = dict[str, str](), dict[str, str]()
        for name, at, offer in self.offers():
            yield from _taken(named, offer.agent_id, name, (*at, "agent_id"))
            yield from _taken(ports, offer.grpc_port or None, name, (*at, "grpc_port"))
        for name, agent in self.agents.items():
            if name in self.upstreams:
                yield Finding(f"an upstream is also called {name}", "S174", "rename one", ("agents", name), on_key=True)
            yield from _taken(named, agent.id, name, ("agents", name, "id"))
            yield from _taken(people, agent.name or name, name, ("agents", name, "name"))

    def _audit_faults(self) -> Iterator[Finding]:
        if "store" in self.audit.checkpoints.to and self.store.is_memory:
            hint = "set store.url to redis://…, or remove store from to"
            yield Finding("there is no store to publish to", "S150", hint, ("audit", "checkpoints", "to"))
        if self.audit.sink != "redis":
            return
        at: Loc = ("audit", "sink")
        if self.audit_store.place.kind in ("sentinel", "cluster"):
            hint = "name a separate server: audit: {redis: {store: {url: redis://…}}}"
            yield Finding("the audit stream needs a single server, not Sentinels or a Cluster", "S150", hint, at)
        if self.audit_store.is_memory:
            hint = "set store.url to redis://…, or audit: {redis: {store: {url: redis://…}}}"
            yield Finding("sink: redis needs a Redis or Valkey server", "S150", hint, at)

    def _certificate_faults(self) -> Iterator[Finding]:
        """Checks that certificates are requested or forwarded where their owners are configured, and the reverse.
        Envoy forwards them with its checks over gRPC."""
        identity, files = self.identity, self.server.tls
        asked = isinstance(files, TlsFiles) and files.client_ca_path is not None
        hint = "write certificates: {spiffe: [...]}, names: {...}, or others: ignore, under identity"
        at: Loc = ("server", "tls", "client_ca_path")
        if asked and identity.certificates is None:
            yield Finding("no setting maps client certificates to principals", "S125", hint, at)
        if identity.trusted_proxies and identity.certificates is None:
            at = ("identity", "trusted_proxies")
            yield Finding("no setting maps certificates to principals", "S125", hint, at)
        told = identity.trusted_proxies or (self.pdp is not None and self.server.grpc is not None)
        if identity.certificates is not None and not asked and not told:
            hint = "write server: {tls: {client_ca_path: ...}}, or identity: {trusted_proxies: [...]}"
            yield Finding("no listener requests client certificates", "S125", hint, ("identity", "certificates"))


def _taken(seen: dict[str, str], wanted: object, name: str, loc: Loc) -> Iterator[Finding]:
    """A fault if another entry has this value already. None never conflicts."""
    if wanted is not None and (other := seen.setdefault(str(wanted), name)) != name:
        yield Finding(f"{wanted} is already taken by {other}", "S174", "give each its own", loc)
