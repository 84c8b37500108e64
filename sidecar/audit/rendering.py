"""Formats audit records for people.

Each takes two lines: the event, and its reasons.

    12:00:01.123  done     user:alice → nhi:planner → tool:github/search  tools/call  200  3.2 ms
                  alice-lends, planner-reads-github · args 4f1c09aa36f5524e · 01a21f23-3731-7456-882c-185fa4676463 · #42

An attacker may have written a record in a file, so only its printable characters reach the terminal.
"""

from collections.abc import Mapping
from typing import Any, TextIO

from sidecar.audit.chain import ascii_json
from sidecar.errors import visible

_INDENT = " " * 14
_DATA_CHARS = 200  # of a stored result
_GREEN, _RED, _YELLOW, _DIM, _BOLD, _RESET = "\x1b[32m", "\x1b[31m", "\x1b[33m", "\x1b[2m", "\x1b[1m", "\x1b[0m"
_WORDS = {"decision": "allow", "control": "control"}
_BY_STATUS = {
    "success": ("done", _GREEN),
    "permission_denied": ("deny", _RED),
    "rate_limited": ("limit", _YELLOW),
    "error": ("error", _RED),
}


def render_record(record: Mapping[str, Any], *, colour: bool = False) -> str:
    """Two lines without a trailing newline. See `wants_colour` for `colour`."""
    word, shade = _verdict(record)
    return _two_lines(record, word, shade, _what(record), " · ".join(filter(None, _ground(record))), colour)


def render_kept(record: Mapping[str, Any], as_recorded: bool, *, colour: bool = False) -> str:
    """Formats a stored result as two lines; the second is the beginning of the result."""
    metadata = record.get("metadata")
    redacted = isinstance(metadata, Mapping) and metadata.get("redacted") is True
    word, shade = ("kept", _GREEN) if as_recorded else ("CHANGED", _RED)
    tool = f"{plain(record.get('mcp_tool_name'))}/{plain(record.get('mcp_method'))}"
    ids = plain(record.get("mcp_invocation_id")), plain(record.get("id"))
    data = ascii_json({"data": record.get("data")}).decode()[len('{"data":') : -1]
    shown = data if len(data) <= _DATA_CHARS else data[:_DATA_CHARS] + "..."
    return _two_lines(record, word, shade, [tool, "redacted" if redacted else "", *ids], shown, colour)


def _two_lines(record: Mapping[str, Any], word: str, shade: str, parts: list[str], second: str, colour: bool) -> str:
    first = "  ".join(filter(None, [_paint(f"{word:<7}", shade, colour), *parts]))
    return f"{plain(record.get('timestamp'))[11:23]:<12}  {first}\n{_INDENT}{_paint(second, _DIM, colour)}"


def wants_colour(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether the stream is a terminal and colour is not disabled (https://no-color.org)."""
    return stream.isatty() and not environ.get("NO_COLOR")


def _verdict(record: Mapping[str, Any]) -> tuple[str, str]:
    event = str(record.get("event"))
    if event in ("outcome", "refusal"):
        return _BY_STATUS.get(str(record.get("status")), ("?", _RED))
    return _WORDS.get(event, "?"), _BOLD


def _what(record: Mapping[str, Any]) -> list[str]:
    control = record.get("control")
    if isinstance(control, Mapping):
        particulars = [f"{plain(name)}={plain(value)}" for name, value in control.items() if name not in ("what", "by")]
        return [plain(control.get("what")), f"by {plain(control.get('by'))}", *particulars]
    who = [plain(name) for name in _list(record.get("chain"))] or ["no caller"]
    duration_ms, asked_by = record.get("duration_ms"), record.get("enforcement_point")
    return [
        " → ".join([*who, plain(record.get("object") or record.get("upstream"))]),
        plain(record.get("action")),
        f"asked by {plain(asked_by)}" if asked_by else "",
        plain(record.get("http_status")),
        plain(record.get("reason")),
        f"{duration_ms:.1f} ms" if isinstance(duration_ms, int | float) else "",
    ]


def _ground(record: Mapping[str, Any]) -> list[str]:
    links = [link for link in _list(record.get("links")) if isinstance(link, Mapping)]
    rules = [plain(rule) for link in links for rule in _list(link.get("rules"))]
    limits = [limit for limit in _list(record.get("limits")) if isinstance(limit, Mapping)]
    left = [
        f"{plain(limit.get('name'))} {plain(limit.get('remaining'))}/{plain(limit.get('limit'))}" for limit in limits
    ]
    args_hash = record.get("args_hash")
    return [
        ", ".join(dict.fromkeys(rules)),
        f"left: {', '.join(left)}" if left else "",
        f"args {plain(args_hash)[:16]}" if args_hash else "",
        plain(record.get("decision_id")),
        f"#{plain(record.get('seq'))}",
    ]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def plain(value: object) -> str:
    """Escapes control, bidi and other unprintable characters, so that the text is safe for terminals."""
    if value is None:
        return ""
    return visible(str(value))


def plain_data(value: Any) -> Any:
    match value:
        case str():
            return plain(value)
        case dict():
            return {plain(name): plain_data(each) for name, each in value.items()}
        case list():
            return [plain_data(each) for each in value]
        case _:
            return value


def _paint(text: str, shade: str, colour: bool) -> str:
    return f"{shade}{text}{_RESET}" if colour and text else text
