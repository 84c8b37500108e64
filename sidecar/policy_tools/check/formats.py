"""Formats findings as text, JSON, SARIF 2.1.0 (OASIS) for code scanning, and GitHub's workflow commands.

`codes.txt` is the catalogue of codes: `code level: about`, without the level `error`, and the remedy in indented lines
below it.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import quote

import orjson

from sidecar import __version__
from sidecar.errors import Fault, visible
from sidecar.policy_tools.check import CheckReport

Level = Literal["error", "warning", "note"]


class CodeMeaning(NamedTuple):
    """The meaning of a code. `about` is one line, `mend` a few sentences. A note is a warning of less weight: nothing
    is wrong yet."""

    about: str
    mend: str
    level: Level = "error"


_ENTRY = re.compile(r"^(P\d{3})(?: (warning|note))?: (.*)\n((?:  .*\n)+)", re.MULTILINE)
CODES: Mapping[str, CodeMeaning] = {
    code: CodeMeaning(about, " ".join(mend.split()), cast("Level", level or "error"))
    for code, level, about, mend in _ENTRY.findall(files(__package__).joinpath("codes.txt").read_text("utf-8"))
}


def level(fault: Fault) -> str:
    if fault.severity == "warning" and fault.code in CODES and CODES[fault.code].level == "note":
        return "note"
    return fault.severity


def counted(report: CheckReport) -> dict[str, int]:
    counts = Counter(level(fault) for fault in report.faults)
    for code, more in report.left_out.items():
        counts[CODES[code].level if code in CODES else "warning"] += more
    return {f"{word}s": counts[word] for word in ("error", "warning", "note")}


def summary(report: CheckReport, where: str) -> str:
    parts = [f"{count} {word if count != 1 else word[:-1]}" for word, count in counted(report).items() if count]
    more = "".join(f"; {count} more of {code} not shown" for code, count in report.left_out.items())
    if not report.valid:
        later = "" if report.revision else "; correct these to see the warnings"
        return f"{where} is not valid: {', '.join(parts)}{more}{later}"
    rules = ", ".join(f"{count} {kind}" for kind, count in report.rules.items())
    return f"{where} is valid: {rules} rules, {', '.join(parts) or 'no warnings'}{more}, revision {report.revision}"


def text(report: CheckReport, where: str, root: Path) -> str:
    return "\n".join([*map(str, report.faults), summary(report, where)])


def json(report: CheckReport, where: str, root: Path) -> str:
    told = {
        "valid": report.valid,
        "faults": [plain(fault) for fault in report.faults],
        "revision": report.revision or None,
        "rules": report.rules,
        "summary": {**counted(report), "left_out": report.left_out, "text": summary(report, where)},
    }
    return orjson.dumps(told, option=orjson.OPT_INDENT_2).decode()


def plain(fault: Fault) -> dict[str, object]:
    """Returns a fault as plain values. `end_column` is the column after its last character. For a fault of a whole
    file, line and columns are 0."""
    place = {"file": visible(fault.file), "line": fault.line, "column": fault.column, "end_column": _end(fault)}
    return place | {name: getattr(fault, name) for name in ("code", "severity", "message", "hint")}


def _end(fault: Fault) -> int:
    return fault.column + max(1, fault.width) if fault.line else 0


def relative(file: str, root: Path) -> str:
    """Returns a file's path from the repository's root, with `/`; an absolute path for a file outside."""
    path, top = Path(file).resolve(), root.resolve()
    return (path.relative_to(top) if path.is_relative_to(top) else path).as_posix()


def sarif(report: CheckReport, where: str, root: Path) -> str:
    codes = sorted({fault.code for fault in report.faults})
    rules = [_sarif_rule(code) for code in codes]
    run: dict[str, Any] = {
        "tool": {"driver": {"name": "sidecar policy check", "semanticVersion": __version__, "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True}],
        "results": [_result(fault, codes.index(fault.code), root) for fault in report.faults],
    }
    told = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return orjson.dumps(told, option=orjson.OPT_INDENT_2).decode()


def _sarif_rule(code: str) -> dict[str, Any]:
    meaning = CODES.get(code, CodeMeaning("A fault of this file", "See the message."))
    return {
        "id": code,
        "shortDescription": {"text": meaning.about},
        "help": {"text": meaning.mend},
        "defaultConfiguration": {"level": meaning.level},
    }


def _result(fault: Fault, index: int, root: Path) -> dict[str, Any]:
    path = relative(fault.file, root)
    uri = quote(os.fsencode(path))  # characters that a path must not contain are percent-encoded (RFC 3986)
    artifact = {"uri": f"file://{uri}"} if path.startswith("/") else {"uri": uri, "uriBaseId": "%SRCROOT%"}
    location: dict[str, Any] = {"artifactLocation": artifact}
    if fault.line:
        start, end = max(1, fault.column), max(1, fault.column) + max(1, fault.width)
        location["region"] = {"startLine": fault.line, "startColumn": start, "endLine": fault.line, "endColumn": end}
    return {
        "ruleId": fault.code,
        "ruleIndex": index,
        "level": level(fault),
        "message": {"text": _told(fault)},
        "locations": [{"physicalLocation": location}],
    }


_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}
# The rules by which the runner unescapes a command (actions/toolkit, command.ts)
_IN_MESSAGE = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_IN_PROPERTY = _IN_MESSAGE | str.maketrans({":": "%3A", ",": "%2C"})


def github(report: CheckReport, where: str, root: Path) -> str:
    return "\n".join([*(_command(fault, root) for fault in report.faults), summary(report, where)])


def _command(fault: Fault, root: Path) -> str:
    properties: dict[str, object] = {"file": visible(relative(fault.file, root))}
    if fault.line:
        properties |= {"line": fault.line, "endLine": fault.line, "col": fault.column, "endColumn": _end(fault)}
    meaning = CODES.get(fault.code)
    properties["title"] = f"{fault.code} {meaning.about}" if meaning else fault.code
    listed = ",".join(f"{key}={str(value).translate(_IN_PROPERTY)}" for key, value in properties.items())
    return f"::{_COMMANDS[level(fault)]} {listed}::{_told(fault).translate(_IN_MESSAGE)}"


def _told(fault: Fault) -> str:
    return f"{fault.message}\n{fault.hint}" if fault.hint else fault.message


Format = Callable[[CheckReport, str, Path], str]
FORMATS: Mapping[str, Format] = {"text": text, "json": json, "sarif": sarif, "github": github}
