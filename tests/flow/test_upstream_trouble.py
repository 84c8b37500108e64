"""Can an upstream keep us waiting, break off, or be too much for us?

Ones that hang, and those that hang up anywhere, while other callers work on (BL-018, BL-019, BL-036, BL-038, BL-086).
"""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from sidecar.errors import SettingsError
from sidecar.upstreams import http_address
from tests.flow import scripts
from tests.flow.apart import SessionsOnly, StatelessOnly
from tests.flow.haste import haste
from tests.flow.hostile_upstream import RUDE, before, polite, reason_in_stream
from tests.flow.misbehaviours import ANSWER, FINE, HEAD, LENGTH, done, silence
from tests.flow.streams import EVENT_STREAM, event
from tests.flow.talk import ERAS, Era, Talk, reason_of, talking
from tests.flow.world import RULES, Upstream, World, until, world
from tests.unit.http.client.hostile import Conversation, chunked, response

# --- breaking off -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("media", ["json", "stream", "chunks"])
async def test_an_answer_that_breaks_off_anywhere_is_a_failed_upstream(tmp_path: Path, media: str, reset: bool) -> None:
    whole = {
        "json": HEAD + LENGTH + b"\r\n" + ANSWER,
        "stream": response(b"", "Content-Type: text/event-stream", framing="X: y") + event(done({"id": 1})),
        "chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(ANSWER[:20], ANSWER[20:]),
    }[media]
    places = iter(range(0, len(whole) - 1, max(1, len(whole) // 25)))

    async def attack(conversation: Conversation, message: dict[str, Any]) -> None:
        await conversation.send(whole[: next(places)])
        await asyncio.sleep(0.002)
        conversation.reset() if reset else conversation.writer.close()

    async with before(tmp_path, attack) as (running, hostile):
        for number in range(24):
            status, said, _ = await running.call("search_code", RUDE, id=number + 1)
            reason = reason_in_stream(said) if isinstance(said, bytes) else said["error"]["data"]["reason"]
            assert reason in ("upstream-failed", "response-refused") and status in (502, 200)
            assert FINE not in str(said)
        await polite(running, 2)
        assert len(running.ends()) == 26 and len(hostile.asked) == 24


async def test_a_restarted_upstream_is_called_again_at_once(tmp_path: Path) -> None:
    """BL-086: it hung up on every idle connection."""
    async with before(tmp_path, silence) as (running, hostile):
        for _ in range(5):
            await polite(running, 2)
            for writer in hostile.server.writers:
                writer.close()


# --- what a status says -----------------------------------------------------------------------------------------------


MEDIA = {"an error": "application/json", "text": "text/plain"}
LATER = {"retry_after": "17"}
CALL = {"name": "search_code", "arguments": RUDE}
PROGRESS = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1}}


@pytest.mark.parametrize("body", ["an error", "text"])
@pytest.mark.parametrize("code", [429, 503])
@pytest.mark.parametrize("how", ["stateless", "session", "plain", "bridged", "played"])
async def test_a_limit_of_the_upstream_reaches_its_caller_with_its_time(
    tmp_path: Path, how: str, code: int, body: str
) -> None:
    """A limited call was not executed. 429 is no fault of the server's, and 503 is."""

    error = {"code": -32029, "message": "slow down", "data": {"plan": "free"}}
    told = {"jsonrpc": "2.0", "id": None, "error": error}
    limited = scripts.body(b"slow down" if body == "text" else json.dumps(told).encode(), MEDIA[body], code, **LATER)
    upstream: Any = {"bridged": SessionsOnly, "played": StatelessOnly}.get(how, Upstream)()
    act = "act" if how in ("bridged", "played") else "search_code"
    if act == "act":
        upstream._act = limited
    else:
        upstream.script["tools/call"] = limited
    rules = RULES + "p, nhi:planner, tool:github/act, use, -, -, -, allow\n"
    async with world(tmp_path, upstream=upstream, rules=rules) as running:
        eras: dict[str, Era] = {"bridged": "stateless", "played": "session", "plain": "plain", "session": "session"}
        talk = Talk(running, eras.get(how, "stateless"))
        status, said, headers = await talk.call(act, {"repo": "acme/x"})
        assert status == (200 if talk.era == "session" else code)
        assert headers["Retry-After"] == "17"
        facts = said if how == "plain" else said["error"]["data"]
        assert facts["reason"] == ("upstream-limited" if code == 429 else "upstream-failed")
        assert facts["retry_after_s"] == 17 and facts["decision_id"] == running.ends()[-1]["decision_id"]
        words = said["message"] if how == "plain" else said["error"]["message"]
        assert ("slow down" in words) == (body == "an error")
        if body == "an error" and how != "plain":
            assert (said["error"]["code"], facts["plan"]) == (-32029, "free")
        assert running.ends()[-1]["status"] == ("rate_limited" if code == 429 else "error")
        breaker = running.app.live.current.services["github"].account.breaker
        assert breaker.in_a_row == (code == 503)


@pytest.mark.parametrize("how", ["stateless", "session", "bridged"])
async def test_a_redirect_is_reported_with_its_target_and_never_followed(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = "https://mcp.acme.example/mcp/"

    leads_away = scripts.status(307, location=f"{elsewhere}?key=s3cret")
    upstream: Any = SessionsOnly() if how == "bridged" else Upstream(script={"tools/call": leads_away})
    if how == "bridged":
        upstream._act = leads_away
    rules = RULES + "p, nhi:planner, tool:github/act, use, -, -, -, allow\n"
    async with world(tmp_path, upstream=upstream, rules=rules) as running:
        talk = Talk(running, "session" if how == "session" else "stateless")
        for _ in range(2):
            answer = await talk.call("act" if how == "bridged" else "search_code", {"repo": "acme/x"})
            assert reason_of(answer) == "upstream-failed"
            assert elsewhere in answer[1]["error"]["message"] and "s3cret" not in str(answer)
        told = running.app.live.current.services["github"].account.plain()["last_error"]
        assert elsewhere in told and "s3cret" not in told
    logged = [record for record in caplog.records if record.getMessage() == "an upstream answers with a redirect"]
    assert len(logged) == 1 and elsewhere in vars(logged[0])["why"]


# --- others -----------------------------------------------------------------------------------------------------------


async def test_progress_is_passed_on_at_once(planner: World) -> None:
    """BL-038."""
    heard = asyncio.Event()

    slow = scripts.stream(event(PROGRESS), heard, done)
    planner.upstream.script["tools/call"] = slow
    async with Talk(planner, "stateless").hearing("tools/call", CALL) as ear:
        assert (await ear.message())["method"] == "notifications/progress"
        heard.set()
        assert (await ear.message())["result"]["content"][0]["text"] == FINE


STEPS, STEP_S = 24, 5.0


async def two_minutes(asked: web.Request, message: dict[str, Any]) -> web.StreamResponse:
    """Work that takes 120 s, with progress every 5 s."""
    stream = web.StreamResponse(headers=EVENT_STREAM)
    await stream.prepare(asked)
    loop = asyncio.get_running_loop()
    for _ in range(STEPS):
        params = {"progressToken": "p", "progress": loop.time()}
        await stream.write(event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}))
        await asyncio.sleep(STEP_S)
    await stream.write(event(done(message)))
    return stream


