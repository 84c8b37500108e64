"""What operators see: health, metrics, status, reload, and who may."""

import asyncio
import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from aiohttp import web

from tests.flow.causes import full_disk
from tests.flow.world import RULES, World, until, world

SECRET = "4f1c9f0b7a6d4e52b8c3d1a09e7f6b5c"
SETTINGS = """\
admin:
  listen: "127.0.0.1:0"
  credentials: [{role: operator, secret_path: op.key}, {role: viewer, secret_path: view.key}]
"""
VIEW = "b2d64c1e8f0a4739a5c7e91d3f6b8a20"


def files() -> dict[str, str]:
    return {"op.key": SECRET, "view.key": VIEW}


async def get(world: World, path: str, secret: str = "", verb: str = "GET", **headers: str) -> tuple[int, str]:
    sent = {"Authorization": f"Bearer {secret}"} if secret else {}
    async with world.http.request(verb, world.admin_url + path, headers=sent | headers) as response:
        return response.status, await response.text()


async def test_without_a_credential_there_is_health_and_metrics_and_for_a_page_from_elsewhere_nothing(
    planner: World,
) -> None:
    for path, expected in {"/livez": 200, "/readyz": 200, "/metrics": 200, "/status": 404, "/api/reload": 404}.items():
        assert (await get(planner, path))[0] == expected, path
    for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
        assert (await get(planner, "/metrics", **headers))[0] == 403


async def test_a_role_may_what_it_may(tmp_path: Path) -> None:
    async with world(tmp_path, settings=SETTINGS, files=files()) as running:
        for verb, path, answers in (
            ("GET", "/status", {"": 401, "wrong": 401, SECRET[:-1]: 401, VIEW: 200, SECRET: 200}),
            ("POST", "/status", {SECRET: 405}),
            ("POST", "/api/reload", {VIEW: 403, "": 401, SECRET: 200}),
            ("GET", "/api/nothing", {SECRET: 404}),
            ("POST", "/mcp/github", {SECRET: 404}),
        ):
            for secret, expected in answers.items():
                assert (await get(running, path, secret, verb))[0] == expected, (verb, path, secret)


