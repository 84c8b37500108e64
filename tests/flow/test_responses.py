"""What of an answer reaches the caller, what is on record of it, and what is kept?"""

from __future__ import annotations

import asyncio
import fcntl
import json
import signal
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from click.testing import CliRunner

from sidecar.cli.audit import audit as command
from tests.flow.streams import Emitter, event, hearing, streamed
from tests.flow.talk import ERAS, Era, Talk
from tests.flow.test_kill import process
from tests.flow.world import PATIENCE_S, STATELESS, TOOLS, Upstream, World, stateless, until, world

MAIL = "alice@example.com"
GONE = "[redacted]"
WEATHER = {
    "name": "get_file",
    "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}},
    "outputSchema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
RULES = """\
#: id=all
p, nhi:planner, tool:github/*, use, -, -, -, allow
#: id=asks
p, nhi:planner, nhi:github, sampling/createMessage, -, -, -, allow
"""


def answering(result: dict[str, Any] | None = None, *, error: dict[str, Any] | None = None, status: int = 200) -> Any:
    async def respond(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        stateless_call = "_meta" in message["params"]
        body = {"resultType": "complete", **(result or {})} if stateless_call else result
        answer = {"error": error} if error else {"result": body}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], **answer}, status=status)

    return respond


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": content}], **more}


def before(folder: Path, responses: str, respond: Any, **more: Any) -> Any:
    """A sidecar with these rules for responses, before a server that answers calls so."""
    upstream = Upstream(script={"tools/call": respond, **more.pop("script", {})}, tools=[*TOOLS[:2], WEATHER])
    return world(folder, rules=RULES, upstream=upstream, upstream_settings=f"responses: {{{responses}}}", **more)


@pytest.mark.parametrize("era", ERAS)
async def test_a_secret_is_taken_out_and_the_outcome_says_so(tmp_path: Path, era: Era) -> None:
    result = text(f"mail {MAIL}", structuredContent={"mail": MAIL, "pan": 4111111111111111})
    async with before(tmp_path, "redact: [{classes: [email, card]}]", answering(result)) as running:
        status, body, _ = await Talk(running, era).call("get_file")
        assert status == 200
        assert body["result"]["content"][0]["text"] == f"mail {GONE}"
        assert body["result"]["structuredContent"] == {"mail": GONE, "pan": GONE}
        end = running.ends()[-1]
        assert (end["status"], end["redaction_applied"], end["redactions"], end["evidence"]) == ("success", True, 3, [])


async def test_where_nothing_was_replaced_the_outcome_says_that(tmp_path: Path) -> None:
    async with before(tmp_path, "redact: [{classes: [email]}]", answering(text("nothing"))) as running:
        await running.call("get_file")
        assert (running.ends()[-1]["redaction_applied"], running.ends()[-1]["redactions"]) == (False, 0)


async def test_without_rules_nothing_is_looked_at(planner: World) -> None:
    await planner.call("get_file")
    end = planner.ends()[-1]
    assert (end["redaction_applied"], end["redactions"], end["evidence"]) == (False, None, [])
    assert planner.app.pipeline.live.current.services["github"].screen is None
    assert not (planner.folder / "data" / "evidence").exists()


@pytest.mark.parametrize("status", [200, 400])
async def test_an_error_is_searched_like_a_result(tmp_path: Path, status: int) -> None:
    respond = answering(error={"code": -32000, "message": f"no user {MAIL}", "data": {"who": MAIL}}, status=status)
    async with before(tmp_path, "redact: [{classes: [email]}]", respond) as running:
        got, body, _ = await running.call("get_file")
        assert (got, body["error"]["message"], body["error"]["data"]) == (status, f"no user {GONE}", {"who": GONE})
        assert running.ends()[-1]["redactions"] == 2


