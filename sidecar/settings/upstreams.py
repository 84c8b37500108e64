"""Which servers stand behind us, and with what credential do we call them?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from sidecar.settings.fields import Count, HeaderName, HttpUrl, Many, PathField, Scope, Seconds, Section, not_yet
from sidecar.settings.findings import Finding, reject_any
from sidecar.settings.health import Breaker, Probe
from sidecar.settings.responses import Responses

# Headers that frame the message, route it or speak for the protocol: those are ours to write.
RESERVED_HEADERS = frozenset(
    {"accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "cookie"}
    | {"expect", "host", "keep-alive", "last-event-id", "mcp-method", "mcp-name", "mcp-protocol-version"}
    | {"mcp-session-id", "origin", "te", "trailer", "transfer-encoding", "upgrade", "via"}
)


class McpUpstream(Section):
    """An MCP server."""

    url: HttpUrl | None = None
    """Its Streamable HTTP address."""
    command: Annotated[str | None, not_yet("an MCP server on stdio")] = None
    """The program to start. Not supported by this version."""
    args: Annotated[Many[str], not_yet("an MCP server on stdio")] = ()
    """Its arguments. Not supported by this version."""
    env: Annotated[dict[str, str], not_yet("an MCP server on stdio")] = Field(default_factory=dict)
    """Its environment. Not supported by this version."""
    cwd: Annotated[PathField | None, not_yet("an MCP server on stdio")] = None
    """Its working folder. Not supported by this version."""
    timeout_s: Seconds = 30.0
    """How long a call may take in all; budgets may make it shorter."""
    connect_timeout_s: Seconds = 5.0
    """How long a connection may take to open."""
    max_connections: Count = 100
    """Connections at once; further calls wait for one within their own time."""

    @model_validator(mode="after")
    def _reachable(self) -> McpUpstream:
        if self.url is None:
            reject_any([Finding('the key "url" is missing', "Y102", on_key=True)])
        return self


class UpstreamCredential(Section):
    """What we show to the upstream in place of the caller's credential, which never leaves us."""

    bearer_path: PathField | None = None
    """File with a token, sent as `Authorization: Bearer`."""
    header: HeaderName | None = None
    """The header to send instead."""
    value_path: PathField | None = None
    """File with that header's value."""

    @model_validator(mode="after")
    def _one_way(self) -> UpstreamCredential:
        reject_any(self._faults())
        return self

    def _faults(self) -> Iterator[Finding]:
        has_header = self.header is not None or self.value_path is not None
        if (self.bearer_path is not None) == has_header:
            hint = "bearer_path: ..., or header: X-Api-Key with value_path: ..."
            yield Finding("a credential is either a bearer token or a header", "S113", hint, on_key=True)
        elif has_header and (self.header is None or self.value_path is None):
            missing = "header" if self.header is None else "value_path"
            yield Finding(f'the key "{missing}" is missing', "Y102", on_key=True)
        if self.header and self.header.lower() in RESERVED_HEADERS:
            yield Finding(
                f"{self.header} is written by the sidecar itself", "S114", "choose another header", ("header",)
            )


class Upstream(Section):
    """One server; its name is its key."""

    mcp: McpUpstream | None = None
    """It speaks MCP."""
    a2a: Annotated[None, not_yet("an A2A upstream")] = None
    """It speaks A2A. Not supported by this version."""
    credential: UpstreamCredential | None = None
    """What we call it with; by default nothing."""
    anonymous: bool = False
    """Whether callers without any credential reach it as `anonymous`; rules must still allow that word."""
    scopes: Many[Scope] = ()
    """OAuth scopes that a caller's token must bear."""
    pins: Literal["require", "warn", "off"] | None = None
    """What a tool that is not as pinned costs: `require` takes it out of lists and refuses its calls, `warn` only
    tells, `"off"` (in quotes: YAML reads a bare off as false) does not look. By default `warn` until the server has a
    pin, then `require`."""
    hidden_text: Literal["flag", "strip", "refuse"] = "flag"
    """What becomes of hidden characters in what the server lists, and in its instructions: `flag` tells of them,
    `strip` takes them out of what callers see, `refuse` leaves such entries out and refuses calls of such tools."""
    responses: Responses | None = None
    """What of its answers may reach callers, and what of them is kept."""
    breaker: Breaker = Field(default_factory=Breaker)
    """When calls of it are refused at once."""
    probe: Probe = Field(default_factory=Probe)
    """How it is asked whether it is well."""

    @model_validator(mode="after")
    def _speaks_something(self) -> Upstream:
        if self.mcp is None:
            reject_any([Finding('the key "mcp" is missing', "Y102", "write mcp: {url: http://...}", on_key=True)])
        return self
