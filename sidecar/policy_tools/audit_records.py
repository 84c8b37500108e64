"""Reads questions and answers from audit records.

A line of the audit log becomes a `RecordedQuestion`: the chain, the question, the recorded answer, and the recorded
outcomes of its conditions. Missing information is named in `gaps`, so that a replay never guesses.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson

from sidecar.audit.chain import MAX_LINE_BYTES, unseal
from sidecar.audit.clear import ABSENT
from sidecar.audit.digest import HASHED_NAME
from sidecar.audit.record import skill_in
from sidecar.errors import Reason
from sidecar.policy.grammar import MCP_TASK_ACTIONS, SESSION_ACTIONS
from sidecar.protocols.a2a.operations import VERSIONS
from sidecar.protocols.json_pointers import parse_pointer
from sidecar.protocols.mcp import messages
from sidecar.protocols.mcp.eras import ALL_VERSIONS
from sidecar.settings.uris import named_object
from sidecar.vocabulary import DELEGATE, Answer, Chain, PermissionKind, Principal, Question

CHUNK_BYTES = 1 << 20

_ON_SERVERS = SESSION_ACTIONS | messages.SERVER_REQUESTS  # actions on an MCP server as a whole
POLICY_REASONS = (Reason.DENIED_BY_RULE, Reason.EXPIRED, Reason.CONDITION_FALSE, Reason.NO_MATCHING_RULE)
APPROVAL_REASONS = (Reason.APPROVAL_PENDING, Reason.APPROVAL_REFUSED, Reason.APPROVAL_EXPIRED)

# The reasons why a record cannot be decided again; a replay counts by them.
SEVERAL_QUESTIONS = "the call asked about several objects, and a record names the first"
QUERY_CUT = "the URI had a query, which a record does not show"
NAME_HASHED = "the call named what is none of the sidecar's, and a record has a digest of that name alone"
GRANTS_UNKNOWN = "the record does not say which roles and scopes the token granted"


class UnreadableAuditLine(Exception):
    """A line or a record is not as a sidecar writes it. The message states the fault, and the position if it is
    known."""


class RecordedFact(NamedTuple):
    """The outcome of a condition, by the digest of its text. `inputs` are keyed digests by path, None for values that
    are not JSON; `lends` is true if it decided whether authority may be lent."""

    condition: str
    outcome: str
    subject: str
    lends: bool
    inputs: Mapping[str, str | None]


class RecordedApproval(NamedTuple):
    """Whether a call needed a person's approval (None if it ended before that was determined), and who gave it."""

    waited: bool | None
    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordedQuestion:
    """One recorded question that policy answered. `at_s` is its time in seconds since the epoch; `rules` are the ids of
    the rules that decided its links; `reason` is why policy denied it, `ended` why the call was refused, by policy or
    later, each "" if it was not; `enforced` is false in shadow mode, where a denial refuses nothing;
    `without_arguments` is true if the call is known to have had none. `key_id` names the key of the digests. `gaps` are
    the reasons why it cannot be decided again. `clear` are the arguments recorded in clear, by path, in the form of
    `audit.clear`."""

    seq: int
    decision_id: str
    timestamp: str
    at_s: float
    chain: Chain
    question: Question
    session: bool
    allowed: bool
    reason: str
    ended: str
    enforced: bool
    revision: str
    rules: tuple[str, ...]
    facts: tuple[RecordedFact, ...]
    key_id: str
    approval: RecordedApproval
    without_arguments: bool
    gaps: tuple[str, ...] = ()
    clear: Mapping[tuple[str, ...], Mapping[str, Any]] = field(default_factory=dict)

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The recorded answer; both possible ones if the record does not state whether the call needed an approval."""
        waited = self.approval.waited
        if not self.allowed:
            return ("deny",)
        return ("allow", "approval") if waited is None else ("approval",) if waited else ("allow",)


def question_of(
    obj: str, action: str, arguments: Mapping[str, Any] | None = None, meta: Mapping[str, Any] | None = None
) -> Question:
    """Returns the question about an object by its name. An object `nhi:…` is a server if the action is one on servers,
    otherwise an agent."""
    word, _, rest = obj.partition(":")
    if word == "nhi":
        return Question(obj, action, rest if action in _ON_SERVERS else "", "", arguments or {}, meta or {})
    server, _, name = rest.partition("/")
    return Question(obj, action, server, name, arguments or {}, meta or {})


def is_session(question: Question) -> bool:
    """Whether it is a session call, which any grant on the server opens."""
    if not question.object.startswith("nhi:"):
        return False
    return question.action in SESSION_ACTIONS or bool(question.server and question.action in MCP_TASK_ACTIONS)


def is_of_mcp(fields: Mapping[str, Any]) -> bool:
    """Whether a record is of an MCP message, or of a question about one by an enforcement point."""
    return fields.get("protocol") == "mcp" or fields.get("protocol_version") in ALL_VERSIONS


def is_of_a2a(fields: Mapping[str, Any]) -> bool:
    """Whether a record is of an A2A operation, or of a question about one by an enforcement point."""
    return fields.get("protocol") == "a2a" or fields.get("protocol_version") in VERSIONS


def asked_in(fields: Mapping[str, Any]) -> RecordedQuestion | None:
    """Returns the question of a record; None for another event than a decision, refusal or outcome, and for a record
    without links. Raises UnreadableAuditLine if its members are not as a sidecar writes them."""
    if fields.get("event") not in ("decision", "refusal", "outcome") or not fields.get("links"):
        return None
    try:
        return _asked(fields)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UnreadableAuditLine(f"record {fields.get('seq')} is not as a sidecar writes it: {error}") from None


def _asked(fields: Mapping[str, Any]) -> RecordedQuestion:
    names, links, reason = fields["chain"], fields["links"], fields["reason"] or ""
    granted = fields.get("granted") or [{"roles": (), "scopes": ()}] * len(names)
    named = _word(fields["object"])
    question = question_of(named if HASHED_NAME in named else named_object(named), _word(fields["action"]))
    if question.action in MCP_TASK_ACTIONS and is_of_mcp(fields):  # of a server, not an agent
        question = question._replace(server=question.object.removeprefix("nhi:"))
    if is_of_a2a(fields) and (skill := skill_in(fields)) is not None:
        question = question._replace(name=_word(skill))
    return RecordedQuestion(
        seq=int(fields["seq"]),
        decision_id=_word(fields["decision_id"]),
        timestamp=_word(fields["timestamp"]),
        at_s=datetime.fromisoformat(fields["timestamp"]).astimezone(UTC).timestamp(),
        chain=tuple(
            Principal(_word(name), "", frozenset(map(_word, each["roles"])), frozenset(map(_word, each["scopes"])))
            for name, each in zip(names, granted, strict=True)
        ),
        question=question,
        session=is_session(question),
        allowed=reason not in POLICY_REASONS and all(link["decision"] == "allow" for link in links),
        reason=str(reason) if reason in POLICY_REASONS else "",
        ended=str(reason),
        enforced=fields["enforcement"] != "shadow",
        revision=str(fields["policy_revision"] or ""),
        rules=tuple(dict.fromkeys(_word(rule) for link in links for rule in link["rules"])),
        facts=tuple(map(_fact, fields["facts"])),
        key_id=str(fields.get("key_id") or ""),
        approval=_approval(fields, str(reason)),
        without_arguments=fields["redaction_applied"] is False,
        gaps=tuple(_gaps(fields, question)),
        clear={parse_pointer(text): _entry(entry) for text, entry in (fields.get("clear_arguments") or {}).items()},
    )


def _approval(fields: Mapping[str, Any], reason: str) -> RecordedApproval:
    used = fields.get("approval")
    if used is not None:
        return RecordedApproval(True, tuple(map(_word, used.get("by", ()))))
    if not {reason, *(fields.get("would_deny") or ())}.isdisjoint(APPROVAL_REASONS):
        return RecordedApproval(True)
    return RecordedApproval(None if fields["event"] == "refusal" else False)


def _gaps(fields: Mapping[str, Any], question: Question) -> Iterator[str]:
    if HASHED_NAME in question.object or HASHED_NAME in question.name:
        yield NAME_HASHED
    asked = sum(link["kind"] != PermissionKind.GUARDRAIL for link in fields["links"])
    if asked > len(fields["chain"]):
        yield SEVERAL_QUESTIONS
    if question.object.startswith("resource:") and fields["redaction_applied"]:
        yield QUERY_CUT  # a resource has no arguments: nothing else can be missing
    granting = any(credential["kind"] not in ("local", "anonymous") for credential in fields["credential"])
    if granting and fields.get("granted") is None:
        yield GRANTS_UNKNOWN


def _fact(fact: Mapping[str, Any]) -> RecordedFact:
    inputs = {_word(path): None if value is None else _word(value) for path, value in fact["inputs"].items()}
    lends = fact.get("action") == DELEGATE
    return RecordedFact(_word(fact["condition"]), _word(fact["outcome"]), fact.get("subject") or "", lends, inputs)


def _entry(entry: object) -> Mapping[str, Any]:
    if not isinstance(entry, dict) or not isinstance(entry.get(ABSENT, 1), int):
        raise TypeError("an argument in clear that says neither a value nor why there is none")
    return entry


def _word(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} where a text belongs")
    return value


def lines_of(paths: Sequence[Path], torn: Callable[[int], object]) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Yields every record of a log, in constant memory, and the number of bytes read so far. Empty files are skipped if
    there are several. Calls `torn` with the length in bytes of an incomplete last line of a file.

    Raises UnreadableAuditLine at the first line that is not a record, or whose seal does not match its bytes, and for
    an only file without a record; OSError if a file cannot be read."""
    read_bytes = 0
    for path in [each for each in paths if len(paths) == 1 or each.stat().st_size]:
        number = 0
        with path.open("rb") as file:
            while raw := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                read_bytes += len(raw)
                where = f"{path}:{number}"
                if not raw.endswith(b"\n"):
                    if len(raw) > MAX_LINE_BYTES:
                        raise UnreadableAuditLine(f"{where}: more than {MAX_LINE_BYTES} bytes without a newline")
                    torn(len(raw))
                    break
                sealed = unseal(raw[:-1])
                if sealed is None:
                    raise UnreadableAuditLine(f"{where}: this is not an audit record")
                if not sealed.intact:
                    raise UnreadableAuditLine(f"{where}: the hash of record {sealed.seq} does not fit its bytes")
                yield sealed.fields, read_bytes
        if number == 0:
            raise UnreadableAuditLine(f"{path}: this file is empty: it holds no record")


