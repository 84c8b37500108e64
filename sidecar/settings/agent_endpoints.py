"""Settings of the addresses of an agent, a program or an upstream: A2AEndpoint, A2AAuth and A2ARateLimit of the
original data models."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Final, Literal, get_args
from uuid import UUID

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, WithJsonSchema

from sidecar.settings.credentials import RESERVED_HEADERS
from sidecar.settings.field_types import (
    Count,
    HeaderName,
    Many,
    NhiName,
    PathField,
    PerSecond,
    Quota,
    Section,
    VariableName,
    named,
    rate_faults,
)
from sidecar.settings.secrets import fault_of_secret, read_secret
from sidecar.settings.validation_errors import Finding, reject
from sidecar.settings.yaml_nodes import Loc

Transport = Literal["json_rpc", "http_json", "grpc"]
TRANSPORTS: Final[tuple[Transport, ...]] = get_args(Transport)
BASE_PATH: Final = r"(/[A-Za-z0-9_~-][A-Za-z0-9_.~-]*)+"  # readers differ on segments that begin with a dot
MAX_BASE_PATH: Final = 256
# First segments of paths that no agent can have: the sidecar's own, and reserved ones.
OURS: Final = frozenset(
    {"mcp", "agents", "a2a", "api", "livez", "readyz", "metrics", "status", "access", "ext-authz", "console"}
)
BEARER_HEADER, KEY_HEADER = "authorization", "x-api-key"
# Headers with a meaning of their own to the sidecar or to proxies in front of it.
_TAKEN: Final = RESERVED_HEADERS | (
    {"dpop", "forwarded", "if-none-match", "proxy-authorization", "traceparent", "tracestate", "x-run-id"}
    | {"x-thread-id"}
)
_TAKEN_BEGINNINGS: Final = ("a2a-", "grpc-", "mcp-", "x-a2a-", "x-forwarded-")

_SEEDS_PATH: Final = re.compile(r"/agents/\{[A-Za-z_]+\}/v1/?")


def _usual_path(path: object) -> object:
    """Ignores the example path of the original data models, `/agents/{agentId}/v1`, which every agent has anyway."""
    return None if isinstance(path, str) and _SEEDS_PATH.fullmatch(path) else path


def _own_path(path: str) -> str:
    if path.split("/")[1].lower() in OURS:
        hint = "for example /tools/summarise; the agent is always at /agents/<name> too"
        reject(f"/{path.split('/')[1]} is reserved for addresses of the sidecar", "S174", hint)
    return path


BasePath = Annotated[
    str,
    Field(max_length=MAX_BASE_PATH, json_schema_extra={"pattern": f"^{BASE_PATH}$"}),
    named(BASE_PATH, "path", "for example /tools/summarise, without a trailing slash"),
    AfterValidator(_own_path),
]
OwnPath = Annotated[
    BasePath | None,
    BeforeValidator(_usual_path),
    WithJsonSchema(
        {"type": "string", "maxLength": MAX_BASE_PATH, "pattern": rf"^({BASE_PATH}|/agents/\{{[A-Za-z_]+\}}/v1/?)$"}
    ),
]


class EndpointAuth(Section):
    """A credential for the addresses of this agent only, in addition to those of `identity`."""

    type: Literal["bearer_token", "api_key", "none"]
    """Type of the credential. `none` requires no credential: callers without one are `anonymous`, which rules must
    still allow."""
    token_path: PathField | None = None
    """File with the token, at least 32 random characters."""
    token_env: VariableName | None = None
    """Variable in the environment of the sidecar that holds the token, instead of a file."""
    header_name: HeaderName | None = None
    """Header that carries the token. Default: `Authorization: Bearer`, or `X-API-Key` for an API key."""
    principal: NhiName | None = None
    """NHI that callers with the token act as."""
    required: bool = True
    """Whether callers without this token are refused. Otherwise, they can use any other credential."""

    _token: str = PrivateAttr("")

    def read_from(self, environ: Mapping[str, str]) -> Finding | None:
        """Reads the token of `token_env`, if that is set. Returns what is wrong with it, or None."""
        if self.token_env is None:
            return None
        self._token = environ.get(self.token_env, "")
        if not self._token:
            return Finding(f"the variable {self.token_env} is not set", "S204", "set it, or write token_path")
        return fault_of_secret(self._token, "ours")

    def token(self) -> str:
        """The token; "" if there is none. Raises SettingsError for a file that cannot be read or holds a weak token."""
        return self._token if self.token_path is None else read_secret(self.token_path, "ours")

    @property
    def header(self) -> str:
        """The name of the header that holds the token, in lower case."""
        if self.type == "bearer_token" or self.header_name is None:
            return BEARER_HEADER if self.type == "bearer_token" else KEY_HEADER
        return self.header_name.lower()

    def _faults(self) -> Iterator[Finding]:
        yield from self._without_token() if self.type == "none" else (*self._missing(), *self._misplaced())

    def _without_token(self) -> Iterator[Finding]:
        for key in ("token_path", "token_env", "header_name", "principal"):
            if getattr(self, key) is not None:
                yield Finding(f"{key} does not apply to type: none", "S171", "remove it", (key,), on_key=True)
        if self.required and "required" in self.model_fields_set:
            yield Finding("type: none has no token to require", "S171", "remove it", ("required",), on_key=True)

    def _missing(self) -> Iterator[Finding]:
        if self.principal is None:
            yield Finding('the key "principal" is missing', "Y102", f"type: {self.type} needs it", on_key=True)
        if self.token_path is None and self.token_env is None:
            yield Finding('the key "token_path" is missing', "Y102", f"type: {self.type} needs it", on_key=True)
        elif self.token_path is not None and self.token_env is not None:
            yield Finding("set either token_path or token_env, not both", "S171", "remove one of them", ("token_env",))

    def _misplaced(self) -> Iterator[Finding]:
        name, at = (self.header_name or "").lower(), ("header_name",)
        if self.type == "bearer_token" and name not in ("", BEARER_HEADER):
            hint = "write type: api_key, or remove header_name"
            yield Finding("a bearer token is always sent in Authorization", "S171", hint, at)
        elif self.type == "api_key" and name == BEARER_HEADER:
            yield Finding("Authorization is the header of a bearer token", "S171", "write type: bearer_token", at)
        elif name in _TAKEN or name.startswith(_TAKEN_BEGINNINGS):
            yield Finding(
                f"{self.header_name} is a reserved header", "S171", "write another, such as X-Agent-Token", at
            )
        elif name.endswith("-bin"):
            yield Finding(
                f"{self.header_name} has binary values in gRPC", "S171", "write another, such as X-Agent-Token", at
            )


class RateLimiting(Section):
    """A `tools:` entry for `nhi:<name>`. Entries in `budgets.yaml` can only lower these limits."""

    requests_per_second: PerSecond | None = None
    """Maximum number of requests per second."""
    burst: Count | None = None
    """Maximum number of requests at once. Default: one second's worth."""
    daily_quota: Quota | None = None
    """Maximum number of requests per day (UTC). 0 means unlimited."""
    per_principal: bool = False
    """Whether each caller has its own counters. Otherwise, all callers share them."""

    def _faults(self) -> Iterator[Finding]:
        yield from rate_faults(self.requests_per_second, self.burst)


