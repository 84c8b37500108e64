"""Verifies that a suggestion allows exactly what was recorded, and writes policy tests that keep it so.

Nothing is printed before this holds. The rules, roles and sets that `load_policy` reads are expanded over all known
names and compared with the evidence: that checks every cell. Then the engine itself is asked as much as fits into its
time.

There is one test for each rule, which must allow, and for each known subject one use that was never recorded and must
stay denied. A team that edits the suggestion therefore notices lost and added access. A record contains no arguments:
for a rule with a condition, and for a deny row with one, the test is a call without arguments.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import chain, islice, product, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from sidecar.policy import Engine, PolicySource, load_policy
from sidecar.policy.grammar import ON_SERVERS
from sidecar.policy_tools.catalogue import ACTION_ON, Known
from sidecar.policy_tools.rule_text import scalar
from sidecar.policy_tools.suggest.evidence import KINDS, Triple, UsageEvidence
from sidecar.policy_tools.suggest.suggestion import Suggestion
from sidecar.vocabulary import ANONYMOUS, Decision, PermissionKind, Principal, Question

ENGINE_S = 1.0  # for the engine's questions, after every cell was compared
MAX_SAMPLED = 20_000  # questions of one kind

SUITE_FILE = "tests/suggested.yaml"
MAX_DENIED = 500
MAX_TRIES = 4  # subjects, and objects, for one row that denies


class ProofFailed(Exception):
    """The suggestion does not have the intended meaning: a bug in the tool."""


class Proof(NamedTuple):
    """`cells` were compared, of which the engine was asked `asked`."""

    cells: int
    asked: int


def read_back(files: Mapping[str, str], models: Path, suggestion: Suggestion) -> PolicySource:
    """Load the files. Raises ProofFailed if terms or denies differ, PolicyError if they are no valid policy."""
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
    """Verify what `files`, which contain no terms, allow. Raises ProofFailed with the first wrong cell, PolicyError."""
    source = _loaded(files, models)
    widened = {
        Triple(rule.kind, *cell)
        for rule in suggestion.rules
        for cell in product(rule.subjects, rule.widened, rule.actions)
    }
    allowed, expected = _allowed(source, known), evidence.traces.keys() | widened
    for word, wrong in (("does not allow", expected - allowed), ("allows", allowed - expected)):
        if wrong:
            raise ProofFailed(f"the suggestion {word} {min(wrong)}, and {len(wrong) - 1} more")
    actions = sorted({triple.action for triple in evidence.traces})
    cells = sum(len(known.subjects_of(kind)) * len(known.objects_of(kind)) for kind in KINDS) * len(actions)
    return Proof(cells, _ask(Engine(source), expected, known, actions))


def _loaded(files: Mapping[str, str], models: Path) -> PolicySource:
    with TemporaryDirectory(prefix="sidecar-suggest-") as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        return load_policy(models, Path(folder))


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
        allowed.update(Triple(rule.kind, *cell) for cell in product(names, things, rule.actions))
    return allowed


def _ask(engine: Engine, expected: set[Triple], known: Known, actions: list[str]) -> int:
    """Return how many questions the engine answered, all of them as expected: expected and other ones in turn, spread
    evenly if there are more than MAX_SAMPLED.
    """
    end_s, asked = time.monotonic() + ENGINE_S, 0
    step = max(1, len(expected) // MAX_SAMPLED)
    for triple in chain.from_iterable(zip_longest(_cells(known, actions), sorted(expected)[::step])):
        if triple is not None:
            decision = engine.decide((Principal(triple.subject),), question_of(triple), 0.0)
            if decision.allowed is not (triple in expected):
                raise ProofFailed(f"the engine {'allows' if decision.allowed else 'denies'} {triple}")
            asked += 1
            if time.monotonic() > end_s:
                break
    return asked


def _cells(known: Known, actions: list[str]) -> Iterator[Triple]:
    for kind in KINDS:
        subjects, objects = known.subjects_of(kind), known.objects_of(kind)
        count = len(subjects) * len(objects) * len(actions)
        for at in range(0, count, count // MAX_SAMPLED + 1):
            (subject, obj), action = divmod(at // len(actions), len(objects)), at % len(actions)
            if _asks(kind, subjects[subject], objects[obj]):
                yield Triple(kind, subjects[subject], objects[obj], actions[action])


def _asks(kind: PermissionKind, subject: str, obj: str) -> bool:
    """Whether the engine would ask this permission kind such a question (CONTRACT 1.3)."""
    called = obj.startswith("nhi:") and (subject == ANONYMOUS or subject.startswith(("user:", "nhi:")))
    return kind is PermissionKind.AGENT_TO_TOOL or called


def question_of(triple: Triple) -> Question:
    word, _, rest = triple.object.partition(":")
    server, _, name = rest.partition("/")
    if word == "nhi":
        server, name = (rest if triple.kind is PermissionKind.AGENT_TO_TOOL else ""), ""
    return Question(triple.object, triple.action, server, name)


def suite_text(suggestion: Suggestion, evidence: UsageEvidence, known: Known, engine: Engine) -> str:
    """Return the suite, in the form of CONTRACT 2.3. Its time is that of the last record."""
    now = max(trace.last for trace in evidence.traces.values())
    now_s = datetime.fromisoformat(now).timestamp()
    lines = ["# Suggested with the rules beside it by `sidecar policy suggest`.", "suite: suggested"]
    lines += [f"now: {scalar(now)}", "tests:"]
    for rule in suggestion.rules:
        triple = Triple(rule.kind, rule.subjects[0], rule.objects[0], rule.actions[0])
        if _can_be_tested(triple):
            decision = engine.decide((Principal(triple.subject),), question_of(triple), now_s)
            name = f"{rule.id} for {triple.object}" if rule.part else rule.id
            if decision.allowed and _rests_on(decision, rule.id):
                expect = f"{{decision: allow, rule: {scalar(rule.id)}}}"
                lines.append(_test(f"{name} allows what was recorded", triple, expect))
            else:
                expect = "allow" if decision.allowed else f"{{decision: deny, reason: {decision.reason}}}"
                lines.append(_test(f"{name} on a call without arguments", triple, expect))
    for rule_id, triple in _forbidden(suggestion, known, engine, now_s):
        expect = f"{{decision: deny, rule: {scalar(rule_id)}}}"
        lines.append(_test(f"{rule_id} denies {triple.action} of {triple.object}", triple, expect))
    for triple in islice(_unused(suggestion, evidence, known), MAX_DENIED):
        name = f"{triple.subject} never had {triple.object} for {triple.action}"
        lines += [_test(name, triple, "deny")]
    return "\n".join(lines) + "\n"


def _forbidden(suggestion: Suggestion, known: Known, engine: Engine, now_s: float) -> Iterator[tuple[str, Triple]]:
    """Yield for each deny row a known use that it denies, found in a few tries."""
    told: set[str] = set()
    for rule in suggestion.carried.denies[:MAX_DENIED]:
        objects = [name for name in known.fitting(rule.object) if name.startswith(ON_SERVERS)]
        for subject, obj in product(known.subjects[:MAX_TRIES], objects[:MAX_TRIES]):
            triple = Triple(PermissionKind.AGENT_TO_TOOL, subject, obj, ACTION_ON[obj.partition(":")[0]])
            decision = engine.decide((Principal(subject),), question_of(triple), now_s)
            if rule.id not in told and not decision.allowed and _rests_on(decision, rule.id):
                told.add(rule.id)
                yield rule.id, triple


def _rests_on(decision: Decision, rule_id: str) -> bool:
    links = [link for link in decision.links if link.allowed is decision.allowed]
    return any(rule.id == rule_id for link in links for rule in link.rules)


def _unused(suggestion: Suggestion, evidence: UsageEvidence, known: Known) -> Iterator[Triple]:
    """Yield for each subject the first object that it never used, by an action that others use there."""
    widened = {name for rule in suggestion.rules for name in rule.widened}
    used: dict[tuple[PermissionKind, str], set[str]] = {}
    actions: dict[tuple[PermissionKind, str], str] = {}
    for triple in evidence.traces:
        used.setdefault((triple.kind, triple.subject), set()).add(triple.object)
        actions.setdefault((triple.kind, triple.object), triple.action)
    for kind in PermissionKind:
        there = [(obj, action) for (one, obj), action in actions.items() if one is kind and obj not in widened]
        for subject in known.subjects_of(kind) if there else ():
            mine = used.get((kind, subject), set())
            found = next((Triple(kind, subject, obj, action) for obj, action in there if obj not in mine), None)
            if found is not None and _can_be_tested(found):
                yield found


def _can_be_tested(triple: Triple) -> bool:
    """Whether a suite can ask it: a suite takes an MCP server as a whole for an agent of that name."""
    return triple.kind is not PermissionKind.AGENT_TO_TOOL or not triple.object.startswith("nhi:")


def _test(name: str, triple: Triple, expect: str) -> str:
    asked = f"as: {scalar(triple.subject)}, calls: {scalar(triple.object)}, action: {scalar(triple.action)}"
    return f"  - {{name: {scalar(name)}, {asked}, expect: {expect}}}"
