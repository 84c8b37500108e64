"""Does what is kept come back as it was, and does what was damaged or is newer do no harm?"""

from collections.abc import Iterator, Mapping
from enum import Enum
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import orjson
import pytest
from hypothesis import given, settings, strategies as st

from sidecar.storage import RecordKind, RecordStoreOut
from sidecar.storage.push_configs import PUSHES, PushRecord
from sidecar.storage.task_owners import OWNERS, OwnerRecord
from sidecar.tasks.api.task_record import TASKS, Task
from sidecar.tasks.programs.run_record import RUNS, Execution
from sidecar.vocabulary import Caller, Credential, Principal
from tests.drawn import containers
from tests.unit.storage.worlds import SORTS

TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
COUNT = st.integers(-(2**53), 2**53)
LEAF = st.none() | st.booleans() | COUNT | NUMBER | TEXT
JSON = st.recursive(LEAF, containers(TEXT, 2))
WORDS = st.frozensets(TEXT, max_size=2)
KINDS = st.sampled_from(["jwt", "api_key", "local", "certificate", "anonymous"])
CALLERS = st.builds(
    Caller,
    st.lists(st.builds(Principal, TEXT, TEXT, WORDS, WORDS), min_size=1, max_size=2).map(tuple),
    st.lists(st.builds(Credential, KINDS, TEXT, TEXT, TEXT), max_size=2).map(tuple),
    st.none() | NUMBER,
)
SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    float: NUMBER,
    int: COUNT,
    bool: st.booleans(),
    type(None): st.none(),
    Caller: CALLERS,
    Mapping: st.dictionaries(TEXT, JSON, max_size=2),
}


def any_of(hint: Any) -> st.SearchStrategy[Any]:
    """Any value that a part of a record may have."""
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind in SIMPLE:
        return SIMPLE[kind]
    if kind is Literal:
        return st.sampled_from(parts)
    if kind is tuple:
        return st.lists(any_of(parts[0]), max_size=2).map(tuple)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(kind)
    if hasattr(kind, "_fields"):
        return st.builds(kind, **{name: any_of(part) for name, part in get_type_hints(kind).items()})
    return st.one_of(*map(any_of, parts))


def fits(value: Any, hint: Any) -> bool:
    """Whether this is such a value, each part of it."""
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind is Literal:
        return value in parts
    if kind is tuple:
        return isinstance(value, tuple) and all(fits(one, parts[0]) for one in value)
    if hasattr(kind, "_fields"):
        return isinstance(value, kind) and all(map(fits, value, get_type_hints(kind).values()))
    if kind in (Union, UnionType):
        return any(fits(value, part) for part in parts)
    return isinstance(value, int | float if kind is float else kind)


Case = tuple[RecordKind[Any], Any]
KEPT = {TASKS: Task, RUNS: Execution, OWNERS: OwnerRecord, PUSHES: PushRecord}
CASES = st.one_of(*(st.tuples(st.just(kind), any_of(record)) for kind, record in KEPT.items()))


def newer(plain: Any, *, at_top: bool = True) -> Any:
    """As a version writes it that knows more of each part; what people and agents said is theirs."""
    if isinstance(plain, list):
        return [newer(one, at_top=False) for one in plain]
    if not isinstance(plain, dict):
        return plain
    theirs = ("task", "input", "result", "caller") if at_top else ()
    return {"more": [1]} | {name: one if name in theirs else newer(one, at_top=False) for name, one in plain.items()}


@settings(max_examples=60, deadline=None)
@given(CASES)
def test_what_is_kept_comes_back_as_it_was_also_where_a_newer_version_wrote_more(case: Case) -> None:
    kind, record = case
    kept = kind.codec.encode(record)
    back = kind.codec.decode(kept)
    assert back == record
    if hasattr(record, "caller"):  # which no comparison looks at
        assert [one.trust for one in back.caller.credentials] == [one.trust for one in record.caller.credentials]
    assert kind.codec.decode(orjson.dumps(newer(orjson.loads(kept)))) == record


def leaves(plain: Any) -> Iterator[tuple[Any, Any]]:
    """Where something stands, in what."""
    for key in range(len(plain)) if isinstance(plain, list) else [*plain]:
        yield plain, key
        if isinstance(plain[key], list | dict):
            yield from leaves(plain[key])


@settings(max_examples=50, deadline=None)
@given(CASES, st.data())
def test_what_was_damaged_is_whole_or_cannot_be_read_and_is_no_others_trouble(case: Case, data: st.DataObject) -> None:
    kind, record = case
    body = kind.codec.encode(record)
    if data.draw(st.booleans(), "bytes"):
        at, length = data.draw(st.integers(0, len(body))), data.draw(st.integers(0, 9))
        damaged = body[:at] + data.draw(st.binary(max_size=9)) + body[at + length :]
    else:
        plain = orjson.loads(body)
        within, key = data.draw(st.sampled_from([*leaves(plain)]))
        within[key] = data.draw(JSON)
        damaged = orjson.dumps(plain)
    try:
        read = kind.read(damaged)
    except RecordStoreOut:
        read = None
    else:
        assert kind.read(kind.codec.encode(read)) == read
        assert fits(read, type(read))
    assert kind.readable([body, damaged, body]) == [record, *([read] if read else []), record]


@pytest.mark.parametrize("sort", SORTS.values(), ids=[*SORTS])
@pytest.mark.parametrize(
    "damaged", [b"", b"null", b"[]", b"{}", b"\xff", b"[" * 5000, b'{"caller": [[], [], null]}', None]
)
def test_what_says_nothing_is_told_and_nothing_else_happens(sort: Any, damaged: bytes | None) -> None:
    with pytest.raises(RecordStoreOut, match=f"^{sort.kind.what} cannot be read: "):
        sort.kind.read(damaged)
