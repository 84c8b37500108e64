"""Filters the messages of an upstream that a caller may receive.

Every message is parsed, checked and rewritten: a message that cannot be parsed does not pass, lists name only what the
caller may use, and a server's request to its client needs a policy row like any call. `ownership.py` finds the tasks in
a message that belong to the reader, and `response_rules.py` redacts it before it is filtered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import orjson

from sidecar.errors import Reason, Refusal
from sidecar.gateway.error_responses import error_body, facts_of
from sidecar.gateway.kill_switch import KillSwitch
from sidecar.gateway.ownership import NOTHING, Owned, owned_in
from sidecar.gateway.request import UpstreamExchange
from sidecar.gateway.request_state import MAX_STATE_BYTES, RequestStates
from sidecar.gateway.response_rules import inspect, refused, screen_of
from sidecar.gateway.snapshot import Live
from sidecar.protocols import jsonrpc
from sidecar.protocols.hidden_characters import AmbiguousKeysError, hidden_in, without_hidden
from sidecar.protocols.jsonrpc import Id
from sidecar.protocols.mcp import messages, task_messages
from sidecar.protocols.mcp.eras import SESSION_VERSIONS_SET
from sidecar.protocols.mcp.messages import COMPLETE, CONTENT, LeftOut
from sidecar.protocols.mcp.task_messages import SeenTasks
from sidecar.storage.task_owners import TaskOwners
from sidecar.upstreams.mcp.pins import digest_of
from sidecar.upstreams.mcp.sessions import PendingRequest
from sidecar.vocabulary import Decision, Question

_new = tuple.__new__
LEFT_OUT = "sidecar/left_out"  # in the `_meta` of a list: omitted entries, and why
MAX_LEFT_OUT = 32
LONG_BYTES = 2**20  # of one message
SLICE_ENTRIES = 500  # list entries filtered before other work runs: about 10 us each with compiled rules


class FilteredMessage(NamedTuple):
    """The outcome of one message. `out` goes to the caller, `reply` back to the upstream; either may be None. `final`:
    the call has its answer; `version` is the revision that an `initialize` agreed on, `result` the result of a call.
    `status` is the HTTP status of an error."""

    out: bytes | None = None
    reply: jsonrpc.Response | None = None
    final: bool = False
    version: str = ""
    result: Mapping[str, Any] | None = None
    status: int = 200


@dataclass(frozen=True, slots=True)
class FilterServices:
    """Services that the filters of all answers use."""

    live: Live
    switch: KillSwitch
    tasks: TaskOwners
    states: RequestStates


class ResponseFilter:
    """Filters one answer, by the rules of the exchange's own revision (`judged_by`). `expected` are the ids that may be
    answered here, `creators` the questions of requests that may be answered with a task."""

    __slots__ = ("creators", "exchange", "expected", "shared")

    def __init__(
        self,
        exchange: UpstreamExchange,
        expected: Container[Id],
        creators: Mapping[Id, Question],
        shared: FilterServices,
    ) -> None:
        self.exchange, self.expected, self.creators, self.shared = exchange, expected, creators, shared

    @property
    def answers(self) -> Id | None:
        """The id of the only request that this answers; None for a stream that answers none or several."""
        return self.expected[0] if isinstance(self.expected, tuple) and len(self.expected) == 1 else None

    async def response(self, response: jsonrpc.Response, raw: bytes) -> FilteredMessage:
        """Filters a response and records the owner of a task that it creates. Yields to other work during long lists.
        Raises Refusal: RESPONSE_REFUSED, the denial of a request that it makes of the caller, the reason for which its
        task is not allowed any more, TOO_MANY_CONCURRENT, STORE_UNAVAILABLE, AUDIT_UNAVAILABLE."""
        if len(raw) > LONG_BYTES:  # parsing took milliseconds and writing will: other work runs
            await asyncio.sleep(0)
        exchange, (request_id, result, error) = self.exchange, response
        call, request, session = exchange.call, exchange.request, exchange.session
        given, plain = None, False
        if isinstance(result, dict):
            given = result
            plain = not call.session and CONTENT.issuperset(given) and given.get("resultType", COMPLETE) == COMPLETE
        owned = NOTHING
        if call.tasks or not plain:
            owned = await owned_in(self.shared.tasks, exchange.caller, call, response)
        screen = screen_of(exchange)
        rules = None if screen is None else await inspect(exchange, screen, response, raw, owned)
        if request_id is None or request_id not in self.expected:
            raise refused("it answers another request")
        earlier, lost, created, version = None, None, None, ""
        if session is not None and request_id != call.request_id:
            earlier = session.sent.get(request_id)
            if earlier is None:  # two calls had this id, or the call is forgotten
                raise refused("it answers another request")
        if earlier is None:
            if exchange.span is not None:
                exchange.span.heard(given, error)
            if (error is not None or (given and given.get("isError") is True)) and not call.session:
                request.tool_failed()
            # It is charged whether or not the answer passes, unless it became a task.
            if plain or given is None or task_messages.created_in(given) is None:
                request.answered(given)
            if owned and (lost := await self._lost_in_answer(None, owned)) is not None:
                raise Refusal(lost)
        else:
            lost = await self._lost_in_answer(earlier, owned)
        if lost is not None:
            refusal = Refusal(lost)
            facts = facts_of(refusal, request.record.decision_id, request.now.manner)
            out, given = error_body(refusal, request_id, facts), None
        elif error is not None:
            out, given = jsonrpc.encode_response(response), None
        else:
            if given is None:
                raise refused("its result is not an object")
            if not plain:
                version, created = await self._result(response, given, owned)
            if call.protocol_version in SESSION_VERSIONS_SET:  # after pins and schemas were checked
                messages.narrow_to_sessions(given)
            if exchange.outward is not None:
                given = exchange.outward.result(given)
            out = orjson.dumps({"jsonrpc": "2.0", "id": request_id, "result": given})
        if rules is not None:
            await rules.settle(passes=lost is None)
        if created is not None:
            task, by = created
            await self.shared.tasks.created(
                exchange.caller, call.upstream, task.id, by=by, method=call.method, ttl_s=task.ttl_s
            )
            request.record.task_id = task.id
        return _new(FilteredMessage, (out, None, True, version, given, 200))

    async def other(self, message: jsonrpc.Request | jsonrpc.Notification, raw: bytes) -> FilteredMessage:
        """Filters a request or notification. A denied request is not passed on, and `reply` answers it. Raises Refusal:
        RESPONSE_REFUSED, AUDIT_UNAVAILABLE."""
        if len(raw) > LONG_BYTES:
            await asyncio.sleep(0)
        exchange = self.exchange
        owned = await owned_in(self.shared.tasks, exchange.caller, exchange.call, message)
        screen = screen_of(exchange)
        rules = None if screen is None else await inspect(exchange, screen, message, raw, owned)
        foreign = self._is_foreign(message, owned)
        if isinstance(message, jsonrpc.Request):
            passed = await self._request(message, owned, foreign=foreign)
        elif foreign or await self._lost_one(owned):
            passed = FilteredMessage()
        else:
            passed = await self._notification(message, owned)
        if rules is not None:
            await rules.settle(passes=passed.out is not None)
        return passed

    def _is_foreign(self, message: jsonrpc.Message, owned: Owned) -> bool:
        return any(task_id not in owned for task_id in task_messages.named_by_upstream(message))

    async def _lost_in_answer(self, earlier: PendingRequest | None, owned: Owned) -> Reason | None:
        """Returns why an answer is not allowed now, because rules or switches changed since its call or its task."""
        if earlier is not None and not earlier.question.object.startswith("nhi:"):
            return await self._lost(earlier.question)
        method = self.exchange.call.method if earlier is None else earlier.method
        return None if method in task_messages.ENDING_OR_LISTING else await self._lost_one(owned)

    async def _lost_one(self, owned: Owned) -> Reason | None:
        for record in owned.values():
            if (lost := await self._lost(record.question)) is not None:
                return lost
        return None

    async def _lost(self, question: Question) -> Reason | None:
        """Returns why a question is not allowed now; the reason is recorded."""
        exchange, now_s = self.exchange, self.shared.live.clock()
        decision = exchange.judged_by.engine.reconsider(exchange.caller.chain, question, now_s)
        if decision.allowed or exchange.judged_by.shadows(now_s):
            if self.shared.switch.ledger.switched_off.find(question.object, now_s) is None:
                return None
            decision = decision._replace(allowed=False, reason=Reason.TOOL_DISABLED)
        await exchange.request.record.judged(question, decision)
        return decision.reason

    def _tasks(self, entries: object, owned: Owned) -> list[Any]:
        if not isinstance(entries, list):
            raise refused("its tasks are not a list")
        if len(entries) > task_messages.MAX_NAMED:
            raise refused("its tasks are too many")
        now_s, is_off = self.shared.live.clock(), self.shared.switch.ledger.switched_off.find
        mine = ((entry, owned.get(task_messages.listed_id(entry))) for entry in entries)
        asked = ((entry, task.question) for entry, task in mine if task is not None)
        return [entry for entry, by in asked if is_off(by.object, now_s) is None and self._may_list(by, now_s)]

    async def _result(
        self, response: jsonrpc.Response, result: dict[str, Any], owned: Owned
    ) -> tuple[str, tuple[SeenTasks, Question] | None]:
        """Filters a result in place. Returns the revision that it agrees on ("" for none), and the task that it creates
        with the question of the answered call."""
        version = ""
        if self.exchange.call.method == "initialize":
            version = str(result.get("protocolVersion"))
            if version not in SESSION_VERSIONS_SET:
                raise refused("it agrees on a revision that is not known here")
        foreign = self._is_foreign(response, owned)
        if len(result) > messages.MAX_MEMBERS:
            raise refused("its result has too many members")
        if messages.evades(result):
            raise refused("its result has a member in another spelling")
        left_out: list[LeftOut] = []
        for member in messages.LISTS:
            if member in result:
                result[member] = await self._entries(member, result[member], left_out)
        meta = result.get("_meta")
        if isinstance(meta, dict):
            meta.pop(LEFT_OUT, None)  # only the sidecar reports the entries that it omits
        if left_out:
            told = [one._asdict() for one in left_out[:MAX_LEFT_OUT]]
            result["_meta"] = {**(meta if isinstance(meta, dict) else {}), LEFT_OUT: told}
        if "instructions" in result:  # models read instructions like descriptions
            for text in self._legible([result.pop("instructions")]):
                result["instructions"] = text
        if result.get("resultType", "complete") not in messages.RESULT_TYPES:
            raise refused("its resultType is not one that was asked for")
        for method in messages.asked_of_client(result):
            (await self._ask(method)).or_refuse()
        if self.exchange.caller.is_anonymous and isinstance(result.get("capabilities"), dict):
            result["capabilities"] = messages.without_tasks(result["capabilities"])
        approval = self.exchange.request.approval
        if "requestState" in result or (approval and result.get("resultType") == "input_required"):
            state = result.get("requestState", "")
            if not isinstance(state, str) or len(state.encode()) > MAX_STATE_BYTES:
                raise refused(f"its requestState is not a text of {MAX_STATE_BYTES} bytes at most")
            result["requestState"] = self.shared.states.seal(self.exchange.caller, self.exchange.call, state, approval)
        if "cacheScope" in result:
            # It was filtered for one caller, so a shared cache must not serve it to another.
            result["cacheScope"] = "private"
        created = None
        if (task := task_messages.created_in(result)) is not None:
            by = None if response.id is None else self.creators.get(response.id)
            if by is None:
                raise refused("it creates a task where none may be")
            created = task, by
        if "tasks" in result:
            result["tasks"] = self._tasks(result["tasks"], owned)
        elif foreign:
            raise refused("it names a task of another caller")
        return version, created

    async def _entries(self, member: str, entries: object, left_out: list[LeftOut]) -> list[Any]:
        if not isinstance(entries, list):
            raise refused(f"its {member} are not a list")
        now_s, shown = self.shared.live.clock(), []
        size = 1 if self.exchange.judged_by.engine.asks_casbin else SLICE_ENTRIES
        for start in range(0, len(entries), size):
            if start:
                await asyncio.sleep(0)
            part = entries[start : start + size]
            listed = [entry for entry in part if self._listed(member, entry, now_s, left_out)]
            legible = self._legible(listed)
            if len(legible) < len(listed):
                left_out += self._illegible(member, listed)
            shown += legible
        return shown

    def _listed(self, member: str, entry: object, now_s: float, left_out: list[LeftOut]) -> bool:
        """Reports whether an entry is shown. An entry that is omitted although the reader may use it is added to
        `left_out`, if it has no valid name or no usable schema."""
        exchange = self.exchange
        question = messages.entry_question(member, exchange.service.name, entry)
        if question is None:
            one = messages.unnamed(member, entry) if len(left_out) < MAX_LEFT_OUT else None
            if one is not None and self._may_list(messages.left_out_question(one, exchange.service.name), now_s):
                left_out.append(one)
            return False
        if not self._may_list(question, now_s):
            return False
        if member in _LOCATED:
            exchange.service.catalogue.spellings.learn(question.name, _LOCATED[member](entry))
        if member != "tools" or self._usable(question, entry, now_s):
            return True
        tool = exchange.service.catalogue.tools.get(question.name)
        if tool is not None and tool.schema is None:
            left_out.append(LeftOut("tool", tool.name, tool.quarantine_reason))
        return False

    def _illegible(self, member: str, entries: list[Any]) -> Iterator[LeftOut]:
        """Yields the entries that are omitted because of hidden text."""
        for entry in entries:
            if not self._legible([entry]):
                named = messages.entry_question(member, self.exchange.service.name, entry)
                yield LeftOut(messages.KINDS[member], named.name if named else "", "hidden characters in its texts")

    def _usable(self, question: Question, entry: Any, now_s: float) -> bool:
        """Reports whether the tool is on and callable and, if tools are pinned, whether this entry equals the pin: the
        server might answer the sidecar's own list differently."""
        if self.shared.switch.ledger.switched_off.find(question.object, now_s) is not None:
            return False
        catalogue, rules = self.exchange.service.catalogue, self.exchange.judged_by
        if question.server not in rules.required:
            return catalogue.usable(question.name)
        digest = digest_of(entry)
        if not rules.approves(question.server, question.name, digest):
            self.exchange.service.sightings.add(question.name, entry)
        elif catalogue.usable(question.name, digest):
            return True
        return False

    def _legible(self, entries: list[Any]) -> list[Any]:
        """Applies the upstream's `hidden_text` setting to text that a model will read: returns the entries unchanged,
        without those that have hidden characters, or without these characters."""
        treatment = self.exchange.service.definition.hidden_text
        if treatment == "flag":
            return entries
        if treatment == "refuse":
            return [entry for entry in entries if not hidden_in(entry)]
        return [entry for entry in map(_stripped, entries) if entry is not None]

    def _may_list(self, question: Question, now_s: float) -> bool:
        """Returns whether policy lists an entry: if a call of it may be allowed, and in shadow mode always."""
        rules = self.exchange.judged_by
        return rules.shadows(now_s) or rules.engine.may_list(self.exchange.caller.chain, question, now_s)

    async def _request(self, request: jsonrpc.Request, owned: Owned, *, foreign: bool) -> FilteredMessage:
        session = self.exchange.session
        if self.exchange.call.method == "initialize":
            return FilteredMessage()  # not possible yet; a server must continue without it (MCP 2025-11-25, lifecycle)
        if session is None:
            if request.method == "ping":  # a server continues without its answer
                return FilteredMessage()
            raise refused("it asks the client outside of a result")  # forbidden by MCP 2026-07-28
        shown = request if self.exchange.outward is None else self.exchange.outward.request(request)
        if shown is None or (request.method != "ping" and request.method not in messages.SERVER_REQUESTS):
            return FilteredMessage(reply=jsonrpc.Response(request.id, error=_UNKNOWN_METHOD))
        if foreign or await self._lost_one(owned):
            return FilteredMessage(reply=jsonrpc.Response(request.id, error=_NOT_PERMITTED))
        if request.method != "ping":
            if not (await self._ask(request.method)).allowed:
                return FilteredMessage(reply=jsonrpc.Response(request.id, error=_NOT_PERMITTED))
            self.exchange.wait_for_caller()
        session.expect(request.id, request.method)
        # The client declared no tasks of its own, and answers as if none had been requested (MCP 2025-11-25).
        params = {key: value for key, value in shown.params.items() if key != "task"}
        return FilteredMessage(jsonrpc.encode_request(shown._replace(params=params)))

    async def _ask(self, method: str) -> Decision:
        """Returns the decision on a server's request to its client, which is recorded; shadow mode allows it."""
        exchange, now_s = self.exchange, self.shared.live.clock()
        question = messages.server_question(exchange.service.name, method)
        decision = exchange.judged_by.engine.decide(exchange.caller.chain, question, now_s)
        shadow = exchange.judged_by.shadows(now_s)
        await exchange.request.record.judged(question, decision, "shadow" if shadow else "enforce")
        return decision._replace(allowed=True) if shadow else decision

    async def _notification(self, notification: jsonrpc.Notification, owned: Owned) -> FilteredMessage:
        if notification.method not in messages.SERVER_NOTIFICATIONS:
            return FilteredMessage()  # unknown notifications are dropped
        if notification.method == "notifications/tools/list_changed":
            self.exchange.service.catalogue.stale()
        if notification.method == "notifications/resources/updated" and not self._listed(
            "resources", notification.params, self.shared.live.clock(), []
        ):
            return FilteredMessage()
        if notification.method in task_messages.NOTIFICATIONS and not await self._may_hear(notification.params, owned):
            return FilteredMessage()
        if notification.method == "notifications/subscriptions/acknowledged":
            notification = task_messages.acknowledged(notification, self.exchange.call.tasks)
        if self.exchange.outward is not None:
            notification = self.exchange.outward.notification(notification)
        return FilteredMessage(jsonrpc.encode_notification(notification))

    async def _may_hear(self, task: dict[str, Any], owned: Owned) -> bool:
        """Reports whether a task is the reader's and may make its requests of the reader."""
        if task_messages.listed_id(task) not in owned:
            return False
        try:
            decisions = [await self._ask(method) for method in messages.asked_of_client(task)]
            return all(decision.allowed for decision in decisions)
        except Refusal:
            return False


def _stripped(entry: Any) -> Any:
    try:
        return without_hidden(entry)
    except AmbiguousKeysError:  # it is ambiguous which of the two values the caller would see
        return None


# The member of a list entry that holds its URI or URI template.
_LOCATED: Mapping[str, Callable[[Any], str]] = {
    "resources": itemgetter("uri"),
    "resourceTemplates": itemgetter("uriTemplate"),
}
_UNKNOWN_METHOD = {"code": -32601, "message": "Method not found"}
_NOT_PERMITTED = {"code": 403, "message": "The client may not be asked for this"}


def read_answer(raw: bytes) -> jsonrpc.Message:
    """Parses one message of the upstream. Raises Refusal(RESPONSE_REFUSED), because the upstream made the error."""
    try:
        return jsonrpc.message_from(jsonrpc.parse_answer(raw))
    except Refusal as refusal:
        raise refused(refusal.detail) from None
