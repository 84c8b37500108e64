"""Is a resource URI refused where a reader could take it for another place, and only there? (CONTRACT 1.2)"""

import time
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.policy.patterns import glob
from sidecar.settings.uris import fault_in_uri, named_object, normal_pattern, normal_uri

TAKEN = (
    *("test://static-text", "test://static-text/", "urn:x:y", "urn:isbn:0451450523", "file:///a/b", "file:///"),
    *("https://example.com/a?b=c#d", "http://127.0.0.1:8080/x", "http://[::1]:8080/x", "a:b", "A1+-.:x"),
    *("test://template/{id}/data", "test://{+path}{?q*}", "git://repo/HEAD~1/file.txt", "mailto:someone@example.com"),
    *("file:///a..b", "file:///...", "file:///..a/b..", "file:///.hidden/.../x", "db:table.row", "x:/a;b=1/c;d"),
    *("file:///a%20b", "file:///caf%C3%A9", "file:///caf%E9", "file:///100%25", "file:///%E2%80%AF", "x:%41%2541"),
    *("https://h/p@q", "https://h/?u=a@b", "https://h#a@b", "npm://%40scope/name", "x:?a=../b", "x:#../b"),
    *("x://h//a///b", "x:" + "a" * 2000, "file:///C:/a", "data:text/plain,hi", "x:!$&'()*+,;=|^`<>\""),
)


@pytest.mark.parametrize("uri", TAKEN, ids=lambda uri: uri[:40])
def test_a_uri_with_one_meaning_is_taken(uri: str) -> None:
    assert fault_in_uri(uri) == ""


REFUSED = {
    "absolute URI": (
        *(
            "",
            "x",
            "x:",
            ":x",
            "/a/b",
            "//h/a",
            "1x:a",
            "-x:a",
            "x y:a",
            "é:a",
            "x:é",
            "x:\u202e",
            "x: ",
            " x:a",
            "x:a ",
        ),
        *("x:a\n", "x:\na", "x:\0", "x:\t", "x:\x7f", "x:\x80", "x:a b", "x:" + "a" * 2001, "x" * 65 + ":a"),
        *("\ufeffx:a", "x\r:a"),
    ),
    "percent signs that encode nothing": (
        *("x:%", "x:a%", "x:%2", "x:%zz", "x:%%32e", "x:%u002e", "file:///%2.%2./", "x:%4"),
        *("x:\\", "file:///a\\b", "file:\\\\h\\a", "file:///a/..\\b", "http:/\\evil/a"),
    ),
    "dot segments": (
        *(
            "file:///.",
            "file:///..",
            "file:///a/.",
            "file:///a/..",
            "file:///a/./b",
            "file:///a/../b",
            "x:../a",
            "x:./a",
        ),
        *("x:.", "x:..", "x:a/..", "x://../a", "x://h/..?q", "x://h/..#f", "file:///a/..;/b", "file:///a/.;x=1/b"),
        *("file:///a/..%3Bx/b", "file:///a/..%3fx", "file:///a/..%23x", "file:///a/..%253Fx"),
    ),
    "encoded dots, slashes or backslashes": (
        *("file:///%2e%2e/a", "file:///%2E%2E/a", "file:///.%2e/a", "file:///a%2fb", "file:///a%2Fb", "file:///a%5cb"),
        *("x:?a=%2e", "x:#%2F", "file:///%252e%252e/a", "file:///a%252fb", "file:///a%255cb", "file:///a%25%32%65b"),
        *(
            "file:///%c0%ae%c0%ae/a",
            "file:///a%C0%AFb",
            "file:///a%c1%9cb",
            "file:///%e0%80%ae",
            "file:///%f0%80%80%ae",
        ),
        *("file:///%25c0%25ae",),
    ),
    "user information": (
        *(
            "https://user@host/a",
            "https://user:secret@host/a",
            "https://@host/a",
            "https://a@b@host/",
            "x://u@",
            "x://u@h?q",
        ),
        *("https://good.example@evil.example/a", "https://user@host", "https://{user}@host/"),
    ),
    "encoded control characters": (
        *("x:%00", "x:%0a", "x:%0D%0A", "x:%1b", "x:%7F", "x:%C2%85", "x:%C2%80", "x:?a=%00", "x:%2500", "x:%250a"),
        *("x:%09", "x:%1F"),
    ),
    "more than twice over": ("x:%252541", "x:%25252525", "x:" + "%25" * 3 + "25" * 600),
}


@pytest.mark.parametrize(("why", "uri"), [(why, uri) for why, uris in REFUSED.items() for uri in uris])
def test_a_uri_with_another_meaning_is_refused_and_the_reason_told(why: str, uri: str) -> None:
    assert why in fault_in_uri(uri)


