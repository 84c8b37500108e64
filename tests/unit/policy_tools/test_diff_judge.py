"""Is what `diff` says true? The judge are two engines, asked about the same things under each policy.

Small policies are made of a few patterns, roles, sets, conditions and expiries that meet in many ways. An answer must
differ, under some arguments and at some time, exactly if the question is in a region; and every witness must show what
it claims under the very guard that it names. Conditions on the caller's own roles, which may hold others in the other
policy, are judged one way only: no change may be missed. (Who has a role is no argument that one could vary.)
"""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from hypothesis import given, settings, strategies as st

from sidecar.policy import Engine
from sidecar.policy_tools.diff import Difference, difference, load
from sidecar.policy_tools.diff.regions import Region
from sidecar.policy_tools.diff.search import Point
from sidecar.policy_tools.diff.terms import demands_as_much
from sidecar.policy_tools.git_revisions import Revision
from sidecar.policy_tools.policy_location import in_folder
from sidecar.vocabulary import Decision, PermissionKind, Principal, Question
from tests.tables import tables

SUBJECTS = ["*", "user:*", "nhi:*", "user:a", "nhi:p", "nhi:p*", "user:*b", "anonymous"]
SUBJECTS += ["role:n/r", "role:n/s", "role:n/t"]
OBJECTS = ["*", "tool:s/*", "tool:s/a", "tool:s/a*", "tool:*/b", "tool:*a*", "set:x", "set:y", "tool:t/*", "nhi:*"]
ACTIONS = ["use", "*", "tools/call", "tools/call|delegate", "tasks/*"]
WHENS = ["-", "-", "args.a <= 1", "args.a <= 2", "args.b == 1", "args.a <= 1 && args.b == 1"]
ENDS = ["-", "-", "-", "2030-01-01T00:00:00Z", "2040-01-01T00:00:00Z"]
MEMBERS = ["user:a", "user:ab", "nhi:p", "role:n/r"]
ELEMENTS = ["tool:s/a", "tool:t/b", "nhi:q", "set:x"]

NAMES = ["user:a", "user:ab", "user:z", "nhi:p", "nhi:px", "nhi:z", "anonymous"]
THINGS = ["tool:s/a", "tool:s/ab", "tool:t/b", "tool:t/z", "nhi:q", "prompt:s/a"]
ASKED = ["tools/call", "delegate", "tasks/get", "initialize"]
TOKENS = [
    frozenset(some) for size in range(4) for some in itertools.combinations(("role:n/r", "role:n/s", "role:n/t"), size)
]
TIMES = [1.8e9, 2.0e9, 3.0e9]
ARGUMENTS: list[dict[str, Any]] = [
    {"a": a, "b": b, "c": c, "d": f"role:{c}"} for a in (1, 2, 3) for b in (0, 1) for c in ("n/s", "n/t")
]
KINDS = {"agent_to_tool": PermissionKind.AGENT_TO_TOOL, "guardrails": PermissionKind.GUARDRAIL}


NOTED = " # "  # before the notes of a row, where it has more than an id


def noted(name: str, row: str) -> str:
    text, _, notes = row.partition(NOTED)
    return f"#: id={name} {notes}\n{text}\n"


class Written(NamedTuple):
    """A policy as text: rows by file, each with its effect at the end."""

    agent_to_tool: tuple[str, ...]
    guardrails: tuple[str, ...]
    links: tuple[str, ...]

    def files(self) -> dict[str, str]:
        rows = {"agent_to_tool": self.agent_to_tool, "guardrails": self.guardrails}
        texts = {name: "".join(noted(f"{name}-{n}", row) for n, row in enumerate(rows[name])) for name in rows}
        return {**texts, "roles": "\n".join(self.links)}


def rows(effects: Iterable[str], whens: Sequence[str] = WHENS) -> st.SearchStrategy[str]:
    fields = (SUBJECTS, OBJECTS, ACTIONS, ENDS, ["-"], [quoted(when) for when in whens], list(effects))
    return st.tuples(*map(st.sampled_from, fields)).map(lambda parts: "p, " + ", ".join(parts))


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if "," in text or '"' in text else text


