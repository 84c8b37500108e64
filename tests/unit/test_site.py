"""The pages keep their size, have a place in the navigation, and name no version but the present one."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from sidecar import __version__
from tests.pages import NAMES, ROOT, prose_of

DOCS = ROOT / "docs"
WORDS = {"docs/guides/": 900, "docs/explanation/": 1500, "docs/tutorial/": 700}
README_LINES = 250
_GENERATED = re.compile(r"<!-- (?:generated: )?([a-z-]+) -->.*?<!-- (?:end: |/)\1 -->", re.DOTALL)
_OUR_VERSION = re.compile(r"sidecar\W{1,4}v?(\d+\.\d+\.\d+)\b")


def words_in(text: str) -> int:
    """Prose and tables; code, comments and generated parts are not counted."""
    prose = re.sub(r"<!--.*?-->|^[|: -]+$", "", prose_of(_GENERATED.sub("", text)), flags=re.DOTALL | re.MULTILINE)
    return len(re.findall(r"\S*\w\S*", re.sub(r"\]\([^)]*\)", "]", prose)))


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(tuple(WORDS))])
def test_a_page_is_no_longer_than_its_kind_allows(name: str) -> None:
    (most,) = (words for folder, words in WORDS.items() if name.startswith(folder))
    assert words_in((ROOT / name).read_text("utf-8")) <= most


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= README_LINES


def test_every_page_has_one_place_in_the_navigation() -> None:
    placed = list(places(DOCS))
    assert sorted(placed) == sorted(DOCS.rglob("*.md"))


def places(folder: Path) -> Iterator[Path]:
    """The pages that the navigation names, through the `.nav.yml` of each folder."""
    for name in yaml.safe_load((folder / ".nav.yml").read_text("utf-8"))["nav"]:
        path = folder / name
        if path.is_dir():
            yield from places(path)
        else:
            yield path


@pytest.mark.parametrize("name", NAMES)
def test_a_version_in_a_page_is_the_present_one(name: str) -> None:
    assert set(_OUR_VERSION.findall((ROOT / name).read_text("utf-8"))) <= {__version__}
