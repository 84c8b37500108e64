"""Sends requests to addresses that callers chose, after checking them.

The URL of a callback is checked when it is named, and again before each request:

    the URL     strictly parsed (`origin.py`), with a scheme and a host that the operator allows
    the name    resolved once; every address of it must be allowed (`address_rules.py`)
    then        the connection is made to such an address, with the name in TLS and in `Host`

Redirects are not followed, and only the head of the response is read. A proxy gets the checked address, never the name,
unless the operator lets it resolve names (`egress.proxy.resolves_callbacks`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from sidecar.errors import Reason, Refusal, SettingsError
from sidecar.http.client.address_rules import AddressRules
from sidecar.http.client.egress import DIRECT, Egress
from sidecar.http.client.failures import ClientTimeout, ConnectFailed, EgressError, NotAllowed
from sidecar.http.client.origin import OWN_PORTS, TargetOrigin, parse_strictly
from sidecar.http.client.pool import HttpClient
from sidecar.http.tls import read_authorities
from sidecar.settings.callbacks import CallbackSettings

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a name, in the order in which to try them. Raises OSError."""

MAX_ADDRESSES: Final = 32  # a name with more is refused
MAX_TRIED: Final = 3
NO_PLACE: Final = "callbacks are not sent to this address"
LOOKED_UP_AT_ONCE: Final = 32
LOOKED_UP_FOR_ONE: Final = 4  # concurrent lookups of one chain's names
MAX_LOOKUPS: Final = 200  # in progress, or waiting for a thread
INVALID_PARAMS: Final = -32602

log = logging.getLogger("sidecar.http.client")


class Accepted(NamedTuple):
    """A receiver's answer: its status, and its `Retry-After`, "" without one."""

    status: int
    retry_after: str


