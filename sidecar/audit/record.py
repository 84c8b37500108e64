"""What does one line of evidence say?

The shape of a record (CONTRACT 7): every field by name, in one order, present in every event; `null` where a fact is
not known. What came from outside is bounded here, field by field; what is secret never gets here: arguments come as a
keyed digest, credentials as kind, issuer and key id, results not at all.

Pure: facts in, plain values out. `recorder` collects the facts, `chain` turns a record into a line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from sidecar.audit.digest import AuditKey, args_hash, fact_hash
from sidecar.errors import LimitState, Refusal
from sidecar.vocabulary import Call, Caller, Credential, Decision, Fact, Link, Question

VERSION = 1
EVENTS = ("decision", "outcome", "refusal", "control")
Event = Literal["decision", "outcome", "refusal", "control"]

# Every field, in order, with what stands there while nothing is known. The line's `hash` follows as the last (`chain`).
_BLANK: Mapping[str, Any] = {
    "v": VERSION,
    "event": None,
    "seq": None,
    "id": None,
    "timestamp": None,
    "instance": None,
    "decision_id": None,
    "request_id": None,
    "trace_id": None,
    "run_id": None,
    "thread_id": None,
    "peer": None,
    "credential": (),
    "chain": (),
    "agent_id": None,
    "agent_role": None,
    "protocol": None,
    "protocol_version": None,
    "upstream": None,
    "tool_name": None,
    "method": None,
    "action": None,
    "object": None,
    "args_hash": None,
    "redaction_applied": False,
    "status": None,
    "reason": None,
    "error_message": None,
    "links": (),
    "facts": (),
    "limits": (),
    "would_deny": (),
    "would_allow": (),
    "policy_revision": None,
    "enforcement": None,
    "http_status": None,
    "bytes_in": None,
    "bytes_out": None,
    "duration_ms": None,
    "latency": {},
    "control": None,
    "key_id": None,
    "prev_hash": None,
}
FIELDS = (*_BLANK, "hash")

# Bounds in characters and entries. Together they keep a line under chain.MAX_LINE_BYTES, whatever is escaped.
ID_CHARS = 256  # ids of requests, traces, runs, threads; names of tools and methods
NAME_CHARS = 512  # a principal's name is at most 261 (CONTRACT 1.1); issuers are URLs
OBJECT_CHARS = 2300  # "resource:<server>/" and a URI of 2,000
RULE_CHARS = 128
ENTRIES = 32  # of any list that is not named below
CHAIN, CREDENTIALS, RULES, INPUTS, PARTICULARS = 16, 4, 16, 8, 16
_CUT = "..."
_QUERY = re.compile(r"[?#]")


class Clock(Protocol):
    """Both clocks; Python's own `time` module is one."""

    def time(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds since whenever; never goes back."""


class Counts(Protocol):
    """Whoever counts records; `sidecar.metrics.Metrics` is one."""

    def audit_recorded(self, event: str, result: str) -> None:
        """One record of a kind of event was `written`, or `failed`."""


def time_ordered_ids(clock: Clock, *, entropy: Callable[[int], bytes] = os.urandom) -> Callable[[], str]:
    """A source of UUIDs of version 7 (RFC 9562): they sort by the millisecond, 74 bits cannot be guessed."""

    def new_id() -> str:
        raw = int(clock.time() * 1000).to_bytes(6, "big") + entropy(10)
        digits = raw.hex()
        variant = "89ab"[raw[8] & 3]
        return f"{digits[:8]}-{digits[8:12]}-7{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"

    return new_id


def blank() -> dict[str, Any]:
    """A record about nothing yet, its fields in order."""
    return dict(_BLANK)


def timestamps() -> Callable[[float], str]:
    """Seconds since the epoch as RFC 3339 in UTC with microseconds. The calendar is consulted once a second."""
    known_s, date = -1, ""

    def timestamp(epoch_s: float) -> str:
        nonlocal known_s, date
        whole_s = int(epoch_s)
        if whole_s != known_s:
            known_s, date = whole_s, datetime.fromtimestamp(whole_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{date}.{min(round((epoch_s - whole_s) * 1e6), 999_999):06d}Z"

    return timestamp


def text(value: str, chars: int) -> str:
    """A bounded copy. A lone surrogate, which no encoder takes, becomes a question mark."""
    if len(value) > chars:
        value = value[: chars - len(_CUT)] + _CUT
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def optional_text(value: str | None, chars: int = ID_CHARS) -> str | None:
    """`text`, and None for what is not known."""
    return text(value, chars) if value else None


def request_id(value: str | int | None) -> str | int | None:
    """A JSON-RPC id as it came, bounded."""
    if isinstance(value, int):
        return value if abs(value) < 2**63 else text(str(value)[:ID_CHARS], ID_CHARS)
    return None if value is None else text(value, ID_CHARS)


def namespace_of(caller: Caller | None) -> str:
    """The tenant of a caller: what precedes the slash in the last principal's id, else ""."""
    if caller is None:
        return ""
    namespace, slash, _ = caller.last.id.partition("/")
    return namespace if slash else ""


def arguments_digest(key: AuditKey, caller: Caller | None, question: Question) -> str:
    """`args_hash` of one question, over the whole object: the query that is not shown included."""
    return args_hash(key, namespace_of(caller), question.action, question.object, question.arguments)


def about_caller(caller: Caller) -> dict[str, Any]:
    """Who: the chain, and what proved it."""
    return {
        "credential": [_credential(credential) for credential in caller.credentials[:CREDENTIALS]],
        "chain": _names([principal.name for principal in caller.chain[:CHAIN]]),
        "agent_id": text(caller.last.name, NAME_CHARS),
    }


def about_call(call: Call) -> dict[str, Any]:
    """What they asked for: the question that names the call. `method` is its tool, or the word on the wire."""
    question = call.question
    shown_object = _without_query(question, question.object)
    return {
        "protocol_version": optional_text(call.protocol_version),
        "upstream": optional_text(call.upstream),
        "tool_name": optional_text(question.server),
        "method": text(_without_query(question, question.name) or call.method, OBJECT_CHARS),
        "action": text(question.action, ID_CHARS),
        "object": text(shown_object, OBJECT_CHARS),
        "redaction_applied": bool(question.arguments) or shown_object != question.object,
    }


def about_decision(key: AuditKey, caller: Caller | None, decision: Decision) -> dict[str, Any]:
    """What policy said, and what it rested on."""
    return {
        "agent_role": optional_text(",".join(decision.roles[:ENTRIES]), NAME_CHARS),
        "links": [_link(link) for link in decision.links[:ENTRIES]],
        "facts": _facts(key, caller, decision),
        "would_deny": _names(decision.would_deny, RULE_CHARS),
        "would_allow": _names(decision.would_allow, RULE_CHARS),
        "policy_revision": optional_text(decision.revision),
    }


def limits(states: Sequence[LimitState], charged: int) -> list[dict[str, Any]]:
    """Where each limit stood, and what this call was charged."""
    return [
        {
            "name": text(state.name, NAME_CHARS),
            "charged": charged,
            "remaining": state.remaining,
            "limit": state.limit,
        }
        for state in states[:ENTRIES]
    ]


def milliseconds(stages_s: Mapping[str, float]) -> dict[str, float]:
    """Seconds by stage as milliseconds by stage."""
    return {stage: to_ms(spent_s) for stage, spent_s in stages_s.items()}


def to_ms(spent_s: float) -> float:
    """Seconds as milliseconds, to the microsecond. (`round` with digits takes five times as long.)"""
    return int(spent_s * 1e6 + 0.5) / 1000


def control_facts(what: str, by: str, given: Mapping[str, object]) -> dict[str, object]:
    """What a control event says: the act, who did it, and its particulars."""
    particulars = list(given.items())[:PARTICULARS]
    return {
        "what": text(what, ID_CHARS),
        "by": text(by, NAME_CHARS),
        **{text(name, ID_CHARS): _plain(value) for name, value in particulars},
    }


def _credential(credential: Credential) -> dict[str, str]:
    return {
        "kind": credential.kind,
        "issuer": text(credential.issuer, NAME_CHARS),
        "key_id": text(credential.key_id, ID_CHARS),
    }


def _link(link: Link) -> dict[str, Any]:
    return {
        "kind": link.kind,
        "action": text(link.action, ID_CHARS),
        "decision": "allow" if link.allowed else "deny",
        "rules": _names([rule.id for rule in link.rules[:RULES]], RULE_CHARS),
    }


def _facts(key: AuditKey, caller: Caller | None, decision: Decision) -> list[dict[str, Any]]:
    """How each condition came out. Its inputs as keyed digests: they can be compared, and never read."""
    namespace = namespace_of(caller)
    every = [fact for link in decision.links for fact in link.facts]
    return [
        {
            "condition": text(fact.condition, RULE_CHARS),
            "outcome": fact.outcome,
            "inputs": _inputs(key, namespace, fact),
        }
        for fact in every[:ENTRIES]
    ]


def _without_query(question: Question, value: str) -> str:
    """A resource's query and fragment are the caller's own words (CONTRACT 7): evidence does not show them."""
    return _QUERY.split(value, maxsplit=1)[0] if question.object.startswith("resource:") else value


def _names(values: Sequence[str], chars: int = NAME_CHARS) -> list[str]:
    return [text(value, chars) for value in values[:ENTRIES]]


def _plain(value: object) -> object:
    match value:
        case None | bool() | float():
            return value
        case int():
            return request_id(value)
        case list() | tuple():
            return _names([str(item) for item in value[:ENTRIES]], RULE_CHARS)
        case _:
            return text(str(value), NAME_CHARS)


def _inputs(key: AuditKey, namespace: str, fact: Fact) -> dict[str, str | None]:
    inputs = list(fact.inputs.items())[:INPUTS]
    return {text(path, RULE_CHARS): _input(key, namespace, value) for path, value in inputs}


def _input(key: AuditKey, namespace: str, value: object) -> str | None:
    try:
        return fact_hash(key, namespace, value)
    except Refusal:
        return None  # not JSON (a time, a CEL type): there is nothing that a replay could compare it with
