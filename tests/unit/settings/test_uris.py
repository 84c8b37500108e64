"""Is a resource URI refused where a reader could take it for another place, and only there?"""

import json
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given, settings, strategies as st

from sidecar.policy.patterns import glob
from sidecar.settings.uris import fault_in_uri, named_object, normal_pattern, normal_uri

KNOWN = json.loads((Path(__file__).parents[2] / "golden" / "settings" / "uris.json").read_text())
REFUSED = [(why, uri) for why, uris in (KNOWN["refused"] | KNOWN["without a form"]).items() for uri in uris]
LONG = [
    ("absolute URI", "x:" + "a" * 2001),
    ("absolute URI", "x" * 65 + ":a"),
    ("more than twice over", "x:" + "%25" * 3 + "25" * 600),
    ("including percent-encoding", "x:" + "|" * 1000),
]


@pytest.mark.parametrize("uri", [*KNOWN["taken"], "x:" + "a" * 2000], ids=lambda uri: uri[:40])
def test_a_uri_with_one_meaning_is_taken(uri: str) -> None:
    assert fault_in_uri(uri) == ""


@pytest.mark.parametrize(("why", "uri"), REFUSED + LONG)
def test_a_uri_with_another_meaning_is_refused_and_the_reason_told(why: str, uri: str) -> None:
    assert why in fault_in_uri(uri)


@settings(max_examples=60)
@given(st.lists(st.sampled_from([*"./\\;?#%@:25ef ac\0", "%2e", "%25", "%5C", "%c0", "..", "//", "41"]), max_size=12))
def test_a_taken_uri_names_the_same_place_however_often_it_is_decoded(parts: list[str]) -> None:
    uri = "x:" + "".join(parts)
    if fault_in_uri(uri):
        return
    for _ in range(4):
        hierarchy = uri.partition(":")[2].replace("?", "#").partition("#")[0]
        assert not {".", ".."} & {segment.partition(";")[0] for segment in hierarchy.split("/")}
        assert "\\" not in uri
        decoded = unquote(uri)
        assert [decoded.count(sign) for sign in "./"] == [uri.count(sign) for sign in "./"]
        assert all(character >= " " and character != "\x7f" for character in decoded)
        uri = decoded


@pytest.mark.parametrize("part", ["%25", "%2525", "a/", "/.", "@", "%c3%a9", "?", "%41;"])
def test_a_long_hostile_uri_is_judged(part: str) -> None:
    """A judge that decodes or backtracks without bound would not return."""
    assert isinstance(fault_in_uri("x://" + part * (1990 // len(part))), str)


# --- the normal form --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("uri", "form"), KNOWN["forms"])
def test_a_uri_has_one_form(uri: str, form: str) -> None:
    assert fault_in_uri(uri) == ""
    assert (normal_uri(uri), normal_uri(form)) == (form, form)


WORDS = st.text("abchr0_-~", min_size=1, max_size=6)


@st.composite
def equivalents(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A URI in normal form, and other spellings of it (RFC 3986, section 6.2)."""
    scheme = draw(st.sampled_from(["file", "http", "https", "notes", "git"]))
    host = "" if scheme == "file" else draw(WORDS.filter(lambda word: not word.isdigit())) + "x"
    path = "".join(f"/{word}" for word in draw(st.lists(WORDS, min_size=1, max_size=4)))
    query = draw(st.sampled_from(["", "?q=a"]))
    port = {"http": ":80", "https": ":443", "git": ":9418"}.get(scheme, ":")
    cased = st.sampled_from([str.upper, str.lower, str.title])

    def spelling() -> str:
        authority = draw(cased)(host) + draw(st.sampled_from(["", port])) * bool(host)
        start = f"//{authority}"
        if scheme == "file":
            start = draw(st.sampled_from(["", "//", "//localhost", "//LOCALHOST", "//localhost:"]))
        encoded = "".join(f"%{ord(one):02x}" if one not in "/" and draw(st.booleans()) else one for one in path)
        return f"{draw(cased)(scheme)}:{start}{encoded}{query}"

    return f"{scheme}://{host}{path}{query}", [spelling() for _ in range(4)]


@settings(max_examples=60)
@given(equivalents())
def test_every_spelling_has_the_same_form_and_a_rule_in_any_fits_them_all(found: tuple[str, list[str]]) -> None:
    form, spellings = found
    rule = normal_pattern(spellings[0][: spellings[0].rindex("/") + 1] + "*")
    for uri in spellings:
        assert fault_in_uri(uri) == ""
        assert (normal_uri(uri), named_object(f"resource:s/{uri}")) == (form, f"resource:s/{form}")
        assert glob(normal_uri(uri), rule)


@given(st.text('aBc%417e2f:/?#{}*|&=;~"', min_size=1, max_size=20))
def test_a_form_is_its_own_form(text: str) -> None:
    uri = f"Ab:{text}"
    if not fault_in_uri(uri):
        assert fault_in_uri(normal_uri(uri)) == "" and normal_uri(normal_uri(uri)) == normal_uri(uri)


@pytest.mark.parametrize(("written", "read"), KNOWN["patterns"])
def test_a_pattern_is_read_as_it_fits_what_was_meant(written: str, read: str) -> None:
    assert (normal_pattern(written), normal_pattern(read)) == (read, read)


def test_a_pattern_that_no_uri_fits_is_taken_as_it_is() -> None:
    pattern = "file:///a*\ue005"
    assert normal_pattern(pattern) == pattern
