"""Builds the lines of the audit log.

A record has every field by name, in one order, in every event; unknown values are `null`. External values are bounded
here, field by field. Arguments are recorded as a keyed digest (except those that `clear` selects), credentials as kind,
issuer and key id, and results not at all.

A record is a list of segments: JSON members as text, in the order of `LAYOUT`. The part that is the same in many calls
is one list, which is serialized once and cached. A decision is a copy of it, and an outcome is a copy of its decision
with few new segments.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import orjson

from sidecar.audit.chain import Unsealed, ascii_json
from sidecar.audit.clear import Clear
from sidecar.audit.digest import AuditKey, Digests, namespace_of
from sidecar.errors import ANSWERS, LimitState, Reason
from sidecar.vocabulary import Call, Caller, Chain, Decision, Fact, Link, Question

VERSION = 2  # version 1 had the server in `tool_name`, and the tool, or otherwise the method, in `method`
EVENTS = ("decision", "outcome", "refusal", "control")
Event = Literal["decision", "outcome", "refusal", "control"]

# The names of control records that readers of the log interpret.
RECOVERED = "recovered"  # irregularities found at start
CHECKPOINT = "checkpoint"  # a signed statement of the chain's end
REMOVED = "part-removed"  # a part deleted because of `keep`
STOP = "stop"

# Every field in order, in segments. A line begins with `v`, `event` and `seq`, and ends with `prev_hash` and `hash`.
LAYOUT: Sequence[tuple[str, ...]] = [
    tuple(names.split())
    for names in (
        "id timestamp instance",
        "decision_id request_id trace_id run_id thread_id",
        "task_id",
        "peer enforcement_point",
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
        "approval",
        "would_deny would_allow policy_revision engine enforcement",
        "http_status bytes_in bytes_out duration_ms latency",
        "control key_id",
    )
]
(
    STAMP, IDS, TASK, PEER, CREDENTIAL, FAULT, CHAIN, ROLE, PROTOCOL, FEDERATION, CALL, ARGUMENTS, CONTENT, END, GROUND,
    LIMITS, APPROVAL, POLICY, ANSWER, LOG,
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
# The field names of AuditLog in the original data models, and the record fields that they map to.
SEED_FIELDS: Mapping[str, str] = {name: name for name in _SEED_NAMES.split()} | {
    "tool_name": "server",
    "method": "tool",
}

# Bounds in characters and entries. Together they keep a line under chain.MAX_LINE_BYTES, including escapes.
ID_CHARS = 256  # ids of requests, traces, runs, threads; names of tools and methods
NAME_CHARS = 512  # a principal's name is at most 261; issuers are URLs
OBJECT_CHARS = 2300  # "resource:<server>/" and a URI of 2,000
RULE_CHARS = 128
ENTRIES = 32  # of any list without a bound of its own
PRINCIPALS, CREDENTIALS, RULES, INPUTS, PARTICULARS = 16, 4, 16, 8, 16
GRANTED_CHARS = 16_384  # roles and scopes of a whole chain; a token with more does not fit into a request's headers
REMEMBERED = 1024  # of callers, calls and plans each, about 1 KB each
REMEMBERED_CHARS = 768  # of the words of a call; longer ones are serialized each time
_CUT = "..."
_QUERY = re.compile(r"[?#]")


_Made = TypeVar("_Made")
Record = list[str]
"""The segments of one record."""


class KnownCall(NamedTuple):
    """The common part of the records of all such calls."""

    record: Record
    shows_all: bool
    """Whether the object is recorded in full."""
    answer: tuple[Any, ...] | None
    """The decision without its facts, with which later ones must be equal. It holds the links, so that no others get
    their id."""


class KnownCaller(NamedTuple):
    """The segments that describe a caller, and its digests."""

    credential: str
    chain: str
    digests: Digests
    caller: Caller | None
    """Held, so that no other object gets its id."""


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
    """Describes callers, calls and decisions as segments of records. Texts that are the same in many calls are cached:
    by the objects that policy shares among equal answers, by the caller's object, and by the words of the call.
    """

    __slots__ = ("_key", "_limits", "_no_caller", "blank", "calls", "clear", "who")

    def __init__(self, key: AuditKey, clear_arguments: Mapping[str, Sequence[str]] = MappingProxyType({})) -> None:
        self.clear = Clear(clear_arguments) if clear_arguments else None
        """Selects the arguments that are recorded in clear."""
        self.blank: Record = [segment(place, {"key_id": key.id}) for place in range(len(LAYOUT))]
        self._key, self._no_caller = key, KnownCaller(self.blank[CREDENTIAL], self.blank[CHAIN], Digests(key, ""), None)
        self.who: dict[int, KnownCaller] = {}
        """The results of `caller`, by the caller's id."""
        self.calls: dict[object, KnownCall] = {}
        """The results of `call`, by its terms, the enforcement, and the id of the decision's links."""
        self._limits: dict[int, tuple[object, str]] = {}

    def limits(self, states: tuple[LimitState, ...] | ChargedLimits, charged: int) -> str:
        """Like `limits`, but caches the text of a plan and fills in the remaining amounts."""
        if not charged or isinstance(states, tuple) or (counted := states.counted) is None:
            return limits(states, charged)
        plan, remaining = counted
        _, form = self._limits.get(id(plan)) or _keep(self._limits, id(plan), (plan, limits_template(states)))
        return form % remaining[:ENTRIES]

    def foreign(
        self, caller: Caller | None, record: Mapping[str, Any], names: Names, call: Call | None, *, allowed: bool
    ) -> dict[str, Any]:
        """The fields of a refused call with unknown names replaced by digests, so that a caller cannot place its own
        text in the log. A name that may exist is shown if policy `allowed` it, or if the grammar of names bounds it."""
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
        if caller is None:
            return self._no_caller
        return self.who.get(id(caller)) or _keep(self.who, id(caller), _who(self._key, caller))

    def call(self, key: tuple[tuple[str, ...], str, int], decision: Decision | None) -> KnownCall:
        """Returns the common part of the records of all calls with the key's words, which are the parameters of
        `about`, under decisions that differ in `facts` only."""
        words, enforcement, _ = key
        fields, record, object_ = about(*words), self.blank.copy(), "".join(words[4:5])
        record[PROTOCOL], record[CALL] = segment(PROTOCOL, fields), segment(CALL, fields)
        describe(record, decision, enforcement)
        known = KnownCall(record, without_query(object_, object_) == object_, decision and decision[:-1])
        return known if sum(map(len, words)) > REMEMBERED_CHARS else _keep(self.calls, key, known)


