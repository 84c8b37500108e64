"""The console's pages about agents: programs, runs with their output, schedules and tasks."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.flow.test_agent_commands import commands, controls
from tests.flow.test_console import JSON, SETTINGS, VIEWER, Browser, browsed
from tests.flow.world import PATIENCE_S, World

EVIL = "<img src=x onerror=alert(1)>"
SHOWN = "&lt;img src=x onerror=alert(1)&gt;"
AGENTS = f"""\
agents:
  echo: {{executable: /bin/sh, args: [-c, "cat; echo; echo '{EVIL}'"], name: "{EVIL}", description: "says {EVIL}"}}
  slow: {{executable: /bin/sh, args: [-c, "echo begun; read line; echo over; exec sleep 60"]}}
  steps:
    executable: /bin/sh
    args: [-c, "for i in 1 2; do until [ -e go$i ]; do sleep 0.02; done; echo step $i; done"]
    working_directory: .
  fails: {{executable: /bin/sh, args: [-c, "echo half; echo '{EVIL}' >&2; exit 3"]}}
  asks: {{executable: /bin/sh, args: [asks.sh], agent_type: json-rpc, working_directory: .}}
  closed: {{executable: /bin/sh, enabled: false}}
schedules:
  nightly: {{agent: echo, cron: "0 2 * * *", name: "{EVIL}", input_parameters: {{prompt: hello}}}}
  weekly: {{agent: fails, cron: "@weekly", principal: nhi:operator}}
"""
ASKS = r"""read line
case $line in
  *'"text":"red"'*) echo '{"jsonrpc": "2.0", "id": 1, "result": "red it is"}';;
  *) echo '{"jsonrpc": "2.0", "id": 1, "result": {"state": "input-required", "text": "which <b>colour</b>?"}}';;
esac
"""
POLICY = "".join(
    f"p, {who}, nhi:{agent}, message/send, -, -, -, allow\n"
    for who, agent in [
        *(("nhi:operator", agent) for agent in ("echo", "slow", "steps", "fails", "asks")),
        ("nhi:nightly", "echo"),
    ]
)


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[tuple[World, Browser]]:
    files = {"policies/nhi_to_nhi.csv": POLICY, "asks.sh": ASKS}
    async with browsed(tmp_path, settings=SETTINGS + AGENTS, files=files) as (running, browser):
        await browser.log_in()
        yield running, browser


async def data(browser: Browser, path: str) -> Any:
    """What a page answers to a program."""
    status, body, _ = await browser.get(f"/console/{path}", **JSON)
    assert status == 200, (path, body)
    return json.loads(body)


async def shown(browser: Browser, path: str) -> str:
    status, page, _ = await browser.get(f"/console/{path}")
    assert status == 200, (path, page)
    assert EVIL not in page
    return page


async def acted(browser: Browser, path: str, **form: str) -> str:
    """Where a form leads, as a path below /console/."""
    form["csrf"] = await browser.csrf()
    status, page, headers = await browser.post(f"/console/{path}", form)
    assert status == 303, (path, page)
    return str(headers["Location"]).removeprefix("/console/")


async def ended(browser: Browser, run: str) -> Any:
    """The data of a run's page, once it is over."""
    async with asyncio.timeout(PATIENCE_S):
        while not (found := await data(browser, run))["run"]["is_over"]:
            await asyncio.sleep(0.02)
    return found


@asynccontextmanager
async def heard(browser: Browser, path: str) -> AsyncIterator[AsyncIterator[tuple[str, str]]]:
    """The events of a stream, as they come."""

    async def events() -> AsyncIterator[tuple[str, str]]:
        name, lines = "", list[str]()
        async for raw in response.content:
            key, _, value = raw.decode().rstrip("\n").partition(": ")
            if key == "event":
                name, lines = value, []
            elif key == "data":
                lines.append(value)
            elif not key and name:
                yield name, "\n".join(lines)
                name = ""

    async with (
        asyncio.timeout(PATIENCE_S),
        browser.http.get(f"{browser.base}/console/{path}", headers={"Accept": "text/event-stream"}) as response,
    ):
        assert response.status == 200
        yield events()


