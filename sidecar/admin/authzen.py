"""The endpoints of AuthZEN's Authorization API 1.0.

    POST /access/v1/evaluation                      one question
    POST /access/v1/evaluations                     several, in one request
    POST /access/v1/search/{subject|resource|action}
    GET  /.well-known/authzen-configuration         the metadata, which is public

With `/<server>` in front (for the metadata, at the end), ids of tools, prompts and resources are names at that server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import orjson
from aiohttp import web

from sidecar.admin.requests import HEADERS, REQUEST_ID, answered, echo_of, problem, refused, request_id_in
from sidecar.errors import Refusal
from sidecar.gateway.decisions.authzen import AuthzenPoint
from sidecar.gateway.decisions.authzen_messages import Searched, evaluation_in, evaluations_in, search_in
from sidecar.gateway.decisions.authzen_names import Vocabulary
from sidecar.gateway.decisions.authzen_search import AuthzenSearch
from sidecar.gateway.decisions.point import AskedRequest
from sidecar.gateway.error_responses import JSON
from sidecar.gateway.routing import MCP, Headers
from sidecar.gateway.snapshot import Live, Snapshot
from sidecar.http.server.response import WholeResponse
from sidecar.settings.pdp import AuthzenSettings

WELL_KNOWN: Final = "/.well-known/authzen-configuration"
EVALUATION, EVALUATIONS = "evaluation", "evaluations"
_SERVER = r"/[a-z0-9]+(?:-[a-z0-9]+)*"
_PATH = re.compile(rf"({_SERVER})?/access/v1/(evaluations?|search/(?:subject|resource|action))")
_METADATA = re.compile(rf"{re.escape(WELL_KNOWN)}({_SERVER})?")
ENDPOINTS: Final[Mapping[str, str]] = {
    "access_evaluation_endpoint": EVALUATION,
    "access_evaluations_endpoint": EVALUATIONS,
    "search_subject_endpoint": "search/subject",
    "search_resource_endpoint": "search/resource",
    "search_action_endpoint": "search/action",
}
_HOST = re.compile(r"[A-Za-z0-9.\-\[\]:]{1,256}")
_JSON = re.compile(r'application/json[ \t]*(?:;[ \t]*charset=(?:utf-8|"utf-8")[ \t]*)?', re.IGNORECASE)
_RELAYED: Final = frozenset({b"traceparent", b"x-run-id", b"x-thread-id"})
_MAX_SERVERS: Final = 256  # whose vocabulary is cached


@dataclass(slots=True)
class AuthzenEndpoint:
    """Answers evaluations and searches."""

    asking: AuthzenPoint
    takes_bearer: bool = True
    search: AuthzenSearch = field(init=False)
    _known: dict[str, Vocabulary] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.search = AuthzenSearch(self.asking)

    def serves(self, path: str) -> bool:
        return _PATH.fullmatch(path) is not None

    async def answer(self, http: web.BaseRequest, headers: Headers, path: str, name: str) -> web.StreamResponse:
        """Answers a request of the enforcement point `name`."""
        request_id: str | None = None
        response: web.StreamResponse
        try:
            request_id = request_id_in(headers)
            response = await self._answer(http, headers, path, name, request_id)
        except Refusal as refusal:
            response = refused(refusal)
        if not isinstance(response, WholeResponse):
            response.headers.update(echo_of(headers))
        elif request_id is not None:
            response.add({REQUEST_ID: request_id}.items())
        return response

    async def _answer(
        self, http: web.BaseRequest, headers: Headers, path: str, name: str, request_id: str | None
    ) -> web.StreamResponse:
        now = self.asking.point.pipeline.live.current
        found = _PATH.fullmatch(path)
        assert found is not None, "the path is served"
        if http.method != "POST":
            return problem("POST only", 405, {"Allow": "POST"})
        media = headers.get("content-type", ())
        if len(media) != 1 or _JSON.fullmatch(media[0]) is None or "content-encoding" in headers:
            return problem("Content-Type must be application/json, in UTF-8 and without Content-Encoding", 400)
        raw = await self.asking.point.body_of(http, name)
        names = self.vocabulary(now, (found[1] or "")[1:])
        asked = AskedRequest("POST", path, _relayed(http), raw, http.remote or "local")
        if found[2].startswith("search/"):
            search = search_in(raw, cast(Searched, found[2].removeprefix("search/")))
            return _told(*await self.search.answer(search, names, asked, name, request_id))
        evaluations = (evaluation_in if found[2] == EVALUATION else evaluations_in)(raw)
        outcomes = await self.asking.evaluate_all(evaluations, names, asked, name, request_id)
        if evaluations.many:
            return _told(200, {"evaluations": [outcome.decision for outcome in outcomes]})
        return _told(*outcomes[0])

    def vocabulary(self, now: Snapshot, server: str) -> Vocabulary:
        """Returns the vocabulary at the address of a server, "" for none."""
        settings = AuthzenSettings() if now.settings.pdp is None else now.settings.pdp.authzen
        place = now.audience(server, MCP) if server else None
        audiences = tuple(filter(None, (place.resource, place.alias))) if place is not None else ()
        known = self._known.get(server)
        if known is not None and known.settings is settings and known.audiences == audiences:
            return known
        if len(self._known) >= _MAX_SERVERS:
            self._known.clear()
        known = self._known[server] = Vocabulary(settings, server, audiences)
        return known


@dataclass(frozen=True, slots=True)
class MetadataEndpoint:
    """Answers requests for the metadata, without a check whether the server in the path exists."""

    live: Live
    takes_bearer: bool = True

    def serves(self, path: str) -> bool:
        return _METADATA.fullmatch(path) is not None

    async def answer(self, http: web.BaseRequest, headers: Headers, path: str, name: str) -> web.StreamResponse:
        """Answers a request. No credential is needed."""
        if http.method not in ("GET", "HEAD"):
            return problem("GET only", 405, {"Allow": "GET"})
        settings = self.live.current.settings.pdp
        url = None if settings is None else settings.authzen.url
        if url is None:
            if _HOST.fullmatch(http.host) is None:
                return problem("Host must be a name or an address, with a port or without", 400)
            url = f"{'https' if http.secure else 'http'}://{http.host}"
        base = f"{url}{path.removeprefix(WELL_KNOWN)}"
        endpoints = {name: f"{base}/access/v1/{end}" for name, end in ENDPOINTS.items()}
        return answered({"policy_decision_point": base, **endpoints}, headers={"Cache-Control": "max-age=300"})


def _relayed(http: web.BaseRequest) -> Sequence[tuple[bytes, bytes]]:
    """Returns the headers of an enforcement point's request that audit records include."""
    return [line for line in http.raw_headers if line[0].lower() in _RELAYED]


def _told(status: int, told: Mapping[str, Any]) -> web.StreamResponse:
    """Writes an answer. A question that could not be decided gives an error instead of a decision."""
    if status == 200:
        return WholeResponse(200, orjson.dumps(told), JSON, HEADERS)
    context = dict(told["context"])
    message = context.pop("error")["message"]
    again = {"Retry-After": str(context.get("retry_after_s", 1))} if status == 503 else {}
    return problem(message, status, again, **context)
