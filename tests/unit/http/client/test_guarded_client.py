"""Can anybody's words make us connect to a place that the operator did not mean?"""

import asyncio
import re
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from ipaddress import IPv4Address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, strategies as st

from sidecar.errors import Reason, Refusal
from sidecar.http.client import (
    ClientTimeout,
    ConnectFailed,
    ConnectionBroken,
    EgressError,
    GuardedClient,
    InvalidRequest,
    NotAllowed,
    SystemResolver,
    UnacceptableResponse,
    guarded_client,
)
from sidecar.http.client.address_rules import AddressRules
from sidecar.http.client.origin import parse_strictly
from sidecar.settings.callbacks import CallbackSettings
from tests import wire
from tests.unit.http.client.certificate import self_signed
from tests.unit.http.client.hostile import Conversation, Script, response, say, serving, silent

CORPUS = wire.HERE / "egress" / "no_callbacks.txt"
EVERYWHERE: dict[str, Any] = {"allow": ["*:*"], "schemes": ["https", "http"], "timeout_s": 2.0}
LOOPBACK = "127.0.0.0/8"
DONE = response(b"", status="204 No Content", framing="")


def guard(names: Any = None, **given: Any) -> GuardedClient:
    settings = CallbackSettings.model_validate({**EVERYWHERE, **given})
    return GuardedClient(lambda: settings, names or Names())


