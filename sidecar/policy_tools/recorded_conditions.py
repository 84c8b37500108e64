"""Evaluates conditions on recorded facts.

A record contains no arguments (CONTRACT 7) except those that `audit.clear_arguments` selects. Of each condition that
ran, it has a digest of the text, the outcome, and keyed digests of what the condition read. To replay a record, a
policy's conditions are replaced by `StandIn`s, which answer, in this order, by

    running             what reads nothing of the caller's own: principals, server, tool, time
    the record          the same text, of the same subject
    clear arguments     another text that reads arguments recorded in clear
    its inputs          another text that reads what was recorded: with the audit key, a digest can be compared with the
                        constants of the condition; equality and membership need no more than that
    nothing             the outcome is unknown, with the reason, and takes the value that the replay tries
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, cast

from sidecar.audit.clear import ABSENT, VALUE
from sidecar.audit.digest import AuditKey, Digests
from sidecar.errors import Refusal
from sidecar.policy.conditions import Condition, ConditionContext, CostBudget
from sidecar.policy.similar_keys import Read
from sidecar.policy.source import PolicySource
from sidecar.policy_tools.audit_records import GRANTS_UNKNOWN, RecordedFact, RecordedQuestion

Outcome = Literal["true", "false", "error"]
Steps = tuple[str, ...]

NO_FACT = "a condition has no recorded fact, and what it reads was not recorded"
NO_KEY = "a condition reads hashed arguments: with --key, constants can be compared with them"
OTHER_KEY = "hashed arguments were recorded with another key"
MORE_THAN_EQUAL = "a condition asks more of a hashed argument than whether it equals a constant"
ROLES_CHANGED = "a condition reads arguments and roles, and the roles may be others now"
_NO_VALUES: Mapping[str, Any] = {}
ARGUMENTS: Mapping[str, Any] = {"arguments": "not recorded"}  # by identity: those of the question itself


class _Found(NamedTuple):
    """A known argument: how many steps of its path exist, to `value` or to an object without the next step."""

    steps: int
    value: tuple[Any] | None = None


class RecordedKey(NamedTuple):
    """One run of a condition: its subject, and whether it is about lent authority."""

    condition: str
    subject: str
    lends: bool


@dataclass(slots=True)
class RecordedCase:
    """The record being decided, and what is known about its conditions.

    `assumed` are the outcomes tried for unknown conditions, others get `otherwise`; `unknown` collects them, with the
    reason. `by_record` are those that the record itself answered; `paths` are what the conditions of the policy read,
    by digest.
    """

    key: AuditKey | None = None
    asked: RecordedQuestion = field(init=False)
    revision: str = ""
    assumed: Mapping[RecordedKey, Outcome] = field(default_factory=dict)
    otherwise: Outcome = "error"
    unknown: dict[RecordedKey, str] = field(default_factory=dict)
    by_record: set[RecordedKey] = field(default_factory=set)
    paths: Mapping[str, tuple[Steps, ...]] = field(default_factory=dict)
    _digests: tuple[str, Digests] | None = None

    def outcome(
        self, condition: Condition, scene: ConditionContext, purse: CostBudget
    ) -> tuple[Outcome, Mapping[str, Any]]:
        """Return the outcome, recorded or derived, and what the condition read as far as that is known."""
        lends = scene.args is not ARGUMENTS
        key = RecordedKey(condition.digest, scene.chain[scene.subject].name, lends)
        told = self._told(condition, scene, key, purse)
        if not isinstance(told, str):
            return told
        self.unknown[key] = told
        return self.assumed.get(key, self.otherwise), {}

    def _told(
        self, condition: Condition, scene: ConditionContext, key: RecordedKey, purse: CostBudget
    ) -> tuple[Outcome, Mapping[str, Any]] | str:
        """Return the outcome, or why it is unknown."""
        asked = self.asked
        written = [path for path in condition.paths if _by_caller(path)]
        if key.lends or asked.without_arguments:  # arguments belong to the question itself
            written = [path for path in written if path[0] != "args"]
            scene = scene._replace(args=_NO_VALUES)
        granted = [path for path in condition.paths if _reads(path, "roles", "scopes")]
        if not written and (asked.grants_known or not granted):
            return condition.run(scene, purse)
        facts = (fact for fact in asked.facts if (fact.condition, fact.subject, fact.lends) == key)
        fact = next(facts, None)
        if fact is not None and fact.outcome in ("true", "false", "error"):
            if self._same_roles(condition, scene, fact):
                self.by_record.add(key)
                return cast("Outcome", fact.outcome), fact.inputs
            return ROLES_CHANGED
        if granted and not asked.grants_known:
            return GRANTS_UNKNOWN
        return self._by_inputs(condition, written, scene, key, purse)

    def _same_roles(self, condition: Condition, scene: ConditionContext, fact: RecordedFact) -> bool:
        """Whether the roles that it read then are those that it would read now."""
        reading = [path for path in condition.paths if _reads(path, "roles")]
        if not reading or self.asked.revision == self.revision:
            return True
        digests = self._own_digests()
        return digests is not None and all(
            fact.inputs.get(".".join(path)) == _digest(digests, _value(scene, path)) for path in reading
        )

    # --- inputs -------------------------------------------------------------------------------------------------------

    def _by_inputs(
        self, condition: Condition, written: list[Steps], scene: ConditionContext, key: RecordedKey, purse: CostBudget
    ) -> tuple[Outcome, Mapping[str, Any]] | str:
        in_clear = {path: found for path in written if (found := self._in_clear(path)) is not None}
        facts = [fact for fact in self.asked.facts if (fact.subject, fact.lends) == (key.subject, key.lends)]
        values: dict[Steps, Any] = {}
        if any(path in (("args",), ("call",), ("call", "meta")) for path in written):
            return MORE_THAN_EQUAL
        for path in written:
            if path in in_clear:
                continue
            name = ".".join(path)
            known = next((fact for fact in facts if fact.inputs.get(name)), None)
            if known is None and any(self._was_absent(path, fact) for fact in facts):
                continue
            if known is None:
                return NO_FACT
            told = self._value(condition.text, name, known)
            if not isinstance(told, tuple):
                return told
            values[path] = told[0]
        args, meta = dict[str, Any](), dict[str, Any]()
        for path, value in values.items():
            below = path[1:] if path[0] == "args" else path[2:]
            _put(args if path[0] == "args" else meta, below, _Found(len(below), (value,)))
        for path, found in in_clear.items():
            _put(args, path[1:], found)
        return condition.run(scene._replace(args=args, question=scene.question._replace(meta=meta)), purse)

    def _in_clear(self, path: Steps) -> _Found | None:
        """Return an argument that was recorded in clear, present or not; None if that is unknown."""
        if path[0] != "args":
            return None
        entry = self.asked.clear.get(path[1:], {})
        if VALUE in entry:
            return _Found(len(path) - 1, (entry[VALUE],))
        return _Found(entry[ABSENT] - 1) if ABSENT in entry else None

    def _value(self, text: str, name: str, fact: RecordedFact) -> tuple[Any] | str:
        """Return a value that the condition cannot distinguish from the original one, or why there is none.

        A value that equals none of the constants can be replaced by any other such value if only equality is tested.
        This does not hold where the recorded run failed: the value may be too large for any test.
        """
        digests = self._own_digests()
        if digests is None:
            return NO_KEY if self.key is None else OTHER_KEY
        constants = _constants(text)
        if constants is None:
            return MORE_THAN_EQUAL
        digest = fact.inputs[name]
        for constant in (*constants, True, False, None):
            if _digest(digests, constant) == digest:
                return (constant,)
        if fact.outcome == "error" or not _only_compared(text, name):
            return MORE_THAN_EQUAL
        return (f"\N{SYMBOL FOR SUBSTITUTE}{digest}",)  # equal digests give equal substitutes

    def _was_absent(self, path: Steps, fact: RecordedFact) -> bool:
        """Whether a condition that ran then looked for this path, and it was not present."""
        straight = path[:-1] in (("args",), ("call", "meta"))  # else a parent may have been of another type
        looked = fact.whole and path in self.paths.get(fact.condition, ())
        return straight and looked and ".".join(path) not in fact.inputs

    def _own_digests(self) -> Digests | None:
        """Return the digests of the record's namespace; None without its key."""
        if self.key is None or self.key.id != self.asked.key_id:
            return None
        namespace, slash, _ = self.asked.chain[-1].id.partition("/")
        namespace = namespace if slash else ""
        if self._digests is None or self._digests[0] != namespace:
            self._digests = (namespace, Digests(self.key, namespace))
        return self._digests[1]


