"""A pool of connections to one origin.

A request takes the idle connection used last that is certainly alive; otherwise a new one or, if the maximum is in use,
the next one that becomes free. Idle connections are few and short-lived: many servers close after 5 s of silence, and a
request sent to a closing connection is lost, because requests are never retried.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import ssl
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from sidecar.http.client.connection import ClientConnection, ClientResponse
from sidecar.http.client.egress import DIRECT, Egress, ProxyServer
from sidecar.http.client.failures import ClientTimeout, ConnectFailed, QueueFull
from sidecar.http.client.http1 import RequestForm, ResponseHead
from sidecar.http.client.origin import TargetOrigin
from sidecar.http.client.send_queue import SendQueue
from sidecar.http.client.tunnel import ProxyRefused, open_tunnel

MAX_IDLE: Final = 64
MAX_IDLE_S: Final = 4.0
MAX_WAITING: Final = 10_000
# local errors, not the origin's
NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
TELL_EVERY_S: Final = 10.0
_SWEEP_S: Final = 1.0
_HINT = re.compile(r"(?:^|[,\s;])timeout\s*=\s*([0-9]{1,6})")


log = logging.getLogger("sidecar.http.client")


class HttpClient:
    """A small HTTP/1.1 client of one origin: no cookies, redirects, inflating or retries.

    At `max_connections`, streams included, up to `max_waiting` requests wait, each within its deadline. Connections
    leave by `egress`; `tls` replaces its trust. With `address`, they are made to that address; TLS and `Host` still
    name the origin. Times are in seconds."""

    def __init__(
        self,
        origin: TargetOrigin,
        *,
        address: str = "",
        egress: Egress = DIRECT,
        connect_timeout_s: float = 5.0,
        max_idle: int = MAX_IDLE,
        max_idle_s: float = MAX_IDLE_S,
        max_connections: int = 4096,
        max_waiting: int = MAX_WAITING,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.origin = origin
        self._address = address
        self._egress = egress
        self._proxy = egress.proxy_for(origin)
        self.connect_timeout_s = connect_timeout_s
        self._max_idle = max_idle
        self._max_idle_s = max_idle_s
        self._tls = tls
        self._line = SendQueue(max_connections, max_waiting)
        self._open: set[ClientConnection] = set()  # those that are not idle hold a place in the queue
        self._idle: list[ClientConnection] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._tell_at = 0.0

    @property
    def open_connections(self) -> int:
        return len(self._open)

    async def request(
        self, verb: str, path: str, headers: Sequence[tuple[str, str]], body: bytes | None, *, deadline_s: float
    ) -> ClientResponse:
        """Sends one request, and returns its response when the head has arrived.

        `deadline_s` from now bounds waiting, connecting, the head, and `read()`; `chunks()` has its own. Raises
        EgressError; InvalidRequest, QueueFull, NoCapacity and ConnectFailed mean that nothing was sent."""
        form = RequestForm(verb, path, self.origin.host_header, headers)
        return await self.send(form.message((), body), deadline_s=deadline_s)

    def send(self, message: bytes, *, deadline_s: float) -> Coroutine[Any, Any, ClientResponse]:
        """Sends a request that is already encoded by a `RequestForm` for this origin. Otherwise like `request`, but
        await it at once: the call itself reserves an idle connection, and may raise."""
        if deadline_s <= 0:
            raise ClientTimeout("no time is left")
        idle = self._idle
        if not idle:
            loop = asyncio.get_running_loop()
            return self._send_when_free(message, loop.time() + deadline_s, loop)
        connection = idle[-1]  # the most recently used first, so that the others are closed when they are idle
        loop = connection.loop
        now = loop.time()
        if not connection.is_usable(now) or not self._line.step_in():
            return self._send_when_free(message, now + deadline_s, loop)
        idle.pop()
        return connection.exchange(message, now + deadline_s)

    async def _send_when_free(self, message: bytes, until: float, loop: asyncio.AbstractEventLoop) -> ClientResponse:
        await asyncio.sleep(0)  # then a connection whose answer has just arrived is idle
        if not self._line.step_in():
            await self._line.wait(until)
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable(loop.time()):
                return await connection.exchange(message, until)
            self._open.discard(connection)
            connection.close()
        return await (await self._connect(until, loop)).exchange(message, until)

    async def close(self) -> None:
        """Closes every connection, also those in use; waiting requests fail."""
        self._max_idle = 0
        self._line.close()
        for connection in [*self._open]:
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        await asyncio.sleep(0)  # transports close their sockets in the next iteration of the loop

    async def _connect(self, until: float, loop: asyncio.AbstractEventLoop) -> ClientConnection:
        origin = self.origin
        connection = ClientConnection(loop, self._free, self._lost)
        self._open.add(connection)
        limit = min(until, loop.time() + self.connect_timeout_s)
        if origin.secure and self._tls is None:
            self._tls = self._egress.tls()
        try:
            async with asyncio.timeout_at(limit):
                if self._proxy is not None:
                    await self._connect_through(self._proxy, connection, loop)
                else:
                    await loop.create_connection(
                        lambda: connection,
                        self._address or origin.host,
                        origin.port,
                        ssl=self._tls if origin.secure else None,
                        server_hostname=origin.host if origin.secure else None,
                    )
        except TimeoutError:
            self._lost(connection)
            way = "" if self._proxy is None else f" through the proxy {self._proxy.place}"
            raise (ClientTimeout if limit == until else ConnectFailed)(f"connecting took too long{way}") from None
        except (OSError, UnicodeError) as error:  # UnicodeError: the name cannot be encoded by IDNA
            self._lost(connection)
            if isinstance(error, OSError) and error.errno in NO_DESCRIPTOR:
                raise QueueFull("the system has no free file descriptor") from error
            raise ConnectFailed(f"no connection: {error}") from error
        except ConnectFailed as failed:
            self._lost(connection)
            if isinstance(failed, ProxyRefused) and loop.time() >= self._tell_at:
                self._tell_at = loop.time() + TELL_EVERY_S
                log.warning("no way through the proxy", extra={"to": origin.host_header, "error": str(failed)})
            raise
        except asyncio.CancelledError:
            connection.abort()
            self._lost(connection)
            raise
        return connection

    async def _connect_through(
        self, proxy: ProxyServer, connection: ClientConnection, loop: asyncio.AbstractEventLoop
    ) -> None:
        origin = self.origin
        transport = await open_tunnel(loop, self._egress, proxy, self._address or origin.host, origin.port)
        if not origin.secure or self._tls is None:
            transport.set_protocol(connection)
            connection.connection_made(transport)
            transport.resume_reading()
            return
        inner = await loop.start_tls(transport, connection, self._tls, server_hostname=origin.host)
        if inner is None:
            raise ConnectFailed("no connection")
        connection.connection_made(inner)

    def _free(self, connection: ClientConnection, head: ResponseHead) -> None:
        loop, seconds = connection.loop, self._max_idle_s
        if "keep-alive" in head.headers and (hint := _HINT.search(head.headers["keep-alive"].lower())):
            seconds = min(seconds, int(hint[1]) - 1.0)
        if seconds <= 0 or len(self._idle) >= self._max_idle:
            connection.close()
            return
        connection.idle_until = loop.time() + seconds
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(_SWEEP_S, self._sweep)
        self._line.step_out()

    def _lost(self, connection: ClientConnection) -> None:
        if connection not in self._open:
            return
        self._open.remove(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        else:
            self._line.step_out()

    def _sweep(self) -> None:
        """Closes connections that were idle too long, even without new requests."""
        self._sweeper = None
        loop = asyncio.get_running_loop()
        for connection in [one for one in self._idle if one.idle_until <= loop.time()]:
            connection.close()
        if self._idle:
            self._sweeper = loop.call_later(_SWEEP_S, self._sweep)
