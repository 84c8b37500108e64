"""Do operators see and run agents that are programs, by commands and over HTTP, as callers under policy?"""

import asyncio
import fcntl
import io
import json
import os
import pty
import re
import signal
import sqlite3
import termios
from collections.abc import AsyncIterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator

from sidecar.admin.routes import ROUTES, route_of
from sidecar.cli import main
from sidecar.protocols.a2a.operations import LIST
from sidecar.tasks.programs.attempt import Prompt
from sidecar.upstreams.agents import OutgoingOperation
from sidecar.vocabulary import Caller, Principal
from tests.flow.causes import full_disk
from tests.flow.described import DOCUMENT
from tests.flow.forks import sidecar
from tests.flow.test_admin import SECRET, SETTINGS, VIEW, files
from tests.flow.world import PATIENCE_S, World, until, world, write_folder
from tests.tables import tables
from tests.unit.admin.test_requests import POISON

TABLES = tables("flow/agent_commands")

ROWS = "".join(
    f"p, {who}, nhi:{agent}, message/send, -, -, -, allow\n"
    for who, agent in [
        *(("nhi:operator", agent) for agent in ("echo", "slow", "fails", "choosy", "asks")),
        *(("nhi:planner", agent) for agent in ("echo", "asks")),
    ]
)
ASKS = r"""read line
case $line in
  *'"text":"red"'*) echo '{"jsonrpc": "2.0", "id": 1, "result": "red it is"}';;
  *) echo '{"jsonrpc": "2.0", "id": 1, "result": {"state": "input-required", "text": "which colour?"}}';;
esac
"""
BEGUN = "begun\x1b[2J\x07\n"
POLICY = {"policies/nhi_to_nhi.csv": ROWS, "asks.sh": ASKS}
MORE = SETTINGS + TABLES["agents"]


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path, settings=MORE, files={**files(), **POLICY}) as made:
        yield made


def commands(folder: Path, *line: str, stdin: str | None = None) -> Any:
    arguments = [*line, "-c", str(folder / "sidecar.yaml")]
    return asyncio.to_thread(CliRunner().invoke, main, arguments, input=stdin)


async def did(running: World, *line: str, stdin: str | None = None, code: int = 0) -> Result:
    """A command that ends so."""
    result: Result = await commands(running.folder, *line, stdin=stdin)
    assert result.exit_code == code, result.output
    return result


async def told(running: World, *line: str, code: int = 0) -> Any:
    """What a command prints as JSON."""
    return json.loads((await did(running, *line, "--json", code=code)).stdout)


async def sent(
    running: World, path: str, body: Any = None, secret: str = SECRET, verb: str = ""
) -> tuple[int, Any, Mapping[str, str]]:
    """What the admin listener answers, which is as the document describes it; a body is sent with POST."""
    raw = body if isinstance(body, bytes | io.BytesIO | None) else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    verb = verb or ("GET" if body is None else "POST")
    async with running.http.request(verb, running.admin_url + path, data=raw, headers=headers) as response:
        text, given = await response.text(), dict(response.headers)
        value = json.loads(text) if "json" in given["Content-Type"] else text
        check_described(path.partition("?")[0], verb, response.status, value, given)
        return response.status, value, given


def controls(running: World) -> list[dict[str, Any]]:
    return [one["control"] for one in running.records() if one["event"] == "control"]


def check_described(path: str, verb: str, status: int, value: Any, headers: Mapping[str, str]) -> None:
    route = route_of(path)[0].get(verb)
    if route is not None and route.path in DOCUMENT["paths"]:
        told = DOCUMENT["paths"][route.path][verb.lower()]["responses"][str(status)]
        content = told["content"][headers["Content-Type"]]
        whole = Draft202012Validator({**DOCUMENT, **content.get("schema", {})})
        assert [error.message for error in whole.iter_errors(value)] == []


async def paged(running: World, query: str) -> list[str]:
    """The ids of runs, page by page."""
    seen, offset = list[str](), 0
    while offset is not None:
        page = (await sent(running, f"/api/runs?{query}&offset={offset}"))[1]
        seen += [run["id"] for run in page["runs"]]
        offset = page["next_offset"]
    return seen


async def at_work(running: World, run_id: str) -> None:
    """Once it has said something."""
    async with asyncio.timeout(PATIENCE_S):
        while not await running.app.desk.output(run_id):
            await asyncio.sleep(0.02)


