"""The operator's log: JSON lines from the first to the last, or text, with one line per request if it is configured."""

import json
import logging
import os
import pty
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from sidecar.errors import Fault
from sidecar.observability.log_lines import MAX_WAITING, JsonLines, RequestLines, TextLines
from tests.flow.forks import sidecar
from tests.flow.process import served
from tests.flow.raw import wire
from tests.flow.test_start_faults import BAD_FILES, folder_with
from tests.flow.world import RULES, Upstream, World, listening, until, world

GOOD = {"repo": "acme/x"}
ON = "log: {requests: true}\n"
HOSTILE = 'a\nb\r\u2028\u2029\x85\x1b[2J\u202e"}{'


def serve(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sidecar(), "serve", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=30, check=False)


def lines_of(capture: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The lines of requests so far, as JSON has them."""
    return [json.loads(JsonLines().format(one)) for one in capture.records if one.name == "sidecar.request"]


async def test_every_line_of_a_life_is_json_the_start_the_stop_and_requests_included() -> None:
    upstream = Upstream()
    async with (
        listening(upstream.handle) as base,
        served(
            f"{base}/mcp", rules=RULES, settings=f'{ON}local: [{{listen: "127.0.0.1:0", principal: nhi:planner}}]\n'
        ) as one,
    ):
        async with aiohttp.ClientSession() as http, http.post(f"{one.url}/mcp/github?{quote(HOSTILE)}") as response:
            assert response.status == 401
        one.signal(signal.SIGHUP)
        await until(lambda: "reload" in one.controls())
        one.signal(signal.SIGTERM)
        assert await one.ended() == 0
        lines = [json.loads(line) for line in one.log().splitlines()]
        assert all({"time", "level", "logger", "event"} <= line.keys() for line in lines)
        events = [line["event"] for line in lines]
        assert events[-2:] == ["stopping", "stopped"] and "reloaded" in events
        (request,) = [line for line in lines if line["logger"] == "sidecar.request"]
        assert (request["status"], request["reason"]) == ("permission_denied", "unauthenticated")


def test_a_start_that_fails_says_so_in_json_with_the_place_of_each_fault(tmp_path: Path) -> None:
    folder_with(tmp_path, BAD_FILES, program="command: no-such-program")
    done = serve(tmp_path)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    faults = [line for line in lines if "code" in line]
    assert (done.returncode, done.stdout) == (3, "")
    assert {Path(fault["file"]).name for fault in faults} == {Path(name).name for name in (*BAD_FILES, "sidecar.yaml")}
    assert all(fault["level"] == "error" and fault["hint"] for fault in faults)
    assert lines[-1]["event"] == "the start failed" and lines[-1]["faults"] == len(faults)


def test_on_a_terminal_the_log_is_text(tmp_path: Path) -> None:
    (tmp_path / "sidecar.yaml").write_text("version: 2\n")
    ours, theirs = pty.openpty()
    try:
        command = [sidecar(), "serve"]
        done = subprocess.run(command, cwd=tmp_path, stdout=theirs, stderr=theirs, timeout=30, check=False)
        assert done.returncode == 3 and os.read(ours, 65536).startswith(b"sidecar.yaml:1:10: error[")
    finally:
        os.close(ours)
        os.close(theirs)


async def test_each_request_has_one_line_that_agrees_with_its_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with world(tmp_path, settings=ON) as running:
        await running.call("get_file", GOOD, headers={"traceparent": trace})
        await running.call("search_code", {"repo": "a-secret-argument"})
        await running.ask("tools/list")
        await running.ask("tools/call", {"name": HOSTILE, "arguments": {}})
        await until(lambda: len(lines_of(caplog)) == 4)
        lines, records = lines_of(caplog), {one["decision_id"]: one for one in running.ends()}
    assert len(records) == 4
    assert [(one["tool"], one["status"], one["reason"]) for one in lines[:3]] == [
        ("get_file", "success", None),
        ("search_code", "permission_denied", "condition-false"),
        (None, "success", None),
    ]
    for line in lines:
        record = records[line["decision_id"]]
        for name in ("protocol", "upstream", "method", "tool", "status", "reason", "trace_id"):
            assert line[name] == record[name], name
        assert line["principal"] == record["agent_id"] and line["duration_ms"] > record["duration_ms"] - 0.01
    assert lines[0]["trace_id"] == trace.split("-")[1] and lines[0]["duration_ms"] > 0
    assert "a-secret-argument" not in json.dumps(lines)


async def test_requests_have_no_lines_until_a_reload_says_so_and_none_after_another(
    planner: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    settings = planner.folder / "sidecar.yaml"
    written = settings.read_text()
    await planner.call("get_file", GOOD)
    settings.write_text(written + ON)
    await planner.app.reload("test")
    await planner.call("search_code", GOOD)
    await until(lambda: len(lines_of(caplog)) == 1)
    settings.write_text(written)
    await planner.app.reload("test")
    await planner.call("get_file", GOOD)
    assert [one["tool"] for one in lines_of(caplog)] == ["search_code"]
    await until(lambda: all(thread.name != "lines of requests" for thread in threading.enumerate()))


async def test_bytes_that_are_no_request_have_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with world(tmp_path, settings=ON) as running, wire(running) as line:
        await line.send(b"GET /\x00\x1b HTTP/1.1\r\n\r\n")
        await until(lambda: bool(lines_of(caplog)))
    (told,) = lines_of(caplog)
    assert (told["status"], told["reason"], told["principal"]) == ("error", "malformed-call", None)


@pytest.mark.parametrize("form", [JsonLines(), TextLines()])
def test_no_field_of_a_caller_breaks_a_line(form: logging.Formatter) -> None:
    record = logging.LogRecord("sidecar.request", logging.INFO, "", 0, f"said {HOSTILE}", None, None)
    vars(record).update(tool=HOSTILE, principal="\udcff", empty="", blank="a b", none=None)
    line = form.format(record)
    unsafe = {*HOSTILE} - {*'ab[2J"}{'}
    if isinstance(form, JsonLines):
        assert len(line.splitlines()) == 1 and not unsafe & {*line}
        assert (json.loads(line)["tool"], json.loads(line)["event"]) == (HOSTILE, f"said {HOSTILE}")
    else:
        _, *rest = line.split("\n")
        assert not (unsafe - {"\n"}) & {*line} and all(more.startswith("    ") for more in rest)
        assert 'empty=""  blank="a b"' in line and "none" not in line


def test_a_reader_that_stops_delays_no_request_and_what_was_dropped_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stuck, written = threading.Event(), list[str]()

    def write(line: logging.LogRecord) -> None:
        stuck.wait(30)
        written.append(vars(line)["tool"])

    given_up, waited_for = RequestLines(write), RequestLines(write)
    for number in range(MAX_WAITING + 100):
        given_up.put({"tool": "given up"})
        waited_for.put({"tool": str(number)})
    given_up.close(0.0)  # returns, though nothing can be written
    assert not written
    stuck.set()
    waited_for.close(30.0)
    assert {"0", str(MAX_WAITING - 1)} <= {*written} and str(MAX_WAITING + 50) not in written
    counts = [vars(one)["count"] for one in caplog.records if one.name == "sidecar.log"]
    assert counts and {*counts} <= {99, 100}


def test_a_fault_in_a_file_without_a_line_has_no_place() -> None:
    assert Fault("sidecar.yaml", 0, 0, "S133", "it is taken").plain() == {"file": "sidecar.yaml", "code": "S133"}
