"""Writes an agent's card for its caller.

The card is the agent's own, rewritten with the addresses of the sidecar, the skills that this caller may use, and a
signature. As A2A requires, it is public: without a credential it shows what `anonymous` may use. The card of an
authenticated caller is excluded from shared caches. The card in the form of the original data models is made from the
same data.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

from sidecar.errors import Reason, Refusal
from sidecar.gateway.error_responses import JSON, ErrorResponse
from sidecar.gateway.routing import AGENTS
from sidecar.gateway.snapshot import Snapshot
from sidecar.protocols.a2a import cards
from sidecar.protocols.a2a.operations import CARD, SEND, STREAM, Binding, Operation
from sidecar.protocols.jsonrpc import compact_json
from sidecar.settings.addresses import ListenAddress
from sidecar.settings.agent_endpoints import Transport
from sidecar.settings.field_types import AGENT_PLACE
from sidecar.settings.server import ServerSettings
from sidecar.upstreams.agents import AgentUpstream
from sidecar.vocabulary import Chain, Question

MAX_AGE_S: Final = 60
MAX_WRITTEN: Final = 256
MAX_WRITTEN_BYTES: Final = 32 * 1024 * 1024
TRANSPORT_OF: Final[Mapping[Binding, Transport]] = {"jsonrpc": "json_rpc", "http_json": "http_json", "grpc": "grpc"}
Key = tuple[str, str, str, "CardView"]
"""The agent, the form, the key that signs, and the view of the reader."""


def named(now: Snapshot, name: str) -> AgentUpstream:
    """Returns an agent by its name, or by the UUID from the settings. Raises Refusal(UPSTREAM_UNKNOWN)."""
    if name in now.agents:
        return now.agents[name]
    with suppress(ValueError):
        wanted = UUID(name)
        for agent in now.agents.values():
            if agent.agent_id == wanted:
                return agent
    raise Refusal(Reason.UPSTREAM_UNKNOWN)


class CardView(NamedTuple):
    """The inputs of a written card in addition to the agent's own card: the addresses, the skills shown, the required
    credentials, and whether the reader may read the extended card."""

    interfaces: tuple[cards.Interface, ...]
    skills: frozenset[str]
    security: cards.Security = cards.BEARER
    has_extended: bool = False


class Place(NamedTuple):
    """Where a caller reads a card: the agent's address as it was called, and whether it belongs to a local listener,
    whose callers need no credential there and have none elsewhere."""

    at: str
    is_local: bool


def view_of(
    now: Snapshot, agent: AgentUpstream, card: Mapping[str, Any], chain: Chain, place: Place, now_s: float
) -> CardView:
    """Returns how this chain may see a card of the agent. Raises Refusal(UPSTREAM_UNKNOWN) if the agent cannot be
    called at all: its transport came with a reload, and the listener needs a restart."""
    if not (found := interfaces(now, agent, place)):
        raise Refusal(Reason.UPSTREAM_UNKNOWN)

    def may(skill: str, *operations: Operation) -> bool:
        return now.shadows(now_s) or any(
            now.engine.may_list(chain, Question(f"nhi:{agent.name}", each.action, "", skill), now_s)
            for each in operations
        )

    skills = frozenset(skill["id"] for skill in card.get("skills", ()) if may(skill["id"], SEND, STREAM))
    has_extended = bool(card["capabilities"].get("extendedAgentCard")) and bool(chain) and may("", CARD)
    return CardView(found, skills, security_of(now, agent), has_extended)


def ours(agent: AgentUpstream, card: Mapping[str, Any], view: CardView) -> dict[str, Any]:
    return cards.ours(
        card,
        view.interfaces,
        view.skills.__contains__,
        agent_url=agent.url,
        has_extended=view.has_extended,
        security=view.security,
    )


def place_of(now: Snapshot, agent: AgentUpstream, alias: str, base: str) -> Place:
    """Returns where an agent's card is read: at its own path `alias`, or at the usual address. `base` is the base URL
    of a local listener, "" for any other."""
    return Place(f"{base or now.base_url}{alias or f'/{AGENTS}/{agent.name}'}", bool(base))


def interfaces(now: Snapshot, agent: AgentUpstream, place: Place) -> tuple[cards.Interface, ...]:
    at = place.at
    found = [
        cards.Interface(f"{at}/", "jsonrpc", "1.0"),
        cards.Interface(at, "http_json", "1.0"),
        cards.Interface(f"{at}/", "jsonrpc", "0.3"),
        cards.Interface(at, "http_json", "0.3"),
    ]
    if not place.is_local:  # the gRPC listener would require a credential
        found += _grpc_interfaces(now, agent, at)
    return tuple(one for one in found if now.speaks(agent.name, TRANSPORT_OF[one.binding]))


def _grpc_interfaces(now: Snapshot, agent: AgentUpstream, at: str) -> Iterator[cards.Interface]:
    """Yields the gRPC addresses. An address with only one agent needs no tenant, and therefore also serves 0.3."""
    server, own = now.settings.server, agent.grpc_port
    if not isinstance(server.grpc, ListenAddress) or not (url := _grpc_url(server, own, at)):
        return
    is_its_own = own is not None or AGENT_PLACE in url
    url = url.replace(AGENT_PLACE, agent.name)
    yield cards.Interface(url, "grpc", "1.0", "" if is_its_own else agent.name)
    if is_its_own or now.lone_in_grpc == agent.name:
        yield cards.Interface(url, "grpc", "0.3")


def _grpc_url(server: ServerSettings, own: int | None, at: str) -> str:
    """Returns the gRPC address of callers; "" if the system chose the port, which is unknown here."""
    told, address = server.grpc_url, server.grpc
    if told is not None and (own is None or AGENT_PLACE in told):
        return told
    assert isinstance(address, ListenAddress)
    port = address.port if own is None else own
    if told is not None:
        scheme, slashes, place = told.rpartition("://")
        return f"{scheme}{slashes}{place.partition(':')[0]}:{port}" if port else ""
    split = urlsplit(at)
    host = split.hostname or address.host
    return f"{split.scheme}://{f'[{host}]' if ':' in host else host}:{port}" if port else ""


def security_of(now: Snapshot, agent: AgentUpstream) -> cards.Security:
    offer = now.offers.get(agent.name)
    auth = offer.authentication if offer is not None else None
    if auth is None:
        return cards.BEARER
    if auth.type == "none":
        return cards.BEARER._replace(optional=True)
    if auth.type == "bearer_token":
        return cards.Security((cards.SecurityScheme("bearer"),))  # other accepted credentials use the same header
    own = cards.SecurityScheme("agent-token", header=auth.header_name or "X-API-Key")
    return cards.Security((own,) if auth.required else (own, *cards.BEARER.ways))


def proofs_of(view: CardView) -> str:
    usual = ("Authorization", "X-API-Key")
    return ", ".join(dict.fromkeys((*usual, *(way.header for way in view.security.ways if way.header))))


def signer_of(now: Snapshot) -> cards.CardSigner | None:
    key = now.signer.key
    return None if key is None else cards.CardSigner(key.algorithm, key.kid, key.sign_bytes)


@dataclass(slots=True)
class CardText:
    """Caches the last documents written. Each signature differs, but the same card must have the same bytes. The cache
    also bounds the work for cards, which are public and can be expensive to write."""

    kept: OrderedDict[Key, tuple[Mapping[str, Any], bytes]] = field(default_factory=OrderedDict)
    size: int = 0

    def of(self, card: Mapping[str, Any], key: Key, write: Callable[[], dict[str, Any]]) -> bytes:
        """Returns the document for an agent's card; `key` is everything else on which it depends."""
        of, body = self.kept.pop(key, (None, b""))
        self.size -= len(body)
        if of is not card:
            body = compact_json(write())
        self.kept[key] = card, body
        self.size += len(body)
        while len(self.kept) > MAX_WRITTEN or self.size > MAX_WRITTEN_BYTES:
            _, (_, oldest) = self.kept.popitem(last=False)
            self.size -= len(oldest)
        return body


def told(body: bytes, *, public: bool, known: str, proofs: str) -> ErrorResponse:
    """Returns a card with caching headers. `known` is `If-None-Match`, `proofs` the headers of credentials."""
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    scope = "public" if public else "private"
    headers = {"Cache-Control": f"{scope}, max-age={MAX_AGE_S}", "ETag": tag, "Vary": proofs}
    if known and tag in [one.strip() for one in known.split(",")]:
        return ErrorResponse(304, b"", "", headers)
    return ErrorResponse(200, body, JSON, headers)
