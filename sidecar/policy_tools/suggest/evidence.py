"""Reads recorded use from the audit log: the distinct (kind, subject, object, action), with counts and times.

A call is counted if it passed: each principal of its chain lent the next one its authority (`delegate`), and the last
one performed the action. With `denied`, a call that was refused for want of a rule is counted too. Calls that a deny
rule would have stopped are never counted, not even if shadow mode let them pass.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from sys import intern
from typing import Any, NamedTuple

import orjson

from sidecar.errors import Reason, SettingsError, fault_in
from sidecar.policy import grammar
from sidecar.policy.grammar import Wrong
from sidecar.policy_tools.audit_records import is_of_mcp
from sidecar.settings.uris import named_object
from sidecar.vocabulary import ANONYMOUS, DELEGATE, PermissionKind

KINDS = (PermissionKind.USER_TO_NHI, PermissionKind.NHI_TO_NHI, PermissionKind.AGENT_TO_TOOL)
MAX_TRIPLES = 1_000_000  # about 700 bytes each
MAX_NAMES = 1_000_000  # subjects and objects together; refused calls can name any number of them
MAX_CITED = 3  # decisions that are cited for one triple, and for one rule
MAX_RESTED_ON = 16  # rules that are stored for one triple
MAX_ID_CHARS = 128  # of decisions and rules, the bound that audit records have for rules

# Actions that need no row of their own, and the actions that records have for a stream and for the end of a session.
NEED_NO_ROW = grammar.SESSION_ACTIONS | {"session/stream", "session/end"}
_KINDS = {kind.value: kind for kind in KINDS}
_LINK = {"kind", "action", "decision"}
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z", re.ASCII)


class Triple(NamedTuple):
    kind: PermissionKind
    subject: str
    object: str
    action: str


@dataclass(slots=True)
class Trace:
    """The recorded uses of one triple: their number, the times of the first and the last, some decisions, and the rules
    that decided them. Times are RFC 3339 in UTC, so that the order of texts is that of times. `without_rule` is true if
    a use was not allowed by a rule, `approved` if one needed a person's approval."""

    uses: int = 0
    first: str = ""
    last: str = ""
    decisions: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    without_rule: bool = False
    approved: bool = False

    def add(self, time: str, decision: str, rules: Sequence[str], *, allowed: bool) -> None:
        """Adds one use. `allowed` is false if its link was denied: it passed in shadow mode, or was refused."""
        self.uses += 1
        self.without_rule = self.without_rule or not allowed
        self.first = min(self.first or time, time)
        self.last = max(self.last, time)
        if decision and len(self.decisions) < MAX_CITED:
            self.decisions += (decision,)
        for rule in rules:
            if rule not in self.rules and len(self.rules) < MAX_RESTED_ON:
                self.rules += (intern(rule[:MAX_ID_CHARS]),)


class SuggestQuery(NamedTuple):
    """Which records count: from `since` on and before `until`, both in the form of records, "" for no bound; `denied`:
    also those of calls that were refused because no rule allowed them."""

    since: str = ""
    until: str = ""
    denied: bool = False


