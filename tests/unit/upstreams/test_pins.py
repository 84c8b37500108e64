"""What makes a tool another tool, and does pins.yaml say exactly what was approved?"""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from sidecar.errors import PolicyError
from sidecar.upstreams.mcp.pins import (
    MEMBERS,
    NO_PINS,
    UNPINNABLE,
    Pin,
    Pins,
    definition_of,
    differing,
    digest_of,
    drift_between,
    pin_of,
)
from sidecar.upstreams.mcp.pins_file import MAX_PINS_BYTES, file_with, load_pins
from tests.drawn import containers
from tests.tables import tables
from tests.unit.protocols.test_hidden_characters import POISONED

TABLES = tables("upstreams/pins")

AT, BY = "2027-01-31T08:00:00Z", "alice"
ENTRY: dict[str, Any] = TABLES["entry"]


def pin(entry: dict[str, Any] = ENTRY) -> Pin:
    return pin_of(entry, at=AT, by=BY)


def backwards(value: Any) -> Any:
    """The same value with its keys the other way round."""
    if isinstance(value, dict):
        return {key: backwards(value[key]) for key in reversed(value)}
    return [backwards(item) for item in value] if isinstance(value, list) else value


# --- the digest -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("value", [None, "other", {"type": "object", "x": 1}], ids=["null", "text", "object"])
def test_each_member_counts_and_is_named(member: str, value: object) -> None:
    """BL-061."""
    other = {**ENTRY, member: value}
    assert digest_of(other) != digest_of(ENTRY)
    assert differing(definition_of(ENTRY).members, definition_of(other).members) == (member,)
    without = {key: kept for key, kept in ENTRY.items() if key != member}
    assert len({digest_of(one) for one in (ENTRY, without, {**ENTRY, member: None})}) == 3, "absent is not null"


def test_order_and_white_space_do_not_count() -> None:
    """BL-061."""
    loosely = json.loads(json.dumps(backwards(ENTRY), indent=4))
    assert digest_of(loosely) == digest_of(ENTRY)
    assert digest_of({**ENTRY, "inputSchema": {"maximum": 1.0}}) == digest_of({**ENTRY, "inputSchema": {"maximum": 1}})


def test_the_order_of_a_list_and_each_value_in_it_count() -> None:
    lists = [["x", "y"], ["y", "x"], ["x", True], ["x", 1], ["x", "1"], ["x ", "y"]]
    assert len({digest_of({**ENTRY, "inputSchema": {"enum": one}}) for one in lists}) == len(lists)


def test_another_spelling_of_a_member_counts_and_what_is_not_pinned_may_change() -> None:
    """A client that reads keys in any case would take it for the member."""
    assert digest_of({**ENTRY, "icons": [{"src": "x"}], "_meta": {"a": 1}, "execution": {}}) == digest_of(ENTRY)
    for key in ("Description", "DESCRIPTION", "inputschema", "de\u017fcription"):
        other = {**ENTRY, key: "Delete everything."}
        assert digest_of(other) != digest_of(ENTRY)
        members = definition_of(ENTRY).members, definition_of(other).members
        assert differing(*members) in (("description",), ("inputSchema",))


@pytest.mark.parametrize("value", [2**64, float("inf"), "\ud800"], ids=["large", "infinite", "surrogate"])
def test_what_two_readers_could_read_differently_cannot_be_pinned(value: object) -> None:
    entry = {**ENTRY, "annotations": {"x": [value, 0.5]}}
    assert (definition_of(entry), pin_of(entry, at=AT, by=BY)) == (UNPINNABLE, None)
    assert drift_between(pin(), definition_of(entry)) is not None
    assert drift_between(UNPINNABLE, UNPINNABLE) is not None, "what has no digest is never as it was"


# --- what holds -------------------------------------------------------------------------------------------------------

DIGEST = digest_of(ENTRY)


@pytest.mark.parametrize(("setting", "pinned", "mode", "required"), TABLES["holds"])
def test_what_holds_is_the_table(setting: Any, pinned: bool, mode: str, required: object) -> None:
    pins = Pins({"github": {"search_code": pin()}}) if pinned else NO_PINS
    assert pins.mode("github", setting) == mode
    assert pins.required({"github": setting, "gitlab": "off"}).get("github") == required


def test_a_change_of_pins_names_what_changed() -> None:
    old = Pins({"github": {"a": pin(), "b": pin()}, "gone": {}})
    new = Pins({"github": {"b": pin(), "c": pin()}, "gitlab": {"a": pin({"name": "a"})}})
    assert new.changes(old) == (["github/c", "gitlab/", "gitlab/a"], ["github/a", "gone/"])
    assert new.changes(new) == ([], [])


