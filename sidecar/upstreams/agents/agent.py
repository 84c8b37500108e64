"""One agent behind the sidecar, and its state."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol
from urllib.parse import urlsplit
from uuid import UUID

from sidecar.errors import SettingsError, fault_in
from sidecar.http.client import DIRECT, Egress, fetch
from sidecar.protocols.a2a.errors import AgentError
from sidecar.protocols.a2a.operations import Operation, Version
from sidecar.settings.credentials import Signed, UpstreamCredential
from sidecar.settings.egress import CODE
from sidecar.settings.upstreams import A2aUpstream, ProbeSettings, UpstreamSettings as Definition
from sidecar.upstreams.agents.card import MAX_BYTES, Card, CardKeeper
from sidecar.upstreams.agents.guarded_transport import GuardedAgent
from sidecar.upstreams.agents.http_transport import HttpJsonAgent, JsonRpcAgent
from sidecar.upstreams.agents.transport import AgentTransport
from sidecar.upstreams.credentials.from_settings import source_from
from sidecar.upstreams.credentials.signed_tokens import TokenSigner
from sidecar.upstreams.credentials.source import CredentialSource
from sidecar.upstreams.health import ProbeAnswer
from sidecar.upstreams.http_address import HttpAddress
from sidecar.upstreams.upstream_account import UpstreamAccount

TOKEN_TTL_S: Final = 120.0  # the default lifetime of tokens for agents


class AgentCards(Protocol):
    """An agent's description of itself, as `CardKeeper` documents it. An unchanged card is the same object."""

    async def prepare(self) -> None: ...
    async def card(self) -> Card: ...
    def has_skill(self, name: str) -> bool | None: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class AgentUpstream:
    """One configured agent. `wire` is its transport, `asked` the object that probes it, and `probe` the settings of its
    probes. `url` is the address that is called, "" if there is none. `agent_id` is its UUID in the task API,
    `grpc_port` the sidecar's port for this agent alone. `needs_token`: it receives the caller's own token, or one
    exchanged for it. `unable` returns its error for an operation that it supports for no caller, as far as this is
    known without I/O."""

    name: str
    definition: object
    wire: AgentTransport
    account: UpstreamAccount
    cards: AgentCards
    asked: ProbeAnswer
    probe: ProbeSettings
    timeout_s: float
    url: str = ""
    agent_id: UUID | None = None
    grpc_port: int | None = None
    needs_token: bool = False
    anonymous: bool = False
    scopes: tuple[str, ...] = ()
    unable: Callable[[Operation], AgentError | None] = lambda _: None

    async def close(self) -> None:
        await self.cards.close()
        await self.wire.close()


def agent_from(
    name: str, definition: Definition, *, max_response_bytes: int, signer: TokenSigner, egress: Egress = DIRECT
) -> AgentUpstream:
    """Builds the agent of a definition. Nothing is opened yet. Raises SettingsError."""
    section = definition.a2a
    if section is None:
        raise ValueError("the settings promise an agent its section")
    shown = definition.credential or UpstreamCredential(
        signed=Signed(audience=f"nhi:{name}", ttl_s=TOKEN_TTL_S, roles=True)
    )
    account = UpstreamAccount(name, definition.breaker)
    at = section.card_address
    beside = section.card_url is None or urlsplit(section.card_url).netloc == urlsplit(section.url).netloc
    keeper = CardKeeper(
        partial(_fetched, egress, at) if at else None,
        section.spoken,
        None if section.version == "auto" else section.version,
        time.monotonic,
        account if beside else None,
    )
    credential = source_from(shown, section.url, signer, egress=egress)
    wire = _wire(name, section, keeper.version, credential, max_response_bytes, egress)
    watched = GuardedAgent(wire, account, section.share, section.timeout_s, section.url)
    return AgentUpstream(
        name,
        definition,
        watched,
        account,
        keeper,
        keeper,
        definition.probe,
        section.timeout_s,
        url=section.url,
        agent_id=section.agent_id,
        grpc_port=section.grpc_port,
        needs_token=shown.needs_token,
        anonymous=definition.anonymous,
        scopes=definition.scopes,
    )


async def _fetched(egress: Egress, url: str, deadline_s: float) -> bytes:
    return await fetch(url, max_bytes=MAX_BYTES, deadline_s=deadline_s, egress=egress, operators=True)


def _wire(
    name: str,
    section: A2aUpstream,
    version: Callable[[], Version],
    credential: CredentialSource,
    max_response_bytes: int,
    egress: Egress,
) -> AgentTransport:
    headers = tuple(section.headers.items())
    if section.spoken == "grpc":
        from sidecar.upstreams.agents.grpc_transport import (  # imported only if needed: the import is slow
            GrpcAgent,
            grpc_origin,
        )

        proxy = egress.proxy_for(grpc_origin(section.url))
        if proxy is not None and proxy.origin.secure:
            hint = "name an http:// proxy, or the agent's host in no_proxy"
            fault = fault_in(f"upstreams.{name}.a2a.url", "gRPC passes no proxy that speaks TLS", code=CODE, hint=hint)
            raise SettingsError([fault])
        return GrpcAgent(
            section.url,
            version,
            credential=credential,
            headers=headers,
            max_response_bytes=max_response_bytes,
            egress=egress,
        )
    address = HttpAddress(
        section.url, credential=credential, headers=headers, max_connections=section.max_connections, egress=egress
    )
    kind = JsonRpcAgent if section.spoken == "jsonrpc" else HttpJsonAgent
    return kind(address, version, max_response_bytes)
