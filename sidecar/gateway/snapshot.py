"""The frozen snapshot of everything a request reads.

A snapshot is built and checked while the current one serves, and replaces it in one assignment. A request takes it
once; a failed reload leaves the old one in use.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import orjson

from sidecar.errors import Fault, PolicyError, Reason, Refusal, Together
from sidecar.gateway.error_responses import DenyManner
from sidecar.gateway.kill_switch import DISABLED_FILE, NONE_DISABLED, Disabled, load_disabled
from sidecar.gateway.redaction import ResponseScreen
from sidecar.gateway.routing import (
    AGENTS,
    EVERY,
    ISSUER_PATH,
    MCP,
    METADATA_PATH,
    TASK_API,
    Aliases,
    BodyBounds,
    place_of,
)
from sidecar.http.client import DIRECT, Egress
from sidecar.http.server.refusal_throttle import LABEL as REFUSALS
from sidecar.http.tls import TlsContexts
from sidecar.identity import Audience, Identity
from sidecar.limits import Budgets, load_budgets, rule_label
from sidecar.limits.budgets import entries_of
from sidecar.limits.session_calls import LABEL as SESSION_CALLS
from sidecar.observability.metrics import WIRE_METHODS
from sidecar.policy import Engine, PolicySource
from sidecar.policy.engine import Mode
from sidecar.policy.similar_keys import Keys, folded, similar_key
from sidecar.protocols.a2a.messages import V10
from sidecar.protocols.a2a.operations import SEND, STREAM
from sidecar.settings.agent_endpoints import AgentOffer, Transport
from sidecar.settings.identity import ALGORITHMS
from sidecar.settings.server import AdminCredential
from sidecar.settings.sidecar_file import Settings
from sidecar.settings.upstreams import ProbeSettings, UpstreamSettings as Definition
from sidecar.upstreams.agents import AgentUpstream
from sidecar.upstreams.credentials.signed_tokens import NO_SIGNER, TokenSigner
from sidecar.upstreams.mcp.catalogue import ToolCatalogue
from sidecar.upstreams.mcp.pins import NO_PINS, Pins, Sightings
from sidecar.upstreams.mcp.pins_file import PINS_FILE, load_pins
from sidecar.upstreams.mcp.transport import McpTransport
from sidecar.upstreams.upstream_account import UpstreamAccount
from sidecar.vocabulary import Call, Chain, Decision, Question, RuleRef

if TYPE_CHECKING:
    from sidecar.gateway.request_spans import RequestTracing

MAX_ENDING = 200  # rows, those that end first
MAX_PAST, MAX_PAST_ROWS = 5, 50_000  # policies that served before, and their rows together
MAX_LIMIT_LABELS = 1_000  # of rules with a limit, in metrics; the rest is labelled `other`
SelfTest = Callable[[Engine, PolicySource, Path, Budgets], list[Fault]]
"""Runs the tests of a policy. Returns the faults that prevent the policy from serving."""

T = TypeVar("T")

OIDC_PRESETS = ("keycloak", "entra", "okta")  # their metadata is that of OpenID Connect
# Method names in audit records that no protocol defines.
OWN_METHODS = frozenset(
    {
        "approval",
        "card",
        "push",
        "metadata",
        "preflight",
        "jwks",
        "enter",
        "session/stream",
        "session/end",
        "session/reply",
    }
    | {"evaluation", "search/subject", "search/resource", "search/action"}
)
_noticed = attrgetter(
    "engine.revision", "engine.warnings", "settings", "budgets", "disabled", "keys_digest", "pins", "waiting"
)
BUDGETS_FILE = "budgets.yaml"
TESTS_FOLDER = "tests"


def _names_in(message: str) -> Keys:
    """Returns the names of a message to an agent, with those of the messages in it. Other names do not reach policy."""
    fields = V10.messages[message].fields
    names = frozenset(one.json for one in fields)
    below = {one.json: _names_in(one.type) for one in fields if one.type in V10.messages and not one.many}
    return Keys(names, frozenset(map(folded, names)), dict(below))


_MESSAGES = {operation.action: _names_in(operation.request) for operation in (SEND, STREAM)}


@dataclass(frozen=True, slots=True)
class Service:
    """One MCP server. A call may take `timeout_s` seconds, with progress `longest_s`. `sightings` are the tool
    definitions that were listed and differ from their pin."""

    name: str
    definition: Definition
    upstream: McpTransport
    account: UpstreamAccount
    catalogue: ToolCatalogue
    timeout_s: float
    longest_s: float
    anonymous: bool = False
    scopes: tuple[str, ...] = ()
    sightings: Sightings = field(default_factory=Sightings)
    screen: ResponseScreen | None = None

    @property
    def probe(self) -> ProbeSettings:
        return self.definition.probe

    @property
    def url(self) -> str:
        """The address that is called, "" for a program."""
        return (self.definition.mcp and self.definition.mcp.url) or ""

    @property
    def asked(self) -> ToolCatalogue:
        return self.catalogue

    @property
    def needs_token(self) -> bool:
        """Whether the server receives the caller's own token, or one exchanged for it."""
        return self.definition.credential is not None and self.definition.credential.needs_token

    async def close(self) -> None:
        await self.catalogue.close()
        await self.upstream.close()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a request reads. `base_url` is the sidecar's URL for callers, without a trailing slash.

    `shadow_until` (seconds since the epoch) is when enforcement begins; None means from the start. `keys_digest`
    changes with every file of keys and credentials that settings name. `required` holds the digest of each tool of a
    server that requires pins. `lenient` are the servers that may be sent similar keys. `signer` signs the sidecar's
    tokens. `tls` and `pdp_tls` apply to the next handshake of the data listener and of the enforcement points'
    listener. `offers` describe how agents are offered, `aliases` map agents' own paths to names, `call_routes` are the
    routes that the pipeline found, by path, verb and prefix. `ending` are the rows that end next. `operators` are the
    credentials of the admin listener by their secrets. `waiting` are the changed sections of settings that need a
    restart; `settings` has the running values.
    """

    settings: Settings
    engine: Engine
    budgets: Budgets
    identity: Identity
    services: Mapping[str, Service]
    agents: Mapping[str, AgentUpstream]
    base_url: str
    manner: DenyManner
    bounds: BodyBounds
    audiences: Mapping[str, Audience]
    limit_labels: tuple[str, ...] = ()
    budget_labels: tuple[str, ...] = ()
    limited: tuple[RuleRef, ...] = ()
    ending: tuple[RuleRef, ...] = ()
    disabled: Disabled = NONE_DISABLED
    shadow_until: float | None = None
    keys_digest: str = ""
    pins: Pins = NO_PINS
    required: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    lenient: frozenset[str] = frozenset()
    signer: TokenSigner = NO_SIGNER
    waiting: tuple[str, ...] = ()
    tls: TlsContexts | None = None
    pdp_tls: TlsContexts | None = None
    egress: Egress = DIRECT
    operators: Mapping[bytes, AdminCredential] = field(default_factory=dict)
    offers: Mapping[str, AgentOffer] = field(default_factory=dict)
    aliases: Aliases = field(default_factory=dict)
    call_routes: dict[tuple[str, str, str], Any] = field(default_factory=dict, init=False, compare=False)

    def shadows(self, now_s: float) -> bool:
        """Reports whether refusals by policy or limits are only recorded."""
        return self.shadow_until is not None and now_s < self.shadow_until

    def says_the_same_as(self, other: Snapshot) -> bool:
        """Reports whether operators would notice no difference: in policy, settings, budgets, pins, keys, and disabled
        principals."""
        return _noticed(self) == _noticed(other)

    def approves(self, server: str, tool: str, digest: str) -> bool:
        """Reports whether pins allow a tool with this definition. An empty digest matches no pin."""
        required = self.required.get(server)
        return required is None or (digest != "" and required.get(tool) == digest)

    def service(self, server: str) -> Service:
        """Returns a server. Runs after policy, so that only callers with permission learn whether it exists. Raises
        Refusal(UPSTREAM_UNKNOWN)."""
        service = self.services.get(server)
        if service is None:
            raise Refusal(Reason.UPSTREAM_UNKNOWN)
        return service

    def similar_key(self, call: Call, decision: Decision) -> str | None:
        """Returns a pointer to a key of the arguments that a rule, or the upstream, may confuse with another one. In a
        message to an agent, only keys that a rule reads are compared. A tool's keys are those of its schema."""
        if call.upstream in self.lenient:
            return None
        is_mcp = call.protocol == "mcp"
        keys = None if is_mcp else _MESSAGES.get(call.method)
        return similar_key(call.questions[0].arguments, keys, decision.names_read, siblings=is_mcp)

    def has_upstream(self, name: str) -> bool:
        return name in self.services or name in self.agents

    def has_method(self, name: str) -> bool:
        return name in WIRE_METHODS or name in OWN_METHODS

    def has(self, question: Question) -> bool | None:
        """Reports whether the object of a question exists; None if that is not known. Does no I/O."""
        word, _, rest = question.object.partition(":")
        if word == "nhi":
            agent = self.agents.get(rest)
            return agent.cards.has_skill(question.name) if agent and question.name else self.has_upstream(rest)
        service = self.services.get(question.server)
        return False if service is None else service.catalogue.has(word, question.name)

    @property
    def upstreams(self) -> Mapping[str, Service | AgentUpstream]:
        return {**self.services, **self.agents}

    def agent(self, name: str) -> AgentUpstream:
        """Returns an agent. Runs after policy, so that only callers with permission learn whether it exists. Raises
        Refusal(UPSTREAM_UNKNOWN)."""
        agent = self.agents.get(name)
        if agent is None:
            raise Refusal(Reason.UPSTREAM_UNKNOWN)
        return agent

    def decide(self, chain: Chain, call: Call, now_s: float) -> Decision:
        """Decides every question of the call, for the whole chain, under one revision."""
        questions = call.questions
        if call.upstream != EVERY:
            mode: Mode = "call" if not call.session else "list" if call.protocol == "a2a" else "session"
            decision = self.engine.decide(chain, questions[0], now_s, mode)
            if len(questions) == 1:
                return decision
            return all_of([decision, *[self.engine.decide(chain, more, now_s) for more in questions[1:]]])
        if call.protocol == "a2a":
            return any_of(self.ask_each(chain, call, now_s)) or self.engine.decide(chain, questions[0], now_s)
        return any_of(self.enter_each(chain, call, now_s)) or self.engine.enter(chain, questions[0], now_s)

    def enter_each(self, chain: Chain, call: Call, now_s: float) -> Mapping[str, Decision]:
        """Returns the decision for each server of a call to all servers, in the order of their names."""
        method = call.question.action
        return {
            name: self.engine.enter(chain, Question(f"nhi:{name}", method, name), now_s)
            for name in sorted(self.services)
        }

    def ask_each(self, chain: Chain, call: Call, now_s: float) -> Mapping[str, Decision]:
        """Returns the decision for each agent of a question to all agents, in the order of their names."""
        first = call.question
        questions = {name: first._replace(object=f"nhi:{name}") for name in sorted(self.agents)}
        return {name: self.engine.decide(chain, question, now_s) for name, question in questions.items()}

    def speaks(self, agent: str, transport: Transport) -> bool:
        """Reports whether an agent is offered to callers over a transport."""
        offer = self.offers.get(agent)
        return offer is None or transport in offer.transport_protocols

    @property
    def lone_in_grpc(self) -> str:
        """The agent of a gRPC call that names none: the only one offered there; "" if there are several."""
        found = [name for name in self.agents if self.speaks(name, "grpc")]
        return found[0] if len(found) == 1 else ""

    def meant_in_grpc(self, label: str) -> str:
        """Returns the agent of a gRPC call that names none, from the first `label` of the authority."""
        return label if label in self.agents else self.lone_in_grpc

    def audience(self, server: str, folder: str = MCP) -> Audience:
        place = place_of(server, folder)
        return self.audiences.get(place) or Audience(f"{self.base_url}/{place}")

    def metadata_url(self, server: str, folder: str = MCP, alias: str = "") -> str:
        base = urlsplit(self.base_url)  # its path follows the well-known part (RFC 9728, 3.1)
        return f"{base.scheme}://{base.netloc}{METADATA_PATH}{base.path}{alias or '/' + place_of(server, folder)}"

    @property
    def issuer_metadata_url(self) -> str:
        """The metadata URL of the first issuer (RFC 8414, OpenID Connect Discovery); "" without one, and for an issuer
        that is no URL."""
        issuers = self.settings.identity.issuers
        if not issuers:
            return ""
        try:
            issuer = urlsplit(issuers[0].issuer.rstrip("/"))
        except ValueError:
            return ""
        if issuers[0].preset in OIDC_PRESETS:
            return f"{issuer.geturl()}/.well-known/openid-configuration"
        return f"{issuer.scheme}://{issuer.netloc}{ISSUER_PATH}{issuer.path}" if issuer.netloc else ""

    def resource_metadata(self, server: str, folder: str = MCP, alias: str = "") -> bytes:
        """Returns the RFC 9728 document of an upstream's address, the same for an unknown name. It describes the
        address called (3.3); a token for one address of the upstream is valid for all of them."""
        known: Mapping[str, Service | AgentUpstream] = self.agents if folder == AGENTS else self.services
        service = known.get(server)
        gate = self.audience(server, folder).gate
        issuers = () if gate is not None and gate.required else self.settings.identity.issuers
        document: dict[str, object] = {
            "resource": f"{self.base_url}{alias or '/' + place_of(server, folder)}",
            "authorization_servers": [issuer.issuer for issuer in issuers],  # none if no token of theirs is accepted
            "bearer_methods_supported": ["header"],
            "dpop_signing_alg_values_supported": sorted(ALGORITHMS),
        }
        if self.tls is not None and self.tls.trust:
            document["tls_client_certificate_bound_access_tokens"] = True
        if service is not None and service.scopes:
            document["scopes_supported"] = list(service.scopes)
        return orjson.dumps(document)


