"""Checks all operator files and loads them into one snapshot: at a start, for a check, and for each reload."""

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from sidecar.app.file_watcher import key_files
from sidecar.audit.checkpoints import load_attesting_key, public_jwk
from sidecar.audit.digest import load_key
from sidecar.errors import Fault, Reason, SettingsError, Together, fault_in
from sidecar.gateway.kill_switch import LEDGER_FILE, SwitchLedger
from sidecar.gateway.redaction import screen_from
from sidecar.gateway.snapshot import Beside, Service, Snapshot, snapshot_from
from sidecar.http.client import DIRECT, Egress, egress_from, fetch
from sidecar.http.tls import TlsContexts, tls_from
from sidecar.identity import Identity
from sidecar.limits import Budgets, CounterStore, open_store
from sidecar.observability.metrics import Metrics
from sidecar.policy import Engine, PolicySource
from sidecar.policy.worker_process import PolicyReading, load_policy_aside
from sidecar.settings.load import LoadedSettings, doubts, file_faults, load, path_finding
from sidecar.settings.schedules import acts_as
from sidecar.settings.secrets import read_secret
from sidecar.settings.server import AdminCredential, TlsFiles
from sidecar.settings.sidecar_file import WORKERS, Settings
from sidecar.settings.store import StoreSettings
from sidecar.settings.stored_policy import NOTHING_YET, StoredPolicy, placed, stored_name
from sidecar.settings.yaml_document import Document, in_file_order
from sidecar.settings.yaml_nodes import Loc
from sidecar.storage import MemoryRecordStore, RecordBounds, RecordStore, RecordStores
from sidecar.tasks.api.task_runner import FILE
from sidecar.tasks.programs.executions import Executions, MakeRunner
from sidecar.tasks.programs.run_record import RUNS, Execution
from sidecar.tasks.schedules.fit_checks import refused_input, refused_run
from sidecar.tasks.webhooks import check_callbacks
from sidecar.tasks.webhooks.approval_notices import check_receivers
from sidecar.upstreams.agents import AgentUpstream, agent_from
from sidecar.upstreams.credentials.signed_tokens import TokenSigner, signer_from
from sidecar.upstreams.mcp.assembly import upstream_from
from sidecar.upstreams.mcp.bridge.bridge import Bridge
from sidecar.upstreams.mcp.bridge.server_eras import ServerEras
from sidecar.upstreams.mcp.catalogue import ToolCatalogue
from sidecar.upstreams.mcp.guarded_transport import GuardedTransport
from sidecar.upstreams.mcp.pins import NO_PINS
from sidecar.upstreams.processes.launcher import Processes
from sidecar.upstreams.upstream_account import UpstreamAccount

MAX_KEY_BYTES = 16 * 2**20
NEEDS_RESTART = frozenset({"data", "server", "local", "metrics", "store", "audit", "sessions", "tasks"})


def check_files(path: Path, environ: Mapping[str, str]) -> tuple[Engine, tuple[Fault, ...]]:
    """Checks everything that a start checks, without writing. Returns the policy's engine, and warnings about settings
    and schedules. Raises ConfigError."""
    # Without valid settings the other files cannot be found.
    loaded = load(path, environ, check_files=False, all_at_once=True)
    settings, together = loaded.settings, Together()
    kept, missing = list(keeping_faults(loaded)), file_faults(loaded, environ)
    if faults := missing + [fault for fault in kept if fault.severity == "error"]:
        together.errors.append(SettingsError(in_file_order(faults)))
    together.call(open_store, settings.store, time.time)
    if os.access(settings.data, os.X_OK) and settings.data.is_dir():  # otherwise already reported, or not created yet
        _check_data(settings, together)
    if missing:  # already reported; objects that depend on them cannot be built
        unusable = any(path_finding(folder, "folder") for folder in settings.policy.folders)
        if stored_name(settings) != NOTHING_YET and not unusable:
            together.call(lambda: Engine(read_policy(settings)))
            together.call(Beside.read, settings.policy.path)
        together.refuse()
    with together.noted():
        processes = Processes(environ)
        store = MemoryRecordStore[Execution](RUNS.is_work)
        executions = executions_from(settings, store, None, processes, Metrics(upstreams=()), str)
        engine = snapshot_of(settings, "", processes, executions, loaded.document, make_keys=False).engine
    together.refuse()
    idle = idle_schedules(settings, engine, time.time())
    return engine, (
        *doubts(loaded),
        *(fault for fault in kept if fault.severity == "warning"),
        *(_of_schedule(one, loaded.document) for one in idle),
    )


