"""Opens a tunnel through an HTTP proxy with CONNECT (RFC 9110, section 9.3.6).

The proxy is not trusted to use HTTP correctly: its answer is bounded, its status must be 200, and nothing may follow it
before the tunnel is used, because it would be mistaken for data of the destination.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final, cast

from sidecar.http.client.egress import Egress, ProxyServer
from sidecar.http.client.failures import ConnectFailed

MAX_HEAD_BYTES: Final = 16 * 1024
_HEAD_END: Final = b"\r\n\r\n"
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: [^\r\n]*)?(?:\r\n|\Z)")


class ProxyRefused(ConnectFailed):
    """The proxy cannot be reached, or opened no tunnel. The text is for the operator."""

    def __init__(self, proxy: ProxyServer, why: str) -> None:
        super().__init__(f"the proxy {proxy.place} {why}")


class TunnelOpening(asyncio.Protocol):
    """The connection to a proxy, until it has answered CONNECT. `opened` is done then; its exception is
    ProxyRefused."""

    def __init__(self, loop: asyncio.AbstractEventLoop, proxy: ProxyServer, target: str) -> None:
        self.opened: asyncio.Future[None] = loop.create_future()
        self._proxy = proxy
        self._target = target
        self._head = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        login = f"Proxy-Authorization: {self._proxy.login}\r\n" if self._proxy.login else ""
        self._transport.write(f"CONNECT {self._target} HTTP/1.1\r\nHost: {self._target}\r\n{login}\r\n".encode("ascii"))

    def data_received(self, data: bytes) -> None:
        if self.opened.done():
            return
        self._head += data
        head, end, rest = self._head.partition(_HEAD_END)
        if len(head) > MAX_HEAD_BYTES:
            self._fail("answered with a head that is too large")
        elif not _STATUS.match(head) and (end or b"\n" in head):
            self._fail("does not speak HTTP/1.1")
        elif end:
            self._judge(head, rest)

    def _judge(self, head: bytes, rest: bytes) -> None:
        found = _STATUS.match(head)
        assert found is not None and self._transport is not None
        status = int(found[1])
        if status == 407:
            self._fail("requires other credentials than it was sent (407)")
        elif status != 200:
            self._fail(f"answered {status} to CONNECT {self._target}")
        elif rest:
            self._fail("sent data before the tunnel was used")
        else:
            self._transport.pause_reading()  # later bytes are the destination's
            self.opened.set_result(None)

    def eof_received(self) -> None:
        self._fail("hung up before it answered")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("hung up before it answered")

    def _fail(self, why: str) -> None:
        if not self.opened.done():
            self.opened.set_exception(ProxyRefused(self._proxy, why))


async def open_tunnel(
    loop: asyncio.AbstractEventLoop, egress: Egress, proxy: ProxyServer, host: str, port: int
) -> asyncio.Transport:
    """Returns a transport to the host, paused, whose protocol the caller replaces. The caller bounds the time. Raises
    ProxyRefused."""
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    origin = proxy.origin
    opening = TunnelOpening(loop, proxy, target)
    try:
        transport, _ = await loop.create_connection(
            lambda: opening,
            origin.host,
            origin.port,
            ssl=egress.tls() if origin.secure else None,
            server_hostname=origin.host if origin.secure else None,
        )
    except (OSError, UnicodeError) as error:
        raise ProxyRefused(proxy, f"cannot be reached: {error}") from error
    try:
        await opening.opened
    except BaseException:
        transport.abort()
        raise
    return transport
