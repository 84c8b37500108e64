"""Reads the MCP servers out of a client's configuration file.

    {"mcpServers": {...}}                      Claude Desktop, Claude Code, Cursor, Windsurf, Cline, Roo, Gemini CLI
    {"servers": {...}, "inputs": [...]}        VS Code; in its settings.json under "mcp"
    {"name", "command", "transport", ...}      MCPConfig, one object or a list of them

The formats differ in the spelling of few keys. All are read into one form; what is not understood is reported.

    C101  no servers    C102  neither url nor command, or both    C103  wrong type    C104  wrong value    C105  ${...}
    C106  MCPConfig: a key is missing    C107  a client whose file is not read
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sidecar.cli.client_files.jsonc import JsonText, read_jsonc
from sidecar.errors import Fault, SettingsError, fault_in
from sidecar.settings.field_types import SLUG
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
_FOREIGN = (("Codex", "codex", (".toml",)), ("goose", "goose", (".yaml", ".yml")))
_FOREIGN_KEYS: Mapping[str, str] = {"context_servers": "Zed", "mcp": "opencode"}
_PRINTED = ("Codex", "goose", "Zed", "opencode")
LOGINS = frozenset({"auth", "authProviderType", "headersHelper", "oauth"})
"""Keys that define how a client logs in by itself."""
HOW_TO_REACH = LOGINS | {*URL_KEYS, *TYPE_KEYS, "command", "args", "env", "envFile", "cwd", "headers", "dev"}
"""Keys that define how a server is reached, removed when it is reached through the sidecar."""
_READ = HOW_TO_REACH - LOGINS - {"dev"} | {"disabled", "enabled"}
_SEED_READ = frozenset({"name", "capabilities", "timeout", "schemaVersion"})
_SEED_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+")
_SEED_NAME = re.compile(r"[A-Za-z0-9-]+")
_CAPABILITY = re.compile(r"[a-z0-9-]+\.(([a-z0-9-]+\.)*[a-z0-9-]+|\*)|\*\.\*")


@dataclass(frozen=True)
class ClientServer:
    """One server, as a client reaches it. `loc` is its place in the file; texts are as written there."""

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
        """Return the server's address, also if it is reached through our bridge; "" for any other program."""
        bridge = self.command is not None and Path(self.command).name == "sidecar" and self.args[:1] == ("connect",)
        return self.args[1] if bridge and len(self.args) > 1 else self.url or ""


@dataclass(frozen=True)
class ClientFile:
    """The contents of one file. `inputs` are the ids of the values for which VS Code prompts."""

    text: JsonText
    servers: tuple[ClientServer, ...]
    inputs: frozenset[str] = frozenset()
    elsewhere: int = 0
    """The number of servers that only one project of a client sees; they are left unchanged."""

    @property
    def path(self) -> Path:
        return self.text.document.path

    @property
    def workspace(self) -> Path:
        """The folder that the client regards as its workspace."""
        folder = self.path.absolute().parent
        return folder.parent if folder.name in (".vscode", ".cursor", ".gemini", ".roo") else folder


def open_client_file(path: Path) -> tuple[ClientFile, bytes]:
    """Return a client's file and its bytes. Raises SettingsError, also for a client whose file is not supported."""
    client = next((name for name, folder, suffixes in _FOREIGN if path.suffix in suffixes and folder in str(path)), "")
    if client or path.suffix in (".toml", ".yaml", ".yml"):
        raise SettingsError([_foreign(path, client or "a client that keeps its servers in TOML or YAML")])
    text, raw = read_jsonc(path)
    root = text.document.root.value
    client = next((name for key, name in _FOREIGN_KEYS.items() if isinstance(root, dict) and _is_theirs(root, key)), "")
    if client:
        raise SettingsError([_foreign(path, client)])
    return read_client_file(text), raw


def _is_theirs(root: Mapping[str, YamlNode], key: str) -> bool:
    """Whether a key holds the servers: VS Code's settings have `mcp` too, with the servers one level deeper."""
    found = root[key].value if key in root else None
    return isinstance(found, dict) and "servers" not in found


def _foreign(path: Path, client: str) -> Fault:
    name = client.lower() if client in _PRINTED else "codex, goose, opencode or zed"
    return fault_in(
        path,
        f"this is a file of {client}: it is neither read nor edited here",
        code="C107",
        hint=f"`sidecar client-config --for {name}` prints what to write there",
    )


