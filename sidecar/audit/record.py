"""Builds the lines of the audit log.

A record (CONTRACT 7) has every field by name, in one order, in every event; unknown values are `null`. External values
are bounded here, field by field. Arguments are recorded as a keyed digest (except those that `clear` selects),
credentials as kind, issuer and key id, and results not at all.

A record is a list of segments: JSON members as text, in the order of `LAYOUT`. A segment that stays the same from call
to call is serialized once and kept; the outcome of a call is a copy of its decision in which few segments are new.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from sidecar.audit.chain import Unsealed, ascii_json
from sidecar.audit.clear import Clear
from sidecar.audit.digest import AuditKey, Digests, namespace_of
from sidecar.errors import ANSWERS, LimitState, Reason
from sidecar.vocabulary import Call, Caller, Chain, Decision, Fact, Link, Question

VERSION = 2  # version 1 had the server in `tool_name`, and the tool or else the method in `method`
EVENTS = ("decision", "outcome", "refusal", "control")
Event = Literal["decision", "outcome", "refusal", "control"]

# The names of control records that readers of the log interpret.
RECOVERED = "recovered"  # irregularities found at start
CHECKPOINT = "checkpoint"  # a signed statement of the chain's end
REMOVED = "part-removed"  # a part that `keep` deletes
STOP = "stop"

# Every field in order, in segments. A line begins with `v`, `event` and `seq`, and ends with `prev_hash` and `hash`.
LAYOUT: Sequence[tuple[str, ...]] = [
    tuple(names.split())
    for names in (
        "id timestamp instance",
        "decision_id request_id trace_id run_id thread_id",
        "task_id",
        "peer",
        "credential",
        "credential_fault",
        "chain granted agent_id",
        "agent_role",
        "protocol protocol_version upstream",
        "federation",
        "server tool method action object",
        "args_hash clear_arguments",
        "redaction_applied redactions evidence",
        "status reason error_message tool_error",
        "links facts",
        "limits",
        "would_deny would_allow policy_revision enforcement",
        "http_status bytes_in bytes_out duration_ms latency",
        "control key_id",
    )
]
(
    STAMP, IDS, TASK, PEER, CREDENTIAL, FAULT, CHAIN, ROLE, PROTOCOL, FEDERATION, CALL, ARGUMENTS, CONTENT, END, GROUND,
    LIMITS, POLICY, ANSWER, LOG,
) = range(len(LAYOUT))  # fmt: skip
_LISTS = ("credential", "chain", "evidence", "links", "facts", "limits", "would_deny", "would_allow")
# Every field with its value while unknown.
BLANK: Mapping[str, Any] = {
    **dict.fromkeys(("v", "event", "seq", *itertools.chain(*LAYOUT), "prev_hash")),
    **dict.fromkeys(_LISTS, ()),
    "v": VERSION,
    "redaction_applied": False,
    "latency": {},
}
FIELDS = (*BLANK, "hash")

_SEED_NAMES = """id timestamp run_id thread_id agent_id agent_role tool_name method args_hash redaction_applied
    duration_ms status error_message"""
# The field names of the seed's AuditLog, and the fields of our records that they map to.
SEED_FIELDS: Mapping[str, str] = {name: name for name in _SEED_NAMES.split()} | {
    "tool_name": "server",
    "method": "tool",
}

# Bounds in characters and entries. Together they keep a line under chain.MAX_LINE_BYTES, including escapes.
ID_CHARS = 256  # ids of requests, traces, runs, threads; names of tools and methods
NAME_CHARS = 512  # a principal's name is at most 261 (CONTRACT 1.1); issuers are URLs
OBJECT_CHARS = 2300  # "resource:<server>/" and a URI of 2,000
RULE_CHARS = 128
ENTRIES = 32  # of any list without a bound of its own
PRINCIPALS, CREDENTIALS, RULES, INPUTS, PARTICULARS = 16, 4, 16, 8, 16
GRANTED_CHARS = 16_384  # roles and scopes of a whole chain; a token with more does not fit into a request's headers
REMEMBERED = 1024  # of callers, rules, roles and calls each, about 1 KB
REMEMBERED_CHARS = 512  # of an object; a longer one is serialized each time
_CUT = "..."
_QUERY = re.compile(r"[?#]")


_Thing = TypeVar("_Thing")
_Made = TypeVar("_Made")
Record = list[str]
"""The segments of one record."""


class CallSegments(NamedTuple):
    protocol: str
    call: str
    shows_all: bool
    """Whether the object is recorded whole."""


class KnownCaller(NamedTuple):
    """The segments that describe a caller, and its digests."""

    credential: str
    chain: str
    digests: Digests


class Names(Protocol):
    """Decides which names are known; `sidecar.gateway.snapshot.Snapshot` implements it."""

    def has_upstream(self, name: str) -> bool:
        """Whether a server or an agent has this name."""

    def has_method(self, name: str) -> bool:
        """Whether a supported protocol, or the sidecar itself, has this method."""

    def has(self, question: Question) -> bool | None:
        """Whether the question's object exists; None if that is unknown."""