@settings(max_examples=200)
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
def test_a_long_hostile_uri_is_judged_at_once(part: str) -> None:
    uri = "x://" + part * (1990 // len(part))
    started = time.process_time()
    fault_in_uri(uri)
    assert time.process_time() - started < 0.5


# --- the normal form --------------------------------------------------------------------------------------------------

FORMS = (
    ("FILE:///etc/passwd", "file:///etc/passwd"),
    ("file:/etc/passwd", "file:///etc/passwd"),
    ("file://LocalHost/etc/passwd", "file:///etc/passwd"),
    ("file://localhost:/etc/passwd", "file:///etc/passwd"),
    ("file:///%65tc/%70asswd", "file:///etc/passwd"),
    ("file:////etc//passwd", "file:///etc/passwd"),
    ("file://documents/A", "file://documents/A"),
    ("notes://h%72/x", "notes://hr/x"),
    ("Notes://HR/X", "notes://hr/X"),
    ("notes://h%C3%a9/%c3%A9", "notes://h%C3%A9/%C3%A9"),
    ("notes://hr/a%3Ab%40c", "notes://hr/a:b@c"),
    ("notes://hr/x?#", "notes://hr/x"),
    ("db://h/q?a%3db=%41%26", "db://h/q?a%3Db=A%26"),
    ("http://Example.com:80", "http://example.com/"),
    ("https://example.com:00443/a", "https://example.com/a"),
    ("http://h:8080/%7Euser", "http://h:8080/~user"),
    ("http://[0:0::1]:80/x", "http://[::1]/x"),
    ("postgres://DB:5432/Users", "postgres://db/Users"),
    ("x:/a|b*", "x:/a%7Cb%2A"),
    ("URN:isbn:%30451", "urn:isbn:0451"),
    ("Test://H/{Id}/{+Path}{?q*}", "test://h/{Id}/{+Path}{?q*}"),
    ("file://{+path}", "file://{+path}"),
)


@pytest.mark.parametrize(("uri", "form"), FORMS)
def test_a_uri_has_one_form(uri: str, form: str) -> None:
    assert fault_in_uri(uri) == ""
    assert (normal_uri(uri), normal_uri(form)) == (form, form)


NO_FORM = {
    "file:/": ("file:etc/passwd", "FILE:x"),
    "usual form": (
        *("http://127.1/", "http://0x7f000001/", "http://2130706433/", "https://h./x", "http://h%C3%A9/", "http:///x"),
        *("http://[::g]/", "http://[fe80::1%25eth0]/", "http://1.2.3.08/"),
    ),
    "dot segments": ("file:///a?/../../etc/passwd", "file:///a#/../../etc/passwd"),
    "what must be encoded": ("x:" + "|" * 1000,),
}


@pytest.mark.parametrize(("why", "uri"), [(why, uri) for why, uris in NO_FORM.items() for uri in uris])
def test_what_has_no_form_is_refused(why: str, uri: str) -> None:
    assert why in fault_in_uri(uri)


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


@settings(max_examples=200)
@given(equivalents())
def test_every_spelling_has_the_same_form(found: tuple[str, list[str]]) -> None:
    form, spellings = found
    for uri in spellings:
        assert fault_in_uri(uri) == ""
        assert (normal_uri(uri), named_object(f"resource:s/{uri}")) == (form, f"resource:s/{form}")


@given(st.text('aBc%417e2f:/?#{}*|&=;~"', min_size=1, max_size=20))
def test_a_form_is_its_own_form(text: str) -> None:
    uri = f"Ab:{text}"
    if not fault_in_uri(uri):
        assert fault_in_uri(normal_uri(uri)) == "" and normal_uri(normal_uri(uri)) == normal_uri(uri)


PATTERNS = (
    ("FILE:///etc/*", "file:///etc/*"),
    ("file:/etc/*", "file:///etc/*"),
    ("file:/*", "file:///*"),
    ("file://localhost/*", "file:///*"),
    ("file:*", "file:*"),
    ("file://*/etc/*", "file://*/etc/*"),
    ("FILE*", "file*"),
    ("*://HR/*", "*://hr/*"),
    ("notes://H*R/%58*", "notes://h*r/X*"),
    ("http://H:80/*", "http://h/*"),
    ("http://h", "http://h/"),
    ("http://h*", "http://h*"),
    ("*Secret%41*", "*SecretA*"),
    ("*", "*"),
    ("x://{Id}/*", "x://{Id}/*"),
    ("x:/a%2Ab", "x:/a%2Ab"),
)


@pytest.mark.parametrize(("written", "read"), PATTERNS)
def test_a_pattern_is_read_as_it_fits_what_was_meant(written: str, read: str) -> None:
    assert (normal_pattern(written), normal_pattern(read)) == (read, read)


@settings(max_examples=200)
@given(equivalents())
def test_a_rule_written_in_any_spelling_fits_every_spelling(found: tuple[str, list[str]]) -> None:
    _, (rule, *others) = found
    end = rule.rindex("/") + 1
    for uri in others:
        assert glob(normal_uri(uri), normal_pattern(rule[:end] + "*"))
