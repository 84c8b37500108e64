"""Replays recorded decisions through another policy, each at its own time.

Facts that a record does not contain are tried both ways; the record is undecidable only if the answer depends on them.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from sidecar.audit.digest import AuditKey
from sidecar.audit.segments import given
from sidecar.policy import Engine, PolicySource
from sidecar.policy.stock.policy import StockPolicy
from sidecar.policy_tools.audit_records import RecordedQuestion, asked_in, lines_of
from sidecar.policy_tools.recorded_conditions import ARGUMENTS, Outcome, RecordedCase, RecordedKey, with_stand_ins
from sidecar.vocabulary import Answer, Decision

MAX_TRIES = 64  # outcomes for unknown conditions: six of them, each true or false
MAX_GROUPS = 10_000  # stored; all records are counted
TOO_MANY = f"more unknown conditions than {MAX_TRIES} tries can settle"

Change = Literal["wider", "narrower", "undecidable"]


_GRANTS: tuple[Answer, ...] = ("deny", "approval", "allow")  # each grants more than the previous ones


class ReplayAnswer(NamedTuple):
    """The candidate's answer; None if it is undecidable, and then `why` names what it depends on. `decision` is one of
    the possible ones; the only one if nothing was unknown."""

    answer: Answer | None
    decision: Decision
    why: str = ""


class Candidate:
    """Another policy, which decides recorded questions."""

    def __init__(self, source: PolicySource, key: AuditKey | None = None) -> None:
        self.source = source
        self.case = RecordedCase(key)
        self.engine = Engine(with_stand_ins(source, self.case))

    def decide(self, asked: RecordedQuestion) -> ReplayAnswer:
        """Returns the answer to a recorded question, if it is the same for every outcome of the unknown conditions.

        An error is no match on an allow row and a match on a deny row, so errors everywhere allow the least. The
        combination of true and false that allows the most is found by search."""
        self.case.asked = asked
        least = self._ask(asked, {}, "error")
        if asked.gaps:
            return ReplayAnswer(None, least, asked.gaps[0])
        if why := self._by_matchers(asked, least):
            return ReplayAnswer(None, least, why)
        if not self.case.unknown or least.answer == "approval":
            return ReplayAnswer(least.answer, least)
        why = next(iter(self.case.unknown.values()))
        if least.allowed:  # by rows without unknown conditions; the others may demand an approval
            waits = self._ask(asked, {}, "true").answer == "approval"
            return ReplayAnswer(None if waits else "allow", least, why if waits else "")
        todo: list[dict[RecordedKey, Outcome]] = [{}]
        for _ in range(MAX_TRIES):
            if not todo:
                return ReplayAnswer("deny", least)
            tried = todo.pop()
            most = self._ask(asked, tried, "true")
            if most.allowed:
                return ReplayAnswer(None, most, why)
            left = [key for key in self.case.unknown if key not in tried]
            for at, key in enumerate(left):  # so that each combination occurs once
                todo.append({**tried, **dict.fromkeys(left[:at], "true"), key: "false"})
        return ReplayAnswer(None, least, TOO_MANY)

    def _by_matchers(self, asked: RecordedQuestion, decision: Decision) -> str:
        """Returns why a Casbin model cannot be asked again; "" if every one can, or if another link denies the call
        anyway."""
        doubts, denied = list[str](), False
        for place, link in enumerate(decision.links):
            policy = self.engine.casbin(link.kind)
            doubt = "" if policy is None else _doubt(policy, asked, place == len(asked.chain) - 1)
            if doubt and policy is not None:
                subject = self.engine.subject_of(asked.chain[place])
                doubt *= policy.reader.texts(subject, link.object, link.action) is not None
            doubts += [doubt] if doubt else []
            denied = denied or not (link.allowed or doubt or self.case.unknown)
        return doubts[0] if doubts and not denied else ""

    def _ask(self, asked: RecordedQuestion, assumed: dict[RecordedKey, Outcome], otherwise: Outcome) -> Decision:
        case = self.case
        case.assumed, case.otherwise, case.unknown, case.by_record = assumed, otherwise, {}, set()
        ask = self.engine.enter if asked.session else self.engine.decide
        return ask(asked.chain, asked.question._replace(arguments=ARGUMENTS), asked.at_s)


def _doubt(policy: StockPolicy, asked: RecordedQuestion, is_last: bool) -> str:
    """Returns why no record contains all inputs of a Casbin model; "" if it does."""
    if policy.reader.from_caller and is_last and not asked.without_arguments:
        return "a Casbin model reads what the caller wrote, which no record holds"
    if any(form.parameters for form in policy.table.source.model.roles.values()):
        return "a Casbin model asks for the time now, in conditions of roles"
    return ""


class ChangeKind(NamedTuple):
    """What the records of one group have in common. `was` and `now` are answers, or the reasons of denials."""

    change: Change
    chain: str
    object: str
    action: str
    was: str
    now: str
    old_rules: tuple[str, ...]
    new_rules: tuple[str, ...]
    why: str


@dataclass(slots=True)
class ReplayGroup:
    """A group of similar records: their number, and the first of them."""

    seq: int
    decision_id: str
    timestamp: str
    count: int = 0


@dataclass(slots=True)
class Replay:
    """The result. `now_waits` and `waits_no_more` count the changes to and from a person's approval, which are also
    `wider` or `narrower`; `undecidable` counts by reason. `left_out` are records of other times, `unasked` those
    without an answer of policy, and `ungrouped` those whose group exceeds MAX_GROUPS; `torn_bytes` is the length of an
    incomplete last line; `revisions` counts the policies of the records."""

    records: int = 0
    replayed: int = 0
    same: int = 0
    wider: int = 0
    narrower: int = 0
    now_waits: int = 0
    waits_no_more: int = 0
    undecidable: Counter[str] = field(default_factory=Counter)
    unasked: int = 0
    left_out: int = 0
    torn_bytes: int = 0
    revisions: Counter[str] = field(default_factory=Counter)
    groups: dict[ChangeKind, ReplayGroup] = field(default_factory=dict)
    ungrouped: int = 0

    @property
    def changed(self) -> int:
        return self.wider + self.narrower

    def of(self, change: Change) -> list[tuple[ChangeKind, ReplayGroup]]:
        found = [(kind, group) for kind, group in self.groups.items() if kind.change == change]
        return sorted(found, key=lambda pair: (-pair[1].count, pair[1].seq))


def replay(
    path: Path,
    candidate: Candidate,
    *,
    since: str = "",
    until: str = "",
    progress: Callable[[int], object] = lambda read_bytes: None,
) -> Replay:
    """Replays the records from `since` on and before `until`, both in the form of records, "" for no bound. `progress`
    is called from time to time with the number of bytes read. Raises UnreadableAuditLine at a line that is not a
    record, OSError if a file cannot be read."""
    report = Replay()

    def torn(size: int) -> None:
        report.torn_bytes = size

    for fields, read_bytes in lines_of(given(path), torn):
        report.records += 1
        if not report.records % 1024:
            progress(read_bytes)
        at = str(fields.get("timestamp"))
        if at < since or (until and at >= until):
            report.left_out += 1
            continue
        asked = None if fields.get("event") == "outcome" else asked_in(fields)
        if asked is None:
            report.unasked += 1
        else:
            _count(report, asked, candidate.decide(asked))
    return report


def _count(report: Replay, asked: RecordedQuestion, answer: ReplayAnswer) -> None:
    report.replayed += 1
    if asked.revision in report.revisions or len(report.revisions) < MAX_GROUPS:
        report.revisions[asked.revision] += 1
    was = asked.answers[0]
    if answer.answer in asked.answers:
        report.same += 1
        return
    decided = answer.answer is not None
    change: Change = "undecidable"
    if answer.answer is None:
        report.undecidable[answer.why] += 1
    else:
        change = "wider" if _GRANTS.index(answer.answer) > _GRANTS.index(was) else "narrower"
        report.wider += change == "wider"
        report.narrower += change == "narrower"
        report.now_waits += answer.answer == "approval"
        report.waits_no_more += was == "approval"
    new_rules = [rule.id for link in answer.decision.links for rule in link.rules if decided]
    kind = ChangeKind(
        change=change,
        chain=" → ".join(principal.name for principal in asked.chain),
        object=asked.question.object,
        action=asked.question.action,
        was=asked.reason or was,
        now=answer.decision.reason or str(answer.answer) if decided else "undecidable",
        old_rules=asked.rules,
        new_rules=tuple(dict.fromkeys(new_rules)),
        why=answer.why,
    )
    group = report.groups.get(kind)
    if group is None:
        if len(report.groups) >= MAX_GROUPS:
            report.ungrouped += 1
            return
        group = report.groups[kind] = ReplayGroup(asked.seq, asked.decision_id, asked.timestamp)
    group.count += 1
