"""Which schemas are used, what fits them, and what does checking cost at most?"""

import json
import socket
import time
from typing import Any

import jsonschema
import orjson
import pytest
from hypothesis import given, settings, strategies as st
from referencing import Registry

from sidecar.upstreams.mcp.arguments import (
    DIALECTS,
    MAX_LEVELS,
    MAX_PATTERNS,
    MAX_SCHEMA_BYTES,
    TOO_MUCH,
    UNEXPLAINED,
    ArgumentSchema,
    SchemaRefused,
    Violation,
    _extent,
    compile_schema,
)
from tests.drawn import containers
from tests.tables import tables

TABLES = tables("upstreams/arguments")

Json = Any


def of(properties: dict[str, Json], **more: Json) -> dict[str, Json]:
    return {"type": "object", "properties": properties, **more}


def of_a(schema: Json, **more: Json) -> dict[str, Json]:
    """One property."""
    return of({"a": schema}, **more)


def refers(reference: str, **more: Json) -> dict[str, Json]:
    return of_a({"$ref": reference}, **more)


def nested(levels: int) -> Json:
    schema: Json = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def doubling(levels: int) -> Json:
    """Every level refers to the next one twice."""
    definitions = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"type": "object", "$ref": "#/$defs/d0", "$defs": {**definitions, f"d{levels}": {}}}


def chain(length: int) -> Json:
    definitions = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(length)}
    return {"type": "object", "$ref": "#/$defs/d0", "$defs": {**definitions, f"d{length}": {}}}


OF_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
REFUSED: dict[str, tuple[Json, str]] = {
    **TABLES["refused"],
    "dynamic references that double": (
        {
            "type": "object",
            "$dynamicRef": "#d0",
            "$defs": {
                f"d{n}": {"$dynamicAnchor": f"d{n}", "allOf": [{"$dynamicRef": f"#d{n + 1}"}] * 2} for n in range(14)
            }
            | {"last": {"$dynamicAnchor": "d14"}},
        },
        "too many subschemas",
    ),
    "the heaviest of what a dynamic reference may lead to": (
        {
            "type": "object",
            "allOf": [{"$dynamicRef": "#x"}] * 100,
            "$defs": {
                "light": {"$dynamicAnchor": "x"},
                "heavy": {"$id": "heavy", "$dynamicAnchor": "x", "allOf": [{"minProperties": n} for n in range(101)]},
            },
        },
        "too many subschemas",
    ),
    "too many patterns": (of({f"p{n}": {"pattern": f"^{n}"} for n in range(MAX_PATTERNS + 1)}), "too many"),
    "too many bytes": ({"type": "object", "description": "x" * MAX_SCHEMA_BYTES}, "bytes, more than"),
    "too many levels": (nested(MAX_LEVELS + 2), "is nested deeper than"),
    "levels without end": (nested(100), "is nested deeper than"),
    "references one after the other": (chain(MAX_LEVELS + 2), "is nested deeper than"),
    "references that double": (doubling(14), "too many subschemas"),
    "references that double without end": (doubling(60), "is nested deeper than"),
}


