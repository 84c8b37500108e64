"""Settings of upstreams."""

from collections.abc import Iterator
from typing import Annotated, Literal
from urllib.parse import urlsplit, urlunsplit

from pydantic import Field

from sidecar.settings.agent_endpoints import AgentOffer, offer_faults
from sidecar.settings.credentials import UpstreamCredential, header_faults
from sidecar.settings.field_types import (
    Argument,
    Command,
    Count,
    HeaderName,
    HeaderValue,
    HttpUrl,
    Many,
    PathField,
    Scope,
    Seconds,
    Section,
    VariableName,
    url_of,
)
from sidecar.settings.programs import variables_in_file
from sidecar.settings.responses import ResponseSettings
from sidecar.settings.validation_errors import Finding

CARD_PATH = "/.well-known/agent-card.json"
_PLACES_OF_PROGRAMS = 1024  # maximum number of requests in flight at one program


class BreakerSettings(Section):
    """The circuit breaker, which refuses calls to a faulty upstream at once. Faults are failed connections, timeouts,
    5xx statuses and responses that break off."""

    failures: Count = 5
    """Number of faults in a row that open the breaker."""
    open_s: Seconds = 30.0
    """How long the breaker stays open before one call, or one probe of the sidecar, may try again."""


class ProbeSettings(Section):
    """Health probes of an upstream, by `ping`, `server/discover`, the card of an agent, or the file of a program."""

    enabled: bool = True
    """Whether to probe the upstream. Without probes, only calls show its health."""
    every_s: Seconds = 30.0
    """Interval between probes. It varies by up to 20%."""


class McpUpstream(Section):
    """An MCP server."""

    url: HttpUrl | None = None
    """URL of the server."""
    transport: Literal["auto", "http", "sse"] = "auto"
    """The transport: Streamable HTTP, or HTTP+SSE of 2024-11-05. `auto` detects it: POST first, then GET."""
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict)
    """Headers of every request to the upstream. Use `credential` for secrets."""
    command: Command | None = None
    """Program on stdio, instead of `url`: a name on `PATH`, or a path, absolute or relative to the folder of
    `sidecar.yaml`. It is started without a shell."""
    args: Many[Argument] = ()
    """Arguments of the program, passed exactly as written."""
    env: dict[VariableName, Argument] = Field(default_factory=dict)
    """Environment variables of the program, in addition to the sidecar's `PATH`, `HOME`, `LANG` and `TMPDIR`."""
    env_path: PathField | None = None
    """File with secret environment variables, one `NAME=value` per line. `env` takes precedence."""
    cwd: PathField | None = None
    """Working folder of the program. Default: an empty folder of its own, which is removed when the program ends."""
    shared: bool = False
    """Whether all callers and sessions share one program and its state. Otherwise, each has its own program."""
    idle_s: Seconds = 300.0
    """Idle time after which the program of a caller without a session ends."""
    max_programs: Count = 64
    """Maximum number of concurrent instances of the program."""
    max_programs_per_caller: Count = 8
    """Maximum number of concurrent instances for one caller. A further session ends the one that has been unused
    longest."""
    timeout_s: Seconds = 30.0
    """Maximum duration of a call. `budgets.yaml` can shorten it."""
    timeout_resets_on_progress: bool = False
    """Whether each progress notification of a call restarts `timeout_s`, up to `total_timeout_s` in total."""
    total_timeout_s: Seconds = 600.0
    """Maximum total duration of a call that progress extends."""
    max_connections: Count = 100
    """Maximum number of connections to the upstream. Further calls wait for one within their own time limit. Streams
    use connections of their own."""
    max_calls_per_caller: Count | None = None
    """Maximum number of concurrent calls of one caller. Further calls wait. Default: three quarters of
    `max_connections`, or 768 for a program."""

    @property
    def longest_s(self) -> float:
        """The longest duration of a call, in seconds."""
        return max(self.timeout_s, self.total_timeout_s) if self.timeout_resets_on_progress else self.timeout_s

    @property
    def share(self) -> int:
        """The maximum number of concurrent calls of one caller."""
        places = _PLACES_OF_PROGRAMS if self.url is None else self.max_connections
        return self.max_calls_per_caller or max(1, places * 3 // 4)

    def all_env(self) -> dict[str, str]:
        """The variables of `env` and `env_path`. Raises SettingsError."""
        return self.env if self.env_path is None else variables_in_file(self.env_path) | self.env

    def _faults(self) -> Iterator[Finding]:
        if (self.url is None) == (self.command is None):
            problem = 'the key "url" is missing' if self.url is None else "set either url or command, not both"
            hint = "write url: http://..., or command: with args: [...]" if self.url is None else "remove one of them"
            yield Finding(problem, "Y102", hint, on_key=True)
            return
        for key in sorted(key for key in (_OF_PROGRAMS if self.command is None else _OF_ADDRESSES) if self._says(key)):
            what = "servers with a command" if key in _OF_PROGRAMS else "servers with a url"
            yield Finding(f"{key} applies only to {what}", "Y104", "remove it", (key,), on_key=True)
        yield from header_faults(self.headers, "mcp-param-")

    def _says(self, key: str) -> bool:
        return bool(getattr(self, key) != type(self).model_fields[key].get_default(call_default_factory=True))


_OF_PROGRAMS = frozenset(
    {"args", "env", "env_path", "cwd", "shared", "idle_s", "max_programs", "max_programs_per_caller"}
)
_OF_ADDRESSES = frozenset({"transport", "headers", "max_connections"})


class A2aUpstream(AgentOffer):
    """An A2A agent. One of its interfaces is enough: the sidecar offers the agent to callers in every binding and
    version."""

    url: Annotated[str, url_of("http", "https", "grpc", "grpcs")]
    """URL of the interface: `http(s)://` for JSON-RPC and HTTP+JSON, `grpc(s)://host:port` for gRPC."""
    binding: Literal["jsonrpc", "http_json", "grpc"] | None = None
    """Binding of the interface. Default: `grpc` for a gRPC URL, otherwise `jsonrpc`."""
    version: Literal["auto", "0.3", "1.0"] = "auto"
    """A2A version of the interface. `auto` is 0.3 if the agent's card names only 0.3 for this binding, otherwise
    1.0."""
    card_url: HttpUrl | None = None
    """URL of the agent's card. Default: `/.well-known/agent-card.json` at the host of `url`. The addresses in the card
    are not used."""
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict)
    """Headers of every request to the upstream. Use `credential` for secrets."""
    timeout_s: Seconds = 60.0
    """Maximum duration of a call, and maximum silence on a stream. `budgets.yaml` can shorten it."""
    max_connections: Count = 100
    """Maximum number of connections to the upstream. Further calls wait for one within their own time limit. Streams
    use connections of their own."""
    max_calls_per_caller: Count | None = None
    """Maximum number of concurrent calls of one caller. Further calls wait. Default: three quarters of
    `max_connections`."""

    @property
    def spoken(self) -> Literal["jsonrpc", "http_json", "grpc"]:
        return self.binding or ("grpc" if self.url.startswith("grpc") else "jsonrpc")

    @property
    def share(self) -> int:
        """The maximum number of concurrent calls of one caller."""
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
            hint = "write url: grpc://host:port" if self.binding == "grpc" else "write binding: grpc, or remove it"
            yield Finding(f"this URL does not fit the binding {self.binding}", "S127", hint, ("binding",))
        if over_grpc and urlsplit(self.url).path not in ("", "/"):
            yield Finding("a gRPC address is a host and a port", "S127", "write grpc://host:port", ("url",))
        yield from header_faults(self.headers, "a2a-", grpc=over_grpc)


