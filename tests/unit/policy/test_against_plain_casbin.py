"""Is every answer the one that plain pycasbin gives, whatever the policy, the order of its rows and the question?"""

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings, strategies as st

from sidecar.errors import Reason
from sidecar.policy import Engine
from sidecar.vocabulary import Chain, Principal, Question
from tests.unit.policy.plain import CONDITIONS, Plain, Policy
from tests.unit.policy.world import AFTER, BEFORE, NOW, source

USERS, NHIS, ROLES = ("user:a", "user:b"), ("nhi:p", "nhi:r"), ("role:x", "role:y", "role:z")
TOOLS = ("tool:s1/t1", "tool:s1/t2", "tool:s2/t1", "prompt:s1/t1")
ACTION_OF = {"tool": "tools/call", "prompt": "prompts/get", "nhi": "roots/list"}
NODES = (*USERS, *NHIS)

ends = st.sampled_from(("-", "-", "-", BEFORE, AFTER))
whens = st.sampled_from(("-", "-", "-", *CONDITIONS))
effects = st.sampled_from(("allow", "allow", "allow", "deny"))


def rows(
    subjects: st.SearchStrategy[str], objects: st.SearchStrategy[str], acts: st.SearchStrategy[str]
) -> st.SearchStrategy[list[tuple[str, ...]]]:
    row = st.tuples(subjects, objects, acts, ends, st.just("-"), whens, effects)
    return st.lists(row, min_size=1, max_size=5, unique=True)


def sampled(*values: str) -> st.SearchStrategy[str]:
    return st.sampled_from(values)


users = sampled("*", "user:*", "user:a", "user:b", "anonymous", *ROLES)
nhis = sampled("*", "nhi:*", *NHIS, *ROLES)
anyone = sampled("*", "user:*", "nhi:*", "anonymous", *NODES, *ROLES)
agents = sampled("*", "nhi:*", *NHIS, "set:n")
things = sampled(
    "*", "tool:*", "tool:s1/*", "tool:*/t1", "tool:s1/t1", "prompt:s1/*", "set:q", "set:m", "nhi:*", "nhi:s1"
)
lent = sampled("use", "delegate", "*", "message/send", "de*")
used = sampled("use", "tools/call", "*", "prompts/get|tools/call", "tools/*", "initialize|use", "roots/list")


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    role_links = [(a, b) for a, b in itertools.product((*NODES, *ROLES), ROLES) if not (a in ROLES and a >= b)]
    set_links = [("set:q", "set:m"), ("nhi:p", "set:n"), ("nhi:s1", "set:m")]
    set_links += [(thing, name) for thing in TOOLS for name in ("set:m", "set:q")]
    kinds = {
        "agent_to_tool": rows(anyone, things, used),
        "user_to_nhi": rows(users, agents, lent),
        "nhi_to_nhi": rows(nhis, agents, lent),
    }
    found = {kind: draw(strategy) for kind, strategy in kinds.items()}
    if draw(st.booleans()):
        denies = draw(rows(anyone, things, sampled("use", "tools/call", "*", "delegate")))
        found["guardrails"] = list({(*row[:6], "deny"): None for row in denies})
    return Policy(
        found,
        draw(st.lists(st.sampled_from(role_links), max_size=4, unique=True)),
        draw(st.lists(st.sampled_from(set_links), max_size=4, unique=True)),
    )


principals = st.builds(Principal, sampled(*NODES), roles=st.frozensets(sampled(*ROLES), max_size=1))
chains = st.one_of(
    st.just((Principal("anonymous"),)),
    st.lists(principals, min_size=1, max_size=1).map(tuple),
    st.tuples(principals, st.builds(Principal, sampled(*NHIS))),
    st.tuples(principals, st.builds(Principal, sampled(*NHIS)), st.builds(Principal, sampled(*NHIS))),
)
arguments = st.sampled_from(
    ({}, {"x": 1}, {"x": 2}, {"x": "1"}, {"x": None}, {"flag": True}, {"flag": 1}, {"x": 2, "flag": False})
)
metas = st.sampled_from(({}, {"m": 1}))


@st.composite
def questions(draw: st.DrawFn) -> Question:
    obj = draw(sampled(*TOOLS, "nhi:s1"))
    server, _, name = obj.partition(":")[2].partition("/")
    return Question(obj, ACTION_OF[obj.partition(":")[0]], server, name, draw(arguments), draw(metas))


def built(policy: Policy, order: Callable[[list[str]], list[str]] = list) -> Engine:
    with tempfile.TemporaryDirectory() as folder:
        return Engine(source(Path(folder), policy.files(order)))


