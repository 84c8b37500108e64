"""What is the answer to one link, and what does it stand on?

A `Docket` is one permission kind: its model, its rows, and how they are found. Which rows may match is looked up;
then the conditions among them are run, then expiry is looked at, and the model's effect says what follows. Nothing is
remembered of one question for the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sidecar.errors import Reason
from sidecar.policy.askers import Asker, Askers
from sidecar.policy.compiler import Asked
from sidecar.policy.conditions import Condition, Outcome, Purse, Scene
from sidecar.policy.matching import Index, Matcher
from sidecar.policy.model import ALLOW_AND_DENY, DENY_OVERRIDE, PRIORITY, Model
from sidecar.policy.roles import Ways
from sidecar.policy.table import ASKS, DENY, ENDS, LIMITED, SHADOW, Table
from sidecar.vocabulary import ANONYMOUS, Chain, Fact, Link, PermissionKind, Question, Rule

MAX_OPENING_RULES = 8  # enough evidence that somebody has a grant on a server
MAX_OPENING_ROWS = 10_000  # that are looked at for a live one
_NO_ARGUMENTS: Mapping[str, Any] = {}

# CONTRACT 1.2, 1.3: who is asked about what. Whatever else arrives is denied before any row is (threats K1, K12).
_ASKS: Mapping[PermissionKind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    PermissionKind.USER_TO_NHI: (("user:",), ("nhi:",)),
    PermissionKind.NHI_TO_NHI: (("nhi:",), ("nhi:",)),
    PermissionKind.AGENT_TO_TOOL: (("user:", "nhi:"), ("tool:", "prompt:", "resource:", "nhi:")),
    PermissionKind.GUARDRAIL: (("user:", "nhi:"), ("tool:", "prompt:", "resource:", "nhi:")),
}


class Turn:
    """One decision being made: who asks, what its conditions may read, and what they may still spend. While `listing`,
    what the caller will write is assumed to be as it should be."""

    __slots__ = ("askers", "chain", "listing", "now_s", "purse", "question", "roles_of")

    def __init__(self, chain: Chain, question: Question, now_s: float, known: Askers, *, listing: bool = False) -> None:
        self.chain, self.question, self.now_s, self.listing = chain, question, now_s, listing
        self.askers = [known.asker(principal) for principal in chain]
        self.roles_of = known.roles_of
        self.purse: Purse | None = None

    def run(self, condition: Condition, place: int, lends: bool) -> tuple[Outcome, Fact | None]:
        """How a condition of the link at `place` comes out. A link that `lends` has no arguments."""
        if self.listing and condition.from_caller and not lends:
            return "assumed", None
        if self.purse is None:
            self.purse = Purse()
        arguments = _NO_ARGUMENTS if lends else self.question.arguments
        scene = Scene(self.chain, place, self.question, arguments, self.now_s, self.roles_of)
        outcome, read = condition.run(scene, self.purse)
        return outcome, Fact(condition.digest, outcome, read)


class Answer(NamedTuple):
    """One link's answer. `limited` are the rules whose limit applies; `until` in seconds since the epoch."""

    link: Link
    limited: tuple[Rule, ...] = ()
    until: float | None = None
    would_deny: tuple[str, ...] = ()
    would_allow: tuple[str, ...] = ()


class Sides(NamedTuple):
    """The rows that match, by what they say; `would` are those in shadow, `nearly` the (live, holds) of the allow rows
    that match but for their expiry or condition."""

    allows: list[int]
    denies: list[int]
    would: Sequence[int] = ()
    nearly: Sequence[tuple[bool, bool]] = ()
    facts: tuple[Fact, ...] = ()