def any_of(answers: Mapping[str, Decision]) -> Decision | None:
    """Combines decisions of many servers: allowed if any is, until the latest end. None without servers."""
    allowed = [answer for answer in answers.values() if answer.allowed]
    told = allowed or list(answers.values())
    if not told:
        return None
    ends = [answer.until for answer in allowed]
    return told[0]._replace(
        links=tuple(link for answer in told for link in answer.links),
        facts=tuple(fact for answer in told for fact in answer.facts),
        names_read=tuple(read for answer in told for read in answer.names_read),
        until=None if None in ends else max((end for end in ends if end is not None), default=None),
        would_deny=_each_once(answer.would_deny for answer in told),
        would_allow=_each_once(answer.would_allow for answer in told),
    )


def all_of(answers: Sequence[Decision]) -> Decision:
    """Combines the decisions on several questions of one call: denied if any is, until the earliest end."""
    decisive = next((answer for answer in answers if not answer.allowed), answers[0])
    return decisive._replace(
        links=tuple(link for answer in answers for link in answer.links),
        facts=tuple(fact for answer in answers for fact in answer.facts),
        names_read=tuple(read for answer in answers for read in answer.names_read),
        limits=_each_once(answer.limits for answer in answers) if decisive.allowed else (),
        until=min((answer.until for answer in answers if answer.until is not None), default=None),
        would_deny=_each_once(answer.would_deny for answer in answers),
        would_allow=_each_once(answer.would_allow for answer in answers),
        approvals=_each_once(answer.approvals for answer in answers) if decisive.allowed else (),
    )


