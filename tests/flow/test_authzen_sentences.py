"""AuthZEN's Authorization API 1.0, sentence by sentence: `SENTENCES` names the test of each requirement of a decision
point, in short, in the order of the specification."""

import json
from pathlib import Path
from typing import Any

import pytest

from sidecar.errors import SettingsError
from tests.flow import test_authzen, test_authzen_search
from tests.flow.authzen import ALICE, BOB, ask, authzen_world, question
from tests.flow.enforcement import decisions

SENTENCES = {
    "endpoints of version 1.0 SHOULD include v1 in their identifier": "test_metadata_names_every_endpoint",
    "a subject has REQUIRED type and id, which are strings": "test_a_malformed_evaluation_is_an_error",
    "a resource has REQUIRED type and id, which are strings": "test_a_malformed_evaluation_is_an_error",
    "an action has a REQUIRED name, which is a string": "test_a_malformed_evaluation_is_an_error",
    "properties are OPTIONAL, and an object": "test_properties_and_context_are_optional_objects",
    "an evaluation has REQUIRED subject, action and resource": "test_a_malformed_evaluation_is_an_error",
    "the context of a request is OPTIONAL": "test_properties_and_context_are_optional_objects",
    "a decision has a REQUIRED boolean, and an OPTIONAL context": "test_an_evaluation_is_decided_and_recorded",
    "a request MAY have an array of evaluations": "test_evaluations_are_answered_in_order",
    "without evaluations, or with none, the request is a single evaluation": "test_no_evaluations_are_a_single_one",
    "top-level entities are defaults, which an item overrides": "test_evaluations_are_answered_in_order",
    "a default MUST stand in for an entity that an item omits": "test_a_bad_item_is_denied_in_its_place",
    "options are OPTIONAL, and an object": "test_options_are_read",
    "execute_all is the default": "test_evaluations_are_answered_in_order",
    "deny_on_first_deny ends with the first denial or failure": "test_a_semantic_ends_the_evaluations",
    "permit_on_first_permit ends with the first permit": "test_a_semantic_ends_the_evaluations",
    "exactly one of three values selects the semantic": "test_options_are_read",
    "decisions are in the order of the request": "test_evaluations_are_answered_in_order",
    "it is RECOMMENDED to omit the top-level decision": "test_evaluations_are_answered_in_order",
    "errors of single evaluations are in the payload, and deny": "test_a_bad_item_is_denied_in_its_place",
    "a result of a search SHOULD be permitted": "test_searches_agree_with_the_evaluation_of_every_name",
    "a search is RECOMMENDED to be transitive": "test_resources_subjects_and_actions_are_found",
    "a page with more to come MUST have a non-empty next_token": "test_pages_follow_one_another",
    "the last page has an empty next_token": "test_pages_follow_one_another",
    "with a token, entities and limit MUST be as before, else an error": "test_a_token_of_another_search_is_an_error",
    "limit is a non-negative integer, token a string": "test_a_malformed_search_is_an_error",
    "count is the number of results of the page": "test_resources_subjects_and_actions_are_found",
    "page is RECOMMENDED to be the first key": "test_the_page_comes_first",
    "results are REQUIRED, and MUST be of the type that is searched": "test_resources_subjects_and_actions_are_found",
    "the id of what is searched MUST be ignored": "test_the_searched_id_is_ignored",
    "a search of subjects has REQUIRED subject.type, action, resource": "test_a_malformed_search_is_an_error",
    "a search of resources has REQUIRED subject, action, resource.type": "test_a_malformed_search_is_an_error",
    "a search of actions has REQUIRED subject and resource, and no action": "test_a_malformed_search_is_an_error",
    "metadata is RECOMMENDED": "test_metadata_names_every_endpoint",
    "metadata has REQUIRED policy_decision_point and access_evaluation_endpoint": "test_metadata_names_every_endpoint",
    "metadata MUST be at the well-known path before the tenant's": "test_metadata_names_every_endpoint",
    "metadata MUST be queried by GET": "test_metadata_is_public_and_read_by_get",
    "metadata MUST be 200, application/json, and an object": "test_metadata_is_public_and_read_by_get",
    "parameters without values MUST be omitted": "test_metadata_names_every_endpoint",
    "policy_decision_point MUST be what the URL was made of": "test_metadata_names_every_endpoint",
    "metadata SHOULD be cached": "test_metadata_is_public_and_read_by_get",
    "requests are POST, at the URLs of the metadata": "test_requests_are_posts",
    "Content-Type MUST be application/json": "test_another_media_type_is_an_error",
    "the body MUST be an object": "test_a_body_is_strict_json",
    "a success is 200 and application/json": "test_an_evaluation_is_decided_and_recorded",
    "a missing attribute MUST be a Bad Request": "test_a_malformed_evaluation_is_an_error",
    "unknown fields MUST be ignored": "test_unknown_members_and_their_order_mean_nothing",
    "the order of members MUST NOT matter": "test_unknown_members_and_their_order_mean_nothing",
    "a denial is a success": "test_an_evaluation_is_decided_and_recorded",
    "401 is for the enforcement point": "test_a_bearer_token_is_the_enforcement_points",
    "500 is for what could not be decided": "test_what_cannot_be_recorded_is_an_error_and_no_decision",
    "a request identifier MUST be in the response, the same": "test_a_request_identifier_is_echoed",
    "the connection MUST be secured": "test_a_listener_beyond_loopback_needs_tls",
    "the enforcement point SHOULD be authenticated": "test_a_bearer_token_is_the_enforcement_points",
    "a missing credential MUST be 401, SHOULD with WWW-Authenticate": "test_a_bearer_token_is_the_enforcement_points",
    "JSON SHOULD be I-JSON": "test_a_body_is_strict_json",
    "payloads SHOULD be bounded in size, depth and number": "test_a_request_is_bounded",
}  # fmt: skip
QUESTION = question(ALICE, "read", "record:101")
WITHOUT_ACTION = {name: part for name, part in QUESTION.items() if name != "action"}


