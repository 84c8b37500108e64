"""What is each MCP message asked as, and which are no calls at all?"""

from collections.abc import Mapping
from typing import Any

import pytest

from sidecar.errors import Reason, Refusal
from sidecar.policy.grammar import MCP_TASK_ACTIONS, SESSION_ACTIONS
from sidecar.protocols.jsonrpc import META, Request
from sidecar.protocols.mcp import messages
from sidecar.protocols.mcp.eras import META_CAPABILITIES, META_VERSION, TASKS_EXTENSION, Era
from sidecar.protocols.mcp.messages import METHODS, NOTIFICATIONS
from sidecar.vocabulary import Call, Question
from tests import wire
from tests.tables import tables
from tests.unit.protocols.asking import NO_NAMES, NO_OBJECTS, NO_STRINGS, SESSION, STATELESS, call_of


def asked(call: Call) -> list[tuple[str, str]]:
    return [(question.object, question.action) for question in call.questions]


# --- calls -----------------------------------------------------------------------------------------------------------

PROMPT_REF = {"ref": {"type": "ref/prompt", "name": "hello"}, "argument": {"name": "who", "value": "a"}}
RESOURCE_REF = {"ref": {"type": "ref/resource", "uri": "file:///{path}"}, "argument": {"name": "path", "value": "a"}}
WATCHED = {"notifications": {"toolsListChanged": True, "resourceSubscriptions": ["file:///a", "file:///b"]}}
DECLARED = {META_CAPABILITIES: {"extensions": {TASKS_EXTENSION: {}}}}
TASK = {"taskId": "t", "_meta": DECLARED}
BOTH, OLD, NEW = (SESSION, STATELESS), (SESSION,), (STATELESS,)
SERVER, LISTED = "nhi:github", ("tools", "prompts", "resources", "resources/templates")
READS = [(f"resource:github/file:///{name}", "resources/read") for name in "ab"]
OPENING = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {}}

ROWS: tuple[tuple[str, Mapping[str, Any], tuple[Era, ...], list[tuple[str, str]], bool], ...] = (
    ("tools/call", {"name": "search"}, BOTH, [("tool:github/search", "tools/call")], False),
    ("prompts/get", {"name": "hello"}, BOTH, [("prompt:github/hello", "prompts/get")], False),
    ("resources/read", {"uri": "file:///a"}, BOTH, [("resource:github/file:///a", "resources/read")], False),
    ("resources/subscribe", {"uri": "file:///a"}, OLD, [("resource:github/file:///a", "resources/read")], False),
    ("resources/unsubscribe", {"uri": "file:///a"}, OLD, [("resource:github/file:///a", "resources/read")], False),
    ("completion/complete", PROMPT_REF, BOTH, [("prompt:github/hello", "prompts/get")], False),
    ("completion/complete", RESOURCE_REF, BOTH, [("resource:github/file:///{path}", "resources/read")], False),
    ("subscriptions/listen", WATCHED, NEW, [(SERVER, "subscriptions/listen"), *READS], True),
    ("subscriptions/listen", {"notifications": {}}, NEW, [(SERVER, "subscriptions/listen")], True),
    ("initialize", OPENING, OLD, [(SERVER, "initialize")], True),
    ("logging/setLevel", {"level": "info"}, OLD, [(SERVER, "logging/setLevel")], True),
    ("tools/list", {"cursor": "c"}, BOTH, [(SERVER, "tools/list")], True),
    *((f"{kind}/list", {}, BOTH, [(SERVER, f"{kind}/list")], True) for kind in LISTED),
    *((method, {}, OLD, [(SERVER, method)], True) for method in ("ping", "tasks/list")),
    ("server/discover", {}, NEW, [(SERVER, "server/discover")], True),
    *((method, TASK, BOTH, [(SERVER, method)], True) for method in ("tasks/get", "tasks/cancel")),
    ("tasks/result", TASK, OLD, [(SERVER, "tasks/result")], True),
    ("tasks/update", {**TASK, "inputResponses": {}}, NEW, [(SERVER, "tasks/update")], True),
)
NOTICES = [f"notifications/{what}" for what in ("initialized", "cancelled", "progress", "roots/list_changed")]


@pytest.mark.parametrize(("method", "params", "eras", "questions", "session"), ROWS)
@pytest.mark.parametrize("era", Era)
def test_a_method_is_asked_as_the_contract_says(
    era: Era, method: str, params: Any, eras: tuple[Era, ...], questions: list[tuple[str, str]], session: bool
) -> None:
    if era not in eras:
        return is_unknown(method, params, era)
    call = call_of(method, params, era)
    assert asked(call) == questions
    assert (call.session, call.method, call.request_id) == (session, method, 1)
    assert (call.protocol, call.protocol_version, call.upstream) == ("mcp", "v", "github")
    assert all(question.server == "github" for question in call.questions)
    return None


