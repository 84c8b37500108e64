"""The prose linter finds what the house vocabulary names, at its place, and nothing in code."""

import pytest

from docs.lint import findings_in, literals_in


def found(text: str, name: str = "docs/page.md") -> list[tuple[int, str]]:
    return [(finding.at, finding.message) for finding in findings_in(text, name)]


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("The store is out.", 10, '"is out": write unavailable'),
        ("`told` is what callers are told.\n", 27, '"told": write reports, says, returns, shows'),
        ("# Who decides\n", 2, "a question as a heading: write a noun phrase or an imperative"),
        ("# Tools And Their Pins\n", 2, "capitals: write the heading in sentence case"),
        ("Some text.\n\n" + "yes, no, " * 20 + "yes", 12, "a sentence of 41 words: at most 40"),
        ("It is is here.", 3, "There's a lexical illusion in 'is is' - a phrase is repeated. (lexical_illusions)"),
    ],
)
def test_what_is_found(text: str, at: int, message: str) -> None:
    assert found(text) == [(at, message)]


@pytest.mark.parametrize(
    "text",
    [
        "The store is out of date.",
        "```text\nnobody told us\n```\n",
        "[pins](told.md#whoever) <!-- whoever -->",
        "## Connect Claude Desktop and VS Code\n",
        "| " + "yes, no, " * 30 + "|\n",
    ],
)
def test_what_is_no_finding(text: str) -> None:
    assert found(text) == []


def test_a_term_may_be_allowed_in_one_page() -> None:
    assert found("The seed has it.", "docs/reference/seed-names.md") == []
    assert len(found("The seed has it.")) == 1


def test_sentences_in_code() -> None:
    source = '"""No docstring at all."""\nx = f"it is {x} here"\ny = "one word"\nz = "three words here"\n'
    assert list(literals_in(source)) == [(2, "it is `x` here"), (4, "three words here")]