class AgentOffer(Section):
    """How an agent is offered to callers: A2AEndpoint of the original data models."""

    agent_id: Annotated[UUID | None, Field(strict=False)] = None
    """UUID of the agent in the task API, in addition to its name."""
    base_path: OwnPath = None
    """A second address, in addition to `/agents/<name>`. The card at each address names that address."""
    grpc_port: Annotated[int | None, Field(ge=0, le=65535)] = None
    """A gRPC port of its own, in addition to `server.grpc`, at the same host, for callers that cannot name a tenant."""
    transport_protocols: Many[Transport] = TRANSPORTS
    """Bindings that callers may use. Other bindings are omitted from the card and refused."""
    authentication: EndpointAuth | None = None
    """A credential for the addresses of this agent only."""
    rate_limiting: RateLimiting | None = None
    """Limits of the agent, in addition to those of `budgets.yaml`."""


def offer_faults(offer: AgentOffer, *, anonymous: bool) -> Iterator[Finding]:
    """The contradictions in an offer. `anonymous`: whether callers without a credential reach the agent."""
    spoken, auth = offer.transport_protocols, offer.authentication
    if not spoken:
        hint = "write json_rpc, http_json or grpc; without the key, all three apply"
        yield Finding("transport_protocols lists no protocol", "S174", hint, ("a2a", "transport_protocols"))
    elif offer.grpc_port is not None and "grpc" not in spoken:
        hint = "add grpc to transport_protocols, or remove it"
        yield Finding("grpc_port needs grpc in transport_protocols", "S174", hint, ("a2a", "grpc_port"), on_key=True)
    if offer.base_path is not None and spoken == ("grpc",):
        yield Finding("base_path has no effect for gRPC", "S174", "remove it", ("a2a", "base_path"), on_key=True)
    if auth is None:
        return
    if auth.type == "none" and not anonymous:
        hint = "add anonymous: true; rules must still allow anonymous"
        yield Finding("type: none needs anonymous callers", "S171", hint, ("a2a", "authentication", "type"))
    if auth.type != "none" and auth.required and anonymous:
        hint = "write required: false, or remove anonymous"
        yield Finding("anonymous callers have no token", "S171", hint, ("a2a", "authentication"))


def path_faults(offers: Iterable[tuple[Loc, AgentOffer]]) -> Iterator[Finding]:
    """Conflicts between base paths: two agents with the same path, or one below the other's."""
    seen: dict[str, str] = {}
    for at, offer in offers:
        path = offer.base_path
        if path is None:
            continue
        for other, where in seen.items():
            if f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/"):
                what = f"{path} and {other} of {where} overlap"
                yield Finding(what, "S174", "give each agent its own path, none below another", (*at, "base_path"))
                break
        seen.setdefault(path, ".".join(map(str, at)))


def port_faults(offers: Iterable[tuple[Loc, AgentOffer]], shared: int | None) -> Iterator[Finding]:
    """Agents that speak only gRPC, but have no gRPC port that cards can name. `shared` is the port of `server.grpc`, or
    None."""
    for at, offer in offers:
        port = offer.grpc_port if offer.grpc_port is not None and shared is not None else shared
        if offer.transport_protocols == ("grpc",) and not port:
            hint = "write server: {grpc: ...} with a port, or allow json_rpc or http_json"
            yield Finding(
                "grpc is the only protocol, and there is no gRPC listener", "S174", hint, (*at, "transport_protocols")
            )
