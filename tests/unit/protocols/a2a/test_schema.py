"""Is a message of A2A read as its own Protocol Buffers would, and nothing that two readers read differently?"""

import string
from typing import Any

import pytest
from a2a.types import a2a_pb2
from google.protobuf.json_format import MessageToDict, ParseDict
from hypothesis import given, settings, strategies as st

from sidecar.protocols.a2a.messages import V10
from sidecar.protocols.a2a.schema import FieldSpec, Schema, UnreadableMessage, camel, schema_from
from tests import wire
from tests.drawn import containers
from tests.tables import tables

# --- the judge: what we read is what protobuf reads ---------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=6)
JSON = st.recursive(st.booleans() | st.integers(-(2**31), 2**31) | TEXT, containers(TEXT, 3), max_leaves=5)
TIMES = tables("protocols/a2a/schema")["times"]
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": TEXT,
    "bool": st.booleans(),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "bytes": st.sampled_from(["", "AA==", "AP8=", "_-8", "+/8=", "aGk"]),
    "Timestamp": st.sampled_from(TIMES),
    "Struct": st.dictionaries(TEXT, JSON, max_size=3),
    "Value": JSON,
}


MADE: dict[tuple[int, str, int], st.SearchStrategy[dict[str, Any]]] = {}


def of(schema: Schema, name: str, depth: int = 3) -> st.SearchStrategy[dict[str, Any]]:
    """A message as somebody may write it: either spelling, one field of a group, and what nobody knows. Made once: for
    each that is made, Hypothesis parses its source."""
    key = (id(schema), name, depth)
    if key not in MADE:
        MADE[key] = _made(schema, name, depth)
    return MADE[key]


def _made(schema: Schema, name: str, depth: int) -> st.SearchStrategy[dict[str, Any]]:
    def value(one: FieldSpec) -> st.SearchStrategy[Any]:
        if one.type in schema.messages:
            single = of(schema, one.type, depth - 1) if depth else st.just({})
        elif one.type in schema.enums:
            words = schema.enums[one.type]
            single = st.sampled_from(words) | st.integers(0, len(words) - 1)
        else:
            single = VALUES[one.type]
        if one.many == "list":
            return st.lists(single, max_size=2)
        return st.dictionaries(TEXT, single, max_size=2) if one.many == "map" else single

    @st.composite
    def message(draw: st.DrawFn) -> dict[str, Any]:
        groups: set[str] = set()
        written: dict[str, Any] = {}
        for one in schema.messages[name].fields:
            if one.group in groups or not draw(st.booleans()):
                continue
            groups |= {one.group} - {""}
            written[draw(st.sampled_from([one.name, one.json]))] = draw(value(one))
        if draw(st.booleans()):
            written["nobodyKnows" + draw(st.text(string.ascii_letters, max_size=3))] = draw(JSON)
        return written

    return message()


def whole(value: Any) -> Any:
    """Numbers of a Struct are doubles there: 1 and 1.0 are one."""
    if isinstance(value, dict):
        return {key: whole(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [whole(inner) for inner in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


@pytest.mark.parametrize("name", ["SendMessageRequest", "ListTasksRequest", "Task", "StreamResponse", "AgentCard"])
@settings(max_examples=15)
@given(data=st.data())
def test_what_is_read_is_what_protobuf_reads_and_read_again_as_itself(name: str, data: st.DataObject) -> None:
    written = data.draw(of(V10, name))
    theirs = MessageToDict(ParseDict(written, getattr(a2a_pb2, name)(), ignore_unknown_fields=True))
    once = V10.read(name, written)
    assert whole(once) == whole(theirs) and V10.read(name, once) == once


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("written", "where"), wire.table("a2a_wrong")["1.0"])
def test_a_wrong_value_is_told_with_its_place(written: Any, where: str) -> None:
    with pytest.raises(UnreadableMessage) as caught:
        V10.read("SendMessageRequest", written)
    assert caught.value.pointer == where


@pytest.mark.parametrize("moment", ["2026-01-01", "2026-13-01T00:00:00Z", "now", 5, "2026-01-01T00:00:00"])
def test_a_time_is_of_rfc_3339(moment: Any) -> None:
    with pytest.raises(UnreadableMessage):
        V10.read("ListTasksRequest", {"statusTimestampAfter": moment})


def test_digits_of_numbers_and_times_are_of_ascii() -> None:
    for given_ in ({"pageSize": "\u0663"}, {"statusTimestampAfter": "2026-01-01T00:00:00.\u0663Z"}):
        with pytest.raises(UnreadableMessage):
            V10.read("ListTasksRequest", given_)


def test_a_time_of_the_first_years_is_written_as_it_is_read() -> None:
    """The zero time of Go, which agents written in it send where they know none."""
    status = {"timestamp": "0001-01-01T00:00:00Z"}
    assert V10.read("TaskStatus", status) == status


def test_what_is_empty_stays_where_it_is_wanted() -> None:
    given_ = {"tasks": [], "nextPageToken": "", "pageSize": 0}
    assert V10.read("ListTasksResponse", given_, defaults=True) == given_
    assert V10.read("ListTasksResponse", given_) == {}


def test_the_notation_refuses_what_it_does_not_know() -> None:
    for text in ("A: 1 b:nothing", "A: b:string", "A: 1 B:string"):
        with pytest.raises(ValueError, match=r"unknown type|no field"):
            schema_from("p", text, {})


def test_names_are_camel_as_protobuf_makes_them() -> None:
    assert camel("open_id_connect_url") == "openIdConnectUrl"
    assert camel("oauth2_metadata_url") == "oauth2MetadataUrl"
