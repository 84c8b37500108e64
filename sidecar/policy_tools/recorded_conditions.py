"""Evaluates conditions on recorded facts.

A record contains no arguments except those that `audit.clear_arguments` selects. For each condition that ran, it has a
digest of the text, the outcome, and keyed digests of the values read. To replay a record, a policy's conditions are
replaced by `StandIn`s, which use, in this order,

    evaluation          for a condition that reads neither arguments nor `_meta`, only principals, server, tool, time
    the record          for a condition with the same text, about the same subject
    clear arguments     for another text, arguments that were recorded in clear
    recorded inputs     for another text that reads what was recorded: with the audit key, a digest can be compared with
                        the constants of the condition; equality and membership need only this
    nothing             for any other: the outcome is unknown, with the reason, and the replay tries several
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from operator import getitem
from typing import Any, Literal, NamedTuple, cast

from sidecar.audit.clear import ABSENT, VALUE
from sidecar.audit.digest import AuditKey, Digests, namespace_of
from sidecar.audit.record import INPUTS
from sidecar.policy.conditions import Condition, ConditionContext, Evaluation
from sidecar.policy.source import PolicySource
from sidecar.policy.syntax import name_of
from sidecar.policy_tools.audit_records import RecordedFact, RecordedQuestion

Outcome = Literal["true", "false", "error"]
Steps = tuple[str, ...]
Found = tuple[Steps, Mapping[str, Any]]  # the existing objects on an argument's path; its name and value, if it exists

NO_FACT = "a condition has no recorded fact, and what it reads was not recorded"
NO_KEY = "a condition reads hashed arguments: with --key, constants can be compared with them"
OTHER_KEY = "hashed arguments were recorded with another key"
MORE_THAN_EQUAL = "a condition asks more of a hashed argument than whether it equals a constant"
ROLES_CHANGED = "a condition reads arguments and roles, and the roles may be others now"
_EQUALITY = {"_==_", "_!=_", "@in", "has"}
_ORDER = {"_<_", "_<=_", "_>_", "_>=_"}
ARGUMENTS: Mapping[str, Any] = {"arguments": "not recorded"}  # by identity: those of the question itself


class RecordedKey(NamedTuple):
    """One run of a condition: the digest of its text, the subject of its link, and whether the link lends authority."""

    condition: str
    subject: str
    lends: bool


@dataclass(slots=True)
class RecordedCase:
    """The record in question, and the known facts about its conditions.

    `assumed` are the outcomes tried for unknown conditions, and `otherwise` is that of all others; `unknown` collects
    them, with the reason. `by_record` collects the conditions that the record answered. `revision` is that of the
    policy, and `paths` are the paths that its conditions read, by digest. `key` is the audit key, None if it is not
    known."""

    key: AuditKey | None = None
    asked: RecordedQuestion = field(init=False)
    revision: str = ""
    assumed: Mapping[RecordedKey, Outcome] = field(default_factory=dict)
    otherwise: Outcome = "error"
    unknown: dict[RecordedKey, str] = field(default_factory=dict)
    by_record: set[RecordedKey] = field(default_factory=set)
    paths: Mapping[str, tuple[Steps, ...]] = field(default_factory=dict)

    def outcome(self, condition: "StandIn", scene: ConditionContext, units: float) -> Evaluation:
        """Returns the outcome of a condition for the record in question."""
        key = RecordedKey(condition.digest, scene.chain[scene.subject].name, scene.args is not ARGUMENTS)
        told = self._told(condition, scene, key, units)
        if not isinstance(told, str):
            return told
        self.unknown[key] = told
        return self.assumed.get(key, self.otherwise), {}, units

    def _told(self, condition: "StandIn", scene: ConditionContext, key: RecordedKey, units: float) -> Evaluation | str:
        written = [
            path for path in condition.paths if path[0] == "args" or path == ("call",) or path[:2] == ("call", "meta")
        ]
        if key.lends or self.asked.without_arguments:  # arguments belong to the question itself
            written = [path for path in written if path[0] != "args"]
            scene = scene._replace(args={})
        if not written:
            return condition.original.run(scene, units)
        facts = [fact for fact in self.asked.facts if (fact.subject, fact.lends) == key[1:]]
        fact = next((fact for fact in facts if fact.condition == key.condition), None)
        own_key = self.key if self.key is not None and self.key.id == self.asked.key_id else None
        digests = None if own_key is None else Digests(own_key, namespace_of(self.asked.chain[-1].id))
        if fact is not None and fact.outcome in ("true", "false", "error"):
            for path in filter(_reads_roles, condition.paths) if self.asked.revision != self.revision else ():
                now = reduce(getitem, path[1:], scene.variable(path[0]))
                if digests is None or digests.fact_hash(now) != fact.inputs.get(name_of(path)):
                    return ROLES_CHANGED
            self.by_record.add(key)
            return cast("Outcome", fact.outcome), fact.inputs, units
        args, meta = dict[str, Any](), dict[str, Any]()
        for path in written:
            found = self._recorded(condition, path, facts, digests)
            if isinstance(found, str):
                return found
            place: Any = {"args": args, "call": {"meta": meta}}
            for step in found[0]:
                place = place.setdefault(step, {})
            place.update(found[1])
        scene = scene._replace(args=args, question=scene.question._replace(meta=meta))
        return condition.original.run(scene, units)

    def _recorded(
        self, condition: Condition, path: Steps, facts: list[RecordedFact], digests: Digests | None
    ) -> Found | str:
        """Returns a value for an argument that the condition cannot distinguish from the original, or the reason why
        there is none.

        A value that equals none of the constants can be replaced by any other such value if only equality is tested.
        This does not hold if the recorded run failed, because the value may be too large for any test."""
        entry = self.asked.clear.get(path[1:], {}) if path[0] == "args" and len(path) > 1 else {}
        if VALUE in entry:
            return path[:-1], {path[-1]: entry[VALUE]}
        if ABSENT in entry:
            return path[: entry[ABSENT]], {}
        name, tests, constants = name_of(path), condition.syntax.tests(path), condition.syntax.constants
        fact = next((fact for fact in facts if fact.inputs.get(name)), None)
        large = any(isinstance(each, int | float) and abs(each) >= 2**53 for each in constants)  # CEL rounds
        if large or path in (("args",), ("call",), ("call", "meta")):
            return MORE_THAN_EQUAL
        if fact is None:
            return (path[:-1], {}) if any(self._was_absent(path, fact) for fact in facts) else NO_FACT
        if digests is None:
            return NO_KEY if self.key is None else OTHER_KEY
        for value in (*constants, True, False, None):
            if digests.fact_hash(value) == fact.inputs[name]:
                exact = isinstance(value, str | bool | None) or tests <= _EQUALITY | _ORDER  # 5 and 5.0: one digest
                return (path[:-1], {path[-1]: value}) if exact else MORE_THAN_EQUAL
        if fact.outcome == "error" or not tests <= _EQUALITY:
            return MORE_THAN_EQUAL
        return path[:-1], {path[-1]: f"\N{SYMBOL FOR SUBSTITUTE}{fact.inputs[name]}"}

    def _was_absent(self, path: Steps, fact: RecordedFact) -> bool:
        """Whether a condition that ran at that time looked for this path, and the path was absent."""
        straight = path[:-1] in (("args",), ("call", "meta"))  # otherwise a parent may have been of another type
        looked = len(fact.inputs) < INPUTS and path in self.paths.get(fact.condition, ())
        return straight and looked and name_of(path) not in fact.inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn(Condition):
    """A condition whose outcome `case` gives, instead of the arguments."""

    original: Condition
    case: RecordedCase

    def evaluate(self, scene: ConditionContext, units: float) -> Evaluation:
        return self.case.outcome(self, scene, units)


def with_stand_ins(source: PolicySource, case: RecordedCase) -> PolicySource:
    """Returns the policy with conditions that ask `case`, and prepares `case` for it."""
    names = [each.name for each in fields(Condition) if each.name != "plain"]
    stand_ins: dict[str, Condition] = {
        text: StandIn(**{name: getattr(condition, name) for name in names}, original=condition, case=case)
        for text, condition in source.conditions.items()
    }
    case.revision = source.revision
    case.paths = {condition.digest: condition.paths for condition in source.conditions.values()}
    return replace(source, conditions=stand_ins)


def _reads_roles(path: Steps) -> bool:
    """Whether a path reads the roles of a principal, possibly with everything else."""
    return path == ("chain",) or (path[0] in ("principal", "origin") and (len(path) == 1 or path[1] == "roles"))
