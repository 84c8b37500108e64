"""Shows the policy in force: its revision and source, the faults of a refused one, and the lines of its files."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from sidecar.admin.console.live import watched
from sidecar.admin.console.policy_files import LineReader, PolicyFolderFile, file_named, files_of, pieces_in
from sidecar.admin.console.registry import StreamEvent, action, page, stream
from sidecar.admin.console.request import ConsoleFault, ConsoleRequest, Paging, matches, paged
from sidecar.errors import Fault
from sidecar.policy_tools.check.formats import CODES
from sidecar.settings.policy import PolicySettings
from sidecar.settings.timestamps import seconds_of

LINES: Final = 200
OUTCOMES: Final = ("failed", "skipped", "passed")
FILES_S: Final = 2.0
MAX_NAME: Final = 4096
_reader: Final = LineReader()


@page("policy", title="Policy", template="policy.html")
async def policy(asked: ConsoleRequest) -> Mapping[str, Any]:
    wanted, now = asked.query.text("file", most=MAX_NAME), asked.app.desk.live.current
    status = await asked.operate("GET", "/status")
    files = await asked.shared("policy files", FILES_S, lambda: asyncio.to_thread(files_of, now.settings.policy))
    return {
        **paged([one.plain() for one in files if matches(wanted, one.name)], asked.query),
        "filter": {"file": wanted},
        "policy": {**status["policy"], "refused": _linked(status["policy"]["refused"], now.settings.policy)},
        "workers": status.get("workers"),
        "warnings": _linked(map(_plain, now.engine.warnings), now.settings.policy),
        "self_test": now.settings.policy.self_test,
        "reloaded": asked.query.text("reloaded"),
    }


@stream("policy/live")
async def live(asked: ConsoleRequest) -> AsyncGenerator[StreamEvent | None]:
    async for event in watched(asked, policy, "policy", "policy_state.html"):
        yield event


@action("policy/reload")
async def reload(asked: ConsoleRequest) -> str:
    """Reads all files and the source again, like `sidecar reload`."""
    answer = await asked.operate("POST", "/api/reload")
    return f"policy?{urlencode({'reloaded': answer['revision']})}"


@page("policy/file", title="Policy", template="policy_file.html")
async def file(asked: ConsoleRequest) -> Mapping[str, Any]:
    """Some lines of one file. `line` is marked. Without `page`, the page with that line is shown."""
    query, now = asked.query, asked.app.desk.live.current
    name, line = query.text("name", most=MAX_NAME), query.number("line", 0, least=0, most=10_000_000)
    found = await asyncio.to_thread(file_named, now.settings.policy, name)
    if found is None:
        raise ConsoleFault(404, f"the policy that serves has no file {name[:200]!r}: the page Policy lists its files")
    number = query.number("page", max(1, -(-line // LINES)), least=1, most=10_000_000)
    try:
        lines = await asyncio.to_thread(_reader.read, found, (number - 1) * LINES + 1, LINES)
    except OSError as error:
        raise ConsoleFault(409, f"{found.name} cannot be read: {error.strerror}") from None
    status = await asked.operate("GET", "/status")
    pages = max(1, -(-lines.total // LINES))
    number = min(number, pages)
    if lines.first > (number - 1) * LINES + 1:  # the requested page is after the end: the last page is shown
        lines = await asyncio.to_thread(_reader.read, found, (number - 1) * LINES + 1, LINES)
    every = _linked([*map(_plain, now.engine.warnings), *status["policy"]["refused"]], now.settings.policy)
    told = _by_line(found, every)
    return {
        "file": found.plain(),
        "line": line,
        "rows": [
            {"line": at, "pieces": pieces_in(text, found.path.suffix), "faults": told.get(at, [])}
            for at, text in enumerate(lines.lines, lines.first)
        ],
        "faults": told.get(0, []),
        "paging": Paging(number, pages, lines.total, (number - 1) * LINES, LINES).plain(),
        "revision": status["policy"]["revision"],
        "loaded_at": status["policy"]["loaded_at"],
        "is_newer": found.written_at > seconds_of(status["policy"]["loaded_at"]),
    }


@page("policy/check", title="Policy", template="policy_check.html")
async def check(asked: ConsoleRequest) -> Mapping[str, Any]:
    """The findings of `sidecar policy check` in the files as they are on disk."""
    query, told = asked.query, asked.app.examined("check")
    severity, wanted = query.choice("severity", ("error", "warning")), query.text("text")
    report = told["report"] or {"faults": [], "summary": None, "valid": None}
    faults = [
        {**one, "about": CODES[one["code"]].mend if one["code"] in CODES else None}
        for one in report["faults"]
        if severity in ("", one["severity"]) and matches(wanted, one["code"], one["message"], one["file"])
    ]
    kept = {name: report[name] for name in ("summary", "valid")}
    filters = {"severity": severity, "text": wanted}
    shown = paged(faults, query)
    rows = _linked(shown["rows"], asked.app.desk.live.current.settings.policy)
    return {**shown, "rows": rows, **kept, "run": _run_of(told), "filter": filters}


@stream("policy/check/live")
async def check_live(asked: ConsoleRequest) -> AsyncGenerator[StreamEvent | None]:
    async for event in watched(asked, check, "report", "policy_check_report.html"):
        yield event


@page("policy/tests", title="Policy", template="policy_tests.html")
async def tests(asked: ConsoleRequest) -> Mapping[str, Any]:
    """The results of the policy's own tests, failures first, and the rules that no test exercises."""
    query, told = asked.query, asked.app.examined("test")
    outcome, wanted = query.choice("outcome", OUTCOMES), query.text("text")
    shown = query.choice("show", ("tests", "rules"), "tests")
    report = told["report"] or {"tests": [], "coverage": None, "counts": None}
    coverage = report["coverage"]
    rows = report["tests"]
    if shown == "rules":
        missing = [] if coverage is None else coverage["missing"]
        rows = [one for one in missing if matches(wanted, one["id"], one["kind"], one["file"])]
    elif outcome or wanted:
        chosen = (one for one in rows if outcome in ("", one["outcome"]))
        rows = [one for one in chosen if matches(wanted, one["suite"], one["name"], one["file"])]
    return {
        **paged(rows, query),
        "counts": report["counts"],
        "coverage": None if coverage is None else {**coverage, "missing": len(coverage["missing"])},
        "run": _run_of(told),
        "filter": {"outcome": outcome, "text": wanted, "show": shown},
    }


