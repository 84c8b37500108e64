"""Does a certificate open the door to exactly its owner, for as long as its authority is trusted?

A running sidecar with real handshakes: authorities, certificates and connections, and what becomes of them when files
are changed.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from sidecar.app.loader import check_files
from sidecar.errors import SettingsError
from tests.flow.idp import bearer
from tests.flow.streams import Emitter
from tests.flow.talk import Talk, reason_of
from tests.flow.test_identity_flow import GOOD, gateway, token
from tests.flow.world import Upstream, World, request, until
from tests.unit.identity.authority import SERVER_ONLY, Authority, Issued, authority

PLANNER = "spiffe://acme.example/ns/prod/sa/planner"
ENVOY = f'By=spiffe://acme.example/gw;Hash={"ab" * 32};Subject="";URI={PLANNER}'
ACME = authority("acme")
SERVER = authority("server")
CERTIFICATES = """\
  certificates:
    spiffe: [{trust_domain: acme.example, path: "/ns/prod/sa/{id}"}]
    names: {"dns:alice.acme.example": "user:alice"}
"""


def files(folder: Path, ca: str = ACME.own.pem, more: str = "") -> str:
    """The listener's files, and the settings that name them."""
    SERVER.issue(address="127.0.0.1").write(folder, "server")
    (folder / "ca.pem").write_text(ca)
    return (
        'server: {listen: "127.0.0.1:0", '
        f"tls: {{cert_path: server.pem, key_path: server.key, client_ca_path: ca.pem{more}}}}}\n"
    )


@asynccontextmanager
async def guarded(folder: Path, more: str = "", identity: str = CERTIFICATES, **options: Any) -> AsyncIterator[World]:
    # `identity` is the last section of the provider's settings: what follows is part of it.
    async with gateway(folder, settings=identity + files(folder, more=more), **options) as running:
        yield running


def shows(folder: Path, issued: Issued | None, trusts: Authority = SERVER) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=trusts.own.pem) if issued is None else issued.client(folder, trusts)


