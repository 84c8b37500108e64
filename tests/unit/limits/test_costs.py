"""Is no budget ever overspent, and is nothing charged that a call did not cost?

Judged by a model that knows nothing of counters: a list of what calls took, and sums of decimals.
"""

import asyncio
import time
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal

import pytest
from hypothesis import given, settings, strategies as st

from sidecar.errors import Reason, Refusal
from sidecar.limits import Lease, Limiter
from sidecar.limits.plan import BudgetRule, Budgets, CallCost, LimitCap, LimitPlan, charge_of, plan_charges
from sidecar.vocabulary import Call, Decision, Principal, Question
from tests.unit.limits.stages import DAY_US, HOUR_US, MINUTE_US, MONTH_US, Stage, memory_stage

ALICE, PLANNER, RESEARCHER = Principal("user:alice"), Principal("nhi:planner"), Principal("nhi:researcher")
USD, TOKENS = ("_meta", "usage", "cost"), ("_meta", "usage", "tokens")
COSTS = (
    CallCost("tool:llm/*", "usd", 2_000, 500_000, USD),
    CallCost("tool:llm/*", "tokens", 1_000_000, 40_000_000, TOKENS),
    CallCost("tool:*", "usd", 10, 10),
    CallCost("tool:free/*", "usd", 0, 0),
)
BUDGETS = Budgets(
    spending=(
        BudgetRule("budgets", "nhi:*", True, (LimitCap("hour", 900_000), LimitCap("day", 1_400_000)), unit="usd"),
        BudgetRule("budgets", "nhi:*", False, (LimitCap("month", 3_000_000),), unit="usd"),
        BudgetRule("budgets", "", False, (LimitCap("day", 100_000_000),), object="tool:llm/complete", unit="tokens"),
    ),
    costs=COSTS,
)


def planned(
    budgets: Budgets, *chain: Principal, target: str = "tool:llm/complete", method: str = "tools/call"
) -> LimitPlan:
    call = Call("mcp", "", "llm", method, (Question(target, method, "llm"),))
    return plan_charges(budgets, chain, lambda _: frozenset(), call, Decision(True, "r1", ()))


def test_the_most_that_a_call_may_cost_is_charged_to_every_budget_that_it_touches() -> None:
    assert {charge.limit: charge.amount for charge in planned(BUDGETS, ALICE, PLANNER).charges} == {
        **{f"budgets:nhi:*:usd:{period}": 500_010 for period in ("hour", "day", "month")},
        "budgets:tool:llm/complete:tokens:day": 40_000_000,
    }


def test_each_principal_of_the_chain_has_a_budget_of_its_own_and_those_who_share_one_pay_once() -> None:
    charges = planned(BUDGETS, ALICE, PLANNER, RESEARCHER).charges
    assert [charge.limit for charge in charges].count("budgets:nhi:*:usd:day") == 2
    assert [charge.limit for charge in charges].count("budgets:nhi:*:usd:month") == 1
    assert len({charge.key for charge in charges}) == len(charges)


@pytest.mark.parametrize(
    ("target", "method", "kinds"),
    [
        *((target, "tools/call", {"hour", "day", "month"}) for target in ("tool:maps/route", "tool:llm/chat")),
        ("prompt:llm/complete", "tools/call", set()),
        *(("tool:llm/complete", f"tasks/{what}", set()) for what in ("get", "cancel")),
        *(("tool:llm/complete", what, set()) for what in ("completion/complete", "resources/subscribe")),
    ],
)
def test_a_budget_counts_what_costs_its_unit_and_begins_work(target: str, method: str, kinds: set[str]) -> None:
    charges = planned(BUDGETS, PLANNER, target=target, method=method).charges
    assert {charge.kind for charge in charges} == kinds
    assert {charge.unit for charge in charges} <= {"usd"}


def test_two_budgets_of_one_principal_in_two_units_or_on_two_objects_have_two_counters() -> None:
    entries = [
        BudgetRule("budgets", "nhi:*", True, (LimitCap("day", 5),), object=object_, unit=unit)
        for object_ in ("*", "tool:*")
        for unit in ("usd", "tokens")
    ]
    assert len({charge_of(entry, entry.caps[0], "nhi:planner").key for entry in entries}) == 4


async def test_a_price_beyond_every_budget_is_refused_and_counted_by_nobody() -> None:
    dear = Budgets(spending=BUDGETS.spending, costs=(CallCost("*", "usd", 10**15 - 1, 10**15 - 1),) * 3)
    limiter = Limiter(memory_stage().store)
    with pytest.raises(Refusal) as refused:
        async with limiter.reserve(planned(dear, PLANNER), "dear"):
            pass
    assert refused.value.reason is Reason.BUDGET_SPENT
    standings = await limiter.store.look(planned(dear, PLANNER).charges)
    assert [standing.remaining for standing in standings] == [900_000, 1_400_000, 3_000_000]


