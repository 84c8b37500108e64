"""Converts a client's MCP servers into upstreams of a working folder, with secrets in `keys/` (mode 0600) and first
rules.

A rule never allows everything: if the client's file does not name tools, the rule allows one that does not exist, so
that the server can be listed but not used until an operator has reviewed its tools.
"""

import re
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from sidecar.cli.client_files.configuration import LOGINS, ClientFile, ClientServer
from sidecar.cli.client_files.formats import CLIENTS
from sidecar.cli.client_files.references import (
    ReferencePlaces,
    filled_in,
    literal_in,
    translated,
    variable_name,
    variables_in,
    without_defaults,
)
from sidecar.cli.client_files.secret_detection import looks_secret, may_stand_in_clear, names_a_secret
from sidecar.errors import Fault
from sidecar.settings.credentials import CREDENTIAL_HEADERS
from sidecar.settings.field_types import seconds_from
from sidecar.settings.upstreams import UpstreamSettings
from sidecar.settings.validation_errors import findings_of
from sidecar.settings.yaml_nodes import Loc

PRINCIPAL = "nhi:planner"
VARIABLES_PATH = "keys/variables.env"
_BEARER = re.compile(r"bearer\s+(.+)", re.IGNORECASE | re.DOTALL)
_OPTION = re.compile(r"(--?[\w-]+)=(.*)", re.DOTALL)
_PARAMETER = re.compile(r"(?P<before>[?&])(?P<name>[^=&#]+)=(?P<value>[^&#]+)")
_SEGMENT = re.compile(r"(?<=/)[^/?#]+")
_HARMLESS_WORD = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none"})
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_PRINTABLE = re.compile(r"[!-~]+( [!-~]+)*")


@dataclass
class Import:
    """The import's results. `secrets` are files for mode 0600; paths are relative to the folder."""

    upstreams: dict[str, dict[str, Any]] = field(default_factory=dict)
    rules: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    needed: dict[str, str] = field(default_factory=dict)
    """Variables that must be set when the sidecar starts → the reason."""
    names: dict[Loc, str] = field(default_factory=dict)


def imported(
    file: ClientFile, folder: Path, environ: Mapping[str, str], names: Mapping[Loc, str], *, home: Path
) -> Import:
    """Converts the enabled servers that have an upstream name. Raises SettingsError with every fault at its place."""
    faults: list[Fault] = []
    result = Import(names=dict(names))
    places = ReferencePlaces(file.workspace, home, file.inputs, bare=file.client is CLIENTS["gemini"])
    for server in file.servers:
        if server.loc not in names:
            result.notes.append(f"{server.name} already uses a sidecar and was omitted")
        elif server.disabled:
            result.notes.append(f"{server.name} is disabled in the file and was omitted")
        else:
            _Importer(file, server, result, faults, places, folder, environ).run()
    if file.elsewhere:
        result.notes.append(f'{file.elsewhere} servers under "projects" are not read: they belong to single projects')
    if not result.upstreams and not faults:
        faults.append(file.text.document.fault((), "no server of this file can be imported", "C101"))
    if faults:
        file.text.document.refuse(faults)
    return result


