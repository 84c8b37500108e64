"""Loads the settings in force and the origin of each value."""

import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ValidationError

from sidecar.errors import Fault, SettingsError, fault_in, way_to_read
from sidecar.settings.agents import CliAgent
from sidecar.settings.environment import overlay
from sidecar.settings.identity import FURTHER_OF_PRESET, KEYS_OF_PRESET
from sidecar.settings.programs import executable_of
from sidecar.settings.secrets import judged_secret
from sidecar.settings.sidecar_file import Settings
from sidecar.settings.stored_policy import NOTHING_YET, placed, stored_name
from sidecar.settings.validation_errors import Finding
from sidecar.settings.yaml_document import Document, is_written, read_document
from sidecar.settings.yaml_nodes import Loc, shown_line

MASKED = "***"
# An extra of the distribution, and a module that it installs.
EXTRAS: Final[Mapping[str, str]] = {"agents": "psutil", "grpc": "grpc", "otel": "opentelemetry.proto"}


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings, and the document with the environment applied."""

    settings: Settings
    document: Document


@dataclass(frozen=True, slots=True)
class ShownSettings:
    """One setting as shown to an operator. `origin` is `default`, `preset`, `<file>:<line>` or `env <VARIABLE>`."""

    loc: Loc
    value: Any
    origin: str


def load_settings(path: Path, environ: Mapping[str, str], *, check_files: bool = True) -> Settings:
    """Loads the settings. Raises SettingsError with all faults; with `check_files` also those of the files and programs
    that they name, and of the sidecar's secrets."""
    return load(path, environ, check_files=check_files).settings


def load(
    path: Path, environ: Mapping[str, str], *, check_files: bool = True, all_at_once: bool | None = None
) -> LoadedSettings:
    """Like `load_settings`, and returns the document too. With `all_at_once` (default: `check_files`), invalid settings
    are reported together with the missing files of the valid agents and upstreams."""
    all_at_once = check_files if all_at_once is None else all_at_once
    if not is_written(path, error=SettingsError):
        hint = "create a working folder with `sidecar init`, or name the file with -c"
        raise SettingsError([fault_in(path, "there is no such file", code="Y001", hint=hint)])
    document, faults = overlay(read_document(path), environ)
    try:
        settings = document.validate(Settings, context={"folder": path.parent}).with_authorities()
    except SettingsError as error:
        known = {(fault.file, fault.line, fault.column) for fault in faults}
        shape = [*faults, *(f for f in error.faults if (f.file, f.line, f.column) not in known)]
        document.refuse([*shape, *(_faults_of_the_rest(document, path.parent, environ) if all_at_once else ())])
    loaded = LoadedSettings(placed(settings), document)
    unread = list(_token_faults(settings, document, environ))
    if check_files:
        faults += unread
        faults += file_faults(loaded, environ)
    if faults:
        document.refuse(faults)
    return loaded


def file_faults(loaded: LoadedSettings, environ: Mapping[str, str]) -> list[Fault]:
    """Named files, folders, programs and packages that are missing, and weak secrets of the sidecar."""
    settings, document = loaded.settings, loaded.document
    nothing = []
    if stored_name(settings) == NOTHING_YET:
        hint = "sidecar serve fetches the policy, and stores it in case the source becomes unavailable"
        nothing = [document.fault(("policy", "source"), "no policy was fetched from it yet", "S161", hint)]
    packages = _package_faults(settings, document)
    return [*nothing, *packages, *_path_faults(settings, document), *_program_faults(settings, document, environ)]


def _faults_of_the_rest(document: Document, folder: Path, environ: Mapping[str, str]) -> Iterator[Fault]:
    """Missing files and programs of the valid agents and upstreams when another section has faults."""
    for section in ("agents", "upstreams"):
        entries = document.data.get(section) if isinstance(document.data, dict) else None
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            try:
                alone = Settings.model_validate({"version": 1, section: {name: entry}}, context={"folder": folder})
            except ValidationError:
                continue  # already reported
            yield from _path_faults(alone, document, section)
            yield from _program_faults(alone, document, environ)


