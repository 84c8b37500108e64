"""Does every callback get there, once at least, and does no receiver hurt anybody else?"""

import asyncio
import multiprocessing
import os
import signal
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sidecar.cli import main
from sidecar.errors import Reason, SettingsError
from sidecar.http.client import parse_origin
from sidecar.storage import SqliteFile
from sidecar.storage.deliveries import DeliveryBounds, DeliveryOutcome, DeliveryStore
from sidecar.tasks.webhooks import outbox as outbox_module
from sidecar.tasks.webhooks.outbox import Outbox
from sidecar.tasks.webhooks.signature import CallbackKey, load_or_make_callback_key
from tests.flow.world import PATIENCE_S
from tests.pages import blocks_of
from tests.refusals import refused
from tests.unit.http.client.hostile import Conversation, Script, response, say, serving, silent
from tests.unit.tasks.webhooks.receiving import KEY, Seen, for_, header, in_turn, outbox, running, verified

JSON = (("Content-Type", "application/json"),)
TAKEN = response(b"", status="204 No Content", framing="")
BROKEN = response(b"", status="500 No")
ROOT = Path(__file__).parents[4]


def status(code: str, *headers: str) -> bytes:
    return response(b"", *headers, status=code)


async def put(box: Outbox, url: str, who: str = "alice", body: bytes = b"{}", ref: str = "ref") -> str:
    return await box.put("push", ref, for_(who), url, JSON, body)


STUBBORN = (status("500 No"), status("404 No"), status("302 Found", "Location: /elsewhere"), TAKEN)
OUTCOMES: list[tuple[tuple[bytes, ...], dict[str, object], list[str]]] = [
    ((TAKEN,), {}, ["delivered"]),
    (STUBBORN, {}, ["failed", "failed", "failed", "delivered"]),
    ((BROKEN,), {"MAX_ATTEMPTS": 3}, ["failed", "failed", "given_up"]),
    ((status("410 Gone"),), {}, ["given_up"]),
    ((BROKEN,), {"MAX_AGE_S": 60.0}, ["failed", "given_up"]),
    ((TAKEN,), {"networks": []}, ["refused"]),
    ((TAKEN,), {"allow": []}, ["refused"]),
]


@pytest.mark.parametrize(("answers", "rules", "results"), OUTCOMES)
async def test_it_comes_signed_under_one_id_until_it_is_taken_or_there_is_an_end_of_patience(
    answers: tuple[bytes, ...], rules: dict[str, object], results: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "FIRST_RETRY_S", 0.04)
    for name in filter(str.isupper, rules):
        monkeypatch.setattr(outbox_module, name, rules[name])
    settings = {name: value for name, value in rules.items() if name.islower()}
    async with serving(in_turn(*answers)) as receiver, running(**settings) as (box, seen):
        headers = (*JSON, ("Authorization", "Bearer x"))
        id_ = await box.put("push", "ref", for_("alice"), receiver.url, headers, b'{"n":1}')
        await seen.until(1)
        if "MAX_AGE_S" in rules:
            box.clock = lambda: time.time() + 61.0
        await seen.until(len(results))
        assert seen.results(id_) == results and seen.attempts == [("push", result) for result in results]
        await asyncio.sleep(0.1)
        assert (list(await box.store.waiting()), seen.waiting) == ([], 0)
        whys = [f"status {answer[9:12].decode()}" for answer in (*answers, *answers[-1:] * 2)][: len(results)]
        if results == ["refused"]:
            assert receiver.connections == 0
        elif "MAX_AGE_S" not in rules:
            assert [each.why.partition(",")[0] for each in seen.told] == whys and len(receiver.requests) == len(results)
        for request in receiver.requests:
            assert verified(request, receiver.url) == b'{"n":1}' and b"/mcp HTTP" in request
            assert (header(request, "webhook-id"), header(request, "authorization")) == (id_, "Bearer x")
    assert seen.told[-1][:3] == (id_, "push", "ref") and seen.told[-1].attempts <= len(results)


@pytest.mark.parametrize(
    ("said", "waits"), [("1", True), ("0", False), ("soon", False), ("-5", False), ("9" * 30, False)]
)
async def test_a_receiver_may_ask_for_a_rest(said: str, waits: bool) -> None:
    answers = (status("503 Busy", f"Retry-After: {said}"), TAKEN)
    async with serving(in_turn(*answers)) as receiver, running() as (box, seen):
        await put(box, receiver.url)
        await seen.until(1)
        [waiting] = [*(await box.store.waiting())] or [None]
        assert (waiting is not None and waiting.due_at - time.time() > 0.5) == waits


