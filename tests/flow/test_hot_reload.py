"""Do changed files come into force by themselves, however they were changed, and only when they are right?"""

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import sidecar.app.file_watcher
from sidecar.cli import main
from tests.flow.causes import full_disk
from tests.flow.idp import SETTINGS as WITH_IDP, Idp, bearer
from tests.flow.test_admin import get
from tests.flow.world import RULES, World, until, world, write_folder
from tests.tables import tables

WIDER = RULES + "#: id=deletes\np, nhi:planner, tool:github/delete_repo, use, -, -, -, allow\n"
WRONG = RULES + "p, nhi:planner, tool:github/delete_repo, tool/call, -, -, -, allow\n"
QUIET_S = 0.5  # longer than a change takes to be noticed, settled and read
FILE = "agent_to_tool.csv"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar.app.file_watcher, "LOOK_S", 0.05)


def controls(running: World, what: str = "reload") -> list[dict[str, Any]]:
    found = [record["control"] for record in running.records() if record["event"] == "control"]
    return [control for control in found if control["what"] == what]


async def deletes(running: World) -> int:
    return (await running.call("delete_repo", {}))[0]


async def taken(running: World, times: int = 1) -> None:
    await until(lambda: len(controls(running)) >= times)


# --- ways to write --------------------------------------------------------------------------------------------------


