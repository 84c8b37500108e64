"""Evaluates conditions on recorded facts.

A record contains no arguments (CONTRACT 7) except those that `audit.clear_arguments` selects. Of each condition that
ran, it has a digest of the text, the outcome, and keyed digests of what the condition read. To replay a record, a
policy's conditions are replaced by `StandIn`s, which answer, in this order, by

    running             what reads nothing of the caller's own: principals, server, tool, time
    the record          the same text, of the same subject
    clear arguments     another text that reads arguments recorded in clear
    nothing             the outcome is unknown, with the reason, and takes the value that the replay tries
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, cast

from sidecar.audit.clear import ABSENT, VALUE
from sidecar.policy.conditions import Condition, ConditionContext, CostBudget
from sidecar.policy.similar_keys import Read
from sidecar.policy.source import PolicySource
from sidecar.policy_tools.audit_records import RecordedQuestion

Outcome = Literal["true", "false", "error"]
Steps = tuple[str, ...]
Told = tuple[Outcome, Mapping[str, Any]]

NO_FACT = "a condition has no recorded fact, and what it reads was not recorded in clear"
ROLES_CHANGED = "a condition reads arguments and roles, and the roles may be others now"
_NO_VALUES: Mapping[str, Any] = {}
ARGUMENTS: Mapping[str, Any] = {"arguments": "not recorded"}  # by identity: those of the question itself


class RecordedKey(NamedTuple):
    """One run of a condition: its subject, and whether it is about lent authority."""

    condition: str
    subject: str
    lends: bool


@dataclass(slots=True)
class RecordedCase:
    """The record being decided, and what is known about its conditions.

    `assumed` are the outcomes tried for unknown conditions, others get `otherwise`; `unknown` collects them, with the
    reason. `by_record` are those that the record itself answered.
    """

    asked: RecordedQuestion = field(init=False)
    revision: str = ""
    assumed: Mapping[RecordedKey, Outcome] = field(default_factory=dict)
    otherwise: Outcome = "error"
    unknown: dict[RecordedKey, str] = field(default_factory=dict)
    by_record: set[RecordedKey] = field(default_factory=set)

    def outcome(self, condition: Condition, scene: ConditionContext, purse: CostBudget) -> Told:
        key = RecordedKey(condition.digest, scene.chain[scene.subject].name, scene.args is not ARGUMENTS)
        told = self._told(condition, scene, key, purse)
        if not isinstance(told, str):
            return told
        self.unknown[key] = told
        return self.assumed.get(key, self.otherwise), {}

    def _told(self, condition: Condition, scene: ConditionContext, key: RecordedKey, purse: CostBudget) -> Told | str:
        written = [path for path in condition.paths if _by_caller(path)]
        if key.lends or self.asked.without_arguments:  # arguments belong to the question itself
            written = [path for path in written if path[0] != "args"]
            scene = scene._replace(args=_NO_VALUES)
        if not written:
            return condition.run(scene, purse)
        facts = (fact for fact in self.asked.facts if (fact.condition, fact.subject, fact.lends) == key)
        fact = next(facts, None)
        if fact is not None and fact.outcome in ("true", "false", "error"):
            if self.asked.revision != self.revision and any(map(_reads_roles, condition.paths)):
                return ROLES_CHANGED
            self.by_record.add(key)
            return cast("Outcome", fact.outcome), fact.inputs
        args: dict[str, Any] = {}
        for path in written:
            if not self._put_clear(args, path):
                return NO_FACT
        return condition.run(scene._replace(args=args), purse)

    def _put_clear(self, args: dict[str, Any], path: Steps) -> bool:
        """Put an argument, or the objects on its path as far as they existed, if the record has it in clear."""
        entry = self.asked.clear.get(path[1:], {}) if path[0] == "args" and len(path) > 1 else {}
        if VALUE not in entry and ABSENT not in entry:
            return False
        parents = path[1:-1] if VALUE in entry else path[1 : entry[ABSENT]]
        for step in parents:
            args = args.setdefault(step, {})
        if VALUE in entry:
            args[path[-1]] = entry[VALUE]
        return True


@dataclass(frozen=True, slots=True)
class StandIn:
    condition: Condition
    case: RecordedCase
    text: str
    digest: str
    paths: tuple[Steps, ...]
    from_caller: bool
    names: Read

    def run(self, scene: ConditionContext, purse: CostBudget) -> Told:
        return self.case.outcome(self.condition, scene, purse)


def with_stand_ins(source: PolicySource, case: RecordedCase) -> PolicySource:
    stand_ins: dict[str, Any] = {
        text: StandIn(condition, case, text, condition.digest, condition.paths, condition.from_caller, condition.names)
        for text, condition in source.conditions.items()
    }
    case.revision = source.revision
    return replace(source, conditions=stand_ins)


def _by_caller(path: Steps) -> bool:
    return path[0] == "args" or path == ("call",) or path[:2] == ("call", "meta")


def _reads_roles(path: Steps) -> bool:
    """Whether a path reads the roles of a principal, possibly with everything else."""
    return path == ("chain",) or (path[0] in ("principal", "origin") and (len(path) == 1 or path[1] == "roles"))