def doubts(loaded: LoadedSettings) -> Iterator[Fault]:
    """Warnings about settings that are valid but doubtful."""
    for finding in _doubts(loaded.settings):
        fault = loaded.document.fault(finding.at, finding.message, finding.code, finding.hint)
        yield replace(fault, severity="warning")


def _doubts(settings: Settings) -> Iterator[Finding]:
    for name, upstream in settings.upstreams.items():
        if upstream.credential is not None and upstream.credential.passthrough:
            message = f"{name} receives the tokens of callers, and can act as these callers"
            hint = "use token_exchange or signed, unless the tokens are issued for this server too"
            yield Finding(message, "S118", hint, ("upstreams", name, "credential", "passthrough"))
        if upstream.a2a is not None and not upstream.a2a.card_address:
            message = f"the address of the card of {name} is unknown: it cannot be derived from a gRPC address"
            hint = "write card_url; without it, callers get no card, and version: auto means 1.0"
            yield Finding(message, "S134", hint, ("upstreams", name, "a2a", "url"))
    if unshared := settings.unshared_keys:
        message = f"other replicas on this store would not have these keys: {', '.join(unshared)}"
        hint = "name files that all replicas have; with a single replica, ignore this"
        yield Finding(message, "S138", hint, ("store", "url"))
    for name, pointers in settings.audit.clear_arguments.items():
        message = f"the audit log shows {', '.join(pointers)} of calls of {name} to all of its readers"
        hint = "do not record personal or secret values; records cannot be changed later"
        yield Finding(message, "S151", hint, ("audit", "clear_arguments", name))


def shown_settings(loaded: LoadedSettings) -> list[ShownSettings]:
    """All settings in force, in the order of the schema, with secrets masked."""
    tree = loaded.settings.model_dump(mode="json", by_alias=True)
    return [_shown(loc, value, loaded.document) for loc, value in _leaves(tree)]


def _shown(loc: Loc, value: Any, document: Document) -> ShownSettings:
    node = document.root.below(loc)
    if node is None:
        written = document.root.below((*loc[:3], "preset")) if loc[:2] == ("identity", "issuers") else None
        filled = written is not None and _fills(str(written.value), loc[3:])
        return ShownSettings(loc, value, "preset" if filled else "default")
    origin = f"{node.span.file}:{node.span.line}" if node.span.line else node.span.file
    if node.secret:
        return ShownSettings(loc, MASKED, origin)
    # The value of ${VAR} may be a secret: its placeholder is shown.
    return ShownSettings(loc, _masked(value) if node.shown is None else node.shown, origin)


def _fills(preset: str, loc: Loc) -> bool:
    further = loc[:1] in [(key,) for key in FURTHER_OF_PRESET.get(preset, ())]
    return further or (preset in KEYS_OF_PRESET and loc in (("jwks_url",), ("roles_from", "claim")))


def _masked(value: Any) -> Any:
    """Masks the password of a URL with three stars, which do not disclose its length."""
    if not isinstance(value, str) or (starred := shown_line(value)) == value:
        return value
    before, _, after = starred.rpartition("@")
    return f"{before.rstrip('*')}{MASKED}@{after}"


def _leaves(value: Any, loc: Loc = ()) -> Iterator[tuple[Loc, Any]]:
    if isinstance(value, dict | list) and value:
        for step, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(entry, (*loc, step))
    else:
        yield loc, value


def _path_faults(settings: Settings, document: Document, section: str = "") -> Iterator[Fault]:
    """Missing files and folders, and weak secrets, of one section or of all."""
    for loc, path in paths_in(settings):
        if section and loc[0] != section:
            continue
        finding: Finding | None = None
        match loc:
            case (
                ("data",)
                | ("audit", "path" | "key_path" | "checkpoint_key_path")
                | ("identity", "api_keys_pepper_path")
                | ("callbacks", "key_path")
            ):
                pass  # the sidecar creates it
            case ("policy", "models" | "path") if settings.policy.is_fetched:
                pass
            case ("policy", "models" | "path") | (*_, "cwd" | "working_directory") | (*_, "working_directories", int()):
                finding = path_finding(path, "folder")
            case ("admin", "credentials", _, "secret_path") | (*_, "authentication", "token_path"):
                _, finding = judged_secret(path, "ours")
            case _:
                finding = path_finding(path, "file")
        if finding is not None:
            yield document.fault(loc, finding.message, finding.code, finding.hint)