@pytest.mark.parametrize("method", NOTICES)
def test_a_notification_is_asked_on_the_server_and_only_sessions_have_it(method: str) -> None:
    call = call_of(method, {}, notification=True)
    assert asked(call) == [(SERVER, method)]
    assert (call.session, call.request_id) == (True, None)
    is_unknown(method, {}, STATELESS, notification=True)
    is_unknown(method, {})  # sent as a request


def test_no_method_is_known_that_the_contract_does_not_name() -> None:
    assert METHODS.keys() == {row[0] for row in ROWS}
    assert NOTIFICATIONS.keys() == set(NOTICES)
    assert {"sampling/createMessage", "elicitation/create", "roots/list"} == messages.SERVER_REQUESTS


def is_unknown(method: str, params: Mapping[str, Any], era: Era = SESSION, *, notification: bool = False) -> None:
    with pytest.raises(Refusal) as caught:
        call_of(method, params, era, notification=notification)
    assert caught.value.reason is Reason.METHOD_UNKNOWN


@pytest.mark.parametrize("method", wire.table("methods")["unknown"])
@pytest.mark.parametrize("era", Era)
@pytest.mark.parametrize("notification", [True, False])
def test_what_is_not_in_the_table_does_not_pass(method: str, era: Era, notification: bool) -> None:
    is_unknown(method, {"name": "search", "uri": "file:///a"}, era, notification=notification)


@pytest.mark.parametrize("method", METHODS)
def test_a_request_sent_as_a_notification_does_not_pass(method: str) -> None:
    is_unknown(method, next(row[1] for row in ROWS if row[0] == method), notification=True)


def test_a_question_bears_what_conditions_may_read() -> None:
    meta = {"acme/ticket": 7}
    arguments = {"repo": "acme/site"}
    call = call_of("tools/call", {"name": "search", "arguments": arguments, "_meta": meta})
    assert call.question == Question("tool:github/search", "tools/call", "github", "search", arguments, meta)
    call = call_of("prompts/get", {"name": "hello", "arguments": {"who": "a"}, "_meta": meta})
    assert call.question == Question("prompt:github/hello", "prompts/get", "github", "hello", {"who": "a"}, meta)
    for method, params in (("resources/read", {"uri": "file:///a"}), ("resources/subscribe", {"uri": "file:///a"})):
        question = call_of(method, {**params, "_meta": meta}).question
        assert question == Question("resource:github/file:///a", "resources/read", "github", "file:///a", {}, meta)


def test_subscribing_and_completing_are_asked_with_the_same_metadata_as_reading() -> None:
    meta = {"acme/ticket": 7}
    watched = call_of("subscriptions/listen", {**WATCHED, "_meta": meta}, STATELESS).questions[1:]
    completed = [call_of("completion/complete", {**ref, "_meta": meta}).question for ref in (PROMPT_REF, RESOURCE_REF)]
    assert all(question.meta["acme/ticket"] == 7 for question in (*watched, *completed))


# --- parameters -----------------------------------------------------------------------------------------------------

MISSHAPEN: dict[str, list[tuple[str, Mapping[str, Any]]]] = {
    "name": [
        (method, params)
        for method in ("tools/call", "prompts/get")
        for params in ({}, {"Uri": 1}, *({"name": value} for value in NO_STRINGS))
    ],
    "uri": [
        (method, params)
        for method in ("resources/read", "resources/subscribe", "resources/unsubscribe")
        for params in ({}, *({"uri": value} for value in (*NO_STRINGS, "", "a", "file:///../a", "x:%2e")))
    ],
    "arguments": [
        *(("tools/call", {"name": "a", "arguments": value}) for value in NO_OBJECTS),
        *(("prompts/get", {"name": "a", "arguments": value}) for value in (*NO_OBJECTS, {"a": 1}, {"a": None})),
    ],
    "cursor": [
        (f"{kind}/list", {"cursor": value}) for kind in ("tools", "prompts", "resources") for value in NO_STRINGS
    ],
    "protocolVersion": [("initialize", {"capabilities": {}, "protocolVersion": value}) for value in NO_STRINGS],
    "capabilities": [("initialize", {"protocolVersion": "x", "capabilities": value}) for value in NO_OBJECTS],
    "ref": [("completion/complete", {**PROMPT_REF, "ref": value}) for value in (*NO_OBJECTS, {}, {"type": "ref/tool"})],
    "ref.name": [
        ("completion/complete", {**PROMPT_REF, "ref": {"type": "ref/prompt", "name": value}})
        for value in (*NO_STRINGS, "", "a b")
    ],
    "ref.uri": [
        ("completion/complete", {**RESOURCE_REF, "ref": {"type": "ref/resource", "uri": value}})
        for value in (*NO_STRINGS, "", "file:///..")
    ],
    "argument": [("completion/complete", {**PROMPT_REF, "argument": value}) for value in NO_OBJECTS],
    "argument.name": [
        ("completion/complete", {**PROMPT_REF, "argument": {"name": value, "value": "a"}}) for value in NO_STRINGS
    ],
    "argument.value": [
        ("completion/complete", {**PROMPT_REF, "argument": {"name": "a", "value": value}}) for value in NO_STRINGS
    ],
    "context": [("completion/complete", {**PROMPT_REF, "context": value}) for value in NO_OBJECTS],
    "context.arguments": [
        ("completion/complete", {**PROMPT_REF, "context": {"arguments": value}}) for value in (*NO_OBJECTS, {"a": 1})
    ],
}