async def test_a_run_is_ordered_heard_and_looked_at(running: World) -> None:
    heard = await did(running, "agent", "run", "echo", "hello")
    assert heard.stdout == "hello\nand more\n"
    assert (await did(running, "agent", "run", "echo", "-", stdin="from a pipe")).stdout.startswith("from a pipe\n")
    newest, oldest = (await told(running, "agent", "runs"))["runs"]
    assert (oldest["agent"], oldest["status"], oldest["state"]) == ("echo", "success", "idle")
    assert oldest["caller"] == ["nhi:operator"] and oldest["exit_code"] == 0 and newest["id"] != oldest["id"]
    shown = (await did(running, "agent", "show", oldest["id"])).stdout
    for word in ("success", "nhi:operator", "    hello", "    and more", "completed", "cleanup", "s of CPU"):
        assert word in shown, shown
    assert (await did(running, "agent", "logs", oldest["id"])).stdout == heard.stdout
    assert (await did(running, "agent", "logs", "-f", oldest["id"])).stdout == heard.stdout
    listed = (await did(running, "agent", "list")).stdout
    assert re.search(r"^echo +task +read-only +0 of 4 +0 +success ", listed, re.MULTILINE), listed
    assert re.search(r"^closed .* disabled ", listed, re.MULTILINE)
    servers = (await did(running, "mcp", "list")).stdout.splitlines()
    assert [line.split()[0] for line in servers] == ["github"], "an agent is no server"
    ordered = [one for one in controls(running) if one["what"] == "run-ordered"]
    assert [(one["agent"], one["principal"]) for one in ordered] == [("echo", "nhi:operator")] * 2
    assert all(one["by"].startswith("local:uid=") for one in ordered)
    (decided, *_) = [one for one in running.records() if one["event"] == "decision"]
    assert decided["chain"] == ["nhi:operator"] and decided["request_id"] == ordered[0]["task"]


async def test_what_no_rule_allows_is_refused_with_the_row_that_would(tmp_path: Path) -> None:
    async with world(tmp_path, settings=MORE, files=files()) as running:
        no = await did(running, "agent", "run", "echo", "hello", code=1)
        assert no.stdout == "" and "No rule allows this call" in no.stderr
        found = re.search(r"hint: in (\S+): (p, .*)", no.stderr)
        (tmp_path / found[1]).write_text(found[2] + "\n")
        await running.app.reload("test")
        assert (await did(running, "agent", "run", "echo", "hello")).stdout.startswith("hello")
        assert "user_to_nhi" in (await did(running, "agent", "run", "echo", "--as", "user:alice", code=1)).stderr
        assert [one["agent"] for one in controls(running) if one["what"] == "run-ordered"] == ["echo"] * 3


async def test_a_program_that_fails_says_so_and_its_output_stands(running: World) -> None:
    failed = await did(running, "agent", "run", "fails", code=1)
    assert failed.stdout == "half\n" and "failure: agent: exit code 3: no luck" in failed.stderr
    whole = await told(running, "agent", "run", "fails", code=1)
    assert (whole["status"], whole["exit_code"], whole["error"]["category"]) == ("failure", 3, "agent")
    assert [run["status"] for run in (await told(running, "agent", "runs", "--status", "failure"))["runs"]] == [
        "failure"
    ] * 2
    assert (await told(running, "agent", "runs", "--status", "success"))["runs"] == []
    assert (await did(running, "agent", "run", "nobody", code=1)).stderr.startswith("No such server")
    assert (await did(running, "agent", "run", "closed", code=1)).stderr != ""
    assert 'did you mean "echo"?' in (await did(running, "agent", "run", "ecko", code=1)).stderr
    for verb in ("show", "logs", "cancel", "answer"):
        assert (await did(running, "agent", verb, "0199", code=1)).stderr == "No such task: no run has this id\n"
    assert (await did(running, "agent", "logs", "-f", "0199", code=1)).stderr.endswith("no run has this id\n")
    over = (await did(running, "agent", "cancel", whole["id"], code=1)).stderr
    assert over == "The task cannot be cancelled: it is over\n"


async def test_a_call_chooses_what_its_definition_lets_it(running: World) -> None:
    chosen = ("agent", "run", "choosy", "--param", "language=de", "--env", "COLOUR=red")
    assert (await did(running, *chosen)).stdout == "--language de red\n"
    for wrong in TABLES["wrong"]:
        no = await did(running, "agent", "run", "choosy", *wrong, code=1)
        assert no.stdout == "" and not set(wrong[1].split("=")[1:]) & set(no.stderr.split()), no.stderr