@dataclass(frozen=True, slots=True)
class StandIn:
    """Replaces a `Condition` in an engine."""

    condition: Condition
    case: RecordedCase
    text: str
    digest: str
    paths: tuple[Steps, ...]
    from_caller: bool
    names: Read

    def run(self, scene: ConditionContext, purse: CostBudget) -> tuple[Outcome, Mapping[str, Any]]:
        """Return the outcome for the record being decided."""
        return self.case.outcome(self.condition, scene, purse)


def with_stand_ins(source: PolicySource, case: RecordedCase) -> PolicySource:
    """Return the policy with its conditions answered by `case`."""
    stand_ins: dict[str, Any] = {
        text: StandIn(condition, case, text, condition.digest, condition.paths, condition.from_caller, condition.names)
        for text, condition in source.conditions.items()
    }
    case.revision = source.revision
    case.paths = {condition.digest: condition.paths for condition in source.conditions.values()}
    return replace(source, conditions=stand_ins)


def _by_caller(path: Steps) -> bool:
    return path[0] == "args" or path == ("call",) or path[:2] == ("call", "meta")


def _reads(path: Steps, *what: str) -> bool:
    """Whether a path reads this of a principal, possibly with everything else."""
    return path == ("chain",) or (path[0] in ("principal", "origin") and (len(path) == 1 or path[1] in what))


