"""`sidecar serve`: checks everything, then serves."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

import click

from sidecar.app.service_manager import ServiceManager
from sidecar.app.usable_cpus import worker_count
from sidecar.cli.command import INVALID, NO, CommandFailed, check_installation, config_option
from sidecar.errors import ConfigError, Fault
from sidecar.http.server.fd_limits import hold_standard, take_all
from sidecar.observability.log_lines import LogFormat, begin_logging
from sidecar.settings.load import load

if TYPE_CHECKING:
    from sidecar.app.application import Application
    from sidecar.settings.sidecar_file import Settings

ORPHAN_S = 1.5

log = logging.getLogger("sidecar.serve")


@click.command()
@click.option(
    "--log-format",
    type=click.Choice(["json", "text"]),
    help="Format of the log on standard error. Default: text on a terminal, otherwise json.",
)
@config_option
def serve(config: Path, log_format: LogFormat | None) -> None:
    """Check the configuration and the policy, then serve until SIGTERM. SIGHUP reloads."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # unhandled, it would end the process; the reload follows the start
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its log output is caller-controlled and not JSON
    gc.disable()  # it takes a fifth of a start and finds little; off until `settle_interpreter`, and in a supervisor
    hold_standard()
    log_format = log_format or ("text" if sys.stderr.isatty() else "json")
    begin_logging(log_format, os.environ.get("SIDECAR_SERVER__WORKER", ""))
    before, now = take_all()
    if now != before:
        log.info("raised the limit of open files", extra={"before": before, "now": now})
    with _failures_told(log_format, config):
        check_installation()
        # Whether there are workers. The start of one process checks everything else.
        settings = load(config, os.environ, check_files=False, all_at_once=True).settings
        if (count := worker_count(settings)) > 1:
            _supervise(config, settings, count)
            return
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(config, os.environ))


@contextmanager
def _failures_told(log_format: LogFormat, config: Path) -> Iterator[None]:
    """Ends the command with all faults if the start fails, in the form of `sidecar check` or as log lines."""
    try:
        yield
    except ConfigError as error:
        faults = [*error.faults, *_other_faults(error, config)]
        if log_format == "text":
            raise CommandFailed("\n".join(map(str, faults)), INVALID)
        for fault in faults:
            log.log(logging.getLevelNamesMapping()[fault.severity.upper()], fault.message, extra=fault.plain())
        log.error("the start failed", extra={"faults": len(faults)})
        raise SystemExit(INVALID)
    except CommandFailed as error:
        if log_format == "text":
            raise
        log.error(error.message)
        raise SystemExit(error.exit_code)
    except OSError as error:
        log.error("cannot start: %s", error)
        raise SystemExit(NO)
    except Exception:
        log.exception("a bug ended the process")
        raise SystemExit(NO)


def _supervise(config: Path, settings: Settings, count: int) -> None:
    """Runs the workers. Ends with the exit code of one that ends before it serves."""
    from sidecar.app.supervisor import Supervisor, WorkerFailed, command_of_this

    # asyncio's own loop, because uvloop keeps SIGCHLD for its own use.
    try:
        in_order = asyncio.run(Supervisor(config, settings, os.environ, count, command_of_this()).run())
    except WorkerFailed as failed:
        raise CommandFailed(str(failed), failed.code if failed.code > 0 else NO)
    if not in_order:
        raise SystemExit(NO)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's loop factory if it is installed: it halves the event loop's cost per call. None is asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(path: Path, environ: Mapping[str, str]) -> None:
    loop, stop, hangup = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    # Not the loop's handler: between it and the default there is a moment in which the signal would end the process.
    signal.signal(signal.SIGHUP, lambda *_: loop.call_soon_threadsafe(hangup.set))
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, _stop_or_die, stop)
    manager = ServiceManager(environ)
    if environ.get("SIDECAR_SERVER__WORKER", "0") != "0":
        _follow_supervisor(loop, stop)
    watchdog = loop.create_task(manager.run_watchdog())
    app = await _started(path, environ, stop)
    if app is None:
        return
    settle_interpreter()
    reloading = loop.create_task(_reload_at(hangup, app, manager))
    _announce(app)  # after all handlers, because a reader of its line may send a signal at once
    manager.ready(_state_of(app))
    await stop.wait()
    log.info("stopping")
    manager.stopping(app.stop_takes_at_most_s)
    reloading.cancel()
    await app.stop()
    watchdog.cancel()
    log.info("stopped")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


