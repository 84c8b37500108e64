"""Does a whole sidecar call back, across restarts and reloads?"""

import asyncio
from pathlib import Path

import pytest

from sidecar.http.client import parse_origin
from sidecar.tasks.webhooks import outbox
from sidecar.tasks.webhooks.signature import load_or_make_callback_key
from tests.flow.world import PATIENCE_S, World, until, world
from tests.unit.http.client.hostile import Hostile, response, say, serving
from tests.unit.tasks.webhooks.receiving import for_, header, in_turn, verified

TAKEN, BROKEN = response(b"", status="204 No Content", framing=""), response(b"", status="500 No")


def settings(receiver: Hostile) -> str:
    rules = "schemes: [http], networks: [127.0.0.0/8]"
    return f'callbacks: {{allow: ["127.0.0.1:{receiver.port}"], {rules}}}\n'


async def counted(running: World, result: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while f'sidecar_callbacks_total{{kind="task",result="{result}"}} 1.0' not in await running.metrics():
            await asyncio.sleep(0.01)


async def test_what_waits_when_it_stops_is_sent_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "FIRST_RETRY_S", 0.6)
    async with serving(in_turn(BROKEN, TAKEN)) as receiver:
        async with world(tmp_path, settings=settings(receiver)) as running:
            sent = await running.app.callbacks.outbox.put("task", "ref", for_("alice"), receiver.url, (), b"{}")
            await counted(running, "failed")
        assert len(receiver.requests) == 1
        async with world(tmp_path, settings=settings(receiver)) as running:
            await counted(running, "delivered")
            assert "sidecar_callbacks_waiting 0.0" in await running.metrics()
        key = load_or_make_callback_key(tmp_path / "data" / "keys" / "callbacks.key")
        for request in receiver.requests:
            assert verified(request, receiver.url, secret=key.told_to(parse_origin(receiver.url))) == b"{}"
            assert header(request, "webhook-id") == sent


async def test_a_reload_that_narrows_the_list_holds_for_what_waits_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "FIRST_RETRY_S", 0.6)
    async with serving(say(BROKEN)) as receiver, world(tmp_path, settings=settings(receiver)) as running:
        await running.app.callbacks.outbox.put("task", "ref", for_("alice"), receiver.url, (), b"{}")
        await until(lambda: len(receiver.requests) >= 1)
        file = tmp_path / "sidecar.yaml"
        file.write_text(file.read_text().replace(f'"127.0.0.1:{receiver.port}"', "hooks.acme.example"))
        await running.app.reload("test")
        await counted(running, "refused")
        assert list(await running.app.callbacks.outbox.store.waiting()) == []


async def test_a_sidecar_that_calls_nobody_back_makes_no_file(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        await running.call("search_code", {"repo": "acme/x"})
        assert not (tmp_path / "data" / "records.sqlite").exists()
        assert not (tmp_path / "data" / "keys" / "callbacks.key").exists()