async def test_what_an_agent_does_not_take_is_answered_as_refused(tmp_path: Path) -> None:
    """Policy allows it, and its agent says no: with the status of the reason, and no run."""
    more = "  one: {executable: /bin/sh, args: [-c, exec sleep 60], max_concurrent_executions: 1, max_queue: 1}\n"
    weekly = "schedules:\n  weekly: {agent: one, cron: '@weekly'}\n"
    rows = ROWS + "".join(
        f"p, {who}, nhi:{agent}, message/send, -, -, -, allow\n"
        for who, agent in (("nhi:operator", "one"), ("nhi:weekly", "one"))
    )
    files_ = {**files(), **POLICY, "policies/nhi_to_nhi.csv": rows}
    async with world(tmp_path, settings=MORE + more + weekly, files=files_) as running:
        no = await sent(running, "/api/agents/choosy/runs", {"prompt": "x", "parameters": {"language": "fr"}})
        assert no[0] == 400 and no[1]["reason"] == "bad-arguments", no
        assert no[1]["error"] == "/message/parts/0/data/parameters/language has a value that cannot be chosen"
        for _ in range(2):  # one at work, one that waits
            taken = await sent(running, "/api/agents/one/runs", {"prompt": "x"})
            assert taken[0] == 201 and taken[1]["run_id"] and taken[1]["error"] is None
        full = await sent(running, "/api/agents/one/runs", {"prompt": "x"})
        assert (full[0], full[1]["reason"]) == (429, "too-many-concurrent"), full
        by_hand = await sent(running, "/api/schedules/weekly/run", {})
        assert (by_hand[0], by_hand[1]["reason"]) == (429, "too-many-concurrent"), by_hand
        assert full[1]["error"] in (await did(running, "schedule", "run", "weekly", code=1)).stderr
        for detach in ([], ["--detach"]):
            told_so = await did(running, "agent", "run", "one", *detach, code=1)
            assert (told_so.stdout, told_so.stderr.strip()) == ("", full[1]["error"])
        runs = (await told(running, "agent", "runs"))["runs"]
        assert [run["agent"] for run in runs] == ["one"] * 2
        for run in runs:  # a stop waits for those at work
            await did(running, "agent", "cancel", run["id"])


async def test_a_conversation_goes_on_for_who_began_it_and_for_nobody_else(running: World) -> None:
    first = await told(running, "agent", "run", "echo", "one")
    again = ("agent", "run", "echo", "two", "--context", first["context"])
    assert (await told(running, *again))["context"] == first["context"]
    anothers = (await told(running, *again, "--as", "nhi:planner"))["context"]
    assert anothers != first["context"] and anothers.endswith(f"~{first['context']}")
    assert (await told(running, "agent", "run", "echo", "three", "--context", anothers, "--as", "nhi:planner"))[
        "context"
    ] == anothers
    assert (await told(running, "agent", "run", "echo", "--context", "mine"))["context"] == "mine"


async def test_one_that_is_given_up_ends_with_all_of_its_processes(running: World) -> None:
    run_id = (await did(running, "agent", "run", "slow", "--detach")).stdout.strip()
    following = asyncio.create_task(sent(running, f"/api/runs/{run_id}/output?follow=true"))
    await at_work(running, run_id)
    await did(running, "agent", "run", "echo", "over")
    active = await told(running, "agent", "runs", "--active")
    assert [one["id"] for one in active["runs"]] == [run_id] and active["next_offset"] is None
    cancelled = await did(running, "agent", "cancel", run_id, "--reason", "enough")
    assert cancelled.stdout == f"{run_id} of slow: cancelled\n"
    assert '"status":"cancelled"' in (await following)[1].rstrip().splitlines()[-1]
    assert (await did(running, "agent", "logs", run_id)).stdout == BEGUN, "into a pipe it goes as it is"
    assert await told(running, "agent", "logs", run_id) == {"run": run_id, "output": BEGUN}
    lines = (await did(running, "agent", "logs", "-f", run_id, "--json")).stdout.splitlines()
    events = {one["event"]: one["data"] for one in map(json.loads, lines)}
    assert (events["output"]["text"], events["end"]["status"]) == (BEGUN, "cancelled")
    assert (await told(running, "agent", "runs", "--active"))["runs"] == []
    assert r"    begun\u001b[2J\u0007" in (await did(running, "agent", "show", run_id)).stdout
    assert (await did(running, "agent", "cancel", run_id, code=1)).stderr.startswith("The task cannot be cancelled")
    (given_up,) = [one for one in controls(running) if one["what"] == "run-cancelled"]
    assert (given_up["run"], given_up["agent"], given_up["why"]) == (run_id, "slow", "enough")
    whole = await told(running, "agent", "show", run_id)
    assert [one["state"] for one in whole["transitions"]][-3:] == ["cancelled", "cleanup", "idle"]
    assert running.app.executions.standing("slow").running == 0


