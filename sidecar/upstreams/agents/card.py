"""Fetches and refreshes an agent's card.

The card is fetched from the configured address, parsed strictly and cached for a minute. It determines the agent's
version if the settings do not. Addresses in a card are never called.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf
from typing import Any, Final

from sidecar.errors import Reason, Refusal
from sidecar.http.client import EgressError
from sidecar.protocols import jsonrpc
from sidecar.protocols.a2a import cards
from sidecar.protocols.a2a.operations import Binding, Version
from sidecar.protocols.a2a.schema import UnreadableMessage
from sidecar.upstreams.upstream_account import UpstreamAccount

KEPT_S: Final = 60.0
FAILED_S: Final = 5.0  # any caller may request a card, so a failed fetch is not repeated for each request
MAX_BYTES: Final = 1024 * 1024
DEADLINE_S: Final = 5.0
UNAVAILABLE: Final = "its card cannot be fetched"
Card = dict[str, Any]
Get = Callable[[float], Awaitable[bytes]]
"""Fetches the bytes of a card within so many seconds. Raises EgressError or Refusal."""


class CardKeeper:
    """The card of one agent. `get` fetches it, None without an address. `account` is set if the agent itself serves the
    card; fetching it then shows whether the agent is available."""

    def __init__(
        self,
        get: Get | None,
        binding: Binding,
        spoken: Version | None,
        clock: Callable[[], float],
        account: UpstreamAccount | None = None,
    ) -> None:
        self._get = get
        self._account = account
        self._binding = binding
        self._spoken = spoken
        self._clock = clock
        self._card: Card | None = None
        self._fetched_s = self._failed_s = -inf
        self._failure: Refusal | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()

    def version(self) -> Version:
        """Returns the A2A version for the agent: the configured one, otherwise the card's, otherwise 1.0."""
        return self._spoken or _version_in(self._card, self._binding)

    def has_skill(self, name: str) -> bool | None:
        """Whether the card names this skill; None if the card has not been read yet. Does no I/O."""
        return None if self._card is None else any(skill["id"] == name for skill in self._card.get("skills", ()))

    async def prepare(self) -> None:
        """Determines the agent's version if it is not configured, at most once a minute: calls do not wait again after
        a failed fetch."""
        if self._spoken is not None or self._clock() - max(self._fetched_s, self._failed_s) < KEPT_S:
            return
        if self._card is None:
            await self._renewed()
        elif self._renewing is None or self._renewing.done():  # a version that is already known needs no waiting
            self._renewing = asyncio.create_task(self._renewed(), name="looks at an agent's card again")

    async def _renewed(self) -> None:
        with suppress(Refusal):
            await self.card()

    async def probe(self, within_s: float) -> None:
        """Reports to the account whether the agent serves its card. Raises Refusal."""
        if self._get is None or self._account is None:  # its health is visible only in its calls
            return
        given = self._account.breaker.enter()
        try:
            await self._get(min(within_s, DEADLINE_S))
        except EgressError:
            self._account.faulted(given, UNAVAILABLE, own=True)
            raise Refusal(Reason.UPSTREAM_FAILED, UNAVAILABLE) from None
        except BaseException:
            self._account.breaker.given_up(given)
            raise
        self._account.answered(given, own=True)

    async def explore(self) -> None:
        """Does nothing: a card is read on demand."""

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)

    async def card(self) -> Card:
        """Returns the card in the canonical form, at most a minute old. Raises Refusal: UPSTREAM_FAILED,
        RESPONSE_REFUSED."""
        if self._get is None:
            raise Refusal(Reason.UPSTREAM_FAILED, "the address of its card is not configured (a2a.card_url)")
        async with self._one_at_a_time:
            now = self._clock()
            if self._card is None or now - self._fetched_s >= KEPT_S:
                if self._failure is not None and now - self._failed_s < FAILED_S:
                    raise Refusal(self._failure.reason, self._failure.detail)
                try:
                    card = await self._fetched(self._get)
                except Refusal as refusal:
                    self._failure, self._failed_s = refusal, self._clock()
                    raise
                if card != self._card:  # an unchanged card keeps its identity and need not be rewritten
                    self._card = card
                self._fetched_s, self._failure, self._failed_s = self._clock(), None, -inf
            return self._card

    async def _fetched(self, get: Get) -> Card:
        try:
            return cards.read(jsonrpc.parse_answer(await get(DEADLINE_S)))
        except EgressError:
            raise Refusal(Reason.UPSTREAM_FAILED, UNAVAILABLE) from None
        except Refusal as refusal:
            raise Refusal(Reason.RESPONSE_REFUSED, f"its card: {refusal.detail}") from None
        except UnreadableMessage as error:
            raise Refusal(Reason.RESPONSE_REFUSED, f"its card: {error}") from None


def _version_in(card: Card | None, binding: Binding) -> Version:
    """Returns 1.0, unless the card offers only 0.3 for this binding."""
    interfaces = [] if card is None else card.get("supportedInterfaces", [])
    spoken = {
        str(one.get("protocolVersion", ""))[:3]
        for one in interfaces
        if one.get("protocolBinding", "").upper() == cards.BINDINGS[binding]
    }
    return "0.3" if spoken == {"0.3"} else "1.0"
