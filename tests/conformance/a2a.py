"""Does every check of the official A2A TCK that passes directly pass through the sidecar too?

    make conformance SUITE=a2a          or, for some parts of it:
    python -m tests.conformance a2a [1.0] [1.0-grpc] [0.3] [0.3-jsonrpc] [0.3-rest-capabilities] [1.0-program] …

A part is a version of the kit; what follows is, in 1.0, how we speak to the agent (each kit tries every binding that it
finds), and in 0.3 the binding and the category that the kit is asked for. In the parts called `program` the agent is a
program on the command line (`agents:` in sidecar.yaml), held against an agent on the SDK that has as little.

Both kits are brought by hand into `.conformance/`; the command says how. Each part has agents of its own on the
official SDK (`tests/a2a/agents`), so several run at once. The kits need nothing that the tests' own environment lacks,
but pyOpenSSL in two modules that are left out.
"""

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sidecar.protocols.a2a.operations import BINDINGS
from tests.a2a.agents import NO_OLD, OLD_PYTHON, Line, agent
from tests.conformance.sidecar import ROOT, before_agent, with_program

TOOLS = ROOT / ".conformance"
PROGRAM = ROOT / "tests" / "a2a" / "agents" / "tck_program.py"
SOURCE = "https://github.com/a2aproject/a2a-tck"
# Folder → the commit that the counts were made with: of the branches 0.3.x and 1.0-dev.
KITS = {
    "a2a-tck-0.3": "eb1f804c27ea25db8805264d9ed2d7ca077a7776",
    "a2a-tck-1.0": "357c4a87afa2818731590647cccbea31c31733a2",
}
# The folder of the plugin alone: the kits have packages of their own that are called as ours are.
KIT_ENVIRONMENT = {
    "TCK_STREAMING_TIMEOUT": "5.0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONPATH": str(Path(__file__).with_name("plugins")),
}
PART_S = 900  # a bound for a kit that hangs: on 2 quiet cores a part takes 15 to 300 s
AT_ONCE = (os.cpu_count() or 1) + 1  # a kit mostly waits for its agent
NO, USAGE = 1, 2
# They look at certificates, of which there are none on loopback.
TLS = tuple(
    f"tests/mandatory/security/test_{name}.py" for name in ("certificate_validation", "tls_configuration_enhanced")
)