def path_finding(path: Path, kind: Literal["file", "folder"]) -> Finding | None:
    """What is wrong with a path that must lead to a file or a folder; None if it does."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = 0
    except OSError as error:
        return Finding(f"{path} cannot be read: {error.strerror}", "S116", way_to_read(error))
    hint = "create it, or correct the path"
    if kind == "folder" and not stat.S_ISDIR(mode):
        return Finding(f"{path} is not a folder", "S116", hint)
    if kind == "file" and not stat.S_ISREG(mode):
        return Finding(f"{path} is not a file", "S116", hint)
    return None


def paths_in(value: object, loc: Loc = ()) -> Iterator[tuple[Loc, Path]]:
    """Every path in the settings with its place, except those of agents that are off."""
    entries: Iterable[tuple[str | int, object]] = ()
    match value:
        case Path():
            yield loc, value
        case CliAgent(enabled=False):
            pass  # it may be disabled because its files are missing
        case BaseModel():
            entries = value
        case Mapping():
            entries = value.items()
        case tuple():
            entries = enumerate(value)
    for step, entry in entries:
        yield from paths_in(entry, (*loc, step))


def _program_faults(settings: Settings, document: Document, environ: Mapping[str, str]) -> Iterator[Fault]:
    programs: list[tuple[Loc, str, str, Any]] = [
        (("upstreams", name, "mcp", "command"), upstream.mcp.command, "env", upstream.mcp)
        for name, upstream in settings.upstreams.items()
        if upstream.mcp is not None and upstream.mcp.command is not None
    ]
    programs += [
        (("agents", name, "executable"), agent.executable, "envs", agent)
        for name, agent in settings.agents.items()
        if agent.enabled
    ]
    for loc, command, key, program in programs:
        if program.env_path is not None and path_finding(program.env_path, "file"):
            continue  # the file is reported, and without it the PATH of the program is unknown
        try:
            env = program.all_env()
        except SettingsError as unreadable:
            yield from unreadable.faults
            continue
        if executable_of(command, env, environ) is None:
            hint = f"install it, write its whole path, or set {key}: {{PATH: ...}}"
            if "/" in command:
                hint = "correct the path, or make it executable"
            yield document.fault(loc, f"there is no program {command}", "S117", hint)


def _package_faults(settings: Settings, document: Document) -> Iterator[Fault]:
    """The settings that need an extra which is not installed."""
    wanted: list[tuple[Loc, str]] = [
        (("upstreams", name, "a2a", "url"), "grpc")
        for name, upstream in settings.upstreams.items()
        if upstream.a2a is not None and upstream.a2a.spoken == "grpc"
    ]
    wanted += [(("agents", name, "executable"), "agents") for name, agent in settings.agents.items() if agent.enabled]
    if settings.server.grpc is not None:
        wanted.append((("server", "grpc"), "grpc"))
    if settings.audit.sink == "otlp":
        wanted.append((("audit", "otlp"), "otel"))
    for loc, extra in wanted:
        if not has_extra(extra):
            message = f"the extra {extra} is not installed, which {loc[0]}.{loc[-1]} needs"
            yield document.fault(loc, message, "S190", f"pip install 'nhi-sidecar[{extra}]', or remove the setting")


def has_extra(extra: str) -> bool:
    try:
        return find_spec(EXTRAS[extra]) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def _token_faults(settings: Settings, document: Document, environ: Mapping[str, str]) -> Iterator[Fault]:
    """Reads tokens from their named variables. Reports missing and weak ones."""
    for _, at, offer in settings.offers():
        auth = offer.authentication
        if auth is not None and (fault := auth.read_from(environ)) is not None:
            loc = (*at, "authentication", "token_env")
            yield document.fault(loc, fault.message, fault.code, fault.hint)
