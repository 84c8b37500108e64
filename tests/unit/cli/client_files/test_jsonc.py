"""Is JSON with comments read as it is meant, and is all else refused with its place?"""

import json
import re
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings, strategies as st

from sidecar.cli.client_files.jsonc import MAX_BYTES, MAX_DEPTH, parse_jsonc
from sidecar.errors import SettingsError
from tests.tables import tables
from tests.unit.cli.client_files.texts import values, written

PATH = Path("mcp.json")


def read(text: str) -> Any:
    return parse_jsonc(text.encode(), PATH).document.data


def fault_of(raw: bytes) -> str:
    with pytest.raises(SettingsError) as caught:
        parse_jsonc(raw, PATH)
    return str(caught.value).splitlines()[0]


@settings(max_examples=30)
@given(written(values))
def test_comments_and_trailing_commas_change_nothing(given: tuple[Any, str]) -> None:
    value, text = given
    assert read(text) == value


def strictly(text: str) -> Any:
    """What the standard library says, without what it lets pass beside JSON."""

    def no(_: object) -> NoReturn:
        raise ValueError

    return json.loads(text, parse_constant=no)


@settings(max_examples=30)
@given(st.text(st.sampled_from(list('{}[],:"\\/0123456789.eE+-truefalsn \nua')), max_size=14))
def test_without_comments_and_commas_it_takes_what_every_json_reader_takes(text: str) -> None:
    try:
        expected: Any = strictly(text)
    except ValueError:
        try:
            read(text)
        except SettingsError:
            return
        assert re.search(r"//|/\*|,\s*[}\]]", text)
        return
    try:
        assert read(text) == expected
    except SettingsError as error:
        assert error.faults[0].code in ("J002", "J003", "J010")


@settings(max_examples=30)
@given(written(st.dictionaries(st.text('abc"é', max_size=3), values, min_size=1, max_size=4)))
def test_the_extents_are_those_of_the_values(given: tuple[Any, str]) -> None:
    value, text = given
    parsed = parse_jsonc(text.encode(), PATH)
    for key, below in value.items():
        assert read(parsed.piece((key,))) == below
        member = parsed.members[(key,)]
        assert parsed.text[member.start] == '"'
        assert member.comma < 0 or parsed.text[member.comma] == ","


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        *[(raw.encode("latin-1"), *rest) for raw, *rest in tables("cli/client_files/jsonc")["refused"]],
        (b'{"a":' + b"9" * 5000 + b"}", "mcp.json:1:6: error[J002]: this number is too long"),
        (b"[" * 10_000, f"mcp.json:1:{MAX_DEPTH + 2}: error[J007]: nested more than {MAX_DEPTH} levels deep"),
        (b" " * (MAX_BYTES + 1), f"mcp.json: error[Y002]: larger than {MAX_BYTES} bytes"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(raw: bytes, said: str) -> None:
    assert fault_of(raw) == said


def test_a_byte_order_mark_is_read_over() -> None:
    assert read('\ufeff{"a": 1}') == {"a": 1}


def test_no_fault_shows_a_line_of_the_file() -> None:
    """The files hold tokens, and terminals are logged."""
    with pytest.raises(SettingsError) as caught:
        parse_jsonc(b'{"TOKEN": "canary-token" "x": 1}', PATH)
    assert "canary" not in str(caught.value)
