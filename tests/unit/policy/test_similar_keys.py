"""Is a key found that some reader could take for another one, and only such a key?"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from sidecar.policy.conditions import Language
from sidecar.policy.similar_keys import MAX_STEPS, similar_key
from sidecar.upstreams.mcp.arguments import compile_schema

TABLES = json.loads((Path(__file__).parents[2] / "golden" / "policy" / "similar_keys.json").read_text())

SCHEMA: dict[str, Any] = TABLES["SCHEMA"]
KEYS = compile_schema(SCHEMA).keys

FINE: tuple[dict[str, Any], ...] = (
    {},
    {"repo": "a", "branch": "b", "mode": 1, "depth": 2, "unknown": 3},
    {"filter": {"owner": "x", "Repo": "another place"}, "labels": {"Repo": "a", "ID": "b", "owner": "c"}},
    {"items": [{"id": 1}, {"id": 2}, 3, []], "pair": [{"left": 1}]},
    {"x-1": {"note": 1}, "straße": 1, "e\u0301tat": 1},
)
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
    """Each property holds for one more set of schemas: 2^n places."""
    count = 16
    any_of = [
        {"properties": {f"p{n}": {"$ref": f"#/$defs/d{n}"}, "q": {"$ref": f"#/$defs/d{n}"}}} for n in range(count)
    ]
    definitions = {
        f"d{n}": {
            "properties": {
                "p": {"$ref": f"#/$defs/d{(n + 1) % count}"},
                "r": {"$ref": f"#/$defs/d{(n * 7 + 3) % count}"},
            }
        }
        for n in range(count)
    }
    schema = {"type": "object", "anyOf": any_of, "$defs": definitions}
    started = time.process_time()
    keys = compile_schema(schema).keys
    assert similar_key({"q": {"r": {"P": 1}}}, keys) == "/q/r/P"
    assert time.process_time() - started < 5
    assert MAX_STEPS < 100_000


def test_many_keys_are_looked_at_in_little_time() -> None:
    arguments = {"items": [{"id": n, "name": "x"} for n in range(20_000)]}
    started = time.process_time()
    assert similar_key(arguments, KEYS) is None
    assert time.process_time() - started < 1
