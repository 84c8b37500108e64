"""Connections through a CONNECT proxy: the way there, what is refused, and proxies that lie."""

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import aclosing
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import uvloop

from sidecar.errors import Reason, Refusal, SettingsError
from sidecar.http.client import (
    DIRECT,
    ClientTimeout,
    ConnectFailed,
    Egress,
    EgressError,
    GuardedClient,
    HttpClient,
    egress_from,
    fetch,
    parse_origin,
)
from sidecar.http.client.connection import MAX_BUFFERED_BYTES
from sidecar.http.client.tunnel import MAX_HEAD_BYTES
from sidecar.http.tls import client_tls, read_authorities, trusted_pem
from sidecar.settings.callbacks import CallbackSettings
from sidecar.settings.egress import EgressSettings
from tests.unit.http.client.connect_proxy import ConnectProxy, connect_proxy
from tests.unit.http.client.hostile import OK, Conversation, Script, meeting, response, say, serving, silent
from tests.unit.identity.authority import authority

NAME = "notes.corp.test"  # no resolver knows it
NO_CONTENT = response(b"", status="204 No Content", framing="")


def serves(folder: Path, *names: str, address: str = "") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority("corp").issue(dns=names, address=address).write(folder, "-".join(names) or "ip"))
    return context


async def get(url: str, **options: Any) -> int:
    client = HttpClient(parse_origin(url), **options)
    try:
        with await client.request("GET", "/mcp", (), None, deadline_s=5.0) as answer:
            assert await answer.read(100) == b"{}"
            return answer.status
    finally:
        await client.close()


async def through(tmp_path: Path, *, proxy_tls: bool, upstream_tls: bool) -> ConnectProxy:
    """Two requests on one connection, through a proxy that requires credentials."""
    tls = serves(tmp_path, NAME) if upstream_tls else None
    of_proxy = serves(tmp_path, address="127.0.0.1") if proxy_tls else None
    async with serving(say(OK), tls=tls) as server, connect_proxy(credentials="me:it's", tls=of_proxy) as proxy:
        egress = proxy.egress(credentials="me:it's", authorities=authority("corp").own.pem)
        client = HttpClient(parse_origin(f"{server.scheme}://{NAME}:{server.port}/mcp"), egress=egress)
        for _ in range(2):
            with await client.request("POST", "/mcp", (), b"{}", deadline_s=5.0) as answer:
                assert await answer.read(10) == b"{}"
        await client.close()
        assert proxy.targets == [f"{NAME}:{server.port}"] and server.connections == 1
        return proxy


@pytest.mark.parametrize("proxy_tls", [False, True], ids=["plain proxy", "proxy with TLS"])
@pytest.mark.parametrize("upstream_tls", [False, True], ids=["http", "https"])
def test_a_name_that_only_the_proxy_knows_is_reached(tmp_path: Path, proxy_tls: bool, upstream_tls: bool) -> None:
    """On both event loops, because each has its own TLS in TLS."""
    for loop_factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(through(tmp_path, proxy_tls=proxy_tls, upstream_tls=upstream_tls))


async def slowly_through(tmp_path: Path) -> None:
    """A large answer that is read slowly, through TLS in TLS, and a second one that is given up in its middle."""
    body = bytes(range(256)) * 16 * 1024
    tls, of_proxy = serves(tmp_path, NAME), serves(tmp_path, address="127.0.0.1")
    async with serving(say(response(body)), tls=tls) as server, connect_proxy(tls=of_proxy) as proxy:
        egress = proxy.egress(authorities=authority("corp").own.pem)
        client = HttpClient(parse_origin(f"https://{NAME}:{server.port}/mcp"), egress=egress)
        with await client.request("POST", "/mcp", (), b"{}", deadline_s=20.0) as answer:
            seen = b""
            async with aclosing(answer.chunks(idle_s=5.0)) as chunks:
                async for chunk in chunks:
                    assert answer.buffered <= 2 * MAX_BUFFERED_BYTES
                    seen += chunk
                    await asyncio.sleep(0)
        assert seen == body
        with await client.request("POST", "/mcp", (), b"{}", deadline_s=20.0) as answer:
            assert answer.status == 200
        await server.all_gone()
        assert client.open_connections == 0 and len(proxy.targets) == 1
        await client.close()