@dataclass(slots=True)
class GuardedClient:
    """Sends requests to URLs found in content. `rules` returns the operator's current settings."""

    rules: Callable[[], CallbackSettings]
    resolve: Resolve
    egress: Callable[[], Egress] = lambda: DIRECT
    _lookups: dict[str, set[asyncio.Task[Sequence[str]]]] = field(default_factory=dict)

    async def check(self, url: str, owner: str) -> None:
        """Checks whether a request could be sent there now, for this chain. Raises Refusal, which discloses nothing
        about the name's addresses: MALFORMED_CALL, or TOO_MANY_CONCURRENT for a chain with too many lookups."""
        rules = self.rules()
        try:
            origin = allowed_origin(url, rules)
            lookup = self._looked_up(origin, rules, owner)
            done, _ = await asyncio.wait({lookup}, timeout=rules.timeout_s)
            if not done:
                raise TimeoutError
            lookup.result()
        except NotAllowed as refused:
            log.info("a callback's address is refused", extra={"why": refused.why})
            raise Refusal(Reason.MALFORMED_CALL, str(refused), code=INVALID_PARAMS) from None
        except (EgressError, TimeoutError):
            # A name without addresses looks like one with forbidden addresses.
            log.info("a callback's address is refused", extra={"why": "the name cannot be looked up"})
            raise Refusal(Reason.MALFORMED_CALL, NO_PLACE, code=INVALID_PARAMS) from None

    def _looked_up(self, origin: TargetOrigin, rules: CallbackSettings, owner: str) -> asyncio.Task[Sequence[str]]:
        """Begins `_addresses`. It counts as the owner's until it ends, also if its caller no longer waits: the system
        cannot cancel a lookup, and unanswered names must not use up the shared threads. Raises Refusal."""
        mine = self._lookups.setdefault(owner, set())
        if len(mine) >= LOOKED_UP_FOR_ONE:
            raise Refusal(Reason.TOO_MANY_CONCURRENT, "too many names are being looked up", retry_after_s=1.0)
        lookup = asyncio.create_task(self._addresses(origin, rules), name="looks up a callback's name")
        mine.add(lookup)
        lookup.add_done_callback(partial(self._ended, owner))
        return lookup

    def _ended(self, owner: str, lookup: asyncio.Task[Sequence[str]]) -> None:
        self._lookups[owner].discard(lookup)
        if not self._lookups[owner]:
            del self._lookups[owner]
        if not lookup.cancelled():
            lookup.exception()  # its caller may no longer wait for it

    async def post(self, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> Accepted:
        """Sends a POST, after checking the URL again, within `timeout_s` of the settings. Raises EgressError:
        NotAllowed, if the URL or an address of its name is not allowed."""
        rules = self.rules()
        loop = asyncio.get_running_loop()
        until = loop.time() + rules.timeout_s
        origin = allowed_origin(url, rules)
        try:
            async with asyncio.timeout_at(until):
                addresses = await self._addresses(origin, rules)
                egress = self.egress()
                tls = await asyncio.to_thread(_trust, egress, rules.ca_path) if origin.secure else None
        except TimeoutError:
            raise ClientTimeout("the name was not looked up in time") from None
        tried = addresses[:MAX_TRIED]
        failure = ConnectFailed("no connection")
        for number, address in enumerate(tried):
            left_s = until - loop.time()
            try:
                return await _post(
                    origin, address, egress, tls, headers, body, left_s, connect_s=left_s / (len(tried) - number)
                )
            except ConnectFailed as failed:
                failure = failed
        raise failure

    async def _addresses(self, origin: TargetOrigin, rules: CallbackSettings) -> Sequence[str]:
        """Returns every address of the origin, each of which is allowed; "" for a name that the proxy resolves. Raises
        NotAllowed, ConnectFailed."""
        host, egress = origin.host, self.egress()
        if not is_address(host) and egress.resolves_callbacks and egress.proxy_for(origin) is not None:
            return ("",)
        try:
            found = [host] if is_address(host) else await self.resolve(host, origin.port)
        except (OSError, UnicodeError) as error:
            raise ConnectFailed("the name cannot be looked up") from error
        addresses = tuple(dict.fromkeys(found))
        if not addresses:
            raise ConnectFailed("the name has no address")
        reach = AddressRules(rules.networks, rules.blocked)
        objection = next(filter(None, map(reach.objection, addresses)), "")
        if len(addresses) > MAX_ADDRESSES:
            objection = f"it has more than {MAX_ADDRESSES} addresses"
        if objection:
            raise NotAllowed(NO_PLACE, objection)
        return addresses


class SystemResolver:
    """The system's resolver, on threads of its own, because an unanswered name must not delay upstreams'
    connections."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LOOKED_UP_AT_ONCE, thread_name_prefix="lookup")
        self._lookups = set[Future[Any]]()  # also those for which no caller waits, because they occupy threads

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        if len(self._lookups) >= MAX_LOOKUPS:
            raise OSError("too many names are being looked up")
        lookup = self._threads.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        self._lookups.add(lookup)
        lookup.add_done_callback(self._lookups.discard)
        return [str(address[0]) for *_, address in await asyncio.wrap_future(lookup)]

    def close(self) -> None:
        """Releases the threads as soon as their lookups end."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def is_address(host: str) -> bool:
    """Whether the host of an allowed URL is an address, not a name."""
    return ":" in host or host.replace(".", "").isdigit()


def allowed_origin(url: str, rules: CallbackSettings) -> TargetOrigin:
    """Returns the origin of a URL whose text is allowed; addresses of a name are not looked up. Raises NotAllowed."""
    try:
        origin = parse_strictly(url)
    except ValueError as error:
        raise NotAllowed(str(error), "it is not a plain URL") from None
    if origin.scheme not in rules.schemes:
        raise NotAllowed(f"callbacks are sent over {' or '.join(rules.schemes)} only", "its scheme is not allowed")
    if not any(place.holds(origin.host, origin.port, OWN_PORTS[origin.scheme]) for place in rules.allow):
        raise NotAllowed(NO_PLACE, "callbacks.allow does not name its host and port")
    return origin


async def _post(
    origin: TargetOrigin,
    address: str,
    egress: Egress,
    tls: ssl.SSLContext | None,
    headers: Sequence[tuple[str, str]],
    body: bytes,
    left_s: float,
    *,
    connect_s: float,
) -> Accepted:
    client = HttpClient(
        origin, address=address, egress=egress, connect_timeout_s=connect_s, max_idle=0, max_connections=1, tls=tls
    )
    try:
        with await client.request("POST", origin.path, headers, body, deadline_s=left_s) as answer:
            return Accepted(answer.status, answer.headers.get("retry-after", ""))
    finally:
        await client.close()


def _trust(egress: Egress, ca_path: Path | None) -> ssl.SSLContext:
    """Returns the context with the authorities of `ca_path`. Raises ConnectFailed."""
    try:
        return egress.tls(beside="" if ca_path is None else read_authorities(ca_path))
    except SettingsError as error:
        raise ConnectFailed("callbacks.ca_path cannot be used") from error
