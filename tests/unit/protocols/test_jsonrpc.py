"""Is a body taken only where every reader of it reads the same? (BL-001, BL-025, BL-027, BL-062, BL-076)"""

import codecs
import encodings.aliases
import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from sidecar.errors import Reason, Refusal
from sidecar.protocols import jsonrpc
from tests import wire
from tests.tables import tables
from tests.unit.protocols.asking import parse_message

TABLES = tables("protocols/jsonrpc")

MEBIBYTE = 2**20
DENIED = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"delete","arguments":{"path":"/etc"}}}'


def refusal_of(raw: bytes) -> Refusal | None:
    try:
        parse_message(raw)
    except Refusal as refusal:
        return refusal
    return None


def verdict(raw: bytes) -> str:
    refusal = refusal_of(raw)
    return "taken" if refusal is None else str(refusal.code)


def envelope(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", **members}).encode()


@pytest.mark.parametrize(("name", "expected"), wire.bodies().items())
def test_a_body_of_the_corpus_meets_its_verdict(name: str, expected: str) -> None:
    """BL-001, BL-025, BL-027, BL-062, BL-076: what each report's input becomes stands beside it in the corpus."""
    assert verdict(wire.body(name)) == expected


def test_the_corpus_and_its_table_name_the_same_files() -> None:
    assert {path.stem for path in (wire.HERE / "bodies").iterdir()} == wire.bodies().keys()


def test_a_malformed_body_is_called_malformed_and_never_denied() -> None:
    """BL-027."""
    for name, expected in wire.bodies().items():
        refusal = refusal_of(wire.body(name))
        assert (refusal is None) == (expected == "taken")
        assert refusal is None or (refusal.reason is Reason.MALFORMED_CALL and refusal.answer.http == 400)


def test_what_is_taken_is_read_to_the_last_member() -> None:
    assert parse_message(DENIED) == jsonrpc.Request(1, "tools/call", {"name": "delete", "arguments": {"path": "/etc"}})
    assert parse_message(b'{"jsonrpc":"2.0","method":"m","params":{}}') == jsonrpc.Notification("m", {})
    assert parse_message(b'{"jsonrpc":"2.0","id":"a","result":null}') == jsonrpc.Response("a")
    error = {"code": 1, "message": "m", "data": [1]}
    assert parse_message(json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}).encode()) == jsonrpc.Response(
        1, error=error
    )


# --- one key, one spelling --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", range(1, 21))
@pytest.mark.parametrize(("opening", "closing"), [('{"a":', "}"), ("[", "]"), ('[{"b":1},{"a":', "}]")])
def test_a_key_twice_is_refused_at_every_depth(depth: int, opening: str, closing: str) -> None:
    """BL-076."""
    nesting = depth if opening.count("{") + opening.count("[") == 1 else depth // 2
    inner = opening * nesting + '{"name":"read","name":"delete"}' + closing * nesting
    refusal = refusal_of(envelope(params={"arguments": {"x": "@"}}).replace(b'"@"', inner.encode()))
    assert refusal is not None
    assert (refusal.code, "twice" in refusal.detail) == (jsonrpc.PARSE_ERROR, True)


def variants(key: str) -> set[str]:
    spelled = {key.upper(), key.title(), key.swapcase(), key.capitalize(), key.lower(), key.casefold()}
    spelled |= {key[:at] + key[at].swapcase() + key[at + 1 :] for at in range(len(key))}
    spelled |= {key.replace("s", "\u017f"), key.replace("k", "\u212a"), key.replace("K", "\u212a")}
    return spelled - {key}


@pytest.mark.parametrize("key", sorted(jsonrpc.ENVELOPE))
def test_no_other_spelling_of_an_envelope_key_is_taken(key: str) -> None:
    """BL-062."""
    message = json.loads(DENIED)
    for variant in variants(key):
        beside = {**message, variant: message.get(key, {})}
        alone = {k: v for k, v in beside.items() if k != key}
        assert (
            verdict(json.dumps(beside).encode()) == verdict(json.dumps(alone).encode()) == str(jsonrpc.INVALID_REQUEST)
        )


@pytest.mark.parametrize("key", sorted(jsonrpc.PARAMS))
def test_no_other_spelling_of_a_parameter_is_taken(key: str) -> None:
    """BL-062."""
    for variant in variants(key):
        assert verdict(envelope(params={variant: {}})) == str(jsonrpc.INVALID_REQUEST)
        assert verdict(envelope(params={key: {}, variant: {}})) == str(jsonrpc.INVALID_REQUEST)