@pytest.mark.parametrize(("schema", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_schema_that_could_reach_out_run_away_or_mislead_is_refused_with_its_place(schema: Json, reason: str) -> None:
    with pytest.raises(SchemaRefused) as caught:
        compile_schema(schema)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 400


USED: dict[str, Json] = {
    **TABLES["used"],
    "as deep as allowed": nested(MAX_LEVELS // 2),
    "doubling a little": doubling(8),
}


@pytest.mark.parametrize("schema", USED.values(), ids=USED.keys())
def test_what_real_servers_write_is_used(schema: Json) -> None:
    assert compile_schema(schema).violation({}) is None


# A schema, arguments that fit, and arguments that do not: what refers dynamically, and what is embedded by `$id`.
REFERRING: dict[str, tuple[Json, Json, Json]] = TABLES["referring"]


@pytest.mark.parametrize(("schema", "fits", "does_not"), REFERRING.values(), ids=REFERRING.keys())
def test_references_mean_what_their_dialect_says(schema: Json, fits: Json, does_not: Json) -> None:
    compiled = compile_schema(schema)
    assert (compiled.violation(fits), compiled.violation(does_not) is None) == (None, False)
    judge = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    assert (judge(schema).is_valid(fits), judge(schema).is_valid(does_not)) == (True, False)


def test_a_dialect_is_named_with_and_without_an_empty_fragment() -> None:
    for named in (*DIALECTS, *(f"{dialect}#" for dialect in DIALECTS)):
        schema = of_a({"type": "string"}, **{"$schema": named})
        assert compile_schema(schema).violation({"a": 1}) == Violation("/a", "type")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_format_is_an_annotation_in_every_dialect(dialect: str) -> None:
    schema = {"$schema": dialect, "type": "object", "properties": {"a": {"type": "string", "format": "date"}}}
    assert compile_schema(schema).violation({"a": "tomorrow"}) is None


VIOLATIONS = [(schema, value, found and Violation(*found)) for schema, value, found in TABLES["violations"]]


@pytest.mark.parametrize(("schema", "arguments", "violation"), VIOLATIONS)
def test_a_violation_is_a_place_and_a_keyword(schema: Json, arguments: Json, violation: Violation | None) -> None:
    assert compile_schema(schema).violation(arguments) == violation


def test_no_violation_holds_the_value(canary: str = "s3cret-canary") -> None:
    """The value in every position, refused by every keyword."""
    for schema, _, violation in VIOLATIONS:
        if violation is None:
            continue
        compiled = compile_schema(schema)
        for value in (canary, [canary], {"x": canary}, [[{"y": canary}]]):
            for name in (*schema.get("properties", {}), "other"):
                assert canary not in repr(compiled.violation({name: value}))


def test_a_pointer_made_of_the_callers_names_is_cut() -> None:
    schema = compile_schema(of({}, additionalProperties={"additionalProperties": {"type": "string"}}))
    assert schema.violation({"a": {"b" * 1000: 1}}) == Violation("/a", "type")


# What may be slow, with arguments that would make it slow. Each took seconds to hours somewhere.
RECURSIVE = {"$ref": "#"}
BOMBS: dict[str, tuple[Json, Json]] = {
    **TABLES["bombs"],
    "nested quantifiers": (of_a({"pattern": "^(a+)+$"}), {"a": "a" * 100_000 + "!"}),
    "alternatives": (of_a({"pattern": "^(a|a|aa)*$"}), {"a": "a" * 100_000 + "!"}),
    "patterns of names": ({"type": "object", "patternProperties": {"(x+x+)+y": {}}}, {"x" * 50_000: 1}),
    "unique objects": (of_a({"uniqueItems": True}), {"a": [{"i": i, "j": {"k": i}} for i in range(3_000)]}),
    "unique lists": (of_a({"uniqueItems": True}), {"a": [[i] for i in range(10_000)]}),
    "many patterns, much text": (
        of({f"p{n}": {"pattern": f"(.{{0,40}}){n}y"} for n in range(60)}),
        {f"p{n}": "x" * 16_000 for n in range(60)},
    ),
    "many values, many schemas": (
        of_a({"items": {"allOf": [{"minimum": -n} for n in range(500)]}}),
        {"a": [0] * 300_000},
    ),
    "much of contains": (of_a({"contains": {"contains": {"const": 1}}}), {"a": [[0] * 500] * 500}),
    "errors in every branch": (of_a({"anyOf": [{"items": {"type": "string"}}] * 100}), {"a": list(range(1_000))}),
}


def deep(leaf: Json) -> Json:
    for _ in range(30):
        leaf = {"c": leaf}
    return leaf


@pytest.mark.parametrize(("schema", "arguments"), BOMBS.values(), ids=BOMBS.keys())
def test_no_schema_and_arguments_together_are_slow(schema: Json, arguments: Json) -> None:
    compiled = compile_schema(schema)
    started = time.process_time()
    for given_ in (deep({}), deep({"c": 5}), deep({"d": 1})) if arguments == "deep" else (arguments,):
        compiled.violation(given_)
    # Two orders above what it takes; the worst of these took minutes before it was bounded.
    assert time.process_time() - started < 3.0


def test_what_would_cost_too_much_is_refused_unchecked() -> None:
    compiled = compile_schema(BOMBS["many values, many schemas"][0])
    for sizes, many, violation in (((0, 600_006), 300_000, Violation("", TOO_MUCH)), ((0, 2_006, 10**9), 1_000, None)):
        assert {compiled.violation({"a": [0] * many}, size) for size in sizes} == {violation}


scalars = st.none() | st.integers(-9, 9) | st.text()


@settings(max_examples=30)
@given(st.dictionaries(st.text(max_size=4), st.recursive(scalars, st.lists, max_leaves=20)))
def test_json_has_no_more_values_and_characters_than_bytes(arguments: Json) -> None:
    """So where the bytes are few enough, nothing needs to be counted."""
    values, characters, _ = _extent(arguments, 1_000_000)
    assert max(values, characters) <= len(orjson.dumps(arguments))


def test_what_would_cost_too_much_to_explain_is_refused_unexplained() -> None:
    compiled = compile_schema(of({}, anyOf=[of({"c": RECURSIVE}, required=["z"]), of({"c": RECURSIVE})]))
    assert compiled.violation(deep({"c": 5})) == Violation("", UNEXPLAINED)
    assert compiled.violation({"c": 5}) == Violation("", "anyOf")


def test_references_are_never_fetched() -> None:
    """BL-069: a listener that counts who comes, and a file that nobody may read."""
    with socket.create_server(("127.0.0.1", 0)) as canary:
        canary.settimeout(0.05)
        here = f"http://127.0.0.1:{canary.getsockname()[1]}/schema.json"
        for reference in (here, f"{here}#/a", f"//{here[7:]}", "file:///etc/hostname", "urn:x", "x.json"):
            places = [
                refers(reference),
                of({}, **{"$defs": {"a": {"$ref": reference}}}),
                of({}, x={"$ref": reference}, allOf=[{"$ref": "#/x"}]),
                of({}, **{"$schema": reference}),
                of_a({"items": [{"$ref": reference}]}, **OF_7),
                of({}, **{"$id": here, "$ref": "other"}),
                of_a({"$dynamicRef": reference}),
            ]
            for schema in places:
                with pytest.raises(SchemaRefused):
                    compile_schema(schema)
        assert compile_schema(of_a({"enum": [{"$ref": here}]}, x={"$ref": here})).violation({"a": 1}) is not None
        local = compile_schema(refers("#/$defs/s", **{"$defs": {"s": {"type": "string"}}}))
        assert local.violation({"a": "x"}) is None and local.violation({"a": 1}) is not None
        with pytest.raises(TimeoutError):
            canary.accept()


# --- each engine is the other's judge ------------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "c", "d"])
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from([0.0, 1.0, 0.5, -2.5, 1e15, 2**53, 2**63, -(2**63)])
    | st.sampled_from(["", "a", "ab", "äöü", "a b", "\n", "1", "😀"])
)
values = st.recursive(scalars, containers(names, 4), max_leaves=8)
small = st.integers(0, 3)
patterns = st.sampled_from(["^a", "b", "^[a-z]+", "a|1", "^.{2,3}", "(ab)*", " "])
types = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"])


def keywords(children: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    """Schemas whose subschemas are `children`."""
    several = st.lists(children, min_size=1, max_size=3)
    named = st.dictionaries(names, children, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": types | st.lists(types, min_size=1, max_size=3, unique=True),
            "const": values,
            "enum": st.lists(values, min_size=1, max_size=3),
            "minimum": st.integers(-3, 3),
            "exclusiveMaximum": st.integers(-3, 3),
            "multipleOf": st.sampled_from([1, 2, 3]),
            "minLength": small,
            "maxLength": small,
            "pattern": patterns,
            "items": children,
            "prefixItems": several,
            "contains": children,
            "minContains": small,
            "maxItems": small,
            "uniqueItems": st.booleans(),
            "properties": named,
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b|c"]), children, max_size=2),
            "additionalProperties": children,
            "propertyNames": st.fixed_dictionaries({}, optional={"maxLength": small, "pattern": patterns}),
            "required": st.lists(names, max_size=2, unique=True),
            "dependentRequired": st.dictionaries(names, st.lists(names, max_size=2, unique=True), max_size=2),
            "dependentSchemas": named,
            "minProperties": small,
            "allOf": several,
            "anyOf": several,
            "oneOf": several,
            "not": children,
            "if": children,
            "then": children,
            "else": children,
            "unevaluatedProperties": children,
            "unevaluatedItems": children,
            "$ref": st.sampled_from(["#/$defs/one", "#/$defs/two"]),
        },
    )


schemas: st.SearchStrategy[Json] = st.recursive(st.booleans() | st.just({}), keywords, max_leaves=6)


@settings(max_examples=20)
@given(root=keywords(schemas), one=schemas, two=schemas, arguments=st.dictionaries(names, values, max_size=4))
def test_both_engines_say_the_same(root: Json, one: Json, two: Json, arguments: dict[str, Json]) -> None:
    schema = {**root, "type": "object", "$defs": {"one": one, "two": two}}
    compiled = compiled_or_none(schema)
    if compiled is None:
        return
    judge = jsonschema.Draft202012Validator(schema, registry=Registry())
    try:
        fits = judge.is_valid(arguments)
    except RecursionError:  # a reference to itself: the judge has no opinion, ours has an end
        compiled.violation(arguments)
        return
    violation = compiled.violation(arguments)
    assert (violation is None) == fits
    if violation is not None and violation.keyword != UNEXPLAINED:
        assert resolves(violation.pointer, arguments)


def compiled_or_none(schema: Json) -> ArgumentSchema | None:
    """None where it is refused for its size; anything that both engines know as a schema must be used."""
    jsonschema.Draft202012Validator.check_schema(schema)
    try:
        return compile_schema(schema)
    except SchemaRefused as refused:
        assert "too many" in str(refused) or "nested deeper" in str(refused)
        return None


def resolves(pointer: str, value: Json) -> bool:
    for token in pointer.split("/")[1:]:
        step = token.replace("~1", "/").replace("~0", "~")
        value = value[int(step)] if isinstance(value, list) else value[step]
    return True


broken_keywords = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        ("type", "properties", "required", "items", "enum", "minimum", "anyOf", "maxLength", "uniqueItems",
         "additionalProperties", "patternProperties", "dependentRequired", "$defs", "not", "pattern"),
        values,
    ),
)  # fmt: skip


