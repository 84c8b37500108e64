"""What of an answer reaches the caller, what is on record of it, and what is kept?"""

import asyncio
import fcntl
import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import orjson
import pytest
from aiohttp import web
from click.testing import CliRunner

from sidecar.cli import main
from sidecar.gateway import redaction
from sidecar.gateway.redaction import wiped
from tests.flow.causes import budgets
from tests.flow.guests import result_of
from tests.flow.scripts import answer, giving, stream
from tests.flow.streams import Emitter, event, hearing, streamed
from tests.flow.talk import ERAS, Era, Talk
from tests.flow.world import PATIENCE_S, TOOLS, Upstream, World, request, world

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


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": content}], **more}


def before(folder: Path, responses: str, respond: Any, **more: Any) -> Any:
    """A sidecar with these rules for responses, before a server that answers calls so."""
    upstream = Upstream(script={"tools/call": respond, **more.pop("script", {})}, tools=[*TOOLS[:2], WEATHER])
    return world(folder, rules=RULES, upstream=upstream, upstream_settings=f"responses: {{{responses}}}", **more)


@pytest.mark.parametrize("era", ERAS)
async def test_a_secret_is_taken_out_and_the_outcome_says_so(tmp_path: Path, era: Era) -> None:
    result = text(f"mail {MAIL}", structuredContent={"mail": MAIL, "pan": 4111111111111111})
    async with before(tmp_path, "redact: [{classes: [email, card]}]", giving(result)) as running:
        status, body, _ = await Talk(running, era).call("get_file")
        assert status == 200
        assert body["result"]["content"][0]["text"] == f"mail {GONE}"
        assert body["result"]["structuredContent"] == {"mail": GONE, "pan": GONE}
        end = running.ends()[-1]
        assert (end["status"], end["redaction_applied"], end["redactions"], end["evidence"]) == ("success", True, 3, [])


async def test_where_nothing_was_replaced_or_looked_at_the_outcome_says_that(tmp_path: Path, planner: World) -> None:
    async with before(tmp_path / "rules", "redact: [{classes: [email]}]", giving(text("nothing"))) as running:
        for one, replaced in ((running, 0), (planner, None)):
            await one.call("get_file")
            end = one.ends()[-1]
            assert (end["redaction_applied"], end["redactions"], end["evidence"]) == (False, replaced, [])
    assert planner.app.pipeline.live.current.services["github"].screen is None
    assert not (planner.folder / "data" / "evidence").exists()


@pytest.mark.parametrize("status", [200, 400])
async def test_an_error_is_searched_like_a_result(tmp_path: Path, status: int) -> None:
    respond = answer(status, error={"code": -32000, "message": f"no user {MAIL}", "data": {"who": MAIL}})
    async with before(tmp_path, "redact: [{classes: [email]}]", respond) as running:
        got, body, _ = await running.call("get_file")
        assert (got, body["error"]["message"], body["error"]["data"]) == (status, f"no user {GONE}", {"who": GONE})
        assert running.ends()[-1]["redactions"] == 2


async def test_every_event_of_a_stream_is_searched(tmp_path: Path) -> None:
    moved = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "message": MAIL}}
    respond = stream(event(LOGGED), event(moved), lambda m: result_of(m, {"resultType": "complete", **text(MAIL)}))
    async with before(tmp_path, "redact: [{classes: [email]}]", respond) as running:
        said, moved, answered = messages_in((await running.call("get_file"))[1])
        assert (said["params"]["data"], moved["params"]["message"]) == (GONE, GONE)
        assert answered["result"]["content"][0]["text"] == GONE
        assert running.ends()[-1]["redactions"] == 3


LOGGED = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": MAIL}}