@pytest.mark.parametrize("key", sorted(jsonrpc.META))
def test_no_other_spelling_of_a_metadata_key_is_taken(key: str) -> None:
    for variant in variants(key):
        assert verdict(envelope(params={"_meta": {variant: {}}})) == str(jsonrpc.INVALID_REQUEST)


def test_no_two_known_keys_differ_only_in_case() -> None:
    for known in (jsonrpc.ENVELOPE, jsonrpc.PARAMS, jsonrpc.META):
        assert len({key.casefold() for key in known}) == len(known)


# --- one message ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 10_000])
@pytest.mark.parametrize("blanks", [b"", b" ", b"\r\n\t "])
def test_a_batch_is_refused_however_long(count: int, blanks: bytes) -> None:
    """BL-001."""
    refusal = refusal_of(blanks + b"[" + b",".join([b'{"jsonrpc":"2.0"}'] * count) + b"]")
    assert refusal is not None
    assert refusal.code == jsonrpc.INVALID_REQUEST
    assert "batch" in refusal.detail


# --- shapes -----------------------------------------------------------------------------------------------------------

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 1.0, 1.5, -0.5, 2**53 - 1, 2**53, -(2**53) - 1, -(2**63), 2**64 - 1),
    *("", "2.0", "2.0 ", "tools/call", "x" * 128, "x" * 129, "x" * 256, "x" * 257, "é", "a b"),
    *([], [1], ["2.0"], [{}], {}, {"a": 1}, {"name": "x"}),
)