# --- the model --------------------------------------------------------------------------------------------------------

OWN = {("usd", "hour"): Decimal("0.9"), ("usd", "day"): Decimal("1.4")}
CAPS = {(*what, who.name): most for what, most in OWN.items() for who in (PLANNER, RESEARCHER)}
CAPS |= {("usd", "month", ""): Decimal(3), ("tokens", "day", ""): Decimal(100)}


@dataclass
class Taken:
    """What one call takes of what, since when."""

    who: frozenset[str]
    moment_us: int
    usd: Decimal
    tokens: Decimal

    def counts(self, kind: str, who: str, now_us: int) -> bool:
        if who and who not in self.who:
            return False
        if kind == "hour":
            return now_us // MINUTE_US - self.moment_us // MINUTE_US <= 60
        form = "%Y-%m-%d" if kind == "day" else "%Y-%m"
        return _dated(form, self.moment_us) == _dated(form, now_us)


def _dated(form: str, moment_us: int) -> str:
    return time.strftime(form, time.gmtime(moment_us // 1_000_000))


@dataclass
class Model:
    taken: dict[str, Taken] = field(default_factory=dict)

    def room(self, call: Taken, now_us: int) -> bool:
        return all(
            sum((getattr(one, unit) for one in self.taken.values() if one.counts(kind, who, now_us)), Decimal(0))
            + getattr(call, unit)
            <= most
            for (unit, kind, who), most in CAPS.items()
            if not who or who in call.who
        )


@dataclass(frozen=True)
class Step:
    chain: tuple[Principal, ...]
    pause_us: int
    end: str  # of the oldest call under way, before this one begins; or "" for none
    usd: Decimal | None
    tokens: int | None


MONEY = st.decimals(0, 1, places=7)
STEPS = st.builds(
    Step,
    st.sampled_from([(PLANNER,), (ALICE, RESEARCHER), (PLANNER, RESEARCHER), (PLANNER, PLANNER)]),
    st.sampled_from([0, 0, 0, 1, MINUTE_US, 20 * MINUTE_US, HOUR_US, HOUR_US + MINUTE_US, DAY_US, MONTH_US]),
    st.sampled_from(["answered", "answered", "answered", "lost", "unsent", ""]),
    st.none() | MONEY,
    st.none() | st.integers(0, 60),
)


@settings(max_examples=50)
@given(st.lists(STEPS, max_size=40))
def test_calls_are_let_in_exactly_as_long_as_sums_of_decimals_say_that_the_money_is_there(steps: list[Step]) -> None:
    asyncio.run(play(memory_stage(remember_s=1e12), steps))  # as the beat of a call under way has it remembered


async def play(stage: Stage, steps: list[Step]) -> None:
    limiter, model = Limiter(stage.store), Model()
    under_way: list[tuple[str, Lease, Step]] = []
    for number, step in enumerate(steps):
        stage.wait(step.pause_us)
        if under_way and step.end:
            await end(model, *under_way.pop(0), how=step.end)
        call = Taken(
            frozenset(principal.name for principal in step.chain), stage.now_us, Decimal("0.50001"), Decimal(40)
        )
        lease = limiter.reserve(planned(BUDGETS, *step.chain), f"call-{number}")
        expected = model.room(call, stage.now_us)
        try:
            await lease.__aenter__()
        except Refusal as refusal:
            assert refusal.reason is Reason.BUDGET_SPENT
            assert not expected
        else:
            assert expected
            model.taken[f"call-{number}"] = call
            under_way.append((f"call-{number}", lease, step))


async def end(model: Model, name: str, lease: Lease, step: Step, how: str) -> None:
    """A call ends; what did it cost, by the words of the documentation?"""
    taken, lease.forwarded = model.taken[name], how != "unsent"
    usage = {"cost": None if step.usd is None else str(step.usd), "tokens": step.tokens}
    if how == "unsent":
        del model.taken[name]
    elif how == "answered":
        lease.heard({"_meta": {"usage": usage}})
        lease.answered()
        said = Decimal("0.002") if step.usd is None else step.usd
        micro = said.quantize(Decimal("0.000001"), ROUND_CEILING)
        taken.usd = min(micro, Decimal("0.5")) + Decimal("0.00001")
        taken.tokens = min(Decimal(1 if step.tokens is None else step.tokens), Decimal(40))
    await lease.__aexit__(None, None, None)
