"""Verifies that a suggestion allows exactly what was recorded.

Nothing is printed before this holds. The rules, roles and sets that `load_policy` reads are expanded over all known
names and compared with the evidence: that checks every cell. Then the engine itself is asked: for every cell if they
are few, else for as many as fit into its time, spread evenly.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from sidecar.policy import Engine, PolicySource, load_policy
from sidecar.policy_tools.suggest.catalogue import Known
from sidecar.policy_tools.suggest.evidence import KINDS, Triple, UsageEvidence
from sidecar.policy_tools.suggest.suggestion import Suggestion
from sidecar.vocabulary import ANONYMOUS, PermissionKind, Principal, Question

ENGINE_S = 3.0  # for the engine's questions
MAX_SAMPLED = 20_000  # questions, if not all can be asked
MAX_CELLS = 2_000_000  # with more cells, only a sample is asked


class ProofFailed(Exception):
    """The suggestion does not have the intended meaning: a bug in the tool."""


@dataclass(frozen=True, slots=True)
class Proof:
    """`cells` were compared, of which the engine was asked `asked`."""

    cells: int
    asked: int


def read_back(files: Mapping[str, str], models: Path, suggestion: Suggestion) -> PolicySource:
    """Load the files as a policy. Raises ProofFailed unless each rule has its terms and only what is carried over
    denies, and PolicyError if the files are not a valid policy.
    """
    source = _loaded(files, models)
    said = {(rule.id, rule.terms[:4]) for rule in suggestion.rules}
    rules = [rule for rule in source.rules if rule.effect == "allow"]
    read = {(rule.id, (rule.when, rule.expires_at, rule.max_calls_per_hour, rule.per)) for rule in rules}
    denies = {(rule.id, rule.when, rule.expires_at) for rule in source.rules if rule.effect == "deny"}
    if said != read or denies != {(rule.id, rule.when, rule.expires_at) for rule in suggestion.carried.denies}:
        raise ProofFailed("the terms that are read back are not those that were suggested")
    return source


def prove(
    files: Mapping[str, str], models: Path, suggestion: Suggestion, evidence: UsageEvidence, known: Known
) -> Proof:
    """Verify what the rules without their terms allow; `files` contain no terms. Raises ProofFailed with the first
    wrong cell, and PolicyError if the files are not a valid policy.
    """
    source = _loaded(files, models)
    expected = evidence.traces.keys() | _widened(suggestion)
    _same(_allowed(source, known), expected)
    cells = sum(len(known.subjects_of(kind)) * len(known.objects_of(kind)) for kind in KINDS) * len(_actions(evidence))
    return Proof(cells, _ask(Engine(source), expected, known, sorted(_actions(evidence)), cells))


def _loaded(files: Mapping[str, str], models: Path) -> PolicySource:
    with TemporaryDirectory(prefix="sidecar-suggest-") as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        return load_policy(models, Path(folder))


def _widened(suggestion: Suggestion) -> set[Triple]:
    return {
        Triple(rule.kind, subject, obj, action)
        for rule in suggestion.rules
        for subject in rule.subjects
        for obj in rule.widened
        for action in rule.actions
    }


def _allowed(source: PolicySource, known: Known) -> set[Triple]:
    """Return every cell over known names that some rule of a policy without denies and conditions matches."""
    members, elements = source.roles.contents(), source.sets.contents()
    allowed: set[Triple] = set()
    for rule in source.rules:
        if rule.effect != "allow" or rule.when or rule.expires_at is not None or rule.shadow:
            raise ProofFailed(f"{rule.id} is more than an allow row")
        subjects = members[rule.subject] if rule.subject.startswith("role:") else (rule.subject,)
        objects = elements[rule.object] if rule.object.startswith("set:") else known.fitting(rule.object)
        names = [name for name in subjects if not name.startswith("role:")]
        things = [name for name in objects if not name.startswith("set:")]
        allowed.update(Triple(rule.kind, s, o, a) for s in names for o in things for a in rule.actions)
    return allowed


def _same(allowed: set[Triple], expected: set[Triple]) -> None:
    for word, wrong in (("does not allow", expected - allowed), ("allows", allowed - expected)):
        if wrong:
            raise ProofFailed(f"the suggestion {word} {min(wrong)}, and {len(wrong) - 1} more")


def _actions(evidence: UsageEvidence) -> set[str]:
    return {triple.action for triple in evidence.traces}


def _ask(engine: Engine, expected: set[Triple], known: Known, actions: list[str], cells: int) -> int:
    """Return how many questions the engine answered, all of them as expected."""
    end_s = time.monotonic() + ENGINE_S
    asked = 0
    if cells <= MAX_CELLS:
        questions = _in_turn(_every(known, actions), sorted(expected))
    else:
        questions = _in_turn(_some(known, actions), sorted(expected)[:: max(1, len(expected) // MAX_SAMPLED)])
    for triple in questions:
        decision = engine.decide((Principal(triple.subject),), question_of(triple), 0.0)
        if decision.allowed is not (triple in expected):
            raise ProofFailed(f"the engine {'allows' if decision.allowed else 'denies'} {triple}")
        asked += 1
        if time.monotonic() > end_s:
            break
    return asked


def _every(known: Known, actions: list[str]) -> Iterator[Triple]:
    for kind in KINDS:
        for subject in known.subjects_of(kind):
            for obj in known.objects_of(kind):
                if _asks(kind, subject, obj):
                    yield from (Triple(kind, subject, obj, action) for action in actions)


def _some(known: Known, actions: list[str]) -> Iterator[Triple]:
    chance = Random(0)  # noqa: S311 - a sample for a check, not a secret
    sides = [(kind, known.subjects_of(kind), known.objects_of(kind)) for kind in KINDS]
    sides = [side for side in sides if side[1] and side[2]]
    for _ in range(MAX_SAMPLED):
        kind, subjects, objects = chance.choice(sides)
        triple = Triple(kind, chance.choice(subjects), chance.choice(objects), chance.choice(actions))
        if _asks(*triple[:3]):
            yield triple


def _in_turn(one: Iterable[Triple], other: list[Triple]) -> Iterator[Triple]:
    """Alternate between both, so that stopping early leaves neither out."""
    rest = iter(other)
    for triple in one:
        yield triple
        yield from islice(rest, 1)
    yield from rest


def _asks(kind: PermissionKind, subject: str, obj: str) -> bool:
    """Whether the engine would ask this permission kind such a question (CONTRACT 1.3)."""
    if kind is PermissionKind.AGENT_TO_TOOL:
        return True
    return obj.startswith("nhi:") and (subject == ANONYMOUS or subject.startswith(("user:", "nhi:")))


def question_of(triple: Triple) -> Question:
    """Return the question of a use."""
    word, _, rest = triple.object.partition(":")
    server, _, name = rest.partition("/")
    if word == "nhi":
        server, name = (rest if triple.kind is PermissionKind.AGENT_TO_TOOL else ""), ""
    return Question(triple.object, triple.action, server, name)
