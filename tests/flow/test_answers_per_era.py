"""What exactly does a caller hear for each reason, in each era, and what is left behind?

Every reason of a refusal, as a golden answer: HTTP status, headers, body, audit, metrics. `causes.py` brings each
about. `UPDATE_GOLDEN=1` writes the files anew; read what changed, callers depend on it.
"""

import asyncio
import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from sidecar.errors import ANSWERS, Answer as Expected, Reason
from sidecar.gateway.error_responses import plain_status
from tests.flow.causes import CAUSES, Cause
from tests.flow.described import CALL, LIST, check_described
from tests.flow.leftovers import nothing_left
from tests.flow.streams import event, streamed
from tests.flow.talk import Answer, Era, Talk, decision_id_of, reason_of, series_moved
from tests.flow.world import World, world

GOLDEN = Path(__file__).parent.parent / "golden" / "flow"
NEVER_TOLD = {Reason.CALLER_GONE}
ELSEWHERE = {Reason.NOT_CANCELABLE}  # told by the task API alone (tests/a2a/test_task_api.py)
ELSEWHERE |= {Reason.APPROVAL_PENDING, Reason.APPROVAL_REFUSED, Reason.APPROVAL_EXPIRED}  # test_approvals.py
TOLD_HEADERS = ("Content-Type", "Server", "Allow", "WWW-Authenticate", "Retry-After", "RateLimit-Policy", "RateLimit")
RECORDED = ("event", "status", "reason", "error_message", "http_status")
RECORDED += ("upstream", "method", "action", "object", "agent_id")


def test_every_reason_has_a_cause_here() -> None:
    assert {cause.reason for cause in CAUSES.values()} == set(Reason) - NEVER_TOLD - ELSEWHERE


@pytest.mark.parametrize(
    ("name", "era"), [(name, era) for name, cause in CAUSES.items() for era in cause.eras], ids=lambda part: part
)
async def test_an_answer_is_as_recorded(name: str, era: Era, tmp_path: Path) -> None:
    cause = CAUSES[name]
    async with world(tmp_path, **cause.world()) as running:
        talk = Talk(running, era)
        reported = await report(running, cause, talk)
    check_golden(name, era, reported)


async def report(running: World, cause: Cause, talk: Talk) -> dict[str, Any]:
    """Bring it about, and gather what it left."""
    before = await running.metrics()
    # pytest keeps what is logged of a bug, and with it the request.
    async with nothing_left() if cause.reason is not Reason.INTERNAL else nullcontext():
        answer = await cause.run(talk)
    ends = [record for record in running.ends() if record["decision_id"] == decision_id_of(answer)]
    assert reason_of(answer) == cause.reason
    if talk.era == "plain" and cause.reason is not Reason.VERB_NOT_ALLOWED:
        check_described(LIST if cause.run is CAUSES["session-calls"].run else CALL, answer)
    if cause.reason is Reason.AUDIT_UNAVAILABLE:
        assert ends == []  # there was no room for it
    else:
        assert [(record["reason"], record["http_status"]) for record in ends] == [(cause.reason, answer[0])]
    moved = series_moved(before, await running.metrics())
    return {
        "answer": told(answer, running),
        "audit": [{name: without_digest(record[name]) for name in RECORDED} for record in ends],
        "metrics": moved,
    }


def without_digest(value: object) -> object:
    """A field of a record, without the digest of a name, which is another under each key."""
    return re.sub(r"~hmac:[0-9a-f]{32}", "~hmac:<digest>", value) if isinstance(value, str) else value


