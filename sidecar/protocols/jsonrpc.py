"""Parses JSON-RPC messages strictly, so that all readers see the same message.

JSON that two parsers can read differently is the classic way around a gateway, so the caller's bytes are read once,
strictly, and the forwarded message is serialised from the parsed value. Refused: any encoding but UTF-8, a byte order
mark, more than one value, arrays at the top, a key twice at any depth, a key of a message, its `params` or its `_meta`
that differs from another or a known one only in case, integers beyond 64 bits, numbers that are not finite, lone
surrogates, NUL, and nesting or numbers of keys and values beyond a bound.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from sidecar.errors import Reason, Refusal

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602

MAX_DEPTH = 32  # MCP's own messages reach a depth of seven
MAX_KEYS = 10_000
MAX_VALUES = 100_000  # later steps (schema, digest) take microseconds for each value
MAX_ANSWER_DEPTH = 100  # of an upstream's answer; some clients cannot parse much deeper nesting
# Of an upstream's answer. Each value takes up to 100 bytes, and up to 0.25 us, in which no other task runs.
MAX_ANSWER_VALUES, MAX_ANSWER_KEYS = 200_000, 100_000
MAX_ID_CHARS = 256
INT64_MIN, UINT64_MAX = -(2**63), 2**64 - 1  # integers up to 64 bits pass unchanged

ENVELOPE = frozenset({"jsonrpc", "id", "method", "params", "result", "error"})
# Keys of `params` that the sidecar or an upstream decides on. A variant in another case would reach only a lenient
# upstream.
PARAMS = frozenset(
    {"name", "arguments", "uri", "ref", "argument", "context", "cursor", "_meta", "protocolVersion", "capabilities",
     "clientInfo", "level", "notifications", "inputResponses", "requestState", "requestId", "progressToken", "task",
     "taskId"}
)  # fmt: skip
_DISTINCT = PARAMS | {"message", "configuration", "metadata", "tenant", "id"}  # with A2A's; no two differ in case only
# Keys of `_meta` that MCP defines; the others are the caller's own.
META = frozenset(
    {
        "progressToken",
        "io.modelcontextprotocol/protocolVersion",
        "io.modelcontextprotocol/clientCapabilities",
        "io.modelcontextprotocol/clientInfo",
        "io.modelcontextprotocol/logLevel",
        "io.modelcontextprotocol/related-task",
        "io.modelcontextprotocol/subscriptionId",
    }
)
_new = tuple.__new__  # for every call's tuples: their own constructors cost three times as much
_BACKSLASH = ord("\\")
_ONE_BRACKET = bytes.maketrans(b"{}", b"[]")
_NOT_STRUCTURE = bytes(set(range(256)) - set(b"{}[],:"))
_DIGITS = bytes(ord("0") if byte in b"0123456789" else ord("e") if byte in b"eE" else 32 for byte in range(256))

Spellings = Mapping[str, str]
"""Known keys, by their case-folded form: a reader that ignores case takes every variant for the key."""

Id = str | int


class Request(NamedTuple):
    id: Id
    method: str
    params: dict[str, Any]


class Notification(NamedTuple):
    method: str
    params: dict[str, Any]


class Response(NamedTuple):
    """`error` is None in a successful response, whose `result` may be None (null). `id` is None only in an error about
    an unreadable message."""

    id: Id | None
    result: Any = None
    error: dict[str, Any] | None = None


Message = Request | Notification | Response


def message_from(envelope: object) -> Message:
    """Returns a parsed JSON value as one message. Raises Refusal(MALFORMED_CALL) if its shape is not that of a request,
    a notification or a response."""
    if not isinstance(envelope, dict):
        # MCP 2025-03-26 had batches. They are not supported: no later revision has them, and a batch was a way around
        # policy.
        batch = isinstance(envelope, list)
        raise malformed("JSON-RPC batches are not supported" if batch else "a JSON-RPC message is an object")
    if not ENVELOPE.issuperset(envelope):
        refuse_variants(envelope, _ENVELOPE, "the message")
        raise malformed("the message has a member that JSON-RPC does not know")
    if envelope.get("jsonrpc") != "2.0":
        raise malformed('jsonrpc must be "2.0"')
    given = envelope.get("id")
    if "method" in envelope:
        method, params = envelope["method"], envelope.get("params")
        if "result" in envelope or "error" in envelope:
            raise malformed("a message is a call or a response, never both")
        if not isinstance(method, str) or not method or len(method) > 128:
            raise malformed("method must be a string of 1 to 128 characters")
        if not isinstance(params, dict):
            if params is not None:  # some libraries write `"params": null` for no parameters
                raise malformed("params must be an object")
            params = {}
        if not _DISTINCT.issuperset(params):
            refuse_variants(params, _PARAMS, "params")
        if "_meta" in params:
            meta = params["_meta"]
            if not isinstance(meta, dict):
                raise malformed("params._meta must be an object", INVALID_PARAMS)
            if not META.issuperset(meta):
                refuse_variants(meta, _META, "params._meta")
        if "id" not in envelope:
            return Notification(method, params)
        message: Request | Response = _new(Request, (given, method, params))
    else:
        result, error = envelope.get("result"), envelope.get("error")
        if result is None or error is not None or "params" in envelope:
            _check_outcome(envelope)
            if given is None and error is not None:
                return Response(None, error=error)
        message = _new(Response, (given, result, error))
    # in Python, a bool is an int
    if type(given) is int:
        if INT64_MIN <= given <= UINT64_MAX:
            return message
    elif isinstance(given, str) and len(given) <= MAX_ID_CHARS:
        return message
    raise malformed("id must be a string of at most 256 characters or an integer of at most 64 bits")


def id_in(envelope: object) -> Id | None:
    """The id of a parsed JSON value, which may not be a valid message, so that its sender gets an answer; None if it
    has no valid id."""
    if not isinstance(envelope, dict) or "id" not in envelope:
        return None
    try:
        answer = message_from({"jsonrpc": "2.0", "id": envelope["id"], "result": None})
    except Refusal:
        return None
    return answer.id if isinstance(answer, Response) else None


def request_id_in(envelope: object) -> Id | None:
    """The id of a request, valid or not; None if it has no valid id. The id of a response was chosen by its receiver,
    and is not returned."""
    if isinstance(envelope, dict) and ("method" in envelope or envelope.keys().isdisjoint(("result", "error"))):
        return id_in(envelope)
    return None


def parse_json(raw: bytes, *, max_keys: int = MAX_KEYS, max_values: int = MAX_VALUES) -> Any:
    """One JSON value, parsed strictly, as the module describes. Raises Refusal(MALFORMED_CALL) for any other bytes."""
    # A body of at most `max_keys` bytes has no room for too many keys or values. Removing brackets, up to the bound,
    # shortens the body by their number; that takes a third of the time of counting them. As in `parse_answer`.
    over = MAX_DEPTH + 1
    if len(raw) > max_keys or len(raw) - len(raw.replace(b"{", b"", over).replace(b"[", b"", over)) >= over:
        _refuse_excess(raw, MAX_DEPTH, max_keys, max_values)
    # If the sidecar's own serialisation of a value gives these exact bytes, all readers interpret them in the same way.
    # Most clients write this form, which is parsed at a fifth of the cost; escapes need the strict parser, and blanks
    # after colons are not in this form.
    if (_BACKSLASH not in raw or b"\\u" not in raw) and b'": ' not in raw[:32]:
        try:
            value = orjson.loads(raw)
            if orjson.dumps(value) == raw:
                return value
        except orjson.JSONDecodeError:
            pass  # the strict parser reports the fault
    return _parsed_strictly(raw)


def _parsed_strictly(raw: bytes) -> Any:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _unparsable(f"the body is not UTF-8 (byte {error.start})") from None
    try:
        value = (_DECODER if _is_plain(raw) else _CHECKING).decode(text)
    except json.JSONDecodeError as error:
        raise _unparsable(f"the body is not one JSON value ({error.msg}, character {error.pos})") from None
    if "\\u" in text:
        _refuse_escapes(raw, text, value)
    return value


def parse_answer(raw: bytes) -> Any:
    """Parses an upstream's JSON. Raises Refusal(MALFORMED_CALL) for bytes that are not JSON, or that are beyond the
    bounds on depth, keys and values. The further checks of `parse_json` are not made."""
    over = MAX_ANSWER_DEPTH + 1
    if len(raw) > MAX_ANSWER_KEYS or len(raw) - len(raw.replace(b"{", b"", over).replace(b"[", b"", over)) >= over:
        _refuse_excess(raw, MAX_ANSWER_DEPTH, MAX_ANSWER_KEYS, MAX_ANSWER_VALUES)
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise _unparsable("it is not JSON") from None


def compact_json(value: object, option: int | None = None) -> bytes:
    """A copy of the result of `orjson.dumps`, for storage: the result itself takes at least 4 KiB, however short it
    is."""
    return bytes(memoryview(orjson.dumps(value, option=option)))


def encode_request(request: Request) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": request.id, "method": request.method, "params": request.params})


def encode_notification(notification: Notification) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "method": notification.method, "params": notification.params})


def encode_response(response: Response) -> bytes:
    member = ("result", response.result) if response.error is None else ("error", response.error)
    return orjson.dumps({"jsonrpc": "2.0", "id": response.id, member[0]: member[1]})


def encode_message(message: Message) -> bytes:
    if isinstance(message, Response):
        return encode_response(message)
    return encode_request(message) if isinstance(message, Request) else encode_notification(message)


def malformed(detail: str, code: int = INVALID_REQUEST) -> Refusal:
    """The refusal of a call whose shape is wrong. `detail` is the sidecar's text and contains no value of the call."""
    return Refusal(Reason.MALFORMED_CALL, detail, code=code)


