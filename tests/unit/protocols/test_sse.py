"""Does an event stream say the same, however it was cut on its way, and however large its sender makes it?"""

import gc
import re
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from sidecar.errors import Reason, Refusal
from sidecar.protocols import sse
from tests import wire

KIBIBYTE, MEBIBYTE = 2**10, 2**20


def events_of(*chunks: bytes, bound: int = sse.MAX_LINE_BYTES) -> list[sse.SseEvent]:
    parser = sse.SseParser(bound)
    return [event for chunk in chunks for event in parser.feed(chunk)]


def whatwg(raw: bytes) -> list[sse.SseEvent]:
    """The judge: the whole stream at once, as WHATWG HTML 9.2.6 tells it; but events without data count, too."""
    lines = re.split("\r\n|\n|\r", raw.decode().removeprefix("\ufeff"))[:-1]
    events: list[sse.SseEvent] = []
    data, name, identity, retry = "", "", None, None
    for line in lines:
        field, colon, value = line.partition(":")
        value = value.removeprefix(" ")
        if line == "":
            event = sse.SseEvent(data[:-1] if data else None, identity, name, retry)
            events += [event] if event != sse.SseEvent() else []
            data, name, identity, retry = "", "", None, None
        elif field == "" and colon:
            events.append(sse.COMMENT)
        elif field == "data":
            data += value + "\n"
        elif field == "event":
            name = value
        elif field == "id" and "\0" not in value:
            identity = value
        elif field == "retry" and re.fullmatch("[0-9]{1,9}", value):
            retry = min(int(value), sse.MAX_RETRY_MS)
    return events


names = st.sampled_from(["data", "event", "id", "retry", "Data", "data ", "", "x", "dat", "\ufeffdata"])
contents = st.sampled_from(["", "1", "1000", "x", " x", "  ", ":", "a:b", "\0", "é", "\u2028", "\x85", "\x0b", "9" * 9])
lines = st.builds("{}{}{}".format, names, st.sampled_from([":", ": ", ""]), contents) | st.just("")
ends = st.sampled_from(["\n", "\r", "\r\n"])
streams = st.lists(st.tuples(lines, ends), max_size=14).map(lambda parts: "".join(map("".join, parts)))


@st.composite
def cut_streams(draw: st.DrawFn) -> list[bytes]:
    raw = (draw(st.sampled_from(["", "\ufeff", "\ufeff\ufeff"])) + draw(streams) + draw(lines)).encode()
    cuts = sorted(draw(st.lists(st.integers(0, len(raw)), max_size=12)))
    return [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]


@settings(max_examples=60)
@given(cut_streams())
@example([b"data: a\r", b"\ndata: b\r", b"", b"\n\r", b"\n"])
@example([b"data: a\r", b"\r", b"data: b\r", b"\r"])
@example([b"\xef", b"\xbb", b"\xbfdata: \xc3", b"\xa9\n\n"])
def test_any_cut_of_a_stream_says_what_the_standard_says(chunks: list[bytes]) -> None:
    assert events_of(*chunks) == whatwg(b"".join(chunks))


@given(streams)
def test_a_stream_byte_by_byte_says_the_same_as_at_once(text: str) -> None:
    raw = text.encode()
    assert events_of(*(raw[at : at + 1] for at in range(len(raw)))) == events_of(raw)


@pytest.mark.parametrize(("name", "text", "expected"), wire.table("event_streams")["read"])
def test_a_stream_is_read_as(name: str, text: str, expected: list[dict[str, Any]]) -> None:
    raw, events = text.encode(), [sse.SseEvent(**one) for one in expected]
    assert events_of(raw) == events == events_of(*(raw[at : at + 1] for at in range(len(raw)))), name


def test_an_event_is_handed_over_with_the_very_byte_that_ends_it() -> None:
    for stream in (b"data: x\n\n", b"data: x\r\r", b"data: x\r\n\r"):  # the LF of the last CRLF is still to come
        parser = sse.SseParser()
        assert parser.feed(stream[:-1]) == []
        assert parser.feed(stream[-1:]) == [sse.SseEvent("x")]
    assert parser.feed(b"\n") == []


# --- bounds ---------------------------------------------------------------------------------------------------------

BEYOND = {
    "one line": b"data: " + b"x" * 100,
    "one line, closed": b"data: " + b"x" * 100 + b"\n\n",
    "many lines": b"data: xxxxxxxxx\n" * 11 + b"\n",
    "many empty lines of data": b"data\n" * 101,
    "many ids": b"id: xxxxxxxxx\n" * 11,
    "many names": b"event: xxxxxxxxx\n" * 11,
    "many retries": b"retry: 1\n" * 51,
    "a comment": b":" + b"x" * 100,
    "an unknown field": b"foo: " + b"x" * 100 + b"\n",
    "a line of many-byte characters": b"data: " + "é".encode() * 50,
}