# --- the file ---------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    containers(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), 3),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(MEMBERS[1:]), JSON))
def test_whatever_a_definition_holds_is_read_as_it_was_written(tmp_path_factory: Any, members: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("pins", numbered=True) / "pins.yaml"
    pins = {"a": pin({**members, "name": "a"})}
    path.write_text(file_with(path, "github", pins), "utf-8")
    assert load_pins(path) == Pins({"github": pins})


def test_hidden_characters_are_seen_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "pins.yaml"
    for number, (text, _, _) in enumerate(POISONED):
        entry = {"name": f"t{number}", "description": text}
        written = file_with(path, "github", {entry["name"]: pin(entry)})
        path.write_text(written, "utf-8")
        assert load_pins(path).servers["github"][entry["name"]].definition == entry
        assert all(character.isprintable() or character in "\n\u2764" for character in written), ascii(written)


def test_a_file_in_any_form_is_written_anew_with_the_pins_of_other_servers(tmp_path: Path) -> None:
    path = tmp_path / "pins.yaml"
    for text in ("version: 1\n", "version: 1\nservers: {github: {}, jira: {}}  # ours\n", '{"version": 1}'):
        path.write_text(text)
        before = load_pins(path).servers
        path.write_text(file_with(path, "github", {"search_code": pin()}))
        assert load_pins(path).servers == {**before, "github": {"search_code": pin()}}
    assert path.read_text() == file_with(path, "github", {"search_code": pin()})


def test_a_file_that_says_what_it_said_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "pins.yaml"
    path.write_text(file_with(path, "github", {"search_code": pin()}))
    known = load_pins(path)
    assert load_pins(path, known) is known
    path.write_text("# the same\n" + path.read_text())
    again = load_pins(path, known)
    assert again is not known and again == known
    path.unlink()
    assert load_pins(path, known) == NO_PINS


def test_without_a_file_nothing_is_pinned_and_a_link_to_nowhere_and_a_file_too_large_are_faults(tmp_path: Path) -> None:
    path = tmp_path / "pins.yaml"
    assert load_pins(path) == NO_PINS
    path.symlink_to("nowhere")
    with pytest.raises(PolicyError):
        load_pins(path)
    path.unlink()
    with path.open("wb") as file:
        file.truncate(MAX_PINS_BYTES + 1)
    with pytest.raises(PolicyError, match="larger than"):
        load_pins(path)


def edited(old: str, new: str) -> str:
    return file_with(Path("nowhere/pins.yaml"), "github", {"search_code": pin()}).replace(old, new, 1)


WRONG = [
    ("", "Y102", 0),
    ("version: 2\n", "Y104", 1),
    (edited("servers:", "server:"), "Y101", 3),
    (edited("  github:", "  GitHub:"), "Y104", 4),
    (edited('"search_code":', '"search code":'), "Y104", 5),
    (edited('"search_code":', '"search":'), "Y104", 9),
    (edited("sha256:", "md5:"), "Y104", 6),
    (edited(DIGEST, DIGEST[::-1]), "Y104", 6),
    (edited(DIGEST, DIGEST.upper()), "Y104", 6),
    (edited(AT, "yesterday"), "Y104", 7),
    (edited('"alice"', '"alice and bob"'), "Y104", 8),
    (edited("Searches code.", "Deletes code."), "Y104", 6),
    (edited("          \"name\"", "          \"description\": \"Searches code.\",\n          \"name\""), "Y104", 9),
    (edited("          \"name\"", "          \"icons\": 1,\n          \"name\""), "Y104", 9),
    (edited("        {\n", "        {{\n"), "Y104", 9),
    (edited("      pinned_by: \"alice\"\n", ""), "Y102", 5),
    (edited("      pinned_by: \"alice\"\n", "      pinned_by: \"alice\"\n      until: 3\n"), "Y101", 9),
    (edited("        {\n", "        " + "[" * 1000 + "\n        {\n"), "Y104", 9),
]  # fmt: skip


@pytest.mark.parametrize(("text", "code", "line"), WRONG, ids=[f"{code}-{n}" for n, (_, code, _) in enumerate(WRONG)])
def test_what_was_not_written_by_us_is_a_fault_at_its_place(tmp_path: Path, text: str, code: str, line: int) -> None:
    path = tmp_path / "pins.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(PolicyError) as refused:
        load_pins(path)
    fault = refused.value.faults[0]
    assert (fault.code, fault.line, fault.file) == (code, line, str(path)), str(fault)
