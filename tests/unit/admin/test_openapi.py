"""Does the OpenAPI document say what there is: the models as they are built, every reason, and nothing else?"""

import json
import re
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from sidecar.admin.authzen import ENDPOINTS, AuthzenEndpoint, MetadataEndpoint
from sidecar.admin.openapi import AUTHZEN_MODELS, AUTHZEN_OPERATIONS, CALLER_OPERATIONS, ELSEWHERE, MODELS, document
from sidecar.admin.routes import ROUTES
from sidecar.admin.schemas import members_of
from sidecar.cli import main
from sidecar.errors import ANSWERS, Reason, Refusal
from sidecar.gateway.error_responses import AnswerShape, tell
from sidecar.gateway.routing import APPROVAL, TASK, TASK_CANCEL, TASKS, TOOL, TOOLS, route_of
from tests.tables import tables

DOCUMENT = document()
EVERY = [(path, verb) for path, item in DOCUMENT["paths"].items() for verb in item if verb in ("get", "post", "delete")]
ASKED = [(one.path, "get" if one.request is None else "post") for one in AUTHZEN_OPERATIONS]  # of enforcement points
OPERATIONS = [one for one in EVERY if not one[0].startswith("/api/") and one not in ASKED]  # of callers
# From the original data models: their fields, in their order.
SEED = tables("admin/openapi")["seed"]
KINDS = {
    "/mcp/{server}/tools": TOOLS,
    "/mcp/{server}/approvals/{id}": APPROVAL,
    "/mcp/{server}/tools/{tool}": TOOL,
    "/a2a/tasks": TASKS,
    "/a2a/tasks/{id}": TASK,
    "/a2a/tasks/{id}/cancel": TASK_CANCEL,
}
REFUSED = {(one.path, one.method): one.refusals for one in CALLER_OPERATIONS}


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


@pytest.mark.parametrize("model", (*MODELS, *AUTHZEN_MODELS))
def test_a_schema_has_the_fields_that_its_model_has(model: type) -> None:
    schema = DOCUMENT["components"]["schemas"][model.__name__]
    assert list(schema["properties"]) == [each.name for each in members_of(model)]
    assert all(member["description"] for member in schema["properties"].values())


@pytest.mark.parametrize("name", SEED)
def test_the_fields_of_the_seed_are_there(name: str) -> None:
    properties = DOCUMENT["components"]["schemas"][name]["properties"]
    assert [field for field in properties if field in SEED[name]] == SEED[name] or name == "McpError"
    assert set(SEED[name]) <= set(properties)


def test_its_paths_are_our_addresses() -> None:
    for path, verb in OPERATIONS:
        filled = path.format(
            server="github", tool="search_code", id=f"{'a' * 32}-1" if "approvals" in path else "0199-a"
        )
        assert route_of(filled, verb.upper()).kind == KINDS[path]
    assert set(OPERATIONS) == REFUSED.keys()
    for place in [item["servers"] for path, item in DOCUMENT["paths"].items() if path.startswith("/a2a/tasks")]:
        assert [route_of(one["url"].partition("8080")[2] + "/a2a/tasks", "GET").kind for one in place] == [TASKS] * 2


def test_what_enforcement_points_ask_is_all_described() -> None:
    metadata = MetadataEndpoint(live=None)  # type: ignore[arg-type]
    evaluations = AuthzenEndpoint(asking=None)  # type: ignore[arg-type]
    for path, verb in ASKED:
        assert (path, verb) in EVERY
        for tenant in ("", "/github"):
            serves = metadata.serves(f"{path}{tenant}") if verb == "get" else evaluations.serves(f"{tenant}{path}")
            assert serves
    described = {path.partition("/v1/")[2] for path, verb in ASKED if verb == "post"}
    assert described == set(ENDPOINTS.values())


def test_what_operators_see_and_do_of_agents_is_all_described() -> None:
    described = {(re.sub("{.*?}", "{}", path), verb) for path, verb in set(EVERY) - {*OPERATIONS, *ASKED}}
    wanted = re.compile("/api/(agents|approvals|runs|schedules|tasks)(/|$)")
    there = {(route.path, route.method.lower()) for route in ROUTES if wanted.match(route.path)}
    assert described == {(re.sub("{.*?}", "{}", path), verb) for path, verb in there}


def test_a_name_that_the_document_allows_is_one_here() -> None:
    (tool,) = [each for each in DOCUMENT["paths"]["/mcp/{server}/tools/{tool}"]["parameters"] if each["name"] == "tool"]
    for name in ("a", "-", "_x.y", "A1", "x" * 128):
        assert re.search(tool["schema"]["pattern"], name)
        assert route_of(f"/mcp/github/tools/{name}", "POST").rest == name


@pytest.mark.parametrize(("path", "verb"), OPERATIONS)
def test_every_refusal_that_can_come_is_described_as_it_is_told(path: str, verb: str) -> None:
    responses = DOCUMENT["paths"][path][verb]["responses"]
    for reason in REFUSED[path, verb]:
        told = tell(Refusal(reason, "a detail"), AnswerShape.PLAIN, decision_id="d")
        (schema,) = [content["schema"] for content in responses[str(told.status)]["content"].values()]
        Draft202012Validator({**DOCUMENT, **schema}).validate(json.loads(told.body))
        assert f"`{reason}`: {ANSWERS[reason].message}." in responses[str(told.status)]["description"]


def test_what_is_not_described_is_another_protocols() -> None:
    accepted = {Reason.APPROVAL_PENDING}  # 202, of a call
    assert set(Reason) == set().union(*REFUSED.values()) | ELSEWHERE | accepted
    assert "202" in DOCUMENT["paths"]["/mcp/{server}/tools/{tool}"]["post"]["responses"]
    assert REFUSED["/mcp/{server}/tools", "get"] < REFUSED["/mcp/{server}/tools/{tool}", "post"]
