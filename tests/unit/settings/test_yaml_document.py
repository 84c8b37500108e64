"""Does the YAML reader take one meaning, refuse two, and know where everything stands?"""

from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from hypothesis import given, strategies as st
from pydantic import BaseModel, Field

from sidecar.errors import ConfigError, PolicyError, SettingsError
from sidecar.settings.yaml_document import Document, read_document
from sidecar.settings.yaml_nodes import MAX_BYTES, MAX_DEPTH, MAX_FAULTS, Loc, YamlNode
from tests.drawn import containers
from tests.tables import tables

TABLES = tables("settings/yaml_document")

FILE = Path("some.yaml")


def read(text: str | bytes) -> Document:
    return read_document(FILE, text=text)


def faults_of(text: str | bytes) -> list[tuple[int, int, str]]:
    with pytest.raises(SettingsError) as error:
        read(text)
    return [(fault.line, fault.column, fault.code) for fault in error.value.faults]


TRAPS = [
    *TABLES["traps"],
    ("not UTF-8", b"a: 1\nb: \xff\n", [[2, 4, "Y003"]]),
    ("UTF-16", "a: 1".encode("utf-16"), [(1, 1, "Y003")]),
    ("one level too deep", "[" * (MAX_DEPTH + 1), [(1, MAX_DEPTH + 1, "Y007")]),
    ("a million levels too deep", "{a: " * 200_000, [(1, MAX_DEPTH * 4 + 1, "Y007")]),
    ("a byte too large", "#" * (MAX_BYTES + 1), [(0, 0, "Y002")]),
]


@pytest.mark.parametrize(("text", "expected"), [trap[1:] for trap in TRAPS], ids=[trap[0] for trap in TRAPS])
def test_a_trap_is_refused_at_its_place(text: str | bytes, expected: list[list[Any]]) -> None:
    assert faults_of(text) == [tuple(one) for one in expected]


def test_faults_of_a_hopeless_file_are_counted_only_so_far() -> None:
    assert len(faults_of("\n".join(f"k{n}: no" for n in range(1000)))) == MAX_FAULTS


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="no such file"):
        read_document(tmp_path / "none.yaml", error=PolicyError)
    with pytest.raises(SettingsError, match="is a directory"):
        read_document(tmp_path)


def test_a_file_is_read_no_further_than_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    path.write_bytes(b"a: 1\n" * MAX_BYTES)
    with pytest.raises(SettingsError, match="larger than"):
        read_document(path)


def test_dates_are_text_and_quoted_traps_are_words() -> None:
    document = read("now: 2026-11-27T12:00:00Z\na: 'no'\nb: \"010\"\nc: |\n  1:30\n")
    assert document.data == {"now": "2026-11-27T12:00:00Z", "a": "no", "b": "010", "c": "1:30\n"}


def test_windows_line_ends_are_fine() -> None:
    document = read("a: 1\r\nb: [x,\r\n  z]\r\n")
    assert document.data == {"a": 1, "b": ["x", "z"]}
    assert document.source_line(2) == "b: [x,"


@pytest.mark.parametrize(("loc", "key", "expected"), TABLES["positions"])
def test_every_value_knows_its_place(loc: list[str | int], key: bool, expected: list[int]) -> None:
    text = "# head\nserver:\n  listen: 127.0.0.1:8080\nlocal:\n  - {principal: one}\n  - {principal: two}\nüber: é x\n"
    document = read("a: 1\n" + text.removeprefix("# head\n"))
    assert list(astuple(document.span_of(tuple(loc), key=key))[1:]) == expected


@pytest.mark.parametrize("password", ["hunter2", "hun@er2", "hun/er2", "hun:er2"])
def test_a_password_in_a_source_line_is_not_shown(password: str) -> None:
    document = read(f'url: "redis://me:{password}@host"\n')
    fault = document.fault(("url",), "wrong", "S000")
    assert "er2" not in str(fault)
    assert "redis://me:*******@host" in str(fault)


# Shapes


class Inner(BaseModel, extra="forbid", strict=True):
    name: str
    count: Annotated[int, Field(ge=1)] = 1
    tags: list[str] = []


class Outer(BaseModel, extra="forbid", strict=True):
    version: int
    inner: Inner | None = None
    many: list[Inner] = []
    named: Mapping[str, Inner] = {}


SHAPES = TABLES["SHAPES"]


@pytest.mark.parametrize(("text", "message", "hint", "place"), SHAPES)
def test_a_wrong_shape_is_explained_at_its_place(text: str, message: str, hint: str, place: list[int]) -> None:
    with pytest.raises(SettingsError) as error:
        read(text).validate(Outer)
    (fault,) = error.value.faults
    assert (fault.message, fault.hint) == (message, hint)
    assert [fault.line, fault.column, fault.width] == place


def test_all_faults_of_shape_come_at_once_in_the_order_of_the_file() -> None:
    with pytest.raises(PolicyError) as error:
        read_document(FILE, text="many: [{}, {name: 1}]\nversion: x\nfoo: 1\n", error=PolicyError).validate(Outer)
    assert [(fault.line, fault.code) for fault in error.value.faults] == [
        (1, "Y102"),
        (1, "Y103"),
        (2, "Y103"),
        (3, "Y101"),
    ]


def test_an_empty_file_says_what_it_needs() -> None:
    with pytest.raises(SettingsError, match=r"the file is empty\n   hint: it needs at least: version"):
        read("# nothing\n").validate(Outer)


# A judge: what PyYAML writes, we read back, or say why not.

keys = st.text(max_size=6)
plain_scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=8)
)
trees = st.recursive(plain_scalars, containers(keys, 4))


@given(trees, st.booleans())
def test_what_another_program_wrote_is_read_back_or_refused(tree: object, flow: bool) -> None:
    text = yaml.safe_dump(tree, allow_unicode=True, default_flow_style=flow)
    try:
        document = read(text)
    except SettingsError as error:
        assert {fault.code for fault in error.faults} <= {"Y004", "Y006", "Y008", "Y012"}  # never a syntax error
        return
    assert document.data == tree


@given(st.text("{}[]:,-?&*!|>'\"%@` \n#ab1~<\u00e9\u2028\ud800", max_size=40) | st.binary(max_size=40))
def test_no_text_makes_the_reader_fail_in_another_way(text: str | bytes) -> None:
    try:
        document = read(text)
    except ConfigError as error:
        assert error.faults
        assert all(str(fault) for fault in error.faults)
        return

    def placed(node: YamlNode, _: Loc) -> YamlNode:
        assert 0 <= node.span.line <= len(document.lines) and node.span.column >= 0 and node.span.width >= 1
        return node

    document.root.mapped(placed)
