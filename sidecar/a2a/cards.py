"""What does an agent's card say to whom?

The agent's own, written anew: our addresses, the skills that this caller may use, our signature. It is open to
everybody, as A2A wants it (without a credential it shows what `anonymous` may use), and what a known caller sees is
kept from shared caches. The seed's form is made of the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

from sidecar.answers import JSON, Told
from sidecar.arrival import AGENTS
from sidecar.compact import compact_json
from sidecar.errors import Reason, Refusal
from sidecar.protocols.a2a import cards
from sidecar.protocols.a2a.operations import SEND, STREAM, Binding
from sidecar.settings.addresses import Address
from sidecar.settings.offers import Transport
from sidecar.snapshot import Snapshot
from sidecar.upstreams.agents import Agent
from sidecar.vocabulary import Chain, Question

MAX_AGE_S: Final = 60
MAX_WRITTEN: Final = 256
MAX_WRITTEN_BYTES: Final = 32 * 1024 * 1024
TRANSPORT_OF: Final[Mapping[Binding, Transport]] = {"jsonrpc": "json_rpc", "http_json": "http_json", "grpc": "grpc"}
Key = tuple[str, str, str, "View"]
"""The agent, the form, the key of the signature, and who sees it."""


def named(now: Snapshot, name: str) -> Agent:
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


class View(NamedTuple):
    """What our card of an agent depends on, beside the agent's own: our addresses, and the skills that it shows."""

    interfaces: tuple[cards.Interface, ...]
    skills: frozenset[str]
    security: cards.Security = cards.BEARER


def view_of(now: Snapshot, agent: Agent, card: Mapping[str, Any], chain: Chain, at: str, now_s: float) -> View:
    """How this chain may see a card of the agent's; `at` is the agent's address as the caller called it. Raises
    Refusal(UPSTREAM_UNKNOWN) where nobody could call it: what is spoken there came with a reload, and its listener
    needs a restart."""
    if not (found := interfaces(now, agent, at)):
        raise Refusal(Reason.UPSTREAM_UNKNOWN)
    may_use = _may_use(now, agent, chain, now_s)
    skills = frozenset(skill["id"] for skill in card.get("skills", ()) if may_use(skill["id"]))
    return View(found, skills, security_of(now, agent))


def ours(agent: Agent, card: Mapping[str, Any], view: View) -> dict[str, Any]:
    """A card of the agent's, canonical, as ours."""
    return cards.ours(
        card,
        view.interfaces,
        view.skills.__contains__,
        agent_url=agent.url,
        has_extended=True,
        security=view.security,
    )


def address_of(now: Snapshot, agent: Agent, alias: str, base: str) -> str:
    """An agent's address as its caller called it: by the `alias` that it has, or as all agents are; `base` is ours."""
    return f"{base or now.base_url}{alias or f'/{AGENTS}/{agent.name}'}"


def interfaces(now: Snapshot, agent: Agent, at: str) -> tuple[cards.Interface, ...]:
    """Every address of ours for this agent, in the order in which we would be called, beginning with that one."""
    found = [
        cards.Interface(f"{at}/", "jsonrpc", "1.0"),
        cards.Interface(at, "http_json", "1.0"),
        cards.Interface(f"{at}/", "jsonrpc", "0.3"),
        cards.Interface(at, "http_json", "0.3"),
    ]
    address = now.settings.server.grpc
    if isinstance(address, Address):
        host = urlsplit(at).hostname or address.host
        own = agent.grpc_port
        port = own if own is not None else address.port
        if port:  # what the system chose is nobody's to tell from here
            tenant = "" if own is not None else agent.name
            found.append(cards.Interface(f"{host}:{port}", "grpc", "1.0", tenant))
            if own is not None or now.lone_in_grpc == agent.name:
                found.append(cards.Interface(f"{host}:{port}", "grpc", "0.3"))
    return tuple(one for one in found if now.speaks(agent.name, TRANSPORT_OF[one.binding]))


def security_of(now: Snapshot, agent: Agent) -> cards.Security:
    """What callers of an agent must prove to us."""
    offer = now.offers.get(agent.name)
    auth = offer.authentication if offer is not None else None
    if auth is None:
        return cards.BEARER
    if auth.type == "none":
        return cards.BEARER._replace(optional=True)
    if auth.type == "bearer_token":
        return cards.Security((cards.Way("bearer"),))  # where others are let in too, their tokens are in that header
    own = cards.Way("agent-token", header=auth.header_name or "X-API-Key")
    return cards.Security((own,) if auth.required else (own, *cards.BEARER.ways))


def _may_use(now: Snapshot, agent: Agent, chain: Chain, now_s: float) -> Callable[[str], bool]:
    """Whether a skill may be asked for: the question of a message that names it."""

    def may(skill: str) -> bool:
        return now.shadows(now_s) or any(
            now.engine.may_list(chain, Question(f"nhi:{agent.name}", each.action, "", skill), now_s)
            for each in (SEND, STREAM)
        )

    return may


def proofs_of(view: View) -> str:
    """The headers by which callers say who they are."""
    usual = ("Authorization", "X-API-Key")
    return ", ".join(dict.fromkeys((*usual, *(way.header for way in view.security.ways if way.header))))


def signer_of(now: Snapshot) -> cards.Signer | None:
    """Our key, where we have one."""
    key = now.signer.key
    return None if key is None else cards.Signer(key.algorithm, key.kid, key.sign_bytes)


@dataclass(slots=True)
class Written:
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


def told(body: bytes, *, public: bool, known: str, proofs: str) -> Told:
    """A card with its caching headers; `known` is the caller's `If-None-Match`, `proofs` the headers that say who it
    is."""
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    scope = "public" if public else "private"
    headers = {"Cache-Control": f"{scope}, max-age={MAX_AGE_S}", "ETag": tag, "Vary": proofs}
    if known and tag in [one.strip() for one in known.split(",")]:
        return Told(304, b"", "", headers)
    return Told(200, body, JSON, headers)