async def test_what_cannot_be_sent_or_taken_is_said_so(tmp_path: Path) -> None:
    async with world(tmp_path, settings=MORE, files={**files(), **POLICY}) as running:
        assert "not UTF-8" in (await did(running, "agent", "run", "echo", "\udcff", code=2)).stderr
        too_much = await did(running, "agent", "run", "echo", "-", stdin="x" * 3 * 2**20, code=1)
        assert "too large: at most 1048576 bytes" in too_much.stderr
        assert "write name=value" in (await did(running, "agent", "run", "echo", "--param", "x", code=2)).stderr
        assert "user:<id>" in (await did(running, "agent", "run", "echo", "--as", "alice", code=2)).stderr
        assert "is not enabled" in (await did(running, "agent", "run", "closed", code=1)).stderr
    gone = await commands(tmp_path, "agent", "run", "echo")
    assert gone.exit_code == 1 and "no sidecar answers here" in gone.stderr


async def test_a_run_that_asks_is_answered_on_behalf_of_whom_it_is(tmp_path: Path) -> None:
    """What operators and schedules ordered; what is anybody else's they answer themselves."""
    asking = SCHEDULES.replace("agent: echo", "agent: asks")
    async with world(tmp_path, settings=MORE + asking, files={**files(), **OF_NIGHTLY}) as running:
        asked = await did(running, "agent", "run", "asks", "paint it")
        mine = re.search(r"^(\S+): it asks: which colour\?\n   hint: sidecar agent answer \1 TEXT$", asked.stderr)
        assert mine and asked.stdout == "", asked.stderr
        assert f"{mine[1]}  asks   asks " in (await did(running, "agent", "runs")).stdout
        assert "which colour?" in (await did(running, "agent", "answer", mine[1], "blue")).stderr, "it asks again"
        assert (await did(running, "agent", "answer", mine[1], "-", stdin="red")).stdout == "red it is"
        over = await did(running, "agent", "answer", mine[1], "red", code=2)
        assert "does not ask anything" in over.stderr
        as_planner = (await told(running, "agent", "run", "asks", "--as", "nhi:planner"))["id"]
        nightly = (await did(running, "schedule", "run", "nightly")).stdout.strip()
        await did(running, "agent", "logs", "-f", nightly)
        prompt, planner = Prompt("x", {}, {}, None, {"parts": []}), Caller((Principal("nhi:planner", "an issuer"),), ())
        theirs = (await running.app.executions.begin("asks", prompt, planner, "their own")).id
        await did(running, "agent", "logs", "-f", theirs)
        for run_id in (as_planner, nightly, theirs):
            no = await sent(running, f"/api/runs/{run_id}/answer", {"prompt": "red"})
            assert no[0] == 403, "a credential of the admin listener speaks for nhi:operator alone"
        for run_id in (as_planner, nightly):
            assert (await did(running, "agent", "answer", run_id, "red")).stdout == "red it is"
        assert "nhi:planner's own" in (await did(running, "agent", "answer", theirs, "red", code=1)).stderr
        again = (await told(running, "agent", "run", "asks"))["id"]
        yes = await sent(running, f"/api/runs/{again}/answer", {"prompt": "red"})
        assert yes[0] == 201 and yes[1]["run_id"] == again and yes[2]["Location"] == f"/api/runs/{again}"
        acts = [(one["run"], one["principal"]) for one in controls(running) if one["what"] == "run-answered"]
        me = "nhi:operator"
        assert acts == [(mine[1], me)] * 2 + [(as_planner, "nhi:planner"), (nightly, "nhi:nightly"), (again, me)]
        decided = [one for one in running.records() if one["event"] == "decision" and one["chain"] == ["nhi:nightly"]]
        assert {one["tool"] for one in decided} == {"scheduled"}, "rules read an answer's skill as that of the order"