def read_client_file(text: JsonText) -> ClientFile:
    """Return the servers of a file. Raises SettingsError with everything that is not understood."""
    faults: list[Fault] = []
    root = text.document.root
    reader = _ConfigurationReader(text, faults)
    servers = tuple(reader.seed() if _is_seed(root) else reader.servers())
    if not servers and not faults:
        hint = 'known are {"mcpServers": {...}}, {"servers": {...}} and MCPConfig'
        faults.append(text.document.fault((), "this file names no MCP servers", "C101", hint))
    inputs = reader.inputs()
    if faults:
        text.document.refuse(faults)
    return ClientFile(text, servers, inputs, _elsewhere(root))


def slugs(
    servers: Iterator[ClientServer] | tuple[ClientServer, ...], taken: frozenset[str] = frozenset()
) -> dict[Loc, str]:
    """Return an upstream name for each server, in order; a name that is taken gets a number."""
    found: dict[Loc, str] = {}
    for server in servers:
        wanted = _slug(server.name)
        name, number = wanted, 2
        while name in taken or name in found.values():
            name, number = f"{wanted[:60]}-{number}", number + 1
        found[server.loc] = name
    return found


def _slug(name: str) -> str:
    slug = "-".join(re.findall(r"[a-z0-9]+", name.lower()))[:64].strip("-") or "server"
    assert re.fullmatch(SLUG, slug)
    return slug


def _is_seed(root: YamlNode) -> bool:
    """Whether the file is MCPConfig: only it has `schemaVersion` or is a list."""
    if isinstance(root.value, list):
        return True
    return isinstance(root.value, dict) and ("schemaVersion" in root.value or {"name", "transport"} <= set(root.value))


def _elsewhere(root: YamlNode) -> int:
    projects = root.child("projects")
    if projects is None or not isinstance(projects.value, dict):
        return 0
    containers = (project.child("mcpServers") for project in projects.value.values())
    return sum(len(found.value) for found in containers if found is not None and isinstance(found.value, dict))


