"""Is what is written quickly the same as what RFC 8785's own writer writes?"""

import struct
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given, strategies as st

from sidecar.protocols.canonical import NotCanonicalError, canonical_json
from tests.drawn import containers

NUMBERS = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(st.none() | st.booleans() | NUMBERS | st.text() | st.lists(NUMBERS), containers(st.text(), None))


@given(VALUES)
@example([0.0, -0.0, 1.0, -1.0, 10.05, 1e16, 1e20, 1e21, 123456789012345680000.0, 1e-4, 1e-5, 1e-6, 1e-7, 5e-324])
@example([0.1, 2, 3.25])
@example([1.5e300, 1.7976931348623157e308, -2.5e-8])
@example({"a": [1e22, 1], "é": {"😀": 0.5, "ﬁ": 1e-9}})
def test_it_is_rfc_8785(value: Any) -> None:
    assert canonical_json(value) == rfc8785.dumps(value)


@given(st.binary(min_size=8, max_size=8))
def test_every_bit_pattern_is_written_as_ecmascript_does(bits: bytes) -> None:
    (value,) = struct.unpack("<d", bits)
    if value == value and abs(value) != float("inf"):
        for shape in (value, [value], [value, 0.5], ["", value]):
            assert canonical_json(shape) == rfc8785.dumps(shape)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_refused_wherever_it_stands(value: float) -> None:
    for shape in (value, [value], [1, value], ["a", value], {"a": value}):
        with pytest.raises(NotCanonicalError):
            canonical_json(shape)


def test_whole_numbers_of_64_bits_are_written_in_full_among_fractions_too() -> None:
    assert canonical_json([2**64 - 1, -(2**63), 0.5]) == b"[18446744073709551615,-9223372036854775808,0.5]"
    for beyond in (2**64, -(2**63) - 1):
        with pytest.raises(NotCanonicalError):
            canonical_json([beyond, 0.5])