generous = settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@generous
@given(policy=policies(), asked=st.lists(st.tuples(chains, questions()), min_size=1, max_size=8))
def test_every_decision_and_reason_is_plain_casbins(policy: Policy, asked: list[tuple[Chain, Question]]) -> None:
    engine, judge = built(policy), Plain(policy)
    for chain, question in asked * 3:  # the third time from memory
        decision = engine.decide(chain, question, NOW)
        assert (decision.allowed, decision.reason) == judge.decide(chain, question, NOW)


VERBS = (Engine.decide, Engine.enter, Engine.may_list)
moments = st.sampled_from((NOW - 60, NOW - 1, NOW, NOW + 1, NOW + 60))


@settings(generous, max_examples=25)
@given(
    policy=policies(),
    asked=st.lists(st.tuples(st.sampled_from(VERBS), chains, questions(), moments), min_size=2, max_size=10),
)
def test_nothing_that_was_asked_before_changes_an_answer(
    policy: Policy, asked: list[tuple[Callable[..., object], Chain, Question, float]]
) -> None:
    """Whoever asked it, with whatever arguments, to call or to list, before or after a row's end."""
    with tempfile.TemporaryDirectory() as folder:
        rules = source(Path(folder), policy.files())
    engine = Engine(rules)
    for verb, chain, question, now_s in asked * 3:
        assert verb(engine, chain, question, now_s) == verb(Engine(rules), chain, question, now_s)


@settings(generous, max_examples=25)
@given(policy=policies(), asked=st.lists(st.tuples(chains, questions()), min_size=1, max_size=6), data=st.data())
def test_the_order_of_rows_changes_nothing(
    policy: Policy, asked: list[tuple[Chain, Question]], data: st.DataObject
) -> None:
    """With Casbin's `priority` effect, the order of rows would be policy."""
    engines = built(policy), built(policy, lambda lines: data.draw(st.permutations(lines)))
    assert len({engine.revision for engine in engines}) == 1
    for chain, question in asked:
        one, other = (engine.decide(chain, question, NOW) for engine in engines)
        assert (one.allowed, one.reason, one.limits, one.roles) == (
            *(other.allowed, other.reason, other.limits, other.roles),
        )
        first, second = ([[rule.id for rule in link.rules] for link in each.links] for each in (one, other))
        assert first == second


@st.composite
def conditional(draw: st.DrawFn) -> Policy:
    """Few rows, all of them conditional, on few objects: what decides between listing and calling."""
    who, what = sampled("*", "user:a", "role:x"), sampled("tool:s1/*", "tool:s1/t1", "set:m")
    when, effect = sampled(*CONDITIONS), sampled("allow", "allow", "deny")
    row = st.tuples(who, what, sampled("use", "tools/call"), ends, st.just("-"), when, effect)
    found = {"agent_to_tool": draw(st.lists(row, min_size=1, max_size=3, unique=True))}
    if draw(st.integers(0, 3)) == 0:
        found["guardrails"] = [("*", "tool:s1/t2", "*", "-", "-", draw(when), "deny")]
    return Policy(found, [("user:b", "role:x")], [("tool:s1/t2", "set:q"), ("set:q", "set:m")])


@generous
@given(policy=conditional(), chain=st.sampled_from([(Principal("user:a"),), (Principal("user:b"),)]))
def test_what_is_listed_is_what_some_call_may_do(policy: Policy, chain: Chain) -> None:
    """BL-035: whatever is callable with some arguments is listed, and nothing that is not listed can be called with
    any. What is listed in vain can only be a tool whose conditions contradict each other."""
    engine = built(policy)
    arguments_known = [{}, {"x": 1}, {"x": 2}, {"x": 3}, {"x": "1"}, {"flag": True}, {"x": 1, "flag": True}]
    for name in ("t1", "t2"):
        obj = f"tool:s1/{name}"
        callable_ = any(
            engine.decide(chain, Question(obj, "tools/call", "s1", name, args, meta), NOW).allowed
            for args, meta in itertools.product(arguments_known, ({}, {"m": 1}))
        )
        listed = engine.may_list(chain, Question(obj, "tools/call", "s1", name), NOW)
        if callable_ or (len(policy.rows["agent_to_tool"]) == 1 and "guardrails" not in policy.rows):
            assert listed is callable_


@settings(generous, max_examples=25)
@given(policy=policies(), chain=chains)
def test_whoever_may_use_something_on_a_server_may_enter_it(policy: Policy, chain: Chain) -> None:
    """Unless a rule closes the session: never an empty list where a call would pass, and no reason but a deny."""
    engine = built(policy)
    entered = engine.enter(chain, Question("nhi:s1", "initialize", "s1"), NOW)
    for kind, name in (("tool", "t1"), ("tool", "t2"), ("prompt", "t1")):
        if engine.may_list(chain, Question(f"{kind}:s1/{name}", ACTION_OF[kind], "s1", name), NOW):
            assert entered.allowed or entered.reason is Reason.DENIED_BY_RULE
