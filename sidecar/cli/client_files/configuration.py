"""Reads the MCP servers from a client's configuration file.

    {"mcpServers": {...}}                      Claude Desktop, Claude Code, Cursor, Windsurf, Cline, Roo, Gemini CLI
    {"servers": {...}, "inputs": [...]}        VS Code; in its settings.json under "mcp"
    {"name", "command", "transport", ...}      MCPConfig, one object or a list of them

The formats differ in the spelling of few keys. All are read into one form; unsupported content is reported.

    C101  no servers    C102  neither url nor command, or both    C103  wrong type    C104  wrong value    C105  ${...}
    C106  MCPConfig: a key is missing    C107  a client whose file is not read
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, ValidationError

from sidecar.cli.client_files.formats import ClientFormat, client_of
from sidecar.cli.client_files.jsonc import JsonText, read_jsonc
from sidecar.errors import Fault, SettingsError, fault_in
from sidecar.settings.yaml_nodes import Loc, YamlNode

Transport = Literal["auto", "http", "sse"]

CONTAINERS: tuple[Loc, ...] = (("mcpServers",), ("servers",), ("mcp", "servers"))
URL_KEYS = ("url", "serverUrl", "httpUrl", "baseURL", "baseUrl")
TYPE_KEYS = ("type", "transport", "transportType")
_PROGRAM = frozenset({"stdio", "local"})
_SPOKEN: Mapping[str, Transport] = {
    "http": "http",
    "streamable-http": "http",
    "streamableHttp": "http",
    "streamable_http": "http",
    "remote": "auto",
    "sse": "sse",
}
LOGINS = frozenset({"auth", "authProviderType", "headersHelper", "oauth"})
"""Keys that define how a client logs in on its own."""
HOW_TO_REACH = LOGINS | {*URL_KEYS, *TYPE_KEYS, "command", "args", "env", "envFile", "cwd", "headers", "dev"}
"""Keys that define how a server is reached, removed when it is reached through the sidecar."""
_READ = HOW_TO_REACH - LOGINS - {"dev"} | {"disabled", "enabled"}


def _without_nulls(value: Any) -> Any:
    """The value without members that are null, which are treated as missing."""
    if isinstance(value, dict):
        return {key: below for key, below in value.items() if below is not None}
    return [below for below in value if below is not None] if isinstance(value, list) else value


Words = Annotated[tuple[str, ...], BeforeValidator(_without_nulls)]
Texts = Annotated[dict[str, str], BeforeValidator(_without_nulls)]


class _ServerEntry(BaseModel):
    """The keys of an entry that are read. Numbers are treated as texts."""

    model_config = ConfigDict(extra="allow", coerce_numbers_to_str=True)
    command: str | None = None
    args: Words = ()
    env: Texts = {}
    envFile: str | None = None  # noqa: N815
    cwd: str | None = None
    headers: Texts = {}
    disabled: StrictBool = False
    enabled: StrictBool = True


class _SeedEntry(BaseModel):
    model_config = ConfigDict(extra="allow", coerce_numbers_to_str=True)
    name: Annotated[str, Field(pattern="^[A-Za-z0-9-]+$")]
    command: Annotated[str, Field(min_length=1)]
    args: Words = ()
    env: Texts = {}
    transport: Literal["stdio", "http"]
    capabilities: Annotated[
        tuple[Annotated[str, Field(pattern=r"^([a-z0-9-]+\.(([a-z0-9-]+\.)*[a-z0-9-]+|\*)|\*\.\*)$")], ...],
        Field(min_length=1),
    ]
    timeout: str | None = None
    schemaVersion: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")]  # noqa: N815
    baseURL: str | None = None  # noqa: N815


_WRONG_TYPES = {
    "string_type": "expected a string",
    "tuple_type": "expected a list of strings",
    "dict_type": "expected an object of strings",
    "bool_type": "expected true or false",
    "model_type": "expected an object",
}
_SEED_RULES = {
    "name": "letters, digits and hyphens only",
    "command": "the command is empty",
    "transport": 'it must be "stdio" or "http"',
    "capabilities": "write at least one capability, as <tool>.<verb> or <tool>.*",
    "schemaVersion": "write it as 1.0.0",
}
_UNREAD = "`sidecar client-config --for codex` (or goose, opencode, zed) prints the entry for the client's own file"
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class ClientServer:
    """One server in the client's form. `loc` is its place in the file; texts are as written there."""

    name: str
    loc: Loc
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    env_file: str | None = None
    cwd: str | None = None
    url: str | None = None
    url_key: str = "url"
    headers: Mapping[str, str] = field(default_factory=dict)
    transport: Transport = "auto"
    timeout: str | None = None
    capabilities: tuple[str, ...] = ()
    disabled: bool = False
    unread: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """The server's address, also if it is reached through the sidecar's bridge; "" for any other program."""
        bridge = self.command is not None and Path(self.command).name == "sidecar" and self.args[:1] == ("connect",)
        return self.args[1] if bridge and len(self.args) > 1 else self.url or ""


