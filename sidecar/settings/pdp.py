"""Settings of decisions for other enforcement points."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field

from sidecar.settings.field_types import Listen, Section, Word, named
from sidecar.settings.server import TlsFiles
from sidecar.settings.validation_errors import Finding

_TARGET = r"/(?:mcp|agents)/[a-z0-9]+(?:-[a-z0-9]+)*"
_PATH = r"(?:/[A-Za-z0-9._~-]+)+"


class AuthzenSettings(Section):
    """The vocabulary of AuthZEN requests, and what it is here."""

    types: Mapping[Word, Word] = Field(default_factory=dict)
    """Names of subjects and resources by their type, with `*` for the id: `record: tool:records/*`. Known without an
    entry: `user`, `identity`, `nhi`, `agent`, `tool`, `prompt`, `resource`, `mcp_server`."""
    actions: Mapping[Word, Word] = Field(default_factory=dict)
    """Actions: `can_read: read`. One without an entry is called the same here."""


class DecisionSettings(Section):
    """Decisions for other enforcement points, which have an admin credential of the role `pdp`. They ask at the admin
    listener, at `listen`, and over gRPC (Envoy) at `server.grpc`."""

    listen: Listen | None = None
    """A listener for them alone. At a Unix socket (mode 0600) they need no credential, and are called `local`."""
    tls: TlsFiles | None = None
    """Certificate and key of `listen`. With `client_ca_path`, a certificate of these authorities is a credential too;
    its first name is the enforcement point's."""
    charges: Literal["never", "ask", "always"] = "never"
    """Whether a decision counts toward limits: never, which leaves limits out; where the request says so; or always."""
    paths: Mapping[
        Annotated[str, named(_PATH, "path", "such as /tools/github")],
        Annotated[str, named(_TARGET, "address", "/mcp/<server> or /agents/<agent>")],
    ] = Field(default_factory=dict)
    """Addresses at Envoy and nginx that differ from those of sidecar: `/tools/github: /mcp/github`."""
    authzen: AuthzenSettings = Field(default_factory=AuthzenSettings)

    def _faults(self) -> Iterator[Finding]:
        if self.listen is None or self.listen.is_loopback:
            if self.tls is not None and self.listen is None:
                yield Finding("tls is for a listener, and there is none", "S102", "write listen", at=("tls",))
        elif self.tls is None:
            hint = "write tls: {cert_path: ..., key_path: ...}"
            yield Finding("a listener beyond loopback needs tls", "S102", hint, at=("listen",))