@stream("policy/tests/live")
async def tests_live(asked: ConsoleRequest) -> AsyncGenerator[StreamEvent | None]:
    async for event in watched(asked, tests, "report", "policy_tests_report.html"):
        yield event


def _run_of(told: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in told.items() if name != "report"}


def _plain(fault: Fault) -> Mapping[str, Any]:
    return {"severity": fault.severity, "message": fault.message, **fault.plain()}


def _linked(faults: Iterable[Mapping[str, Any]], policy: PolicySettings) -> list[Mapping[str, Any]]:
    """Faults, each with whether the console shows its file. It shows only files of the policy in force: not
    sidecar.yaml, and no file of a fetched policy that was refused."""
    folders = [one for one in (policy.models, policy.path) if isinstance(one, Path)]

    def is_shown(file: str) -> bool:
        return Path(file) in policy.files or any(Path(file).is_relative_to(folder) for folder in folders)

    return [{**one, "is_shown": is_shown(one.get("file", ""))} for one in faults]


def _by_line(found: PolicyFolderFile, faults: Iterable[Mapping[str, Any]]) -> Mapping[int, list[Mapping[str, Any]]]:
    """The faults of a file by line; 0 for those of the whole file."""
    told: dict[int, list[Mapping[str, Any]]] = {}
    for fault in faults:
        if fault.get("file") == str(found.path):
            told.setdefault(fault.get("line", 0), []).append(fault)
    return told
