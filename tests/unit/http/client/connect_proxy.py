"""A small CONNECT proxy, which alone knows the names of the tests: every name leads to this machine."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from sidecar.http.client.egress import Egress, ProxyServer
from sidecar.http.client.origin import parse_origin


@dataclass
class ConnectProxy:
    """A running proxy, what it was asked for, and with which credentials."""

    url: str = ""
    targets: list[str] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)

    def egress(self, **more: object) -> Egress:
        """The settings under which everything leaves through it."""
        server = ProxyServer(self.url, parse_origin(self.url), str(more.pop("credentials", "")))
        return Egress(dict.fromkeys(("http", "https"), server), **more)  # type: ignore[arg-type]


@asynccontextmanager
async def connect_proxy(*, credentials: str = "", tls: ssl.SSLContext | None = None) -> AsyncIterator[ConnectProxy]:
    """Serves CONNECT until the block ends; with `credentials`, only to those who show them."""
    proxy = ConnectProxy()
    wanted = f"Basic {b64encode(credentials.encode()).decode()}" if credentials else ""
    tasks: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        out: asyncio.StreamWriter | None = None
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            verb, target, _ = head.split(" ", 2)
            lines = dict(
                line.lower().split(": ", 1) for line in head.split("\r\n")[1:-2] if "authorization" not in line
            )
            login = next((line[21:] for line in head.split("\r\n") if line.startswith("Proxy-Authorization: ")), "")
            assert (verb, lines["host"]) == ("CONNECT", target.lower())
            proxy.targets.append(target)
            proxy.logins.append(login)
            if login != wanted:
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n\r\n")
                await writer.drain()
                writer.close()
                await writer.wait_closed()
                return
            there, out = await asyncio.open_connection("127.0.0.1", int(target.rpartition(":")[2]))
            writer.write(b"HTTP/1.1 200 Connection established\r\nVia: 1.1 test\r\n\r\n")
            with suppress(OSError):
                await asyncio.gather(carry(reader, out), carry(there, writer))
        except (asyncio.IncompleteReadError, asyncio.CancelledError, OSError):
            pass
        finally:
            tasks.discard(task)
            writer.transport.abort()
            if out is not None:
                out.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    proxy.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
