"""What is told of an upstream's status?"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate

import pytest

from sidecar.errors import Reason
from sidecar.upstreams.statuses import MAX_RETRY_AFTER_S, passes_on, refusal_of, retry_after_s
from tests.tables import tables


@dataclass(frozen=True)
class Head:
    status: int
    headers: Mapping[str, str]


WAITS = {"17": 17.0, " 0 ": 0.0, "999999999999": MAX_RETRY_AFTER_S, "Thu, 01 Jan 1970 00:00:00 GMT": 0.0}
WAITS["Fri, 31 Dec 2100 23:59:59 GMT"] = MAX_RETRY_AFTER_S
NO_WAITS = ["", "soon", "-1", "1.5", "٣", "Thu, 99 Jan 99999 00:00:00 GMT"]


def test_a_time_to_come_again_is_bounded() -> None:
    for said, wait_s in {**WAITS, **dict.fromkeys(NO_WAITS)}.items():
        assert retry_after_s(Head(429, {"retry-after": said})) == wait_s, said


def test_a_date_is_the_seconds_until_then() -> None:
    assert 0 < retry_after_s(Head(503, {"retry-after": formatdate(time.time() + 60, usegmt=True)})) <= 60


@pytest.mark.parametrize(("status", "headers", "reason", "http"), tables("upstreams/statuses")["statuses"])
def test_two_statuses_are_passed_on(status: int, headers: dict[str, str], reason: Reason, http: int) -> None:
    refusal = refusal_of(Head(status, headers))
    assert (refusal.reason, refusal.answer.http, refusal.answer.session_http) == (reason, http, 200)
    assert passes_on(refusal) == (http != 502)


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("/mcp/", "/mcp/"),
        ("https://mcp.acme.example/mcp/?key=s3cret#x", "https://mcp.acme.example/mcp/"),
        ("https://user:s3cret@mcp.acme.example/", "https://mcp.acme.example/"),
        ("//u@h/p", "//h/p"),
        ('/a\x1b[31m b"<i>', "/a[31mbi"),
        ("/" + "a" * 1000, "/" + "a" * 199),
    ],
)
def test_a_redirect_names_its_target_and_nothing_secret(location: str, shown: str) -> None:
    detail = refusal_of(Head(307, {"location": location})).detail
    assert detail == f"it answered HTTP 307, a redirect to {shown}, which is not followed: set its url to that"
    assert refusal_of(Head(302, {})).detail == "it answered HTTP 302"
