"""Are the suggested rules exact, and are they the fewest?

The judges: the engine, asked about every cell of a small world; and a search that knows nothing of ours, over every
box that can be drawn.
"""

import random
from collections.abc import Iterable, Iterator
from itertools import chain as joined, combinations, product
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings, strategies as st

from sidecar.policy import Engine, load_policy
from sidecar.policy_tools.catalogue import Known
from sidecar.policy_tools.suggest.box_cover import cover
from sidecar.policy_tools.suggest.evidence import Trace, Triple, UsageEvidence
from sidecar.policy_tools.suggest.grid import Box, Grid, bits
from sidecar.policy_tools.suggest.render import csv_files
from sidecar.policy_tools.suggest.suggestion import Suggestion, suggest
from sidecar.policy_tools.suggest.terms import Present
from sidecar.policy_tools.suggest.verification import ProofFailed, prove
from sidecar.vocabulary import PermissionKind, Principal, Question
from tests.tables import tables
from tests.unit.policy.world import MODELS

TOOL = PermissionKind.AGENT_TO_TOOL
SUBJECTS = ("anonymous", "nhi:pay-a", "nhi:pay-b", "nhi:plan", "user:amy", "user:bob")
OBJECTS = ("nhi:git", "prompt:git/get_x", *(f"tool:git/{name}" for name in ("get_a", "get_b", "get_c", "get_d", "put")))
ACTIONS = ("prompts/get", "tools/call")
UNUSED = ("tool:git/get_e", "tool:git/put_all", "tool:web/get_a")
ROLES = {frozenset({"nhi:pay-a", "nhi:plan"}): "role:old", frozenset({"user:amy", "user:bob"}): "role:people"}
SETS = {frozenset({"tool:git/get_a", "tool:git/put"}): "set:old"}

cells = st.sets(st.tuples(st.sampled_from(SUBJECTS), st.sampled_from(OBJECTS), st.sampled_from(ACTIONS)), min_size=1)
relaxed = settings(max_examples=40)


def evidence_of(used: Iterable[tuple[str, str, str]], kind: PermissionKind = TOOL) -> UsageEvidence:
    evidence = UsageEvidence()
    for subject, obj, action in used:
        time = "2026-11-27T12:00:00.000000Z"
        evidence.traces[Triple(kind, subject, obj, action)] = Trace(1, time, time, ("d-1",), ())
    return evidence


def answers(files: dict[str, str], known: Known) -> set[tuple[str, str, str]]:
    """What the engine allows of everything known."""
    with TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text)
        engine = Engine(load_policy(MODELS, Path(folder)))

    def allowed(subject: str, obj: str, action: str) -> bool:
        question = Question(obj, action, obj.partition(":")[2].partition("/")[0])
        return engine.decide((Principal(subject),), question, 0.0).allowed

    return {asked for asked in product(known.subjects, known.objects, ACTIONS) if allowed(*asked)}


@relaxed
@given(cells, st.booleans())
def test_a_suggestion_allows_what_was_used_and_nothing_else_that_is_known(
    used: set[tuple[str, str, str]], with_present: bool
) -> None:
    known = Known.of(SUBJECTS, (*OBJECTS, *UNUSED))
    present = Present(ROLES, SETS, frozenset({*ROLES.values(), *SETS.values()})) if with_present else Present()
    suggestion = suggest(evidence_of(used), known, present)
    assert answers(csv_files(suggestion, present), known) == used
    assert not any(rule.widened for rule in suggestion.rules)
    assert all(rule.subject == "anonymous" for rule in suggestion.rules if "anonymous" in rule.subjects)


@relaxed
@given(cells, st.integers(1, 3))
def test_what_widening_allows_is_told_and_bounded(used: set[tuple[str, str, str]], widen: int) -> None:
    known = Known.of(SUBJECTS, (*OBJECTS, *UNUSED))
    suggestion = suggest(evidence_of(used), known, Present(), widen=widen)
    told = {cell for rule in suggestion.rules for cell in product(rule.subjects, rule.widened, rule.actions)}
    assert answers(csv_files(suggestion, Present()), known) == used | told
    assert all(len(rule.widened) <= widen for rule in suggestion.rules)
    assert len(suggestion.rules) <= len(suggest(evidence_of(used), known, Present()).rules)


@settings(max_examples=40)
@given(st.sets(st.tuples(st.sampled_from("abcd"), st.sampled_from("wxyz"), st.sampled_from("12")), min_size=1))
def test_no_cover_with_fewer_boxes_exists(used: set[tuple[str, str, str]]) -> None:
    found = cover(Grid.of(Triple(TOOL, *cell) for cell in used))
    assert (len(found.boxes), found.fewest) == (fewest_boxes(used), True)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(2, 10), st.integers(2, 10), st.integers(1, 3), st.floats(0.2, 0.95))
def test_every_cover_is_exact_and_without_superfluous_boxes(
    seed: int, subjects: int, objects: int, actions: int, density: float
) -> None:
    chance = random.Random(seed)
    used = [cell for cell in product(*map(_names, (subjects, objects, actions))) if chance.random() < density]
    if used:
        grid = Grid.of(Triple(TOOL, *cell) for cell in used)
        found = cover(grid)
        assert covered(grid, found.boxes) == set(used)
        for box in found.boxes:  # none is superfluous
            assert covered(grid, [other for other in found.boxes if other is not box]) != set(used)