async def test_an_agent_is_run_and_its_run_looked_at(made: tuple[World, Browser]) -> None:
    running, browser = made
    page = await shown(browser, "agents")
    assert SHOWN in page and "No run is under way." in page and "disabled" in page
    found = await data(browser, "agents")
    assert [one["name"] for one in found["rows"]] == ["asks", "closed", "echo", "fails", "slow", "steps"]
    assert [one["name"] for one in (await data(browser, "agents?agent=LO"))["rows"]] == ["closed", "slow"]
    assert "No agent has" in await shown(browser, f"agents?agent={quote(EVIL + 'x')}")
    page = await shown(browser, "agents/programs/echo")
    assert SHOWN in page and "/bin/sh" in page and "It has not run yet." in page
    run = await acted(browser, "agents/programs/echo/run", prompt=f"one\r\n{EVIL} \u202e")
    over = await ended(browser, run)
    assert over["run"]["status"] == "success" and over["run"]["caller"] == ["nhi:operator"]
    assert over["output"] == f"one\n{EVIL} \u202e\n{EVIL}\n" and not over["is_cut"]
    page = await shown(browser, run)
    assert f"one\n{SHOWN} \\u202e\n{SHOWN}\n</span>" in page and "Cancel this run" not in page
    assert "completed" in page and "cleanup" in page and "sse-connect" not in page
    assert [one["by"] for one in controls(running) if one["what"] == "run-ordered"] == ["admin:olga"]
    assert run.rpartition("/")[2] in await shown(browser, "agents/programs/echo")
    assert (await browser.get("/console/agents/programs/nobody"))[0] == 404
    assert (await browser.get("/console/agents/runs/0199"))[0] == 404


async def test_output_is_seen_as_it_comes(made: tuple[World, Browser]) -> None:
    running, browser = made
    run = await acted(browser, "agents/programs/steps/run")
    assert f'sse-connect="/console/{run}/live?actions=False+TASK_STATE_' in await shown(browser, run)
    seen = list[tuple[str, str]]()
    async with heard(browser, f"{run}/live") as events:
        (running.folder / "go1").touch()
        async for event, text in events:
            seen.append((event, text))
            if "step 1" in text:
                (running.folder / "go2").touch()
            if event == "end":
                break
    texts = [text for event, text in seen if event in ("whole", "output")]
    assert "step 1\n</span>" in texts[0] and texts[-1] == "<span>step 2\n</span>", seen
    states = [text for event, text in seen if event == "state"]
    assert "running" in states[0] and "success" in states[-1]
    assert [("Cancel this run" in text) for event, text in seen if event == "actions"] == [True, False]


async def test_a_run_is_cancelled_with_a_reason(made: tuple[World, Browser]) -> None:
    running, browser = made
    run = await acted(browser, "agents/programs/slow/run")
    assert [one["agent"] for one in (await data(browser, "agents"))["active"]] == ["slow"]
    assert await acted(browser, f"{run}/cancel", reason=f"too slow {EVIL}") == run
    assert (await ended(browser, run))["run"]["status"] == "cancelled"
    (told,) = [one for one in controls(running) if one["what"] == "run-cancelled"]
    assert (told["by"], told["why"]) == ("admin:olga", f"too slow {EVIL}")
    form = {"csrf": await browser.csrf()}
    status, page, _ = await browser.post(f"/console/{run}/cancel", form)
    assert status == 409 and "it is over" in page


async def test_a_run_that_asks_is_answered_by_whom_it_asks(made: tuple[World, Browser]) -> None:
    _, browser = made
    run = await acted(browser, "agents/programs/asks/run", prompt="paint it")
    await ended(browser, run)
    page = await shown(browser, run)
    assert "which &lt;b&gt;colour&lt;/b&gt;?" in page and f'action="/console/{run}/answer"' in page
    assert await acted(browser, f"{run}/answer", prompt="red") == run
    over = await ended(browser, run)
    assert over["run"]["task_state"] == "TASK_STATE_COMPLETED" and "red it is" in over["output"]
    listed = await data(browser, "agents/runs?status=success")
    assert [one["id"] for one in listed["rows"]] == [run.rpartition("/")[2]]


