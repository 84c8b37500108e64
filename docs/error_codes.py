"""Finds every error code in the source, with the messages and hints that it is reported with."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MEANINGS: Mapping[str, str] = {
    # YAML
    "Y001": "The file cannot be read.",
    "Y002": "The file is too large.",
    "Y003": "The file is not UTF-8.",
    "Y004": "The file contains a character that is not allowed: a tab, a control character or a byte order mark.",
    "Y005": "The text is not valid YAML.",
    "Y006": "The file contains more than one YAML document.",
    "Y007": "The values are nested too deeply.",
    "Y008": "The file uses an anchor, an alias or a merge key.",
    "Y009": "The file uses a YAML tag or directive.",
    "Y010": "A key is present twice.",
    "Y011": "A key is not a string.",
    "Y012": "A plain value is ambiguous in YAML, such as `no`, `010` or `1:30`. Quote it.",
    "Y101": "The key is unknown. The hint names the closest known key.",
    "Y102": "A required key is missing, or two keys exclude each other.",
    "Y103": "The value has the wrong type or form.",
    "Y104": "The value is not allowed here.",
    # settings
    "S101": "A listener beyond loopback has no `public_url`.",
    "S102": "A listener beyond loopback has no `tls`.",
    "S103": "A local listener is reachable from other machines.",
    "S104": "An admin, console or decision listener has no credential for its callers.",
    "S106": "A signing algorithm of an issuer is not accepted.",
    "S107": "An issuer has no source of keys, or two.",
    "S108": "The clients of an issuer contradict `actor_from`.",
    "S109": "The issuer's `kinds` contradict its other settings.",
    "S110": "An issuer is configured twice.",
    "S111": "Issuers could name the same principals: each but one needs a namespace.",
    "S113": "The credential for an upstream contradicts itself or the caller's credential.",
    "S114": "A header of an upstream is reserved, duplicated or already set by the credential.",
    "S115": "Two listeners have the same address.",
    "S116": "A file or folder is missing or cannot be read.",
    "S117": "A program is missing or not executable.",
    "S118": "Warning: an upstream receives the callers' own tokens.",
    "S119": "The signing key cannot be used.",
    "S120": "The content of a secret file is invalid.",
    "S121": "A secret is weak, or other users can read its file.",
    "S122": "The settings of a peer sidecar's issuer contradict each other.",
    "S123": "The settings for SPIFFE IDs contradict each other.",
    "S124": "The certificate files or the client-certificate settings of a listener are invalid.",
    "S125": "Client certificates are requested but cannot be mapped to principals, or the reverse.",
    "S126": "A trusted proxy is not identified well enough.",
    "S127": "A setting does not fit the kind of upstream or its address.",
    "S128": "A store of records is configured as Redis, but there is no Redis.",
    "S129": "Warning: the sidecar cannot write to a folder.",
    "S130": "A redaction rule has no effect.",
    "S131": "A redaction's replacement would itself be redacted.",
    "S132": "A line of a variables file is invalid.",
    "S133": "The sidecar cannot listen on an address.",
    "S134": "Warning: callers cannot get the card of an agent.",
    "S135": "A socket passed by the service manager belongs to no listener.",
    "S136": "The settings of the store contradict each other.",
    "S137": "The proxy for outgoing connections is invalid, in the file or in the environment.",
    "S138": "Warning: replicas that share a store would use different keys.",
    "S140": "Shadow mode has no end.",
    "S141": "Shadow mode lasts too long.",
    "S150": "The audit settings contradict each other, or name arguments that must not be recorded.",
    "S151": "Warning: arguments are recorded in clear.",
    "S160": "A policy source is combined with local models, rules or pins.",
    "S161": "No policy was received from the source yet.",
    "S162": "The record of the last policy from the source cannot be read.",
    "S163": "The policy from the source cannot be stored.",
    "S170": "The options that a call may choose for a program are invalid.",
    "S171": "The authentication settings of an agent contradict each other.",
    "S172": "The input and output settings of a program contradict each other.",
    "S173": "The concurrency settings of an agent contradict each other.",
    "S174": "A name, path, port or protocol of an agent is invalid or already taken.",
    "S175": "The time zone of a schedule is unknown.",
    "S176": "The cron expression of a schedule is invalid.",
    "S177": "The agent of a schedule is unknown or disabled.",
    "S178": "Two schedules have the same name or id.",
    "S179": "The principal of a schedule is the name of an upstream.",
    "S180": "The agent refuses the input of a schedule.",
    "S181": "Warning: no rule allows the calls of a schedule.",
    "S190": "A setting or variable needs an extra that is not installed.",
    "S191": "OpenTelemetry cannot be started with the given `OTEL_*` variables.",
    "S195": "The settings do not fit several workers.",
    "S196": "The console cannot be used as configured.",
    "S197": "A receiver of approval notices is invalid.",
    "S201": "An environment variable names no setting.",
    "S202": "A setting is set by two environment variables.",
    "S203": "The value of an environment variable is invalid.",
    "S204": "A variable used in the file is not set.",
    "S313": "Two API keys have the same id.",
    "S314": "A principal has too many valid API keys.",
    "S315": "The file of API keys cannot be read.",
    "S316": "The key set of an issuer cannot be used.",
    "S317": "The pepper of the API keys is missing.",
    # audit
    "A101": "The audit key cannot be used.",
    "A102": "The key for checkpoints cannot be used.",
    "A111": "The audit log cannot be written.",
    "A112": "The path of the audit log is not a regular file.",
    "A113": "Another sidecar writes this audit log.",
    "A114": "The audit log ends with a line that is not an audit record.",
    "A120": "The configured audit sink cannot be used.",
    # the sidecar's own data
    "D101": "The list of disabled principals cannot be read.",
    "D102": "The database of records is damaged or not the sidecar's.",
    "D103": "The database of records was written by a newer version.",
    "H101": "The key for callbacks cannot be used.",
    "R101": "A reload failed for a reason other than the content of the files.",
    # policy tests and tools
    "T001": "A file of policy tests cannot be read.",
    "T002": "No file of policy tests has this name.",
    "T003": "There are too many policy tests.",
    "T101": "Two tests of a suite have the same name.",
    "T102": "A principal, role or chain is invalid.",
    "T103": "The action is unknown or does not fit the object.",
    "T104": "An object or a name in a list is invalid.",
    "T105": "A policy test cannot check this reason.",
    "T106": "A time is invalid.",
    "T107": "Two keys of a test contradict each other.",
    "T201": "The test fails.",
    "W301": "The records contain too many distinct uses for `policy suggest`.",
    "W302": "A catalogue of tools is invalid.",
    # files of MCP clients
    "C101": "The file names no MCP server that can be used.",
    "C102": "A server has both a command and a URL, or neither.",
    "C103": "A value has the wrong type.",
    "C104": "A value is invalid or cannot be converted.",
    "C105": "A variable is unknown or not set.",
    "C106": "A required key is missing.",
    "C107": "The format of this client's file is not supported.",
    "J001": "The text is not valid JSON.",
    "J002": "A number is too long or too large.",
    "J003": "A string is invalid.",
    "J007": "The values are nested too deeply.",
    "J010": "A key is present twice.",
}
GROUPS: Mapping[str, str] = {
    "Y": "YAML files",
    "S": "Settings and keys",
    "A": "Audit",
    "D": "Data folder",
    "H": "Callbacks",
    "R": "Reload",
    "T": "Policy tests",
    "W": "Policy tools",
    "C": "MCP client files",
    "J": "JSON in MCP client files",
}

ROOT = Path(__file__).parents[1]
CODE = re.compile(r"[ACDHJRSTWY]\d{3}")
_NOT_CODES = {"S256"}  # of PKCE
_HINTS = ("hint", "mend")
_LABELLED = {"read_hex_key"}  # its text is a part of a message


@dataclass(frozen=True, order=True)
class Report:
    """One message with its hint. `…` stands for a value that depends on the file."""

    code: str
    message: str
    hint: str = ""


@cache
def reports() -> Mapping[str, list[Report]]:
    """Code → its messages, in the order of the source; a code with no fixed message has an empty list."""
    found: dict[str, list[Report]] = {}
    for path in sorted((ROOT / "sidecar").rglob("*.py")):
        source = path.read_text("utf-8")
        if re.search(rf'"{CODE.pattern}"', source):
            for report in _Module(ast.parse(source)).reports():
                known = found.setdefault(report.code, [])
                if report.message and report not in known:
                    known.append(report)
    return dict(sorted(found.items()))


class _Module:
    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.constants = dict(_assigned(tree.body))

    def reports(self) -> Iterator[Report]:
        nodes = list(ast.walk(self.tree))
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_code(node.value):
                yield Report(node.value, "")
        for scope in nodes:
            if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
                yield from self._in(scope)

    def _in(self, scope: ast.FunctionDef | ast.AsyncFunctionDef | ast.Module) -> Iterator[Report]:
        nodes = list(_own(scope))
        local: dict[str, list[ast.expr]] = {}
        for name, value in _assigned(nodes):
            local.setdefault(name, []).append(value)
        for node in nodes:
            if isinstance(node, ast.Call):
                yield from self._called(node, local)

    def _called(self, call: ast.Call, local: Mapping[str, list[ast.expr]]) -> Iterator[Report]:
        named = {word.arg: word.value for word in call.keywords if word.arg}
        values = [*call.args, *([named["code"]] if "code" in named else [])]
        codes = {text for value in values for text in self._texts(value, local) if _is_code(text)}
        if not codes or _name_of(call.func) in _LABELLED:
            return
        texts = [found for value in call.args if (found := self._texts(value, local)) and not codes & {*found}]
        while texts and " " not in texts[0][0]:  # the place in the settings
            texts.pop(0)
        hints = next((self._texts(named[name], local) for name in _HINTS if name in named), [])
        messages = [text for text in (texts[0] if texts else []) if " " in text]
        hints = hints or (texts[1] if len(texts) > 1 else [])
        for code in codes:
            for message in messages:
                yield Report(code, message, hints[0] if len(hints) == 1 else "")

    def _texts(self, value: ast.expr, local: Mapping[str, list[ast.expr]]) -> list[str]:
        """What the expression can be, as far as the source says."""
        if isinstance(value, ast.Constant):
            return [value.value] if isinstance(value.value, str) else []
        if isinstance(value, ast.JoinedStr):
            return ["".join(str(one.value) if isinstance(one, ast.Constant) else "…" for one in value.values)]
        if isinstance(value, ast.IfExp):
            return [*self._texts(value.body, local), *self._texts(value.orelse, local)]
        if isinstance(value, ast.Name):
            before = [one for one in local.get(value.id, ()) if one.lineno < value.lineno]
            if before:  # the nearest
                return self._texts(max(before, key=lambda one: one.lineno), {})
            constant = self.constants.get(value.id)
            return [constant.value] if isinstance(constant, ast.Constant) and isinstance(constant.value, str) else []
        return []


def _name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_code(text: str) -> bool:
    return CODE.fullmatch(text) is not None and text not in _NOT_CODES


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of the functions in it."""
    pending = [*ast.iter_child_nodes(scope)][::-1]
    while pending:
        node = pending.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            pending += [*ast.iter_child_nodes(node)][::-1]


def _assigned(nodes: list[ast.stmt] | list[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    for node in nodes:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.expr):
            yield target.id, value
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for name, part in zip(target.elts, value.elts, strict=True):
                if isinstance(name, ast.Name):
                    yield name.id, part
