"""Are the console's files those that they are said to be, and within its content security policy?"""

import hashlib
import re
import tomllib
from pathlib import Path

import pytest

from sidecar.admin.console.rendering import FOLDER

OF_TESTS = Path(__file__).parents[2] / "console" / "vendor"
LISTS = {
    folder: tomllib.loads((folder / "VENDORED.toml").read_text("utf-8"))["file"]
    for folder in (FOLDER / "static" / "vendor", OF_TESTS)
}
FILES = [pytest.param(folder, one, id=one["name"]) for folder, listed in LISTS.items() for one in listed]
TEMPLATES = sorted((FOLDER / "templates").glob("*.html"))
LICENCES = {
    "0BSD": "Permission to use, copy, modify",
    "MIT": "Permission is hereby granted",
    "MPL-2.0": "Mozilla Public License",
}


def test_every_vendored_file_is_listed() -> None:
    for folder, listed in LISTS.items():
        known = {one["name"] for one in listed} | {one["license_file"] for one in listed} | {"VENDORED.toml"}
        assert {path.name for path in folder.iterdir()} == known


@pytest.mark.parametrize(("folder", "one"), FILES)
def test_a_vendored_file_is_that_of_its_package_with_its_licence(folder: Path, one: dict[str, str]) -> None:
    assert hashlib.sha256((folder / one["name"]).read_bytes()).hexdigest() == one["sha256"]
    assert LICENCES[one["license"]] in " ".join((folder / one["license_file"]).read_text("utf-8").split())
    assert re.fullmatch(r"\d+\.\d+\.\d+", one["version"]) and "://" not in str(one)


@pytest.mark.parametrize("path", TEMPLATES, ids=[path.name for path in TEMPLATES])
def test_a_template_escapes_all_and_has_nothing_inline(path: Path) -> None:
    text = path.read_text("utf-8")
    assert not re.search(r"\|\s*safe\b|autoescape|Markup", text)
    assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son[a-z]+=|javascript:|hx-on|hx-vals=.js", text)
    assert not re.search(r"https?://", text)
