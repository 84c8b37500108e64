"""Does a client's file lead through us when it is wrapped, and is it what it was when it is unwrapped?"""

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings, strategies as st

from sidecar.cli.client_files.configuration import HOW_TO_REACH, ClientFile, read_client_file
from sidecar.cli.client_files.jsonc import parse_jsonc
from sidecar.cli.client_files.wrap import names_of, unwrap, wrap_at
from tests.tables import tables
from tests.unit.cli.client_files.texts import texts, values, written

TABLES = tables("cli/client_files/wrap")

PATH = Path("/nowhere/.mcp.json")
BASE = "http://127.0.0.1:8070"

extras = st.dictionaries(st.sampled_from(["autoApprove", "disabled", "note", "é"]), st.just(True), max_size=3)
programs = st.fixed_dictionaries(
    {"command": st.just("npx")},
    optional={
        "args": st.lists(texts, max_size=2),
        "env": st.dictionaries(texts, texts, max_size=2),
        "type": st.just("stdio"),
    },
)
addresses = st.fixed_dictionaries(
    {}, optional={"type": st.just("http"), "headers": st.dictionaries(texts, texts, max_size=2)}
).flatmap(
    lambda entry: st.sampled_from(["url", "serverUrl", "httpUrl"]).map(
        lambda key: {key: "https://x.example/mcp", **entry}
    )
)
entries = st.tuples(programs | addresses, extras, st.booleans()).map(
    lambda parts: {**parts[1], **parts[0]} if parts[2] else {**parts[0], **parts[1]}
)
files = st.tuples(st.dictionaries(texts, entries, min_size=1, max_size=3), values, st.booleans()).map(
    lambda parts: {"mcpServers": parts[0], "other": parts[1]} if parts[2] else {"other": parts[1], "servers": parts[0]}
)


def read(text: str) -> ClientFile:
    return read_client_file(parse_jsonc(text.encode(), PATH))


def wrapped(text: str, headers: dict[str, str] | None = None) -> str:
    file = read(text)
    return wrap_at(file, {loc: f"{BASE}/mcp/{name}" for loc, name in names_of(file, BASE).items()}, headers).text


def is_strict(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@settings(max_examples=40)
@given(written(files), st.sampled_from([{}, {"X-API-Key": "${KEY}"}]))
def test_all_servers_lead_here_and_all_else_stays(given: tuple[Any, str], headers: dict[str, str]) -> None:
    value, text = given
    done = wrapped(text, headers)
    after = parse_jsonc(done.encode(), PATH).document.data
    key = "mcpServers" if "mcpServers" in value else "servers"
    assert after["other"] == value["other"]
    assert list(after[key]) == list(value[key])
    for name, entry in after[key].items():
        assert {k: v for k, v in entry.items() if k not in HOW_TO_REACH} == {
            k: v for k, v in value[key][name].items() if k not in HOW_TO_REACH
        }
        assert set(entry) & HOW_TO_REACH <= {"type", "url", "serverUrl", "httpUrl", "headers"}
    assert all(str(server.url).startswith(f"{BASE}/mcp/") for server in read(done).servers)
    assert len({server.url for server in read(done).servers}) == len(value[key])
    assert is_strict(done) or not is_strict(text)


@settings(max_examples=40)
@given(written(files), st.sampled_from([{}, {"X-API-Key": "${KEY}"}]))
def test_to_unwrap_what_was_wrapped_is_to_have_done_nothing(given: tuple[Any, str], headers: dict[str, str]) -> None:
    text = given[1]
    done = wrapped(text, headers)
    back = unwrap(done.encode(), text.encode(), PATH)
    assert (back.raw, back.exactly) == (text.encode(), True)


@settings(max_examples=40)
@given(written(files))
def test_to_wrap_twice_is_to_wrap_once(given: tuple[Any, str]) -> None:
    once = wrapped(given[1])
    assert wrapped(once) == once


@settings(max_examples=40)
@given(written(files))
def test_of_an_edited_file_our_entries_alone_go_back(given: tuple[Any, str]) -> None:
    value, text = given
    edited = "// mine\n" + wrapped(text)
    back = unwrap(edited.encode(), text.encode(), PATH)
    assert not back.exactly
    assert back.raw.startswith(b"// mine\n")
    assert parse_jsonc(back.raw, PATH).document.data == value


def test_lines_and_comments_stay_as_they_are() -> None:
    text = TABLES["ours"]
    assert wrapped(text) == TABLES["wrapped"]
