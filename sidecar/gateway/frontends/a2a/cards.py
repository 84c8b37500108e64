"""Writes an agent's card for its caller.

The agent's own, written anew: our addresses, the skills that this caller may use, our signature. It is open to
everybody, as A2A wants it (without a credential it shows what `anonymous` may use), and what a known caller sees is
kept from shared caches. The seed's form is made of the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
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
from sidecar.protocols.a2a.operations import CARD, SEND, STREAM, Binding
from sidecar.protocols.compact_json import compact_json
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
"""The agent, the form, the key of the signature, and who sees it."""


def named(now: Snapshot, name: str) -> AgentUpstream:
    """An agent by its name, or by the UUID that the operator gave it. Raises Refusal(UPSTREAM_UNKNOWN)."""
    if name in now.agents:
        return now.agents[name]
    try:
        wanted = UUID(name)
    except ValueError:
        raise Refusal(Reason.UPSTREAM_UNKNOWN) from None
    for agent in now.agents.values():
        if agent.agent_id == wanted:
            return agent
    raise Refusal(Reason.UPSTREAM_UNKNOWN)


class CardView(NamedTuple):
    """What our card of an agent depends on, beside the agent's own: our addresses, the skills that it shows, what its
    callers must prove, and whether its reader may read more of it."""

    interfaces: tuple[cards.Interface, ...]
    skills: frozenset[str]
    security: cards.Security = cards.BEARER
    has_extended: bool = False


class Place(NamedTuple):
    """Where a caller reads a card: the agent's address as it was called, and whether that is a local listener's, whose
    caller needs no credential there and has none anywhere else."""

    at: str
    is_local: bool


def view_of(
    now: Snapshot, agent: AgentUpstream, card: Mapping[str, Any], chain: Chain, place: Place, now_s: float
) -> CardView:
    """How this chain may see a card of the agent's. Raises Refusal(UPSTREAM_UNKNOWN) where nobody could call it: what
    is spoken there came with a reload, and its listener needs a restart."""
    if not (found := interfaces(now, agent, place)):
        raise Refusal(Reason.UPSTREAM_UNKNOWN)
    may_use = _may_use(now, agent, chain, now_s)
    skills = frozenset(skill["id"] for skill in card.get("skills", ()) if may_use(skill["id"]))
    has_extended = bool(card["capabilities"].get("extendedAgentCard")) and _may_read_more(now, agent, chain, now_s)
    return CardView(found, skills, security_of(now, agent), has_extended)


def ours(agent: AgentUpstream, card: Mapping[str, Any], view: CardView) -> dict[str, Any]:
    """A card of the agent's, canonical, as ours."""
    return cards.ours(
        card,
        view.interfaces,
        view.skills.__contains__,
        agent_url=agent.url,
        has_extended=view.has_extended,
        security=view.security,
    )


def place_of(now: Snapshot, agent: AgentUpstream, alias: str, base: str) -> Place:
    """Where an agent's card is read: by the `alias` that it has, or as all agents are; `base` is ours as a local caller
    knows it, "" for any other."""
    return Place(f"{base or now.base_url}{alias or f'/{AGENTS}/{agent.name}'}", bool(base))


def interfaces(now: Snapshot, agent: AgentUpstream, place: Place) -> tuple[cards.Interface, ...]:
    """Every address of ours for this agent that its reader can use, in the order in which we would be called."""
    at = place.at
    found = [
        cards.Interface(f"{at}/", "jsonrpc", "1.0"),
        cards.Interface(at, "http_json", "1.0"),
        cards.Interface(f"{at}/", "jsonrpc", "0.3"),
        cards.Interface(at, "http_json", "0.3"),
    ]
    if not place.is_local:  # the gRPC listener would ask its caller for a credential
        found += _grpc_interfaces(now, agent, at)
    return tuple(one for one in found if now.speaks(agent.name, TRANSPORT_OF[one.binding]))


def _grpc_interfaces(now: Snapshot, agent: AgentUpstream, at: str) -> Iterator[cards.Interface]:
    """The addresses over gRPC. One at which no other agent can be meant needs no tenant, and so serves 0.3 too."""
    server, own = now.settings.server, agent.grpc_port
    if not isinstance(server.grpc, ListenAddress) or not (url := _grpc_url(server, own, at)):
        return
    is_its_own = own is not None or AGENT_PLACE in url
    url = url.replace(AGENT_PLACE, agent.name)
    yield cards.Interface(url, "grpc", "1.0", "" if is_its_own else agent.name)
    if is_its_own or now.lone_in_grpc == agent.name:
        yield cards.Interface(url, "grpc", "0.3")


def _grpc_url(server: ServerSettings, own: int | None, at: str) -> str:
    """Where callers reach gRPC; "" where the system chose the port, which is nobody's to tell from here."""
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
    """What callers of an agent must prove to us."""
    offer = now.offers.get(agent.name)
    auth = offer.authentication if offer is not None else None
    if auth is None:
        return cards.BEARER
    if auth.type == "none":
        return cards.BEARER._replace(optional=True)
    if auth.type == "bearer_token":
        return cards.Security(
            (cards.CardInterface("bearer"),)
        )  # where others are let in too, their tokens are in that header
    own = cards.CardInterface("agent-token", header=auth.header_name or "X-API-Key")
    return cards.Security((own,) if auth.required else (own, *cards.BEARER.ways))


def _may_use(now: Snapshot, agent: AgentUpstream, chain: Chain, now_s: float) -> Callable[[str], bool]:
    """Whether a skill may be asked for: the question of a message that names it."""

    def may(skill: str) -> bool:
        return now.shadows(now_s) or any(
            now.engine.may_list(chain, Question(f"nhi:{agent.name}", each.action, "", skill), now_s)
            for each in (SEND, STREAM)
        )

    return may


def _may_read_more(now: Snapshot, agent: AgentUpstream, chain: Chain, now_s: float) -> bool:
    """Whether a caller that we know may read the agent's extended card."""
    question = Question(f"nhi:{agent.name}", CARD.action, "")
    return bool(chain) and (now.shadows(now_s) or now.engine.may_list(chain, question, now_s))


def proofs_of(view: CardView) -> str:
    """The headers by which callers say who they are."""
    usual = ("Authorization", "X-API-Key")
    return ", ".join(dict.fromkeys((*usual, *(way.header for way in view.security.ways if way.header))))


def signer_of(now: Snapshot) -> cards.CardSigner | None:
    """Our key, where we have one."""
    key = now.signer.key
    return None if key is None else cards.CardSigner(key.algorithm, key.kid, key.sign_bytes)


@dataclass(slots=True)
class CardText:
    """The last documents that were written. A signature is another one each time, and the same card must be the same
    bytes; and anybody may ask, as often as they like, for a card that an agent made to be long in the writing."""

    kept: OrderedDict[Key, tuple[Mapping[str, Any], bytes]] = field(default_factory=OrderedDict)
    size: int = 0

    def of(self, card: Mapping[str, Any], key: Key, write: Callable[[], dict[str, Any]]) -> bytes:
        """The document that is made of an agent's card; `key` is all that it depends on beside it."""
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
    """A card with its caching headers; `known` is the caller's `If-None-Match`, `proofs` the headers that say who it
    is."""
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    scope = "public" if public else "private"
    headers = {"Cache-Control": f"{scope}, max-age={MAX_AGE_S}", "ETag": tag, "Vary": proofs}
    if known and tag in [one.strip() for one in known.split(",")]:
        return ErrorResponse(304, b"", "", headers)
    return ErrorResponse(200, body, JSON, headers)
