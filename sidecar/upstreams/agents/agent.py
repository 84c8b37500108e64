"""Which agent stands behind us, and how does it stand?"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol
from urllib.parse import urlsplit
from uuid import UUID

from sidecar.egress import fetch
from sidecar.protocols.a2a.errors import AgentError
from sidecar.protocols.a2a.operations import Operation, Version
from sidecar.settings.a2a import A2aUpstream
from sidecar.settings.credentials import Signed, UpstreamCredential
from sidecar.settings.health import Probe
from sidecar.settings.upstreams import Upstream as Definition
from sidecar.upstreams.agents.card import MAX_BYTES, Card, CardKeeper, CardProbe
from sidecar.upstreams.agents.over_http import HttpJsonWire, Line, RpcWire
from sidecar.upstreams.agents.watched import WatchedAgent
from sidecar.upstreams.agents.wire import AgentWire
from sidecar.upstreams.credentials import CredentialSource, Signer, source_from
from sidecar.upstreams.health import Asked
from sidecar.upstreams.registry import Account

TOKEN_TTL_S: Final = 120.0  # of what an agent is shown by default; CONTRACT: at most five minutes


class Cards(Protocol):
    """What an agent says of itself."""

    async def prepare(self) -> None:
        """Before it is called: find out of it what is not known."""

    async def card(self) -> Card:
        """Its card in the canonical form; one that says the same is the same object. Raises Refusal."""

    def has_skill(self, name: str) -> bool | None:
        """Whether the card names this skill; None while nobody has read it. No I/O."""

    async def close(self) -> None:
        """Look at it no more."""


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent that stands behind us, whatever it is. `definition` is what it was made of, `account` how it stands,
    `asked` whom to ask whether it is well, and `probe` how. `url` is where it is dialled, "" where nobody dials.

    `agent_id` is the UUID by which the task API knows it, `grpc_port` the port of ours for it alone; `needs_token` says
    that it is shown the caller's own token, or what that is exchanged for. `unable` is its no to an operation that it
    has not for anybody, whatever it is about, as far as that is known without asking.
    """

    name: str
    definition: object
    wire: AgentWire
    account: Account
    cards: Cards
    asked: Asked
    probe: Probe
    timeout_s: float
    url: str = ""
    agent_id: UUID | None = None
    grpc_port: int | None = None
    needs_token: bool = False
    anonymous: bool = False
    scopes: tuple[str, ...] = ()
    unable: Callable[[Operation], AgentError | None] = lambda _: None

    async def close(self) -> None:
        """Let go of its connections."""
        await self.cards.close()
        await self.wire.close()


def agent_from(name: str, definition: Definition, *, max_response_bytes: int, signer: Signer) -> Agent:
    """An agent as configured. Raises SettingsError."""
    section = definition.a2a
    if section is None:
        raise ValueError("the settings promise an agent its section")
    shown = definition.credential or UpstreamCredential(
        signed=Signed(audience=f"nhi:{name}", ttl_s=TOKEN_TTL_S, roles=True)
    )
    account = Account(name, definition.breaker)
    spoken = None if section.version == "auto" else section.version
    at = section.card_address
    get = partial(_fetched, at) if at else None
    beside = section.card_url is None or urlsplit(section.card_url).netloc == urlsplit(section.url).netloc
    keeper = CardKeeper(get, section.spoken, spoken, time.monotonic, beside=beside)
    wire = _wire(section, keeper.version, source_from(shown, section.url, signer), max_response_bytes)
    watched = WatchedAgent(wire, account, section.share, section.timeout_s, section.url)
    return Agent(
        name,
        definition,
        watched,
        account,
        keeper,
        CardProbe(keeper, account),
        definition.probe,
        section.timeout_s,
        url=section.url,
        agent_id=section.agent_id,
        grpc_port=section.grpc_port,
        needs_token=shown.needs_token,
        anonymous=definition.anonymous,
        scopes=definition.scopes,
    )


async def _fetched(url: str, deadline_s: float) -> bytes:
    return await fetch(url, max_bytes=MAX_BYTES, deadline_s=deadline_s, operators=True)


def _wire(
    section: A2aUpstream, version: Callable[[], Version], credential: CredentialSource | None, max_response_bytes: int
) -> AgentWire:
    headers = tuple(section.headers.items())
    if section.spoken == "grpc":
        from sidecar.upstreams.agents.over_grpc import GrpcWire  # only where it is wanted: it takes its time

        return GrpcWire(
            section.url, version, credential=credential, headers=headers, max_response_bytes=max_response_bytes
        )
    line = Line(
        section.url,
        credential=credential,
        headers=headers,
        connect_timeout_s=section.connect_timeout_s,
        max_connections=section.max_connections,
        max_response_bytes=max_response_bytes,
    )
    return RpcWire(line, version) if section.spoken == "jsonrpc" else HttpJsonWire(line, version)