def spellings(known: Iterable[str]) -> Spellings:
    """The known keys of one object by their case-folded form, for `refuse_variants`."""
    return {key.casefold(): key for key in known}


def refuse_variants(keys: Iterable[str], known: Spellings, where: str) -> None:
    """Raises Refusal(MALFORMED_CALL) if two keys of one object differ only in case, or a key differs only in case from
    a known one. `where` names the object."""
    seen = set()
    for key in keys:
        fold = key.casefold()
        if fold in seen or known.get(fold, key) != key:
            raise malformed(f"{where} has a key that differs from another only in case")
        seen.add(fold)


_ENVELOPE, _PARAMS, _META = spellings(ENVELOPE), spellings(PARAMS), spellings(META)


def _unparsable(detail: str) -> Refusal:
    return malformed(detail, PARSE_ERROR)


def _check_outcome(envelope: dict[str, Any]) -> None:
    """Checks the members of a message without a method. Raises Refusal(MALFORMED_CALL)."""
    result, error = envelope.get("result"), envelope.get("error")
    # some libraries write both members of every response, one of them null
    has_result = "result" in envelope and (result is not None or "error" not in envelope)
    has_error = "error" in envelope and (error is not None or "result" not in envelope)
    if "params" in envelope or has_result is has_error:
        raise malformed("a message has a method, or exactly one of result and error")
    if not has_error:
        return
    if not isinstance(error, dict) or not isinstance(error.get("message"), str) or type(error.get("code")) is not int:
        raise malformed("error must be an object with an integer code and a string message")


