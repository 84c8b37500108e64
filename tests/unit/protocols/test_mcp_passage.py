"""What of a message goes on to the upstream, and what of an answer may name something?"""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sidecar.errors import Reason, Refusal
from sidecar.protocols.jsonrpc import Request
from sidecar.protocols.mcp import messages
from sidecar.protocols.mcp.eras import META_CAPABILITIES, META_VERSION, TASKS_EXTENSION
from sidecar.protocols.mcp.messages import METHODS
from tests.drawn import containers
from tests.tables import tables
from tests.unit.protocols.asking import NO_NAMES, NO_STRINGS, call_of

# --- what goes on ---------------------------------------------------------------------------------------------------

CAPABILITIES = {"roots": {}, "tasks": {"list": {}}, "extensions": {TASKS_EXTENSION: {}, "acme/x": {}}}
KEPT = {"roots": {}, "extensions": {"acme/x": {}}}


def forwarded(
    method: str, params: dict[str, Any], version: str = "2025-11-25", *, tasks: bool = True
) -> dict[str, Any]:
    before = json.dumps(params)
    sent = messages.forwarded_params(Request(1, method, params), version, tasks=tasks)
    assert json.dumps(params) == before, "the message itself, which audit reads, is not changed"
    assert sent is params or messages.may_speak_of_tasks(Request(1, method, params))
    return sent


def test_a_wish_for_a_task_passes_where_mcp_has_it_and_only_there() -> None:
    params = {"name": "a", "arguments": {"task": {"ttl": 1}}, "task": {"ttl": 1}}
    plain = {"name": "a", "arguments": {"task": {"ttl": 1}}}
    assert forwarded("tools/call", params) is params
    assert forwarded("tools/call", params, tasks=False) == plain
    for version in ("2024-11-05", "2025-03-26", "2025-06-18", "2026-07-28", ""):
        assert forwarded("tools/call", params, version) == plain
    assert forwarded("prompts/get", {"name": "a", "task": {}}) == {"name": "a"}


def test_a_server_never_hears_of_a_client_that_keeps_tasks() -> None:
    opening = {"protocolVersion": "2025-11-25", "clientInfo": {"name": "x"}, "capabilities": CAPABILITIES}
    assert forwarded("initialize", opening) == {**opening, "capabilities": KEPT}


def test_the_extension_is_declared_for_who_can_own_tasks_and_for_nobody_else() -> None:
    meta = {META_VERSION: "2026-07-28", META_CAPABILITIES: CAPABILITIES, "progressToken": 1}
    params = {"name": "a", "_meta": meta}
    assert forwarded("tools/call", params, "2026-07-28") is params
    kept = {"name": "a", "_meta": {**meta, META_CAPABILITIES: KEPT}}
    assert forwarded("tools/call", params, "2026-07-28", tasks=False) == kept
    sent = forwarded("tools/list", {"_meta": {META_CAPABILITIES: {"tasks": {}}}}, "2026-07-28", tasks=False)
    assert sent == {"_meta": {META_CAPABILITIES: {}}}


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5), containers(st.text(max_size=5), 2), max_leaves=6
)
metadata = st.dictionaries(st.text(max_size=5), anything)
members = st.sampled_from(["name", "arguments", "uri", "cursor", "requestState", "inputResponses", "vendor"])


@given(
    st.sampled_from(sorted(METHODS)), st.dictionaries(members, anything), st.dictionaries(st.text(max_size=5), anything)
)
def test_nothing_else_is_ever_changed(method: str, params: dict[str, Any], meta: dict[str, Any]) -> None:
    meta = {**meta, META_CAPABILITIES: {"extensions": {"acme/x": {}}}}
    message = {**params, "capabilities": {"roots": {}}, "_meta": meta}
    for tasks in (True, False):
        assert messages.forwarded_params(Request(1, method, message), "2025-11-25", tasks=tasks) is message


@pytest.mark.parametrize("extensions", [None, [], "tasks", {}, {"acme/x": {}}], ids=repr)
def test_capabilities_without_tasks_stay_as_they_are(extensions: Any) -> None:
    capabilities = {"roots": {}, "extensions": extensions}
    assert messages.without_tasks(capabilities) == capabilities
    assert messages.without_tasks({**capabilities, "tasks": 1}) == capabilities


# --- what comes back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("member", "entry", "method", "params"), tables("protocols/mcp_passage")["entries"])
def test_an_entry_is_listed_by_the_very_question_that_its_use_asks(
    member: str, entry: dict[str, Any], method: str, params: dict[str, Any]
) -> None:
    assert messages.entry_question(member, "github", entry) == call_of(method, params).question
    assert member in messages.LISTS


@pytest.mark.parametrize(
    "entry", [None, "search", 1, [], {}, *({"name": name} for name in (*NO_STRINGS, *NO_NAMES))], ids=repr
)
def test_a_tool_that_no_call_could_name_is_not_listed(entry: Any) -> None:
    assert messages.entry_question("tools", "github", entry) is None
    assert messages.entry_question("prompts", "github", entry) is None


@pytest.mark.parametrize("uri", [*NO_STRINGS, "", "a", "file:///../a", "https://u@h/", "x:%2e"], ids=repr)
def test_a_resource_that_no_call_could_name_is_not_listed(uri: Any) -> None:
    assert messages.entry_question("resources", "github", {"uri": uri}) is None
    assert messages.entry_question("resourceTemplates", "github", {"uriTemplate": uri}) is None
    assert messages.entry_question("resources", "github", {"uriTemplate": "file:///a"}) is None


def test_a_result_may_ask_the_caller_for_three_things_only() -> None:
    requests = {str(at): {"method": method, "params": {}} for at, method in enumerate(sorted(messages.SERVER_REQUESTS))}
    assert messages.asked_of_client({"inputRequests": requests}) == sorted(messages.SERVER_REQUESTS)
    assert messages.asked_of_client({"resultType": "input_required", "requestState": "x"}) == []


@pytest.mark.parametrize(
    "requests", [None, [], "x", {"a": None}, {"a": {}}, {"a": {"method": "tools/call"}}, {"a": {"method": 1}}], ids=repr
)
def test_a_result_that_asks_the_caller_for_anything_else_is_refused(requests: Any) -> None:
    with pytest.raises(Refusal) as caught:
        messages.asked_of_client({"inputRequests": requests})
    assert caught.value.reason is Reason.RESPONSE_REFUSED