@dataclass(frozen=True)
class Part:
    """One run of a kit, against an agent. `arguments` are pytest's; `{url}` in them is what is before the path of the
    card. `spoken` is the binding and the version in which we speak to the agent; with `program` there is none behind
    us: a program that plays the same plays is the agent."""

    kit: str
    line: Line
    flags: tuple[str, ...]
    arguments: tuple[str, ...]
    spoken: tuple[str, str]
    program: bool = False


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
    **{
        f"1.0-{binding.replace('_', '-')}": Part(
            "a2a-tck-1.0", "sdk1", (), ("tests/compatibility", "--sut-host={url}"), (binding, "1.0")
        )
        for binding in BINDINGS
    },
    **{
        f"0.3-{transport}-{category}": Part(
            "a2a-tck-0.3", "sdk03", ("--no-extended-card",), arguments, ("jsonrpc", "0.3")
        )
        for transport in ("jsonrpc", "rest", "grpc")
        for category, arguments in _old(transport).items()
    },
    "1.0-program": Part(
        "a2a-tck-1.0", "sdk1", ("--no-push",), ("tests/compatibility", "--sut-host={url}"), ("", "1.0"), program=True
    ),
    **{
        f"0.3-program-{transport}-{category}": Part(
            "a2a-tck-0.3", "sdk03", ("--no-extended-card", "--no-push"), arguments, ("", "0.3"), program=True
        )
        for transport in ("jsonrpc", "rest", "grpc")
        for category, arguments in _old(transport).items()
    },
}
# What must not pass through us, and why.
REFUSED: Mapping[str, str] = {
    "tests.compatibility.agent_card.test_agent_card.TestAgentCardStructure::test_agent_card_validates_against_schema": (
        "one document is the card of both versions, as the official SDK writes it, and the kit's schema knows no 0.3"
    )
}
# Of a program: the kit knows of no agent that minds what a part is. A program has no extended card.
_NO_EXTENDED = "a program has no extended card and its card declares none; the agent of the SDK declares one"
_MINDS = "the kit asks for an error, as A2A does, and counts it as a failure: its requirement does not say which"
NOT_OF_PROGRAMS: Mapping[str, str] = {
    f"tests.compatibility.core_operations.test_requirements::test_must_requirement[{requirement}-{binding}]": why
    for requirement, why in (("CORE-SEND-003", _MINDS), ("CARD-EXT-001", _NO_EXTENDED), ("CARD-EXT-002", _NO_EXTENDED))
    for binding in BINDINGS
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
    lost: list[str] = []
    with ThreadPoolExecutor(AT_ONCE) as at_once:
        for name, (direct, through) in zip(wanted, at_once.map(_both, wanted.values()), strict=True):
            refused = {**REFUSED, **NOT_OF_PROGRAMS} if wanted[name].program else REFUSED
            lost += _compare(name, direct, through, refused)
    print("\n".join(["", *(f"LOST {what}" for what in lost)]) if lost else "nothing is lost")
    return NO if lost else 0


def _lacking(parts: Sequence[Part]) -> list[str]:
    """How to bring what is not here."""
    kits = sorted({part.kit for part in parts if not (TOOLS / part.kit / "pyproject.toml").exists()})
    said = [f"git clone {SOURCE} .conformance/{kit} && git -C .conformance/{kit} checkout {KITS[kit]}" for kit in kits]
    if any(part.line == "sdk03" for part in parts) and not OLD_PYTHON.exists():
        said.append(NO_OLD)
    return said


def _both(part: Part) -> tuple[Count, Count]:
    """Directly, and through a sidecar: two agents, since a kit looks at all that one has."""
    with agent(part.line, *part.flags) as one:
        direct = _run(part, one.url)
    if part.program:
        with with_program((sys.executable, "-I", "-S", str(PROGRAM), part.spoken[1])) as (sidecar, key):
            return direct, _run(part, sidecar, key)
    with agent(part.line, *part.flags) as one:
        binding, version = part.spoken
        url = {"jsonrpc": one.rpc, "http_json": one.rest, "grpc": f"grpc://{one.grpc}"}[binding]
        section = {"url": url, "binding": binding, "version": version, "card_url": one.card}
        with before_agent(section) as (sidecar, key):
            return direct, _run(part, sidecar, key)


def _compare(name: str, direct: Count, through: Count, refused: Mapping[str, str]) -> Iterator[str]:
    """Print both counts; every check that passes directly and not through us, unless it must not."""
    passed = {check for check, how in direct.checks.items() if how == "passed"}
    missing = sorted(check for check in passed if through.checks.get(check) != "passed")
    gone = [check for check in missing if check not in refused]
    verdict = f"LOST {len(gone)}" if gone else "ok"
    print(f"{name:24} direct {direct!s:>7}   through {through!s:>7}   {verdict}")
    for check in missing:
        if check in refused:
            print(f"{' ':6} refused, as it must be: {check}: {refused[check]}")
    yield from (f"{name}: {check}" for check in gone)


def _run(part: Part, url: str, key: str = "") -> Count:
    """What the kit says of the agent whose card is under this URL; with a key, its clients show that."""
    with tempfile.TemporaryDirectory() as out:
        report = Path(out) / "junit.xml"
        arguments = (argument.format(url=url) for argument in part.arguments)
        bearing = ("-p", "bearing") if key else ()
        command = (sys.executable, "-m", "pytest", *arguments, *bearing, "-q", "-p", "no:cacheprovider")
        done = subprocess.run(
            (*command, f"--junitxml={report}"),
            cwd=TOOLS / part.kit,
            timeout=PART_S,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**os.environ, **KIT_ENVIRONMENT, "TCK_API_KEY": key, "TCK_AGENT": url},
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
