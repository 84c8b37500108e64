"""Texts beside each other, patches, and marks: they hold every line, and are bounded."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from sidecar.admin.console.marked_text import MAX_CHARACTERS, json_pieces, pieces_of
from sidecar.admin.console.patches import patch_of
from sidecar.admin.console.side_by_side import MAX_SHOWN, Piece, side_by_side
from sidecar.upstreams.mcp.pins_file import readable

LINES = st.lists(st.sampled_from(["a b", "a c", "b", "", '"x\\u202ey"']), max_size=25)


def text_of(pieces: list[Piece] | None) -> str:
    return "".join(text for text, _ in pieces or [])


@given(LINES, LINES)
def test_both_sides_hold_their_lines(old: list[str], new: list[str]) -> None:
    pairs = side_by_side(old, new)
    if old == new:
        assert pairs == []
        return
    for side, lines in (("old", old), ("new", new)):
        at = 0
        for pair in pairs:
            pieces = getattr(pair, side)
            if pieces is not None:
                assert text_of(pieces) == lines[at]
            at += pair.skipped or pieces is not None
        assert at == len(lines)


def test_words_that_differ_are_marked() -> None:
    (pair,) = side_by_side(['"Reads a file."'], ['"Sends a\\u202e file."'])
    assert pair.old == [('"', ""), ("Reads", "removed"), (" a", ""), (' file."', "")]
    assert pair.new == [('"', ""), ("Sends", "added"), (" a", ""), ("\\u202e", "hidden"), (' file."', "")]


def test_what_is_beyond_the_bounds_is_marked_whole_and_cut() -> None:
    old, new = [f"a{number}" for number in range(5_000)], [f"b{number}" for number in range(5_000)]
    pairs = side_by_side(old, new)
    assert len(pairs) == MAX_SHOWN + 1 and pairs[-1].skipped == 4_000
    (pair,) = side_by_side(["x" * 50_000], ["y" * 50_000])
    assert pair.old == [("x" * MAX_CHARACTERS, "removed"), (" … 46000 characters more", "more")]
    assert text_of(json_pieces("\\u200b" * 10_000)).endswith("characters more")


@pytest.mark.parametrize("character", ["\u200b", "\u202e", "\x1b", "\U000e0041", "\u00ad"])
def test_hidden_characters_become_marked_escapes(character: str) -> None:
    assert pieces_of(f"a{character}b")[1][1] == "hidden" and character not in text_of(pieces_of(f"a{character}b"))
    shown = json_pieces(readable(f"a{character}b"))
    assert [mark for _, mark in shown] == ["", "hidden", ""]
    assert json_pieces(readable("a\\u200b")) == [('"a\\\\u200b"', "")], "a backslash of its own is no escape"


@settings(max_examples=25)
@given(LINES, LINES, st.sampled_from(["\n", ""]), st.sampled_from(["\n", ""]))
def test_git_applies_the_patch(old: list[str], new: list[str], old_end: str, new_end: str) -> None:
    before, after = "\n".join(old) + old_end if old else "", "\n".join(new) + new_end
    patch = patch_of("policies/pins.yaml", before, after)
    if before == after:
        assert patch == ""
        return
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as name:
        file = Path(name) / "policies" / "pins.yaml"
        file.parent.mkdir()
        if before:
            file.write_text(before)
        subprocess.run(["git", "apply", "-"], input=patch, text=True, cwd=name, check=True, timeout=10)
        assert (file.read_text() if file.exists() else "") == after
