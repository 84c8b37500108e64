"""Is evidence there when an OpenTelemetry receiver says so, and only then? The receiver is real, and reads with OTLP's
official messages."""

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from aiohttp import web
from hypothesis import given, strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

from sidecar.audit.carrier import AppendLines, UnsureError
from sidecar.audit.chain import BEGINNING, ChainEnd, UnfitHead
from sidecar.audit.otlp_carrier import MAX_ANSWER_BYTES, OtlpCarrier, _pause_s
from sidecar.audit.otlp_messages import rejected
from sidecar.audit.record import BLANK
from sidecar.http.client.origin import parse_origin
from tests.receiver import PROTOBUF, Receiver, receiving, taken
from tests.unit.audit.scenes import seal
from tests.unit.identity.authority import authority


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


def otlp(url: str, **more: Any) -> OtlpCarrier:
    return OtlpCarrier(parse_origin(url), {"service.name": "sidecar"}, **({"attempt_s": 0.3} | more))


def carried(url: str, *appends: AppendLines, **more: Any) -> None:
    """By a carrier of its own."""
    with closing(otlp(url, **more)) as carrier:
        for append in appends or (ONE,):
            carrier.carry(append)


def append_of(*events: str, **facts: Any) -> AppendLines:
    lines = []
    for seq, event in enumerate(events, 1):
        record = {**BLANK, "event": event, "seq": seq, "timestamp": "2026-11-28T12:00:00.000001Z", **facts}
        lines.append(seal(record)[0])
    return AppendLines(tuple(lines), BEGINNING, ChainEnd(len(lines), "0" * 64))


ONE = append_of("control")


def test_a_log_is_the_very_line_and_what_one_searches_by(receiver: Receiver) -> None:
    facts = {"instance": "one", "trace_id": "ab" * 16, "decision_id": "id-1", "status": "permission_denied"}
    append = append_of("refusal", "control", reason="denied-by-rule", object="tool:github/délete", **facts)
    carried(receiver.url, append, headers=lambda: {"Authorization": "Bearer of-theirs"})
    assert receiver.lines == [line.rstrip(b"\n") for line in append.lines]
    first, second = receiver.logs
    assert first.event_name == "sidecar.audit.refusal" and second.event_name == "sidecar.audit.control"
    assert first.time_unix_nano == first.observed_time_unix_nano == 1795867200_000001_000
    assert (first.severity_text, first.trace_id) == ("WARN", bytes.fromhex("ab" * 16))
    named = {each.key: each.value.string_value or each.value.int_value for each in first.attributes}
    assert named["sidecar.seq"] == 1 and named["sidecar.object"] == "tool:github/délete"
    assert named["sidecar.reason"] == "denied-by-rule" and "sidecar.agent_id" not in named
    ((resource,),) = [each.resource.attributes for each in receiver.requests[0].resource_logs]
    assert (resource.key, resource.value.string_value) == ("service.name", "sidecar")
    assert receiver.headers[0]["Authorization"] == "Bearer of-theirs"
    assert receiver.headers[0]["Content-Encoding"] == "gzip"


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_who_cannot_take_it_now_is_asked_again(receiver: Receiver, status: int) -> None:
    receiver.answers = [lambda: web.Response(status=status)] * 2
    carried(receiver.url)
    assert receiver.attempts == 3 and len(receiver.lines) == 1


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 413, 500, 501])
def test_any_other_no_is_a_no_and_the_next_is_asked_anew(receiver: Receiver, status: int) -> None:
    receiver.answers = [lambda: web.Response(status=status, text="no")]
    with closing(otlp(receiver.url)) as carrier:
        with pytest.raises(OSError, match=str(status)) as no:
            carrier.carry(ONE)
        assert not isinstance(no.value, UnsureError), "nothing is there"
        assert isinstance(no.value, UnfitHead) is (status == 413), "fewer at once may be taken"
        carrier.carry(ONE)
    assert receiver.attempts == 2


def test_a_receiver_says_when_to_come_again(receiver: Receiver) -> None:
    receiver.answers = [lambda: web.Response(status=503, headers={"Retry-After": "1"})]
    waits = Mock(spec=threading.Event(), **{"wait.return_value": False, "is_set.return_value": False})
    carried(receiver.url, over=waits)
    assert [call.args for call in waits.wait.call_args_list] == [(1.0,)]


FAR = "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"


SAID = {"": 0.5, "0": 0.5, "7": 7, "999999": 60, "soon": 0.5, "-3": 0.5, "²": 0.5, "9" * 400: 60, FAR: 0.5}


def test_no_receiver_makes_us_wait_for_ever_or_not_at_all() -> None:
    assert {said: _pause_s(said, 0.5) for said in SAID} == SAID
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert 0.5 < _pause_s(soon, 0.5) <= 30
    assert _pause_s("Sat, 28 Nov 2015 00:00:00 GMT", 0.5) == 0.5