@pytest.mark.parametrize("where", MISSHAPEN)
def test_a_parameter_of_another_shape_is_told_by_its_place(where: str) -> None:
    for method, params in MISSHAPEN[where]:
        with pytest.raises(Refusal) as caught:
            call_of(method, params)
        refusal = caught.value
        assert (refusal.reason, refusal.code) == (Reason.MALFORMED_CALL, -32602), (method, params)
        assert refusal.detail.startswith((f"params.{where} ", f"params.{where}."))


@pytest.mark.parametrize(
    "value", [None, True, "file:///a", {}, ["file:///a", 1], ["file:///.."], ["x:a"] * 101], ids=repr
)
def test_subscriptions_name_at_most_a_hundred_good_uris(value: Any) -> None:
    with pytest.raises(Refusal) as caught:
        call_of("subscriptions/listen", {"notifications": {"resourceSubscriptions": value}}, STATELESS)
    assert (caught.value.reason, caught.value.code) == (Reason.MALFORMED_CALL, -32602)
    hundred = {"notifications": {"resourceSubscriptions": ["x:a"] * 100}}
    assert len(call_of("subscriptions/listen", hundred, STATELESS).questions) == 101


NAMES = ("a", "A", "0", "_", "-", ".", "search_code", "github.commits.list", "a/b", "x" * 128)


@pytest.mark.parametrize("method", ["tools/call", "prompts/get"])
def test_names_are_those_of_the_contract_and_compared_byte_by_byte(method: str) -> None:
    for name in NAMES:
        assert call_of(method, {"name": name}).question.name == name
    for name in NO_NAMES:
        with pytest.raises(Refusal) as caught:
            call_of(method, {"name": name})
        assert caught.value.code == -32602


DECIDING: dict[str, tuple[str, Mapping[str, Any], tuple[str, ...]]] = {
    **tables("protocols/messages")["deciding"],
    "notifications": (
        "subscriptions/listen",
        WATCHED,
        ("toolsListChanged", "promptsListChanged", "resourcesListChanged", "resourceSubscriptions", "taskIds"),
    ),
}


@pytest.mark.parametrize("place", DECIDING)
def test_no_other_spelling_of_a_deciding_member_is_taken(place: str) -> None:
    method, params, members = DECIDING[place]
    era = STATELESS if method == "subscriptions/listen" else SESSION
    for member in members:
        for variant in {member.upper(), member.title(), member.swapcase(), member[0].upper() + member[1:]} - {member}:
            with pytest.raises(Refusal, match="case"):
                call_of(method, {**params, place: {**params[place], variant: ["file:///secret"]}}, era)


def test_no_other_spelling_of_a_capability_hides_tasks_in_the_stateless_era() -> None:
    for capabilities in ({"Tasks": {}}, {"Extensions": {TASKS_EXTENSION: {}}}):
        with pytest.raises(Refusal, match="case"):
            call_of("tools/list", {"_meta": {META_CAPABILITIES: capabilities}}, STATELESS)


@pytest.mark.parametrize("capabilities", [None, True, 0, "", "{}", []], ids=repr)
def test_the_stateless_era_asks_for_capabilities_on_every_call(capabilities: Any) -> None:
    with pytest.raises(Refusal) as caught:
        call_of("tools/list", {"_meta": {META_CAPABILITIES: capabilities}}, STATELESS)
    assert (caught.value.reason, caught.value.code) == (Reason.MALFORMED_CALL, -32602)
    with pytest.raises(Refusal):
        messages.call_from(Request(1, "tools/list", {"_meta": {META_VERSION: "2026-07-28"}}), STATELESS, "v", "github")


def test_the_metadata_keys_of_both_modules_are_the_same() -> None:
    assert {META_VERSION, META_CAPABILITIES} <= META


def test_the_calls_that_need_no_row_are_those_that_policy_knows_as_such() -> None:
    """Two statements of one fact: how a method is asked, and which actions need no row of their own."""
    table = {**METHODS, **NOTIFICATIONS}
    assert {name for name in table if table[name].session} == SESSION_ACTIONS | MCP_TASK_ACTIONS