@asynccontextmanager
async def calling(running: World, context: ssl.SSLContext) -> AsyncIterator[World]:
    """The same sidecar, called with this certificate."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as http:
        plain, running.http = running.http, http
        try:
            yield running
        finally:
            running.http = plain


async def search(running: World, headers: dict[str, str] | None = None) -> tuple[int, str]:
    status, *rest = await Talk(running, "stateless", headers or {}).call("search_code", GOOD)
    return status, reason_of((status, *rest))


async def test_a_certificate_is_its_owner_and_nobody_comes_without(tmp_path: Path) -> None:
    async with guarded(tmp_path) as running:
        async with calling(running, shows(tmp_path, ACME.issue(uris=[PLANNER]))):
            assert await search(running) == (200, "")
            end = running.ends()[-1]
            assert (end["chain"], end["agent_id"]) == (["nhi:planner"], "nhi:planner")
            assert [(one["kind"], one["issuer"], len(one["key_id"])) for one in end["credential"]] == [
                ("certificate", PLANNER, 43)
            ]
            assert await search(running, bearer(token(running, "user:alice"))) == (200, "")
            assert running.ends()[-1]["chain"] == ["user:alice", "nhi:planner"]
            assert await search(running, bearer(token(running, "nhi:planner"))) == (401, "credential-conflict")
            assert await search(running, {"X-Forwarded-Client-Cert": ENVOY.replace("planner", "writer")}) == (200, "")
            assert running.ends()[-1]["chain"] == ["nhi:planner"]
        async with calling(running, shows(tmp_path, ACME.issue(uris=["spiffe://acme.example/x"]))):
            assert await search(running) == (401, "bad-credential")
            assert await search(running, bearer(token(running, "nhi:planner"))) == (401, "bad-credential")
        async with calling(running, shows(tmp_path, None)):
            assert await search(running) == (401, "unauthenticated")
            assert await search(running, {"X-Forwarded-Client-Cert": ENVOY}) == (401, "unauthenticated")
            assert await search(running, bearer(token(running, "nhi:planner"))) == (200, "")
        counted = await running.metrics()
        assert 'sidecar_auth_failures_total{credential="certificate",reason="bad-credential"} 1.0' in counted
        assert running.upstream.calls() and all(
            "X-Forwarded-Client-Cert" not in sent for sent, _ in running.upstream.seen
        )


UNTRUSTED: list[dict[str, Any]] = [{"by": authority("evil")}, {"by": SERVER}, {"ends_s": -5}, {"usage": SERVER_ONLY}]


async def test_a_certificate_that_no_authority_vouches_for_ends_the_handshake(tmp_path: Path) -> None:
    async with guarded(tmp_path) as running:
        for shape in UNTRUSTED:
            issued = shape.get("by", ACME).issue(uris=[PLANNER], **{k: v for k, v in shape.items() if k != "by"})
            async with calling(running, shows(tmp_path, issued)):
                with pytest.raises((aiohttp.ClientError, OSError)):
                    await search(running)
        assert running.ends() == []


async def test_where_one_is_required_nobody_connects_without(tmp_path: Path) -> None:
    async with guarded(tmp_path, ", client_certificate: required") as running:
        async with calling(running, shows(tmp_path, ACME.issue(uris=[PLANNER]))):
            assert await search(running) == (200, "")
        async with calling(running, shows(tmp_path, None)):
            with pytest.raises((aiohttp.ClientError, OSError)):
                await search(running)


async def test_no_session_of_tls_is_resumed_and_no_older_version_spoken(tmp_path: Path) -> None:
    async with guarded(tmp_path) as running:
        port = running.app.listeners[0].port
        context = shows(tmp_path, ACME.issue(uris=[PLANNER]))

        def handshake(session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool | None]:
            sock = socket.create_connection(("127.0.0.1", port), timeout=5)
            with context.wrap_socket(sock, server_hostname="127.0.0.1", session=session) as wrapped:
                wrapped.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
                while wrapped.recv(65536):
                    pass
                return wrapped.session, wrapped.session_reused

        session, _ = await asyncio.to_thread(handshake, None)
        assert session is None or not session.has_ticket
        _, reused = await asyncio.to_thread(handshake, session)
        assert not reused
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        async with calling(running, context):
            with pytest.raises((aiohttp.ClientError, OSError)):
                await search(running)


async def test_other_authorities_come_into_force_with_the_file(tmp_path: Path) -> None:
    """What the old ones let in is asked anew; a stream of theirs ends; a file that is broken changes nothing."""
    new = authority("new")
    olds, news = ACME.issue(uris=[PLANNER]), new.issue(uris=[PLANNER])
    emitter = Emitter()
    async with guarded(tmp_path, upstream=Upstream(script={"GET": emitter.listen})) as running:
        reload = running.app.reload
        async with calling(running, olds.client(tmp_path, SERVER, "olds")):
            opened = await running.post(request("initialize", INITIALIZE))
            session = {"Mcp-Session-Id": opened[2]["Mcp-Session-Id"], "Accept": "text/event-stream"}
            async with running.http.get(f"{running.url}/mcp/github", headers=session) as stream:
                assert stream.status == 200
                (tmp_path / "ca.pem").write_text("no certificate\n")
                with pytest.raises(SettingsError, match="S124"):
                    await reload("test")
                assert await search(running) == (200, "")
                (tmp_path / "ca.pem").write_text(new.own.pem)
                await reload("test")
                await until(lambda: not running.app.pipeline.forwarder.streams)
                await asyncio.wait_for(stream.read(), 5)
            with pytest.raises((aiohttp.ClientError, OSError)):
                await search(running)
        async with calling(running, news.client(tmp_path, SERVER, "news")):
            assert await search(running) == (200, "")


async def test_a_connection_that_was_idle_is_closed_and_others_are_not(tmp_path: Path) -> None:
    async with guarded(tmp_path) as running:
        both = ACME.own.pem + authority("new").own.pem
        async with calling(running, shows(tmp_path, None)) as anybody:
            await search(anybody)
            first = anybody.http
            assert kept(first) == 1
            (tmp_path / "ca.pem").write_text(both)
            await running.app.reload("test")
            await asyncio.sleep(0.05)
            assert kept(first) == 1, "who showed no certificate is not concerned"
        async with calling(running, shows(tmp_path, ACME.issue(uris=[PLANNER]))):
            assert await search(running) == (200, "")
            (tmp_path / "ca.pem").write_text(ACME.own.pem)
            await running.app.reload("test")
            await until(lambda: kept(running.http) == 0)
            assert await search(running) == (200, ""), "and its owner simply comes again"


async def test_a_call_that_is_being_answered_is_answered_first(tmp_path: Path) -> None:
    came, go = asyncio.Event(), asyncio.Event()

    async def slow(_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        came.set()
        await go.wait()
        return upstream.answer(message)

    upstream = Upstream(script={"tools/call": slow})
    context = shows(tmp_path, ACME.issue(uris=[PLANNER]))
    async with guarded(tmp_path, upstream=upstream) as running, calling(running, context):
        call = asyncio.create_task(search(running))
        await came.wait()
        (tmp_path / "ca.pem").write_text(ACME.own.pem + authority("new").own.pem)
        await running.app.reload("test")
        go.set()
        assert await call == (200, "")
        await until(lambda: kept(running.http) == 0)


def kept(http: aiohttp.ClientSession) -> int:
    """How many connections this client holds open, that are."""
    pools = http.connector._conns.values()
    return sum(1 for pool in pools for protocol, _ in pool if protocol.is_connected())


async def test_a_new_certificate_of_ours_is_shown_in_the_next_handshake(tmp_path: Path) -> None:
    async with guarded(tmp_path) as running:
        renewed = authority("renewed").issue(address="127.0.0.1")
        async with calling(running, shows(tmp_path, None, authority("renewed"))):
            with pytest.raises(aiohttp.ClientError):
                await search(running)
            first = running.app.live.current.tls
            renewed.write(tmp_path, "server")
            await until(lambda: running.app.live.current.tls is not first, 8)
            assert await search(running, bearer(token(running, "nhi:planner"))) == (200, "")


INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


# --- proxies ----------------------------------------------------------------------------------------------------------


async def test_a_named_proxy_tells_who_came_to_it_and_another_does_not(tmp_path: Path) -> None:
    """BL-015: over plain TCP, from an address that is named and from one that is not."""
    for address, answer in (("127.0.0.0/8", (200, "")), ("10.0.0.0/8", (401, "unauthenticated"))):
        settings = f"{CERTIFICATES}  trusted_proxies: [{{address: {address}}}]\n"
        folder = tmp_path / address.partition("/")[0]
        folder.mkdir()
        async with gateway(folder, settings=settings) as running:
            assert await search(running, {"X-Forwarded-Client-Cert": ENVOY}) == answer
            if answer[0] == 200:
                (credential,) = running.ends()[-1]["credential"]
                assert (credential["kind"], credential["issuer"]) == ("certificate", PLANNER)
                assert await search(running, {"X-Forwarded-Client-Cert": "x"}) == (401, "bad-credential")
                assert await search(running) == (401, "unauthenticated")
                named = {"X-Forwarded-Client-Cert": ENVOY, **bearer(token(running, "user:alice"))}
                assert await search(running, named) == (200, "")
                assert running.ends()[-1]["chain"] == ["user:alice", "nhi:planner"]


async def test_a_proxy_behind_mutual_tls_is_known_by_its_certificate(tmp_path: Path) -> None:
    """BL-015: over mutual TLS, from the proxy that is named and from one that is not."""
    gw = "spiffe://acme.example/ns/prod/sa/gw"
    identity = f'{CERTIFICATES}  trusted_proxies: [{{certificate: "{gw}"}}]\n'
    async with guarded(tmp_path, identity=identity) as running:
        async with calling(running, shows(tmp_path, ACME.issue(uris=[gw]))):
            assert await search(running, {"X-Forwarded-Client-Cert": ENVOY}) == (200, "")
            assert running.ends()[-1]["chain"] == ["nhi:planner"]
            assert await search(running) == (401, "unauthenticated")
        async with calling(running, shows(tmp_path, ACME.issue(uris=["spiffe://acme.example/ns/prod/sa/x"]))):
            assert await search(running, {"X-Forwarded-Client-Cert": ENVOY}) == (403, "no-matching-rule")
            assert running.ends()[-1]["chain"] == ["nhi:x"]


# --- files ------------------------------------------------------------------------------------------------------------


BROKEN: dict[str, tuple[str, str]] = {
    "ca.pem": ("", "no usable authorities"),
    "ca.pem ": ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "no usable authorities"),
    "ca.pem  ": (ACME.issue(uris=[PLANNER]).pem, "no certificate in it is an authority's"),
    "server.pem": (ACME.own.pem, "no usable certificate and key"),
    "server.key": ("x", "no usable certificate and key"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_files_that_cannot_be_served_with_are_found_by_the_check(name: str, tmp_path: Path) -> None:
    content, message = BROKEN[name]
    async with guarded(tmp_path):
        pass
    check_files(tmp_path / "sidecar.yaml", {})
    (tmp_path / name.strip()).write_text(content)
    with pytest.raises(SettingsError) as caught:
        check_files(tmp_path / "sidecar.yaml", {})
    (fault,) = caught.value.faults
    assert fault.code == "S124" and fault.message.startswith(message) and fault.hint
