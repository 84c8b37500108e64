"""Answers AuthZEN searches from the rows: which subjects, resources or actions a policy permits.

Candidates are the exact names in rows, roles, sets, lists of tools, keys and settings. Each is decided like an
evaluation, including the kill switch, but without limits, pins and argument schemas. An operation that needs a person's
approval is not permitted. The answer is marked as incomplete if a row's pattern, or a role that tokens grant, could
permit other names.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from heapq import merge
from typing import Any, Final, NamedTuple, Protocol

import orjson
from aiohttp import web

from sidecar.errors import Reason, Refusal
from sidecar.gateway.decisions.authzen import PROTOCOL, AskedOperation, AuthzenPoint, DecisionWriter
from sidecar.gateway.decisions.authzen_messages import DEFAULT_RESULTS, MAX_RESULTS, Evaluation, SearchRequest
from sidecar.gateway.decisions.authzen_names import NameTemplate, Vocabulary
from sidecar.gateway.decisions.point import AskedRequest, Asking
from sidecar.gateway.error_responses import JSON
from sidecar.gateway.kill_switch.known_names import names_beside_rules
from sidecar.gateway.pipeline import Asked
from sidecar.gateway.request import RequestContext
from sidecar.gateway.snapshot import Service, Snapshot
from sidecar.http.server.response import WholeResponse
from sidecar.protocols.base64url import decode, encode
from sidecar.protocols.jsonrpc import malformed
from sidecar.vocabulary import ACTIONS, Caller, Chain, Question

MAX_CANDIDATES: Final = 20_000  # of one page
YIELD_EVERY: Final = 64  # candidates, so that other requests run between them
UNNAMED: Final = "~"  # the id of an unknown subject


class SearchPosition(NamedTuple):
    """The position at which a page ends: its search (with the policy's revision), its limit and its last name."""

    search: str
    limit: int
    after: str


@dataclass(frozen=True, slots=True)
class AuthzenSearch:
    """Answers searches."""

    asking: AuthzenPoint

    async def answer(
        self, search: SearchRequest, names: Vocabulary, http: AskedRequest, name: str, request_id: str | None
    ) -> tuple[int, Mapping[str, Any]]:
        """Returns the HTTP status and the answer, which is recorded. Raises Refusal(MALFORMED_CALL), unrecorded, for a
        token of another search or another policy."""
        pipeline, writer, found = self.asking.point.pipeline, DecisionWriter(frozenset(Reason)), dict[str, Any]()
        position = position_of(search, names, pipeline.live.current.engine.revision)

        async def read(request: RequestContext) -> Asked | web.StreamResponse:
            request.dialect, record = writer, request.record
            record.request_id, record.bytes_in = request_id, http.content_length
            request.asks(f"search/{search.searched}")
            pipeline.stages.admit(request)
            if search.searched != "subject":
                with suppress(Refusal):
                    record.caller = names.caller(search.evaluation, name)
            found.update(await self._page(search, names, request.now, position, name))
            body = orjson.dumps(found)
            await record.outcome(http_status=200, bytes_out=len(body), event="decision")
            return WholeResponse(200, body, JSON)

        await self.asking.point.decide(http, Asking(PROTOCOL, name, charge=False), read)
        return (writer.status, writer.told) if writer.told else (200, found)

    async def _page(
        self, search: SearchRequest, names: Vocabulary, now: Snapshot, position: SearchPosition, name: str
    ) -> Mapping[str, Any]:
        scope = Scope(self.asking, names, now, name)
        candidates = _candidates(search, scope)
        await candidates.prepare()
        results: list[Mapping[str, Any]] = []
        after, ended = position.after, True
        # Work that grows with the policy runs outside the event loop.
        found = await asyncio.to_thread(candidates.after, after)
        for looked, candidate in enumerate(_each_once(found)):
            if len(results) >= position.limit or looked >= MAX_CANDIDATES:
                ended = False
                break
            if looked % YIELD_EVERY == YIELD_EVERY - 1:
                await asyncio.sleep(0)
            after, asked = candidate, candidates.question(candidate)
            if asked is not None and scope.permits(asked):
                results.append(candidates.shown(asked))
        token = "" if ended else token_of(position._replace(after=after))
        page = {"next_token": token, "count": len(results)}
        complete = not await asyncio.to_thread(candidates.is_open)
        return {"page": page, "context": {"complete": complete}, "results": results}


@dataclass(frozen=True, slots=True)
class Scope:
    """The context of a search: one snapshot, one vocabulary. `name` is the enforcement point's."""

    asking: AuthzenPoint
    names: Vocabulary
    now: Snapshot
    name: str

    def permits(self, asked: Evaluation) -> bool:
        """Reports whether policy and kill switch permit an evaluation without a person's approval."""
        stages, now = self.asking.point.pipeline.stages, self.now
        now_s = stages.clock()
        try:
            caller, operation = self.operation(asked)
            stages.refuse_disabled(now, caller, operation.call, now_s)
            decision = now.decide(caller.chain, operation.call, now_s)
            decision.or_refuse()
            if operation.content is not None:
                stages.switch.ledger.switched_off.refuse_use(operation.call, now_s)
        except Refusal:
            return False
        known = operation.content is None or now.has(operation.call.question) is not False
        return known and not decision.approvals

    def operation(self, asked: Evaluation) -> tuple[Caller, AskedOperation]:
        """Returns the caller and the operation in question. Raises Refusal."""
        caller, (target, action) = self.names.caller(asked, self.name), self.names.target(asked)
        return caller, self.asking.operation(self.now, target, action, self.names.arguments(asked))

    def may_permit_objects(self, asked: Evaluation, pattern: str, action: str) -> bool:
        """Reports whether a pattern of rules could permit an object of this pattern that no row names."""
        chain = self.chain_of(asked)
        return bool(chain) and self.now.engine.may_allow_more(chain, Question(pattern, action, ""))

    def chain_of(self, asked: Evaluation) -> Chain:
        """Returns the caller's chain; () for an invalid principal."""
        try:
            return self.names.caller(asked, self.name).chain
        except Refusal:
            return ()


class Candidates(Protocol):
    """The names that a search examines."""

    async def prepare(self) -> None:
        """Loads names that are not loaded yet."""

    def after(self, name: str) -> Iterator[str]:
        """Yields candidates in order, from the first one after `name`. Some occur more than once."""

    def question(self, name: str) -> Evaluation | None:
        """Returns the evaluation about a candidate; None if the candidate is invalid."""

    def shown(self, asked: Evaluation) -> Mapping[str, Any]:
        """Returns the entity of a permitted evaluation."""

    def is_open(self) -> bool:
        """Reports whether a name outside the candidates could be permitted."""


@dataclass(frozen=True, slots=True)
class SubjectCandidates:
    scope: Scope
    asked: Evaluation
    template: NameTemplate

    async def prepare(self) -> None:
        pass

    def after(self, name: str) -> Iterator[str]:
        prefix, now, link = self.template.prefix, self.scope.now, self._link()
        if link is None:
            return iter(())
        chain, question = link
        agents = {principal.name for principal in chain[1:]}  # an agent needs no grant to act for itself
        held = None if not question.object else now.engine.subjects_of(chain, question, self.template.pattern)
        if held is not None:
            return _ordered(held | agents, prefix, name)
        others = {*names_beside_rules(now), *agents}
        return merge(now.engine.names_after(prefix, name), _ordered(others, prefix, name))

    def question(self, name: str) -> Evaluation | None:
        given = self.template.id_of(name)
        return None if given is None else self.asked._replace(subject={**self.asked.subject, "id": given})

    def shown(self, asked: Evaluation) -> Mapping[str, Any]:
        return {key: asked.subject[key] for key in ("type", "id")}

    def is_open(self) -> bool:
        now, link = self.scope.now, self._link()
        grants = any(issuer.roles_from is not None for issuer in now.settings.identity.issuers)
        return link is not None and now.engine.may_allow_more(*link, self.template.pattern, open_roles=grants)

    def _link(self) -> tuple[Chain, Question] | None:
        """Returns an example of the chains in question with the operation; None if no rule can name it. Any row on a
        server permits session methods, so their object and action may be any."""
        try:
            caller, operation = self.scope.operation(self.asked._replace(subject={**self.asked.subject, "id": UNNAMED}))
        except Refusal:
            return None
        question = operation.call.question
        return caller.chain, question._replace(object="", action="") if operation.call.session else question


@dataclass(frozen=True, slots=True)
class ResourceCandidates:
    scope: Scope
    asked: Evaluation
    template: NameTemplate

    @property
    def service(self) -> Service | None:
        """The MCP server that all these resources are on."""
        server, slash, _ = self.template.prefix.partition(":")[2].partition("/")
        return self.scope.now.services.get(server) if slash else None

    async def prepare(self) -> None:
        if self.service is not None and not self.service.catalogue.lists:
            with suppress(Refusal):
                await self.service.catalogue.learn(self.service.timeout_s)

    def after(self, name: str) -> Iterator[str]:
        prefix, now, chain = self.template.prefix, self.scope.now, self.scope.chain_of(self.asked)
        if not chain:
            return iter(())
        # Any row on a server permits the methods of a session with it.
        is_whole = prefix.startswith("nhi:")
        held = None if is_whole else now.engine.objects_of(chain, Question(self.template.pattern, "", ""))
        if held is not None:
            return _ordered(held, prefix, name)
        return merge(now.engine.names_after(prefix, name), _ordered(_objects(now), prefix, name))

    def question(self, name: str) -> Evaluation | None:
        given = self.template.id_of(name)
        return None if given is None else self.asked._replace(resource={**self.asked.resource, "id": given})

    def shown(self, asked: Evaluation) -> Mapping[str, Any]:
        return {key: asked.resource[key] for key in ("type", "id")}

    def is_open(self) -> bool:
        pattern, service = self.template.pattern, self.service
        if pattern.startswith("tool:") and service is not None and service.catalogue.lists:
            return False  # all its tools were candidates
        action = self.scope.names.action(self.asked.resource["type"], self.asked.action["name"])
        return action in ACTIONS and self.scope.may_permit_objects(self.asked, pattern, action)


@dataclass(frozen=True, slots=True)
class ActionCandidates:
    """All actions of rules and of the vocabulary; where actions are part of objects, those in the objects of rules."""

    scope: Scope
    asked: Evaluation
    template: NameTemplate | None

    async def prepare(self) -> None:
        pass

    def after(self, name: str) -> Iterator[str]:
        template = self.template
        if template is None:
            return iter(())
        words: Iterable[str] = (*ACTIONS, *self.scope.names.settings.actions)
        if template.has_action:
            engine, chain = self.scope.now.engine, self.scope.chain_of(self.asked)
            held = engine.objects_of(chain, Question(template.pattern, "", "")) if chain else ()
            texts = engine.names_after(template.prefix, "") if held is None else held
            words = map(template.action_of, texts)
        return iter(sorted(word for word in set(words) if word > name))

    def question(self, name: str) -> Evaluation | None:
        return self.asked._replace(action={"name": name})

    def shown(self, asked: Evaluation) -> Mapping[str, Any]:
        return {"name": asked.action["name"]}

    def is_open(self) -> bool:
        if self.template is None or not self.template.has_action:
            return False
        return self.scope.may_permit_objects(self.asked, self.template.pattern_of(self.asked.resource["id"]), "")


def _candidates(search: SearchRequest, scope: Scope) -> Candidates:
    asked, names = search.evaluation, scope.names
    resource = names.resources.get(asked.resource["type"])
    if search.searched == "subject":
        subject = names.subjects.get(asked.subject["type"])
        return ActionCandidates(scope, asked, None) if subject is None else SubjectCandidates(scope, asked, subject)
    if search.searched == "action" or resource is None:
        return ActionCandidates(scope, asked, resource)
    return ResourceCandidates(scope, asked, resource.of_action(asked.action["name"]))


def position_of(search: SearchRequest, names: Vocabulary, revision: str) -> SearchPosition:
    """Returns where a search begins. Raises Refusal(MALFORMED_CALL) for a token of another search, and for another
    limit than that of the page before."""
    told = [revision, names.server, search.searched, *_asked_of(search)]
    digest = encode(hashlib.sha256(orjson.dumps(told, option=orjson.OPT_SORT_KEYS)).digest())
    limit = None if search.limit is None else min(search.limit, MAX_RESULTS)
    if not search.token:
        return SearchPosition(digest, DEFAULT_RESULTS if limit is None else limit, "")
    try:
        found = SearchPosition(*orjson.loads(decode(search.token)))
        if found.search != digest or type(found.limit) is not int or not isinstance(found.after, str):
            raise ValueError
    except (ValueError, TypeError):
        raise malformed("page.token is of another search or another policy: begin again without it") from None
    if limit is not None and limit != found.limit:
        raise malformed("page.limit must be that of the page before")
    return found._replace(limit=min(max(found.limit, 0), MAX_RESULTS))


def token_of(position: SearchPosition) -> str:
    """Returns the token of the page that begins at a position."""
    return encode(orjson.dumps(list(position)))


def _asked_of(search: SearchRequest) -> Iterator[Mapping[str, Any]]:
    """Yields the members of a search, without the id that it ignores."""
    for entity, value in search.evaluation._asdict().items():
        yield {key: part for key, part in value.items() if (entity, key) != (search.searched, "id")}


def _objects(now: Snapshot) -> Iterator[str]:
    """Yields the objects that are known without rules: upstreams, and the tools that servers list."""
    yield from (f"nhi:{name}" for name in now.upstreams)
    yield from (f"tool:{name}/{tool}" for name, service in now.services.items() for tool in service.catalogue.tools)


def _ordered(names: Iterable[str], prefix: str, after: str) -> Iterator[str]:
    return iter(sorted(name for name in set(names) if name.startswith(prefix) and name > after))


def _each_once(names: Iterable[str]) -> Iterator[str]:
    last = None
    for name in names:
        if name != last:
            yield name
        last = name
