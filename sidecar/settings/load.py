"""Loads the settings in force and the origin of each value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sidecar.errors import Fault, SettingsError, fault_in
from sidecar.settings.environment import overlay
from sidecar.settings.identity import FURTHER_OF_PRESET, KEYS_OF_PRESET
from sidecar.settings.programs import executable_of
from sidecar.settings.secrets import WeakSecretError, checked_secret
from sidecar.settings.sidecar_file import Settings
from sidecar.settings.stored_policy import NOTHING_YET, placed
from sidecar.settings.validation_errors import Finding
from sidecar.settings.yaml_document import Document, read_document
from sidecar.settings.yaml_nodes import Loc, YamlNode, shown_line

MASKED = "***"


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
    """Load settings from a file and the environment. Raises SettingsError with all faults of file, variables and
    values.

    With `check_files`, named files must exist and the sidecar's own secrets must be strong.
    """
    return load(path, environ, check_files=check_files).settings


def load(
    path: Path, environ: Mapping[str, str], *, check_files: bool = True, all_at_once: bool | None = None
) -> LoadedSettings:
    """As `load_settings`, with the document, for callers that report the origin of values. `all_at_once` (by default
    `check_files`) also checks files when there are other faults."""
    all_at_once = check_files if all_at_once is None else all_at_once
    if not path.exists():
        hint = "write a working folder with `sidecar init`, or name the file with -c"
        raise SettingsError([fault_in(path, "there is no such file", code="Y001", hint=hint)])
    document, faults = overlay(read_document(path), environ)
    try:
        settings = document.validate(Settings, context={"folder": path.parent})
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
    """Files, folders and programs that are named but missing, and weak secrets of the sidecar."""
    settings, document = loaded.settings, loaded.document
    return [
        *_file_faults(settings, document),
        *_program_faults(settings, document, environ),
        *_agent_faults(settings, document, environ),
    ]


def _faults_of_the_rest(document: Document, folder: Path, environ: Mapping[str, str]) -> Iterator[Fault]:
    """Missing files, folders and programs of the valid agents and upstreams when another section has faults, so that
    all faults are reported at once."""
    for section in ("agents", "upstreams"):
        entries = document.data.get(section) if isinstance(document.data, dict) else None
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            try:
                alone = Settings.model_validate({"version": 1, section: {name: entry}}, context={"folder": folder})
            except ValidationError:
                continue  # already reported
            yield from (fault for loc, fault in _missing_files(alone, document) if loc[0] == section)
            yield from _program_faults(alone, document, environ)
            yield from _agent_faults(alone, document, environ)


def doubts(loaded: LoadedSettings) -> Iterator[Fault]:
    """Warnings about settings that are valid but dangerous."""
    for name, upstream in loaded.settings.upstreams.items():
        if upstream.credential is not None and upstream.credential.passthrough:
            message = f"the tokens of callers are shown to {name}, which can use them as if it were they"
            hint = "use token_exchange or signed, unless these tokens are meant for this server too"
            fault = loaded.document.fault(("upstreams", name, "credential", "passthrough"), message, "S118", hint)
            yield replace(fault, severity="warning")
        if upstream.a2a is not None and not upstream.a2a.card_address:
            message = f"nobody finds the card of {name}: a gRPC address has none beside it"
            hint = "write card_url, or its callers see no card and version: auto is 1.0"
            fault = loaded.document.fault(("upstreams", name, "a2a", "url"), message, "S134", hint)
            yield replace(fault, severity="warning")

    for name, pointers in loaded.settings.audit.clear_arguments.items():
        message = f"whoever reads the evidence reads {', '.join(pointers)} of the calls of {name}"
        hint = "leave out what is personal or secret; records cannot be changed later"
        fault = loaded.document.fault(("audit", "clear_arguments", name), message, "S151", hint)
        yield replace(fault, severity="warning")


def shown_settings(loaded: LoadedSettings) -> list[ShownSettings]:
    """All settings in force, in the order of the schema, with secrets masked."""
    tree = loaded.settings.model_dump(mode="json")
    return [_shown(loc, value, loaded.document) for loc, value in _leaves(tree)]


def _shown(loc: Loc, value: Any, document: Document) -> ShownSettings:
    node = _exactly(document.root, loc)
    if node is None:
        written = _exactly(document.root, (*loc[:3], "preset")) if loc[:2] == ("identity", "issuers") else None
        filled = written is not None and _fills(str(written.value), loc[3:])
        return ShownSettings(loc, value, "preset" if filled else "default")
    origin = f"{node.span.file}:{node.span.line}" if node.span.line else node.span.file
    if node.secret:
        return ShownSettings(loc, MASKED, origin)
    if node.shown is not None:
        return ShownSettings(loc, node.shown, origin)  # the value of ${VAR} may be a secret
    return ShownSettings(loc, _masked(value), origin)


def _fills(preset: str, loc: Loc) -> bool:
    further = loc[:1] in [(key,) for key in FURTHER_OF_PRESET.get(preset, ())]
    return further or (preset in KEYS_OF_PRESET and loc in _FILLED_BY_PRESET)


_FILLED_BY_PRESET = {("jwks_url",), ("roles_from", "claim")}


def _masked(value: Any) -> Any:
    """Mask the password of a URL with three stars, whatever its length."""
    if not isinstance(value, str) or (starred := shown_line(value)) == value:
        return value
    before, _, after = starred.rpartition("@")
    return f"{before.rstrip('*')}{MASKED}@{after}"


def _leaves(value: Any, loc: Loc = ()) -> Iterator[tuple[Loc, Any]]:
    if isinstance(value, dict) and value:
        for name, entry in value.items():
            yield from _leaves(entry, (*loc, name))
    elif isinstance(value, list) and value:
        for index, entry in enumerate(value):
            yield from _leaves(entry, (*loc, index))
    else:
        yield loc, value


def _exactly(root: YamlNode, loc: Loc) -> YamlNode | None:
    node: YamlNode | None = root
    for step in loc:
        node = node.child(step) if node else None
    return node


def _file_faults(settings: Settings, document: Document) -> Iterator[Fault]:
    if settings.policy.path.parent.name == NOTHING_YET:
        hint = "sidecar serve takes it, and keeps it for when the source is out"
        yield document.fault(("policy", "source"), "nothing was taken from it yet", "S161", hint)
    for loc, path in _folders(settings):
        if not path.is_dir():
            yield document.fault(loc, f"{path} is no folder", "S116", "make it, or correct the path")
    yield from (fault for _, fault in _missing_files(settings, document))
    for loc, path in _secrets(settings):
        if finding := _weakness(path):
            yield document.fault(loc, finding.message, finding.code, finding.hint)


def _missing_files(settings: Settings, document: Document) -> Iterator[tuple[Loc, Fault]]:
    for loc, path in _files(settings):
        if not path.is_file():
            yield loc, document.fault(loc, f"{path} is no file", "S116", "make it, or correct the path")


def _program_faults(settings: Settings, document: Document, environ: Mapping[str, str]) -> Iterator[Fault]:
    """Programs that could not be started."""
    for name, upstream in settings.upstreams.items():
        program = upstream.mcp
        if program is None or program.command is None:
            continue
        where = ("upstreams", name, "mcp")
        if program.env_path is not None and not program.env_path.is_file():
            continue  # already reported, and it may set PATH
        try:
            env = program.all_env()
        except SettingsError as unreadable:
            yield from unreadable.faults
            continue
        if executable_of(program.command, env, environ) is None:
            yield _no_program(document, (*where, "command"), program.command, "env")
        if program.cwd is not None and not program.cwd.is_dir():
            yield document.fault((*where, "cwd"), f"{program.cwd} is no folder", "S116", "make it, or correct the path")


def _secrets(settings: Settings) -> Iterator[tuple[Loc, Path]]:
    """Files of secrets with which callers and operators authenticate to the sidecar."""
    for index, credential in enumerate(settings.admin.credentials):
        yield ("admin", "credentials", index, "secret_path"), credential.secret_path
    for _, at, offer in settings.offers():
        if offer.authentication is not None and offer.authentication.token_path is not None:
            yield (*at, "authentication", "token_path"), offer.authentication.token_path


def _token_faults(settings: Settings, document: Document, environ: Mapping[str, str]) -> Iterator[Fault]:
    """Read tokens from their named variables. Reports missing and weak ones."""
    for _, at, offer in settings.offers():
        auth = offer.authentication
        if auth is not None and (fault := auth.read_from(environ)) is not None:
            loc = (*at, "authentication", "token_env")
            yield document.fault(loc, fault.message, fault.code, fault.hint)


def _agent_faults(settings: Settings, document: Document, environ: Mapping[str, str]) -> Iterator[Fault]:
    """Agents that could not be started."""
    for name, agent in settings.agents.items():
        if not agent.enabled:
            continue  # treated as missing, which may be the cause
        if agent.env_path is not None and not agent.env_path.is_file():
            continue  # already reported, and it may set PATH
        folders: list[tuple[Loc, Path | None]] = [(("working_directory",), agent.working_directory)]
        folders += [
            (("per_call", "working_directories", index), path)
            for index, path in enumerate(agent.per_call.working_directories)
        ]
        for loc, path in folders:
            if path is not None and not path.is_dir():
                at = ("agents", name, *loc)
                yield document.fault(at, f"{path} is no folder", "S116", "make it, or correct the path")
        try:
            env = agent.all_envs()
        except SettingsError as unreadable:
            yield from unreadable.faults
            continue
        if executable_of(agent.executable, env, environ) is None:
            yield _no_program(document, ("agents", name, "executable"), agent.executable, "envs")


def _no_program(document: Document, loc: Loc, command: str, env: str) -> Fault:
    hint = f"install it, write its whole path, or set {env}: {{PATH: ...}}"
    if "/" in command:
        hint = "correct the path, or make it executable"
    return document.fault(loc, f"there is no program {command}", "S117", hint)


def _weakness(path: Path) -> Finding | None:
    try:
        checked_secret(path, "ours")
    except WeakSecretError as weak:
        return weak.finding
    return None


def _folders(settings: Settings) -> Iterator[tuple[Loc, Path]]:
    if settings.policy.source is None:
        yield ("policy", "models"), settings.policy.models
        yield ("policy", "path"), settings.policy.path


def _files(settings: Settings) -> Iterator[tuple[Loc, Path]]:
    """Files that the sidecar reads and never creates."""
    named: list[tuple[Loc, Path | None]] = [(("identity", "api_keys_path"), settings.identity.api_keys_path)]
    if settings.server.tls and settings.server.tls != "external":
        named.append((("server", "tls", "cert_path"), settings.server.tls.cert_path))
        named.append((("server", "tls", "key_path"), settings.server.tls.key_path))
        named.append((("server", "tls", "client_ca_path"), settings.server.tls.client_ca_path))
    named += [
        (("audit", "previous_key_paths", index), path) for index, path in enumerate(settings.audit.previous_key_paths)
    ]
    for index, issuer in enumerate(settings.identity.issuers):
        named.append((("identity", "issuers", index, "jwks_path"), issuer.jwks_path))
    for name, upstream in settings.upstreams.items():
        if upstream.mcp is not None:
            named.append((("upstreams", name, "mcp", "env_path"), upstream.mcp.env_path))
        if upstream.credential is not None:
            named += [(("upstreams", name, "credential", *loc), path) for loc, path in upstream.credential.files()]
    named.append((("signing", "key_path"), settings.signing.key_path))
    named.append((("callbacks", "ca_path"), settings.callbacks.ca_path))
    if (source := settings.policy.source) is not None:
        named += [(("policy", "source", source.kind, *loc), path) for loc, path in source.chosen.files()]
    named += [(("audit", *loc), path) for loc, path in settings.audit.files()]
    named += [(("store", *loc), path) for loc, path in settings.store.files()]
    named += [
        (("signing", "previous_paths", index), path) for index, path in enumerate(settings.signing.previous_paths)
    ]
    named += [
        (("agents", name, "env_path"), agent.env_path) for name, agent in settings.agents.items() if agent.enabled
    ]
    yield from ((loc, path) for loc, path in named if path is not None)
