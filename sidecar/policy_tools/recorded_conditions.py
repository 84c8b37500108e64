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
from typing import Any, Literal, NamedTuple

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
    """A known argument: the number of steps of its path that exist, to `value` or to an object without the next
    step.
    """

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
    asked: RecordedQuestion | None = None
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
        assert self.asked is not None
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
        assert asked is not None
        written = [path for path in condition.paths if _by_caller(path)]
        if key.lends or asked.without_arguments:  # arguments belong to the question itself
            written = [path for path in written if path[0] != "args"]
            scene = scene._replace(args=_NO_VALUES)
        granted = [path for path in condition.paths if _reads(path, "roles", "scopes")]
        if not written and (asked.grants_known or not granted):
            return condition.run(scene, purse)
        fact = self._fact(key)
        if fact is not None and fact.outcome in ("true", "false", "error"):
            if self._same_roles(condition, scene, fact):
                self.by_record.add(key)
                return _outcome(fact.outcome), fact.inputs
            return ROLES_CHANGED
        if granted and not asked.grants_known:
            return GRANTS_UNKNOWN
        return self._by_inputs(condition, written, scene, key, purse)

    def _fact(self, key: RecordedKey) -> RecordedFact | None:
        assert self.asked is not None
        return next(
            (fact for fact in self.asked.facts if RecordedKey(fact.condition, fact.subject, fact.lends) == key), None
        )

    def _same_roles(self, condition: Condition, scene: ConditionContext, fact: RecordedFact) -> bool:
        """Whether the roles that it read then are those that it would read now."""
        assert self.asked is not None
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
        assert self.asked is not None
        known_in_clear = {path: found for path in written if (found := self._in_clear(path)) is not None}
        facts = [fact for fact in self.asked.facts if (fact.subject, fact.lends) == (key.subject, key.lends)]
        values: dict[Steps, Any] = {}
        if any(path in (("args",), ("call",), ("call", "meta")) for path in written):
            return MORE_THAN_EQUAL
        for path in written:
            if path in known_in_clear:
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
        args, meta = _tree(values, ("args",)), _tree(values, ("call", "meta"))
        for path, found in known_in_clear.items():
            _put(args, path[1:], found)
        made = scene._replace(args=args, question=scene.question._replace(meta=meta))
        return condition.run(made, purse)

    def _in_clear(self, path: Steps) -> _Found | None:
        """Return an argument that was recorded in clear, present or not; None if that is unknown."""
        assert self.asked is not None
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
        assert self.asked is not None
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
        return (
            straight and fact.whole and path in self.paths.get(fact.condition, ()) and ".".join(path) not in fact.inputs
        )

    def _own_digests(self) -> Digests | None:
        """Return the digests of the record's namespace; None without its key."""
        assert self.asked is not None
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

    @property
    def names(self) -> Read:
        """Return what it reads of arguments."""
        return self.condition.names

    def run(self, scene: ConditionContext, purse: CostBudget) -> tuple[Outcome, Mapping[str, Any]]:
        """Return the outcome for the record being decided."""
        return self.case.outcome(self.condition, scene, purse)


def with_stand_ins(source: PolicySource, case: RecordedCase) -> PolicySource:
    """Return the policy with its conditions answered by `case`."""
    stand_ins: dict[str, Any] = {
        text: StandIn(condition, case, condition.text, condition.digest, condition.paths, condition.from_caller)
        for text, condition in source.conditions.items()
    }
    case.revision = source.revision
    case.paths = {condition.digest: condition.paths for condition in source.conditions.values()}
    return replace(source, conditions=stand_ins)


def _outcome(word: str) -> Outcome:
    return "true" if word == "true" else "false" if word == "false" else "error"


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


def _tree(values: Mapping[Steps, Any], root: Steps) -> dict[str, Any]:
    """Return nested objects with a value at the end of each path."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        if path[: len(root)] == root:
            branch = tree
            for step in path[len(root) : -1]:
                branch = branch.setdefault(step, {})
            branch[path[-1]] = value
    return tree


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
    found: list[str | int] = []
    for token in tokens:
        if token[0] in "'\"":
            found.append(token[1:-1])
        elif token[0].isdigit():
            found += [int(token), -int(token)]
    return found


def _only_compared(text: str, name: str) -> bool:
    """Whether the only tests of this input are presence, equality with a constant, and membership in a list of
    constants.
    """
    tokens = _tokens(text)
    if tokens is None:
        return False
    path = _joined(name)
    places = [at for at in range(len(tokens)) if tokens[at : at + len(path)] == path]
    if any(token == "[" and _before(tokens, at) != "in" for at, token in enumerate(tokens)):
        return False  # args['x'] may be the same input
    plain = sum(token == path[0] for token in tokens) == len(_roots(tokens, path[0]))
    return plain and bool(places) and all(_compared(tokens, at, len(path)) for at in places)


def _joined(name: str) -> list[str]:
    return [part for step in name.split(".") for part in (".", step)][1:]


def _roots(tokens: list[str], root: str) -> list[int]:
    """Return where the variable is read by plain dots, and not as another value's field."""
    return [
        at
        for at, token in enumerate(tokens)
        if token == root and tokens[at + 1 : at + 2] == ["."] and (at == 0 or tokens[at - 1] != ".")
    ]


def _compared(tokens: list[str], at: int, size: int) -> bool:
    before, after = _before(tokens, at), tokens[at + size :]
    if before == "(" and after[:1] == [")"] and tokens[at - 2 : at - 1] == ["has"]:
        return True
    if before in ("==", "!=") and at > 1:
        return _is_constant(tokens[at - 2]) and _before(tokens, at - 2) in _STARTS and _next(after, 0) in _ENDS
    if before not in _STARTS or not after:
        return False
    if after[0] in ("==", "!="):
        rest = after[1:]
    elif after[:2] == ["in", "["]:
        end = after.index("]") if "]" in after else 0
        listed = after[2:end]
        return all(map(_is_constant, listed[::2])) and set(listed[1::2]) <= {","} and _next(after, end + 1) in _ENDS
    else:
        return False
    rest = rest[1:] if rest[:1] == ["-"] else rest
    return bool(rest) and _is_constant(rest[0]) and _next(rest, 1) in _ENDS


def _before(tokens: list[str], at: int) -> str:
    return tokens[at - 1] if at else ""


def _next(tokens: list[str], at: int) -> str:
    return tokens[at] if at < len(tokens) else ""


def _is_constant(token: str) -> bool:
    return token[0] in "'\"" or token[0].isdigit() or token in ("true", "false", "null")