def told(answer: Answer, running: World) -> dict[str, Any]:
    """An answer without what differs from run to run."""
    status, body, headers = answer
    shown = {name: headers[name] for name in TOLD_HEADERS if name in headers}
    text = json.dumps({"status": status, "headers": shown, "body": body})
    for pattern, mask in (
        (re.escape(running.app.base_url), "<base>"),
        (r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", "<decision id>"),
        (r'"retry_after_s": \d+', '"retry_after_s": "<seconds>"'),
        (r'"reset_at": "[^"]+"', '"reset_at": "<time>"'),
        (r";t=\d{2,}", ";t=<seconds>"),
        (r'"Retry-After": "\d{2,}"', '"Retry-After": "<seconds>"'),
    ):
        text = re.sub(pattern, mask, text)
    masked: dict[str, Any] = json.loads(text)
    return masked


def check_golden(name: str, era: Era | str, reported: Mapping[str, Any]) -> None:
    path = GOLDEN / f"{name}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**known, era: reported}, indent=2, sort_keys=True) + "\n")
        return
    assert reported == known[era]


# --- what holds for all of them -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CAUSES)
def test_the_golden_answers_keep_the_contract(name: str) -> None:
    cause, golden = CAUSES[name], json.loads((GOLDEN / f"{name}.json").read_text())
    assert set(golden) == set(cause.eras)
    expected = ANSWERS[cause.reason]
    for era, reported in golden.items():
        answer = reported["answer"]
        as_tool_result = cause.reason is Reason.BAD_ARGUMENTS and era != "plain"
        # Without an id there is no message, and a server that is not there has no session.
        live = answer["body"].get("id") is not None and cause.reason is not Reason.UPSTREAM_UNKNOWN
        assert answer["status"] == status_in(era, expected, live=live)
        assert ("WWW-Authenticate" in answer["headers"]) == (
            expected.http == 401 or cause.reason is Reason.INSUFFICIENT_SCOPE
        )
        assert ("Retry-After" in answer["headers"]) == (expected.http in (429, 503))
        assert as_tool_result == ("result" in answer["body"])
        assert reported["audit"] if cause.reason is not Reason.AUDIT_UNAVAILABLE else True
        requests = [line for line in reported["metrics"] if line.startswith("sidecar_requests_total{")]
        assert any(f'status="{expected.status}"' in line for line in requests)


def status_in(era: str, expected: Expected, *, live: bool) -> int:
    if era == "plain":
        return plain_status(expected)
    if era == "stateless":
        return expected.http
    return expected.in_session if live else expected.session_http


# --- how the operator wants it told ---------------------------------------------------------------------------------

STYLES = ("http", "jsonrpc", "tool_result")
TOLD_BY_STYLE = ("no-matching-rule", "rate-limited", "upstream-failed")


@pytest.mark.parametrize("era", ["stateless", "session"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", TOLD_BY_STYLE)
async def test_a_style_of_denial_is_the_operators_choice(name: str, style: str, era: Era, tmp_path: Path) -> None:
    options = CAUSES[name].world() | {"settings": f"answers: {{deny_style: {style}}}\n"}
    async with world(tmp_path, **options) as running:
        answer = await CAUSES[name].run(Talk(running, era))
        assert reason_of(answer) == CAUSES[name].reason
        expected = ANSWERS[CAUSES[name].reason]
        assert answer[0] == (expected.http if style == "http" else 200)
        assert running.ends()[-1]["http_status"] == answer[0]
        check_golden(f"style-{style}", f"{name} {era}", told(answer, running))


@pytest.mark.parametrize("disclosure", ["reason", "kind", "hide"])
@pytest.mark.parametrize("name", ["no-matching-rule", "denied-by-rule", "condition-false", "bad-token", "rate-limited"])
async def test_what_a_caller_learns_is_the_operators_choice(name: str, disclosure: str, tmp_path: Path) -> None:
    options = CAUSES[name].world()
    options["settings"] = options.get("settings", "") + f"answers: {{disclosure: {disclosure}}}\n"
    async with world(tmp_path, **options) as running:
        answer = await CAUSES[name].run(Talk(running, "stateless"))
        assert running.ends()[-1]["reason"] == CAUSES[name].reason  # evidence knows in any case
        check_golden(f"disclosure-{disclosure}", name, told(answer, running))


# --- outside of any answer ------------------------------------------------------------------------------------------


async def test_a_bug_within_a_stream_breaks_it_off_and_is_one_record(tmp_path: Path) -> None:
    """A second status line within the first answer would be read as the rest of it. The bug is a clock that fails."""
    bugs: list[Exception] = []

    async def respond(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        asyncio.get_running_loop().call_later(0.05, bugs.append, ZeroDivisionError("a secret of the implementation"))
        log = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "so far"}}
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": {"tools": []}}
        return await streamed(request, event(log), event(answer), pause_s=0.1)

    def clock() -> float:
        if bugs:
            raise bugs.pop()
        return time.time()

    async with world(tmp_path) as running:
        assert (await running.ask("tools/list"))[0] == 200
        running.upstream.script["tools/list"], running.app.live.clock = respond, clock
        with pytest.raises(aiohttp.ClientPayloadError):
            await running.ask("tools/list")
        _, end = running.ends()
        assert (end["event"], end["reason"], end["status"]) == ("outcome", "internal", "error")
        assert 'status="error",upstream="github"} 1.0' in await running.metrics()


async def test_garbage_at_the_operators_address_is_no_evidence_of_callers(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        for url, records in ((running.admin_url, 0), (running.url, 1)):
            where = urlsplit(url)
            reader, writer = await asyncio.open_connection(where.hostname, where.port)
            writer.write(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.0 400") and len(running.ends()) == records
            writer.close()
        assert 'protocol="http",status="error",upstream="other"} 1.0' in await running.metrics()
