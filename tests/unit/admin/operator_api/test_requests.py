"""Is nothing ordered that nobody meant: no unknown member, no value of another kind?"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.admin.operator_api.models import RunOrder
from sidecar.admin.operator_api.requests import WantedRuns, follows_in, nothing_in, ordered_in, reason_in, wanted_in
from sidecar.errors import Reason, Refusal
from sidecar.tasks.programs.run_states import RunState, RunStatus

READERS = (ordered_in, reason_in, nothing_in)
MEMBERS = {*RunOrder.__annotations__, "reason"}
# What the seed's configuration and other gateways take over the wire (BL-029, threats X1).
POISON = (
    *(
        "command",
        "cmd",
        "executable",
        "args",
        "cli_args",
        "argv",
        "env",
        "envs",
        "env_path",
        "cwd",
        "shell",
        "transport",
    ),
    *("per_call", "timeout", "Prompt", "PROMPT", "__proto__", "working_dir", "parameters ", "agent", "name", "owner"),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def refused(read: Any, body: Any) -> str:
    with pytest.raises(Refusal) as caught:
        read(body if isinstance(body, bytes | str) else json.dumps(body).encode())
    assert caught.value.reason is Reason.MALFORMED_CALL
    return caught.value.detail


def test_an_order_without_anything_is_one_without_a_prompt() -> None:
    assert ordered_in(b"") == ({"prompt": ""}, "nhi:operator", "", "operator")


def test_an_order_says_what_the_task_api_would_say() -> None:
    body = {"prompt": "x", "parameters": {"language": "en"}, "environment": {"A": "b"}, "working_directory": "/srv"}
    ordered = ordered_in(json.dumps({**body, "principal": "user:alice", "context": "c", "task_type": "sum"}).encode())
    assert ordered == (body, "user:alice", "c", "sum")


@pytest.mark.parametrize("name", POISON)
@pytest.mark.parametrize("read", READERS)
def test_what_is_unknown_is_refused_and_never_named(read: Any, name: str) -> None:
    """BL-029: nothing that starts a program comes in by a request."""
    assert "s3cret" not in refused(read, {name: "s3cret"})


@pytest.mark.parametrize("read", READERS)
@given(name=st.text(max_size=12), value=VALUES)
def test_no_member_beside_the_known_ones_is_ever_taken(read: Any, name: str, value: Any) -> None:
    if name not in MEMBERS:
        refused(read, {name: value})


@given(body=st.dictionaries(st.sampled_from(sorted(MEMBERS)), VALUES, max_size=4) | VALUES)
def test_an_order_is_of_strings_or_refused(body: Any) -> None:
    try:
        ordered = ordered_in(json.dumps(body).encode())
    except Refusal as refusal:
        assert refusal.reason is Reason.MALFORMED_CALL
        return
    texts = [value for value in ordered.input.values() if not isinstance(value, str)]
    assert all(isinstance(one, str) for value in texts for one in value.values())
    assert ordered.input.keys() <= {"prompt", "parameters", "environment", "working_directory"}


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt":"a","prompt":"b"}',
        b"[]",
        b'"go"',
        b"{",
        b'{"prompt":"\xff"}',
        b"[" * 100,
        b'{"parameters":{"n":1}}',
        b'{"parameters":["--a"]}',
        b'{"prompt":["a"]}',
        b'{"prompt":null}',
        b'{"context":7}',
        b'{"principal":"role:admin"}',
        b'{"principal":"anonymous"}',
        b'{"principal":"nhi:a b"}',
        b'{"principal":"nhi:a\\n"}',
        b'{"context":"a\\u0000"}',
        b'{"task_type":""}',
        b'{"task_type":"a\\nb"}',
    ],
)
def test_an_order_of_another_shape_is_refused(body: bytes) -> None:
    refused(ordered_in, body)


def test_a_query_names_runs() -> None:
    query = "agent=a-1&state=running&status=failure&schedule=nightly&owner=nhi%3Aplanner&limit=3&offset=9&active=true"
    assert wanted_in(query) == WantedRuns(
        "a-1", RunState.RUNNING, RunStatus.FAILURE, "nightly", "nhi:planner", limit=3, offset=9, active=True
    )
    assert wanted_in("", "a") == WantedRuns("a")


@pytest.mark.parametrize(
    "query",
    [
        "x=1",
        "state=Running",
        "limit=0",
        "limit=201",
        "offset=-1",
        "owner=alice",
        "agent=A",
        "agent=a&agent=b",
        "limit=%ff",
        "active=yes",
    ],
)
def test_a_query_that_means_nothing_is_refused(query: str) -> None:
    refused(wanted_in, query)


def test_an_address_that_names_an_agent_takes_no_other() -> None:
    refused(lambda query: wanted_in(query, "a"), "agent=b")


def test_to_follow_is_true_or_false() -> None:
    assert [follows_in(query) for query in ("", "follow=true", "follow=false")] == [False, True, False]
    refused(follows_in, "follow=1")