async def test_runs_are_filtered_and_paged(made: tuple[World, Browser]) -> None:
    _, browser = made
    ids = []
    for agent in ("echo", "fails", "echo"):
        ids.insert(0, (await ended(browser, await acted(browser, f"agents/programs/{agent}/run")))["run"]["id"])
    for query, expected in {
        "": ids,
        "agent=echo": [ids[0], ids[2]],
        "status=failure": [ids[1]],
        "owner=nhi:operator&rows=1": ids[:1],
        "rows=2&offset=2": ids[2:],
        "active=true": [],
        "schedule=nightly": [],
    }.items():
        found = await data(browser, f"agents/runs?{query}")
        assert [one["id"] for one in found["rows"]] == expected, query
    page = await shown(browser, "agents/runs?rows=1&agent=echo")
    assert 'href="/console/agents/runs?rows=1&amp;agent=echo&amp;offset=1">Older</a>' in page
    page = await shown(browser, "agents/runs?status=failure")
    assert SHOWN in page and "<option selected>failure</option>" in page
    assert "No run matches." in await shown(browser, "agents/runs?state=timeout")
    for wrong in ("offset=x", "rows=0", "state=none", "owner=somebody", "active=no"):
        assert (await browser.get(f"/console/agents/runs?{wrong}"))[0] == 400, wrong


async def test_a_schedule_is_paused_resumed_and_run(made: tuple[World, Browser]) -> None:
    running, browser = made
    page = await shown(browser, "agents/schedules")
    assert "0 2 * * *" in page and "nhi:operator" in page
    path = "agents/schedules/nightly"
    assert SHOWN in await shown(browser, path)
    live = re.search(r'sse-connect="/console/([^"]+)"', await shown(browser, "agents/schedules?state=paused"))
    assert live
    async with heard(browser, unescape(live[1])) as events, heard(browser, "agents/schedules/live") as anew:
        assert "nightly" in (await anext(anew))[1]
        assert await acted(browser, f"{path}/pause") == path
        assert "nightly" in (await anext(events))[1], "a page is not sent what it shows"
    assert "by admin:olga" in await shown(browser, path) and "Resume" in await shown(browser, path)
    await acted(browser, f"{path}/resume")
    assert (await data(browser, path))["one"]["state"] == "active"
    run = await acted(browser, f"{path}/run")
    over = await ended(browser, run)
    assert over["run"]["schedule"] == "nightly" and over["output"].startswith("hello\n")
    assert [one["id"] for one in (await data(browser, path))["runs"]] == [over["run"]["id"]]
    (task,) = (await data(browser, "agents/tasks"))["rows"]
    assert (task["agent"], task["caller"], task["run_id"]) == ("echo", ["nhi:nightly"], over["run"]["id"])
    assert (await browser.get("/console/agents/schedules/none"))[0] == 404
    told = [one["what"] for one in controls(running) if one["by"] == "admin:olga" and one.get("schedule") == "nightly"]
    assert told == ["schedule-pause", "schedule-resume", "schedule-run"]


async def test_tasks_of_all_callers_are_filtered_and_paged(made: tuple[World, Browser]) -> None:
    _, browser = made
    assert "There are no tasks" in await shown(browser, "agents/tasks")
    for agent in ("echo", "fails", "echo"):
        await ended(browser, await acted(browser, f"agents/programs/{agent}/run", prompt="a secret prompt"))
    page = await shown(browser, "agents/tasks?rows=2")
    assert "1–2 of 3" in page and "a secret prompt" not in page
    found = await data(browser, "agents/tasks?rows=2&page=9")
    assert found["paging"]["number"] == 2 and [one["agent"] for one in found["rows"]] == ["echo"]
    async with asyncio.timeout(PATIENCE_S):
        while not (failed := (await data(browser, "agents/tasks?state=failed"))["rows"]):
            await asyncio.sleep(0.02)
    assert [one["agent"] for one in failed] == ["fails"]
    assert SHOWN in await shown(browser, "agents/tasks?agent=fails")
    assert "No task matches." in await shown(browser, "agents/tasks?state=cancelled")
    assert (await browser.get("/console/agents/tasks?agent=nobody"))[0] == 404