def test_a_large_answer_is_read_as_slowly_as_its_reader_wants_through_tls_in_tls(tmp_path: Path) -> None:
    for loop_factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(slowly_through(tmp_path))


async def test_a_certificate_of_no_known_authority_is_refused_behind_the_proxy_too(tmp_path: Path) -> None:
    async with serving(say(OK), tls=serves(tmp_path, NAME)) as server, connect_proxy() as proxy:
        with pytest.raises(ConnectFailed, match="CERTIFICATE_VERIFY_FAILED"):
            await get(f"https://{NAME}:{server.port}/mcp", egress=proxy.egress())
        with pytest.raises(ConnectFailed, match="mismatch"):
            trusting = proxy.egress(authorities=authority("corp").own.pem)
            await get(f"https://other.corp.test:{server.port}/mcp", egress=trusting)
        assert server.requests == []


async def test_the_proxy_itself_must_show_a_certificate_that_is_trusted(tmp_path: Path) -> None:
    async with serving(say(OK)) as server, connect_proxy(tls=serves(tmp_path, address="127.0.0.1")) as proxy:
        with pytest.raises(
            ConnectFailed, match=r"the proxy 127.0.0.1:\d+ cannot be reached: .*CERTIFICATE_VERIFY_FAILED"
        ):
            await get(f"http://{NAME}:{server.port}/mcp", egress=proxy.egress())
        assert proxy.targets == []


@pytest.mark.parametrize("credentials", ["", "me:wrong"])
async def test_without_its_credentials_the_proxy_opens_nothing(credentials: str) -> None:
    async with serving(say(OK)) as server, connect_proxy(credentials="me:right") as proxy:
        with pytest.raises(ConnectFailed, match=r"requires other credentials than it was sent \(407\)"):
            await get(f"http://{NAME}:{server.port}/mcp", egress=proxy.egress(credentials=credentials))
        assert server.connections == 0


def answers(*pieces: bytes) -> Script:
    async def script(conversation: Conversation) -> None:
        await conversation.request()
        for piece in pieces:
            await conversation.send(piece)
        await conversation.hung_up()

    return script


async def hangs_up(conversation: Conversation) -> None:
    await conversation.request()