class UpstreamSettings(Section):
    """An MCP server or A2A agent; its name is its key."""

    mcp: McpUpstream | None = None
    """The upstream is an MCP server."""
    a2a: A2aUpstream | None = None
    """The upstream is an A2A agent."""
    credential: UpstreamCredential | None = None
    """Credential that the sidecar presents to the upstream. Default: none; for an agent, a token that the sidecar signs
    (`signed`) for `nhi:<name>`."""
    anonymous: bool = False
    """Whether callers without a credential can call it as `anonymous`. Rules must still allow `anonymous`."""
    scopes: Many[Scope] = ()
    """OAuth scopes that the token of a caller must have."""
    pins: Literal["require", "warn", "off"] | None = None
    """How to handle a tool that differs from its pin. `require` removes it from lists and refuses its calls, `warn`
    only reports it, `"off"` (in quotes) does not check. Default: `warn` until the server has a pin, then `require`."""
    hidden_text: Literal["flag", "strip", "refuse"] = "flag"
    """How to handle hidden characters in the lists and instructions of the server. `flag` reports them, `strip` removes
    them from what callers see, `refuse` omits such entries and refuses calls of such tools."""
    similar_keys: Literal["refuse", "allow"] = "refuse"
    """Whether to refuse calls with keys in their arguments that differ only in case or Unicode normal form from each
    other, a schema's property or a name in a condition. `allow` trusts the server to read the same key as rules do."""
    responses: ResponseSettings | None = None
    """Which parts of its responses reach callers, and which are stored."""
    breaker: BreakerSettings = Field(default_factory=BreakerSettings)
    probe: ProbeSettings = Field(default_factory=ProbeSettings)

    @property
    def signs(self) -> bool:
        """Whether the upstream receives a token signed by the sidecar, which is the default for agents."""
        if self.credential is None:
            return self.a2a is not None
        return self.credential.signed is not None

    def _faults(self) -> Iterator[Finding]:
        if (self.mcp is None) == (self.a2a is None):
            problem = 'the key "mcp" or "a2a" is missing' if self.mcp is None else "set either mcp or a2a, not both"
            yield Finding(problem, "Y102", "write mcp: {url: http://...} or a2a: {url: http://...}", on_key=True)
            return
        if self.a2a is not None:
            for key in ("pins", "responses"):
                if getattr(self, key) is not None:
                    yield Finding(f"{key} applies only to MCP servers", "S127", "remove it", (key,), on_key=True)
            yield from offer_faults(self.a2a, anonymous=self.anonymous)
        if self.mcp is not None and self.mcp.command is not None and self.credential is not None:
            hint = "write it under mcp.env, as TOKEN: ${TOKEN}, or in the file of mcp.env_path"
            yield Finding("a program receives no credential", "S113", hint, ("credential",), on_key=True)
        if self.credential is not None and self.credential.header is not None:
            shown, spoken = self.credential.header.lower(), self.mcp or self.a2a
            if spoken is not None and any(name.lower() == shown for name in spoken.headers):
                hint = "remove one of them"
                at = ("credential", "header")
                yield Finding(f"{self.credential.header} is also one of its headers", "S114", hint, at)
        yield from self._nobodys_token()

    def _nobodys_token(self) -> Iterator[Finding]:
        """Settings that admit callers without a token where the credential needs one."""
        if self.credential is None or not self.credential.needs_token:
            return
        if self.anonymous:
            hint = "remove anonymous, or use another kind of credential"
            yield Finding("anonymous callers have no token for this credential", "S113", hint, ("anonymous",))
        own = self.a2a.authentication if self.a2a is not None else None
        if own is not None and own.type == "bearer_token" and own.required:
            hint = "write type: api_key, or use another kind of credential"
            at = ("a2a", "authentication", "type")
            yield Finding("callers with this token have no token of their own to forward", "S113", hint, at)
