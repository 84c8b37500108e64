"""Finds the server that counts: a single node, Sentinel or Cluster.

    SingleNode  the server named in the URL
    Sentinels   the server that the Sentinels name as primary, if it confirms that role itself
    Cluster     the node that owns the sidecar's slot: all keys share one hash tag, so one node counts

Every queried node has its own deadline, and a node that did not answer is queried last the next time. Passwords and
certificates are read for each connection, so they can be rotated.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from redis.asyncio.connection import (
    AbstractConnection as RedisConnection,
    Connection as TcpConnection,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import RedisError

from sidecar.errors import SettingsError, fault_in
from sidecar.http.tls import MAX_CA_BYTES
from sidecar.limits.redis_pipeline import pack
from sidecar.settings.reading import read_bounded
from sidecar.settings.secrets import check_private, read_secret
from sidecar.settings.store import StorePlace, StoreSettings

PREFIX = "{sidecar}:"
"""One hash tag: a Lua script may touch only one Cluster slot, so all limits of a deployment share one."""
SLOT = key_slot(PREFIX.encode())
CONNECT_S = 1.0
ANSWER_S = 0.3
"""The time limit for a query to a node about other nodes."""
DEADLINES = 3
"""These time limits last at least so many of the store's own time limits, for a distant store."""
MAX_KNOWN = 64

Address = tuple[str, int]
Opener = Callable[[Address], RedisConnection]
"""Creates a connection that is not yet connected."""
Trouble = (RedisError, OSError, SettingsError, TimeoutError)
"""Errors of a server that is unreachable or unreliable; SettingsError: a password file is unreadable now."""


class NoPrimaryError(RedisError):
    """No queried node named a server that counts."""


@contextmanager
def understood() -> Iterator[None]:
    """Guards the parsing of a reply; an unparsable one names no server. redis-py's parser raises more than its own
    errors on malformed error replies, pushes and maps, and a host name may be invalid."""
    try:
        yield
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        raise NoPrimaryError(f"an unexpected answer ({type(error).__name__})") from None


class Finder:
    """Finds the server that counts."""

    async def find(self) -> RedisConnection:
        """Returns an open connection to it. Raises one of `Trouble`."""
        raise NotImplementedError

    async def still(self) -> bool:
        """Whether it still counts, as far as that can be queried."""
        return True

    def moved(self, address: Address) -> None:
        """Notes that a server named this address as the one that counts now. Only Cluster nodes may redirect; otherwise
        any responder could have the password sent to an address of its choice."""

    async def close(self) -> None:
        """Closes the connections to queried nodes."""


def finder_of(chosen: StoreSettings) -> Finder:
    """Builds the finder of a store's settings without connecting. Raises SettingsError for unusable files."""
    place = chosen.place
    _check_files(chosen)
    to_store = partial(_connection, chosen, place, chosen.login)
    connect_s, answer_s = _at_least(CONNECT_S, chosen), _at_least(ANSWER_S, chosen)
    match place.kind:
        case "sentinel":
            return Sentinels(
                partial(_connection, chosen, place, partial(_sentinel_login, chosen)),
                to_store,
                place.nodes,
                place.service,
                answer_s,
            )
        case "cluster":
            return Cluster(to_store, place.nodes, answer_s)
        case "unix":
            return SingleNode(to_store, (place.path, 0), connect_s)
        case _:
            return SingleNode(to_store, place.nodes[0], connect_s)


class SingleNode(Finder):
    """The server that the URL names."""

    def __init__(self, opener: Opener, address: Address, connect_s: float = CONNECT_S) -> None:
        self._opener = opener
        self._address = address
        self._connect_s = connect_s

    async def find(self) -> RedisConnection:
        return await _opened(self._opener(self._address), self._connect_s)