def _value(scene: ConditionContext, path: Steps) -> Any:
    value = scene.variable(path[0])
    for step in path[1:]:
        value = value[step]
    return value


def _digest(digests: Digests, value: object) -> str | None:
    try:
        return digests.fact_hash(value)
    except Refusal:
        return None


def _put(tree: dict[str, Any], path: Steps, found: _Found) -> None:
    """Put an argument into a tree, or the objects on its path as far as they existed."""
    for at, step in enumerate(path[: found.steps]):
        if found.value is not None and at == len(path) - 1:
            tree[step] = found.value[0]
            return
        tree = tree.setdefault(step, {})


# --- how a condition's text tests an input ----------------------------------------------------------------------------

# The unambiguous part of CEL's lexis (cel-spec, "Syntax"): plain strings, integers, names.
_TOKEN = re.compile(
    r"""\s*(?:('[^'\\\n]*'|"[^"\\\n]*")|(\d+(?![\w.]))|([A-Za-z_]\w*)|(==|!=|<=|>=|&&|\|\||[-+*/%<>!?:.,()\[\]{}]))"""
)
_STARTS, _ENDS = ("", "(", "&&", "||", "?", ":"), ("", ")", "&&", "||", "?", ":")


def _tokens(text: str) -> list[str] | None:
    """Return the text's tokens; None for a text with anything else: escapes, string prefixes, fractions, comments."""
    tokens: list[str] = []
    at, text = 0, text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or text[at : at + 2] == "//":
            return None
        if match[1] and tokens and match.start(1) == at and re.fullmatch(r"[A-Za-z_]\w*|'.*'|\".*\"", tokens[-1]):
            return None  # r'…', b'…', '''…'''
        tokens.append(match[1] or match[2] or match[3] or match[4])
        at = match.end()
    return tokens


def _constants(text: str) -> list[str | int] | None:
    """Return every constant in the text; None if that cannot be determined."""
    tokens = _tokens(text)
    if tokens is None:
        return None
    texts = [token[1:-1] for token in tokens if token[0] in "'\""]
    return [*texts, *(sign * int(token) for token in tokens if token[0].isdigit() for sign in (1, -1))]


def _only_compared(text: str, name: str) -> bool:
    """Whether an input is tested for presence, equality with a constant, and membership in constants only."""
    found = _tokens(text)
    if found is None:
        return False
    tokens, path = ["", *found, ""], re.split(r"(\.)", name)
    if any(token == "[" and tokens[at - 1] != "in" for at, token in enumerate(tokens)):
        return False  # args['x'] may be the same input
    # The variable must be read by plain dots only, and not as another value's field.
    roots = [at for at, token in enumerate(tokens) if token == path[0] and tokens[at - 1] != "."]
    plain = len(roots) == tokens.count(path[0]) and all(tokens[at + 1] == "." for at in roots)
    places = [at for at in roots if tokens[at : at + len(path)] == path]
    return plain and bool(places) and all(_compared(tokens, at, len(path)) for at in places)


def _compared(tokens: list[str], at: int, size: int) -> bool:
    match tokens[max(0, at - 3) : at], tokens[at + size :]:
        case [*_, "has", "("], [")", *_]:
            return True
        case [*_, start, constant, "==" | "!="], [end, *_]:
            return _is_constant(constant) and start in _STARTS and end in _ENDS
        case [*_, start], ["==" | "!=", "-", constant, end, *_] | ["==" | "!=", constant, end, *_]:
            return start in _STARTS and _is_constant(constant) and end in _ENDS
        case [*_, start], ["in", "[", *rest] if "]" in rest:
            listed, end = rest[: rest.index("]")], rest[rest.index("]") + 1]
            constants = all(map(_is_constant, listed[::2])) and set(listed[1::2]) <= {","}
            return start in _STARTS and constants and end in _ENDS
    return False


def _is_constant(token: str) -> bool:
    return token[:1] in ("'", '"') or token[:1].isdigit() or token in ("true", "false", "null")