def test_every_sentence_has_a_test() -> None:
    known = {*globals(), *vars(test_authzen), *vars(test_authzen_search)}
    assert {name for name in SENTENCES.values() if name not in known} == set()


def changed(place: str, value: Any = None, asked: Any = QUESTION) -> dict[str, Any]:
    """The question with another value at a place, or without it (None)."""
    told = json.loads(json.dumps(asked))
    *way, last = place.split(".")
    inner = told
    for key in way:
        inner = inner[key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return dict(told)


async def test_a_malformed_evaluation_is_an_error(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        places = ("subject", "subject.type", "subject.id", "action", "action.name", "resource", "resource.type")
        for place in (*places, "resource.id"):
            for value in (None, 7, ["user"], True) if "." in place else (None, 7, [], "alice"):
                status, body, _ = await ask(running, "evaluation", changed(place, value))
                assert status == 400 and place in body["error"], (place, value, body)
        for place in ("subject.properties", "action.properties", "resource.properties", "context"):
            for value in (7, [], "x"):
                status, body, _ = await ask(running, "evaluation", changed(place, value))
                assert status == 400 and place in body["error"], (place, value, body)
        status, body, _ = await ask(running, "evaluation", {**QUESTION, "context": {"agent": 7}})
        assert status == 400 and "context.agent" in body["error"]
        assert decisions(running) == []


async def test_properties_and_context_are_optional_objects(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        full = {**QUESTION, "context": {"time": "2026-01-01T00:00:00Z", "deep": {"a": [1, None]}}}
        for entity in ("subject", "action", "resource"):
            full = changed(f"{entity}.properties", {"department": "Sales", "tags": [1, {}]}, full)
        for asked in (QUESTION, full):
            assert (await ask(running, "evaluation", asked)).body["decision"] is True


async def test_evaluations_are_answered_in_order(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        records = [{"resource": {"type": "record", "id": id_}} for id_ in ("101", "7", "102")]
        asked = {**WITHOUT_ACTION, "action": {"name": "read"}}
        items = [*records, {"action": {"name": "write"}}, {"subject": BOB, **records[1]}]
        status, body, _ = await ask(running, "evaluations", {**asked, "evaluations": items})
        assert (status, list(body)) == (200, ["evaluations"])
        assert [one["decision"] for one in body["evaluations"]] == [True, False, True, False, True]
        assert [record["decision_id"] for record in decisions(running)] == [
            one["context"]["decision_id"] for one in body["evaluations"]
        ]


async def test_no_evaluations_are_a_single_one(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        for asked in (QUESTION, {**QUESTION, "evaluations": []}):
            status, body, _ = await ask(running, "evaluations", asked)
            assert (status, body["decision"]) == (200, True) and "evaluations" not in body
        for asked in (WITHOUT_ACTION, {**WITHOUT_ACTION, "evaluations": []}):
            assert (await ask(running, "evaluations", asked)).status == 400


async def test_a_bad_item_is_denied_in_its_place(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        bad = [{}, 7, {"action": {"name": 7}}, {"action": {"name": "read"}, "subject": {"type": "user"}}]
        items = [{"action": {"name": "read"}}, *bad, {"action": {"name": "read"}}]
        status, body, _ = await ask(running, "evaluations", {**WITHOUT_ACTION, "evaluations": items})
        answers = body["evaluations"]
        assert status == 200 and [one["decision"] for one in answers] == [True, False, False, False, False, True]
        places = ("evaluations[1].action", "evaluations[2]", "evaluations[3].action.name", "evaluations[4].subject.id")
        for place, one in zip(places, answers[1:5], strict=True):
            assert one["context"]["error"]["status"] == 400 and place in one["context"]["error"]["message"]
        assert len(decisions(running)) == 2


@pytest.mark.parametrize(
    ("semantic", "ids", "expected"),
    [
        ("execute_all", ["101", "7", "102"], [True, False, True]),
        ("deny_on_first_deny", ["101", "7", "102"], [True, False]),
        ("deny_on_first_deny", ["101", "", "102"], [True, False]),
        ("deny_on_first_deny", ["101", "102"], [True, True]),
        ("permit_on_first_permit", ["7", "101", "102"], [False, True]),
        ("permit_on_first_permit", ["7", "8"], [False, False]),
    ],
)
async def test_a_semantic_ends_the_evaluations(tmp_path: Path, semantic: str, ids: list[str], expected: Any) -> None:
    async with authzen_world(tmp_path) as running:
        items = [{"resource": {"type": "record", "id": id_} if id_ else {}} for id_ in ids]
        asked = {**QUESTION, "evaluations": items, "options": {"evaluations_semantic": semantic}}
        body = (await ask(running, "evaluations", asked)).body
        assert [one["decision"] for one in body["evaluations"]] == expected
        assert len(decisions(running)) == len([one for one in ids[: len(expected)] if one])


async def test_options_are_read(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        asked = {**QUESTION, "evaluations": [{}]}
        for options in ({}, {"evaluations_semantic": "execute_all", "another": 1}):
            assert (await ask(running, "evaluations", {**asked, "options": options})).status == 200
        for wrong in (7, [], {"evaluations_semantic": "all"}, {"evaluations_semantic": ["execute_all"]}):
            status, body, _ = await ask(running, "evaluations", {**asked, "options": wrong})
            assert status == 400 and "options" in body["error"]
        for wrong in (7, {}, "x"):
            assert (await ask(running, "evaluations", {**QUESTION, "evaluations": wrong})).status == 400
        assert (await ask(running, "evaluations", {**asked, "subject": "alice"})).status == 400


async def test_a_malformed_search_is_an_error(tmp_path: Path) -> None:
    needed = {
        "subject": ("subject", "subject.type", "action", "action.name", "resource", "resource.type", "resource.id"),
        "resource": ("subject", "subject.type", "subject.id", "action", "action.name", "resource", "resource.type"),
        "action": ("subject", "subject.type", "subject.id", "resource", "resource.type", "resource.id"),
    }
    async with authzen_world(tmp_path) as running:
        for searched, places in needed.items():
            path = f"search/{searched}"
            asked = WITHOUT_ACTION if searched == "action" else QUESTION
            assert (await ask(running, path, asked)).status == 200
            for place in places:
                for value in (None, 7):
                    status, body, _ = await ask(running, path, changed(place, value, asked))
                    assert status == 400 and place in body["error"], (searched, place, body)
            pages: list[Any] = [7, {"limit": -1}, {"limit": 1.5}, {"limit": True}, {"limit": None}, {"token": 7}]
            for page in (*pages, {"properties": 7}):
                status, body, _ = await ask(running, path, {**asked, "page": page})
                assert status == 400 and "page" in body["error"], (page, body)


async def test_the_searched_id_is_ignored(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        for searched in ("subject", "resource"):
            told = [
                (await ask(running, f"search/{searched}", asked)).body["results"]
                for asked in (
                    changed(f"{searched}.id"), changed(f"{searched}.id", "zoe"), changed(f"{searched}.id", 7)
                )
            ]  # fmt: skip
            assert told[0] and told[0] == told[1] == told[2]
        with_action = (await ask(running, "search/action", QUESTION)).body["results"]
        assert (
            with_action == (await ask(running, "search/action", WITHOUT_ACTION)).body["results"] == [{"name": "read"}]
        )


async def test_the_page_comes_first(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        assert list((await ask(running, "search/resource", QUESTION)).body) == ["page", "context", "results"]


async def test_metadata_names_every_endpoint(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        for tenant in ("", "/github"):
            told = (await ask(running, f"/.well-known/authzen-configuration{tenant}", None, method="GET")).body
            base = f"{running.admin_url}{tenant}"
            assert told.pop("policy_decision_point") == base
            assert set(told.values()) == {
                f"{base}/access/v1/{path}"
                for path in ("evaluation", "evaluations", "search/subject", "search/resource", "search/action")
            }
            assert "access_evaluation_endpoint" in told
            for name, url in told.items():
                asked = {**QUESTION, "evaluations": []} if name == "access_evaluations_endpoint" else QUESTION
                assert (await ask(running, url.removeprefix(running.admin_url), asked)).status == 200
    settled = "{authzen: {url: https://pdp.acme.example}}"
    async with authzen_world(tmp_path / "settled", settled) as running:
        told = (await ask(running, "/.well-known/authzen-configuration/github", None, method="GET")).body
        assert told["policy_decision_point"] == "https://pdp.acme.example/github"


async def test_metadata_is_public_and_read_by_get(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        path = "/.well-known/authzen-configuration"
        status, body, headers = await ask(running, path, None, method="GET", X_PDP_Key="")
        assert status == 200 and isinstance(body, dict)
        assert headers["Content-Type"] == "application/json" and headers["Cache-Control"] == "max-age=300"
        assert (await ask(running, path, {})).status == 405
        assert (await ask(running, path, None, method="GET", Host="a b")).status == 400


async def test_requests_are_posts(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        for method in ("GET", "PUT", "DELETE", "PATCH"):
            status, _, headers = await ask(running, "evaluation", QUESTION, method=method)
            assert (status, headers["Allow"]) == (405, "POST")
        assert (await ask(running, "evaluation/1", QUESTION)).status in (401, 404)


async def test_another_media_type_is_an_error(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        raw = json.dumps(QUESTION).encode()
        for media in ("application/json", "Application/JSON; charset=utf-8", 'application/json;charset="UTF-8"'):
            assert (await ask(running, "evaluation", raw, Content_Type=media)).status == 200
        for media in ("text/plain", "application/json; charset=latin-1", "application/jsonp", "application/json; x=y"):
            status, body, _ = await ask(running, "evaluation", raw, Content_Type=media)
            assert status == 400 and "Content-Type" in body["error"]
        assert (await ask(running, "evaluation", raw, Content_Encoding="gzip")).status == 400


async def test_a_body_is_strict_json(tmp_path: Path) -> None:
    raw = json.dumps(QUESTION)
    async with authzen_world(tmp_path) as running:
        for path in ("evaluation", "evaluations", "search/subject", "search/resource", "search/action"):
            for wrong in (b"", b"{", b"[]", b"7", b"null", b'"x"', raw.encode("utf-16"), b"\xff{}"):
                assert (await ask(running, path, wrong)).status == 400, (path, wrong)
            twice = raw.replace('"action":', '"subject": {}, "action":').encode()
            surrogate = raw.replace("alice", "\\ud800").encode()
            huge = raw.replace('"name"', '"n": 123456789012345678901234567890, "name"').encode()
            for wrong in (twice, surrogate, huge, raw.encode() + b"{}"):
                assert (await ask(running, path, wrong)).status == 400, (path, wrong)
        assert decisions(running) == []


async def test_unknown_members_and_their_order_mean_nothing(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        asked = {**QUESTION, "more": 1}
        for entity in ("subject", "action", "resource"):
            asked = changed(f"{entity}.more", {"a": 1}, asked)
        turned = dict(reversed(asked.items()))
        for one in (asked, turned):
            assert (await ask(running, "evaluation", one)).body["decision"] is True
            assert (await ask(running, "search/resource", {**one, "page": {"more": 1}})).body["page"]["count"] == 2


async def test_a_request_identifier_is_echoed(tmp_path: Path) -> None:
    async with authzen_world(tmp_path) as running:
        for asked, status in ((QUESTION, 200), ({}, 400)):
            for path in ("evaluation", "evaluations", "search/resource"):
                found = await ask(running, path, asked, X_Request_ID="bfe9eb29-ab87/1 x")
                assert (found.status, found.headers["X-Request-ID"]) == (status, "bfe9eb29-ab87/1 x")
        assert {record["request_id"] for record in decisions(running)} == {"bfe9eb29-ab87/1 x"}
        for wrong in ("x" * 257, "é"):
            found = await ask(running, "evaluation", QUESTION, X_Request_ID=wrong)
            assert found.status == 400 and "X-Request-ID" in found.body["error"]
        assert "X-Request-ID" not in (await ask(running, "evaluation", QUESTION)).headers


async def test_a_listener_beyond_loopback_needs_tls(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="a listener beyond loopback needs tls"):
        async with authzen_world(tmp_path, '{listen: "0.0.0.0:0"}'):
            pass


async def test_a_request_is_bounded(tmp_path: Path) -> None:
    settings = 'server: {listen: "127.0.0.1:0", max_body_bytes: 64KiB}\n'
    async with authzen_world(tmp_path, settings=settings) as running:
        item = {"resource": {"type": "record", "id": "7"}}
        body = (await ask(running, "evaluations", {**QUESTION, "evaluations": [item] * 1_000})).body
        assert len(body["evaluations"]) == 1_000
        assert (await ask(running, "evaluations", {**QUESTION, "evaluations": [item] * 1_001})).status == 400
        deep = b'{"context":' * 40 + b"1" + b"}" * 40
        assert (await ask(running, "evaluation", deep)).status == 400
        assert (await ask(running, "evaluation", {**QUESTION, "more": "x" * 2**16})).status == 413