@dataclass
class _Importer:
    file: ClientFile
    server: ClientServer
    result: Import
    faults: list[Fault]
    places: ReferencePlaces
    folder: Path
    environ: Mapping[str, str]

    def run(self) -> None:
        name, server = self.name, self.server
        if name != server.name:
            self.note(f"is called {name} here")
        mcp = self.program() if server.url is None else self.address()
        section: dict[str, Any] = {"mcp": mcp}
        if (timeout_s := self.timeout_s()) is not None:
            mcp["timeout_s"] = timeout_s
        secret, beside = self.headers()
        if credential := self.credential(secret):
            section["credential"] = credential
        if beside:
            mcp["headers"] = beside
        if logins := LOGINS.intersection(server.unread):
            self.note(f"{', '.join(sorted(logins))}: the client logged in itself; give the upstream a credential")
        if unread := [key for key in server.unread if key not in LOGINS]:
            self.note(f"{', '.join(unread)}: for the client only, not imported")
        self.check(section)
        self.result.upstreams[name] = section
        self.result.rules[f"policies/agent_to_tool.{name}.csv"] = rules_of(name, server.capabilities)

    @property
    def name(self) -> str:
        return self.result.names[self.server.loc]

    def note(self, text: str) -> None:
        self.result.notes.append(f"{self.server.name}: {text}")

    def fault(self, loc: Loc, message: str, code: str, hint: str = "") -> None:
        self.faults.append(self.file.text.document.fault((*self.server.loc, *loc), message, code, hint))

    def program(self) -> dict[str, Any]:
        server = self.server
        command = self.ours(("command",), server.command or "")
        if "/" in command and not command.startswith(("/", "${")):
            command = str(self.places.workspace / command)
        found: dict[str, Any] = {"command": command}
        if args := self.arguments():
            found["args"] = args
        clear, hidden = self.environment()
        if clear:
            found["env"] = clear
        if hidden:
            path = f"keys/{self.name}.env"
            self.result.secrets[path] = self.env_lines(hidden, ("env",))
            self.note(f"{', '.join(hidden)} was moved to {path}")
            found["env_path"] = path
        if server.env_file is not None and hidden:
            self.fault(
                ("envFile",),
                "envFile cannot be combined with secrets in env",
                "C104",
                "move the secrets into that file",
            )
        elif server.env_file is not None:
            found["env_path"] = str(self.places.workspace / self.ours(("envFile",), server.env_file))
        if server.cwd is not None:
            found["cwd"] = str(self.places.workspace / self.ours(("cwd",), server.cwd))
        return found

    def arguments(self) -> list[str]:
        found = [""]
        for index, argument in enumerate(self.server.args):
            option = found[-1] if found[-1].startswith("-") else ""
            found.append(self.argument(self.ours(("args", index), argument), option))
        return found[1:]

    def argument(self, text: str, option: str) -> str:
        """Returns an argument without its secrets, and with the whole path if it names a file of the workspace."""
        named = _OPTION.fullmatch(text)
        if named and (names_a_secret(named[1]) or looks_secret(named[2])) and literal_in(named[2]):
            return f"{named[1]}={self.hidden(named[2], named[1])}"
        secret = literal_in(text) if "=" not in option and names_a_secret(option) else ""
        if (secret and not text.startswith("-")) or looks_secret(literal_in(text)):
            return self.hidden(text, option)
        if "://" in text:
            return self.without_secrets_in_url(text)
        is_relative = "/" in text or "." in text
        if is_relative and not text.startswith(("/", "-", "$", "@")) and (self.places.workspace / text).exists():
            self.note(f"{text} is a path in {self.places.workspace}, and was made absolute")
            return str((self.places.workspace / text).resolve())
        return text

    def environment(self) -> tuple[dict[str, str], dict[str, str]]:
        """Returns the variables that may be written to sidecar.yaml, and those that may not."""
        clear, hidden = dict[str, str](), dict[str, str]()
        for name, value in self.server.env.items():
            text = self.ours(("env", name), value)
            literal = literal_in(text)
            if may_stand_in_clear(name, literal) or not literal:
                clear[name] = text
            elif literal and text != literal:  # contains a secret next to a reference, or as its default
                clear[name] = self.reference(text, name)
            else:
                hidden[name] = text
        return clear, hidden

    def reference(self, text: str, name: str) -> str:
        bare = without_defaults(text)
        if variables_in(bare) and not literal_in(bare):
            self.note(f"the default of {name} was omitted, because it may be secret")
            self.need(bare)
            return bare
        return self.hidden(text, name)

    def address(self) -> dict[str, Any]:
        url = self.ours((self.server.url_key,), self.server.url or "")
        found: dict[str, Any] = {"url": self.without_secrets_in_url(url)}
        if self.server.transport != "auto":
            found["transport"] = self.server.transport
        return found

    def without_secrets_in_url(self, url: str) -> str:
        def parameter(found: re.Match[str]) -> str:
            literal = literal_in(found["value"])
            secret = literal and (names_a_secret(found["name"]) or looks_secret(literal))
            value = self.hidden(found["value"], found["name"]) if secret else found["value"]
            return f"{found['before']}{found['name']}={value}"

        def segment(found: re.Match[str]) -> str:
            return self.hidden(found[0], "url") if looks_secret(found[0]) else found[0]

        head, scheme, rest = url.partition("://")
        host, slash, path = rest.partition("/")
        path = _SEGMENT.sub(segment, f"/{path}")[1:] if slash else ""
        return _PARAMETER.sub(parameter, f"{head}{scheme}{host}{slash}{path}")

    def headers(self) -> tuple[dict[str, str], dict[str, str]]:
        secret, beside = dict[str, str](), dict[str, str]()
        for name, value in self.server.headers.items():
            hides = name.lower() in CREDENTIAL_HEADERS or "$" in value or names_a_secret(name) or looks_secret(value)
            if name.lower() not in ("accept", "content-type", "user-agent"):
                (secret if hides else beside)[name] = value
        return secret, beside

    def credential(self, headers: Mapping[str, str]) -> dict[str, str] | None:
        if len(headers) > 1:
            hint = "the sidecar sends one secret to a server: remove the headers that the server does not need"
            self.fault(("headers",), f"{len(headers)} headers with secrets: {', '.join(headers)}", "C104", hint)
        if len(headers) != 1:
            return None
        ((name, value),) = headers.items()
        secret, unset = filled_in(self.ours(("headers", name), value), self.environ)
        for variable in unset:
            hint = "set it for this command: its value goes to a file in keys/"
            self.fault(("headers", name), f"the variable {variable} is not set", "C105", hint)
        bearer = _BEARER.fullmatch(secret) if name.lower() == "authorization" else None
        secret = bearer[1] if bearer else secret
        if unset:
            return None
        if not _PRINTABLE.fullmatch(secret):
            self.fault(("headers", name), "this is not one line of printable ASCII", "C104")
            return None
        path = f"keys/{self.name}.{'token' if bearer else 'header'}"
        self.result.secrets[path] = f"{secret}\n"
        self.note(f"the header {name} was moved to {path}")
        return {"bearer_path": path} if bearer else {"header": name, "value_path": path}

    def timeout_s(self) -> float | None:
        if self.server.timeout is None:
            return None
        try:
            value = seconds_from(self.server.timeout)
        except ValueError:  # pydantic's ValidationError
            self.fault(("timeout",), "this is not a duration", "C104", "write 500ms, 30s, 5m or 1h")
            return None
        return value if isinstance(value, float) else None

    def ours(self, loc: Loc, text: str) -> str:
        found = translated(text, self.places)
        for problem in found.problems:
            self.fault(loc, problem, "C105", "known are ${VAR}, ${VAR:-default}, ${env:VAR}, ${input:id}, ${userHome}")
        for identity, name in found.inputs.items():
            self.note(f"the input {identity} of VS Code is the variable {name} here")
        if loc[0] != "headers":
            self.need(found.text)
        return found.text

    def need(self, text: str) -> None:
        for name in variables_in(text):
            self.result.needed.setdefault(name, self.server.name)

    def hidden(self, text: str, what: str) -> str:
        """Returns a reference to a variable instead of a secret; the secret is written to the file of variables."""
        value, unset = filled_in(text, self.environ)
        for variable in unset:
            self.fault((), f"the variable {variable}, which is next to a secret, is not set", "C105")
        wanted = name = variable_name(self.name, what)
        number = 2
        while name in self.result.needed:
            name, number = f"{wanted}_{number}", number + 1
        before = self.result.secrets.get(VARIABLES_PATH, "")
        self.result.secrets[VARIABLES_PATH] = before + self.env_lines({name: value}, ())
        self.result.needed[name] = self.server.name
        self.note(f"a secret ({what or 'an argument'}) was moved to {VARIABLES_PATH} as {name}")
        return f"${{{name}}}"

    def check(self, section: Mapping[str, Any]) -> None:
        """Reports the faults that sidecar.yaml would have, at their places in the client's file."""
        try:
            UpstreamSettings.model_validate(_with_any_values(section), context={"folder": self.folder})
        except ValidationError as error:
            for finding in findings_of(error, UpstreamSettings):
                loc = tuple(self.server.url_key if step == "url" else step for step in finding.at[1:])
                self.fault(loc, finding.message, "C104", finding.hint)

    def env_lines(self, variables: Mapping[str, str], loc: Loc) -> str:
        """Returns lines that `variables_in_file` and shells can read."""
        lines = []
        for name, value in variables.items():
            quote = "'" if "'" not in value else '"'
            if not _VARIABLE_NAME.fullmatch(name):
                self.fault(
                    (*loc, name), "this is not the name of a variable", "C104", "letters, digits and underscores"
                )
            elif "\n" in value or "\0" in value or (quote == '"' and any(c in value for c in '"\\$`')):
                hint = "write it to a separate file, and name that file"
                self.fault((*loc, name), "this secret does not fit into one line", "C104", hint)
            lines.append(f"{name}={quote}{value}{quote}\n")
        return "".join(lines)


