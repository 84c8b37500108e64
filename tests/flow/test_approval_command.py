"""People list calls that wait, see them and answer them with `sidecar approval`."""

import asyncio
import json
import os
import pty
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.cli.approval import STATES
from sidecar.gateway.approvals import ApprovalState, approvals
from sidecar.storage import RecordBounds
from tests.flow.forks import sidecar
from tests.flow.test_approvals import KEYS, PATH, RULES, TOOL, again, asking, controls, waiting
from tests.flow.world import PATIENCE_S, World, until

DMITRI = ("--as", "user:dmitri")


async def did(running: World, *line: str, code: int = 0, stdin: str | None = None) -> Result:
    words = ["approval", *line]
    if "--url" not in line:
        words += ["-c", str(running.folder / "sidecar.yaml")]
    result: Result = await asyncio.to_thread(CliRunner().invoke, main, words, input=stdin)
    assert result.exit_code == code, result.output
    return result


async def told(running: World, *line: str, code: int = 0) -> Any:
    return json.loads((await did(running, *line, "--json", code=code)).stdout)


def test_the_states_are_those_of_requests() -> None:
    assert set(STATES) == {state.value for state in ApprovalState}


async def test_a_call_is_listed_shown_and_approved_by_the_first_letters_of_its_id(tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        assert "no call waits" in (await did(running, "list")).output
        _, asked, _ = await running.call(TOOL, PATH)
        (one,) = await waiting(running)
        head = one["id"][:12]
        listed = (await did(running, "list")).output
        assert all(text in listed for text in (head, "nhi:planner", f"tool:github/{TOOL}", "role:oncall"))
        assert "secret-name" not in listed
        shown = (await did(running, "show", head, *DMITRI)).output
        for text in (one["id"], "secret-name", "deletes", "role:oncall", "once", "user:dmitri", "in 14m"):
            assert text in shown
        done = (await did(running, "approve", head, *DMITRI)).output
        assert done.startswith(f"{head} is approved, to be used before ")
        assert "content" in (await again(running, asked))[1]["result"]
        assert (await told(running, "list", "--state", "used"))["approvals"][0]["id"] == one["id"]
        assert [each["what"] for each in controls(running)] == ["approval-asked", "approval-shown", "approval-given"]


async def test_the_status_counts_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "COUNT_EVERY_S", 0.1)
    async with asking(tmp_path) as running:
        config = ("-c", str(tmp_path / "sidecar.yaml"))
        assert "approvals" not in (await asyncio.to_thread(CliRunner().invoke, main, ["status", *config])).output
        for number in range(3):
            await running.call(TOOL, {"path": f"p{number}"})
        await until(lambda: running.app.approvals.waiting.number == 3)
        (*_, oldest) = await waiting(running)
        status = running.app.status()["approvals"]
        assert status == {"waiting": 3, "oldest_asked_at": oldest["asked_at"]}
        shown = (await asyncio.to_thread(CliRunner().invoke, main, ["status", *config])).output
        assert "\napprovals   3 wait for a person, the oldest for " in shown
        counted = await running.metrics()
        assert "sidecar_approvals_waiting 3.0" in counted
        assert not re.search(r"^sidecar_approvals_oldest_seconds 0.0$", counted, re.MULTILINE)
        running.app.approvals.clock = lambda: time.time() + 901
        await until(lambda: running.app.approvals.waiting.number == 0)
        assert running.app.status()["approvals"] == {"waiting": 0, "oldest_asked_at": None}


