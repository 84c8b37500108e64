"""`sidecar status` and `sidecar reload`, against a running sidecar."""

import asyncio
import inspect
import json
import re
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sidecar.app.status import PERIOD_S, SAMPLE_EVERY_S, RecentRequests, StatusReport
from sidecar.cli import main
from sidecar.observability.metrics import DEGRADED_REASONS
from tests.flow.forks import sidecar
from tests.flow.world import PATIENCE_S, RULES, World, until, world

GOOD = {"repo": "acme/x"}
AGENTS = 'agents: {echo: {executable: "true"}}\nschedules: {nightly: {agent: echo, cron: "0 2 * * *"}}\n'


async def command(running: World, *words: str) -> Result:
    line = [*words, "-c", str(running.folder / "sidecar.yaml")]
    return await asyncio.to_thread(CliRunner().invoke, main, line)


async def test_one_screen_tells_how_it_stands(tmp_path: Path) -> None:
    async with world(tmp_path, settings=AGENTS) as running:
        for _ in range(3):  # three in an hour is the limit of the rule
            await running.call("get_file", GOOD)
        await running.call("get_file", GOOD)
        await running.call("delete_repo", GOOD)
        await until(lambda: bool(running.app.scheduler.seen()))
        done = await command(running, "status")
        assert done.exit_code == 0, done.output
        revision = running.app.live.current.engine.revision
        assert re.match(r"sidecar \S+  ready  up \d+s\n", done.output)
        for line in (
            rf"policy +{revision}  enforce  2 rules",
            r"requests +3 success, 1 permission denied, 1 rate limited in the last \d+s",
            r"store +memory  up",
            r"audit +written",
            r"github +ready +closed +3 +0 +\d+\.\d ms +3",
            r"echo +\S+ +closed +0 +0 +- +0 of 4",
            r"nightly +\w+ +\S+ +-",
            r"rule:planner-reads +nhi:planner +100% ",
        ):
            assert re.search(rf"^{line}", done.output, re.MULTILINE), (line, done.output)
        assert "rule:planner-searches" not in done.output


async def test_json_has_the_status_and_the_limits_near_their_end(planner: World) -> None:
    for _ in range(2):
        await planner.call("get_file", GOOD)
    found = json.loads((await command(planner, "status", "--json")).output)
    assert (found["status"], found["limits"]) == ("ready", [])  # two of three are less than four fifths
    await planner.call("get_file", GOOD)
    found = json.loads((await command(planner, "status", "--json")).output)
    assert [(one["limit"], one["used"], one["most"]) for one in found["limits"]] == [("rule:planner-reads", 3, 3)]
    assert found["requests"]["by_status"]["success"] == 3


async def test_why_it_is_degraded_is_on_the_screen_and_cannot_move_the_cursor(planner: World) -> None:
    rules = planner.folder / "policies" / "agent_to_tool.csv"
    rules.write_text(RULES + "p, nhi:planner, tool:github/\x1b[2Jx, tool/call, -, -, -, allow\n")
    reloaded = await command(planner, "reload")
    assert (reloaded.exit_code, "\x1b" in reloaded.output) == (3, False)
    assert "agent_to_tool.csv:5" in reloaded.output and reloaded.output.endswith("the old policy continues to serve\n")
    shown = (await command(planner, "status")).output
    assert "  degraded  up" in shown and "  ! the newest files are not in force, the old policy serves\n" in shown
    assert "\n    " in shown and "\x1b" not in shown


async def until_degraded(running: World, reason: str, count: int) -> None:
    line = f'sidecar_degraded{{reason="{reason}"}} {count:.1f}'
    async with asyncio.timeout(PATIENCE_S):
        while line not in await running.metrics():
            await asyncio.sleep(0.05)


def test_each_reason_for_being_degraded_has_a_series() -> None:
    source = Path(inspect.getfile(StatusReport)).read_text("utf-8")
    named = {*re.findall(r'Trouble\("([a-z-]+)"', source), *re.findall(r'"(store-[a-z]+)"', source)}
    named |= {f"{store}-store-out" for store in re.findall(r'^            \("([a-z-]+)", ', source, re.MULTILINE)}
    assert named == {*DEGRADED_REASONS}


async def test_reload_names_the_revision_that_serves_and_what_waits_for_a_restart(planner: World) -> None:
    rules, settings = planner.folder / "policies" / "agent_to_tool.csv", planner.folder / "sidecar.yaml"
    rules.write_text(RULES + "p, nhi:planner, tool:github/delete_repo, use, -, -, -, allow\n")
    before = planner.app.live.current.engine.revision
    done = await command(planner, "reload")
    now = planner.app.live.current.engine.revision
    assert now != before and (done.exit_code, done.output) == (0, f"revision {now} serves\n")
    settings.write_text(settings.read_text() + "sessions: {idle_s: 5}\n")
    done = await command(planner, "reload")
    assert done.output.splitlines()[1:] == ["   note: sessions changed, which takes effect at a restart"]
    told = json.loads((await command(planner, "reload", "--json")).output)
    assert told == {"revision": now, "needs_restart": ["sessions"]}
    rules.write_text("p, nobody\n")
    done = await command(planner, "reload", "--json")
    assert (done.exit_code, bool(json.loads(done.output)["faults"])) == (3, True)
    settings.write_text(settings.read_text() + "sesions: {}\n")
    assert (await command(planner, "reload")).exit_code == 3


@pytest.mark.parametrize("words", [["status"], ["status", "--json"], ["reload"], ["reload", "--json"]])
def test_without_a_sidecar_it_says_that_none_answers(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "sidecar.yaml").write_text("version: 1\n")
    done = CliRunner().invoke(main, [*words, "-c", str(tmp_path / "sidecar.yaml")])
    assert done.exit_code == 1 and done.output.startswith("no sidecar answers here")


async def test_watching_goes_on_while_none_answers_and_ends_quietly(planner: World) -> None:
    control, away = planner.app.settings.control_path, planner.folder / "away"
    words = ("status", "--watch", "--every", "0.2", "--json", "-c", str(planner.folder / "sidecar.yaml"))
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    running = await asyncio.create_subprocess_exec(sidecar(), *words, limit=2**20, **pipes)
    assert running.stdout is not None and running.stderr is not None
    async with asyncio.timeout(PATIENCE_S):
        assert json.loads(await running.stdout.readline())["status"] == "ready"
        control.rename(away)
        assert (await running.stderr.readline()).startswith(b"no sidecar answers here")
        away.rename(control)
        while json.loads(await running.stdout.readline())["status"] != "ready":
            pass
        running.send_signal(signal.SIGINT)
        assert await running.wait() == 0
        assert b"Traceback" not in await running.stderr.read()


def test_recent_requests_are_those_of_the_last_minutes() -> None:
    now_s, count = 0.0, 0

    def counted() -> Mapping[str, int]:
        return {"success": count}

    recent = RecentRequests(counted, lambda: now_s, lambda: now_s)
    for second in range(2 * PERIOD_S):  # one request in each second
        now_s, count = float(second), second
        recent.look()
    told = recent.plain()
    assert PERIOD_S <= told["period_s"] < PERIOD_S + SAMPLE_EVERY_S
    assert told["by_status"]["success"] == int(told["period_s"]) == sum(told["by_status"].values())
    series = recent.series()
    assert series["at"] == [*range(SAMPLE_EVERY_S, 2 * PERIOD_S + 1, SAMPLE_EVERY_S)]
    assert series["by_status"]["success"] == [SAMPLE_EVERY_S] * (len(series["at"]) - 1) + [SAMPLE_EVERY_S - 1]
