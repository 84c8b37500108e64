"""Who counts, and how is that one reached: by Sentinels, in a Cluster, over TLS?"""

import asyncio
import os
import re
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

import pytest
import redis

from bench.valkeys import SERVICE, Node, Proxy, Watched, cluster_info, is_primary, one, wait_for, watched
from sidecar.errors import SettingsError
from sidecar.limits import StoreUnavailable
from sidecar.limits.redis_store import RedisCounters
from sidecar.limits.topology import PREFIX, SLOT, Cluster, NoPrimaryError, Sentinels, Trouble, finder_of
from sidecar.settings.store import SentinelLogin, StoreSettings, StoreTls
from tests.unit.identity.authority import authority
from tests.unit.limits.stages import Between, charge, opened
from tests.valkey import Valkey

HOUR, SLOTS = charge("hour", 1000), charge("concurrency", 1000)
BOTH = (HOUR, SLOTS)


TOLD = Path("docs/guides/operate/redis.md").read_text("utf-8")
RIGHTS = re.search(r"^ACL SETUSER sidecar on >PASSWORD (.*)$", TOLD, re.MULTILINE)
FURTHER = re.search(r"Add `(.*)` for Sentinels, and `(.*)` for a Cluster:", TOLD)


def restricted(nodes: Sequence[Node], kind: int, folder: Path) -> dict[str, Any]:
    """The settings of a user who has the rights that we tell operators to give, and no other."""
    assert RIGHTS and FURTHER
    for node in nodes:
        node.ask("ACL", "SETUSER", "sidecar", "reset", "on", ">hush", *RIGHTS[1].split(), *FURTHER[kind].split())
    (folder / "password").write_text("hush\n")
    return {"username": "sidecar", "password_path": folder / "password"}


async def serves(store: RedisCounters, name: str) -> None:
    """Until a call is charged."""
    async with asyncio.timeout(30):
        for number in count():
            with suppress(StoreUnavailable):
                await store.reserve(BOTH, f"{name}-{number}")
                return
            await asyncio.sleep(0.01)


def counted(node: Node) -> int:
    return int(str(node.ask("HGET", PREFIX + HOUR.key, "n") or 0))


CLUSTER = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no")


@pytest.fixture(scope="module", autouse=True)
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node]]:
    """A Cluster takes two seconds to begin; so it begins first, and is asked last."""
    folder = tmp_path_factory.mktemp("pair")
    with one(folder / "a", *CLUSTER) as first, one(folder / "b", *CLUSTER) as second:
        first.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        second.ask("CLUSTER", "MEET", "127.0.0.1", first.port)
        yield first, second


# --- Sentinels ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watched(tmp_path_factory.mktemp("watched"), sentinels=1) as servers:
        yield servers


def told_to_fail_over(sentinel: Node) -> bool:
    with suppress(redis.ResponseError):  # it looks at a replica once a second before it thinks well of it
        return sentinel.ask("SENTINEL", "FAILOVER", SERVICE) == "OK"
    return False


async def test_whoever_sentinels_promote_counts_and_has_lost_nothing(servers: Watched, tmp_path: Path) -> None:
    nobody, login = "127.0.0.1:1", restricted((servers.primary, servers.replica), 1, tmp_path)
    async with opened(url=servers.url.replace("://", f"://{nobody},"), **login) as store:
        for number in range(5):
            await store.reserve(BOTH, f"before-{number}")
        assert counted(servers.primary) == 5
        await asyncio.to_thread(wait_for, lambda: told_to_fail_over(servers.sentinels[0]), "a replica that is good")
        await asyncio.to_thread(wait_for, lambda: is_primary(servers.replica), "the new primary")
        await serves(store, "after")  # it may go to the old primary yet: then it is charged again
        await asyncio.to_thread(wait_for, lambda: counted(servers.replica) == 6, "the last charge")


async def test_a_primary_that_sentinels_call_one_no_more_is_left_though_it_answers(servers: Watched) -> None:
    finder = finder_of(StoreSettings(url=servers.url))
    assert isinstance(finder, Sentinels)
    connections = await asyncio.gather(*(finder.find() for _ in range(8)))
    assert all(await asyncio.gather(*(finder.still() for _ in range(8)))), "many may ask at once"
    finder._found = ("127.0.0.1", 1)
    assert not await finder.still()
    await asyncio.gather(*(connection.disconnect(nowait=True) for connection in connections), finder.close())