async def test_without_a_person_the_arguments_are_not_shown_and_nothing_is_answered(tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        await running.call(TOOL, PATH)
        (one,) = await waiting(running)
        shown = (await did(running, "show", one["id"])).output
        assert "secret-name" not in shown and "no person has this credential" in shown
        assert "--as" in (await did(running, "approve", one["id"], code=2)).output
        assert "write user:<id>" in (await did(running, "approve", one["id"], "--as", "nhi:planner", code=2)).output
        refused = await did(running, "approve", one["id"], "--as", "user:alice", code=1)
        assert "does not have role:oncall" in refused.output
        assert (await waiting(running))[0]["answers"] == []


async def test_a_refusal_has_a_reason_and_an_approval_is_withdrawn_by_one(tmp_path: Path) -> None:
    async with asking(tmp_path, RULES.replace("within=15m", "reason=required")) as running:
        await running.call(TOOL, PATH)
        (one,) = await waiting(running)
        assert "requires a reason" in (await did(running, "approve", one["id"], *DMITRI, code=2)).output
        await did(running, "approve", one["id"], *DMITRI, "--reason", "incident 7")
        assert "approved already" in (await did(running, "approve", one["id"], *DMITRI, "--reason", "x", code=1)).output
        answered = await told(running, "refuse", one["id"][:8], *DMITRI, "--reason", "not now")
        assert (answered["state"], answered["answers"][-1]["reason"]) == ("refused", "not now")
        shown = (await did(running, "show", one["id"][:8])).output
        assert "incident 7" in shown and "refused" in shown


async def test_a_text_that_names_no_request_or_several_is_refused(tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        await running.call(TOOL, PATH)
        (one,) = await waiting(running)
        record, text = await running.app.approvals.get(one["id"]), one["id"][:5]
        alike = record._replace(id=text + record.id[:4:-1])
        await running.app.approvals.store.add(alike, "", 0.0, RecordBounds(10, 10))
        several = (await did(running, "approve", text, *DMITRI, code=1)).output
        assert several.startswith(f"2 requests begin with {text}:") and alike.name in several
        await did(running, "refuse", alike.name, *DMITRI)
        await did(running, "approve", text, *DMITRI)
        assert f"begins with {text}" in (await did(running, "approve", text, *DMITRI, code=1)).output
        assert "at least 4" in (await did(running, "show", text[:3], code=2)).output
        assert "no request for approval" in (await told(running, "approve", "0" * 41, *DMITRI, code=1))["error"]


async def test_at_another_address_the_credential_is_the_person(tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        await running.call(TOOL, PATH)
        (one,) = await waiting(running)
        for who in KEYS:
            (tmp_path / who).chmod(0o600)
        there = ("--url", running.admin_url, "--key-path", str(tmp_path / "dmitri"))
        assert one["id"][:12] in (await did(running, "list", *there)).output
        assert "secret-name" in (await did(running, "show", one["id"], *there)).output
        assert "not --as" in (await did(running, "approve", one["id"], *there, *DMITRI, code=2)).output
        alice = (*there[:3], str(tmp_path / "alice"))
        assert "does not have" in (await did(running, "approve", one["id"], *alice, code=1)).output
        answered = await told(running, "refuse", one["id"], *there)
        assert answered["answers"][0]["principal"] == "user:dmitri"
        assert "--key-path" in (await did(running, "list", *there[:2], code=2)).output
        assert "nothing more" in (await did(running, "list", "--url", "http://a.example/x", *there[2:], code=2)).output


@pytest.mark.parametrize(("keys", "state"), [(b"y\n", "approved"), (b"n\n", "waiting")])
async def test_at_a_terminal_the_call_is_shown_and_confirmed(keys: bytes, state: str, tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        await running.call(TOOL, PATH)
        (one,) = await waiting(running)
        ours, theirs = pty.openpty()
        words = ("approval", "approve", one["id"][:6], *DMITRI, "-c", str(tmp_path / "sidecar.yaml"))
        process = await asyncio.create_subprocess_exec(sidecar(), *words, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        os.write(ours, keys)
        async with asyncio.timeout(PATIENCE_S):
            await process.wait()
        seen = b""
        with suppress(OSError):  # EIO at the end: the other side is closed
            while chunk := os.read(ours, 65536):
                seen += chunk
        os.close(ours)
        assert b"secret-name" in seen and b"Approve it?" in seen
        found = await told(running, "show", one["id"])
        assert (found["state"], process.returncode) == (state, 0 if state == "approved" else 1)


async def test_a_shell_completes_ids_of_calls_that_can_be_answered(tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        await running.call(TOOL, PATH)
        (one,) = await waiting(running)
        for command, count in (("approve", 1), ("refuse", 1), ("show", 1)):
            words = f"sidecar approval {command} -c {tmp_path / 'sidecar.yaml'} {one['id'][:3]}"
            environ = {"_SIDECAR_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "5"}
            done = await asyncio.to_thread(CliRunner().invoke, main, [], env=environ, prog_name="sidecar")
            assert done.output.splitlines() == [f"plain,{one['id']}"] * count