@dataclass(frozen=True)
class ClientFile:
    """One file. `inputs` are ids of values for which VS Code prompts; `elsewhere` counts servers of single projects."""

    text: JsonText
    servers: tuple[ClientServer, ...]
    inputs: frozenset[str] = frozenset()
    elsewhere: int = 0

    @property
    def path(self) -> Path:
        return self.text.document.path

    @property
    def client(self) -> ClientFormat:
        return client_of(self.path, (server.url_key for server in self.servers), self.text.document.root.value)

    @property
    def workspace(self) -> Path:
        """The folder that the client regards as its workspace."""
        folder = self.path.absolute().parent
        return folder.parent if folder.name in (".vscode", ".cursor", ".gemini", ".roo") else folder


def open_client_file(path: Path) -> tuple[ClientFile, bytes]:
    """Returns a client's file and its bytes. Raises SettingsError, also for a client whose file is not supported."""
    if path.suffix in (".toml", ".yaml", ".yml"):
        message = "this is not JSON: this command does not support the files of Codex and goose"
        raise SettingsError([fault_in(path, message, code="C107", hint=_UNREAD)])
    text, raw = read_jsonc(path)
    return read_client_file(text), raw


def read_client_file(text: JsonText) -> ClientFile:
    """Returns the servers of a file. Raises SettingsError with all unsupported content."""
    root = text.document.root
    reader = _ConfigurationReader(text)
    keys = root.value if isinstance(root.value, dict) else ()
    # Only MCPConfig is a list or has `schemaVersion`.
    is_seed = isinstance(root.value, list) or "schemaVersion" in keys or {"name", "transport"} <= set(keys)
    servers = tuple(reader.seed() if is_seed else reader.servers())
    if not servers and not reader.faults:
        hint = f'known are {{"mcpServers": {{...}}}}, {{"servers": {{...}}}} and MCPConfig; {_UNREAD}'
        reader.fault((), "this file names no MCP servers", "C101", hint)
    if reader.faults:
        text.document.refuse(reader.faults)
    projects = root.child("projects")
    own = [one.child("mcpServers") for one in _members(projects)]
    entries = [entry for loc in (("inputs",), ("mcp", "inputs")) for entry in _members(root.below(loc))]
    ids = [identity.value for entry in entries if (identity := entry.child("id"))]
    return ClientFile(
        text, servers, frozenset(one for one in ids if isinstance(one, str)), sum(len(_members(one)) for one in own)
    )


def slugs(servers: Iterable[ClientServer], taken: frozenset[str] = frozenset()) -> dict[Loc, str]:
    """Returns an upstream name for each server, in order; a name that is in use gets a number."""
    found: dict[Loc, str] = {}
    for server in servers:
        wanted = name = "-".join(re.findall(r"[a-z0-9]+", server.name.lower()))[:64].strip("-") or "server"
        number = 2
        while name in taken or name in found.values():
            name, number = f"{wanted[:60]}-{number}", number + 1
        found[server.loc] = name
    return found