def keeping_faults(loaded: LoadedSettings) -> Iterator[Fault]:
    """Yields what prevents a start from writing: errors for what is no folder or no file, warnings for folders that
    this user cannot write to, because the server may run as another user."""
    for loc, folder in _kept_folders(loaded.settings):
        # The nearest existing parent of the paths that a start would create, as far as it is readable.
        ground = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
        if not ground.is_dir():
            hint = "the sidecar creates this folder: move the file with this name, or correct the path"
            yield loaded.document.fault(loc, f"{ground} is not a folder", "S116", hint)
        elif not os.access(ground, os.W_OK | os.X_OK):
            hint = "give it to the user of the sidecar, mount it writable, or correct the path"
            message = f"{ground} cannot be written by user {os.geteuid()}"
            yield replace(loaded.document.fault(loc, message, "S129", hint), severity="warning")
    named = loaded.settings
    written = named.audit_path, named.evidence_path, named.audit_key_path, named.checkpoint_key_path
    for path in (*written, *(part / LEDGER_FILE for part in named.parts)):
        if os.path.lexists(path) and not path.is_file():
            yield fault_in(path, "is not a file", code="S116", hint="move the folder with this name")


def check_keeping(loaded: LoadedSettings) -> None:
    """Refuses to serve, before any file is created, if anything prevents writing. Raises SettingsError."""
    if faults := [replace(fault, severity="error") for fault in keeping_faults(loaded)]:
        raise SettingsError(faults)


def _kept_folders(settings: Settings) -> Iterator[tuple[Loc, Path]]:
    yield ("data",), settings.data
    audit = settings.audit
    if audit.path is not None:
        yield ("audit", "path"), audit.path.parent
    for name, path in (("key_path", audit.key_path), ("checkpoint_key_path", audit.checkpoint_key_path)):
        if path is not None and not os.path.lexists(path):
            yield ("audit", name), path.parent
    # Created by the sidecar, and possibly given to another user later.
    for name in ("audit", "evidence", "keys", WORKERS):
        if os.path.lexists(settings.data / name):
            yield ("data",), settings.data / name


def _check_data(settings: Settings, together: Together) -> None:
    """Checks the data that earlier runs left in the data folder."""
    together.call(SwitchLedger.open_all, settings.own, settings.parts)
    together.call(
        RecordStores.open, settings.tasks.store, settings.records_path, open_store(StoreSettings(), time.time).run
    )
    together.call(check_callbacks, settings)
    with together.noted(), suppress(OSError):  # missing, already reported, or readable only by the serving user
        load_key(settings.audit_key_path, ours=True)
    for path in settings.previous_audit_key_paths:
        with together.noted(), suppress(OSError):
            load_key(path)


def executions_from(
    settings: Settings,
    store: RecordStore[Execution],
    shared: CounterStore | None,
    processes: Processes,
    metrics: Metrics,
    new_id: Callable[[], str],
) -> Executions:
    """Builds the runs of CLI-program agents. Starts nothing. `shared` is the store that replicas share, or None."""
    tasks = settings.tasks

    @cache
    def make() -> MakeRunner:
        from sidecar.tasks.programs.runners import runners  # only for agents that are programs

        return runners(processes, lambda *about: executions.objection(*about))

    executions = Executions(
        store,
        lambda name, definition: make()(name, definition),
        metrics,
        time.time,
        new_id,
        FILE if tasks.store == "file" else secrets.token_hex(8),
        secrets.SystemRandom().random,
        lambda: RecordBounds(tasks.max_per_principal, tasks.max),
        lambda: tasks.keep_s,
        None if shared is None or settings.store.is_memory else shared.run,
    )
    return executions


def services_from(
    settings: Settings, known: Mapping[str, Service], processes: Processes, signer: TokenSigner, egress: Egress
) -> Mapping[str, Service]:
    """Builds the MCP servers. Those with an unchanged definition in `known` are reused with their collected state."""
    services = {}
    for name, definition in settings.upstreams.items():
        if definition.mcp is None:
            continue
        old, new = known.get(name), _service(settings, name, processes, signer, egress)
        same = old is not None and old.definition == definition and old.upstream.secrets == new.upstream.secrets
        services[name] = old if old is not None and same else new
    return services


def agents_from(
    settings: Settings,
    known: Mapping[str, AgentUpstream],
    signer: TokenSigner,
    executions: Executions,
    environ: Mapping[str, str],
    egress: Egress,
) -> Mapping[str, AgentUpstream]:
    """Builds the agents, including CLI programs. Agents whose definition is unchanged in `known` are reused."""
    max_bytes = settings.server.max_response_bytes
    made = {
        name: agent_from(name, definition, max_response_bytes=max_bytes, signer=signer, egress=egress)
        for name, definition in settings.upstreams.items()
        if definition.a2a is not None
    }
    if programs := {name: program for name, program in settings.agents.items() if program.enabled}:
        from sidecar.tasks.programs.program_agent import cli_agent_from

        made |= {name: cli_agent_from(name, program, executions, environ) for name, program in programs.items()}
    for name, new in made.items():
        old = known.get(name)
        if old is not None and old.definition == new.definition and old.wire.secrets == new.wire.secrets:
            made[name] = old
    return made