async def test_a_user_of_the_sentinels_may_ask_who_is_primary_alone(servers: Watched, tmp_path: Path) -> None:
    told = re.search(r"On the Sentinels, the user needs `(.*)` and no key", TOLD)
    assert told
    rights = told[1].split()
    (tmp_path / "password").write_text("hush\n")
    login = SentinelLogin(username="asks", password_path=tmp_path / "password")
    finder = finder_of(StoreSettings(url=servers.url, sentinel=login))
    for given, enough in ((rights, True), (rights[:-1], False)):
        for node in servers.sentinels:
            node.ask("ACL", "SETUSER", "asks", "reset", "on", ">hush", *given)
        with nullcontext() if enough else pytest.raises(redis.exceptions.RedisError):
            await (await finder.find()).disconnect()
        await finder.close()


async def test_a_service_that_no_sentinel_knows_is_nobody(servers: Watched) -> None:
    async with opened(url=servers.url.replace("/limits", "/other")) as store:
        with pytest.raises(StoreUnavailable, match="no such service: other"):
            await store.ping()


# --- Cluster --------------------------------------------------------------------------------------------------------


TABLES = [
    ([[0, 16383, [b"10.0.0.1", 7000, b"id", []], [b"10.0.0.2", 7001, b"id"]]], ("10.0.0.1", 7000)),
    ([[0, 16383, [None, 7000, b"id"]]], ("asked", 7000)),
    ([[0, 16383, [b"", 7000, b"id"]]], ("asked", 7000)),
    ([[0, SLOT - 1, [b"a", 1, b"id"]], [SLOT, SLOT, [b"b", 2, b"id"]]], ("b", 2)),
]


NO_TABLES = [
    None,
    b"OK",
    [],
    [[0, 1]],
    [[0, 16383]],
    *([[0, 16383, odd]] for odd in ([b"a", 0], [7, 7000], [], [b"a", inf])),
]


@pytest.mark.parametrize(("table", "expected"), [*TABLES, *((table, None) for table in NO_TABLES)])
def test_a_table_of_slots_is_read_and_what_is_none_names_nobody(table: Any, expected: tuple[str, int] | None) -> None:
    def no_opener(address: tuple[str, int]) -> Any:
        raise AssertionError(address)

    cluster = Cluster(no_opener, [("asked", 1)])
    with nullcontext() if expected else pytest.raises(NoPrimaryError):
        assert cluster._read(table, "asked") == expected


# --- one server -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "redis+sentinel://127.0.0.1:1/s"])
async def test_outside_of_a_cluster_nobody_leads_us_elsewhere(url: str) -> None:
    """An attacker who answers in a store's place would otherwise be sent its password wherever it likes."""
    finder = finder_of(StoreSettings(url=url))
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.setblocking(False)
        finder.moved(elsewhere.getsockname())
        with pytest.raises(Trouble):
            await finder.find()
        with pytest.raises(BlockingIOError):
            elsewhere.accept()
    await finder.close()