# --- over the admin listener ------------------------------------------------------------------------------------------

OF_AGENTS = dict.fromkeys(one.path for one in ROUTES if re.match("/api/(agents|runs|schedules)", one.path))
POSTED = [one.path for one in ROUTES if one.method == "POST"]


async def test_viewers_see_operators_act_and_strangers_learn_nothing(running: World) -> None:
    for path in OF_AGENTS:
        filled = path.format(name="echo", id="echo")
        verbs = [one.method for one in ROUTES if one.path == path]
        for verb in verbs:
            assert (await sent(running, filled, secret="", verb=verb))[0] == 401
            seen = (await sent(running, filled, secret=VIEW, verb=verb))[0]
            assert seen in (200, 404) if verb == "GET" else seen == 403, (path, verb)
            bare = 400 if (path, verb) == ("/api/schedules", "POST") else 404  # it says nothing of a schedule
            assert (await sent(running, filled, verb=verb))[0] in (200, 201, bare), (path, verb)
        status, problem, headers = await sent(running, filled, verb="PUT")
        assert status == 405 and headers["Allow"] == ", ".join(verbs)
        assert problem["error"] and headers["Content-Type"] == "application/problem+json"


async def test_no_body_brings_in_what_nobody_listens_to(running: World) -> None:
    """BL-029: neither a program nor its arguments, environment or folder come by a request."""
    for path in POSTED:
        filled = path.format(name="echo", id="echo", any="github" if "upstreams" in path else "nhi:echo")
        bodies = [{word: value} for word in POISON for value in ("x", {"x": "y"}, None)]
        for body in [*bodies, [], "x", b"{", b"\xff", b'{"a":1,"a":2}', b"[" * 5_000]:
            status, problem, _ = await sent(running, filled, body)
            assert status == 400 and problem["error"], (path, body, status)
        assert (await sent(running, filled, io.BytesIO(b" " * (2**20 + 1))))[0] in (400, 413)
    assert not [one for one in controls(running) if one["what"] not in ("start", "mode")]


async def test_answers_are_as_described_and_act_for_nobody_else(running: World) -> None:
    ordered = await sent(running, "/api/agents/echo/runs", {"prompt": "hi"})
    run_id = ordered[1]["run_id"]
    assert ordered[0] == 201 and ordered[2]["Location"] == f"/api/runs/{run_id}"
    status, text, _ = await sent(running, f"/api/runs/{run_id}/output?follow=true", secret=VIEW)
    assert status == 200 and "event: output\n" in text and text.rstrip().splitlines()[-2] == "event: end"
    seen = ("agents", "agents/echo", "agents/echo/runs", "runs?owner=nhi:operator&limit=1")
    for path in (*seen, f"runs/{run_id}", f"runs/{run_id}/output", "runs?who=x", "agents/nobody"):
        await sent(running, f"/api/{path}", secret=VIEW)
    no = await sent(running, "/api/agents/echo/runs", {"prompt": "hi", "principal": "nhi:planner"})
    assert no[0] == 403 and "control socket" in no[1]["error"]
    await did(running, "agent", "run", "echo", "--as", "nhi:planner")
    mine = (await sent(running, "/api/runs?owner=nhi:planner"))[1]["runs"]
    assert [run["caller"] for run in mine] == [["nhi:planner"]]
    status, tasks, _ = await sent(running, "/api/agents/echo", secret=VIEW)
    assert tasks["executable"] == "/bin/sh" and "args" not in tasks and "and more" not in json.dumps(tasks)


async def test_what_cannot_be_put_on_record_does_not_begin_and_ends_all_the_same(running: World) -> None:
    run_id = (await sent(running, "/api/agents/slow/runs", {}))[1]["run_id"]
    await at_work(running, run_id)
    with full_disk(running):
        no = await sent(running, "/api/agents/echo/runs", {"prompt": "hi"})
        assert no[0] == 503 and no[1]["reason"] == "audit-unavailable" and no[2]["Retry-After"]
        given_up = await sent(running, f"/api/runs/{run_id}/cancel", {})
        assert given_up[0] == 503 and "given up nevertheless" in given_up[1]["error"]
    found = (await sent(running, "/api/runs"))[1]["runs"]
    assert [(run["agent"], run["status"]) for run in found] == [("slow", "cancelled")]