async def _started(path: Path, environ: Mapping[str, str], stop: asyncio.Event) -> Application | None:
    """Starts a sidecar. Returns None, with everything undone, if a stop was requested before the start completed."""
    with _no_certificates():
        from sidecar.app.application import Application

    starting = asyncio.create_task(Application.start(path, environ))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.wait((starting,))
        log.info("a stop was requested before the start completed")
        if starting.cancelled():
            return None
    return await starting


@contextmanager
def _no_certificates() -> Iterator[None]:
    """Lets OpenSSL find no certificates of authorities.

    aiohttp loads all of them when it is imported, for its client, which the sidecar does not use: 35 ms and 2.6 MB."""
    names = {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def settle_interpreter() -> None:
    """Tunes the garbage collector and thread switching for serving.

    Objects made at the start need not be visited again, and calls leave little garbage. Threads that hash large data
    pass the GIL to the event loop on request, by default only after 5 ms each time."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 20)
    sys.setswitchinterval(0.001)


def _follow_supervisor(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Ends this worker when its supervisor has ended, because its standard input ends then. A new supervisor binds the
    same addresses, so calls in flight have only a moment."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        log.error("the supervisor is gone: this worker ends")
        loop.call_soon_threadsafe(stop.set)
        Event().wait(ORPHAN_S)
        os._exit(NO)

    Thread(target=wait, name="supervisor", daemon=True).start()


def _stop_or_die(stop: asyncio.Event) -> None:
    """Requests a stop on the first signal; on the second, ends the process without waiting for calls in flight."""
    if stop.is_set():
        os._exit(NO)
    stop.set()


async def _reload_at(hangup: asyncio.Event, app: Application, manager: ServiceManager) -> None:
    """Reloads on SIGHUP. Any number of signals during a reload cause one more."""
    while True:
        await hangup.wait()
        hangup.clear()
        manager.reloading()
        with suppress(ConfigError):  # reported, recorded and counted by the reload; the old policy stays in use
            await app.reload("SIGHUP")
        manager.ready(_state_of(app))


def _state_of(app: Application) -> str:
    """Returns the state for the service manager: the address, the revision, and whether the newest files serve."""
    refused = "; the newest files are refused" if app.reloader.faults else ""
    return f"serves {app.base_url}, policy {app.live.current.engine.revision}{refused}"


def _announce(app: Application) -> None:
    """Logs what the sidecar serves now."""
    from sidecar.app.loader import idle_schedules
    from sidecar.audit.sinks import place_of

    now = app.live.current
    for fault in now.engine.warnings:
        log.warning("a warning of the policy: %s", fault)
    for idle in idle_schedules(now.settings, now.engine, app.live.clock()):
        extra = {"schedule": idle.key, "principal": idle.principal, "agent": idle.agent}
        log.warning("no rule allows a schedule to call its agent", extra=extra)
    for name, service in sorted(now.services.items()):
        credential = service.definition.credential
        if credential is not None and credential.passthrough:
            log.warning("the tokens of callers are shown to a server: credential.passthrough", extra={"server": name})
    if app.limiter.store.kind == "memory" and not now.settings.server.listen.is_loopback:
        log.warning("limits count in this process only and start empty: set store.url")
    log.info(
        "sidecar serves %s at %s/mcp/<server>",
        ", ".join(sorted(now.services)) or "no server",
        now.base_url,
        extra={
            "agents": sorted(now.agents),
            "grpc": None if now.settings.server.grpc is None else str(now.settings.server.grpc),
            "local": {str(local.listen): local.principal for local in now.settings.local},
            "policy": now.engine.revision,
            "admin": str(now.settings.admin.listen),
            "store": app.limiter.store.kind,
            "audit": str(place_of(now.settings)),
        },
    )


def _other_faults(error: ConfigError, config: Path) -> list[Fault]:
    """Returns the further faults that a check finds, because a start stops at the first one."""
    from sidecar.app.loader import check_files

    try:
        check_files(config, os.environ)
    except ConfigError as checked:
        return [fault for fault in checked.faults if fault not in error.faults]
    return []
