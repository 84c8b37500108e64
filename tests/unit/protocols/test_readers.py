"""Do other readers see in our serialisation what we decided on? Python's json, orjson and JavaScript are the judges.

JavaScript runs in one Node process for the whole file, a message a line; without Node on PATH its tests are skipped.
"""

import base64
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given, strategies as st

from sidecar.errors import Refusal
from sidecar.protocols import jsonrpc
from sidecar.protocols.jsonrpc import ENVELOPE, PARAMS, Notification, Request, encode_message, parse_json
from tests import wire
from tests.drawn import containers
from tests.unit.protocols.asking import parse_message

NODE = """
require("readline").createInterface({input: process.stdin}).on("line", line => {
  const message = JSON.parse(Buffer.from(line, "base64").toString("utf8"));
  const params = message.params ?? {};
  console.log(JSON.stringify([message.id, message.method, params]).replace(/[\\u007f-\\uffff]/g,
    c => "\\\\u" + c.charCodeAt(0).toString(16).padStart(4, "0")));
});
"""

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(st.none() | st.booleans() | numbers | texts, containers(texts, 3), max_leaves=12)
ids = st.integers(-(2**53) + 1, 2**53 - 1) | texts


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    """Calls whose parameters are mostly those that MCP knows, with any arguments."""
    known = st.sampled_from(sorted(PARAMS - {"_meta"}))
    params: dict[str, Any] = draw(st.dictionaries(known, values, max_size=4))
    if draw(st.booleans()):
        params |= {"name": draw(texts), "arguments": draw(st.dictionaries(texts, values, max_size=4))}
    message = {"jsonrpc": "2.0", "method": draw(texts.filter(bool)), "params": params}
    return message | ({"id": draw(ids)} if draw(st.booleans()) else {})


def same(one: object, other: object) -> bool:
    """Equal to the last digit, and of the same type: to Python 1, 1.0 and True are equal."""
    return repr(one) == repr(other)


def read(value: Any) -> Any:
    """A value in the order of its keys, which some readers do not keep."""
    if isinstance(value, dict):
        return {key: read(value[key]) for key in sorted(value)}
    return [read(item) for item in value] if isinstance(value, list) else value


