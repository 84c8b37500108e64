"""Does every check of the official MCP suites that passes directly pass through the sidecar too?

    make conformance SUITE=mcp          or, for some parts of it:
    python -m tests.conformance mcp [http] [stdio] [sse] [client] [inspector]

Brings the suites by npm into `.conformance/` (Node 22 is in `.venv-servers`), runs each against our reference server
first directly, then through a sidecar, prints both counts side by side, and fails when a check is lost.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.conformance import a2a, authzen
from tests.conformance.client import SCENARIOS
from tests.conformance.sidecar import ROOT, before
from tests.peers.stage import running
from tests.servers import node_bin, npm

TOOLS = ROOT / ".conformance"
STABLE, ALPHA, INSPECTOR = "0.1.16", "0.2.0-alpha.12", "2.12.0"
SUITE_S, SCENARIO_S, INSTALL_S = 300, 90, 300
NO, USAGE = 1, 2
SERVER = (sys.executable, "-m", "tests.conformance.server")
CLIENT = f"{sys.executable} -m tests.conformance.client"

# What cannot be had of a server on pipes, or one whose every answer comes on one stream, and why.
NOT_ON_PIPES = {
    "server-sse-polling": "a call has no HTTP connection of its own there, which the server could close",
    "server-sse-multiple-streams": "a call has no HTTP stream of its own there: this counts them",
}
# What a server of sessions cannot say, which a stateless caller hears of one that speaks its era.
_BY_RESULT = "it asks by its result, and sessions have no such result; tests/peers/test_bridging.py tries questions"
_ASKS = (
    *("basic-elicitation", "basic-list-roots", "basic-sampling", "capability-check", "ignore-extra-params"),
    *("missing-input-response", "multi-round", "multiple-input-requests", "non-tool-request", "request-state"),
    *("result-type", "tampered-state"),
)
_UNANNOUNCED = "the SDK announces no listChanged in sessions, and we announce what the server does"
NOT_IN_SESSIONS = {
    **{f"input-required-result-{which}": _BY_RESULT for which in _ASKS},
    "sep-2575-server-sends-tools-list-changed-on-subscription": _UNANNOUNCED,
    "sep-2575-server-sends-prompts-list-changed-on-subscription": _UNANNOUNCED,
}
# By the kind of the server: a scenario, or one check.
NOT_THERE = {"stdio": NOT_ON_PIPES, "sse": {**NOT_ON_PIPES, **NOT_IN_SESSIONS}}

# What must not pass through us, and why.
REFUSED = {
    ("http-custom-headers", "sep-2243-client-omit-null"): "its argument is null where the tool's schema says string",
    (
        "tasks-dispatch-and-envelope",
        "tasks-result-type-complete-on-non-task-responses",
    ): "it calls tools that the server does not list: the SDK answers a result, we that there is no such tool",
}

Key = tuple[str, str]
Passes = Counter[Key]


@dataclass(frozen=True)
class Suite:
    """One official suite: which package, and how it is asked."""

    title: str
    package: str
    arguments: tuple[str, ...]


SERVER_SUITES = (
    Suite(f"{STABLE} --suite all", "stable", ("--suite", "all")),
    Suite(f"{ALPHA} --requirements 2025-11-25", "alpha", ("--requirements", "2025-11-25")),
    Suite(f"{ALPHA} --requirements 2026-07-28", "alpha", ("--requirements", "2026-07-28")),
)


@dataclass(frozen=True)
class Count:
    """What a run came to: passes by scenario and check, and how many failed."""

    passes: Passes
    failed: int

    def __str__(self) -> str:
        return f"{self.passes.total()}/{self.failed}"


def main(parts: Sequence[str]) -> int:
    """Run the parts; 0 where nothing was lost."""
    bring_tools()
    lost: list[str] = []
    kinds = [part for part in parts if part in ("http", "stdio", "sse")]
    quiet = partial(running, *SERVER, stderr=subprocess.DEVNULL)
    with quiet("http") as at_http, quiet("sse") as at_sse:
        http, sse = (url.replace("127.0.0.1", "localhost") for url in (at_http, at_sse))
        behind = {
            "http": {"url": f"{http}/mcp"},
            "sse": {"url": f"{sse}/sse"},
            "stdio": {"command": SERVER[0], "args": [*SERVER[1:], "stdio"], "cwd": str(ROOT)},
        }
        direct = {suite: _served(suite, f"{http}/mcp") for suite in SERVER_SUITES if kinds}
        with before({kind: behind[kind] for kind in {*kinds, "http"}}) as sidecar:
            for kind in kinds:
                for suite in SERVER_SUITES:
                    through = _served(suite, f"{sidecar}/mcp/{kind}")
                    lost += _compare(f"{kind:6} {suite.title}", direct[suite], through, kind)
            if "inspector" in parts:
                lost += _inspected(f"{http}/mcp", f"{sidecar}/mcp/http")
                lost += _inspected(f"{sse}/sse", f"{sidecar}/mcp/http/sse", "sse", ("legacy",))
    if "client" in parts:
        lost += _clients()
    print("\n".join(["", *(f"LOST {what}" for what in lost)]) if lost else "nothing is lost")
    return NO if lost else 0


def bring_tools() -> None:
    """The suites and the inspector, as npm has them."""
    packages = {
        "stable": f"@modelcontextprotocol/conformance@{STABLE}",
        "alpha": f"@modelcontextprotocol/conformance@{ALPHA}",
        "inspector": f"@modelcontextprotocol/inspector@{INSPECTOR}",
    }
    for folder, package in packages.items():
        if (TOOLS / folder / "ready").exists():
            continue
        (TOOLS / folder).mkdir(parents=True, exist_ok=True)
        print(f"bringing {package} …", flush=True)
        command = (*npm(), "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(TOOLS / folder), package)
        subprocess.run(command, check=True, timeout=INSTALL_S, stdin=subprocess.DEVNULL, env=_environment())
        (TOOLS / folder / "ready").touch()


def _served(suite: Suite, url: str) -> Count:
    return _run(suite.package, ("server", "--url", url, *suite.arguments), SUITE_S)


def _clients() -> Iterator[str]:
    """The client side, scenario by scenario: those that a resource server's own door is not part of."""
    for scenario in SCENARIOS:
        arguments = ("client", "--scenario", scenario, "--timeout", "60000", "--command")
        direct = _run("alpha", (*arguments, CLIENT), SCENARIO_S)
        through = _run("alpha", (*arguments, f"{CLIENT} --through"), SCENARIO_S)
        yield from _compare(f"client {scenario}", direct, through, "client")