def messages_in(body: bytes) -> list[dict[str, Any]]:
    """What a stream held that was read to its end."""
    return [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: ")]


async def broken_off(talk: Talk, tool: str, arguments: dict[str, Any], id: int) -> str:
    """A call whose stream ends without its answer: the id of the last event."""
    call = request("tools/call", {"name": tool, "arguments": arguments}, id=id)
    async with hearing(talk.world.http, f"{talk.world.url}/mcp/github", talk.in_session, call) as ear:
        block = (await ear.block()).decode()
        await ear.rest()
    return next(line[4:] for line in block.splitlines() if line.startswith("id: "))


async def fetched(talk: Talk, last: str) -> list[dict[str, Any]]:
    """What comes after that event."""
    there = {**talk.in_session, "Last-Event-ID": last}
    async with hearing(talk.world.http, f"{talk.world.url}/mcp/github", there) as ear:
        return await ear.rest()


def later(result: dict[str, Any]) -> dict[str, Any]:
    """The script of a server that answers its calls with this on later streams."""
    sent: list[dict[str, Any]] = []

    async def respond(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        sent.append(result_of(message, result))
        return await streamed(request, event({**LOGGED, "params": {}}, id="e"))

    async def resumed(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        return await streamed(request, *map(event, sent))

    return {"tools/call": respond, "GET": resumed}


async def test_an_answer_on_a_later_stream_is_under_the_rules_of_its_own_call(tmp_path: Path) -> None:
    rules = "redact: [{tools: [get_*], classes: [email]}], evidence: [get_file], check_output: true"
    script = later(text(MAIL, structuredContent={"city": "Ulm"}))
    async with before(tmp_path, rules, None, script=script) as running:
        talk = Talk(running, "session")
        await talk.open()
        [answer] = await fetched(talk, await broken_off(talk, "get_file", {}, 5))
        assert answer["result"]["content"][0]["text"] == GONE
        kept = evidence(running)[0]
        asked = next(each for each in running.records() if each["event"] == "decision" and each["tool"] == "get_file")
        assert kept["mcp_invocation_id"] == asked["decision_id"]
        assert [each["id"] for each in running.ends()[-1]["evidence"]] == [kept["id"]]


@pytest.mark.parametrize("id", [5, 6])
async def test_no_answer_is_fetched_under_the_rules_of_another_call(tmp_path: Path, id: int) -> None:
    """The second call bears the first one's id, or another; what comes later answers the first, or the second."""
    rules = "redact: [{tools: [get_*], classes: [email]}]"
    async with before(tmp_path, rules, None, script=later(text(MAIL))) as running:
        talk = Talk(running, "session")
        await talk.open()
        await broken_off(talk, "get_file", {}, 5)
        heard = await fetched(talk, await broken_off(talk, "delete_repo", {}, id))
        assert MAIL not in json.dumps(heard)
        assert len(heard) == (0 if id == 5 else 2)


async def test_an_open_stream_is_under_the_newest_rules(tmp_path: Path) -> None:
    emitter = Emitter()
    async with before(tmp_path, "max_bytes: 1MiB", giving({}), script={"GET": emitter.listen}) as running:
        talk = Talk(running, "session")
        await talk.open()
        async with hearing(running.http, f"{running.url}/mcp/github", talk.in_session) as ear:
            await emitter.emit("upstream-1", event(LOGGED))
            assert (await ear.message())["params"]["data"] == MAIL
            file = running.folder / "sidecar.yaml"
            file.write_text(file.read_text().replace("max_bytes: 1MiB", "redact: [{classes: [email]}]"))
            await running.app.reload("test")
            await running.app.pipeline.forwarder.oversight.look()
            await emitter.emit("upstream-1", event(LOGGED))
            assert (await ear.message())["params"]["data"] == GONE


async def test_too_large_an_answer_is_refused(tmp_path: Path) -> None:
    rules = "max_bytes: 2KiB, max_bytes_of: {get_file: 8KiB}"
    async with before(tmp_path, rules, giving(text("x" * 4096))) as running:
        status, body, _ = await running.call("delete_repo")
        assert (status, body["error"]["data"]["reason"]) == (502, "response-refused")
        assert (await running.call("get_file"))[0] == 200


async def test_a_result_that_does_not_fit_its_schema_is_refused_without_its_value(tmp_path: Path) -> None:
    rows: list[tuple[dict[str, Any], str, str]] = [
        (text("x", structuredContent={"city": 4711}), "/structuredContent/city", "type"),
        (text("x", structuredContent={}), "/structuredContent", "required"),
        (text("x", structuredContent=[4711]), "/structuredContent", "type"),
        (text("x"), "/structuredContent", "required"),
        (text("x", structuredContent={"city": "a@b.example"}), "", ""),
        (text("failed", isError=True), "", ""),
    ]
    rules = "check_output: true, redact: [{pointers: [/structuredContent/city]}]"
    async with before(tmp_path, rules, giving({})) as running:
        for result, pointer, keyword in rows:
            running.upstream.script["tools/call"] = giving(result)
            status, body, _ = await running.call("get_file")
            if not pointer:
                assert status == 200
                assert body["result"].get("structuredContent", {"city": GONE}) == {"city": GONE}
                continue
            data = body["error"]["data"]
            assert (status, data["reason"]) == (502, "response-refused")
            assert (data["pointer"], data["keyword"]) == (pointer, keyword)
            assert "4711" not in json.dumps(body)
            assert running.ends()[-1]["reason"] == "response-refused"


async def test_a_tool_whose_output_schema_cannot_be_used_is_not_run(tmp_path: Path) -> None:
    bad = {**WEATHER, "outputSchema": {"type": "object", "properties": {"x": {"$ref": "https://evil.example/s"}}}}
    upstream = Upstream(script={"tools/call": giving(text("x"))}, tools=[bad, TOOLS[1]])
    async with world(
        tmp_path, rules=RULES, upstream=upstream, upstream_settings="responses: {check_output: true}"
    ) as running:
        status, body, _ = await running.call("get_file")
        assert (status, body["error"]["data"]["reason"]) == (503, "schema-unavailable")
        assert upstream.calls() == []
        assert (await running.call("delete_repo"))[0] == 200
        assert "outputSchema" in str(running.app.pipeline.live.current.services["github"].catalogue.summary())


async def test_a_call_whose_output_cannot_be_checked_any_more_was_sent_and_is_charged(tmp_path: Path) -> None:
    async def respond(_: web.Request, message: dict[str, Any]) -> web.Response:
        service = running.app.live.current.services["github"]
        while service.account.breaker.closed:
            service.account.faulted(service.account.breaker.enter(), "others had no answer")
        service.catalogue.stale()
        return web.json_response(result_of(message, text("x", structuredContent={"city": "x"})))

    files = budgets('tools: {"*": {daily_quota: 5}}')
    async with before(tmp_path, "check_output: true", respond, files=files) as running:
        status, body, _ = await running.call("get_file")
        assert (status, body["error"]["data"]["reason"]) == (502, "response-refused")
        assert [limit["charged"] for limit in running.ends()[-1]["limits"]] == [1]
        assert len(running.upstream.calls()) == 1


# --- evidence ---------------------------------------------------------------------------------------------------------


def evidence(running: World) -> list[Mapping[str, Any]]:
    return [orjson.loads(line) for line in evidence_path(running).read_bytes().splitlines()]


def evidence_path(running: World) -> Path:
    return running.app.settings.evidence_path


def cli(*arguments: Any) -> Any:
    return CliRunner().invoke(main, ["audit", *map(str, arguments)])


SAID = {"type": "repository", "description": "a file of main", "confidence": 0.9, "tags": ["code", 7], "other": {}}


async def test_a_named_tools_result_is_kept_as_the_caller_had_it_and_the_outcome_names_it(tmp_path: Path) -> None:
    result = text(f"mail {MAIL}", structuredContent={"b": 1, "a": MAIL}, _meta={"x": 1, "evidence": SAID})
    rules = "evidence: [get_*], redact: [{classes: [email]}]"
    async with before(tmp_path, rules, giving(result)) as running:
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
    async with before(tmp_path, "evidence: ['*']", giving(text("first"))) as running:
        await running.call("get_file")
        await running.call("delete_repo")
        log, file = running.app.settings.audit_path, evidence_path(running)
    good = cli("verify", log, "--evidence", file)
    assert good.exit_code == 0 and "2 stored results are those that the log names" in good.output
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
    """Where a folder is in the file's place, another writes it, it is no evidence, or the result is too large."""
    async with before(tmp_path, "evidence: [get_file]", giving(text("precious"))) as running:
        path = evidence_path(running)
        path.parent.mkdir()

        async def refused(status: int, reason: str) -> None:
            got, body, _ = await running.call("get_file")
            assert (got, body["error"]["data"]["reason"]) == (status, reason)
            assert "precious" not in json.dumps(body) and running.ends()[-1]["reason"] == reason

        running.upstream.script["tools/call"] = giving(text("x", inputRequests={"1": {"method": "roots/list"}}))
        assert (await running.call("get_file"))[0] != 200 and not path.exists(), "what is refused is not kept"
        running.upstream.script["tools/call"] = giving(text("precious" * 2**19))
        await refused(502, "response-refused")
        running.upstream.script["tools/call"] = giving(text("precious"))
        path.mkdir()
        await refused(503, "audit-unavailable")
        assert 'sidecar_audit_records_total{event="evidence",result="failed"} 1' in await running.metrics()
        path.rmdir()
        path.write_bytes(b"my diary")
        await refused(503, "audit-unavailable")
        assert path.read_bytes() == b"my diary"
        path.write_bytes(b'{"whole":1}\n{"torn":')
        with path.open("rb+") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            await refused(503, "audit-unavailable")
        assert (await running.call("get_file"))[0] == 200
        lines = path.read_bytes().splitlines()
        assert lines[0] == b'{"whole":1}' and len(lines) == 2
        told = [each["control"] for each in running.records() if each["event"] == "control"]
        assert {"what": "evidence-recovered", "by": "sidecar", "torn_bytes": 8} in told


async def test_best_effort_lets_the_result_go(tmp_path: Path) -> None:
    settings = "audit: {durability: best_effort}\n"
    async with before(tmp_path, "evidence: [get_file]", giving(text("x")), settings=settings) as running:
        evidence_path(running).mkdir(parents=True)
        assert (await running.call("get_file"))[0] == 200
        async with asyncio.timeout(PATIENCE_S):
            while running.app.audit.writer.depth:  # nobody waits for a record there
                await asyncio.sleep(0.01)
        assert running.ends()[-1]["evidence"] == []


async def test_a_large_answer_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 MB of prose with everything looked for, in slices."""
    prose = "the quick brown fox paid 4111 euros to fox@a and 10.0 more; " * 17_000
    rules = "redact: [{classes: [email, card, bearer, jwt, api_key, private_key, iban, ssn, ipv4]}]"
    async with before(tmp_path, rules, giving(text(prose + MAIL))) as running:
        turns, pauses = 0, list[int]()

        async def tick() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        def noted(*arguments: Any) -> redaction.TextSteps:
            steps = wiped(*arguments)
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    return cast(tuple[str, int], end.value)
                pauses.append(turns)
                yield

        monkeypatch.setattr(redaction, "wiped", noted)

        ticking = asyncio.create_task(tick())
        _, body, _ = await running.call("get_file")
        ticking.cancel()
        assert body["result"]["content"][0]["text"].endswith(GONE)
        assert len(set(pauses)) >= len(prose) // redaction.SLICE_CHARS, "another turn between each two slices"