async def test_runs_are_found_page_by_page(running: World) -> None:
    for number in range(5):
        await sent(running, "/api/agents/echo/runs", {"prompt": str(number)})
    await did(running, "agent", "run", "echo", "--as", "nhi:planner", "p")
    seen = await paged(running, "owner=nhi:operator&limit=2")
    assert len(seen) == len(set(seen)) == 5
    assert len((await sent(running, "/api/runs?limit=200"))[1]["runs"]) == 6
    first = (await did(running, "agent", "runs", "--limit", "4")).stdout.splitlines()
    assert first[-1] == "and more: --offset 4" and len(first) == 6
    assert len((await did(running, "agent", "runs", "--offset", "4")).stdout.splitlines()) == 3


async def test_runs_that_cannot_be_read_are_missing_and_hide_and_double_no_other(running: World) -> None:
    """Another version wrote them, or something damaged them."""
    ids = [(await sent(running, "/api/agents/echo/runs", {}))[1]["run_id"] for _ in range(6)]
    unread, read = {ids[2], ids[3], ids[5]}, [ids[4], ids[1], ids[0]]
    with closing(sqlite3.connect(running.folder / "data" / "records.sqlite")) as kept, kept:
        await until(
            lambda: kept.execute("SELECT count(*) FROM records WHERE kind = 'agent-runs' AND done").fetchone() == (6,)
        )
        kept.execute("UPDATE records SET body = ? WHERE id IN (?, ?, ?)", (b'{"id": "odd", "future": 1}', *unread))
    for size, standing in ((1, ""), (2, ""), (3, "&status=success"), (200, "")):
        assert await paged(running, f"limit={size}{standing}") == read, size
    owner, wire = (await running.app.executions.get(ids[0])), running.app.live.current.agent("echo").wire
    tasks, token = [], "0"
    while token:
        asked = OutgoingOperation(LIST, {"pageSize": 2, "pageToken": token}, owner.caller, 5.0)
        answer = await wire.ask(asked)
        tasks += [task["id"] for task in answer["tasks"]]
        token = answer["nextPageToken"]
    assert sorted(tasks) == sorted(read)  # of a page, what changed last is first
    why = "a run cannot be read: it was damaged, or another version wrote it"
    assert why in (await did(running, "agent", "show", ids[5], code=1)).stderr


async def test_who_follows_a_run_is_let_go_when_the_sidecar_stops(running: World) -> None:
    run_id = (await sent(running, "/api/agents/slow/runs", {}))[1]["run_id"]
    following = asyncio.create_task(sent(running, f"/api/runs/{run_id}/output?follow=true"))
    await at_work(running, run_id)
    await running.app.pipeline.drain(0)
    async with asyncio.timeout(PATIENCE_S):
        text = (await following)[1]
    assert "begun" in text and "event: end" not in text
    status, text, _ = await sent(running, f"/api/runs/{run_id}/output?follow=true")
    assert status == 200 and "event: end" not in text, "who comes later is let go too"
    await running.app.desk.cancel(run_id, "", "test")


# --- at a terminal ----------------------------------------------------------------------------------------------------


async def at_terminal(folder: Path, *line: str, interrupted_at: str = "(?!)") -> tuple[int, str]:
    """What somebody sees who types this, and ^C as soon as that is to be seen; and the exit code."""
    ours, theirs = pty.openpty()
    command = (sidecar(), *line, "-c", str(folder / "sidecar.yaml"))
    process = await asyncio.create_subprocess_exec(
        *command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, preexec_fn=_take_terminal
    )
    os.close(theirs)
    seen, sent_it = b"", False
    with suppress(OSError):  # EIO: nobody is at the other end any more
        while chunk := await asyncio.to_thread(os.read, ours, 65536):
            seen += chunk
            if not sent_it and re.search(interrupted_at.encode(), seen, re.DOTALL):
                sent_it = True
                os.write(ours, b"\x03")
    os.close(ours)
    return await process.wait(), seen.decode()


def _take_terminal() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # whoever runs the tests in the background ignores it
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


async def test_at_a_terminal_it_is_seen_how_a_run_stands_and_an_interrupt_gives_it_up(running: World) -> None:
    seen_to_run = r"begun\S+\r\n.* s  running"
    code, seen = await at_terminal(running.folder, "agent", "run", "slow", interrupted_at=seen_to_run)
    assert code == 1 and r"begun\u001b[2J\u0007" in seen and "\x1b[2J" not in seen, seen
    assert re.search(r": cancelled\r\n$", seen), seen
    (run,) = (await told(running, "agent", "runs"))["runs"]
    assert (run["agent"], run["status"], run["is_over"]) == ("slow", "cancelled", True)
    assert running.app.executions.standing("slow").running == 0