def _run(package: str, arguments: Sequence[str], timeout_s: float) -> Count:
    with tempfile.TemporaryDirectory() as out:
        program = TOOLS / package / "node_modules" / ".bin" / "conformance"
        command = (str(program), *arguments, "--output-dir", out)
        subprocess.run(
            command, cwd=ROOT, timeout=timeout_s, stdin=subprocess.DEVNULL, capture_output=True, env=_environment()
        )
        return _counted(Path(out))


def _counted(out: Path) -> Count:
    passes, failed = Passes(), 0
    for file in sorted(out.rglob("checks.json")):
        scenario = re.sub(r"-20\d\d-\d\d-\d\dT.*", "", file.parent.name)
        for check in json.loads(file.read_text()):
            if check["status"] == "SUCCESS":
                passes[scenario.removeprefix("server-"), check["id"]] += 1
            failed += check["status"] == "FAILURE"
    if not passes:
        raise SystemExit("the suite ran no check at all")
    return Count(passes, failed)


def _compare(title: str, direct: Count, through: Count, kind: str) -> list[str]:
    """Print both counts; every check that passes directly and not through us, unless it must not."""
    lost, excused = [], []
    not_there = NOT_THERE.get(kind, {})
    for key, count in sorted((direct.passes - through.passes).items()):
        scenario, check = key
        if key in REFUSED:
            excused.append(f"{' ':6} refused, as it must be: {scenario}, {check}: {REFUSED[key]}")
        elif why := not_there.get(scenario) or not_there.get(check):
            excused.append(f"{' ':6} not there: {scenario}, {check}: {why}")
        else:
            lost.append(f"{title}: {scenario}: {check} ({count})")
    verdict = f"LOST {len(lost)}" if lost else "ok"
    print(f"{title:58} direct {direct!s:>7}   through {through!s:>7}   {verdict}", *excused, sep="\n", flush=True)
    return lost


def _inspected(
    direct: str, through: str, transport: str = "http", eras: Sequence[str] = ("legacy", "modern")
) -> Iterator[str]:
    """The official inspector's command line."""
    for era in eras:
        for arguments in (("tools/list",), ("tools/call", "--tool-name", "test_simple_text")):
            heard = [_inspect(url, transport, era, arguments) for url in (direct, through)]
            same = heard[0] == heard[1]
            print(f"{f'inspector {transport} {era} {arguments[0]}':58} {'ok' if same else 'LOST'}", flush=True)
            if not same:
                yield f"inspector {transport} {era} {arguments[0]}: {heard[1]}"


def _inspect(url: str, transport: str, era: str, arguments: Sequence[str]) -> Any:
    program = TOOLS / "inspector" / "node_modules" / ".bin"
    [name] = [path for path in (program / "inspector", program / "mcp-inspector") if path.exists()][:1]
    command = (str(name), "--cli", url, "--transport", transport, "--protocol-era", era, "--method", *arguments)
    done = subprocess.run(
        command, timeout=SCENARIO_S, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=_environment()
    )
    try:
        return _without_cache_hints(json.loads(done.stdout))
    except ValueError:
        return (done.stdout + done.stderr)[-500:]


def _without_cache_hints(said: Any) -> Any:
    # A list that passed a policy for one caller is private: the one member that must differ.
    hints = ("cacheScope", "ttlMs")
    return {key: value for key, value in said.items() if key not in hints} if isinstance(said, dict) else said


def _environment() -> Mapping[str, str]:
    path = f"{node_bin()}{os.pathsep}{os.environ.get('PATH', '')}"
    return {"NODE_OPTIONS": "--use-system-ca", **os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["mcp", *parts]:
            raise SystemExit(main(parts or ("http", "stdio", "sse", "client", "inspector")))
        case ["a2a", *parts]:
            raise SystemExit(a2a.main(parts))
        case ["authzen", *parts]:
            raise SystemExit(authzen.main(parts))
        case _:
            print("which suite? SUITE=mcp, SUITE=a2a or SUITE=authzen", file=sys.stderr)
            raise SystemExit(USAGE)
