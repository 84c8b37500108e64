"""Is money counted to the last digit, and is nothing believed that an upstream says beyond what was declared?"""

import json
from decimal import ROUND_CEILING, Decimal

import pytest
from hypothesis import given, strategies as st

from sidecar.limits.amounts import MILLION, MOST, in_units, millionths, path_of, reported
from tests.drawn import containers

WRITTEN = {5: 5_000_000, 0.002: 2_000, "0.002": 2_000, 0.000001: 1, 1e-5: 10, 0.1: 100_000, 0: 0}


@pytest.mark.parametrize(("written", "amount"), [*WRITTEN.items(), (5.0, 5_000_000), (999_999_999.999999, MOST)])
def test_what_is_written_is_taken_as_written(written: object, amount: int) -> None:
    assert millionths(written) == amount


@pytest.mark.parametrize(
    "written",
    [-1, True, None, 0.0000001, 1e9, 10**9, float("inf"), float("nan"), "", "1e3", "1,5", " 1", "0x1", "٣", []],
)
def test_what_is_no_amount_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="not an amount"):
        millionths(written)


@given(st.integers(0, MOST))
def test_an_amount_is_the_same_number_in_units_in_json_and_back(amount: int) -> None:
    told = json.loads(json.dumps(in_units(amount)))
    assert Decimal(repr(told)) * MILLION == amount
    assert round(told * MILLION) == amount
    assert millionths(told) == amount


@given(st.decimals(0, 10**12, allow_nan=False, allow_infinity=False, places=9), st.integers(0, MOST))
def test_a_report_is_rounded_up_and_clamped(said: Decimal, most: int) -> None:
    expected = min(int((said * MILLION).to_integral_value(ROUND_CEILING)), most)
    assert reported({"cost": format(said, "f")}, ("cost",), most) == expected


PATHS = {
    "cost": ("cost",),
    "_meta.usage.cost": ("_meta", "usage", "cost"),
    "/_meta/acme.example~1usage/cost~0": ("_meta", "acme.example/usage", "cost~"),
    "/content/0/cost": ("content", "0", "cost"),
}


@pytest.mark.parametrize("text", PATHS)
def test_a_path_is_dotted_or_a_json_pointer(text: str) -> None:
    assert path_of(text) == PATHS[text]


@pytest.mark.parametrize(
    "text", ["", ".", "a..b", "a.", "/", "/a//b", "/a~2", "a b", "a/b", ".".join("a" * 17), "/a" * 17]
)
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a path"):
        path_of(text)


METADATA: object = {"metadata": {"cost": 1}}
HELD: list[tuple[dict[str, object], str]] = [
    ({"a": {"b": 1}}, "a.b"),
    ({"a": [{"b": 1}]}, "/a/0/b"),
    *(({kind: METADATA}, "metadata.cost") for kind in ("task", "message", "statusUpdate")),
]


@pytest.mark.parametrize(("result", "path"), HELD)
def test_a_cost_is_found_where_the_path_leads(result: dict[str, object], path: str) -> None:
    assert reported(result, path_of(path), MOST) == MILLION


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    containers(st.sampled_from(["a", "b", "task"]), 3),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["a", "b", "task"]), JSON), st.sampled_from(["a", "a.b", "/a/0/b", "/a/1"]))
def test_a_result_costs_0_to_the_most(result: dict[str, object], path: str) -> None:
    amount = reported(result, path_of(path), 500)
    assert amount is None or 0 <= amount <= 500