@pytest.mark.parametrize("seed", range(3))
def test_roles_that_were_planted_are_found_again(seed: int) -> None:
    """Twenty teams that overlap: the author of the policy needed twenty rules, and so do we."""
    chance = random.Random(seed)
    people, things = _names(80), _names(120)
    teams = [product(chance.sample(people, 9), chance.sample(things, 12)) for _ in range(20)]
    used = {(who, what, "tools/call") for team in teams for who, what in team}
    grid = Grid.of(Triple(TOOL, *cell) for cell in used)
    found = cover(grid)
    assert covered(grid, found.boxes) == used
    assert len(found.boxes) <= 20


def test_a_team_that_outgrows_every_bound_of_the_exact_search_is_still_covered_exactly() -> None:
    chance = random.Random(7)
    used = {(f"s{chance.randrange(90)}", f"o{chance.randrange(90)}", f"a{chance.randrange(3)}") for _ in range(1500)}
    grid = Grid.of(Triple(TOOL, *cell) for cell in used)
    found = cover(grid)
    assert covered(grid, found.boxes) == used
    assert len(found.boxes) <= 90 * 3 and not found.fewest


def test_the_order_of_records_changes_nothing() -> None:
    chance = random.Random(3)
    used = sorted({(chance.choice(SUBJECTS), chance.choice(OBJECTS), chance.choice(ACTIONS)) for _ in range(40)})
    known = Known.of(SUBJECTS, OBJECTS)
    told = set()
    for _ in range(5):
        chance.shuffle(used)
        told.add(repr(csv_files(suggest(evidence_of(used), known, Present()), Present())))
    assert len(told) == 1


@pytest.mark.parametrize(("old", "new", "wrong"), tables("policy_tools/suggest_cover")["faults"])
def test_a_suggestion_that_says_something_else_is_never_printed(old: str, new: str, wrong: str) -> None:
    used = [("nhi:plan", "tool:git/get_a", "tools/call")]
    known = Known.of(SUBJECTS, OBJECTS)
    evidence = evidence_of(used)
    suggestion = suggest(evidence, known, Present())
    files = csv_files(suggestion, Present())
    assert prove(files, MODELS, suggestion, evidence, known) > 0
    files["agent_to_tool.csv"] = files["agent_to_tool.csv"].replace(old, new)
    with pytest.raises(ProofFailed, match=wrong):
        prove(files, MODELS, suggestion, evidence, known)


def test_each_kind_of_permission_has_rules_of_its_own() -> None:
    evidence = evidence_of([("nhi:plan", "nhi:pay-a", "delegate")], PermissionKind.NHI_TO_NHI)
    evidence.traces |= evidence_of([("user:amy", "nhi:pay-a", "delegate")], PermissionKind.USER_TO_NHI).traces
    evidence.traces |= evidence_of([("nhi:plan", "nhi:git", "roots/list")]).traces
    known = Known.of(SUBJECTS, OBJECTS)
    suggestion: Suggestion = suggest(evidence, known, Present())
    files = csv_files(suggestion, Present())
    assert sorted(files) == ["agent_to_tool.csv", "nhi_to_nhi.csv", "user_to_nhi.csv"]
    assert prove(files, MODELS, suggestion, evidence, known) > 0
    assert suggestion.fewest


# --- judges -----------------------------------------------------------------------------------------------------------


def covered(grid: Grid, boxes: Iterable[Box]) -> set[tuple[str, str, str]]:
    axes = ("subjects", "objects", "actions")
    sides = [[grid.names(getattr(grid, axis), getattr(box, axis)) for axis in axes] for box in boxes]
    return {cell for box in sides for cell in product(*box)}


def fewest_boxes(used: set[tuple[str, str, str]]) -> int:
    """By trying all covers, smallest first, of all boxes that lie inside."""
    numbers = {cell: 1 << at for at, cell in enumerate(sorted(used))}
    masks = set()
    for sides in product(*(_subsets(sorted({cell[axis] for cell in used})) for axis in range(3))):
        if all(cell in used for cell in product(*sides)):
            masks.add(sum(numbers[cell] for cell in product(*sides)))
    largest = [mask for mask in masks if not any(mask != other and not mask & ~other for other in masks)]
    full = (1 << len(numbers)) - 1
    count = 1
    while not _coverable(full, largest, count):
        count += 1
    return count


def _coverable(left: int, masks: list[int], count: int) -> bool:
    if not left:
        return True
    lowest = left & -left
    return count > 0 and any(_coverable(left & ~mask, masks, count - 1) for mask in masks if mask & lowest)


def _subsets(names: list[str]) -> Iterator[tuple[str, ...]]:
    return joined.from_iterable(combinations(names, size) for size in range(1, len(names) + 1))


def _names(count: int) -> list[str]:
    return [f"n{number:03d}" for number in range(count)]


def test_bits_are_the_indexes_of_a_mask() -> None:
    assert list(bits(0b1010_0001)) == [0, 5, 7]
