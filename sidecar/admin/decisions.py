"""The HTTP endpoints of decisions for other enforcement points, at the admin listener and at one of their own.

    POST /access/v1/…, GET /.well-known/authzen-configuration   AuthZEN
    any  /ext-authz/…                                           Envoy's ext_authz in HTTP mode
    GET  /auth/nginx                                            nginx's auth_request

An enforcement point sends the secret of an admin credential of the role `pdp` in `X-PDP-Key`, or presents a client
certificate. AuthZEN also accepts `Authorization: Bearer`, which elsewhere belongs to the caller in question. Host and
Origin are not checked, because no browser sends `X-PDP-Key` on its own, and because both may belong to that caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from aiohttp import web

from sidecar.admin.admin_app import OperatorSecrets, credential_of
from sidecar.admin.authzen import AuthzenEndpoint, MetadataEndpoint
from sidecar.admin.requests import echo_of, problem, refused
from sidecar.errors import Refusal
from sidecar.gateway.decisions.auth_request import AuthRequest
from sidecar.gateway.decisions.authzen import AuthzenPoint
from sidecar.gateway.decisions.checked import CheckedAgents, CheckedMcp
from sidecar.gateway.decisions.ext_authz import ExtAuthzEndpoint
from sidecar.gateway.decisions.point import SECRET_HEADER, DecisionPoint
from sidecar.gateway.pipeline import Pipeline
from sidecar.gateway.routing import Entrance, Headers, check_framing, known_headers, origin_form
from sidecar.http.tls import shown_on
from sidecar.identity.certificate_names import CertificateError, read_certificate
from sidecar.settings.sidecar_file import Settings

LOCAL: Final = "local"


class Endpoint(Protocol):
    """A protocol of enforcement points."""

    @property
    def takes_bearer(self) -> bool:
        """Whether `Authorization` belongs to the enforcement point, not to a caller."""

    def serves(self, path: str) -> bool:
        """Reports whether a path belongs to this protocol."""

    async def answer(self, http: web.BaseRequest, headers: Headers, path: str, name: str) -> web.StreamResponse:
        """Answers a request of the enforcement point `name`."""


@dataclass(frozen=True, slots=True)
class DecisionEndpoints:
    """Answers enforcement points. `secrets` returns the credentials of the admin listener. `local`: the listener is a
    socket that only its owner can open, so no credential is needed. `public` endpoints never need one."""

    point: DecisionPoint
    secrets: OperatorSecrets
    local: bool = False
    protocols: tuple[Endpoint, ...] = ()
    public: tuple[Endpoint, ...] = ()

    def serves(self, path: str) -> bool:
        """Reports whether a path is one of these endpoints."""
        return any(protocol.serves(path) for protocol in (*self.public, *self.protocols))

    async def handle(self, http: web.BaseRequest) -> web.StreamResponse:
        """Answers one request."""
        headers = known_headers(http)
        try:
            check_framing(http.version, headers)
        except Refusal as refusal:
            return refused(refusal)
        path = origin_form(http.raw_path).partition("?")[0]
        for open_to_all in self.public:
            if open_to_all.serves(path):
                return await open_to_all.answer(http, headers, path, "")
        protocol = next((each for each in self.protocols if each.serves(path)), None)
        if protocol is None:
            return problem("no such address", 404)
        name = self._name_of(http, headers, bearer=protocol.takes_bearer)
        if not name and protocol.takes_bearer:
            told = {"WWW-Authenticate": "Bearer", **echo_of(headers)}
            return problem("a credential of the role pdp is needed", 401, told)
        if not name:  # a 401 would ask the caller for a credential that it cannot have
            return problem("a credential of the role pdp is needed", 403)
        return await protocol.answer(http, headers, path, name)

    def _name_of(self, http: web.BaseRequest, headers: Headers, *, bearer: bool) -> str:
        """Returns the name of the enforcement point, "" for none."""
        given = headers.get(SECRET_HEADER, ())
        if not given and bearer:
            lines = headers.get("authorization", ())
            given = tuple(line.removeprefix("Bearer ") for line in lines if line.startswith("Bearer "))
        if len(given) > 1:
            return ""
        if given:
            return self.name_of(given[0])
        shown = shown_on(http.transport).certificate
        if shown:
            try:
                return next(iter(read_certificate(shown).names), "")
            except CertificateError:
                return ""
        return LOCAL if self.local else ""

    def name_of(self, secret: str) -> str:
        """Returns the name of the enforcement point that has this secret, "" for none."""
        found = credential_of(secret, self.secrets())
        return "" if found is None or found.role != "pdp" else found.name or found.role


def decisions_from(pipeline: Pipeline, settings: Settings, secrets: OperatorSecrets) -> DecisionEndpoints:
    """The endpoints of decisions. Requests of callers in question may have any `Host`, because they did not reach this
    listener."""
    origins = frozenset(origin.lower() for origin in settings.server.allowed_origins)
    forwarder, agents = pipeline.forwarder, pipeline.agents
    checked = CheckedAgents(forwarder, agents.pushes, agents.pages, agents.messages)
    mcp = CheckedMcp(forwarder, pipeline.stages.switch, pipeline.stages.clock)
    point = DecisionPoint(pipeline, Entrance(None, origins, certificate=""), mcp, checked)
    protocols = (AuthzenEndpoint(AuthzenPoint(point)), AuthRequest(point), ExtAuthzEndpoint(point))
    return DecisionEndpoints(point, secrets, protocols=protocols, public=(MetadataEndpoint(pipeline.live),))
