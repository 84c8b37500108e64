"""Does the OpenAPI document say what there is: the models as they are built, every reason, and nothing else?"""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from sidecar.answers import McpError, Shape, tell
from sidecar.arrival import TOOL, TOOLS, route_of
from sidecar.cli import main
from sidecar.errors import ANSWERS, Reason, Refusal
from sidecar.plain.models import McpCall, McpCallResult, McpTool, McpTools
from sidecar.plain.openapi import CALLING, ELSEWHERE, LISTING, document

DOCUMENT = document()
OPERATIONS = [(path, verb) for path, item in DOCUMENT["paths"].items() for verb in item if verb in ("get", "post")]
# From the seeds: their fields, in their order.
SEED = {
    "McpTool": ["name", "description", "input_schema", "status", "deprecated"],
    "McpCallResult": ["call_id", "result", "latency_ms"],
    "McpError": ["error_code", "message", "details"],
}


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if "$ref" in node else set()
        return own.union(*map(references, node.values()))
    return set().union(*map(references, node)) if isinstance(node, list) else set()


def test_the_command_prints_it() -> None:
    printed = CliRunner().invoke(main, ["schema", "openapi"])
    assert printed.exit_code == 0 and json.loads(printed.output) == DOCUMENT


def test_every_reference_leads_to_a_schema_that_is_one() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert references(DOCUMENT) == {f"#/components/schemas/{name}" for name in schemas}
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("model", [McpTool, McpTools, McpCall, McpCallResult, McpError])
def test_a_schema_has_the_fields_that_its_model_has(model: type) -> None:
    schema = DOCUMENT["components"]["schemas"][model.__name__]
    assert list(schema["properties"]) == [each.name for each in fields(model)]
    assert all(member["description"] for member in schema["properties"].values())


@pytest.mark.parametrize("name", SEED)
def test_the_fields_of_the_seed_are_there(name: str) -> None:
    properties = DOCUMENT["components"]["schemas"][name]["properties"]
    assert [field for field in properties if field in SEED[name]] == SEED[name] or name == "McpError"
    assert set(SEED[name]) <= set(properties)


def test_its_paths_are_our_addresses() -> None:
    kinds = {"get": TOOLS, "post": TOOL}
    for path, verb in OPERATIONS:
        route = route_of(path.format(server="github", tool="search_code"), verb.upper())
        assert route.kind == kinds[verb]


def test_a_name_that_the_document_allows_is_one_here() -> None:
    (tool,) = [each for each in DOCUMENT["paths"][OPERATIONS[1][0]]["parameters"] if each["name"] == "tool"]
    for name in ("a", "-", "_x.y", "A1", "x" * 128):
        assert re.search(tool["schema"]["pattern"], name)
        assert route_of(f"/mcp/github/tools/{name}", "POST").rest == name


@pytest.mark.parametrize(("path", "verb"), OPERATIONS)
def test_every_refusal_that_can_come_is_described_as_it_is_told(path: str, verb: str) -> None:
    responses = DOCUMENT["paths"][path][verb]["responses"]
    for reason in LISTING if verb == "get" else CALLING:
        told = tell(Refusal(reason, "a detail"), Shape.PLAIN, decision_id="d")
        (schema,) = [content["schema"] for content in responses[str(told.status)]["content"].values()]
        Draft202012Validator({**DOCUMENT, **schema}).validate(json.loads(told.body))
        assert f"`{reason}`: {ANSWERS[reason].message}." in responses[str(told.status)]["description"]


def test_what_is_not_described_is_another_protocols() -> None:
    assert set(Reason) == CALLING | ELSEWHERE and LISTING < CALLING
