"""Does every name lead back to where it came from, and to nowhere else?"""

import string

import pytest
from hypothesis import given, strategies as st

from sidecar.gateway.frontends.aggregate.names import joined, split, tagged, untagged, unwrapped, wrapped
from sidecar.gateway.request_state import Seal
from sidecar.protocols.jsonrpc import INT64_MIN, UINT64_MAX
from sidecar.settings.uris import fault_in_uri
from tests.tables import tables

SERVERS = st.from_regex(r"[a-z0-9]{1,8}(-[a-z0-9]{1,8}){0,2}", fullmatch=True)
NAMES = st.text(string.ascii_letters + string.digits + "_.-/", min_size=1, max_size=90)
TAILS = st.text(string.ascii_letters + string.digits + "_.-/%:?#[]@!$&'()*+,;=~", max_size=60)
URIS = st.one_of(TAILS.map("note://x".__add__), TAILS.map("ui://x".__add__))


@given(SERVERS, NAMES)
def test_a_name_leads_back(server: str, name: str) -> None:
    assert split(joined(server, name)) == (server, name)


@given(SERVERS, URIS)
def test_a_uri_that_is_plain_leads_back_and_is_one_path_segment(server: str, uri: str) -> None:
    if fault_in_uri(uri):
        return
    there = wrapped(server, uri)
    assert unwrapped(there) == (server, uri)
    assert there.partition(":")[0] == ("ui" if uri.startswith("ui:") else "sidecar")
    assert there.count("/") == 3 and there.isascii() and "?" not in there and "#" not in there


@given(SERVERS, st.one_of(st.integers(INT64_MIN, UINT64_MAX), st.text(max_size=40)))
def test_an_id_leads_back_with_its_type(server: str, value: str | int) -> None:
    tag = tagged(server, value)
    found = untagged(tag)
    assert tag is None or (found == (server, value) and found is not None and type(found[1]) is type(value))


@given(st.text(max_size=40))
def test_no_text_is_two_names(text: str) -> None:
    found = split(text)
    assert found is None or joined(*found) == text
    tag = untagged(text)
    assert tag is None or tagged(*tag) == text


def test_what_no_server_could_have_asked_by_is_no_id_and_ids_that_differ_only_in_type_stay_two() -> None:
    for tag in ("github__true", "github__null", "github__[1]", "github__1.0", "github__", "__1", 1, None):
        assert untagged(tag) is None
    assert tagged("github", 1) != tagged("github", "1")
    assert tagged("github", "x" * 300) is None


@pytest.mark.parametrize(("template", "expected"), tables("gateway/frontends/aggregate/names")["templates"])
def test_a_template_keeps_its_expressions_and_leads_back(template: str, expected: str) -> None:
    assert wrapped("s", template) == expected
    assert unwrapped(expected) == ("s", template)


def test_a_scheme_names_no_server_alone_and_what_no_uri_holds_comes_out_encoded() -> None:
    for uri in ("ui://w/a.html", "ui://s/note%3A%2F%2Fa", "ui://s", "file://s/ui%3A%2F%2Fa"):
        assert unwrapped(uri) is None
    assert unwrapped("sidecar://s/note%3A%2F%2Fa%20%C3%A4") == ("s", "note://a%20%C3%A4")


def test_a_cursor_opens_for_who_it_was_sealed_for_and_not_when_it_was_touched() -> None:
    seal, other = Seal(b"k" * 32), Seal(b"o" * 32)
    cursor = seal.seal(b"said", "alice", "tools/list")
    assert seal.open(cursor, "alice", "tools/list") == b"said"
    for which, binding, method, given_ in (
        (other, "alice", "tools/list", cursor),
        (seal, "bob", "tools/list", cursor),
        (seal, "alice", "prompts/list", cursor),
        (seal, "alicetools", "/list", cursor),
        (seal, "alice", "tools/list", cursor[:-4]),
        (seal, "alice", "tools/list", "x" + cursor),
        (seal, "alice", "tools/list", 7),
    ):
        assert which.open(given_, binding, method) is None