def describe(record: Record, decision: Decision | None, enforcement: str, excused: tuple[str, ...] = ()) -> None:
    """Sets the segments of the policy decision, without its facts, and of the refusals that shadow mode ignored."""
    fields: dict[str, Any] = {"would_deny": excused, "enforcement": enforcement}
    if decision is not None:
        would_deny = decision.would_deny
        if enforcement == "shadow" and not decision.allowed:
            would_deny = (*would_deny, *decision.denied_by)
        fields |= {
            "agent_role": optional_text(",".join(decision.roles[:ENTRIES]), NAME_CHARS),
            "links": _told(decision.links),
            "would_deny": (*rule_names(would_deny), *excused),
            "would_allow": rule_names(decision.would_allow),
            "policy_revision": optional_text(decision.revision),
            "engine": None if decision.engine == "compiled" else decision.engine,
        }
    for place in (ROLE, GROUND, POLICY):
        record[place] = segment(place, fields)


def ground(links: str, facts: tuple[Fact, ...], digests: Digests) -> str:
    """Returns the segment `links`, which has no facts, with these facts. Their inputs are keyed digests, which can be
    compared but not read."""
    told, known = [], digests.known_facts
    for condition, outcome, link, inputs in facts[:ENTRIES]:
        hashes, inputs = [], inputs if len(inputs) <= INPUTS else dict(islice(inputs.items(), INPUTS))
        for value in inputs.values():
            kind = type(value)
            hashes.append((known.get(value) if kind is str or kind is int else None) or digests.fact_text(value))
        form, places = _fact_form(link.subject, link.action[: ID_CHARS + 1], condition, outcome, *inputs)
        if places is not None:
            hashes = [hashes[place] for place in places]
        told.append(form % tuple(hashes))
    return f"{links[:-1]}{','.join(told)}]"


