"""Does every callback get there, once at least, and does no receiver hurt anybody else?"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sidecar.cli import main
from sidecar.errors import Reason, Refusal, SettingsError
from sidecar.http.client import parse_origin
from sidecar.storage import RecordStoreOut, SqliteFile
from sidecar.storage.deliveries import Delivery, DeliveryOutcome, DeliveryStore, PendingDelivery
from sidecar.tasks.webhooks.signature import CallbackKey, load_or_make_callback_key
from tests.pages import blocks_of
from tests.refusals import refused
from tests.unit.http.client.hostile import Conversation, Script, response, say, serving
from tests.unit.tasks.webhooks.receiving import KEY, Seen, for_, header, in_turn, outbox, running, verified

JSON = (("Content-Type", "application/json"),)
TAKEN = response(b"", status="204 No Content", framing="")
BROKEN = response(b"", status="500 No")
ROOT = Path(__file__).parents[4]


def status(code: str, *headers: str) -> bytes:
    return response(b"", *headers, status=code)


async def test_a_callback_arrives_once_signed_and_is_forgotten() -> None:
    async with serving(say(TAKEN)) as receiver, running() as (box, seen):
        id_ = await box.put(
            "push", "ref", for_("alice"), receiver.url, (*JSON, ("Authorization", "Bearer x")), b'{"n":1}'
        )
        await seen.until(1)
        [request] = receiver.requests
        assert verified(request, receiver.url) == b'{"n":1}'
        assert (header(request, "webhook-id"), header(request, "authorization")) == (id_, "Bearer x")
        assert seen.told == [DeliveryOutcome(id_, "push", "ref", "delivered", 1, "status 204")]
        assert (list(await box.store.waiting()), seen.waiting) == ([], 0)
        await asyncio.sleep(0.1)
        assert len(receiver.requests) == 1


async def test_what_fails_comes_again_under_the_same_id_until_it_is_taken() -> None:
    answers = (status("500 No"), status("404 No"), status("302 Found", "Location: /elsewhere"), TAKEN)
    async with serving(in_turn(*answers)) as receiver, running() as (box, seen):
        id_ = await box.put("push", "ref", for_("alice"), receiver.url, JSON, b"{}")
        await seen.until(4)
        assert seen.results(id_) == ["failed", "failed", "failed", "delivered"]
        assert [each.why for each in seen.told] == ["status 500", "status 404", "status 302", "status 204"]
        assert {header(request, "webhook-id") for request in receiver.requests} == {id_}
        assert [b"/mcp HTTP" in request for request in receiver.requests] == [True] * 4


@pytest.mark.parametrize(
    ("answers", "rules", "results"),
    [
        ((status("500 No"),), {"max_attempts": 3}, ["failed", "failed", "given_up"]),
        ((status("410 Gone"),), {}, ["given_up"]),
        ((status("500 No"),), {"max_age_s": 60.0}, ["failed", "given_up"]),
        ((TAKEN,), {"networks": []}, ["refused"]),
        ((TAKEN,), {"allow": []}, ["refused"]),
    ],
)
async def test_there_is_an_end_of_patience(
    answers: tuple[bytes, ...], rules: dict[str, object], results: list[str]
) -> None:
    async with serving(say(*answers)) as receiver, running(**{"first_retry_s": 0.04, **rules}) as (box, seen):
        id_ = await box.put("push", "ref", for_("alice"), receiver.url, JSON, b"{}")
        await seen.until(1)
        if "max_age_s" in rules:
            box.clock = lambda: time.time() + 61.0
        await seen.until(len(results))
        assert seen.results(id_) == results
        assert list(await box.store.waiting()) == []
        assert seen.attempts == [("push", result) for result in results]
        if results == ["refused"]:
            assert receiver.connections == 0


@pytest.mark.parametrize(
    ("said", "waits"), [("1", True), ("0", False), ("soon", False), ("-5", False), ("9" * 30, False)]
)
async def test_a_receiver_may_ask_for_a_rest(said: str, waits: bool) -> None:
    answers = (status("503 Busy", f"Retry-After: {said}"), TAKEN)
    async with serving(in_turn(*answers)) as receiver, running() as (box, seen):
        await box.put("push", "ref", for_("alice"), receiver.url, JSON, b"{}")
        await seen.until(1)
        [waiting] = [*(await box.store.waiting())] or [None]
        assert (waiting is not None and waiting.due_at - time.time() > 0.5) == waits


async def hangs(conversation: Conversation) -> None:
    await conversation.request()
    await conversation.hung_up()


async def drips(conversation: Conversation) -> None:
    await conversation.request()
    await conversation.drip(TAKEN * 20, every_s=0.02)


async def says_yes_and_never_ends(conversation: Conversation) -> None:
    await conversation.request()
    await conversation.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    await conversation.drip(b"x" * 1000, every_s=0.05)


@pytest.mark.parametrize("worst", [hangs, drips, say(status("500 No")), says_yes_and_never_ends])
async def test_a_receiver_that_does_its_worst_holds_up_nobody_else(worst: Script) -> None:
    async with serving(worst) as bad, serving(say(TAKEN)) as good, running(timeout_s=1.0) as (box, seen):
        for number in range(100):
            await box.put("push", "bad", for_("mallory"), f"{bad.url}/{number}", JSON, b"{}")
        ids = [await box.put("push", "good", for_("alice"), f"{good.url}/{n}", JSON, b"{}") for n in range(5)]
        async with asyncio.timeout(10.0):  # behind the hundred, four at a time and a second each, it would be 25
            while not all(seen.results(id_) == ["delivered"] for id_ in ids):
                await asyncio.sleep(0.002)
        assert worst is not hangs or bad.live <= 4, "few at a time at one receiver"


async def test_a_third_party_is_called_so_often_a_minute_and_not_more() -> None:
    async with serving(say(TAKEN)) as victim, running(per_target_per_minute=60) as (box, seen):
        for number in range(100):
            await box.put("push", "ref", for_(f"owner {number}"), victim.url, JSON, b"{}")
        await seen.until(11)
        await asyncio.sleep(0.1)
        assert len(victim.requests) == 11


async def test_too_many_and_too_large_are_refused() -> None:
    async with running(max_waiting=3, max_waiting_per_principal=2, max_body=1024) as (box, _):
        nowhere = "http://127.0.0.1:9/"
        for number in range(2):
            await box.put("push", "ref", for_("alice"), nowhere, JSON, b"%d" % number)
        for owner, body, reason in (("alice", b"", Reason.TOO_MANY_CONCURRENT), ("bob", b"x" * 1025, Reason.TOO_LARGE)):
            with refused(reason):
                await box.put("push", "ref", for_(owner), nowhere, JSON, body)
        await box.put("push", "ref", for_("bob"), nowhere, JSON, b"")
        with pytest.raises(Refusal):
            await box.put("push", "ref", for_("carol"), nowhere, JSON, b"")


async def test_what_is_dropped_is_not_sent() -> None:
    async with serving(say(status("500 No"))) as receiver, running(first_retry_s=0.05) as (box, seen):
        await box.put("push", "one", for_("alice"), receiver.url, JSON, b"one")
        await box.put("push", "two", for_("alice"), receiver.url, JSON, b"two")
        await seen.until(1)
        await box.drop("push", "one")
        await seen.until(4)
        assert [request[-3:] for request in receiver.requests].count(b"one") == 1
        assert [each.ref for each in await box.store.waiting()] == ["two"]


async def test_a_listener_that_fails_is_nobody_elses_trouble() -> None:
    def fails(_: DeliveryOutcome) -> None:
        raise ValueError("a bug of whoever listens")

    heard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context["exception"]))
    async with serving(say(TAKEN)) as receiver, running() as (box, seen):
        box.listen("task", fails)
        await box.put("task", "ref", for_("alice"), receiver.url, JSON, b"{}")
        await box.put("push", "ref", for_("alice"), receiver.url, JSON, b"{}")
        await seen.until(1)
        async with asyncio.timeout(2):
            while len(heard) < 1 or len(receiver.requests) < 2:
                await asyncio.sleep(0.002)
    assert len(heard) == 1


class OutAtTimes(DeliveryStore):
    """A store that is out whenever it is told so."""

    out = False
    mute = False

    async def get(self, id_: str) -> Delivery | None:
        if self.mute:
            raise RecordStoreOut("it is out")
        return await DeliveryStore.get(self, id_)

    async def waiting(self) -> Sequence[PendingDelivery]:
        self._check()
        return await DeliveryStore.waiting(self)

    async def ended(self, ids: Sequence[str]) -> None:
        self._check()
        await DeliveryStore.ended(self, ids)

    def _check(self) -> None:
        if self.out:
            raise RecordStoreOut("it is out")


async def test_a_store_that_is_out_for_a_while_loses_nothing_and_sends_nothing_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sidecar.tasks.webhooks.outbox.LOOK_AGAIN_S", 0.05)
    monkeypatch.setattr("sidecar.tasks.webhooks.outbox.STORE_REST_S", 0.05)
    store = OutAtTimes(SqliteFile(None))
    async with serving(say(TAKEN)) as receiver, running(store) as (box, seen):
        store.out = True
        await box.put("push", "ref", for_("alice"), receiver.url, JSON, b"{}")
        await seen.until(1)
        await asyncio.sleep(0.1)
        assert len(await DeliveryStore.waiting(store)) == 1
        store.out = False
        async with asyncio.timeout(2):
            while await DeliveryStore.waiting(store):
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)
        assert len(receiver.requests) == 1


async def test_a_store_that_is_out_costs_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.tasks.webhooks.outbox.STORE_REST_S", 0.01)
    store = OutAtTimes(SqliteFile(None))
    async with serving(say(TAKEN)) as receiver, running(store, max_attempts=1) as (box, seen):
        store.mute = True
        await box.put("push", "ref", for_("alice"), receiver.url, JSON, b"{}")
        await asyncio.sleep(0.05)
        assert (receiver.connections, seen.told) == (0, [])
        store.mute = False
        await seen.until(1)
        assert (seen.told[0].result, seen.told[0].attempts) == ("delivered", 1)


async def test_a_put_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    store = DeliveryStore(SqliteFile(tmp_path / "none" / "c"))
    one = outbox(store, Seen())
    with refused(Reason.STORE_UNAVAILABLE):
        await one.put("push", "ref", for_("alice"), "http://127.0.0.1:9/", JSON, b"{}")


# --- kill -9 ----------------------------------------------------------------------------------------------------------


async def died(state: str, path: Path, url: str) -> asyncio.subprocess.Process:
    program = (sys.executable, "-m", "tests.unit.tasks.webhooks.killed", state, str(path), url)
    return await asyncio.create_subprocess_exec(*program, cwd=ROOT)


async def test_whatever_it_is_killed_at_the_next_run_delivers_it_under_the_same_id(tmp_path: Path) -> None:
    """put: nothing was sent; sending: no answer yet; delivered: taken, not yet forgotten; waiting: failed once."""
    processes: dict[str, asyncio.subprocess.Process] = {}

    async def kills(conversation: Conversation) -> None:
        await conversation.request()
        os.kill(processes["sending"].pid, signal.SIGKILL)
        await conversation.hung_up()

    heard = {"put": say(TAKEN), "sending": kills, "delivered": say(TAKEN), "waiting": say(status("500 No"))}

    async def one(state: str) -> None:
        path = tmp_path / state
        async with serving(heard[state]) as first:
            process = processes[state] = await died(state, path, first.url)
            assert await process.wait() == -signal.SIGKILL
            sent_before = len(first.requests)
            assert sent_before == (state != "put")
        with closing(sqlite3.connect(path)) as file:
            [(attempts,)] = file.execute("SELECT attempts FROM deliveries").fetchall()
            assert attempts == (state == "waiting")
        async with serving(say(TAKEN)) as second:
            moved = sqlite3.connect(path)  # the receiver has another port now
            with closing(moved), moved:
                moved.execute("UPDATE deliveries SET url = ?", (second.url,))
            async with running(DeliveryStore(SqliteFile(path))) as (_, seen):
                await seen.until(1)
                [request] = second.requests
                assert verified(request, second.url) == b'{"n":1}'
                assert header(request, "webhook-id") == f"{state}_0"
                assert seen.told[0].attempts == 1 + (state == "waiting")

    await asyncio.gather(*map(one, heard))


# --- signatures -------------------------------------------------------------------------------------------------------


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """The example of the specification: its secret, id, moment and body."""
    place = parse_origin("https://hooks.acme.example/in")
    secret = KEY.told_to(place)
    assert secret.startswith("whsec_") and len(KEY.secret_of(place)) == 32
    id_, moment, signature = KEY.sign(place, "msg_1", 1_614_265_330.9, b'{"test": 2432232314}')
    assert (id_, moment) == (("webhook-id", "msg_1"), ("webhook-timestamp", "1614265330"))
    assert signature[1].startswith("v1,") and len(signature[1]) == 3 + 44
    others = [parse_origin(f"https://hooks.acme.example:{port}/") for port in (443, 8443)]
    assert KEY.secret_of(others[0]) == KEY.secret_of(place) != KEY.secret_of(others[1])
    assert CallbackKey(b"other" * 8).secret_of(place) != KEY.secret_of(place)
    assert "kkk" not in repr(KEY)


async def test_what_the_documentation_tells_receivers_to_do_does_it(tmp_path: Path) -> None:
    (tmp_path / "sidecar.yaml").write_text("version: 1\n")
    [block] = [
        each for each in blocks_of((ROOT / "docs" / "callbacks.md").read_text("utf-8")) if each.file == "verify.py"
    ]
    names: dict[str, Any] = {}
    exec(block.text, names)
    async with serving(say(TAKEN)) as receiver, running() as (box, seen):
        box.key = partial(load_or_make_callback_key, tmp_path / "data" / "keys" / "callbacks.key")
        await box.put("push", "ref", for_("alice"), f"{receiver.url}/in", JSON, b'{"n":1}')
        await seen.until(1)
        [request] = receiver.requests
    made = CliRunner().invoke(main, ["token", "callback-secret", receiver.url, "-c", str(tmp_path / "sidecar.yaml")])
    secret = made.stdout.strip()
    headers = {name: header(request, name) for name in ("webhook-id", "webhook-timestamp", "webhook-signature")}
    assert names["verify"](secret, headers, b'{"n":1}')
    assert not names["verify"](secret, headers, b'{"n":2}')
    assert not names["verify"](secret, {**headers, "webhook-timestamp": "1614265330"}, b'{"n":1}')
    assert CliRunner().invoke(main, ["token", "callback-secret", "hooks.acme.example"]).exit_code == 2


def test_the_key_is_made_once_and_for_us_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "callbacks.key"
    key = load_or_make_callback_key(path)
    assert load_or_make_callback_key(path) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with pytest.raises(SettingsError, match="read by others"):
        load_or_make_callback_key(path)
    path.chmod(0o600)
    for content in ("", "no hex", "ab" * 31, "\udcff"):
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
        with pytest.raises(SettingsError, match="H101"):
            load_or_make_callback_key(path)


# --- who may not be called back any more ------------------------------------------------------------------------------


async def test_what_waits_for_who_was_disabled_is_withheld_and_on_record_and_only_that() -> None:
    async with serving(in_turn(BROKEN, TAKEN)) as receiver, running(first_retry_s=0.2) as (box, seen):
        hers = await box.put("push", "ref", for_("alice"), receiver.url, JSON, b"{}")
        await seen.until(1)
        seen.disabled.add("user:alice")
        his = await box.put("push", "ref", for_("bob"), f"{receiver.url}/bob", JSON, b"{}")
        await seen.until(3)
        assert seen.results(hers) == ["failed", "withheld"] and seen.results(his) == ["delivered"]
        assert len(receiver.requests) == 2
        [record] = seen.witnessed
        assert record == {
            "what": "callback-withheld", "kind": "push", "principal": "user:alice", "upstream": "planner",
            "callback": hers, "reason": "principal-disabled",
        }  # fmt: skip
        assert list(await box.store.waiting()) == []


async def test_what_cannot_be_recorded_is_neither_sent_nor_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.tasks.webhooks.outbox.STORE_REST_S", 0.02)
    async with serving(say(TAKEN)) as receiver, running() as (box, seen):
        seen.disabled, seen.is_recorded = {"user:alice"}, False
        await box.put("push", "ref", for_("alice"), receiver.url, JSON, b"{}")
        await asyncio.sleep(0.1)
        assert len(await box.store.waiting()) == 1 and seen.told == []
        seen.is_recorded = True
        await seen.until(1)
        assert [each.result for each in seen.told] == ["withheld"] and receiver.requests == []


@pytest.mark.parametrize("column", ["headers", "behalf"])
async def test_an_entry_that_was_damaged_is_nobody_elses_trouble(column: str, tmp_path: Path) -> None:
    path = tmp_path / "callbacks"
    async with serving(say(TAKEN)) as receiver:
        store = DeliveryStore(SqliteFile(path))
        box = outbox(store, Seen())
        for name in ("alice", "bob"):
            await box.put("push", "ref", for_(name), f"{receiver.url}/{name}", JSON, b"{}")
        with closing(sqlite3.connect(path)) as file, file:
            file.execute(f"UPDATE deliveries SET {column} = '[7, null, 1]' WHERE url LIKE '%alice'")
        async with running(store) as (_, seen):
            await seen.until(2)
            assert sorted(each.result for each in seen.told) == ["delivered", "refused"]