async def drips(conversation: Conversation) -> None:
    await conversation.request()
    await conversation.drip(TAKEN * 20, every_s=0.02)


async def says_yes_and_never_ends(conversation: Conversation) -> None:
    await conversation.request()
    await conversation.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    await conversation.drip(b"x" * 1000, every_s=0.05)


@pytest.mark.parametrize("worst", [silent, drips, say(status("500 No")), says_yes_and_never_ends])
async def test_a_receiver_that_does_its_worst_holds_up_nobody_else(worst: Script) -> None:
    async with serving(worst) as bad, serving(say(TAKEN)) as good, running(timeout_s=1.0) as (box, seen):
        for number in range(100):
            await put(box, f"{bad.url}/{number}", "mallory")
        ids = [await put(box, f"{good.url}/{n}") for n in range(5)]
        async with asyncio.timeout(20.0):  # behind the hundred, four at a time and a second each, it would be 25
            while not all(seen.results(id_) == ["delivered"] for id_ in ids):
                await asyncio.sleep(0.002)
        assert worst is not silent or bad.live <= 4, "few at a time at one receiver"


async def test_a_third_party_is_called_so_often_a_minute_and_not_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "PER_TARGET_PER_MINUTE", 60)
    async with serving(say(TAKEN)) as victim, running() as (box, seen):
        for number in range(100):
            await put(box, victim.url, f"owner {number}")
        await seen.until(11)
        await asyncio.sleep(0.1)
        assert len(victim.requests) == 11


async def test_too_many_and_too_large_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "BOUNDS", DeliveryBounds(per_owner=2, total=3, total_bytes=10_000))
    monkeypatch.setattr(outbox_module, "MAX_BODY_BYTES", 1024)
    async with running() as (box, _):
        nowhere = "http://127.0.0.1:9/"
        for number in range(2):
            await put(box, nowhere, body=b"%d" % number)
        with refused(Reason.TOO_MANY_CONCURRENT):
            await put(box, nowhere)
        with refused(Reason.TOO_LARGE):
            await put(box, nowhere, "bob", b"x" * 1025)
        await put(box, nowhere, "bob")
        with refused(Reason.TOO_MANY_CONCURRENT):
            await put(box, nowhere, "carol")


async def test_what_is_dropped_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "FIRST_RETRY_S", 0.05)
    async with serving(say(status("500 No"))) as receiver, running() as (box, seen):
        for ref in ("one", "two"):
            await put(box, receiver.url, body=ref.encode(), ref=ref)
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
        await put(box, receiver.url)
        await seen.until(1)
        async with asyncio.timeout(PATIENCE_S):
            while len(heard) < 1 or len(receiver.requests) < 2:
                await asyncio.sleep(0.002)
    assert len(heard) == 1


@contextmanager
def out(path: Path) -> Iterator[None]:
    """The store of this file is out meanwhile."""
    with closing(sqlite3.connect(path)) as file:
        file.execute("ALTER TABLE deliveries RENAME TO away")
        try:
            yield
        finally:
            file.execute("ALTER TABLE away RENAME TO deliveries")


async def test_a_store_that_is_out_loses_and_repeats_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("LOOK_AGAIN_S", "STORE_REST_S"):
        monkeypatch.setattr(f"sidecar.tasks.webhooks.outbox.{name}", 0.05)
    store, outage = DeliveryStore(SqliteFile(tmp_path / "c")), ExitStack()

    async def takes(conversation: Conversation) -> None:
        await conversation.request()
        outage.enter_context(out(tmp_path / "c"))
        await conversation.send(TAKEN)
        await conversation.hung_up()

    async with serving(takes) as receiver, running(store) as (box, seen):
        await put(box, receiver.url)
        await seen.until(1)
        with closing(sqlite3.connect(tmp_path / "c")) as file:
            assert file.execute("SELECT count(*) FROM away").fetchone() == (1,)
        outage.close()
        async with asyncio.timeout(PATIENCE_S):
            while await store.waiting():
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)
        assert len(receiver.requests) == 1