@given(calls(), st.booleans(), st.sampled_from([None, 1]))
def test_what_was_decided_on_is_what_python_readers_see(message: dict[str, Any], ascii_only: bool, indent: int) -> None:
    raw = json.dumps(message, ensure_ascii=ascii_only, indent=indent).encode()
    parsed = parse_message(raw)
    assert isinstance(parsed, Request | Notification)
    decided = {"method": parsed.method, "params": parsed.params}
    decided |= {"id": parsed.id} if isinstance(parsed, Request) else {}
    assert same(read(decided), read({key: value for key, value in message.items() if key != "jsonrpc"}))
    written = encode_message(parsed)
    for reader in (json.loads, orjson.loads):
        assert same(read(reader(written)), read({**decided, "jsonrpc": "2.0"}))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Messages with a few bytes put in, taken out, doubled or swapped: nearly JSON, and sometimes JSON."""
    raw = bytearray(json.dumps(draw(calls()), ensure_ascii=draw(st.booleans())).encode())
    signs = st.sampled_from([*b'{}[]",:\\u0\n +-.eE1tn/', 0, 0xC0, 0xED, 0xFF])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(raw) - 1))
        match draw(st.sampled_from(["put", "take", "double", "replace"])):
            case "put":
                raw.insert(at, draw(signs))
            case "take" if len(raw) > 1:
                del raw[at]
            case "double":
                raw[at:at] = raw[at : at + draw(st.integers(1, 30))]
            case _:
                raw[at] = draw(signs)
    return bytes(raw)


@given(damaged() | st.binary(max_size=60))
def test_whatever_we_take_other_readers_take_for_the_same(raw: bytes) -> None:
    try:
        value = parse_json(raw)
    except Refusal:
        return
    assert same(value, json.loads(raw))
    assert same(value, orjson.loads(raw))


@given(damaged() | st.binary(max_size=60))
def test_whatever_comes_is_a_message_or_a_refusal(raw: bytes) -> None:
    try:
        encode_message(parse_message(raw))
    except Refusal as refusal:
        assert refusal.answer.http == 400


@given(st.sampled_from(sorted(ENVELOPE - {"jsonrpc"})), values)
def test_an_envelope_member_of_any_value_is_taken_whole_or_refused(member: str, value: Any) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "m", member: value}
    try:
        parsed = parse_message(json.dumps(message).encode())
    except Refusal:
        return
    if message.get("params") is None:  # absent, and null, which some libraries write for it
        message["params"] = {}
    assert same(read(json.loads(encode_message(parsed))), read(message))


class Node:
    """JavaScript's view of messages."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def sees(self, raw: bytes) -> list[Any]:
        """Id, method and parameters; every number a float, as it has no others."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(base64.b64encode(raw) + b"\n")
        stdin.flush()
        seen: list[Any] = json.loads(stdout.readline(), parse_int=float)
        return seen


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    binary = shutil.which("node")
    if binary is None:
        pytest.skip("node is not on PATH")
    with subprocess.Popen([binary, "-e", NODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield Node(process)
        assert process.stdin is not None
        process.stdin.close()


@given(message=calls())
def test_what_was_decided_on_is_what_javascript_sees(node: Node, message: dict[str, Any]) -> None:
    parsed = parse_message(json.dumps(message).encode())
    assert isinstance(parsed, Request | Notification)
    # Numbers are equal and not alike: JavaScript writes 1.0 as 1 and -0.0 as 0.
    seen = node.sees(encode_message(parsed))
    assert seen == [parsed.id if isinstance(parsed, Request) else None, parsed.method, parsed.params]


@pytest.mark.parametrize("name", [name for name, verdict in wire.bodies().items() if verdict == "taken"])
def test_javascript_sees_the_corpus_as_we_do(node: Node, name: str) -> None:
    parsed = parse_message(wire.body(name))
    if isinstance(parsed, Request):
        id_, method, params = node.sees(encode_message(parsed))
        assert (id_, method) == (parsed.id, parsed.method)
        assert params == json.loads(json.dumps(parsed.params), parse_int=float)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(), containers(st.text(), None), max_leaves=12
    )
)
def test_what_is_written_as_we_write_it_is_read_as_strictly(value: object) -> None:
    """The short way of `parse_json` gives what the strict parser gives, or leaves it to that one."""
    raw = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    assert _alike(_outcome(jsonrpc.parse_json, raw), _outcome(jsonrpc._parsed_strictly, raw))


written = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "-"]),
    st.integers(0, 10**31) | st.integers(2**63 - 2, 2**64 + 1) | st.just(10**310),
    st.just("") | st.integers(0, 10**30).map(".{}".format),
    st.just("") | st.builds("{}{}".format, st.sampled_from(["e", "E+", "e-"]), st.integers(0, 9999)),
)


@given(st.lists(written))
def test_numbers_that_are_not_asked_one_by_one_are_read_as_if_they_were(numbers: list[str]) -> None:
    raw = f"[{', '.join(numbers)}]".encode()
    if jsonrpc._is_plain(raw):
        assert _alike(jsonrpc._DECODER.decode(raw.decode()), jsonrpc._CHECKING.decode(raw.decode()))


TWO_WAYS = (
    *(b'{"a":1,"a":1}', b'{"a":{"b":1,"b":2}}', b'[{"a":1,"a":1}]', b'{"a": 1}', b"18446744073709551616", b"1e400"),
    *(b"NaN", b"-0", b"1.10", b'"\\u0061"', b'"\\/"', b'"\xed\xa0\x80"', b"\xef\xbb\xbf1", b"1 ", b"1 1", b""),
)


@pytest.mark.parametrize("raw", TWO_WAYS)
def test_whatever_could_be_read_in_two_ways_is_read_as_strictly(raw: bytes) -> None:
    assert _alike(_outcome(jsonrpc.parse_json, raw), _outcome(jsonrpc._parsed_strictly, raw))


def _outcome(read: Callable[[bytes], object], raw: bytes) -> object:
    try:
        return read(raw)
    except Refusal as refusal:
        return refusal.detail


def _alike(one: object, other: object) -> bool:
    """Equal, and of the same types all the way down: to Python 1, 1.0 and True are equal."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    return type(one) is type(other) and one == other
