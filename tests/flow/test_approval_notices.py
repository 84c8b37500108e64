"""Webhooks tell people of calls that wait for approval, whatever their receivers do."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.app.loader import check_files
from sidecar.errors import SettingsError
from sidecar.gateway.approvals import ApprovalState
from sidecar.gateway.approvals.approval_record import ASKED, EXPIRED, GIVEN, REFUSED, PersonAnswer
from sidecar.http.client import parse_origin
from sidecar.settings.load import load_settings
from sidecar.tasks.webhooks import outbox
from sidecar.tasks.webhooks.approval_notices import message_of
from sidecar.tasks.webhooks.signature import load_or_make_callback_key
from tests.flow.test_approvals import KEYS, PATH, ROLES, RULES, SETTINGS, TOOL, admin, answer, asking, controls, waiting
from tests.flow.world import World, until, world, write_folder
from tests.unit.http.client.hostile import Hostile, Script, response, serving, silent
from tests.unit.tasks.webhooks.receiving import header, in_turn, verified
from tests.valkey import Valkey

TAKEN, BROKEN = response(b"", status="204 No Content", framing=""), response(b"", status="500 No")
PAGE = "https://sidecar.acme.example/console/approvals/"


def told_at(receiver: Hostile, form: str = "json", page: str = "") -> str:
    """The settings of a sidecar with a receiver."""
    more = f", page: '{page}'" if page else ""
    notify = f"notify: [{{url: '{receiver.url}', format: {form}}}]{more}"
    allowed = f'callbacks: {{allow: ["127.0.0.1:{receiver.port}"], schemes: [http], networks: [127.0.0.0/8]}}\n'
    return f"{SETTINGS}approvals: {{{notify}}}\n{allowed}"


@asynccontextmanager
async def telling(folder: Path, receiver: Hostile, **how: str) -> AsyncIterator[World]:
    files = {"policies/roles.csv": ROLES, **KEYS}
    async with world(folder, rules=RULES, settings=told_at(receiver, **how), files=files) as running:
        yield running


def told(receiver: Hostile) -> list[dict[str, Any]]:
    return [json.loads(request.partition(b"\r\n\r\n")[2]) for request in receiver.requests]


async def test_each_event_is_delivered_signed_and_without_arguments(tmp_path: Path) -> None:
    async with serving(in_turn(TAKEN)) as receiver, telling(tmp_path, receiver, page=PAGE) as running:
        await running.call(TOOL, PATH)
        (one,) = await waiting(running)
        await until(lambda: len(receiver.requests) == 1)
        await answer(running, "dmitri", "approve", reason="incident 7")
        await admin(running, "dmitri", f"/api/approvals/{one['id']}/refuse", {})
        await until(lambda: len(receiver.requests) == 3)
        key = load_or_make_callback_key(tmp_path / "data" / "keys" / "callbacks.key")
        for request in receiver.requests:
            verified(request, receiver.url, secret=key.told_to(parse_origin(receiver.url)))
            assert b"secret-name" not in request
            assert header(request, "content-type") == "application/json"
        asked, given, refused = told(receiver)
        assert [each["type"] for each in (asked, given, refused)] == [ASKED, GIVEN, REFUSED]
        assert asked["data"] == {
            "id": one["id"], "state": "waiting", "caller": ["nhi:planner"], "upstream": "github",
            "object": "tool:github/get_file", "action": "tools/call", "args_hash": one["args_hash"],
            "rules": ["deletes"], "open_roles": ["role:oncall"], "needs_reason": False,
            "answer_before": one["answer_before"], "usable_until": None, "answers": [],
            "page": f"{PAGE}{one['id']}",
        }  # fmt: skip
        assert asked["timestamp"] == one["asked_at"]
        assert given["data"]["answers"][0]["reason"] == "incident 7" and given["data"]["usable_until"]
        assert refused["data"]["state"] == "refused"
        assert len({header(request, "webhook-id") for request in receiver.requests}) == 3


async def test_one_that_expires_is_told_too(tmp_path: Path) -> None:
    async with serving(in_turn(TAKEN)) as receiver, telling(tmp_path, receiver) as running:
        clock = running.app.approvals.clock
        await running.call(TOOL, PATH)
        running.app.approvals.clock = lambda: clock() + 901
        await until(lambda: len(receiver.requests) == 2)  # without another call
        assert [each["type"] for each in told(receiver)] == [ASKED, EXPIRED]


@pytest.mark.parametrize("does", ["breaks", "hangs", "redirects", "floods", "wants none"])
async def test_a_receiver_delays_no_call(does: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "FIRST_RETRY_S", 0.1)
    moved = response(b"", "Location: http://127.0.0.1:1/", status="302 Found")
    scripts: dict[str, Script] = {
        "breaks": in_turn(BROKEN, TAKEN),
        "hangs": silent,
        "redirects": in_turn(moved, TAKEN),
        "floods": in_turn(response(b"x" * 300_000), TAKEN),
        "wants none": in_turn(response(b"", status="410 Gone"), TAKEN),
    }
    async with serving(scripts[does]) as receiver, telling(tmp_path, receiver) as running:
        await running.call(TOOL, PATH)
        await until(lambda: len(receiver.requests) == 1)
        await answer(running, "dmitri", "approve")
        status, done, _ = await running.call(TOOL, PATH)
        assert (status, done["result"]["content"][0]["text"]) == (200, "done")  # what hangs still hangs
        if does in ("breaks", "redirects"):
            await until(lambda: len(receiver.requests) == 3)
            ids = [header(request, "webhook-id") for request in receiver.requests]
            assert len(set(ids)) == 2


async def test_news_that_is_queued_twice_is_one_delivery(tmp_path: Path) -> None:
    """As after a crash between the queue and the record that says that it is done."""
    async with serving(silent) as receiver, telling(tmp_path, receiver) as running:
        approvals = running.app.approvals
        await running.call(TOOL, PATH)
        (one,) = await waiting(running)
        await until(lambda: len(receiver.requests) == 1)
        record = await approvals.get(one["id"])
        assert await approvals.store.replace(record._replace(unrecorded=ASKED, revision=record.revision + 1))
        await waiting(running)
        assert len(await running.app.callbacks.outbox.store.waiting()) == 1


async def test_a_full_queue_delays_no_call_either(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(silent) as receiver, telling(tmp_path, receiver) as running:
        outbox_bounds = outbox.BOUNDS
        try:
            outbox.BOUNDS = outbox_bounds._replace(total=0)  # type: ignore[misc]
            _, asked, _ = await running.call(TOOL, PATH)
        finally:
            outbox.BOUNDS = outbox_bounds  # type: ignore[misc]
        assert asked["result"]["resultType"] == "input_required" and len(await waiting(running)) == 1
        (line,) = [line for line in caplog.records if line.message == "a receiver of approvals is not notified"]
        assert line.__dict__["reason"] == "too-many-concurrent"


# --- Slack ------------------------------------------------------------------------------------------------------------


async def test_a_message_for_slack_links_to_the_page(tmp_path: Path) -> None:
    async with serving(in_turn(TAKEN)) as receiver, telling(tmp_path, receiver, form="slack", page=PAGE) as running:
        await running.call(TOOL, PATH)
        (one,) = await waiting(running)
        await answer(running, "dmitri", "refuse", reason="not <!channel> now & here")
        await until(lambda: len(receiver.requests) == 2)
        asked, refused = (each["text"] for each in told(receiver))
        assert asked == (
            "*A call waits for approval.* `nhi:planner` calls `tool:github/get_file` (`tools/call`).\n"
            f"`role:oncall` must answer before {one['answer_before'][:19]}Z. "
            f"<{PAGE}{one['id']}|Answer it>, or run `sidecar approval show {one['id'][:12]}`."
        )
        assert refused == (
            "*Refused* by `user:dmitri`: not &lt;!channel&gt; now &amp; here\n"
            "`nhi:planner` calls `tool:github/get_file` (`tools/call`)."
        )


async def test_what_others_wrote_stays_text_in_a_message(tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        await running.call(TOOL, PATH)
        record = await running.app.approvals.get((await waiting(running))[0]["id"])
        (question,) = record.questions
        hostile = record._replace(
            unrecorded=ASKED, questions=(question._replace(object="resource:github/a`<!here>?token=t#f"),)
        )
        assert "`resource:github/a'&lt;!here&gt;` (" in message_of(hostile, None)
        assert "token" not in message_of(hostile, None) and "token" not in str(hostile.facts)


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("notify", "callbacks", "code", "why"),
    [
        ("{url: 'https://hooks.acme.example/x'}", "{}", "S197", "callbacks.allow does not name its host"),
        ("{url: 'http://hooks.acme.example/x'}", "{allow: ['*']}", "S197", "its scheme is not allowed"),
        ("{url: 'https://10.0.0.1/x'}", "{allow: ['*']}", "S197", "10.0.0.1 is not public"),
        ("{url_path: hook}", "{allow: [hooks.slack.com]}", "S197", "callbacks.allow does not name its host"),
        ("{url_path: nothing}", "{allow: ['*']}", "S116", "is not a file"),
        ("{url_path: hook, url: 'https://hooks.acme.example/x'}", "{allow: ['*']}", "S197", "exactly one of"),
        ("{}", "{allow: ['*']}", "S197", "exactly one of"),
        ("{url: 'https://hooks.acme.example/x', format: teams}", "{allow: ['*']}", "Y104", "teams"),
    ],
)
def test_check_finds_a_receiver_that_cannot_be_told(
    notify: str, callbacks: str, code: str, why: str, tmp_path: Path
) -> None:
    settings = f"approvals:\n  notify:\n    - {notify}\ncallbacks: {callbacks}\n"
    write_folder(tmp_path, "http://127.0.0.1:9/mcp", settings=settings)
    (tmp_path / "hook").write_text("https://hooks.acme.example/T0/secret-part\n")
    (tmp_path / "hook").chmod(0o600)
    with pytest.raises(SettingsError) as refused:
        check_files(tmp_path / "sidecar.yaml", {})
    (fault,) = refused.value.faults
    line = 1 + (tmp_path / "sidecar.yaml").read_text().splitlines().index(f"    - {notify}")
    assert (fault.code, fault.line, why in fault.message) == (code, line, True), str(fault)
    assert "secret-part" not in str(fault)


async def test_an_address_in_a_file_is_told(tmp_path: Path) -> None:
    async with serving(in_turn(TAKEN)) as receiver:
        settings = told_at(receiver).replace(f"url: '{receiver.url}'", "url_path: hook")
        files = {"policies/roles.csv": ROLES, "hook": f"{receiver.url}\n", **KEYS}
        async with world(tmp_path, rules=RULES, settings=settings, files=files) as running:
            await running.call(TOOL, PATH)
            await until(lambda: len(receiver.requests) == 1)


# --- evidence ---------------------------------------------------------------------------------------------------------


async def test_readers_of_a_new_request_record_it_once(tmp_path: Path) -> None:
    async with serving(in_turn(TAKEN)) as receiver, telling(tmp_path, receiver) as running:
        approvals = running.app.approvals
        await running.call(TOOL, PATH)
        (one,) = await waiting(running)
        record = await approvals.get(one["id"])
        owed = record._replace(unrecorded=GIVEN, given=(PersonAnswer("user:dmitri", "", (), "t", (), 0.0, ""),))
        assert await approvals.store.replace(owed._replace(revision=record.revision + 1))
        await asyncio.gather(*(approvals.get(one["id"]) for _ in range(20)))
        assert [each["what"] for each in controls(running)] == [ASKED, GIVEN]


async def test_what_an_earlier_process_left_unrecorded_is_recorded_and_told(tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        approvals = running.app.approvals
        await running.call(TOOL, PATH)
        record = await approvals.get((await waiting(running))[0]["id"])
        late = record._replace(unrecorded=EXPIRED).moved(ApprovalState.EXPIRED)
        assert await approvals.store.replace(late)  # and then it is killed
    async with serving(in_turn(TAKEN)) as receiver, telling(tmp_path, receiver) as running:
        await until(lambda: len(receiver.requests) == 1)
        assert told(receiver)[0]["type"] == EXPIRED
        assert [each["what"] for each in controls(running)] == [ASKED, EXPIRED]


@pytest.mark.parametrize(
    ("settings", "page"),
    [
        ("", None),
        ("admin: {credentials: [{role: viewer, secret_path: k}], console: {enabled: true}}", None),
        (
            "admin: {credentials: [{role: viewer, secret_path: k}], console: {enabled: true, url: 'https://a.example'}}",
            "https://a.example/console/approvals/",
        ),
        ("approvals: {page: 'https://b.example/x/'}", "https://b.example/x/"),
    ],
)
def test_the_page_is_that_of_the_console_unless_another_is_named(
    settings: str, page: str | None, tmp_path: Path
) -> None:
    (tmp_path / "sidecar.yaml").write_text(f"version: 1\n{settings}\n")
    assert load_settings(tmp_path / "sidecar.yaml", {}, check_files=False).approval_page == page


async def test_replicas_tell_each_event_under_one_id(tmp_path: Path, valkey: Valkey) -> None:
    async with serving(in_turn(TAKEN)) as receiver:
        shared = f'store: {{url: "{valkey.url}"}}\ntasks: {{store: redis}}\naudit: {{key_path: audit.key}}\n'
        settings = told_at(receiver) + shared
        files = {"policies/roles.csv": ROLES, "audit.key": KEYS["alice"], **KEYS}
        async with (
            world(tmp_path / "a", rules=RULES, settings=settings, files=files) as one,
            world(tmp_path / "b", rules=RULES, settings=settings, files=files) as two,
        ):
            await one.call(TOOL, PATH)
            await answer(two, "dmitri", "approve")
            await until(lambda: len(receiver.requests) == 2)
            clock = one.app.approvals.clock
            one.app.approvals.clock = two.app.approvals.clock = lambda: clock() + 901
            await asyncio.gather(*(waiting(each) for each in (one, two)))
            await until(lambda: len(receiver.requests) >= 3)
            ids = [header(request, "webhook-id") for request in receiver.requests]
            seen = {(each["type"], id_) for each, id_ in zip(told(receiver), ids, strict=True)}
            assert sorted(event for event, _ in seen) == sorted((ASKED, GIVEN, EXPIRED))