async def test_over_tls_both_show_a_certificate_and_a_strangers_is_none(fresh_valkey: Valkey, tmp_path: Path) -> None:
    ours, strangers = authority("ours"), authority("strangers")
    (tmp_path / "ca.pem").write_text(ours.own.pem)
    (tmp_path / "strangers.pem").write_text(strangers.own.pem)
    server = ours.issue(address="127.0.0.1").write(tmp_path, "server")
    cert, key = ours.issue(uris=["spiffe://acme.example/sidecar"]).write(tmp_path, "client")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*server)
    context.load_verify_locations(tmp_path / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    async with Between(fresh_valkey.path, context).listening() as address:
        url = f"rediss://{address}"
        good = StoreTls(ca_path=tmp_path / "ca.pem", cert_path=cert, key_path=key)
        async with opened(url=url, tls=good) as store:
            assert (await store.reserve(BOTH, "call")).admitted
        for bad in (good.model_copy(update={"ca_path": tmp_path / "strangers.pem"}), StoreTls(ca_path=good.ca_path)):
            async with opened(url, 0.3, tls=bad) as store:
                with pytest.raises(StoreUnavailable):
                    await store.ping()


def test_files_that_are_of_no_use_are_told_at_the_start(tmp_path: Path) -> None:
    junk, huge = tmp_path / "junk", tmp_path / "huge"
    junk.write_text("")
    huge.touch(0o600)
    os.truncate(huge, 65 * 2**20)
    for settings in (
        {"url": "redis://h", "username": "u", "password_path": junk},
        {"url": "rediss://h", "tls": StoreTls(ca_path=junk)},
        {"url": "rediss://h", "tls": StoreTls(ca_path=huge)},
        {"url": "rediss://h", "tls": StoreTls(cert_path=huge, key_path=huge)},
        {"url": "redis+sentinel://h/s", "sentinel": {"password_path": junk}},
    ):
        with pytest.raises(SettingsError, match=r"junk|empty|huge.*larger than"):
            finder_of(StoreSettings(**settings))


async def test_a_password_that_was_changed_is_read_at_the_next_connection(fresh_valkey: Valkey, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("first one\n")
    with fresh_valkey.client() as client:
        rights = ("on", "+@all", "~*")
        client.execute_command("ACL", "SETUSER", "sidecar", "reset", ">first one", *rights)
        try:
            async with opened(url=fresh_valkey.url, username="sidecar", password_path=password) as store:
                await store.ping()
                client.execute_command("ACL", "SETUSER", "sidecar", "reset", ">second one", *rights)
                password.write_text("second one\n")
                client.client_kill_filter(_type="normal", skipme=True)
                await serves(store, "after")
        finally:
            client.execute_command("ACL", "DELUSER", "sidecar")


async def test_a_store_that_answers_late_is_no_store_and_is_used_as_soon_as_it_is_quick(tmp_path: Path) -> None:
    with one(tmp_path) as node:
        async with Proxy(node.port).listening() as proxy, opened(f"redis://{proxy.address}", 0.2) as store:
            await serves(store, "quick")
            proxy.delay_s = 0.5
            for number in range(5):
                with pytest.raises(StoreUnavailable):
                    await store.reserve(BOTH, f"late-{number}")
            proxy.delay_s = 0.0
            await serves(store, "quick again")


# --- a Cluster of two ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(begun: tuple[Node, Node]) -> tuple[Node, Node]:
    """Two nodes of a Cluster; the first owns every slot."""
    for node in begun:
        wait_for(lambda node=node: "cluster_state:ok" in cluster_info(node), "the Cluster")  # type: ignore[misc]
    return begun


def owner(node: Node) -> int:
    """The port of who owns our slot, as a node knows it."""
    for low, high, primary, *_ in node.ask("CLUSTER", "SLOTS"):  # type: ignore[attr-defined]
        if low <= SLOT <= high:
            return int(primary[1])
    return 0


async def test_the_owner_of_our_slot_is_found_and_followed(pair: tuple[Node, Node], tmp_path: Path) -> None:
    first, second = pair
    login = restricted(pair, 2, tmp_path)
    async with opened(url=f"redis+cluster://127.0.0.1:1,{second.address}", **login) as store:
        for number in range(5):
            await store.reserve(BOTH, f"before-{number}")
        assert counted(first) == 5
        to = str(second.ask("CLUSTER", "MYID"))
        first.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", SLOT, SLOT, "NODE", to)
        await asyncio.to_thread(wait_for, lambda: owner(first) == second.port, "the slot's move")
        await serves(store, "after")
        assert counted(second) == 6


async def test_a_slot_that_moves_key_by_key_is_out_until_it_stands(pair: tuple[Node, Node], tmp_path: Path) -> None:
    first, second = pair
    login = restricted(pair, 2, tmp_path)
    here, there = (first, second) if owner(first) == first.port else (second, first)
    async with opened(url=f"redis+cluster://{here.address}", **login) as store:
        await store.reserve(BOTH, "whole")
        there.ask("CLUSTER", "SETSLOT", SLOT, "IMPORTING", str(here.ask("CLUSTER", "MYID")))
        here.ask("CLUSTER", "SETSLOT", SLOT, "MIGRATING", str(there.ask("CLUSTER", "MYID")))
        try:
            with pytest.raises(StoreUnavailable, match="AskError"):
                await store.run("return KEYS[1]", "not-here", [])
            with pytest.raises(StoreUnavailable, match="TryAgain"):
                await store.reserve(BOTH, "torn apart")
        finally:
            for node in pair:
                node.ask("CLUSTER", "SETSLOT", SLOT, "STABLE")
        await serves(store, "whole again")