# --- schedules --------------------------------------------------------------------------------------------------------

SCHEDULES = """\
schedules:
  nightly: {agent: echo, cron: "0 2 * * *", timezone: Europe/Berlin, input_parameters: {prompt: password=hunter2}}
  idle: {agent: echo, cron: "@hourly", enabled: false}
  sundays: {agent: echo, cron: "@weekly", principal: nhi:weekly}
"""
NIGHTLY = "".join(f"p, nhi:nightly, nhi:{agent}, message/send, -, -, -, allow\n" for agent in ("echo", "asks"))
OF_NIGHTLY = {"policies/nhi_to_nhi.csv": ROWS + NIGHTLY, "asks.sh": ASKS}


async def test_a_schedule_that_waits_for_a_person_says_so(tmp_path: Path) -> None:
    asks = NIGHTLY.replace("p, nhi:nightly, nhi:echo", "#: approval=role:oncall\np, nhi:nightly, nhi:echo")
    more = {"policies/nhi_to_nhi.csv": ROWS + asks, "policies/roles.csv": "g, user:dmitri, role:oncall\n"}
    async with world(tmp_path, settings=MORE + SCHEDULES, files={**files(), **OF_NIGHTLY, **more}) as running:
        assert " waits for approval " in (await did(running, "schedule", "run", "nightly")).stdout
        assert re.search(r"^nightly .* waiting +-$", (await did(running, "schedule", "list")).stdout, re.MULTILINE)
        (one, *_), _ = await running.app.approvals.page(None, 1, 0)
        assert one.caller.last.name == "nhi:nightly"


async def test_a_schedule_is_run_paused_and_resumed_by_hand(tmp_path: Path) -> None:
    async with world(tmp_path, settings=MORE + SCHEDULES, files={**files(), **OF_NIGHTLY}) as running:
        listed = (await did(running, "schedule", "list")).stdout
        assert re.search(
            r"^nightly +configured +echo +nhi:nightly +0 2 \* \* \* Europe/Berlin +\S+Z +-$", listed, re.MULTILINE
        ), listed
        assert re.search(r"^idle .* disabled +-$", listed, re.MULTILINE), listed
        run_id = (await did(running, "schedule", "run", "nightly")).stdout.strip()
        for line in (("logs", "-f", run_id), ("logs", run_id)):
            said = (await did(running, "agent", *line)).stdout
            assert said == "password=[redacted]\nand more\n", "no operator ordered it"
        row = "hint: in policies/nhi_to_nhi.csv: p, nhi:weekly, nhi:echo, message/send, -, -, -, allow\n"
        assert row in (await did(running, "schedule", "run", "sundays", code=1)).stderr
        (run,) = (await told(running, "agent", "runs", "--schedule", "nightly"))["runs"]
        assert (run["id"], run["caller"], run["schedule"]) == (run_id, ["nhi:nightly"], "nightly")
        assert (await did(running, "schedule", "pause", "nightly")).stdout == "nightly is paused\n"
        assert " paused " in (await did(running, "schedule", "list")).stdout
        assert (await did(running, "schedule", "resume", "nightly")).stdout.startswith("nightly is due next at 2")
        for verb in ("run", "pause", "resume"):
            assert (
                "known here: idle, nightly, sundays" in (await did(running, "schedule", verb, "weekly", code=1)).stderr
            )
        acts = [(one["what"], one["schedule"]) for one in controls(running) if one.get("schedule") == "nightly"]
        assert acts == [(f"schedule-{verb}", "nightly") for verb in ("run", "pause", "resume")]
        await sent(running, "/api/schedules", secret=VIEW)
        for verb, statuses in (("pause", {200}), ("resume", {200}), ("run", {201, 429})):  # or its last run goes on
            answer = await sent(running, f"/api/schedules/nightly/{verb}", {})
            assert answer[0] in statuses


