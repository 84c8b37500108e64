"""Formats findings as text, JSON, SARIF and GitHub annotations.

text      the usual form of errors in files, then a summary line
json      one object, for programs
sarif     SARIF 2.1.0 (OASIS), for code scanning
github    workflow commands, which GitHub shows beside the changed lines
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from sidecar import __version__
from sidecar.errors import Fault, visible
from sidecar.policy_tools.check import CheckReport
from sidecar.policy_tools.check.codes import CODES, CodeMeaning

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def level(fault: Fault) -> str:
    """Return `error`, `warning` or `note`: a note is a warning of less weight."""
    if fault.severity == "warning" and fault.code in CODES and CODES[fault.code].level == "note":
        return "note"
    return fault.severity


def counted(report: CheckReport) -> dict[str, int]:
    """Return the numbers of errors, warnings and notes, including those left out of the list."""
    counts = Counter(level(fault) for fault in report.faults)
    for code, more in report.left_out.items():
        counts[CODES[code].level if code in CODES else "warning"] += more
    return {f"{word}s": counts[word] for word in ("error", "warning", "note")}


def summary(report: CheckReport, where: str) -> str:
    """Return a one-line summary."""
    parts = [f"{count} {word if count != 1 else word[:-1]}" for word, count in counted(report).items() if count]
    more = "".join(f"; {count} more of {code} not shown" for code, count in report.left_out.items())
    if not report.valid:
        later = "" if report.revision else "; what is suspicious is looked for once these are mended"
        return f"{where} is not valid: {', '.join(parts)}{more}{later}"
    rules = ", ".join(f"{count} {kind}" for kind, count in report.rules.items())
    return (
        f"{where} is valid: {rules} rules, {', '.join(parts) or 'nothing suspicious'}{more}, revision {report.revision}"
    )


def text(report: CheckReport, where: str, root: Path) -> str:
    return "\n".join([*(str(fault) for fault in report.faults), summary(report, where)])


def json(report: CheckReport, where: str, root: Path) -> str:
    return _dumped(
        {
            "valid": report.valid,
            "faults": [plain(fault) for fault in report.faults],
            "revision": report.revision or None,
            "rules": report.rules,
            "summary": {**counted(report), "left_out": report.left_out, "text": summary(report, where)},
        }
    )


def plain(fault: Fault) -> dict[str, object]:
    """Return a fault as plain values. `end_column` is the column after its last character; a whole file has 0 and 0."""
    return {
        "file": visible(fault.file),
        "line": fault.line,
        "column": fault.column,
        "end_column": _end(fault),
        "code": fault.code,
        "severity": fault.severity,
        "message": fault.message,
        "hint": fault.hint,
    }


def _end(fault: Fault) -> int:
    return fault.column + max(1, fault.width) if fault.line else 0


def relative(file: str, root: Path) -> str:
    """Return a file's path from the repository's root, with `/`. A file outside stays absolute."""
    path = Path(file).resolve()
    return path.relative_to(root.resolve()).as_posix() if path.is_relative_to(root.resolve()) else path.as_posix()


# --- SARIF ------------------------------------------------------------------------------------------------------------


def sarif(report: CheckReport, where: str, root: Path) -> str:
    codes = sorted({fault.code for fault in report.faults})
    driver = {
        "name": "sidecar policy check",
        "semanticVersion": __version__,
        "rules": [_sarif_rule(code) for code in codes],
    }
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True}],
        "results": [_result(fault, codes.index(fault.code), root) for fault in report.faults],
    }
    return _dumped({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]})


def _sarif_rule(code: str) -> dict[str, Any]:
    meaning = CODES.get(code, CodeMeaning("A fault of this file", "See the message."))
    return {
        "id": code,
        "shortDescription": {"text": meaning.about},
        "help": {"text": meaning.mend},
        "defaultConfiguration": {"level": meaning.level},
    }


def _result(fault: Fault, index: int, root: Path) -> dict[str, Any]:
    location: dict[str, Any] = {"artifactLocation": _artifact(fault.file, root)}
    if fault.line:
        location["region"] = {
            "startLine": fault.line,
            "startColumn": max(1, fault.column),
            "endLine": fault.line,
            "endColumn": max(1, fault.column) + max(1, fault.width),
        }
    told = f"{fault.message}\n{fault.hint}" if fault.hint else fault.message
    return {
        "ruleId": fault.code,
        "ruleIndex": index,
        "level": level(fault),
        "message": {"text": told},
        "locations": [{"physicalLocation": location}],
    }


def _artifact(file: str, root: Path) -> dict[str, str]:
    """Return a SARIF artifact location. Characters that a path must not contain are percent-encoded (RFC 3986); a file
    outside the root is a file: URI.
    """
    path = relative(file, root)
    if path.startswith("/"):
        return {"uri": "file://" + quote(os.fsencode(path))}
    return {"uri": quote(os.fsencode(path)), "uriBaseId": "%SRCROOT%"}


# --- GitHub -----------------------------------------------------------------------------------------------------------

_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


def github(report: CheckReport, where: str, root: Path) -> str:
    return "\n".join([*(_command(fault, root) for fault in report.faults), summary(report, where)])


def _command(fault: Fault, root: Path) -> str:
    properties: dict[str, object] = {"file": visible(relative(fault.file, root))}
    if fault.line:
        properties |= {"line": fault.line, "endLine": fault.line, "col": fault.column, "endColumn": _end(fault)}
    meaning = CODES.get(fault.code)
    properties["title"] = f"{fault.code} {meaning.about}" if meaning else fault.code
    told = f"{fault.message}\n{fault.hint}" if fault.hint else fault.message
    listed = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items())
    return f"::{_COMMANDS[level(fault)]} {listed}::{_data(told)}"


def _data(text: str) -> str:
    """Escape the message of a command as the runner unescapes it (actions/toolkit, command.ts)."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _dumped(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


FORMATS: Mapping[str, Callable[[CheckReport, str, Path], str]] = {
    "text": text,
    "json": json,
    "sarif": sarif,
    "github": github,
}
