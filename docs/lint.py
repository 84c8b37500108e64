"""Checks the prose of the pages: the house vocabulary, headings, long sentences, and proselint's advice.

    python -m docs.lint            checks every page, and the error texts, log lines and descriptions in sidecar/
    python -m docs.lint FILE…      checks these pages

Prints FILE:LINE:COLUMN: MESSAGE and exits 1 if it finds something. Code, links' targets and comments are no prose.
docs/reference/ has every setting's description and every help text, so that these are checked with the pages.
`docs/vocabulary.yml` has the terms.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path

import yaml
from proselint.checks import __register__ as proselint_checks
from proselint.config import DEFAULT, Config
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

from tests.pages import NAMES, ROOT

LONGEST_SENTENCE = 40  # words
CODE, HIDDEN = "\N{BLACK SMALL SQUARE}", "\N{WHITE SMALL SQUARE}"  # instead of what is no prose
_VOCABULARY = yaml.safe_load((ROOT / "docs" / "vocabulary.yml").read_text("utf-8"))

_FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
_NO_PROSE = re.compile(
    r"\A---\n.*?\n---$"  # front matter
    r"|<!--.*?-->|</?[a-z][^>\n]*>"
    r"|(?P<code>(?P<ticks>`+)(?!`)(?:(?!\n *[\n|]).)+?(?<!`)(?P=ticks)(?!`))"
    r"|(?<=\])\([^)\s]*(?: +\"[^\"\n]*\")?\)|(?<=\])\[[^\]\n]*\]|^\[[^\]\n]+\]: .*$"  # targets of links
    r"|https?://[^\s)>]+|\{[#.:][^}\n]*\}|&[a-z]+;|^ *(?:!!!|\?\?\?\+?|===) ?\w*",
    re.DOTALL | re.MULTILINE,
)
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
_QUESTION = re.compile(
    r"(?:what|who|whose|how|why|when|where|which|is|are|does|do|can|could|should|may|must|will)\b|.*\?", re.IGNORECASE
)
_PARAGRAPH_END = re.compile(r"\n *\n|\n(?= *(?:[-*+]|\d+\.) )|\n(?=#)|^ *\|.*$", re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<=[.!?:;])[)\"*_]*\s+")
_NAME = re.compile(rf"\b(?:{'|'.join(sorted(_VOCABULARY['names'], key=len, reverse=True))})\b")


@dataclass(frozen=True, order=True)
class Finding:
    """`at` counts characters from 0."""

    at: int
    message: str


@dataclass(frozen=True)
class Term:
    pattern: re.Pattern[str]
    write: str
    exceptions: tuple[re.Pattern[str], ...]
    pages: str

    def found_in(self, prose: str, page: str) -> Iterator[Finding]:
        if self.pages and fnmatch(page, self.pages):
            return
        allowed = [found.span() for exception in self.exceptions for found in exception.finditer(prose)]
        for found in self.pattern.finditer(prose):
            if not any(start <= found.start() and found.end() <= end for start, end in allowed):
                term = " ".join(found[0].split())
                yield Finding(found.start(), f'"{term}": write {self.write}')


def _pattern(expression: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{expression})\b".replace(" ", r"\s+"), re.IGNORECASE | re.MULTILINE)


TERMS = tuple(
    Term(_pattern(one["term"]), one["write"], tuple(map(_pattern, one.get("except", ()))), one.get("pages", ""))
    for one in _VOCABULARY["terms"]
)


def prose_in(page: str) -> str:
    """The page with everything else hidden, so that every place stays where it is."""
    return _NO_PROSE.sub(_hidden, _FENCE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), page))


def _hidden(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", CODE if found["code"] else HIDDEN, found[0])


def findings_in(page: str, name: str) -> list[Finding]:
    """Everything that is wrong with the text of a page."""
    prose = prose_in(page)
    found = [finding for term in TERMS for finding in term.found_in(prose, name)]
    return sorted([*found, *_headings(prose), *_long_sentences(prose), *_proselint(prose)])


def _headings(prose: str) -> Iterator[Finding]:
    for heading in _HEADING.finditer(prose):
        text = _NAME.sub("", heading[1])
        if _QUESTION.match(text):
            yield Finding(heading.start(1), "a question as a heading: write a noun phrase or an imperative")
        title = [word for word in re.findall(r"[^\W\d_]+", text)[1:] if len(word) > 3]
        if len(title) > 1 and all(word.istitle() for word in title):
            yield Finding(heading.start(1), "capitals: write the heading in sentence case")


def _long_sentences(prose: str) -> Iterator[Finding]:
    at = 0
    for end in (*(found.span() for found in _PARAGRAPH_END.finditer(prose)), (len(prose), len(prose))):
        yield from _too_long(prose[at : end[0]], at)
        at = end[1]


def _too_long(paragraph: str, at: int) -> Iterator[Finding]:
    start = 0
    for end in (*(found.end() for found in _SENTENCE_END.finditer(paragraph)), len(paragraph)):
        words = len(re.findall(rf"{CODE}+|[\w'-]+", paragraph[start:end]))
        if words > LONGEST_SENTENCE:
            shift = len(paragraph[start:]) - len(paragraph[start:].lstrip())
            yield Finding(at + start + shift, f"a sentence of {words} words: at most {LONGEST_SENTENCE}")
        start = end


# --- proselint --------------------------------------------------------------------------------------------------------


def _configured() -> Config:
    checks = {**DEFAULT["checks"], **_VOCABULARY["proselint"]}
    by_depth = sorted(checks.items(), key=lambda check: check[0].count("."), reverse=True)
    return Config(max_errors=1000, checks=dict(by_depth))


_CONFIG = _configured()
CheckRegistry().register_many(proselint_checks)


def _proselint(prose: str) -> Iterator[Finding]:
    if not prose.strip():
        return
    for result in LintFile("page", prose).lint(_CONFIG):
        check = result.check_result
        start, end = (max(place - 1, 0) for place in check.span)  # it puts a line end before the text
        if "\n\n" not in prose[start:end]:
            yield Finding(start, " ".join(f"{check.message} ({check.check_path})".split()))


# --- what is checked --------------------------------------------------------------------------------------------------


def literals_in(source: str) -> Iterator[tuple[int, str]]:
    """The string literals of a module that are sentences, with their lines. Docstrings and patterns are none."""
    tree = ast.parse(source)
    ignored = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "`x`" for part in node.values)
            ignored.update(id(part) for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in ignored:
            text = node.value
        else:
            continue
        if id(node) not in ignored and text.count(" ") >= 2 and not re.search(r"\(\?|\\[bdsw]|\{\{|<\w+[ >]", text):
            yield node.lineno, text


def main(words: Sequence[str]) -> int:
    number = 0
    for line in _pages(words) if words else chain(_pages(NAMES), _code()):
        sys.stdout.write(f"{line}\n")
        number += 1
    return 1 if number else 0


def _pages(names: Sequence[str]) -> Iterator[str]:
    for path in (Path(name) if Path(name).is_file() else ROOT / name for name in names):
        text = path.read_text("utf-8")
        name = path.resolve().relative_to(ROOT).as_posix() if path.resolve().is_relative_to(ROOT) else str(path)
        for finding in findings_in(text, name):
            line = text.count("\n", 0, finding.at) + 1
            column = finding.at - text.rfind("\n", 0, finding.at)
            yield f"{name}:{line}:{column}: {finding.message}"


def _code() -> Iterator[str]:
    for path in sorted((ROOT / "sidecar").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for line, text in literals_in(path.read_text("utf-8")):
            prose = prose_in(text)
            for finding in (finding for term in TERMS for finding in term.found_in(prose, name)):
                yield f"{name}:{line}:1: {finding.message} in: {' '.join(text.split())[:120]}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