def _with_any_values(value: Any) -> Any:
    """Returns the value with a sample in place of each reference, so that the surrounding text can be checked."""
    if isinstance(value, Mapping):
        return {key: _with_any_values(below) for key, below in value.items()}
    if isinstance(value, list):
        return [_with_any_values(below) for below in value]
    return re.sub(r"\$\{[^}]*\}", "1", value) if isinstance(value, str) else value


def rules_of(name: str, capabilities: tuple[str, ...]) -> str:
    lines = [
        f"# The rules of {name}: `sidecar mcp tools {name}` lists its tools.",
        "# subject, object, action, expires_at, max_calls_per_hour, when, effect        (- means none)",
        "",
    ]
    tools = [capability.partition(".")[2] for capability in capabilities]
    named = [tool for tool in tools if tool not in ("*", "")]
    for tool in dict.fromkeys(named):
        rule_id = f"{name}-{re.sub(r'[^a-z0-9]+', '-', tool.lower())}"
        lines += [f"#: id={rule_id}", f"p, {PRINCIPAL}, tool:{name}/{tool}, use, -, 600, -, allow"]
    if len(named) < len(tools):
        lines += ["", "# Its configuration allows all tools; allow only those that are needed:"]
    if not named:
        lines += [
            "# Allows nothing yet, because this tool does not exist: it lets the agent connect. Write a real name.",
            f"#: id={name}-first",
            f"p, {PRINCIPAL}, tool:{name}/put-a-tool-here, tools/call, -, 600, -, allow",
        ]
    lines += ["", "# All whose name begins with `get_`, a hundred calls an hour:"]
    lines += [f"# p, {PRINCIPAL}, tool:{name}/get_*, tools/call, -, 100, -, allow", ""]
    return "\n".join(lines)


class _Dumper(yaml.SafeDumper):
    """Writes texts that every YAML reader reads in the same way: quoted, unless they are plain; no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _scalar(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_plain = _HARMLESS_WORD.fullmatch(text) and text.lower() not in _YAML_WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, None if is_plain else '"')


_Dumper.add_representer(str, _scalar)


def upstreams_yaml(upstreams: Mapping[str, Mapping[str, Any]]) -> str:
    return textwrap.indent(yaml.dump(upstreams, Dumper=_Dumper, sort_keys=False, width=sys.maxsize), "  ")