@dataclass(slots=True)
class UsageEvidence:
    """The evidence read so far. `subjects` and `objects` are the valid names in records, also in those of refused
    calls; `sessions` counts the session calls of (subject, server) pairs; `counts` counts records by what happened to
    them; `left_out` counts the reasons why a record could not be used, with the first decision as an example;
    `would_deny` counts shadow rules that matched."""

    traces: dict[Triple, Trace] = field(default_factory=dict)
    subjects: set[str] = field(default_factory=set)
    objects: set[str] = field(default_factory=set)
    sessions: Counter[tuple[str, str]] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, tuple[int, str]] = field(default_factory=dict)
    would_deny: Counter[str] = field(default_factory=Counter)

    def read(self, lines: Iterable[bytes], wanted: SuggestQuery, name: str) -> None:
        """Reads every line of a log, whose `name` is for the fault. Raises SettingsError if there are more than
        MAX_TRIPLES or MAX_NAMES."""
        for line in lines:
            self.counts["lines"] += 1
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError:
                record = None
            if isinstance(record, dict):
                self._take(record, wanted)
            elif line.strip():
                self.counts["unreadable"] += 1
            if len(self.traces) > MAX_TRIPLES or len(self.objects) + len(self.subjects) > MAX_NAMES:
                message = f"more than {MAX_TRIPLES} distinct uses, or {MAX_NAMES} names"
                raise SettingsError(
                    [fault_in(name, message, code="W301", hint="limit the period with --since and --until")]
                )

    def _take(self, record: Mapping[str, Any], wanted: SuggestQuery) -> None:
        event, time = record.get("event"), record.get("timestamp")
        if event not in ("decision", "refusal"):
            return
        if not isinstance(time, str) or not _TIME.fullmatch(time):
            self.counts["unreadable"] += 1
            return
        if time < wanted.since or (wanted.until and time >= wanted.until):
            return
        self.counts["records"] += 1
        chain, obj, action = record.get("chain"), record.get("object"), record.get("action")
        if not (_texts(chain) and isinstance(obj, str) and isinstance(action, str)):
            self.counts["no-question"] += 1  # refused before there was a question: no credential, no call
            return
        assert isinstance(chain, list)
        obj = named_object(obj)
        # A policy cannot grant anything to or on a name that it cannot contain, so such a name is not counted as known.
        new = [name for name in chain if name not in self.subjects and not _unsound("subject", name)]
        self.subjects.update(map(intern, new))
        if obj not in self.objects and not _unsound("object", obj):
            self.objects.add(intern(obj))
        of_a_task = action in grammar.MCP_TASK_ACTIONS and is_of_mcp(record)
        if of_a_task or action in NEED_NO_ROW or action.startswith("notifications/"):
            self.counts["session"] += 1
            if event == "decision":
                self.sessions[chain[-1], obj] += 1
                self._tell_more_questions(record, chain)
            return
        verdict = _verdict(record, wanted)
        self.counts[verdict] += 1
        if verdict == "taken":
            self._count(record, time, chain, obj, action)

    def _count(self, record: Mapping[str, Any], time: str, chain: Sequence[str], obj: str, action: str) -> None:
        decision = _decision(record)
        triples = _triples(record["links"], chain, obj, action)
        unsound = (
            _unsound(kind, subject) or _unsound(f"{kind} object", thing) or _unsound("action", act)
            for kind, subject, thing, act in triples
            if (kind, subject, thing, act) not in self.traces
        )
        why = next(filter(None, unsound), "") if triples else "its links do not match its chain"
        if why:
            self.leave_out(why, decision)
            return
        would_deny = record["would_deny"] if _texts(record.get("would_deny")) else []
        waited = record.get("approval") is not None or Reason.APPROVAL_PENDING in would_deny
        for triple, link in zip(triples, record["links"], strict=False):  # guardrails' links follow the chain's own
            trace = self.traces.get(triple)
            if trace is None:
                trace = self.traces[Triple(triple.kind, *map(intern, triple[1:]))] = Trace()
            trace.add(time, decision, link["rules"], allowed=link["decision"] == "allow")
            trace.approved = trace.approved or waited
        self.would_deny.update(name for name in would_deny if name != Reason.APPROVAL_PENDING)
        if obj.startswith("resource:") and record.get("redaction_applied"):
            self.counts["query-unknown"] += 1
        self._tell_more_questions(record, chain)

    def _tell_more_questions(self, record: Mapping[str, Any], chain: Sequence[str]) -> None:
        """Leaves out a call's further questions, which its record does not name: where to push responses, or several
        URIs to subscribe to."""
        links = record.get("links")
        kinds = [link.get("kind") for link in links if isinstance(link, dict)] if isinstance(links, list) else []
        if sum(kind != PermissionKind.GUARDRAIL for kind in kinds) > len(chain):
            self.leave_out("it contains several questions, and its record names only the first", _decision(record))

    def leave_out(self, why: str, decision: str) -> None:
        times, example = self.left_out.get(why, (0, decision))
        self.left_out[why] = (times + 1, example)


def _decision(record: Mapping[str, Any]) -> str:
    return str(record.get("decision_id") or "")[:MAX_ID_CHARS]


def _verdict(record: Mapping[str, Any], wanted: SuggestQuery) -> str:
    """Returns `taken`, or the name under which the record is counted."""
    links = record.get("links")
    if not isinstance(links, list) or not all(map(_is_link, links)):
        return "no-question"
    passed = record["event"] == "decision" and (record.get("reason") is None or record.get("enforcement") == "shadow")
    # A denied link has rules only if deny rules matched.
    if any(link["decision"] != "allow" and link["rules"] for link in links):
        return "denied-by-rule"
    if passed:
        return "taken"
    if record.get("reason") == Reason.NO_MATCHING_RULE:
        return "taken" if wanted.denied else "no-rule"
    return "refused"


def _triples(links: Sequence[Mapping[str, Any]], chain: Sequence[str], obj: str, action: str) -> list[Triple]:
    asked = [*((principal, DELEGATE) for principal in chain[1:]), (obj, action)]
    if len(links) < len(chain) or any(
        link["kind"] not in _KINDS or link["action"] != act for (_, act), link in zip(asked, links, strict=False)
    ):
        return []
    together = zip(chain, asked, links, strict=False)
    return [Triple(_KINDS[link["kind"]], subject, thing, act) for subject, (thing, act), link in together]


def _is_link(link: object) -> bool:
    if not isinstance(link, dict) or not link.keys() >= _LINK:
        return False
    return isinstance(link["kind"], str) and _texts(link.get("rules"), empty=True)


def _texts(values: object, *, empty: bool = False) -> bool:
    return isinstance(values, list) and bool(values or empty) and all(isinstance(value, str) for value in values)


@lru_cache(MAX_NAMES)
def _unsound(what: str, text: str) -> str:
    """Returns why a policy cannot name this text exactly; "" if it can. `what` is `subject`, `object`, `action`, a kind
    for its subjects, or a kind and `object`."""
    try:
        if "*" in text:  # a URI may contain one; in a policy it would be a wildcard
            return "a name with * cannot be written exactly"
        if "object" in what and text.startswith("set:"):
            return "a set is not an object of a call"
        if text.startswith("role:"):  # as a row's subject it would match the members of a role
            return "a role is not a caller"
        match what.split(" "):
            case ["action"] if text == grammar.USE:
                return "no action of a call"
            case ["action"]:
                grammar.action(text)
            case ["object"]:
                grammar.element(text)
            case ["subject"] if text != ANONYMOUS:
                grammar.member(text)
            case [kind, "object"]:
                grammar.object_(text, PermissionKind(kind))
            case [kind] if kind != "subject":
                grammar.subject(text, PermissionKind(kind))
    except Wrong as wrong:
        return wrong.message
    return ""