class Sentinels(Finder):
    """The server that the Sentinels name as primary, if it confirms that role: a Sentinel's view may be stale."""

    def __init__(
        self,
        to_sentinel: Opener,
        to_store: Opener,
        sentinels: Sequence[Address],
        service: str,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._to_sentinel = to_sentinel
        self._to_store = to_store
        self._sentinels = list(sentinels)
        self._service = service
        self._answer_s = answer_s
        self._asking = asyncio.Lock()
        self._asked: RedisConnection | None = None
        self._found: Address | None = None

    async def find(self) -> RedisConnection:
        primary = await self._primary()
        connection = await _opened(self._to_store(primary), self._answer_s)
        try:
            async with asyncio.timeout(self._answer_s):
                role = await _answer(connection, "ROLE")
            if not isinstance(role, list) or not role or role[0] != b"master":
                raise NoPrimaryError("the server that is named as primary is still a replica")
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self._found = primary
        return connection

    async def still(self) -> bool:
        """Whether the Sentinels still name the primary that was found. One that is cut off from the others continues to
        count, but its counts are lost; the sidecar must leave it."""
        try:
            return await self._primary() == self._found
        except Trouble:
            return True  # without an answer from a Sentinel, remain with a server that answers

    async def close(self) -> None:
        asked, self._asked = self._asked, None
        if asked is not None:
            await asked.disconnect(nowait=True)

    async def _primary(self) -> Address:
        trouble: BaseException = NoPrimaryError("no Sentinel answered")
        async with self._asking:  # `find` and `still` share a connection
            for sentinel in tuple(self._sentinels):
                try:
                    async with asyncio.timeout(self._answer_s):
                        return await self._named_by(sentinel)
                except Trouble as error:
                    trouble = error
                    await self.close()
                    self._sentinels.remove(sentinel)
                    self._sentinels.append(sentinel)
                except BaseException:
                    await self.close()  # a reply may be pending that is never read
                    raise
        raise trouble

    async def _named_by(self, sentinel: Address) -> Address:
        if self._asked is None:
            asked = self._to_sentinel(sentinel)
            with understood():
                await asked.connect()  # type: ignore[no-untyped-call]
            self._asked = asked
        named = await _answer(self._asked, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
        if not isinstance(named, list) or len(named) != 2:
            raise NoPrimaryError(f"no such service: {self._service}")
        with understood():
            return _address(named[0], named[1], sentinel[0])


class Cluster(Finder):
    """The node that owns the sidecar's slot. Nodes named by others are remembered, because those of the URL may
    disappear."""

    def __init__(self, opener: Opener, nodes: Sequence[Address], answer_s: float = ANSWER_S) -> None:
        self._opener = opener
        self._answer_s = answer_s
        self._nodes = list(nodes)

    async def find(self) -> RedisConnection:
        trouble: BaseException = NoPrimaryError("no node of the Cluster answered")
        for node in tuple(self._nodes):
            try:
                return await self._through(node)
            except Trouble as error:
                trouble = error
                self._nodes.remove(node)
                self._nodes.append(node)
        raise trouble

    def moved(self, address: Address) -> None:
        self._nodes = [address, *(node for node in self._nodes if node != address)][:MAX_KNOWN]

    async def _through(self, node: Address) -> RedisConnection:
        connection = await _opened(self._opener(node), self._answer_s)
        try:
            async with asyncio.timeout(self._answer_s):
                ranges = await _answer(connection, "CLUSTER", "SLOTS")
            owner = self._read(ranges, node[0])
            if owner == node:
                return connection
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        await connection.disconnect(nowait=True)
        return await _opened(self._opener(owner), self._answer_s)

    def _read(self, ranges: Any, asked_host: str) -> Address:
        """Returns the owner of the sidecar's slot. Every named node is remembered."""
        owner: Address | None = None
        try:
            for first, last, *nodes in ranges:
                named = [_address(node[0], node[1], asked_host) for node in nodes]
                self._nodes += [each for each in named if each not in self._nodes][: MAX_KNOWN - len(self._nodes)]
                if first <= SLOT <= last and named:
                    owner = named[0]
        except (TypeError, ValueError, LookupError, ArithmeticError):
            raise NoPrimaryError("no table of slots") from None
        if owner is None:
            raise NoPrimaryError("no node owns the slot of the keys")
        return owner


def _address(host: Any, port: Any, asked_host: str) -> Address:
    """Returns a node's address. A server that does not know its own name is reached under the address that was used."""
    if not isinstance(host, bytes | None) or not 0 < int(port) < 65536:
        raise NoPrimaryError("no address")
    return (host or b"").decode("ascii", "replace") or asked_host, int(port)


async def _opened(connection: RedisConnection, within_s: float) -> RedisConnection:
    try:
        with understood():
            async with asyncio.timeout(within_s):
                await connection.connect()  # type: ignore[no-untyped-call]
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    return connection


async def _answer(connection: RedisConnection, *command: str) -> Any:
    with understood():
        await connection.send_packed_command([pack(command)], check_health=False)
        return await connection.read_response(disable_decoding=True)


def _at_least(seconds: float, chosen: StoreSettings) -> float:
    return max(seconds, DEADLINES * chosen.timeout)


def _check_files(chosen: StoreSettings) -> None:
    chosen.login()
    if chosen.sentinel is not None:
        read_secret(chosen.sentinel.password_path, "theirs")
    tls = chosen.tls
    if tls is None:
        return
    file = tls.ca_path
    try:
        if tls.ca_path is not None:
            read_bounded(tls.ca_path, MAX_CA_BYTES)
        context = ssl.create_default_context(cafile=tls.ca_path)
        if tls.cert_path is not None:
            file = tls.cert_path
            check_private(tls.key_path or tls.cert_path)
            for file in filter(None, (tls.key_path, tls.cert_path)):
                read_bounded(file, MAX_CA_BYTES)
            context.load_cert_chain(tls.cert_path, tls.key_path, password=lambda: "")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise SettingsError([fault_in(file or "store.tls", f"cannot be used for TLS: {error}", code="S136")]) from None


def _sentinel_login(chosen: StoreSettings) -> dict[str, Any]:
    if (sentinel := chosen.sentinel) is None:
        return {}
    return {"username": sentinel.username, "password": read_secret(sentinel.password_path, "theirs")}


def _connection(
    chosen: StoreSettings, place: StorePlace, login: Callable[[], dict[str, Any]], address: Address
) -> RedisConnection:
    """Returns a connection that is not yet connected. redis-py must not retry: every attempt has its own deadline."""
    options: dict[str, Any] = {
        **login(),
        "socket_connect_timeout": _at_least(CONNECT_S, chosen),
        "socket_timeout": None,
        "health_check_interval": 0,
        "protocol": 3,
        "retry": Retry(NoBackoff(), 0),
        "driver_info": None,
    }
    if place.kind == "unix":
        return UnixDomainSocketConnection(path=address[0], **options)
    if not place.tls:
        return TcpConnection(host=address[0], port=address[1], **options)
    return SSLConnection(host=address[0], port=address[1], **chosen.certificates(), **options)