def _refuse_excess(raw: bytes, max_depth: int, max_keys: int, max_values: int) -> None:
    """Refuses JSON that is nested too deep, or contains too many keys or values, before a parser builds anything."""
    # Every count is an upper bound, strings included; nearly every call is within it. Only the others are counted
    # exactly.
    opened, colons, commas = raw.count(b"{") + raw.count(b"["), raw.count(b":"), raw.count(b",")
    if opened <= max_depth and colons <= max_keys and opened + commas <= max_values:
        return
    # Up to the first fault, where a parser stops, it finds the same beginnings and ends of strings.
    unescaped = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    if unescaped.count(b'"') > 2 * (max_keys + max_values):  # every string is a key or a value
        raise _unparsable(f"the body has more than {max_values} values")
    structure = b"".join(unescaped.split(b'"')[::2]).translate(_ONE_BRACKET, _NOT_STRUCTURE)
    if structure.count(b":") > max_keys:
        raise _unparsable(f"the body has more than {max_keys} keys")
    brackets = structure.translate(None, b":,")
    if structure.count(b",") + len(brackets) // 2 > max_values:
        raise _unparsable(f"the body has more than {max_values} values")
    for _ in range(max_depth):  # each pass removes the innermost level; there is one kind of bracket
        brackets = brackets.replace(b"[]", b"")
    if brackets:
        raise _unparsable(f"the body is nested deeper than {max_depth}, or its brackets do not match")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _unparsable("the body has a key twice in one object")
    return members


def _bounded_int(digits: str) -> int:
    # 20 characters are enough for every 64-bit integer; more would also be slow to read.
    if len(digits) <= 20 and INT64_MIN <= (value := int(digits)) <= UINT64_MAX:
        return value
    raise _unparsable("the body has an integer beyond 64 bits")


def _finite_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _unparsable("the body has a number that is not finite")
    return value


def _no_constant(name: str) -> float:
    raise _unparsable(f"the body has {name}, which is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
_CHECKING = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_bounded_int, parse_float=_finite_float, parse_constant=_no_constant
)


def _is_plain(raw: bytes) -> bool:
    """Whether no number can be out of bounds: none has 19 digits in a row, and either none has an exponent or orjson,
    which refuses numbers that are not finite, accepts the text. Checking the numbers one by one would take half a
    microsecond for each."""
    digits = raw.translate(_DIGITS)
    return b"0" * 19 not in digits and (b"0e" not in digits or _orjson_reads(raw))


def _orjson_reads(raw: bytes) -> bool:
    try:
        orjson.loads(raw)
    except orjson.JSONDecodeError:
        return False
    return True


def _refuse_escapes(raw: bytes, text: str, value: object) -> None:
    if not _orjson_reads(raw):
        raise _unparsable("the body has a lone surrogate")
    if "\\u0000" in text and has_nul(value):
        raise _unparsable("the body has a NUL character")


def has_nul(value: object) -> bool:
    """Whether a JSON value contains a NUL, which ends a text for some readers."""
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any("\0" in key or has_nul(item) for key, item in value.items())
    return isinstance(value, list) and any(map(has_nul, value))