def _service(settings: Settings, name: str, processes: Processes, signer: TokenSigner, egress: Egress) -> Service:
    definition = settings.upstreams[name]
    assert definition.mcp is not None
    max_bytes = settings.server.max_response_bytes
    bare = upstream_from(
        name, definition, max_response_bytes=max_bytes, processes=processes, signer=signer, egress=egress
    )
    account = UpstreamAccount(name, definition.breaker)
    eras = ServerEras()
    watched = GuardedTransport(bare, account, definition.mcp.share, eras)  # the server itself, below the bridge
    upstream = Bridge(watched, eras, settings.sessions.question_timeout_s, settings.sessions.idle_s)
    responses = definition.responses
    catalogue = ToolCatalogue(
        upstream,
        refuse_hidden=definition.hidden_text == "refuse",
        checks_output=responses is not None and responses.check_output,
    )
    return Service(
        name,
        definition,
        upstream,
        account,
        catalogue,
        definition.mcp.timeout_s,
        definition.mcp.longest_s,
        definition.anonymous,
        definition.scopes,
        screen=screen_from(responses),
    )


async def next_snapshot(
    path: Path,
    environ: Mapping[str, str],
    processes: Processes,
    executions: Executions,
    old: Snapshot,
    only_if_changed: bool = False,
    taken: StoredPolicy | None = None,
) -> Snapshot:
    """Builds the next snapshot in a thread, while the old one serves. With `only_if_changed`, returns `old` itself if
    the files have the same content. `taken` is a policy from the source that is not yet in force."""
    reading = PolicyReading()

    def read() -> Snapshot:
        loaded = load(path, environ)
        settings, waiting = _reloaded(placed(loaded.settings, taken), old.settings)
        places = processes, executions, loaded.document
        return replace(snapshot_of(settings, old.base_url, *places, known=old, reading=reading), waiting=waiting)

    try:
        new = await asyncio.to_thread(read)
    except asyncio.CancelledError:
        reading.abandon()  # otherwise the thread would prevent the process from exiting
        raise
    if only_if_changed and new.says_the_same_as(old):
        return old  # nothing was started: no keys were fetched and no connections opened
    try:
        await new.identity.start(old.identity)
    except BaseException:
        await new.identity.close()
        raise
    return new


def _reloaded(written: Settings, running: Settings) -> tuple[Settings, tuple[str, ...]]:
    """Returns the new settings without the sections that need a restart, and the names of those sections."""
    waiting = [name for name in sorted(NEEDS_RESTART) if getattr(written, name) != getattr(running, name)]
    settings = written.model_copy(update={name: getattr(running, name) for name in waiting})
    for key in ("listen", "console"):
        if getattr(settings.admin, key) != getattr(running.admin, key):
            settings = _with(settings, ("admin", key), getattr(running.admin, key))
            waiting.append(f"admin.{key}")
    if (settings.pdp is None) != (running.pdp is None):
        settings, waiting = _with(settings, ("pdp",), running.pdp), [*waiting, "pdp"]
    elif settings.pdp is not None and running.pdp is not None:
        for key in ("listen", "tls"):
            if getattr(settings.pdp, key) != getattr(running.pdp, key):
                settings = _with(settings, ("pdp", key), getattr(running.pdp, key))
                waiting.append(f"pdp.{key}")
    ports = {name: offer.grpc_port for name, _, offer in running.offers()}
    for name, at, offer in written.offers():  # a card must not name a port without a listener
        if offer.grpc_port != ports.get(name):
            settings = _with(settings, (*at, "grpc_port"), ports.get(name))
            waiting.append(".".join(map(str, (*at, "grpc_port"))))
    return settings, tuple(waiting)


def _with(part: Any, at: Loc, value: object) -> Any:
    if not at:
        return value
    step = str(at[0])
    if isinstance(part, Mapping):
        return {**part, step: _with(part[step], at[1:], value)}
    return part.model_copy(update={step: _with(getattr(part, step), at[1:], value)})