def _each_once(found: Iterable[tuple[T, ...]]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(one for some in found for one in some))


@dataclass(frozen=True, slots=True)
class Beside:
    """The other files in the policy's folder."""

    budgets: Budgets
    disabled: Disabled
    pins: Pins

    @classmethod
    def read(cls, folder: Path, known_pins: Pins = NO_PINS) -> Beside:
        """Reads the files; `known_pins` are the previous ones. Raises ConfigError with every fault of all three."""
        together = Together()
        with together.noted():
            budgets = load_budgets(folder / BUDGETS_FILE)
        with together.noted():
            disabled = load_disabled(folder / DISABLED_FILE)
        with together.noted():
            pins = load_pins(folder / PINS_FILE, known_pins)
        together.refuse()
        return cls(budgets, disabled, pins)


def snapshot_from(
    settings: Settings,
    source: PolicySource,
    beside: Beside,
    *,
    identity: Identity,
    services: Mapping[str, Service],
    agents: Mapping[str, AgentUpstream],
    base_url: str,
    keys_digest: str,
    self_test: SelfTest,
    signer: TokenSigner = NO_SIGNER,
    tls: TlsContexts | None = None,
    pdp_tls: TlsContexts | None = None,
    egress: Egress = DIRECT,
    operators: Mapping[bytes, AdminCredential] = {},
) -> Snapshot:
    """Builds a snapshot and, with `policy.self_test`, runs the policy's own tests. Raises PolicyError with every test
    that fails."""
    policy, pins = settings.policy, beside.pins
    offers = {name: offer for name, _, offer in settings.offers()}
    budgets = replace(beside.budgets, offers=entries_of(offers))
    engine, limited = Engine(source), source.limited(MAX_LIMIT_LABELS)
    tested = policy.self_test and (policy.path / TESTS_FOLDER).is_dir()
    if tested and (faults := self_test(engine, source, policy.path, beside.budgets)):
        raise PolicyError(faults)
    server, answers = settings.server, settings.answers
    all_services, all_agents = services.values(), agents.values()
    audiences = {
        MCP: Audience(
            f"{base_url}/{MCP}",
            any(one.anonymous for one in all_services),
            keeps_token=any(one.needs_token for one in all_services),
        ),
        TASK_API: Audience(f"{base_url}/{TASK_API}", keeps_token=any(one.needs_token for one in all_agents)),
    }
    for name, one in services.items():
        place = place_of(name)
        audiences[place] = Audience(f"{base_url}/{place}", one.anonymous, one.scopes, one.needs_token)
    for name, agent in agents.items():
        place, own_path = place_of(name, AGENTS), offers[name].base_path if name in offers else None
        own_url = f"{base_url}{own_path}" if own_path else ""
        audiences[place] = Audience(
            f"{base_url}/{place}", agent.anonymous, agent.scopes, agent.needs_token, identity.gates.get(name), own_url
        )
    return Snapshot(
        settings=settings,
        engine=engine,
        budgets=budgets,
        identity=identity,
        services=services,
        agents=agents,
        base_url=base_url,
        manner=DenyManner(answers.deny_style, answers.disclosure),
        bounds=BodyBounds(server.max_body_bytes, server.body_timeout_s, server.max_response_bytes),
        audiences=audiences,
        limit_labels=(
            SESSION_CALLS,
            REFUSALS,
            *dict.fromkeys(rule_label(rule.id) for rule in limited),
            *budgets.labels,
        ),
        budget_labels=budgets.spending_labels,
        limited=limited,
        ending=source.ending(MAX_ENDING, time.time()),
        disabled=beside.disabled,
        shadow_until=policy.shadow_until if policy.mode == "shadow" else None,
        keys_digest=keys_digest,
        pins=pins,
        lenient=frozenset(name for name, one in settings.upstreams.items() if one.similar_keys == "allow"),
        required=pins.required({name: service.definition.pins for name, service in services.items()}),
        signer=signer,
        tls=tls,
        pdp_tls=pdp_tls,
        operators=operators,
        egress=egress,
        offers=offers,
        aliases={offer.base_path: name for name, offer in offers.items() if offer.base_path is not None},
    )