async def test_a_schedule_is_added_and_removed_and_is_there_after_a_restart(tmp_path: Path) -> None:
    """By commands and over the listener: kept in the store, marked in every listing, on record."""
    rows = NIGHTLY + NIGHTLY.replace("nhi:nightly", "nhi:hourly")
    of_hourly = {**OF_NIGHTLY, "policies/nhi_to_nhi.csv": ROWS + rows}
    async with world(tmp_path, settings=MORE + SCHEDULES, files={**files(), **of_hourly}) as running:
        add = ("schedule", "add", "hourly", "--agent", "echo", "--cron", "@hourly", "--prompt", "hello")
        assert (await did(running, *add)).stdout.startswith("hourly is added, and due next at 2")
        assert re.search(
            r"^hourly +added +echo +nhi:hourly +@hourly UTC", (await did(running, "schedule", "list")).stdout, re.M
        )
        assert running.app.status()["schedules"]["hourly"]["source"] == "added"
        run_id = (await did(running, "schedule", "run", "hourly")).stdout.strip()
        await did(running, "agent", "logs", "-f", run_id)
        (run,) = (await told(running, "agent", "runs", "--schedule", "hourly"))["runs"]
        assert (run["caller"], run["schedule"], run["status"]) == (["nhi:hourly"], "hourly", "success")
        again = await sent(running, "/api/schedules", {"name": "hourly", "agent": "echo", "cron": "@daily"})
        assert again[0] == 409
    async with world(tmp_path, settings=MORE + SCHEDULES, files={**files(), **of_hourly}) as running:
        every = (await told(running, "schedule", "list"))["schedules"]
        (hourly,) = (one for one in every if one["name"] == "hourly")
        assert (hourly["source"], hourly["added_by"][:10]) == ("added", "local:uid=")
        assert {one["source"] for one in every if one["name"] != "hourly"} == {"configured"}
        assert (await did(running, "schedule", "remove", "hourly")).stdout == "hourly is removed\n"
        assert "there is no such schedule" in (await did(running, "schedule", "remove", "hourly", code=1)).stderr
        assert "remove it there" in (await did(running, "schedule", "remove", "nightly", code=1)).stderr
        gone = await sent(running, "/api/schedules/nightly", verb="DELETE")
        assert gone[0] == 409
        daily = {"name": "hourly", "agent": "echo", "cron": "@daily", "missed_within": "1h"}
        assert (await sent(running, "/api/schedules", daily))[0] == 201
        acts = [(one["what"], one["by"][:5]) for one in controls(running) if one.get("schedule") == "hourly"]
        assert acts == [
            ("schedule-add", "local"),
            ("schedule-run", "local"),
            ("schedule-remove", "local"),
            ("schedule-add", "admin"),
        ]


# What differs from an order of `x` by `echo` each hour.


async def test_a_schedule_that_would_not_do_is_not_added(tmp_path: Path) -> None:
    async with world(tmp_path, settings=MORE + SCHEDULES, files={**files(), **OF_NIGHTLY}) as running:
        order = {"name": "x", "agent": "echo", "cron": "@hourly"}
        for wrong, status, says in TABLES["not_added"]:
            answer = await sent(running, "/api/schedules", order | wrong)
            assert (answer[0], says in answer[1]["error"]) == (status, True), answer
        missing = await sent(running, "/api/schedules", {"name": "x", "agent": "echo"})
        assert (missing[0], 'the key "cron" is missing' in missing[1]["error"]) == (400, True)
        assert (await sent(running, "/api/schedules", order, secret=VIEW))[0] == 403
        names = {one["name"] for one in (await told(running, "schedule", "list"))["schedules"]}
        assert names == {"nightly", "idle", "sundays"}


async def test_when_a_schedule_is_due_is_told_without_a_sidecar(tmp_path: Path) -> None:
    write_folder(tmp_path, "http://127.0.0.1:9/mcp", settings=MORE + SCHEDULES, files=files())
    due: Result = await commands(tmp_path, "schedule", "next", "nightly", "--count", "400")
    head, *times = due.stdout.splitlines()
    assert (due.exit_code, head, len(times)) == (0, "nightly  0 2 * * *  Europe/Berlin", 400)
    # within 400 days there is one night without 2 o'clock
    assert {(local, zone, utc[11:]) for _, _, local, zone, utc in map(str.split, times)} == {
        ("02:00", "+0100", "01:00:00Z"),
        ("02:00", "+0200", "00:00:00Z"),
        ("03:00", "+0200", "01:00:00Z"),
    }
    every = json.loads((await commands(tmp_path, "schedule", "next", "--json")).stdout)["schedules"]
    assert len(every["nightly"]) == 5 and every["idle"] == []
    unknown: Result = await commands(tmp_path, "schedule", "next", "weekly")
    assert unknown.exit_code == 2 and "there is nightly, idle, sundays" in unknown.stderr