def plain(folder: Path, rules: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(rules)


def renamed(folder: Path, rules: str) -> None:
    (folder / f".{FILE}.tmp").write_text(rules)
    (folder / f".{FILE}.tmp").replace(folder / FILE)


def as_vim_does(folder: Path, rules: str) -> None:
    """Swap file, probe, backup, write, and all of it gone in the end."""
    (folder / f".{FILE}.swp").write_text("vim")
    (folder / "4913").touch()
    (folder / "4913").unlink()
    (folder / FILE).rename(folder / f"{FILE}~")
    (folder / FILE).write_text(rules)
    (folder / f"{FILE}~").unlink()
    (folder / f".{FILE}.swp").unlink()


def mounted(folder: Path, rules: str) -> None:
    """As Kubernetes mounts a ConfigMap: every name is a link through `..data`, which is turned in one step."""
    folder.mkdir(parents=True, exist_ok=True)
    version = folder / f"..{len(list(folder.iterdir()))}"
    plain(version, rules)
    (folder / "..data_tmp").symlink_to(version.name)
    (folder / "..data_tmp").replace(folder / "..data")
    if not (folder / FILE).is_symlink():
        (folder / FILE).symlink_to(f"..data/{FILE}")
    for old in folder.glob("..[0-9]*"):
        if old != version:
            (old / FILE).unlink()
            old.rmdir()


def made_anew(folder: Path, rules: str) -> None:
    (folder / FILE).unlink()
    folder.rmdir()
    plain(folder, rules)


def checked_out(folder: Path, rules: str) -> None:
    """As git-sync does: the folder lies behind a link that is turned to another checkout."""
    link = folder.parent
    link.parent.mkdir(parents=True, exist_ok=True)
    checkout = link.with_name(f"{link.name}-{len(list(link.parent.iterdir()))}")
    plain(checkout / folder.name, rules)
    (link.parent / "turning").symlink_to(checkout.name)
    (link.parent / "turning").replace(link)


def deep_inside(folder: Path, rules: str) -> None:
    plain(folder, RULES)
    extra = folder / "teams" / "release" / "agent_to_tool.release.csv"
    extra.parent.mkdir(parents=True, exist_ok=True)
    extra.write_text(rules.removeprefix(RULES) or "p, nhi:other, tool:github/get_file, use, -, -, -, allow\n")


@pytest.mark.parametrize("change", [plain, renamed, as_vim_does, mounted, made_anew, checked_out, deep_inside])
async def test_a_change_is_taken_however_it_is_made(change: Callable[[Path, str], None], tmp_path: Path) -> None:
    folder = tmp_path / "mounts" / "current" / "rules"
    make = change if change in (mounted, checked_out) else plain
    make(folder, RULES)
    async with world(tmp_path, settings="policy: {path: mounts/current/rules}\n") as running:
        for times, (rules, status) in enumerate([(WIDER, 200), (RULES, 403)], start=1):
            change(folder, rules)
            await taken(running, times)
            assert await deletes(running) == status
        assert {control["by"] for control in controls(running)} == {"file change"}
        assert controls(running, "reload-failed") == []


async def test_a_burst_of_writes_is_one_change(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        for number in range(40):
            (tmp_path / "policies" / FILE).write_text(RULES + f"#: id=n{number}\n" + WIDER.splitlines()[-1] + "\n")
            await asyncio.sleep(0.01)
        await taken(running)
        await asyncio.sleep(QUIET_S)
        assert len(controls(running)) == 1
        status, body, _ = await running.call("delete_repo", {})
        assert status == 200, body


async def test_who_never_stops_writing_is_read_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar.app.file_watcher, "LONGEST_S", 0.5)
    async with world(tmp_path) as running:
        async with asyncio.timeout(20):
            while not controls(running):
                renamed(tmp_path / "policies", WIDER + f"# {time.monotonic()}\n")
                await asyncio.sleep(0.05)


# --- what is no change ----------------------------------------------------------------------------------------------


async def test_what_changes_nothing_is_not_told_and_what_an_editor_left_is_no_policy_and_no_fault(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "policies"
    async with world(tmp_path) as running:

        def noticed() -> tuple[object, object]:
            return {**running.app.status(), "requests": ...}, running.app.live.current  # requests have a period

        before = noticed()
        left = (f".{FILE}.swp", f"{FILE}~", f"{FILE}.swp", f"{FILE}.tmp", f"#{FILE}#", f".#{FILE}", "4913")
        for change in (
            lambda: os.utime(folder / FILE),
            lambda: renamed(folder, RULES + "# no rule at all\n"),
            lambda: [(folder / name).write_text("no policy at all") for name in left],
        ):
            change()
            await asyncio.sleep(QUIET_S)
            assert noticed() == before
        assert [record["control"]["what"] for record in running.records()] == ["start"]
        await running.app.reload("test")
        told = [line for line in running.app.status()["policy"]["warnings"] if "P007" in line]
        assert len(told) == 5 and all("an editor left this file" in line for line in told)
        assert (await get(running, "/readyz"))[1].count("ready") == 1


async def test_a_reload_goes_on_though_its_operator_disconnects(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        before = running.app.watcher.seen
        plain(tmp_path / "policies", WIDER)
        _, writer = await asyncio.open_unix_connection(running.app.settings.control_path)
        writer.write(b"POST /api/reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
        await until(lambda: running.app.watcher.seen is not before)
        writer.transport.abort()
        await taken(running)
        assert await deletes(running) == 200 and "file change" not in {one["by"] for one in controls(running)}


async def test_nothing_is_watched_if_the_operator_says_so(tmp_path: Path) -> None:
    async with world(tmp_path, settings="policy: {watch: false}\n") as running:
        plain(tmp_path / "policies", WIDER)
        await asyncio.sleep(QUIET_S)
        assert await deletes(running) == 403
        await running.app.reload("test")
        assert await deletes(running) == 200
        assert [control["by"] for control in controls(running)] == ["test"]


# --- what is wrong --------------------------------------------------------------------------------------------------


async def test_a_wrong_file_is_told_once_and_forgotten_when_it_is_right_again(tmp_path: Path) -> None:
    rules = tmp_path / "policies" / FILE
    async with world(tmp_path) as running:
        rules.write_text(WRONG)
        await until(lambda: bool(running.app.reloader.trouble))
        for _ in range(2):
            os.utime(rules)
            await asyncio.sleep(QUIET_S)
        status, body = await get(running, "/readyz")
        assert status == 200 and "P104" in body and "degraded" in body
        assert f"{FILE}:5:" in str(running.app.status()["reasons"]) and FILE not in body
        assert len(controls(running, "reload-failed")) == 1
        assert 'sidecar_policy_reloads_total{result="failed"} 1.0' in await running.metrics()
        assert await deletes(running) == 403
        rules.write_text(WRONG.replace("tool/call", "tools/cal"))  # wrong in another way
        await until(lambda: len(controls(running, "reload-failed")) == 2)
        rules.write_text(RULES)
        await until(lambda: not running.app.reloader.trouble)
        assert "degraded" not in (await get(running, "/readyz"))[1]
        assert controls(running) == []  # what served all the time was not loaded anew
        assert 'sidecar_policy_reloads_total{result="ok"} 0.0' in await running.metrics()


async def test_a_policy_that_is_gone_for_a_while_serves_on(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    async with world(tmp_path) as running:
        folder.rename(tmp_path / "away")
        await until(lambda: bool(running.app.reloader.trouble))
        assert (await running.call("search_code", {"repo": "acme/site"}))[0] == 200
        plain(tmp_path / "away", WIDER)
        (tmp_path / "away").rename(folder)
        await taken(running)
        assert await deletes(running) == 200 and not running.app.reloader.trouble


async def test_what_could_not_be_recorded_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar.app.file_watcher, "RETRY_S", 0.2)
    async with world(tmp_path) as running:
        before = running.app.live.current
        with full_disk(running):
            plain(tmp_path / "policies", WIDER)
            await until(lambda: any("the audit cannot be written" in line for line in running.app.reloader.trouble))
            assert running.app.live.current is before
        await taken(running)
        assert await deletes(running) == 200


async def test_whoever_is_stopped_while_looking_stops(tmp_path: Path) -> None:
    for number in range(6):
        async with asyncio.timeout(30), world(tmp_path / str(number)):
            await asyncio.sleep(number / 250)


# --- what else is watched -------------------------------------------------------------------------------------------


async def test_a_new_key_and_a_new_setting_are_taken_too(tmp_path: Path) -> None:
    idp = Idp()
    known = idp.api_key("nhi:planner")
    async with world(tmp_path, settings=WITH_IDP, files=idp.files(), principal="") as running:
        assert (await running.call("get_file", {"path": "a"}, headers=bearer(known)))[0] == 200
        later = idp.api_key("nhi:planner")
        assert (await running.call("get_file", {"path": "a"}, headers=bearer(later)))[0] == 401
        (tmp_path / "keys.yaml").write_text(idp.files()["keys.yaml"])
        await taken(running)
        assert (await running.call("get_file", {"path": "a"}, headers=bearer(later)))[0] == 200
        config = tmp_path / "sidecar.yaml"
        config.write_text(config.read_text() + "answers: {disclosure: hide}\n")
        await taken(running, 2)
        refused = (await running.call("delete_repo", {}, headers=bearer(later)))[1]
        assert "reason" not in refused["error"]["data"]


# --- tests of its own -----------------------------------------------------------------------------------------------

SUITE = tables("flow/hot_reload")["suite"]


async def test_a_policy_that_fails_its_own_tests_does_not_serve(tmp_path: Path) -> None:
    files = {"policies/tests/planner.yaml": SUITE}
    async with world(tmp_path, files=files) as running:
        plain(tmp_path / "policies", WIDER)
        await until(lambda: bool(running.app.reloader.trouble))
        assert "planner deletes nothing" in str(running.app.status()["reasons"])
        assert json.loads((await get(running, "/readyz"))[1])["faults"] == {"T201": 1}
        assert await deletes(running) == 403
        suite = tmp_path / "policies" / "tests" / "planner.yaml"
        suite.write_text(SUITE.replace("deletes nothing", "deletes").replace("expect: deny", "expect: allow"))
        await taken(running)
        assert await deletes(running) == 200


async def test_policies_that_served_before_are_kept_as_far_as_they_are_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.gateway.snapshot.MAX_PAST", 2)
    async with world(tmp_path) as running:
        live, served = running.app.live, dict[str, str]()

        async def serve(name: str, rules: str) -> list[str]:
            plain(tmp_path / "policies", rules)
            served[await running.app.reload("olga")] = name
            return [served[past.engine.revision] for past in live.past]

        served[live.current.engine.revision] = "first"
        assert await serve("wider", WIDER) == ["first"]
        row = "p, nhi:other, tool:github/get_file, use, -, -, -, allow\n"
        assert await serve("third", RULES + row) == ["wider", "first"]
        assert await serve("first", RULES) == ["third", "wider"]  # what serves again is not among them
        assert await serve("fourth", WIDER + row) == ["first", "third"]
        assert live.past[0].until_s <= time.time() and live.past[0].budgets is not None
        monkeypatch.setattr("sidecar.gateway.snapshot.MAX_PAST_ROWS", 3)
        assert await serve("wider", WIDER) == []  # the fourth has more rows


def test_a_start_runs_the_tests_of_the_policy(tmp_path: Path) -> None:
    files = {"policies/tests/planner.yaml": SUITE}
    for self_test, code in (("true", 3), ("false", 0)):
        write_folder(tmp_path, "http://127.0.0.1:9/mcp", WIDER, files, f"policy: {{self_test: {self_test}}}\n")
        done = CliRunner().invoke(main, ["check", "-c", str(tmp_path / "sidecar.yaml")])
        assert (done.exit_code, "planner.yaml" in done.stderr) == (code, code == 3), done.stderr
