"""What is left of a message when an upstream's rules have been through it?"""

import base64
import copy
import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings, strategies as st

from sidecar.errors import Refusal
from sidecar.gateway.redaction import SLICE_CHARS, ResponseScreen, screen_from
from sidecar.protocols.json_pointers import parse_pointer, places
from sidecar.protocols.jsonrpc import Message, Notification, Request, Response
from sidecar.settings.responses import ResponseSettings
from tests.drawn import containers
from tests.tables import tables

MAIL = "alice@example.com"
GONE = "[redacted]"


def screen(*rules: dict[str, Any], **more: Any) -> ResponseScreen:
    return screen_from(ResponseSettings.model_validate({"redact": list(rules), **more}))


def screened(
    message: Message, rules: ResponseScreen, method: str = "tools/call", tool: str = "get_user"
) -> tuple[Message, int]:
    looked_at = copy.deepcopy(message)
    steps = rules.reading(method, tool).message(looked_at)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return looked_at, end.value


def result_of(result: dict[str, Any], rules: ResponseScreen, **asked: str) -> dict[str, Any]:
    return dict(screened(Response(1, result), rules, **asked)[0].result)


def left_of(text: str, rules: ResponseScreen, **asked: str) -> str:
    """What is left of a text."""
    return str(result_of({"content": [{"type": "text", "text": text}]}, rules, **asked)["content"][0]["text"])


def test_nothing_asked_for_is_no_screen() -> None:
    assert screen_from(None) is None
    assert screen_from(ResponseSettings()) is None


@pytest.mark.parametrize("result", tables("gateway/redaction")["results"])
def test_a_secret_is_found_in_every_position(result: dict[str, Any]) -> None:
    rules = screen({"classes": ["email"]})
    left = json.dumps(result_of(result, rules))
    assert "example.com" not in left and GONE in left
    assert json.dumps(result_of(json.loads(left), rules)) == left


def test_base64_and_what_only_the_protocol_reads_stay() -> None:
    blob = base64.b64encode(b"4111111111111111" * 9).decode()
    state = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl"
    result = {
        "resultType": "input_required",
        "requestState": state,
        "content": [{"type": "image", "data": blob}, {"type": "resource", "resource": {"uri": "x:/y", "blob": blob}}],
        "contents": [{"uri": "x:/y", "blob": "4111111111111111"}],
        "messages": [{"role": "user", "content": {"type": "audio", "data": blob}}],
    }
    assert result_of(result, screen({"classes": ["card", "jwt", "api_key"]})) == result


@pytest.mark.parametrize(
    "text", ['{"pan": 4111111111111111, "a": ["alice\\u0040example.com"]}', '["\\u0061lice@example.com"]']
)
def test_json_in_a_text_stays_json_and_hides_nothing_in_its_escapes(text: str) -> None:
    shown = str(json.loads(left_of(text, screen({"classes": ["card", "email"]}))))
    assert "411111" not in shown and "example" not in shown and GONE in shown
    twice = f'{{"a": "{MAIL}", "a": 1}}'
    assert MAIL not in left_of(twice, screen({"classes": ["email"]})), "which is searched as text"


def test_what_must_work_stays() -> None:
    rules = screen({"classes": ["email", "jwt"]})
    url = f"https://idp.example/login?state={MAIL}"
    updated = Notification("notifications/resources/updated", {"uri": f"mail:{MAIL}"})
    assert screened(updated, rules)[0] == updated
    result = {
        "inputRequests": {"1": {"method": "elicitation/create", "params": {"mode": "url", "url": url, "message": MAIL}}}
    }
    asked = result_of(result, rules)["inputRequests"]["1"]["params"]
    assert asked == {"mode": "url", "url": url, "message": GONE}


def test_a_card_is_found_as_a_number_too_and_two_names_that_become_one_are_told_apart() -> None:
    same = {"other": 4111111111111112, "small": 42, "yes": True}
    for structured, left in (
        ({"pan": 4111111111111111, **same}, {"pan": GONE, **same}),
        ({"a@b.example": 1, "c@d.example": 2, "x": 3}, {GONE: 1, f"{GONE} 1": 2, "x": 3}),
    ):
        found = result_of({"structuredContent": structured}, screen({"classes": ["card", "email"]}))
        assert found["structuredContent"] == left


def test_a_place_is_replaced_in_structured_content_and_in_its_twin() -> None:
    structured = {"users": [{"name": "Alice", "phone": "555"}, {"name": "Bob"}]}
    result = {
        "content": [{"type": "text", "text": json.dumps(structured)}, {"type": "text", "text": "{no json"}],
        "structuredContent": structured,
    }
    left = result_of(result, screen({"pointers": ["/structuredContent/users/*/phone"], "replace": "***"}))
    assert left["structuredContent"]["users"] == [{"name": "Alice", "phone": "***"}, {"name": "Bob"}]
    assert json.loads(left["content"][0]["text"]) == left["structuredContent"]
    assert left["content"][1]["text"] == "{no json"