RESET = ", timeout_resets_on_progress: true"


@pytest.mark.parametrize(
    ("settings", "ends_s", "reason"),
    [
        ("timeout_s: 150", 150, ""),
        ("timeout_s: 60", 60, "upstream-timeout"),
        ("timeout_s: 60" + RESET, 600, ""),
        ("timeout_s: 60, total_timeout_s: 90" + RESET, 90, "upstream-timeout"),
        ("timeout_s: 90, total_timeout_s: 10" + RESET, 90, "upstream-timeout"),
    ],
)
async def test_two_minutes_of_progress_pass_as_they_come_up_to_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, ends_s: int, reason: str
) -> None:
    """BL-038: for both eras; and progress moves the deadline where the settings say so alone."""
    upstream = Upstream(script={"tools/call": two_minutes})
    monkeypatch.setattr(http_address, "CONNECT_S", 60.0)
    async with world(tmp_path, upstream=upstream, mcp_settings=settings) as running:
        talks = [Talk(running, era) for era in ERAS]
        for talk in talks:
            await talk.ask("tools/list")
        loop = asyncio.get_running_loop()
        params = {**CALL, "_meta": {"progressToken": "p"}}

        async def hear(talk: Talk) -> tuple[list[float], str, float]:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http,
                talk.hearing("tools/call", params, http=http) as ear,
            ):
                late, began = [], loop.time()
                while "method" in (message := await ear.message(within_s=100)):
                    late.append(loop.time() - message["params"]["progress"])
                return late, message.get("error", {}).get("data", {}).get("reason", ""), loop.time() - began

        with haste(60, monkeypatch):
            for late, why, took_s in await asyncio.gather(*map(hear, talks)):
                heard = STEPS if not reason else ends_s / STEP_S
                assert why == reason and heard - bool(reason) <= len(late) <= heard
                assert sorted(late)[len(late) // 2] < STEP_S, "as it comes"  # a busy machine may be late now and then
                assert took_s >= min(STEPS * STEP_S, ends_s) - STEP_S


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_whose_stream_has_begun_is_kept_alive(tmp_path: Path, era: Era) -> None:
    """What stands between would close a connection that is silent for long."""
    enough = asyncio.Event()

    silent = scripts.stream(event(PROGRESS), enough, done)
    upstream = Upstream(script={"tools/call": silent})
    often = world(tmp_path, upstream=upstream, settings="streams: {keep_alive_s: 0.02}\n")
    async with talking(often, era) as talk, talk.hearing("tools/call", CALL) as ear:
        assert (await ear.message())["method"] == "notifications/progress"
        assert await ear.block() == b": keep-alive\n\n"
        enough.set()
        assert (await ear.message())["result"]["content"][0]["text"] == FINE


async def test_a_misspelt_option_of_an_upstream_refuses_the_start(tmp_path: Path) -> None:
    """BL-036: it is never ignored."""
    with pytest.raises(SettingsError, match=r'unknown key "timeot_s"(.|\n)*did you mean "timeout_s"'):
        async with world(tmp_path, mcp_settings="timeot_s: 5"):
            pass


async def test_an_upstream_that_is_not_there_harms_no_other(tmp_path: Path) -> None:
    """BL-036."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/mcp"
        gone = f"anonymous: false}}\n  gone: {{mcp: {{url: '{url}'}}"
        rules = RULES + "p, nhi:planner, tool:gone/*, use, -, -, -, allow\n"
        async with world(tmp_path, rules=rules, upstream_settings=gone) as running:
            answers = await asyncio.gather(*(running.call("any", server="gone") for _ in range(5)), polite(running, 3))
            assert [reason_of(answer) for answer in answers[:5]] == ["upstream-failed"] * 5
            assert "127.0.0.1" not in str(answers)


async def test_health_is_told_at_once_while_every_upstream_hangs(tmp_path: Path) -> None:
    """BL-018."""
    async with before(tmp_path, silence, mcp_settings="timeout_s: 60") as (running, hostile):
        await polite(running)
        calls = [asyncio.create_task(running.call("search_code", RUDE, id=number)) for number in range(20)]
        await until(lambda: len(hostile.asked) == 20)
        for path in ("/livez", "/readyz", "/metrics"):
            async with running.http.get(running.admin_url + path) as response:
                assert response.status == 200
        assert not any(call.done() for call in calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
