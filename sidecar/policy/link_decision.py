"""Decides one link of a chain.

A `KindPolicy` is one permission kind: its model, its rows, and the index over them. `find` looks up the rows that may
match; `judge` checks their expiry and the outcomes of their conditions, and applies the model's effect. The engine runs
conditions and caches results.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sidecar.errors import Reason
from sidecar.policy.compiler import RowTest
from sidecar.policy.conditions import Condition, ConditionContext, Outcome, lets_match
from sidecar.policy.grammar import ON_SERVERS
from sidecar.policy.matching import Index, Matcher, rows_with
from sidecar.policy.model import ALLOW_AND_DENY, DENY_OVERRIDE, PRIORITY, Model
from sidecar.policy.patterns import WILDCARD, glob, globs, meets
from sidecar.policy.plain_conditions import PlainCondition, Ran
from sidecar.policy.roles import PolicySubject, PolicySubjects, RolePaths
from sidecar.policy.table import ASKS, DENY, ENDS, LIMITED, SHADOW, RowTable
from sidecar.vocabulary import ANONYMOUS, EngineName, Link, PermissionKind, Read, RuleRef

if TYPE_CHECKING:
    from sidecar.policy.casbin_engine import OwnRows

MAX_OPENING_RULES = 8  # enough evidence of a grant on a server
MAX_OPENING_ROWS = 10_000  # rows searched for a live one
MAX_OPEN = 64  # patterns whose open rows are cached
BY_ID = attrgetter("id", "file", "line")
UNDECIDED = 128  # a bit of `LinkRows.some`: pycasbin failed, or finds other rows than the compiled rules

# The subjects, apart from `anonymous`, and the objects of each kind. All others match no row.
ASKED: Mapping[PermissionKind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    PermissionKind.USER_TO_NHI: (("user:",), ("nhi:",)),
    PermissionKind.NHI_TO_NHI: (("nhi:",), ("nhi:",)),
    PermissionKind.AGENT_TO_TOOL: (("user:", "nhi:"), (*ON_SERVERS, "nhi:")),
    PermissionKind.GUARDRAIL: (("user:", "nhi:"), (*ON_SERVERS, "nhi:")),
}


class LinkAnswer(NamedTuple):
    """One link's answer. `roles` are the roles through which its rules match the subject; `limited` are the rules whose
    limit applies; `until` is when the first of the rows that allow it expires, in seconds since the epoch; `would_deny`
    and `would_allow` are the ids of matching rules in shadow mode."""

    link: Link
    roles: tuple[str, ...] = ()
    limited: tuple[RuleRef, ...] = ()
    until: float | None = None
    would_deny: tuple[str, ...] = ()
    would_allow: tuple[str, ...] = ()


class LinkSides(NamedTuple):
    """The matching rows by effect. `would` are those in shadow mode; `nearly` are the (live, holds) of the allow rows
    that match except for their expiry or condition."""

    allows: list[int]
    denies: list[int]
    would: Sequence[int] = ()
    nearly: Sequence[tuple[bool, bool]] = ()


class RowsDecision(NamedTuple):
    """A decision and the rows that led to it, not more than MAX_REASONS (`stock.rules`). `failed` is the reason why the
    evaluation of a row failed; "" if none failed."""

    allowed: bool
    rows: tuple[int, ...] = ()
    failed: str = ""


class MatcherOutcome(NamedTuple):
    """The outcome of the matcher of a Casbin model in one call. `word` is recorded; `expired` is true if a row that
    would have allowed the request has expired."""

    word: Ran
    decision: RowsDecision
    expired: bool = False


LinkOutcome = Outcome | MatcherOutcome


class LinkCondition(Protocol):
    """The condition that the engine evaluates in each call: the condition of rows, or the matcher of a Casbin model."""

    @property
    def text(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def names(self) -> Read: ...
    @property
    def from_caller(self) -> bool: ...
    @property
    def plain(self) -> PlainCondition | None: ...
    def evaluate(self, scene: ConditionContext, units: float) -> tuple[LinkOutcome, Mapping[str, Any], float]: ...


class LinkPolicy(Protocol):
    """Decides all requests of one permission kind. Pure; safe to use from several threads.

    `engine` names the decider. `find` looks up the rows that may decide a link, `judge` decides it by the outcomes of
    its conditions. `opened` returns the answer to a session call, and the times at which it may change. `names` are the
    principals and objects that the policy names, and `sorted_names` has them in order, possibly among others;
    `allowed_patterns` are the patterns of principals that it may allow. `objects_of` are the objects that allow rows of
    a subject contain, by name or in sets, and `subjects_of` the subjects that allow rows on an object contain, by name
    or in roles; None if all names are possible, because of a row with a pattern that meets `pattern`. `may_allow_more`
    reports whether a row with a pattern, or on a role that tokens may grant (`open_roles`), could allow a name that no
    row contains: one of `subject` and `obj` is the pattern of such names; "" means any object, or any action."""

    engine: EngineName

    def find(self, subject: PolicySubject, obj: str, act: str, place: int, *, lends: bool) -> LinkRows: ...
    def judge(self, found: LinkRows, outcomes: Sequence[LinkOutcome], now_s: float) -> LinkAnswer: ...
    def opened(
        self, answer: LinkAnswer, asker: PolicySubject, server: str, now_s: float
    ) -> tuple[LinkAnswer, Iterable[float]]: ...
    def names(self) -> Iterator[str]: ...
    def sorted_names(self) -> Sequence[str]: ...
    def allowed_patterns(self) -> Iterator[str]: ...
    def objects_of(self, subject: PolicySubject, pattern: str) -> Set[str] | None: ...
    def subjects_of(self, obj: str, pattern: str) -> Set[str] | None: ...
    def may_allow_more(self, subject: PolicySubject | str, obj: str, act: str, *, open_roles: bool) -> bool: ...
    def __len__(self) -> int: ...


class LinkRows(NamedTuple):
    """The rows that match one (subject, object, action), ignoring expiry and conditions. `some` are the flags that any
    of them has, `conditions` their conditions, ordered by text, and `ends` their expiry times. `place` is the subject's
    position in the chain; `lends` is true if the request is for lent authority."""

    policy: LinkPolicy
    subject: PolicySubject
    object: str
    action: str
    place: int
    lends: bool
    rows: list[int]
    some: int = 0
    conditions: tuple[LinkCondition, ...] = ()
    ends: tuple[float, ...] = ()


@dataclass(slots=True)
class EngineDifferences:
    """The links that compiled rules and pycasbin decide differently, or that pycasbin alone fails to decide, which are
    denied: their number by kind, and the first of each kind."""

    counts: dict[PermissionKind, int] = field(default_factory=dict)
    first: dict[PermissionKind, Link] = field(default_factory=dict)

    def note(self, link: Link) -> None:
        self.first.setdefault(link.kind, link)
        self.counts[link.kind] = self.counts.get(link.kind, 0) + 1


class KindPolicy:
    """Decides all requests of one permission kind. Pure; safe to use from several threads.

    pycasbin decides a kind whose matcher is not compiled. With the engine `casbin` or `both`, it also decides other
    kinds, alone or in addition to the compiled rules. It then finds the rows that match and decides by them; expiry,
    limits and evidence come from these rows as for compiled rules. Its decisions are not cached."""

    def __init__(
        self,
        model: Model,
        table: RowTable,
        index: Index,
        conditions: Mapping[str, Condition],
        askers: PolicySubjects,
        ways: Mapping[str, RolePaths],
        engine: EngineName,
        differences: EngineDifferences,
    ) -> None:
        self.kind, self.table, self._askers = model.kind, table, askers
        self._matcher = Matcher(model, table, index, ways)
        self._effect = model.effect
        self._subjects, self._objects = ASKED[model.kind]
        self._conditions = [conditions.get(shape.when) for shape in table.shapes]
        self.engine: EngineName = engine if self._matcher.plan.is_compiled else "casbin"
        self._differences = differences
        self._roles, self._sets = ways["g"], ways["g2"]
        compared = {facet.field: (facet.column, *facet.groups) for facet in self._matcher.plan.index}
        # Whether names match as in the sidecar's own models, so that a name's rows are those with its text, role or
        # set.
        self._compares_names = self._matcher.plan.is_compiled and compared == _COMPARED
        self._wild = {facet.column: wild for facet, wild in zip(self._matcher.plan.index, index.wild, strict=False)}
        self._open: dict[tuple[str, str, bool], Sequence[int]] = {}
        self._casbin: OwnRows | None = None
        if self.engine != "compiled" and len(table):
            from sidecar.policy.casbin_engine import OwnRows  # takes a third of a second to import

            self._casbin = OwnRows(model, table, ways)

    def __len__(self) -> int:
        return len(self.table)

    def names(self) -> Iterator[str]:
        table = self.table
        return (table.texts.texts[number] for number in {*table.sub, *table.obj})

    def sorted_names(self) -> Sequence[str]:
        return self.table.texts.texts

    def objects_of(self, subject: PolicySubject, pattern: str) -> Set[str] | None:
        rows = self._matcher.of_subject(RowTest(subject.name, "", "", subject.domain, subject.roles))
        return self._names_in("obj", rows, pattern, self._sets)

    def subjects_of(self, obj: str, pattern: str) -> Set[str] | None:
        rows = self._matcher.of_object(RowTest("", obj, "", "", frozenset()))
        return self._names_in("sub", rows, pattern, self._roles)

    def rules_about(self, subject: PolicySubject, obj: str, most: int) -> Iterator[RuleRef]:
        """Yields up to `most` rules, half of them with the subject or its roles and half with the object."""
        of_subject = self._matcher.of_subject(RowTest(subject.name, "", "", subject.domain, subject.roles))
        of_object = self._matcher.of_object(RowTest("", obj, "", "", frozenset()))
        rows = dict.fromkeys((*islice(of_subject, most // 2), *islice(of_object, most // 2)))
        return map(self.table.rule, rows)

    def _names_in(self, column: str, rows: Iterable[int], pattern: str, ways: RolePaths) -> Set[str] | None:
        """Returns the names in a column of the allow rows among these rows, including those in its roles or sets."""
        table, found = self.table, set[str]()
        if not self._compares_names:
            return None if len(table) else found
        numbers, flags, texts = table.column(column), table.flags, table.texts.texts
        for number in {numbers[row] for row in rows if not flags[row] & (DENY | SHADOW)}:
            text = texts[number]
            if WILDCARD not in text:
                found |= {text} | ways.members(text)
            elif meets(text, pattern):
                return None
        return found

    def may_allow_more(self, subject: PolicySubject | str, obj: str, act: str, *, open_roles: bool) -> bool:
        table = self.table
        if not self._compares_names:
            return bool(len(table))  # the operator's own matcher may allow anything
        column, pattern = ("sub", subject) if isinstance(subject, str) else ("obj", obj)
        for row in self._open_rows(column, pattern, open_roles=open_roles):
            if act and self._matcher.by_action and not globs(act, table.shapes[table.shape[row]].act):
                continue
            if isinstance(subject, str):
                text = table.text("obj", row)
                if not obj or glob(obj, text) or text in self._sets.containers(obj, ""):
                    return True
            elif (text := table.text("sub", row)) in subject.roles or glob(subject.name, text):
                return True
        return False

    def _open_rows(self, column: str, pattern: str, *, open_roles: bool) -> Sequence[int]:
        """Returns the allow rows whose text in a column is an open role, or a pattern that meets the given one."""
        key = column, pattern, open_roles
        if (known := self._open.get(key)) is not None:
            return known
        table = self.table
        texts, numbers = table.texts.texts, table.column(column)
        wide = [number for number in self._wild[column] if meets(texts[number], pattern)]
        if open_roles:  # ";" follows ":" in ASCII: every role sorts between the two
            wide += range(bisect_left(texts, "role:"), bisect_left(texts, "role;"))
        found = [row for row in rows_with(numbers, wide) if not table.flags[row] & (DENY | SHADOW)]
        if len(self._open) >= MAX_OPEN:
            self._open.clear()
        self._open[key] = found
        return found

    def allowed_patterns(self) -> Iterator[str]:
        table, texts = self.table, self.table.texts.texts
        wild = {number for number in set(table.sub) if WILDCARD in texts[number]}
        rows = zip(table.sub, table.flags, strict=True) if wild else ()
        return map(texts.__getitem__, {number for number, flags in rows if number in wild and not flags & DENY})

    def find(self, subject: PolicySubject, obj: str, act: str, place: int, *, lends: bool) -> LinkRows:
        table, rows = self.table, self._candidates(subject, obj, act)
        if rows is None:
            return LinkRows(self, subject, obj, act, place, lends, [], UNDECIDED)
        flags, some = table.flags, 0
        for row in rows:
            some |= flags[row]
        if not some & (ASKS | ENDS):
            return LinkRows(self, subject, obj, act, place, lends, rows, some)
        conditions: dict[str, Condition] = {}
        for shape in {table.shape[row] for row in rows if flags[row] & ASKS}:
            condition = self._conditions[shape]
            assert condition is not None
            conditions[condition.text] = condition
        ends = tuple({table.end_of(row) for row in rows if flags[row] & ENDS})
        ordered = tuple(conditions[text] for text in sorted(conditions))
        return LinkRows(self, subject, obj, act, place, lends, rows, some, ordered, ends)

    def judge(self, found: LinkRows, outcomes: Sequence[LinkOutcome], now_s: float) -> LinkAnswer:
        """Decides one link. `outcomes` are those of its conditions."""
        asker, obj, act = found.subject, found.object, found.action
        rows, some, flags = found.rows, found.some, self.table.flags
        by_text = _NO_OUTCOMES
        if not rows:
            if some & UNDECIDED:
                return self._undecided(found)
            allowed = self._effect == DENY_OVERRIDE
            reason = None if allowed else Reason.NO_MATCHING_RULE
            return LinkAnswer(Link(self.kind, asker.name, obj, act, allowed, reason))
        if some & (ASKS | ENDS | SHADOW):
            by_text = {condition.text: outcome for condition, outcome in zip(found.conditions, outcomes, strict=True)}
            sides = self._sides(rows, by_text, now_s)
        elif some & DENY:
            denies = [row for row in rows if flags[row] & DENY]
            sides = LinkSides([row for row in rows if not flags[row] & DENY], denies)
        else:
            sides = LinkSides(rows, [])
        verdict = self._verdict(sides.allows, sides.denies)
        if self._casbin is not None:
            decided = self._by_casbin(self._casbin, found, by_text, now_s, verdict)
            if decided is None:
                return self._undecided(found)
            verdict = decided
        allowed, rests_on = verdict
        reason = None if allowed else Reason.DENIED_BY_RULE if sides.denies else _reason(sides.nearly)
        rules = self._rules(rests_on)
        link = Link(self.kind, asker.name, obj, act, allowed, reason, rules)
        roles = self._askers.behind(asker, [rule.subject for rule in rules]) if asker.roles else ()
        if not some & (LIMITED | ENDS | SHADOW):
            return LinkAnswer(link, roles)
        ends = [self.table.end_of(row) for row in rests_on if flags[row] & ENDS] if allowed else []
        return LinkAnswer(
            link,
            roles,
            tuple(rule for rule in link.rules if rule.max_calls_per_hour is not None) if allowed else (),
            min(ends, default=None),
            self._ids(row for row in sides.would if flags[row] & DENY),
            self._ids(row for row in sides.would if not flags[row] & DENY),
        )

    def opened(
        self, answer: LinkAnswer, asker: PolicySubject, server: str, now_s: float
    ) -> tuple[LinkAnswer, Iterable[float]]:
        """Returns the answer to a session call, and the times at which it may change. A live grant on the server opens
        it; if all grants have expired, the reason is EXPIRED; otherwise the answer is unchanged."""
        link, table = answer.link, self.table
        if link.allowed or link.reason is Reason.DENIED_BY_RULE:
            return answer, ()
        asked = RowTest(asker.name, f"nhi:{server}", "", asker.domain, asker.roles)
        grants: list[int] = []
        for looked, row in enumerate(self._matcher.on_server(asked, server)):
            if looked >= MAX_OPENING_ROWS:
                break
            # `anonymous` is allowed only by that exact name.
            means = asker.name != ANONYMOUS or table.text("sub", row) == ANONYMOUS
            if means and not table.flags[row] & (DENY | SHADOW):
                grants.append(row)
        live = [row for row in grants if not table.flags[row] & ENDS or now_s < table.end_of(row)]
        ends = {table.end_of(row) for row in grants if table.flags[row] & ENDS}
        if not live:
            return (answer._replace(link=link._replace(reason=Reason.EXPIRED)) if grants else answer), ends
        # Any one of them opens it, so it remains open until the last one expires.
        endless = any(not table.flags[row] & ENDS for row in live)
        until = None if endless else max(map(table.end_of, live))
        rules = self._rules(live[:MAX_OPENING_RULES])
        roles = self._askers.behind(asker, [rule.subject for rule in rules])
        link = link._replace(allowed=True, reason=None, rules=rules)
        return answer._replace(link=link, roles=roles, until=until), ends

    def _candidates(self, asker: PolicySubject, obj: str, act: str) -> list[int] | None:
        """Returns the rows that match, ignoring expiry and condition; None if they are unknown."""
        name = asker.name
        anonymous = name == ANONYMOUS and self.kind is not PermissionKind.NHI_TO_NHI
        if not act or not (anonymous or name.startswith(self._subjects)) or not obj.startswith(self._objects):
            return []
        asked = RowTest(name, obj, act, asker.domain, asker.roles)
        if self._casbin is None:
            return self._matcher.rows(asked)
        found, failed = self._casbin.matching(asked)
        differs = self.engine == "both" and set(found) != set(self._matcher.rows(asked))
        return None if failed or differs else list(found)

    def _by_casbin(
        self,
        casbin: OwnRows,
        found: LinkRows,
        outcomes: Mapping[str, LinkOutcome],
        now_s: float,
        ours: tuple[bool, list[int]],
    ) -> tuple[bool, list[int]] | None:
        """Returns pycasbin's verdict, or that of the compiled rules if both are equal; None if pycasbin fails, or if
        the two differ and must agree."""
        asker = found.subject
        asked = RowTest(asker.name, found.object, found.action, asker.domain, asker.roles)
        decided = casbin.decide(asked, outcomes, now_s)
        if decided.allowed is ours[0] and not decided.failed:
            return ours
        return None if decided.failed or self.engine == "both" else (decided.allowed, list(decided.rows))

    def _undecided(self, found: LinkRows) -> LinkAnswer:
        about = self.kind, found.subject.name, found.object, found.action
        link = Link(*about, allowed=False, reason=Reason.CONDITION_FALSE)
        if self.engine == "both":
            self._differences.note(link)
        return LinkAnswer(link)

    def _sides(self, rows: Sequence[int], outcomes: Mapping[str, LinkOutcome], now_s: float) -> LinkSides:
        table, flags = self.table, self.table.flags
        allows: list[int] = []
        denies: list[int] = []
        would: list[int] = []
        nearly: list[tuple[bool, bool]] = []
        for row in rows:
            bits = flags[row]
            holds = not bits & ASKS or lets_match(outcomes[table.shapes[table.shape[row]].when], bits & DENY)
            live = not bits & ENDS or now_s < table.end_of(row)
            if live and holds:
                (would if bits & SHADOW else denies if bits & DENY else allows).append(row)
            elif not bits & (DENY | SHADOW):
                nearly.append((live, holds))
        return LinkSides(allows, denies, would, nearly)

    def _verdict(self, allows: list[int], denies: list[int]) -> tuple[bool, list[int]]:
        """Returns whether the effect allows the request, and the rows that decide."""
        if self._effect == ALLOW_AND_DENY:
            return bool(allows) and not denies, denies or allows
        if self._effect == DENY_OVERRIDE:
            return not denies, denies
        if self._effect == PRIORITY and (allows or denies):  # the first matching row decides
            first = min(allows + denies)
            return first in allows, [first]
        return bool(allows), allows

    def _rules(self, rows: Iterable[int]) -> tuple[RuleRef, ...]:
        found = list(map(self.table.rule, rows))
        if len(found) > 1:
            found.sort(key=BY_ID)
        return tuple(found)

    def _ids(self, rows: Iterable[int]) -> tuple[str, ...]:
        return tuple(sorted({self.table.id_of(row) for row in rows}))


_NO_OUTCOMES: Mapping[str, LinkOutcome] = {}
_COMPARED = {"sub": ("sub", "g"), "obj": ("obj", "g2")}


def _reason(nearly: Sequence[tuple[bool, bool]]) -> Reason:
    """Returns the reason of a denial: an expired grant that would have held, an unmet condition, or no rule. `nearly`
    are the (live, holds) of the allow rows whose other columns match."""
    if any(holds and not live for live, holds in nearly):
        return Reason.EXPIRED
    if any(live for live, _ in nearly):
        return Reason.CONDITION_FALSE
    return Reason.EXPIRED if nearly else Reason.NO_MATCHING_RULE