def find_decision(paths: Sequence[Path], decision_id: str) -> Mapping[str, Any] | None:
    """Returns the last record of one decision, reading backwards; an `outcome` only if there is no other record; None
    if there is none. Raises UnreadableAuditLine for a line that is too long."""
    needle, outcome = decision_id.encode("ascii", "replace"), None
    for line in (line for path in reversed(paths) for line in _backwards(path)):
        fields = _loaded(line) if needle in line else None
        if fields is not None and fields.get("decision_id") == decision_id:
            if fields.get("event") != "outcome":
                return fields
            outcome = outcome or fields
    return outcome


def single_record(file: IO[bytes]) -> Mapping[str, Any]:
    """Returns the only record in a file; its seal may be missing. Raises UnreadableAuditLine if there is none, or more
    than one."""
    raw = file.read(MAX_LINE_BYTES + 1)
    first, *more = raw.strip().splitlines() or [b""]
    if len(raw) > MAX_LINE_BYTES or (more and _loaded(raw) is None and _loaded(first) is not None):
        raise UnreadableAuditLine("more than one record: say which with --decision")
    fields = _loaded(raw)
    if fields is None:
        raise UnreadableAuditLine("no audit record")
    if "event" not in fields:
        raise UnreadableAuditLine("no audit record: it has no event")
    return fields


def _loaded(line: bytes) -> Mapping[str, Any] | None:
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return fields if isinstance(fields, dict) else None


def _backwards(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file, last one first. Raises UnreadableAuditLine for a line that is too long."""
    with path.open("rb") as file:
        at, rest = file.seek(0, 2), b""
        while at:
            size = min(CHUNK_BYTES, at)
            at -= size
            file.seek(at)
            first, *lines = (file.read(size) + rest).split(b"\n")
            yield from reversed(lines)
            rest = first
            if len(rest) > MAX_LINE_BYTES:
                raise UnreadableAuditLine(f"{path}: more than {MAX_LINE_BYTES} bytes without a newline")
        yield rest
