"""Settings of upstream credentials, which replace the caller's own."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

from pydantic import Field

from sidecar.settings.field_types import HeaderName, Many, NhiName, PathField, Scope, Seconds, Section, Word, https_url
from sidecar.settings.validation_errors import Finding

# Headers of message framing, routing and the protocol, which only the sidecar sets.
RESERVED_HEADERS = frozenset(
    {"accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "cookie"}
    | {"expect", "host", "keep-alive", "last-event-id", "mcp-method", "mcp-name", "mcp-protocol-version"}
    | {"mcp-session-id", "origin", "te", "trailer", "transfer-encoding", "upgrade", "via"}
)
CREDENTIAL_HEADERS = frozenset({"authorization", "proxy-authorization", "x-api-key"})
MIN_TTL_S = 10.0  # the shortest life of a signed token: shorter ones may expire before a slow upstream reads them
MAX_TTL_S = 300.0

KINDS = ("bearer_path", "header", "client_credentials", "token_exchange", "signed", "passthrough")


class TokenClient(Section):
    """The client at a token endpoint, and the token that it requests."""

    token_url: Annotated[str, https_url("a token endpoint needs an https URL")]
    """URL of the token endpoint: https, or http on this machine. Redirects are not followed."""
    client_id: Word
    """Client id of the sidecar at the endpoint."""
    auth: Literal["basic", "post", "private_key_jwt"] = "basic"
    """How the client authenticates: its secret in the `Authorization` header (`basic`) or in the body (`post`), or a
    signed JWT (RFC 7523)."""
    secret_path: PathField | None = None
    """File with the client secret, for `basic` and `post`."""
    key_path: PathField | None = None
    """PEM file with the private key of the client, for `private_key_jwt`."""
    key_id: Word | None = None
    """`kid` of that key at the endpoint. Default: its RFC 7638 thumbprint."""
    assertion_audience: Word | None = None
    """`aud` of the signed JWT. Default: the token endpoint."""
    scope: Many[Scope] = ()
    """Scopes to request."""
    audience: Word | None = None
    """`audience` to request."""
    resource: Word | None = None
    """`resource` to request (RFC 8707), usually the URL of the upstream."""

    def _faults(self) -> Iterator[Finding]:
        needed, other = ("key_path", "secret_path") if self.auth == "private_key_jwt" else ("secret_path", "key_path")
        if getattr(self, needed) is None:
            yield Finding(f'the key "{needed}" is missing', "Y102", f"auth: {self.auth} needs it", on_key=True)
        for key in (other, *(("key_id", "assertion_audience") if needed == "secret_path" else ())):
            if getattr(self, key) is not None:
                yield Finding(f"{key} does not apply to auth: {self.auth}", "S113", "remove it", (key,), on_key=True)


class TokenExchange(TokenClient):
    """A token for the caller, in exchange for the caller's own token (RFC 8693)."""

    subject_token_type: Literal["access_token", "jwt"] = "access_token"
    """Type under which the caller's token is sent."""
    actor_token_path: PathField | None = None
    """File with the sidecar's own token, which is sent as the actor token."""
    keep_s: Seconds = 300.0
    """Maximum time for which a token is reused for the same token of the caller."""


class Signed(Section):
    """A short-lived JWT that the sidecar signs. It names the caller's whole chain."""

    audience: Word | None = None
    """`aud` of the token. Default: the URL of the upstream."""
    ttl_s: Annotated[Seconds, Field(ge=MIN_TTL_S, le=MAX_TTL_S)] = 60.0
    """Lifetime of the token. The sidecar reuses it for half of that time."""
    roles: bool = False
    """Whether the token names the roles that the caller's token granted to the first principal of the chain, for
    another sidecar to use."""
    own: NhiName | None = None
    """Subject of the sidecar's own requests, such as the list of tools. Default: the address of the sidecar."""


class UpstreamCredential(Section):
    """The credential for the upstream, in place of the caller's. Set one of the kinds."""

    bearer_path: PathField | None = None
    """File with a token that is sent as `Authorization: Bearer`."""
    header: HeaderName | None = None
    """Name of another header to send, with the value in `value_path`."""
    value_path: PathField | None = None
    """File with the value of `header`."""
    client_credentials: TokenClient | None = None
    """The sidecar's own token from a token endpoint (OAuth client credentials), the same for every caller."""
    token_exchange: TokenExchange | None = None
    """A token from a token endpoint for each caller. Callers without a token are refused."""
    signed: Signed | None = None
    """A token that the sidecar signs and that names the caller."""
    passthrough: bool = False
    """Whether to forward the caller's own token, for a server that is intended to have and use it. Callers without a
    token are refused."""
    own_bearer_path: PathField | None = None
    """With `passthrough`: file with a token for the sidecar's own requests, such as the list of tools."""

    @property
    def needs_token(self) -> bool:
        return self.passthrough or self.token_exchange is not None

    def _faults(self) -> Iterator[Finding]:
        kinds = [kind for kind in KINDS if getattr(self, kind)]
        if self.value_path is not None and self.header is None:
            kinds.append("header")
        if len(kinds) != 1:
            hint = "write bearer_path, header (X-Api-Key, for example) with value_path, or one of " + ", ".join(
                KINDS[2:]
            )
            what = " and ".join(kinds) or "none"
            yield Finding(f"set exactly one kind of credential; this sets {what}", "S113", hint, on_key=True)
        elif kinds == ["header"] and (self.header is None or self.value_path is None):
            missing = "header" if self.header is None else "value_path"
            yield Finding(f'the key "{missing}" is missing', "Y102", on_key=True)
        if self.own_bearer_path is not None and not self.passthrough:
            yield Finding(
                "own_bearer_path applies only to passthrough", "S113", "write bearer_path", ("own_bearer_path",)
            )
        if self.header and self.header.lower() in RESERVED_HEADERS:
            what = f"{self.header} is set by the sidecar"
            yield Finding(what, "S114", "choose another header", ("header",))


class SigningSettings(Section):
    """The sidecar's signing key. Its public key is served at `/.well-known/jwks.json`."""

    key_path: PathField | None = None
    """PEM file with the private key (P-256, Ed25519 or RSA), the same at all replicas. Default: a key that is created
    in the data folder."""
    previous_paths: Many[PathField] = ()
    """PEM files with earlier keys, which are still served. `keys/signing.previous.pem` in the data folder is always
    included."""


def header_faults(headers: Iterable[str], own: str, *, grpc: bool = False) -> Iterator[Finding]:
    """Headers that the sidecar writes itself (`own` is its protocol's prefix), that carry credentials, that are given
    twice, or that hold bytes over gRPC."""
    seen: set[str] = set()
    for name in headers:
        lower, at = name.lower(), ("headers", name)
        if lower in RESERVED_HEADERS or lower.startswith(own):
            yield Finding(f"{name} is set by the sidecar", "S114", "remove it", at, on_key=True)
        elif lower in CREDENTIAL_HEADERS:
            hint = "write credential: {bearer_path: ...}, or header: with value_path:"
            yield Finding(f"{name} is a header for credentials", "S114", hint, at, on_key=True)
        elif lower in seen:
            yield Finding(f"{name} appears more than once", "S114", "remove one of them", at, on_key=True)
        elif grpc and lower.endswith("-bin"):
            yield Finding(f"{name} has binary values in gRPC", "S114", "give it another name", at, on_key=True)
        seen.add(lower)
