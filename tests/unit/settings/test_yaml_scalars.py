"""Is what stays unquoted read alike by every YAML reader?"""

import math
import re

import pytest
import yaml
from hypothesis import given, strategies as st

from sidecar.settings.yaml_scalars import DoubtfulScalarError, meaning_of
from tests.tables import tables

TAKEN = tables("settings/yaml_scalars")["TAKEN"]


@pytest.mark.parametrize(("text", "value"), TAKEN, ids=[text or "empty" for text, _ in TAKEN])
def test_what_every_reader_reads_alike_is_taken(text: str, value: object) -> None:
    meaning = meaning_of(text)
    assert meaning == value
    assert type(meaning) is type(value)


DOUBTFUL = [
    *("no", "No", "NO", "n", "N", "yes", "Yes", "y", "Y", "on", "On", "OFF", "off"),
    *("010", "08", "-017", "0o10", "0x1F", "0XFF", "0b101", "1_000", "1_000.5"),
    *("1:30", "22:30:00", "190:20:30.15"),
    *("1e3", "12e5", "1.5e3", "0._", "1_:0", ".5", "5.", "00.5", ".inf", "-.INF", ".nan", "=", "<<"),
    *("18446744073709551616", "-9223372036854775809", "1.0e999", "1.0e+999"),
]


@pytest.mark.parametrize("text", DOUBTFUL)
def test_what_readers_disagree_about_must_be_quoted(text: str) -> None:
    with pytest.raises(DoubtfulScalarError) as doubt:
        meaning_of(text)
    assert "quote" in doubt.value.hint


def test_an_endless_number_costs_nothing() -> None:
    with pytest.raises(DoubtfulScalarError):
        meaning_of("9" * 1_000_000)


# Two judges: PyYAML for YAML 1.1, and the core schema of YAML 1.2 (chapter 10.3.2) written down here.
CORE_SCHEMA = [
    (re.compile(r"null|Null|NULL|~|"), lambda text: None),
    (re.compile(r"true|True|TRUE"), lambda text: True),
    (re.compile(r"false|False|FALSE"), lambda text: False),
    (re.compile(r"[-+]?[0-9]+"), int),
    (re.compile(r"0o[0-7]+"), lambda text: int(text[2:], 8)),
    (re.compile(r"0x[0-9a-fA-F]+"), lambda text: int(text[2:], 16)),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
    (re.compile(r"[-+]?(\.inf|\.Inf|\.INF)|\.nan|\.NaN|\.NAN"), lambda text: math.nan),
]


def core_schema(text: str) -> object:
    return next((read(text) for pattern, read in CORE_SCHEMA if pattern.fullmatch(text)), text)


def yaml_1_1(text: str) -> object:
    loader = yaml.SafeLoader("")
    tag = loader.resolve(yaml.ScalarNode, text, (True, False))
    if tag == "tag:yaml.org,2002:timestamp":
        return text  # dates stay text with us, in YAML 1.2 too
    return loader.construct_object(yaml.ScalarNode(tag, text))


scalars = st.one_of(
    st.text("0123456789_.:-+eExob", max_size=8),
    st.text("yesnotrufalYESNOTRUFAL~<=.i", max_size=5),
    st.sampled_from([*DOUBTFUL, *(text for text, _ in TAKEN)]),
)


@given(scalars)
def test_both_versions_of_yaml_agree_with_us_or_we_refuse(text: str) -> None:
    try:
        meaning = meaning_of(text)
    except DoubtfulScalarError:
        return
    for judge in (core_schema(text), yaml_1_1(text)):
        assert (type(meaning), meaning) == (type(judge), judge)