async def test_every_event_of_a_stream_is_searched(tmp_path: Path) -> None:
    async def respond(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        said = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": MAIL}}
        moved = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "message": MAIL}}
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": {"resultType": "complete", **text(MAIL)}}
        return await streamed(request, event(said), event(moved), event(answer))

    async with before(tmp_path, "redact: [{classes: [email]}]", respond) as running:
        routing = {"Mcp-Method": "tools/call", "Mcp-Name": "get_file", "MCP-Protocol-Version": STATELESS}
        call = stateless("tools/call", {"name": "get_file", "arguments": {}})
        async with hearing(running.http, f"{running.url}/mcp/github", routing, call) as ear:
            said, moved, answer = await ear.rest()
        assert (said["params"]["data"], moved["params"]["message"]) == (GONE, GONE)
        assert answer["result"]["content"][0]["text"] == GONE
        assert running.ends()[-1]["redactions"] == 3


async def test_an_answer_on_a_later_stream_is_under_the_rules_of_its_own_call(tmp_path: Path) -> None:
    sent: dict[str, Any] = {}

    async def respond(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        sent["answer"] = {
            "jsonrpc": "2.0",
            "id": message["id"],
            "result": text(MAIL, structuredContent={"city": "Ulm"}),
        }
        progress = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}}
        return await streamed(request, event(progress, id="e1"))

    async def resumed(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        return await streamed(request, event(sent["answer"], id="e2"))

    rules = "redact: [{tools: [get_*], classes: [email]}], evidence: [get_file], check_output: true"
    async with before(tmp_path, rules, respond, script={"GET": resumed}) as running:
        talk = Talk(running, "session")
        await talk.open()
        address = f"{running.url}/mcp/github"
        call = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "get_file", "arguments": {}}}
        async with hearing(running.http, address, talk.in_session, call) as ear:
            block = (await ear.block()).decode()
            last = next(line[4:] for line in block.splitlines() if line.startswith("id: "))
            assert await ear.rest() == []
        async with hearing(running.http, address, {**talk.in_session, "Last-Event-ID": last}) as ear:
            [answer] = await ear.rest()
        assert answer["result"]["content"][0]["text"] == GONE
        kept = evidence(running)[0]
        asked = next(each for each in running.records() if each["event"] == "decision" and each["tool"] == "get_file")
        assert kept["mcp_invocation_id"] == asked["decision_id"]
        assert [each["id"] for each in running.ends()[-1]["evidence"]] == [kept["id"]]


