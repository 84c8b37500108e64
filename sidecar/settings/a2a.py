"""Settings of A2A upstreams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

from pydantic import AfterValidator, Field

from sidecar.settings.agent_endpoints import TRANSPORTS, EndpointAuth, OwnPath, RateLimiting, Transport
from sidecar.settings.credentials import CREDENTIAL_HEADERS, RESERVED_HEADERS
from sidecar.settings.field_types import Count, HeaderName, HeaderValue, HttpUrl, Many, Seconds, Section, split_url
from sidecar.settings.validation_errors import Finding

CARD_PATH = "/.well-known/agent-card.json"


def _agent_url(text: str) -> str:
    split_url(text, "http", "https", "grpc", "grpcs")
    return text


AgentUrl = Annotated[str, AfterValidator(_agent_url)]


class A2aUpstream(Section):
    """An A2A agent. One of its interfaces is enough: to callers it is offered in every binding and version."""

    url: AgentUrl
    """The address of that interface: `http(s)://` for JSON-RPC and HTTP+JSON, `grpc(s)://host:port` for gRPC."""
    binding: Literal["jsonrpc", "http_json", "grpc"] | None = None
    """What is spoken there; by default `grpc` for a grpc address, else `jsonrpc`."""
    version: Literal["auto", "0.3", "1.0"] = "auto"
    """The version that is spoken there; `auto` is 0.3 where the agent's card names that alone for this binding, else
    1.0."""
    card_url: HttpUrl | None = None
    """Where its card is; by default `/.well-known/agent-card.json` at the host of `url`. A card is read for what the
    agent can do, and tells us no address to call."""
    agent_id: Annotated[UUID | None, Field(strict=False)] = None
    """The UUID by which the task API knows it, beside its name."""
    grpc_port: Annotated[int | None, Field(ge=0, le=65535)] = None
    """A port of its own beside `server.grpc`, at the same host, for callers that can name no tenant."""
    base_path: OwnPath = None
    """Another address of it beside `/agents/<name>`, in every way: its card there names that one."""
    transport_protocols: Many[Transport] = TRANSPORTS
    """What callers may speak, whatever `binding` is. What they may not is in no card, and refused."""
    authentication: EndpointAuth | None = None
    """A credential of its own for callers."""
    rate_limiting: RateLimiting | None = None
    """How often it may be called, beside what budgets.yaml says."""
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict)
    """What every request of ours says beside. A secret is a `credential`."""
    timeout_s: Seconds = 60.0
    """How long a call may take in all, and a stream may be silent; budgets may make it shorter."""
    connect_timeout_s: Seconds = 5.0
    """How long a connection may take to open."""
    max_connections: Count = 100
    """Connections at once; further calls wait for one within their own time. Streams have others."""
    max_calls_per_caller: Count | None = None
    """How many calls of one caller it has at once; further ones wait, and nobody else does. By default three quarters
    of `max_connections`."""

    @property
    def spoken(self) -> Literal["jsonrpc", "http_json", "grpc"]:
        """The binding of the interface."""
        return self.binding or ("grpc" if self.url.startswith("grpc") else "jsonrpc")

    @property
    def share(self) -> int:
        """How many calls of one caller it has at once."""
        return self.max_calls_per_caller or max(1, self.max_connections * 3 // 4)

    @property
    def card_address(self) -> str:
        """The URL of the agent's card; "" if none is configured and the address implies none."""
        if self.card_url is not None:
            return self.card_url
        parts = urlsplit(self.url)
        return "" if parts.scheme.startswith("grpc") else urlunsplit((parts.scheme, parts.netloc, CARD_PATH, "", ""))

    def _faults(self) -> Iterator[Finding]:
        over_grpc = self.url.startswith("grpc")
        if self.binding is not None and (self.binding == "grpc") is not over_grpc:
            hint = "write url: grpc://host:port" if self.binding == "grpc" else "write binding: grpc, or leave it out"
            yield Finding(f"this address does not speak {self.binding}", "S127", hint, ("binding",))
        if over_grpc and urlsplit(self.url).path not in ("", "/"):
            yield Finding("a gRPC address is a host and a port", "S127", "write grpc://host:port", ("url",))
        for name in self.headers:
            if name.lower() in RESERVED_HEADERS or name.lower().startswith("a2a-"):
                hint = "remove it"
                yield Finding(f"{name} is written by the sidecar itself", "S114", hint, ("headers", name), on_key=True)
            elif name.lower() in CREDENTIAL_HEADERS:
                hint = "credential: {bearer_path: ...}, or header: with value_path:"
                yield Finding(f"{name} is a credential's header", "S114", hint, ("headers", name), on_key=True)
            elif over_grpc and name.lower().endswith("-bin"):
                what = f"{name} holds bytes in gRPC, and no text"
                yield Finding(what, "S114", "give it another name", ("headers", name), on_key=True)
