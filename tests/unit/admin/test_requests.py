"""An order with an unknown member, or a value of another kind, is refused."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sidecar.admin.models import CancelOrder, Nothing, RunOrder
from sidecar.admin.routes import ROUTES
from sidecar.admin.schemas import check_body, order_in, query_in
from sidecar.errors import Reason, Refusal
from tests.drawn import containers
from tests.tables import tables

TABLES = tables("admin/requests")

MODELS = (RunOrder, CancelOrder, Nothing)
MEMBERS = {*RunOrder.__annotations__, "reason"}
# What the original data models' configuration and other gateways take over the wire (BL-029).
POISON = (
    *("command", "cmd", "executable", "args", "cli_args", "argv", "env", "envs", "env_path", "cwd", "shell"),
    *("transport", "per_call", "timeout", "Prompt", "PROMPT", "__proto__", "working_dir", "parameters "),
    *("agent", "name", "owner"),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    containers(st.text(max_size=6), 3),
    max_leaves=6,
)
QUERIES = {route.path: route.query for route in ROUTES if route.method == "GET"}


def refused(read: Any, *given: Any) -> str:
    with pytest.raises(Refusal) as caught:
        read(*given)
    assert caught.value.reason is Reason.MALFORMED_CALL
    return caught.value.detail


def test_an_order_is_what_its_body_says() -> None:
    body = {"prompt": "x", "parameters": {"language": "en"}, "environment": {"A": "b"}, "working_directory": "/srv"}
    body |= {"principal": "user:alice", "context": "c", "task_type": "sum"}
    assert order_in(json.dumps(body).encode(), RunOrder) == body and order_in(b"", RunOrder) == {}


@pytest.mark.parametrize("model", MODELS)
def test_what_is_unknown_is_refused_and_never_named(model: type) -> None:
    """BL-029: nothing that starts a program comes in by a request."""
    for name in POISON:
        assert "s3cret" not in refused(check_body, {name: "s3cret"}, model)


@pytest.mark.parametrize("model", MODELS)
@given(name=st.text(max_size=12), value=VALUES)
def test_no_member_beside_the_known_ones_is_ever_taken(model: type, name: str, value: Any) -> None:
    if name not in MEMBERS:
        refused(check_body, {name: value}, model)


@given(body=st.dictionaries(st.sampled_from(sorted(MEMBERS)), VALUES, max_size=4) | VALUES)
def test_an_order_is_of_strings_or_refused(body: Any) -> None:
    try:
        ordered = check_body(body, RunOrder)
    except Refusal as refusal:
        assert refusal.reason is Reason.MALFORMED_CALL
        return
    maps = [value for value in ordered.values() if not isinstance(value, str)]
    assert all(isinstance(one, str) for value in maps for one in value.values())
    assert ordered.keys() <= RunOrder.__annotations__.keys()


@pytest.mark.parametrize(
    ("body", "says"), [*[(raw.encode("latin-1"), *rest) for raw, *rest in TABLES["bodies"]], (b"[" * 100, "")]
)
def test_an_order_of_another_shape_is_refused(body: bytes, says: str) -> None:
    assert says in refused(order_in, body, RunOrder)


@pytest.mark.parametrize(
    ("path", "query", "values"),
    [
        *TABLES["queries"],
        *(("/api/runs", query, None) for query in ("x=1", "state=Running", "limit=0", "limit=201", "offset=-1")),
        *(("/api/runs", query, None) for query in ("owner=alice", "agent=A", "agent=a&agent=b", "limit=%ff")),
        *(("/api/runs", query, None) for query in ("active=yes", "limit=٣")),
    ],
)
def test_a_query_is_read_by_the_table_of_routes(path: str, query: str, values: Any) -> None:
    if values is None:
        refused(query_in, f"{path}?{query}", QUERIES[path])
    else:
        assert query_in(f"{path}?{query}", QUERIES[path]) == values