def test_what_is_rejected_in_part_is_not_repeated_and_not_acknowledged(receiver: Receiver) -> None:
    receiver.answers = [lambda: taken(rejected_log_records=1, error_message="too old")]
    with pytest.raises(UnsureError, match="1 of 2 records were rejected") as unsure:
        carried(receiver.url, append_of("decision", "outcome"))
    assert not unsure.value.again and receiver.attempts == 1


JSON = {"content_type": "application/json"}


@pytest.mark.parametrize(
    "answer",
    [
        {"text": "<html>sign in</html>", "content_type": "text/html"},
        {"body": b"\xff\xff\xff", "content_type": PROTOBUF},
        {"body": b"\x0a\x7fcut", "content_type": PROTOBUF},
        {"text": "[]", **JSON},
        {"text": '{"partialSuccess":{"rejectedLogRecords":"x"}}', **JSON},
        {"text": '{"partialSuccess":{"rejectedLogRecords":"1"}}', **JSON},
    ],
)
def test_who_answers_something_else_is_no_receiver(receiver: Receiver, answer: dict[str, Any]) -> None:
    receiver.answers = [lambda: web.Response(**answer)]
    with pytest.raises(UnsureError):
        carried(receiver.url)


@pytest.mark.parametrize(
    "answer", [{"status": 204}, {"status": 202}, {"text": "{}"}, {"text": '{"partialSuccess":null}'}]
)
def test_receivers_that_say_yes_otherwise_are_heard(receiver: Receiver, answer: dict[str, Any]) -> None:
    receiver.answers = [lambda: web.Response(**answer, **JSON), lambda: taken(error_message="use gRPC")]
    carried(receiver.url, ONE, ONE)
    assert receiver.attempts == 2


@given(st.integers(0, 2**62), st.text(max_size=300))
def test_the_official_messages_are_read(count: int, message: str) -> None:
    said = ExportLogsServiceResponse()
    said.partial_success.rejected_log_records = count
    said.partial_success.error_message = message
    assert rejected(PROTOBUF, said.SerializeToString()) == said.partial_success


@given(st.binary(max_size=64))
def test_no_bytes_break_the_reader(body: bytes) -> None:
    for media_type in (PROTOBUF, "application/json", "text/plain"):
        with suppress(ValueError):
            rejected(media_type, body)


def test_a_receiver_that_was_closed_and_opened_again_gets_it_once(receiver: Receiver) -> None:
    with receiving() as other:
        there = otlp(other.url)
        there.carry(ONE)
    begun = threading.Thread(target=there.carry, args=(ONE,), daemon=True)
    begun.start()
    time.sleep(0.1)
    with receiving(other):
        begun.join(5)
        assert not begun.is_alive()
    assert len(other.lines) == 2
    there.close()


def test_one_that_was_given_up_says_whether_it_may_be_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/logs"
        with closing(otlp(url, attempt_s=0.05)) as carrier:
            threading.Timer(0.1, carrier.give_up).start()
            with pytest.raises(UnsureError):
                carrier.carry(ONE)
    with closing(otlp(url)) as carrier:
        carrier.give_up()
        with pytest.raises(OSError) as nothing:
            carrier.carry(ONE)
    assert not isinstance(nothing.value, UnsureError), "no receiver was there"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: x" + b"x" * 40_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * (MAX_ANSWER_BYTES + 1),
        b"220 smtp\r\n",
        b"",
    ],
)
def test_a_torn_or_endless_answer_is_none(answer: bytes) -> None:
    """And slow ones have a deadline for the whole of them."""
    heard = []

    def serve(server: socket.socket) -> None:
        for reply in (answer, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"):
            connection, _ = server.accept()
            with connection, suppress(OSError):
                heard.append(connection.recv(65536))
                connection.sendall(reply)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        carried(f"http://127.0.0.1:{server.getsockname()[1]}/v1/logs")
    assert len(heard) == 2


def test_over_tls_the_receiver_is_who_its_authority_says(tmp_path: Path) -> None:
    of_theirs = authority("theirs").issue(dns=["localhost"], names=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*of_theirs.write(tmp_path, "receiver"))
    with receiving(Receiver(tls=context)) as receiver:
        url = f"https://localhost:{receiver.port}/v1/logs"
        carried(url, authorities=authority("theirs").own.pem)
        with closing(otlp(url, authorities=authority("others").own.pem)) as stranger:
            stranger.give_up()
            with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED") as refused:
                stranger.carry(ONE)
        assert not isinstance(refused.value, UnsureError)
    assert len(receiver.lines) == 1