LINKS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(MEMBERS), st.sampled_from(["role:n/s", "role:n/t"])).map(
            lambda two: "g, " + ", ".join(two)
        ),
        st.tuples(st.sampled_from(ELEMENTS), st.just("set:y")).map(lambda two: "g2, " + ", ".join(two)),
        st.sampled_from(["g, user:a, role:n/r", "g2, tool:s/a, set:x", "g2, tool:t/b, set:x"]),
    ),
    max_size=5,
    unique=True,
)


@st.composite
def pairs(draw: st.DrawFn, whens: Sequence[str] = WHENS) -> tuple[Written, Written]:
    """Two policies that share most of what they say."""
    shared = draw(st.lists(rows(["allow", "allow", "deny"], whens), min_size=1, max_size=4))
    rails = draw(st.lists(rows(["deny"], whens), max_size=1))
    links = draw(LINKS)
    more = st.lists(rows(["allow", "allow", "deny"], whens), max_size=2)
    sides = [
        Written(
            tuple(dict.fromkeys([*shared, *draw(more)])),
            tuple(dict.fromkeys([*rails, *draw(st.lists(rows(["deny"], whens), max_size=1))])),
            tuple(links if draw(st.booleans()) else draw(LINKS)),
        )
        for _ in range(2)
    ]
    return sides[0], sides[1]


POINTS = st.builds(
    lambda name, roles, obj, action: Point(name, frozenset() if name == "anonymous" else roles, obj, action),
    st.sampled_from(NAMES),
    st.sampled_from(TOKENS),
    st.sampled_from(THINGS),
    st.sampled_from(ASKED),
)


@settings(max_examples=30)
@given(pairs(), st.lists(POINTS, min_size=12, max_size=12))
def test_an_answer_differs_exactly_where_a_region_says_so(both: tuple[Written, Written], points: list[Point]) -> None:
    with TemporaryDirectory() as folder:
        found, old, new = compared(Path(folder), *both)
    for kind in KINDS.values():
        regions = [region for region in found.regions if region.kind is kind]
        assert not any(region.undecided for region in regions)
        for region in regions:
            assert region.contains(region.witness)
            check_witness(region, region.witness, old, new)
        for point in [*points, *(region.witness for region in regions if region.witness)]:
            assert told(regions, point) == seen(old, new, kind, point), (kind, point, both)


@settings(max_examples=25)
@given(pairs([*WHENS, *tables("policy_tools/diff_judge")["on_roles"]]), st.lists(POINTS, min_size=12, max_size=12))
def test_no_change_is_missed_where_conditions_ask_roles(both: tuple[Written, Written], points: list[Point]) -> None:
    with TemporaryDirectory() as folder:
        found, old, new = compared(Path(folder), *both)
    for kind in KINDS.values():
        regions = [region for region in found.regions if region.kind is kind]
        for point in [*points, *(region.witness for region in regions if region.witness)]:
            for claimed, happens in zip(told(regions, point), seen(old, new, kind, point), strict=True):
                assert claimed >= happens, (kind, point, both)


NOTES = ["approval=role:n/r", "approval=role:n/r valid=1h", "approval=role:n/s", "approval=role:n/r within=1h"]


@st.composite
def asking(draw: st.DrawFn) -> tuple[Written, Written]:
    """Two policies without guardrails, whose allow rows may demand approvals."""

    def with_terms(row: str) -> str:
        note = draw(st.sampled_from(["", *NOTES])) if row.endswith("allow") else ""
        return f"{row}{NOTED}{note}"

    old, new = draw(pairs())
    shared = {row: with_terms(row) for row in old.agent_to_tool}
    also = {
        row: with_terms(row) if row not in shared or draw(st.booleans()) else shared[row] for row in new.agent_to_tool
    }
    return (Written(tuple(shared.values()), (), old.links), Written(tuple(also.values()), (), new.links))