@pytest.mark.parametrize("kind", BEYOND)
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_an_event_beyond_the_bound_is_refused_however_it_is_cut(kind: str, step: int) -> None:
    raw = BEYOND[kind]
    with pytest.raises(Refusal, match="bound") as caught:
        events_of(*(raw[at : at + step] for at in range(0, len(raw), step)), bound=100)
    assert caught.value.reason is Reason.RESPONSE_REFUSED


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_a_long_stream_of_small_events_is_not_beyond_the_bound(step: int) -> None:
    raw = (b"data: " + b"x" * 90 + b"\n\n" + b": ping\n" * 20 + b"foo: bar\n" * 20) * 5
    assert len(events_of(*(raw[at : at + step] for at in range(0, len(raw), step)), bound=100)) == 5 * 21


FLOODS = {
    "unknown fields": b"a\n",
    "empty data": b"data\n",
    "small data": b"data:xy\n",
    "ids": b"id:ab\n",
    "retries": b"retry:1\n",
    "one long line": b"data:xxxxxxxxxxxxxxxxx",
    "one long comment": b":xxxxxxxxxxxxxxxxxxxx",
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_without_end_takes_no_more_memory_than_the_bound_says(kind: str) -> None:
    bound, chunk = 128 * KIBIBYTE, FLOODS[kind] * (16 * KIBIBYTE // len(FLOODS[kind]))
    parser = sse.SseParser(bound)
    tracemalloc.start()
    try:
        with_refusal = _flood(parser, chunk, times=64)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert with_refusal or kind == "unknown fields"
    assert peak_bytes < 4 * bound + 64 * len(chunk)  # the pieces of one chunk are small objects, and go with it


def _flood(parser: sse.SseParser, chunk: bytes, times: int) -> bool:
    try:
        for _ in range(times):
            parser.feed(chunk)
    except Refusal:
        return True
    return False


TEN_MEBIBYTES = b"data: " + b"x" * (10 * MEBIBYTE - 100) + b"\n\n"
WORK = {
    "one line in small pieces": (TEN_MEBIBYTES, KIBIBYTE),
    "one line byte by byte": (b"data: " + b"x" * (MEBIBYTE // 2) + b"\n\n", 1),
    "line feeds": (b"\n" * MEBIBYTE, MEBIBYTE),
    "carriage returns": (b"\r" * MEBIBYTE, MEBIBYTE),
    "small events": (b"data:x\n\n" * (MEBIBYTE // 16), MEBIBYTE),
    "small data in one event": (b"data:x\n" * (MEBIBYTE // 8) + b"\n", MEBIBYTE),
    "small data in one event, cut": (b"data:x\n" * (MEBIBYTE // 8) + b"\n", 1000),
}


@pytest.mark.parametrize("kind", WORK)
def test_twice_the_stream_takes_about_twice_the_time(kind: str) -> None:
    """Were it quadratic, sixteen times the bytes would take 256 times as long; sixteen it is, and we allow 100."""
    raw, step = WORK[kind]
    small = raw[: len(raw) // 16]
    allowed_s = 100 * max(min(_seconds(small, step) for _ in range(5)), 2e-3)
    assert any(_seconds(raw, step) < allowed_s for _ in range(2))


def _seconds(raw: bytes, step: int) -> float:
    chunks = [raw[at : at + step] for at in range(0, len(raw), step)]
    parser = sse.SseParser(2 * len(raw))
    gc.disable()  # a pass over all that a test run has made is no work of the parser's
    try:
        started = time.process_time()
        for chunk in chunks:
            parser.feed(chunk)
        return time.process_time() - started
    finally:
        gc.enable()


@pytest.mark.parametrize("line", [b"data: \xff\xfe", b"data: \xc3", b"id: \xed\xa0\x80", b"event: \xc0\xaf"])
def test_fields_that_are_not_utf8_are_refused(line: bytes) -> None:
    with pytest.raises(Refusal, match="UTF-8") as caught:
        events_of(line + b"\n\n")
    assert caught.value.reason is Reason.RESPONSE_REFUSED


# --- writing --------------------------------------------------------------------------------------------------------


@given(
    st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=20),
    st.none() | st.text("abc:-_ é", max_size=8),
)
def test_a_message_that_was_written_is_read_again(data: str, identity: str | None) -> None:
    assert events_of(sse.encode_event(data.encode(), id=identity)) == [sse.SseEvent(data, identity, "message")]


@pytest.mark.parametrize("identity", [None, "", "7"])
@pytest.mark.parametrize("retry_ms", [None, 0, 500])
@pytest.mark.parametrize("data", [True, False])
def test_a_hint_that_was_written_is_read_again(identity: str | None, retry_ms: int | None, data: bool) -> None:
    hint = sse.SseEvent("" if data else None, identity, "", retry_ms)
    read = events_of(sse.encode_hint(id=identity, retry_ms=retry_ms, data=data))
    assert read == ([hint] if hint != sse.SseEvent() else [])


def test_a_keep_alive_is_a_comment() -> None:
    assert events_of(sse.KEEP_ALIVE) == [sse.COMMENT]