class Names:
    """A resolver: each answer is given once, the last one again and again."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self.answers = {name.replace("_", "."): list(given) for name, given in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        given = self.answers.get(host)
        if given is None:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return given.pop(0) if len(given) > 1 else given[0]


def refused_places() -> list[tuple[str, list[str]]]:
    unescaped = re.compile(r"\\(u[0-9a-f]{4}|[tnr0])")
    places = []
    for line in CORPUS.read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            url, *addresses = line.split(" ")
            read = unescaped.sub(lambda found: f"\\{found[1]}".encode().decode("unicode_escape"), url)
            places.append((read, addresses))
    return places


@asynccontextmanager
async def canaries() -> AsyncIterator[tuple[int, list[str]]]:
    """A port on 127.0.0.1 and ::1 at once, and who connected to it."""
    caught: list[str] = []

    async def sing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caught.append(str(writer.get_extra_info("sockname")))
        writer.transport.abort()

    v4 = await asyncio.start_server(sing, "127.0.0.1", 0)
    port = v4.sockets[0].getsockname()[1]
    v6 = await asyncio.start_server(sing, "::1", port)
    try:
        yield port, caught
    finally:
        for server in (v4, v6):
            server.close()
            await server.wait_closed()


async def test_none_of_the_places_where_no_callback_may_go_is_connected_to() -> None:
    """BL-055: at registration and at dispatch."""
    places = refused_places()
    assert len(places) > 150
    async with canaries() as (port, caught):
        for written, addresses in places:
            url = written.replace("{port}", str(port))

            async def resolve(host: str, _: int, addresses: Sequence[str] = addresses) -> Sequence[str]:
                assert not re.fullmatch(r"[0-9.]+|0x.*", host), "an address is never looked up"
                return addresses or ["127.0.0.1"]

            one = guard(resolve)
            with pytest.raises(Refusal) as told:
                await one.check(url, "alice")
            assert told.value.reason is Reason.MALFORMED_CALL
            assert not any(address in told.value.detail for address in addresses), "it tells nothing of the name"
            with pytest.raises(NotAllowed):
                await one.post(url, (), b"{}")
        assert caught == []
        named = f"http://127.0.0.1:{port}/"
        with pytest.raises(ConnectionBroken):
            await guard(networks=[LOOPBACK]).post(named, (), b"{}")
        assert len(caught) == 1, "the canary does sing"


async def test_a_name_that_changes_its_mind_gains_nothing() -> None:
    """BL-055."""
    async with serving(say(DONE)) as here, canaries() as (port, caught):
        names = Names(rebind_example=[["93.184.216.34"], ["127.0.0.1"]])
        one = guard(names)
        await one.check(f"http://rebind.example:{port}/", "alice")
        for _ in range(3):
            with pytest.raises(NotAllowed):
                await one.post(f"http://rebind.example:{port}/", (), b"{}")
        assert caught == []
        flapping = Names(pinned_example=[["127.0.0.1"], ["127.0.0.2"]])
        answer = await guard(flapping, networks=[LOOPBACK]).post(f"http://pinned.example:{here.port}/", (), b"{}")
        assert (answer.status, flapping.asked) == (204, ["pinned.example"]), "looked up once, and that is dialled"


async def test_no_redirect_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """BL-055; and no proxy of the environment is used."""
    async with canaries() as (port, caught):
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        for status in ("301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent", "200 OK"):
            async with serving(say(response(b"", f"Location: http://127.0.0.1:{port}/", status=status))) as server:
                answer = await guard(networks=[LOOPBACK]).post(f"http://127.0.0.1:{server.port}/", (), b"{}")
                assert (str(answer.status), len(server.requests)) == (status[:3], 1)
        assert caught == []


async def test_what_is_sent_names_the_host_and_goes_to_the_address() -> None:
    async with serving(say(DONE)) as server:
        one = guard(Names(hooks_acme_example=[["127.0.0.1"]]), networks=[LOOPBACK])
        url = f"http://Hooks.ACME.example:{server.port}/in/1?x=%2F"
        assert (await one.post(url, [("X-A", "1")], b"{}")).status == 204
        [sent] = server.requests
        assert sent.startswith(b"POST /in/1?x=%2F HTTP/1.1\r\nHost: hooks.acme.example:")
        assert sent.endswith(b"X-A: 1\r\nContent-Length: 2\r\n\r\n{}")
        await server.all_gone()


async def test_over_tls_the_certificate_must_name_the_host(tmp_path: Path) -> None:
    serves, _ = self_signed(tmp_path, "127.0.0.1", "hooks.acme.example")
    names = Names(hooks_acme_example=[["127.0.0.1"]], other_example=[["127.0.0.1"]])
    async with serving(say(DONE), tls=serves) as server:
        trusting = guard(names, networks=[LOOPBACK], ca_path=tmp_path / "certificate.pem")
        assert (await trusting.post(f"https://hooks.acme.example:{server.port}/", (), b"{}")).status == 204
        plain, none = guard(names, networks=[LOOPBACK]), guard(names, networks=[LOOPBACK], ca_path=tmp_path / "none")
        for one, host in ((trusting, "other.example"), (plain, "hooks.acme.example"), (none, "hooks.acme.example")):
            with pytest.raises(ConnectFailed):
                await one.post(f"https://{host}:{server.port}/", (), b"{}")
        assert len(server.requests) == 1


async def test_an_address_that_refuses_is_followed_by_the_next_one() -> None:
    async with serving(say(DONE)) as server:
        names = Names(two_example=[["127.0.0.9", "127.0.0.1"]], none_example=[["127.0.0.9", "127.0.0.8"]])
        one = guard(names, networks=[LOOPBACK])
        assert (await one.post(f"http://two.example:{server.port}/", (), b"{}")).status == 204
        with pytest.raises(ConnectFailed):
            await one.post(f"http://none.example:{server.port}/", (), b"{}")


async def endless(conversation: Conversation) -> None:
    await conversation.request()
    await conversation.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        await conversation.send(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")


async def dripping(conversation: Conversation) -> None:
    await conversation.drip(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1000, every_s=0.01)


WORST: list[tuple[Script, type[EgressError] | None]] = [
    (endless, None),
    (silent, ClientTimeout),
    (dripping, ClientTimeout),
    (say(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000), ConnectionBroken),
    (say(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), ConnectionBroken),
    (say(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"), UnacceptableResponse),
    (say(response(b"", "Content-Encoding: gzip")), UnacceptableResponse),
]


@pytest.mark.parametrize(("script", "outcome"), WORST)
async def test_a_receiver_that_does_its_worst_costs_no_more_than_the_time(script: Script, outcome: Any) -> None:
    async with serving(script) as server:
        one = guard(networks=[LOOPBACK], timeout_s=0.2)
        with pytest.raises(outcome) if outcome else nullcontext():
            assert (await asyncio.wait_for(one.post(server.url, (), b"{}"), 30)).status == 200
        await server.all_gone()


async def test_a_name_server_that_says_nothing_costs_no_more_than_the_time() -> None:
    async def never(_: str, __: int) -> Sequence[str]:
        await asyncio.sleep(60)
        return []

    one, details = guard(never, timeout_s=0.05), set()
    with pytest.raises(ClientTimeout):
        await one.post("https://slow.example/", (), b"{}")
    inside = guard(Names(inside_example=[["10.0.0.1"]]))
    for client, name in ((one, "slow"), (inside, "inside"), (guard(), "unknown")):
        with pytest.raises(Refusal) as told:
            await client.check(f"https://{name}.example/", "alice")
        details.add(told.value.detail)
    assert len(details) == 1


async def test_a_header_that_must_not_be_sent_is_not() -> None:
    async with serving(say(DONE)) as server:
        for name, value in (("X-A", "1\r\nX-B: 2"), ("Host", "a"), ("Content-Length", "9"), ("X A", "1")):
            with pytest.raises(InvalidRequest):
                await guard(networks=[LOOPBACK]).post(server.url, [(name, value)], b"{}")
        assert server.requests == []


@pytest.mark.parametrize(("allow", "url", "may"), wire.table("egress/allowed")["callbacks"])
async def test_only_hosts_that_the_operator_wrote_are_called_back(allow: list[str], url: str, may: bool) -> None:
    async def public(_: str, __: int) -> Sequence[str]:
        return ["93.184.216.34"]

    with nullcontext() if may else pytest.raises(Refusal):
        await guard(public, allow=allow, schemes=["https"]).check(url, "alice")


async def test_an_internal_network_is_reached_once_it_is_opened(caplog: pytest.LogCaptureFixture) -> None:
    """BL-051."""
    names = Names(hooks_internal=[["100.64.3.2"]])
    await guard(names, networks=["100.64.0.0/10"]).check("https://hooks.internal/", "alice")
    for networks in ([], ["100.64.0.0/24"], ["10.0.0.0/8"]):
        caplog.clear()
        with caplog.at_level("INFO"), pytest.raises(Refusal):
            await guard(names, networks=networks).check("https://hooks.internal/", "alice")
        [line] = caplog.records
        assert vars(line)["why"] == "100.64.3.2 is not public, and callbacks.networks does not hold it"


def test_what_the_operator_blocks_is_stronger_than_what_he_opens() -> None:
    reach = AddressRules([ip_network("10.0.0.0/8")], [ip_network("10.1.0.0/16"), ip_network("93.184.216.0/24")])
    assert not any(map(reach.objection, ("10.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a00:1")))
    assert all(map(reach.objection, ("10.1.0.1", "::ffff:10.1.0.1", "64:ff9b::a01:1", "93.184.216.34")))


@given(st.integers(0, 2**32 - 1))
def test_no_address_that_python_calls_private_passes(number: int) -> None:
    """A second judge, which knows fewer networks."""
    address, objection = IPv4Address(number), AddressRules().objection
    if not address.is_global or address.is_multicast:
        assert objection(str(address))
    for holder in (f"::ffff:{address}", f"64:ff9b::{address}"):
        assert bool(objection(holder)) == bool(objection(str(address)))
    assert objection(f"::{address}")


@given(st.text(max_size=60) | st.from_regex(r"https?://[^/]{0,30}(/.*)?", fullmatch=True))
def test_whatever_passes_the_reader_is_read_alike_by_others(url: str) -> None:
    try:
        origin = parse_strictly(url)
    except ValueError:
        return
    parts = urlsplit(url)
    assert (parts.scheme, parts.username, parts.fragment) == (origin.scheme, None, "")
    assert (parts.hostname or "").lower() == origin.host or ":" in origin.host
    assert (parts.port or {"http": 80, "https": 443}[origin.scheme]) == origin.port


async def test_the_systems_resolver_finds_this_machine() -> None:
    resolver = SystemResolver()
    assert "127.0.0.1" in await resolver("localhost", 80)
    with pytest.raises(NotAllowed):
        await guard(resolver).post("http://localhost/", (), b"{}")
    resolver.close()


async def test_names_that_nobody_answers_for_hold_up_who_named_them_alone() -> None:
    answers, asked = asyncio.Event(), 0

    async def resolve(host: str, port: int) -> list[str]:
        nonlocal asked
        asked += host == "slow.example"
        if host == "slow.example":
            await answers.wait()
        return ["93.184.216.34"]

    one = guard(resolve)
    slow = [asyncio.create_task(one.check("https://slow.example/", "mallory")) for _ in range(40)]
    await asyncio.sleep(0)
    await one.check("https://hooks.example/", "alice")
    answers.set()
    told = await asyncio.gather(*slow, return_exceptions=True)
    refused = [each.reason for each in told if isinstance(each, Refusal)]
    assert (asked, len(refused), set(refused)) == (4, 36, {Reason.TOO_MANY_CONCURRENT})
    await one.check("https://slow.example/", "mallory")


async def test_a_lookup_that_hangs_counts_as_its_owners_until_it_ends() -> None:
    answers = asyncio.Event()

    async def resolve(host: str, port: int) -> list[str]:
        if host == "slow.example":
            await answers.wait()
        return ["93.184.216.34"]

    one = guard(resolve, timeout_s=0.05)
    slow = [one.check("https://slow.example/", "mallory") for _ in range(4)]
    told = await asyncio.gather(*slow, return_exceptions=True)
    assert [each.reason for each in told if isinstance(each, Refusal)] == [Reason.MALFORMED_CALL] * 4
    with pytest.raises(Refusal, match="too-many-concurrent"):
        await one.check("https://hooks.example/", "mallory")
    await one.check("https://hooks.example/", "alice")
    lookups = {task for task in asyncio.all_tasks() if task.get_name().startswith("looks up")}
    answers.set()
    await asyncio.wait(lookups)
    await one.check("https://slow.example/", "mallory")


async def test_the_systems_resolver_counts_the_lookups_that_occupy_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    go, getaddrinfo = threading.Event(), socket.getaddrinfo

    def hung(host: str, *rest: Any, **more: Any) -> Any:
        if host == "hung.example":
            go.wait(30)
        return getaddrinfo("localhost", *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", hung)
    monkeypatch.setattr(guarded_client, "MAX_LOOKUPS", 2)
    resolver = SystemResolver()
    try:
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(resolver("hung.example", 80), 0.05)
        with pytest.raises(OSError, match="too many names"):
            await resolver("hooks.example", 80)
    finally:
        go.set()
    async with asyncio.timeout(30):
        while True:
            with suppress(OSError):
                assert "127.0.0.1" in await resolver("hooks.example", 80)
                break
            await asyncio.sleep(0.01)
    resolver.close()
