"""Does every check of the official A2A TCK that passes directly pass through the sidecar too?

    make conformance SUITE=a2a          or, for some parts of it:
    python -m tests.conformance a2a [1.0] [0.3] [0.3-jsonrpc] [0.3-rest-capabilities] …

Both kits are brought by hand into `.conformance/`; the command says how. Each part has agents of its own on the
official SDK (`tests/a2a/agents`), so several run at once. The kits need nothing that the tests' own environment lacks,
but pyOpenSSL in two modules that are left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.a2a.agents import NO_OLD, OLD_PYTHON, Line, agent
from tests.conformance.sidecar import ROOT

TOOLS = ROOT / ".conformance"
SOURCE = "https://github.com/a2aproject/a2a-tck"
# Folder → the commit that the counts were made with: of the branches 0.3.x and 1.0-dev.
KITS = {
    "a2a-tck-0.3": "eb1f804c27ea25db8805264d9ed2d7ca077a7776",
    "a2a-tck-1.0": "357c4a87afa2818731590647cccbea31c31733a2",
}
PART_S, AT_ONCE = 400, 6
NO, USAGE = 1, 2
# They look at certificates, of which there are none on loopback.
TLS = tuple(
    f"tests/mandatory/security/test_{name}.py" for name in ("certificate_validation", "tls_configuration_enhanced")
)


@dataclass(frozen=True)
class Part:
    """One run of a kit, against an agent. `arguments` are pytest's; `{url}` in them is the agent's."""

    kit: str
    line: Line
    flags: tuple[str, ...]
    arguments: tuple[str, ...]


def _old(transport: str) -> Mapping[str, tuple[str, ...]]:
    """The kit's two categories, as its own runner has them."""
    asked = ("--sut-url={url}", "--test-scope=all", f"--transports={transport}")
    protocol = ("tests/mandatory/protocol", "-m", "mandatory_protocol")
    whole = ("tests/mandatory", "-m", "mandatory_jsonrpc or mandatory_protocol", *(f"--ignore={name}" for name in TLS))
    return {
        "mandatory": (*(whole if transport == "jsonrpc" else protocol), *asked),
        "capabilities": ("tests/optional/capabilities", *asked),
    }


# The extended card of 0.3 must not be had without a credential, and these agents ask for none.
PARTS: Mapping[str, Part] = {
    "1.0": Part("a2a-tck-1.0", "sdk1", (), ("tests/compatibility", "--sut-host={url}")),
    **{
        f"0.3-{transport}-{category}": Part("a2a-tck-0.3", "sdk03", ("--no-extended-card",), arguments)
        for transport in ("jsonrpc", "rest", "grpc")
        for category, arguments in _old(transport).items()
    },
}


@dataclass(frozen=True)
class Count:
    """What each check came to: `passed`, `failed` or `skipped`."""

    checks: Mapping[str, str]

    def __str__(self) -> str:
        how = list(self.checks.values())
        return f"{how.count('passed')}/{how.count('failed')}"


def main(parts: Sequence[str]) -> int:
    """Run the parts; 0 where nothing was lost."""
    wanted = {name: part for name, part in PARTS.items() if not parts or name.startswith(tuple(parts))}
    if not wanted:
        print(f"no such part; there are {', '.join(PARTS)}", file=sys.stderr)
        return USAGE
    if lacking := _lacking(wanted.values()):
        print("\n".join(lacking), file=sys.stderr)
        return USAGE
    with ThreadPoolExecutor(AT_ONCE) as at_once:
        for name, direct in zip(wanted, at_once.map(_directly, wanted.values()), strict=True):
            print(f"{name:24} direct {direct!s:>7}", flush=True)
    return 0


def _lacking(parts: Sequence[Part]) -> list[str]:
    """How to bring what is not here."""
    kits = sorted({part.kit for part in parts if not (TOOLS / part.kit / "pyproject.toml").exists()})
    said = [f"git clone {SOURCE} .conformance/{kit} && git -C .conformance/{kit} checkout {KITS[kit]}" for kit in kits]
    if any(part.line == "sdk03" for part in parts) and not OLD_PYTHON.exists():
        said.append(NO_OLD)
    return said


def _directly(part: Part) -> Count:
    with agent(part.line, *part.flags) as one:
        return _run(part, one.url)


def _run(part: Part, url: str) -> Count:
    """What the kit says of the agent whose card is at this URL."""
    with tempfile.TemporaryDirectory() as out:
        report = Path(out) / "junit.xml"
        arguments = (argument.format(url=url) for argument in part.arguments)
        command = (sys.executable, "-m", "pytest", *arguments, "-q", "-p", "no:cacheprovider", f"--junitxml={report}")
        done = subprocess.run(
            command,
            cwd=TOOLS / part.kit,
            timeout=PART_S,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**os.environ, "TCK_STREAMING_TIMEOUT": "5.0", "PYTHONDONTWRITEBYTECODE": "1"},
        )
        if not report.exists():
            raise SystemExit(f"the kit did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return _counted(report)


def _counted(report: Path) -> Count:
    checks = {}
    for case in ElementTree.parse(report).iter("testcase"):
        came_to = {child.tag for child in case} & {"failure", "error", "skipped"}
        how = "passed" if not came_to else "skipped" if came_to == {"skipped"} else "failed"
        checks[f"{case.get('classname')}::{case.get('name')}"] = how
    return Count(checks)