def snapshot_of(
    settings: Settings,
    base_url: str,
    processes: Processes,
    executions: Executions,
    document: Document,
    *,
    known: Snapshot | None = None,
    reading: PolicyReading | None = None,
    make_keys: bool = True,
) -> Snapshot:
    """A snapshot to serve. `document` holds the settings; unchanged parts of `known` are reused. Raises ConfigError."""
    keys_digest, together = digest_of_keys(settings), Together()  # before they are read, to notice later changes
    egress = DIRECT
    with together.noted():
        egress = egress_from(settings.egress, processes.environ)
    if known is not None and known.egress != egress:
        known = replace(known, services={}, agents={})  # none of their connections may be used again
    with together.noted():
        signer = signer_from(settings, base_url, make=make_keys)
        there = [path for path in settings.checkpoint_key_paths if path.exists()]  # a start creates them first
        if there:
            attesting = (public_jwk(load_attesting_key(path)) for path in there)
            signer = replace(signer, before=(*attesting, *signer.before))
        services = services_from(settings, known.services if known else {}, processes, signer, egress)
        agents = agents_from(settings, known.agents if known else {}, signer, executions, processes.environ, egress)
    together.call(_check_schedules, settings, document)
    together.call(check_receivers, settings, document)
    operators: Mapping[bytes, AdminCredential] = {}
    tls: TlsContexts | None = None
    pdp_tls: TlsContexts | None = None
    with together.noted():
        operators = {read_secret(one.secret_path, "ours").encode(): one for one in settings.admin.credentials}
    with together.noted():
        tls = tls_from(settings.server.tls) if isinstance(settings.server.tls, TlsFiles) else None
    if settings.pdp is not None and settings.pdp.tls is not None:
        with together.noted():
            pdp_tls = tls_from(settings.pdp.tls)
    with together.noted():
        get = partial(fetch, egress=egress)
        identity = Identity.from_settings(settings, time.time, get, trust=tls.trust if tls else "")
    with together.noted():
        source = read_policy(settings, reading)
    with together.noted():
        beside = Beside.read(settings.policy.path, known.pins if known else NO_PINS)
    together.refuse()
    return snapshot_from(
        settings,
        source,
        beside,
        identity=identity,
        services=services,
        agents=agents,
        base_url=base_url,
        keys_digest=keys_digest,
        self_test=_self_test,
        signer=signer,
        tls=tls,
        pdp_tls=pdp_tls,
        egress=egress,
        operators=operators,
    )


def _self_test(engine: Engine, source: PolicySource, policies: Path, budgets: Budgets) -> list[Fault]:
    from sidecar.policy_tools.suites.suite import self_test  # only for a policy that has tests

    return self_test(engine, source, policies, budgets)


def _check_schedules(settings: Settings, document: Document) -> None:
    """Refuses schedules whose input the program would refuse at each run. Raises SettingsError."""
    faults = [
        document.fault(("schedules", key, "input_parameters"), what, "S180")
        for key, schedule in settings.schedules.items()
        if (what := refused_input(schedule, settings.agents))
    ]
    if faults:
        raise SettingsError(faults)


class IdleSchedule(NamedTuple):
    key: str
    principal: str
    agent: str
    reason: Reason


def idle_schedules(settings: Settings, engine: Engine, now_s: float) -> list[IdleSchedule]:
    """The schedules whose runs policy would deny now. Empty in shadow mode, where denials pass."""
    if settings.policy.mode != "enforce":
        return []
    return [
        IdleSchedule(key, acts_as(key, one), one.agent, reason)
        for key, one in settings.schedules.items()
        if (reason := refused_run(key, one, engine, now_s)) is not None
    ]


def _of_schedule(idle: IdleSchedule, document: Document) -> Fault:
    message = (
        f"no rule allows {idle.principal} to send messages to {idle.agent} ({idle.reason.value}): its runs are refused"
    )
    hint = f"write p, {idle.principal}, nhi:{idle.agent}, message/send, -, -, -, allow in nhi_to_nhi.csv"
    return replace(document.fault(("schedules", idle.key), message, "S181", hint), severity="warning")


def read_policy(settings: Settings, reading: PolicyReading | None = None) -> PolicySource:
    """Reads and checks models and rules. Raises PolicyError."""
    policy, names = settings.policy, frozenset(settings.upstreams)
    scopes, ids = policy.scopes, settings.agent_ids
    return load_policy_aside(
        policy.models, policy.path, scopes=scopes, names=names, agent_ids=ids, casbin=policy, reading=reading
    )


def digest_of_keys(settings: Settings) -> str:
    digest = sha256()
    for path in key_files(settings):
        try:
            with path.open("rb") as file:
                content = file.read(MAX_KEY_BYTES)
        except OSError:  # reported when its content is read
            content = b""
        digest.update(sha256(content).digest())
    return digest.hexdigest()