@settings(max_examples=30)
@given(asking(), st.lists(POINTS, min_size=12, max_size=12))
def test_an_approval_is_demanded_or_not_exactly_where_a_region_says_so(
    both: tuple[Written, Written], points: list[Point]
) -> None:
    with TemporaryDirectory() as folder:
        found, old, new = compared(Path(folder), *both)
    regions = [region for region in found.regions if region.approval is not None]
    kind = PermissionKind.AGENT_TO_TOOL
    for point in [*points, *(region.witness for region in regions if region.witness)]:
        if point.action == "delegate":  # a link of a chain, whose demands depend on the call
            continue
        for region in (one for one in regions if one.witness == point):
            assert region.contains(point)
        told_of = {region.change for region in regions if region.contains(point)}
        answers = [
            tuple(decided(engine, point, arguments, now_s) for engine in (old, new))
            for now_s, arguments in itertools.product(TIMES, ARGUMENTS)
        ]
        allowed_in_both = [pair for pair in answers if all(decision.allowed for decision in pair)]
        assert ("wider" in told_of) == any(loses(*pair) for pair in allowed_in_both), (kind, point, both)
        assert ("narrower" in told_of) == any(loses(after, before) for before, after in allowed_in_both), (point, both)


def loses(before: Decision, after: Decision) -> bool:
    """Whether an approval that one policy demands is not demanded, as strictly, by the other."""
    return any(
        not any(one.id == rule.id or demands_as_much(one.approval, rule.approval) for one in after.approvals)
        for rule in before.approvals
    )


def compared(folder: Path, before: Written, after: Written) -> tuple[Difference, Engine, Engine]:
    policies = []
    for name, written in (("old", before), ("new", after)):
        for stem, text in written.files().items():
            path = folder / name / f"{stem}.csv"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        policies.append(load(Revision(name, in_folder(folder / name))))
    old, new = policies
    return difference(old, new), Engine(old.source), Engine(new.source)


def told(regions: list[Region], point: Point) -> tuple[bool, bool]:
    """(may be wider, may be narrower), as the regions have it; unknown goes before."""
    changes = {region.change for region in regions if region.contains(point)}
    return ("unknown" in changes or "wider" in changes), ("unknown" in changes or "narrower" in changes)


def seen(old: Engine, new: Engine, kind: PermissionKind, point: Point) -> tuple[bool, bool]:
    """The same, as the engines have it under all arguments and at all times."""
    wider = narrower = False
    for now_s, arguments in itertools.product(TIMES, ARGUMENTS):
        before, after = (allowed(engine, kind, point, arguments, now_s) for engine in (old, new))
        wider, narrower = wider or (after and not before), narrower or (before and not after)
    return wider, narrower


def check_witness(region: Region, point: Point, old: Engine, new: Engine) -> None:
    """Under its guard, and nothing more, the answer changes as the region says."""
    whens = region.guard.whens
    least = 1 if "args.a <= 1" in whens else 2 if "args.a <= 2" in whens else 3
    arguments = {"a": least, "b": int("args.b == 1" in whens)}
    now_s = region.guard.before - 1 if region.guard.before is not None else TIMES[-1]
    before, after = (allowed(engine, region.kind, point, arguments, now_s) for engine in (old, new))
    assert before is not after
    if region.change != "unknown":
        assert after is (region.change == "wider")


def allowed(engine: Engine, kind: PermissionKind, point: Point, arguments: dict[str, Any], now_s: float) -> bool:
    """What one engine says to one question, as far as this kind is concerned."""
    decision = decided(engine, point, arguments, now_s)
    if kind is PermissionKind.GUARDRAIL:
        return not any(link.kind is kind and not link.allowed for link in decision.links)
    return next(link.allowed for link in decision.links if link.kind is kind)


def decided(engine: Engine, point: Point, arguments: dict[str, Any], now_s: float) -> Decision:
    rest = point.object.partition(":")[2]
    server, _, name = rest.partition("/")
    question = Question(point.object, point.action, server, name, arguments)
    return engine.decide((Principal(point.subject, roles=point.roles),), question, now_s)