class PastPolicy(NamedTuple):
    """A policy that served until `until_s`, in seconds since the epoch."""

    until_s: float
    engine: Engine
    budgets: Budgets


@dataclass(slots=True)
class Live:
    """The current snapshot. `clock` returns seconds since the epoch. `requests` are those in progress, each with its
    snapshot (`now`). `tracing` is None without OpenTelemetry."""

    current: Snapshot
    clock: Callable[[], float]
    requests: set[Any] = field(default_factory=set)
    tracing: RequestTracing | None = None
    past: tuple[PastPolicy, ...] = ()
    """The policies that served before, newest first: at most MAX_PAST, with MAX_PAST_ROWS rows together."""
    _readers: dict[int, int] = field(default_factory=dict)

    def serve(self, new: Snapshot) -> None:
        """Puts a snapshot in force."""
        old, self.current = self.current, new
        known = {new.engine.revision, old.engine.revision}
        if len(known) > 1:
            others = (past for past in self.past if past.engine.revision not in known)
            before = (PastPolicy(self.clock(), old.engine, old.budgets), *others)[:MAX_PAST]
            rows = accumulate(sum(past.engine.rule_counts.values()) for past in before)
            self.past = tuple(past for past, so_far in zip(before, rows, strict=True) if so_far <= MAX_PAST_ROWS)

    def take(self) -> Snapshot:
        """Returns the current snapshot for work other than a request, which must pass it to `leave` at its end."""
        taken = self.current
        self._readers[id(taken)] = self._readers.get(id(taken), 0) + 1
        return taken

    def leave(self, taken: Snapshot) -> None:
        """Releases a snapshot."""
        self._readers[id(taken)] -= 1
        if not self._readers[id(taken)]:
            del self._readers[id(taken)]

    def is_read(self, snapshot: Snapshot) -> bool:
        """Reports whether a request or other work in progress uses this snapshot."""
        return id(snapshot) in self._readers or any(request.now is snapshot for request in self.requests)
