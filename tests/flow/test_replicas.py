"""Does every replica hear of what another did?

Also of one of a neighbouring version, and through a store that was flushed.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sidecar.app import file_watcher
from sidecar.limits import open_store
from sidecar.settings.load import doubts, load
from sidecar.settings.store import StoreSettings
from sidecar.storage import peers
from sidecar.storage.peers import Peers, RevisionSkew, ServedRevision
from tests.flow.test_sources import MORE, may, shop, until
from tests.flow.world import PATIENCE_S, RULES, World, world
from tests.valkey import Valkey

KEY = "{sidecar}:replicas"


@asynccontextmanager
async def two(folder: Path, server: Valkey) -> AsyncIterator[tuple[World, World]]:
    with server.client() as client:
        client.flushall()
    settings = f'store: {{url: "{server.url}"}}\n'
    async with AsyncExitStack() as both:
        one, other = [await both.enter_async_context(world(folder / name, settings=settings)) for name in ("a", "b")]
        yield one, other


@asynccontextmanager
async def voices(server: Valkey, **serving: str) -> AsyncIterator[dict[str, tuple[Peers, list[str]]]]:
    """Replicas by name, and what each heard of."""
    with server.client() as client:
        client.flushall()
    store = open_store(StoreSettings(url=server.url), lambda: 0.0)
    made = {}
    for name in serving:
        news: list[str] = []
        said = partial(lambda name: ServedRevision(serving[name], 0), name)
        made[name] = (Peers(name, store.run, said, partial(news.append, "news")), news)
    yield made
    await store.close()


async def test_each_hears_of_the_others_and_of_the_same_news_once(valkey: Valkey) -> None:
    async with voices(valkey, a="1", b="1", c="2") as made:
        for _ in range(3):
            for voice, _ in made.values():
                await voice.sync()
        assert [made[name][0].skew for name in "abc"] == [RevisionSkew(1, 1), RevisionSkew(1, 1), RevisionSkew(0, 2)]
        assert [len(made[name][1]) for name in "ab"] == [1, 1]
        with valkey.client() as client:
            client.flushall()
        await made["a"][0].sync()
        assert made["a"][0].skew == RevisionSkew(0, 0)
        await made["c"][0].sync(), await made["a"][0].sync()
        assert made["a"][0].skew == RevisionSkew(0, 1)


async def test_who_is_silent_for_long_is_none(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    async with voices(valkey, a="1", b="1") as made:
        await made["b"][0].sync(), await made["a"][0].sync()
        assert made["a"][0].skew == RevisionSkew(1, 0)
        monkeypatch.setattr(peers, "COUNTS_S", 0.0)
        await asyncio.sleep(0.01)
        await made["a"][0].sync()
        assert made["a"][0].skew == RevisionSkew(0, 0)


async def test_a_store_that_is_out_tells_nothing(valkey: Valkey) -> None:
    async with voices(valkey, a="1", b="2") as made:
        await made["b"][0].sync(), await made["a"][0].sync()
        with valkey.frozen():
            await made["a"][0].sync()
        assert made["a"][0].skew is None and len(made["a"][1]) == 1


async def test_a_store_full_of_voices_is_not_heard_at_length(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MOST", 10)
    async with voices(valkey, a="1") as made:
        with valkey.client() as client:
            at = client.time()[0] * 1000
            client.hset(
                KEY, mapping={f"{number}": f'{at} {{"v": 1, "revision": "9", "version": 0}}' for number in range(21)}
            )
            await made["a"][0].sync()
            assert client.hkeys(KEY) == ["a"]
        assert made["a"][0].skew == RevisionSkew(0, 0)


GARBLED = b'{"v": 1, "revision": "9", "version": 1e999}'


@pytest.mark.parametrize("told", [b"OK", 7, [b"odd"], [7, b"{}"], [b"b", None], [b"b", GARBLED], {b"b": b"1"}])
async def test_an_answer_that_is_none_ends_nothing(told: Any) -> None:
    async def run(*_: object) -> Any:
        return told

    voice = Peers("a", run, lambda: ServedRevision("1", 0), lambda: None)
    await voice.sync()
    assert voice.skew == RevisionSkew(0, 0)


async def test_a_neighbouring_version_is_understood_as_far_as_it_goes(valkey: Valkey) -> None:
    newer = {"v": 1, "revision": "9", "version": 3, "built": {"by": "v+1"}}
    less = {"v": 1, "revision": "9"}
    saids: list[Any] = [{"v": 2, "what": "else"}, less, [], newer | {"revision": "9" * 1000}, "\xff", newer]
    async with voices(valkey, a="1") as made:
        for said in saids:
            with valkey.client() as client:
                at = client.time()[0] * 1000
                client.hset(KEY, mapping={"newer": f"{at} {json.dumps(said)}", "odd": "no time"})
                await made["a"][0].sync()
                assert made["a"][0].skew == RevisionSkew(0, int(said is newer)), said
                assert not client.hexists(KEY, "odd")


async def test_what_one_loaded_the_other_looks_for(
    valkey: Valkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No scan is due for a minute: only the word of the other can have it looked at so soon."""
    monkeypatch.setattr(file_watcher, "LOOK_S", 60.0)
    monkeypatch.setattr(peers, "EVERY_S", 0.05)
    async with two(tmp_path, valkey) as (a, b):
        for one in (a, b):
            (one.folder / "policies" / "agent_to_tool.csv").write_text(MORE)
        await asyncio.sleep(0.2)
        assert not await may(b, "delete_repo")
        await a.app.reload("test")
        async with asyncio.timeout(PATIENCE_S):
            while not await may(b, "delete_repo"):
                await asyncio.sleep(0.02)
        await until(lambda: a.app.status()["policy"]["replicas"] == {"same": 1, "other": 0})
        async with asyncio.timeout(PATIENCE_S):
            while 'policy_replicas{revision="same"} 1.0' not in await a.metrics():
                await asyncio.sleep(0.05)


