"""Builds the lines of the audit log.

A record (CONTRACT 7) has every field by name, in one order, in every event; unknown values are `null`. External values
are bounded here, field by field. Arguments are recorded as a keyed digest (except those that `clear` selects),
credentials as kind, issuer and key id, and results not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeVar

from orjson import Fragment

from sidecar.audit.clear import Clear
from sidecar.audit.digest import AuditKey, Digests, namespace_of
from sidecar.errors import LimitState
from sidecar.protocols.compact_json import compact_json
from sidecar.vocabulary import Call, Caller, Chain, Decision, Fact, Link, Question, RuleRef

VERSION = 2  # version 1 had the server in `tool_name`, and the tool or else the method in `method`
EVENTS = ("decision", "outcome", "refusal", "control")
Event = Literal["decision", "outcome", "refusal", "control"]

# The names of control records that readers of the log interpret.
RECOVERED = "recovered"  # irregularities found at start
CHECKPOINT = "checkpoint"  # a signed statement of the chain's end
REMOVED = "part-removed"  # a part that `keep` deletes
STOP = "stop"

_NAMES = """v event seq id timestamp instance decision_id request_id trace_id run_id thread_id task_id peer credential
    credential_fault chain granted agent_id agent_role protocol protocol_version upstream federation server tool method
    action object args_hash clear_arguments redaction_applied redactions evidence status reason error_message tool_error
    links facts limits would_deny would_allow policy_revision enforcement http_status bytes_in bytes_out duration_ms
    latency control key_id prev_hash"""
_LISTS = ("credential", "chain", "evidence", "links", "facts", "limits", "would_deny", "would_allow")
# Every field in order, with its value while unknown. The line's `hash` is added last (`chain`).
BLANK: Mapping[str, Any] = {
    **dict.fromkeys(_NAMES.split()),
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
CHAIN, CREDENTIALS, RULES, INPUTS, PARTICULARS = 16, 4, 16, 8, 16
GRANTED_CHARS = 16_384  # roles and scopes of a whole chain; a token with more does not fit into a request's headers
REMEMBERED = 1024  # of callers, rules and roles each, about 1 KB
_CUT = "..."
_QUERY = re.compile(r"[?#]")


_Thing = TypeVar("_Thing")
_Made = TypeVar("_Made")


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
    """Describes callers, questions and decisions as record fields. Callers, rules and roles are the same objects from
    call to call, so their fields are cached."""

    __slots__ = ("_no_caller", "_roles", "_rules", "_who", "clear")

    def __init__(self, key: AuditKey, clear_arguments: Mapping[str, Sequence[str]] = MappingProxyType({})) -> None:
        self.clear = Clear(clear_arguments)
        """Selects the arguments that are recorded in clear."""
        self._no_caller = Digests(key, "")
        self._who = _once(partial(_who, key))
        self._rules = _once(_rule_ids)
        self._roles = _once(_role_names)

    def args_hash(self, caller: Caller | None, question: Question) -> str:
        """The digest of the arguments, including a query that is not shown. Raises Refusal(MALFORMED_CALL)."""
        return self._digests(caller).args_hash(question.action, question.object, question.arguments)

    def foreign(
        self, caller: Caller | None, record: Mapping[str, Any], names: Names, call: Call | None, *, allowed: bool
    ) -> dict[str, Any]:
        """The fields of a refused call with unknown names replaced by digests, so that a caller cannot place its own
        text in the log. A name that may exist is shown if policy `allowed` it or the grammar of names bounds it."""
        digest = self._digests(caller).name_hash
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

    def caller(self, caller: Caller) -> Mapping[str, Any]:
        return self._who(caller)[0]

    def decision(self, caller: Caller | None, decision: Decision) -> dict[str, Any]:
        digests = self._digests(caller)
        return {
            "agent_role": self._roles(decision.roles),
            "links": [
                {
                    "kind": link.kind,
                    "action": text(link.action, ID_CHARS),
                    "decision": "allow" if link.allowed else "deny",
                    "rules": self._rules(link.rules),
                }
                for link in decision.links[:ENTRIES]
            ],
            "facts": [_fact(digests, fact.link, fact) for fact in decision.facts[:ENTRIES]],
            "would_deny": decision.would_deny and rule_names(decision.would_deny),
            "would_allow": decision.would_allow and rule_names(decision.would_allow),
            "policy_revision": optional_text(decision.revision),
        }

    def _digests(self, caller: Caller | None) -> Digests:
        return self._no_caller if caller is None else self._who(caller)[1]


def about_call(call: Call) -> dict[str, Any]:
    question = call.question
    shown_object = _without_query(question, question.object)
    tool = _without_query(question, question.name)
    return {
        "protocol_version": optional_text(call.protocol_version),
        "upstream": optional_text(call.upstream),
        "server": optional_text(question.server or call.upstream),
        "tool": optional_text(tool, OBJECT_CHARS),
        "method": optional_text(call.method),
        "action": text(question.action, ID_CHARS),
        "object": text(shown_object, OBJECT_CHARS),
        "redaction_applied": bool(question.arguments) or shown_object != question.object,
    }


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


def limits(states: Iterable[LimitState], charged: int) -> list[dict[str, Any]]:
    """The state of each limit and the amount charged to this call; 0 if not `charged`."""
    return [
        {
            "name": text(state.name, NAME_CHARS),
            "charged": state.charged if charged else 0,
            "remaining": state.remaining,
            "limit": state.limit,
            **({"unit": state.unit} if state.unit else {}),
        }
        for state in islice(states, ENTRIES)
    ]


def to_ms(spent_s: float) -> float:
    """Seconds as milliseconds, to the microsecond. (`round` with digits takes five times as long.)"""
    return int(spent_s * 1e6 + 0.5) / 1000


def milliseconds(stages_s: Mapping[str, float]) -> dict[str, float]:
    """`to_ms` for each stage, inlined: it runs twice for each call."""
    return {stage: int(spent_s * 1e6 + 0.5) / 1000 for stage, spent_s in stages_s.items()}


def control(what: str, by: str, given: Mapping[str, object]) -> dict[str, Any]:
    details = {text(name, ID_CHARS): _plain(value) for name, value in islice(given.items(), PARTICULARS)}
    return {**BLANK, "control": {"what": text(what, ID_CHARS), "by": text(by, NAME_CHARS), **details}}


def _who(key: AuditKey, caller: Caller) -> tuple[Mapping[str, Any], Digests]:
    credentials = [
        {"kind": one.kind, "issuer": text(one.issuer, NAME_CHARS), "key_id": text(one.key_id, ID_CHARS)}
        for one in caller.credentials[:CREDENTIALS]
    ]
    fields = {
        "credential": _written(credentials),
        "chain": _written([text(principal.name, NAME_CHARS) for principal in caller.chain[:CHAIN]]),
        "granted": _granted(caller.chain),
        "agent_id": text(caller.last.name, NAME_CHARS),
    }
    return fields, Digests(key, namespace_of(caller.last.id))


def _granted(chain: Chain) -> Fragment | None:
    """The roles and scopes that credentials granted, by position in the chain; empty if none. None if they do not fit
    into a line: a partial list would be mistaken for a complete one."""
    granted = [{"roles": sorted(each.roles), "scopes": sorted(each.scopes)} for each in chain]
    words = [word for entry in granted for words in entry.values() for word in words]
    if len(chain) > CHAIN or sum(map(len, words)) > GRANTED_CHARS or not all(map(str.isprintable, words)):
        return None
    return _written(granted if words else [])


def _rule_ids(rules: tuple[RuleRef, ...]) -> Fragment:
    return _written(rule_names([rule.id for rule in rules[:RULES]]))


def _role_names(roles: tuple[str, ...]) -> str | None:
    return optional_text(",".join(roles[:ENTRIES]), NAME_CHARS)


def _written(value: object) -> Fragment:
    """Pre-serialized JSON, copied into each line."""
    return Fragment(compact_json(value))


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


def _without_query(question: Question, value: str) -> str:
    """The object without its query and fragment, which are the caller's own text and are not shown (CONTRACT 7)."""
    return _QUERY.split(value, maxsplit=1)[0] if question.object.startswith("resource:") else value


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


def _fact(digests: Digests, link: Link, fact: Fact) -> dict[str, Any]:
    """A condition's result, and the link that it concerns. Inputs are keyed digests: comparable, not readable."""
    inputs = islice(fact.inputs.items(), INPUTS)
    return {
        "subject": text(link.subject, NAME_CHARS),
        "action": text(link.action, ID_CHARS),
        "condition": text(fact.condition, RULE_CHARS),
        "outcome": fact.outcome,
        "inputs": {text(path, RULE_CHARS): digests.fact_hash(value) for path, value in inputs},
    }