def test_a_twin_that_cannot_be_searched_does_not_pass() -> None:
    result = {"content": [{"type": "text", "text": "[" + "1," * 500_001 + "1]"}]}
    with pytest.raises(Refusal):
        result_of(result, screen({"pointers": ["/structuredContent/x"]}))


def test_a_rule_is_for_its_tools_and_all_rules_hold_where_no_call_is_known() -> None:
    rules = screen({"tools": ["get_*"], "classes": ["email"]}, {"classes": ["ssn"]})
    text = f"{MAIL} 123-45-6789"
    assert left_of(text, rules) == f"{GONE} {GONE}" == left_of(text, rules, method="tasks/result", tool="")
    assert left_of(text, rules, tool="list") == f"{MAIL} {GONE}" == left_of(text, rules, method="prompts/get")
    said, replaced = screened(Notification("notifications/message", {"data": text}), rules, method="session/stream")
    assert (said, replaced) == (Notification("notifications/message", {"data": f"{GONE} {GONE}"}), 2)


def test_the_servers_description_of_itself_is_not_data() -> None:
    result = {"tools": [{"name": "x", "description": MAIL, "inputSchema": {"pattern": MAIL}}]}
    assert result_of(result, screen({"classes": ["email"]}), method="tools/list") == result


@pytest.mark.parametrize("method", ["tools/call", "tools/list", "initialize", "resources/read"])
def test_errors_are_searched_whatever_was_asked(method: str) -> None:
    error = {"code": -32000, "message": f"no such user {MAIL}", "data": {"trace": [MAIL]}}
    message, replaced = screened(Response(1, error=error), screen({"classes": ["email"]}), method)
    assert message == Response(1, error={"code": -32000, "message": f"no such user {GONE}", "data": {"trace": [GONE]}})
    assert replaced == 2


def test_what_the_server_says_and_asks_during_a_call_is_searched_but_for_ids() -> None:
    rules = screen({"classes": ["email"]})
    progress = {"progressToken": MAIL, "progress": 1}
    said = Notification("notifications/progress", {**progress, "message": MAIL})
    assert screened(said, rules)[0] == Notification("notifications/progress", {**progress, "message": GONE})
    messages = {"messages": [{"role": "user", "content": {"type": "text", "text": MAIL}}]}
    assert MAIL not in str(screened(Request(7, "sampling/createMessage", messages), rules)[0])


def test_own_prefixes_are_taken_out_with_what_follows() -> None:
    said = "acme_0123456789 acme_short xacme_0123456789"
    assert left_of(said, screen({"prefixes": ["acme_"]})) == f"{GONE} acme_short xacme_0123456789"


def test_sizes_are_of_the_tool_else_of_the_upstream() -> None:
    rules = screen(max_bytes=4096, max_bytes_of={"export_*": 100_000, "export_small": 2048})
    sizes = [rules.reading("tools/call", tool).max_bytes for tool in ("x", "export_all", "export_small")]
    assert sizes == [4096, 100_000, 2048]
    assert rules.reading("prompts/get").max_bytes == 4096
    assert rules.reading("tools/list").max_bytes is None


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(max_size=12)
    | st.just(MAIL)
    | st.just("4111111111111111"),
    containers(st.text(max_size=8) | st.just(MAIL), 4),
    max_leaves=20,
)


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(["content", "structuredContent", "contents", "messages", "_meta", "x"]), JSON))
def test_in_no_shape_does_anything_survive_and_twice_is_once(result: dict[str, Any]) -> None:
    rules = screen({"classes": ["email", "card"]})
    left = result_of(result, rules)
    searched = orjson.dumps(left).decode()
    assert MAIL not in searched
    if not any(name in searched for name in ('"blob"', '"data"')):
        assert "4111111111111111" not in searched
    assert result_of(left, rules) == left


def test_pointers_lead_where_rfc_6901_says() -> None:
    value = {"a": 1, "b": [2, 3], "c/d": {"~": 4}, "": 5}
    leads = {"/a": [1], "/b/0": [2], "/b/*": [2, 3], "/c~1d/~0": [4], "/*/~0": [4], "/": [5]}
    for pointer, found in {**leads, **{none: [] for none in ("/b/00", "/b/9", "/b/-", "/a/x")}}.items():
        reached = [place[0][place[1]] for place in places(value, parse_pointer(pointer)) if place is not None]
        assert reached == found, pointer
    for pointer in ("", "a", "a/b", "/~", "/~2", "/a~", "/~~01"):
        with pytest.raises(ValueError):
            parse_pointer(pointer)


def test_however_much_is_found_other_work_runs_between_the_slices() -> None:
    text, replaced, pauses = "a@b.co " * 200_000, 0, 0
    message = Response(1, {"content": [{"type": "text", "text": text}]})
    steps = screen({"classes": ["email"]}).reading("tools/call", "t").message(message)
    while not replaced:
        try:
            next(steps)
            pauses += 1
        except StopIteration as end:
            replaced = end.value
    assert replaced == 200_000 and pauses >= len(text) // SLICE_CHARS