@pytest.mark.parametrize("id", [5, 6])
async def test_no_answer_is_fetched_under_the_rules_of_another_call(tmp_path: Path, id: int) -> None:
    """The second call bears the first one's id, or another; what comes later answers the first, or the second."""
    sent: list[dict[str, Any]] = []

    async def respond(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        sent.append({"jsonrpc": "2.0", "id": message["id"], "result": text(MAIL)})
        return await streamed(
            request, event({"jsonrpc": "2.0", "method": "notifications/message", "params": {}}, id="e")
        )

    async def resumed(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        return await streamed(request, *map(event, sent))

    rules = "redact: [{tools: [get_*], classes: [email]}]"
    async with before(tmp_path, rules, respond, script={"GET": resumed}) as running:
        talk, address = Talk(running, "session"), f"{running.url}/mcp/github"
        await talk.open()
        for tool, request_id in (("get_file", 5), ("delete_repo", id)):
            call = {
                "id": request_id,
                "method": "tools/call",
                "params": {"name": tool, "arguments": {}},
                "jsonrpc": "2.0",
            }
            async with hearing(running.http, address, talk.in_session, call) as ear:
                block = (await ear.block()).decode()
                await ear.rest()
        last = next(line[4:] for line in block.splitlines() if line.startswith("id: "))
        async with hearing(running.http, address, {**talk.in_session, "Last-Event-ID": last}) as ear:
            heard = await ear.rest()
        assert MAIL not in json.dumps(heard)
        assert len(heard) == (0 if id == 5 else 2)


async def test_an_open_stream_is_under_the_newest_rules(tmp_path: Path) -> None:
    emitter = Emitter()
    said = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": MAIL}}
    async with before(tmp_path, "max_bytes: 1MiB", answering(), script={"GET": emitter.listen}) as running:
        talk = Talk(running, "session")
        await talk.open()
        async with hearing(running.http, f"{running.url}/mcp/github", talk.in_session) as ear:
            await emitter.emit("upstream-1", event(said))
            assert (await ear.message())["params"]["data"] == MAIL
            file = running.folder / "sidecar.yaml"
            file.write_text(file.read_text().replace("max_bytes: 1MiB", "redact: [{classes: [email]}]"))
            await running.app.reload("test")
            await running.app.pipeline.exchanges.oversight.look()
            await emitter.emit("upstream-1", event(said))
            assert (await ear.message())["params"]["data"] == GONE


async def test_too_large_an_answer_is_refused(tmp_path: Path) -> None:
    rules = "max_bytes: 2KiB, max_bytes_of: {get_file: 8KiB}"
    async with before(tmp_path, rules, answering(text("x" * 4096))) as running:
        status, body, _ = await running.call("delete_repo")
        assert (status, body["error"]["data"]["reason"]) == (502, "response-refused")
        assert (await running.call("get_file"))[0] == 200


@pytest.mark.parametrize(
    ("result", "pointer", "keyword"),
    [
        (text("x", structuredContent={"city": 4711}), "/structuredContent/city", "type"),
        (text("x", structuredContent={}), "/structuredContent", "required"),
        (text("x", structuredContent=[4711]), "/structuredContent", "type"),
        (text("x"), "/structuredContent", "required"),
    ],
)
async def test_a_result_that_does_not_fit_its_schema_is_refused_without_its_value(
    tmp_path: Path, result: dict[str, Any], pointer: str, keyword: str
) -> None:
    async with before(tmp_path, "check_output: true", answering(result)) as running:
        status, body, _ = await running.call("get_file")
        data = body["error"]["data"]
        assert (status, data["reason"], data["pointer"], data["keyword"]) == (502, "response-refused", pointer, keyword)
        assert "4711" not in json.dumps(body)
        assert running.ends()[-1]["reason"] == "response-refused"


@pytest.mark.parametrize("result", [text("x", structuredContent={"city": "a@b.example"}), text("failed", isError=True)])
async def test_a_result_that_fits_and_a_failure_pass(tmp_path: Path, result: dict[str, Any]) -> None:
    rules = "check_output: true, redact: [{pointers: [/structuredContent/city]}]"
    async with before(tmp_path, rules, answering(result)) as running:
        status, body, _ = await running.call("get_file")
        assert status == 200
        assert body["result"].get("structuredContent", {"city": GONE}) == {"city": GONE}


async def test_a_tool_whose_output_schema_cannot_be_used_is_not_run(tmp_path: Path) -> None:
    bad = {**WEATHER, "outputSchema": {"type": "object", "properties": {"x": {"$ref": "https://evil.example/s"}}}}
    upstream = Upstream(script={"tools/call": answering(text("x"))}, tools=[bad, TOOLS[1]])
    async with world(
        tmp_path, rules=RULES, upstream=upstream, upstream_settings="responses: {check_output: true}"
    ) as running:
        status, body, _ = await running.call("get_file")
        assert (status, body["error"]["data"]["reason"]) == (503, "schema-unavailable")
        assert upstream.calls() == []
        assert (await running.call("delete_repo"))[0] == 200
        assert "outputSchema" in str(running.app.pipeline.live.current.services["github"].catalogue.summary())


# --- evidence ---------------------------------------------------------------------------------------------------------


def evidence(running: World) -> list[Mapping[str, Any]]:
    return [orjson.loads(line) for line in evidence_path(running).read_bytes().splitlines()]


def evidence_path(running: World) -> Path:
    return running.app.settings.evidence_path


def cli(*arguments: Any) -> Any:
    return CliRunner().invoke(command, [str(each) for each in arguments])


SAID = {"type": "repository", "description": "a file of main", "confidence": 0.9, "tags": ["code", 7], "other": {}}


async def test_a_named_tools_result_is_kept_as_the_caller_had_it_and_the_outcome_names_it(tmp_path: Path) -> None:
    result = text(f"mail {MAIL}", structuredContent={"b": 1, "a": MAIL}, _meta={"x": 1, "evidence": SAID})
    rules = "evidence: [get_*], redact: [{classes: [email]}]"
    async with before(tmp_path, rules, answering(result)) as running:
        _, body, _ = await running.call("get_file", {"path": "/very/private"}, headers={"X-Run-Id": "run-7"})
        await running.call("delete_repo", {"repo": "x"})
        (kept,) = evidence(running)
        end = running.ends()[0]
        names = {"source_type": "mcp", "mcp_tool_name": "github", "mcp_method": "get_file", "run_id": "run-7"}
        said = {"type": "repository", "description": "a file of main", "confidence": 0.9, "tags": ["code"]}
        assert {name: kept[name] for name in (*names, *said)} == {**names, **said}
        assert kept["data"] == {name: body["result"][name] for name in ("content", "structuredContent")}
        assert list(kept["data"]["structuredContent"]) == ["a", "b"]
        assert kept["metadata"] == {"redacted": True, "cache_key": f"github:get_file:{end['args_hash']}"}
        assert kept["mcp_invocation_id"] == end["decision_id"]
        assert [each["id"] for each in end["evidence"]] == [kept["id"]]
        assert running.ends()[1]["evidence"] == []
        raw = evidence_path(running).read_bytes()
        assert b"very/private" not in raw and b"example.com" not in raw
        assert stat.S_IMODE(evidence_path(running).stat().st_mode) == 0o600


async def test_the_commands_say_whether_a_result_is_the_one_that_was_kept(tmp_path: Path) -> None:
    async with before(tmp_path, "evidence: ['*']", answering(text("first"))) as running:
        await running.call("get_file")
        await running.call("delete_repo")
        log, file = running.app.settings.audit_path, evidence_path(running)
    good = cli("verify", log, "--evidence", file)
    assert good.exit_code == 0 and "2 kept results are those that the log names" in good.output
    shown = cli("show", log, "--evidence", "--object", "tool:github/get_*", "--json")
    (record,) = map(orjson.loads, shown.output.splitlines())
    assert (record["mcp_method"], record["as_recorded"]) == ("get_file", True)
    assert cli("show", log, "--evidence").output.count("kept") == 2

    file.write_bytes(file.read_bytes().replace(b"first", b"forged", 1))
    bad = cli("verify", log, "--evidence", file)
    assert bad.exit_code == 5 and f"{file}:1: evidence-changed" in bad.output
    assert "CHANGED" in cli("show", log, "--evidence").output
    file.write_bytes(b"\n".join(file.read_bytes().splitlines()[1:]) + b"\n{}\n")
    lost = cli("verify", log, "--evidence", file)
    assert (
        lost.exit_code == 5 and "evidence-missing" in lost.output and "1 lines of evidence are named by" in lost.output
    )
    assert "is nowhere" in cli("show", log, "--evidence").output
    doubled = file.read_bytes().splitlines()[0]
    file.write_bytes(doubled + b"\n" + doubled + b"\n")
    assert "evidence-doubled" in cli("verify", log, "--evidence", file).output


async def test_what_must_be_kept_and_cannot_be_is_refused_before_the_caller_has_it(tmp_path: Path) -> None:
    async with before(tmp_path, "evidence: [get_file]", answering(text("precious"))) as running:
        folder = evidence_path(running).parent
        folder.mkdir()
        evidence_path(running).mkdir()  # no file can be written there
        status, body, _ = await running.call("get_file")
        assert (status, body["error"]["data"]["reason"]) == (503, "audit-unavailable")
        assert "precious" not in json.dumps(body)
        assert running.ends()[-1]["reason"] == "audit-unavailable"
        assert 'sidecar_audit_records_total{event="evidence",result="failed"} 1' in await running.metrics()
        evidence_path(running).rmdir()
        assert (await running.call("get_file"))[0] == 200


async def test_best_effort_lets_the_result_go(tmp_path: Path) -> None:
    settings = "audit: {durability: best_effort}\n"
    async with before(tmp_path, "evidence: [get_file]", answering(text("x")), settings=settings) as running:
        evidence_path(running).mkdir(parents=True)
        assert (await running.call("get_file"))[0] == 200
        async with asyncio.timeout(PATIENCE_S):
            while running.app.audit.writer.depth:  # nobody waits for a record there
                await asyncio.sleep(0.01)
        assert running.ends()[-1]["evidence"] == []


async def test_what_is_refused_is_not_kept(tmp_path: Path) -> None:
    respond = answering(text("x", inputRequests={"1": {"method": "elicitation/create"}}))
    async with before(tmp_path, "evidence: [get_file]", respond) as running:
        assert (await running.call("get_file"))[0] != 200
        assert not evidence_path(running).exists()


async def test_a_torn_line_of_a_killed_run_is_taken_away_and_told(tmp_path: Path) -> None:
    async with before(tmp_path, "evidence: [get_file]", answering(text("x"))) as running:
        path = evidence_path(running)
        path.parent.mkdir()
        path.write_bytes(b'{"whole":1}\n{"torn":')
        await running.call("get_file")
        lines = path.read_bytes().splitlines()
        assert lines[0] == b'{"whole":1}' and len(lines) == 2
        told = [each["control"] for each in running.records() if each["event"] == "control"]
        assert {"what": "evidence-recovered", "by": "sidecar", "torn_bytes": 8} in told


async def test_a_file_of_somebody_elses_is_not_cut(tmp_path: Path) -> None:
    async with before(tmp_path, "evidence: [get_file]", answering(text("x"))) as running:
        path = evidence_path(running)
        path.parent.mkdir()
        path.write_bytes(b"my diary")
        assert (await running.call("get_file"))[0] == 503
        assert path.read_bytes() == b"my diary"


async def test_a_result_too_large_to_be_kept_is_refused(tmp_path: Path) -> None:
    async with before(tmp_path, "evidence: [get_file]", answering(text("x" * (4 * 2**20)))) as running:
        status, body, _ = await running.call("get_file")
        assert (status, body["error"]["data"]["reason"]) == (502, "response-refused")


async def test_two_sidecars_do_not_write_one_file(tmp_path: Path) -> None:
    async with before(tmp_path, "evidence: [get_file]", answering(text("x"))) as running:
        path = evidence_path(running)
        path.parent.mkdir()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            assert (await running.call("get_file"))[0] == 503
        finally:
            os.close(descriptor)
        assert (await running.call("get_file"))[0] == 200


async def test_a_large_answer_holds_nobody_up(tmp_path: Path) -> None:
    """1 MB of prose with everything looked for; the loop is late by less than the bound (threats I11)."""
    prose = "the quick brown fox paid 4111 euros to fox@a and 10.0 more; " * 17_000
    rules = "redact: [{classes: [email, card, bearer, jwt, api_key, private_key, iban, ssn, ipv4]}]"
    async with before(tmp_path, rules, answering(text(prose + MAIL))) as running:
        lags = list[float]()  # in the loop's own work, whatever else the machine does

        async def tick() -> None:
            while True:
                began = time.thread_time()
                await asyncio.sleep(0.001)
                lags.append(time.thread_time() - began)

        ticking = asyncio.create_task(tick())
        _, body, _ = await running.call("get_file")
        ticking.cancel()
        assert body["result"]["content"][0]["text"].endswith(GONE)
        assert sorted(lags)[-1] < 0.25  # the server and the client of this test share the loop, and parse 1 MB each
        assert len(lags) > 8  # others had their turn


async def test_every_result_that_was_answered_is_kept_and_named_after_a_kill() -> None:
    """kill -9 under load, with lines of a size that a kill can tear."""
    upstream = Upstream(script={"tools/call": answering(text("x" * 20_000))})
    async with process(upstream, upstream_settings="responses: {evidence: ['*']}") as client:
        running = client.running
        loaded = asyncio.create_task(client.load(asyncio.Event()))
        await until(lambda: len(client.answers) >= 100, 20)
        await running.kill()
        await loaded
        await running.start()
        assert (await client.call())[0] == 200
        running.signal(signal.SIGTERM)
        assert await running.ended() == 0
        file = running.audit_path.parent.parent / "evidence" / "evidence.jsonl"
        held = cli("verify", running.audit_path, "--key", running.key_path, "--evidence", file)
        assert held.exit_code == 0, held.output
        kept = {orjson.loads(line)["run_id"] for line in file.read_bytes().splitlines()}
        assert {status for status, _ in client.answers.values()} == {200}
        assert client.answers.keys() <= kept