class Docket:
    """All questions of one permission kind. Pure; safe to use from several threads."""

    def __init__(
        self,
        model: Model,
        table: Table,
        index: Index,
        conditions: Mapping[str, Condition],
        ways: Mapping[str, Ways],
    ) -> None:
        self.kind, self.table = model.kind, table
        self._matcher = Matcher(model, table, index, ways)
        self._effect = model.effect
        self._subjects, self._objects = _ASKS[model.kind]
        self._conditions = [conditions.get(shape.when) for shape in table.shapes]

    def answer(self, obj: str, act: str, turn: Turn, place: int, *, lends: bool) -> Answer:
        """The answer to one (subject, object, action). `place` is where the subject stands in the chain; `lends` if
        this asks for authority that is lent."""
        asker = turn.askers[place]
        rows = self._candidates(asker, obj, act)
        if not rows:
            allowed = self._effect == DENY_OVERRIDE
            return Answer(Link(self.kind, asker.name, obj, act, allowed, None if allowed else Reason.NO_MATCHING_RULE))
        flags = self.table.flags
        some = 0
        for row in rows:
            some |= flags[row]
        if some & (ASKS | ENDS | SHADOW):
            sides = self._sides(rows, turn, place, lends)
        elif some & DENY:
            sides = Sides([row for row in rows if not flags[row] & DENY], [row for row in rows if flags[row] & DENY])
        else:
            sides = Sides(rows, [])
        allowed, rests_on = self._verdict(sides.allows, sides.denies)
        reason = None
        if not allowed:
            reason = Reason.DENIED_BY_RULE if sides.denies else _reason(sides.nearly)
        link = Link(self.kind, asker.name, obj, act, allowed, reason, self._rules(rests_on), sides.facts)
        if not some & (LIMITED | ENDS | SHADOW):
            return Answer(link)
        ends = [self.table.end_of(row) for row in rests_on if flags[row] & ENDS] if allowed else []
        return Answer(
            link,
            tuple(rule for rule in link.rules if rule.max_calls_per_hour is not None) if allowed else (),
            min(ends, default=None),
            self._ids(row for row in sides.would if flags[row] & DENY),
            self._ids(row for row in sides.would if not flags[row] & DENY),
        )

    def opened(self, answer: Answer, asker: Asker, server: str, now_s: float) -> Answer:
        """The answer to a session call (CONTRACT 1.4): as it was, unless a live grant on the server opens it."""
        link, table = answer.link, self.table
        if link.allowed or link.reason is Reason.DENIED_BY_RULE:
            return answer
        asked = Asked(asker.name, f"nhi:{server}", "", asker.domain, asker.roles)
        grants: list[int] = []
        for looked, row in enumerate(self._matcher.on_server(asked, server)):
            if looked >= MAX_OPENING_ROWS:
                break
            if not table.flags[row] & (DENY | SHADOW) and self._means(asker, row):
                grants.append(row)
        live = [row for row in grants if not table.flags[row] & ENDS or now_s < table.end_of(row)]
        if not live:
            return answer._replace(link=link._replace(reason=Reason.EXPIRED)) if grants else answer
        # Any one of them opens it, so it stays open until the last one ends.
        endless = any(not table.flags[row] & ENDS for row in live)
        until = None if endless else max(map(table.end_of, live))
        rules = self._rules(live[:MAX_OPENING_RULES])
        return answer._replace(link=link._replace(allowed=True, reason=None, rules=rules), until=until)

    def _candidates(self, asker: Asker, obj: str, act: str) -> list[int]:
        """The rows that match but for expiry and condition."""
        name = asker.name
        anonymous = name == ANONYMOUS and self.kind is not PermissionKind.NHI_TO_NHI
        if not act or not (anonymous or name.startswith(self._subjects)) or not obj.startswith(self._objects):
            return []
        return self._matcher.rows(Asked(name, obj, act, asker.domain, asker.roles))

    def _sides(self, rows: Sequence[int], turn: Turn, place: int, lends: bool) -> Sides:
        """Conditions and expiry asked of the rows that match otherwise."""
        table, flags = self.table, self.table.flags
        outcomes, facts = self._run(rows, turn, place, lends)
        allows: list[int] = []
        denies: list[int] = []
        would: list[int] = []
        nearly: list[tuple[bool, bool]] = []
        for row in rows:
            bits = flags[row]
            holds = not bits & ASKS or _holds(outcomes[table.shapes[table.shape[row]].when], bits & DENY)
            live = not bits & ENDS or turn.now_s < table.end_of(row)
            if live and holds:
                (would if bits & SHADOW else denies if bits & DENY else allows).append(row)
            elif not bits & (DENY | SHADOW):
                nearly.append((live, holds))
        return Sides(allows, denies, would, nearly, facts)

    def _run(
        self, rows: Sequence[int], turn: Turn, place: int, lends: bool
    ) -> tuple[Mapping[str, Outcome], tuple[Fact, ...]]:
        """How each condition among the rows comes out, by its text; each is run once, in the order of the texts."""
        flags, shape_of = self.table.flags, self.table.shape
        shapes = {shape_of[row] for row in rows if flags[row] & ASKS}
        if not shapes:
            return {}, ()
        asking = {self.table.shapes[shape].when: self._conditions[shape] for shape in shapes}
        outcomes: dict[str, Outcome] = {}
        facts = []
        for text in sorted(asking):
            condition = asking[text]
            assert condition is not None
            outcomes[text], fact = turn.run(condition, place, lends)
            if fact is not None:
                facts.append(fact)
        return outcomes, tuple(facts)

    def _verdict(self, allows: list[int], denies: list[int]) -> tuple[bool, list[int]]:
        """Whether the effect allows it, and the rows that decide."""
        if self._effect == ALLOW_AND_DENY:
            return bool(allows) and not denies, denies or allows
        if self._effect == DENY_OVERRIDE:
            return not denies, denies
        if self._effect == PRIORITY and (allows or denies):  # the first row that matches decides
            first = min(allows + denies)
            return first in allows, [first]
        return bool(allows), allows

    def _means(self, asker: Asker, row: int) -> bool:
        """`anonymous` is allowed by that word only."""
        return asker.name != ANONYMOUS or self.table.text("sub", row) == ANONYMOUS

    def _rules(self, rows: Iterable[int]) -> tuple[Rule, ...]:
        found = list(map(self.table.rule, rows))
        if len(found) > 1:
            found.sort(key=_by_id)
        return tuple(found)

    def _ids(self, rows: Iterable[int]) -> tuple[str, ...]:
        return tuple(sorted({self.table.id_of(row) for row in rows}))


def _by_id(rule: Rule) -> tuple[str, str, int]:
    return rule.id, rule.file, rule.line


def _reason(nearly: Sequence[tuple[bool, bool]]) -> Reason:
    """CONTRACT 6: a grant has expired that would have held; a condition is not met; no rule. `nearly` are the allow
    rows that matched but for (live, holds)."""
    if any(holds and not live for live, holds in nearly):
        return Reason.EXPIRED
    if any(live for live, _ in nearly):
        return Reason.CONDITION_FALSE
    return Reason.EXPIRED if nearly else Reason.NO_MATCHING_RULE


def _holds(outcome: Outcome, denies: int) -> bool:
    """CONTRACT 2.1: what is not plainly true or false is no match on an allow row, and a match on a deny row.
    CONTRACT 1.4: what is assumed while listing counts as true on an allow row, and as false on a deny row."""
    if outcome == "error":
        return bool(denies)
    if outcome == "assumed":
        return not denies
    return outcome == "true"
