"""Makes the tables of docs/reference/client-compatibility.md from results.json; docs/make.py puts them in."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sidecar.errors import ANSWERS, Reason
from tests.peers.clients.roster import CLIENTS, HERE, STYLES, Entry

RESULTS = HERE / "results.json"
MAX_CHARS = 110
REASONS = {
    ("MCP", "denied"): ANSWERS[Reason.CONDITION_FALSE].message,
    ("A2A", "denied"): ANSWERS[Reason.NO_MATCHING_RULE].message,
    ("MCP", "limited"): ANSWERS[Reason.RATE_LIMITED].message,
    ("A2A", "limited"): ANSWERS[Reason.RATE_LIMITED].message,
}
Steps = Mapping[str, Any]


def results() -> dict[str, Any]:
    """The last run."""
    found: dict[str, Any] = json.loads(RESULTS.read_text("utf-8"))
    return found


# --- one style --------------------------------------------------------------------------------------------------------


def goes_on(steps: Steps) -> bool:
    """Whether the calls after the refusals are answered, in the same session."""
    return "broken" not in steps and all(_says(steps, name, "still here") for name in ("after-denied", "after-limited"))


def outcome(entry: Entry, steps: Steps) -> str:
    """How both refusals come back; the worse of the two."""
    if not goes_on(steps):
        return "loses its connection"
    told = [(steps[name], REASONS[entry.protocol, name]) for name in ("denied", "limited")]
    if any(one["how"] == "hung" for one, _ in told):
        return "waits forever"
    raised = any(one["how"] == "raised" for one, _ in told)
    if not all(reason in one["text"] for one, reason in told):
        return "error without the reason" if raised else "result without the reason"
    if any("jsonrpc" in one["text"] for one, _ in told):
        return "error with the raw answer"
    return "error with the reason" if raised else "result with the reason"


# From the best to the worst. A program handles an error; a model reads a result alone.
_RANKS = {
    "library": ("error with the reason", "result with the reason", "error with the raw answer"),
    "bridge": ("error with the reason", "result with the reason", "error with the raw answer"),
    "agent": ("result with the reason", "error with the reason", "error with the raw answer"),
}


def recommended(entry: Entry, styles: Mapping[str, Steps]) -> str:
    """The style that tells most; of equals the first, and `auto` before all."""
    ranks = _RANKS[entry.kind]

    def rank(style: str) -> int:
        found = outcome(entry, styles[style])
        return ranks.index(found) if found in ranks else len(ranks) + ("loses" in found or "waits" in found)

    return min(("auto", "jsonrpc", "tool_result", "http"), key=rank)


# --- the tables -------------------------------------------------------------------------------------------------------


def block() -> str:
    """All of the generated part."""
    found = results()["clients"]
    tried = [(entry, found[entry.key]) for entry in CLIENTS if "styles" in found[entry.key]]
    missing = [f"- {entry.name}: {found[entry.key]['missing']}" for entry in CLIENTS if "missing" in found[entry.key]]
    head = ("client", "revision", "list", "call", "progress", "cancel", "after a restart", "restart, Valkey")
    styles = tuple(f"`{style}`" for style in STYLES)
    return "\n\n".join(
        [
            _table(head, [_whole(entry, one) for entry, one in tried]),
            "How a denial and a limit arrive under each `deny_style`:",
            _table(("client", *styles, "recommended"), [_by_style(entry, one["styles"]) for entry, one in tried]),
            "What the client reports with the recommended style:",
            _table(("client", "denied", "limited"), [_read(entry, one["styles"]) for entry, one in tried]),
            *(["Not tried, because it could not be installed:", "\n".join(missing)] if missing else []),
        ]
    )


def _whole(entry: Entry, found: Mapping[str, Any]) -> Sequence[str]:
    steps = found["styles"]["auto"]
    return (
        f"{entry.name}: `{entry.package}` {found['version']}",
        ", ".join(found["speaks"]),
        "yes" if _says(steps, "list", "echo") else "no",
        "yes" if _says(steps, "allowed", "hello") else "no",
        _progress(steps),
        "reaches the server" if steps.get("server-cancelled") else "the server continues",
        _restart(steps),
        _restart(found["styles"]["valkey"]),
    )


def _says(steps: Steps, name: str, text: str) -> bool:
    """Whether this step was answered so."""
    return steps.get(name, {}).get("how") == "answer" and text in steps[name]["text"]


def _progress(steps: Steps) -> str:
    text = steps.get("progress", {}).get("text", "0")
    return "yes" if text.isdigit() and int(text) > 0 else "not shown"


def _restart(steps: Steps) -> str:
    if _says(steps, "restarted", "again"):
        return "continues"
    return "one call fails" if _says(steps, "restarted-2", "again") else "must reconnect"


def _by_style(entry: Entry, styles: Mapping[str, Steps]) -> Sequence[str]:
    return (entry.name, *(outcome(entry, styles[style]) for style in STYLES), f"`{recommended(entry, styles)}`")


def _read(entry: Entry, styles: Mapping[str, Steps]) -> Sequence[str]:
    steps = styles[recommended(entry, styles)]
    shown = (_shown(steps[name]["text"], REASONS[entry.protocol, name]) for name in ("denied", "limited"))
    return (entry.name, *shown)


def _shown(text: str, reason: str) -> str:
    """The text, cut around the reason where it is long."""
    text = re.sub(r"http://127\.0\.0\.1:\d+", "http://…", " ".join(text.split())).replace("`", "'")
    begin = max(0, min(text.find(reason) - 30, len(text) - MAX_CHARS))
    return f"`{'…' if begin else ''}{text[begin : begin + MAX_CHARS]}{'…' if begin + MAX_CHARS < len(text) else ''}`"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
