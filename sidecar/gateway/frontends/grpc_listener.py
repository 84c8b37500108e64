"""Serves gRPC: the parts that the services of one listener share.

grpc has no deadline for a missing message or a stalled reader, so messages are read and written here, each within a
deadline. Concurrent calls and the size of messages are bounded here too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import grpc
from grpc import aio

from sidecar.errors import Reason, Refusal
from sidecar.gateway.frontends.grpc_connections import GrpcConnections, Peer
from sidecar.protocols.jsonrpc import malformed

READING_S: Final = 30.0  # the same as for an HTTP reader (http/server/listeners.py)
READ_BYTES_PER_S: Final = 64 * 1024
PING_S: Final = 30.0
CONFIRM_S: Final = 2.0
STREAMS: Final = 100  # of one connection; the minimum that HTTP/2 recommends


class WriterStuck(Refusal):
    """The caller does not read the messages sent to it."""


@dataclass(slots=True, kw_only=True, eq=False)
class GrpcService(grpc.GenericRpcHandler):
    """A service at one port. `patience_s` is the deadline of a message of at most `max_bytes`, and `at_once` the
    maximum number of concurrent calls at the port. `turned_away` is called for each call beyond it, because grpc's own
    limit leaves no trace. `guests` are the open connections of the port."""

    patience_s: float
    max_bytes: int
    at_once: int
    turned_away: Callable[[str], None]
    guests: GrpcConnections

    def handler(
        self, called: Callable[[AsyncIterator[bytes], Any], Awaitable[None]]
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Returns the handler of the method that `called` answers. All four kinds of method are the same on the
        wire."""

        async def counted(messages: AsyncIterator[bytes], context: Any) -> None:
            peer = peer_at(context)
            if self.guests.calls >= self.at_once:
                self.turned_away(peer[0])
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls at once")
            with self.guests.answering(peer):
                await called(messages, context)

        return grpc.stream_stream_rpc_method_handler(counted)

    async def message(self, messages: AsyncIterator[bytes]) -> bytes:
        """Returns the only message of a call; later messages are not read. Raises Refusal: MALFORMED_CALL for a missing
        or late message, TOO_LARGE."""
        try:
            async with asyncio.timeout(self.patience_s):
                message = await anext(aiter(messages))
        except TimeoutError:
            raise malformed("the message did not arrive in time") from None
        except StopAsyncIteration:
            raise malformed("there is no message") from None
        if len(message) > self.max_bytes:
            raise Refusal(Reason.TOO_LARGE, f"at most {self.max_bytes} bytes")
        return message


async def send(context: Any, message: bytes) -> None:
    """Sends one message. Raises Refusal(CALLER_GONE) if the caller disconnected, and WriterStuck if it does not
    read."""
    try:
        async with asyncio.timeout(READING_S + len(message) / READ_BYTES_PER_S):
            await context.write(message)
    except TimeoutError:
        raise WriterStuck(Reason.CALLER_GONE) from None
    except (aio.BaseError, grpc.RpcError, RuntimeError):  # the caller disconnected before or during this message
        raise Refusal(Reason.CALLER_GONE) from None


def peer_at(context: Any) -> Peer:
    """Returns address and port of the peer of a call."""
    peer = unquote(context.peer())  # the brackets of an IPv6 address arrive percent-encoded
    host, _, port = peer.partition(":")[2].rpartition(":")
    return host.strip("[]") or "local", int(port) if port.isdecimal() else 0


async def serve(
    address: str,
    services: Sequence[GrpcService],
    *,
    credentials: grpc.ServerCredentials | None,
    greeting_s: float,
    idle_s: float,
    shares_port: bool = False,
) -> tuple[aio.Server, int]:
    """Begins to listen. Returns the server and its port. A new connection has `greeting_s` to begin HTTP/2, and may be
    idle for `idle_s`. With `shares_port` other processes of this user may listen there too. Raises OSError."""
    server = aio.server(
        handlers=services,
        options=[
            ("grpc.max_receive_message_length", max(service.max_bytes for service in services)),
            ("grpc.so_reuseport", int(shares_port)),
            ("grpc.max_concurrent_streams", STREAMS),
            # Disable the dynamic table: 4 KiB of headers that only reference table entries could expand to 16 MiB. A
            # client that does not acknowledge the setting in time has not received it.
            ("grpc.http2.hpack_table_size.decoder", 0),
            ("grpc.http2.settings_timeout", int(CONFIRM_S * 1000)),
            ("grpc.server_handshake_timeout_ms", int(greeting_s * 1000)),
            ("grpc.max_connection_idle_ms", int(idle_s * 1000)),
            # Detects peers that vanished without closing, and frees their resources.
            ("grpc.keepalive_time_ms", int(PING_S * 1000)),
            ("grpc.http2.ping_timeout_ms", int(PING_S * 1000)),
        ],
    )
    try:
        port = (
            server.add_secure_port(address, credentials)
            if credentials is not None
            else server.add_insecure_port(address)
        )
    except RuntimeError as error:
        raise OSError(str(error)) from None
    await server.start()
    for service in services:
        service.guests.port = port
    return server, port


def credentials_from(current: Callable[[], tuple[bytes, bytes]]) -> grpc.ServerCredentials:
    """Returns the listener's credentials. Their key and certificate (PEM) are read at each handshake."""

    def now() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([current()])

    return grpc.dynamic_ssl_server_credentials(now(), now)
