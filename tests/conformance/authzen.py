"""Does sidecar give the answers that AuthZEN's working group published for its scenarios?

    make conformance SUITE=authzen                  or, from a checkout of the repository:
    python -m tests.conformance authzen <folder>

Brings the published cases into `.conformance/authzen/`, asks a sidecar whose policy is the scenario's, prints passed
and failed for each file, and fails when an answer is another. The files have no licence: none of them is kept here.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

from tests.conformance.sidecar import ROOT
from tests.flow.authzen import ask, authzen_world
from tests.flow.authzen_scenarios import SEARCH, TODO, AuthzenScenario

COMMIT = "e287920eed842b227e38531c1735b712337ca44d"
SOURCE = f"https://raw.githubusercontent.com/openid/authzen/{COMMIT}"
TOOLS = ROOT / ".conformance" / "authzen"
FETCH_S, MAX_BYTES = 20, 2**20
NO, USAGE = 1, 2


class PublishedCase(NamedTuple):
    """A request, and what of its answer is published."""

    path: str
    request: Mapping[str, Any]
    expected: Any
    told: Callable[[Any], Any]


class PublishedFile(NamedTuple):
    path: str
    scenario: AuthzenScenario


FILES = (
    PublishedFile("interop/authzen-todo-backend/test/decisions-authorization-api-1_0-02.json", TODO),
    PublishedFile("interop/authzen-api-gateways/test-harness/test/decisions.json", TODO),
    PublishedFile("interop/authzen-idp/test-harness/src/results.json", SEARCH),
)


def main(arguments: Sequence[str]) -> int:
    """Ask about all files; 0 where every answer is the published one."""
    folder = Path(arguments[0]) if arguments else TOOLS
    if not arguments and not bring():
        print(
            f"the cases cannot be had from {SOURCE}: check out https://github.com/openid/authzen and name its folder,\n"
            "python -m tests.conformance authzen <folder>",
            file=sys.stderr,
        )
        return USAGE
    missing = [file.path for file in FILES if not (folder / file.path).is_file()]
    if missing:
        print(f"{folder} has no {missing[0]}", file=sys.stderr)
        return USAGE
    failed = 0
    for file in FILES:
        cases = list(cases_in(json.loads((folder / file.path).read_bytes())))
        wrong = asyncio.run(_wrong(file.scenario, cases))
        print(
            f"{file.path:76} passed {len(cases) - len(wrong):3}   failed {len(wrong):3}", *wrong, sep="\n", flush=True
        )
        failed += len(wrong)
    return NO if failed else 0


def bring() -> bool:
    """Fetch the files that are not here yet; False where they cannot be had."""
    for file in FILES:
        target = TOOLS / file.path
        if target.is_file():
            continue
        try:
            with urlopen(f"{SOURCE}/{file.path}", timeout=FETCH_S) as answer:
                raw = answer.read(MAX_BYTES)
            json.loads(raw)
        except (URLError, OSError, ValueError):
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(raw)
    return True


def cases_in(published: Mapping[str, Any]) -> Iterator[PublishedCase]:
    """The cases of one file."""
    for case in published.get("evaluation", ()):
        yield PublishedCase("evaluation", case["request"], case["expected"], lambda told: told["decision"])
    for case in published.get("evaluations", ()):
        expected = [one["decision"] for one in case["expected"]]
        yield PublishedCase("evaluations", case["request"], expected, _decisions)
    for case in published.get("search", ()):
        yield PublishedCase("search/resource", case["request"], _sorted(case["expected"]), _sorted)


def _decisions(told: Any) -> list[bool]:
    return [one["decision"] for one in told["evaluations"]]


def _sorted(told: Any) -> list[tuple[str, str]]:
    return sorted((one["type"], one["id"]) for one in told["results"])


async def _wrong(scenario: AuthzenScenario, cases: Sequence[PublishedCase]) -> list[str]:
    """What was answered otherwise."""
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        files = {"policies/roles.csv": scenario.roles}
        async with authzen_world(Path(folder), scenario.pdp, rules=scenario.rules, files=files) as running:
            for case in cases:
                status, body, _ = await ask(running, case.path, case.request)
                if status != 200 or case.told(body) != case.expected:
                    wrong.append(f"  {json.dumps(case.request)}: {status} {json.dumps(body)}, not {case.expected}")
    return wrong