@settings(max_examples=40)
@given(root=broken_keywords, below=broken_keywords)
def test_both_engines_refuse_the_same_schemas(root: Json, below: Json) -> None:
    schema = {**root, "type": "object", "items": below}
    judge = jsonschema.Draft202012Validator(jsonschema.Draft202012Validator.META_SCHEMA)
    try:
        compile_schema(schema)
        used = True
    except SchemaRefused as refused:
        used = "dialect" not in str(refused) and "pattern" not in str(refused)
    assert used == judge.is_valid(schema)


@settings(max_examples=50)
@given(schema=values | st.dictionaries(st.sampled_from(["type", "$ref", "$id", "properties", "$defs"]), values))
def test_whatever_an_upstream_calls_a_schema_is_used_or_refused(schema: Json) -> None:
    try:
        compile_schema(json.loads(json.dumps(schema)))
    except SchemaRefused:
        pass


DIFFERENT: list[tuple[Json, Json, bool, bool]] = TABLES["different"]


@pytest.mark.parametrize(("keyword", "value", "ours", "judges"), DIFFERENT)
def test_where_the_engines_differ_we_know_it(keyword: Json, value: Json, ours: bool, judges: bool) -> None:
    schema = of_a(keyword)
    assert (compile_schema(schema).violation({"a": value}) is None) == ours
    assert jsonschema.Draft202012Validator(schema).is_valid({"a": value}) == judges
