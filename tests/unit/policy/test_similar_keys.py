"""Is a key found that some reader could take for another one, and only such a key?"""

from typing import Any

import pytest

from sidecar.policy.conditions import Language
from sidecar.policy.similar_keys import MAX_STEPS, similar_key
from sidecar.upstreams.mcp.arguments import compile_schema
from tests.tables import tables

TABLES = tables("policy/similar_keys")

SCHEMA: dict[str, Any] = TABLES["SCHEMA"]
KEYS = compile_schema(SCHEMA).keys

FINE: tuple[dict[str, Any], ...] = TABLES["fine"]
SIMILAR: tuple[tuple[dict[str, Any], str], ...] = TABLES["SIMILAR"]


@pytest.mark.parametrize("arguments", FINE)
def test_keys_that_no_reader_mistakes_pass(arguments: dict[str, Any]) -> None:
    assert similar_key(arguments, KEYS) is None


@pytest.mark.parametrize(("arguments", "pointer"), SIMILAR)
def test_a_key_that_a_reader_may_mistake_is_found_where_it_stands(arguments: dict[str, Any], pointer: str) -> None:
    assert similar_key(arguments, KEYS) == pointer


@pytest.mark.parametrize(
    ("condition", "arguments", "pointer"), TABLES["test_a_key_beside_a_name_that_a_condition_reads_is_found"]
)
def test_a_key_beside_a_name_that_a_condition_reads_is_found(
    condition: str, arguments: dict[str, Any], pointer: str | None
) -> None:
    names = Language().compile(condition).names
    assert similar_key(arguments, None, [names], siblings=False) == pointer


def test_keys_of_one_object_may_be_left_alone() -> None:
    assert similar_key({"a": 1, "A": 2}, siblings=False) is None


def test_a_schema_whose_places_are_too_many_is_read_strictly_and_in_time() -> None:
    """Each property holds for one more set of schemas: 2^n places, and it would not return."""
    at = [{"$ref": f"#/$defs/d{n}"} for n in range(16)]
    any_of = [{"properties": {f"p{n}": at[n], "q": at[n]}} for n in range(16)]
    places = {f"d{n}": {"properties": {"p": at[(n + 1) % 16], "r": at[(n * 7 + 3) % 16]}} for n in range(16)}
    keys = compile_schema({"type": "object", "anyOf": any_of, "$defs": places}).keys
    assert similar_key({"q": {"r": {"P": 1}}}, keys) == "/q/r/P"
    assert MAX_STEPS < 100_000