async def test_a_bundle_that_one_took_the_other_takes(
    valkey: Valkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "EVERY_S", 0.05)
    async with shop(tmp_path) as at:
        at.publish(RULES, 1)
        source = f'{{bundle: {{url: "{at.url}", keys_path: {tmp_path}/keys.json, every: 1h}}}}'
        settings = f'store: {{url: "{valkey.url}"}}\npolicy: {{source: {source}}}\n'
        async with AsyncExitStack() as both:
            a, b = [await both.enter_async_context(world(tmp_path / name, settings=settings)) for name in ("a", "b")]
            at.publish(MORE, 2)
            await a.app.reload("test")
            await until(lambda: b.app.status()["policy"]["source"].get("version") == 2)


async def test_replicas_with_different_keys_are_noticed_and_named(
    valkey: Valkey, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "EVERY_S", 0.02)
    async with two(tmp_path, valkey) as (one, other):
        for running in (one, other):
            await until(lambda app=running.app: app.replicas.different_keys == ("audit.key_path",))
        ready, why = one.app.readiness()
        assert ready and why["reasons"] == {"keys-differ": 1}
        assert "other replicas on this store have other keys: audit.key_path" in one.app.status()["reasons"]
        with valkey.client() as client:
            said = client.hgetall(KEY)
        digests = {name: json.loads(entry.split(" ", 1)[1])["keys"] for name, entry in said.items()}
        assert all(set(keys) == {"audit.key_path"} and len(keys["audit.key_path"]) == 16 for keys in digests.values())
        keys = [(folder / "data" / "keys" / "audit.key").read_text() for folder in (one.folder, other.folder)]
        assert not any(key.strip() in entry for key in keys for entry in said.values())
    told = [one for one in caplog.records if one.message == "replicas on this store have different keys"]
    assert len(told) == 2 and {one.__dict__["settings"] for one in told} == {"audit.key_path"}


async def test_replicas_with_the_same_keys_are_ready(
    valkey: Valkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "EVERY_S", 0.02)
    with valkey.client() as client:
        client.flushall()
    key = tmp_path / "audit.key"
    key.write_text(f"{secrets.token_hex(32)}\n")
    key.chmod(0o600)
    settings = f'store: {{url: "{valkey.url}"}}\naudit: {{key_path: "{key}"}}\n'
    async with world(tmp_path / "a", settings=settings) as one, world(tmp_path / "b", settings=settings):
        await until(lambda: one.app.replicas.skew == RevisionSkew(1, 0))
        assert one.app.replicas.different_keys == () and one.app.readiness() == (True, {"status": "ready"})


async def test_a_key_that_a_replica_lacks_is_named_by_check_and_at_the_start(
    valkey: Valkey, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only keys in use, and only where there is a store to share."""
    settings = f'store: {{url: "{valkey.url}"}}\ncallbacks: {{allow: ["*"]}}\nidentity: {{api_keys_path: keys.yaml}}\n'
    (tmp_path / "data" / "keys").mkdir(parents=True, mode=0o700)
    (tmp_path / "keys.yaml").write_text("version: 1\nkeys: []\n")
    (tmp_path / "data" / "keys" / "api-keys.pepper").write_text(secrets.token_hex(32))
    (tmp_path / "data" / "keys" / "api-keys.pepper").chmod(0o600)
    names = "audit.key_path, callbacks.key_path, identity.api_keys_pepper_path"
    async with world(tmp_path, settings=settings) as running:
        [told] = [one for one in caplog.records if one.message.startswith("other replicas on this store need")]
        assert told.__dict__["settings"] == names
        config = running.folder / "sidecar.yaml"
        [doubt] = doubts(load(config, {}))
        assert (doubt.code, doubt.severity) == ("S138", "warning") and names in doubt.message
        environ = {
            "SIDECAR_AUDIT__KEY_PATH": "data/keys/audit.key",
            "SIDECAR_CALLBACKS__KEY_PATH": "callbacks.key",
            "SIDECAR_IDENTITY__API_KEYS_PEPPER_PATH": "data/keys/api-keys.pepper",
        }
        assert list(doubts(load(config, environ))) == []
        assert list(doubts(load(config, {"SIDECAR_STORE__URL": "memory://"}))) == []


async def test_a_list_of_all_servers_goes_on_at_another_replica(valkey: Valkey, tmp_path: Path) -> None:
    """Its cursors are sealed with a key that replicas have in common."""
    key = tmp_path / "audit.key"
    key.write_text(f"{secrets.token_hex(32)}\n")
    key.chmod(0o600)
    settings = f'audit: {{key_path: "{key}"}}\n'
    async with world(tmp_path / "a", settings=settings) as one, world(tmp_path / "b", settings=settings) as other:
        seals, about = [running.app.pipeline.aggregate.seal for running in (one, other)], ("nhi:planner", "tools/list")
        assert seals[1].open(seals[0].seal(b"cursor", *about), *about) == b"cursor"
