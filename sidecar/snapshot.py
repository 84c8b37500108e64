"""What does a request read, all of it from one moment?

One frozen value, built aside, checked, and swapped by one assignment. A request takes it once; a reload that fails
leaves the old one serving (CONTRACT 4).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import orjson

from sidecar.answers import Manner
from sidecar.arrival import Bounds
from sidecar.errors import Reason, Refusal
from sidecar.identity import Audience, Identity
from sidecar.limits import Budgets, load_budgets, rule_label
from sidecar.limits.sessions import LABEL as SESSION_CALLS
from sidecar.policy import Engine, load_policy
from sidecar.settings import Settings
from sidecar.settings.upstreams import Upstream as Definition
from sidecar.upstreams import Catalogue, Upstream
from sidecar.vocabulary import Call, Chain, Decision

METADATA_PATH = "/.well-known/oauth-protected-resource"
BUDGETS_FILE = "budgets.yaml"


@dataclass(frozen=True, slots=True)
class Service:
    """One MCP server that stands behind us."""

    name: str
    definition: Definition
    upstream: Upstream
    catalogue: Catalogue
    timeout_s: float
    anonymous: bool = False
    scopes: tuple[str, ...] = ()

    async def close(self) -> None:
        """Let go of its connections."""
        await self.catalogue.close()
        await self.upstream.close()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a request reads. `base_url` is our address as callers write it, without a slash at its end."""

    settings: Settings
    engine: Engine
    budgets: Budgets
    identity: Identity
    services: Mapping[str, Service]
    base_url: str
    manner: Manner
    bounds: Bounds
    audiences: Mapping[str, Audience]
    limit_labels: tuple[str, ...] = ()

    def service(self, server: str) -> Service:
        """The server behind a name. Asked after policy, so that only who may call it learns whether it is there."""
        service = self.services.get(server)
        if service is None:
            raise Refusal(Reason.UPSTREAM_UNKNOWN)
        return service

    def decide(self, chain: Chain, call: Call, now_s: float) -> Decision:
        """Every question of the call, for the whole chain, under one revision. The first no is the answer."""
        first = call.question
        asked = self.engine.enter if call.session else self.engine.decide
        decision = asked(chain, first, now_s)
        if len(call.questions) == 1:
            return decision
        answers = [decision, *(self.engine.decide(chain, more, now_s) for more in call.questions[1:])]
        ends = [answer.until for answer in answers if answer.until is not None]
        links = tuple(link for answer in answers for link in answer.links)
        decisive = next((answer for answer in answers if not answer.allowed), decision)
        return decisive._replace(links=links, until=min(ends, default=None))

    def audience(self, server: str) -> Audience:
        """What a token must be meant for, to be used at this server's address."""
        return self.audiences.get(server) or Audience(self.resource(server))

    def resource(self, server: str) -> str:
        """The server's address, as RFC 8707 and RFC 9728 name it."""
        return resource_at(self.base_url, server)

    def metadata_url(self, server: str) -> str:
        """Where RFC 9728 metadata of the server's address is found."""
        return f"{self.base_url}{METADATA_PATH}/mcp/{server}"

    def resource_metadata(self, server: str) -> bytes:
        """The RFC 9728 document of a server's address: the same for a name that is none."""
        service = self.services.get(server)
        document: dict[str, object] = {
            "resource": self.resource(server),
            "authorization_servers": [issuer.issuer for issuer in self.settings.identity.issuers],
            "bearer_methods_supported": ["header"],
        }
        if service is not None and service.scopes:
            document["scopes_supported"] = list(service.scopes)
        return orjson.dumps(document)


def resource_at(base_url: str, server: str) -> str:
    """A server's address under ours."""
    return f"{base_url}/mcp/{server}"


def snapshot_from(
    settings: Settings, *, identity: Identity, services: Mapping[str, Service], base_url: str
) -> Snapshot:
    """Read and check models, rows and budgets. Raises PolicyError with every fault."""
    policy = settings.policy
    source = load_policy(policy.models, policy.path, scopes=policy.scopes, names=frozenset(settings.upstreams))
    budgets = load_budgets(policy.path / BUDGETS_FILE)
    return Snapshot(
        settings=settings,
        engine=Engine(source),
        budgets=budgets,
        identity=identity,
        services=services,
        base_url=base_url,
        manner=Manner(settings.answers.deny_style, settings.answers.disclosure),
        bounds=Bounds(
            settings.server.max_body_bytes, settings.server.body_timeout_s, settings.server.max_response_bytes
        ),
        audiences={
            name: Audience(resource_at(base_url, name), service.anonymous, service.scopes)
            for name, service in services.items()
        },
        limit_labels=(
            SESSION_CALLS,
            *(rule_label(rule.id) for rule in source.rules if rule.max_calls_per_hour),
            *budgets.labels,
        ),
    )


@dataclass(slots=True)
class Live:
    """The snapshot that serves now. `build` makes the next one; it raises ConfigError and changes nothing."""

    current: Snapshot
    clock: Callable[[], float]
    build: Callable[[Snapshot], Awaitable[Snapshot]]
    _readers: dict[int, int] = field(default_factory=dict)

    def take(self) -> Snapshot:
        """The snapshot of one request, which gives it back with `leave` when it is over."""
        taken = self.current
        self._readers[id(taken)] = self._readers.get(id(taken), 0) + 1
        return taken

    def leave(self, taken: Snapshot) -> None:
        """One request less reads it."""
        self._readers[id(taken)] -= 1
        if not self._readers[id(taken)]:
            del self._readers[id(taken)]

    def is_read(self, snapshot: Snapshot) -> bool:
        """Whether a request is under way that took it."""
        return id(snapshot) in self._readers