def text(value: str, chars: int) -> str:
    """A bounded copy. A lone surrogate, which cannot be encoded, becomes a question mark."""
    if len(value) > chars:
        value = value[: chars - len(_CUT)] + _CUT
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def optional_text(value: str | None, chars: int = ID_CHARS) -> str | None:
    return text(value, chars) if value else None


def request_id(value: str | int | None) -> str | int | None:
    if isinstance(value, int):
        return value if abs(value) < 2**63 else text(str(value)[:ID_CHARS], ID_CHARS)
    return None if value is None else text(value, ID_CHARS)


class Describer:
    """Describes callers, calls and decisions as segments of records. What is the same from call to call is kept as
    text: callers, rules and roles by the object, calls and limits by their values."""

    __slots__ = ("_limits", "_links", "_no_caller", "_roles", "_who", "blank", "clear")

    def __init__(self, key: AuditKey, clear_arguments: Mapping[str, Sequence[str]] = MappingProxyType({})) -> None:
        self.clear = Clear(clear_arguments) if clear_arguments else None
        """Selects the arguments that are recorded in clear."""
        self.blank: Record = [segment(place, {"key_id": key.id}) for place in range(len(LAYOUT))]
        self._no_caller = KnownCaller(self.blank[CREDENTIAL], self.blank[CHAIN], Digests(key, ""))
        self._who = _once(partial(_who, key))
        self._links = _once(_link_names)
        self._roles = _once(_role_names)
        self._limits: dict[int, tuple[object, str]] = {}

    def limits(self, states: tuple[LimitState, ...] | ChargedLimits, charged: int) -> str:
        """As `limits`; the text of a plan is kept, and what remains is put into it."""
        counted = None if isinstance(states, tuple) or not charged else states.counted
        if counted is None:
            return limits(states, charged)
        plan, remaining = counted
        known = self._limits.get(id(plan))
        if known is None:
            if len(self._limits) >= REMEMBERED:
                self._limits.clear()
            known = self._limits[id(plan)] = (plan, limits_template(states))
        return known[1] % remaining[:ENTRIES]

    def args_hash(self, caller: Caller | None, question: Question) -> str:
        """The digest of the arguments, including a query that is not shown. Raises Refusal(MALFORMED_CALL)."""
        return self.caller(caller).digests.args_hash(question.action, question.object, question.arguments)

    def foreign(
        self, caller: Caller | None, record: Mapping[str, Any], names: Names, call: Call | None, *, allowed: bool
    ) -> dict[str, Any]:
        """The fields of a refused call with unknown names replaced by digests, so that a caller cannot place its own
        text in the log. A name that may exist is shown if policy `allowed` it or the grammar of names bounds it."""
        digest = self.caller(caller).digests.name_hash
        known_as = {"upstream": names.has_upstream, "server": names.has_upstream, "method": names.has_method}
        hashed: dict[str, Any] = {
            field: digest(record[field])
            for field, is_ours in known_as.items()
            if record[field] and not is_ours(record[field])
        }
        if call is None:
            return hashed
        known = names.has(call.question)
        is_bounded = not call.question.object.startswith("resource:")  # a URI is up to 2,000 characters of its choice
        if known or (known is None and (allowed or is_bounded)):
            return hashed
        word, _, rest = call.question.object.partition(":")
        server, slash, _ = rest.partition("/")
        place, name = (f"{server}/", call.question.name) if slash and "server" not in hashed else ("", rest)
        if word == "nhi" and "server" not in hashed:  # the agent is known, the skill is not
            return {**hashed, "tool": digest(call.question.name), "redaction_applied": True}
        tool = digest(call.question.name) if record["tool"] else None
        return {**hashed, "object": f"{word}:{place}{digest(name)}", "tool": tool, "redaction_applied": True}

    def caller(self, caller: Caller | None) -> KnownCaller:
        return self._no_caller if caller is None else self._who(caller)

    def call(self, protocol: str, call: Call) -> CallSegments:
        question = call.question
        chars = len(question.object) + len(question.action) + len(call.method) + len(call.protocol_version)
        describe = _call_segments if chars <= REMEMBERED_CHARS else _call_segments.__wrapped__
        words = (protocol, call.protocol_version, call.upstream, call.method)
        return describe(*words, question.server, question.name, question.action, question.object)

    def role(self, decision: Decision) -> str:
        return self._roles(decision.roles)

    def ground(self, digests: Digests, decision: Decision) -> str:
        """The rules that a decision rests on, and what their conditions read."""
        links = self._links(decision.links)
        if not decision.facts:
            return f'{links},"facts":[]'
        facts = [_fact(fact, digests.fact_hash) for fact in decision.facts[:ENTRIES]]
        return f'{links},"facts":[{",".join(facts)}]'