@pytest.mark.parametrize(("verb", "expected"), [("POST", ["begun", "done"]), ("GET", ["begun", "cancelled"])])
async def test_an_order_is_carried_out_though_its_operator_disconnects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, expected: list[str]
) -> None:
    """Every order: what has begun is also stored and recorded. What is only read ends."""
    seen, goes_on = list[str](), asyncio.Event()

    async def answer(*_: object, **__: object) -> web.Response:
        seen.append("begun")
        try:
            await goes_on.wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        seen.append("done")
        return web.Response()

    monkeypatch.setattr("sidecar.admin.routes.answer_operator", answer)
    async with world(tmp_path) as running:
        _, writer = await asyncio.open_unix_connection(running.app.settings.control_path)
        writer.write(f"{verb} /api/anything HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
        await until(lambda: bool(seen))
        writer.transport.abort()
        await asyncio.sleep(0.05)
        goes_on.set()
        await until(lambda: seen == expected)


async def test_a_reload_takes_new_rules_and_a_bad_file_keeps_the_old_ones(tmp_path: Path) -> None:
    """BL-022: the old policy keeps serving."""
    rules = tmp_path / "policies" / "agent_to_tool.csv"
    async with world(tmp_path, settings=SETTINGS, files=files()) as running:
        assert (await running.call("delete_repo", {}))[0] == 403
        rules.write_text(RULES + "p, nhi:planner, tool:github/delete_repo, use, -, -, -, allow\n")
        assert (await get(running, "/api/reload", SECRET, "POST"))[0] == 200
        assert (await running.call("delete_repo", {}))[0] == 200
        rules.write_text(RULES + "p, nhi:planner, tool:github/delete_repo, tool/call, -, -, -, allow\n")
        status, body = await get(running, "/api/reload", SECRET, "POST")
        assert status == 409 and "agent_to_tool.csv:5" in body and "tools/call" in body
        assert (await running.call("delete_repo", {}))[0] == 200
        status, body = await get(running, "/readyz")
        assert status == 200 and "degraded" in body
        rules.write_text(RULES)
        with full_disk(running):  # what cannot be recorded does not happen
            status, body = await get(running, "/api/reload", SECRET, "POST")
        assert status == 409 and "audit cannot be written" in body
        assert (await running.call("delete_repo", {}))[0] == 200
        events = [record["control"]["what"] for record in running.records() if record["event"] == "control"]
        assert events == ["start", "reload", "reload-failed"]


async def test_a_stranger_reads_codes_and_counts_and_no_line_of_a_file(tmp_path: Path) -> None:
    """A faulty row, and through a link the first line of any file, were shown to whoever asked `/readyz`."""
    policies, key = tmp_path / "policies", tmp_path / "audit.key"
    key.write_text("a-secret-of-someone-else\n")
    async with world(tmp_path, settings=SETTINGS, files=files()) as running:
        (policies / "agent_to_tool.csv").write_text(
            RULES + "p, nhi:planner, tool:github/secret, tool/call, -, -, -, allow\n"
        )
        for name in ("user_to_nhi.csv", "budgets.yaml", "disabled.yaml", "pins.yaml", "tests"):
            (policies / name).symlink_to(key)
        assert (await get(running, "/api/reload", SECRET, "POST"))[0] == 409
        status, body = await get(running, "/readyz")
        told = {"P104": 1, "P009": 5}
        shown = {"status": "degraded", "reasons": {"files-refused": 6}, "faults": told}
        assert (status, json.loads(body)) == (200, shown)
        _, full = await get(running, "/status", VIEW)
        assert "tool/call" in full and "a link that leads out" in full and "a-secret-of-someone-else" not in full


async def test_a_change_that_needs_a_restart_is_told_and_not_half_applied(tmp_path: Path) -> None:
    async with world(tmp_path, settings=SETTINGS, files=files()) as running:
        settings = tmp_path / "sidecar.yaml"
        sizes = settings.read_text().replace("server: {", "server: {max_body_bytes: 1024, ")
        for text, section in ((settings.read_text() + "sessions: {idle_s: 5}\n", "sessions"), (sizes, "server")):
            settings.write_text(text)
            assert (await get(running, "/api/reload", SECRET, "POST"))[0] == 200
            assert f"{section} changed" in (await get(running, "/status", VIEW))[1]
            assert json.loads((await get(running, "/readyz"))[1])["reasons"] == {"restart-needed": 1}
        assert (await running.call("get_file", {"path": "x" * 2000}))[0] == 200


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")
async def test_promtool_is_content(planner: World) -> None:
    await planner.call("search_code", {"repo": "acme/a"})
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=await planner.metrics(), text=True, capture_output=True, timeout=20
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


FILLING = "".join(f"p, nhi:n{number}, tool:github/t{number}, use, -, -, -, allow\n" for number in range(300))
TURNS = [
    f"#: id={name}\np, nhi:planner, tool:github/{tool}, use, -, -, -, allow\n{FILLING}"
    for name, tool in (("old", "get_file"), ("new", "delete_repo"))
]
ALLOWS = {"old": "get_file", "new": "delete_repo"}


async def test_in_a_storm_of_reloads_every_decision_is_the_old_or_the_new_one_and_none_a_mixture(
    tmp_path: Path,
) -> None:
    """BL-081: each revision allows what the other denies."""
    rules, over = tmp_path / "policies" / "agent_to_tool.csv", asyncio.Event()
    statuses: Counter[tuple[str, int]] = Counter()

    async def caller(running: World, tool: str) -> None:
        while not over.is_set():
            status, _, _ = await running.call(tool, {})
            statuses[tool, status] += 1

    async with world(tmp_path, rules=TURNS[0]) as running:
        names = {running.app.live.current.engine.revision: "old"}
        async with asyncio.TaskGroup() as load:
            for tool in [*ALLOWS.values()] * 4:
                load.create_task(caller(running, tool))
            for turn in range(1, 25):
                rules.write_text(TURNS[turn % 2])
                names[await running.app.reload("test")] = "old" if turn % 2 == 0 else "new"
            over.set()
        ends = running.ends()
    assert {status for _, status in statuses} == {200, 403} and len(names) == 2
    assert set(Counter(record["policy_revision"] for record in ends)) == set(names)
    for record in ends:
        revision = names[record["policy_revision"]]
        allowed = record["tool"] == ALLOWS[revision]
        assert (record["http_status"], record["reason"]) == ((200, None) if allowed else (403, "no-matching-rule"))
        assert record["links"][0]["rules"] == ([revision] if allowed else [])
