"""Enforcement points ask at listeners of their own: a Unix socket, and TLS with client certificates."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.flow.enforcement import KEY, asked_world, decisions
from tests.flow.test_mutual_tls import ACME, SERVER, shows
from tests.flow.world import PATIENCE_S, World
from tests.unit.identity.authority import authority

QUESTION = {
    "subject": {"type": "nhi", "id": "planner"},
    "action": {"name": "tools/call"},
    "resource": {"type": "tool", "id": "github/search_code", "properties": {"arguments": {"repo": "acme/site"}}},
}
EDGE = "spiffe://acme.example/edge"


async def evaluation(url: str, http: aiohttp.ClientSession, headers: Mapping[str, str] = {}) -> tuple[int, Any]:
    async with http.post(f"{url}/access/v1/evaluation", json=QUESTION, headers=headers) as response:
        return response.status, (await response.json()).get("decision")


async def test_a_unix_socket_is_a_credential_unless_another_is_shown(tmp_path: Path) -> None:
    async with asked_world(tmp_path, f'{{listen: "unix:{tmp_path}/pdp.sock"}}') as (running, _):
        connector = aiohttp.UnixConnector(f"{tmp_path}/pdp.sock")
        async with aiohttp.ClientSession(connector=connector) as http:
            assert await evaluation("http://localhost", http) == (200, True)
            assert await evaluation("http://localhost", http, KEY) == (200, True)
            assert await evaluation("http://localhost", http, {"X-PDP-Key": "x" * 48}) == (401, None)
        assert [record["enforcement_point"] for record in decisions(running)] == ["local", "edge"]
        assert (tmp_path / "pdp.sock").stat().st_mode & 0o777 == 0o600
        assert await evaluation(running.admin_url, running.http) == (401, None)


@asynccontextmanager
async def at_tls(running: World, folder: Path, *, known: bool) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    """A client of the listener of decisions, with a certificate of ACME's or with none."""
    context = shows(folder, ACME.issue(uris=[EDGE]) if known else None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as http:
        yield f"https://127.0.0.1:{running.app.listeners[-1].port}", http


async def test_a_client_certificate_is_a_credential_as_long_as_its_authority_is_trusted(tmp_path: Path) -> None:
    SERVER.issue(address="127.0.0.1").write(tmp_path, "server")
    (tmp_path / "ca.pem").write_text(ACME.own.pem)
    tls = "{cert_path: server.pem, key_path: server.key, client_ca_path: ca.pem}"
    async with asked_world(tmp_path, f'{{listen: "127.0.0.1:0", tls: {tls}}}') as (running, _):
        async with at_tls(running, tmp_path, known=False) as (url, http):
            assert await evaluation(url, http) == (401, None)
            assert await evaluation(url, http, KEY) == (200, True)
        async with at_tls(running, tmp_path, known=True) as (url, http):
            assert await evaluation(url, http) == (200, True)
            assert [record["enforcement_point"] for record in decisions(running)] == ["edge", EDGE]
            port, context = running.app.listeners[-1].port, shows(tmp_path, ACME.issue(uris=[EDGE]))
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            (tmp_path / "ca.pem").write_text(authority("other").own.pem)
            await running.app.reload("test")
            async with asyncio.timeout(PATIENCE_S):
                assert await reader.read() == b"", "a connection of before is closed"
            writer.close()
            with pytest.raises((aiohttp.ClientError, OSError)):
                await evaluation(url, http)


async def test_settings_of_decisions_are_reloaded_but_for_their_listener(tmp_path: Path) -> None:
    async with asked_world(tmp_path, "{charges: never}") as (running, _):
        point = running.folder / "sidecar.yaml"
        point.write_text(point.read_text().replace("charges: never", 'charges: always, listen: "127.0.0.1:0"'))
        await running.app.reload("test")
        reloaded = running.app.live.current.settings.pdp
        assert reloaded is not None and (reloaded.charges, reloaded.listen) == ("always", None)
        assert running.app.live.current.waiting == ("pdp.listen",)


async def test_bytes_that_are_badly_framed_are_refused_without_a_bug(tmp_path: Path, caplog: Any) -> None:
    async with asked_world(tmp_path) as (running, _):
        port = int(running.admin_url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /access/v1/evaluation HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"400"
        writer.close()
        assert not [record for record in caplog.records if record.levelname == "ERROR"]
