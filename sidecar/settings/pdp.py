"""Settings of decisions for other enforcement points."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from sidecar.settings.field_types import HttpUrl, Listen, Section, Word, named
from sidecar.settings.server import TlsFiles
from sidecar.settings.validation_errors import Finding, did_you_mean, reject
from sidecar.vocabulary import ACTIONS

_TARGET = r"/(?:mcp|agents)/[a-z0-9]+(?:-[a-z0-9]+)*"
_PATH = r"(?:/[A-Za-z0-9._~-]+)+"
_URL = r"https?://[A-Za-z0-9.\-\[\]:]+"
ID: Final = "*"
ACTION: Final = "{action}"
_SUBJECT = re.compile(r"(?:user|nhi):\S+")
_RESOURCE = re.compile(r"(?:tool|prompt|resource):(?:\*|[a-z0-9]+(?:-[a-z0-9]+)*/\S+)|nhi:\S+")
_SOURCE = r"(?:subject|resource|action|context)(?:\.[^.\s]+)+"


def _template(text: str, shape: re.Pattern[str], hint: str) -> str:
    if text.count(ID) != 1:
        reject(f"{text} must have one * for the id", hint=hint)
    if shape.fullmatch(text) is None:
        reject(f"{text} is not a name that rules can contain", hint=hint)
    return text


def _subject(text: str) -> str:
    return _template(text, _SUBJECT, "write user:* or nhi:*, or with a namespace user:corp/*")


def _resource(text: str) -> str:
    _template(text, _RESOURCE, "write nhi:*, tool:*, tool:<server>/*, prompt:<server>/* or resource:<server>/*")
    _, place, after = text.partition(ACTION)
    if place and (ACTION in after or text.startswith("nhi:") or after[:1] not in ("", "/", ":")):
        hint = "write tool:<server>/{action}/*, or resource:<server>/<scheme>:{action}/*"
        reject(f"{text} must have {ACTION} once at most, before / or : or at its end, and not in nhi:", hint=hint)
    return text


def _sides(value: Any) -> Any:
    """Returns a single name as a mapping of the sides on which it can occur: `nhi:` on both sides, any other on one."""
    if not isinstance(value, str):
        return value
    if value.startswith("nhi:"):
        return {"subject": value, "resource": value}
    return {"subject" if value.startswith("user:") else "resource": value}


class AuthzenType(Section):
    """The sidecar's names for one AuthZEN type. A single name applies to the sides on which it can occur."""

    subject: Annotated[Word, AfterValidator(_subject)] | None = None
    """Principal, with `*` for the id: `user:corp/*`."""
    resource: Annotated[Word, AfterValidator(_resource)] | None = None
    """Object, with `*` for the id: `tool:records/*`. With `{action}`, the name of the action is part of the object, and
    the object is used: `tool:records/{action}/*` is decided for `tools/call`."""


def _action(text: str) -> str:
    if text not in ACTIONS:
        reject(
            f"{text} is not an action of rules",
            hint=did_you_mean(text, ACTIONS) or "write an action such as tools/call or resources/read",
        )
    return text


class AuthzenSettings(Section):
    """The vocabulary of AuthZEN requests, and the sidecar's names for it."""

    url: Annotated[HttpUrl, named(_URL, "URL without a path", "https://pdp.acme.example")] | None = None
    """URL under which enforcement points reach the AuthZEN endpoints, for their metadata. Default: the URL of the
    request for the metadata."""
    types: Mapping[Word, Annotated[AuthzenType, BeforeValidator(_sides)]] = Field(default_factory=dict)
    """Names by AuthZEN type, with `*` for the id and optionally `{action}`: `record: tool:records/{action}/*`. A type
    of both kinds has `{subject, resource}`. Predefined: `user`, `identity`, `nhi`, `agent`, `tool`, `prompt`,
    `resource`, `mcp_server`."""
    actions: Mapping[Word, Annotated[Word, AfterValidator(_action)]] = Field(default_factory=dict)
    """Map from AuthZEN actions to actions: `can_read: resources/read`. An action without an entry keeps its name."""
    arguments: Mapping[
        Word, Mapping[Word, Annotated[str, named(_SOURCE, "place", "such as resource.properties.status")]]
    ] = Field(default_factory=dict)
    """Arguments for conditions, by resource type, and their places in a request: `record: {status:
    resource.properties.status}`. If a request has `resource.properties.arguments`, only those are used."""


class DecisionSettings(Section):
    """The decision API for other enforcement points, which use an admin credential with the role `pdp`. They ask at the
    admin listener, at `listen`, and over gRPC (Envoy) at `server.grpc`."""

    listen: Listen | None = None
    """Address of a listener for enforcement points only. On a Unix socket (mode 0600), they need no credential, and
    their name is `local`."""
    tls: TlsFiles | None = None
    """Certificate and key of `listen`. With `client_ca_path`, a client certificate is a credential too, and its first
    name is the name of the enforcement point."""
    charges: Literal["never", "ask", "always"] = "never"
    """Whether a decision is charged to limits: `never`, which ignores limits; `ask`, if the request says so; or
    `always`."""
    paths: Mapping[
        Annotated[str, named(_PATH, "path", "such as /tools/github")],
        Annotated[str, named(_TARGET, "address", "/mcp/<server> or /agents/<agent>")],
    ] = Field(default_factory=dict)
    """Map from paths at Envoy and nginx to paths at the sidecar, where they differ: `/tools/github: /mcp/github`."""
    authzen: AuthzenSettings = Field(default_factory=AuthzenSettings)

    def _faults(self) -> Iterator[Finding]:
        if self.listen is None or self.listen.is_loopback:
            if self.tls is not None and self.listen is None:
                yield Finding("tls needs listen", "S102", "write listen", at=("tls",))
        elif self.tls is None:
            hint = "write tls: {cert_path: ..., key_path: ...}"
            yield Finding("a listener beyond loopback needs tls", "S102", hint, at=("listen",))