def _members(node: YamlNode | None) -> list[YamlNode]:
    value = None if node is None else node.value
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


class _ConfigurationReader:
    def __init__(self, text: JsonText) -> None:
        self.document = text.document
        self.faults: list[Fault] = []

    def fault(self, loc: Loc, message: str, code: str, hint: str = "", *, key: bool = False) -> None:
        self.faults.append(self.document.fault(loc, message, code, hint, key=key))

    def servers(self) -> Iterator[ClientServer]:
        for container in CONTAINERS:
            node = self.document.root.below(container)
            if node is None:
                continue
            if not isinstance(node.value, dict):
                self.fault(container, "expected an object: name → server", "C103")
                continue
            for name, below in node.value.items():
                if server := self.server(name, (*container, name), below):
                    yield server

    def server(self, name: str, loc: Loc, node: YamlNode) -> ClientServer | None:
        entry = self.read(_ServerEntry, loc, node)
        if entry is None:
            return None
        said = _without_nulls(node.plain())
        url_keys = [key for key in URL_KEYS if key in said]
        for key in (*url_keys, *TYPE_KEYS):
            if not isinstance(said.get(key, ""), str):
                self.fault((*loc, key), "expected a string", "C103")
                return None
        if (entry.command is None) == (not url_keys) or len(url_keys) > 1:
            self.fault(loc, "set either command or url", "C102", key=True)
            return None
        key, kind = next(((key, said[key]) for key in TYPE_KEYS if key in said), ("", None))
        if kind is not None and kind not in _SPOKEN and kind not in _PROGRAM:
            self.fault((*loc, key), f'the transport "{kind}" is unknown', "C104", "write http, sse or stdio")
        elif kind is not None and (kind in _PROGRAM) != (entry.command is not None):
            what = "the type does not fit: stdio needs a command, the others need a url"
            self.fault(loc, what, "C102", key=True)
            return None
        url_key = url_keys[0] if url_keys else "url"
        return ClientServer(
            name,
            loc,
            entry.command,
            entry.args,
            entry.env,
            entry.envFile,
            entry.cwd,
            said.get(url_key),
            url_key,
            entry.headers,
            _SPOKEN.get(kind or "", "auto"),
            disabled=entry.disabled or not entry.enabled,
            unread=tuple(sorted(said.keys() - _READ)),
        )

    def seed(self) -> Iterator[ClientServer]:
        root = self.document.root
        names: set[str] = set()
        for index, node in enumerate(root.value) if isinstance(root.value, list) else [(None, root)]:
            loc: Loc = () if index is None else (index,)
            entry = self.read(_SeedEntry, loc, node)
            if entry is None:
                continue
            if entry.name in names:
                self.fault((*loc, "name"), f'the name "{entry.name}" appears twice', "C104")
            names.add(entry.name)
            http = entry.transport == "http"
            if http and entry.baseURL is None:
                self.fault(loc, 'the key "baseURL" is missing', "C106", "a server over HTTP needs it")
                continue
            yield ClientServer(
                entry.name,
                loc,
                None if http else entry.command,
                () if http else entry.args,
                {} if http else entry.env,
                url=entry.baseURL if http else None,
                url_key="baseURL",
                timeout=entry.timeout,
                capabilities=entry.capabilities,
                unread=tuple(sorted(entry.model_extra or {})),
            )

    def read(self, model: type[Model], loc: Loc, node: YamlNode) -> Model | None:
        try:
            return model.model_validate(_without_nulls(node.plain()))
        except ValidationError as error:
            for found in error.errors():
                at = (*loc, *found["loc"])
                if found["type"] == "missing":
                    self.fault(loc, f'the key "{found["loc"][-1]}" is missing', "C106")
                elif (what := _WRONG_TYPES.get(found["type"])) is not None:
                    self.fault(at, what, "C103")
                else:
                    self.fault(at, _SEED_RULES[str(found["loc"][0])], "C104")
            return None