async def test_names_of_callers_and_types_of_their_tasks_stay_text(tmp_path: Path) -> None:
    caller, text = "nhi:<img/src=x/onerror=alert(1)>", "nhi:&lt;img/src=x/onerror=alert(1)&gt;"
    files = {"policies/nhi_to_nhi.csv": "p, *, nhi:echo, use, -, -, -, allow\n"}
    async with browsed(tmp_path, settings=SETTINGS + AGENTS, files=files, principal=caller) as (running, browser):
        await browser.log_in()
        order = {"target_agent_id": "echo", "task_type": EVIL, "input": {"prompt": "x"}}
        async with running.http.post(f"{running.url}/a2a/tasks", json=order) as response:
            assert response.status == 201
        async with asyncio.timeout(PATIENCE_S):
            while not (rows := (await data(browser, "agents/tasks?state=completed"))["rows"]):
                await asyncio.sleep(0.02)
        page = await shown(browser, "agents/tasks")
        assert text in page and SHOWN in page
        for path in ("agents/runs", "agents/programs/echo", "agents", f"agents/runs/{rows[0]['run_id']}"):
            page = await shown(browser, path)
            assert caller not in page and (text in page or path == "agents"), path
        assert (await data(browser, f"agents/runs?owner={quote(caller)}"))["rows"][0]["caller"] == [caller]


async def test_an_order_that_needs_approval_waits_in_the_list_of_tasks(tmp_path: Path) -> None:
    demand = "#: id=asks approval=role:oncall\np, nhi:operator, nhi:echo, message/send, -, -, -, allow\n"
    files = {"policies/nhi_to_nhi.csv": demand, "policies/roles.csv": "g, user:vera, role:oncall\n"}
    settings = SETTINGS.replace("role: viewer,", 'role: viewer, principal: "user:vera",')
    async with browsed(tmp_path, settings=settings + AGENTS, files=files) as (running, browser):
        await browser.log_in()
        ran = await commands(running.folder, "agent", "run", "echo", "by a command")
        assert ran.exit_code == 1 and "it waits for a person's approval: sidecar approval show " in ran.stderr
        approval = await acted(browser, "agents/programs/echo/run", prompt="x")
        task, _ = (await data(browser, "agents/tasks?state=waiting"))["rows"]
        assert approval == f"approvals/{task['approval']}"
        page = await shown(browser, "agents/tasks")
        assert f'href="/console/{approval}"' in page and "for a person" in page
        await browser.log_in(VIEWER)
        assert "message" in (await data(browser, f"approvals/{task['approval']}"))["questions"][0]["arguments"]
        await acted(browser, f"approvals/{task['approval']}/approve")
        async with asyncio.timeout(PATIENCE_S):
            while not (rows := (await data(browser, "agents/tasks?state=completed"))["rows"]):
                await asyncio.sleep(0.02)
        assert rows[0]["approval"] is None and rows[0]["run_id"]


async def test_a_viewer_looks_and_does_not_act(made: tuple[World, Browser]) -> None:
    _, browser = made
    run = await acted(browser, "agents/programs/slow/run")
    await browser.log_in(VIEWER)
    page = await shown(browser, run)
    assert "<form" not in page.partition("<main")[2]
    form = {"csrf": await browser.csrf()}
    for path in ("agents/programs/echo/run", f"{run}/cancel", f"{run}/answer"):
        assert (await browser.post(f"/console/{path}", form))[0] == 403, path
    for verb in ("run", "pause", "resume"):
        assert (await browser.post(f"/console/agents/schedules/nightly/{verb}", form))[0] == 403, verb
    assert "<form" not in (await shown(browser, "agents/schedules/nightly")).partition("<main")[2]
    assert not (await data(browser, run))["run"]["cancel_requested"]
    await browser.log_in()
    await acted(browser, f"{run}/cancel")