class _ConfigurationReader:
    def __init__(self, text: JsonText, faults: list[Fault]) -> None:
        self.document = text.document
        self.faults = faults

    def fault(self, loc: Loc, message: str, code: str, hint: str = "", *, key: bool = False) -> None:
        self.faults.append(self.document.fault(loc, message, code, hint, key=key))

    def servers(self) -> Iterator[ClientServer]:
        for container in CONTAINERS:
            node: YamlNode | None = self.document.root
            for step in container:
                node = node.child(step) if node else None
            if node is None:
                continue
            if not isinstance(node.value, dict):
                self.fault(container, "expected an object: name → server", "C103")
                continue
            for name, entry in node.value.items():
                if server := self.server(name, (*container, name), entry):
                    yield server

    def server(self, name: str, loc: Loc, node: YamlNode) -> ClientServer | None:
        if not isinstance(node.value, dict):
            self.fault(loc, "expected an object", "C103")
            return None
        said = node.value
        url_keys = [key for key in URL_KEYS if key in said]
        command, spoken = self.word(loc, said, "command"), self.spoken(loc, said)
        url = self.word(loc, said, url_keys[0]) if url_keys else None
        if (command is None) == (url is None) or len(url_keys) > 1:
            known = "a command, or a url"
            self.fault(loc, f"a server has {known}, and one of them", "C102", key=True)
            return None
        if spoken is not None and (spoken == "program") != (command is not None):
            self.fault(
                loc, "its type does not fit: a program has a command, a server elsewhere a url", "C102", key=True
            )
            return None
        return ClientServer(
            name,
            loc,
            command,
            self.words(loc, said, "args"),
            self.texts(loc, said, "env"),
            self.word(loc, said, "envFile"),
            self.word(loc, said, "cwd"),
            url,
            url_keys[0] if url_keys else "url",
            self.texts(loc, said, "headers"),
            _SPOKEN.get(spoken or "", "auto"),
            disabled=self.flag(loc, said, "disabled") is True or self.flag(loc, said, "enabled") is False,
            unread=tuple(sorted(said.keys() - _READ)),
        )

    def seed(self) -> Iterator[ClientServer]:
        root = self.document.root
        entries = list(enumerate(root.value)) if isinstance(root.value, list) else [(None, root)]
        names: set[str] = set()
        for index, node in entries:
            loc: Loc = () if index is None else (index,)
            server = self.seed_server(loc, node)
            if server is None:
                continue
            if server.name in names:
                self.fault((*loc, "name"), f'the name "{server.name}" stands twice', "C104")
            names.add(server.name)
            yield server

    def seed_server(self, loc: Loc, node: YamlNode) -> ClientServer | None:
        """Read a server of MCPConfig and check its rules."""
        if not isinstance(node.value, dict):
            self.fault(loc, "expected an object", "C103")
            return None
        said, before = node.value, len(self.faults)
        for key in ("name", "command", "transport", "capabilities", "schemaVersion"):
            if key not in said:
                self.fault(loc, f'the key "{key}" is missing', "C106")
        name, command = self.word(loc, said, "name") or "", self.word(loc, said, "command")
        transport, version = self.word(loc, said, "transport"), self.word(loc, said, "schemaVersion")
        capabilities = self.words(loc, said, "capabilities")
        self.rule(loc, "name", "name" not in said or _SEED_NAME.fullmatch(name), "letters, digits and hyphens only")
        self.rule(loc, "command", command != "", "the command is empty")
        self.rule(loc, "transport", transport in (None, "stdio", "http"), 'it must be "stdio" or "http"')
        self.rule(loc, "capabilities", "capabilities" not in said or capabilities, "at least one capability")
        for index, capability in enumerate(capabilities):
            fits = _CAPABILITY.fullmatch(capability)
            self.rule((*loc, "capabilities"), index, fits, "write <tool>.<verb>, or <tool>.*")
        self.rule(loc, "schemaVersion", version is None or _SEED_VERSION.fullmatch(version), "write it as 1.0.0")
        url = self.word(loc, said, "baseURL")
        if transport == "http" and url is None:
            self.fault(loc, 'the key "baseURL" is missing', "C106", "a server over http has one")
        if len(self.faults) > before:
            return None
        http = transport == "http"
        return ClientServer(
            name,
            loc,
            None if http else command,
            () if http else self.words(loc, said, "args"),
            {} if http else self.texts(loc, said, "env"),
            url=url if http else None,
            url_key="baseURL",
            timeout=self.word(loc, said, "timeout"),
            capabilities=capabilities,
            unread=tuple(sorted(said.keys() - _SEED_READ - {"command", "args", "env", "transport", "baseURL"})),
        )

    def rule(self, loc: Loc, step: str | int, holds: object, message: str) -> None:
        if not holds:
            self.fault((*loc, step), message, "C104")

    def inputs(self) -> frozenset[str]:
        found = set()
        for loc in (("inputs",), ("mcp", "inputs")):
            node: YamlNode | None = self.document.root
            for step in loc:
                node = node.child(step) if node else None
            for entry in node.value if node and isinstance(node.value, list) else ():
                identity = entry.child("id")
                if identity and isinstance(identity.value, str):
                    found.add(identity.value)
        return frozenset(found)

    def spoken(self, loc: Loc, said: Mapping[str, YamlNode]) -> str | None:
        """Return the transport: `program`, or a key of `_SPOKEN`."""
        for key in TYPE_KEYS:
            word = self.word(loc, said, key)
            if word is None:
                continue
            if word in _PROGRAM:
                return "program"
            if word not in _SPOKEN:
                self.fault((*loc, key), f'"{word}" is no transport known here', "C104", "http, sse or stdio")
                return None
            return word
        return None

    def word(self, loc: Loc, said: Mapping[str, YamlNode], key: str) -> str | None:
        node = said.get(key)
        if node is None or node.value is None:
            return None
        if not isinstance(node.value, str):
            self.fault((*loc, key), "expected a string", "C103")
            return None
        return node.value

    def words(self, loc: Loc, said: Mapping[str, YamlNode], key: str) -> tuple[str, ...]:
        node = said.get(key)
        if node is None or node.value is None:
            return ()
        if not isinstance(node.value, list):
            self.fault((*loc, key), "expected a list of strings", "C103")
            return ()
        found = (self.text((*loc, key, index), entry) for index, entry in enumerate(node.value))
        return tuple(text for text in found if text is not None)

    def texts(self, loc: Loc, said: Mapping[str, YamlNode], key: str) -> Mapping[str, str]:
        node = said.get(key)
        if node is None or node.value is None:
            return {}
        if not isinstance(node.value, dict):
            self.fault((*loc, key), "expected an object of strings", "C103")
            return {}
        named = {name: self.text((*loc, key, name), entry) for name, entry in node.value.items()}
        return {name: text for name, text in named.items() if text is not None}

    def text(self, loc: Loc, node: YamlNode) -> str | None:
        """Return the text of a scalar. Numbers keep their spelling; null counts as missing."""
        if node.value is None or isinstance(node.value, str):
            return node.value
        if isinstance(node.value, int | float) and not isinstance(node.value, bool):
            return str(node.value)
        self.fault(loc, "expected a string", "C103", "quote it")
        return None

    def flag(self, loc: Loc, said: Mapping[str, YamlNode], key: str) -> bool | None:
        node = said.get(key)
        if node is None or node.value is None:
            return None
        if isinstance(node.value, bool):
            return node.value
        self.fault((*loc, key), "expected true or false", "C103")
        return None