def about_call(call: Call) -> dict[str, Any]:
    question = call.question
    return {
        "protocol_version": optional_text(call.protocol_version),
        "upstream": optional_text(call.upstream),
        "server": optional_text(question.server or call.upstream),
        "tool": optional_text(_without_query(question.object, question.name), OBJECT_CHARS),
        "method": optional_text(call.method),
        "action": text(question.action, ID_CHARS),
        "object": text(_without_query(question.object, question.object), OBJECT_CHARS),
    }


def shows_all(question: Question) -> bool:
    """Whether the object is recorded whole."""
    return _without_query(question.object, question.object) == question.object


@lru_cache(REMEMBERED)
def _call_segments(
    protocol: str, version: str, upstream: str, method: str, server: str, name: str, action: str, object_: str
) -> CallSegments:
    call = Call(protocol, version, upstream, method, (Question(object_, action, server, name),))
    fields = {"protocol": optional_text(protocol), **about_call(call)}
    return CallSegments(segment(PROTOCOL, fields), segment(CALL, fields), shows_all(call.question))


def as_seed(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record of any version under the seed's names. For a call without a tool, `method` is the method on the wire."""
    if record.get("v") == 1:
        return {name: record.get(name) for name in SEED_FIELDS}
    said = {name: record.get(ours) for name, ours in SEED_FIELDS.items()}
    return {**said, "method": said["method"] or record.get("method")}


def skill_in(record: Mapping[str, Any]) -> object:
    """The tool, prompt, URI or skill in a record of any version; None if there is none."""
    if record.get("v") != 1:
        return record.get("tool")
    return None if record.get("method") == record.get("action") else record.get("method")


class ChargedLimits(Protocol):
    """The states of the limits that a call was charged to."""

    def __iter__(self) -> Iterator[LimitState]: ...

    @property
    def counted(self) -> tuple[object, tuple[int, ...]] | None:
        """The plan of the charges, the same object from call to call, and what remains of each limit. None if a limit
        counts costs, or nothing was charged."""


def limits_template(states: Iterable[LimitState]) -> str:
    """What `limits` returns for limits of calls, with `%d` for what remains of each."""
    blank = [state._replace(remaining=0) for state in states]
    return limits(blank, 1).replace("%", "%%").replace('"remaining":0', '"remaining":%d')


def limits(states: Iterable[LimitState], charged: int) -> str:
    """The state of each limit and the amount charged to this call; 0 if not `charged`."""
    told = []
    for state in islice(states, ENTRIES):
        amounts: dict[str, Any] = {"name": text(state.name, NAME_CHARS), "charged": state.charged if charged else 0}
        amounts["remaining"], amounts["limit"] = state.remaining, state.limit
        if state.unit:
            amounts["unit"] = state.unit
        told.append(amounts)
    return f'"limits":{json_text(told)}'


@lru_cache(REMEMBERED)
def policy(would_deny: tuple[str, ...], would_allow: tuple[str, ...], revision: str, enforcement: str) -> str:
    """What shadow rules would have decided; `would_deny` is bounded by the caller."""
    fields = {"would_deny": would_deny, "would_allow": rule_names(would_allow)}
    return segment(POLICY, {**fields, "policy_revision": optional_text(revision), "enforcement": enforcement})


@lru_cache(None)  # of our own words only
def end(reason: Reason | None, tool_error: bool | None) -> str:
    answer = ANSWERS[reason] if reason is not None else None
    status, message = (answer.status, answer.message) if answer else ("success", None)
    return segment(END, {"status": status, "reason": reason, "error_message": message, "tool_error": tool_error})


def ids(
    decision_id: str, asked_as: str | int | None, trace_id: str | None, run_id: str | None, thread_id: str | None
) -> str:
    if trace_id is None and run_id is None and thread_id is None and type(asked_as) is int and abs(asked_as) < 2**63:
        return _IDS % (decision_id, asked_as)
    correlated = {"trace_id": trace_id, "run_id": run_id, "thread_id": thread_id}
    words = {name: optional_text(value) for name, value in correlated.items()}
    return segment(IDS, {"decision_id": decision_id, "request_id": request_id(asked_as), **words})


def task(task_id: str | None) -> str:
    return segment(TASK, {"task_id": text(task_id, ID_CHARS)}) if task_id else _NO_TASK


@lru_cache(REMEMBERED)
def peer(address: str) -> str:
    return segment(PEER, {"peer": optional_text(address)})


def args_hash(digest: str | None) -> str:
    return _NO_ARGS_HASH if digest is None else _ARGS_HASH % digest


def answer(
    http_status: int | None,
    bytes_in: int,
    bytes_out: int | None,
    duration_s: float | None,
    stages_s: Mapping[str, float],
) -> str:
    """What was answered, and how long it took. All but `bytes_in` is None before the answer."""
    told = {
        "http_status": http_status,
        "bytes_in": bytes_in,
        "bytes_out": bytes_out,
        "duration_ms": None if duration_s is None else _ms(duration_s),
        "latency": {stage: int(spent_s * 1e6 + 0.5) / 1000 for stage, spent_s in stages_s.items()},  # `_ms`, inlined
    }
    return json_text(told)[1:-1]


def _ms(spent_s: float) -> float:
    """Seconds as milliseconds, to the microsecond. (`round` with digits takes five times as long.)"""
    return int(spent_s * 1e6 + 0.5) / 1000


def control(key_id: str, what: str, by: str, given: Mapping[str, object]) -> Record:
    details = {text(name, ID_CHARS): _plain(value) for name, value in islice(given.items(), PARTICULARS)}
    fields = {"control": {"what": text(what, ID_CHARS), "by": text(by, NAME_CHARS), **details}, "key_id": key_id}
    return record_of(fields)


def record_of(fields: Mapping[str, Any]) -> Record:
    return [segment(place, fields) for place in range(len(LAYOUT))]


def segment(place: int, fields: Mapping[str, Any]) -> str:
    """Serialize one segment of a record; fields that are missing are blank."""
    return json_text({name: fields.get(name, BLANK[name]) for name in LAYOUT[place]})[1:-1]


def json_text(value: Any) -> str:
    return ascii_json(value).decode("ascii")


def unsealed(event: Event, record: Record) -> Unsealed:
    return Unsealed(STARTS[event], f',{",".join(record)},"prev_hash":"')


def form(place: int) -> str:
    """A segment with a `%s` for each value."""
    return ",".join(f'"{name}":%s' for name in LAYOUT[place])


STARTS: Mapping[str, str] = {event: f'{{"v":{VERSION},"event":"{event}","seq":' for event in EVENTS}
REDACTED = segment(CONTENT, {"redaction_applied": True})
_NO_TASK, _NO_ARGS_HASH = segment(TASK, {}), segment(ARGUMENTS, {})
_IDS = form(IDS) % ('"%s"', "%d", "null", "null", "null")
_ARGS_HASH = form(ARGUMENTS) % ('"%s"', "null")


def _who(key: AuditKey, caller: Caller) -> KnownCaller:
    credentials = [
        {"kind": one.kind, "issuer": text(one.issuer, NAME_CHARS), "key_id": text(one.key_id, ID_CHARS)}
        for one in caller.credentials[:CREDENTIALS]
    ]
    fields = {
        "credential": credentials,
        "chain": [text(principal.name, NAME_CHARS) for principal in caller.chain[:PRINCIPALS]],
        "granted": _granted(caller.chain),
        "agent_id": text(caller.last.name, NAME_CHARS),
    }
    return KnownCaller(segment(CREDENTIAL, fields), segment(CHAIN, fields), Digests(key, namespace_of(caller.last.id)))


def _granted(chain: Chain) -> list[dict[str, list[str]]] | None:
    """The roles and scopes that credentials granted, by position in the chain; empty if none. None if they do not fit
    into a line: a partial list would be mistaken for a complete one."""
    granted = [{"roles": sorted(each.roles), "scopes": sorted(each.scopes)} for each in chain]
    words = [word for entry in granted for words in entry.values() for word in words]
    if len(chain) > PRINCIPALS or sum(map(len, words)) > GRANTED_CHARS or not all(map(str.isprintable, words)):
        return None
    return granted if words else []


def _link_names(links: tuple[Link, ...]) -> str:
    told = [
        {
            "kind": link.kind,
            "action": text(link.action, ID_CHARS),
            "decision": "allow" if link.allowed else "deny",
            "rules": rule_names([rule.id for rule in link.rules[:RULES]]),
        }
        for link in links[:ENTRIES]
    ]
    return f'"links":{json_text(told)}'


def _role_names(roles: tuple[str, ...]) -> str:
    return segment(ROLE, {"agent_role": optional_text(",".join(roles[:ENTRIES]), NAME_CHARS)})


def _once(make: Callable[[_Thing], _Made]) -> Callable[[_Thing], _Made]:
    """Cache `make` by object identity: hashing by value would cost more than making it again."""
    known: dict[int, tuple[_Thing, _Made]] = {}

    def made(thing: _Thing) -> _Made:
        found = known.get(id(thing))
        if found is None:
            if len(known) >= REMEMBERED:
                known.clear()
            found = known[id(thing)] = (thing, make(thing))  # the reference keeps the object's id from being reused
        return found[1]

    return made


def _without_query(object_: str, value: str) -> str:
    """The object without its query and fragment, which are the caller's own text and are not shown (CONTRACT 7)."""
    return _QUERY.split(value, maxsplit=1)[0] if object_.startswith("resource:") else value


def rule_names(values: Sequence[str]) -> list[str]:
    return [text(value, RULE_CHARS) for value in values[:ENTRIES]]


def _plain(value: object) -> object:
    match value:
        case None | bool() | float():
            return value
        case int():
            return request_id(value)
        case list() | tuple():
            return rule_names([str(item) for item in value[:ENTRIES]])
        case _:
            return text(str(value), NAME_CHARS)


def _fact(fact: Fact, fact_hash: Callable[[object], str | None]) -> str:
    """A condition's result, and the link that it concerns. Inputs are keyed digests: comparable, not readable."""
    link = fact.link
    digests = {_path(path): fact_hash(value) for path, value in islice(fact.inputs.items(), INPUTS)}
    inputs = ",".join([f'{path}:"{digest}"' if digest else f"{path}:null" for path, digest in digests.items()])
    return _fact_form(link.subject, link.action[: ID_CHARS + 1], fact.condition, fact.outcome) % inputs


@lru_cache(REMEMBERED)
def _fact_form(subject: str, action: str, condition: str, outcome: str) -> str:
    """A fact with a `%s` for its inputs."""
    words = {"subject": text(subject, NAME_CHARS), "action": text(action, ID_CHARS)}
    told = json_text({**words, "condition": text(condition, RULE_CHARS), "outcome": outcome})
    return told[:-1].replace("%", "%%") + ',"inputs":{%s}}'


@lru_cache(REMEMBERED)
def _path(path: str) -> str:
    return json_text(text(path, RULE_CHARS))