LIES: Mapping[str, tuple[Script, str]] = {
    "garbage after 200": (
        answers(b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
        "sent data",
    ),
    "no HTTP": (answers(b"SSH-2.0-OpenSSH_9.6\r\n"), "does not speak HTTP/1.1"),
    "another version": (answers(b"HTTP/2.0 200 OK\r\n\r\n"), "does not speak HTTP/1.1"),
    "a redirect": (answers(b"HTTP/1.1 302 Found\r\nLocation: http://10.0.0.1/\r\n\r\n"), "answered 302"),
    "a gateway's error": (answers(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\nno"), "answered 502"),
    "an interim answer": (answers(b"HTTP/1.1 100 Continue\r\n\r\n"), "answered 100"),
    "a huge head": (answers(b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_HEAD_BYTES), "a head that is too large"),
    "a head in drops without end": (answers(*[b"HTTP/1.1 200 OK\r\nX: ", *[b"x" * 4096] * 5]), "too large"),
    "no answer": (hangs_up, "hung up before it answered"),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_proxy_that_opens_no_tunnel_costs_the_request_and_nothing_is_believed(
    lie: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The operator is told why, once in a while."""
    script, why = LIES[lie]
    async with serving(script) as server:
        proxy = ConnectProxy(f"http://127.0.0.1:{server.port}")
        client = HttpClient(parse_origin(f"http://{NAME}/mcp"), egress=proxy.egress())
        for _ in range(2):
            with pytest.raises(ConnectFailed, match=why):
                await client.request("POST", "/mcp", (), b"{}", deadline_s=5.0)
        assert (client.open_connections, len(server.requests)) == (0, 2)
        [told] = [one for one in caplog.records if one.message == "no way through the proxy"]
        assert told.__dict__["to"] == NAME and why in told.__dict__["error"]
        await client.close()
        await server.all_gone()


async def test_what_the_proxy_says_after_its_answer_is_no_answer_of_the_destination() -> None:
    """An early byte, sent apart from the head, breaks the exchange: it is never taken for the response."""

    async def early(conversation: Conversation) -> None:
        await conversation.request()
        await conversation.send(b"HTTP/1.1 200 OK\r\n\r\n")
        await conversation.send(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison")
        await conversation.hung_up()

    async with serving(early) as server:
        proxy = ConnectProxy(f"http://127.0.0.1:{server.port}")
        client = HttpClient(parse_origin(f"https://{NAME}/mcp"), egress=proxy.egress())
        with pytest.raises(EgressError):
            await client.request("POST", "/mcp", (), b"{}", deadline_s=5.0)
        assert len(server.requests) == 1
        await client.close()


async def test_a_slow_proxy_is_given_up_at_the_deadline() -> None:
    async with serving(silent) as server:
        egress = ConnectProxy(f"http://127.0.0.1:{server.port}").egress()
        for options, kind in (({"connect_timeout_s": 0.05}, ConnectFailed), ({}, ClientTimeout)):
            client = HttpClient(parse_origin(f"http://{NAME}/mcp"), egress=egress, **options)
            with pytest.raises(kind, match=r"connecting took too long through the proxy 127.0.0.1:\d+"):
                await client.request("POST", "/mcp", (), b"{}", deadline_s=5.0 if options else 0.05)
            assert client.open_connections == 0
            await client.close()
        await server.all_gone()


async def test_a_request_that_is_given_up_closes_the_connection_to_the_proxy() -> None:
    async with serving(silent) as server:
        proxy = ConnectProxy(f"http://127.0.0.1:{server.port}")
        client = HttpClient(parse_origin(f"http://{NAME}/mcp"), egress=proxy.egress())
        asking = asyncio.create_task(client.request("POST", "/mcp", (), b"{}", deadline_s=5.0))
        async with asyncio.timeout(2):
            while not server.requests:
                await asyncio.sleep(0.005)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await server.all_gone()
        assert client.open_connections == 0
        await client.close()


async def test_loopback_never_goes_through_a_proxy() -> None:
    """There it would be another machine."""
    async with serving(say(OK)) as server:
        nowhere = ConnectProxy("http://127.0.0.1:1").egress()
        for host in ("127.0.0.1", "localhost"):
            assert await get(f"http://{host}:{server.port}/mcp", egress=nowhere) == 200


async def test_documents_are_fetched_through_the_proxy_under_the_same_rule() -> None:
    async with connect_proxy() as proxy, serving(say(OK)) as server:
        with pytest.raises(EgressError, match="only https"):
            await fetch(f"http://{NAME}:{server.port}/keys", egress=proxy.egress())
        assert proxy.targets == []
        assert await fetch(f"http://{NAME}:{server.port}/keys", egress=proxy.egress(), operators=True) == b"{}"
        assert proxy.targets == [f"{NAME}:{server.port}"]


def guard(proxy: ConnectProxy, *addresses: str, resolves: bool = False, **given: Any) -> GuardedClient:
    chosen = {"allow": ["*:*"], "schemes": ["http"], "timeout_s": 2.0, **given}
    settings = CallbackSettings.model_validate(chosen)
    egress = proxy.egress(resolves_callbacks=resolves)

    async def resolve(host: str, port: int) -> tuple[str, ...]:
        if not addresses:
            raise OSError("no such name")
        return addresses

    return GuardedClient(lambda: settings, resolve, lambda: egress)


async def test_a_callback_goes_to_the_address_that_was_checked_never_to_a_name_that_the_proxy_looks_up() -> None:
    async with connect_proxy() as proxy, serving(say(NO_CONTENT)) as server:
        url = f"http://hooks.acme.example:{server.port}/done"
        assert (await guard(proxy, "93.184.216.34").post(url, (), b"{}")).status == 204
        assert proxy.targets == [f"93.184.216.34:{server.port}"]
        assert f"Host: hooks.acme.example:{server.port}".encode() in server.requests[0]


REFUSED: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    ("hooks.acme.example", ("10.0.0.7",), {}),
    ("hooks.acme.example", ("93.184.216.34", "169.254.169.254"), {}),
    ("hooks.acme.example", ("168.63.129.16",), {}),
    ("hooks.acme.example", (), {}),  # a name that only the proxy can look up
    ("169.254.169.254", (), {"resolves": True}),
    ("10.0.0.7", (), {"resolves": True}),
    ("elsewhere.example", (), {"resolves": True, "allow": ["*.acme.example:*"]}),
]


@pytest.mark.parametrize(("host", "addresses", "given"), REFUSED)
async def test_what_address_rules_refuse_is_not_asked_of_the_proxy(
    host: str, addresses: tuple[str, ...], given: dict[str, Any]
) -> None:
    async with connect_proxy() as proxy:
        client = guard(proxy, *addresses, **given)
        with pytest.raises(EgressError):
            await client.post(f"http://{host}:8080/", (), b"{}")
        with pytest.raises(Refusal) as refused:
            await client.check(f"http://{host}:8080/", "user:alice")
        assert refused.value.reason is Reason.MALFORMED_CALL and proxy.targets == []


async def test_names_of_callbacks_are_left_to_the_proxy_only_where_the_operator_says_so() -> None:
    async with connect_proxy() as proxy, serving(say(NO_CONTENT)) as server:
        url = f"http://hooks.acme.example:{server.port}/done"
        client = guard(proxy, resolves=True)
        await client.check(url, "user:alice")
        assert (await client.post(url, (), b"{}")).status == 204
        assert proxy.targets == [f"hooks.acme.example:{server.port}"]
        # A destination without the proxy is still looked up here.
        settings = CallbackSettings.model_validate({"allow": ["*:*"], "schemes": ["http"]})
        direct = egress_from(
            EgressSettings.model_validate(
                {"proxy": {"url": proxy.url, "no_proxy": ["acme.example"], "resolves_callbacks": True}}
            ),
            {},
        )

        async def private(host: str, port: int) -> tuple[str, ...]:
            return ("10.0.0.7",)

        with pytest.raises(Refusal):
            await GuardedClient(lambda: settings, private, lambda: direct).check(url, "user:alice")


def proxied(url: str, environ: Mapping[str, str]) -> str:
    """The proxy of a destination, "" for none."""
    proxy = egress_from(EgressSettings(), environ).proxy_for(parse_origin(url))
    return "" if proxy is None else proxy.url_with_login


def test_variables_name_proxies_as_curl_reads_them() -> None:
    assert proxied("https://a.example/", {"HTTPS_PROXY": "http://p:3128"}) == "http://p:3128"
    assert proxied("https://a.example/", {"https_proxy": "http://q:1", "HTTPS_PROXY": "http://p:2"}) == "http://q:1"
    assert proxied("https://a.example/", {"https_proxy": "", "HTTPS_PROXY": "p:2"}) == "http://p:2"
    assert proxied("https://a.example/", {"HTTP_PROXY": "http://p:2"}) == ""
    assert proxied("http://a.example/", {"HTTP_PROXY": "http://p:2"}) == "http://p:2"
    assert proxied("http://a.example/", {"HTTP_PROXY": "http://p:2", "REQUEST_METHOD": "GET"}) == ""
    assert proxied("http://a.example/", {"ALL_PROXY": "https://p:2", "HTTPS_PROXY": "http://q:1"}) == "https://p:2"
    assert proxied("https://a.example/", {"HTTPS_PROXY": "http://me:p%40ss@p:3128/"}) == "http://me:p%40ss@p:3128"
    assert proxied("https://127.0.0.1/", {"HTTPS_PROXY": "http://p:3128"}) == ""


NO_PROXY = {
    "corp.test": (
        ["https://corp.test/", "https://a.b.corp.test/"],
        ["https://notcorp.test/", "https://corp.test.evil/"],
    ),
    ".corp.test": (["https://corp.test/", "https://a.corp.test/"], ["https://xcorp.test/"]),
    "*.corp.test": (["https://a.corp.test/"], ["https://xcorp.test/"]),
    "Corp.Test.": (["https://a.corp.test/"], ["https://corp.tes/"]),
    "*": (["https://a.example/", "http://10.0.0.1/"], []),
    "10.0.0.0/8": (["http://10.9.8.7/"], ["http://11.0.0.1/", "http://10.example/"]),
    "192.0.2.7": (["http://192.0.2.7:99/"], ["http://192.0.2.8/"]),
    "fd00::/8": (["http://[fd12::1]/"], ["http://[2001:db8::1]/"]),
    "[2001:db8::1]:8443": (["https://[2001:db8::1]:8443/"], ["https://[2001:db8::1]/"]),
    "a.test:8443": (["https://a.test:8443/", "https://x.a.test:8443/"], ["https://a.test/"]),
    "a.test, b.test c.test": (["https://a.test/", "https://b.test/", "https://c.test/"], ["https://d.test/"]),
    ",, ": ([], ["https://a.test/"]),
}


@pytest.mark.parametrize("said", NO_PROXY)
def test_every_form_of_no_proxy(said: str) -> None:
    environ = {"ALL_PROXY": "http://p:3128", "NO_PROXY": said}
    direct, by_proxy = NO_PROXY[said]
    assert [url for url in direct if proxied(url, environ)] == []
    assert [url for url in by_proxy if not proxied(url, environ)] == []


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"HTTPS_PROXY": "socks5://p:1080"}, "env HTTPS_PROXY: error[S137]: the scheme of this URL is not supported"),
        ({"https_proxy": "http://p"}, "env https_proxy: error[S137]: the proxy's port is missing"),
        (
            {"ALL_PROXY": "http://p:1/path"},
            "env ALL_PROXY: error[S137]: a proxy URL consists of a scheme, a host and a port",
        ),
        ({"HTTPS_PROXY": "http://[::1"}, "env HTTPS_PROXY: error[S137]: this is not a URL"),
        ({"ALL_PROXY": "http://p:1", "no_proxy": "a.test,b/c"}, "env no_proxy: error[S137]: this is not a host"),
        ({"ALL_PROXY": "http://p:1", "no_proxy": "a.test:99999"}, "env no_proxy: error[S137]: a port is at most"),
        ({"SSL_CERT_FILE": "/nowhere/ca.pem"}, "env SSL_CERT_FILE: error[S137]: /nowhere/ca.pem is not a file"),
    ],
)
def test_a_variable_that_cannot_be_followed_is_a_fault_that_names_it(environ: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        egress_from(EgressSettings(), environ)
    assert str(refused.value.faults[0]).startswith(message)


def test_the_settings_come_before_the_variables(tmp_path: Path) -> None:
    secret = tmp_path / "proxy.secret"
    secret.write_text("me:pass word\n")
    secret.chmod(0o600)
    given = {
        "url": "https://proxy.corp.test:3128",
        "credentials_path": str(secret),
        "no_proxy": ["10.0.0.0/8", "b.test"],
    }
    environ = {"HTTPS_PROXY": "http://other:1", "NO_PROXY": "*"}
    egress = egress_from(EgressSettings.model_validate({"proxy": given}), environ)
    proxy = egress.proxy_for(parse_origin("https://a.test/"))
    assert proxy is not None and proxy.url_with_login == "https://me:pass%20word@proxy.corp.test:3128"
    assert proxy.login == "Basic bWU6cGFzcyB3b3Jk" and "pass" not in repr(egress)
    assert egress.proxy_for(parse_origin("https://b.test/")) is None
    assert [one.network for one in egress.direct] == [ip_network("10.0.0.0/8"), None]
    assert egress_from(EgressSettings(environment=False), environ) == DIRECT


def test_credentials_without_a_colon_are_none(tmp_path: Path) -> None:
    secret = tmp_path / "proxy.secret"
    secret.write_text("token\n")
    secret.chmod(0o600)
    given = EgressSettings.model_validate({"proxy": {"url": "http://p:1", "credentials_path": str(secret)}})
    with pytest.raises(SettingsError, match="there is no colon"):
        egress_from(given, {})


async def test_without_a_proxy_nothing_changes() -> None:
    async with meeting(say(OK), egress=DIRECT) as (server, client):
        with await client.request("GET", "/mcp", (), None, deadline_s=5.0) as answer:
            assert answer.status == 200
        assert server.connections == 1


async def test_the_systems_authorities_are_those_of_ssl_cert_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And for clients outside Python's ssl."""
    corp = tmp_path / "corp.pem"
    corp.write_text(authority("corp").own.pem)
    tls = serves(tmp_path, "localhost")
    async with serving(say(OK), tls=tls) as server:
        url = f"https://localhost:{server.port}/mcp"
        for file, trusted in ((corp, True), (None, False)):
            client_tls.cache_clear(), trusted_pem.cache_clear()
            if file is None:
                monkeypatch.undo()
            else:
                monkeypatch.setenv("SSL_CERT_FILE", str(file))
            assert (authority("corp").own.pem in trusted_pem()) is trusted
            if trusted:
                assert await get(url) == 200
            else:
                with pytest.raises(ConnectFailed, match="CERTIFICATE_VERIFY_FAILED"):
                    await get(url)


def test_a_system_without_a_file_of_authorities_has_those_of_its_folder_and_the_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For clients outside Python's ssl."""
    ours, theirs = authority("corp").own.pem, authority("theirs").own.pem
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing"))
    monkeypatch.setenv("SSL_CERT_DIR", f"{tmp_path / 'missing'}:{tmp_path / 'certs'}")
    trusted_pem.cache_clear()
    assert (trusted_pem(), trusted_pem(ours)) == ("", ours)
    (tmp_path / "certs").mkdir()
    for name, content in (("0a1b2c3d.0", theirs), ("theirs.pem", theirs), ("4e5f6a7b.1", "not a certificate")):
        (tmp_path / "certs" / name).write_text(content)
    trusted_pem.cache_clear()
    assert (trusted_pem(), trusted_pem(ours)) == (theirs, theirs + ours)
    monkeypatch.undo(), trusted_pem.cache_clear()


def test_authorities_of_two_files_without_a_line_end_are_trusted_together(tmp_path: Path) -> None:
    pems = []
    for name in ("corp", "theirs"):
        file = tmp_path / f"{name}.pem"
        file.write_text(authority(name).own.pem.strip())
        pems.append(read_authorities(file))
    ours, theirs = pems
    trusted = Egress(authorities=ours).tls(beside=theirs).get_ca_certs(binary_form=True)
    assert {ssl.PEM_cert_to_DER_cert(pem) for pem in pems} <= set(trusted)


async def test_what_a_destination_trusts_is_beside_or_instead_of_the_rest(tmp_path: Path) -> None:
    ours, theirs = authority("corp").own.pem, authority("theirs").own.pem
    tls = serves(tmp_path, "localhost")
    async with serving(say(OK), tls=tls) as server:
        url = f"https://localhost:{server.port}/mcp"
        everywhere = Egress(authorities=ours)
        for context in (
            everywhere.tls(),
            everywhere.tls(beside=theirs),
            DIRECT.tls(beside=ours),
            DIRECT.tls(instead=ours),
        ):
            assert await get(url, tls=context) == 200
        for context in (DIRECT.tls(), everywhere.tls(instead=theirs), DIRECT.tls(beside=theirs)):
            with pytest.raises(ConnectFailed, match="CERTIFICATE_VERIFY_FAILED"):
                await get(url, tls=context)