def about(
    protocol: str,
    version: str,
    upstream: str,
    method: str,
    object_: str | None = None,
    action: str = "",
    server: str = "",
    name: str = "",
) -> dict[str, Any]:
    """The plain fields of `PROTOCOL` and `CALL`; without an object, those of a request that ended before its call."""
    fields: dict[str, Any] = {
        "protocol": optional_text(protocol),
        "protocol_version": optional_text(version),
        "upstream": optional_text(upstream),
        "method": optional_text(method),
    }
    if object_ is None:
        return fields | dict.fromkeys(("server", "tool", "action", "object"))
    return fields | {
        "server": optional_text(server or upstream),
        "tool": optional_text(without_query(object_, name), OBJECT_CHARS),
        "action": text(action, ID_CHARS),
        "object": text(without_query(object_, object_), OBJECT_CHARS),
    }


def as_seed(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record of any version under the names of the original data models. For a call without a tool, `method` is the
    method on the wire."""
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
        """Returns the plan of the charges, the same object in many calls, and the remaining amount of each limit. None
        if a limit counts costs, or nothing was charged."""


def limits_template(states: Iterable[LimitState]) -> str:
    """Returns the text of `limits` for limits of calls, with `%d` for the remaining amount of each."""
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


@lru_cache(None)  # of the sidecar's own words only
def end(reason: Reason | None, tool_error: bool | None) -> str:
    answer = ANSWERS[reason] if reason is not None else None
    status, message = (answer.status, answer.message) if answer else ("success", None)
    return segment(END, {"status": status, "reason": reason, "error_message": message, "tool_error": tool_error})


def ids(
    decision_id: str, asked_as: str | int | None, trace_id: str | None, run_id: str | None, thread_id: str | None
) -> str:
    if trace_id is None and run_id is None and thread_id is None and type(asked_as) is int and abs(asked_as) < 2**63:
        return _IDS % (decision_id, asked_as)
    told: dict[str, Any] = {"decision_id": decision_id, "request_id": request_id(asked_as)}
    told["trace_id"] = text(trace_id, ID_CHARS) if trace_id else None
    told["run_id"] = text(run_id, ID_CHARS) if run_id else None
    told["thread_id"] = text(thread_id, ID_CHARS) if thread_id else None
    return json_text(told)[1:-1]


def task(task_id: str | None) -> str:
    return f'"task_id":{json_text(text(task_id, ID_CHARS))}' if task_id else _NO_TASK


@lru_cache(REMEMBERED)
def peer(address: str, enforcement_point: str = "") -> str:
    fields = {"peer": optional_text(address), "enforcement_point": optional_text(enforcement_point)}
    return segment(PEER, fields)


def answer(
    started_s: float,
    marks: Mapping[str, float],
    latency: dict[str, float],
    bytes_in: int,
    http_status: int | None = None,
    bytes_out: int | None = None,
    ended_s: float | None = None,
) -> str:
    """Returns the answer and its duration, in milliseconds with three decimals. `marks` are the ends of stages;
    `latency` holds the durations of the first ones, and receives the others."""
    before_s, ends = started_s, iter(marks.items())
    if latency:
        _, before_s = next(islice(ends, len(latency) - 1, None))
    for stage, mark_s in ends:  # (`round` with digits takes five times as long.)
        latency[stage] = ((mark_s - before_s) * 1e6 + 0.5) // 1 / 1000
        before_s = mark_s
    told = {
        "http_status": http_status,
        "bytes_in": bytes_in,
        "bytes_out": bytes_out,
        "duration_ms": None if ended_s is None else int((ended_s - started_s) * 1e6 + 0.5) / 1000,
        "latency": latency,
    }
    return orjson.dumps(told).decode("ascii")[1:-1]


def control(key_id: str, what: str, by: str, given: Mapping[str, object]) -> Record:
    details = {text(name, ID_CHARS): _plain(value) for name, value in islice(given.items(), PARTICULARS)}
    fields = {"control": {"what": text(what, ID_CHARS), "by": text(by, NAME_CHARS), **details}, "key_id": key_id}
    return record_of(fields)


def record_of(fields: Mapping[str, Any]) -> Record:
    return [segment(place, fields) for place in range(len(LAYOUT))]


def segment(place: int, fields: Mapping[str, Any]) -> str:
    """Serializes one segment of a record; missing fields are blank."""
    return json_text({name: fields.get(name, BLANK[name]) for name in LAYOUT[place]})[1:-1]


def json_text(value: Any) -> str:
    return ascii_json(value).decode("ascii")


def unsealed(event: Event, record: Record) -> Unsealed:
    return Unsealed(STARTS[event], ",".join(record))


def form(place: int) -> str:
    """A segment with a `%s` for each value."""
    return ",".join(f'"{name}":%s' for name in LAYOUT[place])


STARTS: Mapping[str, str] = {event: f'{{"v":{VERSION},"event":"{event}","seq":' for event in EVENTS}
REDACTED = segment(CONTENT, {"redaction_applied": True})
_NO_TASK = segment(TASK, {})
_IDS = form(IDS) % ('"%s"', "%d", "null", "null", "null")
ARGS_HASH = form(ARGUMENTS) % ('"%s"', "null")


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
    digests = Digests(key, namespace_of(caller.last.id))
    return KnownCaller(segment(CREDENTIAL, fields), segment(CHAIN, fields), digests, caller)


def _granted(chain: Chain) -> list[dict[str, list[str]]] | None:
    """The roles and scopes that credentials granted, by position in the chain; empty if none. None if they do not fit
    into a line, because a partial list would be mistaken for a complete one."""
    granted = [{"roles": sorted(each.roles), "scopes": sorted(each.scopes)} for each in chain]
    words = [word for entry in granted for words in entry.values() for word in words]
    if len(chain) > PRINCIPALS or sum(map(len, words)) > GRANTED_CHARS or not all(map(str.isprintable, words)):
        return None
    return granted if words else []


def _told(links: tuple[Link, ...]) -> list[dict[str, Any]]:
    return [
        {
            "kind": link.kind,
            "action": text(link.action, ID_CHARS),
            "decision": "allow" if link.allowed else "deny",
            "rules": rule_names([rule.id for rule in link.rules[:RULES]]),
        }
        for link in links[:ENTRIES]
    ]


def _keep(known: dict[Any, _Made], key: object, made: _Made) -> _Made:
    """Caches a result. If the key is an object's id, the result holds the object, so that the id is not used again."""
    if len(known) >= REMEMBERED:
        known.clear()
    known[key] = made
    return made


def without_query(object_: str, value: str) -> str:
    """The object without its query and fragment, which are the caller's own text and are not shown."""
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


@lru_cache(REMEMBERED)
def _fact_form(subject: str, action: str, condition: str, outcome: str, *paths: str) -> tuple[str, list[int] | None]:
    """A fact with a `%s` for each input, and the positions of these in `paths` if some are equal after truncation."""
    words = {"subject": text(subject, NAME_CHARS), "action": text(action, ID_CHARS)}
    told = json_text({**words, "condition": text(condition, RULE_CHARS), "outcome": outcome})
    places = {text(path, RULE_CHARS): place for place, path in enumerate(paths)}
    members = ",".join([json_text(path).replace("%", "%%") + ":%s" for path in places])
    form = f'{told[:-1].replace("%", "%%")},"inputs":{{{members}}}}}'
    return form, None if len(places) == len(paths) else list(places.values())