async def test_a_store_that_is_out_costs_no_attempt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sidecar.tasks.webhooks.outbox.STORE_REST_S", 0.01)
    store = DeliveryStore(SqliteFile(tmp_path / "c"))
    monkeypatch.setattr(outbox_module, "MAX_ATTEMPTS", 1)
    async with serving(say(TAKEN)) as receiver, running(store) as (box, seen):
        await put(box, receiver.url)
        with out(tmp_path / "c"):  # before the outbox has its turn
            await asyncio.sleep(0.05)
            assert (receiver.connections, seen.told) == (0, [])
        await seen.until(1)
        assert (seen.told[0].result, seen.told[0].attempts) == ("delivered", 1)


async def test_a_put_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    with refused(Reason.STORE_UNAVAILABLE):
        await put(outbox(DeliveryStore(SqliteFile(tmp_path / "none" / "c")), Seen()), "http://127.0.0.1:9/")


# --- kill -9 ----------------------------------------------------------------------------------------------------------


def sends(state: str, path: Path, url: str) -> None:
    """An outbox, in a process that is to be killed."""

    async def main() -> None:
        outbox_module.FIRST_RETRY_S = outbox_module.MAX_RETRY_S = 60.0
        box = outbox(DeliveryStore(SqliteFile(path)), Seen(), state)
        await put(box, url, body=b'{"n":1}')
        if state == "put":
            os.kill(os.getpid(), signal.SIGKILL)
        await box.run()

    asyncio.run(main())


@pytest.mark.parametrize("state", ["put", "sending", "delivered", "waiting"])
async def test_whatever_it_is_killed_at_the_next_run_delivers_it_under_the_same_id(state: str, tmp_path: Path) -> None:
    """put: nothing was sent; sending: no answer yet; delivered: taken, not yet forgotten; waiting: failed once."""
    path, failed = tmp_path / "c", state == "waiting"

    async def attempts() -> int:
        with closing(sqlite3.connect(path)) as file:
            return int(file.execute("SELECT attempts FROM deliveries").fetchone()[0])

    async def kills(conversation: Conversation) -> None:
        await conversation.request()
        with closing(sqlite3.connect(path, isolation_level=None)) as file:
            if state == "delivered":
                file.execute("BEGIN IMMEDIATE")  # it cannot be forgotten
            if state != "sending":
                await conversation.send(BROKEN if failed else TAKEN)
                await conversation.hung_up()
            while failed and not await attempts():
                await asyncio.sleep(0.01)
            process.kill()

    async with serving(kills) as first:
        process = multiprocessing.get_context("fork").Process(target=sends, args=(state, path, first.url))
        process.start()
        await asyncio.to_thread(process.join)
        assert process.exitcode == -signal.SIGKILL
        assert (len(first.requests), await attempts()) == (state != "put", failed)
    async with serving(say(TAKEN)) as second:
        moved = sqlite3.connect(path)  # the receiver has another port now
        with closing(moved), moved:
            moved.execute("UPDATE deliveries SET url = ?, due_at = 0", (second.url,))
        async with running(DeliveryStore(SqliteFile(path))) as (_, seen):
            await seen.until(1)
            [request] = second.requests
            assert verified(request, second.url) == b'{"n":1}'
            assert header(request, "webhook-id") == f"{state}_0"
            assert seen.told[0].attempts == 1 + failed


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
        each
        for each in blocks_of((ROOT / "docs" / "guides" / "agents" / "callbacks.md").read_text("utf-8"))
        if each.file == "verify.py"
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
    with pytest.raises(SettingsError, match="open to others"):
        load_or_make_callback_key(path)
    path.chmod(0o600)
    for content in ("", "no hex", "ab" * 31, "\udcff"):
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
        with pytest.raises(SettingsError, match="H101"):
            load_or_make_callback_key(path)


# --- who may not be called back any more ------------------------------------------------------------------------------


async def test_what_waits_for_who_was_disabled_is_withheld_and_on_record_and_only_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox_module, "FIRST_RETRY_S", 0.2)
    monkeypatch.setattr(outbox_module, "MAX_RETRY_S", 0.2)
    async with serving(in_turn(BROKEN, TAKEN)) as receiver, running() as (box, seen):
        hers = await put(box, receiver.url)
        await seen.until(1)
        seen.disabled.add("user:alice")
        his = await put(box, f"{receiver.url}/bob", "bob")
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
        await put(box, receiver.url)
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
            await put(box, f"{receiver.url}/{name}", name)
        with closing(sqlite3.connect(path)) as file, file:
            file.execute(f"UPDATE deliveries SET {column} = '[7, null, 1]' WHERE url LIKE '%alice'")
        async with running(store) as (_, seen):
            await seen.until(2)
            assert sorted(each.result for each in seen.told) == ["delivered", "refused"]
