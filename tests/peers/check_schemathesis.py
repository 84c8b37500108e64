"""Does a fuzzer that knows our OpenAPI document find an answer that it does not describe?

Schemathesis is a program with an environment of its own: `.venv-schemathesis`, which `make` builds, or the one that
SIDECAR_SCHEMATHESIS names. The names of servers and tools are narrowed, so that it gets past policy; how long it may
look for is a question of patience, and docs/guides/connect/plain-http.md has the command.
"""

import asyncio
import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest

from sidecar.admin.openapi import document
from tests.a2a.world import ALICE, HOOK, AgentWorld, agent_world
from tests.flow.authzen import authzen_world
from tests.flow.enforcement import SECRET, decisions
from tests.flow.idp import SETTINGS, Idp
from tests.flow.world import World, world

ROOT = Path(__file__).parents[2]
PROGRAM = Path(os.environ.get("SIDECAR_SCHEMATHESIS") or ROOT / ".venv-schemathesis" / "bin" / "schemathesis")
NAMES: dict[str, list[str | None]] = {
    "server": ["github", "nowhere"],
    "tool": ["search_code", "get_file", "delete_repo", "ghost", "a.b"],
    "target_agent_id": ["researcher", "writer"],
    "source_agent_id": [None, "user:alice"],
    "callback_url": [None, HOOK],
}

RULES = """\
p, nhi:planner, tool:github/search_code, use, -, -, -, allow
p, nhi:planner, tool:github/ghost, use, -, -, -, allow
p, nhi:planner, tool:github/get_file, use, -, 9, -, allow
"""
SEEN_WITH_GRANTS = {
    (200, None),
    (400, "malformed-call"),
    (403, "no-matching-rule"),
    (404, "tool-unknown"),
    (429, "rate-limited"),
}
SEEN_OF_TASKS = {(200, None), (201, None), (400, "malformed-call"), (403, "no-matching-rule"), (404, "task-unknown")}
WITHIN_S = 60.0

pytestmark = pytest.mark.skipif(
    not PROGRAM.exists(), reason="no schemathesis: make builds .venv-schemathesis, or set SIDECAR_SCHEMATHESIS"
)


def narrowed(under: str) -> dict[str, Any]:
    """The document of addresses under that, for servers, tools and agents that there are."""
    narrow = copy.deepcopy(document())
    narrow["paths"] = {path: item for path, item in narrow["paths"].items() if path.startswith(under)}
    for item in narrow["paths"].values():
        item.pop("servers", None)
        for parameter in (*item.get("parameters", ()), *item.get("get", {}).get("parameters", ())):
            if parameter["name"] in NAMES:
                parameter["schema"]["enum"] = NAMES[parameter["name"]]
    for name, schema in narrow["components"]["schemas"]["TaskOrder"]["properties"].items():
        if name in NAMES:
            schema["enum"] = NAMES[name]
    return narrow


async def tried(
    running: World | AgentWorld, under: str, folder: Path, *more: str, url: str = ""
) -> tuple[int, str, str]:
    """What became of the run: its exit code, what it printed, and all that it heard."""
    (folder / "openapi.json").write_text(json.dumps(narrowed(under)))
    process = await asyncio.create_subprocess_exec(
        PROGRAM,
        *("run", "openapi.json", "--url", url or running.url, "--seed", "1", *more),
        *("--exclude-checks", "positive_data_acceptance"),  # whether arguments fit is their tool's to say
        *("--continue-on-failure", "--generation-database", "none", "--report-har-path", "heard.har"),
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "NO_COLOR": "1"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            printed, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, printed.decode("utf-8", "replace"), (folder / "heard.har").read_text("utf-8")


def check_no_leak(heard: str, *secrets: str) -> None:
    for secret in (*secrets, "Traceback", "aiohttp"):
        assert secret not in heard


async def test_every_answer_is_one_that_the_document_describes(tmp_path: Path) -> None:
    many = "sessions: {session_calls_per_minute: 10000}\n"
    async with world(tmp_path / "world", rules=RULES, settings=many) as running:
        code, printed, heard = await tried(running, "/mcp", tmp_path, "--max-examples", "20")
        assert code == 0, printed
        check_no_leak(heard, running.upstream.url.removesuffix("/mcp"), str(running.folder))
        ends = {(record["http_status"], record["reason"]) for record in running.ends()}
        assert ends >= SEEN_WITH_GRANTS and not any(status >= 500 for status, _ in ends), ends
        assert {record["protocol"] for record in running.ends()} <= {"http", "mcp"}


async def test_a_stranger_is_answered_as_described_too(tmp_path: Path) -> None:
    idp = Idp()
    options: dict[str, Any] = {"principal": "", "settings": SETTINGS, "files": idp.files()}
    async with world(tmp_path / "world", **options) as running:
        code, printed, heard = await tried(running, "/mcp", tmp_path, "--max-examples", "5", "--phases", "fuzzing")
        assert code == 0, printed
        check_no_leak(heard, running.upstream.url.removesuffix("/mcp"), str(running.folder))
        assert not running.upstream.seen
        assert {record["http_status"] for record in running.ends()} <= {400, 401, 403, 404, 405}


async def test_every_answer_of_the_task_api_is_described(tmp_path: Path) -> None:
    async with agent_world(tmp_path / "world") as running:
        (key,) = [f"{name}: {value}" for name, value in ALICE.items()]
        code, printed, heard = await tried(running, "/a2a/tasks", tmp_path, "-H", key, "--max-examples", "12")
        assert code == 0, printed
        check_no_leak(heard, str(running.folder), "10.1.2.3")
        ends = {(record["http_status"], record["reason"]) for record in running.ends()}
        assert ends >= SEEN_OF_TASKS and not any(status >= 500 for status, _ in ends if status), ends


async def test_every_answer_of_authzen_is_described(tmp_path: Path) -> None:
    async with authzen_world(tmp_path / "world") as running:
        key = f"Authorization: Bearer {SECRET}"
        code, printed, heard = await tried(
            running, "/access", tmp_path, "-H", key, "--max-examples", "12", url=running.admin_url
        )
        assert code == 0, printed
        check_no_leak(heard, str(running.folder))
        ends = {(record["http_status"], record["reason"]) for record in decisions(running)}
        assert ends >= {(200, None), (200, "no-matching-rule")} and {status for status, _ in ends} == {200}, ends