def is_id(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= 256
    return type(value) is int and -(2**63) <= value < 2**64


FIELDS: dict[str, Callable[[Any], bool]] = {
    "jsonrpc": lambda value: value == "2.0",
    "id": is_id,
    "method": lambda value: isinstance(value, str) and 1 <= len(value) <= 128,
    "params": lambda value: value is None or isinstance(value, dict),
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", VALUES, ids=lambda value: json.dumps(value)[:30])
def test_a_field_takes_its_own_type_and_no_other(field: str, value: Any) -> None:
    expected = "taken" if FIELDS[field](value) else str(jsonrpc.INVALID_REQUEST)
    assert verdict(envelope(**{field: value})) == expected


def test_fields_of_two_wrong_types_are_no_less_refused() -> None:
    for (one, fits_one), (other, fits_other) in itertools.combinations(FIELDS.items(), 2):
        for first, second in itertools.product(VALUES, repeat=2):
            taken = fits_one(first) and fits_other(second)
            assert (verdict(envelope(**{one: first, other: second})) == "taken") == taken


@pytest.mark.parametrize("value", [None, True, 0, 1.5, "", "x", [], [1]], ids=json.dumps)
def test_metadata_is_an_object(value: Any) -> None:
    assert verdict(envelope(params={"_meta": value})) == str(jsonrpc.INVALID_PARAMS)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: json.dumps(value)[:30])
def test_an_id_comes_back_as_it_was(value: Any) -> None:
    if is_id(value):
        message = parse_message(envelope(id=value))
        assert json.loads(jsonrpc.encode_message(message))["id"] == value


@pytest.mark.parametrize(
    ("envelope", "expected"),
    [*TABLES["envelopes"], ({"jsonrpc": "2.0", "id": 2**64 - 1, "method": "m", "params": []}, 2**64 - 1)],
)
def test_the_id_of_a_faulty_request_is_known(envelope: Any, expected: Any) -> None:
    """A refusal with another id leaves its client waiting."""
    assert jsonrpc.request_id_in(envelope) == expected


@pytest.mark.parametrize("missing", ["jsonrpc", "method"])
def test_a_message_without_a_needed_field_is_refused(missing: str) -> None:
    message = {key: value for key, value in json.loads(DENIED).items() if key != missing}
    assert verdict(json.dumps(message).encode()) == str(jsonrpc.INVALID_REQUEST)


# --- numbers ----------------------------------------------------------------------------------------------------------

BOUNDARY = (
    *("0", "-0", "1", "-1", "9007199254740991", "9007199254740992", "9007199254740993", "-9007199254740993"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "18446744073709551615"),
)


@pytest.mark.parametrize("digits", BOUNDARY)
def test_an_integer_of_64_bits_goes_on_unchanged(digits: str) -> None:
    message = parse_message(envelope(params={"n": "@"}).replace(b'"@"', digits.encode()))
    assert f'"n":{int(digits)}'.encode() in jsonrpc.encode_message(message)


@pytest.mark.parametrize(
    "digits", ["18446744073709551616", "-9223372036854775809", "1" + "0" * 20, "9" * 4301, "1" * 100_000]
)
def test_a_longer_integer_is_malformed_and_not_a_failure_of_ours(digits: str) -> None:
    assert verdict(envelope(params={"n": "@"}).replace(b'"@"', digits.encode())) == str(jsonrpc.PARSE_ERROR)


# --- depth and size ---------------------------------------------------------------------------------------------------

NESTS = TABLES["nests"]


@pytest.mark.parametrize("shape", NESTS)
@pytest.mark.parametrize("depth", [30, 31, 32, 33, 34, 63, 64, 65, 66])
def test_nesting_ends_at_thirty_two(shape: str, depth: int) -> None:
    opening, middle, closing = NESTS[shape]
    levels = 2 if shape.startswith("mixed") else 1
    text = opening * (depth // levels) + middle + closing * (depth // levels)
    true_depth = depth // levels * levels + (1 if shape == "beside closed ones" else 0)
    if true_depth <= 32:
        assert jsonrpc.parse_json(text.encode()) == json.loads(text)
    else:
        with pytest.raises(Refusal, match="deeper") as caught:
            jsonrpc.parse_json(text.encode())
        assert caught.value.code == jsonrpc.PARSE_ERROR


@pytest.mark.parametrize("depth", [1_000, 100_000])
@pytest.mark.parametrize("shape", [*NESTS, "never closed", "closed only", "crossed"])
def test_nesting_without_end_is_refused_before_it_is_parsed(shape: str, depth: int) -> None:
    unpaired = {"never closed": "[" * depth, "closed only": "]" * depth, "crossed": "[" * depth + "}" * depth}
    opening, middle, closing = NESTS.get(shape, ("", "", ""))
    text = unpaired.get(shape, opening * depth + middle + closing * depth)
    assert verdict(text.encode()) == str(jsonrpc.PARSE_ERROR)


@pytest.mark.parametrize("text", ['[{"\\"' * 100_000, "a:b,c\n" * 30_000])
def test_brackets_and_punctuation_inside_of_strings_are_text(text: str) -> None:
    assert parse_message(envelope(params={"a": text})) == jsonrpc.Request(1, "tools/call", {"a": text})


def test_backslashes_do_not_hide_the_end_of_a_string() -> None:
    hidden = b'{"a":"' + b"\\\\" * 40 + b'","b":' + b"[" * 40 + b"]" * 40 + b"}"
    assert verdict(hidden) == str(jsonrpc.PARSE_ERROR)
    shown = b'{"a":"' + b"\\\\" * 40 + b'\\"' + b"[" * 40 + b'"}'
    assert jsonrpc.parse_json(shown) == {"a": "\\" * 40 + '"' + "[" * 40}


def test_keys_end_at_ten_thousand_and_values_at_a_hundred_thousand() -> None:
    def keys(count: int) -> bytes:
        return json.dumps({str(number): ":,[{" for number in range(count)}).encode()

    def keys_in_many(count: int) -> bytes:
        return json.dumps([{"a": 0}] * count).encode()

    def values(count: int) -> bytes:
        return json.dumps([0] * count).encode()

    for build, most in ((keys, jsonrpc.MAX_KEYS), (keys_in_many, jsonrpc.MAX_KEYS), (values, jsonrpc.MAX_VALUES)):
        assert len(jsonrpc.parse_json(build(most))) == most
        with pytest.raises(Refusal, match="more than"):
            jsonrpc.parse_json(build(most + 1))


HOSTILE: dict[str, bytes] = {
    "openings": b"[" * MEBIBYTE,
    "pairs": b"[" * (MEBIBYTE // 2) + b"]" * (MEBIBYTE // 2),
    "flat pairs": b"[" + b",".join([b"[]"] * (MEBIBYTE // 3)) + b"]",
    "teeth": b"[" + b",".join([b"[" * 31 + b"]" * 31] * (MEBIBYTE // 63)) + b"]",
    "teeth that grow": (b"[" * 16 + b"]" * 15) * (MEBIBYTE // 31),
    "quotes": b"[" * 40 + b'"' * MEBIBYTE,
    "backslashes": b"[" * 40 + b'"' + b"\\" * MEBIBYTE,
    "escaped quotes": b"[" * 40 + b'"' + b'\\"' * (MEBIBYTE // 2),
    "small strings": b"[" + b",".join([b'""'] * (MEBIBYTE // 3)) + b"]",
    "small numbers": b"[" + b",".join([b"1"] * (MEBIBYTE // 2)) + b"]",
    "small floats": b"[" + b",".join([b"1.5"] * (MEBIBYTE // 4)) + b"]",
    "one integer": b"[" + b"1" * MEBIBYTE + b"]",
    "one float": b"[0." + b"1" * MEBIBYTE + b"]",
    "one exponent": b"[1e" + b"1" * MEBIBYTE + b"]",
    "keys": json.dumps({str(number): 0 for number in range(90_000)}).encode(),
    "escapes": b'["' + b"\\u0041" * (MEBIBYTE // 6) + b'"]',
    "escaped noughts": b'["' + b"\\\\u0000" * (MEBIBYTE // 7) + b'"]',
    "blanks": b" " * MEBIBYTE + b"1",
    "colons": b":" * MEBIBYTE,
    "commas": b"," * MEBIBYTE,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_mebibyte_takes_no_more_than_fifty_harmless_ones(kind: str) -> None:
    harmless = json.dumps({"a": ["x" * 1000] * 1000}).encode()
    allowed_s = max(50 * min(_seconds(json.loads, harmless) for _ in range(3)), 0.05)
    assert any(_seconds(verdict, HOSTILE[kind]) < allowed_s for _ in range(3))


def _seconds(work: Callable[[bytes], object], raw: bytes) -> float:
    started = time.process_time()
    work(raw)
    return time.process_time() - started


def test_an_answer_of_an_upstream_is_bounded_and_otherwise_read_as_it_is_spelt() -> None:
    assert jsonrpc.parse_answer(b'{"a":1,"A":2,"a":3}') == {"a": 3, "A": 2}
    for count, build in ((jsonrpc.MAX_ANSWER_DEPTH, lambda n: b"[" * n + b"]" * n), (jsonrpc.MAX_ANSWER_VALUES, _flat)):
        jsonrpc.parse_answer(build(count))
        with pytest.raises(Refusal, match=r"deeper|more than"):
            jsonrpc.parse_answer(build(count + 1))
    for raw in (b"", b"{", b"NaN", b'"\\ud800"', b"\xff", b"\xef\xbb\xbf{}", DENIED.decode().encode("utf-16")):
        with pytest.raises(Refusal):
            jsonrpc.parse_answer(raw)


def _flat(count: int) -> bytes:
    return b"[" + b"0," * (count - 1) + b"0]"


# --- UTF-8 and nothing else -------------------------------------------------------------------------------------------


def encoded(codec: str) -> bytes:
    """The denied call as any codec of Python writes it, those from bytes to bytes and from text to text too."""
    for given in (DENIED.decode(), DENIED):
        try:
            written = codecs.encode(given, codec)
        except (LookupError, TypeError, UnicodeError, ValueError):
            continue
        return written if isinstance(written, bytes) else str(written).encode()
    return b""  # not on this system


@pytest.mark.parametrize("codec", sorted(set(encodings.aliases.aliases.values())))
def test_a_denied_call_in_another_encoding_is_refused_or_the_same_bytes(codec: str) -> None:
    raw = encoded(codec)
    assert raw == DENIED or verdict(raw) in (str(jsonrpc.PARSE_ERROR), str(jsonrpc.INVALID_REQUEST))


def test_most_encodings_of_python_could_be_tried() -> None:
    tried = [encoded(codec) for codec in set(encodings.aliases.aliases.values())]
    assert len([raw for raw in tried if raw]) > 90
    assert len([raw for raw in tried if raw not in (b"", DENIED)]) > 15


def test_no_byte_after_the_message_nor_before_it_passes_but_blanks() -> None:
    for around in (lambda byte: DENIED + byte, lambda byte: byte + DENIED):
        passed = {byte for byte in range(256) if verdict(around(bytes([byte]))) == "taken"}
        assert passed == set(b" \t\r\n")


# --- what is told ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, expected in wire.bodies().items() if expected != "taken"])
def test_a_refusal_names_no_value_of_the_body(name: str) -> None:
    refusal = refusal_of(wire.body(name))
    assert refusal is not None
    assert not any(value in refusal.detail for value in ("delete", "read", "evil", "acme", "vendor", "extra", "broken"))
