"""Does an MCP server that is a program stand behind us like any other: listed, called, denied, killed, restarted?"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.flow import forks
from tests.flow.talk import Answer, Era, Talk, reason_of, talking
from tests.flow.world import PATIENCE_S, World, request, until, world
from tests.tables import tables

TABLES = tables("flow/stdio")

ROOT = Path(__file__).parents[2]
RULES = """\
p, nhi:planner, tool:github/*, use, -, -, -, allow
#: id=nobody-hangs
p, *, tool:github/hang, use, -, -, -, deny
"""


def python(*arguments: str) -> str:
    """The program of an upstream: our interpreter, and the repository as its folder."""
    return f"command: {sys.executable}, args: {json.dumps(list(arguments))}, cwd: {ROOT}"


OFFICIAL = f"command: {forks.python()}, args: [-m, tests.peers.stdio_server], cwd: {ROOT}"
PROGRAM = f"command: {sys.executable}, args: [-I, -S, {ROOT / 'tests/flow/program.py'}]"


def moody(*moods: str) -> str:
    """`program.py`, in these moods from the start."""
    return PROGRAM[:-1] + "".join(f", {mood}" for mood in moods) + "]"


@asynccontextmanager
async def before(folder: Path, program: str = PROGRAM, **more: str) -> AsyncIterator[World]:
    async with world(folder, program=program, rules=more.pop("rules", RULES), **more) as running:  # type: ignore[arg-type]
        yield running


def text(answer: Answer) -> str:
    return str(answer[1]["result"]["content"][0]["text"])


def children_of(pid: int) -> set[int]:
    """Everything below a process."""
    pairs = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            pairs.append((int(stat.parent.name), int(stat.read_text().rpartition(")")[2].split()[1])))
    found, parents = set[int](), {pid}
    while parents := {child for child, parent in pairs if parent in parents}:
        found |= parents
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_the_official_server_is_listed_called_and_denied(tmp_path: Path) -> None:
    await forks.imported()
    async with talking(before(tmp_path, OFFICIAL), "session") as talk:
        listed = (await talk.ask("tools/list"))[1]["result"]["tools"]
        assert {tool["name"] for tool in listed} == {"count", "crash", "slow"}
        assert [text(await talk.call("count")).split()[0] for _ in range(3)] == ["1", "2", "3"]
        assert text(await talk.call("slow", {"steps": 0})) == "done"
        message = {"name": "slow", "arguments": {}, "_meta": {"progressToken": "mine"}}
        status, raw, headers = await talk.ask("tools/call", message)
        assert (status, headers["Content-Type"]) == (200, "text/event-stream")
        events = [json.loads(line[6:]) for line in raw.decode().splitlines() if line.startswith("data: ")]
        assert [event["params"]["progressToken"] for event in events[:-1]] == ["mine"] * 2
        assert events[-1]["result"]["content"][0]["text"] == "done"
        denied = (await talk.call("hang"))[1]["error"]
        assert denied["code"] == 403
        bad = (await talk.call("slow", {"steps": "many"}))[1]["result"]
        assert bad["isError"] and "/arguments/steps" in bad["content"][0]["text"]
    assert talk.world.app.processes.warden_pid not in children_of(os.getpid())


async def test_a_program_that_dies_fails_its_call_at_once_and_the_next_one_finds_another(tmp_path: Path) -> None:
    """BL-086."""
    async with talking(before(tmp_path), "session") as talk:
        first = text(await talk.call("count")).split()
        crashed = (await talk.call("misbehave", {"how": "crash"}))[1]["error"]
        assert crashed["data"]["reason"] == "upstream-failed"
        assert (await talk.call("count"))[0] == 404  # the session went with its program
        talk.session = ""
        again = text(await talk.call("count")).split()
        assert again[0] == "1" and again[1] != first[1]
        os.kill(int(again[1]), signal.SIGKILL)
        await until(lambda: not alive(int(again[1])))
        async with asyncio.timeout(PATIENCE_S):
            while (await talk.call("count"))[0] != 404:
                await asyncio.sleep(0.01)


TWO = 'local: [{listen: "127.0.0.1:0", principal: "nhi:one"}, {listen: "127.0.0.1:0", principal: "nhi:two"}]\n'
EVERYBODY = "p, nhi:*, tool:github/count, use, -, -, -, allow\n"


@pytest.mark.parametrize(("era", "shared"), [("session", False), ("session", True)])
async def test_two_users_have_two_counters_and_a_shared_program_one(tmp_path: Path, era: Era, shared: bool) -> None:
    """BL-066."""
    program = PROGRAM + (", shared: true" if shared else "")
    async with before(tmp_path, program, rules=EVERYBODY, principal="", settings=TWO) as running:
        ports = [listener.port for listener in running.app.listeners[1:3]]
        talks = [Talk(running, era, url=f"http://127.0.0.1:{port}") for port in ports]
        for talk in talks:
            await talk.call("count")
        stolen = Talk(running, era, url=talks[1].url, session=talks[0].session)
        if era == "session":
            assert (await stolen.call("count"))[0] == 404
        got = [int(text(await talk.call("count")).split()[0]) for talk in talks]
        assert got == ([3, 4] if shared else [2, 2])


async def test_a_thousand_calls_are_one_program(tmp_path: Path) -> None:
    """BL-100."""
    async with talking(before(tmp_path), "session") as talk:
        await talk.call("count")
        below = len(children_of(os.getpid()))
        for _ in range(10):
            await asyncio.gather(*(talk.call("count") for _ in range(100)))
        assert text(await talk.call("count")).split()[0] == "1002"
        assert len(children_of(os.getpid())) == below


@pytest.mark.parametrize(("how", "detail"), TABLES["troubles"])
async def test_a_program_that_misbehaves_fails_its_own_call_at_once(tmp_path: Path, how: str, detail: str) -> None:
    settings = 'server: {listen: "127.0.0.1:0", max_response_bytes: 1MiB}\n'
    async with before(tmp_path, settings=settings) as running:
        one, two = Talk(running, "session"), Talk(running, "session")
        await two.call("count")
        async with asyncio.timeout(10):  # a third of what a call may take
            error = (await one.call("misbehave", {"how": how}))[1]["error"]
        assert error["data"]["reason"] in ("upstream-failed", "response-refused") and detail in error["message"], error
        assert text(await two.call("count")).split()[0] == "2"  # nobody else noticed
        one.session = ""
        assert text(await one.call("count")).split()[0] == "1"


async def test_who_breaks_his_own_program_again_and_again_takes_it_from_nobody_else(tmp_path: Path) -> None:
    async with before(tmp_path) as running:
        other = Talk(running, "session")
        await other.call("count")
        for _ in range(8):
            await Talk(running, "session").call("misbehave", {"how": "exit"})
        assert text(await other.call("count")).split()[0] == "2"


async def test_a_flood_of_errors_and_some_noise_hold_up_nothing(tmp_path: Path) -> None:
    async with talking(before(tmp_path), "session") as talk:
        for how in ("some_noise", "flood_errors"):
            assert text(await talk.call("misbehave", {"how": how})) == "behaved"


async def test_a_program_that_hangs_is_held_to_the_deadline_and_ended_with_its_session(tmp_path: Path) -> None:
    async with talking(before(tmp_path, PROGRAM + ", timeout_s: 0.5"), "session") as talk:
        pid = int(text(await talk.call("count")).split()[1])
        error = (await talk.call("misbehave", {"how": "hang"}))[1]["error"]
        assert error["data"]["reason"] == "upstream-timeout"
        await talk.verb("DELETE")
        await until(lambda: not alive(pid))


async def test_a_program_that_never_lives_is_started_ever_less_often(tmp_path: Path) -> None:
    async with before(tmp_path, moody("exit"), upstream_settings="breaker: {failures: 1000}") as running:
        answers = [(await Talk(running, "session").open())[1]["error"] for _ in range(6)]
        assert {answer["data"]["reason"] for answer in answers} == {"upstream-failed"}
        assert "it is not started again for" in answers[-1]["message"]
        assert answers[-1]["data"]["retry_after_s"] >= 1


async def test_who_asks_again_and_again_while_a_program_rests_opens_no_breaker(tmp_path: Path) -> None:
    async with before(tmp_path, PROGRAM + ", shared: true") as running:
        for _ in range(2):
            assert reason_of(await Talk(running, "session").call("misbehave", {"how": "exit"})) == "upstream-failed"
        while reason_of(resting := await Talk(running, "session").open()) == "upstream-failed":
            assert "it is not started again" in resting[1]["error"]["message"]
            await asyncio.sleep(0.02)
        assert resting[0] == 200 and "result" in resting[1]


async def test_a_program_gets_what_it_is_given_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BL-080."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-sidecar")
    program = PROGRAM + ', env: {TOKEN: "theirs", LANG: de_DE}'
    async with before(tmp_path, program) as running:
        told = json.loads(text(await Talk(running, "session").call("whoami")))
    told["env"].pop("LC_CTYPE", None)  # Python's own
    assert told["env"] == {"TOKEN": "theirs", "LANG": "de_DE"}
    assert set(told["fds"]) <= {"0", "1", "2"} and all(held.startswith("pipe:") for held in told["fds"].values())
    assert told["umask"] == 0o077 and told["leads"] and told["files"] == []
    assert not Path(told["cwd"]).exists()  # its own, and gone with it


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody adopts what left its group")
async def test_everything_that_a_program_started_ends_with_it(tmp_path: Path) -> None:
    """BL-074."""
    async with talking(before(tmp_path, moody("deaf", "orphans")), "session") as talk:
        await talk.call("count")
        warden = talk.world.app.processes.warden_pid
        await until(lambda: len(children_of(warden)) >= 8)  # two programs, each with its keeper and three more
        below = children_of(warden)
    assert not [pid for pid in below if alive(pid)]


PROMPTS = ["--version", "-p x", "--", "@/etc/hosts", "a\nb\r\n", "a\0b", "\u2028 $(touch x) `x` %s", "x" * 200_000]


async def test_what_a_caller_says_reaches_a_program_as_it_is_and_never_its_command_line(tmp_path: Path) -> None:
    """BL-093."""
    async with talking(before(tmp_path, moody("deaf")), "session") as talk:
        for prompt in PROMPTS:
            answer = await talk.call("repeat", {"text": prompt})
            assert answer[0] == 400 if "\0" in prompt else text(answer) == prompt
        assert json.loads(text(await talk.call("whoami", {"argv": ["--version"]})))["argv"] == ["deaf"]


ADDRESSES = ["/mcp/github", "/mcp", "/mcp/github/messages", "/mcp/github/tools/count", "/mcp/test", "/mcp/$(touch x)"]
ADMIN = ["/api/upstreams", "/api/mcp/test", "/mcp/test", "/api/principals/disable", "/api/reload", "/status"]


async def test_nothing_is_ever_started_from_a_request(tmp_path: Path) -> None:
    """BL-029."""
    async with world(tmp_path, rules=RULES) as running:
        urls = [running.url + address for address in ADDRESSES] + [running.admin_url + address for address in ADMIN]
        for attack in TABLES["attacks"]:
            bodies: list[object] = [attack, *(request(method, attack) for method in ("tools/call", "initialize", "x"))]
            for url in urls:
                for body in bodies:
                    status, _, _ = await running.post(body, url=url)
                    assert status < 500
        assert running.app.processes.warden_pid is None  # not even who would start it
