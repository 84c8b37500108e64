"""Are the console's files those that they are said to be, and within its content security policy?"""

import hashlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sidecar.admin.console.rendering import FOLDER

VENDOR = FOLDER / "static" / "vendor"
LISTED: list[dict[str, str]] = tomllib.loads((VENDOR / "VENDORED.toml").read_text("utf-8"))["file"]
TEMPLATES = sorted((FOLDER / "templates").glob("*.html"))


def test_every_vendored_file_is_listed() -> None:
    licences = {one["license_file"] for one in LISTED}
    assert {path.name for path in VENDOR.iterdir()} == {one["name"] for one in LISTED} | licences | {"VENDORED.toml"}


@pytest.mark.parametrize("one", LISTED, ids=[one["name"] for one in LISTED])
def test_a_vendored_file_is_that_of_its_package_with_its_licence(one: dict[str, Any]) -> None:
    assert hashlib.sha256((VENDOR / one["name"]).read_bytes()).hexdigest() == one["sha256"]
    text = " ".join((VENDOR / one["license_file"]).read_text("utf-8").split())
    assert {"0BSD": "Permission to use, copy, modify", "MIT": "Permission is hereby granted"}[one["license"]] in text
    assert re.fullmatch(r"\d+\.\d+\.\d+", one["version"]) and "/" in one["path"] and "://" not in str(one)


@pytest.mark.parametrize("path", TEMPLATES, ids=[path.name for path in TEMPLATES])
def test_a_template_escapes_all_and_has_nothing_inline(path: Path) -> None:
    text = path.read_text("utf-8")
    assert not re.search(r"\|\s*safe\b|autoescape|Markup", text)
    assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son[a-z]+=|javascript:|hx-on|hx-vals=.js", text)
    assert not re.search(r"https?://", text)
